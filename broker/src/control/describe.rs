//! Streams as control calls show them.

use std::sync::atomic::Ordering;

use kera_protocol::v1;

use crate::catalog::Stream;
use crate::fetch::group_info;
use crate::start::Shared;

/// What clients need of a stream.
pub fn stream_info(shared: &Shared, stream: &Stream) -> v1::StreamInfo {
    let record = stream.record.load();
    v1::StreamInfo {
        name: record.name.clone(),
        id: record.id.as_bytes().to_vec().into(),
        config: Some(record.config.to_wire()),
        streamlets: stream
            .streamlets
            .iter()
            .map(|s| v1::StreamletInfo {
                streamlet: s.id().0,
                owner: shared.advertised.clone(),
                epoch: s.epoch().0,
            })
            .collect(),
        lane_generation: stream.lane_generation(),
        created_ms: record.created_ms,
        internal: record.internal,
    }
}

/// What people want to see of a stream.
pub fn stream_description(shared: &Shared, stream: &Stream) -> v1::DescribeStreamResponse {
    let mut lanes = Vec::new();
    for streamlet in &stream.streamlets {
        for lane in streamlet.describe() {
            lanes.push(v1::LaneDescription {
                streamlet: streamlet.id().0,
                lane: lane.lane.0,
                log_start: lane.log_start,
                head_ordinal: lane.head,
                end_ordinal: lane.end_ordinal,
                bytes: lane.groups.iter().map(|g| g.bytes).sum(),
                producers: lane.producers as u32,
                groups: lane
                    .groups
                    .iter()
                    .map(|g| group_info(lane.lane, g))
                    .collect(),
            });
        }
    }
    v1::DescribeStreamResponse {
        stream: Some(stream_info(shared, stream)),
        lanes,
    }
}

/// The broker itself.
pub fn broker_description(shared: &Shared) -> v1::DescribeBrokerResponse {
    let streams = shared.catalog.all();
    let groups = streams
        .iter()
        .flat_map(|s| &s.streamlets)
        .map(|s| s.groups() as u64)
        .sum();
    v1::DescribeBrokerResponse {
        version: env!("CARGO_PKG_VERSION").to_string(),
        data_dir: shared.dir.path().display().to_string(),
        started_ms: shared.started_ms,
        io_engine: shared.engine().to_string(),
        pool_bytes: shared.env.pool.limit() as u64,
        pool_used_bytes: shared.env.pool.used() as u64,
        connections: shared.connections.load(Ordering::Relaxed) as u32,
        streams: streams.iter().filter(|s| !s.record.load().internal).count() as u32,
        groups,
        recovery_ms: shared.recovery_ms.load(Ordering::Relaxed),
        pid: std::process::id(),
        kafka: shared.config.kafka.listen.clone(),
        kafka_advertised: shared.config.kafka.advertise.clone(),
    }
}
