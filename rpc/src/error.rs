//! Errors of calls and connections.

use std::sync::Arc;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::FrameError;
use kera_protocol::v1::Placement;

use crate::login::LoginError;
use crate::tls::refusal_in;

/// Why a data connection cannot be used, or was lost.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// No connection came about.
    #[error("cannot connect to broker {address}: {reason}")]
    Connect {
        /// The broker's.
        address: Arc<str>,
        /// What the system said.
        reason: Arc<str>,
    },
    /// The broker does not let the user in.
    #[error("broker {address} does not let {who} in: {reason}", who = .error.who(), reason = .error.reason)]
    Login {
        /// The broker's.
        address: Arc<str>,
        /// Who is refused, and why.
        error: LoginError,
    },
    /// Client and broker do not agree on TLS: one of them has none, or refuses the other's certificate.
    #[error("cannot connect to broker {address}: {reason}")]
    Tls {
        /// The broker's.
        address: Arc<str>,
        /// Who refuses what, and what to do.
        reason: Arc<str>,
        /// False while a certificate may be about to be replaced.
        is_final: bool,
    },
    /// The connection broke; requests without a reply may or may not have taken effect.
    #[error("connection to broker {address} was lost: {reason}")]
    Lost {
        /// The broker's.
        address: Arc<str>,
        /// What the system said.
        reason: Arc<str>,
    },
    /// The broker closed the connection and said why.
    #[error("broker {address} closed the connection: {error}")]
    GoAway {
        /// The broker's.
        address: Arc<str>,
        /// Its reason.
        error: WireError,
    },
    /// This side closed the connection.
    #[error("connection to broker {address} was closed by this client")]
    Closed {
        /// The broker's.
        address: Arc<str>,
    },
    /// Too many requests wait for replies, or too many bytes to be sent.
    #[error("connection to broker {address} has too many requests in flight: wait for replies")]
    Full {
        /// The broker's.
        address: Arc<str>,
    },
    /// The request does not fit a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl ConnectionError {
    /// The refusal of a login, or of TLS, among the causes of why the broker at `address` was not reached; `None` if that
    /// is not why.
    pub fn refusal_in(address: &str, error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        if let Some(error) = LoginError::of(error) {
            let (address, error) = (address.into(), error.clone());
            return Some(Self::Login { address, error });
        }
        let reason = refusal_in(error)?;
        Some(Self::Tls {
            address: address.into(),
            reason: reason.into(),
            is_final: false,
        })
    }

    /// True if a new connection, or waiting, may help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } | Self::Full { .. } => true,
            Self::Login { error, .. } => error.is_retryable,
            Self::Tls { is_final, .. } => !is_final,
            Self::GoAway { error, .. } => {
                error.code.is_retryable() || error.code == ErrorCode::MalformedFrame
            }
            Self::Closed { .. } | Self::Frame(_) => false,
        }
    }

    /// True if the broker may have done what it was asked for.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::GoAway { .. } | Self::Closed { .. } => true,
            Self::Connect { .. }
            | Self::Login { .. }
            | Self::Tls { .. }
            | Self::Full { .. }
            | Self::Frame(_) => false,
        }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The broker refused, and says why.
    #[error(transparent)]
    Broker(#[from] WireError),
    /// The broker was not reached, or not to the end.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A broker's address is none.
    #[error("\"{0}\" is not a broker address: use HOST:PORT")]
    BadAddress(String),
    /// The broker's answer makes no sense.
    #[error("broker's answer is not usable: {0}")]
    BadAnswer(String),
}

impl RpcError {
    /// True if the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Broker(error) => error.code.is_retryable(),
            Self::Connection(error) => error.is_retryable(),
            Self::BadAddress(_) | Self::BadAnswer(_) => false,
        }
    }

    /// True if brokers do not let this client in, by its login or by TLS, and trying again is of no use.
    pub fn is_shut_out(&self) -> bool {
        let shut_out = |error: &ConnectionError| {
            matches!(
                error,
                ConnectionError::Login { .. } | ConnectionError::Tls { .. }
            )
        };
        matches!(self, Self::Connection(error) if shut_out(error)) && !self.is_retryable()
    }

    /// True if the broker may have done what it was asked for.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Broker(error) => error.code.placement() == Placement::MayBePlaced,
            Self::Connection(error) => error.is_uncertain(),
            Self::BadAddress(_) => false,
            // An answer came, and nobody knows which.
            Self::BadAnswer(_) => true,
        }
    }

    /// The broker's code, if the broker answered with an error.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Broker(error) => Some(error.code),
            Self::Connection(ConnectionError::GoAway { error, .. }) => Some(error.code),
            _ => None,
        }
    }
}

/// A change that was refused, or not answered, after attempts that may have made it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChangeError {
    /// What the last attempt came to.
    pub error: RpcError,
    /// The first earlier attempt that may have made the change. A refusal, such as `STREAM_EXISTS`, may then be about what this
    /// client did itself.
    pub earlier: Option<RpcError>,
}

impl ChangeError {
    /// True if the change may have been made.
    pub fn is_uncertain(&self) -> bool {
        self.earlier.is_some() || self.error.is_uncertain()
    }
}

impl From<RpcError> for ChangeError {
    /// Of the only attempt, or of one that changes nothing.
    fn from(error: RpcError) -> Self {
        Self {
            error,
            earlier: None,
        }
    }
}

impl std::fmt::Display for ChangeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)?;
        match &self.earlier {
            None => Ok(()),
            Some(earlier) => write!(f, "; an earlier attempt may have done it: {earlier}"),
        }
    }
}

impl std::error::Error for ChangeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
