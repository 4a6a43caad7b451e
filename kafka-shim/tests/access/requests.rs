//! One request of each API, about the one topic and the one group.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Encodable, HeaderVersion};
use kera_protocol::batch::{Compression, ProducerStamp};
use uuid::Uuid;

use crate::{GROUP, TOPIC, common, words};

fn topic() -> TopicName {
    TopicName(words(TOPIC))
}

fn group() -> GroupId {
    GroupId(words(GROUP))
}

/// A share group of a name that rules for the other one are for as well.
fn share_group() -> GroupId {
    GroupId(words(&format!("{GROUP}-shares")))
}

/// A request's body, and the version of its header.
pub struct Asked {
    pub body: Bytes,
    pub header: i16,
}

fn asked<R: Encodable + HeaderVersion>(request: &R, version: i16) -> Asked {
    let mut out = BytesMut::new();
    request.encode(&mut out, version).expect("a valid request");
    Asked {
        body: out.freeze(),
        header: R::header_version(version),
    }
}

/// The request of an API in one version; topics have the id `id`. None: no request is made for it here.
pub fn of(api: ApiKey, version: i16, id: Uuid) -> Option<Asked> {
    Some(match api {
        ApiKey::Produce => asked(&produce(version, id), version),
        ApiKey::Fetch => asked(&fetch(version, id), version),
        ApiKey::ListOffsets => asked(&list_offsets(), version),
        ApiKey::Metadata => asked(&metadata(), version),
        ApiKey::OffsetCommit => asked(&offset_commit(), version),
        ApiKey::OffsetFetch => asked(&offset_fetch(version), version),
        ApiKey::FindCoordinator => asked(&find_coordinator(version), version),
        ApiKey::JoinGroup => {
            let request = JoinGroupRequest::default().with_group_id(group());
            asked(&request.with_session_timeout_ms(10_000), version)
        }
        ApiKey::Heartbeat => asked(&HeartbeatRequest::default().with_group_id(group()), version),
        ApiKey::LeaveGroup => asked(
            &LeaveGroupRequest::default().with_group_id(group()),
            version,
        ),
        ApiKey::SyncGroup => {
            let mut request = SyncGroupRequest::default().with_group_id(group());
            if version >= 5 {
                request.protocol_type = Some(words("consumer"));
                request.protocol_name = Some(words("range"));
            }
            asked(&request, version)
        }
        ApiKey::DescribeGroups => {
            let request = DescribeGroupsRequest::default();
            asked(&request.with_groups(vec![group()]), version)
        }
        ApiKey::ListGroups => asked(&ListGroupsRequest::default(), version),
        ApiKey::ApiVersions => {
            let request = ApiVersionsRequest::default()
                .with_client_software_name(words("test"))
                .with_client_software_version(words("1"));
            asked(&request, version)
        }
        ApiKey::CreateTopics => {
            let made = CreatableTopic::default()
                .with_name(topic())
                .with_num_partitions(1)
                .with_replication_factor(1);
            asked(
                &CreateTopicsRequest::default()
                    .with_topics(vec![made])
                    .with_timeout_ms(1000),
                version,
            )
        }
        ApiKey::DeleteTopics => asked(&delete_topics(version), version),
        ApiKey::DeleteRecords => {
            let partition = DeleteRecordsPartition::default().with_offset(-1);
            let records = DeleteRecordsTopic::default()
                .with_name(topic())
                .with_partitions(vec![partition]);
            let request = DeleteRecordsRequest::default().with_topics(vec![records]);
            asked(&request, version)
        }
        ApiKey::InitProducerId => {
            let request = InitProducerIdRequest::default().with_transactional_id(None);
            let request = request.with_transaction_timeout_ms(1000);
            Asked {
                body: common::newer_bodies::init_producer_id(&request, version),
                header: InitProducerIdRequest::header_version(version),
            }
        }
        ApiKey::OffsetForLeaderEpoch => {
            let partition = OffsetForLeaderPartition::default().with_leader_epoch(1);
            let of = OffsetForLeaderTopic::default()
                .with_topic(topic())
                .with_partitions(vec![partition]);
            let request = OffsetForLeaderEpochRequest::default().with_topics(vec![of]);
            asked(&request, version)
        }
        ApiKey::AddPartitionsToTxn if version >= 4 => {
            let of = AddPartitionsToTxnTopic::default()
                .with_name(topic())
                .with_partitions(vec![0]);
            let transaction = AddPartitionsToTxnTransaction::default()
                .with_transactional_id(TransactionalId(words("t")))
                .with_topics(vec![of]);
            let request = AddPartitionsToTxnRequest::default();
            asked(&request.with_transactions(vec![transaction]), version)
        }
        ApiKey::AddPartitionsToTxn => {
            let of = AddPartitionsToTxnTopic::default()
                .with_name(topic())
                .with_partitions(vec![0]);
            let request = AddPartitionsToTxnRequest::default()
                .with_v3_and_below_transactional_id(TransactionalId(words("t")))
                .with_v3_and_below_topics(vec![of]);
            asked(&request, version)
        }
        ApiKey::AddOffsetsToTxn => {
            let request = AddOffsetsToTxnRequest::default()
                .with_transactional_id(TransactionalId(words("t")))
                .with_group_id(group());
            asked(&request, version)
        }
        ApiKey::WriteTxnMarkers => {
            let of = WritableTxnMarkerTopic::default()
                .with_name(topic())
                .with_partition_indexes(vec![0]);
            let marker = WritableTxnMarker::default().with_topics(vec![of]);
            asked(
                &WriteTxnMarkersRequest::default().with_markers(vec![marker]),
                version,
            )
        }
        ApiKey::EndTxn => {
            let id = TransactionalId(words("t"));
            asked(&EndTxnRequest::default().with_transactional_id(id), version)
        }
        ApiKey::TxnOffsetCommit => {
            let of = TxnOffsetCommitRequestTopic::default()
                .with_name(topic())
                .with_partitions(vec![TxnOffsetCommitRequestPartition::default()]);
            let request = TxnOffsetCommitRequest::default()
                .with_transactional_id(TransactionalId(words("t")))
                .with_group_id(group())
                .with_topics(vec![of]);
            asked(&request, version)
        }
        ApiKey::DescribeAcls => {
            let request = DescribeAclsRequest::default()
                .with_resource_type_filter(1)
                .with_resource_name_filter(None)
                .with_pattern_type_filter(1)
                .with_principal_filter(None)
                .with_host_filter(None)
                .with_operation(1)
                .with_permission_type(1);
            asked(&request, version)
        }
        ApiKey::CreateAcls => {
            let creation = create_acls_request::AclCreation::default()
                .with_resource_type(5)
                .with_resource_name(words("some"))
                .with_resource_pattern_type(3)
                .with_principal(words("User:somebody"))
                .with_host(words("*"))
                .with_operation(3)
                .with_permission_type(3);
            let request = CreateAclsRequest::default().with_creations(vec![creation]);
            asked(&request, version)
        }
        ApiKey::DeleteAcls => {
            let filter = delete_acls_request::DeleteAclsFilter::default()
                .with_resource_type_filter(5)
                .with_resource_name_filter(None)
                .with_pattern_type_filter(1)
                .with_principal_filter(Some(words("User:nobody")))
                .with_host_filter(None)
                .with_operation(1)
                .with_permission_type(1);
            asked(
                &DeleteAclsRequest::default().with_filters(vec![filter]),
                version,
            )
        }
        ApiKey::DescribeConfigs => {
            let resource = DescribeConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(words(TOPIC))
                .with_configuration_keys(None);
            let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
            asked(&request, version)
        }
        ApiKey::AlterConfigs => {
            let resource = alter_configs_request::AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(words(TOPIC));
            let request = AlterConfigsRequest::default().with_resources(vec![resource]);
            asked(&request, version)
        }
        ApiKey::IncrementalAlterConfigs => {
            let resource = incremental_alter_configs_request::AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(words(TOPIC));
            let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
            asked(&request, version)
        }
        ApiKey::DescribeLogDirs => asked(
            &DescribeLogDirsRequest::default().with_topics(None),
            version,
        ),
        ApiKey::CreatePartitions => {
            let grown = CreatePartitionsTopic::default()
                .with_name(topic())
                .with_count(3)
                .with_assignments(None);
            let request = CreatePartitionsRequest::default()
                .with_topics(vec![grown])
                .with_validate_only(true);
            asked(&request, version)
        }
        ApiKey::DeleteGroups => {
            let request = DeleteGroupsRequest::default();
            asked(&request.with_groups_names(vec![group()]), version)
        }
        ApiKey::ElectLeaders => asked(
            &ElectLeadersRequest::default().with_topic_partitions(None),
            version,
        ),
        ApiKey::ListPartitionReassignments => {
            let request = ListPartitionReassignmentsRequest::default().with_topics(None);
            asked(&request, version)
        }
        ApiKey::OffsetDelete => asked(&offset_delete(), version),
        ApiKey::DescribeClientQuotas => asked(&DescribeClientQuotasRequest::default(), version),
        ApiKey::AlterClientQuotas => {
            let entity = alter_client_quotas_request::EntityData::default()
                .with_entity_type(words("user"))
                .with_entity_name(Some(words("nobody")));
            let entry = alter_client_quotas_request::EntryData::default().with_entity(vec![entity]);
            let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
            asked(&request, version)
        }
        ApiKey::DescribeUserScramCredentials => {
            let request = DescribeUserScramCredentialsRequest::default().with_users(None);
            asked(&request, version)
        }
        ApiKey::AlterUserScramCredentials => {
            let deletion = alter_user_scram_credentials_request::ScramCredentialDeletion::default()
                .with_name(words("nobody"))
                .with_mechanism(1);
            let request = AlterUserScramCredentialsRequest::default();
            asked(&request.with_deletions(vec![deletion]), version)
        }
        ApiKey::DescribeQuorum => asked(&DescribeQuorumRequest::default(), version),
        ApiKey::DescribeCluster => {
            let mut request = DescribeClusterRequest::default();
            if version >= 1 {
                request.endpoint_type = 1;
            }
            asked(&request, version)
        }
        ApiKey::DescribeProducers => {
            let of = describe_producers_request::TopicRequest::default()
                .with_name(topic())
                .with_partition_indexes(vec![0]);
            let request = DescribeProducersRequest::default().with_topics(vec![of]);
            asked(&request, version)
        }
        ApiKey::DescribeTransactions => {
            let ids = vec![TransactionalId(words("t"))];
            let request = DescribeTransactionsRequest::default().with_transactional_ids(ids);
            asked(&request, version)
        }
        ApiKey::ListTransactions => asked(&ListTransactionsRequest::default(), version),
        ApiKey::ConsumerGroupHeartbeat => {
            let request = ConsumerGroupHeartbeatRequest::default()
                .with_group_id(group())
                .with_member_id(words("m"))
                .with_rebalance_timeout_ms(1_000)
                .with_subscribed_topic_names(Some(vec![topic()]))
                .with_topic_partitions(Some(Vec::new()));
            asked(&request, version)
        }
        ApiKey::ConsumerGroupDescribe => {
            let request = ConsumerGroupDescribeRequest::default();
            let groups = vec![group()];
            asked(&request.with_group_ids(groups), version)
        }
        ApiKey::ShareGroupHeartbeat => {
            let request = ShareGroupHeartbeatRequest::default()
                .with_group_id(share_group())
                .with_member_id(words("m"))
                .with_subscribed_topic_names(Some(vec![topic()]));
            asked(&request, version)
        }
        ApiKey::ShareGroupDescribe => {
            let request = ShareGroupDescribeRequest::default();
            asked(&request.with_group_ids(vec![share_group()]), version)
        }
        ApiKey::ShareFetch => {
            let partition = share_fetch_request::FetchPartition::default();
            let of = share_fetch_request::FetchTopic::default()
                .with_topic_id(id)
                .with_partitions(vec![partition]);
            let request = ShareFetchRequest::default()
                .with_group_id(Some(share_group()))
                .with_member_id(Some(words("m")))
                .with_max_bytes(1_000)
                .with_max_records(1)
                .with_topics(vec![of]);
            Asked {
                body: common::newer_bodies::share_fetch(&request, version, 0, false),
                header: ShareFetchRequest::header_version(version),
            }
        }
        ApiKey::ShareAcknowledge => {
            let request = ShareAcknowledgeRequest::default()
                .with_group_id(Some(share_group()))
                .with_member_id(Some(words("m")))
                .with_share_session_epoch(1);
            Asked {
                body: common::newer_bodies::share_acknowledge(&request, version, false),
                header: ShareAcknowledgeRequest::header_version(version),
            }
        }
        ApiKey::DescribeShareGroupOffsets => {
            use describe_share_group_offsets_request::{
                DescribeShareGroupOffsetsRequestGroup, DescribeShareGroupOffsetsRequestTopic,
            };
            let of = DescribeShareGroupOffsetsRequestTopic::default()
                .with_topic_name(topic())
                .with_partitions(vec![0]);
            let group = DescribeShareGroupOffsetsRequestGroup::default()
                .with_group_id(share_group())
                .with_topics(Some(vec![of]));
            let request = DescribeShareGroupOffsetsRequest::default().with_groups(vec![group]);
            asked(&request, version)
        }
        ApiKey::AlterShareGroupOffsets => {
            use alter_share_group_offsets_request::{
                AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
            };
            let partition = AlterShareGroupOffsetsRequestPartition::default();
            let of = AlterShareGroupOffsetsRequestTopic::default()
                .with_topic_name(topic())
                .with_partitions(vec![partition]);
            let request = AlterShareGroupOffsetsRequest::default()
                .with_group_id(share_group())
                .with_topics(vec![of]);
            asked(&request, version)
        }
        ApiKey::DeleteShareGroupOffsets => {
            use delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
            let of = DeleteShareGroupOffsetsRequestTopic::default().with_topic_name(topic());
            let request = DeleteShareGroupOffsetsRequest::default()
                .with_group_id(share_group())
                .with_topics(vec![of]);
            asked(&request, version)
        }
        ApiKey::ListConfigResources => asked(&ListConfigResourcesRequest::default(), version),
        ApiKey::DescribeTopicPartitions => {
            let of = describe_topic_partitions_request::TopicRequest::default().with_name(topic());
            let request = DescribeTopicPartitionsRequest::default()
                .with_topics(vec![of])
                .with_response_partition_limit(10);
            asked(&request, version)
        }
        _ => return None,
    })
}

