//! A run: owners come and go, some without knowing that they have gone, while brokers are hurt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_protocol::ids::{LaneId, StreamId, StreamletId};
use kera_records::GroupRecord;
use kera_replication::ids::{BrokerId, CopyId, Incarnation, Replica, StreamletKey};
use kera_replication::jobs::{Jobs, Owned};
use kera_replication::primary::{Lane, Primary};
use kera_replication::recovery::{RecoverSpec, Recovered, Unclean, recover};
use kera_replication::transport::sim::{Dice, MemoryFate};
use kera_replication::transport::{CopyState, Reply, Request};

use super::check::{Acked, Model, check};
use super::served::{Served, durable};
use super::{Plan, StageRef, busy};

/// After this time all appends should have ended whose brokers are well.
const SETTLED: Duration = Duration::from_secs(6);

/// Attempts to recover before the run counts as stuck.
const RECOVERIES: u32 = 60;

pub fn streamlet() -> StreamletKey {
    StreamletKey {
        stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
        streamlet: StreamletId(1),
    }
}

/// What a run saw, so that a suite that tests nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub appended: u64,
    pub acked: u64,
    pub groups: u64,
}

/// One owner's lane, written by one client.
struct Writer {
    lane: LaneId,
    served: Arc<Served>,
}

/// An owner once it has taken over.
struct Owner {
    primary: Arc<Primary>,
    recovered: Recovered,
    served: Arc<Served>,
}

struct Run {
    stage: StageRef,
    plan: Plan,
    dice: Dice,
    model: Model,
    acked: Acked,
    next_id: u64,
    /// Brokers that have lost their memory, while groups counted on it. Fewer than `min_insync_replicas`, so that of
    /// each group one copy survives.
    vanished: BTreeSet<BrokerId>,
    dead: BTreeSet<BrokerId>,
    zombies: Vec<Writer>,
}

/// Runs `plan` on `stage`.
///
/// # Errors
/// What was lost, invented or stuck.
pub async fn run(stage: StageRef, plan: Plan) -> Result<Seen, String> {
    let mut run = Run {
        dice: Dice::new(plan.seed ^ 0x5eed),
        stage,
        plan,
        model: Model::default(),
        acked: Arc::default(),
        next_id: 0,
        vanished: BTreeSet::new(),
        dead: BTreeSet::new(),
        zombies: Vec::new(),
    };
    for reign in 0..plan.reigns {
        let owner = run.next_owner().await;
        let owner = run.recover(owner).await?;
        run.reign(&owner, reign + 1 == plan.reigns).await?;
    }
    run.finish().await
}

impl Run {
    fn any_node(&mut self) -> BrokerId {
        let nodes = self.stage.nodes();
        nodes[self.dice.below(nodes.len() as u64) as usize]
    }

    /// A broker that runs. It may be one whose lanes were taken away, under a new epoch.
    fn choose_owner(&mut self) -> BrokerId {
        loop {
            let node = self.any_node();
            if self.may_own(node) {
                return node;
            }
            let nodes = self.stage.nodes();
            if !nodes.iter().any(|node| self.may_own(*node)) {
                let runs = nodes.iter().any(|node| self.stage.is_alive(*node));
                assert!(runs, "some broker runs at any time");
                self.zombies.clear();
            }
        }
    }

    fn may_own(&self, node: BrokerId) -> bool {
        self.stage.is_alive(node) && !self.zombies.iter().any(|z| z.served.owner == node)
    }

    /// Who is next; with own files it is always the same broker, whose process is a new one.
    async fn next_owner(&mut self) -> BrokerId {
        if !self.plan.own {
            return self.choose_owner();
        }
        let owner = self.stage.nodes()[0];
        self.zombies.clear();
        self.stage.kill(owner).await;
        self.dead.remove(&owner);
        let fate = self.fate(owner);
        self.stage.start(owner, fate).await;
        owner
    }

