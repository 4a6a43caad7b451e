//! Records groups in the metadata store: every change a transaction on the streamlet's epoch and
//! the record's revision.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use kera_metadata::{
    Compare, GroupKey, GroupRecord, Image, Key, MetadataError, MetadataStore, Replica,
    StreamletRecord, Transaction, Write,
};
use kera_protocol::ids::{BrokerId, Epoch, GroupId, Incarnation, StreamId, StreamletKey};
use kera_streamlet::recorder::{Done, GroupRecorder, RecordError};
use parking_lot::Mutex;

/// Group ids reserved by one transaction, so that most records need not touch the streamlet's.
const RESERVED_GROUPS: u64 = 1024;
/// Most changes of one transaction.
const CHANGES_PER_TRANSACTION: usize = 4096;

/// A [`GroupRecorder`] over the metadata store. Changes of one group are submitted one after the
/// other: a later one waits until the revision that the earlier one brings is known.
pub struct StoreRecorder(Arc<Inner>);

struct Inner {
    store: Arc<dyn MetadataStore>,
    copy: Replica,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    groups: BTreeMap<GroupKey, Known>,
    /// Groups with a change on its way, and what waits behind it.
    busy: HashMap<GroupKey, VecDeque<Waiting>>,
    streamlets: HashMap<StreamletKey, StreamletRecord>,
}

impl State {
    /// Learns of the groups in `image` that are of a known streamlet.
    fn know(&mut self, image: &Image) {
        for group in &image.groups {
            if !self.streamlets.contains_key(&group.streamlet_key()) {
                continue;
            }
            // Only groups still to be closed are needed whole.
            let record = (!group.is_closed()).then(|| Box::new(group.clone()));
            let known = Known {
                revision: group.revision,
                record,
                uncertain: false,
            };
            self.groups.insert(group.key(), known);
        }
    }

    fn forget(&mut self, streamlet: StreamletKey) {
        let at = |group| streamlet.group(GroupId(group));
        let of = self.groups.range(at(0)..=at(u64::MAX));
        let of: Vec<_> = of.map(|(key, _)| *key).collect();
        for key in of {
            self.groups.remove(&key);
        }
        self.streamlets.remove(&streamlet);
    }
}

struct Waiting {
    epoch: Epoch,
    changes: Vec<Write>,
    done: Done,
}

struct Known {
    revision: u64,
    record: Option<Box<GroupRecord>>,
    /// The last transaction on it failed: read the record back before the next.
    uncertain: bool,
}

impl StoreRecorder {
    /// A recorder that knows what `image` holds and the epochs of `streamlets`.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        broker: u32,
        incarnation: Incarnation,
        image: &Image,
        streamlets: &[StreamletRecord],
    ) -> Self {
        let mut state = State {
            streamlets: streamlets.iter().map(|s| (s.key(), s.clone())).collect(),
            ..State::default()
        };
        state.know(image);
        let copy = Replica {
            broker: BrokerId(broker),
            incarnation,
        };
        Self(Arc::new(Inner {
            store,
            copy,
            state: Mutex::new(state),
        }))
    }

    /// Learns of streamlets just created.
    pub fn add_streamlets(&self, streamlets: &[StreamletRecord]) {
        let mut state = self.0.state.lock();
        state
            .streamlets
            .extend(streamlets.iter().map(|s| (s.key(), s.clone())));
    }

    /// Learns what is recorded of a streamlet that this broker has taken over: all of `image`.
    pub fn adopt(&self, image: &Image) {
        let mut state = self.0.state.lock();
        for streamlet in &image.streamlets {
            state.forget(streamlet.key());
            state.streamlets.insert(streamlet.key(), streamlet.clone());
        }
        state.know(image);
    }

    /// Forgets a streamlet that another broker owns.
    pub fn forget_streamlet(&self, streamlet: StreamletKey) {
        self.0.state.lock().forget(streamlet);
    }

    /// Learns that others have written a group's record, which has this revision now, or deleted it.
    pub fn learned(&self, group: GroupKey, revision: Option<u64>) {
        let mut state = self.0.state.lock();
        match revision {
            Some(revision) => {
                let known = Known {
                    revision,
                    record: None,
                    uncertain: false,
                };
                state.groups.insert(group, known);
            }
            None => drop(state.groups.remove(&group)),
        }
    }

    /// Forgets a deleted stream.
    pub fn forget_stream(&self, stream: StreamId) {
        let mut state = self.0.state.lock();
        state.groups.retain(|key, _| key.stream != stream);
        state.streamlets.retain(|key, _| key.stream != stream);
    }
}

