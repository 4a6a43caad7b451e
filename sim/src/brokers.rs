//! The brokers of a run: started, stopped, killed and started again, each on a machine of its own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_broker::Broker;
use kera_broker::config::{BrokerConfig, EngineChoice, TransportChoice};
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use crate::dice::Dice;
use crate::newer::Power;
use crate::os;
use crate::plan::Plan;
use crate::store::Store;

/// The port of each broker for clients, and for other brokers.
const PORT: u16 = 7600;
const REPLICATION_PORT: u16 = 7601;
/// That of its listener for Kafka's clients, where a run has some.
pub const KAFKA_PORT: u16 = 7602;
/// A process that could not start is started again after this.
const START_AGAIN: Duration = Duration::from_millis(500);

/// Where a process is.
const RUNNING: u32 = 0;
const ENDED: u32 = 1;
const SERVES: u32 = 2;

struct Process {
    stop: watch::Sender<bool>,
    stage: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

struct Slot {
    process: Option<Process>,
    paused: bool,
    /// Its machine lost replicas of which nothing was promised beyond that.
    harmed: bool,
    /// How often its process was started.
    starts: u32,
    /// An operator took it out: it ends, and does not come back.
    retired: bool,
}

impl Slot {
    const EMPTY: Self = Self {
        process: None,
        paused: false,
        harmed: false,
        starts: 0,
        retired: false,
    };
}

/// All of them.
pub struct Brokers {
    plan: Plan,
    root: PathBuf,
    store: Arc<Store>,
    slots: Mutex<BTreeMap<u32, Slot>>,
    /// Those that were taken out.
    gone: Mutex<Vec<u32>>,
}

impl Brokers {
    /// None of them runs yet.
    pub fn new(plan: &Plan, root: &Path, store: Arc<Store>) -> Arc<Self> {
        Arc::new(Self {
            plan: plan.clone(),
            root: root.to_owned(),
            store,
            slots: Mutex::new((1..=plan.brokers).map(|one| (one, Slot::EMPTY)).collect()),
            gone: Mutex::default(),
        })
    }

    pub fn all(&self) -> Vec<u32> {
        self.slots.lock().keys().copied().collect()
    }

    /// One more than the plan has, if there was none yet; whoever looks after them starts it.
    pub fn add(&self) {
        let added = self.plan.brokers + 1;
        if !self.gone.lock().contains(&added) {
            self.slots.lock().entry(added).or_insert(Slot::EMPTY);
        }
    }

    /// Which of the lives of a broker's process this is, if it serves and is not to end.
    pub fn life(&self, broker: u32) -> Option<u32> {
        let slots = self.slots.lock();
        let slot = slots.get(&broker).filter(|slot| !slot.retired)?;
        let serves = slot.process.as_ref()?.stage.load(Ordering::SeqCst) == SERVES;
        serves.then_some(slot.starts)
    }

    /// Has a broker stopped for good, unless it was started again since its `life`.
    pub fn retire(&self, broker: u32, life: u32) -> bool {
        if self.life(broker) != Some(life) {
            return false;
        }
        if let Some(slot) = self.slots.lock().get_mut(&broker) {
            slot.retired = true;
        }
        self.ask_to_stop(broker);
        true
    }

    /// Whether an operator took it out; with its process its disk goes.
    pub fn leaves(&self, broker: u32) -> bool {
        let mut slots = self.slots.lock();
        if slots.get(&broker).is_none_or(|slot| !slot.retired) {
            return false;
        }
        slots.remove(&broker);
        self.gone.lock().push(broker);
        remove(&self.dir(broker));
        os::forget_disk(broker);
        os::log(&format!("broker {broker} is gone for good"));
        true
    }

    /// Those that were taken out.
    pub fn gone(&self) -> Vec<u32> {
        self.gone.lock().clone()
    }

