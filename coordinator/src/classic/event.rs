//! What classic groups write to the internal stream. Tags are never reused.

use bytes::Bytes;
use prost::Message;

/// A generation as its members joined it; or, in snapshots, as it stands. One event holds a part of
/// the members; the last part makes it count.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Generation {
    #[prost(int32, tag = "1")]
    pub(crate) generation: i32,
    #[prost(string, tag = "2")]
    pub(crate) protocol_type: String,
    #[prost(string, tag = "3")]
    pub(crate) protocol: String,
    #[prost(string, tag = "4")]
    pub(crate) leader: String,
    /// True if the assignments are known.
    #[prost(bool, tag = "5")]
    pub(crate) assigned: bool,
    /// When it began.
    #[prost(uint64, tag = "6")]
    pub(crate) since_ms: u64,
    /// Parts count from 0.
    #[prost(uint32, tag = "7")]
    pub(crate) part: u32,
    #[prost(bool, tag = "8")]
    pub(crate) last: bool,
    #[prost(message, repeated, tag = "9")]
    pub(crate) members: Vec<MemberRecord>,
}

/// The leader's assignments for the members of a generation, in parts like the generation itself.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Assigned {
    #[prost(int32, tag = "1")]
    pub(crate) generation: i32,
    #[prost(uint32, tag = "2")]
    pub(crate) part: u32,
    #[prost(bool, tag = "3")]
    pub(crate) last: bool,
    /// Only ids and assignments.
    #[prost(message, repeated, tag = "4")]
    pub(crate) members: Vec<MemberRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberRecord {
    #[prost(string, tag = "1")]
    pub(crate) member: String,
    #[prost(string, optional, tag = "2")]
    pub(crate) instance: Option<String>,
    #[prost(string, tag = "3")]
    pub(crate) client_id: String,
    #[prost(string, tag = "4")]
    pub(crate) client_host: String,
    #[prost(uint32, tag = "5")]
    pub(crate) session_ms: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) rebalance_ms: u32,
    #[prost(message, repeated, tag = "7")]
    pub(crate) protocols: Vec<ProtocolRecord>,
    #[prost(bytes = "bytes", tag = "8")]
    pub(crate) assignment: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProtocolRecord {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) metadata: Bytes,
}

/// A static member came back under another id; it keeps its assignment.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberReplaced {
    #[prost(string, tag = "1")]
    pub(crate) old: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) new: Option<MemberRecord>,
}

/// Offsets of one stream were committed, or set by hand.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OffsetsSet {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stream: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) offsets: Vec<OffsetRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OffsetRecord {
    #[prost(uint32, tag = "1")]
    pub(crate) partition: u32,
    /// Older builds wrote it as `uint64`, and none that is negative: the same bytes.
    #[prost(int64, tag = "2")]
    pub(crate) offset: i64,
    #[prost(int32, tag = "3")]
    pub(crate) leader_epoch: i32,
    #[prost(string, tag = "4")]
    pub(crate) metadata: String,
    #[prost(uint64, tag = "5")]
    pub(crate) committed_ms: u64,
    /// How long it is to be kept, if the client said so.
    #[prost(uint64, optional, tag = "6")]
    pub(crate) retention_ms: Option<u64>,
    /// Of a partition's offsets the later one has the greater; 0: as they come. Snapshots tell it.
    #[prost(uint64, tag = "7")]
    pub(crate) order: u64,
}

/// Offsets of one stream are forgotten.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OffsetsRemoved {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stream: Vec<u8>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) partitions: Vec<u32>,
    /// All of them, whatever `partitions` says.
    #[prost(bool, tag = "3")]
    pub(crate) all: bool,
}

/// Offsets of one stream that a transaction commits, if it does.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OffsetsPending {
    #[prost(int64, tag = "1")]
    pub(crate) producer: i64,
    #[prost(uint64, tag = "2")]
    pub(crate) number: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) stream: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) offsets: Vec<OffsetRecord>,
}

/// A transaction that commits offsets has ended.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct OffsetsEnded {
    #[prost(int64, tag = "1")]
    pub(crate) producer: i64,
    #[prost(uint64, tag = "2")]
    pub(crate) number: u64,
    #[prost(bool, tag = "3")]
    pub(crate) commit: bool,
    /// When: offsets count from then on, if that is later than they were sent. Absent: as they were sent.
    #[prost(uint64, optional, tag = "4")]
    pub(crate) ended_ms: Option<u64>,
}
