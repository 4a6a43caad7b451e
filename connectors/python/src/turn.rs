//! What one thread reads at a time, until it is closed.

use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use kera_consumer::ConsumeError;
use pyo3::IntoPyObject;
use pyo3::prelude::*;
use tokio::sync::{Mutex, watch};

use crate::awaited::_Pending;
use crate::errors::{closed, of_consume};
use crate::runtime::{Home, Kept, SIGNALS_EVERY};
use crate::told;

/// A consumer or reader. Threads that read it take turns, and let go of it at every look for signals.
pub(crate) struct Turn<T: Send + 'static> {
    what: &'static str,
    reading: Kept<Arc<Mutex<Option<T>>>>,
    closing: Kept<watch::Sender<bool>>,
}

/// A read that can be given up without losing anything.
pub(crate) type Reading<'a, R> = Pin<Box<dyn Future<Output = Result<R, ConsumeError>> + Send + 'a>>;

/// Does `read` if it is not closed, and until it is.
async fn unless_closed<T, R>(
    reading: &Mutex<Option<T>>,
    mut closing: watch::Receiver<bool>,
    read: impl for<'a> FnOnce(&'a mut T) -> Reading<'a, R>,
) -> Result<R, ConsumeError> {
    let read = async {
        match reading.lock().await.as_mut() {
            Some(reading) => read(reading).await,
            None => Err(ConsumeError::Closed),
        }
    };
    tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => Err(ConsumeError::Closed),
        read = read => read,
    }
}

/// A slice of a wait, and who waits.
struct Slice<F> {
    waits: Option<Pin<Box<F>>>,
    waker: Waker,
}

/// Waits with what `make` makes, and drops it after [`SIGNALS_EVERY`] to begin anew when it is polled again. A task drops it:
/// who polls it may be an event loop that was closed amid the wait, and polls no more.
fn in_slices<M, F>(make: M) -> impl Future<Output = F::Output> + Send + 'static
where
    M: Fn() -> F + Send + 'static,
    F: Future + Send + 'static,
{
    let slice = Arc::new(std::sync::Mutex::new(Slice {
        waits: None,
        waker: Waker::noop().clone(),
    }));
    std::future::poll_fn(move |context| {
        let mut held = slice.lock().unwrap_or_else(PoisonError::into_inner);
        held.waker.clone_from(context.waker());
        let is_new = held.waits.is_none();
        let waits = held.waits.get_or_insert_with(|| Box::pin(make()));
        let polled = waits.as_mut().poll(context);
        if polled.is_ready() {
            held.waits = None;
        } else if is_new {
            tokio::spawn(end_of_slice(Arc::downgrade(&slice)));
        }
        polled
    })
}

async fn end_of_slice<F>(slice: Weak<std::sync::Mutex<Slice<F>>>) {
    tokio::time::sleep(SIGNALS_EVERY).await;
    let Some(slice) = slice.upgrade() else {
        return;
    };
    let mut held = slice.lock().unwrap_or_else(PoisonError::into_inner);
    let (waits, waker) = (held.waits.take(), held.waker.clone());
    drop(held);
    // First: who is woken takes a turn behind those that wait already.
    drop(waits);
    waker.wake();
}

