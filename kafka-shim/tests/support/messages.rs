//! Valid requests of every API and version, made with the codec's structures and encoder.

use bytes::BytesMut;
use kafka_protocol::messages::{
    AlterConfigsRequest, ApiVersionsRequest, BrokerId, CreatePartitionsRequest,
    CreateTopicsRequest, DeleteGroupsRequest, DeleteRecordsRequest, DeleteTopicsRequest,
    DescribeClusterRequest, DescribeConfigsRequest, DescribeGroupsRequest, DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest, FetchRequest, FindCoordinatorRequest, GroupId,
    HeartbeatRequest, IncrementalAlterConfigsRequest, InitProducerIdRequest, JoinGroupRequest,
    LeaveGroupRequest, ListGroupsRequest, ListOffsetsRequest, MetadataRequest, OffsetCommitRequest,
    OffsetDeleteRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest, ProduceRequest,
    ProducerId, ShareAcknowledgeRequest, ShareFetchRequest, SyncGroupRequest, TopicName,
    TransactionalId,
};
use kafka_protocol::messages::{
    alter_configs_request, create_partitions_request, create_topics_request,
    delete_records_request, delete_topics_request, describe_configs_request,
    describe_log_dirs_request, describe_topic_partitions_request, fetch_request,
    incremental_alter_configs_request, join_group_request, leave_group_request,
    list_offsets_request, metadata_request, offset_commit_request, offset_delete_request,
    offset_fetch_request, offset_for_leader_epoch_request, produce_request, sync_group_request,
};
use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};
use kera_kafka_shim::wire::schema::SHAPES;
use kera_kafka_shim::wire::share::RENEWALS_FROM;

use crate::dice::Dice;
use crate::newer_bodies;

#[path = "messages/more.rs"]
mod more;
#[path = "messages/shares.rs"]
mod shares;

/// Every API and version that the table describes.
pub fn all_versions() -> impl Iterator<Item = (i16, i16)> {
    let versions = |shape: &'static kera_kafka_shim::wire::schema::Shape| {
        (shape.min..=shape.max).map(|version| (shape.api_key, version))
    };
    SHAPES.iter().flat_map(versions)
}

fn topic(dice: &mut Dice) -> TopicName {
    TopicName(dice.text())
}

fn group(dice: &mut Dice) -> GroupId {
    GroupId(dice.text())
}

fn encoded<R: Encodable + HeaderVersion>(request: &R, version: i16) -> (Vec<u8>, i16) {
    let mut out = BytesMut::new();
    request
        .encode(&mut out, version)
        .unwrap_or_else(|error| panic!("version {version} does not encode: {error}"));
    (out.to_vec(), R::header_version(version))
}

