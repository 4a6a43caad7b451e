//! One group's replicas as its owner sees them: who holds how much, and what that makes durable.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};

use kera_log_segments::group::Group;
use kera_log_segments::group_life::{GroupFacts, GroupStage, StageCell};
use kera_log_segments::invariant;
use kera_log_segments::replicas::GroupOwner;
use kera_log_segments::ship::{ShipRun, Shipped, Shipping};
use kera_log_segments::window::Place;
use parking_lot::Mutex;

use super::Primary;
use super::batch_ends::BatchEnds;
use super::shipper_handle::ShipperHandle;
use super::stall_report::ReplicaStands;
use crate::faults::Faults;
use crate::ids::{AckPolicy, CopyId, Replica};
use crate::signal::Signal;

/// The lane that a group is in, as far as the group knows it.
pub(super) trait EndsGroups: Send + Sync {
    /// Has the group closed: it is complete, or has lost a replica. Called once.
    fn end(self: Arc<Self>, set: Arc<ReplicaSet>);
}

/// Who appends to the groups of a streamlet.
#[derive(Clone)]
pub struct Appender {
    /// The streamlet.
    pub streamlet: Weak<dyn GroupOwner>,
    /// Milliseconds since 1970.
    pub clock: fn() -> u64,
}

/// How a group is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of each segment.
    pub segment_size: u32,
    /// Most segments.
    pub segments: u32,
}

/// A group that is written at this broker, and its replicas. Which brokers have one is decided once, by its record.
/// It ships the group: [`Group::ship_by`].
pub struct ReplicaSet {
    me: Weak<Self>,
    id: CopyId,
    group: Arc<Group>,
    appender: Appender,
    ends: BatchEnds,
    lane: Weak<dyn EndsGroups>,
    recorded: OnceLock<Recorded>,
    /// Below this address this broker's own file has everything; kept apart from the replicas, since
    /// the file may be ahead of the record.
    own: AtomicU64,
    /// What its group was told to be durable.
    told: AtomicU64,
    /// How far its owner is with it: at its beginning until it is shipped, and from then on who ends it says so.
    stage: StageCell,
    /// Why that does not come to an end, as far as is known.
    trouble: Mutex<Option<String>>,
    /// Bytes that it will soon have, as far as its lane's last group tells.
    expected: u64,
    faults: Faults,
    pub(super) signal: Signal,
}

/// What the open record says, and how far each replica of it has come.
struct Recorded {
    revision: u64,
    replicas: Vec<SetReplica>,
}

struct SetReplica {
    holder: Replica,
    /// None for this broker's own file, to which nothing is shipped.
    shipper: Option<Arc<ShipperHandle>>,
    /// Below this address the holder has everything, as durably as the group asks for.
    durable: AtomicU64,
    lost: Mutex<Option<String>>,
    /// The shipper was told that the group grew, and has not looked since.
    is_told: AtomicBool,
    /// Where the shipper keeps it, so that it need not be looked up; only a hint.
    slot: AtomicU32,
}

