//! TxnOffsetCommit: offsets that count once their transaction is committed.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};
use kera_broker::transactions;
use kera_coordinator::classic::{CommitOffsets, OfTransaction, OffsetToCommit};
use kera_coordinator::transactions::{Fault, Member, Part};

use super::{Knows, coordinator_error, fault_error};
use crate::context::Ctx;
use crate::{errors, groups, topic};

/// First version whose clients may go on after an abort.
const ABORTABLE_FROM: i16 = 4;
/// First version that makes the group part of the transaction.
const JOINS_FROM: i16 = 5;

/// TxnOffsetCommit.
pub(crate) async fn offset_commit(
    ctx: &Ctx,
    version: i16,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse {
    let mut offsets = Vec::new();
    // Per topic and partition: what is wrong with it, or none while the coordinator has it.
    let mut topics = Vec::new();
    for asked in request.topics {
        let stream = topic::named(&ctx.shared, &asked.name);
        let may_read = ctx.may_topic(&asked.name);
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        for wanted in asked.partitions {
            let partition = wanted.partition_index;
            let known = stream
                .as_ref()
                .filter(|stream| topic::lane_of(stream, partition).is_some());
            let wrong = match (may_read, known) {
                (false, _) => Some(ResponseError::TopicAuthorizationFailed.code()),
                (true, None) => Some(ResponseError::UnknownTopicOrPartition.code()),
                (true, Some(stream)) => {
                    offsets.push(OffsetToCommit {
                        stream: stream.id(),
                        partition: partition.unsigned_abs(),
                        offset: wanted.committed_offset,
                        leader_epoch: wanted.committed_leader_epoch,
                        metadata: groups::owned(&wanted.committed_metadata).unwrap_or_default(),
                    });
                    None
                }
            };
            partitions.push((partition, wrong));
        }
        topics.push((asked.name, partitions));
    }
    let member = Member {
        id: request.transactional_id.to_string(),
        producer: request.producer_id.0,
        epoch: request.producer_epoch,
    };
    let mut commit = CommitOffsets {
        group: request.group_id.to_string(),
        client_host: groups::host(ctx),
        member: request.member_id.to_string(),
        instance: groups::owned(&request.group_instance_id),
        generation: request.generation_id,
        retention_ms: None,
        offsets,
        transaction: None,
    };
    let committed = async {
        let refused = |error: ResponseError| error.code();
        ctx.check_id(&member.id).map_err(refused)?;
        if !ctx.may_group(&commit.group) {
            return Err(ResponseError::GroupAuthorizationFailed.code());
        }
        let part = Part::Group(commit.group.clone());
        let producer = member.producer;
        let said = match version >= JOINS_FROM {
            true => transactions::add_parts(&ctx.shared, member, [part].into()).await,
            false => transactions::verify(&ctx.shared, member, part).await,
        };
        let number = match said {
            Ok(Ok(number)) => number,
            // Clients ask again.
            Ok(Err(Fault::Ending)) => return Err(ResponseError::CoordinatorLoadInProgress.code()),
            Ok(Err(fault)) => {
                let knows = Knows::of(version, i16::MIN, ABORTABLE_FROM);
                return Err(fault_error(fault, knows).code());
            }
            // Clients take that it is the coordinator of the group that cannot serve, and try again.
            Err(error) => {
                tracing::debug!(%error, "a transaction's coordinator was not reached");
                return Err(match coordinator_error(&error) {
                    ResponseError::NotCoordinator => ResponseError::CoordinatorLoadInProgress,
                    error => error,
                }
                .code());
            }
        };
        commit.transaction = Some(OfTransaction { producer, number });
        // Clients know no stale epoch from here.
        let told = |code| match code == ResponseError::StaleMemberEpoch.code() {
            true => ResponseError::IllegalGeneration.code(),
            false => code,
        };
        groups::commit(ctx, commit).await.map_err(told)
    };
    let mut results = committed.await.map(Vec::into_iter);
    let topics = topics.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|(partition, wrong)| {
            let code = match (&mut results, wrong) {
                (_, Some(code)) => code,
                (Ok(results), None) => results.next().unwrap_or(errors::NONE),
                (Err(code), None) => *code,
            };
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(partition)
                .with_error_code(code)
        });
        TxnOffsetCommitResponseTopic::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    TxnOffsetCommitResponse::default().with_topics(topics.collect())
}
