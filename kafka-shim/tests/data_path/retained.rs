//! What is kept whatever producers' clocks say, and what is taken of a stream that looks at clocks and records.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kera_broker::config::BrokerConfig;
use kera_metadata::{BatchCheck, StreamConfig};
use kera_protocol::batch::{
    BatchBuilder, Compression, HEADER_BYTES, NewRecord, ProducerStamp, compress, crc32c,
};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_streamlet::GroupView;

use super::common::{Client, PATIENCE, World, batch};
use super::producing::produce;

const VALUE: usize = 15_000;

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_millis() as i64
}

/// A batch of one record.
fn stamped(timestamp: i64) -> Bytes {
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        key: None,
        value: Some(&[b'v'; VALUE]),
        headers: &[],
        timestamp,
    };
    builder.push(&record).expect("it fits");
    let batch = builder.finish(Compression::None, ProducerStamp::NONE);
    batch.expect("it has a record")
}

async fn send(client: &mut Client, topic: &str, partition: i32, records: Bytes) {
    let answer = produce(client, 9, topic, partition, records).await;
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
}

fn retaining(config: &mut BrokerConfig) {
    config.retention.check_interval = Duration::from_millis(20);
}

/// Small groups, so that there are many.
fn small() -> StreamConfig {
    StreamConfig {
        segment_size: 64 << 10,
        segments_per_group: 1,
        max_batch_bytes: 32 << 10,
        retention_ms: 0,
        ..StreamConfig::default()
    }
}

/// A partition's log start, and its groups.
fn kept(world: &World, topic: &str, partition: usize) -> (Ordinal, Vec<GroupView>) {
    let stream = world.broker.shared().data.catalog.named(topic);
    let stream = stream.expect("the stream");
    let streamlet = stream.streamlets.get(partition).expect("a partition");
    let lane = streamlet.describe().swap_remove(0);
    assert_eq!(lane.lane, LaneId(0));
    (lane.log_start, lane.groups)
}

