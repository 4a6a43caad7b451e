//! News that tasks wait for: a count, and who wants to hear that it changed.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// Counts news and wakes who waits for any.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    count: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

impl Signal {
    /// News so far. Look at it before looking at what the news may be about.
    pub(crate) fn seen(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Tells everyone that something changed. Call without holding a lock: wakers run here.
    pub(crate) fn notify(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until there is news after `seen`.
    pub(crate) async fn changed(&self, seen: u64) {
        poll_fn(|cx| {
            let mut waiting = self.waiting.lock();
            // Looked at under the lock: whoever counts up afterwards finds the waker.
            if self.seen() != seen {
                return Poll::Ready(());
            }
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
