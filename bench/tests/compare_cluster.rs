//! The comparison, small: several brokers that form one system, with what each part of them took.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

mod support;
use support::{run_in, skip, stderr};

const KERA: &str = r#"
title = "Clusters"
command = "make test"
repetitions = 1
warm_up_records = 3_000

[[plot]]
name = "smoke-brokers"
scenario = "at once"
kind = "lines"
measure = ["throughput", "broker-cpu"]
over = "brokers"
cases = ["replicas=1"]
title = "By brokers"
caption = "Nothing is meant by it."

[[scenario]]
name = "at once"
work = "both"
contenders = ["kera", "kera-native"]
records = 10_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [4]
streamlets = 4
brokers = [2, 3]
replicas = [1, 2]

[[scenario]]
name = "produce"
work = "produce"
contenders = ["kera-native"]
records = 10_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
streamlets = 2
brokers = [2]
replicas = [2]
"#;

const KAFKA: &str = r#"
title = "Clusters"
command = "make test"
repetitions = 1

[[scenario]]
name = "at once"
work = "both"
contenders = ["kafka"]
records = 5_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [4]
brokers = [3]
replicas = [3]

[[scenario]]
name = "three disks"
work = "latency"
contenders = ["kafka"]
durability = ["synced"]
record_bytes = 1_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
consumers = [0]
rate = [50]
seconds = 2
brokers = [3]
replicas = [3]
"#;

const SYNCED: &str = r#"
title = "Three disks"
command = "make test"
repetitions = 1

[[scenario]]
name = "throughput"
work = "both"
contenders = ["kera", "kera-native"]
durability = ["synced"]
record_bytes = 1_000
records = 2_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
consumers = [0]
brokers = [3]
replicas = [3]

[[scenario]]
name = "latency"
work = "latency"
contenders = ["kera", "kera-native"]
durability = ["synced"]
record_bytes = 1_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
consumers = [0]
rate = [100]
seconds = 2
brokers = [3]
replicas = [3]
"#;

const STARTS: &str = r#"
title = "Starts"
command = "make test"
repetitions = 2

[[scenario]]
name = "start"
work = "start"
contenders = ["kera"]
closed_groups = 40
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [4]
seconds = 1
brokers = [1]

[[scenario]]
name = "start"
work = "start"
contenders = ["kera"]
closed_groups = 41
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [4]
seconds = 1
"#;

/// Every run of a session, which must have gone well.
fn taken(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("smoke.json")).expect("results");
    let results: Value = serde_json::from_str(&text).expect("JSON");
    let cases = results["cases"].as_array().expect("cases").iter();
    let runs = cases.flat_map(|case| case["runs"].as_array().expect("runs"));
    runs.map(|run| {
        assert!(run["failure"].is_null(), "{run}");
        run["taken"].clone()
    })
    .collect()
}

fn missing(name: &str, tools: &[&str]) -> bool {
    for tool in tools {
        if let Err(error) = Command::new(tool).arg("--version").output() {
            skip(name, &format!("no {tool} here: {error}"));
            return true;
        }
    }
    false
}

/// The folders of clusters on shared memory.
fn shared_memory() -> BTreeSet<String> {
    fs::read_dir("/dev/shm")
        .expect("shared memory")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("kera-bench-cluster-"))
        .collect()
}

fn is_of_the_living(folder: &str) -> bool {
    let pid = folder.split('-').nth(3).unwrap_or_default();
    Path::new("/proc").join(pid).exists()
}

