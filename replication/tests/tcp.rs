//! The suite over TCP, with real sockets and files on shared memory. Every broker has a runtime of
//! its own, which dies with it; between each two brokers stands a forwarder that can hold bytes back.

mod suite;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_replication::backup::{BackupStore, Limits, ShmMemory, ShmOptions};
use kera_replication::faults::Faults;
use kera_replication::ids::BackupId;
use kera_replication::primary::Config;
use kera_replication::records::{MemoryRecords, RecordsRef};
use kera_replication::runtime::{Runtime, RuntimeRef, TokioRuntime};
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::tcp::{BackupServer, LinkOptions, ServerOptions, TcpTransport};
use kera_replication::transport::{Pending, TransportRef};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use suite::scenario::{Seen, run, streamlet};
use suite::{Plan, Stage};

const NODES: u32 = 4;
const QUOTA: u64 = 64 << 20;

/// A broker's process, as far as one process can play another: its tasks end with its runtime.
struct Process {
    runtime: tokio::runtime::Runtime,
    clock: RuntimeRef,
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
}

/// What gets through from whom to whom.
#[derive(Debug, Default)]
struct Gates {
    cut: Mutex<HashSet<(BackupId, BackupId)>>,
    paused: Mutex<HashSet<BackupId>>,
    changed: watch::Sender<()>,
    /// Where each broker listens now.
    addresses: Mutex<HashMap<BackupId, String>>,
}

impl Gates {
    fn is_open(&self, from: BackupId, to: BackupId) -> bool {
        let paused = self.paused.lock().expect("no panic");
        let cut = self.cut.lock().expect("no panic");
        !paused.contains(&from) && !paused.contains(&to) && !cut.contains(&(from, to))
    }

    async fn passes(&self, from: BackupId, to: BackupId) {
        let mut changed = self.changed.subscribe();
        while !self.is_open(from, to) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Carries what `from` asks of `to`, and what it answers.
    async fn forward(self: Arc<Self>, listener: TcpListener, from: BackupId, to: BackupId) {
        while let Ok((near, _)) = listener.accept().await {
            let gates = self.clone();
            tokio::spawn(async move {
                gates.passes(from, to).await;
                let address = gates.addresses.lock().expect("no panic").get(&to).cloned();
                let Some(address) = address else { return };
                let Ok(far) = TcpStream::connect(address).await else {
                    return;
                };
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                tokio::select! {
                    () = gates.carry(near_read, far_write, from, to) => {}
                    () = gates.carry(far_read, near_write, to, from) => {}
                }
            });
        }
    }

    async fn carry(
        &self,
        mut read: tokio::net::tcp::OwnedReadHalf,
        mut write: tokio::net::tcp::OwnedWriteHalf,
        from: BackupId,
        to: BackupId,
    ) {
        let mut buf = vec![0; 16 << 10];
        while let Ok(len @ 1..) = read.read(&mut buf).await {
            self.passes(from, to).await;
            if write.write_all(&buf[..len]).await.is_err() {
                return;
            }
        }
    }
}

struct TcpStage {
    dir: TempDir,
    gates: Arc<Gates>,
    /// Where `from` finds `to`.
    forwarders: HashMap<(BackupId, BackupId), String>,
    processes: Mutex<HashMap<BackupId, Process>>,
    records: Arc<MemoryRecords>,
    clock: RuntimeRef,
    tasks: tokio::runtime::Handle,
}

fn nodes() -> impl Iterator<Item = BackupId> {
    (0..NODES).map(BackupId)
}

impl TcpStage {
    async fn new() -> Arc<Self> {
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
            dir: dir.expect("a directory"),
            gates,
            forwarders,
            processes: Mutex::default(),
            records: Arc::new(records),
            clock: Arc::new(TokioRuntime::new(tasks.clone())),
            tasks,
        });
        for node in nodes() {
            stage.start(node, MemoryFate::Kept).await;
        }
        stage
    }

    fn shared(&self, node: BackupId) -> PathBuf {
        self.dir.path().join(format!("shared{}", node.0))
    }

    /// Starts a process, which waits for its predecessor's last thread; where it listens.
    fn launch(options: ShmOptions, tasks: &tokio::runtime::Handle) -> (Process, String) {
        let limits = Limits {
            memory_bytes: QUOTA,
            ..Limits::default()
        };
        let memory = ShmMemory::new(options);
        let store = BackupStore::start(memory, limits, Faults::default()).expect("starts");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = BackupServer::new(store, ServerOptions::default());
        runtime.spawn(async move { server.serve(listener).await });
        let clock = Arc::new(Mortal {
            tasks: runtime.handle().clone(),
            clock: TokioRuntime::new(tasks.clone()),
        });
        (Process { runtime, clock }, address)
    }
}

impl Stage for TcpStage {
    fn nodes(&self) -> Vec<BackupId> {
        nodes().collect()
    }

