//! Produce requests of clients that leave it to brokers what takes part in their transactions.

use std::future::Future;

use kafka_protocol::error::ResponseError;
use kera_broker::clock::now_ms;
use kera_broker::transactions::{BatchLane, join_lanes};
use kera_coordinator::transactions::{Fault, Member};
use kera_log_segments::group::AckPolicy;
use kera_metadata::access::Kind;
use kera_protocol::batch::BatchHeader;

use crate::apis::PRODUCE;
use crate::context::Ctx;
use crate::produce::{ProduceRequest, may_write};
use crate::topic;

/// First version of Produce whose batches are made part of their transaction.
const JOINS_FROM: i16 = 12;

/// Whether batches of Produce requests of this version are made part of their transaction. Which version that is does not
/// depend on what this broker has heard of the cluster's: clients may have heard of it at another broker.
pub(crate) fn joins(version: i16) -> bool {
    version >= JOINS_FROM
}

/// Kafka's name for why a batch's lane was not made part of a transaction.
pub(crate) fn batch_error(fault: Fault) -> ResponseError {
    match fault {
        Fault::Fenced => ResponseError::InvalidProducerEpoch,
        Fault::TooManyParts | Fault::TooManyPrepared => ResponseError::TransactionAbortable,
        fault => super::fault_error(fault, super::Knows::ALL),
    }
}

/// Makes the lanes of a request part of its producer's transaction; `None` if all of them are, or none can be. What the
/// coordinator refuses.
pub(crate) fn to_join(
    ctx: &Ctx,
    version: i16,
    request: &ProduceRequest,
    body: &[u8],
) -> Option<impl Future<Output = Option<Fault>> + Send + 'static> {
    let id = request.transactional_id.as_deref()?;
    if !joins(version) || !ctx.may_by(PRODUCE, (Kind::TransactionalId, id)) {
        return None;
    }
    let shared = ctx.shared.clone();
    let mut producer = None;
    let mut lanes = Vec::new();
    for (name, partitions) in &request.topics {
        let stream = topic::to_append_to(&shared, name);
        let Ok(stream) = may_write(ctx, name, stream) else {
            continue;
        };
        for (index, range) in partitions {
            let (Some((streamlet, lane)), Ok(header)) = (
                topic::lane_of(&stream, *index),
                BatchHeader::peek(&body[range.clone()]),
            ) else {
                continue;
            };
            if !header.is_transactional() || streamlet.settings().ack == AckPolicy::Memory {
                continue;
            }
            let named = (header.producer_id, header.producer_epoch);
            let is_of = shared.transactions.is_of(named.0, id);
            let is_to_join = match is_of {
                Some(true) => streamlet.awaits_grant(lane, &header, now_ms()),
                Some(false) => false,
                None => true,
            };
            // All batches of a request are of one producer.
            if is_to_join && *producer.get_or_insert(named) == named {
                lanes.push(BatchLane {
                    streamlet,
                    lane,
                    partition: index.unsigned_abs(),
                });
            }
        }
    }
    let (producer, epoch) = producer?;
    let member = Member {
        id: id.to_owned(),
        producer,
        epoch,
    };
    Some(async move { join_lanes(&shared, member, lanes).await })
}
