use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{ApiKey, FetchRequest, FetchResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kera_protocol::batch::{Compression, ProducerStamp, Records, batches};

use crate::common::{Client, PATIENCE, World, batch};
use crate::producing::produce;

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_string()))
}

pub fn partition(index: i32, offset: i64) -> FetchPartition {
    FetchPartition::default()
        .with_partition(index)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(1 << 20)
}

pub fn request(topic: &str, partitions: Vec<FetchPartition>) -> FetchRequest {
    FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(0)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_id(0)
        .with_session_epoch(-1)
        .with_topics(vec![
            FetchTopic::default()
                .with_topic(name(topic))
                .with_partitions(partitions),
        ])
}

async fn fetch(client: &mut Client, version: i16, request: &FetchRequest) -> FetchResponse {
    client.call(ApiKey::Fetch, version, request).await
}

pub async fn one(
    client: &mut Client,
    version: i16,
    topic: &str,
    index: i32,
    offset: i64,
) -> PartitionData {
    let request = request(topic, vec![partition(index, offset)]);
    let reply = fetch(client, version, &request).await;
    reply.responses[0].partitions[0].clone()
}

/// Offsets and values of all records in a partition's answer.
fn records(data: &PartitionData) -> Vec<(i64, String)> {
    let bytes = data.records.clone().unwrap_or_default();
    let mut found = Vec::new();
    let mut scratch = Vec::new();
    for batch in batches(&bytes) {
        let (header, batch) = batch.unwrap();
        kera_protocol::batch::verify(batch).unwrap();
        for record in Records::open(batch, 1 << 24, &mut scratch).unwrap() {
            let record = record.unwrap();
            let offset = header.base_ordinal as i64 + i64::from(record.ordinal_delta);
            let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
            found.push((offset, value));
        }
    }
    found
}

