//! The primary's side: replica sets, shippers, and what ends a group.
//!
//! A [`Primary`] is one per broker. Its [`Lane`]s take groups in order ([`Lane::open`]); each group's
//! bytes go to every replica of its set ([`ReplicaSet`]), and count once all of them have
//! them. Whatever happens to a copy, the answer is the same: the group ends, the lane goes on in the
//! next one.

mod batch_ends;
mod caller;
mod calls;
mod close;
mod describe;
mod flush_rounds;
mod incarnations;
mod lane;
mod lost_lease;
mod peers;
mod reads;
mod renew;
mod replica_set;
mod shipment;
mod shipper;
mod shipper_handle;
mod slots;
mod stall_report;
mod standstill;
mod streamlet_lanes;
pub(crate) mod tidy;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::{Epoch, StreamId};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub(crate) use caller::{BRIEFLY, Caller};
use describe::WithoutDisk;
pub(crate) use incarnations::Lives;
pub use lane::{Lane, LaneSpec};
use peers::{Around, Neighbours};
pub(crate) use renew::MoreReplicas;
pub use replica_set::{Appender, ReplicaSet, Shape};
pub use shipper_handle::ShipperHandle;
pub use stall_report::{
    ReplicaPosition, ReplicaStands, ShipmentStands, Standstill, StillLane, WayStands,
};
pub use streamlet_lanes::StreamletLanes;
pub use traffic::PeerTraffic;

use crate::build_replica::PIECES;
use crate::faults::Faults;
use crate::health::Health;
use crate::ids::{AckPolicy, BrokerId, CopyId, Replica, StreamletKey};
use crate::own::OwnRef;
use crate::placement::Placement;
use crate::records::RecordsRef;
use crate::recovery::Silent;
use crate::runtime::{Local, RuntimeRef, all, until_enough};
use crate::seldom::Seldom;
use crate::transport::{CallError, CopyInfo, Pending, Reply, Request, TransportRef};
use shipper::Shipper;

/// Most groups recorded ahead per lane: a close must be able to delete all of them, and those that
/// came too late, in its one transaction.
pub const MAX_AHEAD: usize = crate::records::MAX_CHANGES / 2 - 1;

/// How a primary goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest wait for one small control call or connection.
    pub call_timeout: Duration,
    /// From the break of a link until it is up again; then its backup is silent, and every group loses its
    /// copy there.
    pub reconnect_timeout: Duration,
    /// Longest wait for a backup to read a few whole copies, as when they are sealed.
    pub scan_timeout: Duration,
    /// Longest wait for a backup to bring a group to its disk.
    pub flush_timeout: Duration,
    /// Between two rounds in which backups are told how much of each open group is complete, and
    /// bring it to their disks.
    pub flush_interval: Duration,
    /// Attempts at one backup before a copy counts as lost.
    pub attempts: u32,
    /// Pause between them.
    pub pause: Duration,
    /// Longest wait of a group under way for room at a backup; then its copy there is lost.
    pub room_timeout: Duration,
    /// Longest wait for the survivors of a group that has ended; who is slower is lost.
    pub drain_timeout: Duration,
    /// What a recovery leaves to be given back waits so long, so that it does not hold up the recoveries
    /// of other streamlets.
    pub tidy_after: Duration,
    /// Most bytes under way to one backup.
    pub in_flight_bytes: u64,
    /// Most bytes of one submission.
    pub submission_bytes: u64,
    /// Most bytes of one group in one submission, so that none holds up the others.
    pub turn_bytes: u64,
    /// Most ranges of up to `turn_bytes` each that have left memory and are read for one backup, or wait to be shipped there.
    pub read_backs: usize,
    /// Bytes of a group's first buffer at a backup. Each further one doubles what there is,
    pub first_buffer_bytes: u32,
    /// up to so many bytes, and never beyond a segment.
    pub buffer_bytes: u32,
    /// Groups recorded ahead of their use, per lane; at most [`MAX_AHEAD`]. When there are fewer, more
    /// are recorded,
    pub ahead: usize,
    /// and so many with one transaction where the lane is busy, as it soon uses them; at most
    /// [`MAX_AHEAD`], and no fewer than `ahead`.
    pub ahead_busy: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(2),
            reconnect_timeout: Duration::from_secs(1),
            scan_timeout: Duration::from_secs(10),
            flush_timeout: Duration::from_secs(20),
            flush_interval: Duration::from_secs(60),
            attempts: 2,
            pause: Duration::from_millis(50),
            room_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(2),
            tidy_after: Duration::ZERO,
            in_flight_bytes: 16 << 20,
            submission_bytes: 4 << 20,
            turn_bytes: 1 << 20,
            read_backs: 16,
            first_buffer_bytes: 64 << 10,
            buffer_bytes: 8 << 20,
            ahead: 1,
            ahead_busy: 4,
        }
    }
}

