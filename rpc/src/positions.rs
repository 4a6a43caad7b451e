//! Positions of a consumer group, on their way from a consumer to a producer's transaction.

use std::fmt;
use std::sync::Arc;

use kera_protocol::v1::LeaseCommit;

/// Is told how a transaction ended: true if it is committed for certain.
type Ended = dyn Fn(&[LeaseCommit], bool) + Send + Sync;

/// Where a consumer group stands, for a transaction to commit: made by a consumer, and taken by a transaction, which tells the
/// consumer how it ended.
#[derive(Clone)]
pub struct GroupPositions {
    group: String,
    member: String,
    commits: Vec<LeaseCommit>,
    ended: Arc<Ended>,
}

impl GroupPositions {
    /// Positions of leases of a member. `ended` is called once the transaction that has taken them is over.
    pub fn new(
        group: String,
        member: String,
        commits: Vec<LeaseCommit>,
        ended: Arc<Ended>,
    ) -> Self {
        Self {
            group,
            member,
            commits,
            ended,
        }
    }

    /// The group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Whose leases they are of.
    pub fn member(&self) -> &str {
        &self.member
    }

    /// The positions; none releases its lease.
    pub fn commits(&self) -> &[LeaseCommit] {
        &self.commits
    }

    /// The transaction is over: committed for certain, or not.
    pub fn ended(&self, is_committed: bool) {
        (self.ended)(&self.commits, is_committed);
    }
}

impl fmt::Debug for GroupPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupPositions")
            .field("group", &self.group)
            .field("member", &self.member)
            .field("commits", &self.commits)
            .finish_non_exhaustive()
    }
}
