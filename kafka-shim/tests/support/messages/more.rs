//! Requests about transactions, and about what Kera does by itself.

use bytes::Bytes;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest, ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest,
    CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest, DescribeClientQuotasRequest,
    DescribeProducersRequest, DescribeQuorumRequest, DescribeTransactionsRequest,
    DescribeUserScramCredentialsRequest, ElectLeadersRequest, EndTxnRequest, GroupId,
    ListConfigResourcesRequest, ListPartitionReassignmentsRequest, ListTransactionsRequest,
    ProducerId, SaslAuthenticateRequest, SaslHandshakeRequest, TransactionalId,
    TxnOffsetCommitRequest, WriteTxnMarkersRequest, add_partitions_to_txn_request,
    alter_client_quotas_request, alter_user_scram_credentials_request,
    consumer_group_heartbeat_request, create_acls_request, delete_acls_request,
    describe_client_quotas_request, describe_producers_request, describe_quorum_request,
    describe_user_scram_credentials_request, elect_leaders_request,
    list_partition_reassignments_request, txn_offset_commit_request, write_txn_markers_request,
};
use kafka_protocol::protocol::StrBytes;

use super::{group, topic};
use crate::dice::Dice;

pub fn add_partitions_to_txn(version: i16, dice: &mut Dice) -> AddPartitionsToTxnRequest {
    use add_partitions_to_txn_request::AddPartitionsToTxnTopic;
    let flexible = version >= 3;
    let topics = dice.list(|dice| {
        AddPartitionsToTxnTopic::default()
            .with_name(topic(dice))
            .with_partitions(dice.list(Dice::i32))
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    if version >= 4 {
        use add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
        let transactions = dice.list(|dice| {
            let topics = dice.list(|dice| {
                AddPartitionsToTxnTopic::default()
                    .with_name(topic(dice))
                    .with_partitions(dice.list(Dice::i32))
                    .with_unknown_tagged_fields(dice.tags(flexible))
            });
            AddPartitionsToTxnTransaction::default()
                .with_transactional_id(TransactionalId(dice.text()))
                .with_producer_id(ProducerId(dice.i64()))
                .with_producer_epoch(dice.i16())
                .with_verify_only(dice.flag())
                .with_topics(topics)
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        return AddPartitionsToTxnRequest::default()
            .with_transactions(transactions)
            .with_unknown_tagged_fields(dice.tags(flexible));
    }
    AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(TransactionalId(dice.text()))
        .with_v3_and_below_producer_id(ProducerId(dice.i64()))
        .with_v3_and_below_producer_epoch(dice.i16())
        .with_v3_and_below_topics(topics)
        .with_unknown_tagged_fields(dice.tags(flexible))
}

pub fn add_offsets_to_txn(version: i16, dice: &mut Dice) -> AddOffsetsToTxnRequest {
    AddOffsetsToTxnRequest::default()
        .with_transactional_id(TransactionalId(dice.text()))
        .with_producer_id(ProducerId(dice.i64()))
        .with_producer_epoch(dice.i16())
        .with_group_id(group(dice))
        .with_unknown_tagged_fields(dice.tags(version >= 3))
}

pub fn consumer_heartbeat(version: i16, dice: &mut Dice) -> ConsumerGroupHeartbeatRequest {
    use consumer_group_heartbeat_request::TopicPartitions;
    let topics = dice.list(topic);
    let owned = dice.list(|dice| {
        TopicPartitions::default()
            .with_topic_id(dice.uuid())
            .with_partitions(dice.list(Dice::i32))
            .with_unknown_tagged_fields(dice.tags(true))
    });
    let mut request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group(dice))
        .with_member_id(dice.text())
        .with_member_epoch(dice.i32())
        .with_instance_id(dice.maybe(Dice::text))
        .with_rack_id(dice.maybe(Dice::text))
        .with_rebalance_timeout_ms(dice.i32())
        .with_subscribed_topic_names(dice.flag().then_some(topics))
        .with_server_assignor(dice.maybe(Dice::text))
        .with_topic_partitions(dice.flag().then_some(owned))
        .with_unknown_tagged_fields(dice.tags(true));
    if version >= 1 {
        request.subscribed_topic_regex = dice.maybe(Dice::text);
    }
    if dice.flag() {
        // Few of them would be those of a member that joins a group that is not of the classic protocol.
        request = request
            .with_group_id(consumers())
            .with_member_epoch(0)
            .with_instance_id(None)
            .with_rack_id(None)
            .with_rebalance_timeout_ms(1_000)
            .with_server_assignor(None)
            .with_topic_partitions(Some(Vec::new()));
    }
    request
}

/// A group of the consumer protocol.
fn consumers() -> GroupId {
    GroupId(StrBytes::from_static_str("consumers"))
}

pub fn consumer_describe(dice: &mut Dice) -> ConsumerGroupDescribeRequest {
    let mut groups = dice.list(group);
    groups.push(consumers());
    ConsumerGroupDescribeRequest::default()
        .with_group_ids(groups)
        .with_include_authorized_operations(dice.flag())
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn end_txn(version: i16, dice: &mut Dice) -> EndTxnRequest {
    EndTxnRequest::default()
        .with_transactional_id(TransactionalId(dice.text()))
        .with_producer_id(ProducerId(dice.i64()))
        .with_producer_epoch(dice.i16())
        .with_committed(dice.flag())
        .with_unknown_tagged_fields(dice.tags(version >= 3))
}

pub fn write_txn_markers(_version: i16, dice: &mut Dice) -> WriteTxnMarkersRequest {
    use write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
    let markers = dice.list(|dice| {
        let topics = dice.list(|dice| {
            WritableTxnMarkerTopic::default()
                .with_name(topic(dice))
                .with_partition_indexes(dice.list(Dice::i32))
                .with_unknown_tagged_fields(dice.tags(true))
        });
        WritableTxnMarker::default()
            .with_producer_id(ProducerId(dice.i64()))
            .with_producer_epoch(dice.i16())
            .with_transaction_result(dice.flag())
            .with_topics(topics)
            .with_coordinator_epoch(dice.i32())
            .with_unknown_tagged_fields(dice.tags(true))
    });
    WriteTxnMarkersRequest::default()
        .with_markers(markers)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn txn_offset_commit(version: i16, dice: &mut Dice) -> TxnOffsetCommitRequest {
    use txn_offset_commit_request::{TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic};
    let flexible = version >= 3;
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            let mut partition = TxnOffsetCommitRequestPartition::default()
                .with_partition_index(dice.i32())
                .with_committed_offset(dice.i64())
                .with_committed_metadata(dice.maybe(Dice::text))
                .with_unknown_tagged_fields(dice.tags(flexible));
            if version >= 2 {
                partition.committed_leader_epoch = dice.i32();
            }
            partition
        });
        TxnOffsetCommitRequestTopic::default()
            .with_name(topic(dice))
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    let mut request = TxnOffsetCommitRequest::default()
        .with_transactional_id(TransactionalId(dice.text()))
        .with_group_id(group(dice))
        .with_producer_id(ProducerId(dice.i64()))
        .with_producer_epoch(dice.i16())
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version >= 3 {
        request.generation_id = dice.i32();
        request.member_id = dice.text();
        request.group_instance_id = dice.maybe(Dice::text);
    }
    request
}

pub fn elect_leaders(version: i16, dice: &mut Dice) -> ElectLeadersRequest {
    use elect_leaders_request::TopicPartitions;
    let flexible = version >= 2;
    let topics = dice.maybe(|dice| {
        dice.list(|dice| {
            TopicPartitions::default()
                .with_topic(topic(dice))
                .with_partitions(dice.list(Dice::i32))
                .with_unknown_tagged_fields(dice.tags(flexible))
        })
    });
    let mut request = ElectLeadersRequest::default()
        .with_topic_partitions(topics)
        .with_timeout_ms(dice.i32())
        .with_unknown_tagged_fields(dice.tags(flexible));
    if version >= 1 {
        request.election_type = dice.i8();
    }
    request
}

pub fn list_partition_reassignments(dice: &mut Dice) -> ListPartitionReassignmentsRequest {
    use list_partition_reassignments_request::ListPartitionReassignmentsTopics;
    let topics = dice.maybe(|dice| {
        dice.list(|dice| {
            ListPartitionReassignmentsTopics::default()
                .with_name(topic(dice))
                .with_partition_indexes(dice.list(Dice::i32))
                .with_unknown_tagged_fields(dice.tags(true))
        })
    });
    ListPartitionReassignmentsRequest::default()
        .with_timeout_ms(dice.i32())
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn describe_client_quotas(version: i16, dice: &mut Dice) -> DescribeClientQuotasRequest {
    use describe_client_quotas_request::ComponentData;
    let flexible = version >= 1;
    let components = dice.list(|dice| {
        ComponentData::default()
            .with_entity_type(dice.text())
            .with_match_type(dice.i8())
            .with_match(dice.maybe(Dice::text))
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    DescribeClientQuotasRequest::default()
        .with_components(components)
        .with_strict(dice.flag())
        .with_unknown_tagged_fields(dice.tags(flexible))
}

pub fn alter_client_quotas(version: i16, dice: &mut Dice) -> AlterClientQuotasRequest {
    use alter_client_quotas_request::{EntityData, EntryData, OpData};
    let flexible = version >= 1;
    let entries = dice.list(|dice| {
        let entity = dice.list(|dice| {
            EntityData::default()
                .with_entity_type(dice.text())
                .with_entity_name(dice.maybe(Dice::text))
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        let ops = dice.list(|dice| {
            OpData::default()
                .with_key(dice.text())
                .with_value(f64::from(dice.i32()))
                .with_remove(dice.flag())
                .with_unknown_tagged_fields(dice.tags(flexible))
        });
        EntryData::default()
            .with_entity(entity)
            .with_ops(ops)
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    AlterClientQuotasRequest::default()
        .with_entries(entries)
        .with_validate_only(dice.flag())
        .with_unknown_tagged_fields(dice.tags(flexible))
}

pub fn describe_quorum(dice: &mut Dice) -> DescribeQuorumRequest {
    use describe_quorum_request::{PartitionData, TopicData};
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            PartitionData::default()
                .with_partition_index(dice.i32())
                .with_unknown_tagged_fields(dice.tags(true))
        });
        TopicData::default()
            .with_topic_name(topic(dice))
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(true))
    });
    DescribeQuorumRequest::default()
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn describe_producers(dice: &mut Dice) -> DescribeProducersRequest {
    use describe_producers_request::TopicRequest;
    let topics = dice.list(|dice| {
        TopicRequest::default()
            .with_name(topic(dice))
            .with_partition_indexes(dice.list(Dice::i32))
            .with_unknown_tagged_fields(dice.tags(true))
    });
    DescribeProducersRequest::default()
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(true))
}

/// A number of what rules of access name, most often one of `known`.
fn kind(known: [i8; 2], dice: &mut Dice) -> i8 {
    match dice.below(5) {
        0 => dice.i8(),
        even => known[even % 2],
    }
}

/// `text`, or any.
fn one_of(text: &'static str, dice: &mut Dice) -> StrBytes {
    match dice.flag() {
        true => StrBytes::from_static_str(text),
        false => dice.text(),
    }
}

pub fn sasl_handshake(dice: &mut Dice) -> SaslHandshakeRequest {
    SaslHandshakeRequest::default().with_mechanism(one_of("SCRAM-SHA-256", dice))
}

pub fn sasl_authenticate(version: i16, dice: &mut Dice) -> SaslAuthenticateRequest {
    SaslAuthenticateRequest::default()
        .with_auth_bytes(dice.bytes())
        .with_unknown_tagged_fields(dice.tags(version >= 2))
}

pub fn describe_users(dice: &mut Dice) -> DescribeUserScramCredentialsRequest {
    let users = dice.maybe(|dice| {
        dice.list(|dice| {
            describe_user_scram_credentials_request::UserName::default()
                .with_name(dice.text())
                .with_unknown_tagged_fields(dice.tags(true))
        })
    });
    DescribeUserScramCredentialsRequest::default()
        .with_users(users)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn alter_users(dice: &mut Dice) -> AlterUserScramCredentialsRequest {
    use alter_user_scram_credentials_request::{ScramCredentialDeletion, ScramCredentialUpsertion};
    let deletions = dice.list(|dice| {
        ScramCredentialDeletion::default()
            .with_name(dice.text())
            .with_mechanism(kind([1, 2], dice))
            .with_unknown_tagged_fields(dice.tags(true))
    });
    let upsertions = dice.list(|dice| {
        let is_sound = dice.flag();
        ScramCredentialUpsertion::default()
            .with_name(one_of("u", dice))
            .with_mechanism(if is_sound { 1 } else { dice.i8() })
            .with_iterations(if is_sound { 4096 } else { dice.i32() })
            .with_salt(if is_sound {
                Bytes::from_static(&[1; 16])
            } else {
                dice.bytes()
            })
            .with_salted_password(if is_sound {
                Bytes::from_static(&[2; 32])
            } else {
                dice.bytes()
            })
            .with_unknown_tagged_fields(dice.tags(true))
    });
    AlterUserScramCredentialsRequest::default()
        .with_deletions(deletions)
        .with_upsertions(upsertions)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn describe_acls(version: i16, dice: &mut Dice) -> DescribeAclsRequest {
    DescribeAclsRequest::default()
        .with_resource_type_filter(kind([1, 2], dice))
        .with_resource_name_filter(dice.maybe(Dice::text))
        .with_pattern_type_filter(kind([1, 2], dice))
        .with_principal_filter(dice.maybe(Dice::text))
        .with_host_filter(dice.maybe(Dice::text))
        .with_operation(kind([3, 4], dice))
        .with_permission_type(kind([2, 3], dice))
        .with_unknown_tagged_fields(dice.tags(version >= 2))
}

pub fn create_acls(version: i16, dice: &mut Dice) -> CreateAclsRequest {
    let flexible = version >= 2;
    let creations = dice.list(|dice| {
        create_acls_request::AclCreation::default()
            .with_resource_type(kind([2, 3], dice))
            .with_resource_name(dice.text())
            .with_resource_pattern_type(kind([3, 4], dice))
            .with_principal(one_of("User:t", dice))
            .with_host(one_of("*", dice))
            .with_operation(kind([3, 4], dice))
            .with_permission_type(kind([2, 3], dice))
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    CreateAclsRequest::default()
        .with_creations(creations)
        .with_unknown_tagged_fields(dice.tags(flexible))
}

pub fn delete_acls(version: i16, dice: &mut Dice) -> DeleteAclsRequest {
    let flexible = version >= 2;
    let filters = dice.list(|dice| {
        delete_acls_request::DeleteAclsFilter::default()
            .with_resource_type_filter(kind([1, 2], dice))
            .with_resource_name_filter(dice.maybe(Dice::text))
            .with_pattern_type_filter(kind([1, 2], dice))
            .with_principal_filter(dice.maybe(Dice::text))
            .with_host_filter(dice.maybe(Dice::text))
            .with_operation(kind([3, 4], dice))
            .with_permission_type(kind([2, 3], dice))
            .with_unknown_tagged_fields(dice.tags(flexible))
    });
    DeleteAclsRequest::default()
        .with_filters(filters)
        .with_unknown_tagged_fields(dice.tags(flexible))
}

pub fn describe_transactions(dice: &mut Dice) -> DescribeTransactionsRequest {
    DescribeTransactionsRequest::default()
        .with_transactional_ids(dice.list(|dice| TransactionalId(dice.text())))
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn list_transactions(version: i16, dice: &mut Dice) -> ListTransactionsRequest {
    let mut request = ListTransactionsRequest::default()
        .with_state_filters(dice.list(Dice::text))
        .with_producer_id_filters(dice.list(|dice| ProducerId(dice.i64())))
        .with_unknown_tagged_fields(dice.tags(true));
    if version >= 1 {
        request.duration_filter = dice.i64();
    }
    if version >= 2 {
        request.transactional_id_pattern = dice.maybe(Dice::text);
    }
    request
}

pub fn list_config_resources(version: i16, dice: &mut Dice) -> ListConfigResourcesRequest {
    let mut request =
        ListConfigResourcesRequest::default().with_unknown_tagged_fields(dice.tags(true));
    if version >= 1 {
        request.resource_types = dice.list(Dice::i8);
    }
    request
}
