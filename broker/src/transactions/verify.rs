//! An owner of a lane, or a coordinator of groups, asks whether a transaction is open.

use std::sync::Arc;

use kera_coordinator::transactions::{Fault, MAX_ID_BYTES, Member, Part, Reply, Request};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_log_segments::group::AckPolicy;
use kera_protocol::batch::BatchHeader;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{ANY_LANE, LaneId, LaneKey, Ordinal, StreamletId};
use kera_protocol::partition::partition_of;
use kera_protocol::v1;
use kera_streamlet::Streamlet;
use kera_streamlet::transactions::Grant;

use super::{ASK_WITHIN, coordinator_of, epoch_of, mismatch, part_of};
use crate::clock::now_ms;
use crate::coordination::CoordinatorKind;
use crate::others;
use crate::shared::Shared;

/// Coordinators are asked about so many lanes and producers at a time; of others when their batches come again.
const MOST_ASKED: usize = 4_096;

/// A transaction that is open, as its coordinator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its number.
    pub number: u64,
    /// What its producer began before this, in the part that was asked about, has ended.
    pub ended_before: Ordinal,
}

/// Asks the coordinator of a transactional id for the number of its open transaction that has this part; a fault if
/// there is none.
///
/// # Errors
/// The coordinator was not reached, or cannot say yet.
pub async fn verify(
    shared: &Arc<Shared>,
    member: Member,
    part: Part,
) -> Result<Result<u64, Fault>, WireError> {
    let said = ask_for(shared, member, part).await?;
    Ok(said.map(|open| open.number))
}

/// As [`verify`], with what has ended.
async fn ask_for(
    shared: &Arc<Shared>,
    member: Member,
    part: Part,
) -> Result<Result<Open, Fault>, WireError> {
    let coordination = &shared.coordination;
    let kind = CoordinatorKind::Transactions;
    let place = coordination.place(shared, kind, &member.id).await?;
    if place.broker == shared.data.directory.me() {
        return ask_here(shared, member, part).await;
    }
    let (stream, partition, group) = match part {
        Part::Partition(stream, partition) => {
            (stream.as_bytes().to_vec().into(), partition, String::new())
        }
        Part::Group(group) => (Default::default(), 0, group),
    };
    let request = v1::VerifyTransactionRequest {
        transactional_id: member.id,
        producer: member.producer,
        epoch: member.epoch.into(),
        stream,
        partition,
        group,
    };
    let mut stub = others::lanes(shared, place.broker)?;
    let answer = others::answer(place.broker, ASK_WITHIN, stub.verify_transaction(request));
    let answer = answer.await?;
    Ok(match answer {
        answer if answer.open => Ok(Open {
            number: answer.number,
            ended_before: answer.ended_before,
        }),
        answer if answer.fenced => Err(Fault::Fenced),
        answer if answer.is_producer => Err(Fault::NotOpen),
        _ => Err(Fault::OtherProducer),
    })
}

async fn ask_here(
    shared: &Arc<Shared>,
    member: Member,
    part: Part,
) -> Result<Result<Open, Fault>, WireError> {
    let id = member.id.clone();
    let partition = match &part {
        Part::Partition(stream, partition) => Some((*stream, *partition)),
        Part::Group(_) => None,
    };
    let request = AnyRequest::Transaction(Request::Verify(member, part));
    match shared.coordination.call(shared, &id, request).await? {
        AnyReply::Transaction(Reply::Open(number)) => {
            let host = coordinator_of(shared, &id).await;
            let ended = host.zip(partition);
            let ended_before = ended.map_or(0, |(host, part)| host.ended_before(&id, part));
            Ok(Ok(Open {
                number,
                ended_before,
            }))
        }
        AnyReply::Transaction(Reply::Refused(fault)) => Ok(Err(fault)),
        other => Err(mismatch(&other)),
    }
}

/// Answers another broker's question.
///
/// # Errors
/// This broker does not coordinate the id, or cannot say yet.
pub async fn verify_here(
    shared: &Arc<Shared>,
    request: v1::VerifyTransactionRequest,
) -> Result<v1::VerifyTransactionResponse, WireError> {
    let part = part_of(&request)?;
    let member = Member {
        producer: request.producer,
        epoch: epoch_of(request.epoch)?,
        id: request.transactional_id,
    };
    Ok(match ask_here(shared, member, part).await? {
        Ok(open) => v1::VerifyTransactionResponse {
            open: true,
            fenced: false,
            is_producer: true,
            number: open.number,
            ended_before: open.ended_before,
        },
        Err(fault) => v1::VerifyTransactionResponse {
            open: false,
            fenced: fault == Fault::Fenced,
            is_producer: matches!(fault, Fault::Fenced | Fault::NotOpen),
            number: 0,
            ended_before: 0,
        },
    })
}

/// A lane that a batch of a transaction is for.
#[derive(Clone)]
pub struct BatchLane {
    /// Its streamlet, which this broker owns.
    pub streamlet: Arc<Streamlet>,
    /// The lane.
    pub lane: LaneId,
    /// Its number among the lanes of the stream.
    pub partition: u32,
}

