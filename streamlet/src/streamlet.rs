//! A streamlet: M of them make a stream; each has one owner and Q lanes.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use kera_log_segments::group::{AckPolicy, Group, GroupSpec, GroupWriter, MadeFile};
use kera_log_segments::head::LaneHead;
use kera_log_segments::io::Io;
use kera_log_segments::local_writer::LocalWriter;
use kera_log_segments::pool::ChunkPool;
use kera_log_segments::replicas::Copies;
use kera_log_segments::sync::{Arc, AtomicBool, AtomicU64, Mutex, Rank, mutex};
use kera_protocol::ids::{
    Epoch, GroupId, GroupKey, Incarnation, LaneId, LaneKey, Ordinal, StreamId, StreamletId,
    StreamletKey,
};

use crate::compaction::Replaced;
use crate::job::Job;
use crate::own_writes::OwnWrites;
use crate::producers::{ActiveProducer, LaneState};
use crate::recorder::GroupRecorder;
use crate::standing::{Standing, StandingCell};
use crate::traffic::Traffic;
use crate::transactions::{End, KnownEnds};

/// Bounds that hold for every lane.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Idempotent producers remembered per lane.
    pub max_producers: usize,
    /// A silent producer is forgotten after this long.
    pub producer_expiry_ms: u64,
    /// Written chunks (64 KiB) kept in memory per active group for readers at the tail.
    pub keep_chunks: usize,
    /// Record the next group ahead once the active one is this full, 0.0 to 1.0; above 1: never.
    pub prepare_at: f64,
    /// Ends of transactions that are remembered per lane of groups that take no more; others are looked up again.
    pub max_known_ends: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_producers: 100_000,
            producer_expiry_ms: 24 * 3600 * 1000,
            keep_chunks: 4,
            prepare_at: 0.5,
            max_known_ends: 64 << 10,
        }
    }
}

/// What recoveries found damaged since the start.
#[derive(Debug, Default)]
pub struct Losses {
    /// Groups damaged, cut short or gone.
    pub groups: AtomicU64,
    /// Files set aside.
    pub files_aside: AtomicU64,
}

/// What all streamlets of a broker share.
pub struct Env {
    /// The store's files.
    pub io: Arc<dyn Io>,
    /// Memory for what is appended.
    pub pool: ChunkPool,
    /// Writes `memory` and `synced` groups.
    pub pump: Arc<LocalWriter>,
    /// Records groups.
    pub recorder: Arc<dyn GroupRecorder>,
    /// Store and boot.
    pub incarnation: Incarnation,
    /// Takes work that must not happen on the append path. Only queues it: it may be called from
    /// anywhere, with locks held that [`Streamlet::do_job`] needs.
    pub jobs: Box<dyn Fn(Job) + Send + Sync>,
    /// Directory of stream directories.
    pub root: PathBuf,
    /// Bounds.
    pub limits: Limits,
    /// The disk has no room; appends are refused until it has.
    pub disk_full: AtomicBool,
    /// What recoveries found damaged.
    pub losses: Losses,
}

/// A stream's settings as its streamlets need them. Those that cannot be altered stay equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lanes of this streamlet.
    pub lanes: u32,
    /// Lanes of all the stream's streamlets where not each has as many; otherwise 0. Changes with
    /// `lane_generation`.
    pub uneven_partitions: u32,
    /// Generation of `lanes`; grows with it.
    pub lane_generation: u32,
    /// True: lane by key, chosen by the client. False: by producer, pinned here.
    pub lane_by_key: bool,
    /// Bytes of a segment.
    pub segment_size: u32,
    /// Segments of a group.
    pub segments_per_group: u32,
    /// What acknowledgements promise.
    pub ack: AckPolicy,
    /// Largest batch.
    pub max_batch_bytes: usize,
    /// Stamp batches with the broker's clock.
    pub append_time: bool,
    /// Roll an active group older than this, milliseconds; 0: never.
    pub group_max_age_ms: u64,
    /// What the broker asks of batches before it appends them.
    pub rules: BatchRules,
}