fn bytes(groups: &[GroupView]) -> u64 {
    groups.iter().map(|group| group.bytes).sum()
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_deletes_nothing_of_other_partitions() {
    let world = World::with(retaining).await;
    let share = 256 << 10;
    let config = StreamConfig {
        streamlets: 2,
        retention_bytes: 2 * share,
        ..small()
    };
    let group = config.group_bytes();
    world.create("t", config);
    let mut client = world.client().await;
    let now = now_ms();
    // Microseconds by mistake in one partition; 750 KiB in each.
    for _ in 0..50 {
        send(&mut client, "t", 0, stamped(now * 1_000)).await;
        send(&mut client, "t", 1, stamped(now)).await;
    }
    // The one with the wrong clock is what there is too much of as well.
    until("all keep what they may", || {
        (0..2).all(|partition| bytes(&kept(&world, "t", partition).1) < share + 2 * group)
    })
    .await;
    for partition in 0..2 {
        let (start, groups) = kept(&world, "t", partition);
        assert!(start > 0);
        assert!(bytes(&groups) >= share, "{partition}: {groups:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_to_come_holds_nothing_and_a_missing_one_deletes_nothing() {
    let world = World::with(retaining).await;
    let config = |retention_ms| StreamConfig {
        streamlets: 2,
        retention_ms,
        group_max_age_ms: 1,
        ..small()
    };
    let week = 7 * 24 * 3_600_000;
    world.create("short", config(1));
    world.create("week", config(week));
    let mut client = world.client().await;
    // No time at all, now, and a thousand times now.
    send(&mut client, "week", 1, stamped(-1)).await;
    send(&mut client, "short", 0, stamped(now_ms() * 1_000)).await;
    until("a time to come is over", || kept(&world, "short", 0).0 == 1).await;
    let closed = || kept(&world, "week", 1).1.iter().all(|group| group.closed);
    until("the other group is closed", closed).await;
    // A round of retention that began after that.
    let old = now_ms() - 2 * week as i64;
    send(&mut client, "week", 0, stamped(old)).await;
    until("what is old goes, as with Kafka", || {
        kept(&world, "week", 0).0 == 1
    })
    .await;
    assert_eq!(kept(&world, "week", 1).0, 0, "without a time it is new");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_far_from_the_brokers_are_refused_where_a_topic_says_so() {
    let world = World::start().await;
    let config = StreamConfig {
        timestamp_before_max_ms: 3_600_000,
        timestamp_after_max_ms: 3_600_000,
        ..small()
    };
    world.create("t", config.clone());
    let append = StreamConfig {
        timestamp_type: kera_metadata::TimestampType::Append,
        ..config
    };
    world.create("append", append);
    let mut client = world.client().await;
    let now = now_ms();
    for wrong in [
        now * 1_000,
        now / 1_000,
        0,
        now + 7_200_000,
        now - 7_200_000,
    ] {
        let answer = produce(&mut client, 9, "t", 0, stamped(wrong)).await;
        assert_eq!(
            answer.error_code,
            ResponseError::InvalidTimestamp.code(),
            "{wrong}"
        );
        let text = answer.error_message.expect("a reason");
        assert!(
            text.contains("timestamp_") && text.contains("3600000 ms"),
            "{text}"
        );
        send(&mut client, "append", 0, stamped(wrong)).await;
    }
    for right in [now, now + 1_800_000, now - 1_800_000, -1] {
        send(&mut client, "t", 0, stamped(right)).await;
    }
}

/// A batch whose count and body are what they are said to be, with a checksum that fits.
fn forged(codec: Compression, count: i32, body: &[u8]) -> Bytes {
    let mut bytes = batch("v", 1, Compression::None, ProducerStamp::NONE)[..HEADER_BYTES].to_vec();
    bytes.extend_from_slice(body);
    let length = bytes.len() as i32 - 12;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[22] = codec as u8;
    bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_nobody_could_read_are_refused() {
    let world = World::start().await;
    world.create("plain", small());
    let full = StreamConfig {
        validate: BatchCheck::Full,
        ..small()
    };
    world.create("full", full);
    let mut client = world.client().await;
    let one = batch("v", 1, Compression::None, ProducerStamp::NONE);
    let one = &one[HEADER_BYTES..];
    let codecs = [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];
    let refused = ResponseError::InvalidRecord.code();
    for codec in codecs {
        let body = compress(codec, one);
        // By the bytes that there are, of a count that lies grossly.
        for topic in ["plain", "full"] {
            let lies = forged(codec, i32::MAX, &body);
            let answer = produce(&mut client, 9, topic, 0, lies).await;
            assert_eq!(answer.error_code, refused, "{codec:?} {topic}");
            let garbage = forged(codec, 1, b"\xff\xff\xff\xff\xffgarbage");
            let answer = produce(&mut client, 9, topic, 0, garbage).await;
            assert_eq!(answer.error_code, refused, "{codec:?} {topic}");
        }
        // By reading it, of one that could be.
        let mut torn = body.clone();
        torn.truncate(body.len() / 2);
        for (count, body) in [(2, &body), (1, &torn)] {
            let answer = produce(&mut client, 9, "full", 0, forged(codec, count, body)).await;
            assert_eq!(answer.error_code, refused, "{codec:?} {count}");
            assert!(answer.error_message.is_some());
        }
        send(&mut client, "full", 0, forged(codec, 1, &body)).await;
    }
    // A record that says it is longer than it is.
    let mut long = one.to_vec();
    long[0] += 2;
    let answer = produce(
        &mut client,
        9,
        "full",
        0,
        forged(Compression::None, 1, &long),
    )
    .await;
    assert_eq!(answer.error_code, refused);
    // More than is taken, in a body of a few KiB.
    let bomb = compress(Compression::Zstd, &vec![0; 65 << 20]);
    let answer = produce(
        &mut client,
        9,
        "full",
        0,
        forged(Compression::Zstd, 1, &bomb),
    )
    .await;
    assert_eq!(answer.error_code, refused);
    assert_eq!(
        kept(&world, "plain", 0).1.len(),
        0,
        "nothing of it was kept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_appends_to_internal_topics() {
    let world = World::start().await;
    let mut client = world.client().await;
    let shared = world.broker.shared();
    let own = shared
        .data
        .catalog
        .named("_kera_groups")
        .expect("the stream");
    let invalid = ResponseError::InvalidTopicException.code();
    for topic in ["_kera_groups", "__consumer_offsets", "_kera_none"] {
        let answer = produce(&mut client, 9, topic, 0, stamped(0)).await;
        assert_eq!(answer.error_code, invalid, "{topic}");
    }
    let mut by_id = super::producing::request("", -1, &[(0, stamped(0))]);
    by_id.topic_data[0].topic_id = own.id().0;
    let reply: kafka_protocol::messages::ProduceResponse = client
        .call(kafka_protocol::messages::ApiKey::Produce, 13, &by_id)
        .await;
    let answer = &reply.responses[0].partition_responses[0];
    assert_eq!(answer.error_code, invalid);
    for streamlet in &own.streamlets {
        assert_eq!(streamlet.bounds()[0].2, 0, "nothing was appended");
    }
}
