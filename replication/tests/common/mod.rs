//! The suite's stage over the simulated network.
#![allow(dead_code)] // each test file uses its part

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_log_segments::io::fault::FaultIo;
use kera_replication::ids::BrokerId;
use kera_replication::own::OwnFiles;
use kera_replication::primary::ReplicaSet;
use kera_replication::records::{MemoryRecords, StreamletRecords, Trouble};
use kera_replication::runtime::{Runtime, RuntimeRef};
use kera_replication::transport::sim::{MemoryFate, Sim, Storm};
use kera_replication::transport::{Pending, TransportRef};

use tempfile::TempDir;

use crate::suite::asked::{Asked, Silent};
use crate::suite::own::Disks;
use crate::suite::scenario::{Seen, run, streamlet};
use crate::suite::served::Disk;
use crate::suite::test_group::TestGroup;
use crate::suite::{Plan, Stage};

const NODES: u32 = 4;

/// Four simulated brokers and their records.
pub struct SimStage {
    pub sim: Sim,
    records: Arc<MemoryRecords>,
    calm: Arc<AtomicBool>,
    silent: Silent,
    /// The brokers' own disks, if the plan wants them.
    disks: Option<(Disks, TempDir)>,
}

impl SimStage {
    /// As `plan` says; its seed decides the weather: every third is calm, every third rough.
    pub fn new(plan: &Plan) -> Arc<Self> {
        let (faults, late) = (plan.faults, plan.late);
        let storms = [Storm::CALM, Storm::FAIR, Storm::ROUGH];
        let sim = Sim::new(plan.seed, storms[(plan.seed % 3) as usize], faults);
        let calm = Arc::new(AtomicBool::new(false));
        let well = calm.clone();
        sim.set_limits(plan.limits);
        (0..NODES).for_each(|node| sim.add_node(BrokerId(node)));
        let runtime = sim.runtime(None);
        let (moods, clock) = (sim.clone(), runtime.clone());
        let weather = move || {
            let (trouble, time) = moods.dice(|dice, storm| {
                let trouble = match dice.below(1000) {
                    x if x < storm.lost => Trouble::LostRequest,
                    x if x < 2 * storm.lost => Trouble::LostReply,
                    x if x < 2 * storm.lost + late && !well.load(Ordering::Relaxed) => {
                        Trouble::Late(dice.time(20 * storm.delay))
                    }
                    _ => Trouble::None,
                };
                (trouble, dice.time(storm.delay))
            });
            let sleep = clock.sleep(time);
            Box::pin(async move {
                sleep.await;
                trouble
            }) as Pending<_>
        };
        let records = MemoryRecords::new(Box::new(weather), runtime, faults);
        records.create(streamlet());
        let disks = plan.own.then(|| {
            let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
            let dir = dir.expect("a directory");
            let disks = match plan.synced {
                true => Disks::that_lose_power(plan.seed),
                false => Disks::new(dir.path()),
            };
            (disks, dir)
        });
        Arc::new(Self {
            sim,
            records: Arc::new(records),
            calm,
            silent: Silent::default(),
            disks,
        })
    }
}

impl SimStage {
    /// The records as they are.
    pub fn look(&self) -> StreamletRecords {
        self.records.look(streamlet()).expect("it was created")
    }

    /// The records are those of an older state, and nobody has owned the streamlet since.
    pub fn put_back(&self) {
        self.records.put_back(streamlet());
    }

    /// The simulated disk of `node`, whose operations can be made to fail.
    pub fn failing_disk(&self, node: BrokerId) -> FaultIo {
        let disks = self.disks.as_ref();
        let disk = disks.and_then(|(disks, _)| disks.failing(node));
        disk.expect("brokers have simulated disks")
    }

    /// How often records were read so far, by all brokers.
    pub fn reads(&self) -> u64 {
        self.records.reads()
    }

    /// How many records of groups they got.
    pub fn groups_read(&self) -> u64 {
        self.records.groups_read()
    }
}

impl Stage for SimStage {
    fn nodes(&self) -> Vec<BrokerId> {
        (0..NODES).map(BrokerId).collect()
    }

    fn transport(&self, node: BrokerId) -> TransportRef {
        Arc::new(self.sim.transport(node))
    }

    fn asked(&self, node: BrokerId) -> Arc<Asked> {
        Arc::new(Asked {
            records: self.records.clone(),
            clock: self.sim.runtime(None),
            silent: self.silent.clone(),
            node,
        })
    }

    fn cut_records(&self, node: BrokerId) {
        self.silent.lock().unwrap().insert(node);
    }

    fn runtime(&self, node: BrokerId) -> RuntimeRef {
        self.sim.runtime(Some(node))
    }

    fn kill(&self, node: BrokerId) -> Pending<()> {
        self.sim.kill(node);
        Box::pin(std::future::ready(()))
    }

    fn kill_with_memory(&self, node: BrokerId) -> Pending<()> {
        self.sim.kill_with_memory(node);
        Box::pin(std::future::ready(()))
    }

    fn own(&self, node: BrokerId) -> Option<Arc<OwnFiles>> {
        self.disks.as_ref().map(|(disks, _)| disks.own(node))
    }

    fn disk(&self, node: BrokerId) -> Disk {
        match &self.disks {
            Some((disks, _)) => disks.disk(node),
            None => Disk::of_no_account(),
        }
    }

    fn write_own(&self, node: BrokerId, set: &ReplicaSet, source: &TestGroup) {
        if let Some((disks, _)) = &self.disks {
            disks.write(node, set, source, 0);
        }
    }

    fn start(&self, node: BrokerId, fate: MemoryFate) -> Pending<()> {
        match (&self.disks, fate) {
            // A synced group counts on what its disk has, which stays where shared memory goes.
            (Some((disks, _)), MemoryFate::Vanished) if !disks.lose_power() => disks.wipe(node),
            (Some((disks, _)), MemoryFate::DiskReplaced) => disks.wipe(node),
            (Some((disks, _)), MemoryFate::PowerLost) => disks.boot(node),
            _ => {}
        }
        self.sim.start_node(node, fate);
        Box::pin(std::future::ready(()))
    }

    fn is_alive(&self, node: BrokerId) -> bool {
        self.sim.is_alive(node)
    }

    fn pause(&self, node: BrokerId, paused: bool) {
        self.sim.pause(node, paused);
    }

    fn cut(&self, from: BrokerId, to: BrokerId) {
        self.sim.cut(from, to);
    }

    fn heal(&self) {
        self.silent.lock().unwrap().clear();
        self.sim.heal();
    }

    fn calm(&self) {
        self.sim.set_storm(Storm::CALM);
        self.calm.store(true, Ordering::Relaxed);
    }

    fn wait(&self, time: Duration) -> Pending<()> {
        self.sim.runtime(None).sleep(time)
    }
}

/// One run, with its log if `log`.
pub fn once(plan: Plan, log: bool) -> (Result<Seen, String>, Vec<String>) {
    let stage = SimStage::new(&plan);
    if log {
        stage.sim.keep_log();
    }
    let result = stage.sim.run(run(stage.clone(), plan));
    let result = result.unwrap_or_else(|| Err("nothing moves any more".into()));
    let log = stage.sim.log();
    stage.sim.end();
    (result, log)
}
