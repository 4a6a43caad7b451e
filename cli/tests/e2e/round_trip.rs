//! What goes in through `kera produce` comes out of `kera consume`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::{Broker, PATIENCE};

/// Records as `kera consume --format jsonl` writes them, by streamlet, lane and ordinal.
fn consumed(broker: &Broker, stream: &str) -> Vec<Value> {
    let text = broker.run(&["consume", stream, "--format", "jsonl"]);
    let mut records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect();
    let number = |record: &Value, name: &str| record[name].as_u64().expect("a number");
    records.sort_by_key(|r| {
        (
            number(r, "streamlet"),
            number(r, "lane"),
            number(r, "ordinal"),
        )
    });
    records
}

fn pairs(records: &[Value]) -> Vec<(Value, Value)> {
    let pair = |record: &Value| (record["key"].clone(), record["value"].clone());
    records.iter().map(pair).collect()
}

#[test]
fn lines() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(
        &["produce", "s", "--quiet"],
        b"one\n\nthree \xc3\xa4\r\nlast",
    );
    let text = broker.run(&["consume", "s"]);
    assert_eq!(text, "one\n\nthree \u{e4}\nlast\n");
    let records = consumed(&broker, "s");
    for (ordinal, record) in records.iter().enumerate() {
        assert_eq!(record["ordinal"], ordinal);
        assert_eq!(record["key"], Value::Null);
        let time = record["timestamp"].as_str().expect("a time");
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
    assert_eq!(records.len(), 4);
    let with_place = broker.run(&["consume", "s", "--metadata", "--max", "1"]);
    assert!(with_place.starts_with("0/0/0\t20"), "{with_place}");
    assert!(with_place.ends_with("\t\tone\n"), "{with_place}");
}

#[test]
fn keys_headers_and_null_values() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "2", "--lanes", "2"]);
    let produce = [
        "produce",
        "s",
        "--quiet",
        "--key-separator",
        ":",
        "--null-marker",
        "NULL",
        "--header",
        "source=test",
        "-H",
        "empty=",
    ];
    broker.feed(&produce, b"a:1\nb:2\na:NULL\n:4\na:5\n");
    let records = consumed(&broker, "s");
    assert_eq!(records.len(), 5);
    let of_a: Vec<&Value> = records.iter().filter(|r| r["key"] == "a").collect();
    let values: Vec<&Value> = of_a.iter().map(|r| &r["value"]).collect();
    assert_eq!(
        values,
        [&json!("1"), &Value::Null, &json!("5")],
        "the order of a key is kept"
    );
    let lanes: BTreeSet<_> = of_a
        .iter()
        .map(|r| (r["streamlet"].as_u64(), r["lane"].as_u64()))
        .collect();
    assert_eq!(lanes.len(), 1, "a key has one lane");
    assert!(
        pairs(&records).contains(&(json!(""), json!("4"))),
        "an empty key is a key"
    );
    for record in &records {
        assert_eq!(
            record["headers"],
            json!([["source", "test"], ["empty", ""]])
        );
    }
    let lines = broker.run(&["consume", "s", "--null-marker", "(none)"]);
    let lines: BTreeSet<&str> = lines.lines().collect();
    assert_eq!(lines, BTreeSet::from(["1", "2", "(none)", "4", "5"]));
}

#[test]
fn csv() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    let input = "name,id\n\"Doe, Jane\",7\nRoe,8\n";
    broker.feed(
        &["produce", "s", "--quiet", "--format", "csv", "--key", "id"],
        input.as_bytes(),
    );
    let records = consumed(&broker, "s");
    assert_eq!(
        pairs(&records),
        [
            (json!("7"), json!("\"Doe, Jane\",7")),
            (json!("8"), json!("Roe,8"))
        ]
    );
    let text = broker.run(&["consume", "s", "--format", "csv"]);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headings = reader.headers().expect("there is a heading").clone();
    assert_eq!(&headings[5], "value");
    let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.expect("a row")).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0][4], &rows[0][5]), ("7", "\"Doe, Jane\",7"));
}

#[test]
fn json_lines() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    let input = "{\"id\": \"x\", \"n\": 1}\n{\"id\": 5}\n";
    broker.feed(
        &["produce", "s", "-q", "-f", "jsonl", "-k", "id"],
        input.as_bytes(),
    );
    assert_eq!(
        pairs(&consumed(&broker, "s")),
        [
            (json!("x"), json!("{\"id\": \"x\", \"n\": 1}")),
            (json!("5"), json!("{\"id\": 5}"))
        ]
    );
    // What was read before the bad line is stored all the same.
    let finished = broker.attempt(
        &["produce", "s", "-q", "-f", "jsonl"],
        b"{\"good\": 1}\n{bad\n",
    );
    assert_eq!(finished.status.code(), Some(1));
    assert!(
        finished.stderr.contains("line 2 is not JSON"),
        "{}",
        finished.stderr
    );
    assert_eq!(consumed(&broker, "s").len(), 3);
}

