//! Programs of two neighbouring versions: the new one reads what the earlier one stored, both work in one cluster, and
//! there is a way back until the cluster version is finalized.

#[path = "../common/mod.rs"]
mod common;

mod alone;
mod rolling;
mod stored;

use common::{Broker, kera};

/// Lines that say which they are.
fn lines(range: std::ops::Range<usize>) -> Vec<String> {
    range
        .map(|n| format!("key{},{n:08} {}", n % 7, "x".repeat(60)))
        .collect()
}

fn text(lines: &[String]) -> Vec<u8> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    text.into_bytes()
}

/// What a stream holds, and that each key is in the order in which it was sent.
fn read(broker: &Broker, stream: &str) -> Vec<String> {
    let text = broker.run(&["consume", stream, "--format", "jsonl"]);
    let mut last = std::collections::BTreeMap::new();
    let mut read = Vec::new();
    for line in text.lines() {
        let record: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        let field = |name: &str| record[name].as_str().expect("text").to_owned();
        let (key, value) = (field("key"), field("value"));
        let before = last.insert(key.clone(), value.clone());
        assert!(before.is_none_or(|before| before < value), "{key}: {value}");
        read.push(format!("{key},{value}"));
    }
    read.sort_by(|a, b| {
        a.split_once(',')
            .map(|x| x.1)
            .cmp(&b.split_once(',').map(|x| x.1))
    });
    read
}
