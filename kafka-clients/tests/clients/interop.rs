//! Everybody writes to one topic, everybody reads all of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::common::broker::unique;
use crate::common::kcat::{self, kcat};
use crate::common::records::{hex, unhex};
use crate::common::{Broker, Kind, NewRecord, Read, Session, Setup, murmur2_partition};

const KINDS: [Kind; 4] = [
    Kind::Java,
    Kind::Librdkafka,
    Kind::FranzGo,
    Kind::KafkaPython,
];
const PARTITIONS: i32 = 5;
/// Records of each writer.
const RECORDS: usize = 100;

fn key(n: usize) -> String {
    format!("key-{}", n % 30)
}

/// What a reader found: by writer, the values; and by key, the partitions.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    values: BTreeSet<String>,
    /// Of all values.
    sum: usize,
    partitions: BTreeMap<String, BTreeSet<i32>>,
}

impl Tally {
    fn add(&mut self, partition: i32, key: &str, value: &str) {
        assert!(self.values.insert(value.to_owned()), "{value} comes once");
        let number = value.rsplit(' ').next().expect("a number");
        self.sum += number.parse::<usize>().expect("a number");
        let partitions = self.partitions.entry(key.to_owned()).or_default();
        partitions.insert(partition);
    }

    fn of(records: &[Read]) -> Self {
        let mut tally = Self::default();
        for record in records {
            let key = record.key.as_deref().expect("a key");
            let key = String::from_utf8(unhex(key)).expect("a key is text");
            tally.add(record.partition, &key, &record.text());
        }
        tally
    }
}

/// As the native client writes it: text as such, bytes as `{"base64": ...}`.
fn native_records(broker: &Broker, topic: &str) -> Tally {
    let mut tally = Tally::default();
    let words = ["consume", topic, "--from", "earliest", "--format", "jsonl"];
    for line in broker.kera(&words, b"").lines() {
        let record: serde_json::Value = serde_json::from_str(line).expect("JSON");
        // Partition p is lane p / M of streamlet p % M, and the topic has one lane.
        let partition = record["streamlet"].as_i64().expect("a streamlet") as i32;
        assert_eq!(record["lane"], 0);
        let key = record["key"].as_str().expect("a key");
        tally.add(partition, key, record["value"].as_str().expect("a value"));
    }
    tally
}

#[test]
fn everybody_reads_everybody() {
    let Some(broker) = Broker::start("everybody_reads_everybody", Setup::PLAIN) else {
        return;
    };
    let topic = unique("everybody");
    let mut sessions: Vec<Session> = KINDS
        .into_iter()
        .filter(|kind| kind.is_here("everybody_reads_everybody"))
        .map(|kind| Session::open(kind, &broker))
        .collect();
    let with_kcat = kcat::is_here("everybody_reads_everybody");
    sessions[0].create_topic(&topic, PARTITIONS, &[]);

    let mut expected = Tally::default();
    let mut expect = |writer: &str| {
        for n in 0..RECORDS {
            let partition = murmur2_partition(key(n).as_bytes(), PARTITIONS);
            expected.add(partition, &key(n), &format!("{writer} {n}"));
        }
    };
    for (at, session) in sessions.iter_mut().enumerate() {
        // Each with a codec of its own.
        let codec = ["zstd", "lz4", "snappy", "gzip"][at % 4];
        session.producer("p", json!({"compression": codec}));
        let name = session.kind.name();
        let records: Vec<NewRecord> = (0..RECORDS)
            .map(|n| NewRecord::new(&key(n), &format!("{name} {n}")).header("by", Some(b"x")))
            .collect();
        session.send("p", &topic, &records);
        expect(name);
    }
    let lines = |writer: &str, separator: char| -> String {
        let line = |n| format!("{}{separator}{writer} {n}\n", key(n));
        (0..RECORDS).map(line).collect()
    };
    if with_kcat {
        let words = [
            "-P",
            "-t",
            &topic,
            "-K",
            "=",
            "-X",
            "partitioner=murmur2_random",
        ];
        kcat(&broker, &words, lines("kcat", '=').as_bytes());
        expect("kcat");
    }
    if broker.is_kera() {
        let words = ["produce", &topic, "--key-separator", "="];
        broker.kera(&words, lines("native", '=').as_bytes());
        expect("native");
    }

    for session in &mut sessions {
        session.consumer("c", json!({}));
        let partitions: Vec<i32> = (0..PARTITIONS).collect();
        session.assign("c", &topic, &partitions, json!("beginning"));
        let read = session.read("c", expected.values.len());
        assert_eq!(Tally::of(&read), expected, "{}", session.kind.name());
        let header = vec![("by".to_owned(), Some(hex("x")))];
        for record in &read {
            let has = KINDS
                .iter()
                .any(|kind| record.text().starts_with(&format!("{} ", kind.name())));
            assert_eq!(record.headers == header, has, "{record:?}");
        }
    }
    if with_kcat {
        let read = kcat::read_all(&broker, &topic, &[]);
        assert_eq!(Tally::of(&read), expected, "kcat");
    }
    if broker.is_kera() {
        assert_eq!(native_records(&broker, &topic), expected, "native");
    }
    for partitions in expected.partitions.values() {
        assert_eq!(
            partitions.len(),
            1,
            "a key has one partition whoever writes it"
        );
    }
}
