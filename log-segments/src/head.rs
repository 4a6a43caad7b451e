//! The durable head of a lane: the contiguous prefix, across segments and groups, that satisfies
//! the stream's policy. Nothing at or above it is read or acknowledged.

use std::collections::VecDeque;
use std::task::Waker;

use kera_protocol::ids::{GroupId, Ordinal};

use crate::group::Group;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// Tracks a lane's groups in order and moves the head over those whose bytes are durable.
///
/// Lock order: this lock, then a group's window lock. Wakers run after both are released.
#[derive(Debug)]
pub struct LaneHead {
    ordinal: AtomicU64,
    failures: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Groups that the head has not passed, oldest first.
    groups: VecDeque<Arc<Group>>,
    /// Address of the head within the first of them.
    address: u64,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    until: Ordinal,
    waker: Waker,
}

impl LaneHead {
    /// A head at `ordinal`, with no group above it.
    pub fn new(ordinal: Ordinal) -> Self {
        Self { ordinal: AtomicU64::new(ordinal), failures: AtomicU64::new(0), inner: Mutex::new(Inner::default()) }
    }

    /// The head: records below it are durable.
    pub fn ordinal(&self) -> Ordinal {
        self.ordinal.load(Ordering::Acquire)
    }

    /// Adds the lane's next group. Must be called in the order of the groups.
    pub fn push_group(&self, group: Arc<Group>) {
        let mut inner = self.inner.lock();
        if inner.groups.is_empty() {
            inner.address = group.data_start();
        }
        inner.groups.push_back(group);
    }

    /// Moves the head as far as the groups' durable bytes reach and wakes who waited for it.
    /// Returns the head.
    pub fn advance(&self) -> Ordinal {
        let mut wake = Vec::new();
        let ordinal = {
            let mut inner = self.inner.lock();
            let mut ordinal = self.ordinal.load(Ordering::Relaxed);
            while let Some(group) = inner.groups.front() {
                let state = group.acknowledged();
                if !state.counts {
                    break;
                }
                // After a loss the first ordinal of a group lies above the head: the head jumps.
                ordinal = ordinal.max(state.ordinal);
                if state.finished {
                    inner.groups.pop_front();
                    inner.address = inner.groups.front().map_or(0, |next| next.data_start());
                    continue;
                }
                inner.address = state.address;
                break;
            }
            if ordinal > self.ordinal.load(Ordering::Relaxed) {
                self.ordinal.store(ordinal, Ordering::Release);
                inner.waiters.retain_mut(|waiter| {
                    let due = waiter.until <= ordinal;
                    if due {
                        wake.push(waiter.waker.clone());
                    }
                    !due
                });
            }
            ordinal
        };
        for waker in wake {
            waker.wake();
        }
        ordinal
    }

    /// Wakes `waker` once the head is at or above `until`, or the lane fails. Returns false, and
    /// keeps nothing, if it is there already.
    pub fn wait(&self, until: Ordinal, waker: &Waker) -> bool {
        let mut inner = self.inner.lock();
        if self.ordinal.load(Ordering::Acquire) >= until {
            return false;
        }
        if let Some(known) = inner.waiters.iter_mut().find(|w| w.waker.will_wake(waker)) {
            // One waker waits for its nearest ordinal; once woken it looks at all it waits for.
            known.until = known.until.min(until);
        } else {
            inner.waiters.push(Waiter { until, waker: waker.clone() });
        }
        true
    }

    /// Counts the times that bytes above the head were given up; a waiter that sees it change
    /// must look again whether its append still stands.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Forgets every group above the head, because their bytes will never be durable, and wakes all.
    pub fn abandon(&self) -> Vec<Arc<Group>> {
        let (groups, waiters) = {
            let mut inner = self.inner.lock();
            self.failures.fetch_add(1, Ordering::AcqRel);
            inner.address = 0;
            (std::mem::take(&mut inner.groups), std::mem::take(&mut inner.waiters))
        };
        for waiter in waiters {
            waiter.waker.wake();
        }
        groups.into()
    }

    /// Sets the head of a lane that has been put in order: everything below is durable. The head
    /// never goes back.
    pub fn resume(&self, ordinal: Ordinal) {
        self.ordinal.fetch_max(ordinal, Ordering::AcqRel);
        self.wake_all();
    }

    /// Wakes every waiter without moving the head.
    pub fn wake_all(&self) {
        let waiters = std::mem::take(&mut self.inner.lock().waiters);
        for waiter in waiters {
            waiter.waker.wake();
        }
    }

    /// The address up to which `group` may be read.
    pub fn readable_end(&self, group: &Group) -> u64 {
        let inner = self.inner.lock();
        match inner.groups.front() {
            Some(front) if front.id() == group.id() => inner.address,
            Some(front) if front.id() < group.id() => group.data_start(),
            _ => group.end_address(),
        }
    }

    /// The oldest group the head has not passed.
    pub fn front(&self) -> Option<GroupId> {
        self.inner.lock().groups.front().map(|g| g.id())
    }

    /// Waiters parked right now; for metrics and tests.
    pub fn waiting(&self) -> usize {
        self.inner.lock().waiters.len()
    }
}
