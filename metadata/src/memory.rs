//! A store in memory, for tests: the same rules, with failures on demand.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_protocol::ids::{StreamId, StreamletId};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::answer::CommitFuture;
use crate::cluster::{Change, Watched};
use crate::encode::{Record, decode_value};
use crate::error::MetadataError;
use crate::evaluate::{Changes, Keyspace, LimitsCache, evaluate};
use crate::history::History;
use crate::image::{ImageBuilder, corrupt};
use crate::queue::{Job, Queue, Worker, run};
use crate::store::{Done, MetadataStore, bump_epochs};
use kera_records::key::{self, Key, prefix_end};
use kera_records::{Committed, Transaction};
use kera_records::{Image, StreamletRecord};

/// Most operations of one transaction, unless set otherwise.
const DEFAULT_MAX_OPERATIONS: usize = 1 << 17;
/// Operations that may wait, unless set otherwise.
const DEFAULT_QUEUE_OPERATIONS: usize = 1 << 20;

/// How a transaction is made to fail, whatever it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is written; told as [`MetadataError::Storage`].
    Storage,
    /// Nothing is written; told as [`MetadataError::Full`].
    Full,
    /// Nothing is written; told as [`MetadataError::UnknownOutcome`].
    UnknownLost,
    /// Written if its comparisons hold; told as [`MetadataError::UnknownOutcome`] all the same.
    UnknownApplied,
}

#[derive(Clone, Default)]
struct Values {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Term of the controller.
    term: u64,
}

impl Values {
    fn range<'a>(&'a self, prefix: &[u8]) -> impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)> {
        let end = prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        self.map.range((Bound::Included(prefix.to_vec()), end))
    }
}

impl Keyspace for Values {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetadataError> {
        Ok(self.map.get(key).cloned())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetadataError> {
        self.map.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetadataError> {
        self.map.remove(key);
        Ok(())
    }

    fn delete_prefix(&mut self, prefix: &[u8]) -> Result<(), MetadataError> {
        let keys: Vec<_> = self.range(prefix).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.map.remove(&key);
        }
        Ok(())
    }

    fn term(&self) -> Result<u64, MetadataError> {
        Ok(self.term)
    }
}

struct State {
    path: PathBuf,
    cluster: Uuid,
    values: Values,
    cache: LimitsCache,
    revision: u64,
    history: History,
    max_operations: usize,
    /// Transactions evaluated so far.
    evaluated: u64,
    /// By the number of the transaction they strike, counted from 1.
    faults: BTreeMap<u64, Fault>,
}

impl State {
    fn commit(&mut self, batch: &[Transaction]) -> Vec<Result<Committed, MetadataError>> {
        batch.iter().map(|t| self.commit_one(t)).collect()
    }

    fn commit_one(&mut self, transaction: &Transaction) -> Result<Committed, MetadataError> {
        self.evaluated += 1;
        let fault = self.faults.remove(&self.evaluated);
        let path = self.path.clone();
        let detail = "a planted fault".to_owned();
        match fault {
            None | Some(Fault::UnknownApplied) => {}
            Some(Fault::Storage) => return Err(MetadataError::Storage { path, detail }),
            Some(Fault::Full) => return Err(MetadataError::Full { path }),
            Some(Fault::UnknownLost) => {
                return Err(MetadataError::UnknownOutcome { path, detail });
            }
        }
        let outcome = self.apply(transaction);
        match fault {
            None => outcome,
            Some(_) => Err(MetadataError::UnknownOutcome { path, detail }),
        }
    }

    fn apply(&mut self, transaction: &Transaction) -> Result<Committed, MetadataError> {
        let changes = evaluate(
            &self.values,
            &mut self.cache,
            &self.path,
            transaction,
            self.revision + 1,
            self.max_operations,
        )?;
        if !changes.is_empty() {
            let told = self.changes(&changes)?;
            changes.apply(&mut self.values, &mut self.cache)?;
            self.revision += 1;
            self.history.push(self.revision, told);
        }
        Ok(Committed {
            revision: self.revision,
        })
    }

    /// What the transaction that is about to be applied does to each record.
    fn changes(&self, changes: &Changes) -> Result<Vec<Change>, MetadataError> {
        let mut told = Vec::with_capacity(changes.values().len());
        for id in changes.deleted() {
            for kind in key::OF_STREAMS {
                let prefix = key::stream_prefix(kind, *id);
                let gone = self.values.range(&prefix);
                told.extend(gone.map(|(key, _)| (key.clone(), None)));
            }
        }
        let written = changes.values().iter();
        told.extend(written.map(|(key, value)| (key.clone(), value.clone())));
        let told = told.into_iter().map(|(bytes, value)| {
            let key = Key::decode(&bytes).ok_or("it holds a key that is none")?;
            let record = value.map(|value| decode_value(&key, &bytes, &value));
            Ok(Change {
                record: record.transpose()?,
                key,
                revision: self.revision + 1,
            })
        });
        told.collect::<Result<_, String>>()
            .map_err(|detail| corrupt(&self.path, detail))
    }
}

enum Runner {
    /// A thread of its own, as other stores have.
    Thread(Worker),
    /// Nothing happens until [`MemoryStore::run_pending`] is called.
    Manual(Queue),
}

/// How often a store was asked for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// For everything that is recorded.
    pub loads: u64,
    /// For all that is recorded of one streamlet.
    pub streamlet_loads: u64,
    /// For one record, or for the records of all streamlets.
    pub reads: u64,
    /// To apply a transaction.
    pub transactions: u64,
    /// What those compare and write together.
    pub operations: u64,
}