fn plain(prefix: &str, count: usize) -> Bytes {
    batch(prefix, count, Compression::None, ProducerStamp::NONE)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_reads_what_was_written() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    for codec in [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
    ] {
        let sent = batch("v", 2, codec, ProducerStamp::NONE);
        assert_eq!(produce(&mut client, 9, "t", 0, sent).await.error_code, 0);
    }
    let expected: Vec<_> = (0..8).map(|n| (n, format!("v{}", n % 2))).collect();
    let id = world
        .broker
        .shared()
        .data
        .catalog
        .named("t")
        .unwrap()
        .id()
        .0;
    for version in 4..=18 {
        let mut request = request("t", vec![partition(0, 0)]);
        if version >= 13 {
            request.topics[0].topic = name("");
            request.topics[0].topic_id = id;
        }
        let reply = fetch(&mut client, version, &request).await;
        let data = &reply.responses[0].partitions[0];
        assert_eq!(data.error_code, 0, "version {version}");
        assert_eq!((data.high_watermark, data.last_stable_offset), (8, 8));
        assert_eq!(records(data), expected, "version {version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_within_a_batch_brings_the_whole_batch() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    for codec in [Compression::None, Compression::Lz4] {
        produce(
            &mut client,
            9,
            "t",
            0,
            batch("v", 10, codec, ProducerStamp::NONE),
        )
        .await;
    }
    for (offset, first) in [(3, 0), (9, 0), (10, 10), (15, 10), (19, 10)] {
        let data = one(&mut client, 12, "t", 0, offset).await;
        assert_eq!(records(&data)[0].0, first, "offset {offset}");
        assert_eq!(records(&data).last().unwrap().0, 19);
    }
    assert!(records(&one(&mut client, 12, "t", 0, 20).await).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_epochs_and_topics_that_do_not_fit() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    produce(&mut client, 9, "t", 0, plain("v", 5)).await;
    let out_of_range = ResponseError::OffsetOutOfRange.code();
    for offset in [6, 1 << 40, -1] {
        let data = one(&mut client, 12, "t", 0, offset).await;
        assert_eq!(data.error_code, out_of_range, "offset {offset}");
    }
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(one(&mut client, 12, "none", 0, 0).await.error_code, unknown);
    assert_eq!(one(&mut client, 12, "t", 1, 0).await.error_code, unknown);
    let stream = world.broker.shared().data.catalog.named("t").unwrap();
    let epoch = stream.streamlets.get(0).unwrap().epoch().0 as i32;
    for (known, code) in [
        (epoch - 1, ResponseError::FencedLeaderEpoch.code()),
        (epoch, 0),
        (epoch + 1, ResponseError::UnknownLeaderEpoch.code()),
    ] {
        let wanted = partition(0, 0).with_current_leader_epoch(known);
        let reply = fetch(&mut client, 12, &request("t", vec![wanted])).await;
        assert_eq!(
            reply.responses[0].partitions[0].error_code, code,
            "epoch {known}"
        );
    }
    stream
        .streamlets
        .get(0)
        .unwrap()
        .trim(kera_protocol::ids::LaneId(0), 5)
        .unwrap();
    assert_eq!(
        one(&mut client, 12, "t", 0, 4).await.error_code,
        out_of_range
    );
    let mut by_id = request("", vec![partition(0, 0)]);
    by_id.topics[0].topic_id = uuid::Uuid::from_u128(7);
    let reply = fetch(&mut client, 13, &by_id).await;
    let data = &reply.responses[0].partitions[0];
    assert_eq!(data.error_code, ResponseError::UnknownTopicId.code());
}

#[tokio::test(flavor = "multi_thread")]
async fn zstd_is_kept_from_clients_that_do_not_know_it() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    produce(
        &mut client,
        9,
        "t",
        0,
        batch("v", 300, Compression::Zstd, ProducerStamp::NONE),
    )
    .await;
    let unsupported = ResponseError::UnsupportedCompressionType.code();
    assert_eq!(one(&mut client, 9, "t", 0, 0).await.error_code, unsupported);
    assert_eq!(records(&one(&mut client, 10, "t", 0, 0).await).len(), 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_ends_with_the_first_record_or_its_time() {
    let world = World::start().await;
    world.topic("t", 3);
    let (mut reader, mut writer) = (world.client().await, world.client().await);
    let wanted = (0..3).map(|index| partition(index, 0)).collect();
    let waiting = request("t", wanted).with_max_wait_ms(50_000);
    let correlation = reader.send(ApiKey::Fetch, 12, &waiting).await;
    produce(&mut writer, 9, "t", 2, plain("v", 1)).await;
    let reply: FetchResponse = reader.receive(ApiKey::Fetch, 12, correlation).await;
    let found: Vec<_> = reply.responses[0]
        .partitions
        .iter()
        .map(|data| (data.partition_index, records(data).len()))
        .collect();
    assert_eq!(found, [(0, 0), (1, 0), (2, 1)]);
    // Nothing comes: all partitions are there, without records.
    let wanted = (0..2).map(|index| partition(index, 0)).collect();
    let reply = fetch(&mut reader, 12, &request("t", wanted).with_max_wait_ms(20)).await;
    assert_eq!(reply.responses[0].partitions.len(), 2);
    // Idle lanes keep no wakers of answered requests.
    let stream = world.broker.shared().data.catalog.named("t").unwrap();
    let waiting: usize = stream
        .streamlets
        .iter()
        .map(|s| s.head(kera_protocol::ids::LaneId(0)).unwrap().waiting())
        .sum();
    assert_eq!(waiting, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn less_than_the_least_waits_for_more() {
    let world = World::start().await;
    world.topic("t", 1);
    let (mut reader, mut writer) = (world.client().await, world.client().await);
    let first = plain("v", 1);
    let least = first.len() as i32 + 1;
    produce(&mut writer, 9, "t", 0, first).await;
    let waiting = request("t", vec![partition(0, 0)])
        .with_max_wait_ms(50_000)
        .with_min_bytes(least);
    let correlation = reader.send(ApiKey::Fetch, 12, &waiting).await;
    produce(&mut writer, 9, "t", 0, plain("v", 1)).await;
    let reply: FetchResponse = reader.receive(ApiKey::Fetch, 12, correlation).await;
    assert_eq!(records(&reply.responses[0].partitions[0]).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_on_bytes_hold_but_for_one_batch() {
    let world = World::start().await;
    world.topic("t", 2);
    let mut client = world.client().await;
    let value = "x".repeat(10_000);
    for partition in [0, 0, 0, 1] {
        produce(&mut client, 9, "t", partition, plain(&value, 1)).await;
    }
    // Each partition at least a batch, and no more than asked for.
    let small = |index| partition(index, 0).with_partition_max_bytes(1);
    let reply = fetch(&mut client, 12, &request("t", vec![small(0), small(1)])).await;
    let counts = |reply: &FetchResponse| -> Vec<usize> {
        let partitions = &reply.responses[0].partitions;
        partitions.iter().map(|data| records(data).len()).collect()
    };
    assert_eq!(counts(&reply), [1, 1]);
    // The whole answer: the first batch, then nothing.
    let tight = request("t", vec![partition(0, 0), partition(1, 0)]).with_max_bytes(1);
    assert_eq!(counts(&fetch(&mut client, 12, &tight).await), [1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_only_what_changed() {
    let world = World::start().await;
    world.topic("t", 3);
    let mut client = world.client().await;
    produce(&mut client, 9, "t", 1, plain("a", 2)).await;
    let all = (0..3).map(|index| partition(index, 0)).collect();
    let begun = fetch(&mut client, 12, &request("t", all).with_session_epoch(0)).await;
    let id = begun.session_id;
    assert!(id > 0);
    assert_eq!(begun.responses[0].partitions.len(), 3);
    let next = |epoch: i32, wanted: Vec<FetchPartition>| {
        let mut next = request("t", wanted)
            .with_session_id(id)
            .with_session_epoch(epoch);
        if next.topics[0].partitions.is_empty() {
            next.topics.clear();
        }
        next
    };
    // Partition 1 is read on from 2: nothing changed.
    let reply = fetch(&mut client, 12, &next(1, vec![partition(1, 2)])).await;
    assert_eq!((reply.error_code, reply.session_id), (0, id));
    assert!(reply.responses.is_empty());
    produce(&mut client, 9, "t", 2, plain("b", 1)).await;
    let reply = fetch(&mut client, 12, &next(2, vec![])).await;
    assert_eq!(reply.responses[0].partitions.len(), 1);
    assert_eq!(
        records(&reply.responses[0].partitions[0]),
        [(0, "b0".to_string())]
    );
    // Forgotten, it is silent.
    let mut forget = next(3, vec![]);
    forget.forgotten_topics_data = vec![
        ForgottenTopic::default()
            .with_topic(name("t"))
            .with_partitions(vec![2]),
    ];
    assert!(fetch(&mut client, 12, &forget).await.responses.is_empty());
    // A wrong epoch, an unknown session, and the end of one.
    let wrong = fetch(&mut client, 12, &next(9, vec![])).await;
    assert_eq!(
        wrong.error_code,
        ResponseError::InvalidFetchSessionEpoch.code()
    );
    let reply = fetch(&mut client, 12, &next(4, vec![])).await;
    assert_eq!(reply.error_code, 0);
    let ended = fetch(&mut client, 12, &next(-1, vec![partition(1, 0)])).await;
    assert_eq!((ended.error_code, ended.session_id), (0, 0));
    assert_eq!(records(&ended.responses[0].partitions[0]).len(), 2);
    let gone = fetch(&mut client, 12, &next(5, vec![])).await;
    assert_eq!(
        gone.error_code,
        ResponseError::FetchSessionIdNotFound.code()
    );
}

/// As Java's consumer does when it closes.
#[tokio::test(flavor = "multi_thread")]
async fn without_partitions_nothing_is_waited_for() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    let begin = request("t", vec![partition(0, 0)]).with_session_epoch(0);
    let begun = fetch(&mut client, 12, &begin).await;
    let mut last = request("t", vec![])
        .with_session_id(begun.session_id)
        .with_session_epoch(-1)
        .with_max_wait_ms(i32::MAX);
    last.topics.clear();
    // Each would wait as long as the test waits for both.
    let both = async {
        for _ in 0..2 {
            let ended = fetch(&mut client, 12, &last).await;
            assert_eq!((ended.error_code, ended.session_id), (0, 0));
        }
    };
    let both = tokio::time::timeout(PATIENCE, both).await;
    both.expect("no answer to a request without partitions");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_left_memory_is_read_from_the_disk() {
    let world = World::with(|config| config.memory.pool = 16 << 20).await;
    world.topic("t", 4);
    let mut client = world.client().await;
    let value = "x".repeat(50_000);
    for round in 0..40 {
        for index in 0..4 {
            let answer = produce(
                &mut client,
                9,
                "t",
                index,
                plain(&format!("{round}-{value}"), 4),
            )
            .await;
            assert_eq!(answer.error_code, 0);
        }
    }
    let mut offsets = [0; 4];
    while offsets.iter().any(|offset| *offset < 160) {
        let wanted = (0..4).map(|p| partition(p, offsets[p as usize])).collect();
        let reply = fetch(&mut client, 12, &request("t", wanted)).await;
        assert_eq!(
            reply.responses[0].partitions.len(),
            4,
            "a full answer names all"
        );
        let mut moved = false;
        for data in &reply.responses[0].partitions {
            assert_eq!(data.error_code, 0);
            let at = &mut offsets[data.partition_index as usize];
            for (offset, value) in records(data) {
                assert_eq!(offset, *at);
                assert!(value.starts_with(&format!("{}-", offset / 4)));
                *at += 1;
                moved = true;
            }
        }
        assert!(moved);
    }
}

/// Java's client may begin a session with names and go on with topic ids: it is told to begin a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_names_topics_in_one_way() {
    let world = World::start().await;
    world.topic("t", 1);
    let stream = world.broker.shared().data.catalog.named("t").unwrap();
    let id = stream.id().0;
    let mut client = world.client().await;
    produce(&mut client, 9, "t", 0, plain("v", 1)).await;
    for (begun, goes_on) in [(12, 13), (12, 18), (18, 12)] {
        let of_version = |version: i16, partitions: Vec<FetchPartition>| {
            let mut request = request("t", partitions);
            if version >= 13 {
                request.topics[0].topic = name("");
                request.topics[0].topic_id = id;
            }
            request
        };
        let all = || vec![partition(0, 0)];
        let first = of_version(begun, all()).with_session_epoch(0);
        let session = fetch(&mut client, begun, &first).await.session_id;
        assert_ne!(session, 0);
        // As one that names no topic, and one that names a topic in the other way.
        for topics in [Vec::new(), of_version(goes_on, all()).topics] {
            let next = of_version(goes_on, Vec::new())
                .with_topics(topics)
                .with_session_id(session)
                .with_session_epoch(1);
            let reply = fetch(&mut client, goes_on, &next).await;
            let error = ResponseError::FetchSessionTopicIdError.code();
            assert_eq!((reply.error_code, reply.responses.len()), (error, 0));
        }
        // What a client does then.
        let anew = of_version(goes_on, all())
            .with_session_id(session)
            .with_session_epoch(0);
        let reply = fetch(&mut client, goes_on, &anew).await;
        assert_eq!(reply.error_code, 0);
        let read = records(&reply.responses[0].partitions[0]);
        assert_eq!(read, [(0, "v0".to_owned())]);
    }
}
