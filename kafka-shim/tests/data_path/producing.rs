use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{ApiKey, ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kera_metadata::{StreamConfig, TimestampType};
use kera_protocol::batch::{Compression, ProducerStamp};

use crate::common::{Client, PATIENCE, World, batch};
use crate::fetching;

pub fn request(topic: &str, acks: i16, parts: &[(i32, Bytes)]) -> ProduceRequest {
    let partitions = parts.iter().map(|(index, records)| {
        PartitionProduceData::default()
            .with_index(*index)
            .with_records(Some(records.clone()))
    });
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![
            TopicProduceData::default()
                .with_name(TopicName(StrBytes::from_string(topic.to_string())))
                .with_partition_data(partitions.collect()),
        ])
}

pub async fn produce(
    client: &mut Client,
    version: i16,
    topic: &str,
    partition: i32,
    records: Bytes,
) -> PartitionProduceResponse {
    let request = request(topic, -1, &[(partition, records)]);
    let reply: ProduceResponse = client.call(ApiKey::Produce, version, &request).await;
    reply.responses[0].partition_responses[0].clone()
}

fn plain(records: usize) -> Bytes {
    batch("v", records, Compression::None, ProducerStamp::NONE)
}

fn stamp(producer_id: i64, producer_epoch: i16, base_sequence: i32) -> ProducerStamp {
    ProducerStamp {
        producer_id,
        producer_epoch,
        base_sequence,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_is_acknowledged_with_its_offset() {
    let world = World::start().await;
    world.topic("t", 2);
    let mut client = world.client().await;
    let mut expected = 0;
    for version in 3..=12 {
        let answer = produce(&mut client, version, "t", 1, plain(3)).await;
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (0, expected),
            "version {version}"
        );
        assert_eq!(answer.log_append_time_ms, -1);
        expected += 3;
    }
    let id = world
        .broker
        .shared()
        .data
        .catalog
        .named("t")
        .unwrap()
        .id()
        .0;
    let mut by_id = request("", -1, &[(1, plain(1))]);
    by_id.topic_data[0].topic_id = id;
    let reply: ProduceResponse = client.call(ApiKey::Produce, 13, &by_id).await;
    assert_eq!(reply.responses[0].topic_id, id);
    assert_eq!(
        reply.responses[0].partition_responses[0].base_offset,
        expected
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_on_their_way_are_answered_in_their_order() {
    let world = World::start().await;
    world.topic("t", 4);
    let mut client = world.client().await;
    let mut sent = Vec::new();
    for round in 0..400 {
        let parts: Vec<_> = (0..4).map(|p| (p, plain(1 + round % 3))).collect();
        sent.push(
            client
                .send(ApiKey::Produce, 9, &request("t", -1, &parts))
                .await,
        );
    }
    let mut next = 0;
    for (round, correlation) in sent.into_iter().enumerate() {
        let reply: ProduceResponse = client.receive(ApiKey::Produce, 9, correlation).await;
        for answer in &reply.responses[0].partition_responses {
            assert_eq!((answer.error_code, answer.base_offset), (0, next));
        }
        next += 1 + round as i64 % 3;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_says_why_and_stops_nothing_else() {
    let world = World::start().await;
    world.topic("t", 2);
    let small = StreamConfig {
        max_batch_bytes: 1024,
        ..StreamConfig::default()
    };
    world.create("small", small);
    let mut client = world.client().await;
    let code = |answer: PartitionProduceResponse| answer.error_code;
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(
        code(produce(&mut client, 9, "none", 0, plain(1)).await),
        unknown
    );
    assert_eq!(
        code(produce(&mut client, 9, "t", 2, plain(1)).await),
        unknown
    );
    assert_eq!(
        code(produce(&mut client, 9, "t", -1, plain(1)).await),
        unknown
    );
    let large = produce(&mut client, 9, "small", 0, plain(500)).await;
    assert_eq!(large.error_code, ResponseError::MessageTooLarge.code());
    assert!(large.error_message.unwrap().contains("1024"));
    let mut damaged = plain(2).to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let answer = produce(&mut client, 9, "t", 0, damaged.into()).await;
    assert_eq!(answer.error_code, ResponseError::CorruptMessage.code());
    let two = [plain(1), plain(1)].concat();
    let answer = produce(&mut client, 9, "t", 0, two.into()).await;
    assert_eq!(answer.error_code, ResponseError::InvalidRecord.code());
    let mut old = plain(1).to_vec();
    old[16] = 1;
    let answer = produce(&mut client, 9, "t", 0, old.into()).await;
    assert_eq!(
        answer.error_code,
        ResponseError::UnsupportedForMessageFormat.code()
    );
    let zstd = batch("v", 300, Compression::Zstd, ProducerStamp::NONE);
    let answer = produce(&mut client, 6, "t", 0, zstd.clone()).await;
    assert_eq!(
        answer.error_code,
        ResponseError::UnsupportedCompressionType.code()
    );
    // Beside a refused one the others are placed.
    let both = request("t", 1, &[(7, plain(1)), (1, zstd)]);
    let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &both).await;
    let codes: Vec<_> = reply.responses[0]
        .partition_responses
        .iter()
        .map(|p| (p.error_code, p.base_offset))
        .collect();
    assert_eq!(codes, [(unknown, -1), (0, 0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_are_recognised_and_gaps_refused() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    let sent = |epoch, sequence| batch("v", 5, Compression::None, stamp(9, epoch, sequence));
    for (epoch, sequence, code, offset) in [
        (0, 0, 0, 0),
        (0, 5, 0, 5),
        (0, 0, 0, 0),
        (0, 20, ResponseError::OutOfOrderSequenceNumber.code(), -1),
        (1, 0, 0, 10),
        (0, 10, ResponseError::InvalidProducerEpoch.code(), -1),
    ] {
        let answer = produce(&mut client, 9, "t", 0, sent(epoch, sequence)).await;
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (code, offset),
            "{epoch} {sequence}"
        );
    }
    let stranger = batch("v", 1, Compression::None, stamp(77, 0, 3));
    let answer = produce(&mut client, 9, "t", 0, stranger).await;
    assert_eq!(answer.error_code, ResponseError::UnknownProducerId.code());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_brokers_time_is_stamped_and_told() {
    let world = World::start().await;
    let config = StreamConfig {
        timestamp_type: TimestampType::Append,
        ..StreamConfig::default()
    };
    world.create("t", config);
    let mut client = world.client().await;
    let answer = produce(&mut client, 9, "t", 0, plain(2)).await;
    assert_eq!(answer.error_code, 0);
    assert!(answer.log_append_time_ms > 1_700_000_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_acknowledgement_a_refusal_closes_the_connection() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    client
        .send(ApiKey::Produce, 9, &request("t", 0, &[(0, plain(1))]))
        .await;
    // The next reply is that of the next request.
    let answer = produce(&mut client, 9, "t", 0, plain(1)).await;
    assert_eq!(answer.base_offset, 1);
    client
        .send(ApiKey::Produce, 9, &request("none", 0, &[(0, plain(1))]))
        .await;
    assert!(client.closed().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_wait_for_memory_and_none_is_lost() {
    let world = World::with(|config| config.memory.pool = 16 << 20).await;
    world.topic("t", 1);
    let value = "x".repeat(100_000);
    let large = batch(&value, 5, Compression::None, ProducerStamp::NONE);
    let mut clients = Vec::new();
    for _ in 0..4 {
        let (mut client, large) = (world.client().await, large.clone());
        clients.push(tokio::spawn(async move {
            let mut sent = Vec::new();
            for _ in 0..40 {
                let request = request("t", -1, &[(0, large.clone())]);
                sent.push(client.send(ApiKey::Produce, 9, &request).await);
            }
            for correlation in sent {
                let reply: ProduceResponse = client.receive(ApiKey::Produce, 9, correlation).await;
                assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    let stream = world.broker.shared().data.catalog.named("t").unwrap();
    assert_eq!(stream.streamlets.get(0).unwrap().bounds()[0].2, 4 * 40 * 5);
}

/// librdkafka would number batches anew that may be stored, if a batch behind a failed one were told of a gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_behind_one_that_failed_is_sent_again_and_not_told_of_a_gap() {
    let world = World::start().await;
    let mut client = world.client().await;
    let of = |sequence| batch("v", 3, Compression::None, stamp(41, 0, sequence));
    let code = |answer: PartitionProduceResponse| ResponseError::try_from_code(answer.error_code);
    let failed = code(produce(&mut client, 9, "t", 0, of(0)).await);
    assert_eq!(failed, Some(ResponseError::UnknownTopicOrPartition));
    world.topic("t", 1);
    // On their way when the first was refused.
    for sequence in [3, 6] {
        let answer = code(produce(&mut client, 9, "t", 0, of(sequence)).await);
        assert_eq!(answer, Some(ResponseError::NotLeaderOrFollower));
    }
    for sequence in [0, 3, 6] {
        assert_eq!(
            code(produce(&mut client, 9, "t", 0, of(sequence)).await),
            None
        );
    }
    // Nothing explains this one.
    let gap = code(produce(&mut client, 9, "t", 0, of(12)).await);
    assert_eq!(gap, Some(ResponseError::OutOfOrderSequenceNumber));
    let unknown = batch("v", 1, Compression::None, stamp(42, 0, 5));
    let answer = code(produce(&mut client, 9, "t", 0, unknown).await);
    assert_eq!(answer, Some(ResponseError::UnknownProducerId));
}

/// Waits until a partition of a topic ends at an offset.
pub async fn wait_for_end(world: &World, topic: &str, end: i64) {
    let mut client = world.client().await;
    let reached = async {
        while fetching::one(&mut client, 11, topic, 0, 0)
            .await
            .high_watermark
            < end
        {
            tokio::task::yield_now().await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("{topic} does not come to {end}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sent_that_wants_no_answers_is_kept_when_it_goes() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    // More than are worked on at once.
    for _ in 0..1000 {
        let request = request("t", 0, &[(0, plain(1))]);
        client.send(ApiKey::Produce, 9, &request).await;
    }
    drop(client);
    wait_for_end(&world, "t", 1000).await;
}
