//! Groups of replicated streamlets, recorded in the metadata store: every change is a transaction that
//! compares the streamlet's epoch and the record's revision, and counts once it is durable.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use kera_log_segments::group::Group;
use kera_metadata::{
    CommitFuture, Compare, Conflict, GroupKey, GroupRecord, GroupState, Image, Key, MetadataError,
    MetadataStore, StreamletRecord, Transaction, Write,
};
use kera_protocol::ids::{Epoch, GroupId};
use kera_replication::ids::{BrokerId, StreamletKey};
use kera_replication::records::{Records, RecordsError, StreamletRecords};
use kera_replication::transport::Pending;
use parking_lot::Mutex;

use crate::clock::now_ms;
use crate::recorder::StoreRecorder;

/// Group ids reserved by one transaction, so that most records need not touch the streamlet's.
const RESERVED_GROUPS: u64 = 1024;

/// [`Records`] over the metadata store.
pub struct StoreRecords(Arc<Inner>);

struct Inner {
    store: Arc<dyn MetadataStore>,
    /// Is told of every revision, as it deletes what retention gives up.
    recorder: Arc<StoreRecorder>,
    state: Mutex<State>,
    /// Groups being written here: they know their greatest timestamp. Apart, since it is asked under
    /// a streamlet's lock.
    live: Mutex<HashMap<GroupKey, Weak<Group>>>,
}

#[derive(Default)]
struct State {
    /// Epochs that are this broker's and not used yet: taken in bulk at the start, or recorded by
    /// whoever made it the owner.
    taken: HashMap<StreamletKey, (Epoch, u64)>,
    /// The highest epoch of each streamlet that this broker took, or was about to take.
    latest: HashMap<StreamletKey, Epoch>,
    /// Group ids below these are reserved.
    reserved: HashMap<StreamletKey, GroupId>,
    /// The highest reservations asked for, whether or not they were made.
    asked: HashMap<StreamletKey, GroupId>,
}

impl std::fmt::Debug for StoreRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreRecords").finish_non_exhaustive()
    }
}

impl StoreRecords {
    /// Records in `store`. `streamlets` have epochs that were taken just now, in bulk: the first recovery of each goes on under its one.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        recorder: Arc<StoreRecorder>,
        streamlets: &[StreamletRecord],
    ) -> Arc<Self> {
        let taken = streamlets.iter().map(|s| (s.key(), (s.epoch, s.revision)));
        let state = State {
            latest: streamlets.iter().map(|s| (s.key(), s.epoch)).collect(),
            taken: taken.collect(),
            ..State::default()
        };
        Arc::new(Self(Arc::new(Inner {
            store,
            recorder,
            state: Mutex::new(state),
            live: Mutex::default(),
        })))
    }

    /// The record makes this broker the owner: recovery goes on under its epoch.
    pub(super) fn assigned(&self, record: &StreamletRecord) {
        let (key, mut state) = (record.key(), self.0.state.lock());
        state.taken.insert(key, (record.epoch, record.revision));
        state.latest.insert(key, record.epoch);
    }

    /// This broker takes a streamlet anew that it has under `epoch` already.
    pub(super) fn again(&self, streamlet: StreamletKey, epoch: Epoch) {
        self.0.state.lock().latest.insert(streamlet, epoch);
    }

    /// The highest epoch of a streamlet that this broker took, or is about to take.
    pub(super) fn latest(&self, streamlet: StreamletKey) -> Option<Epoch> {
        self.0.state.lock().latest.get(&streamlet).copied()
    }

    /// Forgets a streamlet that another broker owns.
    pub(super) fn forget_streamlet(&self, streamlet: StreamletKey) {
        let mut state = self.0.state.lock();
        state.taken.remove(&streamlet);
        state.latest.remove(&streamlet);
        state.reserved.remove(&streamlet);
        state.asked.remove(&streamlet);
        drop(state);
        let other = |key: &GroupKey, _: &mut Weak<Group>| {
            (key.stream, key.streamlet) != (streamlet.stream, streamlet.streamlet)
        };
        self.0.live.lock().retain(other);
    }

    /// A group is being written here, until it is closed.
    pub fn writes(&self, group: &Arc<Group>) {
        let spec = group.spec();
        let key = spec.lane.streamlet_key().group(spec.group);
        self.0.live.lock().insert(key, Arc::downgrade(group));
    }

    /// What is stored of a group.
    ///
    /// # Errors
    /// The metadata store's.
    pub(super) fn stored(&self, key: GroupKey) -> Result<Option<GroupRecord>, MetadataError> {
        self.0.store.group(key)
    }

    /// The store in which they are recorded.
    pub(super) fn store(&self) -> &Arc<dyn MetadataStore> {
        &self.0.store
    }

    /// Forgets a deleted stream.
    pub fn forget_stream(&self, stream: kera_protocol::ids::StreamId) {
        let mut state = self.0.state.lock();
        state.taken.retain(|key, _| key.stream != stream);
        state.latest.retain(|key, _| key.stream != stream);
        state.reserved.retain(|key, _| key.stream != stream);
        state.asked.retain(|key, _| key.stream != stream);
        drop(state);
        self.0.live.lock().retain(|key, _| key.stream != stream);
    }
}