    /// Where clients find brokers.
    pub fn bootstrap(&self) -> String {
        let address = |broker| format!("{}:{PORT}", os::address_of(broker));
        self.all()
            .into_iter()
            .map(address)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// What a machine keeps.
    pub fn dir(&self, broker: u32) -> PathBuf {
        self.root.join(format!("b{broker}"))
    }

    pub fn data_dir(&self, broker: u32) -> PathBuf {
        self.dir(broker).join("data")
    }

    pub fn shared_dir(&self, broker: u32) -> PathBuf {
        self.dir(broker).join("shared")
    }

    fn config(&self, broker: u32) -> BrokerConfig {
        let mut config = BrokerConfig {
            data_dir: self.data_dir(broker),
            ..BrokerConfig::default()
        };
        let here = os::address_of(broker);
        config.server.listen = format!("{here}:{PORT}").into();
        config.server.drain_timeout = Duration::from_secs(3);
        if self.plan.shares.is_some() {
            config.kafka.listen = vec![format!("{here}:{KAFKA_PORT}").into()];
        }
        config.http.listen = None;
        config.memory.pool = 16 << 20;
        config.storage.engine = EngineChoice::Blocking;
        config.cluster.broker_id = Some(broker);
        config.cluster.listen = format!("{here}:{REPLICATION_PORT}");
        config.cluster.host = Some(format!("host{broker}"));
        if self.plan.racks > 0 {
            config.cluster.rack = Some(format!("rack{}", broker % self.plan.racks));
        }
        config.cluster.repair_interval = self.plan.repair_interval;
        if let Some(deadline) = self.plan.append_deadline {
            config.cluster.append_deadline = deadline;
        }
        if self.plan.failing_disks || self.plan.newer.power != Power::Kept {
            config.cluster.scrub_interval = self.plan.scrub_interval;
        }
        config.cluster.transport = TransportChoice::Tcp;
        config.replica_store.memory_bytes = 32 << 20;
        config.replica_store.shared_dir = Some(self.shared_dir(broker));
        config.replica_store.flush_interval = self.plan.flush_interval;
        config.consumers.internal_streamlets = 1;
        if self.plan.newer.retention {
            config.retention.check_interval = self.plan.compaction_interval;
        }
        config.compaction.check_interval = self.plan.compaction_interval;
        config
    }

    /// Starts the process of a broker, which is tried until it serves.
    pub fn start(&self, broker: u32) {
        let stage = Arc::new(AtomicU32::new(RUNNING));
        let (stop, stopped) = watch::channel(false);
        let (config, store, at) = (self.config(broker), self.store.clone(), stage.clone());
        if !self.dir(broker).exists() {
            self.boot(broker);
        }
        os::log(&format!("broker {broker} is started"));
        let thread = os::on_node(broker, "broker", move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(run(broker, config, &store, stopped, &at));
            drop(runtime);
            at.store(ENDED, Ordering::SeqCst);
        });
        if let Some(slot) = self.slots.lock().get_mut(&broker) {
            slot.starts += 1;
            slot.process = Some(Process {
                stop,
                stage,
                thread,
            });
        }
    }

    /// Ends the process where it stands.
    pub fn kill(&self, broker: u32) {
        let process = self.slots.lock().get_mut(&broker).and_then(|slot| {
            slot.paused = false;
            slot.process.take()
        });
        if let Some(process) = process {
            os::kill(broker, &self.dir(broker));
            self.store.process_ended(broker);
            // What it was told by others may still hold on to it; nothing of it runs.
            std::mem::forget(process);
            os::log(&format!("broker {broker} is killed"));
        }
    }

    /// What was in its machine's memory is gone, and what was not flushed as `dice` say, and it boots anew.
    pub fn lose_memory(&self, broker: u32, dice: &mut Dice) {
        remove(&self.shared_dir(broker));
        for what in os::lose_power(broker, &self.data_dir(broker), dice) {
            os::log(&format!("broker {broker} loses {what}"));
        }
        self.harm(broker);
        self.boot(broker);
    }

    /// All that its machine held is gone.
    pub fn lose_everything(&self, broker: u32) {
        remove(&self.dir(broker));
        os::forget_disk(broker);
        self.harm(broker);
        self.boot(broker);
    }

    /// A bit of a file on its disk is another one from now on, if there is any yet.
    pub fn rot(&self, broker: u32, dice: &mut Dice) {
        let mut files = Vec::new();
        for kept in ["streams", "backup"] {
            logs_below(&self.data_dir(broker).join(kept), &mut files);
        }
        files.sort();
        if files.is_empty() {
            return;
        }
        let path = dice.one(&files);
        match rot(path, dice) {
            Ok(Some(at)) => {
                os::log(&format!("a bit of {} is turned at {at}", name_of(path)));
                self.harm(broker);
            }
            Ok(None) => {}
            Err(error) => os::log(&format!("{}: {error}", name_of(path))),
        }
    }

    /// Replicas that were not flushed went with its memory, or all of them with its disk.
    fn harm(&self, broker: u32) {
        if let Some(slot) = self.slots.lock().get_mut(&broker) {
            slot.harmed = true;
        }
    }

    /// Whether all that its machine held was gone at some time.
    pub fn is_harmed(&self, broker: u32) -> bool {
        self.slots
            .lock()
            .get(&broker)
            .is_some_and(|slot| slot.harmed)
    }

    /// Its machine has another boot from now on.
    fn boot(&self, broker: u32) {
        let dir = self.dir(broker);
        let file = dir.join("boot_id");
        let text = Uuid::new_v4().to_string();
        let written = fs::create_dir_all(&dir).and_then(|()| fs::write(&file, text));
        if let Err(error) = written {
            os::log(&format!("{}: {error}", file.display()));
        }
        os::set_boot_id(broker, &file);
    }

