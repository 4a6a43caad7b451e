//! Three brokers that share an etcd, on loopback or each at a node of a network.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::clock::Clock;
use crate::common::command::{finish, run};
use crate::common::ports::Reserved;
use crate::common::standstill::{go_on, stand_still};
use crate::common::{PATIENCE, home, kera_command};
use crate::etcd::Etcd;
use crate::namespaces::{Network, address, small_disk};

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
/// Lines of a broker's log shown when a test fails.
const LOG_LINES: usize = 60;

struct Node {
    number: usize,
    child: Option<Child>,
    home: Option<TempDir>,
    shared: TempDir,
    /// The disk of its copies, where it has one of its own.
    disk: Option<TempDir>,
    clock: Clock,
    /// What goes before its command line.
    within: Vec<String>,
    replication: String,
    store: String,
    /// HOST:PORT for native clients and for Kafka's; the same after each restart.
    address: String,
    kafka: String,
    /// With it metrics are served.
    rack: Option<String>,
    metrics: String,
    /// Keep its ports on loopback for it while it does not run.
    _ports: [Reserved; 3],
}

/// The rack of a broker that has one.
pub fn rack(number: usize) -> String {
    format!("rack{}", number + 1)
}

/// The brokers and their etcd.
pub struct Nodes {
    brokers: Vec<Node>,
    pub store: Etcd,
    /// Of an etcd on loopback.
    _ports: Vec<Reserved>,
}

impl Nodes {
    /// On loopback; all of them serve when this returns.
    pub fn start() -> Self {
        let (clients, peers) = (Reserved::new(), Reserved::new());
        let store = Etcd::start(Vec::new(), clients.address(), peers.address());
        init(&store);
        let brokers = (0..BROKERS).map(|number| {
            let mut node = Node::new(number, &store);
            node.restart();
            node
        });
        Self {
            brokers: brokers.collect(),
            store,
            _ports: vec![clients, peers],
        }
    }

    /// As [`start`](Self::start), each in a rack of its own.
    pub fn in_racks() -> Self {
        let (clients, peers) = (Reserved::new(), Reserved::new());
        let store = Etcd::start(Vec::new(), clients.address(), peers.address());
        init(&store);
        let brokers = (0..BROKERS).map(|number| {
            let mut node = Node::new(number, &store);
            node.rack = Some(rack(number));
            node.restart();
            node
        });
        Self {
            brokers: brokers.collect(),
            store,
            _ports: vec![clients, peers],
        }
    }

    /// Brokers at nodes 1 to 3 of `network`, with room for so many faults; all of them serve when this
    /// returns.
    pub fn within(network: &Network, rounds: u64) -> Self {
        let at = |node, port: u16| format!("{}:{port}", address(node));
        let store = Etcd::start(network.enter(STORE), &at(STORE, 2379), &at(STORE, 2380));
        init(&store);
        let brokers = (0..BROKERS).map(|number| {
            let place = number as u32 + 1;
            let disk = home();
            small_disk(disk.path(), DISK + rounds * DISK_FOR_EACH);
            let mut node = Node::new(number, &store);
            node.within.splice(0..0, network.enter(place));
            node.disk = Some(disk);
            node.address = at(place, 7600);
            node.kafka = at(place, 9092);
            node.replication = at(place, 7601);
            node.restart();
            node
        });
        Self {
            brokers: brokers.collect(),
            store,
            _ports: Vec::new(),
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
            let child = node.child.as_mut().expect("it runs");
            let ended = child.try_wait().expect("a child can be waited for");
            assert!(
                ended.is_none(),
                "broker {} has ended by itself",
                node.number + 1
            );
        }
    }

    /// Where Kafka's clients begin: at any of the brokers.
    pub fn bootstrap(&self) -> String {
        let brokers: Vec<_> = self.brokers.iter().map(|b| b.kafka.as_str()).collect();
        brokers.join(",")
    }

    fn client(&self, words: &[&str]) -> Command {
        let brokers: Vec<_> = self.brokers.iter().map(|b| b.address.as_str()).collect();
        let mut command = kera_command();
        command.args(words).env("KERA_BOOTSTRAP", brokers.join(","));
        command
    }

    /// What a native client command at whichever broker answers wrote; it must succeed.
    pub fn kera_says(&self, words: &[&str]) -> String {
        run(self.client(words), b"", PATIENCE)
    }

