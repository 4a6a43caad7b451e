//! The bounded queue before a store's one thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};

use parking_lot::{Condvar, Mutex};

use crate::error::MetadataError;
use crate::store::Done;
use kera_records::{Committed, Transaction};

/// What became of a transaction.
pub(crate) type Outcome = Result<Committed, MetadataError>;

/// A transaction that waits, and whom to tell.
pub(crate) struct Job {
    pub(crate) transaction: Transaction,
    pub(crate) done: Done,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Operations of all jobs that wait.
    operations: usize,
    /// Callbacks of transactions that found no room. They hold no transaction, belong to callers
    /// that wait for them, and are answered before the next batch.
    refused: Vec<Done>,
    closed: bool,
}

/// Transactions in the order they came.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Most operations that may wait.
    capacity: usize,
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            capacity,
        }
    }

    pub(crate) fn push(&self, job: Job) {
        // Even a transaction without writes takes room.
        let operations = job.transaction.operations().max(1);
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            answer(job.done, Err(MetadataError::Closed));
            return;
        }
        // One that is greater than the whole queue still gets in alone, to be refused by name.
        if state.operations > 0 && state.operations + operations > self.capacity {
            state.refused.push(job.done);
        } else {
            state.operations += operations;
            state.jobs.push_back(job);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for transactions and takes those that wait, up to `most` operations but at least one;
    /// answers the refused ones. `None` once the queue is closed and empty.
    pub(crate) fn take(&self, most: usize) -> Option<Vec<Job>> {
        let mut state = self.state.lock();
        loop {
            self.answer_refused(&mut state);
            if !state.jobs.is_empty() {
                return Some(take_from(&mut state, most));
            }
            // What was refused while the lock was released is answered before the queue ends.
            if state.closed && state.refused.is_empty() {
                return None;
            }
            if state.refused.is_empty() {
                self.changed.wait(&mut state);
            }
        }
    }

    /// As [`take`](Self::take), but does not wait: empty when nothing waits.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn try_take(&self, most: usize) -> Vec<Job> {
        let mut state = self.state.lock();
        self.answer_refused(&mut state);
        take_from(&mut state, most)
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().jobs.len()
    }

    fn answer_refused(&self, state: &mut parking_lot::MutexGuard<'_, State>) {
        let refused = std::mem::take(&mut state.refused);
        if refused.is_empty() {
            return;
        }
        let waiting = state.operations;
        parking_lot::MutexGuard::unlocked(state, || {
            for done in refused {
                answer(done, Err(MetadataError::Overloaded { waiting }));
            }
        });
    }
}

fn take_from(state: &mut State, most: usize) -> Vec<Job> {
    let mut taken = Vec::new();
    let mut operations = 0;
    while let Some(job) = state.jobs.front() {
        let next = job.transaction.operations().max(1);
        if !taken.is_empty() && operations + next > most {
            break;
        }
        operations += next;
        taken.extend(state.jobs.pop_front());
    }
    state.operations -= operations;
    if state.jobs.is_empty() && state.jobs.capacity() > 1024 {
        // Give back the memory of a rush.
        state.jobs = VecDeque::new();
    }
    taken
}

/// Calls `done`; a panic in it is logged and goes no further, as others wait for their answers.
pub(crate) fn answer(done: Done, outcome: Outcome) {
    if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
        tracing::error!("a callback of the metadata store panicked");
    }
}

/// The store's thread: takes what waits, has it committed as one batch, tells everyone.
pub(crate) struct Worker {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    id: ThreadId,
}

impl Worker {
    /// Starts the thread. `commit` answers one outcome for each transaction, in order.
    pub(crate) fn start(
        queue: Arc<Queue>,
        batch_operations: usize,
        mut commit: impl FnMut(&[Transaction]) -> Vec<Outcome> + Send + 'static,
    ) -> std::io::Result<Self> {
        let jobs = queue.clone();
        let thread = std::thread::Builder::new()
            .name("kera-metadata".into())
            .spawn(move || {
                while let Some(batch) = jobs.take(batch_operations) {
                    run(batch, &mut commit);
                }
            })?;
        Ok(Self {
            queue,
            id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Finishes what waits and ends the thread. False when called on that thread, as by a callback
    /// that drops the last handle of the store: it cannot wait for itself, and ends soon after.
    pub(crate) fn close(&self) -> bool {
        self.queue.close();
        if std::thread::current().id() == self.id {
            return false;
        }
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the metadata store's thread panicked");
        }
        true
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
    }
}

/// Commits one batch and answers its callers.
pub(crate) fn run(batch: Vec<Job>, commit: &mut dyn FnMut(&[Transaction]) -> Vec<Outcome>) {
    let (transactions, callbacks): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|job| (job.transaction, job.done))
        .unzip();
    let outcomes = commit(&transactions);
    drop(transactions);
    for (done, outcome) in callbacks.into_iter().zip(outcomes) {
        answer(done, outcome);
    }
}
