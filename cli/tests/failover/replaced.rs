//! A broker whose etcd is replaced at its address: by an empty one, by another cluster's, by an older state of
//! itself. It deletes nothing, says what is there, and goes on by itself once its own is back.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use kera_metadata::{ClusterStore, EtcdOptions, EtcdStore, MetadataStore};
use tempfile::TempDir;

use crate::common::ports::Reserved;
use crate::common::{Broker, PATIENCE, finish, home, http};
use crate::etcd::Etcd;

/// A cluster of one broker, with a stream.
struct Alone {
    broker: Broker,
    etcd: Etcd,
    cluster: String,
    http: Reserved,
    _port: Reserved,
    _shared: TempDir,
}

impl Alone {
    fn start() -> Option<Self> {
        let etcd = Etcd::start()?;
        let cluster = EtcdStore::init(&etcd.address(), EtcdOptions::default());
        let cluster = cluster.expect("it is made").to_string();
        let (http, port, shared) = (Reserved::new(), Reserved::new(), home());
        let (store, dir) = (etcd.address(), shared.path().display().to_string());
        let flags = [
            ["--cluster", &store],
            ["--broker-id", "1"],
            ["--cluster-lease", "2s"],
            ["--http-listen", http.address()],
            ["--replication-listen", port.address()],
            ["--replica-store-memory-bytes", "64MiB"],
            ["--replica-store-shared-dir", &dir],
        ];
        let broker = Broker::with(flags.as_flattened());
        // A time before the stream.
        etcd.keep_state("old");
        let alone = Self {
            broker,
            etcd,
            cluster,
            http,
            _port: port,
            _shared: shared,
        };
        alone.until("/readyz", "ready");
        alone
            .broker
            .run(&["stream", "create", "clicks", "--replicas", "1"]);
        alone.broker.feed(&["produce", "clicks"], b"one\ntwo\n");
        Some(alone)
    }

    fn get(&self, path: &str) -> String {
        let answer = http::get(self.http.address(), path);
        let (_, body) = answer.split_once("\r\n\r\n").expect("head and body");
        body.to_owned()
    }

    /// Asks until the answer begins so.
    fn until(&self, path: &str, wanted: &str) {
        let begin = Instant::now();
        loop {
            let found = self.get(path);
            if found.starts_with(wanted) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{path}: {found}");
        }
    }

    /// The files of streams, and what they hold: how far they reach, and blocks of the disk.
    fn files(&self) -> BTreeMap<PathBuf, (u64, u64)> {
        let mut found = BTreeMap::new();
        gather(&self.broker.data_dir().join("streams"), &mut found);
        found
    }

    /// The broker says that it is not its store that is there, naming `parts`, and touches nothing. Started
    /// again it does not serve.
    fn refuses(&mut self, parts: &[&str]) {
        let names: Vec<_> = self.files().into_keys().collect();
        assert!(!names.is_empty());
        self.until("/readyz", "wrong metadata store: ");
        assert!(
            self.get("/metrics")
                .contains("\nkera_cluster_store_stranger 1\n")
        );
        let log = self.broker.log();
        for part in parts {
            assert!(log.contains(part), "no `{part}` in the log");
        }
        assert!(self.broker.is_running());
        self.broker.kill();
        let before = self.files();
        assert!(names.iter().all(|name| before.contains_key(name)));
        let refused = finish(self.broker.command(), b"");
        assert!(!refused.status.success());
        for part in parts {
            assert!(refused.stderr.contains(part), "{}", refused.stderr);
        }
        assert_eq!(self.files(), before);
    }

    /// Its own etcd is back, and it serves all that it had.
    fn goes_on(&mut self, records: &[&str]) {
        self.until("/readyz", "ready");
        assert!(
            self.get("/metrics")
                .contains("\nkera_cluster_store_stranger 0\n")
        );
        let consumed = self.broker.run(&["consume", "clicks"]);
        let mut lines: Vec<_> = consumed.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, records);
    }
}

fn gather(dir: &Path, found: &mut BTreeMap<PathBuf, (u64, u64)>) {
    for entry in fs::read_dir(dir).expect("it is there") {
        let path = entry.expect("it is listed").path();
        if path.is_dir() {
            gather(&path, found);
        } else {
            let of = fs::metadata(&path).expect("it is there");
            found.insert(path, (of.len(), of.blocks()));
        }
    }
}

#[test]
fn an_etcd_that_was_replaced_is_one_that_does_not_answer() {
    let Some(mut alone) = Alone::start() else {
        return;
    };
    // While it runs, and goes on without a restart.
    alone.etcd.become_state("empty");
    alone.until("/readyz", "wrong metadata store: ");
    alone.etcd.become_state("data");
    alone.goes_on(&["one", "two"]);
    alone.broker.feed(&["produce", "clicks"], b"three\n");

    let mine = alone.cluster.clone();
    alone.etcd.become_state("empty");
    alone.refuses(&["holds no cluster", &mine]);

    let other = EtcdStore::init(&alone.etcd.address(), EtcdOptions::default());
    let other = other.expect("it is made").to_string();
    alone.etcd.become_state("data");
    alone.broker.restart();
    alone.goes_on(&["one", "three", "two"]);
    alone.etcd.become_state("empty");
    alone.refuses(&[&mine, &other]);
    let theirs = EtcdStore::open(&alone.etcd.address(), EtcdOptions::default());
    let theirs = theirs.expect("it opens");
    assert!(theirs.brokers().expect("it is read").is_empty());
    assert!(theirs.load().expect("it is read").streams.is_empty());
    drop(theirs);

    alone.etcd.become_state("data");
    alone.broker.restart();
    alone.goes_on(&["one", "three", "two"]);
    alone.etcd.become_state("old");
    alone.refuses(&["has seen revision", &mine]);

    alone.etcd.become_state("data");
    alone.broker.restart();
    alone.goes_on(&["one", "three", "two"]);
}
