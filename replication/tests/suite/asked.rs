//! The records as one broker reaches them, or not.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_protocol::ids::Epoch;
use kera_records::{GroupKey, Transaction};
use kera_replication::ids::{BrokerId, StreamletKey};
use kera_replication::records::{MemoryRecords, Records, RecordsError, StreamletRecords};
use kera_replication::runtime::RuntimeRef;
use kera_replication::transport::Pending;

/// Who gets no answer from the records.
pub type Silent = Arc<Mutex<BTreeSet<BrokerId>>>;

pub struct Asked {
    pub records: Arc<MemoryRecords>,
    pub clock: RuntimeRef,
    pub silent: Silent,
    pub node: BrokerId,
}

impl Asked {
    fn ask<T: 'static>(
        &self,
        question: impl FnOnce() -> Pending<Result<T, RecordsError>>,
    ) -> Pending<Result<T, RecordsError>> {
        if !self.silent.lock().unwrap().contains(&self.node) {
            return question();
        }
        let patience = self.clock.sleep(Duration::from_millis(50));
        Box::pin(async move {
            patience.await;
            Err(RecordsError::Unknown("cut off".into()))
        })
    }
}

impl Asked {
    /// Commits without any weather, unless `node` gets no answer.
    ///
    /// # Errors
    /// As [`Records::try_commit`].
    pub fn commit_at_once(&self, transaction: &Transaction) -> Result<u64, RecordsError> {
        if self.silent.lock().unwrap().contains(&self.node) {
            return Err(RecordsError::Unknown("cut off".into()));
        }
        self.records.commit_at_once(transaction)
    }
}

impl Records for Asked {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        self.ask(|| self.records.try_commit(transaction))
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.ask(|| self.records.try_read(streamlet))
    }

    fn try_read_group(&self, group: GroupKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.ask(|| self.records.try_read_group(group))
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        self.ask(|| self.records.try_take_epoch(streamlet, owner))
    }
}
