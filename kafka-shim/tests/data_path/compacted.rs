//! Topics that are compacted, as Kafka's clients see them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kera_metadata::{Cleanup, StreamConfig};
use kera_protocol::batch::{
    BatchBuilder, BatchHeader, Compression, NewRecord, ProducerStamp, Records, batches, verify,
};

use crate::common::{Client, PATIENCE, World};
use crate::fetching::one;
use crate::producing::produce;

/// A batch of records with keys; without a value it is a tombstone.
fn keyed(codec: Compression, records: &[(Option<&str>, Option<String>)]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (key, value) in records {
        let record = NewRecord {
            key: key.map(str::as_bytes),
            value: value.as_ref().map(String::as_bytes),
            headers: &[],
            timestamp: 1_000,
        };
        builder.push(&record).expect("it fits");
    }
    let batch = builder.finish(codec, ProducerStamp::NONE);
    batch.expect("it has records")
}

fn small() -> StreamConfig {
    StreamConfig {
        segment_size: 64 << 10,
        segments_per_group: 1,
        max_batch_bytes: 32 << 10,
        cleanup: Cleanup::Compact,
        min_dirty_permille: 1,
        group_max_age_ms: 1,
        ..StreamConfig::default()
    }
}

/// Offset, key and value of all records from an offset on, and how many bytes they came in.
async fn read_from(
    client: &mut Client,
    topic: &str,
    mut offset: i64,
) -> (BTreeMap<i64, (String, Option<String>)>, usize) {
    let (mut out, mut bytes) = (BTreeMap::new(), 0);
    loop {
        let data = one(client, 12, topic, 0, offset).await;
        assert_eq!(data.error_code, 0);
        if offset >= data.high_watermark {
            return (out, bytes);
        }
        let records = data.records.unwrap_or_default();
        assert!(!records.is_empty(), "nothing below the high watermark");
        bytes += records.len();
        let mut scratch = Vec::new();
        for found in batches(&records) {
            let (header, batch) = found.expect("a whole batch");
            verify(batch).expect("a checksum that fits");
            assert!(
                header.next_ordinal() as i64 > offset,
                "a reader stands still"
            );
            for record in Records::open(batch, 1 << 24, &mut scratch).expect("records") {
                let record = record.expect("a record");
                let at = header.base_ordinal as i64 + i64::from(record.ordinal_delta);
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
                let key = record.key.map(text).expect("a key");
                if at >= offset {
                    out.insert(at, (key, record.value.map(text)));
                }
            }
            offset = header.next_ordinal() as i64;
        }
    }
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is().await {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_value_of_each_key_stays_and_readers_go_on_by_offset() {
    let world = World::with(|config| {
        config.compaction.check_interval = Duration::from_millis(20);
        config.retention.check_interval = Duration::from_millis(20);
    })
    .await;
    world.create("t", small());
    let mut client = world.client().await;
    let mut written = BTreeMap::new();
    let mut last = BTreeMap::new();
    let codecs = [Compression::None, Compression::Lz4, Compression::Zstd];
    for round in 0..300_usize {
        let records: Vec<_> = (0..10)
            .map(|n| {
                let key = ["a", "b", "c", "d", "e", "f", "g"][(round * 3 + n * n) % 7];
                let value =
                    (key != "g" || round < 100).then(|| format!("{round}-{n}-{}", "x".repeat(60)));
                (Some(key), value)
            })
            .collect();
        let answer = produce(&mut client, 9, "t", 0, keyed(codecs[round % 3], &records)).await;
        assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
        for (offset, (key, value)) in (answer.base_offset..).zip(records) {
            let key = key.expect("a key").to_owned();
            last.insert(key.clone(), (offset, value.clone()));
            written.insert(offset, (key, value));
        }
    }
    let all = written.len();
    until("most of it goes", async || {
        read_from(&mut client, "t", 0).await.0.len() < all / 3
    })
    .await;
    // From anywhere: what is left of what was written, and of each key the last value.
    for from in [0, 1, 17, 1000, 2500] {
        let (found, _) = read_from(&mut client, "t", from).await;
        for (offset, record) in &found {
            assert_eq!(written.get(offset), Some(record));
        }
        for (key, (offset, value)) in &last {
            if *offset >= from {
                assert_eq!(found.get(offset), Some(&(key.clone(), value.clone())));
            }
        }
    }
    let stream = world
        .broker
        .shared()
        .data
        .catalog
        .named("t")
        .expect("the stream");
    let lane = stream
        .streamlets
        .get(0)
        .expect("a partition")
        .describe()
        .swap_remove(0);
    assert_eq!(lane.log_start, 0, "the log start stays, as with Kafka");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_without_keys_and_horizons_of_clients_are_refused() {
    let world = World::start().await;
    world.create("t", small());
    let mut client = world.client().await;
    let refused = ResponseError::InvalidRecord.code();
    for codec in [Compression::None, Compression::Gzip] {
        let records = [(Some("a"), Some("1".into())), (None, Some("2".into()))];
        let answer = produce(&mut client, 9, "t", 0, keyed(codec, &records)).await;
        assert_eq!(answer.error_code, refused);
        let text = answer.error_message.expect("a reason");
        assert!(text.contains("record 1 has no key"), "{text}");
        let answer = produce(&mut client, 9, "t", 0, keyed(codec, &records[..1])).await;
        assert_eq!(answer.error_code, 0);
    }
    // Only compaction says from when on a tombstone may go.
    let mut horizon = keyed(Compression::None, &[(Some("a"), None)]).to_vec();
    horizon[22] |= 0x40;
    kera_protocol::batch::write_stamp(&mut horizon, ProducerStamp::NONE);
    assert!(
        BatchHeader::peek(&horizon)
            .expect("a header")
            .delete_horizon()
            .is_some()
    );
    let answer = produce(&mut client, 9, "t", 0, horizon.into()).await;
    assert_eq!(answer.error_code, refused);
}