    /// Replication's recovery, then the streamlet's, until both are done.
    async fn recover(&mut self, owner: BrokerId) -> Result<Owner, String> {
        let spec = RecoverSpec {
            streamlet: streamlet(),
            min_insync_replicas: self.plan.min_insync_replicas,
            unclean: Unclean::Wait,
            starts: BTreeMap::new(),
        };
        let (mut last, mut lacking) = (String::new(), None);
        for attempt in 0..RECOVERIES {
            if attempt >= 4 {
                // Too few brokers are left to do it: all come back first.
                self.mend().await;
            }
            let primary = Primary::new(
                owner,
                self.stage.nodes(),
                self.stage.transport(owner),
                self.stage.records(owner),
                self.stage.runtime(owner),
                self.plan.config,
            );
            let mut primary = primary.with_faults(self.plan.faults);
            if let Some(own) = self.stage.own(owner).filter(|_| self.plan.own) {
                primary = primary.with_own(own);
            }
            let primary = Arc::new(primary);
            match recover(&primary, &spec).await {
                Ok(recovered) if recovered.lanes.iter().all(|l| l.stopped.is_none()) => {
                    let (stage, plan) = (&self.stage, &self.plan);
                    let served = Served::take_over(stage, plan, &primary, &recovered, &self.model);
                    match served.await {
                        Ok(served) => {
                            return Ok(Owner {
                                primary,
                                recovered,
                                served,
                            });
                        }
                        Err(error) => lacking = Some(error),
                    }
                }
                Ok(recovered) => last = format!("{recovered:?}"),
                Err(error) => last = error.to_string(),
            }
            self.stage.wait(Duration::from_millis(30)).await;
        }
        // What is recorded must be had once all are back: this is harm, and no lack of luck.
        Err(match lacking {
            Some(lacking) => format!("recorded, and not to be served: {lacking}"),
            None => format!("recovery is stuck: {last}"),
        })
    }

    async fn mend(&mut self) {
        self.stage.heal();
        for node in std::mem::take(&mut self.dead) {
            self.stage.start(node, MemoryFate::Kept).await;
        }
    }

    async fn reign(&mut self, reigning: &Owner, last: bool) -> Result<(), String> {
        let (owner, primary) = (reigning.served.owner, &reigning.primary);
        let writers = self.writers(reigning);
        if self.plan.jobs {
            let lanes = writers.iter().map(|writer| writer.served.lane(writer.lane));
            let lanes = lanes.map(|lane| Arc::downgrade(&lane));
            let jobs = self.jobs(primary, &reigning.recovered, lanes.collect());
            let runtime = self.stage.runtime(owner);
            let clock = runtime.clone();
            runtime.spawn(Box::pin(async move {
                // Not for ever: when nothing else moves any more, somebody must notice.
                for _ in 0..150 {
                    clock.sleep(busy().interval).await;
                    jobs.round().await;
                }
            }));
        }
        for _ in 0..self.plan.rounds {
            if self.plan.synced && self.dice.chance(15) {
                self.black_out().await;
                return Ok(());
            }
            if self.plan.remembered && self.dice.chance(200) {
                reigning.served.write_out();
            }
            if self.plan.jobs && self.dice.chance(20) {
                let at = self.dice.below(writers.len() as u64) as usize;
                self.rest(&writers[at], primary).await?;
            }
            if self.dice.below(100) < self.plan.trouble {
                self.trouble(owner).await;
            }
            match self.dice.below(100) {
                0..80 => {
                    let at = self.dice.below(writers.len() as u64) as usize;
                    self.append(&writers[at])?;
                }
                80..92 => self.append_to_a_zombie()?,
                _ => {
                    let at = self.dice.below(writers.len() as u64) as usize;
                    let Writer { lane, served } = &writers[at];
                    if served.end_group(*lane) {
                        let early = self.plan.empty;
                        if early > 0 && self.dice.chance(early) {
                            // Its first append comes later.
                            served.open_empty(*lane);
                        }
                    }
                }
            }
            if self.dice.chance(400) {
                let time = self.dice.time(self.plan.pause);
                self.stage.wait(time).await;
            }
        }
        if last {
            self.zombies.extend(writers);
            return Ok(());
        }
        if self.plan.synced && self.dice.chance(300) {
            self.black_out().await;
            return Ok(());
        }
        // How it ends: the process dies, or does not know that it is over.
        if self.dice.chance(400) {
            self.stage.cut_records(owner);
        }
        match self.dice.below(5) {
            0 => {
                self.stage.kill(owner).await;
                self.dead.insert(owner);
                // Who was told before it died was told.
                return Ok(());
            }
            1 => self.stage.pause(owner, true),
            2 => {
                // It hands over, and may or may not get there before its successor.
                for writer in &writers {
                    let lane = writer.served.lane(writer.lane);
                    let finish = async move {
                        let _deposed_maybe = lane.finish().await;
                    };
                    self.stage.runtime(owner).spawn(Box::pin(finish));
                }
            }
            3 => {
                for node in self.stage.nodes() {
                    if node != owner && self.dice.chance(500) {
                        self.stage.cut(owner, node);
                    }
                    if node != owner && self.dice.chance(500) {
                        self.stage.cut(node, owner);
                    }
                }
            }
            _ => {}
        }
        if self.dice.chance(500) && self.dead.is_empty() {
            let node = self.any_node();
            self.hurt(node).await;
        }
        self.zombies.extend(writers);
        Ok(())
    }