impl BatchLane {
    /// As a part of the transaction.
    pub(super) fn part(&self) -> Part {
        Part::Partition(self.streamlet.stream(), self.partition)
    }

    /// How often its head has failed, to be asked before the coordinator is.
    pub(super) fn failures(&self) -> Option<u64> {
        let head = self.streamlet.head(self.lane);
        head.map(|head| head.failures())
    }

    /// Takes in what a coordinator says of the transaction of a producer in this lane.
    pub(super) fn hear(
        &self,
        shared: &Shared,
        member: &Member,
        failures: Option<u64>,
        said: Result<Open, Fault>,
    ) {
        let (producer, epoch) = (member.producer, member.epoch);
        shared.transactions.heard(member, said.map(drop));
        match said {
            Ok(open) => {
                let grant = Grant {
                    producer,
                    epoch,
                    number: open.number,
                };
                let before = open.ended_before;
                self.streamlet
                    .grant(self.lane, grant, before, failures, now_ms());
            }
            Err(Fault::Fenced | Fault::NotOpen) => {
                let lane = self.lane;
                self.streamlet
                    .refuse_transaction(lane, producer, epoch, now_ms());
            }
            Err(_) => {}
        }
    }
}

/// Asks about the transaction of a batch that was refused as not verified; what the coordinator says is there when the
/// batch comes again. Returns at once.
pub fn verify_batch(shared: &Arc<Shared>, member: Member, to: BatchLane) {
    let key = LaneKey {
        stream: to.streamlet.stream(),
        streamlet: to.streamlet.id(),
        lane: to.lane,
    };
    let asked = (key, member.producer);
    {
        let mut asking = shared.transactions.asking.lock();
        if asking.len() >= MOST_ASKED || !asking.insert(asked) {
            return;
        }
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        let failures = to.failures();
        match ask_for(&shared, member.clone(), to.part()).await {
            Ok(said) => to.hear(&shared, &member, failures, said),
            Err(error) => {
                tracing::debug!(lane = %key, %error, "a transaction could not be asked for");
            }
        }
        shared.transactions.asking.lock().remove(&asked);
    });
}

/// Whether the batches of a native producer's append may count under its transactional id: a producer id is guessed
/// easily. What is wrong with the append otherwise is not looked at.
///
/// # Errors
/// [`ErrorCode::TransactionPending`] while the coordinator is asked, [`ErrorCode::TransactionNotOpen`] if it has said no.
pub(crate) fn check_append(
    shared: &Arc<Shared>,
    request: &v1::AppendRequest,
    batch: &[u8],
) -> Result<(), WireError> {
    let id = request.transactional_id.as_str();
    if id.is_empty() || request.lane == ANY_LANE {
        return Ok(());
    }
    check_id(id).map_err(|text| WireError::new(ErrorCode::InvalidArgument, text))?;
    let (Ok(header), Ok(stream)) = (
        BatchHeader::peek(batch),
        shared.data.catalog.of_id(&request.stream),
    ) else {
        return Ok(());
    };
    let takes_none = stream.record.load().config.ack == AckPolicy::Memory;
    if !header.is_transactional() || takes_none {
        return Ok(());
    }
    let producer = header.producer_id;
    // The id is the client's own word, and may be long.
    let short: String = id.chars().take(249).collect();
    match shared.transactions.is_of(producer, id) {
        Some(true) => Ok(()),
        Some(false) => {
            let text =
                format!("producer id {producer} is not that of transactional id \"{short}\"");
            Err(WireError::new(ErrorCode::TransactionNotOpen, text))
        }
        None => {
            verify_append(shared, request, batch);
            let text = format!(
                "the coordinator of transactional id \"{short}\" is being asked about producer id {producer}; send again"
            );
            Err(WireError::new(ErrorCode::TransactionPending, text))
        }
    }
}

/// Whether a transactional id is short enough to be kept while its coordinator is asked.
///
/// # Errors
/// What the client is told.
pub fn check_id(id: &str) -> Result<(), String> {
    match id.len() {
        ..=MAX_ID_BYTES => Ok(()),
        bytes => Err(format!(
            "a transactional id has at most {MAX_ID_BYTES} bytes, and this one has {bytes}; name a shorter one"
        )),
    }
}

/// As [`verify_batch`], of an append of a native producer, whose batches are of one transaction.
pub(crate) fn verify_append(shared: &Arc<Shared>, request: &v1::AppendRequest, batch: &[u8]) {
    let Ok(header) = BatchHeader::peek(batch) else {
        return;
    };
    let stream = shared.data.catalog.of_id(&request.stream);
    let Ok(stream) = stream else {
        return;
    };
    let streamlets = stream.record.load().config.streamlets;
    let Some(streamlet) = stream.streamlet(StreamletId(request.streamlet)) else {
        return;
    };
    let lane = LaneId(request.lane);
    let Ok(partition) = u32::try_from(partition_of(streamlet.id(), lane, streamlets)) else {
        return;
    };
    let member = Member {
        id: request.transactional_id.clone(),
        producer: header.producer_id,
        epoch: header.producer_epoch,
    };
    let to = BatchLane {
        streamlet,
        lane,
        partition,
    };
    verify_batch(shared, member, to);
}
