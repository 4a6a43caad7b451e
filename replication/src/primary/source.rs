//! Where a pump takes bytes from: a group at its primary.

use kera_log_segments::ship::ShipRun;
use kera_log_segments::window::Place;
use kera_protocol::ids::Ordinal;

use crate::ids::AckPolicy;

/// How a group is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of each segment.
    pub segment_size: u32,
    /// Most segments.
    pub segments: u32,
}

/// A group that is written at this broker. What lies below its end never changes: each address
/// receives one value only, so bytes may be sent twice. No segment is filled to its last byte, so that
/// an address always tells its segment.
pub trait Source: Send + Sync {
    /// How it is cut.
    fn shape(&self) -> Shape;

    /// What a replica has done with bytes of the group before they count; fixed for the group's life.
    fn ack(&self) -> AckPolicy {
        AckPolicy::Written
    }

    /// Ordinal of its first record.
    fn first_ordinal(&self) -> Ordinal;

    /// Bytes from `from` on, in order of address, as many as fit `max_bytes` or one run that is
    /// larger. They begin with the segment's header and the lane snapshot, and may start at any
    /// address until the group is closed; what has left memory is read back from the file.
    fn runs(&self, from: u64, max_bytes: usize) -> Vec<ShipRun>;

    /// The highest timestamp of what was appended; -1 if there is none.
    fn max_timestamp(&self) -> i64 {
        -1
    }

    /// Where what was published ends, and the ordinal there.
    fn end(&self) -> Place;

    /// True once nothing is appended any more.
    fn is_frozen(&self) -> bool;

    /// Takes no more appends, for good, and says where they end. The lane goes on in its next group.
    fn freeze(&self) -> Place;

    /// Brings to its own file what lies in memory alone, as far as that can be done at once; whoever writes the rest
    /// says so. Called without a lock.
    fn write_out(&self) {}

    /// Everything below `address` may be acknowledged; addresses only grow, but may be told late.
    /// Called without a lock.
    fn durable(&self, _address: u64) {}

    /// The group has its close: all of it may be acknowledged, and nothing of it is asked for any
    /// more. Called without a lock.
    fn closed(&self) {}

    /// Another broker has taken the streamlet over: nothing more of it is acknowledged here. Called
    /// without a lock.
    fn deposed(&self) {}
}