/// A broker as the primary of its streamlets. Its tasks end when it and its lanes are dropped.
pub struct Primary {
    pub(crate) me: BrokerId,
    neighbours: Arc<Neighbours>,
    pub(crate) own: Option<OwnRef>,
    pub(crate) transport: TransportRef,
    pub(crate) records: RecordsRef,
    pub(crate) runtime: RuntimeRef,
    pub(crate) config: Config,
    pub(crate) faults: Faults,
    health: Arc<Health>,
    shippers: Mutex<BTreeMap<BrokerId, Arc<ShipperHandle>>>,
    /// Copies that are being built, and how often: nobody frees them, though no record names them yet.
    building: Mutex<BTreeMap<(CopyId, BrokerId), u32>>,
    /// Room for what recoveries have in memory, in pieces.
    pub(crate) pieces: Semaphore,
    /// Brokers that recoveries found silent.
    pub(crate) silent: Silent,
    without_disk: WithoutDisk,
    /// Of groups that are closed before they are flushed, as that takes too long.
    unflushed: Mutex<Seldom>,
}

/// A copy that is being built.
pub(crate) struct Building {
    primary: Arc<Primary>,
    at: (CopyId, BrokerId),
    kept: bool,
}

impl Building {
    /// Whether a record names the copy is not known, and a request to do so may still be on its way: it
    /// stays marked for as long as this broker runs.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut building = self.primary.building.lock();
        if let Some(times) = building.get_mut(&self.at) {
            *times -= 1;
            if *times == 0 {
                building.remove(&self.at);
            }
        }
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        for shipper in self.shippers.get_mut().values() {
            shipper.end();
        }
    }
}

impl Primary {
    /// The broker `me` among `peers`, all brokers that may hold copies. If `me` is among them it is
    /// chosen first, and its own copy is reached through the transport like any other, or is its
    /// own files, see [`with_own`](Self::with_own). If it is not, it keeps no copy.
    pub fn new(
        me: BrokerId,
        peers: Vec<BrokerId>,
        transport: TransportRef,
        records: RecordsRef,
        runtime: RuntimeRef,
        config: Config,
    ) -> Self {
        Self {
            me,
            neighbours: Neighbours::new(peers),
            own: None,
            transport,
            records,
            runtime,
            config,
            faults: Faults::default(),
            health: Arc::default(),
            shippers: Mutex::default(),
            building: Mutex::default(),
            pieces: Semaphore::new(PIECES),
            silent: Silent::default(),
            without_disk: WithoutDisk::default(),
            unflushed: Mutex::default(),
        }
    }

    /// This broker's copy is the file that it writes itself: nothing is shipped to it, and whoever
    /// writes says how far it is, with [`ReplicaSet::own_completed`]. `me` must be among the peers.
    #[must_use]
    pub fn with_own(mut self, own: OwnRef) -> Self {
        self.own = Some(own);
        self
    }

    /// Breaks rules on purpose, for tests of the tests.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Where brokers run.
    pub fn placement(&self) -> Arc<Placement> {
        self.neighbours.now().placement
    }

    /// The brokers that may hold copies have changed, this one included if it may, and where they
    /// run. Groups that are open keep their copies; whoever is new is chosen from the next group on, and
    /// those that are `leaving` only where the others are too few. Who is no longer among them is not
    /// waited for: a moment later what it was asked counts as lost, and so do copies that it does not take.
    pub fn set_peers(&self, peers: Vec<BrokerId>, placement: Placement, leaving: Vec<BrokerId>) {
        self.neighbours.set(Around {
            peers: peers.into(),
            placement: Arc::new(placement),
            leaving: leaving.into(),
        });
    }

    /// True if another broker is to hold nothing more, and what it holds is to go elsewhere.
    pub(crate) fn is_leaving(&self, backup: BrokerId) -> bool {
        backup != self.me && self.neighbours.now().leaving.contains(&backup)
    }

    /// What goes to `backup`; nothing as long as no group has a copy there.
    pub fn traffic(&self, backup: BrokerId) -> PeerTraffic {
        let handle = self.shippers.lock().get(&backup).cloned();
        handle.map_or_else(PeerTraffic::default, |handle| handle.traffic.now())
    }

