//! How the metadata store fails.

use std::path::PathBuf;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Epoch, StreamId, StreamletId};
use thiserror::Error;
use uuid::Uuid;

use crate::wrong_store::Stranger;
use kera_records::key::Key;

/// A condition of a transaction that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Conflict {
    /// The name is taken.
    #[error("stream \"{name}\" exists already; choose another name")]
    StreamExists {
        /// The name.
        name: String,
    },
    /// The record has another revision: someone else wrote, created or deleted it.
    #[error(
        "{key} has revision {found}, not {expected} (0: it does not exist); read it again and retry"
    )]
    Revision {
        /// The record.
        key: Key,
        /// What the transaction compared with.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// What the write belongs to does not exist, or no longer.
    #[error("{key} does not exist")]
    Absent {
        /// The record.
        key: Key,
    },
    /// The streamlet has another epoch: a later owner, or a later start of this one.
    #[error("streamlet {stream}/{streamlet} is at epoch {found:?}, not {expected}; its writer must stop", found = .found.map(|e| e.0))]
    Epoch {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletId,
        /// What the transaction compared with.
        expected: Epoch,
        /// What it is; `None` when the streamlet does not exist.
        found: Option<Epoch>,
    },
    /// The counter has another value.
    #[error("{key} is at {found}, not {expected}; read it again and retry")]
    Counter {
        /// The counter.
        key: Key,
        /// What the transaction compared with.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// Another controller was elected, or none is.
    #[error(
        "the controller of term {expected} is one no longer (now {found}; 0: none); it must stop"
    )]
    NotController {
        /// What the transaction compared with.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// The write would move something back that only moves forward.
    #[error("{key} would move back from {current} to {written}; read it again and retry")]
    MovesBack {
        /// What would move.
        key: Key,
        /// Where it is.
        current: u64,
        /// Where the write would put it.
        written: u64,
    },
}

/// Why a store could not be opened, read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// A compare did not hold; nothing was written.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The transaction is impossible whatever the store holds; nothing was written. A defect of the
    /// caller, or input that was not validated.
    #[error("{0}")]
    Invalid(WireError),
    /// Too many transactions wait; nothing was written. Retry after a while.
    #[error(
        "the metadata store has {waiting} operations waiting, the most it takes; retry after a while"
    )]
    Overloaded {
        /// Operations that wait.
        waiting: usize,
    },
    /// The store is closed; nothing was written.
    #[error("the metadata store is closed")]
    Closed,
    /// The disk is full; nothing was written. Succeeds again once there is space.
    #[error("no space is left for the metadata store {}; free space and retry", path.display())]
    Full {
        /// The store's file.
        path: PathBuf,
    },
    /// Reading or writing failed; nothing was written.
    #[error("metadata store {}: {detail}", path.display())]
    Storage {
        /// The store's file.
        path: PathBuf,
        /// What failed.
        detail: String,
    },
    /// The transaction may or may not be written. Read back before acting.
    #[error(
        "metadata store {}: it is unknown whether the transaction is written ({detail}); read back before acting",
        path.display()
    )]
    UnknownOutcome {
        /// The store's file.
        path: PathBuf,
        /// What failed.
        detail: String,
    },
    /// The store cannot be reached; nothing was written. A store that is open tries again with every call.
    #[error(
        "the metadata store at {store} cannot be reached: {detail}; check that it runs, and that the address is right (cluster.store)"
    )]
    Unavailable {
        /// Where the store is.
        store: String,
        /// What failed.
        detail: String,
    },
    /// Something else answers at the store's address, as [`crate::ClusterStore::require`] finds out.
    #[error(transparent)]
    Stranger(#[from] Stranger),
    /// No cluster was made at the address.
    #[error("there is no cluster at {store}; make one with `kera cluster init`")]
    NotInitialized {
        /// Where the store is.
        store: String,
    },
    /// A cluster was made at the address already.
    #[error(
        "there is a cluster at {store} already, {cluster}; give its brokers that address, or another prefix"
    )]
    Initialized {
        /// Where the store is.
        store: String,
        /// The id of that cluster.
        cluster: Uuid,
    },
    /// Another process has the store open.
    #[error("metadata store {} is in use by another process; stop that broker first", path.display())]
    Locked {
        /// The store's file.
        path: PathBuf,
    },
    /// A newer build wrote the store.
    #[error(
        "metadata store {} has format version {found}, newer than {supported}, the newest this build reads; use the newer build",
        path.display()
    )]
    NewerFormat {
        /// The store's file.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
        /// Newest format version of this build.
        supported: u32,
    },
    /// The file is damaged or is something else.
    #[error("metadata store {} is damaged or no metadata store: {detail}; restore it from a backup", path.display())]
    Corrupt {
        /// The store's file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
}

impl MetadataError {
    /// An impossible transaction, described by `message`.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(WireError::new(ErrorCode::InvalidArgument, message))
    }

    /// True when it is certain that nothing of the transaction was written.
    pub fn is_definite(&self) -> bool {
        !matches!(self, Self::UnknownOutcome { .. })
    }

    /// The code that a client is answered with.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Conflict(Conflict::StreamExists { .. }) => ErrorCode::StreamExists,
            Self::Conflict(Conflict::Epoch { .. }) => ErrorCode::NotOwner,
            Self::Conflict(
                Conflict::Revision {
                    key: Key::Stream(_),
                    found: 0,
                    ..
                }
                | Conflict::Absent {
                    key: Key::Stream(_),
                },
            ) => ErrorCode::UnknownStream,
            // Somebody else was faster; the same request, made anew, may succeed.
            Self::Conflict(_) | Self::Overloaded { .. } => ErrorCode::Overloaded,
            Self::Invalid(error) => error.code,
            Self::Closed => ErrorCode::ShuttingDown,
            Self::Full { .. } => ErrorCode::StorageFull,
            Self::Storage { .. }
            | Self::NotInitialized { .. }
            | Self::Stranger(_)
            | Self::Initialized { .. }
            | Self::Locked { .. }
            | Self::NewerFormat { .. }
            | Self::Corrupt { .. } => ErrorCode::StorageError,
            Self::Unavailable { .. } | Self::UnknownOutcome { .. } => ErrorCode::Timeout,
        }
    }
}

impl From<WireError> for MetadataError {
    fn from(error: WireError) -> Self {
        Self::Invalid(error)
    }
}

impl From<MetadataError> for WireError {
    fn from(error: MetadataError) -> Self {
        match error {
            MetadataError::Invalid(error) => error,
            other => WireError::new(other.code(), other.to_string()),
        }
    }
}
