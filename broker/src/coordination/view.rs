//! The broker's streams as a coordinator sees them.

use kera_coordinator::{Cut, CutWish, LaneStatus, LaneView, StreamShape};
use kera_metadata::StreamRecord;
use kera_protocol::ids::{LaneKey, Ordinal, StreamId};

use crate::catalog::Stream;
use crate::fetch::cursor;
use crate::start::Shared;

/// A look at the catalog.
pub struct View<'a>(pub &'a Shared);

fn shape(stream: &Stream) -> StreamShape {
    let record: &StreamRecord = &stream.record.load();
    StreamShape {
        id: record.id,
        name: record.name.clone(),
        streamlets: record.config.streamlets,
        lane_by: record.config.lane_by.into(),
        generations: record.lane_generations.iter().map(|g| g.lanes).collect(),
    }
}

impl LaneView for View<'_> {
    fn stream_by_name(&self, name: &str) -> Option<StreamShape> {
        self.0.catalog.named(name).map(|s| shape(&s))
    }

    fn stream_by_id(&self, id: StreamId) -> Option<StreamShape> {
        self.0.catalog.get(id).map(|s| shape(&s))
    }

    fn lane(&self, lane: LaneKey) -> Option<LaneStatus> {
        let streamlet = self.0.streamlet(lane.stream, lane.streamlet)?;
        let (log_start, head) = streamlet.lane_bounds(lane.lane)?;
        Some(LaneStatus { log_start, head })
    }

    fn boundary(&self, lane: LaneKey, generation: u32) -> Option<Ordinal> {
        self.0
            .catalog
            .get(lane.stream)?
            .generation_end(lane.streamlet, lane.lane, generation)
    }

    fn at_time(&self, lane: LaneKey, timestamp_ms: u64) -> Ordinal {
        let Some(streamlet) = self.0.streamlet(lane.stream, lane.streamlet) else {
            return 0;
        };
        let timestamp = i64::try_from(timestamp_ms).unwrap_or(i64::MAX);
        match streamlet.find_time(lane.lane, timestamp) {
            Ok(located) => located.ordinal,
            Err(error) => {
                tracing::warn!(%lane, %error, "a time could not be found; the lane is read from its start");
                streamlet
                    .lane_bounds(lane.lane)
                    .map_or(0, |(start, _)| start)
            }
        }
    }

    fn cut(&self, lane: LaneKey, from: Ordinal, wish: CutWish) -> Option<Cut> {
        let streamlet = self.0.streamlet(lane.stream, lane.streamlet)?;
        match streamlet.batch_boundary(lane.lane, from, wish.bytes as usize, wish.ordinals) {
            Ok(found) => found.map(|(start, end)| Cut {
                start: cursor(&start, streamlet.settings().segment_size),
                end,
            }),
            Err(error) => {
                tracing::warn!(%lane, %error, "a range could not be cut");
                None
            }
        }
    }

    fn skip_gap(&self, lane: LaneKey, ordinal: Ordinal) -> Ordinal {
        self.0
            .streamlet(lane.stream, lane.streamlet)
            .map_or(ordinal, |s| s.skip_gap(lane.lane, ordinal))
    }
}
