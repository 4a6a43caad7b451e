//! The consumer protocol by hand, over a socket.

use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    ListGroupsRequest, ListGroupsResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse,
};

use crate::common::{Client, World};
use crate::{committed, group, join, quick, topic, words};

fn joins(id: &str, member: &str) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group(id))
        .with_member_id(words(member))
        .with_member_epoch(0)
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_names(Some(vec![topic("t")]))
        .with_topic_partitions(Some(Vec::new()))
}

async fn beat(
    client: &mut Client,
    version: i16,
    request: &ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    let api = ApiKey::ConsumerGroupHeartbeat;
    client.call(api, version, request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_joined_told_of_and_left() {
    let world = World::with(quick).await;
    world.topic("t", 4);
    let mut client = world.client().await;
    // The broker chooses the id of a member of version 0.
    let first = beat(&mut client, 0, &joins("g", "")).await;
    assert_eq!(first.error_code, 0, "{first:?}");
    let id = first.member_id.clone().expect("an id");
    assert!(!id.is_empty());
    assert_eq!(
        (first.member_epoch, first.heartbeat_interval_ms),
        (1, 5_000)
    );
    let assigned = first.assignment.expect("an assignment").topic_partitions;
    assert_eq!(assigned.len(), 1);
    assert_eq!(assigned[0].partitions, [0, 1, 2, 3]);
    let second = beat(&mut client, 1, &joins("g", "second")).await;
    assert_eq!((second.error_code, second.member_epoch), (0, 2));
    let nothing = second.assignment.expect("an assignment").topic_partitions;
    assert!(nothing.is_empty());
    // The first gives back half.
    let owned = |partitions: Vec<i32>| {
        let topic = TopicPartitions::default()
            .with_topic_id(assigned[0].topic_id)
            .with_partitions(partitions);
        joins("g", &id)
            .with_member_epoch(1)
            .with_topic_partitions(Some(vec![topic]))
    };
    let told = beat(&mut client, 1, &owned(vec![0, 1, 2, 3])).await;
    let kept = told.assignment.expect("an assignment").topic_partitions[0].clone();
    assert_eq!((told.member_epoch, kept.partitions.len()), (1, 2));
    let moved = beat(&mut client, 1, &owned(kept.partitions)).await;
    assert_eq!(moved.member_epoch, 2);
    for version in 0..=1 {
        let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![
            group("g"),
            group("g"),
            group("none"),
        ]);
        let described: ConsumerGroupDescribeResponse = client
            .call(ApiKey::ConsumerGroupDescribe, version, &request)
            .await;
        let codes: Vec<i16> = described.groups.iter().map(|g| g.error_code).collect();
        assert_eq!(codes, [0, 69], "each group once");
        let found = &described.groups[0];
        assert_eq!(&found.group_state[..], "Reconciling");
        assert_eq!((found.group_epoch, found.assignment_epoch), (2, 2));
        assert_eq!(&found.assignor_name[..], "uniform");
        assert_eq!(found.members.len(), 2);
        let of_first = found
            .members
            .iter()
            .find(|m| m.member_id == id)
            .expect("it");
        assert_eq!(
            of_first.assignment.topic_partitions[0].topic_name,
            topic("t")
        );
        assert_eq!(
            of_first.target_assignment.topic_partitions[0]
                .partitions
                .len(),
            2
        );
        assert_eq!(of_first.member_type, if version == 0 { -1 } else { 1 });
    }
    let listed: ListGroupsResponse = client
        .call(
            ApiKey::ListGroups,
            5,
            &ListGroupsRequest::default().with_types_filter(vec![words("consumer")]),
        )
        .await;
    assert_eq!(listed.groups.len(), 1);
    assert_eq!(&listed.groups[0].group_type[..], "consumer");
    // It is no classic group: tools go on to the other request.
    let request = DescribeGroupsRequest::default().with_groups(vec![group("g")]);
    let classic: DescribeGroupsResponse = client.call(ApiKey::DescribeGroups, 6, &request).await;
    assert_eq!(classic.groups[0].error_code, 69);
    let reason = classic.groups[0].error_message.as_ref().expect("a reason");
    assert!(
        reason.contains("not one of the classic protocol"),
        "{reason}"
    );
    let deletes = DeleteGroupsRequest::default().with_groups_names(vec![group("g")]);
    let refused: DeleteGroupsResponse = client.call(ApiKey::DeleteGroups, 2, &deletes).await;
    assert_eq!(refused.results[0].error_code, 68, "it has members");
    for member in [&id[..], "second"] {
        let leaves = joins("g", member).with_member_epoch(-1);
        let left = beat(&mut client, 1, &leaves).await;
        assert_eq!((left.error_code, left.member_epoch), (0, -1));
    }
    let deleted: DeleteGroupsResponse = client.call(ApiKey::DeleteGroups, 2, &deletes).await;
    assert_eq!(deleted.results[0].error_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_kafkas_numbers_and_words() {
    let world = World::with(quick).await;
    world.topic("t", 2);
    let mut client = world.client().await;
    let unknown = joins("g", "m").with_member_epoch(7);
    let cases = [
        (unknown, 25),
        (joins("", "m"), 42),
        (joins("g", ""), 42),
        (
            joins("g", "m").with_server_assignor(Some(words("mine"))),
            112,
        ),
        (
            joins("g", "m").with_subscribed_topic_regex(Some(words("("))),
            128,
        ),
    ];
    for (request, code) in cases {
        let refused = beat(&mut client, 1, &request).await;
        assert_eq!(refused.error_code, code, "{refused:?}");
        assert!(refused.error_message.is_some_and(|text| !text.is_empty()));
    }
    // A group with members keeps its protocol.
    join(&mut client, 9, "old").await;
    let refused = beat(&mut client, 1, &joins("old", "m")).await;
    assert_eq!(refused.error_code, 69);
    assert_eq!(beat(&mut client, 1, &joins("g", "m")).await.error_code, 0);
    assert_eq!(
        beat(&mut client, 1, &joins("g", "m").with_member_epoch(9))
            .await
            .error_code,
        110
    );
}

/// The code of a commit, or of a question for commits (version 9), of a member under an epoch.
async fn commits(client: &mut Client, member: &str, epoch: i32) -> (i16, i16) {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(3)
        .with_committed_metadata(Some(words("left here")));
    let of_topic = OffsetCommitRequestTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group("g"))
        .with_member_id(words(member))
        .with_generation_id_or_member_epoch(epoch)
        .with_topics(vec![of_topic]);
    let committed: OffsetCommitResponse = client.call(ApiKey::OffsetCommit, 9, &request).await;
    let of_group = OffsetFetchRequestGroup::default()
        .with_group_id(group("g"))
        .with_member_id(Some(words(member)))
        .with_member_epoch(epoch)
        .with_topics(None);
    let request = OffsetFetchRequest::default().with_groups(vec![of_group]);
    let fetched: OffsetFetchResponse = client.call(ApiKey::OffsetFetch, 9, &request).await;
    (
        committed.topics[0].partitions[0].error_code,
        fetched.groups[0].error_code,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_are_those_of_members_under_their_epoch() {
    let world = World::with(quick).await;
    world.topic("t", 2);
    let mut client = world.client().await;
    assert_eq!(beat(&mut client, 1, &joins("g", "m")).await.member_epoch, 1);
    assert_eq!(commits(&mut client, "m", 1).await, (0, 0));
    for epoch in [0, 2] {
        assert_eq!(commits(&mut client, "m", epoch).await, (113, 113));
    }
    assert_eq!(commits(&mut client, "who", 1).await, (25, 25));
    // Tools may look at a group with members, and do not commit for it.
    assert_eq!(commits(&mut client, "", -1).await, (25, 0));
    let leaves = joins("g", "m").with_member_epoch(-1);
    assert_eq!(beat(&mut client, 1, &leaves).await.error_code, 0);
    assert_eq!(commits(&mut client, "m", 1).await, (25, 25));
    assert_eq!(commits(&mut client, "", -1).await, (0, 0));
    // A classic group takes over what was committed.
    let joined = join(&mut client, 9, "g").await;
    assert_eq!(joined.error_code, 0);
    assert_eq!(committed(&mut client, "g").await, [("t".to_owned(), 0, 3)]);
    let refused = beat(&mut client, 1, &joins("g", "m")).await;
    assert_eq!(
        refused.error_code, 69,
        "it has members of the classic protocol"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_of_the_feature() {
    let world = World::start().await;
    let mut client = world.client().await;
    for version in 3..=4 {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(words("test"))
            .with_client_software_version(words("1"));
        let told: ApiVersionsResponse = client.call(ApiKey::ApiVersions, version, &request).await;
        let found = told.finalized_features.iter();
        let found = found.map(|one| (&one.name[..], one.max_version_level));
        let found: Vec<_> = found.collect();
        let all = [
            ("group.version", 1),
            ("transaction.version", 2),
            ("share.version", 1),
        ];
        assert_eq!(found, all);
        let known = told.supported_features.iter();
        let known = known.map(|one| (&one.name[..], one.min_version, one.max_version));
        let known: Vec<_> = known.collect();
        let all = [
            ("group.version", 1, 1),
            ("transaction.version", 1, 2),
            ("share.version", 1, 1),
        ];
        assert_eq!(known, all);
    }
}
