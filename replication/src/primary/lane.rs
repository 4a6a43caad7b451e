//! A lane at its primary: its groups in order, and the head up to which they are durable.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_protocol::ids::{Epoch, GroupId, LaneId};
use parking_lot::Mutex;

use super::copy_set::CopySet;
use super::source::Source;
use super::{Primary, close};
use crate::ids::{CopyId, Holder, StreamletKey};
use crate::records::{Change, MAX_CHANGES, OpenRecord, RecordsError, Transaction, commit, read};
use crate::runtime::within;
use crate::signal::Signal;

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
    pub min_copies: usize,
}

/// Where a lane is durable: everything in groups before `group`, and below `address` in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// The group.
    pub group: GroupId,
    /// The address in it.
    pub address: u64,
}

/// Why an append is not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Too few copies for too long. The bytes may still become durable.
    #[error("fewer than {need} copies could be reached in time; send again")]
    NotEnoughCopies {
        /// The stream's `min_copies`.
        need: usize,
    },
    /// Another broker owns the streamlet: this one acknowledges nothing more.
    #[error("this broker no longer owns the streamlet: {0}")]
    Deposed(RecordsError),
}

impl AppendError {
    /// True if the same append may succeed here later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::NotEnoughCopies { .. })
    }
}

/// A lane at its primary.
pub struct Lane {
    pub(super) spec: LaneSpec,
    pub(super) primary: Arc<Primary>,
    /// The streamlet's least group id that was never given out, shared by its lanes.
    next_group: Arc<AtomicU64>,
    inner: Mutex<Inner>,
    pub(super) signal: Signal,
}

#[derive(Default)]
struct Inner {
    /// Groups without their close, oldest first.
    groups: VecDeque<Arc<CopySet>>,
    head: Head,
    /// Recorded, and nobody knows their ids yet.
    ahead: VecDeque<Ahead>,
    /// Recorded, and about to be opened: they count as used.
    handed_out: Vec<Ahead>,
    /// Recorded too late to be used; to be deleted with the next close.
    stale: Vec<Ahead>,
    /// The last id handed out.
    newest: Option<GroupId>,
    deposed: Option<RecordsError>,
    /// Transactions under way that record groups.
    recording: usize,
    /// Nothing is recorded ahead any more.
    finishing: bool,
}

