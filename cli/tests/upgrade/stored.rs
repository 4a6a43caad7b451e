//! What earlier programs stored, kept as it lay on the disks after a kill: `scripts/stored.sh` makes it.

use std::path::Path;

use kera_metadata::{EtcdOptions, EtcdStore, MetadataStore};
use kera_testkit::etcd::Etcd;
use tempfile::TempDir;

use crate::common::command::run;
use crate::common::holdings::{Directories, settled};
use crate::common::place::Place;
use crate::common::{Broker, PATIENCE, home};
use crate::{lines, read};

/// What is kept under this name, unpacked.
fn unpacked(name: &str) -> TempDir {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade/stored");
    let home = home();
    let mut tar = std::process::Command::new("tar");
    tar.args(["--extract", "--file"])
        .arg(kept.join(format!("{name}.tar.gz")))
        .arg("--directory")
        .arg(home.path());
    run(tar, b"", PATIENCE);
    home
}

/// Records, positions, rules and users are there, more can be written, and all of it outlives a kill.
fn goes_on(broker: &mut Broker) {
    let clicks = |records: usize, broker: &Broker| {
        assert_eq!(read(broker, "clicks"), lines(0..records));
    };
    clicks(4_000, broker);
    assert_eq!(read(broker, "orders"), lines(0..3_000));
    // 1,000 were read and committed: the group goes on behind them.
    let consume = [
        "consume", "clicks", "--group", "counters", "--from", "earliest", "--max", "3000",
    ];
    assert_eq!(broker.run(&consume).lines().count(), 3_000);
    let group = broker.json(&["group", "describe", "counters"]);
    assert_eq!(group["lag"], 0, "{group}");
    let rules = broker.run(&["acl", "list"]);
    assert!(
        rules.contains("User:alice") && rules.contains("clicks"),
        "{rules}"
    );
    assert!(broker.run(&["user", "list"]).contains("alice"));
    let more: String = lines(4_000..4_500)
        .iter()
        .map(|line| format!("{line}\n"))
        .collect();
    let produce = ["produce", "clicks", "-q", "--key-separator", ","];
    broker.feed(&produce, more.as_bytes());
    broker.kill();
    broker.restart();
    clicks(4_500, broker);
}

/// Of each key the newest is there, wherever it was compacted.
fn tables_are_there(broker: &Broker) {
    let records = broker.run(&["consume", "tables", "--format", "jsonl"]);
    let mut newest = std::collections::BTreeMap::new();
    for line in records.lines() {
        let record: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        let (key, value) = (record["key"].as_str(), record["value"].as_str());
        newest.insert(
            key.expect("text").to_owned(),
            value.expect("text").to_owned(),
        );
    }
    let newest: Vec<String> = newest
        .iter()
        .map(|(key, value)| format!("{key},{value}"))
        .collect();
    let mut expected = lines(2_993..3_000);
    expected.sort_unstable();
    assert_eq!(newest, expected);
}

#[test]
fn what_was_stored_before_cluster_versions_is_read() {
    let home = unpacked("before-cluster-versions");
    let mut broker = Broker::on(&home.path().join("data"), &[]);
    goes_on(&mut broker);
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(told["before"], 0);
}

#[test]
fn what_was_stored_under_cluster_version_1_is_read() {
    let home = unpacked("cluster-version-1");
    let mut broker = Broker::on(&home.path().join("data"), &[]);
    goes_on(&mut broker);
    tables_are_there(&broker);
    assert_eq!(broker.json(&["cluster", "finalize", "--yes"])["before"], 1);
}

/// Two brokers and a replica store over the directories that three of an earlier version left behind, and its etcd.
struct Cluster {
    brokers: Vec<Broker>,
    store: Broker,
    etcd: Etcd,
    places: Vec<Place>,
    _home: TempDir,
}

impl Cluster {
    fn unpacked(name: &str) -> Option<Self> {
        let home = unpacked(name);
        let etcd = Etcd::on(&home.path().join("etcd"))?;
        let places: Vec<_> = (1..=3).map(|number| place(home.path(), number)).collect();
        let start = |number: usize, start: fn(&Path, &[&str]) -> Broker| {
            let url = etcd.address();
            let mut flags = places[number - 1].flags(number, ["--cluster", &url]);
            flags.extend(["--cluster-repair-interval", "200ms"].map(str::to_owned));
            // The address of a replica store is its only one.
            if number == 3 {
                let at = flags.iter().position(|flag| flag == "--replication-listen");
                let at = at.expect("it is told where replicas come");
                flags.drain(at..at + 2);
            }
            let flags: Vec<_> = flags.iter().map(String::as_str).collect();
            start(&home.path().join(format!("broker{number}")), &flags)
        };
        Some(Self {
            brokers: vec![start(1, Broker::on), start(2, Broker::on)],
            store: start(3, Broker::backup_on),
            etcd,
            places,
            _home: home,
        })
    }

    /// Waits until what is recorded is what they hold; no recorded replica may lack its bytes.
    fn settles(&self) {
        let store = EtcdStore::open(&self.etcd.address(), EtcdOptions::default());
        let store = store.expect("it opens");
        let members = self.brokers.iter().chain([&self.store]).zip(&self.places);
        let directories = (1..)
            .zip(members)
            .map(|(broker, (member, place))| Directories {
                broker,
                kept: vec![place.shared().into(), member.data_dir().join("backup")],
                data: member.data_dir().into(),
                runs: true,
                harmed: false,
            });
        let directories: Vec<_> = directories.collect();
        settled(|| store.load().expect("it is read"), &directories);
    }
}

/// What the member with this number needs, with what it had in memory.
fn place(home: &Path, number: usize) -> Place {
    let place = Place::new();
    let mut copy = std::process::Command::new("cp");
    copy.arg("--archive")
        .arg(home.join(format!("memory{number}")).join("."))
        .arg(place.shared());
    run(copy, b"", PATIENCE);
    place
}

#[test]
fn what_a_cluster_stored_before_cluster_versions_is_read() {
    let Some(mut cluster) = Cluster::unpacked("before-cluster-versions-in-a-cluster") else {
        return;
    };
    cluster.settles();
    goes_on(&mut cluster.brokers[0]);
    cluster.settles();
    let told = cluster.brokers[1].json(&["cluster", "finalize", "--yes"]);
    assert_eq!(told["before"], 0);
}

#[test]
fn what_a_cluster_stored_under_cluster_version_1_is_read() {
    let Some(mut cluster) = Cluster::unpacked("cluster-version-1-in-a-cluster") else {
        return;
    };
    cluster.settles();
    goes_on(&mut cluster.brokers[0]);
    tables_are_there(&cluster.brokers[1]);
    cluster.settles();
    let told = cluster.brokers[1].json(&["cluster", "finalize", "--yes"]);
    assert_eq!(told["before"], 1);
}