    /// How long `backup` has been out of the choice, if it is.
    pub fn down_for(&self, backup: BrokerId) -> Option<Duration> {
        self.health.down_for(backup, self.runtime.now())
    }

    /// This broker.
    pub fn me(&self) -> BrokerId {
        self.me
    }

    /// The brokers that may hold copies, this one included if it may.
    pub fn peers(&self) -> Arc<[BrokerId]> {
        self.neighbours.now().peers
    }

    /// Asks a broker, or this broker's own copies, once and with a bound on the time.
    ///
    /// # Errors
    /// [`CallError`]: a refusal, or no answer.
    pub async fn ask(&self, backup: BrokerId, request: Request) -> Result<Reply, CallError> {
        self.caller().once(backup, request).await
    }

    /// What this broker keeps of a streamlet in its store, apart from its own files: nothing where those are all that it
    /// asks.
    pub async fn kept_here(&self, streamlet: StreamletKey) -> Vec<CopyInfo> {
        let streamlet = Some(streamlet);
        match self.ask(self.me, Request::List { streamlet }).await {
            Ok(Reply::Copies(kept)) => kept,
            _ => Vec::new(),
        }
    }

    /// Frees a copy in this broker's store under `epoch`: it is asked for its store's replica first, and for its own file
    /// after that.
    ///
    /// # Errors
    /// [`CallError`], as of [`ask`](Self::ask).
    pub async fn free_kept(&self, copy: CopyId, epoch: Epoch) -> Result<(), CallError> {
        let kept = self.kept_here(copy.streamlet).await;
        for held in kept.iter().filter(|held| held.copy == copy) {
            let free = Request::free(copy, epoch, Some(held.version));
            self.ask(self.me, free).await?;
        }
        Ok(())
    }

    /// The way to the brokers that hold copies.
    pub fn transport(&self) -> &TransportRef {
        &self.transport
    }

    /// Where groups are recorded.
    pub fn records(&self) -> &RecordsRef {
        &self.records
    }

    /// The tasks and the time it runs in.
    pub fn runtime(&self) -> &RuntimeRef {
        &self.runtime
    }

    /// How it goes about it.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What traffic has shown of the peers.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Asks backups, and this broker's own copies.
    pub(crate) fn caller(&self) -> Caller {
        Caller {
            me: self.me,
            own: self.own.clone(),
            neighbours: self.neighbours.clone(),
            transport: self.transport.clone(),
            runtime: self.runtime.clone(),
            config: self.config,
        }
    }

    /// True if the broker's copies are this broker's own files.
    pub(crate) fn is_own(&self, backup: BrokerId) -> bool {
        self.own.is_some() && backup == self.me
    }

    /// True if what a record names is one of this broker's own files, of the life that they have now.
    pub(crate) fn is_own_file(&self, replica: &Replica) -> bool {
        let own = self.own.as_ref().filter(|_| replica.broker == self.me);
        own.is_some_and(|own| own.incarnation().includes(replica.incarnation))
    }

    /// The replica once its bytes have left the memory of this process.
    pub(crate) fn in_file(&self, replica: Replica) -> Replica {
        let own = self.own.as_ref().filter(|_| replica.broker == self.me);
        match own.filter(|own| own.process() == replica.incarnation) {
            Some(own) => Replica {
                incarnation: own.incarnation(),
                ..replica
            },
            None => replica,
        }
    }

    /// Marks a copy as being built, so that nobody takes it for one that is over; until the guard is
    /// dropped, which is after the record that names it.
    pub(crate) fn building(self: &Arc<Self>, copy: CopyId, backup: BrokerId) -> Building {
        *self.building.lock().entry((copy, backup)).or_default() += 1;
        Building {
            primary: self.clone(),
            at: (copy, backup),
            kept: false,
        }
    }

    /// What is being built at `backup` now.
    pub(crate) fn building_at(&self, backup: BrokerId) -> BTreeSet<CopyId> {
        let building = self.building.lock();
        let there = building.keys().filter(|(_, at)| *at == backup);
        there.map(|(copy, _)| *copy).collect()
    }

    /// The shipper of a backup; it starts with its first group. None for own files.
    pub(crate) fn shipper(&self, backup: BrokerId) -> Option<Arc<ShipperHandle>> {
        if self.is_own(backup) {
            return None;
        }
        let mut shippers = self.shippers.lock();
        if let Some(handle) = shippers.get(&backup) {
            return Some(handle.clone());
        }
        let shipper = Shipper::new(backup, self.caller(), self.health.clone(), self.faults);
        let handle = shipper.handle();
        shippers.insert(backup, handle.clone());
        drop(shippers);
        self.runtime.spawn(Box::pin(shipper.run()));
        Some(handle)
    }

