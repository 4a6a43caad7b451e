//! kcat: what people type into a shell.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::broker::unique;
use crate::common::kcat::{is_here, kcat, read_all};
use crate::common::records::hex;
use crate::common::{Broker, Kind, NewRecord, Session, Setup, murmur2_partition, until};

/// A broker, and a client to create topics with.
fn start(name: &str) -> Option<(Broker, Session, String)> {
    if !is_here(name) {
        return None;
    }
    let broker = Broker::start(&format!("{name}, kcat"), Setup::PLAIN)?;
    let session = Session::open(Kind::Librdkafka, &broker);
    Some((broker, session, unique(&format!("kcat-{name}"))))
}

#[test]
fn every_codec_comes_back() {
    let Some((broker, mut session, topic)) = start("every_codec_comes_back") else {
        return;
    };
    session.create_topic(&topic, 3, &[]);
    let mut expected = Vec::new();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let lines: Vec<String> = (0..50)
            .map(|n| format!("{codec}-{n}={codec} {n} {n}"))
            .collect();
        let words = [
            "-P",
            "-t",
            &topic,
            "-K",
            "=",
            "-z",
            codec,
            "-H",
            "from=kcat",
            "-H",
            "empty=",
            "-X",
            "partitioner=murmur2_random",
            "-X",
            "acks=all",
            "-X",
            "enable.idempotence=true",
            "-X",
            "linger.ms=200",
        ];
        kcat(&broker, &words, (lines.join("\n") + "\n").as_bytes());
        expected.extend(lines);
    }
    let read = read_all(&broker, &topic, &[]);
    assert_eq!(read.len(), expected.len());
    let found: BTreeSet<(i32, String, String)> = read
        .iter()
        .map(|each| {
            let headers = vec![
                ("from".to_owned(), Some(hex("kcat"))),
                ("empty".to_owned(), Some(String::new())),
            ];
            assert_eq!(each.headers, headers);
            (
                each.partition,
                each.key.clone().expect("a key"),
                each.text(),
            )
        })
        .collect();
    let expected: BTreeSet<(i32, String, String)> = expected
        .iter()
        .map(|line| {
            let (key, value) = line.split_once('=').expect("a key and a value");
            (
                murmur2_partition(key.as_bytes(), 3),
                hex(key),
                value.to_owned(),
            )
        })
        .collect();
    assert_eq!(found, expected);
    // In each partition the records are in the order of the offsets, which start at 0.
    for partition in 0..3 {
        let offsets: Vec<i64> = read
            .iter()
            .filter(|each| each.partition == partition)
            .map(|each| each.offset)
            .collect();
        assert_eq!(offsets, (0..offsets.len() as i64).collect::<Vec<i64>>());
    }
}

#[test]
fn tombstones_and_missing_keys() {
    let Some((broker, mut session, topic)) = start("tombstones_and_missing_keys") else {
        return;
    };
    session.create_topic(&topic, 1, &[]);
    kcat(
        &broker,
        &["-P", "-t", &topic, "-K", "=", "-Z"],
        b"gone=\nkept=value\n",
    );
    kcat(&broker, &["-P", "-t", &topic, "-p", "0"], b"no key\n");
    let read = read_all(&broker, &topic, &[]);
    let found: Vec<_> = read
        .iter()
        .map(|each| (each.key.clone(), each.value.clone()))
        .collect();
    let expected = [
        (Some(hex("gone")), None),
        (Some(hex("kept")), Some(hex("value"))),
        (None, Some(hex("no key"))),
    ];
    assert_eq!(found, expected);
}

#[test]
fn metadata_and_offsets() {
    let Some((broker, mut session, topic)) = start("metadata_and_offsets") else {
        return;
    };
    session.create_topic(&topic, 2, &[]);
    let metadata: Value = serde_json::from_str(&kcat(&broker, &["-L", "-J", "-t", &topic], b""))
        .expect("kcat writes JSON");
    assert_eq!(metadata["brokers"][0]["name"], broker.bootstrap());
    assert_eq!(metadata["topics"][0]["topic"], topic.as_str());
    let partitions = metadata["topics"][0]["partitions"].as_array();
    assert_eq!(partitions.map(Vec::len), Some(2));

    session.producer("p", json!({}));
    let records: Vec<NewRecord> = (0..20)
        .map(|n| {
            NewRecord::new("key", &n.to_string())
                .at(1_700_000_000_000 + n * 10)
                .to(1)
        })
        .collect();
    session.send("p", &topic, &records);
    // -1 is the end, -2 the beginning, anything else a time.
    for (time, offset) in [
        ("-1", 20),
        ("-2", 0),
        ("1700000000055", 6),
        ("1700000000190", 19),
    ] {
        let asked = format!("{topic}:1:{time}");
        let answer = kcat(&broker, &["-Q", "-t", &asked], b"");
        assert_eq!(answer.trim(), format!("{topic} [1] offset {offset}"));
    }
    for (start, count) in [("5", 15), ("-3", 3), ("s@1700000000100", 10), ("end", 0)] {
        let words = ["-p", "1", "-o", start];
        let read = read_all(&broker, &topic, &words);
        assert_eq!(read.len(), count, "from {start}");
    }
}

#[test]
fn a_group_of_two() {
    let Some((broker, mut session, topic)) = start("a_group_of_two") else {
        return;
    };
    session.create_topic(&topic, 4, &[]);
    session.producer("p", json!({}));
    let group = format!("{topic}-group");
    let mut read = BTreeSet::new();
    // One after the other, each goes on where the last one committed.
    for round in 0..2 {
        let records: Vec<NewRecord> = (round * 40..round * 40 + 40)
            .map(|n: i32| NewRecord::new(&n.to_string(), &n.to_string()))
            .collect();
        session.send("p", &topic, &records);
        let words = [
            "-G",
            &group,
            "-c",
            "40",
            "-q",
            "-X",
            "auto.offset.reset=earliest",
            "-X",
            "session.timeout.ms=6000",
            "-f",
            "%p %o %s\n",
            &topic,
        ];
        let lines = kcat(&broker, &words, b"");
        assert_eq!(lines.lines().count(), 40);
        read.extend(lines.lines().map(str::to_owned));
    }
    assert_eq!(read.len(), 80, "nothing was read twice: {read:?}");
    until("the group has no member left", || {
        (session.describe_group(&group).ok()?.state == "Empty").then_some(())
    });
}
