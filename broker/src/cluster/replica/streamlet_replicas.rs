//! The replicas of one streamlet's groups: its lanes, as replication has them.

use std::collections::HashMap;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kera_log_segments::replicas::{GroupOwner, Mending};
use kera_metadata::{GroupKey, GroupRecord, LostRecords, MetadataError, StreamConfig};
use kera_protocol::ids::{Epoch, GroupId, LaneId};
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::jobs::{Mend, Mended, Owned};
use kera_replication::primary::{LaneSpec, Primary, StreamletLanes};
use kera_replication::runtime::off;
use kera_replication::transport::Pending;
use kera_streamlet::Streamlet;
use parking_lot::Mutex;

use super::closed_records::{self, all_of, as_found, store, tell_given_up, without_bytes};
use super::fetching::{MayLack, NotFetched, Told, fetch, is_recorded, lacked_by, not_recorded};
use super::own_files::{self, Leftovers, may_be_of_others};
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
            failed: Arc::default(),
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
    /// Groups that could be fetched from nobody, or not whole.
    failed: Arc<Mutex<HashMap<GroupId, Failed>>>,
}

/// An attempt to fetch a group that did not bring all of it.
struct Failed {
    at: Instant,
    why: Why,
}

/// Why a group is not whole here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// All that it lacks was given up.
    GivenUp,
    /// Who may have it whole does not answer, or what decides about it: it is not known yet whether anything is lost.
    Untold,
    /// All who are recorded with a replica have answered.
    Nowhere,
}

impl From<Why> for Mending {
    fn from(why: Why) -> Self {
        match why {
            Why::Untold => Self::NotYet,
            Why::GivenUp | Why::Nowhere => Self::Nowhere,
        }
    }
}

/// What was put in the place of a file.
enum Replaced {
    /// All that counts of the group.
    Whole,
    /// What of it is whole on some replica. Its record stays as it is: it names no more replicas, and no loss.
    InPart,
}

/// Why a group was not fetched.
struct NotReplaced {
    /// For people.
    reason: String,
    why: Why,
    /// Nobody was asked yet: what decides about it does not answer.
    is_put_off: bool,
}

impl NotReplaced {
    fn untold(reason: String) -> Self {
        Self {
            why: Why::Untold,
            ..reason.into()
        }
    }
}

impl From<String> for NotReplaced {
    fn from(reason: String) -> Self {
        Self {
            reason,
            why: Why::Nowhere,
            is_put_off: false,
        }
    }
}

impl From<MetadataError> for NotReplaced {
    fn from(error: MetadataError) -> Self {
        let is_away = matches!(
            error,
            MetadataError::Unavailable { .. } | MetadataError::Overloaded { .. }
        );
        let untold = Self::untold(error.to_string());
        Self {
            is_put_off: is_away,
            ..untold
        }
    }
}

impl From<RecvTimeoutError> for NotReplaced {
    fn from(error: RecvTimeoutError) -> Self {
        match error {
            RecvTimeoutError::Timeout => Self {
                is_put_off: true,
                ..Self::untold(format!("it takes longer than {MEND_WITHIN:?}"))
            },
            RecvTimeoutError::Disconnected => Self::untold("this broker stops".into()),
        }
    }
}