pub fn produce(version: i16, id: Uuid) -> ProduceRequest {
    let records = common::batch("v", 1, Compression::None, ProducerStamp::NONE);
    let data = PartitionProduceData::default().with_records(Some(records));
    let mut topic_data = TopicProduceData::default().with_partition_data(vec![data]);
    match version >= 13 {
        true => topic_data.topic_id = id,
        false => topic_data.name = topic(),
    }
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![topic_data])
}

pub fn fetch(version: i16, id: Uuid) -> FetchRequest {
    let partition = FetchPartition::default().with_partition_max_bytes(1 << 20);
    let mut of = FetchTopic::default().with_partitions(vec![partition]);
    match version >= 13 {
        true => of.topic_id = id,
        false => of.topic = topic(),
    }
    let mut request = FetchRequest::default()
        .with_max_bytes(1 << 20)
        .with_topics(vec![of]);
    if version < 15 {
        request.replica_id = BrokerId(-1);
    }
    if version >= 7 {
        request.session_epoch = -1;
    }
    request
}

fn list_offsets() -> ListOffsetsRequest {
    let partition = ListOffsetsPartition::default().with_timestamp(-1);
    let of = ListOffsetsTopic::default()
        .with_name(topic())
        .with_partitions(vec![partition]);
    ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![of])
}

