//! What Kera does not have, does by itself or keeps to itself: tools and clients get an answer, not the end
//! of their connection.

use std::fmt::Debug;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::describe_quorum_request::{PartitionData, TopicData};
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    ApiKey, DescribeClusterRequest, DescribeClusterResponse, DescribeConfigsRequest,
    DescribeConfigsResponse, DescribeProducersRequest, DescribeProducersResponse,
    DescribeQuorumRequest, DescribeQuorumResponse, DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse, ElectLeadersRequest, ElectLeadersResponse,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, ListConfigResourcesRequest,
    ListConfigResourcesResponse, ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse, ListTransactionsRequest, ListTransactionsResponse,
    MetadataRequest, MetadataResponse, ProduceResponse,
};
use kera_broker::clock::now_ms;
use kera_protocol::batch::{Compression, ProducerStamp};

use crate::common::{Client, World, batch};
use crate::offsets::list;
use crate::{assert_code, create, created, name, produced, topic, versions, words};

const OFFSETS: &str = "__consumer_offsets";

fn none_of<T: Debug>(found: &[T]) {
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_an_empty_answer() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "t", 2).await;
    let request = ListPartitionReassignmentsRequest::default().with_topics(None);
    let answer: ListPartitionReassignmentsResponse = client
        .call(ApiKey::ListPartitionReassignments, 0, &request)
        .await;
    assert_eq!(answer.error_code, 0);
    none_of(&answer.topics);
    for version in versions(ApiKey::ListTransactions) {
        let request = ListTransactionsRequest::default();
        let answer: ListTransactionsResponse = client
            .call(ApiKey::ListTransactions, version, &request)
            .await;
        assert_eq!(answer.error_code, 0);
        none_of(&answer.transaction_states);
    }
    for version in versions(ApiKey::ElectLeaders) {
        let all = ElectLeadersRequest::default().with_topic_partitions(None);
        let answer: ElectLeadersResponse = client.call(ApiKey::ElectLeaders, version, &all).await;
        assert_eq!(answer.error_code, 0);
        none_of(&answer.replica_election_results);
        let some = TopicPartitions::default()
            .with_topic(name("t"))
            .with_partitions(vec![1, 2]);
        let some = all.with_topic_partitions(Some(vec![some]));
        let answer: ElectLeadersResponse = client.call(ApiKey::ElectLeaders, version, &some).await;
        let results = &answer.replica_election_results[0].partition_result;
        assert_code(results[0].error_code, ResponseError::ElectionNotNeeded);
        assert_code(
            results[1].error_code,
            ResponseError::UnknownTopicOrPartition,
        );
    }
    for version in versions(ApiKey::DescribeQuorum) {
        let topics = TopicData::default()
            .with_topic_name(name("__cluster_metadata"))
            .with_partitions(vec![PartitionData::default()]);
        let request = DescribeQuorumRequest::default().with_topics(vec![topics]);
        let answer: DescribeQuorumResponse =
            client.call(ApiKey::DescribeQuorum, version, &request).await;
        assert_code(answer.error_code, ResponseError::UnsupportedVersion);
        let said = answer.error_message;
        assert_eq!(said.is_some_and(|said| said.contains("etcd")), version >= 2);
        none_of(&answer.topics);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_producers_of_a_partition_are_those_that_it_remembers() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "t", 2).await;
    let before = now_ms();
    for (producer_id, producer_epoch, base_sequence) in
        [(71, 3, 0), (70, 0, 0), (71, 3, 4), (-1, -1, -1)]
    {
        let stamp = ProducerStamp {
            producer_id,
            producer_epoch,
            base_sequence,
        };
        let records = batch("v", 4, Compression::None, stamp);
        let answer: ProduceResponse = produced(&mut client, "t", 1, records).await;
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    }
    let topics = |text: &str, partitions: Vec<i32>| {
        TopicRequest::default()
            .with_name(name(text))
            .with_partition_indexes(partitions)
    };
    let asked = vec![topics("t", vec![0, 1, 7]), topics("u", vec![0])];
    let request = DescribeProducersRequest::default().with_topics(asked);
    let answer: DescribeProducersResponse =
        client.call(ApiKey::DescribeProducers, 0, &request).await;
    let partitions = &answer.topics[0].partitions;
    assert_eq!((partitions[0].error_code, partitions[1].error_code), (0, 0));
    none_of(&partitions[0].active_producers);
    let found = &partitions[1].active_producers;
    let told: Vec<_> = found
        .iter()
        .map(|p| (p.producer_id.0, p.producer_epoch, p.last_sequence))
        .collect();
    assert_eq!(told, [(70, 0, 3), (71, 3, 7)]);
    for producer in found {
        let none = (
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
        );
        assert_eq!(none, (-1, -1));
        let since = u64::try_from(producer.last_timestamp).unwrap();
        assert!((before..=now_ms()).contains(&since), "{since}");
    }
    for absent in [&partitions[2], &answer.topics[1].partitions[0]] {
        assert_code(absent.error_code, ResponseError::UnknownTopicOrPartition);
        none_of(&absent.active_producers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_with_settings_are_listed() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "t", 1).await;
    for (version, kinds, expected) in [
        (0, vec![], vec![]),
        (1, vec![], vec![(2, "t"), (4, "1")]),
        (1, vec![2], vec![(2, "t")]),
        (1, vec![4, 16], vec![(4, "1")]),
        (1, vec![32], vec![]),
    ] {
        let request = ListConfigResourcesRequest::default().with_resource_types(kinds);
        let answer: ListConfigResourcesResponse = client
            .call(ApiKey::ListConfigResources, version, &request)
            .await;
        let found = answer.config_resources.iter();
        let found: Vec<_> = found
            .map(|found| (found.resource_type, found.resource_name.as_str()))
            .collect();
        assert_eq!((answer.error_code, found), (0, expected));
    }
}

