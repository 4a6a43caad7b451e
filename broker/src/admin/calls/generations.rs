//! How a stream's lanes grew, for stream engines: they keep the order of keys by it.

use kera_metadata::{LaneBy, StreamRecord};
use kera_protocol::partition::keys_move;
use kera_protocol::v1::{self, BarrierScope};

/// A page ends with the generation that reaches so many boundaries, about 1 MiB of them.
const PAGE_BOUNDARIES: usize = 64 << 10;

/// The generations of a stream from `from` on, whole ones and at least one if there is one.
pub(super) fn generations(record: &StreamRecord, from: u32) -> v1::GetGenerationsResponse {
    let streamlets = record.config.streamlets;
    let mut told = Vec::new();
    let mut boundaries = 0;
    let all = (0..).zip(&record.lane_generations);
    for (generation, lanes) in all.skip(from as usize) {
        if boundaries >= PAGE_BOUNDARIES {
            break;
        }
        let starts = lanes.starts.iter();
        let starts = starts.map(|(streamlet, lane, ordinal)| v1::LaneBoundary {
            streamlet: streamlet.0,
            lane: lane.0,
            ordinal: *ordinal,
        });
        boundaries += lanes.starts.len();
        told.push(v1::LaneGeneration {
            generation,
            partitions: lanes.partitions(streamlets),
            barrier: barrier(record, generation) as i32,
            boundaries: starts.collect(),
        });
    }
    v1::GetGenerationsResponse {
        stream: record.id.as_bytes().to_vec().into(),
        streamlets,
        generations: told,
        total: record.lane_generations.len() as u32,
    }
}

/// What must be consumed before a lane of `generation` is read.
fn barrier(record: &StreamRecord, generation: u32) -> BarrierScope {
    let Some(before) = generation.checked_sub(1) else {
        return BarrierScope::None;
    };
    if record.config.lane_by != LaneBy::Key {
        return BarrierScope::None;
    }
    let streamlets = record.config.streamlets;
    let lanes =
        |generation: u32| record.lane_generations[generation as usize].partitions(streamlets);
    match keys_move(streamlets, lanes(before), lanes(generation)) {
        true => BarrierScope::Stream,
        false => BarrierScope::Streamlet,
    }
}
