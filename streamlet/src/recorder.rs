//! What a streamlet needs of the metadata store: to record its groups.

use kera_protocol::ids::{Epoch, GroupId, LaneId, LaneKey, Ordinal, StreamId, StreamletId};

/// Names a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupName {
    /// Its stream.
    pub stream: StreamId,
    /// Its streamlet.
    pub streamlet: StreamletId,
    /// Its id.
    pub group: GroupId,
}

/// A change of a group's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// The group may be opened: recorded ahead of its use, first ordinal unknown, or at its use.
    Open {
        /// The group.
        group: GroupName,
        /// Its lane.
        lane: LaneId,
        /// Its epoch.
        epoch: Epoch,
        /// Its first ordinal; `None` when recorded ahead.
        first_ordinal: Option<Ordinal>,
        /// Its file is there, with a durable mark in it.
        file_made: bool,
    },
    /// The group has ended.
    Close(Closed),
    /// The group is gone.
    Delete(GroupName),
    /// Nothing below this ordinal is readable any more.
    LogStart(LaneKey, Ordinal),
}

/// How a group ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The group.
    pub group: GroupName,
    /// Its lane.
    pub lane: LaneId,
    /// Its epoch.
    pub epoch: Epoch,
    /// First ordinal.
    pub first_ordinal: Ordinal,
    /// Address of its first batch.
    pub data_start: u64,
    /// Address after its last batch.
    pub length: u64,
    /// Ordinal after its last record.
    pub end_ordinal: Ordinal,
    /// Where the lane goes on; above `end_ordinal` after a loss of what had been shown.
    pub next_ordinal: Ordinal,
    /// Highest timestamp, milliseconds.
    pub max_timestamp: i64,
    /// When it was closed.
    pub closed_ms: u64,
    /// What was found damaged, for people; empty if nothing was.
    pub damage: String,
}

/// The store did not record the change, or it is not known whether it did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("recording a group failed: {0}")]
pub struct RecordError(pub String);

/// Called once with the outcome, when it is durable.
pub type Done = Box<dyn FnOnce(Result<(), RecordError>) + Send>;

/// Records groups. All changes of one call are one transaction that holds only while the
/// streamlet's epoch is the caller's.
pub trait GroupRecorder: Send + Sync {
    /// Records `changes`, then calls `done`, from any thread, possibly before returning. Must not
    /// block: callers may be on the append path.
    fn record(&self, epoch: Epoch, changes: Vec<GroupChange>, done: Done);

    /// Records `changes` and waits.
    ///
    /// # Errors
    /// [`RecordError`] if they are not durable.
    fn record_now(&self, epoch: Epoch, changes: Vec<GroupChange>) -> Result<(), RecordError> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        self.record(
            epoch,
            changes,
            Box::new(move |outcome| drop(tell.send(outcome))),
        );
        told.recv()
            .unwrap_or_else(|_| Err(RecordError("the store dropped the request".into())))
    }
}