async fn metadata(
    client: &mut Client,
    version: i16,
    topics: Option<Vec<MetadataRequestTopic>>,
) -> MetadataResponse {
    let mut request = MetadataRequest::default().with_topics(topics);
    request.include_topic_authorized_operations = version >= 8;
    request.include_cluster_authorized_operations = (8..=10).contains(&version);
    client.call(ApiKey::Metadata, version, &request).await
}

fn named<'a>(topics: &'a [MetadataResponseTopic], text: &str) -> &'a MetadataResponseTopic {
    let named = |topic: &&MetadataResponseTopic| topic.name.as_ref() == Some(&name(text));
    topics.iter().find(named).expect(text)
}

/// The bits that Kafka's clients read: read 3, write 4, describe 8.
fn may(operations: i32, bit: u32) -> bool {
    operations & 1 << bit != 0
}

#[tokio::test(flavor = "multi_thread")]
async fn what_anyone_may_do_is_told_to_who_asks() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "t", 1).await;
    for version in 8..=13 {
        let answer = metadata(&mut client, version, None).await;
        let operations = named(&answer.topics, "t").topic_authorized_operations;
        assert!([3, 4, 8].iter().all(|bit| may(operations, *bit)));
        let operations = named(&answer.topics, OFFSETS).topic_authorized_operations;
        assert!(may(operations, 8) && !may(operations, 3) && !may(operations, 4));
        let cluster = answer.cluster_authorized_operations;
        assert_eq!(version <= 10, cluster > 0 && may(cluster, 5), "{version}");
    }
    for version in versions(ApiKey::DescribeCluster) {
        for asked in [false, true] {
            let request =
                DescribeClusterRequest::default().with_include_cluster_authorized_operations(asked);
            let answer: DescribeClusterResponse = client
                .call(ApiKey::DescribeCluster, version, &request)
                .await;
            let told = answer.cluster_authorized_operations;
            assert_eq!(asked, told != i32::MIN && may(told, 8));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_topic_of_groups_is_listed_and_not_for_clients() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "t", 1).await;
    for version in versions(ApiKey::Metadata) {
        let all = if version > 0 { None } else { Some(Vec::new()) };
        let answer = metadata(&mut client, version, all).await;
        assert_eq!(answer.topics.len(), 2);
        let offsets = named(&answer.topics, OFFSETS);
        assert_eq!(offsets.is_internal, version >= 1);
        assert!(!offsets.partitions.is_empty() && offsets.error_code == 0);
        assert!(!named(&answer.topics, "t").is_internal);
        let one = MetadataRequestTopic::default().with_name(Some(name(OFFSETS)));
        let answer = metadata(&mut client, version, Some(vec![one])).await;
        assert_eq!(named(&answer.topics, OFFSETS).error_code, 0);
    }
    let request = DescribeTopicPartitionsRequest::default().with_response_partition_limit(100);
    let answer: DescribeTopicPartitionsResponse = client
        .call(ApiKey::DescribeTopicPartitions, 0, &request)
        .await;
    let internal = answer.topics.iter().filter(|topic| topic.is_internal);
    let internal: Vec<_> = internal.map(|topic| topic.name.clone()).collect();
    assert_eq!(internal, [Some(name(OFFSETS))]);
    // Tools ask where it begins and ends.
    assert_eq!(list(&mut client, 10, OFFSETS, 0, -2).await.0, 0);
    let records = batch("v", 1, Compression::None, ProducerStamp::NONE);
    let answer: ProduceResponse = produced(&mut client, OFFSETS, 0, records).await;
    let code = answer.responses[0].partition_responses[0].error_code;
    assert_code(code, ResponseError::InvalidTopicException);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topics_codec_is_a_hint() {
    let world = World::start().await;
    let mut client = world.client().await;
    for codec in ["zstd", "lz4", "snappy", "gzip", "uncompressed", "producer"] {
        let configs = [("compression.type", codec)];
        let made = create(&mut client, 7, topic(codec, 1, &configs)).await;
        assert_eq!(made.error_code, 0, "{codec}: {:?}", made.error_message);
    }
    let made = create(
        &mut client,
        7,
        topic("t", 1, &[("compression.type", "zip")]),
    )
    .await;
    assert_code(made.error_code, ResponseError::InvalidConfig);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_have_defaults_and_brokers_tell_where_they_are_reached() {
    let world = World::start().await;
    let mut client = world.client().await;
    let resource = |kind, text: &str| {
        DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(words(text))
            .with_configuration_keys(None)
    };
    for version in versions(ApiKey::DescribeConfigs) {
        let request = DescribeConfigsRequest::default()
            .with_resources(vec![resource(32, "g"), resource(4, "1")]);
        let answer: DescribeConfigsResponse = client
            .call(ApiKey::DescribeConfigs, version, &request)
            .await;
        assert_eq!(answer.results[0].error_code, 0);
        let times = answer.results[0].configs.iter().map(|config| {
            let value = config.value.as_ref().expect("a value");
            (config.name.to_string(), value.to_string(), config.read_only)
        });
        let times: Vec<_> = times.collect();
        let time = |name: &str, ms: &str| (name.to_owned(), ms.to_owned(), true);
        let of_shares = |name: &str, value: &str| (name.to_owned(), value.to_owned(), false);
        assert_eq!(
            times,
            [
                time("consumer.heartbeat.interval.ms", "5000"),
                time("consumer.session.timeout.ms", "45000"),
                of_shares("errors.deadletterqueue.copy.record.enable", "false"),
                of_shares("errors.deadletterqueue.topic.name", ""),
                of_shares("share.auto.offset.reset", "latest"),
                of_shares("share.record.lock.duration.ms", "30000"),
                of_shares("share.isolation.level", "read_uncommitted"),
                of_shares("share.delivery.count.limit", "5"),
                of_shares("share.partition.max.record.locks", "2000"),
                of_shares("share.renew.acknowledge.enable", "true"),
            ],
            "what the coordinator tells all of them, and what may be set for each"
        );
        let mut configs = answer.results[1].configs.iter();
        let listeners = configs.find(|config| config.name.as_str() == "advertised.listeners");
        let told = listeners.and_then(|config| config.value.clone());
        let told = told.expect("a value");
        assert!(
            told.as_str().starts_with("PLAINTEXT://127.0.0.1:"),
            "{told:?}"
        );
    }
    let config = AlterableConfig::default()
        .with_name(words("consumer.session.timeout.ms"))
        .with_value(Some(words("1000")));
    let group = AlterConfigsResource::default()
        .with_resource_type(32)
        .with_resource_name(words("g"))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![group]);
    let answer: IncrementalAlterConfigsResponse = client
        .call(ApiKey::IncrementalAlterConfigs, 1, &request)
        .await;
    assert_code(answer.responses[0].error_code, ResponseError::InvalidConfig);
    let said = answer.responses[0].error_message.clone();
    assert!(said.is_some_and(|said| said.contains("bring their timeouts")));
}
