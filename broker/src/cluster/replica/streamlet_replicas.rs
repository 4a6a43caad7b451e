//! The replicas of one streamlet's groups: its lanes, as replication has them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kera_log_segments::replicas::GroupOwner;
use kera_metadata::{GroupKey, GroupRecord, StreamConfig};
use kera_protocol::ids::{Epoch, GroupId, LaneId};
use kera_replication::ids::CopyId;
use kera_replication::jobs::{Mend, Mended, Owned};
use kera_replication::primary::{LaneSpec, Primary, StreamletLanes};
use kera_replication::runtime::off;
use kera_replication::transport::Pending;
use kera_streamlet::Streamlet;
use parking_lot::Mutex;

use super::closed_records::{self, as_found, store, tell_given_up, unclean, without_bytes};
use super::fetching::{MayLack, NotFetched, fetch, is_recorded, lacked_by};
use super::own_files::{self, Leftovers};
use super::waiting::WaitingList;
use crate::clock::now_ms;
use crate::group_records::GroupRecords;
use crate::store_calls::blocking;

/// A reader waits at most so long for a damaged group to be fetched.
const MEND_WITHIN: Duration = Duration::from_secs(20);
/// A group that could not be fetched is tried again after this.
const MEND_AGAIN: Duration = Duration::from_secs(5);

/// Makes the replicas of one streamlet, under one epoch.
pub(crate) struct StreamletReplicas {
    lanes: Arc<StreamletLanes>,
    own: Arc<OwnFile>,
}

impl StreamletReplicas {
    /// Replicas of `streamlet`, which is to be served under `epoch`; its next group is `next_group` at
    /// the least. What closed groups turn out to lack is noted in the list.
    pub(crate) fn new(
        (primary, records, waiting): (Arc<Primary>, Arc<GroupRecords>, Arc<WaitingList>),
        streamlet: &Arc<Streamlet>,
        epoch: Epoch,
        next_group: GroupId,
        config: &StreamConfig,
    ) -> Arc<Self> {
        let spec = LaneSpec {
            streamlet: streamlet.key(),
            epoch,
            lane: LaneId(0),
            replicas: config.replicas as usize,
            min_insync_replicas: config.min_insync_replicas as usize,
        };
        let owner: Arc<dyn GroupOwner> = streamlet.clone();
        let owner = Arc::downgrade(&owner);
        let own = Arc::new(OwnFile {
            primary: primary.clone(),
            records,
            waiting,
            epoch,
            streamlet: Arc::downgrade(streamlet),
            failed: Mutex::default(),
        });
        let files = own.clone();
        let fetch = Box::new(move |group| files.fetch(group));
        let lanes = StreamletLanes::new(primary, spec, owner, next_group, now_ms, fetch);
        Arc::new(Self {
            lanes: Arc::new(lanes),
            own,
        })
    }

    /// Its lanes, as replication has them.
    pub(crate) fn lanes(&self) -> &Arc<StreamletLanes> {
        &self.lanes
    }

    /// The streamlet as jobs look at it, with those of its lanes that were appended to.
    pub(crate) fn owned(&self) -> Owned {
        let spec = self.lanes.spec();
        Owned {
            streamlet: spec.streamlet,
            epoch: spec.epoch,
            replicas: spec.replicas,
            min_insync_replicas: spec.min_insync_replicas,
            lanes: self.lanes.all(),
            mend: Some(self.own.clone()),
        }
    }

    /// Ends every lane as for a hand-over: drains, closes every group, deletes what was recorded
    /// ahead. The next start then finds nothing to recover.
    pub(crate) async fn finish(&self) {
        if let Err(error) = self.lanes.finish().await {
            tracing::warn!(streamlet = %self.lanes.spec().streamlet, %error, "a lane could not be closed; the next start recovers it");
        }
    }

    /// Whether these are the replicas of `streamlet`, and not of another stretch of its ownership.
    pub(crate) fn are_of(&self, streamlet: &Arc<Streamlet>) -> bool {
        std::ptr::eq(self.own.streamlet.as_ptr(), Arc::as_ptr(streamlet))
    }
}

/// This broker's own files of a streamlet, as the jobs and readers that meet damage put them right.
struct OwnFile {
    primary: Arc<Primary>,
    records: Arc<GroupRecords>,
    waiting: Arc<WaitingList>,
    epoch: Epoch,
    streamlet: Weak<Streamlet>,
    /// Groups that could be fetched from nobody, and when that was tried.
    failed: Mutex<HashMap<GroupId, Instant>>,
}

impl OwnFile {
    /// Fetches a closed group from another replica; see [`Copies::mend`](kera_streamlet::Copies::mend).
    fn fetch(&self, group: GroupId) -> bool {
        let Some(streamlet) = self.streamlet.upgrade() else {
            return false;
        };
        let streamlet_key = streamlet.key();
        let is_accepted = self.waiting.accepted(streamlet_key, group).is_some();
        if let Some(at) = self.failed.lock().get(&group)
            && at.elapsed() < MEND_AGAIN
            && !is_accepted
        {
            return false;
        }
        let key = streamlet_key.group(group);
        let (told, outcome) = std::sync::mpsc::sync_channel(1);
        let runtime = self.primary.runtime().clone();
        let replacing = Replacing {
            primary: self.primary.clone(),
            records: self.records.clone(),
            waiting: self.waiting.clone(),
            streamlet,
            epoch: self.epoch,
        };
        runtime.spawn(Box::pin(async move {
            // Who asked may have given up.
            let _ = told.send(replacing.replace(key).await);
        }));
        let outcome = outcome.recv_timeout(MEND_WITHIN);
        match outcome.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(()) => {
                self.failed.lock().remove(&group);
                true
            }
            Err(error) => {
                tracing::error!(streamlet = %streamlet_key, %group, error, "a damaged group could not be fetched from another replica");
                let mut failed = self.failed.lock();
                failed.retain(|_, at| at.elapsed() < MEND_AGAIN);
                failed.insert(group, Instant::now());
                false
            }
        }
    }
}