impl<T: Send + 'static> Turn<T> {
    pub(crate) fn new(home: Home, what: &'static str, reading: T) -> Self {
        Self {
            what,
            reading: Kept::new(home, Arc::new(Mutex::new(Some(reading)))),
            closing: Kept::new(home, watch::Sender::new(false)),
        }
    }

    pub(crate) fn home(&self) -> Home {
        self.reading.home()
    }

    /// Fails once it is closed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        match self.home().within(|| *self.closing.borrow())? {
            true => Err(closed(self.what)),
            false => Ok(()),
        }
    }

    /// What `read` says within the limit, `None` after it. A close by another thread ends the wait.
    pub(crate) fn wait<R, F>(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        read: F,
    ) -> PyResult<Option<R>>
    where
        R: Send,
        F: for<'a> Fn(&'a mut T) -> Reading<'a, R> + Send + Sync,
    {
        let (reading, closing): (&Mutex<_>, &watch::Sender<_>) = (&self.reading, &self.closing);
        let make = || unless_closed(reading, closing.subscribe(), &read);
        let read = self.home().wait_in_slices(py, limit, make)?;
        read.map(|read| outcome(self.what, read)).transpose()
    }

    /// As [`wait`](Self::wait), for a coroutine; what it gets is what `tell` makes of it.
    pub(crate) fn pending<R, O, F, M>(&self, read: F, tell: M) -> PyResult<_Pending>
    where
        R: Send + 'static,
        O: for<'py> IntoPyObject<'py>,
        F: for<'a> Fn(&'a mut T) -> Reading<'a, R> + Send + Sync + 'static,
        M: FnOnce(R) -> PyResult<O> + Send + 'static,
    {
        self.home().check()?;
        let (reading, closing, what) = (
            Arc::clone(&self.reading),
            self.closing.subscribe(),
            self.what,
        );
        let read = Arc::new(read);
        let work = in_slices(move || {
            let (reading, closing) = (Arc::clone(&reading), closing.clone());
            let read = Arc::clone(&read);
            async move { unless_closed(&reading, closing, &*read).await }
        });
        _Pending::new(self.home(), work, move |_, read| tell(outcome(what, read)?))
    }

    /// What `take` finds without a wait. `None` also while another thread reads, or once it is closed: a wait tells the two apart.
    ///
    /// Many records are taken so for each wait: it makes no future, and asks the system for nothing.
    pub(crate) fn at_hand<R>(
        &self,
        py: Python<'_>,
        take: impl FnOnce(&mut T) -> Option<R>,
    ) -> PyResult<Option<R>> {
        self.home().check_told()?;
        told::pass_on(py)?;
        if *self.closing.borrow() {
            return Ok(None);
        }
        let Ok(mut reading) = self.reading.try_lock() else {
            return Ok(None);
        };
        Ok(reading.as_mut().and_then(take))
    }

    /// As [`wait`](Self::wait), for what is mostly there already.
    pub(crate) fn wait_a_little<R, F>(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        read: F,
    ) -> PyResult<Option<R>>
    where
        R: Send,
        F: for<'a> Fn(&'a mut T) -> Reading<'a, R> + Send + Sync,
    {
        self.home().check()?;
        let ready = unless_closed(&self.reading, self.closing.subscribe(), &read);
        match self.home().ready(py, ready)? {
            Some(read) => outcome(self.what, read).map(Some),
            None => self.wait(py, limit, read),
        }
    }

    /// Changes it between reads. The change goes on if the wait is interrupted.
    pub(crate) fn change<R, F>(&self, py: Python<'_>, change: F) -> PyResult<R>
    where
        R: Send + 'static,
        F: for<'a> FnOnce(&'a mut T) -> Reading<'a, R> + Send + 'static,
    {
        let changed = self.home().finish_task(py, self.changed(change)?)?;
        outcome(self.what, changed)
    }

    /// As [`change`](Self::change), for a coroutine.
    pub(crate) fn pending_change<R, F>(&self, change: F) -> PyResult<_Pending>
    where
        R: for<'py> IntoPyObject<'py> + Send + 'static,
        F: for<'a> FnOnce(&'a mut T) -> Reading<'a, R> + Send + 'static,
    {
        let what = self.what;
        let changed = self.changed(change)?;
        _Pending::of_task(self.home(), changed, move |_, changed| {
            outcome(what, changed)
        })
    }

    fn changed<R, F>(
        &self,
        change: F,
    ) -> PyResult<impl Future<Output = Result<R, ConsumeError>> + Send + 'static + use<T, R, F>>
    where
        R: Send + 'static,
        F: for<'a> FnOnce(&'a mut T) -> Reading<'a, R> + Send + 'static,
    {
        self.home().check()?;
        let (reading, closing) = (Arc::clone(&self.reading), self.closing.subscribe());
        Ok(async move { unless_closed(&reading, closing, change).await })
    }

    /// Looks at it between reads.
    pub(crate) fn look<R: Send>(
        &self,
        py: Python<'_>,
        look: impl Fn(&T) -> R + Send + Sync,
    ) -> PyResult<R> {
        let reading: &Mutex<Option<T>> = &self.reading;
        let make = || async { reading.lock().await.as_ref().map(&look) };
        let seen = self.home().wait_in_slices(py, None, make)?;
        seen.flatten().ok_or_else(|| closed(self.what))
    }

    /// As [`look`](Self::look), for a coroutine.
    pub(crate) fn pending_look<R, O, M>(
        &self,
        look: impl FnOnce(&T) -> R + Send + 'static,
        tell: M,
    ) -> PyResult<_Pending>
    where
        R: Send + 'static,
        O: for<'py> IntoPyObject<'py>,
        M: FnOnce(Python<'_>, R) -> PyResult<O> + Send + 'static,
    {
        self.home().check()?;
        let (reading, what) = (Arc::clone(&self.reading), self.what);
        // A task, so that it gets no turn that nobody takes.
        let work = async move { reading.lock().await.as_ref().map(look) };
        _Pending::of_task(self.home(), work, move |py, seen| {
            tell(py, seen.ok_or_else(|| closed(what))?)
        })
    }

    /// As [`close`](Self::close), for a coroutine; `end` ends what was taken, also when nobody waits for that any more.
    pub(crate) fn pending_close<F, E>(&self, end: F) -> PyResult<_Pending>
    where
        F: FnOnce(T) -> E + Send + 'static,
        E: Future<Output = Result<(), ConsumeError>> + Send + 'static,
    {
        self.home().within(|| self.closing.send_replace(true))?;
        let (reading, what) = (Arc::clone(&self.reading), self.what);
        let work = async move {
            let taken = reading.lock().await.take();
            match taken {
                Some(taken) => end(taken).await,
                None => Ok(()),
            }
        };
        _Pending::of_task(self.home(), work, move |_, ended| outcome(what, ended))
    }

    /// Takes it out of the hands of all threads; `None` if that was done before.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<Option<T>> {
        self.home().within(|| self.closing.send_replace(true))?;
        let reading: &Mutex<Option<T>> = &self.reading;
        let make = || async { reading.lock().await.take() };
        Ok(self.home().wait_in_slices(py, None, make)?.flatten())
    }
}

fn outcome<R>(what: &str, read: Result<R, ConsumeError>) -> PyResult<R> {
    read.map_err(|error| match error {
        ConsumeError::Closed => closed(what),
        error => of_consume(&error),
    })
}
