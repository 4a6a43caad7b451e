//! AddPartitionsToTxn of brokers, from version 4 on: several transactions in one request, to be joined or looked at.

use std::collections::BTreeSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
use kera_coordinator::transactions::{Fault, Member, Part, Reply, Request};

use super::parts::add;
use super::{Knows, ask, fault_error, mismatch};
use crate::context::Ctx;
use crate::{errors, topic};

/// First version of these requests whose senders know that a transaction may go on once it is aborted.
const ABORTABLE_FROM: i16 = 5;
/// Bytes of an answer about one partition, and about a topic or a transaction beside its name, generously.
const PARTITION_BYTES: usize = 8;
const NAME_BYTES: usize = 16;

/// Kafka's brokers ask so for their clients, and have checked what those may do.
pub(super) async fn add_batched(
    ctx: &Ctx,
    version: i16,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    let response = AddPartitionsToTxnResponse::default();
    if !ctx.may_cluster() {
        return response.with_error_code(ResponseError::ClusterAuthorizationFailed.code());
    }
    let mut results = Vec::with_capacity(request.transactions.len());
    for transaction in request.transactions {
        ctx.pause().await;
        let topics = transaction.topics.iter();
        let bytes =
            topics.map(|of| NAME_BYTES + of.name.len() + of.partitions.len() * PARTITION_BYTES);
        let bytes = NAME_BYTES + transaction.transactional_id.len() + bytes.sum::<usize>();
        if !ctx.has_room_for(bytes).await {
            return response.with_error_code(ResponseError::PolicyViolation.code());
        }
        results.push(of_transaction(ctx, version, transaction).await);
    }
    response.with_results_by_transaction(results)
}

async fn of_transaction(
    ctx: &Ctx,
    version: i16,
    transaction: AddPartitionsToTxnTransaction,
) -> AddPartitionsToTxnResult {
    let id = transaction.transactional_id;
    let member = Member {
        id: id.to_string(),
        producer: transaction.producer_id.0,
        epoch: transaction.producer_epoch,
    };
    // Per topic and partition: the part, or none if there is no such partition.
    let mut topics = Vec::with_capacity(transaction.topics.len());
    let mut parts = BTreeSet::new();
    let mut is_wrong = false;
    for asked in transaction.topics {
        let stream = topic::named(&ctx.shared, &asked.name);
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        for partition in asked.partitions {
            let known = stream.as_ref();
            let known = known.filter(|stream| topic::lane_of(stream, partition).is_some());
            let part = known.map(|of| Part::Partition(of.id(), partition.unsigned_abs()));
            is_wrong |= part.is_none();
            parts.extend(part.clone());
            partitions.push((partition, part));
        }
        topics.push((asked.name, partitions));
    }
    // All of them or none.
    let outcome = match (is_wrong, transaction.verify_only) {
        (true, _) => Some(Err(ResponseError::OperationNotAttempted)),
        (false, false) => Some(add(ctx, knows(version), member.clone(), parts).await),
        (false, true) => None,
    };
    let mut results = Vec::with_capacity(topics.len());
    for (name, partitions) in topics {
        let mut of_topic = Vec::with_capacity(partitions.len());
        for (partition, part) in partitions {
            let said = match (part, outcome) {
                (None, _) => Err(ResponseError::UnknownTopicOrPartition),
                (Some(_), Some(outcome)) => outcome,
                (Some(part), None) => verify(ctx, version, member.clone(), part).await,
            };
            let code = said.map_or_else(|error| error.code(), |()| errors::NONE);
            of_topic.push(
                AddPartitionsToTxnPartitionResult::default()
                    .with_partition_index(partition)
                    .with_partition_error_code(code),
            );
        }
        results.push(
            AddPartitionsToTxnTopicResult::default()
                .with_name(name)
                .with_results_by_partition(of_topic),
        );
    }
    AddPartitionsToTxnResult::default()
        .with_transactional_id(id)
        .with_topic_results(results)
}

fn knows(version: i16) -> Knows {
    Knows::of(version, i16::MIN, ABORTABLE_FROM)
}

/// Whether the transaction is open and this is part of it.
async fn verify(ctx: &Ctx, version: i16, member: Member, part: Part) -> Result<(), ResponseError> {
    match ask(ctx, Request::Verify(member, part)).await? {
        Ok(Reply::Open(_)) => Ok(()),
        Ok(other) => Err(mismatch(&other)),
        // Whoever sent the batch may abort, and go on.
        Err(Fault::NotOpen) if version >= ABORTABLE_FROM => {
            Err(ResponseError::TransactionAbortable)
        }
        Err(fault) => Err(fault_error(fault, knows(version))),
    }
}
