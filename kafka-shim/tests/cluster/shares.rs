//! A share group whose partition and coordinator are at different brokers, and change them.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, ApiKey, DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse, GroupId,
};
use kera_broker::cluster::ownership;
use kera_broker::coordination::GROUPS_STREAM;
use kera_protocol::ids::StreamletId;

use crate::common::Client;
use crate::common::shares::{ACCEPT, RELEASE, Sharer};
use crate::{Cluster, coordinator, leaders, metadata, produce, records, words};

pub(crate) const EARLIEST: [(&str, &str); 1] = [("share.auto.offset.reset", "earliest")];

/// Where the group stands in the partition, as its coordinator tells.
async fn start_of(client: &mut Client, partition: i32) -> Option<i64> {
    let group = DescribeShareGroupOffsetsRequestGroup::default()
        .with_group_id(GroupId(words("g")))
        .with_topics(None);
    let request = DescribeShareGroupOffsetsRequest::default().with_groups(vec![group]);
    let told: DescribeShareGroupOffsetsResponse = client
        .call(ApiKey::DescribeShareGroupOffsets, 0, &request)
        .await;
    let topics = told.groups[0].topics.iter();
    let mut all = topics.flat_map(|topic| &topic.partitions);
    let found = all.find(|one| one.partition_index == partition)?;
    Some(found.start_offset)
}

/// Sets what is to hold for a share group.
pub(crate) async fn configure(client: &mut Client, group: &str, set: &[(&str, &str)]) {
    let configs = set.iter().map(|(name, value)| {
        AlterableConfig::default()
            .with_name(words(name))
            .with_value(Some(words(value)))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(32)
        .with_resource_name(words(group))
        .with_configs(configs.collect());
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    // Asked for again while the coordinator reads its state, as clients do.
    let loading = ResponseError::CoordinatorLoadInProgress.code();
    let mut code = loading;
    while code == loading {
        let altered: AlterConfigsResponse = client.call(ApiKey::AlterConfigs, 2, &request).await;
        code = altered.responses[0].error_code;
    }
    assert_eq!(code, 0);
}

/// The broker that coordinates a group.
pub(crate) async fn node_of(client: &mut Client, group: &str) -> i32 {
    loop {
        let (code, node, _) = coordinator(client, group).await;
        if code == 0 {
            return node;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_group_goes_on_at_another_leader_and_another_coordinator() {
    let cluster = Cluster::start().await;
    cluster.topic("t").await;
    let mut anywhere = cluster.client(1).await;
    let node = node_of(&mut anywhere, "g").await;
    // Any broker takes a group's settings.
    let mut other = cluster.client(node % 3 + 1).await;
    configure(&mut other, "g", &EARLIEST).await;
    let mut a = Sharer::new("g", "a");
    let mut at_coordinator = cluster.client(node).await;
    assert_eq!(a.beat(&mut at_coordinator, 0, "t").await.error_code, 0);
    let before = leaders(&metadata(&mut anywhere, "t").await);
    let elsewhere = before.iter().find(|(_, (leader, _))| *leader != node);
    let (&partition, &(leader, _)) = elsewhere.expect("a leader that does not coordinate");
    let shared = cluster.brokers[leader as usize - 1].0.shared();
    let stream = shared.data.catalog.named("t").unwrap().id();
    let mut old = cluster.client(leader).await;
    assert_eq!(produce(&mut old, "t", partition, records(10)).await, (0, 0));
    assert_eq!(a.acquire(&mut old, stream.0, partition).await, [(0, 9, 1)]);
    assert_eq!(
        a.say(&mut old, stream.0, partition, (0, 4), ACCEPT).await,
        0
    );
    assert_eq!(
        a.say(&mut old, stream.0, partition, (5, 5), RELEASE).await,
        0
    );
    assert_eq!(start_of(&mut at_coordinator, partition).await, Some(5));

    let other = (1..=3).find(|id| *id != leader && *id != node).unwrap();
    let streamlet = StreamletId(partition as u32);
    ownership::hand_over(shared, stream, streamlet, other as u32)
        .await
        .expect("the other takes it");
    let refused = a.say(&mut old, stream.0, partition, (6, 9), ACCEPT).await;
    let codes = [
        ResponseError::NotLeaderOrFollower,
        ResponseError::FencedStateEpoch,
    ];
    assert!(codes.iter().any(|code| code.code() == refused), "{refused}");
    // What was not done is delivered again, and how often it was is known.
    let mut new = cluster.client(other).await;
    let mut b = Sharer::new("g", "a");
    assert_eq!(b.acquire(&mut new, stream.0, partition).await, [(5, 9, 2)]);
    assert_eq!(
        b.say(&mut new, stream.0, partition, (5, 9), ACCEPT).await,
        0
    );
    assert_eq!(start_of(&mut at_coordinator, partition).await, Some(10));

    // The coordinator changes under members that go on.
    let shared = cluster.brokers[node as usize - 1].0.shared();
    let groups = shared.data.catalog.named(GROUPS_STREAM).unwrap();
    for streamlet in &groups.streamlets {
        if shared.owner_of(&streamlet).broker == node as u32 {
            let given = ownership::hand_over(shared, groups.id(), streamlet.id(), leader as u32);
            given.await.expect("the other takes it");
        }
    }
    assert_eq!(produce(&mut new, "t", partition, records(3)).await, (0, 10));
    assert_eq!(
        b.acquire(&mut new, stream.0, partition).await,
        [(10, 12, 1)]
    );
    assert_eq!(
        b.say(&mut new, stream.0, partition, (10, 12), ACCEPT).await,
        0
    );
    let mut told = None;
    while told != Some(13) {
        told = start_of(&mut old, partition).await;
    }
}
