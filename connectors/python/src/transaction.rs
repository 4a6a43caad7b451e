//! Transactions, and those that were prepared.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use kera_producer::{Producer, TransactionError, TransactionHandle as Handle};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use crate::awaited::_Pending;
use crate::errors::{Problem, of_transaction};
use crate::runtime::{Home, Kept};
use crate::settings::Way;

/// How it is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    Abort,
    Prepare,
}

enum Ask {
    Handle(oneshot::Sender<Option<Handle>>),
    End(End),
}

/// More threads than that wait until the task hears them.
const MOST_ASKS: usize = 16;

type Outcome = Result<Option<Handle>, TransactionError>;
type Begun = Result<(), TransactionError>;

/// An open transaction of a producer. A task has it, so that an end that was asked for goes on when nobody waits.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Transaction {
    over: Over,
    asks: Kept<mpsc::Sender<Ask>>,
    outcome: Kept<watch::Receiver<Option<(End, Outcome)>>>,
}

/// What the transactions of one producer share.
#[derive(Default)]
pub(crate) struct Turn {
    /// The task of the one that is open has it.
    open: Mutex<()>,
    /// Of the one that is open, or was last.
    last: std::sync::Mutex<Over>,
}

/// Nobody has a transaction any more, or it has ended: its task ends, and the next one waits for that.
#[derive(Clone)]
struct Over(Arc<AtomicBool>);

impl Default for Over {
    /// Of the one before the first.
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Over {
    fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Turn {
    /// Puts a transaction behind the last one. False while that is in use.
    fn take(&self, over: &Over) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = last.0.load(Ordering::SeqCst);
        if is_over {
            *last = over.clone();
        }
        is_over
    }
}

/// Has the transaction until it ends; it is aborted if nobody can end it any more.
async fn keep(
    producer: Producer,
    turn: Arc<Turn>,
    over: Over,
    begun: oneshot::Sender<Begun>,
    mut asks: mpsc::Receiver<Ask>,
    outcome: watch::Sender<Option<(End, Outcome)>>,
) {
    // Who begins one amid another is told so.
    let _open = match turn.take(&over) {
        true => Some(turn.open.lock().await),
        false => None,
    };
    if begun.is_closed() {
        return;
    }
    let transaction = match producer.transaction().await {
        Ok(transaction) => transaction,
        Err(error) => {
            over.set();
            // Who began it may have been interrupted.
            let _ = begun.send(Err(error));
            return;
        }
    };
    if begun.send(Ok(())).is_err() {
        return;
    }
    while let Some(ask) = asks.recv().await {
        let end = match ask {
            Ask::Handle(reply) => {
                let _ = reply.send(transaction.handle());
                continue;
            }
            Ask::End(end) => end,
        };
        let ended = match end {
            End::Commit => transaction.commit().await.map(|()| None),
            End::Abort => transaction.abort().await.map(|()| None),
            End::Prepare => transaction.prepare().await,
        };
        over.set();
        let _ = outcome.send(Some((end, ended)));
        return;
    }
}

/// A transaction of which it is not known yet whether it begins.
struct Beginning {
    over: Unbegun,
    asks: Kept<mpsc::Sender<Ask>>,
    outcome: Kept<watch::Receiver<Option<(End, Outcome)>>>,
}

impl Beginning {
    fn start(
        home: Home,
        producer: Producer,
        turn: Arc<Turn>,
    ) -> PyResult<(Self, oneshot::Receiver<Begun>)> {
        let (begun, has_begun) = oneshot::channel();
        let (asks, asked) = mpsc::channel(MOST_ASKS);
        let (tell, outcome) = watch::channel(None);
        let over = Over(Arc::default());
        home.within(|| tokio::spawn(keep(producer, turn, over.clone(), begun, asked, tell)))?;
        let (asks, outcome) = (Kept::new(home, asks), Kept::new(home, outcome));
        let beginning = Self {
            over: Unbegun(Some(over)),
            asks,
            outcome,
        };
        Ok((beginning, has_begun))
    }

