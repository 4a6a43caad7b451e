//! What each API needs: without it the request is denied in every version, with it it is not.

use std::collections::BTreeSet;

use bytes::{BufMut, BytesMut};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{ApiKey, RequestHeader};
use kafka_protocol::protocol::Encodable;
use kera_kafka_shim::apis::{self, APIS};
use kera_metadata::access::{Kind, Operation as Op};
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use crate::common::{Client, World};
use crate::{TOPIC, allow, forget_rules, one_partition, requests, responses, world};

/// What an API's request needs, all of it; nothing: everybody may ask.
type Needs = &'static [(Kind, Op)];

const TO_TOPIC: ResponseError = ResponseError::TopicAuthorizationFailed;
const TO_GROUP: ResponseError = ResponseError::GroupAuthorizationFailed;
const TO_CLUSTER: ResponseError = ResponseError::ClusterAuthorizationFailed;
const TO_TRANSACTION: ResponseError = ResponseError::TransactionalIdAuthorizationFailed;

/// Every API, as Kafka's documentation has it.
#[rustfmt::skip]
const NEEDS: &[(ApiKey, Needs)] = &[
    (ApiKey::Produce, &[(Kind::Stream, Op::Write)]),
    (ApiKey::Fetch, &[(Kind::Stream, Op::Read)]),
    (ApiKey::ListOffsets, &[(Kind::Stream, Op::Describe)]),
    (ApiKey::Metadata, &[(Kind::Stream, Op::Describe)]),
    (ApiKey::OffsetCommit, &[(Kind::Group, Op::Read), (Kind::Stream, Op::Read)]),
    (ApiKey::OffsetFetch, &[(Kind::Group, Op::Describe), (Kind::Stream, Op::Describe)]),
    (ApiKey::FindCoordinator, &[(Kind::Group, Op::Describe)]),
    (ApiKey::JoinGroup, &[(Kind::Group, Op::Read)]),
    (ApiKey::Heartbeat, &[(Kind::Group, Op::Read)]),
    (ApiKey::LeaveGroup, &[(Kind::Group, Op::Read)]),
    (ApiKey::SyncGroup, &[(Kind::Group, Op::Read)]),
    (ApiKey::DescribeGroups, &[(Kind::Group, Op::Describe)]),
    // Lists leave out what may not be seen.
    (ApiKey::ListGroups, &[]),
    (ApiKey::ApiVersions, &[]),
    (ApiKey::SaslHandshake, &[]),
    (ApiKey::SaslAuthenticate, &[]),
    (ApiKey::DescribeUserScramCredentials, &[(Kind::Cluster, Op::Describe)]),
    (ApiKey::AlterUserScramCredentials, &[(Kind::Cluster, Op::Alter)]),
    (ApiKey::CreateTopics, &[(Kind::Stream, Op::Create), (Kind::Stream, Op::DescribeConfigs)]),
    (ApiKey::DeleteTopics, &[(Kind::Stream, Op::Delete)]),
    (ApiKey::DeleteRecords, &[(Kind::Stream, Op::Delete)]),
    (ApiKey::InitProducerId, &[(Kind::Cluster, Op::IdempotentWrite)]),
    (ApiKey::OffsetForLeaderEpoch, &[(Kind::Stream, Op::Describe)]),
    (ApiKey::AddPartitionsToTxn, &[(Kind::TransactionalId, Op::Write), (Kind::Stream, Op::Write)]),
    (ApiKey::AddOffsetsToTxn, &[(Kind::TransactionalId, Op::Write), (Kind::Group, Op::Read)]),
    (ApiKey::EndTxn, &[(Kind::TransactionalId, Op::Write)]),
    (ApiKey::WriteTxnMarkers, &[(Kind::Cluster, Op::ClusterAction)]),
    (ApiKey::TxnOffsetCommit, &[(Kind::TransactionalId, Op::Write), (Kind::Group, Op::Read), (Kind::Stream, Op::Read)]),
    (ApiKey::DescribeAcls, &[(Kind::Cluster, Op::Describe)]),
    (ApiKey::CreateAcls, &[(Kind::Cluster, Op::Alter)]),
    (ApiKey::DeleteAcls, &[(Kind::Cluster, Op::Alter)]),
    (ApiKey::DescribeConfigs, &[(Kind::Stream, Op::DescribeConfigs)]),
    (ApiKey::AlterConfigs, &[(Kind::Stream, Op::AlterConfigs)]),
    (ApiKey::DescribeLogDirs, &[(Kind::Cluster, Op::Describe)]),
    (ApiKey::CreatePartitions, &[(Kind::Stream, Op::Alter)]),
    (ApiKey::DeleteGroups, &[(Kind::Group, Op::Delete)]),
    (ApiKey::ElectLeaders, &[(Kind::Cluster, Op::Alter)]),
    (ApiKey::IncrementalAlterConfigs, &[(Kind::Stream, Op::AlterConfigs)]),
    (ApiKey::ListPartitionReassignments, &[(Kind::Cluster, Op::Describe)]),
    (ApiKey::OffsetDelete, &[(Kind::Group, Op::Delete), (Kind::Stream, Op::Read)]),
    (ApiKey::DescribeClientQuotas, &[(Kind::Cluster, Op::DescribeConfigs)]),
    (ApiKey::AlterClientQuotas, &[(Kind::Cluster, Op::AlterConfigs)]),
    (ApiKey::DescribeQuorum, &[(Kind::Cluster, Op::Describe)]),
    (ApiKey::DescribeCluster, &[]),
    (ApiKey::DescribeProducers, &[(Kind::Stream, Op::Read)]),
    (ApiKey::DescribeTransactions, &[(Kind::TransactionalId, Op::Describe)]),
    (ApiKey::ListTransactions, &[]),
    (ApiKey::ConsumerGroupHeartbeat, &[(Kind::Group, Op::Read), (Kind::Stream, Op::Describe)]),
    // Its members' topics are told.
    (ApiKey::ConsumerGroupDescribe, &[(Kind::Group, Op::Describe), (Kind::Stream, Op::Describe)]),
    (ApiKey::ShareGroupHeartbeat, &[(Kind::Group, Op::Read), (Kind::Stream, Op::Describe)]),
    (ApiKey::ShareGroupDescribe, &[(Kind::Group, Op::Describe), (Kind::Stream, Op::Describe)]),
    (ApiKey::ShareFetch, &[(Kind::Group, Op::Read), (Kind::Stream, Op::Read)]),
    (ApiKey::ShareAcknowledge, &[(Kind::Group, Op::Read)]),
    (ApiKey::DescribeShareGroupOffsets, &[(Kind::Group, Op::Describe), (Kind::Stream, Op::Describe)]),
    (ApiKey::AlterShareGroupOffsets, &[(Kind::Group, Op::Read), (Kind::Stream, Op::Read)]),
    (ApiKey::DeleteShareGroupOffsets, &[(Kind::Group, Op::Delete), (Kind::Stream, Op::Read)]),
    (ApiKey::ListConfigResources, &[(Kind::Cluster, Op::DescribeConfigs)]),
    (ApiKey::DescribeTopicPartitions, &[(Kind::Stream, Op::Describe)]),
];

