//! Records groups in the metadata store: every change a transaction on the streamlet's epoch and
//! the record's revision.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use kera_metadata::{
    Compare, Damage, GroupKey, GroupRecord, GroupState, Image, MAX_DAMAGE_DETAIL, MetadataError,
    MetadataStore, Replica, StreamletRecord, Transaction, Write,
};
use kera_protocol::ids::{BrokerId, Epoch, GroupId, Incarnation, StreamId, StreamletId};
use kera_streamlet::recorder::{Closed, Done, GroupChange, GroupName, GroupRecorder, RecordError};
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
    streamlets: HashMap<(StreamId, StreamletId), StreamletRecord>,
}

impl State {
    /// Learns of the groups in `image` that are of a known streamlet.
    fn know(&mut self, image: &Image) {
        for group in &image.groups {
            if !self
                .streamlets
                .contains_key(&(group.stream, group.streamlet))
            {
                continue;
            }
            // Only groups still to be closed are needed whole.
            let record = (group.state != GroupState::Closed).then(|| Box::new(group.clone()));
            let known = Known {
                revision: group.revision,
                record,
                uncertain: false,
            };
            self.groups.insert(group.key(), known);
        }
    }

    fn forget(&mut self, (stream, streamlet): (StreamId, StreamletId)) {
        let at = |group| GroupKey {
            stream,
            streamlet,
            group: GroupId(group),
        };
        let of = self.groups.range(at(0)..=at(u64::MAX));
        let of: Vec<_> = of.map(|(key, _)| *key).collect();
        for key in of {
            self.groups.remove(&key);
        }
        self.streamlets.remove(&(stream, streamlet));
    }
}

struct Waiting {
    epoch: Epoch,
    changes: Vec<GroupChange>,
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
            streamlets: streamlets
                .iter()
                .map(|s| ((s.stream, s.streamlet), s.clone()))
                .collect(),
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
        state.streamlets.extend(
            streamlets
                .iter()
                .map(|s| ((s.stream, s.streamlet), s.clone())),
        );
    }

    /// Learns what is recorded of a streamlet that this broker has taken over: all of `image`.
    pub fn adopt(&self, image: &Image) {
        let mut state = self.0.state.lock();
        for streamlet in &image.streamlets {
            let id = (streamlet.stream, streamlet.streamlet);
            state.forget(id);
            state.streamlets.insert(id, streamlet.clone());
        }
        state.know(image);
    }

    /// Forgets a streamlet that another broker owns.
    pub fn forget_streamlet(&self, stream: StreamId, streamlet: StreamletId) {
        self.0.state.lock().forget((stream, streamlet));
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
        state.streamlets.retain(|(id, _), _| *id != stream);
    }
}

