//! Who waits for commits.

use kera_protocol::ids::Ordinal;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::lease_key::LeaseKey;
use crate::error::ConsumeError;

type Answer = Result<(), ConsumeError>;

struct Waiter {
    id: u64,
    lease: LeaseKey,
    ordinal: Ordinal,
    /// Taken when it is answered.
    caller: Option<oneshot::Sender<Answer>>,
}

#[derive(Default)]
struct Inner {
    last_id: u64,
    /// Somebody wanted a commit since it was last asked, and may not wait for it (any more): what he wanted to be
    /// committed is sent all the same.
    wanted: bool,
    waiting: Vec<Waiter>,
    /// Why no commit will be answered any more. Under the same lock as those who wait: nobody begins to
    /// wait after all were told.
    failure: Option<ConsumeError>,
}

/// All that wait for commits of one membership.
#[derive(Default)]
pub(super) struct CommitWaiters(Mutex<Inner>);

/// One that waits. Whoever drops it waits no longer.
pub(super) struct Waiting<'a> {
    waiters: &'a CommitWaiters,
    id: u64,
    done: oneshot::Receiver<Answer>,
    answered: bool,
}

impl CommitWaiters {
    /// Waits for the commit of all that a lease has below `ordinal`.
    ///
    /// # Errors
    /// What was [told](Self::fail) to all.
    pub(super) fn wait(
        &self,
        lease: LeaseKey,
        ordinal: Ordinal,
    ) -> Result<Waiting<'_>, ConsumeError> {
        let mut inner = self.0.lock();
        if let Some(error) = &inner.failure {
            return Err(error.clone());
        }
        let (caller, done) = oneshot::channel();
        inner.wanted = true;
        inner.last_id += 1;
        let id = inner.last_id;
        inner.waiting.push(Waiter {
            id,
            lease,
            ordinal,
            caller: Some(caller),
        });
        Ok(Waiting {
            waiters: self,
            id,
            done,
            answered: false,
        })
    }

    /// All progress is to be committed, although nobody waits for it.
    pub(super) fn want(&self) {
        self.0.lock().wanted = true;
    }

    /// True if anybody waits, or has begun to since the last call.
    pub(super) fn wants_commit(&self) -> bool {
        let mut inner = self.0.lock();
        std::mem::take(&mut inner.wanted) || !inner.waiting.is_empty()
    }

    /// Answers those of whom `answer` knows what came of their lease and ordinal.
    pub(super) fn settle(&self, mut answer: impl FnMut(LeaseKey, Ordinal) -> Option<Answer>) {
        self.0.lock().waiting.retain_mut(|waiter| {
            let Some(answer) = answer(waiter.lease, waiter.ordinal) else {
                return true;
            };
            if let Some(caller) = waiter.caller.take() {
                let _ = caller.send(answer);
            }
            false
        });
    }

    /// Tells all that wait, and all who would, that nothing is answered any more. The first reason stays.
    pub(super) fn fail(&self, error: ConsumeError) {
        let mut inner = self.0.lock();
        let error = inner.failure.get_or_insert(error).clone();
        for waiter in inner.waiting.drain(..) {
            if let Some(caller) = waiter.caller {
                let _ = caller.send(Err(error.clone()));
            }
        }
    }

    /// What all were told, if they were.
    pub(super) fn failure(&self) -> Option<ConsumeError> {
        self.0.lock().failure.clone()
    }
}

impl Waiting<'_> {
    /// What came of the commit.
    pub(super) async fn answer(mut self) -> Answer {
        let answer = (&mut self.done).await;
        self.answered = true;
        answer.unwrap_or(Err(ConsumeError::Closed))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let id = self.id;
            let mut inner = self.waiters.0.lock();
            inner.waiting.retain(|waiter| waiter.id != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn stale() -> ConsumeError {
        ConsumeError::StaleLease { lease: 1 }
    }

    fn key(lease: u64) -> LeaseKey {
        LeaseKey { life: 1, lease }
    }

    #[tokio::test]
    async fn each_is_answered_once_and_the_others_wait() {
        let waiters = CommitWaiters::default();
        let first = waiters.wait(key(1), 10).unwrap();
        let second = waiters.wait(key(1), 20).unwrap();
        let other = waiters.wait(key(2), 5).unwrap();
        waiters.settle(|lease, ordinal| (lease == key(1) && ordinal <= 10).then_some(Ok(())));
        first.answer().await.unwrap();
        waiters.settle(|lease, _| (lease == key(1)).then_some(Err(stale())));
        assert!(second.answer().await.is_err());
        assert!(waiters.wants_commit() && waiters.wants_commit());
        waiters.settle(|_, _| Some(Ok(())));
        other.answer().await.unwrap();
        assert!(!waiters.wants_commit());
    }

    #[tokio::test]
    async fn nobody_begins_to_wait_after_all_were_told() {
        let waiters = CommitWaiters::default();
        let before = waiters.wait(key(1), 10).unwrap();
        waiters.fail(stale());
        waiters.fail(ConsumeError::Closed);
        assert!(matches!(
            before.answer().await,
            Err(ConsumeError::StaleLease { .. })
        ));
        let after = waiters.wait(key(1), 20).map(|_| ());
        assert!(matches!(after, Err(ConsumeError::StaleLease { .. })));
        assert!(matches!(
            waiters.failure(),
            Some(ConsumeError::StaleLease { .. })
        ));
    }

    #[test]
    fn who_gives_up_is_forgotten() {
        let waiters = CommitWaiters::default();
        for ordinal in 0..10 {
            let waiting = waiters.wait(key(1), ordinal).unwrap();
            assert!(waiting.answer().now_or_never().is_none());
        }
        assert!(waiters.0.lock().waiting.is_empty());
        assert!(waiters.wants_commit(), "what they wanted is sent");
        assert!(!waiters.wants_commit());
    }
}
