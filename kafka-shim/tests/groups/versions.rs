//! A group's whole life in each version of each API.

use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{
    ApiKey, DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest,
    DescribeGroupsResponse, FindCoordinatorRequest, FindCoordinatorResponse, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse,
    OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_kafka_shim::apis;

use crate::common::{Client, World};
use crate::{commit, committed, group, heartbeat, join, join_request, quick, sync, topic, words};

/// The version nearest to `wish` that is served.
fn near(api: ApiKey, wish: i16) -> i16 {
    let api = apis::find(api as i16).expect("an API that is served");
    wish.clamp(api.min, api.max)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_in_every_version() {
    let world = World::with(quick).await;
    world.topic("t", 4);
    let mut client = world.client().await;
    for version in 0..=10 {
        life(&mut client, version).await;
    }
}

async fn life(client: &mut Client, wish: i16) {
    let id = &format!("group {wish}");
    let at = |api| near(api, wish);
    let joined = join(client, at(ApiKey::JoinGroup), id).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!(joined.protocol_name, Some(words("range")));
    assert_eq!(joined.members.len(), 1);
    assert!(joined.member_id.starts_with("test-"));
    let version = at(ApiKey::SyncGroup);
    let synced = sync(client, version, id, &joined, &[(&joined.member_id, "all")]).await;
    assert_eq!(
        (synced.error_code, &synced.assignment[..]),
        (0, &b"all"[..])
    );
    assert_eq!(
        heartbeat(client, at(ApiKey::Heartbeat), id, &joined).await,
        0
    );
    let version = at(ApiKey::OffsetCommit);
    let offsets = [
        ("t", 0, 5),
        ("t", 3, 9),
        ("t", 4, 9),
        ("none", 0, 1),
        ("t", 1, -1),
    ];
    let codes = commit(client, version, id, Some(&joined), &offsets).await;
    assert_eq!(
        codes,
        [0, 0, 3, 3, 0],
        "negative offsets are taken as they are"
    );
    let codes = commit(client, version, id, None, &offsets).await;
    assert_eq!(codes, [25, 25, 3, 3, 25], "the group has a member");
    fetch(client, at(ApiKey::OffsetFetch), id, version >= 6).await;
    describe(client, at(ApiKey::DescribeGroups), id).await;
    list(client, at(ApiKey::ListGroups), id).await;
    delete_offsets(client, id, 86).await;
    assert_eq!(delete(client, at(ApiKey::DeleteGroups), id).await, 68);
    if near(ApiKey::JoinGroup, wish) >= 5 {
        static_member(client, near(ApiKey::JoinGroup, wish), id).await;
    }
    leave(client, at(ApiKey::LeaveGroup), id, &joined).await;
    delete_offsets(client, id, 0).await;
    let left = [("t".to_owned(), 1, -1), ("t".to_owned(), 3, 9)];
    assert_eq!(committed(client, id).await, left);
    assert_eq!(delete(client, at(ApiKey::DeleteGroups), id).await, 0);
    strangers(client, wish).await;
}

/// What is not there, or makes no sense.
async fn strangers(client: &mut Client, wish: i16) {
    let at = |api| near(api, wish);
    for (id, code) in [("nobody", 25), ("", 24)] {
        let stranger = JoinGroupResponse::default()
            .with_member_id(words("me"))
            .with_generation_id(1);
        assert_eq!(
            heartbeat(client, at(ApiKey::Heartbeat), id, &stranger).await,
            code
        );
        let version = at(ApiKey::SyncGroup);
        let synced = sync(client, version, id, &stranger, &[]).await;
        assert_eq!(synced.error_code, code);
        let version = at(ApiKey::JoinGroup);
        let request = join_request(version, id, &words("me"));
        let joined: JoinGroupResponse = client.call(ApiKey::JoinGroup, version, &request).await;
        assert_eq!((joined.error_code, joined.member_id), (code, words("me")));
        let codes = commit(
            client,
            at(ApiKey::OffsetCommit),
            id,
            Some(&stranger),
            &[("t", 0, 1)],
        );
        assert_eq!(codes.await, [if id.is_empty() { 24 } else { 22 }]);
        let code = delete(client, at(ApiKey::DeleteGroups), id).await;
        assert_eq!(code, if id.is_empty() { 24 } else { 69 });
    }
    let version = at(ApiKey::DescribeGroups);
    let request = DescribeGroupsRequest::default().with_groups(vec![group("nobody")]);
    let reply: DescribeGroupsResponse =
        client.call(ApiKey::DescribeGroups, version, &request).await;
    assert_eq!(reply.groups[0].group_state.as_str(), "Dead");
    assert_eq!(
        reply.groups[0].error_code,
        if version >= 6 { 69 } else { 0 }
    );
    coordinator(client, at(ApiKey::FindCoordinator)).await;
}

async fn fetch(client: &mut Client, version: i16, id: &str, epoch: bool) {
    let partitions = vec![0, 1, 3, 77, -1];
    let request = OffsetFetchRequest::default();
    let request = if version >= 8 {
        let topics = ["t", "none"].map(|name| {
            OffsetFetchRequestTopics::default()
                .with_name(topic(name))
                .with_partition_indexes(partitions.clone())
        });
        let some = OffsetFetchRequestGroup::default()
            .with_group_id(group(id))
            .with_topics(Some(topics.to_vec()));
        // One that is named twice is answered once.
        let other = some.clone().with_group_id(group("nobody"));
        request.with_groups(vec![some, other])
    } else {
        let topics = ["t", "none"].map(|name| {
            OffsetFetchRequestTopic::default()
                .with_name(topic(name))
                .with_partition_indexes(partitions.clone())
        });
        let request = request.with_group_id(group(id));
        request.with_topics(Some(topics.to_vec()))
    };
    let reply: OffsetFetchResponse = client.call(ApiKey::OffsetFetch, version, &request).await;
    if version >= 8 {
        assert_eq!(reply.groups.len(), 2);
        for (at, found) in reply.groups.iter().enumerate() {
            assert_eq!(found.error_code, 0);
            let offsets: Vec<i64> = found
                .topics
                .iter()
                .flat_map(|topic| &topic.partitions)
                .map(|partition| partition.committed_offset)
                .collect();
            let expected: &[i64] = match at {
                0 => &[5, -1, 9, -1, -1, -1, -1, -1, -1, -1],
                _ => &[-1; 10],
            };
            assert_eq!(offsets, expected);
        }
        let first = &reply.groups[0].topics[0].partitions[0];
        assert_eq!(first.metadata, Some(words("left here")));
        assert_eq!(first.committed_leader_epoch, if epoch { 7 } else { -1 });
        let all = OffsetFetchRequestGroup::default()
            .with_group_id(group(id))
            .with_topics(None);
        let request = OffsetFetchRequest::default().with_groups(vec![all]);
        let reply: OffsetFetchResponse = client.call(ApiKey::OffsetFetch, version, &request).await;
        let found = reply.groups[0].topics.iter();
        let offsets: Vec<i64> = found
            .flat_map(|topic| &topic.partitions)
            .map(|partition| partition.committed_offset)
            .collect();
        assert_eq!(offsets, [5, -1, 9]);
    } else {
        assert_eq!(reply.error_code, 0);
        let offsets: Vec<i64> = reply
            .topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .map(|partition| partition.committed_offset)
            .collect();
        assert_eq!(offsets, [5, -1, 9, -1, -1, -1, -1, -1, -1, -1]);
    }
}

async fn describe(client: &mut Client, version: i16, id: &str) {
    let request = DescribeGroupsRequest::default().with_groups(vec![group(id)]);
    let request = if version >= 3 {
        request.with_include_authorized_operations(true)
    } else {
        request
    };
    let reply: DescribeGroupsResponse =
        client.call(ApiKey::DescribeGroups, version, &request).await;
    let found = &reply.groups[0];
    assert_eq!(found.error_code, 0);
    assert_eq!(found.group_state.as_str(), "Stable");
    assert_eq!(found.protocol_type.as_str(), "consumer");
    assert_eq!(found.protocol_data.as_str(), "range");
    let member = &found.members[0];
    assert_eq!(member.client_id.as_str(), "test");
    assert_eq!(member.client_host.as_str(), "/127.0.0.1");
    assert_eq!(&member.member_assignment[..], b"all");
    assert!(version < 3 || found.authorized_operations > 0);
}

async fn list(client: &mut Client, version: i16, id: &str) {
    let cases: &[(&[&str], &[&str], bool)] = &[
        (&[], &[], true),
        (&["stable", "Empty"], &[], true),
        (&["Empty"], &[], false),
        (&[], &["Classic"], true),
        (&[], &["consumer"], false),
    ];
    for (states, types, listed) in cases {
        if (version < 4 && !states.is_empty()) || (version < 5 && !types.is_empty()) {
            continue;
        }
        let request = ListGroupsRequest::default()
            .with_states_filter(states.iter().map(|s| words(s)).collect())
            .with_types_filter(types.iter().map(|s| words(s)).collect());
        let reply: ListGroupsResponse = client.call(ApiKey::ListGroups, version, &request).await;
        assert_eq!(reply.error_code, 0);
        let found = reply.groups.iter().find(|g| g.group_id == group(id));
        assert_eq!(found.is_some(), *listed, "{states:?} {types:?}");
        if let Some(found) = found {
            assert_eq!(found.protocol_type.as_str(), "consumer");
            assert_eq!(
                found.group_state.as_str(),
                if version >= 4 { "Stable" } else { "" }
            );
            assert_eq!(
                found.group_type.as_str(),
                if version >= 5 { "classic" } else { "" }
            );
        }
    }
}

/// Another member, which has a name of its own, comes, comes again, and is removed by name.
async fn static_member(client: &mut Client, version: i16, id: &str) {
    let request =
        join_request(version, id, &StrBytes::new()).with_group_instance_id(Some(words("one")));
    // It waits for the member that is there, so another connection must not be needed to go on.
    let correlation = client.send(ApiKey::JoinGroup, version, &request).await;
    let mut second = Client::connect(client.stream.peer_addr().unwrap()).await;
    let leave = LeaveGroupRequest::default()
        .with_group_id(group(id))
        .with_members(vec![
            MemberIdentity::default().with_group_instance_id(Some(words("one"))),
            MemberIdentity::default().with_group_instance_id(Some(words("two"))),
        ]);
    let version_of_leave = near(ApiKey::LeaveGroup, version);
    let left: LeaveGroupResponse = loop {
        let left: LeaveGroupResponse = second
            .call(ApiKey::LeaveGroup, version_of_leave, &leave)
            .await;
        // The join may still be on its way.
        if left.members[0].error_code == 0 {
            break left;
        }
    };
    assert_eq!(left.error_code, 0);
    assert_eq!(left.members[1].error_code, 25);
    assert_eq!(left.members[0].group_instance_id, Some(words("one")));
    let joined: JoinGroupResponse = client
        .receive(ApiKey::JoinGroup, version, correlation)
        .await;
    assert_eq!(joined.error_code, 25, "it was removed while it waited");
}

async fn leave(client: &mut Client, version: i16, id: &str, joined: &JoinGroupResponse) {
    let request = LeaveGroupRequest::default().with_group_id(group(id));
    let request = if version >= 3 {
        let members = [joined.member_id.clone(), words("stranger")]
            .map(|member| MemberIdentity::default().with_member_id(member));
        request.with_members(members.to_vec())
    } else {
        request.with_member_id(joined.member_id.clone())
    };
    let reply: LeaveGroupResponse = client.call(ApiKey::LeaveGroup, version, &request).await;
    assert_eq!(reply.error_code, 0);
    let codes: Vec<i16> = reply.members.iter().map(|m| m.error_code).collect();
    if version >= 3 {
        assert_eq!(codes, [0, 25]);
    } else {
        let again: LeaveGroupResponse = client.call(ApiKey::LeaveGroup, version, &request).await;
        assert_eq!(again.error_code, 25);
    }
}

async fn delete_offsets(client: &mut Client, id: &str, code: i16) {
    let partitions =
        [0, 9].map(|p| OffsetDeleteRequestPartition::default().with_partition_index(p));
    let topic = OffsetDeleteRequestTopic::default()
        .with_name(topic("t"))
        .with_partitions(partitions.to_vec());
    let request = OffsetDeleteRequest::default()
        .with_group_id(group(id))
        .with_topics(vec![topic]);
    let reply: OffsetDeleteResponse = client.call(ApiKey::OffsetDelete, 0, &request).await;
    assert_eq!(reply.error_code, 0);
    let partitions = reply.topics[0].partitions.iter();
    let codes: Vec<i16> = partitions.map(|p| p.error_code).collect();
    assert_eq!(codes, [code, 3]);
}

async fn delete(client: &mut Client, version: i16, id: &str) -> i16 {
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group(id)]);
    let reply: DeleteGroupsResponse = client.call(ApiKey::DeleteGroups, version, &request).await;
    assert_eq!(reply.results[0].group_id, group(id));
    reply.results[0].error_code
}

async fn coordinator(client: &mut Client, version: i16) {
    let port = i32::from(client.stream.peer_addr().unwrap().port());
    for kind in 0..=2 {
        let request = FindCoordinatorRequest::default();
        let request = if version >= 1 {
            request.with_key_type(kind)
        } else {
            request
        };
        let request = if version >= 4 {
            request.with_coordinator_keys(vec![words("a"), words("b")])
        } else {
            request.with_key(words("a"))
        };
        let reply: FindCoordinatorResponse = client
            .call(ApiKey::FindCoordinator, version, &request)
            .await;
        let answers: Vec<(i16, i32, i32)> = if version >= 4 {
            let all = reply.coordinators.iter();
            all.map(|c| (c.error_code, c.node_id.0, c.port)).collect()
        } else {
            vec![(reply.error_code, reply.node_id.0, reply.port)]
        };
        assert_eq!(answers.len(), if version >= 4 { 2 } else { 1 });
        for answer in answers {
            if kind <= 1 || version == 0 {
                assert_eq!(answer, (0, 1, port));
            } else {
                // Neither a group's nor a transaction's.
                assert_eq!(answer, (42, -1, -1));
            }
        }
    }
}