impl Inner {
    /// Submits `changes` in their order, in as few transactions as the store allows, each once the one
    /// before is durable: what a later change relies on comes first.
    fn submit_all(self: &Arc<Self>, epoch: Epoch, mut changes: Vec<Write>, done: Done) {
        // Each is a comparison and a write; the streamlet's are beside them.
        let most = (self.store.max_operations() / 2).clamp(1, CHANGES_PER_TRANSACTION);
        if changes.len() <= most {
            return self.submit(epoch, changes, done);
        }
        let rest = changes.split_off(most);
        let this = self.clone();
        let next: Done = Box::new(move |outcome| match outcome {
            Ok(()) => this.submit_all(epoch, rest, done),
            Err(error) => done(Err(error)),
        });
        self.submit(epoch, changes, next);
    }

    /// Submits `changes`, or has them wait behind an earlier change of one of their groups.
    fn submit(self: &Arc<Self>, epoch: Epoch, changes: Vec<Write>, done: Done) {
        let keys = keys_of(&changes);
        {
            let mut state = self.state.lock();
            if let Some(queue) = keys
                .iter()
                .find_map(|key| state.busy.get(key).map(|_| *key))
            {
                let waiting = Waiting {
                    epoch,
                    changes,
                    done,
                };
                state.busy.entry(queue).or_default().push_back(waiting);
                return;
            }
            state
                .busy
                .extend(keys.iter().map(|key| (*key, VecDeque::new())));
        }
        self.settle(&keys);
        let (transaction, pending) = self.transaction(epoch, changes);
        if transaction.write.is_empty() {
            done(Ok(()));
            self.release(&keys);
            return;
        }
        let this = self.clone();
        self.store.submit(
            transaction,
            Box::new(move |outcome| {
                let outcome = outcome.map(|committed| committed.revision);
                learn(&this.state, pending, &outcome);
                done(
                    outcome
                        .map(|_| ())
                        .map_err(|error| RecordError(error.to_string())),
                );
                this.release(&keys);
            }),
        );
    }

    /// Submits what has waited for these groups.
    fn release(self: &Arc<Self>, keys: &[GroupKey]) {
        let waiting: Vec<_> = {
            let mut state = self.state.lock();
            keys.iter()
                .filter_map(|key| state.busy.remove(key))
                .flatten()
                .collect()
        };
        for next in waiting {
            self.submit(next.epoch, next.changes, next.done);
        }
    }

    /// Reads back records whose last transaction had no certain outcome.
    fn settle(&self, keys: &[GroupKey]) {
        for key in keys {
            let uncertain = self
                .state
                .lock()
                .groups
                .get(key)
                .is_some_and(|k| k.uncertain);
            if !uncertain {
                continue;
            }
            if let Ok(found) = self.store.group(*key) {
                let mut state = self.state.lock();
                match found {
                    Some(record) => {
                        let known = Known {
                            revision: record.revision,
                            record: Some(Box::new(record)),
                            uncertain: false,
                        };
                        state.groups.insert(*key, known);
                    }
                    None => {
                        state.groups.remove(key);
                    }
                }
            }
        }
    }

