//! The bounded queue of transactions, and the thread that begins them and tells what came of them.
//!
//! Several are under way at a time, but never two that have anything in common, and none begins before
//! an earlier one that it has anything in common with: so what a caller submits takes effect in its
//! order, as far as anybody can tell by what it is about.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::zones::{Busy, Zones};
use crate::error::MetadataError;
use crate::queue::{Outcome, StoreThread, Waiting, answer, room_of};
use crate::store::Done;
use kera_records::Transaction;

/// Waiting transactions that are looked at for one that may begin.
const LOOK_AHEAD: usize = 64;

/// A transaction that waits, and whom to tell.
struct Job {
    transaction: Transaction,
    zones: Zones,
    done: Done,
    submitted: Instant,
}

struct State {
    waiting: Waiting<Job>,
    /// What came of transactions, not yet told.
    finished: Vec<(Zones, Done, Outcome)>,
    busy: Busy,
}

impl State {
    /// Takes the first transaction that has nothing in common with those under way and those that wait
    /// before it.
    fn begin(&mut self, most: usize) -> Option<Job> {
        if self.busy.transactions() >= most {
            return None;
        }
        let mut before = Busy::default();
        for (index, job) in self.waiting.jobs.iter().enumerate().take(LOOK_AHEAD) {
            if self.busy.allows(&job.zones) && before.allows(&job.zones) {
                self.busy.begin(&job.zones);
                return self.waiting.jobs.remove(index);
            }
            before.begin(&job.zones);
        }
        None
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Most transactions under way.
    most: usize,
}

/// Tells what came of a transaction that began.
pub(super) struct Finish {
    shared: Arc<Shared>,
    /// Until it is told.
    whom: Option<(Zones, Done)>,
}

impl Finish {
    pub(super) fn tell(mut self, outcome: Outcome) {
        self.put(outcome);
    }

    fn put(&mut self, outcome: Outcome) {
        if let Some((zones, done)) = self.whom.take() {
            let mut state = self.shared.state.lock();
            state.finished.push((zones, done, outcome));
            drop(state);
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        // The task ended without a word: it panicked.
        self.put(Err(MetadataError::UnknownOutcome {
            path: "etcd".into(),
            detail: "committing it failed in an unexpected way".into(),
        }));
    }
}

enum Step {
    Tell(Vec<(Done, Outcome)>),
    Begin(Transaction, Instant, Zones, Done),
    End,
}

impl Shared {
    fn next(&self) -> Step {
        let mut state = self.state.lock();
        loop {
            let mut told = Vec::new();
            let waiting = state.waiting.operations;
            for done in std::mem::take(&mut state.waiting.refused) {
                told.push((done, Err(MetadataError::Overloaded { waiting })));
            }
            for (zones, done, outcome) in std::mem::take(&mut state.finished) {
                state.busy.end(&zones);
                told.push((done, outcome));
            }
            if !told.is_empty() {
                return Step::Tell(told);
            }
            if let Some(job) = state.begin(self.most) {
                state.waiting.operations -= room_of(&job.transaction);
                return Step::Begin(job.transaction, job.submitted, job.zones, job.done);
            }
            if state.waiting.closed
                && state.waiting.jobs.is_empty()
                && state.busy.transactions() == 0
            {
                return Step::End;
            }
            self.changed.wait(&mut state);
        }
    }
}

/// The queue and its thread.
pub(super) struct MetadataWriter {
    shared: Arc<Shared>,
    thread: StoreThread,
}

impl MetadataWriter {
    /// Starts the thread. `begin` starts a transaction, submitted at the time given, and returns at
    /// once; at most `most` are under way.
    pub(super) fn start(
        capacity: usize,
        most: usize,
        begin: impl Fn(Transaction, Instant, Finish) + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                waiting: Waiting::new(capacity),
                finished: Vec::new(),
                busy: Busy::default(),
            }),
            changed: Condvar::new(),
            most: most.max(1),
        });
        let working = shared.clone();
        let thread = StoreThread::start(move || {
            loop {
                match working.next() {
                    Step::Tell(told) => {
                        for (done, outcome) in told {
                            answer(done, outcome);
                        }
                    }
                    Step::Begin(transaction, submitted, zones, done) => {
                        let finish = Finish {
                            shared: working.clone(),
                            whom: Some((zones, done)),
                        };
                        begin(transaction, submitted, finish);
                    }
                    Step::End => return,
                }
            }
        })?;
        Ok(Self { shared, thread })
    }

    pub(super) fn push(&self, transaction: Transaction, done: Done) {
        let operations = room_of(&transaction);
        let zones = Zones::of(&transaction);
        let job = |done| Job {
            transaction,
            zones,
            done,
            submitted: Instant::now(),
        };
        let pushed = self.shared.state.lock().waiting.push(operations, done, job);
        match pushed {
            Ok(()) => drop(self.shared.changed.notify_one()),
            Err(done) => answer(done, Err(MetadataError::Closed)),
        }
    }

    /// Finishes what waits and ends the thread, as [`StoreThread::join`] does.
    pub(super) fn close(&self) {
        self.shared.state.lock().waiting.closed = true;
        self.shared.changed.notify_all();
        self.thread.join();
    }
}

impl Drop for MetadataWriter {
    fn drop(&mut self) {
        self.close();
    }
}
