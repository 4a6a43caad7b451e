//! Hands one answer from the store's thread to whoever waits for it, blocking or as a future.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::error::MetadataError;
use crate::store::Done;
use kera_records::Committed;

type Outcome = Result<Committed, MetadataError>;

#[derive(Default)]
struct Slot {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Shared {
    slot: Mutex<Slot>,
    given: Condvar,
}

/// Gives the answer; if it is dropped unanswered, the waiter learns that the outcome is unknown.
struct Giver(Option<Arc<Shared>>);

impl Giver {
    fn give(mut self, outcome: Outcome) {
        self.put(outcome);
    }

    fn put(&mut self, outcome: Outcome) {
        let Some(shared) = self.0.take() else { return };
        let waker = {
            let mut slot = shared.slot.lock();
            slot.outcome = Some(outcome);
            slot.waker.take()
        };
        shared.given.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.put(Err(MetadataError::UnknownOutcome {
                path: PathBuf::new(),
                detail: "the store ended without an answer".into(),
            }));
        }
    }
}

/// A transaction's outcome, once it is durable or refused. Needs no particular runtime. Dropping it
/// does not take the transaction back.
#[must_use = "a future does nothing unless awaited"]
pub struct CommitFuture(Arc<Shared>);

impl CommitFuture {
    /// The future, and the callback that completes it.
    pub fn new() -> (Self, Done) {
        let shared = Arc::new(Shared::default());
        let giver = Giver(Some(shared.clone()));
        (Self(shared), Box::new(move |outcome| giver.give(outcome)))
    }

    /// Blocks the calling thread until the outcome is known. Must not be called on the store's own
    /// thread, where callbacks run: it would wait for itself.
    pub fn wait(self) -> Result<Committed, MetadataError> {
        let mut slot = self.0.slot.lock();
        loop {
            if let Some(outcome) = slot.outcome.take() {
                return outcome;
            }
            self.0.given.wait(&mut slot);
        }
    }
}

impl Future for CommitFuture {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut slot = self.0.slot.lock();
        if let Some(outcome) = slot.outcome.take() {
            return Poll::Ready(outcome);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_callback_is_an_unknown_outcome() {
        let (future, done) = CommitFuture::new();
        drop(done);
        assert!(!future.wait().unwrap_err().is_definite());
    }

    #[test]
    fn an_answer_wakes_the_waiter() {
        let (future, done) = CommitFuture::new();
        let waiter = std::thread::spawn(move || future.wait());
        done(Ok(Committed { revision: 7 }));
        assert_eq!(waiter.join().unwrap(), Ok(Committed { revision: 7 }));
    }
}
