//! Records in memory, for tests and for one process: the rules of the real store, and its silences.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kera_protocol::ids::{Epoch, GroupId};
use kera_records::key::Key;
use kera_records::{Compare, GroupKey, GroupRecord, StreamletRecord, Transaction, Write};
use parking_lot::Mutex;

use super::{MAX_CHANGES, Records, RecordsError, StreamletRecords, streamlet_of};
use crate::faults::Faults;
use crate::ids::{BrokerId, StreamletKey};
use crate::runtime::RuntimeRef;
use crate::transport::Pending;

/// What becomes of one question to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is asked and answered.
    None,
    /// It never arrives.
    LostRequest,
    /// It is carried out, and nobody hears of it.
    LostReply,
    /// It is carried out after this time, when the caller has long given up on it.
    Late(Duration),
}

/// Decides the trouble of each question, after the delay it asks for; of its answer, the delay alone
/// counts.
pub type Weather = Box<dyn Fn() -> Pending<Trouble> + Send + Sync>;

/// Records in memory.
pub struct MemoryRecords {
    state: std::sync::Arc<Mutex<State>>,
    weather: std::sync::Arc<Weather>,
    /// Where late questions wait.
    runtime: Option<RuntimeRef>,
    faults: Faults,
    reads: AtomicU64,
    groups_read: std::sync::Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    revision: u64,
    streamlets: BTreeMap<StreamletKey, Streamlet>,
}

struct Streamlet {
    record: StreamletRecord,
    groups: BTreeMap<GroupId, GroupRecord>,
    /// Groups recorded in this epoch and deleted again, with the revision of that: a request that
    /// comes late must not bring them back.
    deleted: BTreeMap<GroupId, u64>,
}

impl Default for MemoryRecords {
    fn default() -> Self {
        Self {
            state: std::sync::Arc::default(),
            weather: std::sync::Arc::new(Box::new(|| Box::pin(std::future::ready(Trouble::None)))),
            runtime: None,
            faults: Faults::default(),
            reads: AtomicU64::new(0),
            groups_read: std::sync::Arc::default(),
        }
    }
}

impl MemoryRecords {
    /// Empty records whose questions and answers suffer `weather`.
    pub fn new(weather: Weather, runtime: RuntimeRef, faults: Faults) -> Self {
        Self {
            state: std::sync::Arc::default(),
            weather: std::sync::Arc::new(weather),
            runtime: Some(runtime),
            faults,
            reads: AtomicU64::new(0),
            groups_read: std::sync::Arc::default(),
        }
    }

    /// Records a streamlet under epoch 0, without groups.
    pub fn create(&self, streamlet: StreamletKey) {
        self.state
            .lock()
            .streamlets
            .entry(streamlet)
            .or_insert_with(|| Streamlet {
                record: StreamletRecord {
                    stream: streamlet.stream,
                    streamlet: streamlet.streamlet,
                    owner: 0,
                    epoch: Epoch(0),
                    next_group: GroupId(0),
                    restore: 0,
                    awaits_jumps: 0,
                    revision: 0,
                },
                groups: BTreeMap::new(),
                deleted: BTreeMap::new(),
            });
    }

    /// From now on the records count as put back to an older state, and nobody has owned the streamlet since.
    pub fn put_back(&self, streamlet: StreamletKey) {
        if let Some(found) = self.state.lock().streamlets.get_mut(&streamlet) {
            found.record.restore += 1;
            found.record.awaits_jumps += 1;
        }
    }

    /// How often a streamlet was read, or was to be.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Records of groups that were handed out to all who read.
    pub fn groups_read(&self) -> u64 {
        self.groups_read.load(Ordering::Relaxed)
    }

    /// The streamlet as it is, without any weather.
    pub fn look(&self, streamlet: StreamletKey) -> Option<StreamletRecords> {
        self.state.lock().read(streamlet).ok()
    }

    /// Commits without any weather.
    ///
    /// # Errors
    /// As [`Records::try_commit`].
    pub fn commit_at_once(&self, transaction: &Transaction) -> Result<u64, RecordsError> {
        self.state.lock().commit(transaction, self.faults)
    }

