//! Requests about classic groups and their answers, in plain types.

use std::collections::BTreeMap;

use bytes::Bytes;
use kera_protocol::ids::StreamId;

use super::consumer::{ConsumerBeat, ConsumerDescription, ConsumerHeartbeat, ShareHeartbeat};
use super::shares::{
    ShareConfig, ShareConfigure, ShareOffset, ShareOpen, ShareOpened, ShareSetOffsets, ShareWrite,
};

/// A request about a classic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Enter the next generation; waits until it begins.
    Join(JoinGroup),
    /// Hand in the assignments (leader) or wait for one's own.
    Sync(SyncGroup),
    /// Keep a session alive.
    Heartbeat(Heartbeat),
    /// Join, live in or leave a group of the consumer protocol.
    ConsumerHeartbeat(ConsumerHeartbeat),
    /// State and members of the group of the consumer protocol with this id.
    ConsumerDescribe(String),
    /// Join, live in or leave a share group.
    ShareHeartbeat(ShareHeartbeat),
    /// State and members of the share group with this id.
    ShareDescribe(String),
    /// The owner of a partition begins to serve a share group.
    ShareOpen(ShareOpen),
    /// It has what it knows kept.
    ShareWrite(ShareWrite),
    /// What is set for a group, and other settings for it.
    ShareConfigure(ShareConfigure),
    /// Where the share group with this id stands.
    ShareOffsets(String),
    /// Where an empty share group is to stand.
    ShareSetOffsets(ShareSetOffsets),
    /// End memberships.
    Leave(LeaveGroup),
    /// Commit offsets.
    Commit(CommitOffsets),
    /// A transaction that commits offsets has ended.
    EndOffsets(EndOffsets),
    /// Read committed offsets.
    Fetch(FetchOffsets),
    /// Forget committed offsets.
    DeleteOffsets(DeleteOffsets),
    /// State and members of the group with this id.
    Describe(String),
    /// Forget the empty group with this id, and its offsets.
    Delete(String),
}

impl Request {
    /// The group's id.
    pub fn group(&self) -> &str {
        match self {
            Self::Join(request) => &request.group,
            Self::Sync(request) => &request.group,
            Self::Heartbeat(request) => &request.group,
            Self::ConsumerHeartbeat(request) => &request.group,
            Self::ShareHeartbeat(request) => &request.group,
            Self::ShareOpen(request) => &request.group,
            Self::ShareWrite(request) => &request.group,
            Self::ShareConfigure(request) => &request.group,
            Self::ShareSetOffsets(request) => &request.group,
            Self::ShareOffsets(group) | Self::ShareDescribe(group) => group,
            Self::Leave(request) => &request.group,
            Self::Commit(request) => &request.group,
            Self::EndOffsets(request) => &request.group,
            Self::Fetch(request) => &request.group,
            Self::DeleteOffsets(request) => &request.group,
            Self::Describe(group) | Self::Delete(group) | Self::ConsumerDescribe(group) => group,
        }
    }
}

/// See [`Request::Join`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinGroup {
    /// The group's id; made if a new member joins.
    pub group: String,
    /// The member's id; empty for a new member.
    pub member: String,
    /// The id a new member gets. No two requests may ever carry the same.
    pub fresh_member: String,
    /// The name that makes it a static member.
    pub instance: Option<String>,
    /// Name of the client, for people.
    pub client_id: String,
    /// Where the client connects from, for people.
    pub client_host: String,
    /// The member is dropped this long after its last sign of life, milliseconds.
    pub session_ms: i32,
    /// How long a rebalance waits for this member, milliseconds.
    pub rebalance_ms: i32,
    /// Kind of protocol, such as `consumer`; the same for all members.
    pub protocol_type: String,
    /// Protocols with the member's metadata for each, best first.
    pub protocols: Vec<(String, Bytes)>,
    /// A new member is told its id and must come back with it.
    pub require_known_member: bool,
    /// A leader that may be told that nothing need be assigned.
    pub can_skip_assignment: bool,
}

/// See [`Request::Sync`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncGroup {
    /// The group's id.
    pub group: String,
    /// The member's id.
    pub member: String,
    /// Its name, if it is a static member.
    pub instance: Option<String>,
    /// The generation it joined.
    pub generation: i32,
    /// If given, must be the group's.
    pub protocol_type: Option<String>,
    /// If given, must be the generation's.
    pub protocol: Option<String>,
    /// From the leader: assignment by member.
    pub assignments: BTreeMap<String, Bytes>,
}

/// See [`Request::Heartbeat`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// The group's id.
    pub group: String,
    /// The member's id.
    pub member: String,
    /// Its name, if it is a static member.
    pub instance: Option<String>,
    /// The generation it believes to be in.
    pub generation: i32,
}

/// See [`Request::Leave`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaveGroup {
    /// The group's id.
    pub group: String,
    /// Who leaves: id and name. With an empty id, the static member of that name.
    pub members: Vec<(String, Option<String>)>,
}