#[test]
fn brokers_and_etcd_are_told_apart() {
    if missing("brokers_and_etcd_are_told_apart", &["etcd"]) {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let before = shared_memory();
    let output = run_in(folder.path(), KERA).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let all = taken(folder.path());
    assert_eq!(all.len(), 9);
    for taken in &all {
        assert_eq!(taken["records"], 10_000, "{taken}");
        let brokers = taken["cluster"]["broker_cpu_seconds"].as_array();
        let brokers = brokers.expect("of each broker").len();
        assert!((2..=3).contains(&brokers), "{taken}");
        let store = &taken["cluster"]["store"];
        assert!(
            store["memory"]["resident"].as_u64() > Some(1 << 20),
            "{taken}"
        );
        let resident = taken["memory"]["resident"].as_u64();
        assert!(resident > store["memory"]["resident"].as_u64(), "{taken}");
    }
    // The first records of a lane open a group, which etcd has to know.
    let produced = all.last().expect("a run");
    let store = &produced["cluster"]["store"];
    assert!(store["transactions"].as_u64() > Some(0), "{produced}");
    assert!(store["keys"].as_u64() > Some(0), "{produced}");
    let text = fs::read_to_string(folder.path().join("doc.md")).expect("the document");
    for part in [
        "smoke-brokers.svg",
        "etcd transactions per GB of records",
        "Kera, a cluster of 3",
        "| brokers | replicas |",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // What others left there, or have there now, is not this run's.
    let left = shared_memory().into_iter();
    let left: Vec<_> = left
        .filter(|name| !before.contains(name) && !is_of_the_living(name))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What the device took during a run, which acknowledgements waited for.
fn device(taken: &Value) -> &Value {
    let device = &taken["device"];
    assert!(device["samples"].as_u64() > Some(0), "{taken}");
    assert!(device["p50_us"].as_f64() > Some(0.0), "{taken}");
    device
}

#[test]
fn three_disks_flush_before_an_acknowledgement_and_the_flushes_are_counted() {
    let name = "three_disks_flush_before_an_acknowledgement_and_the_flushes_are_counted";
    if missing(name, &["etcd"]) {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let output = run_in(folder.path(), SYNCED).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let all = taken(folder.path());
    assert_eq!(all.len(), 4);
    for taken in &all {
        let during = &device(taken)["during"];
        // A kernel or a driver may count none, and then the table is left out.
        assert!(
            during.is_null() || during["flushes"].as_u64() > Some(0),
            "{taken}"
        );
        assert!(taken["sides"]["consumed"].is_null(), "{taken}");
    }
    // Those of the open loop alone have a time at which they were due.
    let timed = all
        .iter()
        .map(|taken| taken["sides"]["acks"]["records"].as_u64());
    let timed: Vec<_> = timed.map(|records| records > Some(0)).collect();
    assert_eq!(timed, [false, false, true, true]);
    let text = fs::read_to_string(folder.path().join("doc.md")).expect("the document");
    for part in [
        "kera.ack=synced, at every copy",
        "acknowledgement, p99.9, ms",
        "acknowledgement, p99, in flushes (p99) of the idle device",
        "a flush of the idle device, p50, ms",
        "until it is acknowledged",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn a_broker_starts_with_closed_groups_whose_records_are_here_or_there() {
    let name = "a_broker_starts_with_closed_groups_whose_records_are_here_or_there";
    if missing(name, &["etcd"]) {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    // All that was made is read before the first start that counts.
    let output = run_in(folder.path(), STARTS).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let all = taken(folder.path());
    assert_eq!(all.len(), 4);
    for taken in &all {
        let start = &taken["start"];
        let at = |what: &str| {
            start[what]
                .as_f64()
                .unwrap_or_else(|| panic!("{what}: {taken}"))
        };
        assert!(at("appended_seconds") > at("answers_seconds"), "{taken}");
        assert!(at("ready_seconds") > 0.0, "{taken}");
    }
    let text = fs::read_to_string(folder.path().join("doc.md")).expect("the document");
    for part in ["| etcd |", "its own store", "first acknowledged append"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn apache_kafka_forms_a_cluster_where_it_can_be_had() {
    let name = "apache_kafka_forms_a_cluster_where_it_can_be_had";
    if missing(name, &["java", "mvn"]) {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let output = run_in(folder.path(), KAFKA).output().expect("it runs");
    if stderr(&output).contains("mvn could not fetch") {
        return skip(name, "Apache Kafka cannot be fetched");
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let all = taken(folder.path());
    assert_eq!(all[0]["sides"]["consumed"]["records"], 5_000, "{}", all[0]);
    let brokers = all[0]["cluster"]["broker_cpu_seconds"].as_array();
    assert_eq!(brokers.map(Vec::len), Some(3), "{}", all[0]);
    assert!(all[0]["cluster"]["store"].is_null(), "{}", all[0]);
    assert!(all[0]["device"].is_null(), "{}", all[0]);
    // Each of the three flushes by itself what it appends.
    let during = &device(&all[1])["during"];
    let (flushes, records) = (during["flushes"].as_u64(), all[1]["records"].as_u64());
    assert!(during.is_null() || flushes > records, "{}", all[1]);
}
