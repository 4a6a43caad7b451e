//! The brokers around this one, and who waits to hear that one of them is no longer there.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, RwLock};

use crate::ids::BrokerId;
use crate::placement::Placement;

/// The brokers that may hold copies, as far as they are known now.
#[derive(Clone, Debug)]
pub(super) struct Around {
    pub(super) peers: Arc<[BrokerId]>,
    pub(super) placement: Arc<Placement>,
    /// Those of them that are to hold nothing more.
    pub(super) leaving: Arc<[BrokerId]>,
}

/// [`Around`] as it is, shared by all that ask others for something.
#[derive(Debug)]
pub(crate) struct Neighbours {
    now: RwLock<Around>,
    /// How often they have changed.
    changes: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Neighbours {
    pub(super) fn new(peers: Vec<BrokerId>) -> Arc<Self> {
        Arc::new(Self {
            now: RwLock::new(Around {
                peers: peers.into(),
                placement: Arc::default(),
                leaving: Arc::default(),
            }),
            changes: AtomicU64::new(0),
            waiting: Mutex::default(),
        })
    }

    pub(super) fn now(&self) -> Around {
        self.now.read().clone()
    }

    /// The brokers have changed. Call without holding a lock: wakers run here.
    pub(super) fn set(&self, around: Around) {
        *self.now.write() = around;
        self.changes.fetch_add(1, Ordering::AcqRel);
        let waiting = std::mem::take(&mut self.waiting.lock().wakers);
        waiting.into_values().for_each(Waker::wake);
    }

    /// True while it is among those that may hold copies, which only those that are alive may.
    pub(super) fn has(&self, backup: BrokerId) -> bool {
        self.now.read().peers.contains(&backup)
    }

    /// Resolves once `backup` is not among them.
    pub(super) fn left(self: &Arc<Self>, backup: BrokerId) -> Left {
        let id = {
            let mut waiting = self.waiting.lock();
            waiting.next += 1;
            waiting.next
        };
        Left {
            neighbours: self.clone(),
            backup,
            id,
            waits: None,
        }
    }
}

/// Resolves once a broker is not among those that are alive; see [`Neighbours::left`].
#[derive(Debug)]
pub(super) struct Left {
    neighbours: Arc<Neighbours>,
    backup: BrokerId,
    id: u64,
    /// Who is woken at the next change, and after how many the last look was.
    waits: Option<(Waker, u64)>,
}

impl Future for Left {
    type Output = ();

    /// Cheap while nothing has changed: shippers ask on their way.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let changes = self.neighbours.changes.load(Ordering::Acquire);
        if let Some((waker, looked)) = &self.waits
            && *looked == changes
            && waker.will_wake(cx.waker())
        {
            return Poll::Pending;
        }
        let waker = cx.waker().clone();
        let neighbours = self.neighbours.clone();
        // Before the look: whoever changes them afterwards finds the waker.
        let mut waiting = neighbours.waiting.lock();
        waiting.wakers.insert(self.id, waker.clone());
        drop(waiting);
        self.waits = Some((waker, neighbours.changes.load(Ordering::Acquire)));
        if neighbours.has(self.backup) {
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.neighbours.waiting.lock().wakers.remove(&self.id);
    }
}