impl Asked {
    /// What was asked since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            loads: self.loads - before.loads,
            streamlet_loads: self.streamlet_loads - before.streamlet_loads,
            reads: self.reads - before.reads,
            transactions: self.transactions - before.transactions,
            operations: self.operations - before.operations,
        }
    }

    /// Questions that change nothing.
    pub fn questions(&self) -> u64 {
        self.loads + self.streamlet_loads + self.reads
    }
}

/// A metadata store that forgets everything when dropped. For tests: it can fail on demand, wait to
/// be stepped, and be copied as if its process had been killed.
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    runner: Runner,
    asked: Mutex<Asked>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store with a thread of its own, on which callbacks run.
    ///
    /// # Panics
    /// If the system refuses the thread.
    pub fn new() -> Self {
        Self::with_state(Self::empty(), DEFAULT_QUEUE_OPERATIONS, true)
    }

    /// An empty store without a thread, for tests that choose when things happen: transactions wait
    /// until [`run_pending`](Self::run_pending) or [`run_one`](Self::run_one) is called, and
    /// callbacks run there.
    pub fn manual() -> Self {
        Self::with_state(Self::empty(), DEFAULT_QUEUE_OPERATIONS, false)
    }

    /// An empty store as [`manual`](Self::manual), with room for `queue_operations` waiting
    /// operations and transactions of at most `max_operations`.
    pub fn manual_with_limits(queue_operations: usize, max_operations: usize) -> Self {
        let mut state = Self::empty();
        state.max_operations = max_operations;
        Self::with_state(state, queue_operations, false)
    }

    /// The id that the store was made with.
    pub(crate) fn cluster(&self) -> Uuid {
        self.state.lock().cluster
    }

    fn empty() -> State {
        State {
            path: PathBuf::from("(memory)"),
            cluster: Uuid::new_v4(),
            values: Values::default(),
            cache: LimitsCache::default(),
            revision: 0,
            history: History::default(),
            max_operations: DEFAULT_MAX_OPERATIONS,
            evaluated: 0,
            faults: BTreeMap::new(),
        }
    }

    fn with_state(state: State, queue_operations: usize, threaded: bool) -> Self {
        let state = Arc::new(Mutex::new(state));
        let queue = Queue::new(queue_operations);
        let runner = if threaded {
            let state = state.clone();
            let worker = Worker::start(Arc::new(queue), 1024, move |batch| {
                state.lock().commit(batch)
            });
            Runner::Thread(worker.expect("the system starts a thread"))
        } else {
            Runner::Manual(queue)
        };
        Self {
            state,
            runner,
            asked: Mutex::default(),
        }
    }

    /// Another store with a copy of what this one holds now, without its waiting transactions and
    /// faults: what a new process finds after this one was killed.
    pub fn copy_after_kill(&self) -> Self {
        let state = {
            let state = self.state.lock();
            State {
                path: state.path.clone(),
                cluster: state.cluster,
                values: state.values.clone(),
                cache: LimitsCache::default(),
                revision: state.revision,
                history: History::since(state.revision),
                max_operations: state.max_operations,
                evaluated: 0,
                faults: BTreeMap::new(),
            }
        };
        Self::with_state(
            state,
            DEFAULT_QUEUE_OPERATIONS,
            matches!(self.runner, Runner::Thread(_)),
        )
    }

    /// Plants a fault in the `nth` transaction from now that is evaluated; 1 is the next.
    pub fn fail(&self, nth: u64, fault: Fault) {
        let mut state = self.state.lock();
        let number = state.evaluated + nth.max(1);
        state.faults.insert(number, fault);
    }

    /// How often it was asked for what so far.
    pub fn asked(&self) -> Asked {
        *self.asked.lock()
    }

    /// Transactions evaluated so far.
    pub fn evaluated(&self) -> u64 {
        self.state.lock().evaluated
    }

    /// Transactions that wait.
    pub fn waiting(&self) -> usize {
        self.queue().waiting()
    }

    /// Evaluates the transaction that waits longest and runs its callback; false when none waits, or
    /// when the store has a thread for it.
    pub fn run_one(&self) -> bool {
        match &self.runner {
            Runner::Manual(queue) => self.run_batch(queue, 1),
            Runner::Thread(_) => false,
        }
    }

    /// Evaluates everything that waits, with what callbacks submit meanwhile, and runs the callbacks
    /// here. Does nothing when the store has a thread for it.
    pub fn run_pending(&self) {
        if let Runner::Manual(queue) = &self.runner {
            while self.run_batch(queue, usize::MAX) {}
        }
    }

    /// The changes after a revision, as they come.
    pub(crate) fn watch(&self, after: u64) -> mpsc::Receiver<Watched> {
        self.state.lock().history.watch(after)
    }

    /// The revision of the last change, which watches tell.
    pub(crate) fn last_change(&self) -> u64 {
        self.state.lock().history.last()
    }

    pub(crate) fn forget_history(&self) {
        self.state.lock().history.forget();
    }

    /// A controller was elected for `term`, or 0: there is none.
    pub(crate) fn set_term(&self, term: u64) {
        self.state.lock().values.term = term;
    }

    fn run_batch(&self, queue: &Queue, operations: usize) -> bool {
        let batch = queue.try_take(operations);
        if batch.is_empty() {
            return false;
        }
        // The lock is given back before callbacks run.
        run(batch, &mut |batch| self.state.lock().commit(batch));
        true
    }

    fn queue(&self) -> &Queue {
        match &self.runner {
            Runner::Thread(worker) => worker.queue(),
            Runner::Manual(queue) => queue,
        }
    }

    fn scan<'a>(
        values: &'a Values,
        path: &'a Path,
        prefixes: &[Vec<u8>],
    ) -> Result<ImageBuilder<'a>, MetadataError> {
        let mut builder = ImageBuilder::new(path);
        for prefix in prefixes {
            for (key, value) in values.range(prefix) {
                builder.push(key, value)?;
            }
        }
        Ok(builder)
    }
}

