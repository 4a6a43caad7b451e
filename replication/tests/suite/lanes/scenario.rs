//! A run over lanes: owners come and go, some without knowing that they have gone, while brokers are hurt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_protocol::ids::{LaneId, Ordinal};
use kera_records::GroupRecord;
use kera_replication::ids::{BrokerId, CopyId, Durability, Incarnation, Replica};
use kera_replication::jobs::{Jobs, Owned};
use kera_replication::primary::{Lane, LaneSpec, Primary, ReplicaSet, Source};
use kera_replication::recovery::{RecoverSpec, Recovered, Unclean, recover};
use kera_replication::transport::sim::{Dice, MemoryFate};
use kera_replication::transport::{CopyState, Reply, Request};

use super::check::{Acked, Model, check};
use crate::suite::scenario::{Seen, streamlet};
use crate::suite::source::{Closed, TestSource};
use crate::suite::{Plan, StageRef, busy};

/// Attempts to recover before the run counts as stuck.
const RECOVERIES: u32 = 60;

/// One owner's lane, written by one client.
struct Writer {
    owner: BrokerId,
    own: bool,
    lane: Arc<Lane>,
    next_ordinal: Ordinal,
    open: Option<(Arc<ReplicaSet>, Arc<TestSource>)>,
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
        let (primary, recovered) = run.recover(owner).await?;
        run.reign(owner, &primary, &recovered, reign + 1 == plan.reigns)
            .await?;
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
        self.stage.is_alive(node) && !self.zombies.iter().any(|z| z.owner == node)
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

