//! Three brokers, each at a node of its own, and what can be done to them.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kera_metadata::{EtcdOptions, EtcdStore, Image, MetadataStore};
use tempfile::TempDir;

use crate::common::holdings::{Directories, look};
use crate::common::{Broker, PATIENCE, home, shared_memory};
use crate::etcd::Etcd;
use crate::namespaces::{Network, address, small_disk};

/// Brokers of a run, at nodes 1 to 3.
pub const BROKERS: u32 = 3;
/// The node of etcd.
const STORE: u32 = 4;
/// What a backup may hold in memory, and on its disk, which a fault can fill.
const MEMORY: &str = "64MiB";
const DISK: u64 = 96 << 20;

/// The directories of one broker's copies for others.
struct Kept {
    shared: TempDir,
    disk: TempDir,
}

/// Three brokers, their etcd and the network between them.
pub struct Cluster {
    brokers: Vec<Broker>,
    store: Etcd,
    kept: Vec<Kept>,
    /// Files of copies that were damaged: what they were is not looked for.
    damaged: Vec<PathBuf>,
    pub network: Network,
}

fn listen(broker: u32, port: u16) -> String {
    format!("{}:{port}", address(broker))
}

impl Cluster {
    pub fn start() -> Self {
        let mut cluster = Self::empty();
        for number in 1..=BROKERS {
            cluster.add(number, |enter, flags| broker(number, enter, flags));
        }
        cluster
    }

    /// The first is a broker, with these variables, as NAME=VALUE, in its environment; the others are replica
    /// stores, so that nobody follows it.
    pub fn with_stores(first: &[&str]) -> Self {
        let mut cluster = Self::empty();
        for number in 2..=BROKERS {
            cluster.add(number, |enter, flags| {
                Broker::backup_within(enter, &listen(number, 7601), flags)
            });
        }
        cluster.add(1, |mut enter, flags| {
            if !first.is_empty() {
                enter.push("env".to_owned());
                enter.extend(first.iter().map(|&variable| variable.to_owned()));
            }
            broker(1, enter, flags)
        });
        cluster.brokers.rotate_right(1);
        cluster.kept.rotate_right(1);
        cluster
    }

    fn empty() -> Self {
        let network = Network::new(STORE);
        let store = Etcd::at(
            network.enter(STORE),
            &listen(STORE, 2379),
            &listen(STORE, 2380),
        );
        let made = EtcdStore::init(&store.address(), EtcdOptions::default());
        made.expect("the cluster is made");
        Self {
            brokers: Vec::new(),
            store,
            kept: Vec::new(),
            damaged: Vec::new(),
            network,
        }
    }

    fn add(&mut self, number: u32, start: impl FnOnce(Vec<String>, Vec<String>) -> Broker) {
        let shared = shared_memory();
        let disk = home();
        small_disk(disk.path(), DISK);
        let kept = Kept { shared, disk };
        let flags = flags(number, &self.store.address(), &kept);
        let broker = start(self.network.enter(number), flags);
        self.brokers.push(broker);
        self.kept.push(kept);
    }

    /// Where clients begin: at any of the brokers.
    pub fn bootstrap(&self) -> String {
        Broker::bootstrap(&self.brokers)
    }

    /// Creates a stream with a copy at each broker, once they have heard of each other, and waits until all know
    /// it.
    pub fn create(&self, words: &[&str]) {
        let all = |told: &serde_json::Value| {
            let peers = told["cluster"]["peers"].as_array();
            peers.is_some_and(|peers| peers.len() as u32 == BROKERS - 1)
        };
        self.broker(1).until(&["broker", "describe"], all);
        self.broker(1).run(words);
        for number in 2..=BROKERS {
            self.broker(number).hears_of(words[2]);
        }
    }

    pub fn broker(&self, number: u32) -> &Broker {
        &self.brokers[number as usize - 1]
    }

    fn broker_mut(&mut self, number: u32) -> &mut Broker {
        &mut self.brokers[number as usize - 1]
    }