impl MetadataStore for MemoryStore {
    fn made_with(&self) -> Result<u32, MetadataError> {
        Ok(kera_records::CLUSTER_VERSION)
    }

    fn load(&self) -> Result<Image, MetadataError> {
        self.asked.lock().loads += 1;
        let state = self.state.lock();
        Ok(Image {
            cluster: state.cluster,
            revision: state.revision,
            ..Self::scan(&state.values, &state.path, &[Vec::new()])?.finish_whole()?
        })
    }

    fn load_streamlet(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Image, MetadataError> {
        self.asked.lock().streamlet_loads += 1;
        let state = self.state.lock();
        let prefixes = [key::STREAMLET, key::GROUP, key::LANE_START]
            .map(|kind| key::streamlet_prefix(kind, stream, streamlet));
        Ok(Image {
            cluster: state.cluster,
            revision: state.revision,
            ..Self::scan(&state.values, &state.path, &prefixes)?.finish()
        })
    }

    fn read(&self, key: &Key) -> Result<Option<Record>, MetadataError> {
        self.asked.lock().reads += 1;
        let state = self.state.lock();
        let bytes = key.encode();
        let value = state.values.get(&bytes)?;
        value
            .map(|value| {
                decode_value(key, &bytes, &value).map_err(|detail| corrupt(&state.path, detail))
            })
            .transpose()
    }

    fn streamlets(&self) -> Result<Vec<StreamletRecord>, MetadataError> {
        self.asked.lock().reads += 1;
        let state = self.state.lock();
        let builder = Self::scan(&state.values, &state.path, &[vec![key::STREAMLET]])?;
        Ok(builder.finish().streamlets)
    }

    fn records_of(&self, kind: u8, stream: Option<StreamId>) -> Result<Image, MetadataError> {
        self.asked.lock().reads += 1;
        let state = self.state.lock();
        let prefix = key::kind_prefix(kind, stream);
        Ok(Self::scan(&state.values, &state.path, &[prefix])?.finish())
    }

    fn submit(&self, transaction: Transaction, done: Done) {
        let operations = transaction.compare.len() + transaction.write.len();
        {
            let mut asked = self.asked.lock();
            asked.transactions += 1;
            asked.operations += operations as u64;
        }
        self.queue().push(Job { transaction, done });
    }

    fn max_operations(&self) -> usize {
        self.state.lock().max_operations
    }

    fn close(&self) {
        match &self.runner {
            Runner::Thread(worker) => {
                worker.close();
            }
            Runner::Manual(queue) => {
                queue.close();
                self.run_pending();
            }
        }
    }

    /// As every store does; one without a thread then runs what waits, or this would never return.
    fn commit(&self, transaction: Transaction) -> Result<Committed, MetadataError> {
        let (future, done) = CommitFuture::new();
        self.submit(transaction, done);
        self.run_pending();
        future.wait()
    }

    fn bump_epochs(&self, owner: u32) -> Result<Vec<StreamletRecord>, MetadataError> {
        bump_epochs(self, owner, |future| {
            self.run_pending();
            future.wait()
        })
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.close();
    }
}
