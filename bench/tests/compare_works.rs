//! The comparison, small: several clients at once, shares of a peak, backlogs, trickles and groups.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

mod support;
use support::{run_in, skip, stderr};

const KERA: &str = r#"
title = "Works"
command = "make test"
repetitions = 1

[[scenario]]
name = "at once"
work = "both"
contenders = ["kera", "kera-native"]
records = 10_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [4, 8]
producers = [3]
consumers = [2]
subscriptions = 2
streamlets = 2
target = [
    { measure = "throughput", contender = "kera-native", baseline = { partitions = 4 }, at_least = 0.0001 },
    { measure = "throughput", contender = "kera-native", against = "kera", at_least = 0.0001 },
]

[[scenario]]
name = "for a time, without consumers"
work = "both"
contenders = ["kera", "kera-native"]
keys = "random"
batch = ["16KiB"]
linger_ms = [1]
partitions = [3]
consumers = [0]
seconds = 1

[[scenario]]
name = "share of the peak"
work = "latency"
contenders = ["kera", "kera-native"]
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
rate_of_peak = [0.01]
seconds = 2
target = [{ measure = "ack-p99", contender = "kera-native", at_most = 100_000 }]

[[scenario]]
name = "catch-up"
work = "catch-up"
contenders = ["kera", "kera-native"]
records = 20_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
rate = [500]
seconds = 2

[[scenario]]
name = "trickle"
work = "trickle"
contenders = ["kera", "kera-native"]
keys = "random"
batch = ["16KiB"]
linger_ms = [1]
partitions = [32]
rate = [200]
seconds = 1

[[scenario]]
name = "without order"
work = "share"
contenders = ["kera-native"]
records = 20_000
keys = "none"
batch = ["1KiB"]
linger_ms = [1]
partitions = [1]
consumers = [4]
order = ["none"]
work_us = 1_000
seconds = 1

[[scenario]]
name = "by lane"
work = "share"
contenders = ["kera", "kera-native"]
records = 20_000
keys = "none"
batch = ["1KiB"]
linger_ms = [1]
partitions = [1]
consumers = [2]
order = ["lane"]
work_us = 1_000
seconds = 1

[[scenario]]
name = "transactions"
work = "both"
contenders = ["kera-native", "kera-transactions", "kera-native-transactions"]
records = 1_001
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
producers = [2]
transaction_records = 100

[[scenario]]
name = "commit to delivery"
work = "latency"
contenders = ["kera-native-transactions"]
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
transaction_records = 10
rate = [500]
seconds = 2

[[scenario]]
name = "compact"
work = "compact"
contenders = ["kera-native"]
records = 20_000
keys = "tenth"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]

[[scenario]]
name = "appends beside compaction"
work = "latency"
contenders = ["kera-native-compacting"]
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
consumers = [0]
compacted_records = 20_000
rate = [500]
seconds = 2
"#;

/// What only Kafka does: its share groups, and the same works with its broker.
const KAFKA: &str = r#"
title = "Works"
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
producers = [2]

[[scenario]]
name = "group"
work = "share"
contenders = ["kafka"]
records = 20_000
keys = "none"
batch = ["1KiB"]
linger_ms = [1]
partitions = [1]
consumers = [4]
order = ["none"]
work_us = 1_000
seconds = 1
"#;

fn read(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("smoke.json")).expect("results");
    serde_json::from_str(&text).expect("JSON")
}

/// What the runs of every case of that name took.
fn taken<'a>(results: &'a Value, scenario: &str) -> Vec<&'a Value> {
    let cases = results["cases"].as_array().expect("cases").iter();
    let ours = cases.filter(|case| case["case"]["scenario"] == scenario);
    let runs = ours.flat_map(|case| case["runs"].as_array().expect("runs"));
    runs.map(|run| {
        assert!(run["failure"].is_null(), "{run}");
        &run["taken"]
    })
    .collect()
}

#[track_caller]
fn number(value: &Value) -> f64 {
    let Some(number) = value.as_f64() else {
        panic!("{value} is no number");
    };
    number
}

