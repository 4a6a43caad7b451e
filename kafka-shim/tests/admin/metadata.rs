use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    ApiKey, DescribeClusterRequest, DescribeClusterResponse, DescribeLogDirsRequest,
    DescribeLogDirsResponse, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
    InitProducerIdRequest, InitProducerIdResponse, MetadataRequest, MetadataResponse,
    TransactionalId,
};
use kera_protocol::batch::{Compression, ProducerStamp};
use uuid::Uuid;

use crate::common::{Client, World, batch};
use crate::{assert_code, created, name, produce, versions, words};

async fn metadata(
    client: &mut Client,
    version: i16,
    request: &MetadataRequest,
) -> MetadataResponse {
    client.call(ApiKey::Metadata, version, request).await
}

fn by_name(text: &str) -> MetadataRequestTopic {
    MetadataRequestTopic::default().with_name(Some(name(text)))
}

async fn one(
    client: &mut Client,
    version: i16,
    topic: MetadataRequestTopic,
) -> MetadataResponseTopic {
    let mut request = MetadataRequest::default().with_topics(Some(vec![topic]));
    if version >= 4 {
        request.allow_auto_topic_creation = true;
    }
    let response = metadata(client, version, &request).await;
    assert_eq!(response.topics.len(), 1);
    response.topics[0].clone()
}

