//! Records and networks that do as they are told: answers that are lost, questions that are held back, and
//! a broker that is cut off after so many of them.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_protocol::ids::Epoch;
use kera_records::{Transaction, Write};
use kera_replication::ids::{BrokerId, ProcessId, StreamletKey};
use kera_replication::records::{Records, RecordsError, RecordsRef, StreamletRecords};
use kera_replication::runtime::RuntimeRef;
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Reply, Request, Transport, TransportRef,
};

use crate::Case;
use crate::suite::Stage;

/// What becomes of a transaction.
pub enum Outcome {
    Usual,
    /// It is carried out, and nobody hears of it.
    AnswerLost,
    /// It never arrives, and nobody hears of that.
    Lost,
    /// It is on its way for as long as the gate is shut.
    Held(Gate),
}

/// Where something waits until it is let through.
#[derive(Clone, Default)]
pub struct Gate {
    reached: Arc<AtomicBool>,
    open: Arc<AtomicBool>,
}

impl Gate {
    pub fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Whether anything waits, or has waited, here.
    pub fn is_reached(&self) -> bool {
        self.reached.load(Ordering::SeqCst)
    }

    /// Until something waits here.
    pub async fn reached(&self, case: &Case) {
        while !self.is_reached() {
            case.wait(Duration::from_millis(1)).await;
        }
    }

    async fn pass(self, clock: RuntimeRef) {
        self.reached.store(true, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) {
            clock.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Whether a transaction ends a group, or names other replicas of one that has ended.
pub fn closes(transaction: &Transaction) -> bool {
    let mut writes = transaction.write.iter();
    writes.any(|write| matches!(write, Write::PutGroup(record) if record.is_closed()))
}

/// The records as `node` asks them, with other fates for some of its transactions.
pub fn records(
    case: &Case,
    node: BrokerId,
    fate: impl Fn(&Transaction) -> Outcome + Send + Sync + 'static,
) -> RecordsRef {
    Arc::new(BentRecords {
        inner: case.stage.records(node),
        clock: case.stage.sim.runtime(None),
        fate,
    })
}

struct BentRecords<F> {
    inner: RecordsRef,
    clock: RuntimeRef,
    fate: F,
}

fn silence() -> RecordsError {
    RecordsError::Unknown("its answer was lost".into())
}

impl<F: Fn(&Transaction) -> Outcome + Send + Sync> Records for BentRecords<F> {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        let (inner, clock) = (self.inner.clone(), self.clock.clone());
        match (self.fate)(&transaction) {
            Outcome::Usual => inner.try_commit(transaction),
            Outcome::Lost => Box::pin(async { Err(silence()) }),
            Outcome::AnswerLost => Box::pin(async move {
                inner.try_commit(transaction).await?;
                Err(silence())
            }),
            Outcome::Held(gate) => Box::pin(async move {
                gate.pass(clock).await;
                inner.try_commit(transaction).await
            }),
        }
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.inner.try_read(streamlet)
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        self.inner.try_take_epoch(streamlet, owner)
    }
}

/// Answers to reads of the records, which say what was so when they were asked.
#[derive(Clone, Default)]
pub struct Answers {
    gate: Arc<Mutex<Option<Gate>>>,
}

impl Answers {
    /// From now on they are on their way for as long as the gate is shut.
    pub fn hold(&self) -> Gate {
        let gate = Gate::default();
        *self.gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// `inner`, with these answers.
    pub fn over(&self, case: &Case, inner: RecordsRef) -> RecordsRef {
        Arc::new(Slow {
            inner,
            clock: case.stage.sim.runtime(None),
            answers: self.clone(),
        })
    }
}

struct Slow {
    inner: RecordsRef,
    clock: RuntimeRef,
    answers: Answers,
}

impl Records for Slow {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        self.inner.try_commit(transaction)
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        let asked = self.inner.try_read(streamlet);
        let gate = self.answers.gate.lock().unwrap().clone();
        let clock = self.clock.clone();
        Box::pin(async move {
            let found = asked.await;
            if let Some(gate) = gate {
                gate.pass(clock).await;
            }
            found
        })
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        self.inner.try_take_epoch(streamlet, owner)
    }
}

/// How many more questions a broker gets through, to other brokers and to the records.
#[derive(Clone)]
pub struct Leash {
    left: Arc<AtomicI64>,
}

impl Leash {
    pub fn new() -> Self {
        Self {
            left: Arc::new(AtomicI64::new(i64::MAX)),
        }
    }

    /// From now on so many, and then none.
    pub fn shorten(&self, left: i64) {
        self.left.store(left, Ordering::SeqCst);
    }

    fn is_spent(&self) -> bool {
        self.left.fetch_sub(1, Ordering::SeqCst) <= 0
    }

    pub fn transport(&self, case: &Case, node: BrokerId) -> TransportRef {
        Arc::new(Leashed {
            inner: case.stage.transport(node),
            clock: case.stage.sim.runtime(None),
            leash: self.clone(),
        })
    }

    pub fn records(&self, case: &Case, node: BrokerId) -> RecordsRef {
        Arc::new(Leashed {
            inner: case.stage.records(node),
            clock: case.stage.sim.runtime(None),
            leash: self.clone(),
        })
    }
}

struct Leashed<T> {
    inner: T,
    clock: RuntimeRef,
    leash: Leash,
}

impl Transport for Leashed<TransportRef> {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        self.inner.connect(to, process)
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        if !self.leash.is_spent() {
            return self.inner.call(to, request);
        }
        let patience = self.clock.sleep(Duration::from_millis(50));
        Box::pin(async move {
            patience.await;
            let reason = "cut off".into();
            Err(CallError::Lost { backup: to, reason })
        })
    }
}

impl Leashed<RecordsRef> {
    fn ask<T: 'static>(
        &self,
        question: impl FnOnce(&RecordsRef) -> Pending<Result<T, RecordsError>>,
    ) -> Pending<Result<T, RecordsError>> {
        if !self.leash.is_spent() {
            return question(&self.inner);
        }
        let patience = self.clock.sleep(Duration::from_millis(50));
        Box::pin(async move {
            patience.await;
            Err(silence())
        })
    }
}

impl Records for Leashed<RecordsRef> {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        self.ask(|inner| inner.try_commit(transaction))
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.ask(|inner| inner.try_read(streamlet))
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        self.ask(|inner| inner.try_take_epoch(streamlet, owner))
    }
}
