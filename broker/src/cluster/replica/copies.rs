//! The copies of one streamlet's groups: its lanes, as replication has them.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use futures::future::join_all;
use kera_log_segments::group::{AckPolicy, Group};
use kera_log_segments::ship::Shipping;
use kera_metadata::GroupRecord;
use kera_protocol::ids::{Epoch, GroupId, LaneId};
use kera_replication::ids::{CopyId, StreamletKey};
use kera_replication::jobs::{Mend, Mended, Owned};
use kera_replication::primary::{Lane, LaneSpec, Primary};
use kera_replication::records::RecordsError;
use kera_replication::transport::{CallError, Pending, Reply, Request};
use kera_streamlet::{Copies, Streamlet};
use parking_lot::Mutex;

use super::own_files::{self, Leftovers};
use super::source::GroupSource;
use crate::clock::now_ms;
use crate::group_records::GroupRecords;

/// A reader waits at most so long for a damaged group to be fetched.
const MEND_WITHIN: Duration = Duration::from_secs(20);
/// A group that could not be fetched is tried again after this.
const MEND_AGAIN: Duration = Duration::from_secs(5);

/// What a stream promises of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Copies of each group, this broker's own included.
    pub replicas: u32,
    /// Copies without which nothing is acknowledged.
    pub min_insync_replicas: u32,
}

/// Makes the copies of one streamlet, under one epoch.
pub(crate) struct StreamletCopies {
    primary: Arc<Primary>,
    records: Arc<GroupRecords>,
    key: StreamletKey,
    epoch: Epoch,
    promise: Replicas,
    streamlet: OnceLock<Weak<Streamlet>>,
    /// The least id that was never given out.
    next_group: Arc<AtomicU64>,
    lanes: Mutex<HashMap<LaneId, Arc<Lane>>>,
    /// Groups that could be fetched from nobody, and when that was tried.
    mend_failed: Mutex<HashMap<GroupId, Instant>>,
}

impl std::fmt::Debug for StreamletCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamletCopies")
            .field("streamlet", &self.key)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl StreamletCopies {
    /// Copies of `streamlet`, which is to be served under `epoch`; its next group is `next_group` at
    /// the least.
    pub(crate) fn new(
        primary: Arc<Primary>,
        records: Arc<GroupRecords>,
        streamlet: &Arc<Streamlet>,
        epoch: Epoch,
        next_group: GroupId,
        promise: Replicas,
    ) -> Arc<Self> {
        let this = Self {
            primary,
            records,
            key: streamlet.key(),
            epoch,
            promise,
            streamlet: OnceLock::new(),
            next_group: Arc::new(AtomicU64::new(next_group.0)),
            lanes: Mutex::default(),
            mend_failed: Mutex::default(),
        };
        let _ = this.streamlet.set(Arc::downgrade(streamlet));
        Arc::new(this)
    }

    /// The streamlet as jobs look at it, with those of its lanes that were appended to.
    pub(crate) fn owned(&self) -> Owned {
        Owned {
            streamlet: self.key,
            epoch: self.epoch,
            replicas: self.promise.replicas as usize,
            min_insync_replicas: self.promise.min_insync_replicas as usize,
            lanes: self.lanes.lock().values().cloned().collect(),
            mend: Some(Arc::new(OwnFile {
                primary: self.primary.clone(),
                records: self.records.clone(),
                epoch: self.epoch,
                streamlet: self.streamlet.get().cloned().unwrap_or_default(),
            })),
        }
    }

    fn lane(&self, lane: LaneId) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        let made = lanes.entry(lane).or_insert_with(|| {
            let spec = LaneSpec {
                streamlet: self.key,
                epoch: self.epoch,
                lane,
                replicas: self.promise.replicas as usize,
                min_insync_replicas: self.promise.min_insync_replicas as usize,
            };
            Lane::new(self.primary.clone(), spec, self.next_group.clone())
        });
        made.clone()
    }

    /// Ends every lane as for a hand-over: drains, closes every group, deletes what was recorded
    /// ahead. The next start then finds nothing to recover.
    pub(crate) async fn finish(&self) {
        if let Err(error) = self.close().await {
            tracing::warn!(streamlet = %self.key, %error, "a lane could not be closed; the next start recovers it");
        }
    }

    /// The same, for an owner that is about to change. Nothing must be appended any more.
    ///
    /// # Errors
    /// The first lane's that could not be closed.
    pub(crate) async fn close(&self) -> Result<(), RecordsError> {
        let lanes: Vec<_> = self.lanes.lock().values().cloned().collect();
        let ended = join_all(lanes.iter().map(|lane| lane.finish())).await;
        ended.into_iter().collect()
    }

    /// Waits until every group is closed to which nothing is appended any more; appends to others go on.
    ///
    /// # Errors
    /// The first lane's that could not be closed.
    pub(crate) async fn closed_frozen(&self) -> Result<(), RecordsError> {
        let lanes: Vec<_> = self.lanes.lock().values().cloned().collect();
        let closed = join_all(lanes.iter().map(|lane| lane.closed_frozen())).await;
        closed.into_iter().collect()
    }

    /// Whether these are the copies of `streamlet`, and not of another stretch of its ownership.
    pub(crate) fn are_of(&self, streamlet: &Arc<Streamlet>) -> bool {
        let of = self.streamlet.get();
        of.is_some_and(|of| std::ptr::eq(of.as_ptr(), Arc::as_ptr(streamlet)))
    }
}

/// This broker's own files of a streamlet, as the jobs put them right.
struct OwnFile {
    primary: Arc<Primary>,
    records: Arc<GroupRecords>,
    epoch: Epoch,
    streamlet: Weak<Streamlet>,
}

