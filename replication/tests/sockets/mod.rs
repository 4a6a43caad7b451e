//! The suite's stage with real sockets and files on shared memory. Every broker has a runtime of its
//! own, which dies with it; between each two brokers stands a gate that can hold bytes back.
#![allow(dead_code)] // each test file uses its part

pub mod gates;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_replication::backup::{Limits, ReplicaStore, ShmMemory, ShmOptions};
use kera_replication::faults::Faults;
use kera_replication::ids::BrokerId;
use kera_replication::primary::Config;
use kera_replication::records::MemoryRecords;
use kera_replication::runtime::{Runtime, RuntimeRef, TokioRuntime};
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::tcp::{BackupServer, LinkOptions, ServerOptions, TcpTransport};
use kera_replication::transport::{Pending, TransportRef};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::suite::asked::{Asked, Silent};
use crate::suite::scenario::{Seen, run, streamlet};
use crate::suite::{Plan, Stage};
use gates::Gates;

const NODES: u32 = 4;
const QUOTA: u64 = 64 << 20;

/// How data goes from broker to broker.
pub trait Way: Send + Sync {
    /// Where brokers listen.
    fn address(&self) -> IpAddr;
    /// How long a control call or a connection may take; where processors are emulated, longer.
    fn patience(&self) -> Duration {
        Duration::from_millis(400)
    }
    /// What serves a store beside its TCP listener, within the broker's runtime.
    fn serve(&self, store: &Arc<ReplicaStore>, address: SocketAddr);
    /// What answers at `listener`, data and control calls; its tasks are those of `runtime`, and whatever
    /// else it has ends when what is returned is dropped.
    fn answer(
        &self,
        store: Arc<ReplicaStore>,
        listener: TcpListener,
        runtime: &tokio::runtime::Handle,
    ) -> Box<dyn Send> {
        let server = BackupServer::new(store, ServerOptions::default());
        runtime.spawn(async move { server.serve(listener).await });
        Box::new(())
    }
    /// How `from` reaches the others, by control calls over `tcp`.
    fn transport(&self, from: BrokerId, tcp: TcpWay, gates: &Arc<Gates>) -> TransportRef;
}

/// A TCP transport by way of the forwarders, and where they stand.
pub struct TcpWay {
    pub transport: TcpTransport,
    pub options: LinkOptions,
    pub forwarders: HashMap<BrokerId, String>,
}

/// A broker's process, as far as one process can play another: its tasks end with its runtime.
struct Process {
    runtime: tokio::runtime::Runtime,
    server: Box<dyn Send>,
    clock: RuntimeRef,
}

impl Process {
    fn kill(self) {
        self.runtime.shutdown_background();
        drop(self.server);
    }
}

/// Tasks die with a broker; time goes on.
struct Mortal {
    tasks: tokio::runtime::Handle,
    clock: TokioRuntime,
}

impl Runtime for Mortal {
    fn spawn(&self, task: Pending<()>) {
        self.tasks.spawn(task);
    }

    fn sleep(&self, time: Duration) -> Pending<()> {
        self.clock.sleep(time)
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn off(&self, step: Box<dyn FnOnce() + Send>) -> Pending<()> {
        self.clock.off(step)
    }
}

pub struct SocketStage {
    way: Arc<dyn Way>,
    dir: TempDir,
    gates: Arc<Gates>,
    /// Where `from` finds `to`.
    forwarders: HashMap<(BrokerId, BrokerId), String>,
    processes: Mutex<HashMap<BrokerId, Process>>,
    records: Arc<MemoryRecords>,
    silent: Silent,
    clock: RuntimeRef,
    tasks: tokio::runtime::Handle,
}

fn nodes() -> impl Iterator<Item = BrokerId> {
    (0..NODES).map(BrokerId)
}

impl SocketStage {
    pub async fn new(way: Arc<dyn Way>) -> Arc<Self> {
        let tasks = tokio::runtime::Handle::current();
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let gates = Arc::new(Gates::default());
        let mut forwarders = HashMap::new();
        for from in nodes() {
            for to in nodes() {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                let address = listener.local_addr().expect("an address").to_string();
                tokio::spawn(gates.clone().forward(listener, from, to));
                forwarders.insert((from, to), address);
            }
        }
        let records = MemoryRecords::default();
        records.create(streamlet());
        let stage = Arc::new(Self {
            way,
            dir: dir.expect("a directory"),
            gates,
            forwarders,
            processes: Mutex::default(),
            records: Arc::new(records),
            silent: Silent::default(),
            clock: Arc::new(TokioRuntime::new(tasks.clone())),
            tasks,
        });
        for node in nodes() {
            stage.start(node, MemoryFate::Kept).await;
        }
        stage
    }

