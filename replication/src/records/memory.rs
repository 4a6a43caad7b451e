//! Records in memory, for tests and for one process: the rules of the real store, and its silences.

use std::collections::BTreeMap;
use std::time::Duration;

use kera_protocol::ids::{Epoch, GroupId};
use parking_lot::Mutex;

use super::{
    Change, GroupRecord, GroupState, MAX_CHANGES, Records, RecordsError, StreamletRecords,
    Transaction,
};
use crate::faults::Faults;
use crate::ids::{BrokerId, CopyId, StreamletKey};
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
}

#[derive(Default)]
struct State {
    revision: u64,
    streamlets: BTreeMap<StreamletKey, Streamlet>,
}

struct Streamlet {
    epoch: Epoch,
    owner: BrokerId,
    next_group: GroupId,
    groups: BTreeMap<GroupId, GroupRecord>,
    /// Groups recorded in this epoch and deleted again, with the revision of that: a request that
    /// comes late must not bring them back.
    deleted: BTreeMap<GroupId, u64>,
}

impl std::fmt::Debug for MemoryRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryRecords").finish_non_exhaustive()
    }
}

impl Default for MemoryRecords {
    fn default() -> Self {
        Self {
            state: std::sync::Arc::default(),
            weather: std::sync::Arc::new(Box::new(|| Box::pin(std::future::ready(Trouble::None)))),
            runtime: None,
            faults: Faults::default(),
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
        }
    }

    /// Records a streamlet under epoch 0, without groups.
    pub fn create(&self, streamlet: StreamletKey) {
        self.state
            .lock()
            .streamlets
            .entry(streamlet)
            .or_insert_with(|| Streamlet {
                epoch: Epoch(0),
                owner: BrokerId(0),
                next_group: GroupId(0),
                groups: BTreeMap::new(),
                deleted: BTreeMap::new(),
            });
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
        self.ask(move |state| state.read(streamlet))
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
            epoch: found.epoch,
            owner: found.owner,
            next_group: found.next_group,
            revision,
            groups: found.groups.values().cloned().collect(),
        })
    }

    fn commit(&mut self, transaction: &Transaction, faults: Faults) -> Result<u64, RecordsError> {
        let revision = self.revision + 1;
        let streamlet = transaction.streamlet;
        let found = self.streamlet(streamlet)?;
        if found.epoch != transaction.epoch && !faults.epoch_not_compared {
            return Err(RecordsError::Epoch {
                streamlet,
                expected: transaction.epoch,
                found: found.epoch,
            });
        }
        if transaction.changes.len() > MAX_CHANGES {
            return Err(RecordsError::Invalid(format!(
                "it has {} changes; split it, {MAX_CHANGES} are the most",
                transaction.changes.len()
            )));
        }
        for change in &transaction.changes {
            let group = change.group();
            let record = found.groups.get(&group);
            let there = match change {
                Change::Open { .. } if record.is_none() => {
                    found.deleted.get(&group).copied().unwrap_or(0)
                }
                _ => record.map_or(0, |r| r.revision),
            };
            let expected = match change {
                Change::Open { .. } => 0,
                Change::Close { revision, .. }
                | Change::Place { revision, .. }
                | Change::Delete { revision, .. } => *revision,
            };
            if expected != there && !faults.revision_not_compared {
                return Err(RecordsError::Revision {
                    group,
                    expected,
                    found: there,
                });
            }
            let closed = record.is_some_and(|r| r.closed().is_some());
            let fits = match change {
                Change::Open { record: open, .. } => record.is_none() && !open.holders.is_empty(),
                Change::Close { record, .. } => !closed && !record.holders.is_empty(),
                Change::Place { holders, .. } => closed && !holders.is_empty(),
                Change::Delete { .. } => true,
            };
            if !fits {
                return Err(RecordsError::Invalid(format!(
                    "group {group} is not in a state for it"
                )));
            }
        }
        for change in &transaction.changes {
            found.apply(streamlet, transaction.epoch, change, revision);
        }
        self.revision = revision;
        Ok(revision)
    }
}

impl Streamlet {
    /// The next epoch, under `owner`.
    fn take(&mut self, owner: BrokerId) -> Result<Epoch, RecordsError> {
        let next = self.epoch.0.checked_add(1);
        let next = next.ok_or_else(|| RecordsError::Invalid("epochs are used up".into()))?;
        (self.epoch, self.owner) = (Epoch(next), owner);
        // Requests of lower epochs come to nothing by themselves.
        self.deleted.clear();
        Ok(self.epoch)
    }

    fn apply(&mut self, streamlet: StreamletKey, epoch: Epoch, change: &Change, revision: u64) {
        let group = change.group();
        match change {
            Change::Open { lane, record, .. } => {
                let copy = CopyId {
                    streamlet,
                    group,
                    epoch,
                };
                let record = GroupRecord {
                    copy,
                    lane: *lane,
                    revision,
                    state: GroupState::Open(record.clone()),
                };
                self.groups.insert(group, record);
                self.next_group = self.next_group.max(GroupId(group.0 + 1));
            }
            Change::Close { record, .. } => {
                if let Some(found) = self.groups.get_mut(&group) {
                    found.state = GroupState::Closed(record.clone());
                    found.revision = revision;
                }
            }
            Change::Place { holders, .. } => {
                if let Some(found) = self.groups.get_mut(&group) {
                    if let GroupState::Closed(closed) = &mut found.state {
                        closed.holders = holders.clone();
                    }
                    found.revision = revision;
                }
            }
            Change::Delete { .. } => {
                self.groups.remove(&group);
                self.deleted.insert(group, revision);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::{LaneId, StreamId, StreamletId};

    use super::*;
    use crate::ids::{Incarnation, Replica};
    use crate::records::OpenRecord;

    fn streamlet() -> StreamletKey {
        StreamletKey {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(1),
        }
    }

    fn transaction(epoch: u32, change: Change) -> Transaction {
        Transaction {
            streamlet: streamlet(),
            epoch: Epoch(epoch),
            changes: vec![change],
        }
    }

    fn open(group: u64) -> Change {
        Change::Open {
            group: GroupId(group),
            lane: LaneId(0),
            record: OpenRecord {
                first_ordinal: None,
                holders: vec![Replica {
                    broker: BrokerId(1),
                    incarnation: Incarnation::default(),
                }],
            },
        }
    }

    #[test]
    fn a_group_that_was_deleted_is_not_brought_back_by_a_late_request() {
        let records = MemoryRecords::default();
        records.create(streamlet());
        let mut state = records.state.lock();
        let faults = Faults::default();
        let revision = state.commit(&transaction(0, open(3)), faults);
        let delete = Change::Delete {
            group: GroupId(3),
            revision: revision.expect("is recorded"),
        };
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
        found.epoch = Epoch(u32::MAX - 1);
        assert_eq!(
            found.take(BrokerId(1)).expect("the last one"),
            Epoch(u32::MAX)
        );
        let error = found.take(BrokerId(2)).expect_err("there is no other");
        assert!(matches!(error, RecordsError::Invalid(_)), "{error}");
        assert_eq!((found.epoch, found.owner), (Epoch(u32::MAX), BrokerId(1)));
    }
}