impl Mend for OwnFile {
    fn is_settled(&self, record: &GroupRecord) -> bool {
        let served = self.streamlet.upgrade();
        served.is_some_and(|s| s.is_settled(record.lane, record.group))
    }

    fn mend(&self, record: &GroupRecord) -> Pending<Mended> {
        let (lane, group) = (record.lane, record.group);
        let (served, primary) = (self.streamlet.upgrade(), self.primary.clone());
        let (copy, epoch) = (CopyId::of(record), self.epoch);
        Box::pin(async move {
            let Some(streamlet) = served else {
                return Mended::NotYet;
            };
            if !streamlet.is_settled(lane, group) {
                return Mended::NotYet;
            }
            let fetched = tokio::task::spawn_blocking(move || streamlet.fetch_again(lane, group));
            if !matches!(fetched.await, Ok(true)) {
                return Mended::No;
            }
            match free_beside(&primary, copy, epoch).await {
                Ok(()) => Mended::Yes,
                Err(error) => {
                    tracing::warn!(group = %copy, %error, "the replica in this broker's store is not freed, though its own file has taken its place");
                    Mended::No
                }
            }
        })
    }

    fn tidy(&self) -> Pending<u64> {
        let (served, primary) = (self.streamlet.upgrade(), self.primary.clone());
        let (records, epoch) = (self.records.clone(), self.epoch);
        Box::pin(async move {
            let Some(streamlet) = served else { return 0 };
            let leftovers = Leftovers {
                primary: &primary,
                metadata: records.store(),
                streamlet: &streamlet,
                epoch,
            };
            leftovers.free().await
        })
    }
}

/// Frees a copy in this broker's store, of before it owned the streamlet: its own file stands for it.
async fn free_beside(primary: &Primary, copy: CopyId, epoch: Epoch) -> Result<(), CallError> {
    let list = Request::List {
        streamlet: Some(copy.streamlet),
    };
    // A broker whose own files are all that it asks keeps nothing of its own in a store.
    let Ok(Reply::Copies(kept)) = primary.ask(primary.me(), list).await else {
        return Ok(());
    };
    for held in kept.iter().filter(|held| held.copy == copy) {
        let free = Request::Free {
            copy,
            epoch,
            version: Some(held.version),
        };
        primary.ask(primary.me(), free).await?;
    }
    Ok(())
}

impl Copies for StreamletCopies {
    fn next_group(&self, lane: LaneId, ack: AckPolicy) -> GroupId {
        self.lane(lane).next_group(ack)
    }

    fn begin(&self, lane: LaneId, group: &Arc<Group>) {
        let streamlet = self.streamlet.get().cloned().unwrap_or_default();
        let source = GroupSource::new(group.clone(), lane, streamlet, now_ms);
        let shipping: Arc<dyn Shipping> = source.clone();
        group.ship_by(Arc::downgrade(&shipping));
        let lane = self.lane(lane);
        let set = lane.open(group.id(), source.clone());
        source.goes_to(&lane, &set);
    }

    fn deleted(&self, groups: &[(GroupId, Epoch)]) {
        let (primary, key, epoch) = (self.primary.clone(), self.key, self.epoch);
        let groups = groups.to_vec();
        let runtime = primary.runtime().clone();
        runtime.spawn(Box::pin(async move {
            for (group, of_epoch) in groups {
                let copy = CopyId {
                    streamlet: key,
                    group,
                    epoch: of_epoch,
                };
                // Who holds one is no longer recorded; who holds none has nothing to do.
                for peer in others(&primary) {
                    let freed = primary.transport().call(
                        peer,
                        Request::Free {
                            copy,
                            epoch,
                            version: None,
                        },
                    );
                    if let Err(error) = freed.await {
                        tracing::debug!(%copy, %peer, %error, "a surplus replica was not freed");
                    }
                }
            }
        }));
    }

    fn mend(&self, group: GroupId) -> bool {
        if let Some(at) = self.mend_failed.lock().get(&group)
            && at.elapsed() < MEND_AGAIN
        {
            return false;
        }
        let Some(streamlet) = self.streamlet.get().and_then(Weak::upgrade) else {
            return false;
        };
        let (primary, records) = (self.primary.clone(), self.records.clone());
        let key = self.key.group(group);
        let (told, outcome) = std::sync::mpsc::sync_channel(1);
        let runtime = primary.runtime().clone();
        runtime.spawn(Box::pin(async move {
            let stored = records.stored(key).map_err(|error| error.to_string());
            let mended = match stored {
                Ok(Some(record)) if record.is_closed() => {
                    own_files::replace(&primary, &streamlet, &record).await
                }
                Ok(_) => Err("its close is not recorded".into()),
                Err(error) => Err(error),
            };
            // Who asked may have given up.
            let _ = told.send(mended);
        }));
        let outcome = outcome.recv_timeout(MEND_WITHIN);
        match outcome.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(()) => {
                self.mend_failed.lock().remove(&group);
                true
            }
            Err(error) => {
                tracing::error!(streamlet = %self.key, %group, error, "a damaged group could not be fetched from another replica");
                let mut failed = self.mend_failed.lock();
                failed.retain(|_, at| at.elapsed() < MEND_AGAIN);
                failed.insert(group, Instant::now());
                false
            }
        }
    }

    fn abandon(&self) {
        let lanes: Vec<_> = self.lanes.lock().values().cloned().collect();
        lanes.iter().for_each(|lane| lane.abandon());
    }
}

/// The brokers but this one.
pub(crate) fn others(primary: &Primary) -> Vec<kera_replication::ids::BrokerId> {
    let peers = primary.peers();
    let peers = peers.iter().copied();
    peers.filter(|peer| *peer != primary.me()).collect()
}
