//! What members of a share group (KIP-932) do to the records of one partition, as a state machine without I/O.
//!
//! The owner of the partition's lane holds a [`SharePartition`] for each group that reads it. What is done for good is
//! kept by the group's coordinator, as a [`ShareState`].
//!
//! # The rules
//! - A record is available, acquired by one holder until some time, or done. Nobody else gets it while it is acquired.
//! - A holder accepts or rejects a record: then it is done. It releases one, or its time ends: then it is available again.
//! - Each acquisition is a delivery. A record that comes back after the last delivery that it may have is given up, and so
//!   is one that is rejected.
//! - What is given up is done. If the group has a dead-letter topic, it is done once it is there: until then nobody gets it,
//!   and it counts as in flight.
//! - Locks are kept in memory alone. Whoever owns the lane next begins with what is done, and delivers the rest again.

mod partition;
mod state;

pub use partition::{
    Acknowledgement, Acquired, GivenUp, GivenUpFor, Holder, SharePartition, WrongState,
};
pub use state::ShareState;
