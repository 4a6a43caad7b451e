//! A cluster on loopback: an etcd of one member, and brokers that share it, each a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use kera_metadata::{EtcdOptions, EtcdStore};
use kera_testkit::Announced;
use kera_testkit::ports::Reserved;

use crate::measure::machine::first_line_of;
use crate::peers::{Etcd, Process, pause, undisturbed_kera};
use crate::session::interrupt::Interrupt;

/// How long a process may take until it serves, and brokers until they have heard of each other.
const START: Duration = Duration::from_secs(30);
/// Pause between attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// Copies at one broker take at most so much memory.
const COPY_BYTES: u64 = 1 << 30;

/// Where a cluster comes from and what it gets.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The `kera` binary.
    pub kera: PathBuf,
    /// On a disk; the harness has it to itself.
    pub data: PathBuf,
    /// On shared memory; the harness has it to itself.
    pub memory: PathBuf,
    /// Brokers' lease.
    pub lease: Duration,
    /// Whether someone wants the session to end.
    pub interrupt: Interrupt,
}

/// A broker.
pub(super) struct Broker {
    pub process: Process,
    /// HOST:PORT for clients.
    pub address: String,
}

/// An etcd and brokers 1, 2, ...; all end with it, and what they stored goes.
pub(super) struct Nodes {
    places: Places,
    brokers: Vec<Broker>,
    etcd: Etcd,
    store: String,
}

/// A stream of a cluster.
#[derive(Clone, Debug)]
pub(super) struct StreamPlan {
    pub name: String,
    pub streamlets: u32,
    pub copies: u32,
}

/// The first line of `etcd --version`, or why there is none.
pub(super) fn etcd_version() -> Result<String> {
    first_line_of("etcd", &["--version"])
        .context("there is no `etcd`; install etcd-server with your system's packages")
}

impl Nodes {
    /// Starts an etcd and so many brokers on empty folders.
    pub(super) fn start(places: &Places, brokers: u32) -> Result<Self> {
        for folder in [&places.data, &places.memory] {
            empty(folder)?;
        }
        let etcd = Etcd::start(&places.data.join("etcd"))?;
        // Brokers of somebody else that lost their etcd may still look for it at a port that is ours now.
        let store = format!("{}/bench-{:016x}", etcd.url(), rand::random::<u64>());
        let made = EtcdStore::init(&store, EtcdOptions::default());
        made.with_context(|| etcd.process.log_tail())?;
        let mut nodes = Self {
            places: places.clone(),
            brokers: Vec::new(),
            etcd,
            store,
        };
        for _ in 0..brokers {
            nodes.add()?;
        }
        Ok(nodes)
    }

    /// One more broker, under the next number; returns that once the broker serves.
    pub(super) fn add(&mut self) -> Result<u32> {
        let (number, starting) = self.begin()?;
        self.brokers.push(starting.served()?);
        Ok(number)
    }

    /// The same, at once.
    pub(super) fn begin(&self) -> Result<(u32, Starting)> {
        let number = self.brokers.len() as u32 + 1;
        Ok((number, start_broker(&self.places, &self.store, number)?))
    }

    /// Keeps a broker that was begun.
    pub(super) fn keep(&mut self, broker: Broker) {
        self.brokers.push(broker);
    }

    pub(super) fn broker(&mut self, number: u32) -> &mut Broker {
        &mut self.brokers[number as usize - 1]
    }

    /// Where clients begin: at any of the brokers.
    pub(super) fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self.brokers.iter().map(|b| b.address.as_str()).collect();
        addresses.join(",")
    }

    /// The metadata store's address.
    pub(super) fn store(&self) -> &str {
        &self.store
    }

    /// All processes, for who tells others' CPU time apart.
    pub(super) fn pids(&self) -> Vec<u32> {
        let brokers = self.brokers.iter().map(|broker| broker.process.pid());
        brokers
            .chain([self.etcd.process.pid(), std::process::id()])
            .collect()
    }

    /// Makes a stream, as soon as the brokers have heard of each other.
    pub(super) fn create(&self, stream: &StreamPlan) -> Result<()> {
        let least = stream.copies.min(2);
        let begin = Instant::now();
        loop {
            self.places.interrupt.check()?;
            let mut command = undisturbed_kera(&self.places.kera);
            command
                // An attempt whose answer was lost may have made it.
                .args(["stream", "create", &stream.name, "--if-not-exists"])
                .args(["--bootstrap", &self.bootstrap()])
                .args(["--streamlets", &stream.streamlets.to_string()])
                .args(["--replicas", &stream.copies.to_string()])
                .args(["--min-insync-replicas", &least.to_string()])
                .stdin(Stdio::null());
            let output = command.output()?;
            if output.status.success() {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < START,
                "stream {} is refused: {}",
                stream.name,
                String::from_utf8_lossy(&output.stderr).trim()
            );
            pause(AGAIN);
        }
    }

    /// The ends of all logs, to say what happened.
    pub(super) fn logs(&self) -> String {
        let tails = (1..).zip(&self.brokers);
        let tails = tails.map(|(number, b)| format!("broker {number}: {}", b.process.log_tail()));
        tails.collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // Nothing of it is wanted any more: nobody waits for hand-overs.
        for broker in &mut self.brokers {
            broker.process.kill();
        }
        self.etcd.process.kill();
        for folder in [&self.places.data, &self.places.memory] {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("in {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// A broker on its way.
pub(super) struct Starting(Process);

impl Starting {
    /// Waits until it serves.
    pub(super) fn served(mut self) -> Result<Broker> {
        let said = Announced::on(self.0.stdout(), false, false).map_err(Error::msg);
        let said = said.with_context(|| self.0.log_tail())?;
        Ok(Broker {
            process: self.0,
            address: said.address,
        })
    }
}

fn start_broker(places: &Places, store: &str, number: u32) -> Result<Starting> {
    let name = format!("broker{number}");
    let (data, shared) = (places.data.join(&name), places.memory.join(&name));
    fs::create_dir_all(&data)?;
    let mut command = undisturbed_kera(&places.kera);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"])
        .arg("--data-dir")
        .arg(data.join("data"))
        .args(["--cluster", store, "--broker-id", &number.to_string()])
        .args([
            "--cluster-lease",
            &format!("{}ms", places.lease.as_millis()),
        ])
        .args(["--replication-listen", &Reserved::for_ever()])
        .args(["--allow-same-host", "--replica-store-shared-dir"])
        .arg(shared)
        .args(["--replica-store-memory-bytes", &COPY_BYTES.to_string()]);
    let process = Process::start(command, data.join("broker.log"), true)?;
    Ok(Starting(process))
}
