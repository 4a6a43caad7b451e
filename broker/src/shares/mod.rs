//! Share groups (KIP-932) at the owner of a partition's lane: who has acquired which records, and what is done.
//!
//! [`Attached`] is a session's part in a partition. The first one has the group's coordinator tell where the group stands,
//! under a state epoch of its own; with the last one the partition is forgotten here. What is done is kept by the
//! coordinator before it is acknowledged. Locks are in memory alone.

mod ask;
mod owned;
mod table;

pub use ask::{GroupSettings, settings};
pub(crate) use ask::{open_here, settings_here, write_here};
pub use owned::Attached;
pub use table::{ShareCounts, ShareError, SharePlace, Shares};
