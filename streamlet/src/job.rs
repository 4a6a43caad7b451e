//! What a streamlet leaves for the broker's maintenance thread.

use kera_protocol::ids::{GroupId, LaneKey, StreamletKey};

/// Work for the broker's maintenance thread; see [`Streamlet::do_job`](crate::Streamlet::do_job).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// Close the lane's frozen groups.
    Close(LaneKey),
    /// Record the lane's next group ahead.
    Prepare(LaneKey),
    /// Record a group of the lane whose record failed.
    Record(LaneKey, GroupId),
    /// Put a lane in order whose write failed.
    Repair(LaneKey),
    /// Read again what a lane remembers of its producers. It may take as long as a disk takes to fail, and nothing else
    /// waits for it: not for the thread of the other jobs.
    Remember(LaneKey),
}

impl Job {
    /// The streamlet it is for.
    pub fn target(&self) -> StreamletKey {
        match self {
            Self::Close(lane)
            | Self::Prepare(lane)
            | Self::Record(lane, _)
            | Self::Repair(lane)
            | Self::Remember(lane) => lane.streamlet_key(),
        }
    }
}
