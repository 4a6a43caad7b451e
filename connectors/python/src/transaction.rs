//! Transactions, and those that were prepared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_producer::{Producer, TransactionError, TransactionHandle as Handle};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, oneshot, watch};

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

/// An open transaction of a producer. A task has it, so that an end that was asked for goes on when nobody waits.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Transaction {
    turn: Arc<Turn>,
    asks: Kept<mpsc::Sender<Ask>>,
    outcome: Kept<watch::Receiver<Option<(End, Outcome)>>>,
}

/// What the transactions of one producer share.
#[derive(Default)]
pub(crate) struct Turn {
    /// The task of the one that is open has it.
    open: Arc<Mutex<()>>,
    /// Nobody has the open one any more: its task ends, and the next one waits for that.
    is_dropped: AtomicBool,
}

/// Has the transaction until it ends; it is aborted if nobody can end it any more.
async fn keep(
    producer: Producer,
    turn: Arc<Turn>,
    begun: oneshot::Sender<Result<(), TransactionError>>,
    mut asks: mpsc::Receiver<Ask>,
    outcome: watch::Sender<Option<(End, Outcome)>>,
) {
    let open = Arc::clone(&turn.open);
    let _open = match turn.is_dropped.swap(false, Ordering::SeqCst) {
        true => Some(open.lock_owned().await),
        // Who begins one amid another is told so.
        false => open.try_lock_owned().ok(),
    };
    let transaction = match producer.transaction().await {
        Ok(transaction) => transaction,
        Err(error) => {
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
        let _ = outcome.send(Some((end, ended)));
        return;
    }
}

impl Transaction {
    pub(crate) fn begin(
        py: Python<'_>,
        home: Home,
        producer: Producer,
        turn: Arc<Turn>,
    ) -> PyResult<Self> {
        let (begun, has_begun) = oneshot::channel();
        let (asks, asked) = mpsc::channel(MOST_ASKS);
        let (tell, outcome) = watch::channel(None);
        home.within(|| tokio::spawn(keep(producer, Arc::clone(&turn), begun, asked, tell)))?;
        match home.finish(py, has_begun)? {
            Ok(Ok(())) => Ok(Self {
                turn,
                asks: Kept::new(home, asks),
                outcome: Kept::new(home, outcome),
            }),
            Ok(Err(error)) => Err(of_transaction(&error)),
            Err(_) => Err(over()),
        }
    }

    /// Ends it, or hears how it ends: after the first call it has ended, or will. `None` if that is another way.
    fn end(&self, py: Python<'_>, end: End) -> PyResult<Option<Outcome>> {
        let home = self.asks.home();
        let asks: &mpsc::Sender<Ask> = &self.asks;
        // At once, so that no signal comes before it. Refused after the end.
        let (asked, mut outcome) = home.within(|| {
            let asked = asks.try_send(Ask::End(end));
            (asked, watch::Receiver::clone(&self.outcome))
        })?;
        let ended = home.finish(py, async move {
            if let Err(TrySendError::Full(ask)) = asked {
                let _ = asks.send(ask).await;
            }
            let known = outcome.wait_for(Option::is_some).await;
            known.map(|known| known.clone()).ok().flatten()
        })?;
        Ok(ended.and_then(|(how, outcome)| (how == end).then_some(outcome)))
    }

    fn end_so(&self, py: Python<'_>, end: End) -> PyResult<Option<TransactionHandle>> {
        match self.end(py, end)? {
            Some(Ok(handle)) => Ok(handle.map(TransactionHandle::from)),
            Some(Err(error)) => Err(of_transaction(&error)),
            None => Err(over()),
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let has_ended = || self.outcome.borrow().is_some();
        // Fails in a child.
        if let Ok(false) = self.asks.home().within(has_ended) {
            self.turn.is_dropped.store(true, Ordering::SeqCst);
        }
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
        let has_ended = || self.outcome.borrow().is_some();
        if self.asks.home().within(has_ended)? {
            return Ok(());
        }
        match error {
            None => self.commit(py),
            // An end that was interrupted goes on; the exception that came of it does, too.
            Some(_) => self.end(py, End::Abort)?.map_or(Ok(()), |aborted| {
                aborted.map(drop).map_err(|error| of_transaction(&error))
            }),
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
