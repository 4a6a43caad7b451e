//! A broker that shares its store with others, as files of `deploy/` set it up: how the store is prepared
//! at each start, and what probes say while it is away.

use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Broker, PATIENCE, finish, home, kera};
use crate::etcd::Etcd;
use crate::process::Process;

/// A broker and its etcd.
pub struct Member {
    pub broker: Process,
    etcd: Etcd,
    copies: TempDir,
}

/// `kera cluster init`; whether it was content, and what it wrote.
fn init(etcd: &Etcd, flags: &[&str]) -> (bool, String) {
    let mut command = kera();
    command
        .args(["cluster", "init", "--json"])
        .args(flags)
        // As services do.
        .env("KERA_CLUSTER_STORE", store(etcd));
    let finished = finish(command, b"");
    let said = format!("{}{}", finished.text(), finished.stderr);
    (finished.status.success(), said)
}

fn store(etcd: &Etcd) -> String {
    format!("etcd://{}", etcd.endpoint())
}

impl Member {
    /// A cluster of one, with a short lease; `None`, and said so, where there is no etcd.
    pub fn start() -> Option<Self> {
        Self::with(&[])
    }

    /// The same, with more flags.
    pub fn with(more: &[&str]) -> Option<Self> {
        let etcd = Etcd::start()?;
        let (good, said) = init(&etcd, &["--if-needed"]);
        assert!(good, "{said}");
        let copies = home();
        let shared = copies.path().join("broker").display().to_string();
        let store = store(&etcd);
        let flags = [
            ["--cluster", &store],
            ["--broker-id", "1"],
            ["--cluster-lease", "3s"],
            ["--replication-listen", "127.0.0.1:0"],
            ["--replica-store-memory-bytes", "32MiB"],
            ["--replica-store-shared-dir", &shared],
            ["--cluster-allow-same-host", "true"],
            ["--cluster-repair-interval", "200ms"],
        ];
        Some(Self {
            broker: Process::with(&[flags.as_flattened(), more].concat()),
            etcd,
            copies,
        })
    }

    /// A replica store of the same cluster, once the broker knows of it.
    pub fn replica_store(&self) -> Broker {
        let shared = self.copies.path().join("store").display().to_string();
        let flags = [
            ["--cluster", &store(&self.etcd)],
            ["--broker-id", "2"],
            ["--replica-store-memory-bytes", "32MiB"],
            ["--replica-store-shared-dir", &shared],
        ];
        let started = Broker::backup(&flags.concat());
        self.exposes("kera_peer_down{");
        started
    }

    /// Waits until the broker's metrics have a series that begins so; all of them.
    pub fn exposes(&self, series: &str) -> String {
        let asked = Instant::now();
        loop {
            let (_, text) = self.broker.get("/metrics");
            if text.lines().any(|line| line.starts_with(series)) {
                return text;
            }
            assert!(asked.elapsed() < PATIENCE, "no {series} in {text}");
        }
    }

    /// Asks `/readyz` until it answers with `status`; with which words.
    fn ready_with(&self, status: u16) -> String {
        let asked = Instant::now();
        loop {
            let (found, text) = self.broker.get("/readyz");
            if found == status {
                return text;
            }
            assert!(asked.elapsed() < PATIENCE, "/readyz: {found} {text}");
        }
    }
}

#[test]
fn a_store_is_prepared_once_however_often_it_is_asked_for() {
    let Some(etcd) = Etcd::start() else {
        return;
    };
    let told = |flags: &[&str]| -> Value {
        let (good, said) = init(&etcd, flags);
        assert!(good, "{said}");
        serde_json::from_str(&said).expect("JSON")
    };
    let first = told(&["--if-needed"]);
    let second = told(&["--if-needed"]);
    assert_eq!(
        (&first["new"], &second["new"]),
        (&true.into(), &false.into())
    );
    assert_eq!(first["cluster"], second["cluster"]);
    // A person who did not mean that one is told.
    let (good, said) = init(&etcd, &[]);
    assert!(!good && said.contains("already"), "{said}");
}

#[test]
fn a_member_without_its_store_lives_and_is_not_ready() {
    let Some(member) = Member::start() else {
        return;
    };
    let metrics = || member.broker.get("/metrics").1;
    member.ready_with(200);
    assert!(metrics().contains("\nkera_cluster_lease 1\n"));
    assert!(metrics().contains("\nkera_cluster_brokers 1\n"));
    member.etcd.kill();
    let reason = member.ready_with(503);
    assert!(reason.starts_with("no lease: "), "{reason}");
    assert_eq!(
        member.broker.get("/livez").0,
        200,
        "a restart mends nothing"
    );
    assert!(metrics().contains("\nkera_cluster_lease 0\n"));
    member.etcd.restart();
    member.ready_with(200);
}
