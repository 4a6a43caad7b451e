//! What a streamlet leaves for the broker's maintenance thread.

use kera_protocol::ids::{GroupId, LaneId, StreamId, StreamletId};

/// Work for the broker's maintenance thread; see [`Streamlet::do_job`](crate::Streamlet::do_job).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// Close the lane's frozen groups.
    Close {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletId,
        /// The lane.
        lane: LaneId,
    },
    /// Record the lane's next group ahead.
    Prepare {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletId,
        /// The lane.
        lane: LaneId,
    },
    /// Record a group whose record failed.
    Record {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletId,
        /// The lane.
        lane: LaneId,
        /// The group.
        group: GroupId,
    },
    /// Put a lane in order whose write failed.
    Repair {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletId,
        /// The lane.
        lane: LaneId,
    },
}

impl Job {
    /// The streamlet it is for.
    pub fn target(&self) -> (StreamId, StreamletId) {
        match self {
            Self::Close {
                stream, streamlet, ..
            }
            | Self::Prepare {
                stream, streamlet, ..
            }
            | Self::Record {
                stream, streamlet, ..
            }
            | Self::Repair {
                stream, streamlet, ..
            } => (*stream, *streamlet),
        }
    }
}
