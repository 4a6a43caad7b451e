use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{
    ApiKey, CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest,
    CreateTopicsResponse, DeleteRecordsRequest, DeleteRecordsResponse, DeleteTopicsRequest,
    DeleteTopicsResponse,
};
use kera_protocol::batch::{Compression, ProducerStamp};
use kera_protocol::ids::StreamletId;
use uuid::Uuid;

use crate::common::{Client, World, batch};
use crate::metadata::partitions_of_topic;
use crate::offsets::list;
use crate::{assert_code, create, created, name, produce, topic, versions};

async fn delete(
    client: &mut Client,
    version: i16,
    request: DeleteTopicsRequest,
) -> DeletableTopicResult {
    let response: DeleteTopicsResponse = client.call(ApiKey::DeleteTopics, version, &request).await;
    assert_eq!(response.responses.len(), 1);
    response.responses[0].clone()
}

pub async fn deleted(client: &mut Client, text: &str) {
    let request = DeleteTopicsRequest::default().with_topic_names(vec![name(text)]);
    let result = delete(client, 5, request).await;
    assert_eq!(result.error_code, 0, "{:?}", result.error_message);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_creates_topics() {
    let world = World::with(|config| config.kafka.default_partitions = 5).await;
    let mut client = world.client().await;
    for version in versions(ApiKey::CreateTopics) {
        let text = format!("t{version}");
        let configs = [("retention.ms", "60000"), ("index.interval.bytes", "1")];
        let made = create(&mut client, version, topic(&text, 4, &configs)).await;
        assert_eq!(made.error_code, 0, "{:?}", made.error_message);
        let stream = world
            .broker
            .shared()
            .data
            .catalog
            .named(&text)
            .expect("the stream");
        let config = stream.record.load().config.clone();
        assert_eq!(
            (config.streamlets, config.lanes, config.retention_ms),
            (4, 1, 60_000)
        );
        if version >= 5 {
            assert_eq!((made.num_partitions, made.replication_factor), (4, 1));
            let told = made.configs.expect("settings");
            let retention = told
                .iter()
                .find(|c| c.name.as_str() == "retention.ms")
                .expect("it");
            assert_eq!(retention.value.as_deref(), Some("60000"));
            assert_eq!((retention.config_source, retention.read_only), (1, false));
        }
        if version >= 7 {
            assert_eq!(made.topic_id, stream.id().0);
        }
        let again = create(&mut client, version, topic(&text, 4, &[])).await;
        assert_code(again.error_code, ResponseError::TopicAlreadyExists);
        assert!(again.error_message.is_some());

        let mut by_default = topic(&format!("d{version}"), -1, &[]);
        by_default.replication_factor = -1;
        assert_eq!(create(&mut client, version, by_default).await.error_code, 0);
        let stream = world
            .broker
            .shared()
            .data
            .catalog
            .named(&format!("d{version}"));
        assert_eq!(stream.expect("the stream").streamlets.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_created_is_refused_with_kafkas_error() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "a.b", 1).await;
    let mut twice = topic("r", 1, &[]);
    twice.replication_factor = 2;
    let with_assignment = |index, broker: i32| {
        let mut assigned = topic("r", -1, &[]);
        assigned.replication_factor = -1;
        assigned.assignments = vec![
            CreatableReplicaAssignment::default()
                .with_partition_index(index)
                .with_broker_ids(vec![broker.into()]),
        ];
        assigned
    };
    let mut both = with_assignment(0, 1);
    both.num_partitions = 1;
    let mut no_value = topic("r", 1, &[("retention.ms", "1")]);
    no_value.configs[0].value = None;
    use ResponseError as Kafka;
    for (asked, error) in [
        (topic("", 1, &[]), Kafka::InvalidTopicException),
        (topic("a b", 1, &[]), Kafka::InvalidTopicException),
        (topic("_kera_x", 1, &[]), Kafka::InvalidTopicException),
        (topic("a_b", 1, &[]), Kafka::InvalidTopicException),
        (topic("__consumer_offsets", 1, &[]), Kafka::InvalidRequest),
        (topic("r", 0, &[]), Kafka::InvalidPartitions),
        (topic("r", -2, &[]), Kafka::InvalidPartitions),
        (topic("r", 1 << 20, &[]), Kafka::InvalidPartitions),
        (twice, Kafka::InvalidReplicationFactor),
        (with_assignment(0, 2), Kafka::InvalidReplicaAssignment),
        (with_assignment(1, 1), Kafka::InvalidReplicaAssignment),
        (both, Kafka::InvalidRequest),
        (no_value, Kafka::InvalidConfig),
        (
            topic("r", 1, &[("retention.mss", "1")]),
            Kafka::InvalidConfig,
        ),
        (
            topic("r", 1, &[("cleanup.policy", "snapshot")]),
            Kafka::InvalidConfig,
        ),
        (
            topic("r", 1, &[("max.message.bytes", "2000000000")]),
            Kafka::InvalidConfig,
        ),
        (topic("r", 5, &[("kera.lanes", "2")]), Kafka::InvalidConfig),
    ] {
        let what = format!("{asked:?}");
        let result = create(&mut client, 7, asked).await;
        assert_eq!(
            ResponseError::try_from_code(result.error_code),
            Some(error),
            "{what}"
        );
        assert!(result.error_message.is_some_and(|text| !text.is_empty()));
    }
    assert!(world.broker.shared().data.catalog.named("r").is_none());
    // By assignment to the one broker.
    assert_eq!(
        create(&mut client, 7, with_assignment(0, 1))
            .await
            .num_partitions,
        1
    );

    let doubled = vec![topic("x", 1, &[]), topic("y", 1, &[]), topic("x", 2, &[])];
    let request = CreateTopicsRequest::default().with_topics(doubled);
    let response: CreateTopicsResponse = client.call(ApiKey::CreateTopics, 7, &request).await;
    let codes: Vec<_> = response
        .topics
        .iter()
        .map(|t| (t.name.as_str().to_owned(), t.error_code))
        .collect();
    let invalid = ResponseError::InvalidRequest.code();
    assert_eq!(codes, [("x".to_owned(), invalid), ("y".to_owned(), 0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn validation_only_creates_nothing() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "there", 1).await;
    let asked = [
        topic("new", 3, &[]),
        topic("there", 1, &[]),
        topic("bad", 1, &[("x", "y")]),
    ];
    let request = CreateTopicsRequest::default()
        .with_topics(asked.to_vec())
        .with_validate_only(true);
    let response: CreateTopicsResponse = client.call(ApiKey::CreateTopics, 7, &request).await;
    let codes: Vec<_> = response.topics.iter().map(|t| t.error_code).collect();
    let exists = ResponseError::TopicAlreadyExists.code();
    assert_eq!(codes, [0, exists, ResponseError::InvalidConfig.code()]);
    assert_eq!(response.topics[0].num_partitions, 3);
    assert!(world.broker.shared().data.catalog.named("new").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_deletes_topics() {
    let world = World::start().await;
    let mut client = world.client().await;
    for version in versions(ApiKey::DeleteTopics) {
        let asked = |text: &str| match version {
            ..6 => DeleteTopicsRequest::default().with_topic_names(vec![name(text)]),
            _ => {
                let topic = DeleteTopicState::default().with_name(Some(name(text)));
                DeleteTopicsRequest::default().with_topics(vec![topic])
            }
        };
        created(&mut client, "t", 1).await;
        assert_eq!(delete(&mut client, version, asked("t")).await.error_code, 0);
        let gone = delete(&mut client, version, asked("t")).await;
        assert_code(gone.error_code, ResponseError::UnknownTopicOrPartition);
        let hidden = delete(&mut client, version, asked("_kera_groups")).await;
        assert_code(hidden.error_code, ResponseError::UnknownTopicOrPartition);
    }
    let id = created(&mut client, "t", 1).await.topic_id;
    let state = |name, id| {
        let topic = DeleteTopicState::default()
            .with_name(name)
            .with_topic_id(id);
        DeleteTopicsRequest::default().with_topics(vec![topic])
    };
    let both = delete(&mut client, 6, state(Some(name("t")), id)).await;
    assert_code(both.error_code, ResponseError::InvalidRequest);
    let unknown = delete(&mut client, 6, state(None, Uuid::from_u128(7))).await;
    assert_code(unknown.error_code, ResponseError::UnknownTopicId);
    let gone = delete(&mut client, 6, state(None, id)).await;
    assert_eq!((gone.error_code, gone.name), (0, Some(name("t"))));
    assert!(world.broker.shared().data.catalog.named("t").is_none());
}

async fn grow(
    client: &mut Client,
    version: i16,
    text: &str,
    count: i32,
    change: impl FnOnce(&mut CreatePartitionsRequest),
) -> (i16, String) {
    let topic = CreatePartitionsTopic::default()
        .with_name(name(text))
        .with_count(count)
        .with_assignments(None);
    let mut request = CreatePartitionsRequest::default().with_topics(vec![topic]);
    change(&mut request);
    let response: CreatePartitionsResponse = client
        .call(ApiKey::CreatePartitions, version, &request)
        .await;
    let result = &response.results[0];
    let text = result.error_message.as_ref().map(|t| t.as_str().to_owned());
    (result.error_code, text.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_grow_to_any_larger_number() {
    let world = World::start().await;
    let mut client = world.client().await;
    // Each keeps so many bytes, which are recorded for all of them.
    let configs = [("retention.bytes", "1000")];
    assert_eq!(
        create(&mut client, 7, topic("t", 4, &configs))
            .await
            .error_code,
        0
    );
    let records = || batch("v", 5, Compression::None, ProducerStamp::NONE);
    let stream = world
        .broker
        .shared()
        .data
        .catalog
        .named("t")
        .expect("the stream");
    let mut partitions = 4;
    let steps = versions(ApiKey::CreatePartitions)
        .cycle()
        .zip([6, 7, 13, 16, 21]);
    for (version, wanted) in steps {
        let partitions_of = || stream.record.load().config.partitions() as i32;
        let (code, _) = grow(&mut client, version, "t", wanted, |r| {
            r.validate_only = true
        })
        .await;
        assert_eq!((code, partitions_of()), (0, partitions));
        let (code, text) = grow(&mut client, version, "t", wanted, |_| {}).await;
        assert_eq!(code, 0, "{text}");
        assert_eq!(partitions_of(), wanted);
        partitions = wanted;
        // Of each partition as before.
        let config = stream.record.load().config.clone();
        assert_eq!(config.retention_bytes, 1000 * wanted as u64);
        let listed = partitions_of_topic(&mut client, "t").await;
        assert_eq!(listed, (0..wanted).collect::<Vec<_>>());
        for partition in 0..wanted {
            let before = list(&mut client, 10, "t", partition, -1).await.1;
            produce(&mut client, "t", partition, records()).await;
            assert_eq!(
                list(&mut client, 10, "t", partition, -1).await.1,
                before + 5
            );
        }
        assert_code(
            list(&mut client, 10, "t", wanted, -1).await.0,
            ResponseError::UnknownTopicOrPartition,
        );
        for too_few in [wanted, wanted - 1, 0, -1] {
            let (code, _) = grow(&mut client, version, "t", too_few, |_| {}).await;
            assert_code(code, ResponseError::InvalidPartitions);
        }
    }
    let (code, text) = grow(&mut client, 3, "t", 70_000, |_| {}).await;
    assert_code(code, ResponseError::InvalidPartitions);
    assert!(text.ends_with("the most is 65536"), "{text}");
    let lanes = |streamlet| stream.record.load().config.lanes_of(streamlet);
    assert_eq!(
        (0..4).map(|s| lanes(StreamletId(s))).collect::<Vec<_>>(),
        [6, 5, 5, 5]
    );
    let (code, _) = grow(&mut client, 3, "none", 3, |_| {}).await;
    assert_code(code, ResponseError::UnknownTopicOrPartition);
    let wanted = partitions + 3;
    for (brokers, count, fits) in [(1, 3, true), (1, 2, false), (2, 3, false)] {
        let one = CreatePartitionsAssignment::default().with_broker_ids(vec![brokers.into()]);
        let assigned = Some(vec![one; count]);
        let (code, _) = grow(&mut client, 3, "t", wanted, |r| {
            r.validate_only = true;
            r.topics[0].assignments = assigned;
        })
        .await;
        assert_eq!(code == 0, fits, "{brokers} {count}");
    }
}

/// What was created, grown and written is there after a restart, whose lanes are made from the record.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_in_unequal_numbers_are_recovered() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "t", 4).await;
    let records = || batch("v", 5, Compression::None, ProducerStamp::NONE);
    produce(&mut client, "t", 3, records()).await;
    for wanted in [6, 7] {
        let (code, text) = grow(&mut client, 3, "t", wanted, |_| {}).await;
        assert_eq!(code, 0, "{text}");
        produce(&mut client, "t", wanted - 1, records()).await;
    }
    drop(client);
    world.broker.shutdown().await;
    let world = World::at(world.dir, |_| {}).await;
    let mut client = world.client().await;
    let mut ends = Vec::new();
    for partition in 0..7 {
        ends.push(list(&mut client, 10, "t", partition, -1).await.1);
    }
    assert_eq!(ends, [0, 0, 0, 5, 0, 5, 5]);
    for partition in 0..7 {
        produce(&mut client, "t", partition, records()).await;
    }
}

async fn delete_below(
    client: &mut Client,
    version: i16,
    partition: i32,
    offset: i64,
) -> (i16, i64) {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(partition)
        .with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(name("t"))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]);
    let response: DeleteRecordsResponse =
        client.call(ApiKey::DeleteRecords, version, &request).await;
    let result = &response.topics[0].partitions[0];
    (result.error_code, result.low_watermark)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_deletes_records() {
    let world = World::start().await;
    let mut client = world.client().await;
    let (code, low) = delete_below(&mut client, 2, 0, 1).await;
    assert_code(code, ResponseError::UnknownTopicOrPartition);
    assert_eq!(low, -1);
    created(&mut client, "t", 2).await;
    for _ in 0..4 {
        produce(
            &mut client,
            "t",
            1,
            batch("v", 10, Compression::None, ProducerStamp::NONE),
        )
        .await;
    }
    for (round, version) in versions(ApiKey::DeleteRecords).enumerate() {
        // Within a batch, and lower again, which changes nothing.
        let to = 3 + 10 * round as i64;
        assert_eq!(delete_below(&mut client, version, 1, to).await, (0, to));
        assert_eq!(delete_below(&mut client, version, 1, 1).await, (0, to));
        assert_eq!(list(&mut client, 10, "t", 1, -2).await.1, to);
        for illegal in [41, -2] {
            let (code, _) = delete_below(&mut client, version, 1, illegal).await;
            assert_code(code, ResponseError::OffsetOutOfRange);
        }
        let (code, _) = delete_below(&mut client, version, 2, 0).await;
        assert_code(code, ResponseError::UnknownTopicOrPartition);
    }
    assert_eq!(delete_below(&mut client, 2, 1, -1).await, (0, 40));
    assert_eq!(delete_below(&mut client, 2, 0, -1).await, (0, 0));
    // What is not deleted stays so over a restart.
    drop(client);
    world.broker.shutdown().await;
    let world = World::at(world.dir, |_| {}).await;
    assert_eq!(list(&mut world.client().await, 10, "t", 1, -2).await.1, 40);
}