/// The body of a random request, and the version of the header that goes with it.
pub fn body(api_key: i16, version: i16, dice: &mut Dice) -> (Vec<u8>, i16) {
    match api_key {
        0 => encoded(&produce(version, dice), version),
        1 => encoded(&fetch(version, dice), version),
        2 => encoded(&list_offsets(version, dice), version),
        3 => encoded(&metadata(version, dice), version),
        8 => encoded(&offset_commit(version, dice), version),
        9 => encoded(&offset_fetch(version, dice), version),
        10 => encoded(&find_coordinator(version, dice), version),
        11 => encoded(&join_group(version, dice), version),
        12 => encoded(&heartbeat(version, dice), version),
        13 => encoded(&leave_group(version, dice), version),
        14 => encoded(&sync_group(version, dice), version),
        15 => encoded(&describe_groups(version, dice), version),
        16 => encoded(&list_groups(version, dice), version),
        18 => encoded(&api_versions(version, dice), version),
        19 => encoded(&create_topics(version, dice), version),
        20 => encoded(&delete_topics(version, dice), version),
        21 => encoded(&delete_records(version, dice), version),
        22 => {
            let request = init_producer_id(version, dice);
            let header = InitProducerIdRequest::header_version(version);
            (
                newer_bodies::init_producer_id(&request, version).to_vec(),
                header,
            )
        }
        23 => encoded(&offset_for_leader_epoch(version, dice), version),
        24 => encoded(&more::add_partitions_to_txn(version, dice), version),
        25 => encoded(&more::add_offsets_to_txn(version, dice), version),
        26 => encoded(&more::end_txn(version, dice), version),
        27 => encoded(&more::write_txn_markers(version, dice), version),
        28 => encoded(&more::txn_offset_commit(version, dice), version),
        17 => encoded(&more::sasl_handshake(dice), version),
        76 => encoded(&shares::heartbeat(dice), version),
        77 => encoded(&shares::describe(dice), version),
        78 => {
            let request = shares::fetch(dice);
            let (mode, renews) = match version {
                ..RENEWALS_FROM => (0, false),
                _ => (dice.below(2) as i8, dice.below(2) == 1),
            };
            let body = newer_bodies::share_fetch(&request, version, mode, renews);
            (body.to_vec(), ShareFetchRequest::header_version(version))
        }
        79 => {
            let request = shares::acknowledge(dice);
            let renews = version >= RENEWALS_FROM && dice.below(2) == 1;
            let body = newer_bodies::share_acknowledge(&request, version, renews);
            (
                body.to_vec(),
                ShareAcknowledgeRequest::header_version(version),
            )
        }
        90 => encoded(&shares::describe_offsets(dice), version),
        91 => encoded(&shares::alter_offsets(dice), version),
        92 => encoded(&shares::delete_offsets(dice), version),
        68 => encoded(&more::consumer_heartbeat(version, dice), version),
        69 => encoded(&more::consumer_describe(dice), version),
        36 => encoded(&more::sasl_authenticate(version, dice), version),
        50 => encoded(&more::describe_users(dice), version),
        51 => encoded(&more::alter_users(dice), version),
        29 => encoded(&more::describe_acls(version, dice), version),
        30 => encoded(&more::create_acls(version, dice), version),
        31 => encoded(&more::delete_acls(version, dice), version),
        32 => encoded(&describe_configs(version, dice), version),
        33 => encoded(&alter_configs(version, dice), version),
        35 => encoded(&describe_log_dirs(version, dice), version),
        37 => encoded(&create_partitions(version, dice), version),
        42 => encoded(&delete_groups(version, dice), version),
        43 => encoded(&more::elect_leaders(version, dice), version),
        44 => encoded(&incremental_alter_configs(version, dice), version),
        46 => encoded(&more::list_partition_reassignments(dice), version),
        47 => encoded(&offset_delete(dice), version),
        48 => encoded(&more::describe_client_quotas(version, dice), version),
        49 => encoded(&more::alter_client_quotas(version, dice), version),
        55 => encoded(&more::describe_quorum(dice), version),
        60 => encoded(&describe_cluster(version, dice), version),
        61 => encoded(&more::describe_producers(dice), version),
        65 => encoded(&more::describe_transactions(dice), version),
        66 => encoded(&more::list_transactions(version, dice), version),
        74 => encoded(&more::list_config_resources(version, dice), version),
        75 => encoded(&describe_topic_partitions(dice), version),
        _ => panic!("api key {api_key} has no messages here; write how to make one"),
    }
}

fn produce(version: i16, dice: &mut Dice) -> ProduceRequest {
    use produce_request::{PartitionProduceData, TopicProduceData};
    let flexible = version >= 9;
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            PartitionProduceData::default()
                .with_index(dice.i32())
                .with_records(dice.maybe(Dice::bytes))
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        let mut data = TopicProduceData::default()
            .with_partition_data(partitions)
            .with_unknown_tagged_fields(dice.tags(flexible));
        if version <= 12 {
            data.name = topic(dice);
        } else {
            data.topic_id = dice.uuid();
        }
        data
    });
    ProduceRequest::default()
        .with_transactional_id((dice.below(4) == 0).then(|| TransactionalId(dice.text())))
        .with_acks(dice.i16())
        .with_timeout_ms(dice.i32())
        .with_topic_data(topics)
        .with_unknown_tagged_fields(dice.tags(flexible))
}