    /// The metadata store is put back: as operators do, who remove what says how far this broker has read it.
    pub fn forget_revision(&self, broker: u32) {
        let file = self.data_dir(broker).join("REVISION");
        match fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                os::log(&format!("{}: {error}", file.display()));
            }
            _ => {}
        }
    }

    /// Asks the process to stop; it goes on until it has.
    pub fn ask_to_stop(&self, broker: u32) {
        if let Some(process) = self
            .slots
            .lock()
            .get(&broker)
            .and_then(|slot| slot.process.as_ref())
        {
            process.stop.send_replace(true);
            os::log(&format!("broker {broker} is asked to stop"));
        }
    }

    /// Whether the process has come to its end by itself.
    pub fn has_ended(&self, broker: u32) -> bool {
        self.is_at(broker, ENDED)
    }

    /// Whether the process has come as far as to serve.
    pub fn serves(&self, broker: u32) -> bool {
        self.is_at(broker, SERVES)
    }

    fn is_at(&self, broker: u32, stage: u32) -> bool {
        let slots = self.slots.lock();
        let process = slots.get(&broker).and_then(|slot| slot.process.as_ref());
        process.is_some_and(|process| process.stage.load(Ordering::SeqCst) == stage)
    }

    /// Removes what has ended, so that it can be started again.
    pub fn clear(&self, broker: u32) {
        let process = self
            .slots
            .lock()
            .get_mut(&broker)
            .and_then(|slot| slot.process.take());
        if let Some(process) = process {
            self.store.process_ended(broker);
            let _ = process.thread.join();
        }
    }

    /// Whether there is a process, in whatever state.
    pub fn runs(&self, broker: u32) -> bool {
        self.slots
            .lock()
            .get(&broker)
            .is_some_and(|slot| slot.process.is_some())
    }

    pub fn pause(&self, broker: u32, paused: bool) {
        os::pause(broker, paused);
        if let Some(slot) = self.slots.lock().get_mut(&broker) {
            slot.paused = paused;
        }
        os::log(&format!(
            "broker {broker} {}",
            if paused {
                "is stopped (SIGSTOP)"
            } else {
                "goes on"
            }
        ));
    }

    /// Which brokers run and are not stopped.
    pub fn running(&self) -> BTreeMap<u32, bool> {
        let slots = self.slots.lock();
        let runs = |slot: &Slot| slot.process.is_some() && !slot.paused;
        let there = slots.iter().map(|(broker, slot)| (*broker, runs(slot)));
        there
            .chain(self.gone().into_iter().map(|one| (one, false)))
            .collect()
    }
}

async fn run(
    broker: u32,
    config: BrokerConfig,
    store: &Arc<Store>,
    mut stopped: watch::Receiver<bool>,
    stage: &AtomicU32,
) {
    loop {
        let started = Broker::start_sharing(config.clone(), Some(store.view(broker))).await;
        match started {
            Ok(running) => {
                if !config.kafka.listen.is_empty()
                    && let Err(error) = kera_kafka_shim::start(running.shared().clone()).await
                {
                    os::log(&format!("broker {broker} serves no Kafka clients: {error}"));
                    running.shutdown().await;
                    return;
                }
                os::log(&format!("broker {broker} serves"));
                stage.store(SERVES, Ordering::SeqCst);
                // Who asks may be gone with the run.
                let _ = stopped.wait_for(|stop| *stop).await;
                running.shutdown().await;
                os::log(&format!("broker {broker} has stopped"));
                return;
            }
            Err(error) => os::log(&format!("broker {broker} does not start: {error}")),
        }
        tokio::time::sleep(START_AGAIN).await;
    }
}

/// Files of groups below a directory.
fn logs_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            logs_below(&path, found);
        } else if path.extension().is_some_and(|end| end == "log") {
            found.push(path);
        }
    }
}

/// Turns a bit of what was written to a file; where, if anything was.
fn rot(path: &Path, dice: &mut Dice) -> std::io::Result<Option<u64>> {
    let bytes = fs::read(path)?;
    let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else {
        return Ok(None);
    };
    let at = dice.between(0, last as u64);
    let file = fs::File::options().write(true).open(path)?;
    let turned = bytes[at as usize] ^ (1 << dice.below(8));
    file.write_all_at(&[turned], at)?;
    Ok(Some(at))
}

/// The same in each run: without the directory of the run.
fn name_of(path: &Path) -> String {
    let parts: Vec<_> = path.iter().rev().take(4).collect();
    let parts: Vec<_> = parts
        .iter()
        .rev()
        .map(|part| part.to_string_lossy())
        .collect();
    parts.join("/")
}

fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        os::log(&format!("{}: {error}", dir.display()));
    }
}
