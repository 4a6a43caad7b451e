//! A lane at its primary: its groups, which are recorded and closed in their order. How far each is durable its
//! replica set tells it; the lane's durable head is the streamlet's.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_log_segments::group::Group;
use kera_log_segments::replicas::GroupOwner;
use kera_protocol::ids::{Epoch, GroupId, LaneId};
use kera_records::{GroupChange, GroupRecord, GroupState, Transaction, Write};
use parking_lot::Mutex;

use super::replica_set::{Appender, EndsGroups, ReplicaSet};
use super::stall_report::Watched;
use super::{Config, MAX_AHEAD, Primary, close};
use crate::ids::{AckPolicy, BrokerId, CopyId, Replica, StreamletKey, asked_of};
use crate::records::{MAX_CHANGES, RecordsError, StreamletRecords, commit, read};
use crate::runtime::off;
use crate::signal::Signal;
use crate::transport::Pending;

/// What a lane is, and what it promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSpec {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// This owner's epoch.
    pub epoch: Epoch,
    /// The lane.
    pub lane: LaneId,
    /// Copies of each group, the primary's own included.
    pub replicas: usize,
    /// Copies without which nothing is acknowledged and no group closed; at most `replicas`.
    pub min_insync_replicas: usize,
}

/// A lane that has gone through a group within this time is busy: its next one gets large buffers at
/// once.
const RECENT: Duration = Duration::from_secs(10);

/// Groups of unknown outcome that are remembered; of more, the oldest wait for the next owner.
const MAX_UNSURE: usize = 256;

/// A lane at its primary. Dropped, it ships nothing more and closes nothing: what it leaves open is
/// for the next owner to recover, see [`Lane::finish`].
pub struct Lane {
    pub(super) spec: LaneSpec,
    pub(super) primary: Arc<Primary>,
    /// The streamlet's least group id that was never given out, shared by its lanes.
    next_group: Arc<AtomicU64>,
    /// Groups recorded ahead: least, and how many there are then of a busy lane.
    ahead: (usize, usize),
    inner: Mutex<Inner>,
    /// Whether it goes on, as whoever watches it has seen.
    pub(super) watched: Mutex<Watched>,
    pub(super) signal: Arc<Signal>,
}

#[derive(Default)]
struct Inner {
    /// Groups without their close, oldest first.
    groups: VecDeque<Arc<ReplicaSet>>,
    /// Recorded, and nobody knows their ids yet.
    ahead: VecDeque<Ahead>,
    /// Recorded, and about to be opened: they count as used.
    handed_out: Vec<Ahead>,
    /// Recorded too late to be used; to be deleted with the next close.
    stale: Vec<Ahead>,
    /// Perhaps recorded: the store did not say.
    unsure: Vec<GroupId>,
    /// Who appends to the lane, since its first group.
    owner: Option<Weak<dyn GroupOwner>>,
    /// When a group was opened last.
    opened: Option<Duration>,
    /// Not long after the one before.
    busy: bool,
    /// The last id handed out.
    newest: Option<GroupId>,
    standing: LaneStanding,
    /// Transactions under way that record groups.
    recording: usize,
}

/// Whether a lane goes on at this owner.
#[derive(Clone, Debug, Default, PartialEq)]
enum LaneStanding {
    /// It takes groups.
    #[default]
    GoesOn,
    /// It takes no more, its groups are closed, and nothing is recorded ahead.
    Finishing,
    /// Another broker owns the streamlet, or its stream is gone: nothing is acknowledged any more.
    Deposed(RecordsError),
}

impl LaneStanding {
    fn deposed(&self) -> Option<&RecordsError> {
        match self {
            Self::Deposed(error) => Some(error),
            Self::GoesOn | Self::Finishing => None,
        }
    }

    fn goes_on(&self) -> bool {
        *self == Self::GoesOn
    }
}

/// A group that is recorded, and not used yet.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    pub(super) group: GroupId,
    pub(super) revision: u64,
    pub(super) holders: Vec<Replica>,
    /// What was asked of them.
    pub(super) ack: AckPolicy,
}

