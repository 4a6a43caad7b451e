//! What groups of the consumer protocol write to the internal stream. Tags are never reused.

use prost::Message;

/// The group is one of the consumer protocol from now on, without members.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ConsumerBegun {
    #[prost(int32, tag = "1")]
    pub(crate) epoch: i32,
    #[prost(uint64, tag = "2")]
    pub(crate) since_ms: u64,
    /// It is a share group.
    #[prost(bool, tag = "3")]
    pub(crate) shares: bool,
}

/// A member as it is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConsumerMemberSet {
    #[prost(string, tag = "1")]
    pub(crate) member: String,
    #[prost(string, optional, tag = "2")]
    pub(crate) instance: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) rack: Option<String>,
    #[prost(string, tag = "4")]
    pub(crate) client_id: String,
    #[prost(string, tag = "5")]
    pub(crate) client_host: String,
    /// As whom it has proved itself: what its pattern finds is what that user may see.
    #[prost(string, optional, tag = "6")]
    pub(crate) user: Option<String>,
    #[prost(uint32, tag = "7")]
    pub(crate) rebalance_ms: u32,
    #[prost(string, repeated, tag = "8")]
    pub(crate) topics: Vec<String>,
    /// Empty without one.
    #[prost(string, tag = "9")]
    pub(crate) pattern: String,
    /// Empty if it has no wish.
    #[prost(string, tag = "10")]
    pub(crate) assignor: String,
    #[prost(int32, tag = "11")]
    pub(crate) epoch: i32,
    #[prost(int32, tag = "12")]
    pub(crate) previous_epoch: i32,
    #[prost(message, repeated, tag = "13")]
    pub(crate) assigned: Vec<PartitionsRecord>,
    #[prost(message, repeated, tag = "14")]
    pub(crate) revoking: Vec<PartitionsRecord>,
}

/// A member is out; whoever takes its place inherits what it was to have.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConsumerMemberRemoved {
    #[prost(string, tag = "1")]
    pub(crate) member: String,
    /// Empty without one.
    #[prost(string, tag = "2")]
    pub(crate) heir: String,
}

/// A new epoch, and what members are to have under it: those for whom that changes. One event holds a part of them; the
/// last part makes it count.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConsumerTarget {
    #[prost(int32, tag = "1")]
    pub(crate) epoch: i32,
    #[prost(string, tag = "2")]
    pub(crate) assignor: String,
    #[prost(uint64, tag = "3")]
    pub(crate) since_ms: u64,
    /// Parts count from 0.
    #[prost(uint32, tag = "4")]
    pub(crate) part: u32,
    #[prost(bool, tag = "5")]
    pub(crate) last: bool,
    #[prost(message, repeated, tag = "6")]
    pub(crate) members: Vec<TargetRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TargetRecord {
    #[prost(string, tag = "1")]
    pub(crate) member: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) partitions: Vec<PartitionsRecord>,
}

/// Partitions of one stream.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PartitionsRecord {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stream: Vec<u8>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) partitions: Vec<u32>,
}
