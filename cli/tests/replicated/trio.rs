//! A broker and the processes that keep copies of its groups: two, unless more are asked for. They find each
//! other through an etcd.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use kera_metadata::{EtcdOptions, EtcdStore};

use crate::common::ports::Reserved;
use crate::common::{Broker, http, shared_memory};
use crate::etcd::Etcd;

/// How long the broker waits for a backup that is killed, or this for the broker.
const LEASE: &str = "2s";

/// A broker, number 1, and its backups, numbers 2, 3 and so on.
pub struct Trio {
    pub broker: Broker,
    pub backups: Vec<Broker>,
    // After those that need it.
    _etcd: Etcd,
    shared: Vec<TempDir>,
    _port: Reserved,
    http: Reserved,
}

impl Trio {
    /// `None`, and said so, where there is no etcd.
    pub fn start() -> Option<Self> {
        Self::with(&[])
    }

    /// With more flags for the broker.
    pub fn with(more: &[&str]) -> Option<Self> {
        Self::of(2, more)
    }

    /// With so many backups, and more flags for the broker.
    pub fn of(backups: usize, more: &[&str]) -> Option<Self> {
        let as_they_are: Vec<&[&str]> = vec![&[]; backups];
        Self::at("127.0.0.1", &as_they_are, more)
    }

    /// At an address of this machine; with more flags for each backup, as many as there are to be, and
    /// for the broker.
    pub fn at(ip: &str, backups: &[&[&str]], more: &[&str]) -> Option<Self> {
        let etcd = Etcd::start()?;
        let at = etcd.address();
        EtcdStore::init(&at, EtcdOptions::default()).expect("the cluster is made");
        let port = Reserved::at(ip);
        let http = Reserved::new();
        let shared: Vec<_> = (0..=backups.len()).map(|_| shared_memory()).collect();
        let stores: Vec<String> = shared
            .iter()
            .map(|dir| dir.path().display().to_string())
            .collect();
        let ids: Vec<_> = (1..=stores.len()).map(|id| id.to_string()).collect();
        let flags = |number: usize| {
            let flags = [
                ["--cluster", &at],
                ["--cluster-lease", LEASE],
                ["--broker-id", &ids[number]],
                ["--replica-store-memory-bytes", "64MiB"],
                ["--replica-store-shared-dir", &stores[number]],
            ];
            flags.concat()
        };
        let backups = backups.iter().enumerate().map(|(number, more)| {
            let flags = [&flags(number + 1)[..], more].concat();
            Broker::backup_at(ip, &flags)
        });
        // They are there when the broker begins.
        let backups: Vec<_> = backups.collect();
        let mut mine = flags(0);
        mine.push("--allow-same-host");
        mine.extend(["--replication-listen", port.address()]);
        mine.extend(["--http-listen", http.address()]);
        mine.extend(more);
        Some(Self {
            broker: Broker::with(&mine),
            backups,
            _etcd: etcd,
            shared,
            _port: port,
            http,
        })
    }

    /// Creates a stream with small groups and so many copies.
    pub fn create(&self, stream: &str, replicas: &str, min_insync_replicas: &str) {
        let copies = [
            "--replicas",
            replicas,
            "--min-insync-replicas",
            min_insync_replicas,
        ];
        let small = ["--segment-size", "64KiB", "--segments-per-group", "2"];
        let words = [&["stream", "create", stream][..], &copies, &small].concat();
        self.broker.run(&words);
    }

    /// Appends lines and waits until all are acknowledged.
    pub fn produce(&self, stream: &str, lines: &[String]) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.broker.feed(
            &["produce", stream, "--quiet", "--batch-size", "4KiB"],
            text.as_bytes(),
        );
    }

    /// All lines of a stream, in order.
    pub fn consume(&self, stream: &str) -> Vec<String> {
        let text = self.broker.run(&["consume", stream]);
        text.lines().map(str::to_owned).collect()
    }

    /// The broker's metrics.
    pub fn metrics(&self) -> String {
        http::get(self.http.address(), "/metrics")
    }

    /// The value of a metric without labels; 0 if there is none.
    pub fn metric(&self, name: &str) -> u64 {
        let metrics = self.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |value| value.trim().parse().expect("a number"))
    }

    /// Groups of a stream that are recorded to have too few copies.
    pub fn short_groups(&self, stream: &str) -> u64 {
        let described = self.broker.json(&["stream", "describe", stream]);
        described["under_replicated_groups"]
            .as_u64()
            .expect("a count")
    }

    /// The names of the copies that backup number `at` has on shared memory, and on its disk.
    pub fn copies_at(&self, at: usize) -> (Vec<String>, Vec<String>) {
        let disk = self.backups[at].data_dir().join("backup");
        (
            copies_below(self.shared[at + 1].path()),
            copies_below(&disk),
        )
    }

    /// The names of all copies that backup number `at` has, wherever they are.
    pub fn all_copies_at(&self, at: usize) -> BTreeSet<String> {
        let (memory, disk) = self.copies_at(at);
        memory.into_iter().chain(disk).collect()
    }

    /// The backup that holds most copies: one that was slow to answer when a group began has none of it.
    pub fn fullest(&self) -> usize {
        let held = |at: &usize| self.all_copies_at(*at).len();
        let fullest = (0..self.backups.len()).max_by_key(held);
        fullest.expect("there are backups")
    }

    /// What all backups keep is gone, in memory and on disk. They must not run.
    pub fn lose_copies(&self) {
        let disks = self.backups.iter().map(|b| b.data_dir().join("backup"));
        let stores = self.shared[1..].iter().map(|dir| dir.path().to_path_buf());
        for dir in disks.chain(stores) {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let path = entry.path();
                let gone = match path.is_dir() {
                    true => fs::remove_dir_all(&path),
                    false => fs::remove_file(&path),
                };
                gone.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        }
    }

    /// Whether a stream's one streamlet is served: it may have to wait for its copies.
    pub fn is_served(&self, stream: &str) -> bool {
        let described = self.broker.json(&["stream", "describe", stream]);
        described["lane_descriptions"]
            .as_array()
            .is_some_and(|lanes| !lanes.is_empty())
    }

    /// The broker's group files of a stream of one streamlet.
    pub fn group_files(&self, stream: &str) -> Vec<PathBuf> {
        let described = self.broker.json(&["stream", "describe", stream]);
        let id = described["id"].as_str().expect("an id");
        let dir = self.broker.data_dir().join("streams").join(id).join("0");
        let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        files
    }
}

/// The records of copies below a directory, by their paths in it.
pub fn copies_below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            let below = copies_below(&path).into_iter();
            found.extend(below.map(|rest| format!("{name}/{rest}")));
        } else if name.ends_with(".copy") {
            found.push(name);
        }
    }
    found.sort();
    found
}

/// Lines that tell their place, long enough that groups fill.
pub fn lines(range: std::ops::Range<usize>) -> Vec<String> {
    range
        .map(|n| format!("{n:08} {}", "x".repeat(90)))
        .collect()
}