    fn end(mut self, has_begun: Result<Begun, RecvError>) -> PyResult<Transaction> {
        // Its task has ended where it did not begin.
        let unbegun = self.over.0.take();
        match (has_begun, unbegun) {
            (Ok(Ok(())), Some(over)) => Ok(Transaction {
                over,
                asks: self.asks,
                outcome: self.outcome,
            }),
            (Ok(Err(error)), _) => Err(of_transaction(&error)),
            _ => Err(over()),
        }
    }
}

/// Where the one who begins a transaction waits no more, as after Ctrl-C, the next one waits for the end of its task.
struct Unbegun(Option<Over>);

impl Drop for Unbegun {
    fn drop(&mut self) {
        if let Some(over) = &self.0 {
            over.set();
        }
    }
}

impl Transaction {
    pub(crate) fn begin(
        py: Python<'_>,
        home: Home,
        producer: Producer,
        turn: Arc<Turn>,
    ) -> PyResult<Self> {
        let (beginning, has_begun) = Beginning::start(home, producer, turn)?;
        let has_begun = home.finish(py, has_begun)?;
        beginning.end(has_begun)
    }

    /// As [`begin`](Self::begin), for a coroutine.
    pub(crate) fn pending(home: Home, producer: Producer, turn: Arc<Turn>) -> PyResult<_Pending> {
        let (beginning, has_begun) = Beginning::start(home, producer, turn)?;
        _Pending::new(home, has_begun, move |_, has_begun| {
            beginning.end(has_begun)
        })
    }

    /// Ends it, or hears how it ends: after the first call it has ended, or will. `None` if that is another way.
    fn ending(
        &self,
        end: End,
    ) -> PyResult<impl Future<Output = Option<Outcome>> + Send + 'static + use<>> {
        // At once, so that no signal comes before it. Refused after the end.
        let (asks, asked, mut outcome) = self.asks.home().within(|| {
            let asked = self.asks.try_send(Ask::End(end));
            let asks = mpsc::Sender::clone(&self.asks);
            (asks, asked, watch::Receiver::clone(&self.outcome))
        })?;
        Ok(async move {
            if let Err(TrySendError::Full(ask)) = asked {
                let _ = asks.send(ask).await;
            }
            drop(asks);
            let known = outcome.wait_for(Option::is_some).await;
            let known = known.map(|known| known.clone()).ok().flatten();
            known.and_then(|(how, outcome)| (how == end).then_some(outcome))
        })
    }

    fn end_so(&self, py: Python<'_>, end: End) -> PyResult<Option<TransactionHandle>> {
        told(self.asks.home().finish(py, self.ending(end)?)?)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let has_ended = || self.outcome.borrow().is_some();
        // Fails in a child.
        if let Ok(false) = self.asks.home().within(has_ended) {
            self.over.set();
        }
    }
}

/// What is said of how it ended.
fn told(ended: Option<Outcome>) -> PyResult<Option<TransactionHandle>> {
    match ended {
        Some(Ok(handle)) => Ok(handle.map(TransactionHandle::from)),
        Some(Err(error)) => Err(of_transaction(&error)),
        None => Err(over()),
    }
}

fn over() -> PyErr {
    let text = "the transaction has ended in another way, or is about to; begin a new one";
    Problem::new("TransactionError", text).into()
}

