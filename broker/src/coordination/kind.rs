//! The kinds of coordinators: of consumer groups, and of transactions.

use kera_coordinator::Request;
use kera_log_segments::group::AckPolicy;

/// What a coordinator decides about. Each kind has an internal stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoordinatorKind {
    /// Consumer groups.
    Groups,
    /// Transactions of producers.
    Transactions,
}

impl CoordinatorKind {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Groups, Self::Transactions];

    /// The kind that a request is about.
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Transaction(_) => Self::Transactions,
            _ => Self::Groups,
        }
    }

    /// The internal stream.
    pub fn stream(self) -> &'static str {
        match self {
            Self::Groups => super::GROUPS_STREAM,
            Self::Transactions => super::TRANSACTIONS_STREAM,
        }
    }

    /// What its log lines call it.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Groups => "consumer groups",
            Self::Transactions => "transactions",
        }
    }

    /// One of what it decides about, for people.
    pub(crate) fn one(self, name: &str) -> String {
        match self {
            Self::Groups => format!("group \"{name}\""),
            Self::Transactions => format!("transactional id \"{name}\""),
        }
    }

    /// When its events count. A loss of power must not take a decision of which markers remain.
    pub(super) fn ack(self) -> AckPolicy {
        match self {
            Self::Groups => AckPolicy::Written,
            Self::Transactions => AckPolicy::Synced,
        }
    }
}
