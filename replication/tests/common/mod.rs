//! The suite's stage over the simulated network.
#![allow(dead_code)] // each test file uses its part

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_protocol::ids::Epoch;
use kera_replication::ids::{BackupId, StreamletKey};
use kera_replication::records::{
    MemoryRecords, Records, RecordsError, RecordsRef, StreamletRecords, Transaction, Trouble,
};
use kera_replication::runtime::{Runtime, RuntimeRef};
use kera_replication::transport::sim::{MemoryFate, Sim, Storm};
use kera_replication::transport::{Pending, TransportRef};

use crate::suite::scenario::{Seen, run, streamlet};
use crate::suite::{Plan, Stage};

const NODES: u32 = 4;

/// Four simulated brokers and their records.
pub struct SimStage {
    pub sim: Sim,
    records: Arc<MemoryRecords>,
    calm: Arc<AtomicBool>,
    /// Who gets no answer from the records.
    silent: Silent,
}

type Silent = Arc<Mutex<BTreeSet<BackupId>>>;

impl SimStage {
    /// As `plan` says; its seed decides the weather: every third is calm, every third rough.
    pub fn new(plan: &Plan) -> Arc<Self> {
        let (faults, late) = (plan.faults, plan.late);
        let storms = [Storm::CALM, Storm::FAIR, Storm::ROUGH];
        let sim = Sim::new(plan.seed, storms[(plan.seed % 3) as usize], faults);
        let calm = Arc::new(AtomicBool::new(false));
        let well = calm.clone();
        (0..NODES).for_each(|node| sim.add_node(BackupId(node)));
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
        Arc::new(Self {
            sim,
            records: Arc::new(records),
            calm,
            silent: Silent::default(),
        })
    }
}

impl SimStage {
    /// The records as they are.
    pub fn look(&self) -> StreamletRecords {
        self.records.look(streamlet()).expect("it was created")
    }
}

impl Stage for SimStage {
    fn nodes(&self) -> Vec<BackupId> {
        (0..NODES).map(BackupId).collect()
    }

    fn transport(&self, node: BackupId) -> TransportRef {
        Arc::new(self.sim.transport(node))
    }

    fn records(&self, node: BackupId) -> RecordsRef {
        Arc::new(Asked {
            records: self.records.clone(),
            clock: self.sim.runtime(None),
            silent: self.silent.clone(),
            node,
        })
    }

    fn cut_records(&self, node: BackupId) {
        self.silent.lock().unwrap().insert(node);
    }

    fn runtime(&self, node: BackupId) -> RuntimeRef {
        self.sim.runtime(Some(node))
    }

    fn kill(&self, node: BackupId) -> Pending<()> {
        self.sim.kill(node);
        Box::pin(std::future::ready(()))
    }

    fn start(&self, node: BackupId, fate: MemoryFate) -> Pending<()> {
        self.sim.start_node(node, fate);
        Box::pin(std::future::ready(()))
    }

    fn is_alive(&self, node: BackupId) -> bool {
        self.sim.is_alive(node)
    }

    fn pause(&self, node: BackupId, paused: bool) {
        self.sim.pause(node, paused);
    }

    fn cut(&self, from: BackupId, to: BackupId) {
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

/// The records as one broker reaches them, or not.
struct Asked {
    records: Arc<MemoryRecords>,
    clock: RuntimeRef,
    silent: Silent,
    node: BackupId,
}

impl Asked {
    fn ask<T: 'static>(
        &self,
        question: impl FnOnce() -> Pending<Result<T, RecordsError>>,
    ) -> Pending<Result<T, RecordsError>> {
        if !self.silent.lock().unwrap().contains(&self.node) {
            return question();
        }
        let patience = self.clock.sleep(Duration::from_millis(50));
        Box::pin(async move {
            patience.await;
            Err(RecordsError::Unknown("cut off".into()))
        })
    }
}

impl Records for Asked {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        self.ask(|| self.records.try_commit(transaction))
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.ask(|| self.records.try_read(streamlet))
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BackupId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        self.ask(|| self.records.try_take_epoch(streamlet, owner))
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
