//! What one client may ask for, leave unread or half sent, and what it may keep.

use std::time::Duration;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, CreateTopicsResponse, FetchRequest, FetchResponse, GroupId,
    MetadataRequest, MetadataResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_metadata::StreamConfig;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::common::{Client, PATIENCE, World};

const POLICY_VIOLATION: i16 = 44;
const MESSAGE_TOO_LARGE: i16 = 10;

fn text(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}

/// A topic of many partitions, which are lanes of one streamlet.
fn wide(world: &World, partitions: u32) {
    let config = StreamConfig {
        lanes: partitions,
        ..StreamConfig::default()
    };
    world.create("wide", config);
}

/// A fetch that begins a session with so many partitions, which do not exist.
async fn begin_session(client: &mut Client, partitions: i32) -> i32 {
    let partitions = (0..partitions).map(|number| {
        FetchPartition::default()
            .with_partition(number)
            .with_partition_max_bytes(1 << 20)
    });
    let topic = FetchTopic::default()
        .with_topic(TopicName(text("none")))
        .with_partitions(partitions.collect());
    let fetch = FetchRequest::default()
        .with_max_bytes(1 << 20)
        .with_session_epoch(0)
        .with_topics(vec![topic]);
    let reply: FetchResponse = client.call(ApiKey::Fetch, 11, &fetch).await;
    assert_eq!(reply.error_code, 0);
    reply.session_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_sessions_of_all_clients_have_so_many_partitions() {
    let world = World::with(|config| config.kafka.max_fetch_session_partitions = 1_000).await;
    let mut first = world.client().await;
    assert_ne!(begin_session(&mut first, 900).await, 0);
    // Another is served without a session; a small one has its own all the same.
    let mut second = world.client().await;
    assert_eq!(begin_session(&mut second, 900).await, 0);
    assert_ne!(begin_session(&mut second, 100).await, 0);
    // The same client begins anew: the old session makes room.
    assert_ne!(begin_session(&mut first, 950).await, 0);
    drop(first);
    let until = Instant::now() + PATIENCE;
    while begin_session(&mut second, 900).await == 0 {
        assert!(
            Instant::now() < until,
            "the room of a client that has gone is not free"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_are_no_longer_than_they_may_be() {
    let world = World::with(|config| config.kafka.max_reply_bytes = 100_000).await;
    let mut client = world.client().await;
    // Settings of 2,000 topics are 40 times as much as fits.
    let topics = (0..2_000).map(|number| {
        CreatableTopic::default()
            .with_name(TopicName(text(format!("v-{number}"))))
            .with_num_partitions(1)
            .with_replication_factor(1)
    });
    let create = CreateTopicsRequest::default()
        .with_topics(topics.collect())
        .with_timeout_ms(60_000)
        .with_validate_only(true);
    let reply: CreateTopicsResponse = client.call(ApiKey::CreateTopics, 7, &create).await;
    assert_eq!(reply.topics.len(), 2_000);
    assert!(reply.topics.iter().all(|topic| topic.error_code == 0));
    let told = reply.topics.iter().filter(|t| t.configs.is_some()).count();
    assert!((1..200).contains(&told), "{told} topics with settings");
    let last = &reply.topics[1_999];
    assert_eq!(
        (&last.configs, last.topic_config_error_code),
        (&None, POLICY_VIOLATION)
    );

    world.topic("small", 10);
    wide(&world, 4_000);
    let all = MetadataRequest::default().with_topics(None);
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 12, &all).await;
    let topics = reply.topics.iter().filter(|t| !t.is_internal);
    let told: Vec<_> = topics.map(|t| (t.error_code, t.partitions.len())).collect();
    assert_eq!(told, [(0, 10), (POLICY_VIOLATION, 0)]);
    assert!(world.broker.shared().data.metrics.large_replies.get() >= 2);

    // A group's offsets, all of them and asked for again and again.
    let partitions = (0..10).map(|number| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(number)
            .with_committed_offset(5)
            .with_committed_metadata(Some(text("m".repeat(4_000))))
    });
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName(text("small")))
        .with_partitions(partitions.collect());
    for group in ["a", "b", "c"] {
        let commit = OffsetCommitRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(vec![topic.clone()]);
        let reply: OffsetCommitResponse = client.call(ApiKey::OffsetCommit, 8, &commit).await;
        let codes = reply.topics[0].partitions.iter().map(|p| p.error_code);
        assert!(codes.into_iter().all(|code| code == 0));
    }
    let groups = ["a", "a", "b", "c", "a"].map(|group| {
        OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(None)
    });
    let fetch = OffsetFetchRequest::default().with_groups(groups.to_vec());
    let reply: OffsetFetchResponse = client.call(ApiKey::OffsetFetch, 8, &fetch).await;
    let groups = reply.groups.iter();
    let codes: Vec<_> = groups
        .map(|g| (g.group_id.as_str(), g.error_code))
        .collect();
    assert_eq!(codes, [("a", 0), ("b", 0), ("c", MESSAGE_TOO_LARGE)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_is_owed_little_and_let_go() {
    let world = World::with(|config| {
        config.server.send_timeout = Duration::from_secs(2);
    })
    .await;
    wide(&world, 3_000);
    let mut client = world.client().await;
    let shared = world.broker.shared();
    let all = MetadataRequest::default().with_topics(None);
    let asking = async {
        // Each is answered with 100 KB.
        for _ in 0..4_000 {
            client.send(ApiKey::Metadata, 12, &all).await;
        }
    };
    let most = async {
        let until = Instant::now() + PATIENCE;
        let mut most = 0;
        while shared.data.metrics.unread_connections.get() == 0 {
            assert!(Instant::now() < until, "it is still waited for");
            most = most.max(
                shared
                    .data
                    .outgoing
                    .load(std::sync::atomic::Ordering::Relaxed),
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        most
    };
    let ((), most) = tokio::join!(asking, most);
    assert!(most > 0 && most < 4 << 20, "{most} bytes wait for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_request_is_not_waited_for() {
    let world = World::with(|config| {
        config.server.receive_timeout = Duration::from_millis(500);
    })
    .await;
    let mut idle = world.client().await;
    for said in [&[0][..], &[0, 0, 0, 40, 0, 3, 0, 12, 0, 0]] {
        let mut client = world.client().await;
        client.stream.write_all(said).await.unwrap();
        assert!(client.closed().await, "after {said:?}");
    }
    // One that says nothing at all may.
    let all = MetadataRequest::default().with_topics(None);
    let _: MetadataResponse = idle.call(ApiKey::Metadata, 12, &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_is_no_longer_than_what_is_kept_of_it() {
    let world = World::start().await;
    let mut client = world.client().await;
    let head = [0, 16, 0, 1, 0, 11, 0, 3, 0, 0, 0, 1, 0xff, 0xff];
    client.stream.write_all(&head).await.unwrap();
    assert!(
        client.closed().await,
        "a join of 1 MiB and a byte is waited for"
    );
}
