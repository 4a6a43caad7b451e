//! What earlier programs stored, kept as it lay on the disk after a kill: `scripts/stored.sh` makes it.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::common::command::run;
use crate::common::{Broker, PATIENCE, home};
use crate::{lines, read};

/// The data directory that is kept under this name, unpacked.
fn unpacked(name: &str) -> (TempDir, PathBuf) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade/stored");
    let home = home();
    let mut tar = std::process::Command::new("tar");
    tar.args(["--extract", "--file"])
        .arg(kept.join(format!("{name}.tar.gz")))
        .arg("--directory")
        .arg(home.path());
    run(tar, b"", PATIENCE);
    let data = home.path().join("data");
    (home, data)
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

#[test]
fn what_was_stored_before_cluster_versions_is_read() {
    let (_home, data) = unpacked("before-cluster-versions");
    let mut broker = Broker::on(&data);
    goes_on(&mut broker);
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(told["before"], 0);
}

#[test]
fn what_was_stored_under_cluster_version_1_is_read() {
    let (_home, data) = unpacked("cluster-version-1");
    let mut broker = Broker::on(&data);
    goes_on(&mut broker);
    // Of each key the newest is there, wherever it was compacted.
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
    assert_eq!(broker.json(&["cluster", "finalize", "--yes"])["before"], 1);
}
