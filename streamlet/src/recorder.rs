//! What a streamlet needs of the metadata store: to record its groups.

use kera_protocol::ids::{Epoch, GroupKey};
use kera_records::{Compare, GroupRecord, Write};

/// The store did not record the change, or it is not known whether it did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("recording a group failed: {0}")]
pub struct RecordError(pub String);

/// Called once with the outcome, when it is durable.
pub type Done = Box<dyn FnOnce(Result<(), RecordError>) + Send>;

/// Records groups and log starts. All changes of one call are one transaction that holds only while the
/// streamlet's epoch is the caller's. The recorder compares revisions, and names the replicas and the file
/// generation of the groups that are put, unless a closed group names its own.
pub trait GroupRecorder: Send + Sync {
    /// Records `changes`, then calls `done`, from any thread, possibly before returning. Must not
    /// block: callers may be on the append path.
    fn record(&self, epoch: Epoch, changes: Vec<Write>, done: Done);

    /// What is recorded of a group, read from the store.
    ///
    /// # Errors
    /// [`RecordError`] if the store does not answer.
    fn read(&self, group: GroupKey) -> Result<Option<GroupRecord>, RecordError>;

    /// Records `changes` and waits.
    ///
    /// # Errors
    /// [`RecordError`] if they are not durable.
    fn record_now(&self, epoch: Epoch, changes: Vec<Write>) -> Result<(), RecordError> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        self.record(
            epoch,
            changes,
            Box::new(move |outcome| drop(tell.send(outcome))),
        );
        told.recv()
            .unwrap_or_else(|_| Err(RecordError("the store dropped the request".into())))
    }

    /// Records `changes` if all of `compare` holds as well, and waits. A recorder that cannot compare records nothing unless
    /// `compare` is empty.
    ///
    /// # Errors
    /// [`RecordError`] if they are not durable, or something of `compare` does not hold.
    fn record_now_if(
        &self,
        epoch: Epoch,
        compare: Vec<Compare>,
        changes: Vec<Write>,
    ) -> Result<(), RecordError> {
        match compare.is_empty() {
            true => self.record_now(epoch, changes),
            false => Err(RecordError("this recorder compares nothing".into())),
        }
    }
}
