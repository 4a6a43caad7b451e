//! Streamlets, lanes and groups: who may append where, in which order, under two-level locking
//! (KerA, ICDCS'18, section III).
//!
//! The append path reads in this order: [`Streamlet::append`] (`append.rs`) takes the streamlet
//! lock to find the lane's active group, then the group lock to check the producer's sequence,
//! reserve, copy and patch; both are released before anyone waits for durability. A full group is
//! replaced by `roll.rs`; what happens to it afterwards is `closing.rs`; starting from what a
//! previous process left is `recovery.rs`; keeping the newest record of each key is `compaction/`; copies at other brokers are `copies.rs`.
//!
//! **Lock order:** streamlet, then group (`Tail`), then the leaf locks of
//! `kera_log_segments` (lane head, window); see [`kera_log_segments::sync::Rank`]. None of them is
//! held across I/O or while waiting. Closing, repair and trim take turns under a lock of their own,
//! which stands before all others and which no append or read ever takes.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod append;
mod closing;
mod compaction;
mod copies;
mod epochs;
mod failure;
mod growth;
mod job;
mod lane_memory;
mod lane_recovery;
mod mending;
mod own_writes;
pub mod producers;
mod read;
pub mod recorder;
mod recovery;
mod roll;
mod standing;
mod strays;
mod streamlet;
mod times;
mod traffic;
pub mod transactions;
mod trim;

pub use append::{AppendError, AppendSpec, Appended, Outcome};
pub use compaction::{
    Backlog, BrokenPass, CompactError, CompactSpec, Compacted, Pace, Ship, ShipError, Shipped,
};
pub use epochs::EpochEnd;
pub use growth::LaneCut;
pub use job::Job;
pub use kera_log_segments::replicas::{Copies, GroupOwner};
pub use read::{Found, LaneReadError, LaneReadSpec, Located};
pub use recovery::{LaneRecords, Recovery};
pub use standing::Standing;
pub use strays::Strays;
pub use streamlet::{BatchRules, Env, GroupView, LaneView, Limits, Settings, Streamlet};
pub use times::{RecordAt, SearchWork};
pub use traffic::{LATENCY_BOUNDS_US, Traffic, TrafficTotals};
pub use transactions::{Committed, End, LostEnd};
pub use trim::Trimmed;