    fn ask<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, RecordsError> + Send + 'static,
    ) -> Pending<Result<T, RecordsError>> {
        let weather = self.weather.clone();
        let state = self.state.clone();
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let trouble = weather().await;
            if let (Trouble::Late(time), Some(runtime)) = (trouble, runtime) {
                let wait = runtime.sleep(time);
                runtime.spawn(Box::pin(async move {
                    wait.await;
                    let _nobody_hears = act(&mut state.lock());
                }));
                return Err(RecordsError::Unknown("the request is late".into()));
            }
            if trouble == Trouble::LostRequest {
                return Err(RecordsError::Unknown("the request was lost".into()));
            }
            let result = act(&mut state.lock());
            // What it says may be over when it is heard.
            let _on_its_way = weather().await;
            if trouble == Trouble::LostReply {
                return Err(RecordsError::Unknown("the reply was lost".into()));
            }
            result
        })
    }
}

impl Records for MemoryRecords {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        let faults = self.faults;
        self.ask(move |state| state.commit(&transaction, faults))
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let counted = self.groups_read.clone();
        self.ask(move |state| {
            let found = state.read(streamlet)?;
            counted.fetch_add(found.groups.len() as u64, Ordering::Relaxed);
            Ok(found)
        })
    }

    fn try_read_group(&self, group: GroupKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let counted = self.groups_read.clone();
        self.ask(move |state| {
            let revision = state.revision;
            let found = state.streamlet(group.streamlet_key())?;
            let groups: Vec<_> = found
                .groups
                .get(&group.group)
                .cloned()
                .into_iter()
                .collect();
            counted.fetch_add(groups.len() as u64, Ordering::Relaxed);
            Ok(StreamletRecords {
                streamlet: found.record.clone(),
                revision,
                groups,
            })
        })
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        self.ask(move |state| {
            let revision = state.revision + 1;
            let found = state.streamlet(streamlet)?;
            let epoch = found.take(owner)?;
            state.revision = revision;
            Ok((epoch, revision))
        })
    }
}

impl State {
    fn streamlet(&mut self, key: StreamletKey) -> Result<&mut Streamlet, RecordsError> {
        self.streamlets
            .get_mut(&key)
            .ok_or(RecordsError::NoStreamlet(key))
    }

    fn read(&mut self, key: StreamletKey) -> Result<StreamletRecords, RecordsError> {
        let revision = self.revision;
        let found = self.streamlet(key)?;
        Ok(StreamletRecords {
            streamlet: found.record.clone(),
            revision,
            groups: found.groups.values().cloned().collect(),
        })
    }

    fn commit(&mut self, transaction: &Transaction, faults: Faults) -> Result<u64, RecordsError> {
        let revision = self.revision + 1;
        let streamlet = streamlet_of(transaction)?;
        let found = self.streamlet(streamlet)?;
        if transaction.write.len() > MAX_CHANGES {
            return Err(RecordsError::Invalid(format!(
                "it has {} changes; split it, {MAX_CHANGES} are the most",
                transaction.write.len()
            )));
        }
        for compare in &transaction.compare {
            found.check(streamlet, compare, faults)?;
        }
        for write in &transaction.write {
            let old = |group| found.groups.get(&group);
            let (group, fits) = match write {
                Write::PutGroup(record) => {
                    let deleted = || deleted_by(transaction, &found.groups);
                    let fits = old(record.group).is_none_or(|old| {
                        may_become(old, record)
                            && (!record.takes_in_others(old) || record.covers(old, deleted()))
                    });
                    (record.group, fits && !record.copies.is_empty())
                }
                Write::DeleteGroup(key) => (key.group, true),
                other => {
                    return Err(RecordsError::Invalid(format!(
                        "{} is no group",
                        other.key()
                    )));
                }
            };
            if !fits {
                return Err(RecordsError::Invalid(format!(
                    "group {group} is not in a state for it"
                )));
            }
        }
        for write in &transaction.write {
            found.apply(write, revision);
        }
        self.revision = revision;
        Ok(revision)
    }
}

/// The groups that a transaction deletes.
fn deleted_by(
    transaction: &Transaction,
    groups: &BTreeMap<GroupId, GroupRecord>,
) -> Vec<GroupRecord> {
    let deleted = transaction.write.iter().filter_map(|write| match write {
        Write::DeleteGroup(key) => groups.get(&key.group),
        _ => None,
    });
    deleted.cloned().collect()
}

/// Whether the store takes `new` after `old`: a group is closed once, and nothing but its replicas changes
/// after that, or, with its generation, what is left of its records.
fn may_become(old: &GroupRecord, new: &GroupRecord) -> bool {
    let copies = old.copies.clone();
    if old.is_closed() && new.generation > old.generation {
        return GroupRecord {
            copies,
            generation: old.generation,
            length: old.length,
            first_ordinal: old.first_ordinal,
            ..new.clone()
        }
        .agrees(old);
    }
    match old.is_closed() {
        true => GroupRecord {
            copies,
            ..new.clone()
        }
        .agrees(old),
        false => new.is_closed(),
    }
}

