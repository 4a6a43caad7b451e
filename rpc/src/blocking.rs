//! Waiting for futures in programs without tasks: what the blocking forms of the clients stand on.
//!
//! All of a process share one runtime of two threads, `kera`, which the first call starts and which stays. Threads do not
//! survive a fork: where a process forks, let its children open clients, and not the process itself.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::consume_budget;

/// Threads of the runtime: a connection over which much comes holds up no other.
const THREADS: usize = 2;

static RUNTIME: Mutex<Option<&'static Runtime>> = Mutex::new(None);

/// Why a call cannot wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockingError {
    /// A task of a tokio runtime made the call. It would keep its thread from all other tasks.
    #[error(
        "a task of a tokio runtime called what waits, which would hold up the tasks beside it: use the async client in tasks, or make the call within tokio::task::spawn_blocking"
    )]
    WithinTask,
    /// The system gives no threads.
    #[error(
        "threads for the client cannot be started: {0}; raise the limit of threads of this process"
    )]
    NoThreads(String),
}

/// Waits for `future`, whose tasks run on threads of their own.
///
/// # Errors
/// [`BlockingError`]; the future was not begun then.
pub fn wait<F: Future>(future: F) -> Result<F::Output, BlockingError> {
    if runs_a_task() {
        return Err(BlockingError::WithinTask);
    }
    Ok(runtime()?.block_on(future))
}

/// As [`wait`], at most for so long: `None` once that is over. The future is dropped then.
///
/// # Errors
/// As [`wait`].
pub fn wait_within<F: Future>(
    limit: Duration,
    future: F,
) -> Result<Option<F::Output>, BlockingError> {
    wait(async { tokio::time::timeout(limit, future).await.ok() })
}

fn runtime() -> Result<&'static Runtime, BlockingError> {
    let mut known = RUNTIME.lock();
    if let Some(runtime) = *known {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("kera")
        .enable_all()
        .build();
    let made = made.map_err(|error| BlockingError::NoThreads(error.to_string()))?;
    Ok(*known.insert(Box::leak(Box::new(made))))
}

/// True if this thread runs a task, or the future of `block_on`, of a runtime. A thread of `spawn_blocking` runs none, nor does
/// one that has only entered a runtime: their work may wait.
fn runs_a_task() -> bool {
    if Handle::try_current().is_err() {
        return false;
    }
    // Tasks alone have a budget, after which others get their turn: a number below 256.
    let mut context = Context::from_waker(Waker::noop());
    (0..=u8::MAX).any(|_| pin!(consume_budget()).poll(&mut context).is_pending())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_tasks_waits_and_a_limit_ends_the_wait() {
        let waited = wait(async { tokio::spawn(async { 7 }).await.unwrap() });
        assert_eq!(waited, Ok(7));
        let never = std::future::pending::<()>();
        assert_eq!(wait_within(Duration::ZERO, never), Ok(None));
        assert_eq!(
            wait_within(Duration::MAX, std::future::ready(8)),
            Ok(Some(8))
        );
    }

    /// What only a task must not do is allowed to its neighbours.
    async fn waits_where_it_may() {
        assert_eq!(wait(async {}), Err(BlockingError::WithinTask));
        let task = tokio::spawn(async { wait(async {}) });
        assert_eq!(task.await.unwrap(), Err(BlockingError::WithinTask));
        let beside = tokio::task::spawn_blocking(|| wait(async { 7 }));
        assert_eq!(beside.await.unwrap(), Ok(7));
        // It goes on afterwards: what was used up comes back.
        tokio::time::sleep(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_task_is_told_that_it_must_not_wait() {
        waits_where_it_may().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_among_several_threads_is_told_so_too() {
        waits_where_it_may().await;
    }

    #[test]
    fn a_thread_that_entered_a_runtime_may_wait() {
        let runtime = Runtime::new().unwrap();
        let _entered = runtime.enter();
        assert_eq!(wait(async { 7 }), Ok(7));
    }
}
