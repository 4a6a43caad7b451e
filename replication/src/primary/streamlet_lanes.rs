//! The lanes of one streamlet that this broker owns under one epoch, as the streamlet uses them: it takes its groups'
//! ids from here, and begins each group here.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use kera_log_segments::group::Group;
use kera_log_segments::replicas::{Copies, GroupOwner, Mending};
use kera_protocol::ids::{Epoch, GroupId, LaneId};
use parking_lot::Mutex;

use super::Primary;
use super::lane::{Lane, LaneSpec};
use super::replica_set::Appender;
use crate::ids::{AckPolicy, CopyId};
use crate::records::RecordsError;
use crate::runtime::{Local, all};
use crate::transport::Request;

/// The lanes of one streamlet. Each is made with its first group.
pub struct StreamletLanes {
    primary: Arc<Primary>,
    /// What is promised in each lane, whatever its number.
    spec: LaneSpec,
    appender: Appender,
    /// The least id that was never given out.
    next_group: Arc<AtomicU64>,
    lanes: Mutex<BTreeMap<LaneId, Arc<Lane>>>,
    mend: Box<dyn Fn(GroupId) -> Mending + Send + Sync>,
}

impl StreamletLanes {
    /// No lane yet. Each promises what `spec` says, whatever lane that names; the next group is `next_group` at the least.
    /// `mend` is [`Copies::mend`] of the broker, whose own files they are.
    pub fn new(
        primary: Arc<Primary>,
        spec: LaneSpec,
        streamlet: Weak<dyn GroupOwner>,
        next_group: GroupId,
        clock: fn() -> u64,
        mend: Box<dyn Fn(GroupId) -> Mending + Send + Sync>,
    ) -> Self {
        Self {
            primary,
            spec,
            appender: Appender { streamlet, clock },
            next_group: Arc::new(AtomicU64::new(next_group.0)),
            lanes: Mutex::default(),
            mend,
        }
    }

    /// What is promised in each lane, whatever its number.
    pub fn spec(&self) -> &LaneSpec {
        &self.spec
    }

    /// The broker that owns them.
    pub fn primary(&self) -> &Arc<Primary> {
        &self.primary
    }

    /// A lane, made if it was not there.
    pub fn lane(&self, lane: LaneId) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        let made = lanes.entry(lane).or_insert_with(|| {
            let spec = LaneSpec { lane, ..self.spec };
            Lane::new(self.primary.clone(), spec, self.next_group.clone())
        });
        made.clone()
    }

    /// The lanes that were appended to.
    pub fn all(&self) -> Vec<Arc<Lane>> {
        self.lanes.lock().values().cloned().collect()
    }

    /// Ends every lane, as for a hand-over: drains, closes every group, deletes what was recorded ahead. Nothing must
    /// be appended any more. The next owner then finds nothing to recover.
    ///
    /// # Errors
    /// The first lane's that could not be closed.
    pub async fn finish(&self) -> Result<(), RecordsError> {
        self.each(|lane| Box::pin(lane.finish())).await
    }

    /// Waits until every group is closed to which nothing is appended any more; appends to others go on.
    ///
    /// # Errors
    /// The first lane's that could not be closed.
    pub async fn closed_frozen(&self) -> Result<(), RecordsError> {
        self.each(|lane| Box::pin(lane.closed_frozen())).await
    }

    async fn each(
        &self,
        end: impl Fn(&Lane) -> Local<'_, Result<(), RecordsError>>,
    ) -> Result<(), RecordsError> {
        let lanes = self.all();
        let ends = lanes.iter().map(|lane| end(lane));
        all(ends.collect()).await.into_iter().collect()
    }
}

impl Copies for StreamletLanes {
    fn next_group(&self, lane: LaneId, ack: AckPolicy) -> GroupId {
        self.lane(lane).next_group(ack)
    }

    fn begin(&self, lane: LaneId, group: &Arc<Group>) {
        self.lane(lane).open(group, self.appender.clone());
    }

    fn deleted(&self, groups: &[(GroupId, Epoch, u32)]) {
        let (primary, spec) = (self.primary.clone(), self.spec);
        let groups = groups.to_vec();
        let runtime = primary.runtime.clone();
        runtime.spawn(Box::pin(async move {
            for (group, epoch, generation) in groups {
                let copy = CopyId {
                    streamlet: spec.streamlet,
                    group,
                    epoch,
                    generation,
                };
                // Who holds one is no longer recorded; who holds none has nothing to do.
                for peer in primary.peers().iter().filter(|peer| **peer != primary.me) {
                    let free = Request::free(copy, spec.epoch, None);
                    if let Err(error) = primary.transport.call(*peer, free).await {
                        tracing::debug!(%copy, %peer, %error, "a surplus replica was not freed");
                    }
                }
            }
        }));
    }

    fn mend(&self, group: GroupId) -> Mending {
        (self.mend)(group)
    }

    fn abandon(&self) {
        self.all().iter().for_each(|lane| lane.abandon());
    }
}
