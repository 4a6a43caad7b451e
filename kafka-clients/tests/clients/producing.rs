//! What producers send, and what comes back.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::common::{Can, Kind, NewRecord, Place, Read, murmur2_partition};
use crate::stage::{Stage, anyone, scenario};

/// Some time in 2023.
pub const THEN: i64 = 1_700_000_000_000;

/// The codecs that a client has.
pub fn codecs(kind: Kind) -> Vec<&'static str> {
    let mut codecs = vec!["none", "gzip"];
    for (codec, can) in [
        ("snappy", Can::Snappy),
        ("lz4", Can::Lz4),
        ("zstd", Can::Zstd),
    ] {
        if kind.can(can) {
            codecs.push(codec);
        }
    }
    codecs
}

/// Records of all shapes: keyed and not, with headers and without, tombstones, empty and large.
fn all_shapes(kind: Kind, codec: &str) -> Vec<NewRecord> {
    let mut records = Vec::new();
    for n in 0..40 {
        let time = THEN + n;
        let key = format!("key-{}", n % 7);
        let value = format!("{codec} {n} {}", "compressible ".repeat(n as usize * 5));
        let record = NewRecord::new(&key, &value).at(time);
        records.push(match n % 8 {
            1 => record
                .header("name", Some(b"value"))
                .header("name", Some(b"again")),
            2 => record.tombstone(),
            3 => record.without_key().to((n % 3) as i32),
            4 => {
                let record = record.header("bytes", Some(&[0, 255, 128]));
                if kind.can(Can::NullHeaders) {
                    record.header("null", None)
                } else {
                    record
                }
            }
            5 if kind.can(Can::EmptyBytes) => {
                let mut record = record.to(2);
                (record.key, record.value) = (Some(String::new()), Some(String::new()));
                record
            }
            6 if kind.can(Can::NoBytes) => record.without_key().tombstone().to(1),
            _ => record,
        });
    }
    records
}

/// Reads partitions 0 to 2 from their beginning to what was sent.
pub fn read_back(stage: &mut Stage, topic: &str, partitions: &[i32], count: usize) -> Vec<Read> {
    let consumer = format!("reader-of-{topic}");
    stage
        .client
        .consumer(&consumer, json!({"group": format!("{topic}-readers")}));
    stage
        .client
        .assign(&consumer, topic, partitions, json!("beginning"));
    let records = stage.client.read(&consumer, count);
    stage.client.close_consumer(&consumer);
    records
}

/// Records as they were read are those that were sent, each at its place, in the order of offsets.
pub fn assert_same(sent: &[(Place, NewRecord)], read: &[Read]) {
    assert_eq!(sent.len(), read.len());
    let mut next: BTreeMap<i32, i64> = BTreeMap::new();
    for each in read {
        let next = next.entry(each.partition).or_insert(each.offset);
        assert_eq!(
            each.offset, *next,
            "offsets of a partition are in order and dense"
        );
        *next += 1;
    }
    let read: BTreeMap<Place, &Read> = read.iter().map(|each| (each.place(), each)).collect();
    assert_eq!(read.len(), sent.len(), "no place holds two records");
    for (place, record) in sent {
        let found = read[place];
        assert_eq!(found.key, record.key, "key at {place:?}");
        assert_eq!(found.value, record.value, "value at {place:?}");
        assert_eq!(found.headers, record.headers, "headers at {place:?}");
        if let Some(timestamp) = record.timestamp {
            assert_eq!(found.timestamp, timestamp, "timestamp at {place:?}");
            assert_ne!(found.append_time, Some(true));
        }
        if let Some(partition) = record.partition {
            assert_eq!(place.partition, partition);
        }
    }
    // What was sent to a partition first is first in it.
    for partition in next.keys() {
        let offsets: Vec<i64> = sent
            .iter()
            .filter(|(place, _)| place.partition == *partition)
            .map(|(place, _)| place.offset)
            .collect();
        assert!(offsets.is_sorted(), "{offsets:?} in partition {partition}");
    }
}

scenario!(
    every_codec_comes_back_exactly,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        for codec in codecs(stage.client.kind) {
            let topic = format!("{}-{codec}", stage.topic);
            stage.client.create_topic(&topic, 3, &[]);
            let settings = json!({"compression": codec, "acks": "all", "idempotent": true});
            stage.client.producer(codec, settings);
            let mut sent = Vec::new();
            let records = all_shapes(stage.client.kind, codec);
            // Several requests, so that sequence numbers matter.
            for part in records.chunks(15) {
                let places = stage.client.send(codec, &topic, part);
                sent.extend(places.into_iter().zip(part.iter().cloned()));
            }
            stage.client.close_producer(codec);
            let read = read_back(stage, &topic, &[0, 1, 2], sent.len());
            assert_same(&sent, &read);
            // Nothing lies before the first or after the last.
            let count = |partition| {
                sent.iter()
                    .filter(|(p, _)| p.partition == partition)
                    .count()
            };
            stage.client.consumer("watcher", json!({}));
            for partition in 0..3 {
                let marks = stage.client.watermarks("watcher", &topic, partition);
                assert_eq!((marks.low, marks.high), (0, count(partition) as i64));
            }
            stage.client.close_consumer("watcher");
        }
    }
);

