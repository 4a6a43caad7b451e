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

/// What waits, within bounds.
pub(crate) struct Waiting<J> {
    pub(crate) jobs: VecDeque<J>,
    /// Operations of all jobs that wait.
    pub(crate) operations: usize,
    /// Callbacks of transactions that found no room. They hold no transaction, belong to callers
    /// that wait for them, and are answered before anything else.
    pub(crate) refused: Vec<Done>,
    pub(crate) closed: bool,
    /// Most operations that may wait.
    capacity: usize,
}

impl<J> Waiting<J> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            jobs: VecDeque::new(),
            operations: 0,
            refused: Vec::new(),
            closed: false,
            capacity,
        }
    }

    /// Takes in the job of a transaction of so many operations, if there is room. False once it is closed.
    pub(crate) fn push(
        &mut self,
        operations: usize,
        done: Done,
        job: impl FnOnce(Done) -> J,
    ) -> Result<(), Done> {
        if self.closed {
            return Err(done);
        }
        // One that is greater than the whole queue still gets in alone, to be refused by name.
        if self.operations > 0 && self.operations + operations > self.capacity {
            self.refused.push(done);
        } else {
            self.operations += operations;
            self.jobs.push_back(job(done));
        }
        Ok(())
    }
}

/// Operations that a transaction counts for while it waits: even one without writes takes room.
pub(crate) fn room_of(transaction: &Transaction) -> usize {
    transaction.operations().max(1)
}

/// The one thread of a store.
pub(crate) struct StoreThread {
    thread: Mutex<Option<JoinHandle<()>>>,
    id: ThreadId,
}

impl StoreThread {
    pub(crate) fn start(work: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let named = std::thread::Builder::new().name("kera-metadata".into());
        let thread = named.spawn(work)?;
        Ok(Self {
            id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Waits for its end. False when called on that thread, as by a callback that drops the last handle of the store: it
    /// cannot wait for itself, and ends soon after.
    pub(crate) fn join(&self) -> bool {
        if std::thread::current().id() == self.id {
            return false;
        }
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the metadata store's thread panicked");
        }
        true
    }
}

type State = Waiting<Job>;

/// Transactions in the order they came.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(State::new(capacity)),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn push(&self, job: Job) {
        let Job { transaction, done } = job;
        let operations = room_of(&transaction);
        let job = |done| Job { transaction, done };
        let pushed = self.state.lock().push(operations, done, job);
        match pushed {
            Ok(()) => drop(self.changed.notify_one()),
            Err(done) => answer(done, Err(MetadataError::Closed)),
        }
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
        let next = room_of(&job.transaction);
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
    thread: StoreThread,
}

impl Worker {
    /// Starts the thread. `commit` answers one outcome for each transaction, in order.
    pub(crate) fn start(
        queue: Arc<Queue>,
        batch_operations: usize,
        mut commit: impl FnMut(&[Transaction]) -> Vec<Outcome> + Send + 'static,
    ) -> std::io::Result<Self> {
        let jobs = queue.clone();
        let thread = StoreThread::start(move || {
            while let Some(batch) = jobs.take(batch_operations) {
                run(batch, &mut commit);
            }
        })?;
        Ok(Self { queue, thread })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Finishes what waits and ends the thread; as [`StoreThread::join`].
    pub(crate) fn close(&self) -> bool {
        self.queue.close();
        self.thread.join()
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
