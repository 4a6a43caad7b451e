//! What one thread reads at a time, until it is closed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kera_consumer::ConsumeError;
use pyo3::prelude::*;
use tokio::sync::{Mutex, watch};

use crate::errors::{closed, of_consume};
use crate::runtime::{Home, Kept};

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
        read.map(|read| self.told(read)).transpose()
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
            Some(read) => self.told(read).map(Some),
            None => self.wait(py, limit, read),
        }
    }

    /// Changes it between reads. The change goes on if the wait is interrupted.
    pub(crate) fn change<R, F>(&self, py: Python<'_>, change: F) -> PyResult<R>
    where
        R: Send + 'static,
        F: for<'a> FnOnce(&'a mut T) -> Reading<'a, R> + Send + 'static,
    {
        self.home().check()?;
        let (reading, closing) = (Arc::clone(&self.reading), self.closing.subscribe());
        let work = async move { unless_closed(&reading, closing, change).await };
        let changed = self.home().finish_task(py, work)?;
        self.told(changed)
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

    /// Takes it out of the hands of all threads; `None` if that was done before.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<Option<T>> {
        self.home().within(|| self.closing.send_replace(true))?;
        let reading: &Mutex<Option<T>> = &self.reading;
        let make = || async { reading.lock().await.take() };
        Ok(self.home().wait_in_slices(py, None, make)?.flatten())
    }

    fn told<R>(&self, read: Result<R, ConsumeError>) -> PyResult<R> {
        read.map_err(|error| match error {
            ConsumeError::Closed => closed(self.what),
            error => of_consume(&error),
        })
    }
}
