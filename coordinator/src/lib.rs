//! Consumer groups, leases and commits as a deterministic, event-sourced state machine.
//!
//! A [`Coordinator`] does no I/O and knows no clock: the broker hosts one per streamlet of its
//! internal stream, feeds it requests with the time, appends the [`Event`]s it emits to that
//! streamlet, and sends the replies of a [`Step`] only when all events emitted so far are durable.
//! After a restart, [`Replay`] builds the same state from the stream.
//!
//! # The rules
//! - **Leases.** A lease names a lane, or a range of ordinals of a lane, and belongs to one member.
//!   Its id grows for ever within the consumer group; it is the generation that a commit carries.
//!   A commit for a lease that has ended is refused and listed as stale.
//! - **Order by lane.** One member follows a lane. Shares are even to within one lane; members with
//!   more than their share are told by heartbeat what to give back. When a stream with
//!   `lane_by = key` grew, lanes of the next generation of a streamlet are leased only when every
//!   lane of the previous one is consumed up to its boundary.
//! - **No order.** Leases are ranges of durable records, cut at batch boundaries by demand. A lane's
//!   progress is a low ordinal and a bounded set of finished ranges above it.
//! - **Order of keys.** A lane's keys are in 64 slices, and a lease names a set of slices of a lane; its
//!   members all read the lane, and keep the keys of their slices. A lane's progress is an ordinal per
//!   slice. A slice has one holder: another begins where that one has committed, once its lease has
//!   ended. A slice of the next lane generation is leased when this slice is consumed up to the boundary
//!   in every lane of the previous one that had its keys.
//! - **Sessions.** A member that is silent for its session time leaves; its leases end and what was
//!   not committed is leased again, first of all.
//!
//! Groups of Kafka's clients are another kind, in [`classic`]. A name belongs to one kind. Transactions of producers,
//! in [`transactions`], are decided by coordinators of their own, over a stream of their own.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod admin;
pub mod classic;
mod commit;
mod coordinator;
mod event;
mod group;
mod lane;
mod limits;
mod members;
mod positions;
mod ranges;
mod replay;
mod send_positions;
mod sent_positions;
mod serve;
pub mod share;
mod shares;
mod slice_shares;
mod slices;
pub mod transactions;
mod view;

pub use coordinator::{Coordinator, Reply, Request, SendPositions, Step, Ticket};
pub use event::{EVENT_VERSION, Event, EventError};
pub use limits::Limits;
pub use members::check_group_name;
pub use replay::{Replay, ReplayReport};
pub use view::{Cut, CutWish, LaneStatus, LaneView, StreamShape};
