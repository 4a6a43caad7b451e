//! Share groups (KIP-932) at the owner of a partition's lane: who has acquired which records, and what is done.
//!
//! [`Attached`] is a session's part in a partition. The first one has the group's coordinator tell where the group stands,
//! under a state epoch of its own; with the last one the partition is forgotten here. What is done is kept by the
//! coordinator before it is acknowledged. Locks are in memory alone.
//!
//! # Dead letters (KIP-1191)
//! What a group gives up, because a member rejects it or after its last delivery, goes to the group's dead-letter topic:
//! 1. The coordinator keeps that it is given up. From then on nobody gets it, whoever owns the lane.
//! 2. `dead_letters` has it appended to the topic, by the owner of the lane there, and waits until that is durable.
//! 3. It is done, and the coordinator keeps that.
//!
//! An owner that goes between 2 and 3 leaves it to the next one, which does 2 again: a dead letter is there at least once.
//! What cannot be written after some attempts is done all the same, as with Kafka: no group waits for ever.

mod ask;
mod dead_letters;
mod letters;
mod owned;
mod table;

pub use ask::{GroupSettings, settings};
pub(crate) use ask::{open_here, settings_here, write_here};
pub(crate) use dead_letters::append_here;
pub use owned::Attached;
pub use table::{ShareCounts, ShareError, SharePlace, Shares};
