//! Members that wait, connections that break, brokers that restart, kinds that do not mix.

use kafka_protocol::messages::{
    ApiKey, DescribeGroupsRequest, DescribeGroupsResponse, JoinGroupResponse, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_coordinator::{Reply, Request};
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;

use crate::common::{Client, World};
use crate::{
    commit, committed, group, heartbeat, join, join_request, quick, subscription, sync,
    sync_request,
};

#[tokio::test(flavor = "multi_thread")]
async fn members_wait_for_each_other() {
    let world = World::with(quick).await;
    world.topic("t", 2);
    let (mut a, mut b) = (world.client().await, world.client().await);
    let first = join(&mut a, 9, "g").await;
    assert_eq!(
        sync(&mut a, 5, "g", &first, &[(&first.member_id, "all")])
            .await
            .error_code,
        0
    );
    // An old client: its join waits until the other member has joined again.
    let request = join_request(3, "g", &StrBytes::new());
    let waiting = b.send(ApiKey::JoinGroup, 3, &request).await;
    while heartbeat(&mut a, 4, "g", &first).await != 27 {}
    let again = join_request(9, "g", &first.member_id);
    let again: JoinGroupResponse = a.call(ApiKey::JoinGroup, 9, &again).await;
    let second: JoinGroupResponse = b.receive(ApiKey::JoinGroup, 3, waiting).await;
    assert_eq!((again.generation_id, second.generation_id), (2, 2));
    assert_eq!((again.members.len(), second.members.len()), (2, 0));
    assert!(
        again
            .members
            .iter()
            .all(|m| m.metadata == subscription("t"))
    );
    // A follower's sync waits for the leader's.
    let request = sync_request(3, "g", &second, &[]);
    let waiting = b.send(ApiKey::SyncGroup, 3, &request).await;
    let shares = [(&again.member_id, "a"), (&second.member_id, "b")];
    let synced = sync(&mut a, 5, "g", &again, &shares).await;
    assert_eq!(&synced.assignment[..], b"a");
    let synced: SyncGroupResponse = b.receive(ApiKey::SyncGroup, 3, waiting).await;
    assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"b"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_takes_its_waiting_join_along() {
    let world = World::with(quick).await;
    let mut a = world.client().await;
    let first = join(&mut a, 9, "g").await;
    sync(&mut a, 5, "g", &first, &[]).await;
    // Nobody ever learns the id of this one; if it stayed, the rebalance would take 20 s.
    let mut b = world.client().await;
    let request = join_request(3, "g", &StrBytes::new());
    b.send(ApiKey::JoinGroup, 3, &request).await;
    while heartbeat(&mut a, 4, "g", &first).await != 27 {}
    drop(b);
    let describe = DescribeGroupsRequest::default().with_groups(vec![group("g")]);
    let members = async |a: &mut Client| {
        let reply: DescribeGroupsResponse = a.call(ApiKey::DescribeGroups, 5, &describe).await;
        reply.groups[0].members.len()
    };
    while members(&mut a).await == 2 {}
    let again = join_request(9, "g", &first.member_id);
    let again: JoinGroupResponse = a.call(ApiKey::JoinGroup, 9, &again).await;
    assert_eq!((again.error_code, again.members.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_and_offsets_outlive_the_broker() {
    let world = World::with(quick).await;
    world.topic("t", 2);
    let mut a = world.client().await;
    let first = join(&mut a, 9, "g").await;
    sync(&mut a, 5, "g", &first, &[(&first.member_id, "all")]).await;
    assert_eq!(
        commit(&mut a, 9, "g", Some(&first), &[("t", 1, 40)]).await,
        [0]
    );
    assert_eq!(commit(&mut a, 9, "simple", None, &[("t", 0, 2)]).await, [0]);
    let World { broker, dir, .. } = world;
    drop(a);
    broker.shutdown().await;
    let world = World::at(dir, quick).await;
    let mut a = world.client().await;
    // Both coordinators may still be reading.
    while heartbeat(&mut a, 4, "g", &first).await == 14 {}
    assert_eq!(heartbeat(&mut a, 4, "g", &first).await, 0);
    let synced = sync(&mut a, 5, "g", &first, &[]).await;
    assert_eq!(&synced.assignment[..], b"all");
    assert_eq!(
        commit(&mut a, 9, "g", Some(&first), &[("t", 0, 41)]).await,
        [0]
    );
    let all = [("t".to_owned(), 0, 41), ("t".to_owned(), 1, 40)];
    assert_eq!(committed(&mut a, "g").await, all);
    assert_eq!(committed(&mut a, "simple").await, [("t".to_owned(), 0, 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_belongs_to_one_kind_of_group() {
    let world = World::with(quick).await;
    world.topic("t", 2);
    let shared = world.broker.shared();
    let native = |group: &str| {
        let request = v1::JoinRequest {
            group: group.into(),
            stream: "t".into(),
            ..v1::JoinRequest::default()
        };
        let group = group.to_owned();
        async move {
            let coordination = &shared.coordination;
            coordination
                .call(shared, &group, Request::join(request))
                .await
        }
    };
    let mut client = world.client().await;
    assert_eq!(join(&mut client, 9, "kafka").await.error_code, 0);
    let refused = native("kafka").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::GroupConflict);
    assert!(matches!(native("native").await, Ok(Reply::Join(_))));
    assert_eq!(join(&mut client, 9, "native").await.error_code, 23);
    assert_eq!(
        commit(&mut client, 9, "native", None, &[("t", 0, 1)]).await,
        [69]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_progress_and_move_it() {
    let world = World::with(quick).await;
    world.topic("t", 2);
    let shared = world.broker.shared();
    let mut client = world.client().await;
    assert_eq!(commit(&mut client, 9, "g", None, &[("t", 1, 0)]).await, [0]);
    let describe = async || {
        let group = "g".into();
        let request = Request::DescribeGroup(v1::DescribeGroupRequest { group });
        match shared.coordination.call(shared, "g", request).await {
            Ok(Reply::DescribeGroup(described)) => described,
            other => panic!("describe answered {other:?}"),
        }
    };
    let seen = describe().await;
    let summary = seen.summary.unwrap();
    assert_eq!(summary.kind(), v1::GroupKind::Kafka);
    assert_eq!(
        (summary.state.as_str(), summary.streams.len()),
        ("Empty", 1)
    );
    assert_eq!(seen.partitions.len(), 1);
    assert_eq!(seen.partitions[0].committed, Some(0));
    let reset = v1::ResetGroupRequest {
        group: "g".into(),
        to: Some(v1::StartAt {
            at: Some(v1::start_at::At::Latest(true)),
        }),
        stream: Some("t".into()),
        ..v1::ResetGroupRequest::default()
    };
    let request = Request::ResetGroup(reset.clone());
    match shared.coordination.call(shared, "g", request).await {
        Ok(Reply::ResetGroup(reset)) => assert_eq!(reset.partitions.len(), 2),
        other => panic!("reset answered {other:?}"),
    }
    assert_eq!(describe().await.partitions.len(), 2);
    let joined = join(&mut client, 9, "g").await;
    assert_eq!(joined.error_code, 0);
    let request = Request::ResetGroup(reset);
    let refused = shared.coordination.call(shared, "g", request).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::GroupNotEmpty);
}
