//! Three brokers that share an etcd, on loopback or each at a node of a network.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kera_testkit::clock::Clock;
use kera_testkit::command::{finish_within, run};
use kera_testkit::etcd::Etcd;
use kera_testkit::namespaces::{Network, address, small_disk};
use kera_testkit::ports::Reserved;
use kera_testkit::{Broker, home, http, kera, shared_memory};
use tempfile::TempDir;

use crate::common::PATIENCE;

/// Brokers of a run.
pub const BROKERS: usize = 3;
/// How long a broker may be silent before others take over.
pub const LEASE: Duration = Duration::from_secs(3);
/// The same where nobody is to take over: on a busy machine a broker may be silent for some seconds.
const LONG_LEASE: Duration = Duration::from_secs(15);
/// The nodes of etcd and of all clients; those of the brokers come before them.
pub const STORE: u32 = BROKERS as u32 + 1;
pub const CLIENTS: u32 = STORE + 1;
/// Of the disk of a broker's copies at a node, which a fault can fill: at first, and for each fault, since
/// nothing is deleted meanwhile.
const DISK: u64 = 96 << 20;
const DISK_FOR_EACH: u64 = 8 << 20;

struct Node {
    broker: Broker,
    /// HOST:PORT for Kafka's clients; the same after each restart.
    kafka: String,
    _shared: TempDir,
    /// The disk of its copies, where it has one of its own.
    disk: Option<TempDir>,
    clock: Clock,
    /// Keep its ports on loopback for it while it does not run.
    _ports: [Reserved; 2],
}

/// Where a broker is, unless it is on loopback.
struct Site {
    /// What goes before its command line.
    enter: Vec<String>,
    address: String,
    kafka: String,
    replication: String,
    disk: TempDir,
}

/// The rack of a broker that has one.
pub fn rack(number: usize) -> String {
    format!("rack{}", number + 1)
}

/// The brokers and their etcd.
pub struct Nodes {
    brokers: Vec<Node>,
    pub store: Etcd,
}

impl Nodes {
    /// On loopback; all of them serve when this returns.
    pub fn start() -> Self {
        Self::with(Etcd::plain(), false, |_| None)
    }

    /// As [`start`](Self::start), each in a rack of its own.
    pub fn in_racks() -> Self {
        Self::with(Etcd::plain(), true, |_| None)
    }

    /// Brokers at nodes 1 to 3 of `network`, with room for so many faults; all of them serve when this
    /// returns.
    pub fn within(network: &Network, rounds: u64) -> Self {
        let at = |node, port: u16| format!("{}:{port}", address(node));
        let store = Etcd::at(network.enter(STORE), &at(STORE, 2379), &at(STORE, 2380));
        Self::with(store, false, |number| {
            let place = number as u32 + 1;
            let disk = home();
            small_disk(disk.path(), DISK + rounds * DISK_FOR_EACH);
            Some(Site {
                enter: network.enter(place),
                address: at(place, 7600),
                kafka: at(place, 9092),
                replication: at(place, 7601),
                disk,
            })
        })
    }

    fn with(store: Etcd, racks: bool, site: impl Fn(usize) -> Option<Site>) -> Self {
        let mut init = kera();
        init.args(["cluster", "init", "--cluster", &store.address()]);
        run(init, b"", PATIENCE);
        let brokers = (0..BROKERS).map(|number| {
            let rack = racks.then(|| rack(number));
            let mut node = Node::new(number, &store, rack, site(number));
            node.broker.restart();
            node
        });
        Self {
            brokers: brokers.collect(),
            store,
        }
    }

    /// The broker's clock, also while it does not run.
    pub fn clock(&self, number: usize) -> &Clock {
        &self.brokers[number].clock
    }

    fn filler(&self, number: usize) -> std::path::PathBuf {
        let disk = self.brokers[number].disk.as_ref();
        disk.expect("it has a disk of its own")
            .path()
            .join("filler")
    }

    /// Leaves no room on the disk to which the broker writes its copies.
    pub fn fill_disk(&self, number: usize) {
        let mut file = File::create(self.filler(number)).expect("a file on the small disk");
        let zeros = vec![0; 1 << 20];
        while file.write_all(&zeros).is_ok() {}
    }

    pub fn empty_disk(&self, number: usize) {
        fs::remove_file(self.filler(number)).expect("the filler is there");
    }

    /// Fails if a broker has ended by itself.
    pub fn all_run(&mut self) {
        for node in &mut self.brokers {
            let runs = node.broker.is_running();
            assert!(runs, "broker at {} has ended by itself", node.kafka);
        }
    }

    /// Where Kafka's clients begin: at any of the brokers.
    pub fn bootstrap(&self) -> String {
        let brokers: Vec<_> = self.brokers.iter().map(|b| b.kafka.as_str()).collect();
        brokers.join(",")
    }

