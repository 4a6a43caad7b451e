//! Groups of replicated streamlets, recorded in the metadata store: every change is a transaction that
//! compares the streamlet's epoch and the record's revision, and counts once it is durable.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use kera_log_segments::group::Group;
use kera_metadata::{
    CommitFuture, Compare, Conflict, GroupKey, GroupRecord as Stored, GroupState as StoredState,
    Image, MetadataError, MetadataStore, StreamletRecord, Transaction as StoreTransaction, Write,
};
use kera_protocol::ids::{Epoch, GroupId};
use kera_replication::ids::{BrokerId, CopyId, Replica, StreamletKey};
use kera_replication::records::{
    Change, ClosedRecord, GroupRecord, GroupState, OpenRecord, Records, RecordsError,
    StreamletRecords, Transaction,
};
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
    /// The store is shared with others: reading it takes a network.
    shared: bool,
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
    /// Records in `store`, which is `shared` with others or this broker's own. `streamlets` have epochs
    /// that were taken just now, in bulk: the first recovery of each goes on under its one.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        shared: bool,
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
            shared,
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
    pub(super) fn stored(&self, key: GroupKey) -> Result<Option<Stored>, MetadataError> {
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
        Box::pin(async move { inner.commit(&transaction).await })
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        let store = self.0.store.clone();
        Box::pin(async move {
            off_runtime(move || {
                let found = store.load_streamlet(streamlet.stream, streamlet.streamlet);
                let image = found.map_err(|error| of_store(streamlet, None, error))?;
                records_of(streamlet, &image)
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
    /// Submits `transaction`, over what is recorded now.
    fn submit(&self, transaction: &Transaction) -> Result<(Changes, CommitFuture), RecordsError> {
        // Nobody waits for a store that does not answer, but who asked it.
        let found = self.find(transaction)?;
        // Ids are reserved in the order in which transactions are submitted.
        let mut state = self.state.lock();
        let mut changes = self.changes(&state, transaction, found.groups)?;
        let mut write = changes.write();
        if let (Some(next_group), Some(owner)) = (changes.reserve.take(), found.owner) {
            // Never back behind what was reserved meanwhile.
            let next_group = next_group.max(owner.next_group);
            changes.reserve = Some(next_group);
            write.push(Write::PutStreamlet(StreamletRecord {
                next_group,
                ..owner
            }));
            state.asked.insert(transaction.streamlet, next_group);
        }
        let asked = StoreTransaction::new(changes.compare(transaction), write);
        let committed = self.store.commit_async(asked);
        Ok((changes, committed))
    }

    /// Reads what `transaction` changes: the streamlet's record where group ids may have to be reserved,
    /// and the groups that are closed or placed.
    fn find(&self, transaction: &Transaction) -> Result<Found, RecordsError> {
        let streamlet = transaction.streamlet;
        let read = |error| of_store(streamlet, None, error);
        let reserved = self.state.lock().reserved.get(&streamlet).copied();
        let is_above = |change: &Change| match change {
            Change::Open { group, .. } => *group >= reserved.unwrap_or_default(),
            _ => false,
        };
        let owner = if transaction.changes.iter().any(is_above) {
            let found = self.store.streamlet(streamlet.stream, streamlet.streamlet);
            let found = found.map_err(read)?;
            Some(found.ok_or(RecordsError::NoStreamlet(streamlet))?)
        } else {
            None
        };
        if let Some(owner) = &owner {
            let mut state = self.state.lock();
            let known = state.reserved.entry(streamlet).or_default();
            *known = owner.next_group.max(*known);
        }
        let mut groups = HashMap::new();
        for change in &transaction.changes {
            if let Change::Close { group, .. } | Change::Place { group, .. } = change {
                let found = self.store.group(group_key(streamlet, *group));
                groups.insert(*group, found.map_err(read)?);
            }
        }
        Ok(Found { owner, groups })
    }

    async fn commit(self: &Arc<Self>, transaction: &Transaction) -> Result<u64, RecordsError> {
        let streamlet = transaction.streamlet;
        let failed = |error| of_store(streamlet, Some(transaction), error);
        let (changes, committed) = if self.shared {
            let (this, transaction) = (self.clone(), transaction.clone());
            off_runtime(move || this.submit(&transaction)).await?
        } else {
            self.submit(transaction)?
        };
        let revision = committed.await.map_err(failed)?.revision;
        if let Some(next_group) = changes.reserve {
            let mut state = self.state.lock();
            let reserved = state.reserved.entry(streamlet).or_default();
            *reserved = next_group.max(*reserved);
        }
        for (key, record) in changes.groups {
            self.recorder
                .learned(key, record.is_some().then_some(revision));
            if record.is_none_or(|r| r.state == StoredState::Closed) {
                self.live.lock().remove(&key);
            }
        }
        Ok(revision)
    }

    /// What `transaction` writes, over the groups that were `found`.
    fn changes(
        &self,
        state: &State,
        transaction: &Transaction,
        mut found: HashMap<GroupId, Option<Stored>>,
    ) -> Result<Changes, RecordsError> {
        let streamlet = transaction.streamlet;
        let mut changes = Changes {
            reserve: None,
            groups: Vec::with_capacity(transaction.changes.len()),
            revisions: Vec::with_capacity(transaction.changes.len()),
        };
        let of = |known: &HashMap<StreamletKey, GroupId>| {
            known.get(&streamlet).copied().unwrap_or_default()
        };
        let mut reserved = of(&state.reserved);
        for change in &transaction.changes {
            let key = group_key(streamlet, change.group());
            let old = found.remove(&key.group).flatten();
            let (expected, record) = match change {
                Change::Open {
                    group,
                    lane,
                    record,
                } => {
                    if *group >= reserved {
                        // Never back behind a reservation that is on its way.
                        reserved = GroupId(group.0 + RESERVED_GROUPS).max(of(&state.asked));
                        changes.reserve = Some(reserved);
                    }
                    let copies = record.holders.clone();
                    let mut opened = blank(key, *lane, transaction.epoch, copies);
                    opened.first_ordinal = record.first_ordinal;
                    (0, Some(opened))
                }
                Change::Close {
                    revision, record, ..
                } => {
                    let old = there(old, key, *revision)?;
                    if old.state == StoredState::Closed {
                        return Err(closed_already(key));
                    }
                    let live = self.live.lock().get(&key).and_then(Weak::upgrade);
                    let max_timestamp_ms = live.map_or(-1, |group| group.max_timestamp().max(-1));
                    (*revision, Some(closed(old, record, max_timestamp_ms)))
                }
                Change::Place {
                    revision, holders, ..
                } => {
                    let mut placed = there(old, key, *revision)?;
                    placed.copies = holders.clone();
                    (*revision, Some(placed))
                }
                Change::Delete { revision, .. } => (*revision, None),
            };
            changes.revisions.push((key, expected));
            changes.groups.push((key, record));
        }
        Ok(changes)
    }

    fn take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Result<(Epoch, u64), RecordsError> {
        let failed = |error| of_store(streamlet, None, error);
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
            .commit(StoreTransaction::new(vec![compare], vec![write]));
        let revision = committed.map_err(failed)?.revision;
        record.revision = revision;
        self.recorder.add_streamlets(&[record.clone()]);
        Ok((record.epoch, revision))
    }
}

/// What is recorded of what a transaction changes.
struct Found {
    owner: Option<StreamletRecord>,
    groups: HashMap<GroupId, Option<Stored>>,
}

/// A transaction as the store takes it.
struct Changes {
    /// Group ids below this are to be reserved with it.
    reserve: Option<GroupId>,
    /// Each group's record after it; `None`: deleted.
    groups: Vec<(GroupKey, Option<Stored>)>,
    /// Each group's revision before it.
    revisions: Vec<(GroupKey, u64)>,
}

impl Changes {
    fn compare(&self, transaction: &Transaction) -> Vec<Compare> {
        let epoch = Compare::StreamletEpoch {
            stream: transaction.streamlet.stream,
            streamlet: transaction.streamlet.streamlet,
            epoch: transaction.epoch,
        };
        let revisions = self.revisions.iter();
        let groups = revisions.map(|(key, revision)| Compare::GroupRevision {
            key: *key,
            revision: *revision,
        });
        std::iter::once(epoch).chain(groups).collect()
    }

    fn write(&self) -> Vec<Write> {
        let write = |(key, record): &(GroupKey, Option<Stored>)| match record {
            Some(record) => Write::PutGroup(record.clone()),
            None => Write::DeleteGroup(*key),
        };
        self.groups.iter().map(write).collect()
    }
}

fn group_key(streamlet: StreamletKey, group: GroupId) -> GroupKey {
    GroupKey {
        stream: streamlet.stream,
        streamlet: streamlet.streamlet,
        group,
    }
}

/// The record a change is about, as long as it has the revision compared.
fn there(old: Option<Stored>, key: GroupKey, expected: u64) -> Result<Stored, RecordsError> {
    match old {
        Some(old) if old.revision == expected => Ok(old),
        other => Err(RecordsError::Revision {
            group: key.group,
            expected,
            found: other.map_or(0, |record| record.revision),
        }),
    }
}

fn closed_already(key: GroupKey) -> RecordsError {
    RecordsError::Invalid(format!("group {} is closed already", key.group))
}

fn blank(
    key: GroupKey,
    lane: kera_protocol::ids::LaneId,
    epoch: Epoch,
    copies: Vec<Replica>,
) -> Stored {
    Stored {
        stream: key.stream,
        streamlet: key.streamlet,
        group: key.group,
        generation: 0,
        lane,
        epoch,
        // With its copies decided, whether or not its lane has come to it.
        state: StoredState::Open,
        first_ordinal: None,
        length: 0,
        end_ordinal: 0,
        next_ordinal: 0,
        max_timestamp_ms: -1,
        closed_ms: 0,
        live_bytes: 0,
        copies,
        damaged: None,
        file_made: false,
        revision: 0,
    }
}

fn closed(old: Stored, record: &ClosedRecord, max_timestamp_ms: i64) -> Stored {
    Stored {
        state: StoredState::Closed,
        first_ordinal: Some(record.first_ordinal),
        length: record.length,
        end_ordinal: record.end_ordinal,
        next_ordinal: record.next_ordinal,
        max_timestamp_ms,
        closed_ms: now_ms(),
        live_bytes: record.length,
        copies: record.holders.clone(),
        ..old
    }
}

/// What the store holds of a streamlet.
fn records_of(streamlet: StreamletKey, image: &Image) -> Result<StreamletRecords, RecordsError> {
    let owner = image
        .streamlets
        .iter()
        .find(|s| s.stream == streamlet.stream && s.streamlet == streamlet.streamlet);
    let owner = owner.ok_or(RecordsError::NoStreamlet(streamlet))?;
    Ok(StreamletRecords {
        epoch: owner.epoch,
        owner: BrokerId(owner.owner),
        next_group: owner.next_group,
        revision: image.revision,
        groups: image.groups.iter().map(record_of).collect(),
    })
}

/// A group's record in the words of replication.
pub fn record_of(stored: &Stored) -> GroupRecord {
    let holders = stored.copies.clone();
    let state = match (stored.state, stored.first_ordinal) {
        (StoredState::Closed, first) => GroupState::Closed(ClosedRecord {
            length: stored.length,
            first_ordinal: first.unwrap_or(stored.end_ordinal),
            end_ordinal: stored.end_ordinal,
            next_ordinal: stored.next_ordinal,
            holders,
        }),
        (_, first_ordinal) => GroupState::Open(OpenRecord {
            first_ordinal,
            holders,
        }),
    };
    GroupRecord {
        copy: CopyId {
            streamlet: StreamletKey {
                stream: stored.stream,
                streamlet: stored.streamlet,
            },
            group: stored.group,
            epoch: stored.epoch,
        },
        lane: stored.lane,
        revision: stored.revision,
        state,
    }
}

/// The store's answer in the words of replication.
fn of_store(
    streamlet: StreamletKey,
    transaction: Option<&Transaction>,
    error: MetadataError,
) -> RecordsError {
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
            key: kera_metadata::Key::Group(key),
            expected,
            found,
        }) if transaction.is_some() => RecordsError::Revision {
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
