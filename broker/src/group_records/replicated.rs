//! Groups of replicated streamlets: their lanes say what changes, and compare the revisions that they know.

use std::sync::Arc;

use kera_metadata::{
    Compare, Conflict, GroupKey, GroupRecord, Image, Key, MetadataError, StreamletRecord,
    Transaction, Write,
};
use kera_protocol::ids::Epoch;
use kera_replication::ids::{BrokerId, StreamletKey};
use kera_replication::records::{Records, RecordsError, StreamletRecords};
use kera_replication::transport::Pending;

use super::{GroupRecords, Inner};
use crate::clock::now_ms;
use crate::store_calls::blocking;

impl GroupRecords {
    /// The record makes this broker the owner: recovery goes on under its epoch.
    pub(crate) fn assigned(&self, record: &StreamletRecord) {
        let (key, mut state) = (record.key(), self.0.state.lock());
        state.own(std::slice::from_ref(record));
        state.taken.insert(key, (record.epoch, record.revision));
        state.latest.insert(key, record.epoch);
    }

    /// This broker takes a streamlet anew that it has under `epoch` already.
    pub(crate) fn again(&self, streamlet: StreamletKey, epoch: Epoch) {
        self.0.state.lock().latest.insert(streamlet, epoch);
    }

    /// The highest epoch of a streamlet that this broker took, or is about to take.
    pub(crate) fn latest(&self, streamlet: StreamletKey) -> Option<Epoch> {
        self.0.state.lock().latest.get(&streamlet).copied()
    }

    /// What is stored of a group.
    ///
    /// # Errors
    /// The metadata store's.
    pub(crate) fn stored(&self, key: GroupKey) -> Result<Option<GroupRecord>, MetadataError> {
        self.0.store.group(key)
    }
}

impl Records for GroupRecords {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.commit(transaction).await })
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        let store = self.0.store.clone();
        Box::pin(async move {
            blocking(move || {
                let found = store.load_streamlet(streamlet.stream, streamlet.streamlet);
                let image = found.map_err(|error| of_store(streamlet, error))?;
                records_of(streamlet, image)
            })
            .await
        })
    }

    fn try_read_group(&self, key: GroupKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        let store = self.0.store.clone();
        let streamlet = key.streamlet_key();
        Box::pin(async move {
            blocking(move || {
                let failed = |error| of_store(streamlet, error);
                // The group first: epochs only rise, so an owner that finds its own after that has read its own record.
                let group = store.group(key).map_err(failed)?;
                let found = store.streamlet(key.stream, key.streamlet).map_err(failed)?;
                let streamlet = found.ok_or(RecordsError::NoStreamlet(streamlet))?;
                Ok(StreamletRecords {
                    revision: group.as_ref().map_or(streamlet.revision, |g| g.revision),
                    streamlet,
                    groups: group.into_iter().collect(),
                })
            })
            .await
        })
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            if let Some(taken) = inner.state.lock().taken.remove(&streamlet) {
                return Ok(taken);
            }
            blocking(move || inner.take_epoch(streamlet, owner)).await
        })
    }
}

impl Inner {
    async fn commit(self: &Arc<Self>, mut transaction: Transaction) -> Result<u64, RecordsError> {
        let no_group = || RecordsError::Invalid("it changes no group".into());
        let streamlet = transaction.streamlet().ok_or_else(no_group)?;
        for write in &mut transaction.write {
            if let Write::PutGroup(record) = write
                && record.is_closed()
                && record.closed_ms == 0
            {
                record.closed_ms = now_ms();
            }
        }
        let committed = self.commit_async(transaction).await;
        committed
            .map(|committed| committed.revision)
            .map_err(|error| of_store(streamlet, error))
    }

    fn take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Result<(Epoch, u64), RecordsError> {
        let failed = |error| of_store(streamlet, error);
        let found = self.store.streamlet(streamlet.stream, streamlet.streamlet);
        let mut record = found
            .map_err(failed)?
            .ok_or(RecordsError::NoStreamlet(streamlet))?;
        if record.owner != owner.0 {
            return Err(RecordsError::Invalid(format!(
                "streamlet {streamlet} is owned by {}, which alone may take its epochs",
                BrokerId(record.owner)
            )));
        }
        record = record.in_next_epoch(owner.0).ok_or_else(|| {
            RecordsError::Invalid(format!("streamlet {streamlet} has used up its epochs"))
        })?;
        // Before others can see it: it is this broker's own doing.
        self.state.lock().latest.insert(streamlet, record.epoch);
        let compare = Compare::streamlet(&record);
        let write = Write::PutStreamlet(record.clone());
        let committed = self
            .store
            .commit(Transaction::new(vec![compare], vec![write]));
        let revision = committed.map_err(failed)?.revision;
        record.revision = revision;
        self.state.lock().own(std::slice::from_ref(&record));
        Ok((record.epoch, revision))
    }
}

/// What the store holds of a streamlet.
fn records_of(streamlet: StreamletKey, image: Image) -> Result<StreamletRecords, RecordsError> {
    let mut streamlets = image.streamlets.into_iter();
    let found = streamlets.find(|found| found.key() == streamlet);
    Ok(StreamletRecords {
        streamlet: found.ok_or(RecordsError::NoStreamlet(streamlet))?,
        revision: image.revision,
        groups: image.groups,
    })
}

/// The store's answer in the words of replication.
fn of_store(streamlet: StreamletKey, error: MetadataError) -> RecordsError {
    match error {
        MetadataError::Conflict(Conflict::Epoch { found: None, .. } | Conflict::Absent { .. }) => {
            RecordsError::NoStreamlet(streamlet)
        }
        MetadataError::Conflict(Conflict::Epoch {
            expected,
            found: Some(found),
            ..
        }) => RecordsError::Epoch {
            streamlet,
            expected,
            found,
        },
        MetadataError::Conflict(Conflict::Revision {
            key: Key::Group(key),
            expected,
            found,
        }) => RecordsError::Revision {
            group: key.group,
            expected,
            found,
        },
        MetadataError::Invalid(error) => RecordsError::Invalid(error.message),
        // Whether anything was written is not always known, and in each case asking again is right.
        other => RecordsError::Unknown(other.to_string()),
    }
}

#[cfg(test)]
#[path = "replicated_tests.rs"]
mod tests;
