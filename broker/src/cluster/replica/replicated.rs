//! The streamlets of this broker whose groups have copies at other brokers.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use futures::future::join_all;
use kera_metadata::StreamConfig;
use kera_protocol::ids::{Epoch, GroupId, LaneId, StreamId};
use kera_replication::ids::{BrokerId, CopyId, StreamletKey};
use kera_replication::jobs::{JobConfig, JobStats, Jobs, Owned};
use kera_replication::primary::{Primary, ReplicaPosition};
use kera_streamlet::Streamlet;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::deleted_streams::Forgotten;
use super::rewritten::ShipRewritten;
use super::streamlet_replicas::StreamletReplicas;
use super::waiting::WaitingList;
use crate::cluster::counts::{ControllerMetrics, OwnershipMetrics, WaitingMoves};
use crate::group_records::GroupRecords;

/// For so long after a stream was deleted its directory is looked for. Nobody is at work for it any more then.
const GONE_FOR: Duration = Duration::from_secs(600);

/// Streamlets taken over side by side. Each mostly waits: for the store, for copies, for disks.
const AT_ONCE: usize = 64;

/// Groups that lack copies, as they were counted last, by stream.
pub(crate) type Counted = Mutex<HashMap<StreamId, u64>>;

/// Replicated streamlets that this broker serves.
pub struct Replicated {
    primary: Arc<Primary>,
    records: Arc<GroupRecords>,
    served: Mutex<HashMap<StreamletKey, Arc<StreamletReplicas>>>,
    waiting: Arc<WaitingList>,
    forgotten: Forgotten,
    jobs: OnceLock<Arc<Jobs>>,
    /// Turns to take streamlets over.
    turns: Arc<Semaphore>,
    /// Streamlets that are being taken over.
    taking: Mutex<HashMap<StreamletKey, Weak<Taking>>>,
    ownership_metrics: OwnershipMetrics,
    counted: Counted,
    spreading: WaitingMoves,
    stirred: watch::Sender<u64>,
    controller_metrics: Arc<ControllerMetrics>,
    /// Streams that were deleted in this process's time, and when.
    gone: Mutex<HashMap<StreamId, Instant>>,
}

/// Held by whoever takes a streamlet over: its files are one task's at a time, even where the owner
/// changes away and back while an attempt is under way.
pub(crate) type Taking = tokio::sync::Mutex<()>;

impl Replicated {
    /// None served yet; `primary` must commit to `records`. Deleted streams that not every peer has
    /// heard of are remembered in `forget_dir`.
    pub fn new(primary: Arc<Primary>, records: Arc<GroupRecords>, forget_dir: PathBuf) -> Self {
        Self {
            primary,
            records,
            served: Mutex::default(),
            waiting: Arc::default(),
            forgotten: Forgotten::open(forget_dir),
            jobs: OnceLock::new(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            taking: Mutex::default(),
            ownership_metrics: OwnershipMetrics::default(),
            counted: Counted::default(),
            spreading: WaitingMoves::default(),
            stirred: watch::Sender::new(0),
            controller_metrics: Arc::default(),
            gone: Mutex::default(),
        }
    }

    /// To be held while a streamlet is taken over.
    pub(crate) fn taking(&self, streamlet: StreamletKey) -> Arc<Taking> {
        let mut taking = self.taking.lock();
        if let Some(known) = taking.get(&streamlet).and_then(Weak::upgrade) {
            return known;
        }
        taking.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Taking::default());
        taking.insert(streamlet, Arc::downgrade(&new));
        new
    }

    /// What owners' changes come to here.
    pub(crate) fn ownership_metrics(&self) -> &OwnershipMetrics {
        &self.ownership_metrics
    }

    /// Groups that lack copies, as they were counted last.
    pub(crate) fn counted(&self) -> &Counted {
        &self.counted
    }

    /// What it counts as controller.
    pub(crate) fn controller_metrics(&self) -> &Arc<ControllerMetrics> {
        &self.controller_metrics
    }

