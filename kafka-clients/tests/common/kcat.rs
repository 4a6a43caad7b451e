//! kcat, the command line of librdkafka.

use std::process::Command;

use serde_json::Value;

use super::records::{Read, hex};
use super::{Broker, PATIENCE, command, machine, tools};

/// Whether the machine has it; if not, says that `test` did not run.
pub fn is_here(test: &str) -> bool {
    match tools::missing(&["kcat"]) {
        None => true,
        Some(reason) => {
            machine::skip(&format!("{test}, kcat"), &reason);
            false
        }
    }
}

/// Runs it; it must succeed. What it wrote.
pub fn kcat(broker: &Broker, words: &[&str], input: &[u8]) -> String {
    let mut command = Command::new("kcat");
    // By itself it gives a broker up that it has heard nothing of in 5 seconds.
    let patience = PATIENCE.as_secs().to_string();
    command
        .args(["-b", broker.bootstrap(), "-m", &patience])
        .args(words);
    command::run(command, input, PATIENCE)
}

/// Reads a topic from its beginning to its end.
pub fn read_all(broker: &Broker, topic: &str, more: &[&str]) -> Vec<Read> {
    let mut words = vec!["-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J"];
    words.extend(more);
    kcat(broker, &words, b"")
        .lines()
        .map(|line| decode(&serde_json::from_str(line).expect("kcat writes JSON")))
        .collect()
}

fn decode(message: &Value) -> Read {
    let bytes = |value: &Value| value.as_str().map(hex);
    // A list of names and values in turn.
    let headers = message["headers"].as_array().cloned().unwrap_or_default();
    Read {
        topic: message["topic"].as_str().expect("a topic").to_owned(),
        partition: message["partition"].as_i64().expect("a partition") as i32,
        offset: message["offset"].as_i64().expect("an offset"),
        timestamp: message["ts"].as_i64().expect("a timestamp"),
        append_time: Some(message["tstype"] == "logappend"),
        key: bytes(&message["key"]),
        value: bytes(&message["payload"]),
        headers: headers
            .chunks(2)
            .map(|pair| {
                (
                    pair[0].as_str().expect("a name").to_owned(),
                    bytes(&pair[1]),
                )
            })
            .collect(),
    }
}