    /// A metric of a broker with a rack, whose line begins so; 0 if there is none.
    pub fn metric(&self, number: usize, line: &str) -> u64 {
        let address = &self.brokers[number].metrics;
        let mut stream = TcpStream::connect(address).expect("metrics are served");
        let timeout = stream.set_read_timeout(Some(PATIENCE));
        timeout.expect("a socket has a timeout");
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("a request can be sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("there is a reply");
        let value = reply.lines().find_map(|found| found.strip_prefix(line));
        value.map_or(0, |value| value.trim().parse().expect("a number"))
    }

    /// The broker that serves native clients at an address.
    pub fn at(&self, address: &str) -> usize {
        let mut brokers = self.brokers.iter();
        let found = brokers.position(|broker| broker.address == address);
        found.unwrap_or_else(|| panic!("no broker is at {address}"))
    }

    /// The data directory of a broker.
    pub fn data(&self, number: usize) -> PathBuf {
        let home = self.brokers[number].home.as_ref();
        home.expect("a broker has a home").path().join("data")
    }

    /// What a broker logged.
    pub fn log(&self, number: usize) -> String {
        let home = self.brokers[number].home.as_ref();
        let path = home.expect("a broker has a home").path().join("broker.log");
        fs::read_to_string(path).expect("a log")
    }

    /// Runs a native client command at whichever broker answers; whether it succeeded.
    pub fn kera(&self, words: &[&str]) -> bool {
        let finished = finish(self.client(words), b"", PATIENCE);
        if !finished.success {
            eprintln!("{}", finished.stderr);
        }
        finished.success
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self, number: usize) {
        let mut child = self.brokers[number].child.take().expect("it runs");
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    /// SIGTERM: it hands over what it owns, and ends.
    pub fn stop(&mut self, number: usize) {
        let mut child = self.brokers[number].child.take().expect("it runs");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TERM).expect("a child is signalled");
        let (ended, waiting) = sync_channel(1);
        std::thread::spawn(move || ended.send(child.wait()));
        let Ok(status) = waiting.recv_timeout(PATIENCE) else {
            // It has not been waited for, so the id is still its own.
            let _ = kill_process(pid, Signal::KILL);
            panic!("broker {} did not stop at SIGTERM", number + 1);
        };
        let status = status.expect("a child can be waited for");
        assert!(
            status.success(),
            "broker {} ended with {status}",
            number + 1
        );
    }

    pub fn restart(&mut self, number: usize) {
        self.brokers[number].restart();
    }

    /// Stops the process where it is, or lets it go on.
    pub fn pause(&self, number: usize, paused: bool) {
        let child = self.brokers[number].child.as_ref().expect("it runs");
        if paused {
            stand_still(child);
        } else {
            go_on(child);
        }
    }
}

fn init(store: &Etcd) {
    let mut init = kera_command();
    init.args(["cluster", "init", "--cluster", &store.url()]);
    run(init, b"", PATIENCE);
}

/// `command` as the program that `within` names starts it.
fn started_by(within: &[String], command: Command) -> Command {
    let Some((program, arguments)) = within.split_first() else {
        return command;
    };
    let mut outer = Command::new(program);
    outer
        .args(arguments)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

impl Node {
    /// On loopback, not started.
    fn new(number: usize, store: &Etcd) -> Self {
        let clock = Clock::new();
        let [native, kafka, replication] = std::array::from_fn(|_| Reserved::new());
        Self {
            number,
            child: None,
            home: Some(home()),
            shared: tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| home()),
            disk: None,
            within: clock.within(),
            clock,
            replication: replication.address().to_owned(),
            store: store.url(),
            address: native.address().to_owned(),
            kafka: kafka.address().to_owned(),
            rack: None,
            metrics: String::new(),
            _ports: [native, kafka, replication],
        }
    }

    fn command(&self) -> Command {
        let home = self.home.as_ref().expect("a broker has a home").path();
        let log = File::options()
            .create(true)
            .append(true)
            .open(home.join("broker.log"))
            .expect("the broker's log can be written");
        let lease = self.rack.as_ref().map_or(LEASE, |_| LONG_LEASE);
        let mut command = kera_command();
        command
            .arg("serve")
            .args(["--listen", &self.address])
            .args(["--kafka-listen", &self.kafka])
            .args([
                "--http-listen",
                self.rack.as_ref().map_or("off", |_| "127.0.0.1:0"),
            ])
            .arg("--data-dir")
            .arg(home.join("data"))
            .args(["--cluster", &self.store])
            .args(["--broker-id", &(self.number + 1).to_string()])
            .args(["--cluster-lease", &format!("{}s", lease.as_secs())])
            .args([
                "--replication-listen",
                &self.replication,
                "--allow-same-host",
            ])
            .args(["--backup-memory-bytes", "64MiB", "--backup-shared-dir"])
            .arg(self.shared.path())
            .args(["--retention-check-interval", "200ms"])
            .env("KERA_KAFKA_SESSION_MIN", "500ms")
            .env("KERA_KAFKA_GROUP_INITIAL_REBALANCE_DELAY", "0ms");
        if let Some(disk) = &self.disk {
            command.arg("--backup-disk-dir").arg(disk.path());
        }
        if let Some(rack) = &self.rack {
            command.args(["--rack", rack]);
            // A copy that was not there at first soon is.
            command.args(["--cluster-repair-interval", "200ms"]);
        }
        let mut command = started_by(&self.within, command);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        command
    }

    /// Starts it; returns when it serves.
    fn restart(&mut self) {
        assert!(self.child.is_none(), "the broker runs already");
        let mut child = self.command().spawn().expect("the broker can be started");
        let stdout = child.stdout.take().expect("standard output is piped");
        self.child = Some(child);
        let (lines, received) = sync_channel(16);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Read on even when nobody listens any more.
                let _ = lines.send(line);
            }
        });
        let (mut native, mut kafka) = (None, None);
        self.metrics.clear();
        while native.is_none()
            || kafka.is_none()
            || (self.rack.is_some() && self.metrics.is_empty())
        {
            let Ok(line) = received.recv_timeout(PATIENCE) else {
                panic!("broker {} did not say that it listens", self.number + 1);
            };
            if let Some(address) = line.strip_prefix("listening on ") {
                native = Some(address.trim().to_owned());
            } else if let Some(address) = line.strip_prefix("Kafka clients on ") {
                kafka = Some(address.trim().to_owned());
            } else if let Some(url) = line.strip_prefix("metrics on http://") {
                self.metrics = url.trim().trim_end_matches("/metrics").to_owned();
            }
        }
        self.address = native.expect("just seen");
        self.kafka = kafka.expect("just seen");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Gone already, or going now; either will do.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking()
            && let Some(home) = self.home.take()
        {
            let home = home.keep();
            let log = fs::read_to_string(home.join("broker.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
            eprintln!(
                "the last words of broker {}, from {}:",
                self.number + 1,
                home.display()
            );
            eprintln!("{}", last.join("\n"));
        }
    }
}
