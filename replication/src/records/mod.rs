//! What the metadata store records of groups, and how it is changed: every change compares the
//! streamlet's epoch and the record's revision, so that no deposed owner changes anything.

mod commit_retry;
mod memory;

use std::sync::Arc;

use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal};

use crate::ids::{BrokerId, CopyId, Replica, StreamletKey};
use crate::transport::Pending;

pub use commit_retry::{commit, read, take_epoch};
pub use memory::{MemoryRecords, Trouble, Weather};

/// A group's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// The group and its one epoch.
    pub copy: CopyId,
    /// Its lane.
    pub lane: LaneId,
    /// Revision of the transaction that wrote it.
    pub revision: u64,
    /// Where it stands.
    pub state: GroupState,
}

/// Where a group stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// It may be in use.
    Open(OpenRecord),
    /// It has ended.
    Closed(ClosedRecord),
}

/// A group that may be in use; recorded before its first acknowledgement, maybe long before its
/// first byte. Its set never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRecord {
    /// Ordinal of its first record, if its predecessor was closed when this was recorded.
    pub first_ordinal: Option<Ordinal>,
    /// All that must hold what is acknowledged.
    pub holders: Vec<Replica>,
}

/// How a group ended; final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedRecord {
    /// Its bytes end at this address.
    pub length: u64,
    /// Ordinal of its first record.
    pub first_ordinal: Ordinal,
    /// One above its last record's ordinal.
    pub end_ordinal: Ordinal,
    /// Ordinal at which the lane's next group begins: `end_ordinal`, or more after a loss.
    pub next_ordinal: Ordinal,
    /// Who was seen to hold all of it.
    pub holders: Vec<Replica>,
}

impl GroupRecord {
    /// The open record, if it is open.
    pub fn open(&self) -> Option<&OpenRecord> {
        match &self.state {
            GroupState::Open(open) => Some(open),
            GroupState::Closed(_) => None,
        }
    }

    /// Who is recorded to hold it.
    pub fn holders(&self) -> &[Replica] {
        match &self.state {
            GroupState::Open(open) => &open.holders,
            GroupState::Closed(closed) => &closed.holders,
        }
    }

    /// The closed record, if it is closed.
    pub fn closed(&self) -> Option<&ClosedRecord> {
        match &self.state {
            GroupState::Open(_) => None,
            GroupState::Closed(closed) => Some(closed),
        }
    }
}

/// All that is recorded of a streamlet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamletRecords {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its owner.
    pub owner: BrokerId,
    /// The least group id that was never recorded.
    pub next_group: GroupId,
    /// Revision of the store when this was read.
    pub revision: u64,
    /// Its groups, by id.
    pub groups: Vec<GroupRecord>,
}

/// Changes that take effect together, if the streamlet's epoch and the revision of every record they
/// touch are as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// Its epoch, which must be the current one.
    pub epoch: Epoch,
    /// What changes.
    pub changes: Vec<Change>,
}

/// One change of a [`Transaction`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Records a group of the transaction's epoch, which must not be recorded, nor have been in this
    /// epoch: a request that was deleted meanwhile and comes late is refused as
    /// [`RecordsError::Revision`].
    Open {
        /// The group.
        group: GroupId,
        /// Its lane.
        lane: LaneId,
        /// Its record.
        record: OpenRecord,
    },
    /// Ends a group that is open.
    Close {
        /// The group.
        group: GroupId,
        /// The revision of its record.
        revision: u64,
        /// Its end.
        record: ClosedRecord,
    },
    /// Names other holders of a closed group: a job has built a copy and verified it, or gives one up.
    Place {
        /// The group.
        group: GroupId,
        /// The revision of its record.
        revision: u64,
        /// All that hold it then.
        holders: Vec<Replica>,
    },
    /// Forgets a group: it was recorded ahead and never used, or recovery discarded it.
    Delete {
        /// The group.
        group: GroupId,
        /// The revision of its record.
        revision: u64,
    },
}

impl Change {
    /// The group it changes.
    pub fn group(&self) -> GroupId {
        match self {
            Self::Open { group, .. }
            | Self::Close { group, .. }
            | Self::Place { group, .. }
            | Self::Delete { group, .. } => *group,
        }
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

/// The part of the metadata store that replication needs.
pub trait Records: Send + Sync {
    /// Applies all of `transaction` or nothing, durably, and returns its revision.
    ///
    /// # Errors
    /// [`RecordsError::Unknown`] leaves open which; [`commit`] is the function that reads back.
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>>;

    /// Reads a streamlet as of now, never older than the last commit this caller saw.
    ///
    /// # Errors
    /// [`RecordsError::Unknown`] if there is no answer.
    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>>;

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