    fn transport(&self, node: BackupId) -> TransportRef {
        let _within = self.tasks.enter();
        let options = LinkOptions {
            connect_timeout: Duration::from_millis(200),
            stall_timeout: Duration::from_millis(400),
            ..LinkOptions::default()
        };
        let transport = TcpTransport::new(node, options);
        for to in nodes() {
            let address = &self.forwarders[&(node, to)];
            transport.set_address(to, address).expect("an address");
        }
        Arc::new(transport)
    }

    fn records(&self, _: BackupId) -> RecordsRef {
        self.records.clone()
    }

    fn runtime(&self, node: BackupId) -> RuntimeRef {
        let processes = self.processes.lock().expect("no panic");
        let clock = processes.get(&node).map(|process| process.clock.clone());
        clock.unwrap_or_else(|| self.clock.clone())
    }

    fn kill(&self, node: BackupId) -> Pending<()> {
        let process = self.processes.lock().expect("no panic").remove(&node);
        self.gates.addresses.lock().expect("no panic").remove(&node);
        if let Some(process) = process {
            process.runtime.shutdown_background();
        }
        Box::pin(std::future::ready(()))
    }

    fn start(&self, node: BackupId, fate: MemoryFate) -> Pending<()> {
        let options = ShmOptions {
            dir: self.shared(node),
            disk: Some(self.dir.path().join(format!("disk{}", node.0))),
            quota: QUOTA,
        };
        let tasks = self.tasks.clone();
        let launching = self.tasks.spawn_blocking(move || {
            if fate != MemoryFate::Kept {
                // The machine itself cannot be booted: its memory is emptied, under the same boot.
                let _ = std::fs::remove_dir_all(&options.dir);
            }
            Self::launch(options, &tasks)
        });
        let gates = self.gates.clone();
        let (process, address) = tokio::task::block_in_place(|| {
            self.tasks.block_on(launching).expect("the broker starts")
        });
        gates
            .addresses
            .lock()
            .expect("no panic")
            .insert(node, address);
        self.processes
            .lock()
            .expect("no panic")
            .insert(node, process);
        Box::pin(std::future::ready(()))
    }

    fn is_alive(&self, node: BackupId) -> bool {
        self.processes.lock().expect("no panic").contains_key(&node)
    }

    fn pause(&self, node: BackupId, paused: bool) {
        {
            let mut all = self.gates.paused.lock().expect("no panic");
            if paused {
                all.insert(node);
            } else {
                all.remove(&node);
            }
        }
        self.gates.changed.send_replace(());
    }

    fn cut(&self, from: BackupId, to: BackupId) {
        self.gates.cut.lock().expect("no panic").insert((from, to));
        self.gates.changed.send_replace(());
    }

    fn heal(&self) {
        self.gates.cut.lock().expect("no panic").clear();
        self.gates.paused.lock().expect("no panic").clear();
        self.gates.changed.send_replace(());
    }

    fn wait(&self, time: Duration) -> Pending<()> {
        self.clock.sleep(time)
    }
}

impl Drop for TcpStage {
    fn drop(&mut self) {
        for (_, process) in self.processes.get_mut().expect("no panic").drain() {
            process.runtime.shutdown_background();
        }
    }
}

fn plan(seed: u64, min_copies: usize) -> Plan {
    let plan = Plan::new(seed, min_copies, Faults::default());
    let config = Config {
        call_timeout: Duration::from_millis(400),
        ..plan.config
    };
    Plan { config, ..plan }
}

/// `KERA_REPLICATION_SEED` runs one seed; `KERA_REPLICATION_SEEDS` that many.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match (
        number("KERA_REPLICATION_SEED"),
        number("KERA_REPLICATION_SEEDS"),
    ) {
        (Some(seed), _) => seed..seed + 1,
        (None, many) => 0..many.unwrap_or(usual),
    }
}

#[test]
fn everything_acknowledged_is_recovered() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut seen = Seen::default();
    runtime.block_on(async {
        // Mostly they wait, so they wait side by side.
        let mut runs = tokio::task::JoinSet::new();
        for seed in seeds(6) {
            let min_copies = 1 + seed as usize % 3;
            runs.spawn(async move {
                let stage = TcpStage::new().await;
                let result = run(stage, plan(seed, min_copies)).await;
                (seed, min_copies, result)
            });
        }
        while let Some(run) = runs.join_next().await {
            let (seed, min_copies, result) = run.expect("no panic");
            match result {
                Ok(one) => {
                    seen.appended += one.appended;
                    seen.acked += one.acked;
                    seen.groups += one.groups;
                }
                Err(error) => panic!("seed {seed}, min_copies {min_copies}: {error}"),
            }
        }
    });
    println!("{seen:?}");
    assert!(
        seen.acked * 4 > seen.appended,
        "too little went well: {seen:?}"
    );
}
