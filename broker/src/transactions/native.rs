//! What native producers ask about their transactions, and programs that end prepared ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::check_group_name;
use kera_coordinator::transactions::{
    End, Fault, Filter, Handle, Init, Listed, Member, Part, Prepare, Reply, Request, Stage,
};
use kera_log_segments::group::AckPolicy;
use kera_metadata::Feature;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, StreamletId};
use kera_protocol::partition::{lanes_of, partition_of};
use kera_protocol::v1;

use super::{
    LIST_WITHIN, ask_once_ended, check_answered, epoch_of, grant, list_coordinated, mismatch,
};
use crate::admin;
use crate::data::append::NO_TRANSACTIONS;
use crate::others;
use crate::shared::Shared;

/// How long a transaction may be open whose producer did not say.
const DEFAULT_TIMEOUT_MS: u32 = 60_000;
/// So often a producer that sends heartbeats does so while its timeout runs, and no more seldom than that.
const HEARTBEATS_PER_TIMEOUT: u32 = 4;
const LONGEST_HEARTBEAT_MS: u32 = 30_000;
/// A request waits so long for the transaction before to end.
const ENDING_WITHIN: Duration = Duration::from_secs(5);

/// Puts a request to the coordinator of its transactional id, again as long as the transaction before is ending.
pub(super) async fn ask(shared: &Arc<Shared>, request: Request) -> Result<Reply, WireError> {
    let id = request.id().unwrap_or_default().to_owned();
    let reply = ask_once_ended(shared, request, ENDING_WITHIN).await?;
    // Something may have been decided.
    shared.transactions.look();
    match reply {
        Reply::Refused(fault) => Err(refusal(fault, &id)),
        reply => Ok(reply),
    }
}

/// What a fault means to a native client.
pub(super) fn refusal(fault: Fault, id: &str) -> WireError {
    let code = match fault {
        Fault::InvalidId | Fault::InvalidTimeout => ErrorCode::InvalidArgument,
        Fault::UnknownId | Fault::Forgotten => ErrorCode::UnknownTransaction,
        Fault::OtherProducer | Fault::Fenced => ErrorCode::FencedProducer,
        Fault::Ending => ErrorCode::TransactionPending,
        Fault::Prepared => ErrorCode::TransactionPrepared,
        Fault::NotOpen => ErrorCode::TransactionNotOpen,
        Fault::TooManyParts | Fault::TooManyPrepared => ErrorCode::TransactionAbortable,
        Fault::TooManyIds => ErrorCode::Overloaded,
    };
    // The id is the client's own word, and may be long.
    let id: String = id.chars().take(249).collect();
    WireError::new(code, format!("transactional id \"{id}\": {fault}"))
}

pub(super) fn handle_of(handle: Option<v1::TransactionHandle>) -> Result<Handle, WireError> {
    let handle = handle.ok_or_else(|| {
        let text = "the request names no transaction: give its handle";
        WireError::new(ErrorCode::InvalidArgument, text)
    })?;
    Ok(Handle {
        member: Member {
            id: handle.transactional_id,
            producer: handle.producer,
            epoch: epoch_of(handle.epoch)?,
        },
        number: handle.number,
    })
}

/// A producer begins, or goes on.
///
/// # Errors
/// The coordinator's refusal, or why it was not asked.
pub(crate) async fn init(
    shared: &Arc<Shared>,
    request: v1::InitTransactionsRequest,
) -> Result<v1::InitTransactionsResponse, WireError> {
    shared.require(Feature::Transactions)?;
    let timeout_ms = match request.timeout_ms {
        0 => DEFAULT_TIMEOUT_MS,
        ms => ms,
    };
    let known = match request.known_producer {
        Some(producer) => Some((producer, epoch_of(request.known_epoch)?)),
        None => None,
    };
    let fresh = admin::new_producer_id(shared).await?;
    let init = Init {
        id: request.transactional_id,
        timeout_ms: i32::try_from(timeout_ms).unwrap_or(i32::MAX),
        known,
        fresh_producer: i64::try_from(fresh).unwrap_or(i64::MAX),
        keep: false,
        heartbeats: request.sends_heartbeats,
        two_phase: None,
    };
    let heartbeat_ms = match request.sends_heartbeats {
        true => (timeout_ms / HEARTBEATS_PER_TIMEOUT).clamp(1, LONGEST_HEARTBEAT_MS),
        false => 0,
    };
    match ask(shared, Request::Init(init)).await? {
        Reply::Begun(producer, epoch) => Ok(v1::InitTransactionsResponse {
            producer,
            epoch: epoch.into(),
            heartbeat_ms,
        }),
        other => Err(mismatch(&other)),
    }
}