impl Records for StoreRecords {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.commit(transaction).await })
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        let store = self.0.store.clone();
        Box::pin(async move {
            off_runtime(move || {
                let found = store.load_streamlet(streamlet.stream, streamlet.streamlet);
                let image = found.map_err(|error| of_store(streamlet, error))?;
                records_of(streamlet, image)
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
            off_runtime(move || inner.take_epoch(streamlet, owner)).await
        })
    }
}

/// Runs what may wait for a disk or a network.
async fn off_runtime<T: Send + 'static>(
    step: impl FnOnce() -> Result<T, RecordsError> + Send + 'static,
) -> Result<T, RecordsError> {
    let done = tokio::task::spawn_blocking(step).await;
    done.unwrap_or_else(|error| Err(RecordsError::Unknown(error.to_string())))
}

impl Inner {
    /// Submits `transaction`, with the reservation of group ids that it needs; returns what is reserved then.
    fn submit(
        &self,
        streamlet: StreamletKey,
        mut transaction: Transaction,
    ) -> Result<(Option<GroupId>, CommitFuture), RecordsError> {
        // Nobody waits for a store that does not answer, but who asked it.
        let owner = self.unreserved(streamlet, &transaction)?;
        // Ids are reserved in the order in which transactions are submitted.
        let mut state = self.state.lock();
        let mut next_group = None;
        if let Some((owner, group)) = owner {
            let asked = state.asked.entry(streamlet).or_default();
            // Never back behind what was reserved meanwhile, or a reservation that is on its way.
            let reserved = GroupId(group.0 + RESERVED_GROUPS);
            *asked = reserved.max(*asked).max(owner.next_group);
            next_group = Some(*asked);
            transaction.write.push(Write::PutStreamlet(StreamletRecord {
                next_group: *asked,
                ..owner
            }));
        }
        Ok((next_group, self.store.commit_async(transaction)))
    }

    /// The streamlet's record and the highest group, if `transaction` records a group whose id is not reserved.
    fn unreserved(
        &self,
        streamlet: StreamletKey,
        transaction: &Transaction,
    ) -> Result<Option<(StreamletRecord, GroupId)>, RecordsError> {
        let opened = transaction.write.iter().filter_map(|write| match write {
            Write::PutGroup(record) if !record.is_closed() => Some(record.group),
            _ => None,
        });
        let Some(highest) = opened.max() else {
            return Ok(None);
        };
        let reserved = self.state.lock().reserved.get(&streamlet).copied();
        if highest < reserved.unwrap_or_default() {
            return Ok(None);
        }
        let found = self.store.streamlet(streamlet.stream, streamlet.streamlet);
        let found = found.map_err(|error| of_store(streamlet, error))?;
        let owner = found.ok_or(RecordsError::NoStreamlet(streamlet))?;
        let mut state = self.state.lock();
        let reserved = state.reserved.entry(streamlet).or_default();
        *reserved = owner.next_group.max(*reserved);
        Ok((highest >= *reserved).then_some((owner, highest)))
    }

    async fn commit(self: &Arc<Self>, mut transaction: Transaction) -> Result<u64, RecordsError> {
        let no_group = || RecordsError::Invalid("it changes no group".into());
        let streamlet = transaction.streamlet().ok_or_else(no_group)?;
        let mut changed = Vec::with_capacity(transaction.write.len());
        for write in &mut transaction.write {
            match write {
                Write::PutGroup(record) => {
                    self.stamp(record);
                    changed.push((record.key(), Some(record.state)));
                }
                Write::DeleteGroup(key) => changed.push((*key, None)),
                _ => {}
            }
        }
        let this = self.clone();
        // Reading the store takes a network.
        let (next_group, committed) =
            off_runtime(move || this.submit(streamlet, transaction)).await?;
        let committed = committed.await;
        let revision = committed
            .map_err(|error| of_store(streamlet, error))?
            .revision;
        if let Some(next_group) = next_group {
            let mut state = self.state.lock();
            let reserved = state.reserved.entry(streamlet).or_default();
            *reserved = next_group.max(*reserved);
        }
        for (key, state) in changed {
            self.recorder.learned(key, state.map(|_| revision));
            if state != Some(GroupState::Open) {
                self.live.lock().remove(&key);
            }
        }
        Ok(revision)
    }

    /// A group that is closed now gets the time, and the greatest timestamp if it was written here.
    fn stamp(&self, record: &mut GroupRecord) {
        if record.is_closed() && record.closed_ms == 0 {
            let live = self.live.lock().get(&record.key()).and_then(Weak::upgrade);
            record.max_timestamp_ms = live.map_or(-1, |group| group.max_timestamp().max(-1));
            record.closed_ms = now_ms();
        }
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
        if record.epoch.0 >= i32::MAX as u32 {
            return Err(RecordsError::Invalid(format!(
                "streamlet {streamlet} has used up its epochs"
            )));
        }
        record.epoch = Epoch(record.epoch.0 + 1);
        // Before others can see it: it is this broker's own doing.
        self.state.lock().latest.insert(streamlet, record.epoch);
        let compare = Compare::StreamletRevision {
            stream: record.stream,
            streamlet: record.streamlet,
            revision: record.revision,
        };
        let write = Write::PutStreamlet(record.clone());
        let committed = self
            .store
            .commit(Transaction::new(vec![compare], vec![write]));
        let revision = committed.map_err(failed)?.revision;
        record.revision = revision;
        self.recorder.add_streamlets(&[record.clone()]);
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
#[path = "records_tests.rs"]
mod tests;
