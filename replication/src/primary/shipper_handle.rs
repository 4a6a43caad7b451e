//! What others tell a shipper: which groups it ships, and that they grew.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::replica_set::ReplicaSet;
use super::stall_report::WayStands;
use super::traffic::Traffic;
use crate::ids::CopyId;
use crate::transport::Pending;

/// What others tell a shipper.
#[derive(Default)]
pub struct ShipperHandle {
    pub(super) inbox: Mutex<Inbox>,
    pub(super) traffic: Traffic,
}

#[derive(Default)]
pub(super) struct Inbox {
    /// In its order.
    pub(super) told: Vec<Told>,
    /// With the number that the shipper gave them, if it had by then.
    pub(super) grown: Vec<(u32, CopyId)>,
    /// Nobody joins any more.
    pub(super) ended: bool,
    pub(super) waker: Option<Waker>,
}

/// What is told seldom.
pub(super) enum Told {
    /// A group is shipped from now on; the backup has that number in its set.
    Joined(Arc<ReplicaSet>, usize),
    /// A group is shipped no more.
    Left(CopyId),
    /// Somebody wants to know where a group is.
    Asked(CopyId, oneshot::Sender<WayStands>),
}

impl ShipperHandle {
    /// Ships a group from now on; `index` is the backup's number in its set.
    pub(super) fn join(&self, set: Arc<ReplicaSet>, index: usize) {
        self.traffic.joined(&set, index);
        self.tell(|inbox| inbox.told.push(Told::Joined(set, index)));
    }

    /// Ships a group no more.
    pub(super) fn leave(&self, copy: CopyId) {
        self.traffic.left(&copy);
        self.tell(|inbox| inbox.told.push(Told::Left(copy)));
    }

    /// A group has grown. Told once until the shipper has looked, see [`ReplicaSet::shipper_looks`].
    pub(super) fn grew(&self, number: u32, copy: CopyId) {
        self.tell(|inbox| inbox.grown.push((number, copy)));
    }

    /// Where a group is on its way, and the shipper with all others; none if the shipper is gone.
    pub(super) fn stands(&self, copy: CopyId) -> Pending<Option<WayStands>> {
        let (answer, answered) = oneshot::channel();
        self.tell(|inbox| inbox.told.push(Told::Asked(copy, answer)));
        Box::pin(async move { answered.await.ok() })
    }

    /// The primary is gone: the shipper ends with its last group.
    pub(super) fn end(&self) {
        self.tell(|inbox| inbox.ended = true);
    }

    fn tell(&self, what: impl FnOnce(&mut Inbox)) {
        let waker = {
            let mut inbox = self.inbox.lock();
            what(&mut inbox);
            inbox.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