    /// Copies that are to move, as they were counted last.
    pub(crate) fn spreading(&self) -> &WaitingMoves {
        &self.spreading
    }

    /// Something has changed that the jobs may have work for: they look soon, and once for many changes.
    pub(crate) fn stirred(&self) {
        self.stirred.send_modify(|times| *times += 1);
    }

    /// How often [`stirred`](Self::stirred) was called.
    pub(crate) fn stirs(&self) -> watch::Receiver<u64> {
        self.stirred.subscribe()
    }

    /// Has the jobs look for work.
    pub(crate) fn ask_jobs(&self) {
        if let Some(jobs) = self.jobs.get() {
            jobs.ask();
        }
    }

    /// Waits until `bytes` more may be fetched in the background: jobs and whoever asks here keep to one
    /// limit, `cluster.repair_bytes_per_second`.
    pub(crate) async fn may_copy(&self, bytes: u64) {
        if let Some(jobs) = self.jobs.get() {
            jobs.may_copy(bytes).await;
        }
    }

    /// This broker's side as a primary.
    pub fn primary(&self) -> &Arc<Primary> {
        &self.primary
    }

    /// Turns to take streamlets over.
    pub(crate) fn turns(&self) -> Arc<Semaphore> {
        self.turns.clone()
    }

    /// The copies of `streamlet`, if it is served with copies.
    pub(crate) fn served(&self, streamlet: &Arc<Streamlet>) -> Option<Arc<StreamletReplicas>> {
        let served = self.served.lock().get(&streamlet.key()).cloned();
        served.filter(|copies| copies.are_of(streamlet))
    }

    /// Who brings what is rewritten of `streamlet` to other brokers, while it is served with copies.
    pub(crate) fn ships(&self, streamlet: &Arc<Streamlet>) -> Option<ShipRewritten> {
        let copies = self.served(streamlet)?;
        let jobs = self.jobs.get()?.clone();
        Some(ShipRewritten { jobs, copies })
    }

    /// `streamlet` is over: another broker owns it.
    pub(crate) fn unserve(&self, streamlet: &Arc<Streamlet>) {
        let key = streamlet.key();
        let mut served = self.served.lock();
        if served
            .get(&key)
            .is_some_and(|copies| copies.are_of(streamlet))
        {
            served.remove(&key);
        }
        drop(served);
        self.waiting.left(key);
    }

    /// The streamlets that are not served yet, and closed groups that are not whole.
    pub(crate) fn waiting(&self) -> &Arc<WaitingList> {
        &self.waiting
    }

    /// Serves `streamlet` under `epoch`, which this broker took, with groups from `next_group` on. Nothing
    /// is done if it is over: another stretch of its ownership may be served in its place by now.
    pub(crate) fn serve(
        &self,
        streamlet: &Arc<Streamlet>,
        epoch: Epoch,
        next_group: GroupId,
        config: &StreamConfig,
    ) {
        let (primary, records) = (self.primary.clone(), self.records.clone());
        let waiting = self.waiting.clone();
        let copies = StreamletReplicas::new(
            (primary, records, waiting),
            streamlet,
            epoch,
            next_group,
            config,
        );
        {
            let mut served = self.served.lock();
            // Whoever ends it later comes here to remove it.
            if streamlet.is_over() {
                return;
            }
            served.insert(streamlet.key(), copies.clone());
        }
        streamlet.serve(copies.lanes().clone());
    }

    /// Deleted streams that not every peer has heard of.
    pub(crate) fn forgotten(&self) -> &Forgotten {
        &self.forgotten
    }

    /// The jobs over what is served, which are to be run.
    pub(crate) fn begin_jobs(self: &Arc<Self>, config: JobConfig) -> Arc<Jobs> {
        let this = Arc::downgrade(self);
        let owned = move |one| {
            let this = this.upgrade();
            this.map_or_else(Vec::new, |this| this.owned(one))
        };
        let jobs = Jobs::new(&self.primary, Box::new(owned), config);
        self.jobs.get_or_init(|| jobs).clone()
    }