/// What the broker asks of batches before it appends them, beyond what it asks of every batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchRules {
    /// The stream is the broker's own: nobody else appends to it.
    pub internal: bool,
    /// Every record is to be read.
    pub full: bool,
    /// Every record is to have a key: the stream is compacted by it.
    pub keyed: bool,
    /// How far times may lie behind the broker's clock, in milliseconds; 0: however far.
    pub before_max_ms: u64,
    /// How far times may lie ahead of the broker's clock, in milliseconds; 0: however far.
    pub after_max_ms: u64,
}

impl BatchRules {
    /// True if there are any.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// A semantic partition of a stream; the unit of ownership.
pub struct Streamlet {
    pub(crate) stream: StreamId,
    pub(crate) id: StreamletId,
    pub(crate) env: Arc<Env>,
    pub(crate) settings: ArcSwap<Settings>,
    /// Closing, repair, recording and trim take turns: each leaves records and files that the next
    /// relies on. Held across I/O, so no append and no read ever takes it.
    pub(crate) maintenance: Mutex<()>,
    /// The streamlet lock: first of the two levels.
    pub(crate) inner: Mutex<Inner>,
    pub(crate) standing: StandingCell,
    /// Why its files could not be read when its broker started, while that is so.
    pub(crate) unreadable: ArcSwapOption<String>,
    /// What is left of compactions that are over; never held across I/O.
    pub(crate) replaced: Mutex<Replaced>,
    /// Held while a damaged file is fetched from another copy.
    pub(crate) mending: Mutex<()>,
    /// Makes copies at other brokers, if there are to be any.
    pub(crate) copies: OnceLock<Arc<dyn Copies>>,
    /// Whether its own files can be written, where it has copies elsewhere.
    pub(crate) own_writes: OwnWrites,
    pub(crate) traffic: Traffic,
}

pub(crate) struct Inner {
    pub(crate) epoch: Epoch,
    pub(crate) next_group: u64,
    pub(crate) lanes: Vec<Lane>,
    /// Lanes of producers, with `lane_by = producer`: pinned for the life of (id, epoch).
    pub(crate) pins: HashMap<(i64, i16), LaneId>,
    /// When `pins` has grown to this, those that no lane remembers are dropped.
    pub(crate) pins_limit: usize,
    /// Groups begun whose record is not asked for yet: repair must not close them before.
    pub(crate) announcing: Vec<GroupId>,
    /// Files of groups that are recorded ahead, or about to be; `None` while one is being made.
    pub(crate) made_ahead: HashMap<GroupId, Option<MadeFile>>,
    /// The lane generation of groups that begin now. While lanes are cut for a growth it is none, and nothing that was split
    /// by keys is appended.
    pub(crate) lane_generation: u32,
}

impl Inner {
    pub(crate) fn group(&self, lane: LaneId, group: GroupId) -> Option<&Arc<Group>> {
        self.lanes.get(lane.0 as usize)?.groups.get(&group)
    }
}

pub(crate) struct Lane {
    pub(crate) head: Arc<LaneHead>,
    pub(crate) slot: LaneSlot,
    /// All groups with data, oldest first; the last may be active.
    pub(crate) groups: BTreeMap<GroupId, Arc<Group>>,
    /// Recorded groups without data, and where the lane goes on behind each. Nobody reads them; a trim deletes them.
    pub(crate) empty: BTreeMap<GroupId, Ordinal>,
    /// Nothing below is readable.
    pub(crate) log_start: Ordinal,
    pub(crate) prepared: Prepared,
    /// Where transactions ended in groups that take no more, as far as readers asked.
    pub(crate) ends: KnownEnds,
    /// Somebody asks which of its closed groups stay, whatever loses power.
    pub(crate) asks_flushed: bool,
}

pub(crate) enum LaneSlot {
    /// A group takes appends.
    Active(Arc<ActiveGroup>),
    /// No group is open; the next append opens one.
    Idle(Carry),
    /// It takes no appends before a job has put it in order; then it is idle.
    Failed(Failed),
}

/// Why a lane takes no appends.
pub(crate) enum Failed {
    /// The last group's write failed. What an idle lane carries stays, in case that all it carries counts.
    Write(Option<Carry>),
    /// What it remembers of its producers could not be read.
    Read(Unread),
}

/// A failed read of what a lane remembers.
pub(crate) struct Unread {
    pub(crate) cause: String,
    /// It is not read again before: a disk that takes its time to fail has other files to read.
    pub(crate) not_before: Instant,
}

/// What a lane carries between two groups.
#[derive(Clone)]
pub(crate) struct Carry {
    pub(crate) state: LaneState,
    pub(crate) next_ordinal: Ordinal,
}

/// The next group, recorded ahead so that a roll need not wait for the metadata store.
pub(crate) enum Prepared {
    No,
    Asked(GroupId),
    Ready(GroupId),
}

/// A group that takes appends, with its group lock: second of the two levels.
pub(crate) struct ActiveGroup {
    pub(crate) group: Arc<Group>,
    pub(crate) head: Arc<LaneHead>,
    /// The lane's failures when the group was begun.
    pub(crate) failures: u64,
    pub(crate) created_ms: u64,
    pub(crate) tail: Mutex<Tail>,
}

pub(crate) struct Tail {
    pub(crate) writer: GroupWriter,
    pub(crate) state: LaneState,
    pub(crate) lane_generation: u32,
    pub(crate) filling: Filling,
    /// Transactions that ended in this group, in the order of their markers, as far as its readers need them.
    pub(crate) ends: Vec<End>,
}

/// How far a group that takes appends is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// There is much room.
    Begun,
    /// It is so full that the lane's next group was asked for.
    NextAsked,
    /// It takes no more.
    Frozen,
}

