//! Requests about transactions and their answers, in plain types.

use std::collections::{BTreeMap, BTreeSet};

use kera_protocol::ids::{Ordinal, StreamId};

use super::state::{Prepared, Stage};

/// What takes part in a transaction: a partition that is written to, or a group whose offsets are committed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A partition of a stream.
    Partition(StreamId, u32),
    /// A consumer group.
    Group(String),
}

/// A partition of a stream.
pub type Partition = (StreamId, u32);

/// A producer as it names itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its transactional id.
    pub id: String,
    /// Its producer id.
    pub producer: i64,
    /// Its epoch.
    pub epoch: i16,
}

/// A request about transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A producer begins, or goes on after an error: older instances of it are fenced.
    Init(Init),
    /// Makes these part of the transaction, which begins if none is open.
    Add(Member, BTreeSet<Part>),
    /// Asks whether the transaction is open and this is part of it.
    Verify(Member, Part),
    /// Commits or aborts.
    End(End),
    /// The producer lives: the time of its open transaction begins anew, if it runs from heartbeats.
    Heartbeat(Member),
    /// All of it is durable: from now on it has no timeout.
    Prepare(Prepare),
    /// Nobody will ask any more how this transaction ended.
    Forget(Handle),
    /// Asks what is decided and lacks markers.
    Decided,
    /// Parts have their markers, or need none.
    Written(Written),
    /// Aborts the open transaction of this id, at an operator's wish, and fences its producer for good.
    Abort(String),
    /// Likewise this transaction, at the wish of whoever has its handle.
    AbortOne(AbortOne),
    /// Asks for the state of this id.
    Describe(String),
    /// Asks for ids.
    List(Filter),
}

impl Request {
    /// The transactional id; none for what is about all.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Init(request) => Some(&request.id),
            Self::Add(member, _) | Self::Verify(member, _) | Self::Heartbeat(member) => {
                Some(&member.id)
            }
            Self::End(request) => Some(&request.member.id),
            Self::Prepare(request) => Some(&request.handle.member.id),
            Self::Forget(handle) => Some(&handle.member.id),
            Self::AbortOne(request) => Some(&request.handle.member.id),
            Self::Written(request) => Some(&request.id),
            Self::Abort(id) | Self::Describe(id) => Some(id),
            Self::Decided | Self::List(_) => None,
        }
    }
}

/// See [`Request::Init`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Init {
    /// The transactional id.
    pub id: String,
    /// How long its transactions may be open, milliseconds.
    pub timeout_ms: i32,
    /// Producer id and epoch that the client had, if it goes on after an error.
    pub known: Option<(i64, i16)>,
    /// A producer id that nobody has, in case one is needed.
    pub fresh_producer: i64,
    /// A transaction that is open is kept for this instance to end, and not aborted.
    pub keep: bool,
    /// The user for whom its transactions have no timeout: an engine outside says how they end. `None`: they have one.
    pub two_phase: Option<String>,
    /// The timeout runs from the producer's last [heartbeat](Request::Heartbeat), and not from a transaction's begin.
    pub heartbeats: bool,
}

/// See [`Request::End`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Whose transaction.
    pub member: Member,
    /// Whether its records count.
    pub commit: bool,
    /// Which of its transactions, for those who end it by its [`Handle`]; others end the last one.
    pub number: Option<u64>,
    /// Whether its producer has another epoch from then on: a producer id that nobody has, in case no epoch is left.
    pub raise: Option<i64>,
}

/// A transaction by name: any process that has it can end it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Whose transaction.
    pub member: Member,
    /// Which of its transactions.
    pub number: u64,
}

/// See [`Request::AbortOne`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortOne {
    /// The transaction, as a list names it.
    pub handle: Handle,
    /// Also if it is prepared, or open without a timeout.
    pub prepared: bool,
}

/// See [`Request::Prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// The transaction.
    pub handle: Handle,
    /// The user whose it is.
    pub principal: String,
}

/// See [`Request::Written`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The transactional id.
    pub id: String,
    /// The transaction's number.
    pub number: u64,
    /// Those that are done.
    pub parts: BTreeSet<Part>,
    /// Where the markers among them end; in these partitions they may be lost again. 0: the owner, of an earlier version, did
    /// not say it.
    pub ends: BTreeMap<Partition, Ordinal>,
}

