//! Groups of Kafka's consumer protocol (KIP-848): the coordinator divides the work, and moves each member to its share
//! by heartbeats.
//!
//! Such a group is a `Group` with a `ConsumerGroup` in it: offsets, expiry and deletion are those of
//! classic groups, and the group's epoch is its generation. A name changes its kind only while the group is empty.
//!
//! # The rules
//! - **The group's epoch** grows with every change of members, subscriptions or partitions. With it comes a target:
//!   what each member is to have in the end.
//! - **A partition has one holder**: a member that has it, or was told to give it back and has not said that it did. It
//!   is given to nobody else before.
//! - **A member's epoch** is the group's once the member has given back what is not its own any more. Under any other
//!   epoch than its own it commits nothing.
//! - **Time**: a member that is silent for the session time, or that keeps longer than its rebalance time what it is to
//!   give back, is out. Its partitions are free from then on, and its commits are refused.
//! - **A member that begins anew** (epoch 0) has nothing. A static member may leave for a while (epoch -2): whoever comes
//!   under its name takes its place and its partitions.

mod apply;
mod assign;
mod describe;
mod event;
mod heartbeat;
mod live;
mod reconcile;
mod request;
mod share;
mod state;
mod subscribed;
mod target;
mod time;

pub use assign::{ASSIGNORS, UNIFORM};
pub use heartbeat::{LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH};
pub use request::{
    ConsumerBeat, ConsumerDescription, ConsumerHeartbeat, ConsumerMemberDescription, ShareHeartbeat,
};
pub use state::Partitions;

pub(crate) use event::{ConsumerBegun, ConsumerMemberRemoved, ConsumerMemberSet, ConsumerTarget};
pub(super) use live::LiveConsumer;
pub(super) use reconcile::state_of;
pub(super) use state::ConsumerGroup;