/// See [`Request::Commit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitOffsets {
    /// The group's id.
    pub group: String,
    /// The client's host; empty if that is not known.
    pub client_host: String,
    /// The member's id; empty without membership.
    pub member: String,
    /// Its name, if it is a static member.
    pub instance: Option<String>,
    /// Its generation; -1 without membership, which is legal only while the group is empty.
    pub generation: i32,
    /// Keep these offsets for this long instead of the broker's retention, milliseconds.
    pub retention_ms: Option<u64>,
    /// What to commit.
    pub offsets: Vec<OffsetToCommit>,
    /// The transaction that they are part of.
    pub transaction: Option<OfTransaction>,
}

/// A transaction, as its coordinator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfTransaction {
    /// Its producer.
    pub producer: i64,
    /// Which of the producer's transactions it is.
    pub number: u64,
}

/// See [`Request::EndOffsets`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndOffsets {
    /// The group's id.
    pub group: String,
    /// The transaction.
    pub transaction: OfTransaction,
    /// Whether its offsets count.
    pub commit: bool,
}

/// One offset of a [`CommitOffsets`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetToCommit {
    /// The stream.
    pub stream: StreamId,
    /// The partition.
    pub partition: u32,
    /// The next offset to read. What a negative one means is its client's business.
    pub offset: i64,
    /// Epoch of the last record consumed, or -1.
    pub leader_epoch: i32,
    /// Whatever the client wants to find again.
    pub metadata: String,
}

/// See [`Request::Fetch`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchOffsets {
    /// The group's id.
    pub group: String,
    /// The partitions; `None`: all that have an offset.
    pub partitions: Option<Vec<(StreamId, u32)>>,
    /// More bytes of metadata than this are refused with [`Fault::TooLarge`].
    pub max_bytes: usize,
    /// Partitions for which open transactions commit offsets are told as unstable.
    pub require_stable: bool,
    /// Id and epoch of the member of the consumer protocol that asks.
    pub member: Option<(String, i32)>,
}

/// See [`Request::DeleteOffsets`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOffsets {
    /// The group's id.
    pub group: String,
    /// What to forget.
    pub topics: Vec<OffsetsOfTopic>,
}

/// Partitions of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsOfTopic {
    /// The name, as members subscribe to it.
    pub name: String,
    /// The stream of that name.
    pub stream: StreamId,
    /// Its partitions.
    pub partitions: Vec<u32>,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a join.
    Joined(Joined),
    /// To a sync.
    Synced(Synced),
    /// To a heartbeat: all is well.
    Alive,
    /// To a heartbeat of the consumer protocol.
    ConsumerBeat(ConsumerBeat),
    /// To a description of a group of the consumer protocol.
    ConsumerDescribed(ConsumerDescription),
    /// To a share group's partition that is opened.
    ShareOpened(ShareOpened),
    /// To what is kept of one.
    ShareWritten,
    /// What is set for a group now.
    ShareConfigured(ShareConfig),
    /// Where a share group stands.
    ShareOffsets(Vec<ShareOffset>),
    /// To where it is to stand: one result per partition, in their order.
    ShareOffsetsSet(Vec<Result<(), Fault>>),
    /// To a leave: one result per member, in their order.
    Left(Vec<Result<(), Fault>>),
    /// To a commit: one result per offset, in their order.
    Committed(Vec<Result<(), Fault>>),
    /// To the end of a transaction.
    OffsetsEnded,
    /// To a fetch: what was asked for, in that order, or everything.
    Offsets(Vec<(StreamId, u32, Option<CommittedOffset>)>),
    /// To a deletion of offsets: one result per topic and partition, in their order.
    OffsetsDeleted(Vec<Vec<Result<(), Fault>>>),
    /// To a describe.
    Described(Description),
    /// To a deletion of the group.
    Deleted,
    /// The whole request is refused.
    Refused(Fault),
}

/// See [`Reply::Joined`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The generation.
    pub generation: i32,
    /// Kind of protocol.
    pub protocol_type: String,
    /// The protocol chosen.
    pub protocol: String,
    /// The leader's id.
    pub leader: String,
    /// The id of whom this answers.
    pub member: String,
    /// True if the leader need not assign anything, because the generation goes on.
    pub skip_assignment: bool,
    /// For the leader: all members with their metadata for the protocol.
    pub members: Vec<JoinedMember>,
}

/// A member as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member: String,
    /// Its name, if it is a static member.
    pub instance: Option<String>,
    /// Its metadata for the protocol chosen.
    pub metadata: Bytes,
}

/// See [`Reply::Synced`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Kind of protocol.
    pub protocol_type: String,
    /// The protocol chosen.
    pub protocol: String,
    /// The member's share.
    pub assignment: Bytes,
}

/// An offset as committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The next offset to read, or the negative number that a client committed.
    pub offset: i64,
    /// Epoch of the last record consumed, or -1.
    pub leader_epoch: i32,
    /// What the client left with it.
    pub metadata: String,
    /// An open transaction commits another, and what is stable was asked for.
    pub unstable: bool,
}