    /// The transaction of `changes`: what they compare, and what the streamlet leaves to the recorder. A group
    /// that has come as far already is left out.
    fn transaction(&self, epoch: Epoch, changes: Vec<Write>) -> (Transaction, Vec<Pending>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut transaction = Transaction::default();
        let mut pending = Vec::with_capacity(changes.len());
        let mut compared = Vec::new();
        for change in changes {
            if let Some(streamlet) = change.key().streamlet_of()
                && !compared.contains(&streamlet)
            {
                compared.push(streamlet);
                let epoch = Compare::epoch_of(streamlet, epoch);
                transaction.compare.push(epoch);
            }
            match change {
                Write::PutGroup(mut record) => {
                    let key = record.key();
                    let known = state.groups.get(&key);
                    let old = known.and_then(|known| known.record.as_deref());
                    if old.is_some_and(|old| old.state >= record.state) {
                        continue;
                    }
                    if let Some(old) = old.filter(|_| record.is_closed()) {
                        record.generation = old.generation;
                        record.copies.clone_from(&old.copies);
                        record.file_made = old.file_made;
                    } else {
                        record.copies = vec![self.copy];
                    }
                    transaction.compare.push(Compare::GroupRevision {
                        key,
                        revision: known.map_or(0, |known| known.revision),
                    });
                    if !record.is_closed() {
                        reserve(&mut state.streamlets, key, &mut transaction);
                    }
                    transaction.write.push(Write::PutGroup(record.clone()));
                    let record = Some(Box::new(record));
                    pending.push(Pending { key, record });
                }
                Write::DeleteGroup(key) => {
                    let Some(known) = state.groups.get(&key) else {
                        continue;
                    };
                    transaction.compare.push(Compare::GroupRevision {
                        key,
                        revision: known.revision,
                    });
                    transaction.write.push(Write::DeleteGroup(key));
                    pending.push(Pending { key, record: None });
                }
                other => transaction.write.push(other),
            }
        }
        (transaction, pending)
    }
}

/// Has `transaction` reserve ids from `group` on, unless that is done.
fn reserve(
    streamlets: &mut HashMap<StreamletKey, StreamletRecord>,
    group: GroupKey,
    transaction: &mut Transaction,
) {
    let streamlet = streamlets.get_mut(&group.streamlet_key());
    if let Some(streamlet) = streamlet.filter(|streamlet| streamlet.next_group <= group.group) {
        streamlet.next_group = GroupId(group.group.0 + RESERVED_GROUPS);
        let reserved = Write::PutStreamlet(streamlet.clone());
        transaction.write.push(reserved);
    }
}

struct Pending {
    key: GroupKey,
    record: Option<Box<GroupRecord>>,
}

fn learn(state: &Mutex<State>, pending: Vec<Pending>, outcome: &Result<u64, MetadataError>) {
    let mut state = state.lock();
    for Pending { key, record } in pending {
        match (outcome, record) {
            (Ok(_), None) => {
                state.groups.remove(&key);
            }
            (Ok(revision), Some(record)) => {
                let keep = (!record.is_closed()).then_some(record);
                state.groups.insert(
                    key,
                    Known {
                        revision: *revision,
                        record: keep,
                        uncertain: false,
                    },
                );
            }
            (Err(_), _) => {
                // Ids reserved by this transaction may not be: reserve again with the next.
                if let Some(streamlet) = state.streamlets.get_mut(&key.streamlet_key()) {
                    streamlet.next_group = GroupId(0);
                }
                let known = state.groups.entry(key).or_insert(Known {
                    revision: 0,
                    record: None,
                    uncertain: true,
                });
                known.uncertain = true;
            }
        }
    }
}

fn keys_of(changes: &[Write]) -> Vec<GroupKey> {
    let group = |change: &Write| match change.key() {
        Key::Group(key) => Some(key),
        _ => None,
    };
    changes.iter().filter_map(group).collect()
}

impl GroupRecorder for StoreRecorder {
    fn record(&self, epoch: Epoch, changes: Vec<Write>, done: Done) {
        self.0.submit_all(epoch, changes, done);
    }
}
