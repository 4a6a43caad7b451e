//! Where consumers start, go and end up.

use serde_json::json;

use crate::common::{Can, NewRecord, Read, until};
use crate::producing::{THEN, codecs};
use crate::stage::{Stage, anyone, scenario};

/// Sends records "0", "1", ... to partition 0, at times THEN, THEN + 10, ..., in one batch.
fn send_numbers(stage: &mut Stage, codec: &str, count: i64) {
    let settings = json!({"compression": codec, "linger_ms": 300, "batch_bytes": 1_000_000});
    stage.client.producer("numbers", settings);
    let records: Vec<NewRecord> = (0..count)
        .map(|n| {
            NewRecord::new("key", &n.to_string())
                .at(THEN + 10 * n)
                .to(0)
        })
        .collect();
    let places = stage.client.send("numbers", &stage.topic, &records);
    assert_eq!(places.last().expect("some were sent").offset, count - 1);
    stage.client.close_producer("numbers");
}

/// The end is looked up while the consumer polls, and what is sent before that lies below it: sends records
/// `end`, `end` + 1, ... until some arrive. How many there are then, and those that arrived.
fn first_behind_the_end(stage: &mut Stage, consumer: &str, end: i64) -> (i64, Vec<Read>) {
    let mut sent = end;
    let arrived = until("a record behind the end", || {
        let record = NewRecord::new("key", &sent.to_string());
        stage.client.send("p", &stage.topic, &[record]);
        sent += 1;
        let arrived = stage.client.poll(consumer).records;
        (!arrived.is_empty()).then_some(arrived)
    });
    let first = &arrived[0];
    assert!(first.offset >= end, "{first:?} is of before");
    assert_eq!(first.text(), first.offset.to_string());
    (sent, arrived)
}

fn texts(records: &[Read]) -> Vec<String> {
    records.iter().map(Read::text).collect()
}

fn numbers(range: std::ops::Range<i64>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

scenario!(
    /// Whoever asks for an offset inside a batch gets the whole batch, and skips what comes before.
    offsets_inside_a_compressed_batch,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let base = stage.topic.clone();
        for codec in codecs(stage.client.kind) {
            stage.topic = format!("{base}-{codec}");
            let topic = stage.topic.clone();
            stage.client.create_topic(&topic, 1, &[]);
            send_numbers(stage, codec, 60);
            stage.client.consumer("c", json!({}));
            for start in [1, 33, 59] {
                stage.client.assign("c", &topic, &[0], json!(start));
                let read = stage.client.read("c", 60 - start as usize);
                assert_eq!(texts(&read), numbers(start..60), "{codec} from {start}");
            }
            stage.client.close_consumer("c");
        }
    }
);

scenario!(seeking, PLAIN, anyone, |stage: &mut Stage| {
    let topic = stage.topic.clone();
    stage.client.create_topic(&topic, 1, &[]);
    send_numbers(stage, "none", 30);
    stage.client.consumer("c", json!({"group": stage.group}));
    stage.client.assign("c", &topic, &[0], json!("beginning"));
    assert_eq!(texts(&stage.client.read("c", 30)), numbers(0..30));
    if stage.client.kind.can(Can::Position) {
        assert_eq!(stage.client.position("c", &topic, 0), 30);
    }
    stage.client.seek("c", &topic, 0, 12);
    assert_eq!(texts(&stage.client.read("c", 18)), numbers(12..30));
    stage.client.seek("c", &topic, 0, "beginning");
    assert_eq!(texts(&stage.client.read("c", 30)), numbers(0..30));
    // At the end there is nothing, until something comes.
    stage.client.seek("c", &topic, 0, "end");
    assert!(stage.client.poll("c").records.is_empty());
    stage.client.producer("p", json!({}));
    let (sent, mut arrived) = first_behind_the_end(stage, "c", 30);
    let first = arrived[0].offset;
    let left = (sent - first) as usize - arrived.len();
    arrived.extend(stage.client.read("c", left));
    assert_eq!(texts(&arrived), numbers(first..sent));
});