/// A group that is recorded, and not used yet.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    pub(super) group: GroupId,
    pub(super) revision: u64,
    pub(super) holders: Vec<Holder>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("spec", &self.spec)
            .field("head", &self.head())
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// A lane of a streamlet that this broker owns under the spec's epoch.
    pub fn new(primary: Arc<Primary>, spec: LaneSpec, next_group: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self {
            spec,
            primary,
            next_group,
            inner: Mutex::default(),
            signal: Signal::default(),
        })
    }

    /// The spec.
    pub fn spec(&self) -> &LaneSpec {
        &self.spec
    }

    /// The id of the lane's next group: one that is recorded ahead, or a new one. Each id is handed
    /// out once, and ids of a lane must be opened in the order they were handed out.
    pub fn next_group(&self) -> GroupId {
        let mut inner = self.inner.lock();
        let group = loop {
            match inner.ahead.pop_front() {
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
    pub fn open(self: &Arc<Self>, group: GroupId, source: Arc<dyn Source>) -> Arc<CopySet> {
        let id = CopyId {
            streamlet: self.spec.streamlet,
            group,
            epoch: self.spec.epoch,
        };
        let faults = self.primary.faults;
        let set = Arc::new(CopySet::new(id, source, Arc::downgrade(self), faults));
        let ahead = {
            let mut inner = self.inner.lock();
            inner.groups.push_back(set.clone());
            let mut handed_out = inner.handed_out.iter();
            let at = handed_out.position(|ahead| ahead.group == group);
            at.map(|at| inner.handed_out.remove(at))
        };
        if let Some(ahead) = &ahead {
            set.set_recorded(ahead.revision, &ahead.holders, &self.primary);
        }
        let life = close::life(self.clone(), set.clone());
        self.primary.runtime.spawn(Box::pin(life));
        set
    }

    /// Bytes of `set` were published: its pumps are told. Call without holding a lock.
    pub fn grew(&self, set: &CopySet) {
        set.wake_pumps();
    }

    /// Nothing more will be appended to `set`: it closes once it is durable.
    pub fn froze(&self, set: &CopySet) {
        set.signal.notify();
        self.advance();
    }

    /// Ends the lane at this owner, as for a planned hand-over: takes no more, drains, closes every
    /// group, and deletes what was recorded ahead. The next owner then finds nothing to recover, and
    /// takes its epoch last.
    ///
    /// # Errors
    /// [`RecordsError`] if another broker has taken over meanwhile.
    pub async fn finish(&self) -> Result<(), RecordsError> {
        let groups: Vec<_> = {
            let mut inner = self.inner.lock();
            inner.finishing = true;
            inner.groups.iter().cloned().collect()
        };
        for set in groups {
            set.source().freeze();
            self.froze(&set);
        }
        loop {
            let seen = self.signal.seen();
            {
                let inner = self.inner.lock();
                if let Some(error) = &inner.deposed {
                    return Err(error.clone());
                }
                if inner.groups.is_empty() && inner.recording == 0 {
                    break;
                }
            }
            self.signal.changed(seen).await;
        }
        let unused: Vec<_> = {
            let inner = &mut *self.inner.lock();
            let ahead = inner.ahead.drain(..).chain(inner.stale.drain(..));
            ahead.chain(inner.handed_out.drain(..)).collect()
        };
        for some in unused.chunks(MAX_CHANGES) {
            let delete = |ahead: &Ahead| Change::Delete {
                group: ahead.group,
                revision: ahead.revision,
            };
            let transaction = Transaction {
                streamlet: self.spec.streamlet,
                epoch: self.spec.epoch,
                changes: some.iter().map(delete).collect(),
            };
            let (records, runtime) = (&self.primary.records, &*self.primary.runtime);
            commit(records, runtime, &transaction, false).await?;
        }
        Ok(())
    }

    /// The durable head.
    pub fn head(&self) -> Head {
        self.inner.lock().head
    }

    /// Why this broker may not write the lane any more, if so.
    pub fn deposed(&self) -> Option<RecordsError> {
        self.inner.lock().deposed.clone()
    }

    /// Waits until everything below `address` of `group` is durable.
    ///
    /// # Errors
    /// [`AppendError`]; after `NotEnoughCopies` the bytes may still become durable.
    pub async fn acknowledged(
        self: Arc<Self>,
        group: GroupId,
        address: u64,
    ) -> Result<(), AppendError> {
        let deadline = self.primary.config.append_deadline;
        let need = self.spec.min_copies;
        let runtime = self.primary.runtime.clone();
        let wait = async move {
            loop {
                let seen = self.signal.seen();
                {
                    let inner = self.inner.lock();
                    if let Some(error) = &inner.deposed {
                        return Err(AppendError::Deposed(error.clone()));
                    }
                    if inner.head >= (Head { group, address }) {
                        return Ok(());
                    }
                }
                self.signal.changed(seen).await;
            }
        };
        let waited = within(&*runtime, deadline, Box::pin(wait)).await;
        waited.unwrap_or(Err(AppendError::NotEnoughCopies { need }))
    }

    /// Moves the head over what all copies hold, and wakes who waited.
    pub(super) fn advance(&self) {
        let moved = {
            let mut inner = self.inner.lock();
            let mut head = inner.head;
            for set in &inner.groups {
                head = head.max(Head {
                    group: set.id().group,
                    address: set.durable(),
                });
                if !set.is_passed() {
                    break;
                }
            }
            while inner.groups.front().is_some_and(|set| set.is_closed()) {
                inner.groups.pop_front();
            }
            // A deposed owner may still see completions of what came before; it stays silent.
            let moved = head > inner.head && inner.deposed.is_none();
            if moved {
                inner.head = head;
            }
            moved
        };
        if moved {
            self.signal.notify();
        }
    }

    /// True if no group before `set` lacks its close.
    pub(super) fn is_front(&self, set: &CopySet) -> bool {
        let inner = self.inner.lock();
        inner
            .groups
            .front()
            .is_none_or(|front| front.id() == set.id())
    }

    pub(super) fn is_deposed(&self) -> bool {
        self.inner.lock().deposed.is_some()
    }

    /// Another broker owns the streamlet: nothing is acknowledged any more.
    pub(super) fn depose(&self, error: RecordsError) {
        let groups = {
            let mut inner = self.inner.lock();
            if inner.deposed.is_none() {
                tracing::warn!(streamlet = %self.spec.streamlet, epoch = %self.spec.epoch, %error, "no longer the owner; nothing more is acknowledged");
                inner.deposed = Some(error);
            }
            inner.ahead.clear();
            inner.groups.iter().cloned().collect::<Vec<_>>()
        };
        for set in groups {
            set.signal.notify();
        }
        self.signal.notify();
    }

    /// The groups recorded ahead that name any of `lost`, and those that came too late: they must not
    /// be used, and go with the next close.
    pub(super) fn take_ahead_of(&self, lost: &[Holder]) -> Vec<Ahead> {
        let mut inner = self.inner.lock();
        let all = std::mem::take(&mut inner.ahead);
        let names = |ahead: &Ahead| {
            let mut brokers = ahead.holders.iter().map(|h| h.broker);
            brokers.any(|broker| lost.iter().any(|l| l.broker == broker))
        };
        let (named, kept) = all.into_iter().partition::<VecDeque<_>, _>(names);
        inner.ahead = kept;
        let mut unused: Vec<_> = named.into();
        let stale = inner.stale.len().min(MAX_CHANGES / 2);
        unused.extend(inner.stale.drain(..stale));
        unused
    }

    /// After a commit of unknown outcome: takes over what it recorded, if it did. False if it did not.
    pub(super) async fn adopt(&self, set: &CopySet) -> Result<bool, RecordsError> {
        let primary = &self.primary;
        let found = read(&primary.records, &*primary.runtime, self.spec.streamlet).await?;
        if found.epoch != self.spec.epoch {
            return Err(RecordsError::Epoch {
                streamlet: self.spec.streamlet,
                expected: self.spec.epoch,
                found: found.epoch,
            });
        }
        let record = found.groups.iter().find(|record| record.copy == set.id());
        let open = record.and_then(|record| Some((record.revision, record.open()?)));
        if let Some((revision, open)) = open {
            set.set_recorded(revision, &open.holders, primary);
        }
        Ok(open.is_some())
    }

    /// Records `set`, unless it was recorded ahead, and as many groups ahead as there should be.
    /// Returns false if too few holders can be found now.
    pub(super) async fn record(&self, set: &CopySet) -> Result<bool, RecordsError> {
        self.inner.lock().recording += 1;
        let recorded = self.record_all(set).await;
        self.inner.lock().recording -= 1;
        self.signal.notify();
        recorded
    }

    async fn record_all(&self, set: &CopySet) -> Result<bool, RecordsError> {
        let (spec, primary) = (&self.spec, &self.primary);
        let holders = primary.choose(spec.replicas, &[]).await;
        if holders.len() < spec.min_copies {
            return Ok(false);
        }
        let mut groups = Vec::new();
        if set.revision() == 0 {
            groups.push(set.id().group);
        }
        let missing = {
            let inner = self.inner.lock();
            let there = inner.ahead.len();
            if inner.finishing {
                0
            } else {
                primary.config.ahead.saturating_sub(there)
            }
        };
        for _ in 0..missing {
            groups.push(GroupId(self.next_group.fetch_add(1, Ordering::AcqRel)));
        }
        if groups.is_empty() {
            return Ok(true);
        }
        // Known only when everything before is closed.
        let first = self.is_front(set).then(|| set.source().first_ordinal());
        let open = |group: &GroupId| Change::Open {
            group: *group,
            lane: spec.lane,
            record: OpenRecord {
                first_ordinal: first.filter(|_| *group == set.id().group),
                holders: holders.clone(),
            },
        };
        let transaction = Transaction {
            streamlet: spec.streamlet,
            epoch: spec.epoch,
            changes: groups.iter().map(open).collect(),
        };
        let revision = commit(&primary.records, &*primary.runtime, &transaction, false).await?;
        let mut inner = self.inner.lock();
        for group in groups {
            if group == set.id().group {
                set.set_recorded(revision, &holders, primary);
            } else {
                inner.ahead.push_back(Ahead {
                    group,
                    revision,
                    holders: holders.clone(),
                });
            }
        }
        Ok(true)
    }
}