    fn shared(&self, node: BrokerId) -> PathBuf {
        self.dir.path().join(format!("shared{}", node.0))
    }

    /// Starts a process, which waits for its predecessor's last thread; where it listens.
    fn launch(
        way: &dyn Way,
        options: ShmOptions,
        tasks: &tokio::runtime::Handle,
    ) -> (Process, String) {
        let limits = Limits {
            memory_bytes: QUOTA,
            ..Limits::default()
        };
        let memory = ShmMemory::new(options);
        let store = ReplicaStore::start(memory, limits, Faults::default()).expect("starts");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind((way.address(), 0)));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        {
            let _within = runtime.enter();
            way.serve(&store, address);
        }
        let server = way.answer(store, listener, runtime.handle());
        let clock = Arc::new(Mortal {
            tasks: runtime.handle().clone(),
            clock: TokioRuntime::new(tasks.clone()),
        });
        let process = Process {
            runtime,
            server,
            clock,
        };
        (process, address.to_string())
    }
}

impl Stage for SocketStage {
    fn nodes(&self) -> Vec<BrokerId> {
        nodes().collect()
    }

    fn transport(&self, node: BrokerId) -> TransportRef {
        let _within = self.tasks.enter();
        let options = LinkOptions {
            connect_timeout: self.way.patience() / 2,
            stall_timeout: self.way.patience(),
            ..LinkOptions::default()
        };
        let transport = TcpTransport::new(node, options);
        let mut forwarders = HashMap::new();
        for to in nodes() {
            let address = &self.forwarders[&(node, to)];
            transport.set_address(to, address).expect("an address");
            forwarders.insert(to, address.clone());
        }
        let tcp = TcpWay {
            transport,
            options,
            forwarders,
        };
        self.way.transport(node, tcp, &self.gates)
    }

    fn asked(&self, node: BrokerId) -> Arc<Asked> {
        Arc::new(Asked {
            records: self.records.clone(),
            clock: self.clock.clone(),
            silent: self.silent.clone(),
            node,
        })
    }

    fn cut_records(&self, node: BrokerId) {
        self.silent.lock().expect("no panic").insert(node);
    }

    fn runtime(&self, node: BrokerId) -> RuntimeRef {
        let processes = self.processes.lock().expect("no panic");
        let clock = processes.get(&node).map(|process| process.clock.clone());
        clock.unwrap_or_else(|| self.clock.clone())
    }

    fn kill(&self, node: BrokerId) -> Pending<()> {
        let process = self.processes.lock().expect("no panic").remove(&node);
        self.gates.listens(node, None);
        if let Some(process) = process {
            process.kill();
        }
        Box::pin(std::future::ready(()))
    }

    fn start(&self, node: BrokerId, fate: MemoryFate) -> Pending<()> {
        let options = ShmOptions {
            dir: self.shared(node),
            disk: Some(self.dir.path().join(format!("disk{}", node.0))),
            quota: QUOTA,
        };
        let (tasks, way) = (self.tasks.clone(), self.way.clone());
        let launching = self.tasks.spawn_blocking(move || {
            if fate != MemoryFate::Kept {
                // The machine itself cannot be booted: its memory is emptied, under the same boot.
                let _ = std::fs::remove_dir_all(&options.dir);
            }
            Self::launch(&*way, options, &tasks)
        });
        let (process, address) = tokio::task::block_in_place(|| {
            self.tasks.block_on(launching).expect("the broker starts")
        });
        self.gates.listens(node, Some(address));
        self.processes
            .lock()
            .expect("no panic")
            .insert(node, process);
        Box::pin(std::future::ready(()))
    }

