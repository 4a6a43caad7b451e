//! When to try again.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::chance::random_u64;
use crate::error::RpcError;
use crate::report::told;

/// Exponential backoff with full jitter, within a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Upper bound of the first pause.
    pub first: Duration,
    /// Upper bound of any pause.
    pub longest: Duration,
    /// No attempt starts this long after the first.
    pub deadline: Duration,
}

impl Default for RetryPolicy {
    /// 20 ms, 1 s, 30 s.
    fn default() -> Self {
        Self {
            first: Duration::from_millis(20),
            longest: Duration::from_secs(1),
            deadline: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// A policy that gives up `deadline` after the first attempt.
    pub fn within(deadline: Duration) -> Self {
        Self {
            deadline,
            ..Self::default()
        }
    }

    /// The longest pause after failed attempt number `attempt`, the first being 0.
    pub fn bound(&self, attempt: u32) -> Duration {
        let factor = 1_u32 << attempt.min(20);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// A random pause up to [`bound`](Self::bound), so that many clients spread out.
    pub fn pause(&self, attempt: u32) -> Duration {
        let part = random_u64() as f64 / u64::MAX as f64;
        self.bound(attempt).mul_f64(part)
    }

    /// Runs `operation` until it succeeds, fails for good, or the deadline is over; then the last
    /// error is returned. An attempt that is under way is not cut off.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn run<T, F, Fut>(&self, mut operation: F) -> Result<T, RpcError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, RpcError>>,
    {
        let deadline = Instant::now().checked_add(self.deadline);
        let mut attempt = 0;
        loop {
            let error = match operation().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let next = Instant::now() + self.pause(attempt);
            if !error.is_retryable() || deadline.is_some_and(|deadline| next >= deadline) {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "call failed, trying again");
            tokio::time::sleep_until(next).await;
            attempt += 1;
        }
    }
}

impl RetryPolicy {
    /// As [`run`](Self::run), and tells in the log what keeps it, once that takes long: the last error, or
    /// before there is one what `waits_for` says.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn run_told<T, F, Fut>(
        &self,
        waits_for: impl Fn() -> Option<String>,
        mut operation: F,
    ) -> Result<T, RpcError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, RpcError>>,
    {
        let last = Mutex::new(None);
        let attempts = self.run(|| {
            let attempt = operation();
            let last = &last;
            async move {
                let answer = attempt.await;
                if let Err(error) = &answer {
                    *last.lock() = Some(format!("still trying: {error}"));
                }
                answer
            }
        });
        told(attempts, || last.lock().clone().or_else(&waits_for)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_protocol::error::{ErrorCode, WireError};
    use std::cell::Cell;

    fn error(code: ErrorCode) -> RpcError {
        WireError::new(code, "planted").into()
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_spread() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.bound(0), Duration::from_millis(20));
        assert_eq!(policy.bound(3), Duration::from_millis(160));
        assert_eq!(policy.bound(u32::MAX), Duration::from_secs(1));
        let pauses: Vec<_> = (0..100).map(|_| policy.pause(4)).collect();
        assert!(pauses.iter().all(|pause| *pause <= policy.bound(4)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_what_may_pass_and_nothing_else() {
        let policy = RetryPolicy::default();
        let calls = Cell::new(0);
        let result = policy
            .run(|| {
                calls.set(calls.get() + 1);
                let done = calls.get() == 4;
                async move { done.then_some(7).ok_or(error(ErrorCode::Overloaded)) }
            })
            .await;
        assert_eq!((result.ok(), calls.get()), (Some(7), 4));

        calls.set(0);
        let result: Result<(), _> = policy
            .run(|| {
                calls.set(calls.get() + 1);
                async { Err(error(ErrorCode::UnknownStream)) }
            })
            .await;
        assert!(result.is_err());
        assert_eq!(calls.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_at_the_deadline() {
        let start = Instant::now();
        let policy = RetryPolicy::within(Duration::from_secs(5));
        let result: Result<(), _> = policy
            .run(|| async { Err(error(ErrorCode::Overloaded)) })
            .await;
        assert_eq!(
            result.unwrap_err().code(),
            Some(ErrorCode::Overloaded),
            "the last error is kept"
        );
        assert!(start.elapsed() <= Duration::from_secs(5));
        assert!(start.elapsed() >= Duration::from_secs(3));
    }
}
