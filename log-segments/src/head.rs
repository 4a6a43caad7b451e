//! The durable head of a lane: the contiguous prefix, across segments and groups, that satisfies
//! the stream's policy. Nothing at or above it is read or acknowledged.

use std::collections::VecDeque;
use std::task::Waker;

use kera_protocol::ids::{GroupId, Ordinal};

use crate::group::Group;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Rank, mutex};
use crate::waiters::Waiters;

/// Tracks a lane's groups in order and moves the head over those whose bytes are durable.
///
/// Lock order: this lock, then a group's window lock. Wakers run after both are released.
#[derive(Debug)]
pub struct LaneHead {
    ordinal: AtomicU64,
    failures: AtomicU64,
    news: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Groups that the head has not passed, oldest first.
    groups: VecDeque<Arc<Group>>,
    /// Address of the head within the first of them.
    address: u64,
    waiters: Waiters,
}

impl LaneHead {
    /// A head at `ordinal`, with no group above it.
    pub fn new(ordinal: Ordinal) -> Self {
        let inner = mutex(Rank::Head, Inner::default());
        Self {
            ordinal: AtomicU64::new(ordinal),
            failures: AtomicU64::new(0),
            news: AtomicU64::new(0),
            inner,
        }
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
    /// Returns the head. Call without holding the streamlet or a group lock: wakers run here.
    pub fn advance(&self) -> Ordinal {
        let mut wake = Vec::new();
        let ordinal = {
            let mut inner = self.inner.lock();
            let shown = self.ordinal.load(Ordering::Relaxed);
            let mut ordinal = shown;
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
                // What was shown stays readable, also when the policy has just become stricter.
                inner.address = inner.address.max(state.address);
                break;
            }
            if ordinal > shown {
                self.ordinal.store(ordinal, Ordering::Release);
                self.news.fetch_add(1, Ordering::AcqRel);
                inner.waiters.take_due(ordinal, &mut wake);
            }
            ordinal
        };
        wake.into_iter().for_each(Waker::wake);
        ordinal
    }

    /// Wakes `waker` once the head is at or above `until`, or the lane fails. Returns false, and
    /// keeps nothing, if it is there already.
    ///
    /// A failure just before the call wakes nobody: after `true`, look once more at what is waited
    /// for before parking.
    pub fn wait(&self, until: Ordinal, waker: &Waker) -> bool {
        let mut inner = self.inner.lock();
        if self.ordinal.load(Ordering::Acquire) >= until {
            return false;
        }
        // One waker waits for its nearest ordinal; once woken it looks at all it waits for.
        inner.waiters.add(until, waker);
        true
    }

    /// Forgets a waker that will not be waited on any more, so that an idle lane does not collect
    /// those of connections that have gone.
    pub fn forget(&self, waker: &Waker) {
        self.inner.lock().waiters.forget(waker);
    }

    /// Counts the times that bytes above the head were given up; a waiter that sees it change
    /// must look again whether its append still stands.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Counts the times that waiters were woken: whoever looked, then waits, and sees it unchanged still
    /// waits. One waker may wait at many heads; this tells which of them woke it.
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Forgets every group above the head, because their bytes will never be durable, and wakes all.
    pub fn abandon(&self) -> Vec<Arc<Group>> {
        let (groups, waiters) = {
            let mut inner = self.inner.lock();
            self.failures.fetch_add(1, Ordering::AcqRel);
            self.news.fetch_add(1, Ordering::AcqRel);
            inner.address = 0;
            (std::mem::take(&mut inner.groups), inner.waiters.take_all())
        };
        waiters.into_iter().for_each(Waker::wake);
        groups.into()
    }

    /// Raises the head of a lane that has been put in order: everything below is durable. The head
    /// never goes back. Wakes nobody; see [`Self::wake_all`].
    pub fn raise(&self, ordinal: Ordinal) {
        let _groups_stand_still = self.inner.lock();
        self.ordinal.fetch_max(ordinal, Ordering::AcqRel);
    }

    /// Wakes every waiter without moving the head.
    pub fn wake_all(&self) {
        let waiters = {
            let mut inner = self.inner.lock();
            self.news.fetch_add(1, Ordering::AcqRel);
            inner.waiters.take_all()
        };
        waiters.into_iter().for_each(Waker::wake);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_what_wakes() {
        let head = LaneHead::new(5);
        assert!(!head.wait(5, Waker::noop()), "it is there already");
        let mut seen = head.news();
        for wake in [LaneHead::wake_all, |head: &LaneHead| {
            head.abandon();
        }] {
            assert!(head.wait(6, Waker::noop()));
            assert_eq!(head.news(), seen, "waiting is none");
            wake(&head);
            assert_eq!(head.waiting(), 0);
            assert!(head.news() > seen);
            seen = head.news();
        }
        assert!(head.wait(6, Waker::noop()));
        head.raise(9);
        assert_eq!((head.news(), head.waiting()), (seen, 1), "nobody was woken");
        head.forget(Waker::noop());
        assert_eq!((head.news(), head.waiting()), (seen, 0));
        assert_eq!(head.advance(), 9);
        assert_eq!(head.news(), seen, "it did not move");
    }
}