/// A producer with an open transaction lives.
///
/// # Errors
/// As [`init`].
pub(crate) async fn heartbeat(
    shared: &Arc<Shared>,
    request: v1::HeartbeatTransactionRequest,
) -> Result<v1::HeartbeatTransactionResponse, WireError> {
    let member = Member {
        id: request.transactional_id,
        producer: request.producer,
        epoch: epoch_of(request.epoch)?,
    };
    match ask(shared, Request::Heartbeat(member)).await? {
        Reply::Noted => Ok(v1::HeartbeatTransactionResponse {}),
        other => Err(mismatch(&other)),
    }
}

/// The lanes of a request, which exist and may be part of a transaction, and its groups.
fn parts_of(
    shared: &Shared,
    request: &v1::AddToTransactionRequest,
) -> Result<BTreeSet<Part>, WireError> {
    let mut parts = BTreeSet::new();
    if !request.groups.is_empty() {
        shared.require(Feature::SentPositions)?;
    }
    for group in &request.groups {
        check_group_name(group)?;
        parts.insert(Part::Group(group.clone()));
    }
    for added in &request.streams {
        let stream = shared.data.catalog.of_id(&added.stream)?;
        let record = stream.record.load();
        let refused = |code, text: &str| {
            let text = format!("stream {}: {text}", record.name);
            Err(WireError::new(code, text))
        };
        if record.internal {
            let text = "it is the broker's own, and nobody else appends to it";
            return refused(ErrorCode::InvalidName, text);
        }
        if record.config.ack == AckPolicy::Memory {
            return refused(ErrorCode::InvalidArgument, NO_TRANSACTIONS);
        }
        let (streamlets, partitions) = (record.config.streamlets, record.config.partitions());
        for lane in &added.lanes {
            let (streamlet, lane) = (StreamletId(lane.streamlet), LaneId(lane.lane));
            let exists =
                streamlet.0 < streamlets && lane.0 < lanes_of(streamlet, streamlets, partitions);
            let partition = u32::try_from(partition_of(streamlet, lane, streamlets));
            match partition {
                Ok(partition) if exists => parts.insert(Part::Partition(stream.id(), partition)),
                _ => {
                    let text = format!("it has no streamlet {streamlet} with a lane {}", lane.0);
                    return refused(ErrorCode::UnknownLane, &text);
                }
            };
        }
    }
    if parts.is_empty() {
        let text = "the request adds no lane and no group to the transaction";
        return Err(WireError::new(ErrorCode::InvalidArgument, text));
    }
    Ok(parts)
}

/// Makes lanes and groups part of a transaction, and tells the owners of the lanes.
///
/// # Errors
/// As [`init`].
pub(crate) async fn add(
    shared: &Arc<Shared>,
    request: v1::AddToTransactionRequest,
) -> Result<v1::AddToTransactionResponse, WireError> {
    let parts = parts_of(shared, &request)?;
    let member = Member {
        id: request.transactional_id,
        producer: request.producer,
        epoch: epoch_of(request.epoch)?,
    };
    let all: Vec<Part> = parts.iter().cloned().collect();
    match ask(shared, Request::Add(member.clone(), parts)).await? {
        Reply::Added(number, _) => {
            grant(shared, &member, number, &all).await;
            Ok(v1::AddToTransactionResponse { number })
        }
        other => Err(mismatch(&other)),
    }
}

/// Prepares a transaction, for this user.
///
/// # Errors
/// As [`init`].
pub(crate) async fn prepare(
    shared: &Arc<Shared>,
    request: v1::PrepareTransactionRequest,
    user: &str,
) -> Result<v1::PrepareTransactionResponse, WireError> {
    let prepare = Prepare {
        handle: handle_of(request.transaction)?,
        principal: user.to_owned(),
    };
    match ask(shared, Request::Prepare(prepare)).await? {
        Reply::Prepared => Ok(v1::PrepareTransactionResponse {}),
        other => Err(mismatch(&other)),
    }
}

