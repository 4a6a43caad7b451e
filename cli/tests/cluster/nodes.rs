//! Three brokers, at times a fourth, and an etcd, each at a node of its own, and what can be done to them.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::clock::Clock;
use crate::common::holdings::{Directories, nothing_was_missed};
use crate::common::{Broker, finish, home, kera, shared_memory};
use crate::etcd::Etcd;
use crate::namespaces::{Network, address, small_disk};

/// Brokers of a run, at nodes 1 to 3.
pub const BROKERS: u32 = 3;
/// One that comes and goes, at a node that is there all the time.
pub const FOURTH: u32 = 4;
/// The node of etcd.
pub const STORE: u32 = 5;
/// The node of all clients.
pub const CLIENTS: u32 = 6;
/// How long a broker may be silent before others take over.
pub const LEASE: Duration = Duration::from_secs(3);
/// How often jobs look for what is to be repaired or given up.
pub const REPAIR: &str = "2s";
/// What a backup may hold in memory, and on its disk, which a fault can fill.
const MEMORY: &str = "64MiB";
const DISK: u64 = 96 << 20;

/// The directories of one broker's copies for others.
struct Kept {
    shared: TempDir,
    disk: TempDir,
}

/// The processes, and the network between them.
pub struct Nodes {
    brokers: Vec<Broker>,
    kept: Vec<Kept>,
    clocks: Vec<Clock>,
    /// Brokers 1 to this are to run.
    members: u32,
    pub store: Etcd,
    pub network: Network,
}

fn listen(node: u32, port: u16) -> String {
    format!("{}:{port}", address(node))
}

impl Nodes {
    /// All of them serve when this returns.
    pub fn start(network: Network) -> Self {
        let store = Etcd::at(
            network.enter(STORE),
            &listen(STORE, 2379),
            &listen(STORE, 2380),
        );
        init(&store.address());
        let mut nodes = Self {
            brokers: Vec::new(),
            kept: Vec::new(),
            clocks: Vec::new(),
            members: 0,
            store,
            network,
        };
        for number in 1..=BROKERS {
            nodes.add(number);
        }
        nodes
    }

    /// The next broker, at the node of its number.
    fn add(&mut self, number: u32) {
        let shared = shared_memory();
        let disk = home();
        small_disk(disk.path(), DISK);
        let kept = Kept { shared, disk };
        let flags = self.flags(number, &kept);
        let clock = Clock::new();
        let mut enter = self.network.enter(number);
        enter.extend(clock.within());
        let broker = Broker::within(enter, &listen(number, 7600), flags);
        self.clocks.push(clock);
        self.brokers.push(broker);
        self.kept.push(kept);
        self.members = number;
    }

    /// The fourth broker starts, with nothing; once in a run.
    pub fn join(&mut self) {
        self.add(FOURTH);
    }

    pub fn has_joined(&self) -> bool {
        self.members == FOURTH
    }

    /// The fourth broker has ended, and nobody expects it back.
    pub fn forget_fourth(&mut self) {
        self.members = BROKERS;
    }

    fn flags(&self, number: u32, kept: &Kept) -> Vec<String> {
        let path = |dir: &TempDir| dir.path().display().to_string();
        let mut flags: Vec<_> = [
            ("--cluster", self.store.address()),
            ("--broker-id", number.to_string()),
            ("--rack", format!("rack{number}")),
            ("--cluster-lease", format!("{}s", LEASE.as_secs())),
            ("--replication-listen", listen(number, 7601)),
            ("--replica-store-memory-bytes", MEMORY.to_owned()),
            ("--replica-store-shared-dir", path(&kept.shared)),
            ("--replica-store-disk-dir", path(&kept.disk)),
            ("--consumers-session-min", "500ms".to_owned()),
            ("--retention-check-interval", "200ms".to_owned()),
            ("--cluster-repair-interval", REPAIR.to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect();
        flags.push("--allow-same-host".to_owned());
        flags
    }

    /// Where clients begin: at any of the brokers.
    pub fn bootstrap(&self) -> String {
        Broker::bootstrap(&self.brokers)
    }

    /// Where the brokers keep bytes.
    pub fn directories(&self) -> Vec<Directories> {
        let brokers = (1..).zip(self.brokers.iter().zip(&self.kept));
        let of = |(number, (broker, kept)): (u32, (&Broker, &Kept))| Directories {
            broker: number,
            kept: vec![kept.shared.path().into(), kept.disk.path().into()],
            data: broker.data_dir().into(),
            runs: broker.was_started(),
            harmed: false,
        };
        brokers.map(of).collect()
    }

    /// Fails if an owner has found that a broker does not have what it is recorded to have: no fault removes
    /// files, and what is trimmed is trimmed later.
    pub fn nothing_was_missed(&self) {
        nothing_was_missed(&self.brokers);
    }

    pub fn broker(&self, number: u32) -> &Broker {
        &self.brokers[number as usize - 1]
    }

    /// The broker's clock, also while it does not run.
    pub fn clock(&self, number: u32) -> &Clock {
        &self.clocks[number as usize - 1]
    }

    fn broker_mut(&mut self, number: u32) -> &mut Broker {
        &mut self.brokers[number as usize - 1]
    }

    pub fn kill(&mut self, number: u32) {
        self.broker_mut(number).kill();
    }

    /// SIGTERM: it hands over what it owns, and ends.
    pub fn stop(&mut self, number: u32) {
        let status = self.broker_mut(number).stop();
        assert!(status.success(), "broker {number} ended with {status}");
    }

    pub fn restart(&mut self, number: u32) -> Duration {
        self.broker_mut(number).restart()
    }

    /// Stops the process where it is, or lets it go on.
    pub fn pause(&self, number: u32, paused: bool) {
        self.broker(number).pause(paused);
    }

    fn filler(&self, number: u32) -> PathBuf {
        self.kept[number as usize - 1].disk.path().join("filler")
    }

    /// Leaves no room on the disk to which the broker writes its copies.
    pub fn fill_disk(&self, number: u32) {
        let mut file = fs::File::create(self.filler(number)).expect("a file on the small disk");
        let zeros = vec![0; 1 << 20];
        while file.write_all(&zeros).is_ok() {}
    }

    pub fn empty_disk(&self, number: u32) {
        fs::remove_file(self.filler(number)).expect("the filler is there");
    }

    /// Fails if a broker has ended by itself.
    pub fn all_run(&mut self) {
        for number in 1..=self.members {
            assert!(
                self.broker_mut(number).is_running(),
                "broker {number} has ended by itself"
            );
        }
    }
}

/// Makes a new cluster of an etcd.
pub fn init(store: &str) {
    let mut command = kera();
    command.args(["cluster", "init", "--cluster", store]);
    let finished = finish(command, b"");
    assert!(
        finished.status.success(),
        "kera cluster init: {}",
        finished.stderr
    );
}