    pub fn kill(&mut self, number: u32) {
        self.broker_mut(number).kill();
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

    /// Bytes that are free on that disk.
    pub fn free(&self, number: u32) -> u64 {
        let disk = self.kept[number as usize - 1].disk.path();
        let found = rustix::fs::statvfs(disk).expect("a file system tells its size");
        found.f_bavail * found.f_frsize
    }

    /// The files of the copies that a broker keeps for others.
    fn copies(&self, number: u32) -> Vec<PathBuf> {
        let kept = &self.kept[number as usize - 1];
        let mut files = Vec::new();
        for folder in [kept.shared.path(), kept.disk.path()] {
            logs(folder, &mut files);
        }
        files.sort();
        files
    }

    /// How many there are.
    pub fn kept(&self, number: u32) -> usize {
        self.copies(number).len()
    }

    /// Removes the broker's own files of these streams' groups; how many. It must not run.
    pub fn lose_files(&self, number: u32, streams: &[String]) -> usize {
        let mut files = Vec::new();
        for stream in streams {
            let folder = self.broker(number).data_dir().join("streams").join(stream);
            logs(&folder, &mut files);
        }
        for file in &files {
            fs::remove_file(file).expect("a group's file can be removed");
        }
        files.len()
    }

    /// The ids of a broker's streams of those names.
    pub fn streams(&self, number: u32, names: &[&str]) -> Vec<String> {
        let id = |name: &&str| {
            let described = self.broker(number).json(&["stream", "describe", name]);
            described["id"].as_str().expect("an id").to_owned()
        };
        names.iter().map(id).collect()
    }

    /// Flips a bit in the middle of what one of the copies holds that the broker keeps for others;
    /// which. The broker must not run. None if it keeps nothing.
    pub fn damage(&mut self, number: u32, choice: u64) -> Option<String> {
        let files = self.copies(number);
        let at = choice as usize % files.len().max(1);
        let path = files.get(at)?;
        let flipped = flip(path, choice);
        self.damaged.extend(flipped.then(|| path.clone()));
        flipped.then(|| path.display().to_string())
    }

    /// How many rounds of its jobs a broker has ended.
    fn rounds(&self, number: u32) -> u64 {
        let status = self.broker(number).json(&["broker", "describe"]);
        let rounds = status["cluster"]["background"]["rounds"].as_u64();
        rounds.unwrap_or_else(|| panic!("no rounds in {status}"))
    }

    /// Nobody writes to the brokers any more: what they hold comes to be what each has recorded, but for what
    /// was damaged.
    pub fn holds_what_is_recorded(&self) {
        let begin = Instant::now();
        let mut more = 2;
        loop {
            self.have_worked(more);
            // All stand still before anybody looks: one that ended first would have others record that it is gone.
            (1..=BROKERS).for_each(|number| self.pause(number, true));
            let recorded = self.recorded();
            let mut amiss = look(|| recorded.clone(), &self.directories());
            (1..=BROKERS).for_each(|number| self.pause(number, false));
            amiss.lost.retain(|text| !self.is_spared(text));
            amiss.unsettled.retain(|text| !self.is_spared(text));
            assert!(
                amiss.lost.is_empty(),
                "recorded replicas have lost their bytes: {:#?}",
                amiss.lost
            );
            if amiss.unsettled.is_empty() {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "what brokers hold is not what is recorded: {:#?}",
                amiss.unsettled
            );
            more = 1;
        }
    }

    /// Waits until every broker has ended so many more rounds of its jobs.
    fn have_worked(&self, more: u64) {
        let ends: Vec<_> = (1..=BROKERS).map(|n| (n, self.rounds(n) + more)).collect();
        let begin = Instant::now();
        while ends.iter().any(|(number, end)| self.rounds(*number) < *end) {
            assert!(begin.elapsed() < PATIENCE, "the jobs do not go on");
        }
    }

    /// Where the brokers keep bytes.
    fn directories(&self) -> Vec<Directories> {
        let brokers = (1..).zip(self.brokers.iter().zip(&self.kept));
        let of = |(number, (broker, kept)): (u32, (&Broker, &Kept))| Directories {
            broker: number,
            kept: vec![kept.shared.path().into(), kept.disk.path().into()],
            data: broker.data_dir().into(),
            runs: true,
            harmed: false,
        };
        brokers.map(of).collect()
    }

    /// What is recorded, while all brokers stand still.
    fn recorded(&self) -> Image {
        let store = EtcdStore::open(&self.store.address(), EtcdOptions::default());
        let image = store.expect("the store answers").load();
        image.expect("the store answers")
    }

    fn is_spared(&self, text: &str) -> bool {
        let mut paths = self.damaged.iter().map(|path| path.display().to_string());
        paths.any(|path| text.contains(&path))
    }
}

/// The files of copies below a folder; memory that no copy has is none.
fn logs(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("spare") {
            logs(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "log") {
            found.push(path);
        }
    }
}

/// Flips one bit of the bytes that are not zeros; false if there are none.
fn flip(path: &Path, choice: u64) -> bool {
    let mut bytes = Vec::new();
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("a copy can be opened");
    file.read_to_end(&mut bytes).expect("a copy can be read");
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    if used.is_empty() {
        return false;
    }
    let at = used[choice as usize % used.len()];
    file.seek(SeekFrom::Start(at as u64)).expect("a place");
    let flipped = [bytes[at] ^ 1 << (choice % 8)];
    file.write_all(&flipped).expect("a byte is written");
    true
}

fn broker(number: u32, enter: Vec<String>, mut flags: Vec<String>) -> Broker {
    flags.extend(["--replication-listen".to_owned(), listen(number, 7601)]);
    Broker::within(enter, &listen(number, 7600), flags)
}

fn flags(number: u32, store: &str, kept: &Kept) -> Vec<String> {
    let path = |dir: &TempDir| dir.path().display().to_string();
    let mut flags: Vec<_> = [
        ("--cluster", store.to_owned()),
        ("--broker-id", number.to_string()),
        ("--cluster-lease", "3s".to_owned()),
        ("--consumers-session-min", "500ms".to_owned()),
        ("--cluster-repair-interval", "2s".to_owned()),
        ("--replica-store-memory-bytes", MEMORY.to_owned()),
        ("--replica-store-shared-dir", path(&kept.shared)),
        ("--replica-store-disk-dir", path(&kept.disk)),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect();
    flags.push("--allow-same-host".to_owned());
    flags
}
