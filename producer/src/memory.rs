//! The producer's memory: one bound for all batches, and warm buffers to use again.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A batch's first buffer; it doubles as the batch grows, so that thousands of lanes with a trickle
/// each do not hold a full buffer each.
const FIRST_BYTES: usize = 8 << 10;

pub(crate) struct Memory {
    limit: usize,
    full: usize,
    used: AtomicUsize,
    /// Buffers of `full` bytes, counted as used; at most half the limit. Last in, first out: warm.
    pool: Mutex<Vec<BytesMut>>,
    waiting: AtomicUsize,
    freed: Notify,
}

impl Memory {
    /// `full` is the size of a full batch's buffer.
    pub(crate) fn new(limit: usize, full: usize) -> Self {
        Self {
            limit,
            full,
            used: AtomicUsize::new(0),
            pool: Mutex::default(),
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
        }
    }

    /// Bytes of batches and of warm buffers.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// True if batches take so much that lanes which are held up must leave the rest to the others.
    pub(crate) fn is_scarce(&self) -> bool {
        let warm = self.pool.lock().len() * self.full;
        self.used().saturating_sub(warm) >= self.limit / 4 * 3
    }

    /// Counts `bytes` more, giving up warm buffers for it if need be; false at the limit.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        loop {
            let counted = self
                .used
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                    (used + bytes <= self.limit).then_some(used + bytes)
                });
            if counted.is_ok() {
                return true;
            }
            let Some(warm) = self.pool.lock().pop() else {
                return false;
            };
            drop(warm);
            self.used.fetch_sub(self.full, Ordering::SeqCst);
        }
    }

    /// Counts `bytes` more whatever the limit: for batches that are split again, whose records are
    /// counted already.
    pub(crate) fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A buffer for a new batch of at least `bytes` bytes, of a full batch at once if `whole`, and what
    /// it counts; `None` at the limit.
    pub(crate) fn take(&self, bytes: usize, whole: bool) -> Option<(BytesMut, usize)> {
        if bytes <= self.full
            && let Some(buffer) = self.pool.lock().pop()
        {
            return Some((buffer, self.full));
        }
        let first = if whole { self.full } else { FIRST_BYTES };
        let bytes = bytes.max(first.min(self.full));
        self.reserve(bytes)
            .then(|| (BytesMut::with_capacity(bytes), bytes))
    }

    /// What a buffer that counts `counted` bytes and must hold `needed` should count next.
    pub(crate) fn next_size(&self, counted: usize, needed: usize) -> usize {
        (counted * 2).max(needed).min(self.full.max(needed))
    }

    /// Takes back a batch's buffer.
    pub(crate) fn give(&self, bytes: Bytes, counted: usize) {
        if counted == self.full
            && let Ok(buffer) = bytes.try_into_mut()
        {
            let mut pool = self.pool.lock();
            if buffer.capacity() >= self.full && (pool.len() + 1) * self.full <= self.limit / 2 {
                pool.push(buffer);
                drop(pool);
                return self.wake();
            }
        }
        self.release(counted);
    }

    /// Counts `bytes` less.
    pub(crate) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
        }
    }

    /// Calls `attempt` whenever memory was given back, until it returns something.
    pub(crate) async fn wait_for<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        let _waiting = Waiting::new(&self.waiting);
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(value) = attempt() {
                return value;
            }
            freed.await;
        }
    }

    /// Wakes all that wait, as when the producer is closed.
    pub(crate) fn wake_all(&self) {
        self.freed.notify_waiters();
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_buffers_are_kept_warm_within_half_the_limit_and_small_ones_freed() {
        let memory = Memory::new(400_000, 100_000);
        let taken: Vec<_> = (0..4)
            .map(|_| memory.take(100_000, false).unwrap())
            .collect();
        assert!(memory.take(1, false).is_none());
        for (buffer, counted) in taken {
            memory.give(buffer.freeze(), counted);
        }
        assert_eq!(memory.used(), 200_000);
        assert_eq!(memory.pool.lock().len(), 2);
        let (small, counted) = memory.take(1, false).unwrap();
        assert_eq!((small.capacity() >= 100_000, counted), (true, 100_000));
        let _ = memory.take(1, false).unwrap();
        let (small, counted) = memory.take(1, false).unwrap();
        assert_eq!(counted, FIRST_BYTES);
        memory.give(small.freeze(), counted);
        assert_eq!(memory.used(), 200_000);
        let (whole, counted) = memory.take(1, true).unwrap();
        assert_eq!((whole.capacity() >= 100_000, counted), (true, 100_000));
        memory.release(counted);
        assert!(memory.take(200_001, false).is_none());
    }

    #[test]
    fn warm_buffers_are_given_up_for_other_sizes() {
        let memory = Memory::new(400_000, 100_000);
        for _ in 0..2 {
            let taken: Vec<_> = (0..2)
                .map(|_| memory.take(100_000, false).unwrap())
                .collect();
            for (buffer, counted) in taken {
                memory.give(buffer.freeze(), counted);
            }
        }
        assert_eq!(memory.used(), 200_000);
        assert!(memory.take(350_000, false).is_some());
        assert_eq!(memory.used(), 350_000);
    }

    #[test]
    fn buffers_double_up_to_the_full_size_and_beyond_only_for_large_records() {
        let memory = Memory::new(1 << 20, 100_000);
        assert_eq!(memory.next_size(8_192, 8_200), 16_384);
        assert_eq!(memory.next_size(65_536, 70_000), 100_000);
        assert_eq!(memory.next_size(8_192, 250_000), 250_000);
    }
}