/// See [`Request::List`]; what is empty or absent excludes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only in these states.
    pub stages: Vec<Stage>,
    /// Only of these producers.
    pub producers: Vec<i64>,
    /// Only open for longer than this, milliseconds.
    pub open_longer_ms: Option<u64>,
    /// Only ids that begin so.
    pub prefix: String,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To an init: producer id and epoch.
    Begun(i64, i16),
    /// To an init that keeps a transaction.
    Kept {
        /// The producer id.
        producer: i64,
        /// The epoch.
        epoch: i16,
        /// Producer id and epoch of the transaction that is kept.
        ongoing: (i64, i16),
    },
    /// To an addition: the transaction's number, and what of it was not part of it before.
    Added(u64, BTreeSet<Part>),
    /// To a question whether the transaction is open: its number.
    Open(u64),
    /// To an end, or an abort: how the transaction of this number ends is decided.
    Ending(u64),
    /// To an end that raises the epoch.
    Raised {
        /// The number of the transaction that ends.
        number: u64,
        /// The producer id of the next one.
        producer: i64,
        /// Its epoch.
        epoch: i16,
    },
    /// To an end by handle: whether the records of this transaction count.
    Ended(bool),
    /// To a prepare.
    Prepared,
    /// To a question what is decided.
    Decided(Vec<Decided>),
    /// To a report of markers, a heartbeat, or a wish to forget.
    Noted,
    /// To a describe.
    Described(Described),
    /// To a list.
    Listed(Vec<Listed>),
    /// The request is refused.
    Refused(Fault),
}

/// A transaction that is decided, and parts of which lack their markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The transactional id.
    pub id: String,
    /// The producer id.
    pub producer: i64,
    /// The epoch that markers carry.
    pub epoch: i16,
    /// The epoch of the transaction's batches.
    pub batch_epoch: i16,
    /// The transaction's number.
    pub number: u64,
    /// Whether its records count.
    pub commit: bool,
    /// Those without a marker.
    pub parts: BTreeSet<Part>,
}

/// A transactional id for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The transactional id.
    pub id: String,
    /// Its state.
    pub stage: Stage,
    /// Its producer id. Of a transaction that is kept the one of its batches.
    pub producer: i64,
    /// Its epoch, likewise.
    pub epoch: i16,
    /// How long its transactions may be open, milliseconds.
    pub timeout_ms: u32,
    /// When the transaction that is open or ending began, milliseconds since 1970.
    pub started_ms: Option<u64>,
    /// The number of that transaction, or of the last one.
    pub number: u64,
    /// Who prepared that transaction, or has it open without a timeout.
    pub prepared: Option<Prepared>,
    /// Its parts; of one that is ending those that lack their marker.
    pub parts: BTreeSet<Part>,
}

/// A transactional id in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The transactional id.
    pub id: String,
    /// Its producer id. Of a transaction that is kept the one of its batches.
    pub producer: i64,
    /// Its state.
    pub stage: Stage,
    /// When the transaction that is open or ending began.
    pub started_ms: Option<u64>,
    /// Its epoch, likewise.
    pub epoch: i16,
    /// The number of that transaction, or of the last one.
    pub number: u64,
    /// Who prepared that transaction, or has it open without a timeout.
    pub prepared: Option<Prepared>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The transactional id is empty or too long.
    #[error("the transactional id is empty or too long")]
    InvalidId,
    /// The timeout is out of bounds.
    #[error("the transaction timeout is 0, or longer than the broker's `transactions.max_timeout`")]
    InvalidTimeout,
    /// No such transactional id.
    #[error("no transaction of this id is known")]
    UnknownId,
    /// The id belongs to another producer id.
    #[error("the transactional id belongs to another producer id: begin anew")]
    OtherProducer,
    /// Another instance of the producer has begun, or its transaction was aborted.
    #[error("another instance of the producer has begun, or its transaction was aborted")]
    Fenced,
    /// The transaction before is still ending: try again.
    #[error("the transaction before is still ending: try again")]
    Ending,
    /// The transaction is prepared, and ends only by its handle.
    #[error("the transaction of this id is prepared: commit or abort it by its handle")]
    Prepared,
    /// The user has prepared as many transactions as it may.
    #[error("the user has prepared as many transactions as it may: commit or abort some")]
    TooManyPrepared,
    /// It has ended, and how is not remembered.
    #[error("the transaction has ended, and how is not remembered: its id has begun again since")]
    Forgotten,
    /// Nothing is open that this could be done to.
    #[error("no transaction is open that this could be done to")]
    NotOpen,
    /// The transaction has as many parts as it may.
    #[error("the transaction has as many partitions and groups as it may have: abort it")]
    TooManyParts,
    /// The broker remembers as many transactional ids as it may, all with open transactions.
    #[error("as many transactions are open as may be: try again later")]
    TooManyIds,
}
