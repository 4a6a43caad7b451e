//! Streams as control calls show them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_grpc::serve::Caller;
use kera_protocol::error::WireError;
use kera_protocol::v1;
use kera_replication::primary::ReplicaPosition;
use kera_streamlet::Streamlet;

use crate::admin;
use crate::cluster::shortage::{self, not_served};
use crate::cluster::standing_still;
use crate::config::NamedAddress;
use crate::data::catalog::Stream;
use crate::data::fetch::group_info;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// What clients need of a stream, at the addresses of the listener that `caller` came in by.
pub(crate) fn stream_info(
    shared: &Shared,
    stream: &Stream,
    caller: Option<&Caller>,
) -> v1::StreamInfo {
    let record = stream.record.load();
    let listener = caller.and_then(|caller| caller.listener);
    let brokers = shared.data.directory.brokers();
    // Empty while the owner is away, or this broker cannot know: others are to be asked.
    let address = |streamlet: &Streamlet| {
        let owner = shared.named_owner(streamlet);
        let owner = brokers.iter().find(|broker| Some(broker.id) == owner);
        let reached = owner.and_then(|broker| broker.native_at(listener));
        reached.unwrap_or_default().to_owned()
    };
    v1::StreamInfo {
        name: record.name.clone(),
        id: record.id.as_bytes().to_vec().into(),
        config: Some(record.config.to_wire()),
        streamlets: stream
            .streamlets
            .iter()
            .map(|s| v1::StreamletInfo {
                streamlet: s.id().0,
                owner: address(&s),
                epoch: shared.owner_of(&s).epoch.0,
                broker: shared
                    .named_owner(&s)
                    .filter(|_| shared.data.directory.is_shared()),
                replicas: shared.holders_of(&s),
            })
            .collect(),
        lane_generation: stream.lane_generation(),
        created_ms: record.created_ms,
        internal: record.internal,
    }
}

/// What people want to see of a stream, as far as this broker serves it. A streamlet that it was sealed out of, or
/// may have been, is among those that are not served: its next owner may have more.
///
/// # Errors
/// The metadata store's.
pub(crate) async fn stream_description(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    caller: Option<Caller>,
) -> Result<v1::DescribeStreamResponse, WireError> {
    let mut lanes = Vec::new();
    let mut unrecovered = shortage::unrecovered(shared, stream);
    unrecovered.extend(shortage::lacking(shared, stream));
    for streamlet in &stream.streamlets {
        let described = streamlet.describe();
        // Asked after its lanes were looked at: it may be given up meanwhile.
        match admin::is_served(shared, &streamlet) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(error) => {
                let id = streamlet.id().0;
                if unrecovered.iter().all(|other| other.streamlet != id) {
                    unrecovered.push(not_served(id, error.message));
                }
                continue;
            }
        }
        let mut positions = match &shared.clustered {
            Some(clustered) => clustered.replicated.positions(streamlet.key()).await,
            None => Vec::new(),
        };
        positions.sort_by_key(|(_, position)| (position.group, position.broker));
        for lane in described {
            let of = positions.iter().filter(|(of, _)| *of == lane.lane);
            lanes.push(v1::LaneDescription {
                replicas: of.map(|(_, position)| replica_position(position)).collect(),
                streamlet: streamlet.id().0,
                lane: lane.lane.0,
                log_start: lane.log_start,
                head_ordinal: lane.head,
                end_ordinal: lane.end_ordinal,
                bytes: lane.groups.iter().map(|g| g.bytes).sum(),
                producers: lane.producers as u32,
                stable_ordinal: streamlet.stable(lane.lane).map(|at| at.min(lane.head)),
                groups: lane
                    .groups
                    .iter()
                    .map(|g| group_info(lane.lane, g))
                    .collect(),
            });
        }
    }
    let (of, stream) = (shared.clone(), stream.clone());
    let counted = move || {
        let short = shortage::under_replicated(&of, &stream);
        let under_replicated_groups = short.map_err(|error| metadata_error(&error))?;
        Ok(v1::DescribeStreamResponse {
            stream: Some(stream_info(&of, &stream, caller.as_ref())),
            lanes,
            under_replicated_groups,
            unrecovered,
        })
    };
    blocking(counted).await
}

fn replica_position(position: &ReplicaPosition) -> v1::ReplicaPosition {
    v1::ReplicaPosition {
        group: position.group.0,
        broker: position.broker.0,
        end: position.end,
        placed: position.placed,
        flushed: position.flushed,
        lost: position.lost.clone().unwrap_or_default(),
    }
}