#[test]
fn raw_bytes() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    let input: Vec<u8> = (0..3_000_u32)
        .flat_map(|n| [n as u8, b'\n', 0, 0xff])
        .collect();
    broker.feed(&["produce", "s", "-q", "-f", "raw"], &input);
    let finished = broker.attempt(&["consume", "s", "-f", "raw"], b"");
    assert!(finished.status.success());
    assert!(finished.stdout == input, "the bytes came back changed");
    let records = consumed(&broker, "s");
    assert!(
        records[0]["value"]["base64"].is_string(),
        "bytes that are no text are marked as such"
    );
}

#[test]
fn every_compression() {
    let broker = Broker::start();
    let input: String = (0..5_000)
        .map(|n| format!("reading {n} of a sensor that repeats itself\n"))
        .collect();
    let mut sizes = Vec::new();
    for codec in ["none", "lz4", "zstd", "snappy", "gzip"] {
        broker.run(&["stream", "create", codec]);
        broker.feed(
            &["produce", codec, "-q", "--compression", codec],
            input.as_bytes(),
        );
        assert!(
            broker.run(&["consume", codec]) == input,
            "{codec} came back changed"
        );
        let described = broker.json(&["stream", "describe", codec]);
        let bytes = described["lane_descriptions"][0]["bytes"]
            .as_u64()
            .expect("a size");
        sizes.push(bytes);
    }
    // The broker stores what it got.
    assert!(
        sizes[1..].iter().all(|bytes| *bytes * 2 < sizes[0]),
        "{sizes:?}"
    );
}

#[test]
fn from_a_place_and_up_to_a_number() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    let input: String = (0..100).map(|n| format!("{n}\n")).collect();
    broker.feed(
        &["produce", "s", "-q", "--batch-size", "1KiB"],
        input.as_bytes(),
    );
    let lines = |words: &[&str]| -> Vec<u64> {
        let text = broker.run(words);
        text.lines()
            .map(|line| line.parse().expect("a number"))
            .collect()
    };
    let from = |place: &str| lines(&["consume", "s", "--from", place]);
    assert_eq!(from("earliest"), (0..100).collect::<Vec<_>>());
    assert_eq!(from("ordinal:42"), (42..100).collect::<Vec<_>>());
    assert_eq!(from("latest"), [0; 0]);
    assert_eq!(from("1h"), (0..100).collect::<Vec<_>>());
    assert_eq!(from("2100-01-01T00:00:00Z"), [0; 0]);
    assert_eq!(
        lines(&["consume", "s", "--from", "ordinal:7", "--max", "3"]),
        [7, 8, 9]
    );
    assert_eq!(lines(&["consume", "s", "--max", "0"]), [0; 0]);
}

#[test]
fn larger_than_a_batch() {
    let broker = Broker::start();
    broker.run(&[
        "stream",
        "create",
        "s",
        "--segment-size",
        "64KiB",
        "--segments-per-group",
        "2",
    ]);
    // Many batches, many segments, several groups.
    let input: String = (0..20_000)
        .map(|n| format!("record number {n}\n"))
        .collect();
    broker.feed(
        &["produce", "s", "-q", "--batch-size", "4KiB"],
        input.as_bytes(),
    );
    assert!(
        broker.run(&["consume", "s"]) == input,
        "records came back changed"
    );
    let described = broker.json(&["stream", "describe", "s"]);
    let groups = described["lane_descriptions"][0]["groups"]
        .as_array()
        .expect("groups");
    assert!(groups.len() > 2, "{} groups", groups.len());
}

#[test]
fn files_made_ahead_of_their_use_are_sound() {
    let broker = Broker::start();
    let sizes = ["--segment-size", "64KiB", "--segments-per-group", "2"];
    broker.run(&[&["stream", "create", "s"][..], &sizes].concat());
    let produce = |count: usize| {
        let input: String = (0..count).map(|n| format!("record {n}\n")).collect();
        broker.feed(&["produce", "s", "-q"], input.as_bytes());
    };
    produce(20_000);
    // The file of the next group is made in the background once a group is full enough, which depends on how records come
    // together in batches. One that is being made has nothing in it, and is not sound.
    let begin = std::time::Instant::now();
    loop {
        produce(500);
        let mut files = Vec::new();
        logs_below(&broker.data_dir().join("streams"), &mut files);
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let verified = broker.attempt(&[&["segment", "verify"][..], &files].concat(), b"");
        let text = verified.text();
        if verified.status.success() && text.contains(": ahead, ") {
            assert!(text.contains(": sound, "), "{text}");
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{text}{}", verified.stderr);
    }
}

/// The groups' files below a directory.
fn logs_below(directory: &std::path::Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the broker") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            logs_below(&path, found);
        } else if path.extension().is_some_and(|end| end == "log") {
            found.push(path.display().to_string());
        }
    }
}
