//! The one place that decides which locks and atomics the log is built on.
//!
//! Under `--cfg kera_shuttle` every primitive comes from the `shuttle` model checker, which then
//! owns the interleaving; otherwise they are `parking_lot`'s and the standard library's. Leaf
//! structures that never block inside (the chunk pool) stay on the real ones in both builds.
//!
//! Every mutex has a [`Rank`]. Debug builds and the model check at each lock that its rank is above
//! all ranks the thread holds, so a wrong order panics the first time it is taken, not the first
//! time it deadlocks. Release builds carry no trace of it.

#[cfg(not(kera_shuttle))]
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
pub use std::sync::{Arc, Weak};

#[cfg(kera_shuttle)]
pub use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

#[cfg(not(any(debug_assertions, kera_shuttle)))]
pub use parking_lot::{Mutex, MutexGuard};
#[cfg(any(debug_assertions, kera_shuttle))]
pub use ranked::{Mutex, MutexGuard};

/// A mutex's place in the lock order: a thread takes only higher ones than those it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// Serialises closing, repair and trim of a streamlet; held across I/O, never by an append.
    Maintenance,
    /// Serialises syncs and marks of one group; held across I/O.
    Store,
    /// The streamlet lock: the first of the two levels.
    Streamlet,
    /// The group lock: the second of the two levels.
    Group,
    /// A lane's durable head.
    Head,
    /// What of a group is in memory.
    Window,
    /// A group's file handle.
    File,
}

/// A mutex of the given rank.
#[cfg(not(any(debug_assertions, kera_shuttle)))]
pub fn mutex<T>(_rank: Rank, value: T) -> Mutex<T> {
    Mutex::new(value)
}

/// A mutex of the given rank.
#[cfg(any(debug_assertions, kera_shuttle))]
pub fn mutex<T>(rank: Rank, value: T) -> Mutex<T> {
    Mutex::ranked(rank, value)
}

/// Lets others run; for loops that wait for a short turn.
pub fn pause() {
    #[cfg(not(kera_shuttle))]
    std::thread::yield_now();
    #[cfg(kera_shuttle)]
    shuttle::thread::yield_now();
}

/// Times that others are let run before a wait for a turn counts as a long one.
#[cfg(not(kera_shuttle))]
const SHORT: u32 = 64;
/// Between two looks in a long one.
#[cfg(not(kera_shuttle))]
const LOOK: std::time::Duration = std::time::Duration::from_micros(100);

/// A wait for the turn of another thread. Turns are short, but for those of a disk that stands still: for that long no
/// processor is kept busy.
#[derive(Debug, Default)]
pub struct TurnWait(u32);

impl TurnWait {
    /// Waits a little, and longer once it has waited often.
    #[cfg_attr(
        not(kera_shuttle),
        expect(
            clippy::disallowed_methods,
            reason = "nobody tells when a turn is over: a publisher must not pay for that"
        )
    )]
    pub fn pause(&mut self) {
        self.0 = self.0.saturating_add(1);
        #[cfg(not(kera_shuttle))]
        if self.0 > SHORT {
            return std::thread::sleep(LOOK);
        }
        pause();
    }
}

#[cfg(any(debug_assertions, kera_shuttle))]
mod ranked {
    use std::cell::RefCell;
    use std::ops::{Deref, DerefMut};

    use super::Rank;

    #[cfg(not(kera_shuttle))]
    type Raw<T> = parking_lot::Mutex<T>;
    #[cfg(not(kera_shuttle))]
    type RawGuard<'a, T> = parking_lot::MutexGuard<'a, T>;
    #[cfg(kera_shuttle)]
    type Raw<T> = shuttle::sync::Mutex<T>;
    #[cfg(kera_shuttle)]
    type RawGuard<'a, T> = shuttle::sync::MutexGuard<'a, T>;

    #[cfg(not(kera_shuttle))]
    std::thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }
    // The model runs all its threads on one thread of the system, so its own locals are needed.
    #[cfg(kera_shuttle)]
    shuttle::thread_local! {
        static HELD: RefCell<Vec<Rank>> = RefCell::new(Vec::new());
    }

    /// A mutex that knows its place in the lock order; otherwise as `parking_lot`'s.
    #[derive(Debug)]
    pub struct Mutex<T> {
        rank: Rank,
        raw: Raw<T>,
    }

    impl<T> Mutex<T> {
        pub(super) fn ranked(rank: Rank, value: T) -> Self {
            Self {
                rank,
                raw: Raw::new(value),
            }
        }

        /// Waits for the lock.
        ///
        /// # Panics
        /// If the thread holds a lock of the same or a higher rank.
        #[track_caller]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            let above = HELD.with(|held| {
                held.borrow()
                    .iter()
                    .copied()
                    .find(|rank| *rank >= self.rank)
            });
            if let Some(above) = above
                && !std::thread::panicking()
            {
                panic!(
                    "lock order: {:?} is asked for while {above:?} is held",
                    self.rank
                );
            }
            #[cfg(not(kera_shuttle))]
            let raw = self.raw.lock();
            #[cfg(kera_shuttle)]
            let raw = self
                .raw
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            MutexGuard::new(self.rank, raw)
        }

        /// Takes the lock if it is free; allowed in any order, since it cannot wait.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            #[cfg(not(kera_shuttle))]
            let raw = self.raw.try_lock();
            #[cfg(kera_shuttle)]
            let raw = self.raw.try_lock().ok();
            raw.map(|raw| MutexGuard::new(self.rank, raw))
        }
    }

    /// The guard of [`Mutex`].
    #[derive(Debug)]
    pub struct MutexGuard<'a, T> {
        rank: Rank,
        raw: RawGuard<'a, T>,
    }

    impl<'a, T> MutexGuard<'a, T> {
        fn new(rank: Rank, raw: RawGuard<'a, T>) -> Self {
            HELD.with(|held| held.borrow_mut().push(rank));
            Self { rank, raw }
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            HELD.with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| *rank == self.rank) {
                    held.remove(at);
                }
            });
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.raw
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.raw
        }
    }
}

#[cfg(all(test, debug_assertions, not(kera_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn locks_in_order_are_granted() {
        let (streamlet, group) = (mutex(Rank::Streamlet, 1), mutex(Rank::Group, 2));
        let first = streamlet.lock();
        let second = group.lock();
        // Released in any order.
        drop(first);
        drop(second);
        assert_eq!(*streamlet.lock() + 1, *group.lock());
    }

    #[test]
    #[should_panic(expected = "lock order: Streamlet is asked for while Group is held")]
    fn a_wrong_order_panics() {
        let (streamlet, group) = (mutex(Rank::Streamlet, ()), mutex(Rank::Group, ()));
        let _group = group.lock();
        let _streamlet = streamlet.lock();
    }

    #[test]
    #[should_panic(expected = "lock order: Window is asked for while Window is held")]
    fn two_of_one_rank_panic() {
        let (one, other) = (mutex(Rank::Window, ()), mutex(Rank::Window, ()));
        let _one = one.lock();
        let _other = other.lock();
    }
}