#[test]
fn every_work_is_done_and_told() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut command = run_in(folder.path(), KERA);
    let output = command.output().expect("kera-bench can be run");
    assert!(output.status.success(), "{}", stderr(&output));
    let results = read(folder.path());

    let both = taken(&results, "at once");
    assert_eq!(both.len(), 4);
    for taken in both {
        // Every record is acknowledged once and read once by each of two subscriptions.
        assert_eq!(taken["records"], 10_000, "{taken}");
        assert_eq!(taken["sides"]["produced"]["records"], 10_000, "{taken}");
        assert_eq!(taken["sides"]["consumed"]["records"], 20_000, "{taken}");
        assert!(number(&taken["mean_batch_bytes"]) > 100.0, "{taken}");
    }
    for taken in taken(&results, "for a time, without consumers") {
        assert!(number(&taken["seconds"]) >= 1.0, "{taken}");
        assert!(taken["sides"]["consumed"].is_null(), "{taken}");
        assert!(number(&taken["records"]) > 256.0, "{taken}");
    }
    for taken in taken(&results, "share of the peak") {
        let wanted = number(&taken["sides"]["rate"]["wanted"]);
        assert!(wanted > 1.0, "{taken}");
        // All of two seconds, of which the first does not count.
        assert!(
            (number(&taken["records"]) - 2.0 * wanted).abs() <= 1.0,
            "{taken}"
        );
        let counted = number(&taken["latency"]["records"]);
        assert!((counted - wanted).abs() <= 1.0, "{taken}");
        assert!(number(&taken["sides"]["acks"]["p99_us"]) > 0.0, "{taken}");
    }
    for taken in taken(&results, "catch-up") {
        let consumed = number(&taken["sides"]["consumed"]["records"]);
        assert!(consumed >= 20_000.0, "{taken}");
        assert!(
            number(&taken["sides"]["acks"]["records"]) > 100.0,
            "{taken}"
        );
        // The producer had gone on for two seconds before a reader came.
        assert!(number(&taken["records"]) >= 900.0, "{taken}");
    }
    for taken in taken(&results, "trickle") {
        assert_eq!(taken["records"], 200, "{taken}");
        assert!(taken["sides"]["partitions"].is_null(), "{taken}");
    }
    // A consumer that takes a millisecond for each record does a thousand a second at most.
    let alone = taken(&results, "by lane");
    assert_eq!(alone.len(), 2);
    for taken in alone {
        let records = number(&taken["records"]);
        assert!((1.0..=1_001.0).contains(&records), "{taken}");
    }
    let transactions = taken(&results, "transactions");
    assert_eq!(transactions.len(), 3);
    for taken in transactions {
        // Consumers see what is committed, and that is all, also what fills no transaction.
        assert_eq!(taken["sides"]["consumed"]["records"], 1_001, "{taken}");
    }
    for taken in taken(&results, "commit to delivery") {
        let counted = number(&taken["latency"]["records"]);
        assert!((400.0..=500.0).contains(&counted), "{taken}");
    }
    for taken in taken(&results, "compact") {
        assert_eq!(taken["bytes"], 2_000_000, "{taken}");
    }
    for taken in taken(&results, "appends beside compaction") {
        let counted = number(&taken["sides"]["acks"]["records"]);
        assert!(counted > 100.0, "{taken}");
    }
    let shared = taken(&results, "without order");
    let records = number(&shared[0]["records"]);
    assert!((1.0..=4_004.0).contains(&records), "{}", shared[0]);

    let text = fs::read_to_string(folder.path().join("doc.md")).expect("the document");
    for part in [
        "Kera, native / itself at partitions=4",
        "### catch-up",
        "broker CPU, % of a core",
        "work of each record 1 ms",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn share_groups_are_compared_where_kafka_can_be_had() {
    let name = "share_groups_are_compared_where_kafka_can_be_had";
    for tool in ["java", "javac", "mvn"] {
        if let Err(error) = Command::new(tool).arg("-version").output() {
            return skip(name, &format!("no {tool} here: {error}"));
        }
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let output = run_in(folder.path(), KAFKA)
        .output()
        .expect("kera-bench can be run");
    if stderr(&output).contains("mvn could not fetch") {
        return skip(name, "Apache Kafka cannot be fetched");
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let results = read(folder.path());
    for taken in taken(&results, "at once") {
        assert_eq!(taken["sides"]["consumed"]["records"], 5_000, "{taken}");
    }
    let shared = taken(&results, "group");
    assert!(number(&shared[0]["records"]) > 0.0, "{}", shared[0]);
}

#[test]
fn a_scenario_that_lies_ends_it_before_anything_starts() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    for (from, to, said) in [
        (
            "producers = [3]",
            "producers = [0]",
            "producers are 1 to 1000",
        ),
        (
            "streamlets = 2",
            "streamlets = 3",
            "multiples of streamlets",
        ),
        (
            "partitions = 4 }",
            "partitions = 5 }",
            "is no case of the scenario",
        ),
        ("rate_of_peak = [0.01]", "rate_of_peak = [7]", "1.5 at most"),
        ("[\"none\"]", "[\"some\"]", "some"),
        ("records = 20_000\nkeys", "records = 20\nkeys", "can do"),
    ] {
        let text = KERA.replace(from, to);
        assert_ne!(text, KERA, "{from}");
        let output = run_in(folder.path(), &text).output().expect("it runs");
        assert!(!output.status.success(), "{to}");
        assert!(stderr(&output).contains(said), "{to}: {}", stderr(&output));
    }
}