pub fn metadata() -> MetadataRequest {
    let of = MetadataRequestTopic::default().with_name(Some(topic()));
    MetadataRequest::default().with_topics(Some(vec![of]))
}

fn offset_commit() -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default().with_committed_metadata(None);
    let of = OffsetCommitRequestTopic::default()
        .with_name(topic())
        .with_partitions(vec![partition]);
    OffsetCommitRequest::default()
        .with_group_id(group())
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![of])
}

fn offset_fetch(version: i16) -> OffsetFetchRequest {
    if version < 8 {
        let of = OffsetFetchRequestTopic::default()
            .with_name(topic())
            .with_partition_indexes(vec![0]);
        return OffsetFetchRequest::default()
            .with_group_id(group())
            .with_topics(Some(vec![of]));
    }
    let of = OffsetFetchRequestTopics::default()
        .with_name(topic())
        .with_partition_indexes(vec![0]);
    let of = OffsetFetchRequestGroup::default()
        .with_group_id(group())
        .with_topics(Some(vec![of]));
    OffsetFetchRequest::default().with_groups(vec![of])
}

fn find_coordinator(version: i16) -> FindCoordinatorRequest {
    match version >= 4 {
        true => FindCoordinatorRequest::default().with_coordinator_keys(vec![words(GROUP)]),
        false => FindCoordinatorRequest::default().with_key(words(GROUP)),
    }
}

fn delete_topics(version: i16) -> DeleteTopicsRequest {
    let request = DeleteTopicsRequest::default().with_timeout_ms(1000);
    match version >= 6 {
        true => {
            let of = DeleteTopicState::default().with_name(Some(topic()));
            request.with_topics(vec![of])
        }
        false => request.with_topic_names(vec![topic()]),
    }
}

fn offset_delete() -> OffsetDeleteRequest {
    let partition = OffsetDeleteRequestPartition::default();
    let of = OffsetDeleteRequestTopic::default()
        .with_name(topic())
        .with_partitions(vec![partition]);
    OffsetDeleteRequest::default()
        .with_group_id(group())
        .with_topics(vec![of])
}