    async fn recover(&mut self, owner: BrokerId) -> Result<(Arc<Primary>, Recovered), String> {
        let spec = RecoverSpec {
            streamlet: streamlet(),
            min_insync_replicas: self.plan.min_insync_replicas,
            unclean: Unclean::Wait,
            starts: BTreeMap::new(),
        };
        let mut last = String::new();
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
                    return Ok((primary, recovered));
                }
                Ok(recovered) => last = format!("{recovered:?}"),
                Err(error) => last = error.to_string(),
            }
            self.stage.wait(Duration::from_millis(30)).await;
        }
        Err(format!("recovery is stuck: {last}"))
    }

    async fn mend(&mut self) {
        self.stage.heal();
        for node in std::mem::take(&mut self.dead) {
            self.stage.start(node, MemoryFate::Kept).await;
        }
    }

    async fn reign(
        &mut self,
        owner: BrokerId,
        primary: &Arc<Primary>,
        recovered: &Recovered,
        last: bool,
    ) -> Result<(), String> {
        let mut writers = self.writers(owner, primary, recovered);
        if self.plan.jobs {
            let lanes = writers.iter().map(|writer| Arc::downgrade(&writer.lane));
            let jobs = self.jobs(primary, recovered, lanes.collect());
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
                    self.append(&mut writers[at]);
                }
                80..92 => self.append_to_a_zombie(),
                _ => {
                    let at = self.dice.below(writers.len() as u64) as usize;
                    if let Some((set, source)) = &writers[at].open {
                        source.freeze();
                        writers[at].lane.froze(set);
                        let early = self.plan.empty;
                        if early > 0 && self.dice.chance(early) {
                            // Its first append comes later.
                            self.roll(&mut writers[at]);
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
                    let lane = writer.lane.clone();
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
        if let Some((set, source)) = &writer.open {
            source.freeze();
            writer.lane.froze(set);
        }
        self.mend().await;
        self.stage.wait(Duration::from_millis(300)).await;
        let (owner, node) = (writer.owner, self.any_node());
        if node != owner && self.may_vanish(node) {
            self.vanished.insert(node);
            self.stage.kill_with_memory(node).await;
            self.stage.start(node, MemoryFate::Vanished).await;
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
            if found.streamlet.epoch != writer.lane.spec().epoch {
                // An owner that gave up taking it over has it after all.
                return Ok(());
            }
            let others = |record: &GroupRecord| {
                let mut others = record.copies.to_vec();
                others.retain(|holder| there.contains_key(&holder.broker));
                others
            };
            let is_former = |was: &Replica| there[&was.broker].0 != was.incarnation;
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
    ) -> Option<BTreeMap<BrokerId, (Incarnation, BTreeSet<CopyId>)>> {
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
            there.insert(node, (is.incarnation, copies));
        }
        Some(there)
    }

    fn writers(
        &mut self,
        owner: BrokerId,
        primary: &Arc<Primary>,
        recovered: &Recovered,
    ) -> Vec<Writer> {
        let next_group = Arc::new(AtomicU64::new(recovered.next_group.0));
        let lanes = (0..self.plan.lanes).map(LaneId);
        lanes
            .map(|lane| {
                let known = recovered.lanes.iter().find(|l| l.lane == lane);
                let spec = LaneSpec {
                    streamlet: streamlet(),
                    epoch: recovered.epoch,
                    lane,
                    replicas: self.plan.replicas,
                    min_insync_replicas: self.plan.min_insync_replicas,
                };
                Writer {
                    owner,
                    own: self.plan.own,
                    lane: Lane::new(primary.clone(), spec, next_group.clone()),
                    next_ordinal: known.map_or(0, |l| l.next_ordinal),
                    open: None,
                }
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
        let owned = move || {
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

    fn append_to_a_zombie(&mut self) {
        if self.zombies.is_empty() {
            return;
        }
        let at = self.dice.below(self.zombies.len() as u64) as usize;
        let mut zombie = self.zombies.swap_remove(at);
        if self.stage.is_alive(zombie.owner) {
            self.append(&mut zombie);
        }
        self.zombies.push(zombie);
    }

    /// Appends one batch, in a new group if need be, and sees whether it is acknowledged.
    fn append(&mut self, writer: &mut Writer) {
        self.next_id += 1;
        let id = self.next_id;
        let filler = self.dice.below(200) as usize;
        loop {
            if writer.open.as_ref().is_none_or(|(_, s)| s.is_frozen()) {
                self.roll(writer);
            }
            let Some((set, source)) = &writer.open else {
                return;
            };
            match source.append(id, filler) {
                Ok(batch) => {
                    if writer.own {
                        self.stage.write_own(writer.owner, set, source);
                    }
                    writer.lane.grew(set);
                    let (lane, acked) = (writer.lane.clone(), self.acked.clone());
                    let group = set.id().group;
                    let acknowledged = async move {
                        if lane.acknowledged(group, batch.end).await.is_ok() {
                            acked.lock().unwrap().insert(id);
                        }
                    };
                    let runtime = self.stage.runtime(writer.owner);
                    runtime.spawn(Box::pin(acknowledged));
                    return;
                }
                Err(Closed::Full) => {
                    source.freeze();
                    writer.lane.froze(set);
                }
                Err(Closed::Frozen) => {}
            }
        }
    }

    fn roll(&mut self, writer: &mut Writer) {
        if let Some((_, source)) = &writer.open {
            writer.next_ordinal = source.end().ordinal;
        }
        let spec = *writer.lane.spec();
        let copy = CopyId {
            streamlet: spec.streamlet,
            group: writer.lane.next_group(Durability::Placed),
            epoch: spec.epoch,
        };
        let source = Arc::new(TestSource::new(copy, spec.lane, writer.next_ordinal));
        self.model.opened(source.clone());
        let set = writer.lane.open(copy.group, source.clone());
        writer.open = Some((set, source));
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

    async fn hurt(&mut self, node: BrokerId) {
        if !self.stage.is_alive(node) {
            return;
        }
        if self.may_vanish(node) && self.dice.chance(150) {
            self.vanished.insert(node);
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
        let half = self.dice.chance(500);
        if half {
            self.mend().await;
        }
        let owner = self.next_owner().await;
        // Not all brokers may answer yet: one counted replica must keep every record.
        let (_, _) = self.recover(owner).await?;
        for _ in 0..6 {
            self.append_to_a_zombie();
        }
        self.stage.calm();
        self.mend().await;
        self.stage.wait(Duration::from_secs(2)).await;
        let settled = self.plan.config.append_deadline + Duration::from_secs(1);
        // Where time is real a busy machine needs more of it; what is never done is found all the same.
        self.plan.config.append_deadline = Duration::from_secs(60);
        let (mut primary, mut recovered) = self.recover(owner).await?;
        let zombies = std::mem::take(&mut self.zombies);
        self.stage.wait(Duration::from_secs(1)).await;
        if self.plan.jobs {
            // Before they make good what should not have been.
            check(&self.stage, owner, &recovered, &self.model, &self.vanished).await?;
            let jobs = self.jobs(&primary, &recovered, Vec::new());
            for round in 0..60 {
                if round >= 8 && jobs.stats().wanting == 0 {
                    break;
                }
                jobs.round().await;
                self.stage.wait(Duration::from_millis(500)).await;
            }
            (primary, recovered) = self.recover(owner).await?;
            for closed in recovered.lanes.iter().flat_map(|lane| &lane.groups) {
                let copy = &CopyId::of(closed);
                if closed.length > 0 && closed.copies.len() < self.plan.replicas {
                    return Err(format!(
                        "{copy} has too few copies although all is well: {closed:?}, {:?}",
                        jobs.stats()
                    ));
                }
            }
            // Each of them has it, or a job would have replaced it.
            self.vanished.clear();
        }
        let content = check(&self.stage, owner, &recovered, &self.model, &self.vanished).await?;
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
        let mut writers = self.writers(owner, &primary, &recovered);
        for writer in &mut writers {
            for _ in 0..5 {
                self.append(writer);
            }
        }
        self.stage.wait(settled).await;
        let expected = before + 5 * writers.len();
        let acked = || self.acked.lock().unwrap().len();
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
                writers.iter().map(|w| w.lane.deposed()).collect::<Vec<_>>()
            ));
        }
        drop(zombies);
        Ok(Seen {
            appended: self.next_id,
            acked: acked as u64,
            groups: self.model.len() as u64,
        })
    }
}