impl Streamlet {
    /// The next epoch, under `owner`.
    fn take(&mut self, owner: BrokerId) -> Result<Epoch, RecordsError> {
        let next = self.record.epoch.0.checked_add(1);
        let next = next.ok_or_else(|| RecordsError::Invalid("epochs are used up".into()))?;
        (self.record.epoch, self.record.owner) = (Epoch(next), owner.0);
        // Requests of lower epochs come to nothing by themselves.
        self.deleted.clear();
        Ok(self.record.epoch)
    }

    fn check(
        &self,
        streamlet: StreamletKey,
        compare: &Compare,
        faults: Faults,
    ) -> Result<(), RecordsError> {
        match *compare {
            Compare::StreamletEpoch { epoch, .. } => {
                if epoch != self.record.epoch && !faults.epoch_not_compared() {
                    return Err(RecordsError::Epoch {
                        streamlet,
                        expected: epoch,
                        found: self.record.epoch,
                    });
                }
            }
            Compare::Revision {
                key: Key::Group(key),
                revision,
            } => {
                let deleted = self.deleted.get(&key.group).filter(|_| revision == 0);
                let found = match self.groups.get(&key.group) {
                    Some(record) => record.revision,
                    None => deleted.copied().unwrap_or(0),
                };
                if found != revision && !faults.revision_not_compared() {
                    return Err(RecordsError::Revision {
                        group: key.group,
                        expected: revision,
                        found,
                    });
                }
            }
            _ => return Err(RecordsError::Invalid("it compares no group".into())),
        }
        Ok(())
    }

    fn apply(&mut self, write: &Write, revision: u64) {
        match write {
            Write::PutGroup(record) => {
                let next_group = &mut self.record.next_group;
                *next_group = GroupId(record.group.0 + 1).max(*next_group);
                let record = GroupRecord {
                    revision,
                    ..record.clone()
                };
                self.groups.insert(record.group, record);
            }
            Write::DeleteGroup(key) => {
                self.groups.remove(&key.group);
                self.deleted.insert(key.group, revision);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::{LaneId, StreamId, StreamletId};

    use super::*;
    use kera_records::{GroupChange, GroupState};

    use crate::ids::{Incarnation, Replica};

    fn streamlet() -> StreamletKey {
        StreamletKey {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(1),
        }
    }

    fn transaction(epoch: u32, change: GroupChange) -> Transaction {
        Transaction::of_groups(streamlet(), Epoch(epoch), [change])
    }

    fn open(group: u64) -> GroupChange {
        GroupRecord {
            state: GroupState::Open,
            copies: vec![Replica {
                broker: BrokerId(1),
                incarnation: Incarnation::default(),
            }],
            ..GroupRecord::new(streamlet().group(GroupId(group)), LaneId(0), Epoch(0))
        }
        .put()
    }

    #[test]
    fn a_group_that_was_deleted_is_not_brought_back_by_a_late_request() {
        let records = MemoryRecords::default();
        records.create(streamlet());
        let mut state = records.state.lock();
        let faults = Faults::default();
        let revision = state.commit(&transaction(0, open(3)), faults);
        let key = streamlet().group(GroupId(3));
        let delete = Write::delete_group(key, revision.expect("is recorded"));
        state
            .commit(&transaction(0, delete), faults)
            .expect("is deleted");
        let late = state.commit(&transaction(0, open(3)), faults);
        assert!(
            matches!(late, Err(RecordsError::Revision { expected: 0, .. })),
            "{late:?}"
        );
        assert_eq!(state.read(streamlet()).expect("is there").groups, []);
    }

    #[test]
    fn epochs_come_to_an_end_and_do_not_begin_again() {
        let records = MemoryRecords::default();
        records.create(streamlet());
        let mut state = records.state.lock();
        let found = state.streamlet(streamlet()).expect("is there");
        found.record.epoch = Epoch(u32::MAX - 1);
        assert_eq!(
            found.take(BrokerId(1)).expect("the last one"),
            Epoch(u32::MAX)
        );
        let error = found.take(BrokerId(2)).expect_err("there is no other");
        assert!(matches!(error, RecordsError::Invalid(_)), "{error}");
        assert_eq!(
            (found.record.epoch, found.record.owner),
            (Epoch(u32::MAX), 1)
        );
    }
}
