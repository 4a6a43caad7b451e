//! The tasks behind all objects of a process, and how Python's threads wait for them.

use std::collections::HashMap;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kera_producer::Producer;
use pyo3::prelude::*;
use tokio::runtime::Runtime;

use crate::errors::{Problem, setting};
use crate::told;

/// How long a waiting thread may keep a signal, such as Ctrl-C, from its handler.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Of this process, which may have been forked from one that had its own.
static HOME: Mutex<Option<Home>> = Mutex::new(None);

/// Forks by which this process came about, as far as Python knows of them.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called by Python in a child.
#[pyfunction]
pub(crate) fn _forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that an object belongs to, with its runtime. Threads do not survive a fork, so the object is useless in
/// a child.
#[derive(Clone, Copy)]
pub(crate) struct Home {
    process: u32,
    forks: u32,
    pub(crate) runtime: &'static Runtime,
    /// Producers with records that may be under way, by number. Never locked in a child: a thread of the parent may
    /// have held it during the fork.
    open: &'static Mutex<OpenProducers>,
}

#[derive(Default)]
struct OpenProducers {
    last: u64,
    by_number: HashMap<u64, Producer>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Home {
    /// This process's, if it has one.
    pub(crate) fn known() -> Option<Self> {
        // Only threads that hold the interpreter take the lock, and so does who forks: a child finds it free.
        locked(&HOME).filter(|home| home.is_here())
    }

    /// This process's; made with the first object.
    pub(crate) fn here() -> PyResult<Self> {
        if let Some(home) = Self::known() {
            return Ok(home);
        }
        told::listen();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("kera")
            .enable_all()
            .build()?;
        let home = Self {
            process: std::process::id(),
            forks: FORKS.load(Ordering::Relaxed),
            runtime: Box::leak(Box::new(runtime)),
            open: Box::leak(Box::new(Mutex::new(OpenProducers::default()))),
        };
        *locked(&HOME) = Some(home);
        Ok(home)
    }

    /// Whether the object is in the process that made it.
    pub(crate) fn is_here(self) -> bool {
        self.process == std::process::id()
    }

    /// Fails in a child.
    pub(crate) fn check(self) -> PyResult<()> {
        match self.is_here() {
            true => Ok(()),
            false => Self::elsewhere(),
        }
    }

    /// Fails in a child that Python forked, and asks the system for nothing. Libraries can fork without Python: where that
    /// must not be missed it takes [`check`](Self::check).
    #[inline]
    pub(crate) fn check_told(self) -> PyResult<()> {
        match self.forks == FORKS.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Self::elsewhere(),
        }
    }

    #[cold]
    fn elsewhere() -> PyResult<()> {
        Err(Problem::new(
            "ForkedError",
            "this object was made before the process was forked, and its connections belong to the parent; make a new one in the child",
        )
        .into())
    }

    /// Waits for `future` without holding the interpreter; `None` after `limit`. Signals are handled meanwhile, and a
    /// handler that raises, as that of Ctrl-C does, ends the wait and drops the future.
    ///
    /// The future must hold nothing that a handler may wait for.
    pub(crate) fn wait<F>(
        self,
        py: Python<'_>,
        limit: Option<Duration>,
        future: F,
    ) -> PyResult<Option<F::Output>>
    where
        F: Future + Send,
        F::Output: Send,
    {
        self.check()?;
        // Some futures start tasks when they are dropped.
        let _entered = self.runtime.enter();
        let mut future = pin!(future);
        self.slices(py, limit, |pause| {
            self.runtime
                .block_on(async { tokio::time::timeout(pause, future.as_mut()).await.ok() })
        })
    }

    /// As [`wait`](Self::wait), for what can be given up without losing anything: nothing is held while signals are
    /// handled, so that a handler may close what is waited for.
    pub(crate) fn wait_in_slices<M, F>(
        self,
        py: Python<'_>,
        limit: Option<Duration>,
        make: M,
    ) -> PyResult<Option<F::Output>>
    where
        M: Fn() -> F + Sync,
        F: Future + Send,
        F::Output: Send,
    {
        self.check()?;
        self.slices(py, limit, |pause| {
            self.runtime
                .block_on(async { tokio::time::timeout(pause, make()).await.ok() })
        })
    }