impl OwnFile {
    /// Fetches a closed group from another replica; see [`Copies::mend`](kera_streamlet::Copies::mend).
    fn fetch(&self, group: GroupId) -> Mending {
        let Some(streamlet) = self.streamlet.upgrade() else {
            return Mending::NotYet;
        };
        let streamlet_key = streamlet.key();
        let is_accepted = self.waiting.accepted(streamlet_key, group).is_some();
        if let Some(failed) = self.failed.lock().get(&group)
            && failed.at.elapsed() < MEND_AGAIN
            && !is_accepted
        {
            return failed.why.into();
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
        match outcome.unwrap_or_else(|error| Err(error.into())) {
            Ok(Replaced::Whole) => {
                self.failed.lock().remove(&group);
                Mending::Done
            }
            Ok(Replaced::InPart) => {
                self.note(group, Why::Untold);
                Mending::Done
            }
            Err(NotReplaced {
                reason,
                why,
                is_put_off,
            }) => {
                match is_put_off {
                    true => {
                        tracing::warn!(streamlet = %streamlet_key, %group, waits_for = reason, "a group whose file is not whole is not looked for at other replicas yet; trying again")
                    }
                    false => {
                        tracing::error!(streamlet = %streamlet_key, %group, error = reason, "a damaged group could not be fetched from another replica")
                    }
                }
                self.note(group, why);
                why.into()
            }
        }
    }

    /// Notes that a group was not fetched, or not all of it.
    fn note(&self, group: GroupId, why: Why) {
        let mut failed = self.failed.lock();
        failed.retain(|_, failed| failed.at.elapsed() < MEND_AGAIN);
        let at = Instant::now();
        failed.insert(group, Failed { at, why });
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
    async fn replace(&self, key: GroupKey) -> Result<Replaced, NotReplaced> {
        let records = self.records.clone();
        let stored = off(&**self.primary.runtime(), move || records.stored(key)).await;
        let record = match stored? {
            Some(record) if record.is_closed() => record,
            _ => return Err(String::from("its close is not recorded").into()),
        };
        let (streamlet, me) = (&self.streamlet, self.primary.me());
        let accepted = self.waiting.accepted(streamlet.key(), key.group);
        let file = own_files::OwnFile::new(streamlet, &record);
        let may_lack = match &accepted {
            Some(lost) => MayLack::Accepted(lost.clone()),
            // What is recorded as lost is no reason for another file, and none against one that has more.
            None if file.has_parts(&record, me) => {
                MayLack::LessThan(lacked_by(&file, &record).await)
            }
            // A file with holes that may not be what is recorded would keep the next owner from serving the streamlet.
            None if file.is_there() || may_be_of_others(&record, me) => MayLack::Recorded,
            None => MayLack::ForNow,
        };
        let fetched = fetch(&self.primary, &file, &record, &may_lack).await;
        let (reason, lost) = match fetched {
            Ok(found) => {
                let new = found.holes.iter().copied();
                let new: Vec<_> = new.filter(|hole| !is_recorded(&record, hole)).collect();
                if !new.is_empty() && matches!(may_lack, MayLack::ForNow) {
                    let told = Told(&new);
                    let reason = format!("{told} are whole on none of the replicas that answer");
                    self.waiting
                        .lacks(&record, not_recorded(&record, &new), reason);
                    return Ok(Replaced::InPart);
                }
                if !found.holes.is_empty() {
                    let own = closed_records::own(me, streamlet);
                    let changed = as_found(&record, &found, own, &self.waiting);
                    self.store(changed).await?;
                }
                self.waiting.lacks_no_more(streamlet.key(), key.group);
                return Ok(Replaced::Whole);
            }
            Err(NotFetched::Untold(reason)) => return Err(NotReplaced::untold(reason)),
            // Nothing is lost: other brokers have it.
            Err(NotFetched::Blocked(reason)) => {
                self.waiting
                    .lacks(&record, LostRecords::default(), reason.clone());
                return Err(reason.into());
            }
            Err(NotFetched::Nowhere(reason)) => {
                let all = all_of(&record);
                if may_lack.is_for_all_of(&record) {
                    self.store(Some(without_bytes(&record))).await?;
                    let name = (record.group, record.generation);
                    streamlet.forget_group(record.lane, name, record.next_ordinal);
                    tell_given_up(&record, &self.waiting);
                    self.waiting.lacks_no_more(streamlet.key(), key.group);
                    return Err(String::from("it is given up").into());
                }
                (reason, all)
            }
            Err(NotFetched::Holes(reason, holes)) => (reason, not_recorded(&record, &holes)),
        };
        if lost.is_empty() {
            // Its file has all else.
            self.waiting.lacks_no_more(streamlet.key(), key.group);
            return Err(NotReplaced {
                why: Why::GivenUp,
                ..reason.into()
            });
        }
        self.waiting.lacks(&record, lost, reason.clone());
        let reason = format!("{reason}; `kera stream recover` tells of it");
        let alive = self.primary.peers();
        let is_away = |holder: BrokerId| holder != me && !alive.contains(&holder);
        Err(match record.copies.iter().any(|c| is_away(c.broker)) {
            // What it has may end this: who reads tries again until it is back, or the loss is accepted.
            true => NotReplaced::untold(reason),
            false => reason.into(),
        })
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
        let (copy, epoch, failed) = (CopyId::of(record), self.epoch, self.failed.clone());
        Box::pin(async move {
            let Some(streamlet) = served else {
                return Mended::NotYet;
            };
            if !streamlet.is_settled(lane, group, generation) {
                return Mended::NotYet;
            }
            // What a reader met a moment ago is no reason not to look.
            failed.lock().remove(&group);
            let fetch = move || Ok::<_, String>(streamlet.fetch_again(lane, group));
            if blocking(fetch).await != Ok(true) {
                let failed = failed.lock();
                return match failed.get(&group).map(|failed| failed.why) {
                    Some(Why::GivenUp) => Mended::GivenUp,
                    _ => Mended::No,
                };
            }
            // A part is no replica: what its store has may be worth more to others.
            if failed.lock().contains_key(&group) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_stands_still_says_nothing_of_damage() {
        let away = MetadataError::Unavailable {
            store: "etcd:2379".to_owned(),
            detail: "timed out".to_owned(),
        };
        let put_off = NotReplaced::from(away);
        assert!(put_off.is_put_off && put_off.reason.contains("etcd:2379"));
        assert!(NotReplaced::from(RecvTimeoutError::Timeout).is_put_off);
        let wrong = MetadataError::Corrupt {
            path: "metadata".into(),
            detail: "a record".to_owned(),
        };
        assert!(!NotReplaced::from(wrong).is_put_off);
        let nowhere = String::from("no replica has it whole");
        assert!(!NotReplaced::from(nowhere).is_put_off);
    }
}