#[pymethods]
impl Transaction {
    /// Has all of its records count. An end that is interrupted, as by Ctrl-C, goes on: call again to hear of it.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.end_so(py, End::Commit).map(drop)
    }

    /// Gives up all of its records.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.end_so(py, End::Abort).map(drop)
    }

    /// Has it wait until somebody ends it by its handle. `None` if nothing was appended.
    fn prepare(&self, py: Python<'_>) -> PyResult<Option<TransactionHandle>> {
        self.end_so(py, End::Prepare)
    }

    /// As `commit`, `abort` or `prepare`, by that name.
    fn _end(&self, how: &str) -> PyResult<_Pending> {
        let end = match how {
            "commit" => End::Commit,
            "abort" => End::Abort,
            _ => End::Prepare,
        };
        _Pending::new(self.asks.home(), self.ending(end)?, |_, ended| told(ended))
    }

    /// Whether it has ended, or how is not known yet.
    #[getter]
    fn _has_ended(&self) -> PyResult<bool> {
        self.asks.home().within(|| self.outcome.borrow().is_some())
    }

    /// Its handle, once a record is on its way.
    #[getter]
    fn handle(&self, py: Python<'_>) -> PyResult<Option<TransactionHandle>> {
        let (reply, handle) = oneshot::channel();
        let home = self.asks.home();
        let asks: &mpsc::Sender<Ask> = &self.asks;
        let handle = home.finish(py, async move {
            let _ = asks.send(Ask::Handle(reply)).await;
            handle.await
        })?;
        Ok(handle.ok().flatten().map(TransactionHandle::from))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Commits, or aborts after an exception. One that was ended within the block stays so.
    #[pyo3(signature = (error, *_more))]
    fn __exit__(
        &self,
        py: Python<'_>,
        error: Option<&Bound<'_, PyAny>>,
        _more: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if self._has_ended()? {
            return Ok(());
        }
        match error {
            None => self.commit(py),
            // An end that was interrupted goes on; the exception that came of it does, too.
            Some(_) => {
                let aborted = self.asks.home().finish(py, self.ending(End::Abort)?)?;
                aborted.map_or(Ok(()), |aborted| told(Some(aborted)).map(drop))
            }
        }
    }
}

/// Names a transaction.
#[pyclass(frozen, get_all, eq, hash, module = "kera")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct TransactionHandle {
    transactional_id: String,
    producer: i64,
    epoch: i16,
    number: u64,
}

#[pymethods]
impl TransactionHandle {
    #[new]
    fn new(transactional_id: String, producer: i64, epoch: i16, number: u64) -> Self {
        Self {
            transactional_id,
            producer,
            epoch,
            number,
        }
    }

    /// For pickle.
    fn __getnewargs__(&self) -> (&str, i64, i16, u64) {
        (
            &self.transactional_id,
            self.producer,
            self.epoch,
            self.number,
        )
    }

    fn __repr__(&self) -> String {
        format!(
            "TransactionHandle({:?}, {}, {}, {})",
            self.transactional_id, self.producer, self.epoch, self.number
        )
    }
}

impl From<Handle> for TransactionHandle {
    fn from(handle: Handle) -> Self {
        Self {
            transactional_id: handle.transactional_id,
            producer: handle.producer,
            epoch: handle.epoch,
            number: handle.number,
        }
    }
}

impl From<&TransactionHandle> for Handle {
    fn from(handle: &TransactionHandle) -> Self {
        Self {
            transactional_id: handle.transactional_id.clone(),
            producer: handle.producer,
            epoch: handle.epoch,
            number: handle.number,
        }
    }
}

/// Ends transactions that were prepared, by their handles.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Transactions {
    transactions: Kept<kera_producer::Transactions>,
}

#[pymethods]
impl Transactions {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let client = Way::alone("Transactions", settings)?.client()?;
        let transactions = kera_producer::Transactions::new(client);
        Ok(Self {
            transactions: Kept::new(Home::here()?, transactions),
        })
    }

    fn commit(&self, py: Python<'_>, handle: &TransactionHandle) -> PyResult<()> {
        let handle = Handle::from(handle);
        self.finish(py, self.transactions.commit(&handle))
    }

    fn abort(&self, py: Python<'_>, handle: &TransactionHandle) -> PyResult<()> {
        let handle = Handle::from(handle);
        self.finish(py, self.transactions.abort(&handle))
    }

    /// Has the brokers forget how it ended, and its transactional id.
    fn forget(&self, py: Python<'_>, handle: &TransactionHandle) -> PyResult<()> {
        let handle = Handle::from(handle);
        self.finish(py, self.transactions.forget(&handle))
    }

    /// Those that are prepared whose transactional ids begin so.
    #[pyo3(signature = (prefix = ""))]
    fn prepared(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<TransactionHandle>> {
        let all = self.finish(py, self.transactions.prepared(prefix))?;
        Ok(all.into_iter().map(|one| one.handle.into()).collect())
    }
}

impl Transactions {
    fn finish<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Future<Output = Result<T, TransactionError>> + Send,
    ) -> PyResult<T> {
        let ended = self.transactions.home().finish(py, work)?;
        ended.map_err(|error| of_transaction(&error))
    }
}