/// The groups that are recorded, and not used yet.
pub(super) fn group_ids(ahead: &[Ahead]) -> Vec<GroupId> {
    ahead.iter().map(|ahead| ahead.group).collect()
}

impl Lane {
    /// A lane of a streamlet that this broker owns under the spec's epoch.
    pub fn new(primary: Arc<Primary>, spec: LaneSpec, next_group: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self {
            spec,
            ahead: {
                let Config {
                    ahead, ahead_busy, ..
                } = primary.config;
                let least = ahead.min(MAX_AHEAD);
                (least, ahead_busy.clamp(least, MAX_AHEAD))
            },
            primary,
            next_group,
            inner: Mutex::default(),
            watched: Mutex::default(),
            signal: Arc::default(),
        })
    }

    /// The spec.
    pub fn spec(&self) -> &LaneSpec {
        &self.spec
    }

    /// The broker that owns it.
    pub fn primary(&self) -> &Arc<Primary> {
        &self.primary
    }

    /// The id of the lane's next group: one that is recorded ahead, or a new one. Each id is handed
    /// out once, and ids of a lane must be opened in the order they were handed out, as groups of the
    /// same policy.
    pub fn next_group(&self, ack: AckPolicy) -> GroupId {
        let ending = self.inner.lock().groups.clone();
        let lost: Vec<_> = ending.iter().flat_map(|set| set.lost()).collect();
        let health = &self.primary.health;
        let is_lost = |ahead: &Ahead| {
            let mut holders = ahead.holders.iter().map(|holder| holder.broker);
            holders.any(|at| lost.iter().any(|lost| lost.broker == at) || !health.is_up(at))
        };
        let mut inner = self.inner.lock();
        let group = loop {
            match inner.ahead.pop_front() {
                // It would end as the one before it did, or those of other lanes.
                Some(ahead) if is_lost(&ahead) => inner.stale.push(ahead),
                // The stream's policy was altered since.
                Some(ahead) if ahead.ack != ack => {
                    inner.stale.push(ahead);
                }
                // A lane's ids grow. One that was recorded while a higher one was handed out is of no
                // use any more.
                Some(ahead) if inner.newest.is_some_and(|newest| ahead.group < newest) => {
                    inner.stale.push(ahead);
                }
                Some(ahead) => {
                    let group = ahead.group;
                    inner.handed_out.push(ahead);
                    break group;
                }
                None => break GroupId(self.next_group.fetch_add(1, Ordering::AcqRel)),
            }
        };
        inner.newest = Some(group);
        group
    }

    /// Takes the lane's next group. It may be appended to at once; its record and its copies follow
    /// while the head stands still before it.
    pub fn open(self: &Arc<Self>, group: &Arc<Group>, appender: Appender) -> Arc<ReplicaSet> {
        let faults = self.primary.faults;
        let now = self.primary.runtime.now();
        let expected = {
            let inner = &mut *self.inner.lock();
            inner.owner = Some(appender.streamlet.clone());
            let opened = inner.opened.replace(now);
            let is_busy = opened.is_some_and(|then| now.saturating_sub(then) < RECENT);
            inner.busy = is_busy;
            // Where a group has just been filled the next will be.
            let last = inner.groups.back().filter(|_| is_busy);
            last.map_or(0, |set| set.group().end_address())
        };
        let lane = Arc::downgrade(self);
        let set = ReplicaSet::new(group, appender, lane, expected, faults);
        let ahead = {
            let mut inner = self.inner.lock();
            inner.groups.push_back(set.clone());
            let mut handed_out = inner.handed_out.iter();
            let at = handed_out.position(|ahead| ahead.group == group.id());
            at.map(|at| inner.handed_out.remove(at))
        };
        if let Some(ahead) = &ahead {
            set.set_recorded(ahead.revision, &ahead.holders, &self.primary);
        }
        let begin = close::begin(Arc::downgrade(self), set.clone());
        self.primary.runtime.spawn(Box::pin(begin));
        set
    }

    /// Ends the lane where it stands: its stream is gone. Nothing is closed, nothing more is
    /// acknowledged, and its tasks end.
    pub fn abandon(&self) {
        self.stop(RecordsError::NoStreamlet(self.spec.streamlet));
    }

    /// Ends the lane at this owner, as for a planned hand-over: takes no more, drains, closes every
    /// group, and deletes what was recorded ahead. The next owner then finds nothing to recover, and
    /// takes its epoch last.
    ///
    /// # Errors
    /// [`RecordsError`] if another broker has taken over meanwhile; after
    /// [`RecordsError::Unknown`] it may be called again.
    pub async fn finish(&self) -> Result<(), RecordsError> {
        let groups: Vec<_> = {
            let mut inner = self.inner.lock();
            if inner.standing.goes_on() {
                inner.standing = LaneStanding::Finishing;
            }
            inner.groups.iter().cloned().collect()
        };
        for set in groups {
            set.freeze();
        }
        self.until(|inner| inner.groups.is_empty() && inner.recording == 0)
            .await?;
        let found = self.read_records().await?;
        self.reclaim(&found.groups);
        let unused: Vec<_> = {
            let inner = &mut *self.inner.lock();
            let ahead = inner.ahead.drain(..).chain(inner.stale.drain(..));
            ahead.chain(inner.handed_out.drain(..)).collect()
        };
        self.delete(unused).await
    }

    /// Waits until every group is closed to which nothing is appended any more by now.
    ///
    /// # Errors
    /// [`RecordsError`] if another broker has taken over meanwhile.
    pub async fn closed_frozen(&self) -> Result<(), RecordsError> {
        let mut groups: Vec<_> = self.inner.lock().groups.iter().cloned().collect();
        groups.retain(|set| set.group().is_frozen());
        self.until(|_| groups.iter().all(|set| set.is_closed()))
            .await
    }

    /// Waits until `done`, or another broker has taken over.
    async fn until(&self, done: impl Fn(&Inner) -> bool) -> Result<(), RecordsError> {
        loop {
            let seen = self.signal.seen();
            {
                let inner = self.inner.lock();
                if let Some(error) = inner.standing.deposed() {
                    return Err(error.clone());
                }
                if done(&inner) {
                    return Ok(());
                }
            }
            self.signal.changed(seen).await;
        }
    }

    /// A group of this lane as it is recorded ahead of its use, its replicas still to be named.
    pub(super) fn new_group(&self, group: GroupId) -> GroupRecord {
        let key = self.spec.streamlet.group(group);
        GroupRecord {
            state: GroupState::Open,
            ..GroupRecord::new(key, self.spec.lane, self.spec.epoch)
        }
    }

    /// Deletes the record of a group that is not used.
    pub(super) fn delete_ahead(&self, ahead: &Ahead) -> GroupChange {
        Write::delete_group(self.spec.streamlet.group(ahead.group), ahead.revision)
    }

    /// Removes this broker's own files of groups that are not used. It goes on without being awaited.
    pub(super) fn drop_files(&self, unused: Vec<GroupId>, is_unrecorded: bool) -> Pending<()> {
        match self.owner().filter(|_| !unused.is_empty()) {
            Some(owner) => off(&*self.primary.runtime, move || {
                let unused = unused.into_iter();
                unused.for_each(|group| owner.drop_ahead(group, is_unrecorded));
            }),
            None => Box::pin(ready(())),
        }
    }

    fn owner(&self) -> Option<Arc<dyn GroupOwner>> {
        let owner = self.inner.lock().owner.clone();
        owner.and_then(|owner| owner.upgrade())
    }

    /// Makes this broker's own files of groups that are about to be recorded: of `begun`, which is in use, and of those
    /// `ahead` of their use. Returns whether the first is there, and those of the others whose file could be made.
    fn make_files(
        &self,
        begun: Option<Arc<Group>>,
        mut ahead: Vec<GroupId>,
        ack: AckPolicy,
    ) -> Pending<(bool, Vec<GroupId>)> {
        let (owner, lane) = (self.owner(), self.spec.lane);
        off(&*self.primary.runtime, move || {
            ahead.retain(|group| {
                let owner = owner.as_ref();
                owner.is_some_and(|owner| owner.make_ahead(lane, *group, ack))
            });
            // If it cannot be made, the first write says so.
            let is_made = begun.is_some_and(|group| group.make_file_to_record().is_ok());
            (is_made, ahead)
        })
    }

    /// Deletes the records of groups that are not used and never will be.
    async fn delete(&self, unused: Vec<Ahead>) -> Result<(), RecordsError> {
        let mut left = unused.as_slice();
        while !left.is_empty() {
            let (some, rest) = left.split_at(left.len().min(MAX_CHANGES));
            let deletes = some.iter().map(|ahead| self.delete_ahead(ahead));
            let transaction = Transaction::of_groups(self.spec.streamlet, self.spec.epoch, deletes);
            let (records, runtime) = (&self.primary.records, &*self.primary.runtime);
            if let Err(error) = commit(records, runtime, &transaction, false).await {
                // Asked again, this goes on where it stopped.
                let unsure = group_ids(left);
                self.inner.lock().unsure.extend(&unsure);
                self.drop_files(unsure, false).await;
                return Err(error);
            }
            self.drop_files(group_ids(some), true).await;
            left = rest;
        }
        Ok(())
    }

    /// Why this broker may not write the lane any more, if so.
    pub fn deposed(&self) -> Option<RecordsError> {
        self.inner.lock().standing.deposed().cloned()
    }

    /// The oldest group that waits for something, its copies or its close, and how many are behind it; none
    /// of a lane that is another broker's now.
    pub(super) fn first_that_waits(&self) -> Option<(Arc<ReplicaSet>, usize)> {
        let inner = self.inner.lock();
        if inner.standing.deposed().is_some() {
            return None;
        }
        let waits = |set: &Arc<ReplicaSet>| {
            let group = set.group();
            group.is_frozen() || set.durable() < group.end_address()
        };
        let at = inner.groups.iter().position(waits)?;
        Some((inner.groups.get(at)?.clone(), inner.groups.len() - at - 1))
    }

    /// True if no group before `set` lacks its close.
    pub(super) fn is_front(&self, set: &ReplicaSet) -> bool {
        let inner = self.inner.lock();
        inner
            .groups
            .front()
            .is_none_or(|front| front.id() == set.id())
    }

    /// True if a group without its close has lost a replica: what it has is acknowledged once it is closed, and those
    /// before it.
    pub(super) fn has_lost(&self) -> bool {
        let inner = self.inner.lock();
        inner.groups.iter().any(|set| !set.lost().is_empty())
    }

    /// Removes the groups whose closes are recorded, and wakes the tasks that wait for their turn to close a group.
    pub(super) fn let_go_closed(&self) {
        self.inner.lock().groups.retain(|set| !set.is_closed());
        self.signal.notify();
    }

    /// True if every group before `set` has its record. Records come in the lane's order, so that
    /// whatever is recorded of a lane says where it begins.
    fn is_next_to_record(&self, set: &ReplicaSet) -> bool {
        let inner = self.inner.lock();
        let before = inner.groups.iter().take_while(|g| g.id() != set.id());
        before.into_iter().all(|g| g.revision() != 0)
    }

    pub(super) fn is_deposed(&self) -> bool {
        self.inner.lock().standing.deposed().is_some()
    }

    /// Another broker owns the streamlet, or its stream is gone: nothing is acknowledged any more. The lane may have no
    /// group at this moment, and its streamlet's other lanes have heard nothing; so the streamlet itself is told, which
    /// answers every append that waits. Call without a lock.
    pub(super) fn depose(&self, error: RecordsError) {
        if self.stop(error)
            && let Some(owner) = self.owner()
        {
            owner.deposed();
        }
    }

    /// Ships and records nothing more; false if that is so already.
    fn stop(&self, error: RecordsError) -> bool {
        let (groups, is_first) = {
            let inner = &mut *self.inner.lock();
            let is_first = inner.standing.deposed().is_none();
            if is_first && matches!(error, RecordsError::NoStreamlet(_)) {
                tracing::debug!(streamlet = %self.spec.streamlet, "the stream is gone; the lane ends");
            } else if is_first {
                tracing::warn!(streamlet = %self.spec.streamlet, epoch = %self.spec.epoch, %error, "no longer the owner; nothing more is acknowledged");
            }
            if is_first {
                inner.standing = LaneStanding::Deposed(error);
            }
            inner.ahead.clear();
            (inner.groups.clone(), is_first)
        };
        for set in groups {
            set.signal.notify();
            set.leave_shippers();
        }
        self.signal.notify();
        is_first
    }

    /// The groups recorded ahead that name any of `lost`, and those that came too late: they must not
    /// be used, and go with the next close. Of a lane that comes to rest, all.
    pub(super) fn take_ahead_of(&self, lost: &[Replica]) -> Vec<Ahead> {
        let now = self.primary.runtime.now();
        let mut inner = self.inner.lock();
        // Nothing was appended since: what is recorded ahead would be there for long, and its brokers may
        // not be what they were when it is used, or when somebody has to decide about it.
        let opened = inner.opened.unwrap_or_default();
        let rests = inner.groups.len() <= 1 && now.saturating_sub(opened) >= RECENT;
        let all = std::mem::take(&mut inner.ahead);
        let names = |ahead: &Ahead| {
            let mut brokers = ahead.holders.iter().map(|h| h.broker);
            rests || brokers.any(|broker| lost.iter().any(|l| l.broker == broker))
        };
        let (named, kept) = all.into_iter().partition::<VecDeque<_>, _>(names);
        inner.ahead = kept;
        let mut unused: Vec<_> = named.into();
        // One transaction deletes them; what does not fit goes with a later close.
        let surplus = unused.split_off(unused.len().min(MAX_AHEAD));
        inner.stale.extend(surplus);
        let stale = inner.stale.len().min(MAX_CHANGES - 1 - MAX_AHEAD);
        unused.extend(inner.stale.drain(..stale));
        unused
    }

    /// The groups that take appends with other copies than they should have: too few, or some at a
    /// broker that leaves.
    pub(super) fn ill_placed(&self) -> Vec<Arc<ReplicaSet>> {
        let inner = self.inner.lock();
        if !inner.standing.goes_on() {
            return Vec::new();
        }
        let ill = |set: &&Arc<ReplicaSet>| {
            let is_short = set.replicas_recorded() < self.spec.replicas;
            let ends = is_short || self.names_one_that_leaves(set.holders().iter());
            set.revision() != 0 && ends && !set.group().is_frozen()
        };
        inner.groups.iter().filter(ill).cloned().collect()
    }

    fn names_one_that_leaves<'a>(&self, mut holders: impl Iterator<Item = &'a Replica>) -> bool {
        holders.any(|holder| self.primary.is_leaving(holder.broker))
    }

    /// What is recorded ahead with other copies than it should have is not used any more, and goes with
    /// the next close.
    pub(super) fn drop_ill_ahead(&self) {
        self.drop_ahead(|ahead| {
            let is_short = ahead.holders.len() < self.spec.replicas;
            is_short || self.names_one_that_leaves(ahead.holders.iter())
        });
    }

    /// What is recorded ahead and `ill` is not used any more, and goes with the next close.
    pub(super) fn drop_ahead(&self, ill: impl Fn(&Ahead) -> bool) {
        let inner = &mut *self.inner.lock();
        let ahead = std::mem::take(&mut inner.ahead);
        let (ill, well) = ahead.into_iter().partition::<VecDeque<_>, _>(ill);
        inner.ahead = well;
        inner.stale.extend(ill);
    }

    /// The brokers that groups recorded ahead name.
    pub(crate) fn brokers_ahead(&self) -> Vec<BrokerId> {
        let inner = self.inner.lock();
        let holders = inner.ahead.iter().flat_map(|ahead| &ahead.holders);
        holders.map(|holder| holder.broker).collect()
    }

    /// The groups without their close.
    pub(super) fn open_groups(&self) -> Vec<Arc<ReplicaSet>> {
        self.inner.lock().groups.iter().cloned().collect()
    }

    /// True if something is recorded that is not used any more, and nobody ends the lane, who would see
    /// to it.
    pub(super) fn has_stale(&self) -> bool {
        let inner = self.inner.lock();
        !inner.stale.is_empty() && inner.standing.goes_on()
    }

    /// True if a group of another durability was recorded ahead, and is not used any more.
    fn has_stale_but(&self, ack: AckPolicy) -> bool {
        let stale = &self.inner.lock().stale;
        stale.iter().any(|ahead| ahead.ack != ack)
    }

    /// The brokers of a group that is recorded ahead at one that leaves, where no group is open with
    /// whose close it would go.
    pub(super) fn ahead_at_one_that_leaves(&self) -> Option<(AckPolicy, Vec<BrokerId>)> {
        let inner = self.inner.lock();
        if !inner.standing.goes_on() || !inner.groups.is_empty() {
            return None;
        }
        let ahead = inner.ahead.iter().chain(&inner.stale);
        let mut ahead = ahead.filter(|ahead| self.names_one_that_leaves(ahead.holders.iter()));
        let found = ahead.next()?;
        let brokers = found.holders.iter().map(|holder| holder.broker).collect();
        Some((found.ack, brokers))
    }

    /// Deletes now what would go with the next close.
    pub(super) async fn delete_stale(&self) {
        let stale = std::mem::take(&mut self.inner.lock().stale);
        if let Err(error) = self.delete(stale).await {
            tracing::debug!(streamlet = %self.spec.streamlet, %error, "groups recorded ahead are not deleted yet");
        }
    }

    /// The streamlet's records, if this is still its owner.
    pub(super) async fn read_records(&self) -> Result<StreamletRecords, RecordsError> {
        let primary = &self.primary;
        let found = read(&primary.records, &*primary.runtime, self.spec.streamlet).await?;
        if found.streamlet.epoch != self.spec.epoch {
            return Err(RecordsError::Epoch {
                streamlet: self.spec.streamlet,
                expected: self.spec.epoch,
                found: found.streamlet.epoch,
            });
        }
        Ok(found)
    }

    /// Whether there are groups of which it is not known whether they were recorded.
    pub(crate) fn has_unsure(&self) -> bool {
        !self.inner.lock().unsure.is_empty()
    }

    /// Takes note of which groups of unknown outcome were recorded after all: nobody uses them, and
    /// they go with the next close. One that is not there may still come.
    pub(crate) fn reclaim(&self, found: &[GroupRecord]) {
        let inner = &mut *self.inner.lock();
        for group in std::mem::take(&mut inner.unsure) {
            let mut open = found.iter().filter(|record| !record.is_closed());
            match open.find(|record| record.group == group) {
                Some(record) => inner.stale.push(Ahead {
                    group,
                    revision: record.revision,
                    holders: record.copies.clone(),
                    ack: asked_of(&record.copies),
                }),
                None => inner.unsure.push(group),
            }
        }
        let surplus = inner.unsure.len().saturating_sub(MAX_UNSURE);
        inner.unsure.drain(..surplus);
    }

    /// After a commit of unknown outcome: takes over what it recorded, if it did. False if it did not.
    pub(super) async fn adopt(&self, set: &ReplicaSet) -> Result<bool, RecordsError> {
        let found = self.read_records().await?;
        self.reclaim(&found.groups);
        let mut open = found.groups.iter().filter(|record| !record.is_closed());
        let record = open.find(|record| CopyId::of(record) == set.id());
        if let Some(record) = record {
            set.set_recorded(record.revision, &record.copies, &self.primary);
        }
        Ok(record.is_some())
    }

    /// Records `set`, unless it was recorded ahead, and as many groups ahead as there should be.
    /// Returns false if too few holders can be found now, or an earlier group is to be recorded first.
    pub(super) async fn record(&self, set: &ReplicaSet) -> Result<bool, RecordsError> {
        self.inner.lock().recording += 1;
        let recorded = self.record_all(set).await;
        if recorded == Ok(true) && self.has_stale_but(set.ack()) {
            // Its holders' lives may end before the lane's next close: then a person would have to decide about
            // a group in which nothing is.
            self.delete_stale().await;
        }
        self.inner.lock().recording -= 1;
        self.signal.notify();
        recorded
    }

    async fn record_all(&self, set: &ReplicaSet) -> Result<bool, RecordsError> {
        let (spec, primary) = (&self.spec, &self.primary);
        if !self.is_next_to_record(set) {
            return Ok(false);
        }
        let least = spec.min_insync_replicas;
        let holders = primary
            .choose(least, spec.replicas, (&[], &[]), set.ack())
            .await;
        if holders.len() < least {
            return Ok(false);
        }
        let missing = {
            let inner = self.inner.lock();
            let there = inner.ahead.len();
            let (least, busy) = self.ahead;
            if !inner.standing.goes_on() || there >= least {
                0
            } else if inner.busy {
                busy - there
            } else {
                least - there
            }
        };
        let ids = self.next_group.fetch_add(missing as u64, Ordering::AcqRel);
        let mut ahead: Vec<_> = (ids..).take(missing).map(GroupId).collect();
        let itself = (set.revision() == 0).then_some(set.id().group);
        // A record that names the own file comes after it: then one that is not there was removed. Of `memory` the
        // process answers, and no file.
        let has_file = set.ack() != AckPolicy::Memory
            && holders.iter().any(|holder| primary.is_own(holder.broker));
        let mut is_made = false;
        if has_file {
            let begun = itself.map(|_| set.group().clone());
            (is_made, ahead) = self.make_files(begun, ahead, set.ack()).await;
        }
        let groups: Vec<_> = itself.into_iter().chain(ahead.iter().copied()).collect();
        if groups.is_empty() {
            return Ok(true);
        }
        // Known only when everything before is closed.
        let first = self.is_front(set).then(|| set.group().spec().first_ordinal);
        let open = |group: &GroupId| {
            let record = GroupRecord {
                first_ordinal: first.filter(|_| itself == Some(*group)),
                copies: holders.clone(),
                file_made: has_file && (itself != Some(*group) || is_made),
                ..self.new_group(*group)
            };
            record.put()
        };
        let transaction =
            Transaction::of_groups(spec.streamlet, spec.epoch, groups.iter().map(open));
        let committed = commit(&primary.records, &*primary.runtime, &transaction, false).await;
        let revision = match committed {
            Ok(revision) => revision,
            Err(error) => {
                let is_unknown = matches!(error, RecordsError::Unknown(_));
                if is_unknown {
                    self.inner.lock().unsure.extend(&ahead);
                }
                self.drop_files(ahead, !is_unknown).await;
                return Err(error);
            }
        };
        self.inner
            .lock()
            .ahead
            .extend(ahead.into_iter().map(|group| Ahead {
                group,
                revision,
                holders: holders.clone(),
                ack: set.ack(),
            }));
        if itself.is_some() {
            // Without the lock: what the group's own file did before counts from now on.
            set.set_recorded(revision, &holders, primary);
        }
        Ok(true)
    }
}

impl EndsGroups for Lane {
    fn end(self: Arc<Self>, set: Arc<ReplicaSet>) {
        let end = close::end(Arc::downgrade(&self), set);
        self.primary.runtime.spawn(Box::pin(end));
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Tasks that end groups find that they are over.
        for set in &self.inner.get_mut().groups {
            set.signal.notify();
            set.leave_shippers();
        }
        self.signal.notify();
    }
}
