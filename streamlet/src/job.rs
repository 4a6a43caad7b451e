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
}

impl Job {
    /// The streamlet it is for.
    pub fn target(&self) -> StreamletKey {
        match self {
            Self::Close(lane)
            | Self::Prepare(lane)
            | Self::Record(lane, _)
            | Self::Repair(lane) => lane.streamlet_key(),
        }
    }
}
