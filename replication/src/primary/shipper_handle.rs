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
    pub(super) joined: Vec<(Arc<ReplicaSet>, usize)>,
    pub(super) left: Vec<CopyId>,
    /// With the number that the shipper gave them, if it had by then.
    pub(super) grown: Vec<(u32, CopyId)>,
    /// Who wants to know where a group is.
    pub(super) asked: Vec<(CopyId, oneshot::Sender<WayStands>)>,
    /// Nobody joins any more.
    pub(super) ended: bool,
    pub(super) waker: Option<Waker>,
}

impl ShipperHandle {
    /// Ships a group from now on; `index` is the backup's number in its set.
    pub(super) fn join(&self, set: Arc<ReplicaSet>, index: usize) {
        self.traffic.joined(&set, index);
        self.tell(|inbox| inbox.joined.push((set, index)));
    }

    /// Ships a group no more.
    pub(super) fn leave(&self, copy: CopyId) {
        self.traffic.left(&copy);
        self.tell(|inbox| inbox.left.push(copy));
    }

    /// A group has grown. Told once until the shipper has looked, see [`ReplicaSet::shipper_looks`].
    pub(super) fn grew(&self, number: u32, copy: CopyId) {
        self.tell(|inbox| inbox.grown.push((number, copy)));
    }

    /// Where a group is on its way, and the shipper with all others; none if the shipper is gone.
    pub(super) fn stands(&self, copy: CopyId) -> Pending<Option<WayStands>> {
        let (answer, answered) = oneshot::channel();
        self.tell(|inbox| inbox.asked.push((copy, answer)));
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