/// What a group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupState {
    /// Without members.
    Empty,
    /// Waiting for members to join.
    PreparingRebalance,
    /// Waiting for the leader's assignments.
    CompletingRebalance,
    /// At work.
    Stable,
    /// Of the consumer protocol: at work, and members are on the way to their shares.
    Reconciling,
}

impl GroupState {
    /// The name that Kafka gives the state.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Reconciling => "Reconciling",
        }
    }
}

/// See [`Reply::Described`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// What it is doing.
    pub state: GroupState,
    /// Kind of protocol; empty if no member ever joined.
    pub protocol_type: String,
    /// The protocol; empty unless stable.
    pub protocol: String,
    /// Its members.
    pub members: Vec<DescribedMember>,
}

/// A member for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its id.
    pub member: String,
    /// Its name, if it is a static member.
    pub instance: Option<String>,
    /// Name of its client.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// Its metadata for the protocol; empty unless stable.
    pub metadata: Bytes,
    /// Its share; empty unless stable.
    pub assignment: Bytes,
}

/// A group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its id.
    pub group: String,
    /// Kind of protocol; empty if no member ever joined.
    pub protocol_type: String,
    /// What it is doing.
    pub state: GroupState,
    /// Whether it is one of the consumer protocol.
    pub is_consumer: bool,
    /// Whether it is a share group.
    pub is_share: bool,
}

/// Why a request, or a part of it, is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The group's id is empty or too long.
    #[error("the group id is empty or too long")]
    InvalidGroupId,
    /// The group is one of native consumers.
    #[error("the group belongs to native consumers: take another group id")]
    OtherKind,
    /// No such group.
    #[error("the group does not exist")]
    GroupNotFound,
    /// The group has members.
    #[error("the group has members: stop them first")]
    NonEmptyGroup,
    /// The broker holds as many groups as it may.
    #[error("the limit of groups is reached: delete some")]
    TooManyGroups,
    /// The group has as many members as it may.
    #[error("the group has as many members as it may have")]
    GroupFull,
    /// Metadata or assignments are larger than what the broker keeps.
    #[error("metadata or assignments are larger than the broker keeps")]
    TooLarge,
    /// The session time is out of bounds.
    #[error("the session timeout is out of bounds")]
    InvalidSessionTimeout,
    /// The protocols do not go with those of the other members.
    #[error("the protocols do not go with those of the other members")]
    InconsistentProtocol,
    /// Join again with this id.
    #[error("join again as member {0}")]
    MemberIdRequired(String),
    /// Not a member.
    #[error("not a member of the group: join again")]
    UnknownMember,
    /// Another client has taken this static member's place.
    #[error("another client has taken the place of this static member")]
    FencedInstance,
    /// Not the group's generation.
    #[error("not the generation of the group: join again")]
    IllegalGeneration,
    /// Join again.
    #[error("the group rebalances: join again")]
    RebalanceInProgress,
    /// An offset's metadata is too long.
    #[error("the metadata of an offset is too long")]
    OffsetMetadataTooLarge,
    /// The group, or the broker, holds as many offsets as it may.
    #[error("as many offsets are kept as may be: delete groups that are not needed")]
    TooManyOffsets,
    /// The transaction has ended.
    #[error("the transaction that the offsets are part of has ended")]
    TransactionEnded,
    /// The request contradicts itself.
    #[error("the request is not valid: {0}")]
    InvalidRequest(&'static str),
    /// There is no such group of the consumer protocol.
    #[error("the group is not one of the consumer protocol")]
    NotConsumer,
    /// The group is one of the consumer protocol.
    #[error("the group is not one of the classic protocol")]
    NotClassic,
    /// No such way to divide the work.
    #[error("there is no such assignor: take uniform or range")]
    UnsupportedAssignor,
    /// The regular expression cannot be read.
    #[error("the regular expression for topics cannot be read: {0}")]
    InvalidPattern(String),
    /// Another member has the name of this static member.
    #[error("another member has this name, and has not left: stop it first")]
    UnreleasedInstance,
    /// Not the member's epoch: it has lost everything.
    #[error("not the epoch of the member: give up all partitions and join again")]
    FencedEpoch,
    /// Not the member's epoch: the next heartbeat tells it.
    #[error("not the epoch of the member: try again with the one of the last heartbeat")]
    StaleEpoch,
    /// There is no such share group.
    #[error("the group is not a share group")]
    NotShare,
    /// Another owner, or a change of offsets, came between.
    #[error(
        "another broker has begun to serve the partition for the group, or its offsets were set: begin anew"
    )]
    FencedShare,
    /// A setting of a group is wrong.
    #[error("{0}")]
    InvalidConfig(String),
    /// The stream has no such partition.
    #[error("there is no such partition")]
    UnknownPartition,
    /// A member subscribes to the topic.
    #[error("a member of the group subscribes to the topic")]
    SubscribedToTopic,
}
