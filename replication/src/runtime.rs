//! The little that this crate needs of a runtime, so that a simulation can stand in for tokio.

use std::future::{Future, pending};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::transport::Pending;

/// Tasks and time.
pub trait Runtime: Send + Sync {
    /// Runs `task` by itself until it ends.
    fn spawn(&self, task: Pending<()>);

    /// Resolves after `time`. Liveness only: nothing that must hold depends on it.
    fn sleep(&self, time: Duration) -> Pending<()>;

    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Runs `step`, which may block on a disk, on a thread where it holds up no task. It starts at once and runs to its
    /// end, whether or not the answer is awaited; see [`off`].
    fn off(&self, step: Box<dyn FnOnce() + Send>) -> Pending<()>;
}

/// A shared runtime.
pub type RuntimeRef = Arc<dyn Runtime>;

/// Waits for `future` at most `time`; `None` if it was not ready by then, and dropped.
pub async fn within<T>(runtime: &dyn Runtime, time: Duration, mut future: Pending<T>) -> Option<T> {
    let mut sleep = runtime.sleep(time);
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Runs `step`, which may block on a disk, where it holds up no task, and gives what it returns.
pub fn off<T: Send + 'static>(
    runtime: &dyn Runtime,
    step: impl FnOnce() -> T + Send + 'static,
) -> Pending<T> {
    let (tell, told) = oneshot::channel();
    let over = runtime.off(Box::new(move || {
        // This fails if the caller waits no more; the step is done all the same.
        let _ = tell.send(step());
    }));
    Box::pin(async move {
        over.await;
        match told.await {
            Ok(value) => value,
            // The runtime ends and dropped the step before it ran.
            Err(_) => pending().await,
        }
    })
}

/// A future on the heap that may borrow.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Futures that run side by side, and the results of those that have ended, in their order.
struct SideBySide<'a, T>(Vec<(Option<Local<'a, T>>, Option<T>)>);

impl<'a, T: Send> SideBySide<'a, T> {
    fn new(futures: Vec<Local<'a, T>>) -> Self {
        Self(futures.into_iter().map(|f| (Some(f), None)).collect())
    }

    /// Whether any goes on; what has just come is shown to `look`.
    fn go_on(&mut self, cx: &mut Context<'_>, mut look: impl FnMut(&T)) -> bool {
        let mut waiting = false;
        for (future, result) in &mut self.0 {
            if let Some(polled) = future {
                match polled.as_mut().poll(cx) {
                    Poll::Ready(value) => {
                        look(&value);
                        *result = Some(value);
                        *future = None;
                    }
                    Poll::Pending => waiting = true,
                }
            }
        }
        waiting
    }

    fn results(&mut self) -> impl Iterator<Item = Option<T>> {
        self.0.drain(..).map(|(_, result)| result)
    }
}

/// Runs all of `futures` side by side; their results in their order.
pub async fn all<T: Send>(futures: Vec<Local<'_, T>>) -> Vec<T> {
    let mut side = SideBySide::new(futures);
    std::future::poll_fn(move |cx| match side.go_on(cx, |_| ()) {
        true => Poll::Pending,
        false => Poll::Ready(side.results().flatten().collect()),
    })
    .await
}

/// Runs all of `futures` side by side until each has ended, or what has come is `enough`: then the others have
/// as long again as these took, and `brief` more. `None` stands for whom nobody waited.
pub async fn until_enough<T: Send>(
    runtime: &dyn Runtime,
    brief: Duration,
    futures: Vec<Local<'_, T>>,
    mut enough: impl FnMut(&T) -> bool + Send,
) -> Vec<Option<T>> {
    let begun = runtime.now();
    let mut side = SideBySide::new(futures);
    let mut end: Option<Pending<()>> = None;
    std::future::poll_fn(move |cx| {
        let mut is_enough = false;
        let waiting = side.go_on(cx, |value| is_enough |= enough(value));
        if is_enough && end.is_none() {
            let took = runtime.now().saturating_sub(begun);
            end = Some(runtime.sleep(took + brief));
        }
        let over = end
            .as_mut()
            .is_some_and(|end| end.as_mut().poll(cx).is_ready());
        if waiting && !over {
            return Poll::Pending;
        }
        Poll::Ready(side.results().collect())
    })
    .await
}

/// tokio's tasks and clock; made within a runtime.
#[derive(Debug)]
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    start: Instant,
}

impl TokioRuntime {
    /// Over the runtime that `handle` belongs to.
    pub fn new(handle: tokio::runtime::Handle) -> Self {
        Self {
            handle,
            start: Instant::now(),
        }
    }
}

impl Runtime for TokioRuntime {
    fn spawn(&self, task: Pending<()>) {
        self.handle.spawn(task);
    }

    fn sleep(&self, time: Duration) -> Pending<()> {
        let _within = self.handle.enter();
        Box::pin(tokio::time::sleep(time))
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn off(&self, step: Box<dyn FnOnce() + Send>) -> Pending<()> {
        let running = self.handle.spawn_blocking(step);
        Box::pin(async move {
            match running.await.map_err(|error| error.try_into_panic()) {
                Ok(()) => {}
                Err(Ok(panic)) => resume_unwind(panic),
                // The runtime ends.
                Err(Err(_)) => pending().await,
            }
        })
    }
}