scenario!(
    positions_out_of_range,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        stage.client.create_topic(&topic, 1, &[]);
        send_numbers(stage, "none", 20);
        stage
            .client
            .consumer("earliest", json!({"reset": "earliest"}));
        stage.client.assign("earliest", &topic, &[0], json!(1_000));
        assert_eq!(texts(&stage.client.read("earliest", 20)), numbers(0..20));

        stage.client.consumer("latest", json!({"reset": "latest"}));
        stage.client.assign("latest", &topic, &[0], json!(1_000));
        stage.client.producer("p", json!({}));
        first_behind_the_end(stage, "latest", 20);

        if stage.client.kind.can(Can::ResetNone) {
            stage.client.consumer("none", json!({"reset": "none"}));
            stage.client.assign("none", &topic, &[0], json!(1_000));
            let failure = until(
                "the client says that the offset is out of range",
                || match stage.client.try_poll("none", 200) {
                    Ok(polled) => {
                        assert!(polled.records.is_empty(), "there is nothing at 1000");
                        None
                    }
                    Err(failure) => Some(failure),
                },
            );
            let names = [
                "OFFSET_OUT_OF_RANGE",
                "CLIENT:OffsetOutOfRangeException",
                "CLIENT:AutoOffsetReset",
            ];
            assert!(names.contains(&failure.name.as_str()), "{failure:?}");
        }
    }
);

scenario!(offsets_of_times, PLAIN, anyone, |stage: &mut Stage| {
    let topic = stage.topic.clone();
    stage.client.create_topic(&topic, 1, &[]);
    send_numbers(stage, "none", 30);
    // A second batch, whose greatest timestamp is not its last.
    stage.client.producer("p", json!({"linger_ms": 300}));
    let times = [1_000, 5_000, 2_000];
    let records: Vec<NewRecord> = times
        .iter()
        .map(|time| NewRecord::new("key", "later").at(THEN + time).to(0))
        .collect();
    stage.client.send("p", &topic, &records);
    let expected = [
        (THEN - 1, Some(0)),
        (THEN, Some(0)),
        (THEN + 1, Some(1)),
        (THEN + 150, Some(15)),
        (THEN + 290, Some(29)),
        (THEN + 291, Some(30)),
        (THEN + 1_001, Some(31)),
        (THEN + 5_000, Some(31)),
        (THEN + 5_001, None),
    ];
    if stage.client.kind.can(Can::OffsetForTime) {
        stage.client.consumer("c", json!({}));
        for (time, offset) in expected {
            let found = stage.client.offset_for_time("c", &topic, 0, time);
            // Some clients put the end where there is none.
            let is_end = offset.is_none() && found.offset == Some(33);
            assert!(
                found.offset == offset || is_end,
                "THEN + {}: {found:?}",
                time - THEN
            );
        }
        let marks = stage.client.watermarks("c", &topic, 0);
        assert_eq!((marks.low, marks.high), (0, 33));
    }
    let offset = |stage: &mut Stage, at: &str| {
        stage
            .client
            .list_offsets(&topic, 0, at)
            .expect("an offset")
            .offset
    };
    assert_eq!(offset(stage, "earliest"), Some(0));
    assert_eq!(offset(stage, "latest"), Some(33));
    let found = stage.client.list_offsets(&topic, 0, THEN + 155);
    assert_eq!(found.expect("an offset").offset, Some(16));
    if stage.client.kind.can(Can::MaxTimestamp) {
        let found = stage.client.list_offsets(&topic, 0, "max_timestamp");
        let found = found.expect("an offset");
        assert_eq!(
            (found.offset, found.timestamp),
            (Some(31), Some(THEN + 5_000))
        );
    }
});

scenario!(
    large_records_and_small_fetches,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        stage.client.create_topic(&topic, 2, &[]);
        stage.client.producer("p", json!({"linger_ms": 0}));
        let value = |n: usize| format!("{n} {}", "x".repeat(n * 20_000));
        for n in 0..30 {
            let record = NewRecord::new("key", &value(n)).to((n % 2) as i32);
            stage.client.send("p", &topic, &[record]);
        }
        stage.client.consumer("c", json!({}));
        stage
            .client
            .assign("c", &topic, &[0, 1], json!("beginning"));
        let mut read = stage.client.read("c", 30);
        read.sort_by_key(|each| (each.offset, each.partition));
        for (n, record) in read.iter().enumerate() {
            assert_eq!(record.text(), value(n));
        }
    }
);