/// The streamlet lock over `inner`.
pub(crate) fn streamlet_lock(inner: Inner) -> Mutex<Inner> {
    mutex(Rank::Streamlet, inner)
}

/// The group lock over `tail`.
pub(crate) fn group_lock(tail: Tail) -> Mutex<Tail> {
    mutex(Rank::Group, tail)
}

impl Streamlet {
    pub(crate) fn lane_key(&self, lane: LaneId) -> LaneKey {
        LaneKey {
            stream: self.stream,
            streamlet: self.id,
            lane,
        }
    }

    /// A group of a lane, if it is there.
    pub(crate) fn group(&self, lane: LaneId, group: GroupId) -> Option<Arc<Group>> {
        self.inner.lock().group(lane, group).cloned()
    }

    pub(crate) fn group_key(&self, group: GroupId) -> GroupKey {
        self.key().group(group)
    }

    /// The directory that holds the streamlet's group files.
    pub fn dir(&self) -> PathBuf {
        self.env
            .root
            .join(self.stream.to_string())
            .join(self.id.0.to_string())
    }

    pub(crate) fn spec(
        &self,
        settings: &Settings,
        lane: LaneId,
        group: GroupId,
        epoch: Epoch,
        first_ordinal: Ordinal,
        created_ms: u64,
    ) -> GroupSpec {
        GroupSpec {
            lane: self.lane_key(lane),
            group,
            generation: 0,
            epoch,
            segment_size: settings.segment_size,
            segments: settings.segments_per_group,
            first_ordinal,
            created_ms,
            path: self.dir().join(GroupSpec::file_name(group, 0)),
        }
    }

    /// The stream.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Names it.
    pub fn key(&self) -> StreamletKey {
        StreamletKey {
            stream: self.stream,
            streamlet: self.id,
        }
    }

    /// Its number.
    pub fn id(&self) -> StreamletId {
        self.id
    }

