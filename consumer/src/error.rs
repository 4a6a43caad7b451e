//! What can go wrong when consuming.

use kera_protocol::batch::BatchError;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneKey, Ordinal};
use kera_rpc::{BlockingError, ConnectionError, RpcError};

/// Why there is no batch, or a commit did not take effect.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumeError {
    /// A setting makes no sense.
    #[error("consumer setting {setting} is not usable: {reason}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A broker was not reached within the deadline, or refused.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// A lane cannot be read. Reading goes on elsewhere, and is tried again here if the error may
    /// pass.
    #[error("lane {lane} cannot be read at ordinal {ordinal}: {error}")]
    Lane {
        /// Which lane.
        lane: LaneKey,
        /// Where reading stands.
        ordinal: Ordinal,
        /// What the broker says.
        error: WireError,
    },
    /// A batch arrived damaged: its checksum does not fit. It is asked for again; call again to go on.
    #[error("batch of lane {lane} at ordinal {ordinal} is damaged: {error}")]
    Corrupt {
        /// Which lane.
        lane: LaneKey,
        /// First ordinal not delivered.
        ordinal: Ordinal,
        /// What is wrong.
        error: BatchError,
    },
    /// A batch is as its producer wrote it, and cannot be read: its records do not decode, or take more
    /// than the memory limit when they are decompressed. Reading stands at it. Calling again gives the same
    /// error, unless the batch is passed with [`Reader::seek`](crate::Reader::seek), or skipped.
    #[error("batch of lane {lane} at ordinals {ordinal} to {} cannot be read: {error}; {}", next.saturating_sub(1), remedy(error))]
    Undecodable {
        /// Which lane.
        lane: LaneKey,
        /// Its first ordinal that was to be delivered.
        ordinal: Ordinal,
        /// The ordinal after it.
        next: Ordinal,
        /// What is wrong.
        error: BatchError,
    },
    /// The lease of the batch has ended: nothing was committed, another consumer has its records or
    /// will get them.
    #[error("lease {lease} has ended: its records go to another consumer and were not committed")]
    StaleLease {
        /// The lease.
        lease: u64,
    },
    /// The batch was not read by this group's consumer.
    #[error("batch of lane {lane} belongs to no lease: only batches of a group can be committed")]
    NotLeased {
        /// Its lane.
        lane: LaneKey,
    },
    /// The stream has no such lane, or this reader does not read it.
    #[error("lane {streamlet}/{lane} is not read here: choose a lane of the stream")]
    UnknownLane {
        /// Streamlet asked for.
        streamlet: u32,
        /// Lane asked for.
        lane: u32,
    },
    /// This member holds no lease of the lane.
    #[error(
        "lane {streamlet}/{lane} is not held by this member, which cannot choose where it goes on: wait until it is assigned (leases, on_rebalance)"
    )]
    NotHeld {
        /// Streamlet asked for.
        streamlet: u32,
        /// Lane asked for.
        lane: u32,
    },
    /// The group has committed what was to be delivered again.
    #[error(
        "lane {lane} cannot go on before ordinal {committed}, up to which its group has committed: close the members and set the group's position (kera group reset), or read it without a group"
    )]
    Committed {
        /// Which lane.
        lane: LaneKey,
        /// Everything below is committed.
        committed: Ordinal,
    },
    /// The consumer was closed.
    #[error("consumer is closed")]
    Closed,
    /// What is [blocking](crate::blocking) cannot wait here.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
}

/// What to do about a batch that cannot be read.
fn remedy(error: &BatchError) -> &'static str {
    match error {
        BatchError::TooLarge(_) => {
            "raise the memory limit (memory_limit, --memory-limit), or skip it (skip_damaged, --skip-damaged)"
        }
        _ => {
            "its checksum fits, so its producer wrote it so: skip it (skip_damaged, --skip-damaged), or go on behind it"
        }
    }
}

impl ConsumeError {
    /// What it means for whoever reads a stream, whose name a refused login does not have.
    pub(crate) fn of_stream(error: RpcError, stream: &str) -> Self {
        Self::Rpc(match error {
            RpcError::Connection(ConnectionError::Login { address, error }) => {
                let error = error.which_stops(&format!("reading stream {stream}"));
                ConnectionError::Login { address, error }.into()
            }
            RpcError::Connection(ConnectionError::Tls {
                address,
                reason,
                is_final,
            }) => {
                let reason = format!("{reason}; reading stream {stream} stops").into();
                ConnectionError::Tls {
                    address,
                    reason,
                    is_final,
                }
                .into()
            }
            other => other,
        })
    }

    /// The broker's code, if a broker answered with an error.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Rpc(error) => error.code(),
            Self::Lane { error, .. } => Some(error.code),
            Self::StaleLease { .. } => Some(ErrorCode::StaleLease),
            Self::Corrupt { .. } => Some(ErrorCode::CorruptBatch),
            Self::Undecodable { .. } => Some(ErrorCode::InvalidBatch),
            _ => None,
        }
    }

    /// True if calling again may succeed without any change.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Rpc(error) => error.is_retryable(),
            Self::Lane { error, .. } => error.code.is_retryable(),
            Self::Corrupt { .. } => true,
            _ => false,
        }
    }
}