fn fetch(version: i16, dice: &mut Dice) -> FetchRequest {
    use fetch_request::{FetchPartition, FetchTopic, ForgottenTopic, ReplicaState};
    let flexible = version >= 12;
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            let mut partition = FetchPartition::default()
                .with_partition(dice.i32())
                .with_fetch_offset(dice.i64())
                .with_partition_max_bytes(dice.i32())
                .with_unknown_tagged_fields(dice.tags(flexible));
            if version >= 5 {
                partition.log_start_offset = dice.i64();
            }
            if version >= 9 {
                partition.current_leader_epoch = dice.i32();
            }
            if version >= 12 {
                partition.last_fetched_epoch = dice.i32();
            }
            if version >= 17 && dice.flag() {
                partition.replica_directory_id = dice.uuid();
            }
            if version >= 18 && dice.flag() {
                partition.high_watermark = dice.i64();
            }
            partition
        });
        let mut data = FetchTopic::default()
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(flexible));
        if version <= 12 {
            data.topic = topic(dice);
        } else {
            data.topic_id = dice.uuid();
        }
        data
    });
    let mut request = FetchRequest::default()
        // Whoever sends it wants to see the answer.
        .with_max_wait_ms(dice.below(100) as i32)
        .with_min_bytes(dice.i32())
        .with_max_bytes(dice.i32())
        .with_isolation_level(dice.i8())
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version <= 14 {
        request.replica_id = BrokerId(dice.i32());
    } else if dice.flag() {
        request.replica_state = ReplicaState::default()
            .with_replica_id(BrokerId(dice.i32()))
            .with_replica_epoch(dice.i64())
            .with_unknown_tagged_fields(dice.tags(flexible));
    }
    if version >= 7 {
        request.session_id = dice.i32();
        request.session_epoch = dice.i32();
        request.forgotten_topics_data = dice.list(|dice| {
            let mut forgotten = ForgottenTopic::default()
                .with_partitions(dice.list(Dice::i32))
                .with_unknown_tagged_fields(dice.tags(flexible));
            if version <= 12 {
                forgotten.topic = topic(dice);
            } else {
                forgotten.topic_id = dice.uuid();
            }
            forgotten
        });
    }
    if version >= 11 {
        request.rack_id = dice.text();
    }
    if version >= 12 && dice.flag() {
        request.cluster_id = Some(dice.text());
    }
    request
}

fn list_offsets(version: i16, dice: &mut Dice) -> ListOffsetsRequest {
    use list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
    let flexible = version >= 6;
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            let mut partition = ListOffsetsPartition::default()
                .with_partition_index(dice.i32())
                .with_timestamp(dice.i64())
                .with_unknown_tagged_fields(dice.tags(flexible));
            if version >= 4 {
                partition.current_leader_epoch = dice.i32();
            }
            partition
        });
        ListOffsetsTopic::default()
            .with_name(topic(dice))
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    let mut request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(dice.i32()))
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version >= 2 {
        request.isolation_level = dice.i8();
    }
    if version >= 10 {
        request.timeout_ms = dice.i32();
    }
    request
}

fn metadata(version: i16, dice: &mut Dice) -> MetadataRequest {
    use metadata_request::MetadataRequestTopic;
    let flexible = version >= 9;
    let topics = |dice: &mut Dice| {
        dice.list(|dice| {
            let mut wanted = MetadataRequestTopic::default()
                .with_name(Some(topic(dice)))
                .with_unknown_tagged_fields(dice.tags(flexible));
            if version >= 10 && dice.flag() {
                (wanted.name, wanted.topic_id) = (None, dice.uuid());
            }
            wanted
        })
    };
    let mut request = MetadataRequest::default().with_topics(Some(topics(dice)));
    if version >= 1 && dice.flag() {
        request.topics = None;
    }
    if version >= 4 {
        request.allow_auto_topic_creation = dice.flag();
    }
    if (8..=10).contains(&version) {
        request.include_cluster_authorized_operations = dice.flag();
    }
    if version >= 8 {
        request.include_topic_authorized_operations = dice.flag();
    }
    request.with_unknown_tagged_fields(dice.tags(flexible))
}