fn needs_of(key: i16) -> Option<(ApiKey, Needs)> {
    let mut all = NEEDS.iter();
    all.find(|(api, _)| *api as i16 == key).copied()
}

#[test]
fn every_api_that_is_served_is_in_the_table() {
    let served: BTreeSet<_> = APIS.iter().map(|api| api.key).collect();
    let known: BTreeSet<_> = NEEDS.iter().map(|(api, _)| *api as i16).collect();
    assert_eq!(known, served);
}

#[test]
fn the_table_of_the_code_is_that_of_kafkas_documentation() {
    for api in APIS {
        let (key, needs) = needs_of(api.key).expect("in the table");
        let all: Vec<_> = api
            .needs
            .iter()
            .map(|need| (need.kind, need.operation))
            .collect();
        let missing: Vec<_> = needs.iter().filter(|need| !all.contains(need)).collect();
        assert!(missing.is_empty(), "{key:?} lacks {missing:?}");
        let always = api.needs.iter().filter(|need| need.when.is_empty());
        let more: Vec<_> = always
            .filter(|need| !needs.contains(&(need.kind, need.operation)))
            .collect();
        assert!(more.is_empty(), "{key:?}: {more:?}");
    }
}

/// One request and its reply, as text.
async fn ask(client: &mut Client, api: ApiKey, version: i16, id: Uuid) -> String {
    let asked = requests::of(api, version, id).expect("a request");
    let mut out = BytesMut::new();
    out.put_i32(0);
    let header = RequestHeader::default()
        .with_request_api_key(api as i16)
        .with_request_api_version(version);
    header.encode(&mut out, asked.header).unwrap();
    out.extend_from_slice(&asked.body);
    let length = out.len() as i32 - 4;
    out[..4].copy_from_slice(&length.to_be_bytes());
    client.stream.write_all(&out).await.unwrap();
    let reply = client.frame().await.expect("a reply");
    responses::decode(api as i16, version, reply).1
}

/// The refusals for want of a right that stand in a reply.
fn denials(reply: &str) -> Vec<ResponseError> {
    let denials = [TO_TOPIC, TO_GROUP, TO_CLUSTER, TO_TRANSACTION];
    let has = |error: &ResponseError| {
        let codes = ["error_code: ", "topic_config_error_code: "];
        let code = error.code();
        codes.iter().any(|field| {
            let ends = [",", " "];
            ends.iter()
                .any(|end| reply.contains(&format!("{field}{code}{end}")))
        })
    };
    denials.into_iter().filter(has).collect()
}

