//! What goes wrong between a primary and a backup, as values.

use crate::ids::{BrokerId, BufferKey};
use crate::transport::Refusal;

/// Why a link takes or completes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Too much is under way; the link is well.
    #[error("too many submissions to {0} are under way; go on after the next completion")]
    Full(BrokerId),
    /// The backup cannot be reached.
    #[error("{backup} cannot be reached: {reason}")]
    Unreachable {
        /// The backup.
        backup: BrokerId,
        /// For people.
        reason: String,
    },
    /// Another process serves the backup now; what was open there is sealed.
    #[error("{0} was restarted; its replicas are sealed, open a new group")]
    OtherProcess(BrokerId),
    /// The backup ended the link or refused a write: the copy is sealed, freed or unknown.
    #[error("{backup} refused a write: {reason}; open a new group")]
    Refused {
        /// The backup.
        backup: BrokerId,
        /// The buffer that was refused, if that is known: others may go on over a new link.
        buffer: Option<BufferKey>,
        /// What it said, if it could say anything.
        reason: String,
    },
    /// The link broke.
    #[error("the link to {backup} broke: {reason}")]
    Broken {
        /// The backup.
        backup: BrokerId,
        /// For people.
        reason: String,
    },
}

impl LinkError {
    /// True if connecting again to the same process may help.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Full(_) | Self::Unreachable { .. } | Self::Broken { .. }
        )
    }
}

/// Why a control call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The backup answered, and the answer is no.
    #[error("{backup} refused: {refusal}")]
    Refused {
        /// The backup.
        backup: BrokerId,
        /// Why.
        refusal: Refusal,
    },
    /// No answer: the request may or may not have been carried out.
    #[error("{backup} did not answer: {reason}")]
    Lost {
        /// The backup.
        backup: BrokerId,
        /// For people.
        reason: String,
    },
}

impl CallError {
    /// The backup's own answer, if there was one. That it cannot tell yet is none.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused {
                refusal: Refusal::Starting,
                ..
            } => None,
            Self::Refused { refusal, .. } => Some(refusal),
            Self::Lost { .. } => None,
        }
    }
}
