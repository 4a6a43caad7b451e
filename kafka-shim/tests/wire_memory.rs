//! Clients that take no replies, or send no more than the beginning of a request, cost bounded
//! memory. A test binary of its own: it looks at the memory of the whole process.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_topic_partitions_request::TopicRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, DescribeConfigsRequest, DescribeGroupsRequest,
    DescribeLogDirsRequest, DescribeTopicPartitionsRequest, FetchRequest, FindCoordinatorRequest,
    GroupId, JoinGroupRequest, JoinGroupResponse, MetadataRequest, OffsetCommitRequest,
    OffsetCommitResponse, OffsetFetchRequest, ProduceRequest, ProduceResponse, SyncGroupRequest,
    SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};
use kera_protocol::batch::{Compression, ProducerStamp};
use tokio::io::AsyncWriteExt;

mod common;

use common::{Client, World, batch};

const MIB: u64 = 1 << 20;

/// Bytes of memory that the process holds now.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("pages");
    pages * 4096
}

async fn serves(client: &mut Client) {
    let request = ApiVersionsRequest::default();
    let reply: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 0, &request).await;
    assert_eq!(reply.error_code, 0);
}

fn produce(records: bytes::Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(records));
    let data = TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_static_str("t")))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(60_000)
        .with_topic_data(vec![data])
}

/// Every connection claims the longest request there may be, and sends the beginning of it.
async fn half_open_clients(world: &World) {
    let before = resident();
    let mut idle = Vec::new();
    for _ in 0..200 {
        let mut client = world.client().await;
        let mut begin = BytesMut::new();
        begin.put_i32(100 << 20);
        // The head of a Produce request.
        begin.put_slice(&[0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0]);
        client.stream.write_all(&begin).await.unwrap();
        idle.push(client);
    }
    // Others are served, with records as well.
    let mut client = world.client().await;
    serves(&mut client).await;
    let records = batch("v", 10, Compression::None, ProducerStamp::NONE);
    let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &produce(records)).await;
    assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
    let grown = resident().saturating_sub(before);
    assert!(
        grown < 64 * MIB,
        "200 connections that claim 100 MiB each cost {} MiB",
        grown / MIB
    );
}

/// Clients that ask again and again and read nothing.
async fn clients_that_do_not_read(world: &World) {
    let mut client = world.client().await;
    for _ in 0..48 {
        let value = "x".repeat(1000);
        let records = batch(&value, 1000, Compression::None, ProducerStamp::NONE);
        let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &produce(records)).await;
        assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
    }
    let before = resident();
    let partition = FetchPartition::default()
        .with_fetch_offset(0)
        .with_partition_max_bytes(32 << 20);
    let wanted = FetchTopic::default()
        .with_topic(TopicName(StrBytes::from_static_str("t")))
        .with_partitions(vec![partition]);
    let fetch = FetchRequest::default()
        .with_max_wait_ms(100)
        .with_min_bytes(1)
        .with_max_bytes(32 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![wanted]);
    let mut greedy = Vec::new();
    for _ in 0..40 {
        let mut client = world.client().await;
        for _ in 0..20 {
            client.send(ApiKey::Fetch, 11, &fetch).await;
        }
        greedy.push(client);
    }
    // Small replies in great number, and requests that the sockets' buffers do not take in alone.
    let mut asking = Vec::new();
    for _ in 0..4 {
        let mut client = world.client().await;
        asking.push(tokio::spawn(async move {
            let name = StrBytes::from_string("n".repeat(300));
            let request = ApiVersionsRequest::default().with_client_software_name(name);
            let all = async {
                for _ in 0..400_000 {
                    client.send(ApiKey::ApiVersions, 3, &request).await;
                }
            };
            // The broker reads on only as far as its replies are taken.
            tokio::time::timeout(Duration::from_secs(5), all)
                .await
                .is_ok()
        }));
    }
    for asking in asking {
        let finished = asking.await.unwrap();
        assert!(
            !finished,
            "the broker took 400,000 requests whose replies nobody reads"
        );
    }
    serves(&mut client).await;
    let grown = resident().saturating_sub(before);
    // 40 clients have asked for 32 MiB 20 times each.
    assert!(
        grown < 192 * MIB,
        "clients that do not read cost {} MiB",
        grown / MIB
    );
    // What they asked for is still there for them.
    let mut reply = greedy.swap_remove(0);
    let first = reply.frame().await.unwrap();
    assert!(first.len() > 1000);
}

