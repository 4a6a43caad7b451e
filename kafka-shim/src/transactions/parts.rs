//! AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.

use std::collections::BTreeSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse, EndTxnRequest, EndTxnResponse,
};
use kera_broker::transactions;
use kera_coordinator::transactions::{End, Member, Part, Reply, Request};
use kera_metadata::access::Operation;

use super::{ask, fault_error, mismatch};
use crate::context::Ctx;
use crate::{errors, topic};

/// First version of the three requests whose clients know what fenced is.
const FENCED_FROM: i16 = 2;

/// AddPartitionsToTxn: all of them or none.
pub(crate) async fn add_partitions(
    ctx: &Ctx,
    version: i16,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    let member = Member {
        id: request.v3_and_below_transactional_id.to_string(),
        producer: request.v3_and_below_producer_id.0,
        epoch: request.v3_and_below_producer_epoch,
    };
    let allowed = ctx.check_id(Operation::Write, &member.id);
    // Per topic and partition: what is wrong with it.
    let mut topics = Vec::new();
    let mut parts = BTreeSet::new();
    let mut is_wrong = false;
    for asked in request.v3_and_below_topics {
        let stream = topic::named(&ctx.shared, &asked.name);
        let may_write = ctx.may_topic(Operation::Write, &asked.name);
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        for partition in asked.partitions {
            let known = stream
                .as_ref()
                .filter(|stream| may_write && topic::lane_of(stream, partition).is_some());
            let wrong = match (known, may_write) {
                (Some(stream), _) => {
                    parts.insert(Part::Partition(stream.id(), partition.unsigned_abs()));
                    None
                }
                (None, false) => Some(ResponseError::TopicAuthorizationFailed),
                (None, true) => Some(ResponseError::UnknownTopicOrPartition),
            };
            is_wrong |= wrong.is_some();
            partitions.push((partition, wrong));
        }
        topics.push((asked.name, partitions));
    }
    let outcome = match (allowed, is_wrong) {
        (Err(error), _) => Err(error),
        (Ok(()), true) => Err(ResponseError::OperationNotAttempted),
        (Ok(()), false) => add(ctx, version, member, parts).await,
    };
    let topics = topics.into_iter().map(|(name, partitions)| {
        let results = partitions.into_iter().map(|(partition, wrong)| {
            // What the client may not do at all comes before what is wrong with a partition.
            let code = match (wrong, allowed, outcome) {
                (Some(error), Ok(()), _) => error.code(),
                (_, _, Err(error)) => error.code(),
                (_, _, Ok(())) => errors::NONE,
            };
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(partition)
                .with_partition_error_code(code)
        });
        AddPartitionsToTxnTopicResult::default()
            .with_name(name)
            .with_results_by_partition(results.collect())
    });
    AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics.collect())
}

/// Makes parts of a transaction, and tells the owners of its lanes.
async fn add(
    ctx: &Ctx,
    version: i16,
    member: Member,
    parts: BTreeSet<Part>,
) -> Result<(), ResponseError> {
    let all: Vec<Part> = parts.iter().cloned().collect();
    match ask(ctx, Request::Add(member.clone(), parts)).await? {
        Ok(Reply::Added(number, _)) => {
            transactions::grant(&ctx.shared, &member, number, &all).await;
            Ok(())
        }
        Ok(other) => Err(mismatch(&other)),
        Err(fault) => Err(fault_error(fault, version >= FENCED_FROM)),
    }
}

/// AddOffsetsToTxn: a group takes part.
pub(crate) async fn add_offsets(
    ctx: &Ctx,
    version: i16,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    let member = Member {
        id: request.transactional_id.to_string(),
        producer: request.producer_id.0,
        epoch: request.producer_epoch,
    };
    let added = async {
        ctx.check_id(Operation::Write, &member.id)?;
        if !ctx.may_group(Operation::Read, &request.group_id) {
            return Err(ResponseError::GroupAuthorizationFailed);
        }
        if request.group_id.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        let parts = [Part::Group(request.group_id.to_string())].into();
        add(ctx, version, member, parts).await
    };
    let code = added
        .await
        .map_or_else(|error| error.code(), |()| errors::NONE);
    AddOffsetsToTxnResponse::default().with_error_code(code)
}

/// EndTxn: answered once the decision is durable; markers follow.
pub(crate) async fn end(ctx: &Ctx, version: i16, request: EndTxnRequest) -> EndTxnResponse {
    let end = End {
        member: Member {
            id: request.transactional_id.to_string(),
            producer: request.producer_id.0,
            epoch: request.producer_epoch,
        },
        commit: request.committed,
        number: None,
    };
    let ended = async {
        ctx.check_id(Operation::Write, &end.member.id)?;
        match ask(ctx, Request::End(end)).await? {
            Ok(Reply::Ending(_)) => {
                ctx.shared.transactions.look();
                Ok(())
            }
            Ok(other) => Err(mismatch(&other)),
            Err(fault) => Err(fault_error(fault, version >= FENCED_FROM)),
        }
    };
    let code = ended
        .await
        .map_or_else(|error| error.code(), |()| errors::NONE);
    EndTxnResponse::default().with_error_code(code)
}