scenario!(
    keys_choose_kafkas_partitions,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        stage.client.create_topic(&stage.topic, 12, &[]);
        stage.client.producer("p", json!({}));
        let keys: Vec<String> = (0..100)
            .map(|n| "k".repeat(n % 9 + 1) + &n.to_string())
            .collect();
        let records: Vec<NewRecord> = keys.iter().map(|key| NewRecord::new(key, key)).collect();
        let places = stage.client.send("p", &stage.topic, &records);
        for (key, place) in keys.iter().zip(&places) {
            let expected = murmur2_partition(key.as_bytes(), 12);
            assert_eq!(place.partition, expected, "partition of {key}");
        }
    }
);

scenario!(
    acknowledgements_of_all_kinds,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        stage.client.create_topic(&stage.topic, 1, &[]);
        let mut expected = Vec::new();
        for acks in ["0", "1", "all"] {
            stage
                .client
                .producer(acks, json!({"acks": acks, "idempotent": false}));
            let records: Vec<NewRecord> = (0..20)
                .map(|n| NewRecord::new("key", &format!("acks {acks}, {n}")))
                .collect();
            let places = stage.client.send(acks, &stage.topic, &records);
            if acks != "0" {
                let base = expected.len() as i64;
                let offsets: Vec<i64> = places.iter().map(|place| place.offset).collect();
                assert_eq!(offsets, (base..base + 20).collect::<Vec<i64>>());
            }
            stage.client.close_producer(acks);
            expected.extend((0..20).map(|n| format!("acks {acks}, {n}")));
            // Nobody says when records without acknowledgement are there: they are read.
            let read = read_back(stage, &stage.topic.clone(), &[0], expected.len());
            let texts: Vec<String> = read.iter().map(Read::text).collect();
            assert_eq!(texts, expected);
        }
    }
);

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_millis() as i64
}

scenario!(
    append_time_is_the_brokers,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let configs = [("message.timestamp.type", "LogAppendTime")];
        stage.client.create_topic(&stage.topic, 1, &configs);
        let compressions = codecs(stage.client.kind);
        let mut expected = 0;
        for codec in compressions {
            stage.client.producer(codec, json!({"compression": codec}));
            let records: Vec<NewRecord> = (0..30)
                .map(|n| NewRecord::new("key", &format!("{codec} {n}")).at(THEN + n))
                .collect();
            let before = now();
            stage.client.send(codec, &stage.topic, &records);
            let after = now();
            stage.client.close_producer(codec);
            let read = read_back(stage, &stage.topic.clone(), &[0], expected + 30);
            for (n, record) in read[expected..].iter().enumerate() {
                assert_eq!(record.text(), format!("{codec} {n}"));
                assert_ne!(record.append_time, Some(false), "{codec} {n}");
                let time = record.timestamp;
                assert!(
                    before <= time && time <= after,
                    "{before} <= {time} <= {after}"
                );
            }
            expected += 30;
        }
    }
);

scenario!(too_large_is_refused, PLAIN, anyone, |stage: &mut Stage| {
    let configs = [("max.message.bytes", "3000")];
    stage.client.create_topic(&stage.topic, 1, &configs);
    stage.client.producer("p", json!({"linger_ms": 0}));
    let large = NewRecord::new("large", &"x".repeat(10_000));
    let outcome = stage.client.try_send("p", &stage.topic, &[large]).remove(0);
    let failure = outcome.expect_err("a record above the limit is refused");
    let expected = ["MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"];
    assert!(expected.contains(&failure.name.as_str()), "{failure:?}");
    // The producer goes on. aiokafka counts the refused batch in its sequence; Kafka takes up a
    // producer that it does not know anywhere, Kera only at its first batch.
    let kind = stage.client.kind;
    let is_lost = kind == Kind::Aiokafka && stage.broker.is_kera();
    if is_lost || !kind.can(Can::GoOnAfterRefusal) {
        stage.client.close_producer("p");
        stage.client.producer("p", json!({}));
    }
    let small = NewRecord::new("small", "fits");
    let place = stage.client.send("p", &stage.topic, &[small]).remove(0);
    assert_eq!(place.offset, 0);
    let read = read_back(stage, &stage.topic.clone(), &[0], 1);
    assert_eq!(read[0].text(), "fits");
});
