//! What a coordinator needs to know of streams; the broker implements it.

use kera_protocol::ids::{LaneKey, Ordinal, StreamId, StreamletId};
use kera_protocol::partition::{lanes_of, place_of};
use kera_protocol::v1::{Cursor, LaneBy};

/// A stream as far as leasing its lanes goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamShape {
    /// The stream's id.
    pub id: StreamId,
    /// Its name.
    pub name: String,
    /// Number of streamlets, M.
    pub streamlets: u32,
    /// How records find their lane. Only streams by key have a barrier between lane generations.
    pub lane_by: LaneBy,
    /// Lanes in all (n) of every lane generation, oldest first; never empty, growing.
    pub generations: Vec<u32>,
}

impl StreamShape {
    /// Lanes of all streamlets now: partitions as Kafka's clients count them.
    pub fn partitions(&self) -> u32 {
        self.generations.last().copied().unwrap_or(1)
    }

    /// Lanes of a streamlet now.
    pub fn lanes_of(&self, streamlet: u32) -> u32 {
        self.lanes_in(streamlet, self.partitions())
    }

    /// The most lanes that a streamlet has now.
    pub fn lanes(&self) -> u32 {
        self.lanes_of(0)
    }

    /// Lanes of a streamlet where there are `partitions` in all.
    pub(crate) fn lanes_in(&self, streamlet: u32, partitions: u32) -> u32 {
        lanes_of(StreamletId(streamlet), self.streamlets, partitions)
    }

    /// Streamlet and lane of a partition.
    pub(crate) fn place_of(&self, partition: u32) -> (u32, u32) {
        let (streamlet, lane) = place_of(partition, self.streamlets);
        (streamlet.0, lane.0)
    }
}

/// Where a lane begins and ends for readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// First ordinal still stored.
    pub log_start: Ordinal,
    /// The durable head: nothing at or above it is readable.
    pub head: Ordinal,
}

/// How large a range lease should be. A cut holds at least one batch; after that it ends at the
/// last batch boundary that exceeds neither wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutWish {
    /// Ordinals, at least 1.
    pub ordinals: u64,
    /// Bytes.
    pub bytes: u32,
}

/// A range of durable records, cut at batch boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Where to read from. Its ordinal is the one asked for, or the first stored one above it when
    /// ordinals are missing there.
    pub start: Cursor,
    /// Where the range ends, exclusive: a batch boundary not above the durable head.
    pub end: Ordinal,
}

/// The broker's streams as a coordinator sees them. Every call is a look at memory: no waiting.
pub trait LaneView {
    /// The stream of that name, if it exists.
    fn stream_by_name(&self, name: &str) -> Option<StreamShape>;

    /// Names of the streams that a user from a host may see, sorted; internal ones are not among them.
    fn topics_seen_by(&self, user: Option<&str>, host: &str) -> Vec<String>;

    /// False if a user may see the same from this host as from any that no rule names.
    fn host_matters(&self, host: &str) -> bool;

    /// The stream of that id, if it exists.
    fn stream_by_id(&self, id: StreamId) -> Option<StreamShape>;

    /// Log start and durable head; `None` while the lane cannot be read (nothing of it is leased).
    fn lane(&self, lane: LaneKey) -> Option<LaneStatus>;

    /// Above this nothing of the lane can have been read; `None` if that cannot be told, as of a lane
    /// that is served elsewhere and may have grown since [`lane`](Self::lane) was heard.
    fn highest_readable(&self, lane: LaneKey) -> Option<Ordinal> {
        self.lane(lane).map(|status| status.head)
    }

    /// The ordinal at which lane generation `generation` ended in this lane; `None` while no later
    /// generation has begun in the streamlet.
    fn boundary(&self, lane: LaneKey, generation: u32) -> Option<Ordinal>;

    /// The ordinal of the first record at or after a time (milliseconds since 1970); the durable
    /// head if there is none. `None` if that could not be found out.
    fn at_time(&self, lane: LaneKey, timestamp_ms: u64) -> Option<Ordinal>;

    /// Cuts a range that begins at `from`; `None` if nothing durable is stored at or above it, or if
    /// it is not known here yet: once it is, call
    /// [`heads_moved`](crate::Coordinator::heads_moved).
    fn cut(&self, lane: LaneKey, from: Ordinal, wish: CutWish) -> Option<Cut>;

    /// The first stored ordinal at or above `ordinal`, or the durable head: skips ordinals that a
    /// recovery left out.
    fn skip_gap(&self, lane: LaneKey, ordinal: Ordinal) -> Ordinal {
        let _ = lane;
        ordinal
    }
}
