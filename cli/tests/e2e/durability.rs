//! What an acknowledgement promises.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::{Broker, finish};

fn records(broker: &Broker, stream: &str) -> Vec<Value> {
    let text = broker.run(&["consume", stream, "--format", "jsonl"]);
    text.lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect()
}

/// Values by key, in the order of their lane.
fn by_key(records: &[Value]) -> BTreeMap<String, Vec<u64>> {
    let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in records {
        let key = record["key"].as_str().expect("a key").to_owned();
        let value = record["value"].as_str().expect("a value");
        keys.entry(key)
            .or_default()
            .push(value.parse().expect("a number"));
    }
    keys
}

fn survives_sigkill(ack: &str) {
    let mut broker = Broker::start();
    broker.run(&[
        "stream",
        "create",
        "s",
        "--streamlets",
        "2",
        "--lanes",
        "2",
        "--ack",
        ack,
        "--segment-size",
        "64KiB",
        "--segments-per-group",
        "2",
    ]);
    let produce = [
        "produce",
        "s",
        "-q",
        "--key-separator",
        ",",
        "--batch-size",
        "2KiB",
    ];
    for round in 0..4_u64 {
        let input: String = (round * 3_000..(round + 1) * 3_000)
            .map(|n| format!("key{},{n}\n", n % 7))
            .collect();
        // The command ends when every record is acknowledged; the very next thing is the end.
        broker.feed(&produce, input.as_bytes());
        broker.kill();
        broker.restart();
        let keys = by_key(&records(&broker, "s"));
        for (key, values) in &keys {
            let first: u64 = key[3..].parse().expect("a number");
            let all = (0..(round + 1) * 3_000).filter(|n| n % 7 == first);
            assert!(
                values.iter().copied().eq(all),
                "{key} after round {round}: {} values",
                values.len()
            );
        }
        assert_eq!(keys.len(), 7);
    }
}

#[test]
fn written_survives_sigkill() {
    survives_sigkill("written");
}

#[test]
fn synced_survives_sigkill() {
    survives_sigkill("synced");
}

#[test]
fn memory_loses_but_never_reuses_an_ordinal() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s", "--ack", "memory"]);
    let mut shown: BTreeMap<u64, String> = BTreeMap::new();
    for round in 0..4 {
        let input: String = (0..500).map(|n| format!("{round}-{n}\n")).collect();
        broker.feed(
            &["produce", "s", "-q", "--batch-size", "1KiB"],
            input.as_bytes(),
        );
        let read = records(&broker, "s");
        assert!(
            read.len() >= 500,
            "what was acknowledged can be read: {}",
            read.len()
        );
        for record in read {
            let ordinal = record["ordinal"].as_u64().expect("an ordinal");
            let value = record["value"].as_str().expect("a value").to_owned();
            let before = shown.insert(ordinal, value.clone());
            assert!(
                before.is_none() || before.as_ref() == Some(&value),
                "ordinal {ordinal} held {before:?} and holds {value}"
            );
        }
        broker.kill();
        broker.restart();
    }
    assert!(
        shown.len() >= 2_000,
        "each round's records were shown once: {}",
        shown.len()
    );
}

/// The largest group file of the only stream a test has made.
fn largest_file(broker: &Broker) -> PathBuf {
    let mut files = Vec::new();
    let id = broker.json(&["stream", "describe", "s"])["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let dir = broker.data_dir().join("streams").join(id).join("0");
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let bytes = fs::metadata(&path).expect("a file").blocks();
        files.push((bytes, path));
    }
    files.into_iter().max().expect("a file").1
}

#[test]
fn an_open_file_lost_while_the_broker_was_away_is_told_and_no_ordinal_serves_twice() {
    for ack in ["written", "synced"] {
        for truncated in [false, true] {
            let mut broker = Broker::start();
            broker.run(&["stream", "create", "s", "--ack", ack]);
            let input: String = (0..1000).map(|n| format!("{n}\n")).collect();
            broker.feed(&["produce", "s", "-q"], input.as_bytes());
            assert_eq!(records(&broker, "s").len(), 1000);
            let file = largest_file(&broker);
            broker.kill();
            if truncated {
                let file = File::options().write(true).open(&file).expect("a file");
                file.set_len(900).expect("it is cut");
            } else {
                fs::remove_file(&file).expect("it is removed");
            }
            broker.restart();
            let log = broker.log();
            let name = file.file_name().expect("a name").to_string_lossy();
            let told = |line: &str| line.contains("damaged:") && line.contains(&*name);
            assert!(log.lines().any(told), "{log}");
            let left = records(&broker, "s").len() as u64;
            assert!(left < 1000, "{left} of 1000 are left");
            broker.feed(&["produce", "s", "-q"], b"new\n");
            let found = records(&broker, "s");
            assert_eq!(found.len() as u64, left + 1);
            let last = found.last().expect("a record");
            assert_eq!(last["value"], "new");
            let ordinal = last["ordinal"].as_u64().expect("an ordinal");
            assert!(ordinal >= 1 << 32, "{ordinal} may have served before");
        }
    }
}

#[test]
fn a_broker_without_its_metadata_does_not_start_and_removes_nothing() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"one\ntwo\n");
    broker.kill();
    let metadata = broker.data_dir().join("metadata.redb");
    let kept = broker.data_dir().join("kept");
    fs::rename(&metadata, &kept).expect("it is moved");
    for _ in 0..2 {
        let refused = finish(broker.command(), b"");
        assert!(!refused.status.success());
        let text = refused.stderr;
        for part in ["metadata.redb is gone", "Restore", "nothing was changed"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!metadata.exists());
    }
    fs::rename(&kept, &metadata).expect("it is moved");
    broker.restart();
    assert_eq!(records(&broker, "s").len(), 2);
}

#[test]
fn streams_that_an_older_metadata_store_does_not_know_are_set_aside() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "old"]);
    assert!(broker.stop().success());
    let metadata = broker.data_dir().join("metadata.redb");
    let backup = fs::read(&metadata).expect("a file");
    broker.restart();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"one\n");
    broker.run(&["stream", "create", "gone"]);
    broker.run(&["stream", "delete", "gone", "--yes"]);
    let file = largest_file(&broker);
    assert!(broker.stop().success());
    fs::write(&metadata, backup).expect("it is written");
    broker.restart();
    let streams = broker.data_dir().join("streams");
    let place = file.strip_prefix(&streams).expect("a stream's file");
    assert!(broker.data_dir().join("unknown").join(place).exists());
    assert!(broker.log().contains("set aside"), "{}", broker.log());
    let unknown = fs::read_dir(broker.data_dir().join("unknown")).expect("a directory");
    assert_eq!(unknown.count(), 1, "what was deleted is gone");
}
