//! Why a backup's store does not start.

use std::io;
use std::path::PathBuf;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process serves it.
    #[error(
        "replica store {path} is in use by process {pid}; stop that process or name another directory"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The holder, as it wrote it down.
        pid: String,
    },
    /// Its file system cannot hold the quota.
    #[error(
        "replica store {path} lies on a file system of {size} bytes, the quota is {quota}: give it more (containers: --shm-size) or lower the quota"
    )]
    TooSmall {
        /// The directory.
        path: PathBuf,
        /// Bytes of the file system.
        size: u64,
        /// Bytes of the quota.
        quota: u64,
    },
    /// It is not a store, or a newer one, or damaged.
    #[error("replica store {path}: {reason}")]
    Unusable {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The system refused.
    #[error("replica store {path}: {error}; check owner, permissions and space")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}
