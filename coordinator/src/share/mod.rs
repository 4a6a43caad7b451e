//! What members of a share group (KIP-932) do to the records of one partition, as a state machine without I/O.
//!
//! The owner of the partition's lane holds a [`SharePartition`] for each group that reads it. What is done for good is
//! kept by the group's coordinator, as a [`ShareState`].
//!
//! # The rules
//! - A record is available, acquired by one holder until some time, or done. Nobody else gets it while it is acquired.
//! - A holder accepts or rejects a record: then it is done. It releases one, or its time ends: then it is available again.
//! - Each acquisition is a delivery. A record that comes back after the last delivery that it may have is done.
//! - Locks are kept in memory alone. Whoever owns the lane next begins with what is done, and delivers the rest again.

mod partition;
mod state;

pub use partition::{Acknowledgement, Acquired, Holder, SharePartition, WrongState};
pub use state::ShareState;