impl ReplicaSet {
    /// The set that ships `group` from now on; nothing was appended to it yet.
    pub(super) fn new(
        group: &Arc<Group>,
        appender: Appender,
        lane: Weak<dyn EndsGroups>,
        expected: u64,
        faults: Faults,
    ) -> Arc<Self> {
        let spec = group.spec();
        let set = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            id: CopyId {
                streamlet: spec.lane.streamlet_key(),
                group: spec.group,
                epoch: spec.epoch,
                generation: spec.generation,
            },
            group: group.clone(),
            appender,
            ends: BatchEnds::default(),
            lane,
            recorded: OnceLock::new(),
            own: AtomicU64::new(0),
            told: AtomicU64::new(0),
            stage: StageCell::default(),
            trouble: Mutex::default(),
            expected,
            faults,
            signal: Signal::default(),
        });
        let shipping: Arc<dyn Shipping> = set.clone();
        group.ship_by(Arc::downgrade(&shipping));
        set
    }

    /// Its owner is at `stage` from now on.
    pub(super) fn is_at(&self, stage: GroupStage) {
        if self.stage.set(stage) {
            *self.trouble.lock() = None;
        }
    }

    /// How far its owner is with it.
    pub(super) fn stage(&self) -> GroupStage {
        self.stage.get()
    }

    /// Why its stage does not come to an end, as far as is known; it is tried again.
    pub(super) fn has_trouble(&self, trouble: &dyn std::fmt::Display) {
        *self.trouble.lock() = Some(trouble.to_string());
    }

    /// Why its stage does not come to an end.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// What is known of it where it ends at `end`, so many are `behind`, and so many hold all of it; `needed` close it.
    pub(super) fn facts(
        &self,
        (end, behind): (u64, usize),
        (whole, needed): (usize, usize),
        is_oldest: bool,
    ) -> GroupFacts {
        GroupFacts {
            is_recorded: self.revision() != 0,
            is_frozen: true,
            is_closed: self.is_closed(),
            lost: self.lost().len(),
            behind,
            // Of nothing no replica lacks anything, and none can be built.
            whole: if end == 0 { needed } else { whole },
            needed,
            can_build: true,
            is_oldest,
        }
    }

    /// How far each replica of the recorded set is, and who ships to it.
    pub(super) fn replicas_stand(&self) -> Vec<(ReplicaStands, Option<Arc<ShipperHandle>>)> {
        let replicas = self.replicas().iter().map(|replica| {
            let stands = ReplicaStands {
                holder: replica.holder.broker,
                durable: replica.durable.load(Ordering::Acquire),
                written: self.keeps(replica),
                lost: replica.lost.lock().clone(),
                way: None,
            };
            (stands, replica.shipper.clone())
        });
        replicas.collect()
    }

    /// The group.
    pub fn id(&self) -> CopyId {
        self.id
    }

    /// What a replica has done with bytes before they count; fixed for the group's life.
    pub(super) fn ack(&self) -> AckPolicy {
        self.group.policy()
    }

    /// True if number `index` is the last of the replicas to which bytes are shipped.
    pub(super) fn is_last_shipped(&self, index: usize) -> bool {
        let shipped = self
            .replicas()
            .iter()
            .rposition(|replica| replica.shipper.is_some());
        shipped == Some(index)
    }

    /// Bytes that it will soon have; 0 where nothing tells.
    pub(super) fn expected(&self) -> u64 {
        self.expected
    }

    /// The group. What lies below its end never changes: each address receives one value only, so bytes may be sent
    /// twice. No segment is filled to its last byte, so that an address always tells its segment.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// How it is cut.
    pub(crate) fn shape(&self) -> Shape {
        let spec = self.group.spec();
        Shape {
            segment_size: spec.segment_size,
            segments: spec.segments,
        }
    }

    /// Bytes from `from` on, in order of address, as many as fit `max_bytes` or one run that is larger. They begin with
    /// the segment's header and the lane snapshot, and may start at any address until the group is closed. What has left
    /// memory is to be [read back](Self::read_back).
    pub(crate) fn runs(&self, from: u64, max_bytes: usize) -> Shipped {
        let shipped = self.group.ship(from, max_bytes);
        self.ends.note(shipped.end);
        shipped
    }

    /// Bytes that have left memory; none if they cannot be read now. May wait for the disk.
    pub(crate) fn read_back(&self, range: (u64, u64)) -> Option<ShipRun> {
        let read = self.group.read_back(range);
        let read = read.inspect_err(|error| {
            tracing::error!(group = ?self.group, %error, "bytes that a replica lacks cannot be read from the owner's file");
        });
        read.ok()
    }

    /// Has the group take no more appends, for good, and says where they end. The lane goes on in its next group. Call
    /// without a lock.
    pub(super) fn freeze(&self) -> Place {
        let end = match self.appender.streamlet.upgrade() {
            Some(streamlet) => {
                let now_ms = (self.appender.clock)();
                streamlet.freeze_group(self.group.spec().lane.lane, &self.group, now_ms)
            }
            None => self.group.end(),
        };
        self.froze();
        end
    }

    /// Brings to its own file what lies in memory alone, as far as that can be done at once; whoever writes the rest
    /// says so. Call without a lock.
    pub(super) fn write_out(&self) {
        if self.ack() == AckPolicy::Memory {
            // Another turn takes the bytes along, and a failure is told as any.
            let _turn = self.group.write_out();
        }
    }

    /// Tells its group what every replica holds, unless that is told: it may be acknowledged, once the lane's head has
    /// passed the groups before it. Call without a lock.
    fn acknowledge(&self) {
        let durable = self.durable();
        if self.told() < durable
            && self.told.fetch_max(durable, Ordering::AcqRel) < durable
            && let Some(place) = self.ends.last_until(durable)
        {
            self.group.set_replicated(place);
        }
    }

    /// The record with the group's set is durable.
    pub(super) fn set_recorded(&self, revision: u64, holders: &[Replica], primary: &Primary) {
        let replicas = holders.iter().map(|holder| SetReplica {
            holder: *holder,
            shipper: primary.shipper(holder.broker),
            durable: AtomicU64::new(0),
            lost: Mutex::default(),
            is_told: AtomicBool::new(false),
            slot: AtomicU32::new(u32::MAX),
        });
        let recorded = self.recorded.get_or_init(|| Recorded {
            revision,
            replicas: replicas.collect(),
        });
        invariant!(
            recorded.revision == revision,
            "{} is recorded at revision {} and again at {revision}: an open record's replicas do not change",
            self.id,
            recorded.revision
        );
        // What the own file did before the record was known; see `own_completed`.
        fence(Ordering::SeqCst);
        self.note_end_if_alone();
        self.own_completed(0);
        if let Some(error) = self.group.failure() {
            self.own_lost(&error.to_string());
        }
    }

    /// Where the own file is the only replica nobody comes by later: notes also the end of an append that is written with
    /// others before its own thread says that it is there.
    fn note_end_if_alone(&self) {
        if let [own] = self.replicas()
            && own.shipper.is_none()
        {
            self.ends.note(self.group.end());
        }
    }

    fn own_index(&self) -> Option<usize> {
        self.replicas()
            .iter()
            .position(|replica| replica.shipper.is_none())
    }

    /// This broker's own file has all bytes below `address`: its turn saw them written, or synced, as
    /// the stream's policy wants. Call without holding a lock. Counts also if it comes before the
    /// group's record is known; does nothing where the own replica is not a file
    /// ([`super::Primary::with_own`]).
    pub fn own_completed(&self, address: u64) {
        self.own.fetch_max(address, Ordering::AcqRel);
        // Either this finds the record, or whoever sets it finds the address.
        fence(Ordering::SeqCst);
        if let Some(index) = self.own_index() {
            self.completed(index, self.own.load(Ordering::Acquire));
        }
    }

    /// This broker's own file takes no more: writing it failed. The group ends, now or when its record is known.
    pub fn own_lost(&self, reason: &str) {
        fence(Ordering::SeqCst);
        if let Some(index) = self.own_index() {
            self.lose(index, reason);
        }
    }

    /// Starts shipping to all of the set.
    pub(super) fn join_shippers(self: &Arc<Self>) {
        for (index, replica) in self.replicas().iter().enumerate() {
            if let Some(shipper) = &replica.shipper {
                shipper.join(self.clone(), index);
            }
        }
    }

    /// Tells the shippers that the group grew.
    pub(super) fn wake_shippers(&self) {
        for replica in self.replicas() {
            // Whoever has told and is not heard yet, told of these bytes too: what is swapped orders
            // the bytes before the shipper's look.
            if let Some(shipper) = &replica.shipper
                && !replica.is_told.swap(true, Ordering::AcqRel)
            {
                shipper.grew(replica.slot.load(Ordering::Relaxed), self.id);
            }
        }
    }

    /// The shipper of holder number `index` is about to look how far the group has grown, which it keeps in
    /// `slot`.
    pub(super) fn shipper_looks(&self, index: usize, slot: u32) {
        if let Some(replica) = self.replicas().get(index) {
            replica.slot.store(slot, Ordering::Relaxed);
            replica.is_told.swap(false, Ordering::AcqRel);
        }
    }

    /// Ships no more.
    pub(super) fn leave_shippers(&self) {
        for replica in self.replicas() {
            if let Some(shipper) = &replica.shipper {
                shipper.leave(self.id);
            }
        }
    }

    /// Revision of the open record; 0 while there is none.
    pub(super) fn revision(&self) -> u64 {
        self.recorded.get().map_or(0, |r| r.revision)
    }

    fn replicas(&self) -> &[SetReplica] {
        self.recorded.get().map_or(&[], |r| &r.replicas)
    }

    /// The holders of the recorded set.
    pub fn holders(&self) -> Vec<Replica> {
        self.replicas()
            .iter()
            .map(|replica| replica.holder)
            .collect()
    }

    /// How many replicas the record names; none as long as there is no record.
    pub(super) fn replicas_recorded(&self) -> usize {
        self.replicas().len()
    }

    /// Holder number `index` has all bytes below `address`, as durably as the group asks for.
    pub(super) fn completed(&self, index: usize, address: u64) {
        if let Some(replica) = self.replicas().get(index) {
            replica.durable.fetch_max(address, Ordering::AcqRel);
            // Of two replicas that complete at once one sees the other; and either this sees that the
            // group is frozen, or whoever froze it sees what is complete ([`Self::froze`]).
            fence(Ordering::SeqCst);
            match self.group.is_frozen() {
                true => self.tell(),
                // Nobody waits for the end of an open group: of very many very few end.
                false => self.acknowledge(),
            }
        }
    }

    /// Holder number `index` will not get any further.
    pub(super) fn lose(&self, index: usize, reason: &str) {
        if let Some(replica) = self.replicas().get(index) {
            let mut lost = replica.lost.lock();
            if lost.is_none() {
                tracing::info!(group = %self.id, broker = %replica.holder.broker, reason, "a replica is lost; the group ends and the lane goes on in a new one");
                *lost = Some(reason.to_string());
            }
            drop(lost);
            self.tell();
        }
    }

    /// The holders that were lost.
    pub(super) fn lost(&self) -> Vec<Replica> {
        let lost = self.replicas().iter().filter(|c| c.lost.lock().is_some());
        lost.map(|replica| replica.holder).collect()
    }

    /// Published bytes that holder number `index` does not have.
    pub(super) fn missing_at(&self, index: usize) -> u64 {
        let durable = self.replicas().get(index);
        let durable = durable.map_or(0, |replica| replica.durable.load(Ordering::Acquire));
        self.group.end().address.saturating_sub(durable)
    }

    /// Below this address a replica holds all that it is to hold once the group is closed.
    fn keeps(&self, replica: &SetReplica) -> u64 {
        match (&replica.shipper, self.ack()) {
            // Its bytes count before its file has them.
            (None, AckPolicy::Memory) => self.group.written().address,
            _ => replica.durable.load(Ordering::Acquire),
        }
    }

    /// The holders, with their numbers, that are not lost and have less than `address`.
    pub(super) fn behind(&self, address: u64) -> Vec<usize> {
        let replicas = self.replicas().iter().enumerate();
        replicas
            .filter(|(_, replica)| replica.lost.lock().is_none() && self.keeps(replica) < address)
            .map(|(index, _)| index)
            .collect()
    }

    /// The holders that are not lost and have all below `address`.
    pub(super) fn holding(&self, address: u64) -> Vec<Replica> {
        let replicas = self.replicas().iter();
        replicas
            .filter(|replica| replica.lost.lock().is_none() && self.keeps(replica) >= address)
            .map(|replica| replica.holder)
            .collect()
    }

    /// The group has its close: all of it may be acknowledged, and nothing of it is asked for any more. Call without
    /// a lock.
    pub(super) fn set_closed(&self) {
        self.is_at(GroupStage::Closed);
        self.tell();
        self.group.set_replicated(self.group.end());
        if let Some(streamlet) = self.appender.streamlet.upgrade() {
            streamlet.group_ended(self.group.spec().lane.lane, &self.group);
        }
    }

    /// Enough replicas of the closed group are on the disks of their brokers, `with_own` once this broker's own file is. Call
    /// without a lock.
    pub(super) fn set_flushed(&self, with_own: bool) {
        if let Some(streamlet) = self.appender.streamlet.upgrade() {
            let name = (self.id.group, self.id.generation);
            streamlet.group_flushed(self.group.spec().lane.lane, name, with_own);
        }
    }

    /// True once it has.
    pub fn is_closed(&self) -> bool {
        self.stage.is(GroupStage::Closed)
    }

    /// Below this address every replica of the recorded set holds the group, or its close says who does.
    /// Nothing else may be acknowledged: then sealing any one replica ends all acknowledgements.
    pub fn durable(&self) -> u64 {
        if self.is_closed() {
            return self.group.end().address;
        }
        let replicas = self.replicas();
        let counted = if self.faults.acknowledge_without_copy() {
            replicas.len().saturating_sub(1)
        } else {
            replicas.len()
        };
        let durable = replicas[..counted].iter();
        durable
            .map(|replica| replica.durable.load(Ordering::Acquire))
            .min()
            .unwrap_or(0)
    }

    /// What its group was told to be durable.
    pub(super) fn told(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// It is recorded and shipped: it may have been over before.
    pub(super) fn has_begun(&self) {
        self.is_at(GroupStage::Open);
        fence(Ordering::SeqCst);
        self.look();
    }

    fn tell(&self) {
        self.signal.notify();
        self.look();
        self.acknowledge();
    }

    /// Has it closed, once, if it is over.
    fn look(&self) {
        // Whoever makes it so sees the group begun, or whoever began it looks after that.
        fence(Ordering::SeqCst);
        let is_whole = || self.durable() >= self.group.end().address;
        let is_over = || !self.lost().is_empty() || (self.group.is_frozen() && is_whole());
        if self.stage.is(GroupStage::Open)
            && is_over()
            && self.stage.go(GroupStage::Open, GroupStage::Draining)
            && let (Some(lane), Some(set)) = (self.lane.upgrade(), self.me.upgrade())
        {
            lane.end(set);
        }
    }
}

impl Shipping for ReplicaSet {
    fn grew(&self) {
        self.ends.note(self.group.end());
        self.wake_shippers();
    }

    fn wrote(&self) {
        self.note_end_if_alone();
        match self.group.failure() {
            None => match self.ack() {
                AckPolicy::Memory => self.own_completed(self.group.end_address()),
                AckPolicy::Written => self.own_completed(self.group.written().address),
                AckPolicy::Synced => self.own_completed(self.group.synced().address),
            },
            Some(error) => self.own_lost(&error.to_string()),
        }
    }

    fn froze(&self) {
        fence(Ordering::SeqCst);
        self.tell();
    }
}
