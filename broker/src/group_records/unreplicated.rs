//! Groups of streamlets without replicas on other brokers, and what retention gives up in any: a streamlet says what
//! changes, and revisions are known here.

use std::collections::VecDeque;
use std::sync::Arc;

use kera_metadata::{Compare, GroupKey, GroupRecord, Key, Transaction, Write};
use kera_protocol::ids::Epoch;
use kera_streamlet::recorder::{Done, GroupRecorder, RecordError};

use super::{Changed, GroupRecords, Inner, Known, reservations};

/// Most changes of one transaction.
const CHANGES_PER_TRANSACTION: usize = 4096;

/// A change that waits behind an earlier one of the same group, until the revision that that one brings is known.
pub(super) struct Waiting {
    epoch: Epoch,
    changes: Vec<Write>,
    done: Done,
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
        let (this, reserved) = (self.clone(), reservations(&transaction));
        self.store.submit(
            transaction,
            Box::new(move |outcome| {
                match &outcome {
                    Ok(committed) => {
                        let mut state = this.state.lock();
                        state.changed(pending, committed.revision, &reserved);
                    }
                    Err(_) => this.state.lock().doubt(&pending),
                }
                let outcome = outcome.map(drop);
                done(outcome.map_err(|error| RecordError(error.to_string())));
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
            let uncertain = {
                let state = self.state.lock();
                state.groups.get(key).is_some_and(|known| known.uncertain)
            };
            if uncertain && let Ok(found) = self.store.group(*key) {
                let mut state = self.state.lock();
                match found {
                    Some(record) => drop(state.groups.insert(*key, Known::of(record))),
                    None => drop(state.groups.remove(key)),
                }
            }
        }
    }

    /// The transaction of `changes`: what they compare, and what the streamlet leaves to the recorder. A group
    /// that has come as far already is left out.
    fn transaction(&self, epoch: Epoch, changes: Vec<Write>) -> (Transaction, Vec<Changed>) {
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
                    } else if record.copies.is_empty() || !record.is_closed() {
                        record.copies = vec![self.own];
                    }
                    transaction.compare.push(Compare::GroupRevision {
                        key,
                        revision: known.map_or(0, |known| known.revision),
                    });
                    transaction.write.push(Write::PutGroup(record.clone()));
                    pending.push((key, Some(Known::of(record))));
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
                    pending.push((key, None));
                }
                other => transaction.write.push(other),
            }
        }
        state.reserve(&mut transaction);
        (transaction, pending)
    }
}

fn keys_of(changes: &[Write]) -> Vec<GroupKey> {
    let group = |change: &Write| match change.key() {
        Key::Group(key) => Some(key),
        _ => None,
    };
    changes.iter().filter_map(group).collect()
}

impl GroupRecorder for GroupRecords {
    fn read(&self, group: GroupKey) -> Result<Option<GroupRecord>, RecordError> {
        let found = self.0.store.group(group);
        found.map_err(|error| RecordError(error.to_string()))
    }

    fn record(&self, epoch: Epoch, changes: Vec<Write>, done: Done) {
        self.0.submit_all(epoch, changes, done);
    }
}