/// Commits or aborts a transaction, or tells how it ended.
///
/// # Errors
/// As [`init`].
pub(crate) async fn end(
    shared: &Arc<Shared>,
    request: v1::EndTransactionRequest,
) -> Result<v1::EndTransactionResponse, WireError> {
    let Handle { member, number } = handle_of(request.transaction)?;
    let end = End {
        member,
        commit: request.commit,
        number: Some(number),
        raise: None,
    };
    match ask(shared, Request::End(end)).await? {
        Reply::Ended(committed) => Ok(v1::EndTransactionResponse { committed }),
        other => Err(mismatch(&other)),
    }
}

/// Forgets how a transaction ended.
///
/// # Errors
/// As [`init`].
pub(crate) async fn forget(
    shared: &Arc<Shared>,
    request: v1::ForgetTransactionRequest,
) -> Result<v1::ForgetTransactionResponse, WireError> {
    let handle = handle_of(request.transaction)?;
    match ask(shared, Request::Forget(handle)).await? {
        Reply::Noted => Ok(v1::ForgetTransactionResponse {}),
        other => Err(mismatch(&other)),
    }
}

/// Transactions that are open or prepared, sorted by id: those of this broker's coordinators, or all. The streamlets of
/// the coordinators that have answered as well.
///
/// # Errors
/// A coordinator is loading, has no broker yet, or another broker does not answer: a list that lacks some would be taken
/// for all of them.
pub(crate) async fn list_open(
    shared: &Arc<Shared>,
    request: &v1::ListOpenTransactionsRequest,
) -> Result<(Vec<v1::OpenTransaction>, BTreeSet<StreamletId>), WireError> {
    let mut stages = vec![Stage::Prepared];
    if !request.prepared {
        stages.push(Stage::Ongoing);
    }
    let filter = Filter {
        stages,
        prefix: request.prefix.clone(),
        ..Filter::default()
    };
    let (here, mut answered) = list_coordinated(shared, filter).await?;
    let mut all: Vec<v1::OpenTransaction> = here.into_iter().map(open_transaction).collect();
    if !request.local {
        if shared.data.directory.is_shared() {
            for list in open_elsewhere(shared, request).await? {
                all.extend(list.transactions);
                answered.extend(list.coordinators.into_iter().map(StreamletId));
            }
        }
        // One whose broker has just died, or that recovers at its next one, is nobody's to list.
        check_answered(shared, &answered, |_| true)?;
    }
    all.sort_by(|a, b| id_of(a).cmp(id_of(b)));
    Ok((all, answered))
}

/// The transactional id of one in a list.
pub(crate) fn id_of(open: &v1::OpenTransaction) -> &str {
    let handle = open.transaction.as_ref();
    handle.map_or("", |handle| &handle.transactional_id)
}

pub(super) fn open_transaction(listed: Listed) -> v1::OpenTransaction {
    let is_prepared = listed.stage == Stage::Prepared;
    let without_timeout = listed.prepared.is_some() && !is_prepared;
    let prepared = listed.prepared.filter(|_| is_prepared);
    v1::OpenTransaction {
        started_ms: listed.started_ms.unwrap_or(0),
        prepared_ms: prepared.as_ref().map_or(0, |by| by.since_ms),
        user: prepared.map_or_else(String::new, |by| by.principal),
        without_timeout,
        transaction: Some(v1::TransactionHandle {
            transactional_id: listed.id,
            producer: listed.producer,
            epoch: listed.epoch.into(),
            number: listed.number,
        }),
    }
}

async fn open_elsewhere(
    shared: &Shared,
    request: &v1::ListOpenTransactionsRequest,
) -> Result<Vec<v1::ListOpenTransactionsResponse>, WireError> {
    let lists = others::ask_all(shared, |broker| async move {
        let mut stub = others::transactions(shared, broker)?;
        let request = v1::ListOpenTransactionsRequest {
            prefix: request.prefix.clone(),
            prepared: request.prepared,
            local: true,
            ..v1::ListOpenTransactionsRequest::default()
        };
        let answer = stub.list_open_transactions(request);
        others::answer(broker, LIST_WITHIN, answer).await
    });
    lists.await
}
