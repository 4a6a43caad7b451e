//! Records and groups under rules: what a right that comes or goes changes for a client that is connected.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    ApiKey, DescribeClusterRequest, DescribeClusterResponse, FetchResponse,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, ListGroupsRequest,
    ListGroupsResponse, MetadataRequest, MetadataResponse, ProduceResponse,
};
use kera_broker::access;
use kera_metadata::Rule;
use kera_metadata::access::{Kind, Operation, Pattern, Permission};
use kera_protocol::ids::{LaneId, StreamletId};
use uuid::Uuid;

use crate::common::{Client, World};
use crate::{
    GROUP, TOPIC, allow, deny, enforce, forget_rules, one_partition, requests, rule, words, world,
};

const PRODUCE: i16 = 9;
const FETCH: i16 = 12;

async fn produce(client: &mut Client) -> i16 {
    let request = requests::produce(PRODUCE, Uuid::nil());
    let reply: ProduceResponse = client.call(ApiKey::Produce, PRODUCE, &request).await;
    reply.responses[0].partition_responses[0].error_code
}

/// It says that its one partition may not be read, and gives nothing of it.
fn is_denied(reply: &FetchResponse) {
    let partition = &reply.responses[0].partitions[0];
    let expected = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!(partition.error_code, expected);
    assert!(
        partition
            .records
            .as_ref()
            .is_none_or(|bytes| bytes.is_empty())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stored_of_who_may_not_write_and_rights_count_at_once() {
    let world = world().await;
    world.create(TOPIC, one_partition());
    let mut client = world.client().await;
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!(produce(&mut client).await, denied);
    allow(&world, Kind::Stream, Operation::Read).await;
    assert_eq!(produce(&mut client).await, denied, "reading is not writing");
    allow(&world, Kind::Stream, Operation::Write).await;
    assert_eq!(produce(&mut client).await, 0);
    deny(&world, Kind::Stream, Operation::Write).await;
    assert_eq!(produce(&mut client).await, denied, "a denial comes first");
    let shared = world.broker.shared();
    let stream = shared.data.catalog.named(TOPIC).unwrap();
    let streamlet = stream.streamlet(StreamletId(0)).unwrap();
    let bounds = streamlet.lane_bounds(LaneId(0));
    assert_eq!(
        bounds,
        Some((0, 1)),
        "one record of the one that was allowed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_session_ends_with_the_right_to_read() {
    let world = world().await;
    world.create(TOPIC, one_partition());
    let mut client = world.client().await;
    allow(&world, Kind::Stream, Operation::Read).await;
    allow(&world, Kind::Stream, Operation::Write).await;
    assert_eq!(produce(&mut client).await, 0);
    let mut request = requests::fetch(FETCH, Uuid::nil());
    request.session_epoch = 0;
    let first: FetchResponse = client.call(ApiKey::Fetch, FETCH, &request).await;
    let partition = &first.responses[0].partitions[0];
    assert!(
        partition
            .records
            .as_ref()
            .is_some_and(|bytes| !bytes.is_empty())
    );
    assert_ne!(first.session_id, 0, "a session was made");

    // The session names the partition; the requests that follow do not.
    let mut next = request.clone();
    next.session_id = first.session_id;
    next.topics.clear();
    forget_rules(&world).await;
    next.session_epoch = 1;
    let denied: FetchResponse = client.call(ApiKey::Fetch, FETCH, &next).await;
    is_denied(&denied);

    allow(&world, Kind::Stream, Operation::Read).await;
    next.session_epoch = 2;
    let again: FetchResponse = client.call(ApiKey::Fetch, FETCH, &next).await;
    assert_eq!(again.responses[0].partitions[0].error_code, 0);
}

/// One that waits for more than there is, with bytes that it was allowed to read as they were written.
#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_waits_ends_with_the_right_to_read_and_gives_nothing() {
    let world = world().await;
    world.create(TOPIC, one_partition());
    let (mut reader, mut writer) = (world.client().await, world.client().await);
    allow(&world, Kind::Stream, Operation::Read).await;
    allow(&world, Kind::Stream, Operation::Write).await;
    assert_eq!(produce(&mut writer).await, 0);
    let mut request = requests::fetch(FETCH, Uuid::nil());
    (request.min_bytes, request.max_wait_ms) = (1 << 20, i32::MAX);
    let stream = world.broker.shared().data.catalog.named(TOPIC).unwrap();
    let streamlet = stream.streamlet(StreamletId(0)).unwrap();
    let head = streamlet.head(LaneId(0)).unwrap();
    let correlation = reader.send(ApiKey::Fetch, FETCH, &request).await;
    while head.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    deny(&world, Kind::Stream, Operation::Read).await;
    assert_eq!(produce(&mut writer).await, 0);
    let reply: FetchResponse = reader.receive(ApiKey::Fetch, FETCH, correlation).await;
    is_denied(&reply);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_leave_out_what_may_not_be_seen() {
    let world = world().await;
    world.create(TOPIC, one_partition());
    world.create("public", one_partition());
    let mut client = world.client().await;
    let names = |reply: &MetadataResponse| {
        let names = reply.topics.iter().flat_map(|topic| &topic.name);
        names.map(|name| name.to_string()).collect::<Vec<_>>()
    };
    let all = MetadataRequest::default().with_topics(None);
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 9, &all).await;
    assert_eq!(names(&reply), Vec::<String>::new());
    let public = Rule {
        name: "pub".to_owned(),
        pattern: Pattern::Prefixed,
        ..rule(Permission::Allow, Kind::Stream, Operation::Describe)
    };
    access::add(world.broker.shared(), &[public]).await.unwrap();
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 9, &all).await;
    assert_eq!(names(&reply), ["public"]);

    let groups = ListGroupsRequest::default();
    let reply: ListGroupsResponse = client.call(ApiKey::ListGroups, 4, &groups).await;
    assert_eq!((reply.error_code, reply.groups.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_what_it_may_do() {
    let world = world().await;
    world.create(TOPIC, one_partition());
    let mut client = world.client().await;
    allow(&world, Kind::Stream, Operation::Read).await;
    allow(&world, Kind::Cluster, Operation::Describe).await;
    let request = requests::metadata().with_include_topic_authorized_operations(true);
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 8, &request).await;
    let bits = |operations: &[Operation]| {
        let operations = operations.iter();
        operations.fold(0, |bits, one| bits | 1 << one.number())
    };
    let expected = bits(&[Operation::Read, Operation::Describe]);
    assert_eq!(reply.topics[0].topic_authorized_operations, expected);
    let request =
        DescribeClusterRequest::default().with_include_cluster_authorized_operations(true);
    let reply: DescribeClusterResponse = client.call(ApiKey::DescribeCluster, 0, &request).await;
    assert_eq!(
        reply.cluster_authorized_operations,
        bits(&[Operation::Describe])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_not_made_on_the_way_by_who_may_not_make_it() {
    let world = World::with(|config| {
        enforce(config);
        config.kafka.auto_create_topics = true;
    })
    .await;
    let mut client = world.client().await;
    allow(&world, Kind::Stream, Operation::Describe).await;
    let request = requests::metadata().with_allow_auto_topic_creation(true);
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 9, &request).await;
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!(reply.topics[0].error_code, denied);
    assert!(world.broker.shared().data.catalog.named(TOPIC).is_none());
    allow(&world, Kind::Cluster, Operation::Create).await;
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 9, &request).await;
    assert_eq!(reply.topics[0].error_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_outlive_a_restart_and_decide_from_the_first_request() {
    let first = world().await;
    first.create(TOPIC, one_partition());
    allow(&first, Kind::Stream, Operation::Write).await;
    let World { broker, dir, .. } = first;
    broker.shutdown().await;
    let again = World::at(dir, enforce).await;
    let mut client = again.client().await;
    assert_eq!(produce(&mut client).await, 0);
    let request = requests::fetch(FETCH, Uuid::nil());
    let reply: FetchResponse = client.call(ApiKey::Fetch, FETCH, &request).await;
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!(reply.responses[0].partitions[0].error_code, denied);
}

/// Brokers write there what others give up: whoever has them do so may write there.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_gets_dead_letters_by_the_word_of_who_may_write_to_it() {
    let world = world().await;
    world.create(TOPIC, one_partition());
    let mut client = world.client().await;
    allow(&world, Kind::Group, Operation::AlterConfigs).await;
    let mut set = async |topic: &str| {
        let config = AlterableConfig::default()
            .with_name(words("errors.deadletterqueue.topic.name"))
            .with_value(Some(words(topic)));
        let resource = AlterConfigsResource::default()
            .with_resource_type(32)
            .with_resource_name(words(&format!("{GROUP}-shares")))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default()
            .with_validate_only(true)
            .with_resources(vec![resource]);
        loop {
            let reply: IncrementalAlterConfigsResponse = client
                .call(ApiKey::IncrementalAlterConfigs, 1, &request)
                .await;
            let code = reply.responses[0].error_code;
            match ResponseError::try_from_code(code) {
                Some(
                    ResponseError::CoordinatorLoadInProgress
                    | ResponseError::CoordinatorNotAvailable,
                ) => {}
                _ => break code,
            }
        }
    };
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!(set(TOPIC).await, denied);
    assert_eq!(set("").await, 0, "none is none of anybody's");
    allow(&world, Kind::Stream, Operation::Write).await;
    assert_ne!(set(TOPIC).await, denied);
    assert_eq!(set("another").await, denied);
}
