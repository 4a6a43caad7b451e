//! Transactions, which are not supported: each request gets Kafka's
//! `TRANSACTIONAL_ID_AUTHORIZATION_FAILED`, the one refusal at which every client stops at once, instead of a
//! connection that ends. Clients come here only if they ignored the same refusal of FindCoordinator and
//! InitProducerId.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse, EndTxnRequest, EndTxnResponse, TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
};

use crate::context::Ctx;

/// The refusal; the log says what Kafka's answers have no room for.
pub(crate) fn refused(ctx: &Ctx) -> i16 {
    tracing::warn!(peer = %ctx.peer, "a transactional producer was refused: transactions are not supported; leave out its transactional.id");
    ResponseError::TransactionalIdAuthorizationFailed.code()
}

/// AddPartitionsToTxn.
pub(crate) async fn add_partitions(
    ctx: &Ctx,
    _version: i16,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    let code = refused(ctx);
    let topics = request.v3_and_below_topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|partition| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(partition)
                .with_partition_error_code(code)
        });
        AddPartitionsToTxnTopicResult::default()
            .with_name(topic.name)
            .with_results_by_partition(partitions.collect())
    });
    AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics.collect())
}

/// AddOffsetsToTxn.
pub(crate) async fn add_offsets(
    ctx: &Ctx,
    _version: i16,
    _request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    AddOffsetsToTxnResponse::default().with_error_code(refused(ctx))
}

/// EndTxn.
pub(crate) async fn end(ctx: &Ctx, _version: i16, _request: EndTxnRequest) -> EndTxnResponse {
    EndTxnResponse::default().with_error_code(refused(ctx))
}

/// TxnOffsetCommit.
pub(crate) async fn offset_commit(
    ctx: &Ctx,
    _version: i16,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse {
    let code = refused(ctx);
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code)
        });
        TxnOffsetCommitResponseTopic::default()
            .with_name(topic.name)
            .with_partitions(partitions.collect())
    });
    TxnOffsetCommitResponse::default().with_topics(topics.collect())
}