/// The most memory that the process held since it was last reset, in bytes.
fn peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = number.and_then(|number| number.parse().ok()).expect("KiB");
    kib * 1024
}

fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("a process may reset its own peak");
}

/// One request, and how much more memory the process held at most until it was answered.
async fn costs<Q: Encodable + HeaderVersion>(
    world: &World,
    api: ApiKey,
    version: i16,
    request: &Q,
) -> u64 {
    let mut client = world.client().await;
    reset_peak();
    let before = resident();
    client.send(api, version, request).await;
    // An answer, or the end of the connection: both are bounded.
    let _ = client.frame().await;
    peak().saturating_sub(before)
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A group with one member, whose metadata is of `bytes`.
async fn large_group(world: &World, name: &str, bytes: usize) -> Client {
    let mut client = world.client().await;
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(vec![7; bytes].into());
    let join = JoinGroupRequest::default()
        .with_group_id(GroupId(text(name)))
        .with_session_timeout_ms(60_000)
        .with_rebalance_timeout_ms(60_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    let joined: JoinGroupResponse = client.call(ApiKey::JoinGroup, 3, &join).await;
    assert_eq!(joined.error_code, 0);
    let sync = SyncGroupRequest::default()
        .with_group_id(GroupId(text(name)))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(vec![
            SyncGroupRequestAssignment::default()
                .with_member_id(joined.member_id)
                .with_assignment(vec![8; bytes].into()),
        ]);
    let synced: SyncGroupResponse = client.call(ApiKey::SyncGroup, 1, &sync).await;
    assert_eq!(synced.error_code, 0);
    client
}

/// A request that names the same thing again and again is not answered with as many copies of what
/// there is to say about it.
async fn things_named_many_times(world: &World) {
    const TIMES: usize = 5_000;
    world.topic("wide", 300);
    let _member = large_group(world, "large", 100_000).await;
    let wide = || TopicName(text("wide"));

    let metadata = MetadataRequest::default().with_topics(Some(vec![
        MetadataRequestTopic::default(
        )
        .with_name(Some(wide()));
        TIMES
    ]));
    let describe = DescribeTopicPartitionsRequest::default()
        .with_response_partition_limit(i32::MAX)
        .with_topics(vec![TopicRequest::default().with_name(wide()); TIMES]);
    let configs = DescribeConfigsRequest::default()
        .with_include_documentation(true)
        .with_include_synonyms(true)
        .with_resources(vec![
            DescribeConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(text("wide"))
                .with_configuration_keys(None);
            TIMES
        ]);
    let dirs = DescribeLogDirsRequest::default().with_topics(Some(vec![
        DescribableLogDirTopic::default()
            .with_topic(wide())
            .with_partitions((0..300).collect());
        200
    ]));
    let groups = DescribeGroupsRequest::default().with_groups(vec![GroupId(text("large")); TIMES]);
    let offsets = OffsetFetchRequest::default().with_groups(vec![
        OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(text("large")))
            .with_topics(None);
        TIMES
    ]);
    let coordinators =
        FindCoordinatorRequest::default().with_coordinator_keys(vec![text("large"); TIMES]);
    let found = [
        (
            "Metadata",
            costs(world, ApiKey::Metadata, 12, &metadata).await,
        ),
        (
            "DescribeTopicPartitions",
            costs(world, ApiKey::DescribeTopicPartitions, 0, &describe).await,
        ),
        (
            "DescribeConfigs",
            costs(world, ApiKey::DescribeConfigs, 4, &configs).await,
        ),
        (
            "DescribeLogDirs",
            costs(world, ApiKey::DescribeLogDirs, 4, &dirs).await,
        ),
        (
            "DescribeGroups",
            costs(world, ApiKey::DescribeGroups, 5, &groups).await,
        ),
        (
            "OffsetFetch",
            costs(world, ApiKey::OffsetFetch, 8, &offsets).await,
        ),
        (
            "FindCoordinator",
            costs(world, ApiKey::FindCoordinator, 4, &coordinators).await,
        ),
    ];
    let costly: Vec<_> = found
        .iter()
        .filter(|(_, bytes)| *bytes > 64 * MIB)
        .collect();
    assert!(
        costly.is_empty(),
        "{TIMES} times the same cost (bytes): {costly:?}"
    );
}

/// Connections of which nothing is wanted for the moment cost next to nothing, and leave nothing behind.
async fn idle_clients(world: &World) {
    let before = resident();
    let mut idle = Vec::new();
    for number in 0..300 {
        let mut client = world.client().await;
        serves(&mut client).await;
        if number % 2 == 0 {
            // It trickles.
            client.stream.write_all(&[0, 0, 0, 40, 0]).await.unwrap();
        }
        idle.push(client);
    }
    let grown = resident().saturating_sub(before);
    assert!(
        grown < 16 * MIB,
        "300 idle connections cost {} KiB",
        grown / 1024
    );
    drop(idle);
    let until = tokio::time::Instant::now() + common::PATIENCE;
    while resident().saturating_sub(before) > 3 * MIB {
        let held = resident().saturating_sub(before) / 1024;
        assert!(
            tokio::time::Instant::now() < until,
            "{held} KiB are not given back"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Members that wait for the others of their group, with much in their requests that nobody needs.
async fn waiting_joins(world: &World) {
    let _first = large_group(world, "waiting", 100).await;
    let before = resident();
    let mut waiting = Vec::new();
    for number in 0..64 {
        let mut client = world.client().await;
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(text("range"))
            .with_metadata(vec![7; 100].into());
        let join = JoinGroupRequest::default()
            .with_group_id(GroupId(text("waiting")))
            .with_group_instance_id(Some(text(&format!("i{number}"))))
            .with_session_timeout_ms(60_000)
            .with_rebalance_timeout_ms(60_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol])
            .with_unknown_tagged_fields([(77, vec![1; 900 << 10].into())].into());
        client.send(ApiKey::JoinGroup, 6, &join).await;
        waiting.push(client);
    }
    let until = tokio::time::Instant::now() + common::PATIENCE;
    // The sockets' buffers are the system's. Each request lay in a buffer that is given back.
    while resident().saturating_sub(before) > 16 * MIB {
        let held = resident().saturating_sub(before) / MIB;
        assert!(
            tokio::time::Instant::now() < until,
            "64 joins that wait cost {held} MiB"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let requests = world.broker.shared().data.metrics.kafka_requests.clone();
    let joins = requests.get_or_create_owned(&vec![("api", "JoinGroup".to_owned())]);
    assert_eq!(joins.get(), 65, "all wait");
}

/// A partition asked for again and again, of a group with much metadata.
async fn offsets_asked_for_many_times(world: &World) {
    let mut client = world.client().await;
    let commit = OffsetCommitRequest::default()
        .with_group_id(GroupId(text("committed")))
        .with_topics(vec![
            OffsetCommitRequestTopic::default()
                .with_name(TopicName(text("t")))
                .with_partitions(vec![
                    OffsetCommitRequestPartition::default()
                        .with_committed_offset(1)
                        .with_committed_metadata(Some(text(&"m".repeat(4_000)))),
                ]),
        ]);
    let _: OffsetCommitResponse = client.call(ApiKey::OffsetCommit, 8, &commit).await;
    let fetch = OffsetFetchRequest::default()
        .with_group_id(GroupId(text("committed")))
        .with_topics(Some(vec![
            OffsetFetchRequestTopic::default()
                .with_name(TopicName(text("t")))
                .with_partition_indexes(vec![0; 50_000]),
        ]));
    let cost = costs(world, ApiKey::OffsetFetch, 5, &fetch).await;
    assert!(cost < 32 * MIB, "offsets cost {} MiB", cost / MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_stays_bounded() {
    let world = World::with(|config| {
        config.memory.idle_release = Duration::from_millis(200);
        config.memory.pool = 64 * MIB;
        config.server.max_in_flight_bytes = 128 * MIB;
    })
    .await;
    world.topic("t", 1);
    idle_clients(&world).await;
    waiting_joins(&world).await;
    offsets_asked_for_many_times(&world).await;
    half_open_clients(&world).await;
    clients_that_do_not_read(&world).await;
    things_named_many_times(&world).await;
}