    fn is_alive(&self, node: BrokerId) -> bool {
        self.processes.lock().expect("no panic").contains_key(&node)
    }

    /// Its network only: threads of one process cannot be stopped by themselves. Real processes are
    /// stopped by other tests.
    fn pause(&self, node: BrokerId, paused: bool) {
        self.gates.pause(node, paused);
    }

    fn cut(&self, from: BrokerId, to: BrokerId) {
        self.gates.cut(from, to);
    }

    fn heal(&self) {
        self.silent.lock().expect("no panic").clear();
        self.gates.heal();
    }

    fn wait(&self, time: Duration) -> Pending<()> {
        self.clock.sleep(time)
    }
}

impl Drop for SocketStage {
    fn drop(&mut self) {
        for (_, process) in self.processes.get_mut().expect("no panic").drain() {
            process.kill();
        }
    }
}

fn plan(seed: u64, min_insync_replicas: usize, patience: Duration) -> Plan {
    let plan = Plan::new(seed, min_insync_replicas, Faults::default());
    let config = Config {
        call_timeout: patience,
        scan_timeout: patience * 5 / 2,
        flush_timeout: patience * 5 / 2,
        ..plan.config
    };
    Plan {
        config,
        pause: patience / 10,
        jobs: seed % 2 == 1,
        ..plan
    }
}

/// Acknowledged batches of a seed that are enough to be judged, on average: a quiet machine has 50.
const ENOUGH: u64 = 8;
/// How often as many seeds are run again where a busy machine acknowledged too little.
const ROUNDS: u64 = 4;

/// `KERA_REPLICATION_SEED` runs one seed; `KERA_REPLICATION_SEEDS` that many.
fn named_seeds() -> Option<Range<u64>> {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let one = number("KERA_REPLICATION_SEED").map(|seed| seed..seed + 1);
    one.or_else(|| number("KERA_REPLICATION_SEEDS").map(|many| 0..many))
}

/// Runs the suite over `way`, `usual` seeds of it; others after them until enough happened to be judged. How much goes
/// well depends on how busy the machine is.
pub fn suite(way: &Arc<dyn Way>, usual: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut seen = Seen::default();
    if let Some(seeds) = named_seeds() {
        run_all(&runtime, way, seeds, &mut seen);
        println!("{seen:?}");
        return;
    }
    for round in 0..ROUNDS {
        let seeds = round * usual..(round + 1) * usual;
        run_all(&runtime, way, seeds, &mut seen);
        println!("{seen:?}");
        if seen.acked >= ENOUGH * usual {
            return;
        }
    }
    panic!(
        "{} seeds, and too little went well: {seen:?}",
        ROUNDS * usual
    );
}

fn run_all(
    runtime: &tokio::runtime::Runtime,
    way: &Arc<dyn Way>,
    seeds: Range<u64>,
    seen: &mut Seen,
) {
    runtime.block_on(async {
        // Mostly they wait, so they wait side by side.
        let mut runs = tokio::task::JoinSet::new();
        for seed in seeds {
            let min_insync_replicas = 1 + seed as usize % 3;
            let way = way.clone();
            runs.spawn(async move {
                let plan = plan(seed, min_insync_replicas, way.patience());
                let stage = SocketStage::new(way).await;
                let result = run(stage, plan).await;
                (seed, min_insync_replicas, result)
            });
        }
        while let Some(run) = runs.join_next().await {
            let (seed, min_insync_replicas, result) = run.expect("no panic");
            match result {
                Ok(one) => {
                    seen.appended += one.appended;
                    seen.acked += one.acked;
                    seen.groups += one.groups;
                }
                Err(error) => {
                    panic!("seed {seed}, min_insync_replicas {min_insync_replicas}: {error}")
                }
            }
        }
    });
}
