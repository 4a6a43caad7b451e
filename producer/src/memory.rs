//! The producer's memory: one bound for all batches, and warm buffers to use again.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A batch's first buffer; it doubles as the batch grows, so that thousands of lanes with a trickle
/// each do not hold a full buffer each.
const FIRST_BYTES: usize = 8 << 10;
/// Full batches of memory that come back before appends that wait for it are woken: woken for each, they would
/// make one batch each time, at the price of a thread's waking.
const WAKE_BATCHES: usize = 64;
/// No more than this part of the limit is left unused by that.
const WAKE_PART: usize = 16;

pub(crate) struct Memory {
    limit: usize,
    full: usize,
    used: AtomicUsize,
    /// Buffers of `full` bytes, counted as used; at most half the limit. Last in, first out: warm.
    pool: Mutex<Vec<BytesMut>>,
    /// Appends that wait.
    waiting: AtomicUsize,
    /// Bytes that came back since they began to wait or were last woken.
    returned: AtomicUsize,
    /// How many of those wake them at once.
    enough: usize,
    freed: Notify,
}

impl Memory {
    /// `full` is the size of the buffers that are kept: a full batch's, of the first stream.
    pub(crate) fn new(limit: usize, full: usize) -> Self {
        Self {
            limit,
            full,
            used: AtomicUsize::new(0),
            pool: Mutex::default(),
            waiting: AtomicUsize::new(0),
            returned: AtomicUsize::new(0),
            enough: (full * WAKE_BATCHES).min(limit / WAKE_PART),
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
    /// it counts; `None` at the limit. `full` is the size of the stream's batches.
    pub(crate) fn take(&self, bytes: usize, full: usize, whole: bool) -> Option<(BytesMut, usize)> {
        if bytes <= self.full
            && let Some(buffer) = self.pool.lock().pop()
        {
            return Some((buffer, self.full));
        }
        let first = if whole { full } else { FIRST_BYTES };
        let bytes = bytes.max(first.min(full));
        self.reserve(bytes)
            .then(|| (BytesMut::with_capacity(bytes), bytes))
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
                return self.came_back(counted);
            }
        }
        self.release(counted);
    }

    /// Counts `bytes` less.
    pub(crate) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        self.came_back(bytes);
    }

    fn came_back(&self, bytes: usize) {
        // An append that is not counted yet will look after this.
        if self.waiting.load(Ordering::SeqCst) > 0
            && self.returned.fetch_add(bytes, Ordering::SeqCst) + bytes >= self.enough
        {
            self.wake();
        }
    }

    /// True if memory has come back that appends wait for, and they were not woken.
    pub(crate) fn owes_a_wake(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 && self.returned.load(Ordering::SeqCst) > 0
    }

    /// Wakes appends that wait, however little has come back.
    pub(crate) fn wake(&self) {
        // Not a plain store: those who are woken are to see the memory whose bytes this forgets.
        self.returned.swap(0, Ordering::SeqCst);
        self.freed.notify_waiters();
    }

    /// Calls `attempt` until it returns something: whenever enough memory was given back, or they are woken.
    pub(crate) async fn wait_for<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        let _waiting = Waiting::new(self);
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
}