    /// What the jobs have done since this process began.
    pub(crate) fn job_stats(&self) -> JobStats {
        let jobs = self.jobs.get();
        jobs.map_or_else(JobStats::default, |jobs| jobs.stats())
    }

    /// Begins to look which holders of groups have less than their records say; see [`Jobs::confirm`].
    pub(crate) fn confirm(&self, streamlet: StreamletKey, groups: Vec<CopyId>) {
        if let Some(jobs) = self.jobs.get().cloned().filter(|_| !groups.is_empty()) {
            tokio::spawn(async move { jobs.confirm(streamlet, groups).await });
        }
    }

    /// Closed groups of which brokers lack what they are recorded to have; see [`Jobs::missing`].
    pub(crate) fn missing(&self) -> BTreeMap<CopyId, Vec<BrokerId>> {
        let jobs = self.jobs.get();
        jobs.map_or_else(BTreeMap::new, |jobs| jobs.missing())
    }

    /// How far the replicas of a streamlet's groups are that are not closed, by lane; nothing of one that is served by
    /// no lane here.
    pub(crate) async fn positions(
        &self,
        streamlet: StreamletKey,
    ) -> Vec<(LaneId, ReplicaPosition)> {
        let served = self.served.lock().get(&streamlet).cloned();
        let lanes = served.map_or_else(Vec::new, |copies| copies.lanes().all());
        let asked = lanes.iter().map(|lane| async move {
            let positions = lane.positions().await.into_iter();
            let of = lane.spec().lane;
            positions.map(move |position| (of, position))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// What is served, or one streamlet of it, as jobs look at it.
    pub(crate) fn owned(&self, one: Option<StreamletKey>) -> Vec<Owned> {
        let served = self.served.lock();
        let served: Vec<_> = match one {
            Some(streamlet) => served.get(&streamlet).cloned().into_iter().collect(),
            None => served.values().cloned().collect(),
        };
        served.iter().map(|copies| copies.owned()).collect()
    }

    /// The stream is about to be deleted; waits for the disk. To be called before its records go, so
    /// that backups that are away hear of it even if this broker ends in between.
    pub(crate) fn deleting(&self, stream: StreamId) {
        self.forgotten.deleting(stream);
    }

    /// The stream was deleted: its copies at other brokers are to be forgotten.
    pub(crate) fn forget(&self, stream: StreamId) {
        self.end(stream);
        self.forgotten.deleted(stream);
    }

    /// The stream was deleted by another broker, which sees to its copies.
    pub(crate) fn end(&self, stream: StreamId) {
        self.served.lock().retain(|key, _| key.stream != stream);
        self.waiting.forget(stream);
        self.gone.lock().insert(stream, Instant::now());
    }

    /// Removes the directories of deleted streams, below `streams`, that are there again: a take-over that was
    /// under way when its stream was deleted may have put a file in its place since. Waits for the disk.
    pub(crate) fn remove_gone(&self, streams: &Path) {
        let gone = {
            let mut gone = self.gone.lock();
            gone.retain(|_, since| since.elapsed() < GONE_FOR);
            gone.keys().copied().collect::<Vec<_>>()
        };
        for stream in gone {
            let dir = streams.join(stream.to_string());
            match std::fs::remove_dir_all(&dir) {
                Ok(()) => {
                    tracing::info!(dir = %dir.display(), "files of a deleted stream were left, or made since: they are removed");
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(dir = %dir.display(), %error, "files of a deleted stream are left; it is tried again");
                }
            }
        }
    }

    /// Drains and closes every group, for at most `within`: what is left then is recovered at the
    /// next start.
    pub(crate) async fn finish(&self, within: Duration) {
        let served: Vec<_> = self.served.lock().values().cloned().collect();
        let mut tasks = tokio::task::JoinSet::new();
        for copies in served {
            tasks.spawn(async move { copies.finish().await });
        }
        if tokio::time::timeout(within, tasks.join_all())
            .await
            .is_err()
        {
            tracing::warn!(
                "groups with replicas on other brokers could not be closed in time; the next start recovers them"
            );
        }
    }
}