/// The first version of DescribeLogDirs and ElectLeaders that tells an error of the whole; before, as at Kafka, the
/// reply is empty.
fn tells(api: ApiKey, version: i16) -> bool {
    match api {
        ApiKey::DescribeLogDirs => version >= 3,
        ApiKey::ElectLeaders => version >= 1,
        _ => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_needed_is_needed_and_no_more() {
    let world = world().await;
    let mut client = world.client().await;
    for api in APIS {
        let (key, needs) = needs_of(api.key).expect("in the table");
        if matches!(key, ApiKey::SaslHandshake | ApiKey::SaslAuthenticate) {
            // They end a connection of which nothing of the kind is asked.
            continue;
        }
        let versions = api
            .min
            .max(if api.key == 0 { apis::PRODUCE_MIN } else { 0 })..=api.max;
        for version in versions {
            let what = format!("{key:?} version {version}");
            // Of brokers, for clients whose rights they have looked at.
            let needs = match (key, version) {
                (ApiKey::AddPartitionsToTxn, 4..) => &[(Kind::Cluster, Op::ClusterAction)],
                _ => needs,
            };
            // A new topic for each: some requests delete it.
            let id = fresh_topic(&world);
            let by_id = matches!(key, ApiKey::Produce | ApiKey::Fetch) && version >= 13;

            forget_rules(&world).await;
            let reply = ask(&mut client, key, version, id).await;
            if tells(key, version) && !needs.is_empty() {
                assert!(!denials(&reply).is_empty(), "{what} without rules: {reply}");
            }
            // That there is such a topic is not told.
            if !by_id && !needs.is_empty() {
                drop_topic(&world).await;
                let absent = ask(&mut client, key, version, id).await;
                assert_eq!(denials(&absent), denials(&reply), "{what}: {absent}");
            }
            // Each by itself is not enough, where several are needed.
            for left_out in 0..needs.len() {
                if key == ApiKey::OffsetDelete {
                    // Of a group that is not there nothing else is told.
                    let id = fresh_topic(&world);
                    allow(&world, Kind::Group, Op::Read).await;
                    allow(&world, Kind::Stream, Op::Read).await;
                    ask(&mut client, ApiKey::OffsetCommit, 8, id).await;
                }
                if key == ApiKey::ConsumerGroupDescribe {
                    let id = fresh_topic(&world);
                    allow(&world, Kind::Group, Op::Read).await;
                    allow(&world, Kind::Stream, Op::Describe).await;
                    ask(&mut client, ApiKey::ConsumerGroupHeartbeat, 1, id).await;
                }
                if key == ApiKey::ShareGroupDescribe {
                    let id = fresh_topic(&world);
                    allow(&world, Kind::Group, Op::Read).await;
                    allow(&world, Kind::Stream, Op::Describe).await;
                    ask(&mut client, ApiKey::ShareGroupHeartbeat, 1, id).await;
                }
                forget_rules(&world).await;
                for (at, (kind, operation)) in needs.iter().enumerate() {
                    if at != left_out {
                        allow(&world, *kind, *operation).await;
                    }
                }
                let id = topic_for(&world, key).await;
                let reply = ask(&mut client, key, version, id).await;
                let is_told = key != ApiKey::CreateTopics || left_out == 0 || version >= 5;
                if tells(key, version) && is_told {
                    let missing = &needs[left_out];
                    assert!(
                        !denials(&reply).is_empty(),
                        "{what} without {missing:?}: {reply}"
                    );
                }
            }
            forget_rules(&world).await;
            for (kind, operation) in needs {
                allow(&world, *kind, *operation).await;
            }
            let id = topic_for(&world, key).await;
            let reply = ask(&mut client, key, version, id).await;
            let denied = denials(&reply);
            assert!(denied.is_empty(), "{what} with all it needs: {reply}");
        }
    }
}

/// The topic that a request of this API is about; one that is to be created is not there.
async fn topic_for(world: &World, key: ApiKey) -> Uuid {
    if key == ApiKey::CreateTopics {
        drop_topic(world).await;
        return Uuid::nil();
    }
    fresh_topic(world)
}

fn fresh_topic(world: &World) -> Uuid {
    let shared = world.broker.shared();
    if shared.data.catalog.named(TOPIC).is_none() {
        world.create(TOPIC, one_partition());
    }
    shared
        .data
        .catalog
        .named(TOPIC)
        .expect("it is there")
        .id()
        .0
}

async fn drop_topic(world: &World) {
    let shared = world.broker.shared();
    if let Some(stream) = shared.data.catalog.named(TOPIC) {
        let deleted = kera_broker::admin::delete_stream(shared, &stream).await;
        deleted.expect("it is deleted");
    }
}