/// What a buffer that counts `counted` bytes and must hold `needed` should count next, where a full batch has `full`.
pub(crate) fn next_size(counted: usize, needed: usize, full: usize) -> usize {
    (counted * 2).max(needed).min(full.max(needed))
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(memory: &'a Memory) -> Self {
        if memory.waiting.fetch_add(1, Ordering::SeqCst) == 0 {
            // What came back before is seen by the look that follows.
            memory.returned.swap(0, Ordering::SeqCst);
        }
        Self(&memory.waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use super::*;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A memory of `batches` full batches that are all taken.
    fn full_memory(batches: usize) -> Memory {
        let memory = Memory::new(batches * 1_000, 1_000);
        assert!((0..batches).all(|_| memory.take(1_000, 1_000, true).is_some()));
        memory
    }

    #[test]
    fn an_append_that_waits_is_woken_once_for_several_batches() {
        // All but one wake nobody; the limit has a part in it where it is small.
        for (batches, wake_at) in [(10_000, WAKE_BATCHES), (64, 4), (1, 1)] {
            let memory = full_memory(batches);
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(woken.clone());
            let mut context = Context::from_waker(&waker);
            let mut waiting = pin!(memory.wait_for(|| memory.take(1_000, 1_000, true)));
            assert!(waiting.as_mut().poll(&mut context).is_pending());
            for back in 1..=wake_at {
                assert_eq!(woken.0.load(Ordering::SeqCst), 0, "{back} of {batches}");
                memory.release(1_000);
            }
            assert_eq!(woken.0.load(Ordering::SeqCst), 1);
            assert!(!memory.owes_a_wake());
            assert!(waiting.as_mut().poll(&mut context).is_ready());
        }
    }

    #[test]
    fn what_comes_back_without_waking_is_owed() {
        let memory = full_memory(100);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let take = || memory.take(1_000, 1_000, true);
        memory.release(1_000);
        assert!(!memory.owes_a_wake(), "nobody waits");
        assert!(take().is_some());
        {
            let mut given_up = pin!(memory.wait_for(take));
            assert!(given_up.as_mut().poll(&mut context).is_pending());
            memory.release(1_000);
            assert!(memory.owes_a_wake());
        }
        assert!(take().is_some());
        let mut waiting = pin!(memory.wait_for(take));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(!memory.owes_a_wake(), "nothing came back since it waits");
        memory.release(1_000);
        assert!(memory.owes_a_wake());
        memory.wake();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        assert!(!memory.owes_a_wake());
    }

    /// Two threads give a batch's memory to each other, so that one wake-up that is lost stops both. What does
    /// not wake is owed, and is seen to by a third, as by the background task.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn no_wake_up_is_lost_between_threads() {
        async fn pass(from: Arc<Memory>, to: Arc<Memory>) {
            for _ in 0..5_000 {
                from.wait_for(|| from.reserve(1_000).then_some(())).await;
                to.release(1_000);
            }
        }
        for batches in [1, 64] {
            let (there, back) = (full_memory(batches), full_memory(batches));
            let (there, back) = (Arc::new(there), Arc::new(back));
            let first = tokio::spawn(pass(there.clone(), back.clone()));
            let second = tokio::spawn(pass(back.clone(), there.clone()));
            there.release(1_000);
            let passed = async {
                while !first.is_finished() || !second.is_finished() {
                    for memory in [&there, &back] {
                        if memory.owes_a_wake() {
                            memory.wake();
                        }
                    }
                    tokio::task::yield_now().await;
                }
            };
            let passed = tokio::time::timeout(Duration::from_secs(60), passed).await;
            assert!(passed.is_ok(), "a wake-up is lost");
        }
    }

    #[test]
    fn full_buffers_are_kept_warm_within_half_the_limit_and_small_ones_freed() {
        let memory = Memory::new(400_000, 100_000);
        let taken: Vec<_> = (0..4)
            .map(|_| memory.take(100_000, 100_000, false).unwrap())
            .collect();
        assert!(memory.take(1, 100_000, false).is_none());
        for (buffer, counted) in taken {
            memory.give(buffer.freeze(), counted);
        }
        assert_eq!(memory.used(), 200_000);
        assert_eq!(memory.pool.lock().len(), 2);
        let (small, counted) = memory.take(1, 100_000, false).unwrap();
        assert_eq!((small.capacity() >= 100_000, counted), (true, 100_000));
        let _ = memory.take(1, 100_000, false).unwrap();
        let (small, counted) = memory.take(1, 100_000, false).unwrap();
        assert_eq!(counted, FIRST_BYTES);
        memory.give(small.freeze(), counted);
        assert_eq!(memory.used(), 200_000);
        let (whole, counted) = memory.take(1, 100_000, true).unwrap();
        assert_eq!((whole.capacity() >= 100_000, counted), (true, 100_000));
        memory.release(counted);
        assert!(memory.take(200_001, 100_000, false).is_none());
    }

    #[test]
    fn warm_buffers_are_given_up_for_other_sizes() {
        let memory = Memory::new(400_000, 100_000);
        for _ in 0..2 {
            let taken: Vec<_> = (0..2)
                .map(|_| memory.take(100_000, 100_000, false).unwrap())
                .collect();
            for (buffer, counted) in taken {
                memory.give(buffer.freeze(), counted);
            }
        }
        assert_eq!(memory.used(), 200_000);
        assert!(memory.take(350_000, 100_000, false).is_some());
        assert_eq!(memory.used(), 350_000);
    }

    #[test]
    fn buffers_double_up_to_the_full_size_and_beyond_only_for_large_records() {
        assert_eq!(next_size(8_192, 8_200, 100_000), 16_384);
        assert_eq!(next_size(65_536, 70_000, 100_000), 100_000);
        assert_eq!(next_size(8_192, 250_000, 100_000), 250_000);
    }

    #[test]
    fn streams_of_other_batches_share_the_bound() {
        let memory = Memory::new(400_000, 100_000);
        // Larger ones are made and given back as they are, smaller ones take a kept buffer.
        let (large, counted) = memory.take(1, 300_000, true).unwrap();
        assert_eq!(counted, 300_000);
        assert!(memory.take(1, 300_000, true).is_none());
        let (whole, first) = memory.take(1, 100_000, true).unwrap();
        memory.give(large.freeze(), counted);
        memory.give(whole.freeze(), first);
        assert_eq!(memory.used(), 100_000);
        let (_, counted) = memory.take(1, 10_000, true).unwrap();
        assert_eq!((counted, memory.used()), (100_000, 100_000));
        let (_, counted) = memory.take(1, 10_000, true).unwrap();
        assert_eq!((counted, memory.used()), (10_000, 110_000));
    }
}
