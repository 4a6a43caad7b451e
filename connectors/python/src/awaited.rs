//! What coroutines wait for. The thread of their event loop looks at it, and tasks of the runtime only ring: they never wait
//! for the interpreter.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::errors::Problem;
use crate::runtime::{Home, Kept};
use crate::told;

type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Something that is waited for. Nothing of it happens but while it is polled.
#[pyclass(frozen, module = "kera")]
pub(crate) struct _Pending {
    work: Kept<Mutex<Option<Work>>>,
}

impl _Pending {
    /// `tell` makes what Python gets of what `work` comes to.
    pub(crate) fn new<F, R, T>(home: Home, work: F, tell: T) -> PyResult<Self>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
        R: for<'py> IntoPyObject<'py>,
        T: for<'py> FnOnce(Python<'py>, F::Output) -> PyResult<R> + Send + 'static,
    {
        home.check()?;
        let work: Work = Box::pin(async move {
            let output = work.await;
            let tell: Outcome = Box::new(move |py| tell(py, output)?.into_py_any(py));
            tell
        });
        Ok(Self {
            work: Kept::new(home, Mutex::new(Some(work))),
        })
    }
}

impl _Pending {
    /// Of a task that goes on if nobody waits for it any more.
    pub(crate) fn of_task<F, R, T>(home: Home, work: F, tell: T) -> PyResult<Self>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
        R: for<'py> IntoPyObject<'py>,
        T: for<'py> FnOnce(Python<'py>, F::Output) -> PyResult<R> + Send + 'static,
    {
        home.check()?;
        let task = home.runtime.spawn(work);
        Self::new(home, task, move |py, ended| match ended {
            Ok(output) => tell(py, output),
            Err(error) => Err(Problem::new("KeraError", format!("a task ended: {error}")).into()),
        })
    }
}

#[pymethods]
impl _Pending {
    /// What it came to, in a tuple; `None` if it goes on: then `bell` rings `number` when it is to be polled again.
    fn poll(&self, py: Python<'_>, bell: &_Bell, number: u64) -> PyResult<Option<(Py<PyAny>,)>> {
        let home = self.work.home();
        home.check()?;
        told::pass_on(py)?;
        let mut kept = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(work) = kept.as_mut() else {
            return Ok(None);
        };
        let waker = Waker::from(Arc::new(Ringer {
            bell: bell.rung.clone(),
            number,
        }));
        let polled = home.within(|| work.as_mut().poll(&mut Context::from_waker(&waker)))?;
        let Poll::Ready(tell) = polled else {
            return Ok(None);
        };
        let done = kept.take();
        drop(kept);
        home.within(|| drop(done))?;
        tell(py).map(|told| Some((told,)))
    }

    /// Gives it up.
    fn give_up(&self) -> PyResult<()> {
        self.work.home().within(|| {
            let mut kept = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            drop(kept.take());
        })
    }
}

/// Wakes an event loop.
#[pyclass(frozen, module = "kera")]
pub(crate) struct _Bell {
    rung: Arc<Rung>,
    hears: UnixStream,
}

struct Rung {
    numbers: Mutex<Vec<u64>>,
    rings: UnixStream,
}

struct Ringer {
    bell: Arc<Rung>,
    number: u64,
}

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        let mut numbers = self
            .bell
            .numbers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_first = numbers.is_empty();
        numbers.push(self.number);
        drop(numbers);
        if is_first {
            // One byte at most is in it, unless the loop is gone.
            let _ = (&self.bell.rings).write(&[1]);
        }
    }
}

#[pymethods]
impl _Bell {
    #[new]
    fn new() -> PyResult<Self> {
        let (hears, rings) = UnixStream::pair()?;
        hears.set_nonblocking(true)?;
        rings.set_nonblocking(true)?;
        let numbers = Mutex::default();
        Ok(Self {
            rung: Arc::new(Rung { numbers, rings }),
            hears,
        })
    }

    /// Readable when it has rung.
    fn fileno(&self) -> i32 {
        self.hears.as_raw_fd()
    }

    /// The numbers that it rang since the last call.
    fn rung(&self) -> PyResult<Vec<u64>> {
        // Before the numbers are taken: those that come later ring again.
        match (&self.hears).read(&mut [0; 64]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            _ => {}
        }
        let mut numbers = self
            .rung
            .numbers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *numbers))
    }

    /// Hands over what the clients told in their log.
    fn pass_on(&self, py: Python<'_>) -> PyResult<()> {
        told::pass_on(py)
    }
}
