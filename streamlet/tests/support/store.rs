//! A metadata store in memory: slow, failing, and crashed with what it had acknowledged.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Mutex;

use kera_protocol::ids::{BrokerId, Epoch, GroupId, GroupKey, Incarnation, LaneId, Ordinal};
use kera_records::{GroupRecord, GroupState, Replica, Write};
use kera_streamlet::LaneRecords;
use kera_streamlet::recorder::{Done, GroupRecorder, RecordError};
use uuid::Uuid;

#[derive(Default)]
struct State {
    groups: BTreeMap<GroupId, GroupRecord>,
    log_starts: HashMap<LaneId, Ordinal>,
    boot: Uuid,
    /// Asked for and not yet durable, oldest first.
    waiting: VecDeque<(Vec<Write>, Option<Done>)>,
    slow: bool,
    failures: usize,
    /// Transactions that are made, and said to have failed.
    unsaid: usize,
    /// Reads that fail, after so many that do not.
    unreadable: usize,
    readable: usize,
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

    /// Lets the next `count` transactions be made, and say that they failed.
    pub fn fail_unsaid(&self, count: usize) {
        self.state().unsaid = count;
    }

    /// Lets the next `count` reads of a group fail.
    pub fn fail_reads(&self, count: usize) {
        self.state().unreadable = count;
    }

    /// So many reads do not fail before those that do.
    pub fn fail_reads_after(&self, count: usize) {
        self.state().readable = count;
    }

    /// Makes up to `count` waiting transactions durable, oldest first, and says so.
    pub fn settle(&self, count: usize) {
        for _ in 0..count {
            let mut state = self.state();
            let Some((changes, done)) = state.waiting.pop_front() else {
                return;
            };
            let mut outcome = state.commit(changes);
            if outcome.is_ok() && state.unsaid > 0 {
                state.unsaid -= 1;
                outcome = Err(RecordError("made, and not said by the test's order".into()));
            }
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
    pub fn apply_now(&self, changes: Vec<Write>) {
        self.state().commit(changes).expect("no failure is ordered");
    }

    /// What a start reads.
    pub fn lanes(&self) -> HashMap<LaneId, LaneRecords> {
        let state = self.state();
        let mut lanes: HashMap<LaneId, LaneRecords> = HashMap::new();
        for (lane, ordinal) in &state.log_starts {
            lanes.entry(*lane).or_default().log_start = *ordinal;
        }
        for record in state.groups.values() {
            let lane = lanes.entry(record.lane).or_default();
            lane.groups.push(record.clone());
        }
        lanes
    }

    /// Groups recorded, and how many of them are closed.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (
            state.groups.len(),
            state.groups.values().filter(|g| g.is_closed()).count(),
        )
    }

    /// How a group was closed, if it is.
    pub fn closed(&self, group: u64) -> Option<GroupRecord> {
        let found = self.state().groups.get(&GroupId(group)).cloned();
        found.filter(GroupRecord::is_closed)
    }
}

impl State {
    fn commit(&mut self, changes: Vec<Write>) -> Result<(), RecordError> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(RecordError("ordered by the test".into()));
        }
        let groups_before = self.groups.clone();
        for change in changes {
            match change {
                Write::PutGroup(mut record) => {
                    let old = self.groups.get(&record.group);
                    if let Some(old) = old {
                        assert!(
                            !old.is_closed() || record.is_closed(),
                            "group {} is opened after it was closed",
                            record.group
                        );
                    }
                    if record.is_closed() {
                        // As the broker's store, which refuses it.
                        let taken_in = old.is_some_and(|old| old.generation < record.generation);
                        if taken_in {
                            let first = record.start_ordinal();
                            assert!(held(&groups_before, record.lane, first, record.end_ordinal));
                        } else if let Some(first) = old.and_then(|old| old.first_ordinal) {
                            assert_eq!(
                                record.first_ordinal,
                                Some(first),
                                "group {}'s first ordinal cannot change",
                                record.group
                            );
                        }
                        assert!(record.start_ordinal() <= record.end_ordinal);
                        assert!(record.end_ordinal <= record.next_ordinal);
                    } else if let Some(old) = old {
                        record = GroupRecord {
                            state: old.state.max(record.state),
                            first_ordinal: old.first_ordinal.or(record.first_ordinal),
                            ..old.clone()
                        };
                    }
                    let boot_id = self.boot;
                    let made = || Replica {
                        broker: BrokerId(1),
                        incarnation: Incarnation {
                            store_id: Uuid::nil(),
                            boot_id,
                        },
                    };
                    if record.copies.is_empty() {
                        record.copies.push(made());
                    }
                    self.groups.insert(record.group, record);
                }
                Write::DeleteGroup(key) => {
                    self.groups.remove(&key.group);
                }
                Write::PutLaneStart { key, ordinal } => {
                    let start = self.log_starts.entry(key.lane).or_default();
                    *start = ordinal.max(*start);
                }
                other => panic!("a streamlet does not write {other:?}"),
            }
        }
        Ok(())
    }
}

/// Whether closed groups of a lane hold all ordinals between the two.
fn held(
    groups: &BTreeMap<GroupId, GroupRecord>,
    lane: LaneId,
    mut begin: Ordinal,
    end: Ordinal,
) -> bool {
    for group in groups.values().filter(|g| g.lane == lane && g.is_closed()) {
        if group.start_ordinal() == begin {
            begin = group.end_ordinal;
        }
    }
    begin >= end
}

/// Whether a group is only opened.
fn opens(changes: &[Write]) -> bool {
    matches!(changes, [Write::PutGroup(record)] if record.state != GroupState::Closed)
}

impl GroupRecorder for Store {
    fn read(&self, group: GroupKey) -> Result<Option<GroupRecord>, RecordError> {
        let mut state = self.state();
        if state.readable > 0 {
            state.readable -= 1;
        } else if state.unreadable > 0 {
            state.unreadable -= 1;
            return Err(RecordError("ordered by the test".into()));
        }
        Ok(state.groups.get(&group.group).cloned())
    }

    fn record(&self, _epoch: Epoch, changes: Vec<Write>, done: Done) {
        let mut state = self.state();
        state.waiting.push_back((changes, Some(done)));
        // Only the record of a group's opening is not waited for.
        let wait = state.slow && state.waiting.iter().all(|(changes, _)| opens(changes));
        drop(state);
        if !wait {
            self.settle(usize::MAX);
        }
    }
}