    /// A lane comes to rest, a broker may lose its memory, and the jobs have their time: then no group that
    /// takes appends, or is to take some, counts on anybody as it was before. Once closed groups have all
    /// their copies, others may lose their memory.
    async fn rest(&mut self, writer: &Writer, primary: &Arc<Primary>) -> Result<(), String> {
        writer.served.end_group(writer.lane);
        self.mend().await;
        self.stage.wait(Duration::from_millis(300)).await;
        let (owner, node) = (writer.served.owner, self.any_node());
        if node != owner && self.may_vanish(node) {
            self.vanished.insert(node);
            self.stage.kill_with_memory(node).await;
            let fate = match self.plan.synced {
                true => MemoryFate::DiskReplaced,
                false => MemoryFate::Vanished,
            };
            self.stage.start(node, fate).await;
        }
        let (mut former, mut lacking) = (None, None);
        for _ in 0..100 {
            self.stage.wait(busy().interval).await;
            let Some(there) = self.there(owner, primary).await else {
                continue;
            };
            let Ok(found) = primary.records().try_read(streamlet()).await else {
                continue;
            };
            if found.streamlet.epoch != writer.served.epoch() {
                // An owner that gave up taking it over has it after all.
                return Ok(());
            }
            let others = |record: &GroupRecord| {
                let mut others = record.copies.to_vec();
                others.retain(|holder| there.contains_key(&holder.broker));
                others
            };
            let is_former = |was: &Replica| !there[&was.broker].0.contains(&was.incarnation);
            let counts_on_former =
                |record: &&GroupRecord| !record.is_closed() && others(record).iter().any(is_former);
            former = found.groups.iter().find(counts_on_former).cloned();
            let is_whole = |record: &GroupRecord| {
                let has = |holder: &Replica| there[&holder.broker].1.contains(&CopyId::of(record));
                let is_empty = !record.holds_records();
                is_empty || others(record).iter().all(has)
            };
            lacking = found
                .groups
                .iter()
                .find(|record| !is_whole(record))
                .cloned();
            if former.is_none() && lacking.is_none() {
                self.vanished.retain(|node| !there.contains_key(node));
                return Ok(());
            }
        }
        match (former, lacking) {
            (Some(record), _) => Err(format!(
                "{record:?} is open, and counts on a broker as it was before its memory went"
            )),
            (None, Some(record)) => Err(format!(
                "{record:?} names brokers that do not have its bytes"
            )),
            (None, None) => Ok(()),
        }
    }

    /// What each broker is, and what it has on its disk, if all of them answer; without one whose copies are
    /// its own files.
    async fn there(
        &self,
        owner: BrokerId,
        primary: &Primary,
    ) -> Option<BTreeMap<BrokerId, (Vec<Incarnation>, BTreeSet<CopyId>)>> {
        let mut there = BTreeMap::new();
        for node in self.stage.nodes() {
            if self.plan.own && node == owner {
                continue;
            }
            let Ok(Reply::Description(is)) = primary.ask(node, Request::Describe).await else {
                return None;
            };
            let list = Request::List { streamlet: None };
            let Ok(Reply::Copies(mut copies)) = primary.ask(node, list).await else {
                return None;
            };
            copies.retain(|info| info.state == CopyState::Flushed);
            let copies = copies.iter().map(|info| info.copy).collect();
            let lives = std::iter::once(is.incarnation).chain(is.disk);
            there.insert(node, (lives.collect(), copies));
        }
        Some(there)
    }

    fn writers(&self, owner: &Owner) -> Vec<Writer> {
        let lanes = (0..self.plan.lanes).map(LaneId);
        lanes
            .map(|lane| Writer {
                lane,
                served: owner.served.clone(),
            })
            .collect()
    }

