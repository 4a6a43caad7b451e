//! What the metadata store records of groups, and how it is changed: every change compares the
//! streamlet's epoch and the record's revision, so that no deposed owner changes anything.

mod commit_retry;
#[cfg(any(test, feature = "testing"))]
mod memory;

use std::sync::Arc;

use kera_protocol::ids::{Epoch, GroupId};
use kera_records::{GroupKey, GroupRecord, StreamletRecord, Transaction};

use crate::ids::{BrokerId, StreamletKey};
use crate::transport::Pending;

pub use commit_retry::{commit, read, read_group, take_epoch};
#[cfg(any(test, feature = "testing"))]
pub use memory::{MemoryRecords, Trouble, Weather};

/// All that is recorded of a streamlet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamletRecords {
    /// Its own record.
    pub streamlet: StreamletRecord,
    /// Revision of the store when this was read.
    pub revision: u64,
    /// Its groups, by id.
    pub groups: Vec<GroupRecord>,
}

impl StreamletRecords {
    /// The record of a group.
    pub fn group(&self, group: GroupId) -> Option<&GroupRecord> {
        let at = self.groups.binary_search_by_key(&group, |r| r.group);
        at.ok().map(|at| &self.groups[at])
    }
}

/// Most changes of one transaction; etcd takes 128 operations.
pub const MAX_CHANGES: usize = 64;

/// Why records could not be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// The streamlet has another epoch: this owner is deposed.
    #[error("streamlet {streamlet} has epoch {found}, not {expected}; another broker owns it")]
    Epoch {
        /// The streamlet.
        streamlet: StreamletKey,
        /// The epoch compared.
        expected: Epoch,
        /// The epoch there is.
        found: Epoch,
    },
    /// A record has changed, or is gone for good.
    #[error("the record of group {group} is of revision {found}, not {expected}; read it again")]
    Revision {
        /// The group.
        group: GroupId,
        /// The revision compared; 0: none.
        expected: u64,
        /// The revision there is.
        found: u64,
    },
    /// No answer: it may or may not have happened.
    #[error("the metadata store did not answer: {0}; read back before acting")]
    Unknown(String),
    /// The streamlet is not recorded.
    #[error("streamlet {0} is not recorded; create it first")]
    NoStreamlet(StreamletKey),
    /// The request makes no sense.
    #[error("the transaction cannot be: {0}")]
    Invalid(String),
}

/// The streamlet whose groups `transaction` changes.
fn streamlet_of(transaction: &Transaction) -> Result<StreamletKey, RecordsError> {
    let streamlet = transaction.streamlet();
    streamlet.ok_or_else(|| RecordsError::Invalid("it changes no group".into()))
}

/// The part of the metadata store that replication needs.
pub trait Records: Send + Sync {
    /// Applies all of `transaction` or nothing, durably, and returns its revision. It changes groups of one
    /// streamlet under one epoch. A new group must not have been recorded in this epoch and deleted again: a
    /// request that comes late is refused as [`RecordsError::Revision`].
    ///
    /// # Errors
    /// [`RecordsError::Unknown`] leaves open which; [`commit`] is the function that reads back.
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>>;

    /// Reads a streamlet as of now, never older than the last commit this caller saw.
    ///
    /// # Errors
    /// [`RecordsError::Unknown`] if there is no answer.
    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>>;

    /// The same, with no more than one of its groups: what a streamlet's history costs is not paid for each of them.
    ///
    /// # Errors
    /// As [`Records::try_read`].
    fn try_read_group(&self, group: GroupKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        let all = self.try_read(group.streamlet_key());
        Box::pin(async move {
            let mut found = all.await?;
            found.groups.retain(|record| record.group == group.group);
            Ok(found)
        })
    }

    /// Makes `owner` the owner under an epoch that is higher than all before, and returns it with the
    /// revision of the change.
    ///
    /// # Errors
    /// After [`RecordsError::Unknown`] ask again: epochs may be left out.
    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>>;
}

/// Shared records.
pub type RecordsRef = Arc<dyn Records>;