fn offset_commit(version: i16, dice: &mut Dice) -> OffsetCommitRequest {
    use offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    let flexible = version >= 8;
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            let mut partition = OffsetCommitRequestPartition::default()
                .with_partition_index(dice.i32())
                .with_committed_offset(dice.i64())
                .with_committed_metadata(dice.maybe(Dice::text))
                .with_unknown_tagged_fields(dice.tags(flexible));
            if version >= 6 {
                partition.committed_leader_epoch = dice.i32();
            }
            partition
        });
        OffsetCommitRequestTopic::default()
            .with_name(topic(dice))
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    let mut request = OffsetCommitRequest::default()
        .with_group_id(group(dice))
        .with_generation_id_or_member_epoch(dice.i32())
        .with_member_id(dice.text())
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version <= 4 {
        request.retention_time_ms = dice.i64();
    }
    if version >= 7 {
        request.group_instance_id = dice.maybe(Dice::text);
    }
    request
}

fn offset_fetch(version: i16, dice: &mut Dice) -> OffsetFetchRequest {
    use offset_fetch_request::{
        OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
    };
    let flexible = version >= 6;
    let mut request = OffsetFetchRequest::default();
    if version <= 7 {
        request.group_id = group(dice);
        let topics = dice.list(|dice| {
            OffsetFetchRequestTopic::default()
                .with_name(topic(dice))
                .with_partition_indexes(dice.list(Dice::i32))
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        request.topics = (version < 2 || dice.flag()).then_some(topics);
    } else {
        request.groups = dice.list(|dice| {
            let topics = dice.list(|dice| {
                OffsetFetchRequestTopics::default()
                    .with_name(topic(dice))
                    .with_partition_indexes(dice.list(Dice::i32))
                    .with_unknown_tagged_fields(dice.tags(flexible))
            });
            let mut wanted = OffsetFetchRequestGroup::default()
                .with_group_id(group(dice))
                .with_topics(dice.flag().then_some(topics))
                .with_unknown_tagged_fields(dice.tags(flexible));
            if version >= 9 {
                wanted.member_id = dice.maybe(Dice::text);
                wanted.member_epoch = dice.i32();
            }
            wanted
        });
    }
    if version >= 7 {
        request.require_stable = dice.flag();
    }
    request.with_unknown_tagged_fields(dice.tags(flexible))
}

fn find_coordinator(version: i16, dice: &mut Dice) -> FindCoordinatorRequest {
    let mut request =
        FindCoordinatorRequest::default().with_unknown_tagged_fields(dice.tags(version >= 3));
    if version <= 3 {
        request.key = dice.text();
    } else {
        request.coordinator_keys = dice.list(Dice::text);
    }
    if version >= 1 {
        request.key_type = dice.i8();
    }
    request
}

fn join_group(version: i16, dice: &mut Dice) -> JoinGroupRequest {
    use join_group_request::JoinGroupRequestProtocol;
    let flexible = version >= 6;
    let protocols = dice.list(|dice| {
        JoinGroupRequestProtocol::default()
            .with_name(dice.text())
            .with_metadata(dice.bytes())
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    let mut request = JoinGroupRequest::default()
        .with_group_id(group(dice))
        .with_session_timeout_ms(dice.i32())
        .with_member_id(dice.text())
        .with_protocol_type(dice.text())
        .with_protocols(protocols)
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version >= 1 {
        request.rebalance_timeout_ms = dice.i32();
    }
    if version >= 5 {
        request.group_instance_id = dice.maybe(Dice::text);
    }
    if version >= 8 {
        request.reason = dice.maybe(Dice::text);
    }
    request
}

fn heartbeat(version: i16, dice: &mut Dice) -> HeartbeatRequest {
    let mut request = HeartbeatRequest::default()
        .with_group_id(group(dice))
        .with_generation_id(dice.i32())
        .with_member_id(dice.text())
        .with_unknown_tagged_fields(dice.tags(version >= 4));
    if version >= 3 {
        request.group_instance_id = dice.maybe(Dice::text);
    }
    request
}

fn leave_group(version: i16, dice: &mut Dice) -> LeaveGroupRequest {
    use leave_group_request::MemberIdentity;
    let flexible = version >= 4;
    let mut request = LeaveGroupRequest::default()
        .with_group_id(group(dice))
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version <= 2 {
        request.member_id = dice.text();
    } else {
        request.members = dice.list(|dice| {
            let mut member = MemberIdentity::default()
                .with_member_id(dice.text())
                .with_group_instance_id(dice.maybe(Dice::text))
                .with_unknown_tagged_fields(dice.tags(flexible));
            if version >= 5 {
                member.reason = dice.maybe(Dice::text);
            }
            member
        });
    }
    request
}

fn sync_group(version: i16, dice: &mut Dice) -> SyncGroupRequest {
    use sync_group_request::SyncGroupRequestAssignment;
    let flexible = version >= 4;
    let assignments = dice.list(|dice| {
        SyncGroupRequestAssignment::default()
            .with_member_id(dice.text())
            .with_assignment(dice.bytes())
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    let mut request = SyncGroupRequest::default()
        .with_group_id(group(dice))
        .with_generation_id(dice.i32())
        .with_member_id(dice.text())
        .with_assignments(assignments)
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version >= 3 {
        request.group_instance_id = dice.maybe(Dice::text);
    }
    if version >= 5 {
        request.protocol_type = dice.maybe(Dice::text);
        request.protocol_name = dice.maybe(Dice::text);
    }
    request
}

fn describe_groups(version: i16, dice: &mut Dice) -> DescribeGroupsRequest {
    DescribeGroupsRequest::default()
        .with_groups(dice.list(group))
        .with_include_authorized_operations(version >= 3 && dice.flag())
        .with_unknown_tagged_fields(dice.tags(version >= 5))
}

fn list_groups(version: i16, dice: &mut Dice) -> ListGroupsRequest {
    let mut request =
        ListGroupsRequest::default().with_unknown_tagged_fields(dice.tags(version >= 3));
    if version >= 4 {
        request.states_filter = dice.list(Dice::text);
    }
    if version >= 5 {
        request.types_filter = dice.list(Dice::text);
    }
    request
}

fn api_versions(version: i16, dice: &mut Dice) -> ApiVersionsRequest {
    let mut request =
        ApiVersionsRequest::default().with_unknown_tagged_fields(dice.tags(version >= 3));
    if version >= 3 {
        request.client_software_name = dice.text();
        request.client_software_version = dice.text();
    }
    request
}

fn create_topics(version: i16, dice: &mut Dice) -> CreateTopicsRequest {
    use create_topics_request::{CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig};
    let flexible = version >= 5;
    let topics = dice.list(|dice| {
        let assignments = dice.list(|dice| {
            CreatableReplicaAssignment::default()
                .with_partition_index(dice.i32())
                .with_broker_ids(dice.list(|dice| BrokerId(dice.i32())))
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        let configs = dice.list(|dice| {
            CreatableTopicConfig::default()
                .with_name(dice.text())
                .with_value(dice.maybe(Dice::text))
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        CreatableTopic::default()
            .with_name(topic(dice))
            .with_num_partitions(dice.i32())
            .with_replication_factor(dice.i16())
            .with_assignments(assignments)
            .with_configs(configs)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    CreateTopicsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(dice.i32())
        .with_validate_only(dice.flag())
        .with_unknown_tagged_fields(dice.tags(flexible))
}

fn delete_topics(version: i16, dice: &mut Dice) -> DeleteTopicsRequest {
    use delete_topics_request::DeleteTopicState;
    let flexible = version >= 4;
    let mut request = DeleteTopicsRequest::default()
        .with_timeout_ms(dice.i32())
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version <= 5 {
        request.topic_names = dice.list(topic);
    } else {
        request.topics = dice.list(|dice| {
            DeleteTopicState::default()
                .with_name(dice.maybe(topic))
                .with_topic_id(dice.uuid())
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
    }
    request
}

fn delete_records(version: i16, dice: &mut Dice) -> DeleteRecordsRequest {
    use delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
    let flexible = version >= 2;
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            DeleteRecordsPartition::default()
                .with_partition_index(dice.i32())
                .with_offset(dice.i64())
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        DeleteRecordsTopic::default()
            .with_name(topic(dice))
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    DeleteRecordsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(dice.i32())
        .with_unknown_tagged_fields(dice.tags(flexible))
}

fn init_producer_id(version: i16, dice: &mut Dice) -> InitProducerIdRequest {
    let mut request = InitProducerIdRequest::default()
        .with_transactional_id(dice.maybe(|dice| TransactionalId(dice.text())))
        .with_transaction_timeout_ms(dice.i32())
        .with_unknown_tagged_fields(dice.tags(version >= 2));
    if version >= 3 {
        request.producer_id = ProducerId(dice.i64());
        request.producer_epoch = dice.i16();
    }
    if version >= 6 {
        request.enable_2_pc = dice.below(2) == 0;
        request.keep_prepared_txn = dice.below(2) == 0;
    }
    request
}

fn offset_for_leader_epoch(version: i16, dice: &mut Dice) -> OffsetForLeaderEpochRequest {
    use offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
    let flexible = version >= 4;
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            OffsetForLeaderPartition::default()
                .with_partition(dice.i32())
                .with_current_leader_epoch(dice.i32())
                .with_leader_epoch(dice.i32())
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        OffsetForLeaderTopic::default()
            .with_topic(topic(dice))
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    let mut request = OffsetForLeaderEpochRequest::default()
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version >= 3 {
        request.replica_id = BrokerId(dice.i32());
    }
    request
}

fn describe_configs(version: i16, dice: &mut Dice) -> DescribeConfigsRequest {
    use describe_configs_request::DescribeConfigsResource;
    let flexible = version >= 4;
    let resources = dice.list(|dice| {
        let keys = dice.list(Dice::text);
        DescribeConfigsResource::default()
            .with_resource_type(dice.i8())
            .with_resource_name(dice.text())
            .with_configuration_keys(dice.flag().then_some(keys))
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    DescribeConfigsRequest::default()
        .with_resources(resources)
        .with_include_synonyms(dice.flag())
        .with_include_documentation(version >= 3 && dice.flag())
        .with_unknown_tagged_fields(dice.tags(flexible))
}

fn alter_configs(version: i16, dice: &mut Dice) -> AlterConfigsRequest {
    use alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let flexible = version >= 2;
    let mut resources = dice.list(|dice| {
        let configs = dice.list(|dice| {
            AlterableConfig::default()
                .with_name(dice.text())
                .with_value(dice.maybe(Dice::text))
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        AlterConfigsResource::default()
            .with_resource_type(dice.i8())
            .with_resource_name(dice.text())
            .with_configs(configs)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    // Of chance alone hardly any succeeds.
    if dice.flag() {
        let topic = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(StrBytes::from_static_str("t"));
        resources.push(topic);
    }
    AlterConfigsRequest::default()
        .with_resources(resources)
        .with_validate_only(dice.flag())
        .with_unknown_tagged_fields(dice.tags(flexible))
}

fn describe_log_dirs(version: i16, dice: &mut Dice) -> DescribeLogDirsRequest {
    use describe_log_dirs_request::DescribableLogDirTopic;
    let flexible = version >= 2;
    let topics = dice.list(|dice| {
        DescribableLogDirTopic::default()
            .with_topic(topic(dice))
            .with_partitions(dice.list(Dice::i32))
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    DescribeLogDirsRequest::default()
        .with_topics(dice.flag().then_some(topics))
        .with_unknown_tagged_fields(dice.tags(flexible))
}

fn create_partitions(version: i16, dice: &mut Dice) -> CreatePartitionsRequest {
    use create_partitions_request::{CreatePartitionsAssignment, CreatePartitionsTopic};
    let flexible = version >= 2;
    let topics = dice.list(|dice| {
        let assignments = dice.list(|dice| {
            CreatePartitionsAssignment::default()
                .with_broker_ids(dice.list(|dice| BrokerId(dice.i32())))
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        CreatePartitionsTopic::default()
            .with_name(topic(dice))
            .with_count(dice.i32())
            .with_assignments(dice.flag().then_some(assignments))
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    CreatePartitionsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(dice.i32())
        .with_validate_only(dice.flag())
        .with_unknown_tagged_fields(dice.tags(flexible))
}

fn delete_groups(version: i16, dice: &mut Dice) -> DeleteGroupsRequest {
    DeleteGroupsRequest::default()
        .with_groups_names(dice.list(group))
        .with_unknown_tagged_fields(dice.tags(version >= 2))
}

fn incremental_alter_configs(version: i16, dice: &mut Dice) -> IncrementalAlterConfigsRequest {
    use incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let flexible = version >= 1;
    let mut resources = dice.list(|dice| {
        let configs = dice.list(|dice| {
            AlterableConfig::default()
                .with_name(dice.text())
                .with_config_operation(dice.i8())
                .with_value(dice.maybe(Dice::text))
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        AlterConfigsResource::default()
            .with_resource_type(dice.i8())
            .with_resource_name(dice.text())
            .with_configs(configs)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    // Of chance alone hardly any succeeds.
    if dice.flag() {
        let topic = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(StrBytes::from_static_str("t"));
        resources.push(topic);
    }
    IncrementalAlterConfigsRequest::default()
        .with_resources(resources)
        .with_validate_only(dice.flag())
        .with_unknown_tagged_fields(dice.tags(flexible))
}

fn offset_delete(dice: &mut Dice) -> OffsetDeleteRequest {
    use offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
    let topics = dice.list(|dice| {
        let partitions = dice
            .list(|dice| OffsetDeleteRequestPartition::default().with_partition_index(dice.i32()));
        OffsetDeleteRequestTopic::default()
            .with_name(topic(dice))
            .with_partitions(partitions)
    });
    OffsetDeleteRequest::default()
        .with_group_id(group(dice))
        .with_topics(topics)
}

fn describe_cluster(version: i16, dice: &mut Dice) -> DescribeClusterRequest {
    let mut request = DescribeClusterRequest::default()
        .with_include_cluster_authorized_operations(dice.flag())
        .with_unknown_tagged_fields(dice.tags(true));
    if version >= 1 {
        request.endpoint_type = dice.i8();
    }
    if version >= 2 {
        request.include_fenced_brokers = dice.flag();
    }
    request
}

fn describe_topic_partitions(dice: &mut Dice) -> DescribeTopicPartitionsRequest {
    use describe_topic_partitions_request::{Cursor, TopicRequest};
    let topics = dice.list(|dice| {
        TopicRequest::default()
            .with_name(topic(dice))
            .with_unknown_tagged_fields(dice.tags(true))
    });
    let cursor = dice.maybe(|dice| {
        Cursor::default()
            .with_topic_name(topic(dice))
            .with_partition_index(dice.i32())
            .with_unknown_tagged_fields(dice.tags(true))
    });
    DescribeTopicPartitionsRequest::default()
        .with_topics(topics)
        .with_response_partition_limit(dice.i32())
        .with_cursor(cursor)
        .with_unknown_tagged_fields(dice.tags(true))
}
