//! Records in the stream of consumer groups that are no events of theirs, and offsets that are no places.

use std::time::Instant;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{ApiKey, OffsetCommitRequest, OffsetCommitResponse};
use kera_broker::data::append;
use kera_broker::http::Told;
use kera_protocol::batch::{
    BatchBuilder, Compression, HEADER_BYTES, NewRecord, ProducerStamp, crc32c,
};
use kera_streamlet::AppendSpec;

use super::common::{PATIENCE, World};
use super::{commit, committed, group, quick, topic, words};

/// Appends a batch to every streamlet of the internal stream, past all that refuses it to clients.
fn plant(world: &World, batch: &Bytes) {
    let shared = world.broker.shared();
    let own = shared
        .data
        .catalog
        .named("_kera_groups")
        .expect("the stream");
    let spec = AppendSpec {
        lane: 0,
        lane_generation: None,
        now_ms: 1,
        essential: false,
    };
    for streamlet in &own.streamlets {
        let (mut bytes, mut touched) = (batch.to_vec(), Vec::new());
        append::place_batch(
            &shared.data,
            &streamlet,
            None,
            &mut bytes,
            spec,
            &mut touched,
        )
        .expect("it is placed");
        append::pump(&shared.data, &mut touched);
    }
}

fn batch(key: &[u8], value: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        key: Some(key),
        value: Some(value),
        headers: &[],
        timestamp: 1,
    };
    builder.push(&record).expect("it fits");
    let batch = builder.finish(Compression::None, ProducerStamp::NONE);
    batch.expect("it has a record")
}

/// A batch that says it is compressed and is not, with a count of its own.
fn undecodable(count: i32) -> Bytes {
    let mut bytes = batch(b"g", b"v").to_vec();
    bytes[22] = Compression::Gzip as u8;
    bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    assert!(bytes.len() > HEADER_BYTES);
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

async fn restarted(world: World) -> World {
    let World { broker, dir, .. } = world;
    broker.shutdown().await;
    World::at(dir, quick).await
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_no_events_stop_no_group() {
    let world = World::with(quick).await;
    world.topic("t", 2);
    let mut client = world.client().await;
    let groups = ["a", "b", "c", "d", "e"];
    for group in groups {
        assert_eq!(
            commit(&mut client, 9, group, None, &[("t", 0, 7)]).await,
            [0]
        );
    }
    let garbage = [
        batch(b"\xff", b"garbage"),
        batch(b"g", b""),
        undecodable(1),
        undecodable(i32::MAX),
    ];
    garbage.iter().for_each(|batch| plant(&world, batch));
    for group in groups {
        assert_eq!(
            commit(&mut client, 9, group, None, &[("t", 1, 8)]).await,
            [0]
        );
    }
    drop(client);
    let world = restarted(world).await;
    let mut client = world.client().await;
    for group in groups {
        let all = [("t".to_owned(), 0, 7), ("t".to_owned(), 1, 8)];
        assert_eq!(committed(&mut client, group).await, all, "{group}");
    }
    let shared = world.broker.shared();
    let own = shared
        .data
        .catalog
        .named("_kera_groups")
        .expect("the stream");
    let planted = (garbage.len() * own.streamlets.len()) as u64;
    assert_eq!(shared.coordination.passed_over(), planted);
    assert_eq!(shared.ready(), Ok(()));
    let metrics = shared.metrics();
    let line = format!("kera_consumer_events_passed_over {planted}\n");
    assert!(metrics.contains(&line), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_newer_build_are_waited_for_and_told_of() {
    let world = World::with(quick).await;
    // A version, and nothing that this build could know.
    plant(&world, &batch(b"g", &[8, 99]));
    let world = restarted(world).await;
    let shared = world.broker.shared();
    let begun = std::time::Instant::now();
    let reason = loop {
        assert!(begun.elapsed() < PATIENCE, "it says that it is ready");
        match shared.ready() {
            Ok(()) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            Err(reason) => break reason,
        }
    };
    assert!(
        reason.starts_with("consumer groups cannot be read"),
        "{reason}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_offsets_come_back_as_they_were_committed() {
    let world = World::with(quick).await;
    world.topic("t", 3);
    let mut client = world.client().await;
    let offsets = [("t", 0, -2), ("t", 1, -1), ("t", 2, 5)];
    assert_eq!(commit(&mut client, 9, "g", None, &offsets).await, [0, 0, 0]);
    let all = offsets.map(|(topic, partition, offset)| (topic.to_owned(), partition, offset));
    assert_eq!(committed(&mut client, "g").await, all);
    drop(client);
    let world = restarted(world).await;
    let mut client = world.client().await;
    assert_eq!(committed(&mut client, "g").await, all);
}

/// A client is told a number that names neither the limit nor the setting: the log does.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_for_which_there_is_no_room_are_told_of() {
    // With 4 KiB of metadata each these are more than the 16 MiB of a group.
    const PARTITIONS: i32 = 4_200;
    let world = World::with(quick).await;
    world.topic("t", PARTITIONS as u32);
    let mut client = world.client().await;
    let told = || {
        let mut seldom = world.broker.shared().full_offsets.lock();
        seldom.due(Instant::now()).is_none()
    };
    let partitions = |all: std::ops::Range<i32>| {
        let partition = |number| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(number)
                .with_committed_metadata(Some(words(&"m".repeat(4_096))))
        };
        let of_topic = OffsetCommitRequestTopic::default()
            .with_name(topic("t"))
            .with_partitions(all.map(partition).collect());
        OffsetCommitRequest::default()
            .with_group_id(group("g"))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![of_topic])
    };
    let mut codes = Vec::new();
    for first in (0..PARTITIONS).step_by(2_100) {
        let request = partitions(first..first + 2_100);
        let reply: OffsetCommitResponse = client.call(ApiKey::OffsetCommit, 7, &request).await;
        let of_topic = &reply.topics[0];
        codes.extend(of_topic.partitions.iter().map(|one| one.error_code));
    }
    assert_eq!(codes.first(), Some(&0));
    let full = ResponseError::InvalidCommitOffsetSize.code();
    assert_eq!(codes.last(), Some(&full));
    assert!(told(), "nothing was told");
}