/// Adds what other owners say of their parts. While an owner changes two of them may describe a streamlet, or none.
pub(crate) fn join(
    stream: &Stream,
    described: &mut v1::DescribeStreamResponse,
    others: Vec<v1::DescribeStreamResponse>,
) {
    let mut lanes = std::mem::take(&mut described.lanes);
    let mut unrecovered = std::mem::take(&mut described.unrecovered);
    // Whom one does not serve another may.
    let mut away = not_described(&lanes, &mut unrecovered);
    for mut other in others {
        away.append(&mut not_described(&other.lanes, &mut other.unrecovered));
        lanes.append(&mut other.lanes);
        unrecovered.append(&mut other.unrecovered);
    }
    admin::later_of_each(&mut lanes, |l| (l.streamlet, l.lane, l.head_ordinal));
    for id in stream.streamlets.iter().map(|s| s.id().0) {
        if lanes.iter().any(|lane| lane.streamlet == id) {
            continue;
        }
        let known = away.iter().position(|missing| missing.streamlet == id);
        let unknown = || not_served(id, "it is changing its owner; ask again");
        unrecovered.push(known.map_or_else(unknown, |at| away.swap_remove(at)));
    }
    unrecovered.sort_unstable_by_key(|missing| missing.streamlet);
    (described.lanes, described.unrecovered) = (lanes, unrecovered);
}

/// Takes those out whose lanes are not described.
fn not_described(
    lanes: &[v1::LaneDescription],
    unrecovered: &mut Vec<v1::UnrecoveredStreamlet>,
) -> Vec<v1::UnrecoveredStreamlet> {
    let away = |missing: &mut v1::UnrecoveredStreamlet| {
        lanes.iter().all(|lane| lane.streamlet != missing.streamlet)
    };
    unrecovered.extract_if(.., away).collect()
}

/// Streamlets and lanes of which a description of a broker tells that they are not well.
pub(crate) const MOST_TROUBLES: usize = 100;

/// What this broker owns and does not serve, and lanes that acknowledge nothing.
pub(crate) fn troubles(shared: &Shared) -> Vec<v1::Trouble> {
    let mut troubles = Vec::new();
    for stream in shared.data.catalog.all() {
        let unserved = admin::not_served_here(shared, &stream).into_iter();
        let lacking = shortage::lacking(shared, &stream);
        troubles.extend(unserved.chain(lacking).map(|one| v1::Trouble {
            stream: stream.name(),
            streamlet: one.streamlet,
            lane: None,
            reason: match one.reason.as_str() {
                "" => "it is being recovered".into(),
                reason => reason.into(),
            },
            lasted_ms: None,
        }));
    }
    if let Some(clustered) = &shared.clustered {
        for (lane, still) in standing_still(&clustered.replicated) {
            let Some(stream) = shared.data.catalog.get(lane.streamlet.stream) else {
                continue;
            };
            troubles.push(v1::Trouble {
                stream: stream.name(),
                streamlet: lane.streamlet.streamlet.0,
                lane: Some(lane.lane.0),
                reason: still.to_string(),
                lasted_ms: Some(still.lasted.as_millis() as u64),
            });
        }
    }
    troubles
}

/// The broker itself.
pub(crate) async fn broker_description(shared: &Shared) -> v1::DescribeBrokerResponse {
    let streams = shared.data.catalog.all();
    let groups = streams
        .iter()
        .flat_map(|s| &s.streamlets)
        .map(|s| s.groups() as u64)
        .sum();
    let cluster = match &shared.clustered {
        Some(clustered) => Some(crate::cluster::describe(clustered, &shared.config).await),
        None => None,
    };
    let mut troubles = troubles(shared);
    let troubles_total = troubles.len() as u64;
    troubles.truncate(MOST_TROUBLES);
    v1::DescribeBrokerResponse {
        troubles,
        troubles_total,
        version: env!("CARGO_PKG_VERSION").to_string(),
        data_dir: shared.dir.path().display().to_string(),
        started_ms: shared.started_ms,
        io_engine: shared.data.engine().to_string(),
        pool_bytes: shared.data.env.pool.limit() as u64,
        pool_used_bytes: shared.data.env.pool.used() as u64,
        connections: shared.connections.load(Ordering::Relaxed) as u32,
        streams: streams.iter().filter(|s| !s.record.load().internal).count() as u32,
        groups,
        recovery_ms: shared.recovery_ms.load(Ordering::Relaxed),
        pid: std::process::id(),
        kafka: texts(&shared.config.kafka.listen),
        kafka_advertised: texts(&shared.config.kafka.advertise),
        broker_id: shared.broker_id,
        cluster,
        settings: shared.changed_settings(),
    }
}

fn texts(addresses: &[NamedAddress]) -> Vec<String> {
    addresses.iter().map(NamedAddress::to_string).collect()
}