/// The numbers of a topic's partitions, as they are listed.
pub async fn partitions_of_topic(client: &mut Client, text: &str) -> Vec<i32> {
    let topic = one(client, 12, by_name(text)).await;
    let partitions = topic.partitions.iter();
    partitions.map(|p| p.partition_index).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_names_broker_and_topics() {
    let world = World::start().await;
    let mut client = world.client().await;
    let id = created(&mut client, "t", 3).await.topic_id;
    let cluster = world.broker.shared().cluster_id();
    assert_eq!(cluster.len(), 22);
    for version in versions(ApiKey::Metadata) {
        let all = match version {
            0 => Some(Vec::new()),
            _ => None,
        };
        let request = MetadataRequest::default().with_topics(all);
        let response = metadata(&mut client, version, &request).await;
        let broker = &response.brokers[0];
        assert_eq!((broker.node_id.0, broker.host.as_str()), (1, "127.0.0.1"));
        assert_eq!(broker.port, i32::from(world.kafka.port()));
        if version >= 1 {
            assert_eq!(response.controller_id.0, 1);
        }
        if version >= 2 {
            assert_eq!(response.cluster_id.as_deref(), Some(cluster.as_str()));
        }
        // Of the broker's own streams that of groups is shown, behind the others.
        assert_eq!(response.topics.len(), 2, "version {version}");
        for found in [
            response.topics[0].clone(),
            one(&mut client, version, by_name("t")).await,
        ] {
            assert_eq!(found.error_code, 0);
            assert_eq!(found.name.as_deref().map(|n| n.as_str()), Some("t"));
            let indexes: Vec<_> = found.partitions.iter().map(|p| p.partition_index).collect();
            assert_eq!(indexes, [0, 1, 2]);
            for partition in &found.partitions {
                assert_eq!(partition.leader_id.0, 1);
                assert_eq!(partition.isr_nodes, [1]);
                assert_eq!(partition.leader_epoch, if version >= 7 { 1 } else { -1 });
            }
            assert_eq!(found.topic_id, if version >= 10 { id } else { Uuid::nil() });
        }
        if version >= 1 {
            let none = MetadataRequest::default().with_topics(Some(Vec::new()));
            assert!(
                metadata(&mut client, version, &none)
                    .await
                    .topics
                    .is_empty()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_found_by_id() {
    let world = World::start().await;
    let mut client = world.client().await;
    let id = created(&mut client, "t", 1).await.topic_id;
    let with_id = |id| {
        MetadataRequestTopic::default()
            .with_name(None)
            .with_topic_id(id)
    };
    for version in 12..=13 {
        let found = one(&mut client, version, with_id(id)).await;
        assert_eq!((found.error_code, found.topic_id), (0, id));
        assert_eq!(found.name, Some(name("t")));
        let unknown = one(&mut client, version, with_id(Uuid::from_u128(9))).await;
        assert_code(unknown.error_code, ResponseError::UnknownTopicId);
        let nothing = one(&mut client, version, with_id(Uuid::nil())).await;
        assert_code(nothing.error_code, ResponseError::InvalidRequest);
    }
    for version in 10..=11 {
        let early = one(&mut client, version, with_id(id)).await;
        assert_code(early.error_code, ResponseError::InvalidRequest);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_created_when_client_and_broker_allow_it() {
    let world = World::with(|config| config.kafka.default_partitions = 3).await;
    let mut client = world.client().await;
    for version in versions(ApiKey::Metadata) {
        let text = format!("made{version}");
        let made = one(&mut client, version, by_name(&text)).await;
        assert_eq!(
            (made.error_code, made.partitions.len()),
            (0, 3),
            "version {version}"
        );
    }
    for (text, error) in [
        ("no/name", ResponseError::InvalidTopicException),
        ("_kera_own", ResponseError::InvalidTopicException),
        (
            "__transaction_state",
            ResponseError::UnknownTopicOrPartition,
        ),
    ] {
        let refused = one(&mut client, 12, by_name(text)).await;
        assert_code(refused.error_code, error);
    }
    for version in 4..=13 {
        let request = MetadataRequest::default()
            .with_topics(Some(vec![by_name("other"), by_name("other")]))
            .with_allow_auto_topic_creation(false);
        let response = metadata(&mut client, version, &request).await;
        assert_eq!(response.topics.len(), 1, "asked for twice, told once");
        assert_code(
            response.topics[0].error_code,
            ResponseError::UnknownTopicOrPartition,
        );
    }
    let world = World::with(|config| config.kafka.auto_create_topics = false).await;
    let refused = one(&mut world.client().await, 12, by_name("other")).await;
    assert_code(refused.error_code, ResponseError::UnknownTopicOrPartition);
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_epochs_rise_over_restarts_and_for_a_name_used_again() {
    let mut world = World::start().await;
    let mut last = 0;
    for round in 0..6 {
        let mut client = world.client().await;
        let found = one(&mut client, 12, by_name("t")).await;
        let epoch = found.partitions[0].leader_epoch;
        assert!(epoch > last, "{epoch} follows {last}");
        last = epoch;
        if round % 2 == 0 {
            crate::topics::deleted(&mut client, "t").await;
        }
        // The restart raises what there is; what is deleted is only remembered over it.
        if round % 3 > 0 {
            drop(client);
            world.broker.shutdown().await;
            world = World::at(world.dir, |_| {}).await;
        }
        if round == 3 {
            crate::topics::deleted(&mut world.client().await, "t").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_described_page_by_page() {
    let world = World::start().await;
    let mut client = world.client().await;
    for (text, partitions) in [("a", 3), ("b", 1), ("c", 4)] {
        created(&mut client, text, partitions).await;
    }
    let mut seen = Vec::new();
    let mut cursor = None;
    let mut pages = 0;
    loop {
        let request = DescribeTopicPartitionsRequest::default()
            .with_response_partition_limit(3)
            .with_cursor(cursor);
        let response: DescribeTopicPartitionsResponse = client
            .call(ApiKey::DescribeTopicPartitions, 0, &request)
            .await;
        let mut in_page = 0;
        for topic in &response.topics {
            let text = topic.name.as_ref().expect("a name").as_str().to_owned();
            in_page += topic.partitions.len();
            seen.extend(
                topic
                    .partitions
                    .iter()
                    .map(|p| (text.clone(), p.partition_index)),
            );
        }
        assert!((1..=3).contains(&in_page));
        pages += 1;
        let Some(next) = response.next_cursor else {
            break;
        };
        cursor = Some(
            Cursor::default()
                .with_topic_name(next.topic_name)
                .with_partition_index(next.partition_index),
        );
    }
    assert_eq!(pages, seen.len().div_ceil(3));
    seen.retain(|(text, _)| text != "__consumer_offsets");
    let counts = [("a", 3), ("b", 1), ("c", 4)];
    let all = counts
        .iter()
        .flat_map(|(text, n)| (0..*n).map(|p| ((*text).to_owned(), p)));
    assert_eq!(seen, all.collect::<Vec<_>>());

    let asked = ["c", "zzz", "b"].map(|text| TopicRequest::default().with_name(name(text)));
    let request = DescribeTopicPartitionsRequest::default()
        .with_topics(asked.to_vec())
        .with_response_partition_limit(2000);
    let response: DescribeTopicPartitionsResponse = client
        .call(ApiKey::DescribeTopicPartitions, 0, &request)
        .await;
    let found: Vec<_> = response
        .topics
        .iter()
        .map(|t| (t.error_code, t.partitions.len()))
        .collect();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(found, [(0, 1), (0, 4), (unknown, 0)]);
    assert_eq!(response.next_cursor, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_is_one_broker() {
    let world = World::start().await;
    let mut client = world.client().await;
    for version in versions(ApiKey::DescribeCluster) {
        let request = DescribeClusterRequest::default();
        let response: DescribeClusterResponse = client
            .call(ApiKey::DescribeCluster, version, &request)
            .await;
        assert_eq!(response.error_code, 0);
        assert_eq!(
            response.cluster_id.as_str(),
            world.broker.shared().cluster_id()
        );
        assert_eq!(response.controller_id.0, 1);
        assert_eq!(response.brokers[0].port, i32::from(world.kafka.port()));
        if version >= 1 {
            let request = request.with_endpoint_type(2);
            let response: DescribeClusterResponse = client
                .call(ApiKey::DescribeCluster, version, &request)
                .await;
            assert_code(response.error_code, ResponseError::MismatchedEndpointType);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_dirs_tell_the_bytes_of_partitions() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "a", 2).await;
    created(&mut client, "b", 1).await;
    let records = batch("v", 50, Compression::None, ProducerStamp::NONE);
    let bytes = records.len() as i64;
    produce(&mut client, "a", 1, records).await;
    for version in versions(ApiKey::DescribeLogDirs) {
        let asked = DescribableLogDirTopic::default()
            .with_topic(name("a"))
            .with_partitions(vec![1]);
        let request = DescribeLogDirsRequest::default().with_topics(Some(vec![asked]));
        let response: DescribeLogDirsResponse = client
            .call(ApiKey::DescribeLogDirs, version, &request)
            .await;
        let dir = &response.results[0];
        assert_eq!(dir.error_code, 0);
        assert!(dir.log_dir.as_str().ends_with("data"));
        assert_eq!((dir.topics.len(), dir.topics[0].partitions.len()), (1, 1));
        assert!(dir.topics[0].partitions[0].partition_size >= bytes);
        if version >= 4 {
            assert!(0 < dir.usable_bytes && dir.usable_bytes <= dir.total_bytes);
        }
        let request = DescribeLogDirsRequest::default().with_topics(None);
        let response: DescribeLogDirsResponse = client
            .call(ApiKey::DescribeLogDirs, version, &request)
            .await;
        let partitions: Vec<_> = response.results[0]
            .topics
            .iter()
            .map(|t| t.partitions.len())
            .collect();
        assert_eq!(partitions, [2, 1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn producer_ids_are_new_and_those_of_transactional_ids_stay() {
    let world = World::start().await;
    let mut client = world.client().await;
    let mut ids = std::collections::HashSet::new();
    let mut transactional = None;
    for version in versions(ApiKey::InitProducerId) {
        let mut request = InitProducerIdRequest::default().with_transactional_id(None);
        if version >= 3 {
            request = request.with_producer_id(4.into()).with_producer_epoch(2);
        }
        let response: InitProducerIdResponse = client.init_producer_id(version, &request).await;
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        assert!(ids.insert(response.producer_id.0));
        request.transactional_id = Some(TransactionalId(words("x")));
        request.transaction_timeout_ms = 1_000;
        request.producer_id = (-1).into();
        request.producer_epoch = -1;
        let response = loop {
            let response: InitProducerIdResponse = client.init_producer_id(version, &request).await;
            // The coordinators' stream is made for the first.
            let loading = ResponseError::CoordinatorLoadInProgress.code();
            if response.error_code != loading {
                break response;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((response.error_code, response.producer_epoch), (0, version));
        let same = transactional.get_or_insert(response.producer_id.0);
        assert_eq!(response.producer_id.0, *same);
    }
    // Native producers take theirs from the same numbers.
    let native = kera_broker::admin::new_producer_id(world.broker.shared()).await;
    assert!(ids.insert(native.expect("an id") as i64));
}