impl Inner {
    /// Submits `changes` in their order, in as few transactions as the store allows, each once the one
    /// before is durable: what a later change relies on comes first.
    fn submit_all(self: &Arc<Self>, epoch: Epoch, mut changes: Vec<GroupChange>, done: Done) {
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
    fn submit(self: &Arc<Self>, epoch: Epoch, changes: Vec<GroupChange>, done: Done) {
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
        let (transaction, pending) = self.transaction(epoch, &changes);
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

    fn transaction(&self, epoch: Epoch, changes: &[GroupChange]) -> (Transaction, Vec<Pending>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut transaction = Transaction::default();
        let mut pending = Vec::with_capacity(changes.len());
        let mut compared = Vec::new();
        for change in changes {
            let owner = match change {
                GroupChange::Open { group, .. } | GroupChange::Delete(group) => {
                    (group.stream, group.streamlet)
                }
                GroupChange::Close(closed) => (closed.group.stream, closed.group.streamlet),
                GroupChange::LogStart(lane, _) => (lane.stream, lane.streamlet),
            };
            if !compared.contains(&owner) {
                compared.push(owner);
                transaction.compare.push(Compare::StreamletEpoch {
                    stream: owner.0,
                    streamlet: owner.1,
                    epoch,
                });
            }
            match change {
                GroupChange::Open {
                    group,
                    lane,
                    epoch,
                    first_ordinal,
                    file_made,
                } => {
                    let key = key_of(group);
                    if let Some(known) = state.groups.get(&key)
                        && known.record.as_ref().is_some_and(|r| {
                            r.state != GroupState::Ahead || first_ordinal.is_none()
                        })
                    {
                        continue;
                    }
                    self.reserve(state, group, &mut transaction);
                    let record = GroupRecord {
                        stream: group.stream,
                        streamlet: group.streamlet,
                        group: group.group,
                        generation: 0,
                        lane: *lane,
                        epoch: *epoch,
                        state: if first_ordinal.is_some() {
                            GroupState::Open
                        } else {
                            GroupState::Ahead
                        },
                        first_ordinal: *first_ordinal,
                        length: 0,
                        end_ordinal: 0,
                        next_ordinal: 0,
                        max_timestamp_ms: -1,
                        closed_ms: 0,
                        live_bytes: 0,
                        copies: vec![self.copy],
                        damaged: None,
                        file_made: *file_made,
                        revision: 0,
                    };
                    put(state, key, record, &mut transaction, &mut pending);
                }
                GroupChange::Close(closed) => {
                    let key = key_of(&closed.group);
                    let record = self.closed(state, closed);
                    put(state, key, record, &mut transaction, &mut pending);
                }
                GroupChange::Delete(group) => {
                    let key = key_of(group);
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
                GroupChange::LogStart(lane, ordinal) => {
                    transaction.write.push(Write::PutLaneStart {
                        key: *lane,
                        ordinal: *ordinal,
                    });
                }
            }
        }
        (transaction, pending)
    }

    fn reserve(&self, state: &mut State, group: &GroupName, transaction: &mut Transaction) {
        let Some(streamlet) = state.streamlets.get_mut(&(group.stream, group.streamlet)) else {
            return;
        };
        if group.group < streamlet.next_group {
            return;
        }
        streamlet.next_group = GroupId(group.group.0 + RESERVED_GROUPS);
        transaction
            .write
            .push(Write::PutStreamlet(streamlet.clone()));
    }

    fn closed(&self, state: &State, closed: &Closed) -> GroupRecord {
        let key = key_of(&closed.group);
        let old = state.groups.get(&key).and_then(|k| k.record.as_deref());
        let mut detail = closed.damage.clone();
        detail.truncate(detail.floor_char_boundary(MAX_DAMAGE_DETAIL));
        GroupRecord {
            stream: closed.group.stream,
            streamlet: closed.group.streamlet,
            group: closed.group.group,
            generation: old.map_or(0, |o| o.generation),
            lane: closed.lane,
            epoch: closed.epoch,
            state: GroupState::Closed,
            first_ordinal: Some(closed.first_ordinal),
            length: closed.length,
            end_ordinal: closed.end_ordinal,
            next_ordinal: closed.next_ordinal,
            max_timestamp_ms: closed.max_timestamp.max(-1),
            closed_ms: closed.closed_ms,
            live_bytes: closed.length,
            copies: old.map_or_else(|| vec![self.copy], |o| o.copies.clone()),
            damaged: (!detail.is_empty()).then_some(Damage {
                address: closed.length,
                detail,
            }),
            file_made: old.is_some_and(|o| o.file_made),
            revision: 0,
        }
    }
}

struct Pending {
    key: GroupKey,
    record: Option<Box<GroupRecord>>,
}

fn put(
    state: &State,
    key: GroupKey,
    record: GroupRecord,
    transaction: &mut Transaction,
    pending: &mut Vec<Pending>,
) {
    let revision = state.groups.get(&key).map_or(0, |k| k.revision);
    transaction
        .compare
        .push(Compare::GroupRevision { key, revision });
    transaction.write.push(Write::PutGroup(record.clone()));
    pending.push(Pending {
        key,
        record: Some(Box::new(record)),
    });
}

fn key_of(group: &GroupName) -> GroupKey {
    GroupKey {
        stream: group.stream,
        streamlet: group.streamlet,
        group: group.group,
    }
}

fn learn(state: &Mutex<State>, pending: Vec<Pending>, outcome: &Result<u64, MetadataError>) {
    let mut state = state.lock();
    for Pending { key, record } in pending {
        match (outcome, record) {
            (Ok(_), None) => {
                state.groups.remove(&key);
            }
            (Ok(revision), Some(record)) => {
                let keep = (record.state != GroupState::Closed).then_some(record);
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
                if let Some(streamlet) = state.streamlets.get_mut(&(key.stream, key.streamlet)) {
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

fn keys_of(changes: &[GroupChange]) -> Vec<GroupKey> {
    let of_change = |change: &GroupChange| match change {
        GroupChange::Open { group, .. } | GroupChange::Delete(group) => Some(key_of(group)),
        GroupChange::Close(closed) => Some(key_of(&closed.group)),
        GroupChange::LogStart(..) => None,
    };
    changes.iter().filter_map(of_change).collect()
}

impl GroupRecorder for StoreRecorder {
    fn record(&self, epoch: Epoch, changes: Vec<GroupChange>, done: Done) {
        self.0.submit_all(epoch, changes, done);
    }
}