    fn jobs(
        &self,
        primary: &Arc<Primary>,
        recovered: &Recovered,
        lanes: Vec<Weak<Lane>>,
    ) -> Arc<Jobs> {
        let (epoch, plan) = (recovered.epoch, self.plan);
        let owned = move |_| {
            vec![Owned {
                streamlet: streamlet(),
                epoch,
                replicas: plan.replicas,
                min_insync_replicas: plan.min_insync_replicas,
                lanes: lanes.iter().filter_map(Weak::upgrade).collect(),
                mend: None,
            }]
        };
        Jobs::new(primary, Box::new(owned), busy())
    }

    fn append_to_a_zombie(&mut self) -> Result<(), String> {
        if self.zombies.is_empty() {
            return Ok(());
        }
        let at = self.dice.below(self.zombies.len() as u64) as usize;
        let zombie = self.zombies.swap_remove(at);
        if self.stage.is_alive(zombie.served.owner) {
            self.append(&zombie)?;
        }
        self.zombies.push(zombie);
        Ok(())
    }

    /// Appends one batch, and sees whether it is acknowledged.
    fn append(&mut self, writer: &Writer) -> Result<(), String> {
        self.next_id += 1;
        let id = self.next_id;
        let filler = self.dice.below(200) as usize;
        let Some(appended) = writer.served.append(writer.lane, id, filler)? else {
            return Ok(());
        };
        let acked = self.acked.clone();
        let runtime = self.stage.runtime(writer.served.owner);
        runtime.spawn(Box::pin(async move {
            if durable(appended).await {
                acked.lock().unwrap().insert(id);
            }
        }));
        Ok(())
    }

    async fn trouble(&mut self, owner: BrokerId) {
        match self.dice.below(6) {
            0 | 1 => {
                let node = self.any_node();
                if node != owner && self.dead.is_empty() {
                    self.hurt(node).await;
                }
            }
            2 | 3 => {
                if let Some(node) = self.dead.pop_first() {
                    let fate = self.fate(node);
                    self.stage.start(node, fate).await;
                }
            }
            4 => {
                let node = self.any_node();
                if node != owner {
                    let paused = self.dice.chance(500);
                    self.stage.pause(node, paused);
                }
            }
            _ => {
                let node = self.any_node();
                if node != owner && self.dice.chance(500) {
                    self.stage.cut(owner, node);
                } else {
                    self.stage.heal();
                }
            }
        }
    }

    /// All brokers lose power at once, or their memory alone. None loses its disk; then so many others may
    /// have lost theirs as ever.
    async fn black_out(&mut self) {
        let nodes = self.stage.nodes();
        for node in &nodes {
            self.stage.kill(*node).await;
        }
        self.zombies.clear();
        self.dead.clear();
        self.stage.heal();
        for node in nodes {
            let fate = match self.dice.below(6) {
                0 => MemoryFate::Kept,
                1 => MemoryFate::Vanished,
                _ => MemoryFate::PowerLost,
            };
            self.stage.start(node, fate).await;
        }
    }

    async fn hurt(&mut self, node: BrokerId) {
        if !self.stage.is_alive(node) {
            return;
        }
        if (self.plan.synced || self.may_vanish(node)) && self.dice.chance(150) {
            if !self.plan.synced {
                self.vanished.insert(node);
            }
            self.stage.kill_with_memory(node).await;
        } else {
            self.stage.kill(node).await;
        }
        if self.dice.chance(500) {
            let time = self.dice.time(Duration::from_millis(50));
            self.stage.wait(time).await;
        }
        if self.dice.chance(500) {
            let fate = self.fate(node);
            self.stage.start(node, fate).await;
        } else {
            self.dead.insert(node);
        }
    }

    /// One copy that counts is left of every group. That a group which was recorded ahead was never used
    /// is not believed of an owner's own files, which may be gone: there a backup has to be left.
    fn may_vanish(&self, node: BrokerId) -> bool {
        let believed = self.plan.min_insync_replicas - usize::from(self.plan.own);
        self.vanished.contains(&node) || self.vanished.len() + 1 < believed
    }

    fn fate(&mut self, node: BrokerId) -> MemoryFate {
        let may = self.may_vanish(node);
        if self.plan.synced {
            // Nothing but its disk counts.
            return match self.dice.below(8) {
                0 if may => {
                    self.vanished.insert(node);
                    MemoryFate::DiskReplaced
                }
                1..3 => MemoryFate::PowerLost,
                3..5 => MemoryFate::Vanished,
                _ => MemoryFate::Kept,
            };
        }
        let fate = match self.dice.below(3) {
            0 if may => MemoryFate::Vanished,
            1 if may => MemoryFate::PowerLost,
            _ => MemoryFate::Kept,
        };
        if fate != MemoryFate::Kept {
            self.vanished.insert(node);
        }
        fate
    }