/// A closed group's own file that is damaged or gone, on its way to be put into its place at once, so that nobody reads
/// half of it.
struct Replacing {
    primary: Arc<Primary>,
    records: Arc<GroupRecords>,
    waiting: Arc<WaitingList>,
    streamlet: Arc<Streamlet>,
    epoch: Epoch,
}

impl Replacing {
    /// Says, for people, why the group could be had from nobody. What is whole nowhere stays away, and is noted, until the
    /// operator accepts that.
    async fn replace(&self, key: GroupKey) -> Result<(), String> {
        let records = self.records.clone();
        let stored = off(&**self.primary.runtime(), move || records.stored(key)).await;
        let record = match stored.map_err(|error| error.to_string())? {
            Some(record) if record.is_closed() => record,
            _ => return Err("its close is not recorded".into()),
        };
        let (streamlet, me) = (&self.streamlet, self.primary.me());
        let accepted = self.waiting.accepted(streamlet.key(), key.group);
        let file = own_files::OwnFile::new(streamlet, &record);
        let may_lack = match accepted {
            Some(from) => MayLack::From(from),
            // What is recorded as lost is no reason for another file, and none against one that has more.
            None if file.has_parts(&record, me) => {
                MayLack::LessThan(lacked_by(&file, &record).await)
            }
            None => MayLack::Recorded,
        };
        let fetched = fetch(&self.primary, &file, &record, may_lack).await;
        let (reason, lost_from) = match fetched {
            Ok(found) => {
                if !found.holes.is_empty() {
                    let own = closed_records::own(me, streamlet);
                    let changed = as_found(&record, &found, own, &self.waiting);
                    self.store(changed).await?;
                }
                self.waiting.lacks_no_more(streamlet.key(), key.group);
                return Ok(());
            }
            Err(NotFetched::Untold(reason)) => return Err(reason),
            Err(NotFetched::Nowhere(reason)) => {
                let first = record.start_ordinal();
                if accepted.is_some_and(|from| from <= first) {
                    self.store(Some(without_bytes(&record))).await?;
                    let name = (record.group, record.generation);
                    streamlet.forget_group(record.lane, name, record.next_ordinal);
                    tell_given_up(&record, &self.waiting);
                    self.waiting.lacks_no_more(streamlet.key(), key.group);
                    return Err("it is given up".into());
                }
                (reason, first)
            }
            Err(NotFetched::Holes(reason, holes)) => match holes.first() {
                // That is known and accepted, and its file has all else.
                Some(first) if is_recorded(&record, first) => return Err(reason),
                Some(first) => (reason, first.from.ordinal),
                None => return Err(reason),
            },
        };
        let lacking = unclean(&record, lost_from);
        let name = (streamlet.key(), record.generation);
        self.waiting.lacks(name.0, name.1, lacking, reason.clone());
        Err(format!("{reason}; `kera stream recover` tells of it"))
    }

    async fn store(&self, changed: Option<GroupRecord>) -> Result<(), String> {
        let changed: Vec<_> = changed.into_iter().collect();
        if changed.is_empty() {
            return Ok(());
        }
        let metadata = self.records.store();
        store(metadata, &self.streamlet, self.epoch, changed).await?;
        Ok(())
    }
}

impl Mend for OwnFile {
    fn is_settled(&self, record: &GroupRecord) -> bool {
        let served = self.streamlet.upgrade();
        served.is_some_and(|s| s.is_settled(record.lane, record.group, record.generation))
    }

    fn unflushed(&self) -> Vec<(GroupId, u32)> {
        let served = self.streamlet.upgrade();
        served.map_or_else(Vec::new, |s| s.unflushed_closed())
    }

    fn flushed(&self, record: &GroupRecord) {
        if let Some(streamlet) = self.streamlet.upgrade() {
            let name = (record.group, record.generation);
            streamlet.group_flushed(record.lane, name, false);
        }
    }

    fn mend(&self, record: &GroupRecord) -> Pending<Mended> {
        let (lane, group, generation) = (record.lane, record.group, record.generation);
        let (served, primary) = (self.streamlet.upgrade(), self.primary.clone());
        let (copy, epoch) = (CopyId::of(record), self.epoch);
        Box::pin(async move {
            let Some(streamlet) = served else {
                return Mended::NotYet;
            };
            if !streamlet.is_settled(lane, group, generation) {
                return Mended::NotYet;
            }
            let fetch = move || Ok::<_, String>(streamlet.fetch_again(lane, group));
            if blocking(fetch).await != Ok(true) {
                return Mended::No;
            }
            // What its store has is of before it owned the streamlet: its own file stands for it.
            match primary.free_kept(copy, epoch).await {
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