    /// The epoch appends are made under.
    pub fn epoch(&self) -> Epoch {
        self.inner.lock().epoch
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Changes what may change while the stream runs, except the number of lanes
    /// (see [`Streamlet::cut_lanes`]). With another policy a group with copies elsewhere ends, since its record
    /// says what its copies promise; the lane goes on in its next group.
    pub fn alter(&self, change: impl Fn(&mut Settings), now_ms: u64) {
        let (groups, ended) = {
            // Under the lock, so that neither a growth nor a group begun meanwhile is missed.
            let mut inner = self.inner.lock();
            let mut settings = (**self.settings.load()).clone();
            let before = settings.clone();
            change(&mut settings);
            settings.lanes = before.lanes;
            settings.uneven_partitions = before.uneven_partitions;
            settings.lane_generation = before.lane_generation;
            let ack = settings.ack;
            self.settings.store(Arc::new(settings));
            let (mut groups, mut ended) = (Vec::new(), Vec::new());
            for lane in &mut inner.lanes {
                let Some(active) = lane.active() else {
                    continue;
                };
                if !active.group.is_shipped() {
                    active.group.set_policy(ack);
                } else if active.group.policy() != ack
                    && let Some(carry) = self.freeze(&active, now_ms)
                {
                    lane.slot = LaneSlot::Idle(carry);
                    ended.push(active.clone());
                }
                groups.push(active);
            }
            (groups, ended)
        };
        for active in groups {
            active.group.pump(&self.env.pump);
        }
        for active in ended {
            active.group.announce_frozen();
        }
    }

    /// The lane's durable head.
    pub fn head(&self, lane: LaneId) -> Option<Arc<LaneHead>> {
        self.inner
            .lock()
            .lanes
            .get(lane.0 as usize)
            .map(|l| l.head.clone())
    }

    /// Ends all service: appends and reads answer that the stream is gone.
    pub fn mark_deleted(&self) {
        self.standing.advance(Standing::Deleted);
        self.end();
    }

    /// Ends all service, for good: another broker owns the streamlet. Appends and reads answer so,
    /// also those that wait; what was appended and is not durable yet is given up here.
    pub fn mark_moved(&self) {
        if self.standing.advance(Standing::Moved).is_some() {
            self.end();
        }
    }

    /// Takes no more appends, which answer that another broker owns the streamlet; reads go on, and
    /// what was appended may still become durable. The first step of a hand-over; false if one is
    /// under way or over already.
    pub fn stop_appends(&self) -> bool {
        // Whoever looked before has its place once the lock is free.
        let _inner = self.inner.lock();
        self.standing.advance(Standing::Leaving).is_some()
    }

    /// Where it stands at this broker.
    pub fn standing(&self) -> Standing {
        self.standing.get()
    }

    /// True between [`stop_appends`](Self::stop_appends) and the end of the hand-over.
    pub fn is_leaving(&self) -> bool {
        self.standing() == Standing::Leaving
    }

    /// False while it has not been recovered from its copies ([`Self::awaiting`]).
    pub fn is_recovered(&self) -> bool {
        self.standing() > Standing::Recovering
    }

    fn end(&self) {
        let heads: Vec<_> = {
            let inner = self.inner.lock();
            inner.lanes.iter().map(|l| l.head.clone()).collect()
        };
        for head in heads {
            // A head and the groups above it hold each other: without this their memory would
            // never go back to the pool.
            head.abandon();
        }
        if let Some(copies) = self.copies.get() {
            copies.abandon();
        }
    }

    /// True once the stream is deleted.
    pub fn is_deleted(&self) -> bool {
        self.standing() == Standing::Deleted
    }

    /// True if another broker owns it, and its stream is not known to be deleted.
    pub fn is_moved(&self) -> bool {
        self.standing() == Standing::Moved
    }

    /// True once it serves nothing any more: its stream is deleted, or another broker owns it.
    pub fn is_over(&self) -> bool {
        self.standing().is_over()
    }

    /// Every lane, for people and for discovery.
    pub fn describe(&self) -> Vec<LaneView> {
        let inner = self.inner.lock();
        inner
            .lanes
            .iter()
            .enumerate()
            .map(|(index, lane)| {
                let (end_ordinal, producers) = match &lane.slot {
                    LaneSlot::Active(active) => {
                        let tail = active.tail.lock();
                        (tail.writer.next_ordinal(), tail.state.producers())
                    }
                    LaneSlot::Idle(carry) => (carry.next_ordinal, carry.state.producers()),
                    LaneSlot::Failed(_) => (lane.head.ordinal(), 0),
                };
                LaneView {
                    lane: LaneId(index as u32),
                    log_start: lane.log_start,
                    head: lane.head.ordinal(),
                    end_ordinal,
                    producers,
                    groups: lane.groups.values().map(|g| GroupView::of(g)).collect(),
                }
            })
            .collect()
    }

    /// The idempotent producers that a lane remembers and that are not due to be forgotten, by id; nobody
    /// while that is not known.
    pub fn active_producers(&self, lane: LaneId, now_ms: u64) -> Vec<ActiveProducer> {
        let before_ms = now_ms.saturating_sub(self.env.limits.producer_expiry_ms);
        self.of_state(lane, |state| state.active(before_ms))
    }

    /// What `look` finds in the memory of a lane; nothing while that is not known.
    pub(crate) fn of_state<T: Default>(
        &self,
        lane: LaneId,
        look: impl FnOnce(&LaneState) -> T,
    ) -> T {
        let inner = self.inner.lock();
        match inner.lanes.get(lane.0 as usize).map(|lane| &lane.slot) {
            Some(LaneSlot::Active(active)) => look(&active.tail.lock().state),
            Some(LaneSlot::Idle(carry)) => look(&carry.state),
            Some(LaneSlot::Failed(_)) | None => T::default(),
        }
    }

    /// Groups with data, over all lanes.
    pub fn groups(&self) -> usize {
        self.inner.lock().lanes.iter().map(|l| l.groups.len()).sum()
    }

    /// Start and durable head of a lane; cheap.
    pub fn lane_bounds(&self, lane: LaneId) -> Option<(Ordinal, Ordinal)> {
        let inner = self.inner.lock();
        inner
            .lanes
            .get(lane.0 as usize)
            .map(|l| (l.log_start, l.head.ordinal()))
    }

    /// After the last record appended to a lane, durable or not; cheap.
    pub fn log_end(&self, lane: LaneId) -> Option<Ordinal> {
        let inner = self.inner.lock();
        let lane = inner.lanes.get(lane.0 as usize)?;
        Some(match &lane.slot {
            LaneSlot::Active(active) => active.tail.lock().writer.next_ordinal(),
            LaneSlot::Idle(carry) => carry.next_ordinal,
            LaneSlot::Failed(_) => lane.head.ordinal(),
        })
    }

    /// What went in and out since this broker has served it.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Start and durable head of every lane; cheap.
    pub fn bounds(&self) -> Vec<(LaneId, Ordinal, Ordinal)> {
        let inner = self.inner.lock();
        let lanes = inner.lanes.iter().enumerate();
        lanes
            .map(|(index, lane)| (LaneId(index as u32), lane.log_start, lane.head.ordinal()))
            .collect()
    }
}

impl Drop for Streamlet {
    fn drop(&mut self) {
        // A head and the groups above it hold each other; whoever drops a streamlet without deleting
        // its stream, as a test that plays a crash does, must not keep their memory.
        let inner = self.inner.lock();
        inner
            .lanes
            .iter()
            .for_each(|lane| drop(lane.head.abandon()));
    }
}

impl Lane {
    pub(crate) fn active(&self) -> Option<Arc<ActiveGroup>> {
        match &self.slot {
            LaneSlot::Active(active) => Some(active.clone()),
            _ => None,
        }
    }
}

/// A lane as people see it.
#[derive(Clone, Debug)]
pub struct LaneView {
    /// Its number.
    pub lane: LaneId,
    /// First readable ordinal.
    pub log_start: Ordinal,
    /// Durable head.
    pub head: Ordinal,
    /// After the last record appended.
    pub end_ordinal: Ordinal,
    /// Idempotent producers remembered.
    pub producers: usize,
    /// Its groups, oldest first.
    pub groups: Vec<GroupView>,
}

/// A group as people see it.
#[derive(Clone, Debug)]
pub struct GroupView {
    /// Its id.
    pub group: GroupId,
    /// Its file generation.
    pub generation: u32,
    /// Its epoch.
    pub epoch: Epoch,
    /// First ordinal.
    pub first_ordinal: Ordinal,
    /// After its last.
    pub end_ordinal: Ordinal,
    /// Bytes, headers included.
    pub bytes: u64,
    /// True once it takes no more.
    pub closed: bool,
    /// Highest timestamp, milliseconds.
    pub max_timestamp: i64,
}

impl GroupView {
    pub(crate) fn of(group: &Group) -> Self {
        let end = group.end();
        Self {
            group: group.id(),
            generation: group.spec().generation,
            epoch: group.spec().epoch,
            first_ordinal: group.spec().first_ordinal,
            end_ordinal: end.ordinal,
            bytes: end.address,
            closed: group.is_frozen(),
            max_timestamp: group.max_timestamp(),
        }
    }
}