    /// All is well again: the last owner must find everything, the former ones must stay silent, and
    /// new appends must be acknowledged.
    async fn finish(mut self) -> Result<Seen, String> {
        if self.plan.synced {
            self.black_out().await;
        }
        let half = self.dice.chance(500);
        if half {
            self.mend().await;
        }
        let owner = self.next_owner().await;
        // Not all brokers may answer yet: one counted replica must keep every record.
        drop(self.recover(owner).await?);
        for _ in 0..6 {
            self.append_to_a_zombie()?;
        }
        self.stage.calm();
        self.mend().await;
        self.stage.wait(Duration::from_secs(2)).await;
        let mut last = self.recover(owner).await?;
        let zombies = std::mem::take(&mut self.zombies);
        self.stage.wait(Duration::from_secs(1)).await;
        if self.plan.jobs {
            // Before they make good what should not have been.
            self.check(&last).await?;
            let jobs = self.jobs(&last.primary, &last.recovered, Vec::new());
            for round in 0..60 {
                if round >= 8 && jobs.stats().wanting == 0 {
                    break;
                }
                jobs.round().await;
                self.stage.wait(Duration::from_millis(500)).await;
            }
            last = self.recover(owner).await?;
            for closed in last.recovered.lanes.iter().flat_map(|lane| &lane.groups) {
                let copy = &CopyId::of(closed);
                if closed.holds_records() && closed.copies.len() < self.plan.replicas {
                    return Err(format!(
                        "{copy} has too few copies although all is well: {closed:?}, {:?}",
                        jobs.stats()
                    ));
                }
            }
            // Each of them has it, or a job would have replaced it.
            self.vanished.clear();
        }
        let content = self.check(&last).await?;
        last.served.restore_all(&last.recovered).await?;
        {
            let acked = self.acked.lock().unwrap();
            if let Some(lost) = acked.difference(&content).next() {
                return Err(format!(
                    "batch {lost} was acknowledged and is gone ({})",
                    self.model.place(*lost)
                ));
            }
        }
        let before = self.acked.lock().unwrap().len();
        let writers = self.writers(&last);
        for writer in &writers {
            for _ in 0..5 {
                self.append(writer)?;
            }
        }
        self.stage.wait(SETTLED).await;
        let expected = before + 5 * writers.len();
        let acked = || self.acked.lock().unwrap().len();
        // Where time is real a busy machine needs more of it; what is never done is found all the same.
        for _ in 0..60 {
            if acked() >= expected {
                break;
            }
            self.stage.wait(Duration::from_secs(1)).await;
        }
        let acked = acked();
        if acked != expected {
            return Err(format!(
                "{acked} batches are acknowledged, not {expected}, although all is well: {:?}",
                writers
                    .iter()
                    .map(|w| w.served.lane(w.lane).deposed())
                    .collect::<Vec<_>>()
            ));
        }
        self.read_all(&writers, &content)?;
        drop(zombies);
        Ok(Seen {
            appended: self.next_id,
            acked: acked as u64,
            groups: self.model.len() as u64,
        })
    }

    async fn check(&self, owner: &Owner) -> Result<BTreeSet<u64>, String> {
        let (model, vanished) = (&self.model, &self.vanished);
        check(
            &self.stage,
            owner.served.owner,
            &owner.recovered,
            model,
            vanished,
        )
        .await
    }

    /// Who reads the lanes finds what was recovered and what was acknowledged since, and nothing twice.
    fn read_all(&self, writers: &[Writer], recovered: &BTreeSet<u64>) -> Result<(), String> {
        let mut read = BTreeSet::new();
        for writer in writers {
            for id in writer.served.read(writer.lane)? {
                if !read.insert(id) {
                    return Err(format!("a reader finds batch {id} twice"));
                }
            }
        }
        let acked = self.acked.lock().unwrap();
        let expected: BTreeSet<_> = acked.union(recovered).copied().collect();
        match expected.symmetric_difference(&read).next() {
            None => Ok(()),
            Some(id) => Err(format!(
                "batch {id} is {} ({})",
                if read.contains(id) {
                    "read, and not recovered"
                } else {
                    "not found by a reader"
                },
                self.model.place(*id)
            )),
        }
    }
}
