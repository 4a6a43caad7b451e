//! AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.

use std::collections::BTreeSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse, EndTxnRequest, EndTxnResponse, ProducerId,
};
use kera_broker::{admin, transactions};
use kera_coordinator::transactions::{End, Member, Part, Reply, Request};
use kera_metadata::Feature;

use super::batched::add_batched;
use super::{Knows, ask, fault_error, mismatch};
use crate::context::Ctx;
use crate::{errors, topic};

/// First version of the three requests whose clients know what fenced is.
const FENCED_FROM: i16 = 2;
/// First version of AddOffsetsToTxn and EndTxn whose clients may go on after an abort.
const ABORTABLE_FROM: i16 = 4;
/// First version of AddPartitionsToTxn that has several transactions.
const BATCHED_FROM: i16 = 4;
/// First version of EndTxn that gives the producer another epoch.
const RAISES_FROM: i16 = 5;

/// AddPartitionsToTxn: all of them or none.
pub(crate) async fn add_partitions(
    ctx: &Ctx,
    version: i16,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    if version >= BATCHED_FROM {
        return add_batched(ctx, version, request).await;
    }
    let member = Member {
        id: request.v3_and_below_transactional_id.to_string(),
        producer: request.v3_and_below_producer_id.0,
        epoch: request.v3_and_below_producer_epoch,
    };
    let allowed = ctx.check_id(&member.id);
    // Per topic and partition: what is wrong with it.
    let mut topics = Vec::new();
    let mut parts = BTreeSet::new();
    let mut is_wrong = false;
    for asked in request.v3_and_below_topics {
        let stream = topic::named(&ctx.shared, &asked.name);
        let may_write = ctx.may_topic(&asked.name);
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
        (Ok(()), false) => add(ctx, knows(version), member, parts).await,
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
pub(super) async fn add(
    ctx: &Ctx,
    knows: Knows,
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
        Err(fault) => Err(fault_error(fault, knows)),
    }
}

/// What a client of this version knows. AddPartitionsToTxn of clients ends before the version from which on they may go on.
fn knows(version: i16) -> Knows {
    Knows::of(version, FENCED_FROM, ABORTABLE_FROM)
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
        ctx.check_id(&member.id)?;
        if !ctx.may_group(&request.group_id) {
            return Err(ResponseError::GroupAuthorizationFailed);
        }
        if request.group_id.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        let parts = [Part::Group(request.group_id.to_string())].into();
        add(ctx, knows(version), member, parts).await
    };
    let code = added
        .await
        .map_or_else(|error| error.code(), |()| errors::NONE);
    AddOffsetsToTxnResponse::default().with_error_code(code)
}

/// EndTxn: answered once the decision is durable; markers follow. Its newest version gives the producer another epoch: what
/// comes late of this transaction is none of the next one's. Repeated it is answered alike.
pub(crate) async fn end(ctx: &Ctx, version: i16, request: EndTxnRequest) -> EndTxnResponse {
    let member = Member {
        id: request.transactional_id.to_string(),
        producer: request.producer_id.0,
        epoch: request.producer_epoch,
    };
    let ended = async {
        ctx.check_id(&member.id)?;
        // Its client has heard of the feature elsewhere. Answered without another epoch it would go on with this one, and
        // its next batches could join the transaction that ends.
        if version >= RAISES_FROM && !ctx.shared.has(Feature::RaisingEnds) {
            return Err(ResponseError::CoordinatorLoadInProgress);
        }
        let raise = match version >= RAISES_FROM {
            true => Some(spare_producer(ctx, member.epoch).await?),
            false => None,
        };
        let end = End {
            member,
            commit: request.committed,
            number: None,
            raise,
        };
        let ended = ask(ctx, Request::End(end)).await?;
        ctx.shared.transactions.look();
        match ended {
            Ok(Reply::Ending(_)) => Ok(None),
            Ok(Reply::Raised {
                producer, epoch, ..
            }) => Ok(Some((producer, epoch))),
            Ok(other) => Err(mismatch(&other)),
            Err(fault) => Err(fault_error(fault, knows(version))),
        }
    };
    let response = EndTxnResponse::default()
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    match ended.await {
        Ok(None) => response,
        Ok(Some((producer, epoch))) => response
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch),
        Err(error) => response.with_error_code(error.code()),
    }
}

/// A producer id that nobody has, where the epoch is one after which another id may be needed; none elsewhere, they are
/// given out by the metadata store.
async fn spare_producer(ctx: &Ctx, epoch: i16) -> Result<i64, ResponseError> {
    if epoch < i16::MAX - 1 {
        return Ok(-1);
    }
    match admin::new_producer_id(&ctx.shared).await {
        Ok(id) => Ok(i64::try_from(id).unwrap_or(i64::MAX)),
        Err(error) => {
            tracing::warn!(%error, "no producer id could be given out");
            Err(ResponseError::CoordinatorNotAvailable)
        }
    }
}