    /// Up to `count` holders that answer now and have room, this broker first: none of `without`, none that may not
    /// hold a copy beside those, none of `but`, which hold none, and none that cannot keep bytes as durably as asked.
    /// Whoever seems to be down is asked only if fewer than `least` answer otherwise; one whose
    /// wait is over is asked beside, for the next time.
    pub(crate) async fn choose(
        &self,
        least: usize,
        count: usize,
        (without, but): (&[BrokerId], &[BrokerId]),
        ack: AckPolicy,
    ) -> Vec<Replica> {
        let Around {
            peers,
            placement,
            leaving,
        } = self.neighbours.now();
        let mut candidates = peers.to_vec();
        // This broker's own copy costs no network; then whoever follows it, so that brokers'
        // copies spread.
        let mine = peers.iter().position(|p| *p == self.me).unwrap_or(0);
        candidates.rotate_left(mine % peers.len().max(1));
        candidates.retain(|candidate| !without.contains(candidate) && !but.contains(candidate));
        let mut order = self.health.order(&candidates, self.runtime.now());
        let mut reluctant = Vec::new();
        order.up.retain(|candidate| {
            let stays = *candidate == self.me || !leaving.contains(candidate);
            if !stays {
                reluctant.push(*candidate);
            }
            stays
        });
        reluctant.append(&mut order.down);
        order.down = reluctant;
        if let Some(probe) = order.probe {
            let asked = self.holder(probe, ack);
            self.runtime.spawn(Box::pin(async move {
                // Health takes note of the answer.
                let _answer = asked.await;
            }));
        }
        let mut chosen: Vec<Replica> = Vec::new();
        for (candidates, wanted) in [(&mut order.up, count), (&mut order.down, least)] {
            while chosen.len() < wanted {
                // As many side by side as are wanting; who does not answer is made up for.
                let there = chosen.iter().map(|holder| holder.broker);
                let with: Vec<_> = without.iter().copied().chain(there).collect();
                let missing = wanted - chosen.len();
                let asked = placement.take(candidates, &with, missing);
                if asked.is_empty() {
                    break;
                }
                let mut have = chosen.len();
                let enough = |holder: &Option<Replica>| {
                    have += usize::from(holder.is_some());
                    have >= least
                };
                // Who answers slowly is waited for as long as it needed lately.
                let slowest = asked.iter().filter_map(|b| self.health.slow(*b)).max();
                let longest = BRIEFLY.max(self.config.call_timeout);
                let brief = slowest.map_or(BRIEFLY, |took| (2 * took).clamp(BRIEFLY, longest));
                let mut asks: Vec<_> = asked.iter().map(|b| self.holder(*b, ack)).collect();
                let side_by_side = asks.iter_mut().map(|ask| -> Local<_> { Box::pin(ask) });
                let side_by_side = side_by_side.collect();
                let answers = until_enough(&*self.runtime, brief, side_by_side, enough).await;
                for ((backup, answer), ask) in asked.into_iter().zip(answers).zip(asks) {
                    let Some(holder) = answer else {
                        // Stopped, most likely; a group need not wait for it to begin. If it is only slow,
                        // the next group does: health takes note of the answer.
                        self.health.failure(backup, self.runtime.now());
                        self.runtime.spawn(Box::pin(async move {
                            let _answer = ask.await;
                        }));
                        continue;
                    };
                    chosen.extend(holder);
                }
            }
        }
        chosen
    }

    /// Tells every peer but those in `heard` that a stream is gone: what they hold and remember of it
    /// is forgotten. Call once it is gone from the records; who does not answer now has to be told
    /// again. Returns who did not.
    pub async fn forget(
        &self,
        stream: StreamId,
        heard: &BTreeSet<BrokerId>,
    ) -> Vec<(BrokerId, CallError)> {
        let peers = self.peers();
        let others = peers.iter().copied();
        let others = others.filter(|peer| !self.is_own(*peer) && !heard.contains(peer));
        let asks = others.map(|peer| -> Pending<_> {
            let asked = self.caller().ask(peer, Request::Forget { stream });
            Box::pin(async move { (peer, asked.await) })
        });
        let answers = all(asks.collect()).await;
        let failed = answers.into_iter().filter_map(|(peer, answer)| {
            let error = answer.err()?;
            Some((peer, error))
        });
        failed.collect()
    }
}
