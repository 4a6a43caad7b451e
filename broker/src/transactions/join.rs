//! Clients of Kafka's `transaction.version` 2 add nothing to their transactions: who receives a batch, or a group's offsets,
//! makes the lane or the group part of the transaction, before anything of it is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::transactions::{Fault, Member, Part, Reply, Request};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::StreamId;
use kera_protocol::v1::{self, AddTransactionPartsRefusal as Refusal};

use super::{ASK_WITHIN, BatchLane, Open, ask_once_ended, epoch_of, mismatch};
use crate::coordination::CoordinatorKind;
use crate::data::catalog::stream_id;
use crate::others;
use crate::shared::Shared;

/// A batch waits so long for the transaction before to end; less than another broker is given.
const ENDING_WITHIN: Duration = Duration::from_millis(1_500);

/// Makes these parts of the transaction of a producer, which begins if none is open, and tells its number; a fault if its
/// coordinator refuses.
///
/// # Errors
/// The coordinator was not reached, or cannot say yet.
pub async fn add_parts(
    shared: &Arc<Shared>,
    member: Member,
    parts: BTreeSet<Part>,
) -> Result<Result<u64, Fault>, WireError> {
    let kind = CoordinatorKind::Transactions;
    let place = shared.coordination.place(shared, kind, &member.id).await?;
    if place.broker == shared.data.directory.me() {
        return add_here(shared, member, parts).await;
    }
    let mut streams: BTreeMap<StreamId, Vec<u32>> = BTreeMap::new();
    let mut groups = Vec::new();
    for part in parts {
        match part {
            Part::Partition(stream, partition) => {
                streams.entry(stream).or_default().push(partition);
            }
            Part::Group(group) => groups.push(group),
        }
    }
    let streams = streams.into_iter();
    let streams = streams.map(|(stream, partitions)| v1::PartitionsOfTransaction {
        stream: stream.as_bytes().to_vec().into(),
        partitions,
    });
    let request = v1::AddTransactionPartsRequest {
        transactional_id: member.id,
        producer: member.producer,
        epoch: member.epoch.into(),
        streams: streams.collect(),
        groups,
    };
    let mut stub = others::lanes(shared, place.broker)?;
    let answer = stub.add_transaction_parts(request);
    let answer = others::answer(place.broker, ASK_WITHIN, answer).await?;
    Ok(match answer.refusal() {
        Refusal::None => Ok(answer.number),
        Refusal::Fenced => Err(Fault::Fenced),
        Refusal::OtherProducer => Err(Fault::OtherProducer),
        Refusal::Ending => Err(Fault::Ending),
        Refusal::Prepared => Err(Fault::Prepared),
        Refusal::TooManyParts => Err(Fault::TooManyParts),
        Refusal::InvalidId => Err(Fault::InvalidId),
    })
}

async fn add_here(
    shared: &Arc<Shared>,
    member: Member,
    parts: BTreeSet<Part>,
) -> Result<Result<u64, Fault>, WireError> {
    let request = Request::Add(member, parts);
    // The Produce request that waits here keeps its memory, so the wait is bounded. If the part is added after that, the
    // transaction has a part without records, which does no harm.
    let asked = ask_once_ended(shared, request, ENDING_WITHIN);
    let asked = tokio::time::timeout(ASK_WITHIN, asked).await;
    match asked.map_err(|_| late())?? {
        Reply::Added(number, _) => Ok(Ok(number)),
        Reply::Refused(fault) => Ok(Err(fault)),
        other => Err(mismatch(&other)),
    }
}

fn late() -> WireError {
    let text = format!(
        "the coordinator of the transaction did not answer within {ASK_WITHIN:?}; send again"
    );
    WireError::new(ErrorCode::CoordinatorLoading, text)
}

/// Answers another broker's request.
///
/// # Errors
/// This broker does not coordinate the id, or cannot say yet.
pub(crate) async fn add_for(
    shared: &Arc<Shared>,
    request: v1::AddTransactionPartsRequest,
) -> Result<v1::AddTransactionPartsResponse, WireError> {
    let mut parts: BTreeSet<Part> = request.groups.into_iter().map(Part::Group).collect();
    for of_stream in request.streams {
        let stream = stream_id(&of_stream.stream)?;
        let partitions = of_stream.partitions.into_iter();
        parts.extend(partitions.map(|partition| Part::Partition(stream, partition)));
    }
    let member = Member {
        producer: request.producer,
        epoch: epoch_of(request.epoch)?,
        id: request.transactional_id,
    };
    let (number, refusal) = match add_here(shared, member, parts).await? {
        Ok(number) => (number, Refusal::None),
        Err(fault) => (0, refusal_of(fault)?),
    };
    Ok(v1::AddTransactionPartsResponse {
        number,
        refusal: refusal.into(),
    })
}

fn refusal_of(fault: Fault) -> Result<Refusal, WireError> {
    Ok(match fault {
        Fault::Fenced => Refusal::Fenced,
        Fault::OtherProducer => Refusal::OtherProducer,
        Fault::Ending => Refusal::Ending,
        Fault::Prepared => Refusal::Prepared,
        // Both are told alike: what the producer adds next is to be aborted.
        Fault::TooManyParts | Fault::TooManyPrepared => Refusal::TooManyParts,
        Fault::InvalidId => Refusal::InvalidId,
        // No coordinator says so of what is added.
        Fault::InvalidTimeout
        | Fault::UnknownId
        | Fault::Forgotten
        | Fault::NotOpen
        | Fault::TooManyIds => return Err(mismatch(&fault)),
    })
}

/// Makes lanes of this broker parts of the transaction of a producer whose batches wait, and tells the lanes what the
/// coordinator says. What it refuses.
pub async fn join_lanes(
    shared: &Arc<Shared>,
    member: Member,
    lanes: Vec<BatchLane>,
) -> Option<Fault> {
    let failures: Vec<_> = lanes.iter().map(BatchLane::failures).collect();
    let parts = lanes.iter().map(BatchLane::part).collect();
    let said = match add_parts(shared, member.clone(), parts).await {
        Ok(said) => said,
        Err(error) => {
            let id = &member.id;
            tracing::debug!(id, %error, "a transaction's coordinator was not reached");
            return None;
        }
    };
    match said {
        Ok(number) => {
            // Each end raises the epoch: what the lane has open of this one is this transaction.
            let open = Open {
                number,
                ended_before: 0,
            };
            for (lane, failures) in lanes.iter().zip(failures) {
                lane.hear(shared, &member, failures, Ok(open));
            }
            None
        }
        // The lanes believe no such answer: what is refused now may be part of the transaction later.
        Err(fault) => {
            shared.transactions.heard(&member, said.map(drop));
            Some(fault)
        }
    }
}
