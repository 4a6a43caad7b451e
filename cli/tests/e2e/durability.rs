//! What an acknowledgement promises.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::common::Broker;

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
