//! What can go wrong, before and after a record was taken.

use std::time::Duration;

use kera_protocol::error::{ErrorCode, WireError};
use kera_rpc::{BlockingError, RpcError};

/// Why a record was not taken. It will not be sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The memory limit is reached: wait for acknowledgements, or use
    /// [`append_wait`](crate::Producer::append_wait).
    #[error("producer's memory limit is reached: wait for acknowledgements or raise memory_limit")]
    Full,
    /// The record is larger than a batch may be.
    #[error("record of about {bytes} bytes is larger than a batch may be ({limit} bytes)")]
    TooLarge {
        /// Bytes of the record, encoded, at most.
        bytes: usize,
        /// Most bytes of a batch, by the stream, the connection or the memory limit.
        limit: usize,
    },
    /// The producer is closed.
    #[error("producer is closed")]
    Closed,
    /// The producer has a transactional id, and no transaction is open.
    #[error("no transaction is open: begin one with Producer::transaction")]
    NoTransaction,
    /// An earlier record of the transaction was given up: it cannot be committed any more.
    #[error("the transaction cannot be committed after an earlier error, abort it: {0}")]
    TransactionFailed(ProduceError),
    /// The record's lane failed for good: its order could not be kept.
    #[error("lane takes no more records after an earlier error: {0}")]
    LaneFailed(ProduceError),
    /// The [blocking](crate::blocking) producer cannot wait here.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
}

/// Why a record that was taken is not acknowledged.
///
/// ```
/// use kera_producer::{ErrorCode, ProduceError, WireError};
///
/// fn is_too_large(error: &ProduceError) -> bool {
///     error.code() == Some(ErrorCode::BatchTooLarge)
/// }
/// # let error = WireError::new(ErrorCode::BatchTooLarge, "too large");
/// assert!(is_too_large(&ProduceError::Refused(error)));
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProduceError {
    /// The broker refused the batch, for good.
    #[error("broker refused the batch: {0}")]
    Refused(WireError),
    /// The broker refused the batch for good, but an attempt before may have stored it: its answer was
    /// lost, or left that open.
    #[error(
        "it is not known whether the batch is stored: an earlier attempt may have stored it, and the last was refused: {0}"
    )]
    Uncertain(WireError),
    /// No acknowledgement came in time.
    #[error("no acknowledgement within {deadline:?}{}: {last}", if *.uncertain { "; the batch may have been stored" } else { "" })]
    Timeout {
        /// The producer's deadline.
        deadline: Duration,
        /// True if the batch was sent and may be stored; false if it certainly is not.
        uncertain: bool,
        /// What kept it.
        last: String,
    },
    /// The record's transaction was aborted before it was acknowledged.
    #[error("the transaction was aborted")]
    Aborted,
    /// Positions of a consumer group that belong to the transaction were not taken.
    #[error("positions of the transaction were not taken: {0}")]
    Positions(String),
    /// The producer was closed or dropped before.
    #[error("producer was dropped before the record was acknowledged: close it first")]
    Closed,
    /// What is [blocking](crate::blocking) cannot wait here, so it is not known what became of the records.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
}

impl ProduceError {
    /// The broker's code; `TIMEOUT` if no acknowledgement came.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(error) | Self::Uncertain(error) => Some(error.code),
            Self::Timeout { .. } => Some(ErrorCode::Timeout),
            Self::Closed | Self::Aborted | Self::Positions(_) | Self::Blocking(_) => None,
        }
    }

    /// True if the record may be stored all the same.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Aborted | Self::Positions(_) => false,
            Self::Timeout { uncertain, .. } => *uncertain,
            Self::Uncertain(_) | Self::Closed | Self::Blocking(_) => true,
        }
    }

    /// The error of a batch that may be stored if `uncertain`.
    pub(crate) fn of_batch(self, uncertain: bool) -> Self {
        match self {
            Self::Refused(error) if uncertain => Self::Uncertain(error),
            error => error,
        }
    }
}

/// Why a transaction did not begin, or did not end as it was to.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The producer has no transactional id.
    #[error("producer has no transactional id: set one with ProducerBuilder::transactional_id")]
    NotTransactional,
    /// The producer's transaction before is neither committed nor aborted.
    #[error("a transaction of the producer is open: commit or abort it first")]
    AlreadyOpen,
    /// A record of it was given up, or positions, and the transaction was aborted.
    #[error("the transaction is aborted, because something of it was given up: {0}")]
    Records(ProduceError),
    /// It was aborted: its time was over, or somebody aborted it.
    #[error("the transaction was aborted: its time was over, or somebody aborted it")]
    Aborted,
    /// It was committed, and cannot be aborted.
    #[error("the transaction was committed before")]
    Committed,
    /// Nobody can tell how it ended: an answer was lost, or somebody else ended it, and by now the broker refuses.
    #[error(
        "it is not known how the transaction of {id} ended; ask by its handle, or look at what is stored before the records are written again: {error}"
    )]
    Unknown {
        /// The transactional id.
        id: String,
        /// What the broker says by now.
        error: RpcError,
    },
    /// The brokers were not reached, or refused.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The [blocking](crate::blocking) producer cannot wait here.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
}

impl TransactionError {
    /// The broker's code, if a broker refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Rpc(error) | Self::Unknown { error, .. } => error.code(),
            Self::Records(error) => error.code(),
            _ => None,
        }
    }
}

/// Why no producer came about.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting is missing or out of range.
    #[error("producer setting {name} is not usable: {reason}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The producer whose connections were to be shared is closed.
    #[error("the producer is closed, and appends to no other stream either: build a new one")]
    Closed,
    /// The broker was not reached, or refused.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The [blocking](crate::blocking) producer cannot wait here.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
}
