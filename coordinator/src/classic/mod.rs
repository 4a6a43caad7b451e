//! Kafka's "classic" consumer groups, as a second kind of group beside the native one.
//!
//! Members agree on a generation: all join, one of them (the leader) divides the work, all fetch
//! their share with a sync. What members tell each other is opaque here. The types are this crate's
//! own; whoever speaks Kafka's protocol translates.
//!
//! # The rules
//! - **A generation only grows**, over restarts too: it is made durable before anyone learns of it.
//! - **A rebalance** ends when every member has joined again, or when the longest rebalance time of
//!   its members is over; who has not joined by then is dropped, unless it is a static member.
//! - **A member that the client named** (a static member) keeps its place when it comes back under
//!   a new id; the old id is fenced.
//! - **Offsets** are kept by stream id and partition: a topic that was deleted and made anew starts
//!   without any. They end with their stream, and some time after their group became empty.
//! - **Offsets of a transaction** are kept aside until it ends: then they count, or are dropped. Whoever wants only what
//!   is stable is told of partitions for which some are kept aside.
//! - **After a restart** the last durable generation goes on; sessions start anew.
//!
//! Groups of the newer consumer protocol are the same groups with other members: [`consumer`]; so are share groups, whose
//! partitions are in [`shares`].

mod admin;
pub mod consumer;
mod end_offsets;
mod event;
mod group;
mod join;
mod limits;
mod live;
mod offsets;
mod pending;
mod rebalance;
mod request;
mod session;
pub mod shares;
mod subscription;
mod tick;
mod view;

use consumer::{ConsumerGroup, LiveConsumer};
pub use limits::Limits;
pub use request::{
    CommitOffsets, CommittedOffset, DeleteOffsets, DescribedMember, Description, EndOffsets, Fault,
    FetchOffsets, GroupState, Heartbeat, JoinGroup, Joined, JoinedMember, LeaveGroup, Listing,
    OfTransaction, OffsetToCommit, OffsetsOfTopic, Reply, Request, SyncGroup, Synced,
};

pub(crate) use event::{
    Assigned, Generation, MemberReplaced, OffsetsEnded, OffsetsPending, OffsetsRemoved, OffsetsSet,
};
pub(crate) use group::Group;
pub(crate) use live::LiveGroup;
