//! Streams that are compacted, from the command line, and through kills of the broker.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Broker, PATIENCE, command, kera};

const KEYS: u64 = 200;
/// Records of a round.
const ROUND: u64 = 10_000;

fn records(broker: &Broker, stream: &str) -> Vec<Value> {
    let text = broker.run(&["consume", stream, "--format", "jsonl"]);
    text.lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect()
}

/// The last value of each key, and how many records there are.
fn last_values(records: &[Value]) -> BTreeMap<String, String> {
    let text = |record: &Value, field: &str| record[field].as_str().expect("text").to_owned();
    let pairs = records
        .iter()
        .map(|record| (text(record, "key"), text(record, "value")));
    pairs.collect()
}

/// Lines of keys and values, some keys more often than others.
fn lines(from: u64, to: u64) -> (String, BTreeMap<String, String>) {
    let mut last = BTreeMap::new();
    let mut input = String::new();
    for n in from..to {
        let key = format!("key{}", (n * n + n / 3) % KEYS);
        let value = format!("{n:08}-{}", "v".repeat((n % 90) as usize));
        input += &format!("{key},{value}\n");
        last.insert(key, value);
    }
    (input, last)
}

/// How many records were ever acknowledged.
fn heads(broker: &Broker) -> u64 {
    heads_of(&broker.json(&["stream", "describe", "s"]))
}

fn heads_of(described: &Value) -> u64 {
    let lanes = described["lane_descriptions"].as_array();
    let heads = lanes
        .expect("lanes")
        .iter()
        .map(|lane| lane["head_ordinal"].as_u64());
    heads.map(|head| head.expect("a number")).sum()
}

fn group_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => group_files(&path, found),
            false => found.extend(
                path.extension()
                    .is_some_and(|end| end == "log")
                    .then_some(path),
            ),
        }
    }
}

#[test]
fn of_each_key_the_last_value_stays_and_kills_lose_nothing() {
    let mut broker = Broker::with(&["--compaction-check-interval", "100ms"]);
    let created = broker.json(&[
        "stream",
        "create",
        "s",
        "--streamlets",
        "2",
        "--cleanup",
        "compact",
        "--min-dirty-ratio",
        "0.01",
        "--segment-size",
        "64KiB",
        "--segments-per-group",
        "2",
        "--max-batch-bytes",
        "16KiB",
    ]);
    assert_eq!(created["cleanup"], "compact");
    assert_eq!(created["min_dirty_ratio"], 0.01);
    let mut expected = BTreeMap::new();
    for round in 0..4_u64 {
        let (input, last) = lines(round * ROUND, (round + 1) * ROUND);
        let before = heads(&broker);
        expected.extend(last);
        let mut produce = kera();
        produce.args(["produce", "s", "-q", "--key-separator", ","]);
        produce
            .args(["--batch-size", "4KiB"])
            .env("KERA_BOOTSTRAP", broker.address());
        let producing = std::thread::spawn(move || {
            command::run(produce, input.as_bytes(), PATIENCE);
        });
        broker.until(&["stream", "describe", "s"], |told| heads_of(told) > before);
        // In the middle of whatever it does; the producer sends again what was not acknowledged.
        for delay in [40, 90, 10 + 30 * round] {
            broker.kill();
            broker.restart_in_vain(Duration::from_millis(delay));
            broker.restart();
        }
        producing.join().expect("all was acknowledged");
        assert_eq!(
            last_values(&records(&broker, "s")),
            expected,
            "round {round}"
        );
    }
    let done = broker.json(&["stream", "compact", "s"]);
    assert_eq!(done["unreadable_batches"], 0);
    let left = records(&broker, "s");
    assert_eq!(left.len(), expected.len(), "one record of each key");
    assert_eq!(last_values(&left), expected);
    assert_eq!(
        broker.run(&["stream", "compact", "s"]),
        "nothing new to compact\n"
    );

    // After one more start there are the files of the recorded groups and nothing else.
    broker.kill();
    broker.restart();
    let described = broker.json(&["stream", "describe", "s", "--groups"]);
    let lanes = described["lane_descriptions"].as_array().expect("lanes");
    let groups: usize = lanes
        .iter()
        .map(|lane| lane["groups"].as_array().expect("groups").len())
        .sum();
    let id = described["id"].as_str().expect("an id").to_owned();
    let mut files = Vec::new();
    group_files(broker.data_dir(), &mut files);
    files.retain(|file| file.to_string_lossy().contains(&id));
    assert_eq!(files.len(), groups, "{files:?}\n{}", broker.log());
    assert_eq!(last_values(&records(&broker, "s")), expected);
    let log = broker.log();
    assert!(log.contains("a lane was compacted"), "{log}");
    assert!(!log.contains("damaged"), "{log}");
}

#[test]
fn what_a_compacted_stream_cannot_be_is_said() {
    let broker = Broker::start();
    let create = ["stream", "create", "s", "--cleanup", "compact"];
    let said = broker.refused(&[&create[..], &["--lane-by", "producer"]].concat());
    assert!(said.contains("lane_by"), "{said}");
    broker.run(&create);
    let said = broker.refused(&["stream", "alter", "s", "--lanes", "2"]);
    assert!(said.contains("keys would move to other lanes"), "{said}");
    let said = broker.run(&["stream", "describe", "s"]);
    assert!(said.contains("the newest of each key"), "{said}");
    assert!(said.contains("once 50 % of a lane is new"), "{said}");

    // A stream whose lanes have grown cannot become one; nor is one compacted that is none.
    broker.run(&["stream", "create", "grown"]);
    broker.run(&["stream", "alter", "grown", "--lanes", "2"]);
    let said = broker.refused(&["stream", "alter", "grown", "--cleanup", "compact,delete"]);
    assert!(said.contains("have grown"), "{said}");
    let said = broker.refused(&["stream", "compact", "grown"]);
    assert!(said.contains("--cleanup compact"), "{said}");
}