    fn client(&self, words: &[&str]) -> Command {
        let brokers: Vec<_> = self.brokers.iter().map(|b| b.broker.address()).collect();
        let mut command = kera();
        command.args(words).env("KERA_BOOTSTRAP", brokers.join(","));
        command
    }

    /// What a native client command at whichever broker answers wrote; it must succeed.
    pub fn kera_says(&self, words: &[&str]) -> String {
        run(self.client(words), b"", PATIENCE)
    }

    /// A metric of a broker with a rack, whose line begins so; 0 if there is none.
    pub fn metric(&self, number: usize, line: &str) -> u64 {
        let reply = http::get(self.brokers[number].broker.http(), "/metrics");
        let value = reply.lines().find_map(|found| found.strip_prefix(line));
        value.map_or(0, |value| value.trim().parse().expect("a number"))
    }

    /// The broker that serves native clients at an address.
    pub fn at(&self, address: &str) -> usize {
        let mut brokers = self.brokers.iter();
        let found = brokers.position(|node| node.broker.address() == address);
        found.unwrap_or_else(|| panic!("no broker is at {address}"))
    }

    /// The data directory of a broker.
    pub fn data(&self, number: usize) -> PathBuf {
        self.brokers[number].broker.data_dir().to_owned()
    }

    /// What a broker logged.
    pub fn log(&self, number: usize) -> String {
        self.brokers[number].broker.log()
    }

    /// Runs a native client command at whichever broker answers; whether it succeeded.
    pub fn kera(&self, words: &[&str]) -> bool {
        let finished = finish_within(self.client(words), b"", PATIENCE);
        if !finished.status.success() {
            eprintln!("{}", finished.stderr);
        }
        finished.status.success()
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self, number: usize) {
        self.brokers[number].broker.kill();
    }

    /// SIGTERM: it hands over what it owns, and ends.
    pub fn stop(&mut self, number: usize) {
        let status = self.brokers[number].broker.stop();
        let name = number + 1;
        assert!(status.success(), "broker {name} ended with {status}");
    }

    pub fn restart(&mut self, number: usize) {
        self.brokers[number].broker.restart();
    }

    /// Stops the process where it is, or lets it go on.
    pub fn pause(&self, number: usize, paused: bool) {
        self.brokers[number].broker.pause(paused);
    }
}

impl Node {
    /// On loopback without a site; not started.
    fn new(number: usize, store: &Etcd, rack: Option<String>, site: Option<Site>) -> Self {
        let (clock, shared) = (Clock::new(), shared_memory());
        let ports: [Reserved; 2] = std::array::from_fn(|_| Reserved::new());
        let mut within = clock.within();
        let (mut address, mut disk) = ("127.0.0.1:0".to_owned(), None);
        let [mut kafka, mut replication] = ports.each_ref().map(|port| port.address().to_owned());
        if let Some(site) = site {
            within.splice(0..0, site.enter);
            (address, kafka, replication) = (site.address, site.kafka, site.replication);
            disk = Some(site.disk);
        }
        let path = |dir: &TempDir| dir.path().display().to_string();
        let lease = rack.as_ref().map_or(LEASE, |_| LONG_LEASE);
        let mut flags = vec![
            ("--kafka-listen", kafka.clone()),
            ("--cluster", store.address()),
            ("--broker-id", (number + 1).to_string()),
            ("--cluster-lease", format!("{}s", lease.as_secs())),
            ("--replication-listen", replication),
            ("--replica-store-memory-bytes", "64MiB".to_owned()),
            ("--replica-store-shared-dir", path(&shared)),
            ("--retention-check-interval", "200ms".to_owned()),
        ];
        flags.extend(
            disk.iter()
                .map(|disk| ("--replica-store-disk-dir", path(disk))),
        );
        if let Some(rack) = rack {
            flags.push(("--rack", rack));
            // A copy that was not there at first soon is.
            flags.push(("--cluster-repair-interval", "200ms".to_owned()));
            // With it metrics are served.
            flags.push(("--http-listen", "127.0.0.1:0".to_owned()));
        }
        let flags = flags.into_iter();
        let flags = flags.flat_map(|(name, value)| [name.to_owned(), value]);
        let environment = vec![
            ("KERA_KAFKA_SESSION_MIN", "500ms".to_owned()),
            ("KERA_KAFKA_GROUP_INITIAL_REBALANCE_DELAY", "0ms".to_owned()),
        ];
        let flags = flags.chain(["--allow-same-host".to_owned()]).collect();
        Self {
            broker: Broker::unstarted(within, &address, flags, environment),
            kafka,
            _shared: shared,
            disk,
            clock,
            _ports: ports,
        }
    }
}