    /// Calls `wait` until it has something or the limit is over, at least once.
    fn slices<T: Send>(
        self,
        py: Python<'_>,
        limit: Option<Duration>,
        mut wait: impl FnMut(Duration) -> Option<T> + Send,
    ) -> PyResult<Option<T>> {
        let begun = Instant::now();
        loop {
            // Before the wait: an exception must not come between what was waited for and who waits.
            told::pass_on(py)?;
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            let pause = left.map_or(SIGNALS_EVERY, |left| left.min(SIGNALS_EVERY));
            let output = py.detach(|| wait(pause));
            if output.is_some() {
                return Ok(output);
            }
            py.check_signals()?;
            if left.is_some_and(|left| left <= pause) {
                return Ok(None);
            }
        }
    }

    /// What a future says at once. It is asked while the interpreter is held: for what costs less than letting other
    /// threads in between.
    pub(crate) fn ready<F: Future>(self, py: Python<'_>, future: F) -> PyResult<Option<F::Output>> {
        self.check()?;
        told::pass_on(py)?;
        let _entered = self.runtime.enter();
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Ok(Some(output)),
            Poll::Pending => Ok(None),
        }
    }

    /// As [`wait`](Self::wait), as long as it takes.
    pub(crate) fn finish<F>(self, py: Python<'_>, future: F) -> PyResult<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        match self.wait(py, None, future)? {
            Some(output) => Ok(output),
            None => Err(Problem::new("KeraError", "a wait without a limit ended").into()),
        }
    }

    /// As [`finish`](Self::finish), in a task that goes on if the wait is interrupted.
    pub(crate) fn finish_task<F>(self, py: Python<'_>, future: F) -> PyResult<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.check()?;
        let task = self.runtime.spawn(future);
        self.finish(py, task)?
            .map_err(|error| Problem::new("KeraError", format!("a task ended: {error}")).into())
    }

    /// Does `work` within the runtime, which some calls and drops need.
    pub(crate) fn within<T>(self, work: impl FnOnce() -> T) -> PyResult<T> {
        self.check()?;
        let _entered = self.runtime.enter();
        Ok(work())
    }

    /// Has a producer waited for before the interpreter ends; its number.
    pub(crate) fn opened(self, producer: Producer) -> u64 {
        let mut open = locked(self.open);
        open.last += 1;
        let number = open.last;
        open.by_number.insert(number, producer);
        number
    }

    /// Nothing of the producer is under way any more.
    pub(crate) fn finished(self, number: u64) {
        let producer = locked(self.open).by_number.remove(&number);
        drop(producer);
    }

    /// The producers that have not finished.
    pub(crate) fn unfinished(self) -> Vec<(u64, Producer)> {
        let open = locked(self.open);
        let open = open.by_number.iter();
        open.map(|(number, producer)| (*number, producer.clone()))
            .collect()
    }
}

/// What belongs to a home: dropped within its runtime, and not at all in a child, where its tasks and locks are the
/// parent's.
pub(crate) struct Kept<T> {
    home: Home,
    value: ManuallyDrop<Option<T>>,
}

impl<T> Kept<T> {
    pub(crate) fn new(home: Home, value: T) -> Self {
        Self {
            home,
            value: ManuallyDrop::new(Some(value)),
        }
    }

    pub(crate) fn home(&self) -> Home {
        self.home
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self.value.as_ref() {
            Some(value) => value,
            None => unreachable!("it is taken by its drop alone"),
        }
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        // Fails in a child.
        let _ = self.home.within(|| drop(self.value.take()));
    }
}

/// Seconds as Python has them.
pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        setting(
            name,
            format!("{seconds} is no number of seconds; use 0 or more"),
        )
    })
}

/// The same where `None` is no limit.
pub(crate) fn limit(seconds_or_none: Option<f64>) -> PyResult<Option<Duration>> {
    seconds_or_none
        .map(|limit| seconds("timeout", limit))
        .transpose()
}
