//! Why a broker does not start.

use std::path::PathBuf;

use kera_metadata::MetadataError;

/// Why a broker could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The data directory cannot be used.
    #[error("data directory {}: {reason}", path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Another broker uses the data directory.
    #[error("data directory {} is in use by another broker (process {pid}); stop it first or choose another --data-dir", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other process, as its lock file says.
        pid: String,
    },
    /// The metadata store cannot be used.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {error}; choose another {key}")]
    Listen {
        /// The address.
        address: String,
        /// The configuration key.
        key: &'static str,
        /// The system's answer.
        error: std::io::Error,
    },
    /// A stream's files cannot be read.
    #[error("stream {stream}: {error}")]
    Stream {
        /// The stream's name.
        stream: String,
        /// What failed.
        error: std::io::Error,
    },
    /// The system refused something at start.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        error: std::io::Error,
    },
}
