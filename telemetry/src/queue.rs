//! What waits for the collector.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How many are sent at a time, and from how many on the exporter is woken.
pub(crate) const BATCH: usize = 512;

/// A queue of at most so many; one more takes the place of the oldest, which is dropped and counted.
pub(crate) struct Queue<T> {
    waiting: Mutex<VecDeque<T>>,
    most: usize,
    dropped: AtomicU64,
    many: Notify,
}

impl<T> Queue<T> {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            most,
            dropped: AtomicU64::new(0),
            many: Notify::new(),
        }
    }

    pub(crate) fn push(&self, item: T) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= self.most {
            waiting.pop_front();
            self.drop_some(1);
        }
        waiting.push_back(item);
        if waiting.len() == BATCH {
            self.many.notify_one();
        }
    }

    /// The oldest, at most [`BATCH`] of them.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    /// Until there are [`BATCH`] of them.
    pub(crate) async fn many(&self) {
        self.many.notified().await;
    }

    /// So many that were taken came to nothing.
    pub(crate) fn drop_some(&self, count: usize) {
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room_and_are_counted() {
        let queue = Queue::new(3);
        for item in 0..5 {
            queue.push(item);
        }
        assert_eq!((queue.take(), queue.dropped()), (vec![2, 3, 4], 2));
        assert_eq!((queue.take(), queue.dropped()), (vec![], 2));
    }

    #[tokio::test]
    async fn whoever_sends_is_woken_once_there_are_many() {
        let queue = Queue::new(2 * BATCH);
        for item in 0..BATCH + 3 {
            queue.push(item);
        }
        queue.many().await;
        assert_eq!(queue.take().len(), BATCH);
        assert_eq!(queue.take().len(), 3);
    }
}
