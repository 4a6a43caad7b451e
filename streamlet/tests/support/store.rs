//! A metadata store in memory: slow, failing, and crashed with what it had acknowledged.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Mutex;

use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal};
use kera_streamlet::recorder::{Closed, Done, GroupChange, GroupRecorder, RecordError};
use kera_streamlet::{LaneRecords, RecoveredGroup};
use uuid::Uuid;

#[derive(Clone, Debug)]
struct Record {
    lane: LaneId,
    epoch: Epoch,
    boot: Uuid,
    first_ordinal: Option<Ordinal>,
    file_made: bool,
    closed: Option<Closed>,
}

#[derive(Default)]
struct State {
    groups: BTreeMap<GroupId, Record>,
    log_starts: HashMap<LaneId, Ordinal>,
    boot: Uuid,
    /// Asked for and not yet durable, oldest first.
    waiting: VecDeque<(Vec<GroupChange>, Option<Done>)>,
    slow: bool,
    failures: usize,
}

/// The store.
#[derive(Default)]
pub struct Store {
    state: Mutex<State>,
}

impl Store {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The boot that records are made in.
    pub fn set_boot(&self, boot: Uuid) {
        self.state().boot = boot;
    }

    /// With `true`, what need not be waited for becomes durable only by [`Self::settle`].
    pub fn set_slow(&self, slow: bool) {
        self.state().slow = slow;
        if !slow {
            self.settle(usize::MAX);
        }
    }

    /// Lets the next `count` transactions fail.
    pub fn fail(&self, count: usize) {
        self.state().failures = count;
    }

    /// Makes up to `count` waiting transactions durable, oldest first, and says so.
    pub fn settle(&self, count: usize) {
        for _ in 0..count {
            let mut state = self.state();
            let Some((changes, done)) = state.waiting.pop_front() else {
                return;
            };
            let outcome = state.commit(changes);
            drop(state);
            if let Some(done) = done {
                done(outcome);
            }
        }
    }

    /// Transactions waiting.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// What is not acknowledged is lost, but for the first `keep`: those were durable, unsaid.
    pub fn crash(&self, keep: usize) {
        let mut state = self.state();
        let waiting = std::mem::take(&mut state.waiting);
        state.failures = 0;
        for (changes, _) in waiting.into_iter().take(keep) {
            let _ = state.commit(changes);
        }
    }

    /// Holds what another store holds durably.
    pub fn copy_from(&self, other: &Store) {
        let (groups, log_starts) = {
            let other = other.state();
            (other.groups.clone(), other.log_starts.clone())
        };
        let mut state = self.state();
        (state.groups, state.log_starts) = (groups, log_starts);
    }

    /// Records changes, as a start does.
    pub fn apply_now(&self, changes: Vec<GroupChange>) {
        self.state().commit(changes).expect("no failure is ordered");
    }

    /// What a start reads.
    pub fn lanes(&self) -> HashMap<LaneId, LaneRecords> {
        let state = self.state();
        let mut lanes: HashMap<LaneId, LaneRecords> = HashMap::new();
        for (lane, ordinal) in &state.log_starts {
            lanes.entry(*lane).or_default().log_start = *ordinal;
        }
        for (group, record) in &state.groups {
            // As the broker's store does, the place of the first batch is not kept.
            let closed = record.closed.clone().map(|closed| Closed {
                data_start: 0,
                ..closed
            });
            lanes
                .entry(record.lane)
                .or_default()
                .groups
                .push(RecoveredGroup {
                    group: *group,
                    generation: 0,
                    epoch: record.epoch,
                    first_ordinal: record.first_ordinal,
                    file_made: record.file_made,
                    closed,
                    boot_id: record.boot,
                });
        }
        lanes
    }

    /// Groups recorded, and how many of them are closed.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (
            state.groups.len(),
            state.groups.values().filter(|g| g.closed.is_some()).count(),
        )
    }

    /// How a group was closed, if it is.
    pub fn closed(&self, group: u64) -> Option<Closed> {
        self.state()
            .groups
            .get(&GroupId(group))
            .and_then(|g| g.closed.clone())
    }
}

impl State {
    fn commit(&mut self, changes: Vec<GroupChange>) -> Result<(), RecordError> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(RecordError("ordered by the test".into()));
        }
        for change in changes {
            match change {
                GroupChange::Open {
                    group,
                    lane,
                    epoch,
                    first_ordinal,
                    file_made,
                } => {
                    let boot = self.boot;
                    let record = self.groups.entry(group.group).or_insert(Record {
                        lane,
                        epoch,
                        boot,
                        first_ordinal,
                        file_made,
                        closed: None,
                    });
                    record.first_ordinal = record.first_ordinal.or(first_ordinal);
                    assert!(
                        record.closed.is_none(),
                        "group {} is opened after it was closed",
                        group.group
                    );
                }
                GroupChange::Close(closed) => {
                    let boot = self.boot;
                    // As the broker's store, which refuses it.
                    let begun = self.groups.get(&closed.group.group);
                    if let Some(first) = begun.and_then(|record| record.first_ordinal) {
                        assert_eq!(
                            closed.first_ordinal, first,
                            "group {}'s first ordinal cannot change",
                            closed.group.group
                        );
                    }
                    assert!(closed.first_ordinal <= closed.end_ordinal);
                    assert!(closed.end_ordinal <= closed.next_ordinal);
                    let record = Record {
                        lane: closed.lane,
                        epoch: closed.epoch,
                        boot,
                        first_ordinal: Some(closed.first_ordinal),
                        file_made: false,
                        closed: Some(closed.clone()),
                    };
                    self.groups.insert(closed.group.group, record);
                }
                GroupChange::Delete(group) => {
                    self.groups.remove(&group.group);
                }
                GroupChange::LogStart(lane, ordinal) => {
                    let start = self.log_starts.entry(lane.lane).or_default();
                    *start = ordinal.max(*start);
                }
            }
        }
        Ok(())
    }
}

impl GroupRecorder for Store {
    fn record(&self, _epoch: Epoch, changes: Vec<GroupChange>, done: Done) {
        let mut state = self.state();
        state.waiting.push_back((changes, Some(done)));
        // Only the record of a group's opening is not waited for.
        let wait = state.slow
            && state
                .waiting
                .iter()
                .all(|(changes, _)| matches!(changes[..], [GroupChange::Open { .. }]));
        drop(state);
        if !wait {
            self.settle(usize::MAX);
        }
    }
}
