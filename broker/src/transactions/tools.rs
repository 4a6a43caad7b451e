//! What operators ask of transactions, and how they end one.

use std::collections::BTreeSet;
use std::sync::Arc;

use kera_coordinator::transactions::{
    Described, End, Fault, Filter, Member, Part, Reply, Request, Stage,
};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{StreamId, StreamletId};
use kera_protocol::partition::place_of;
use kera_protocol::v1;

use super::{LIST_WITHIN, check_answered, list_coordinated};
use crate::clock::now_ms;
use crate::coordination::{CoordinatorKind, TRANSACTIONS_STREAM};
use crate::others;
use crate::shared::Shared;

/// The transactional ids that this broker coordinates, and of which of its coordinators: those with an open transaction, or
/// `all`.
///
/// # Errors
/// As of [`super::list`].
pub(crate) async fn list(
    shared: &Arc<Shared>,
    all: bool,
) -> Result<(Vec<v1::TransactionSummary>, BTreeSet<StreamletId>), WireError> {
    let stages = Stage::ALL
        .into_iter()
        .filter(|stage| all || stage.is_open());
    let filter = Filter {
        stages: stages.collect(),
        ..Filter::default()
    };
    let (listed, answered) = list_coordinated(shared, filter).await?;
    let (me, now_ms) = (shared.data.directory.me(), now_ms());
    let listed = listed.into_iter().map(|one| v1::TransactionSummary {
        transactional_id: one.id,
        state: one.stage.name().to_owned(),
        producer: one.producer,
        open_ms: one.started_ms.map(|since| now_ms.saturating_sub(since)),
        coordinator: me,
    });
    Ok((listed.collect(), answered))
}

/// The transactional ids of the whole cluster, likewise.
///
/// # Errors
/// As of [`super::list`], of any broker; or a broker does not answer.
pub(crate) async fn list_everywhere(
    shared: &Arc<Shared>,
    all: bool,
) -> Result<Vec<v1::TransactionSummary>, WireError> {
    let (mut listed, mut answered) = list(shared, all).await?;
    if shared.data.directory.is_shared() {
        let lists = others::ask_all(shared, |broker| async move {
            let mut stub = others::transaction_tools(shared, broker)?;
            let request = v1::ListTransactionsRequest {
                all,
                local: true,
                ..v1::ListTransactionsRequest::default()
            };
            let list = stub.list_transactions(request);
            let list = others::answer(broker, LIST_WITHIN, list).await?;
            let of = match list.answered {
                Some(of) => of.streamlets.into_iter().map(StreamletId).collect(),
                // One of a version before, which is believed to have listed what it owns.
                None => super::coordinated_by(shared, broker),
            };
            Ok((list.transactions, of))
        });
        for (list, of) in lists.await? {
            listed.extend(list);
            answered.extend(of);
        }
    }
    check_answered(shared, &answered, |_| true)?;
    Ok(listed)
}

/// The broker that coordinates an id.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] where there has been no transaction, or as [`crate::coordination::Coordination::place`].
pub(crate) async fn coordinator(shared: &Arc<Shared>, id: &str) -> Result<u32, WireError> {
    // Who only asks has no internal stream made.
    if shared.data.catalog.named(TRANSACTIONS_STREAM).is_none() {
        return Err(refused(id, Fault::UnknownId));
    }
    let kind = CoordinatorKind::Transactions;
    Ok(shared.coordination.place(shared, kind, id).await?.broker)
}

/// An id that this broker coordinates, with what takes part in its transaction.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if there is no such id, or why its coordinator does not answer.
pub(crate) async fn describe(
    shared: &Arc<Shared>,
    id: &str,
) -> Result<v1::DescribeTransactionResponse, WireError> {
    match ask(shared, id, Request::Describe(id.to_owned())).await? {
        Reply::Described(described) => Ok(told(shared, described)),
        other => Err(mismatch(&other)),
    }
}

/// Aborts the open transaction of an id that this broker coordinates: decided and durable on return.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if nothing is open, or why its coordinator does not answer.
pub(crate) async fn abort(shared: &Arc<Shared>, id: &str) -> Result<(), WireError> {
    match ask(shared, id, Request::Abort(id.to_owned())).await? {
        Reply::Ending(number) => {
            tracing::info!(id, number, "an operator aborted a transaction");
            shared.transactions.look();
            Ok(())
        }
        other => Err(mismatch(&other)),
    }
}

/// Commits or aborts the transaction of an id that this broker coordinates and that is prepared, or open without a timeout:
/// decided and durable on return. True if it had been decided so before.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if none is prepared or it was decided otherwise, or why its coordinator does not answer.
pub(crate) async fn end_prepared(
    shared: &Arc<Shared>,
    id: &str,
    commit: bool,
) -> Result<bool, WireError> {
    let described = match ask(shared, id, Request::Describe(id.to_owned())).await? {
        Reply::Described(described) => described,
        other => return Err(mismatch(&other)),
    };
    let was_prepared = described.prepared.is_some();
    let decided = match described.stage {
        Stage::PrepareCommit | Stage::CompleteCommit => Some(true),
        Stage::PrepareAbort | Stage::CompleteAbort => Some(false),
        _ => None,
    };
    let refused = |text: String| Err(WireError::new(ErrorCode::InvalidArgument, text));
    match (described.stage, decided) {
        // Open without a timeout, or prepared: whatever an engine outside has decided.
        (Stage::Ongoing | Stage::Prepared, _) if was_prepared => {}
        (_, Some(before)) if was_prepared && before == commit => return Ok(true),
        (_, Some(before)) if was_prepared => {
            return refused(format!(
                "the transaction of \"{id}\" was prepared, and somebody has decided that it is {}: that stays",
                outcome_of(before)
            ));
        }
        (Stage::Ongoing, _) => {
            return refused(format!(
                "the transaction of \"{id}\" is open and not prepared: its producer ends it; `kera transaction abort` does if that is gone"
            ));
        }
        _ => {
            return refused(format!(
                "no transaction of \"{id}\" is prepared: there is nothing to end"
            ));
        }
    }
    // By its handle: whatever happens meanwhile, no other transaction of this id is meant.
    let end = End {
        member: Member {
            id: id.to_owned(),
            producer: described.producer,
            epoch: described.epoch,
        },
        commit,
        number: Some(described.number),
        raise: None,
    };
    let number = described.number;
    match ask(shared, id, Request::End(end)).await? {
        Reply::Ended(outcome) if outcome == commit => {
            tracing::info!(
                id,
                number,
                commit,
                "an operator ended a prepared transaction"
            );
            shared.transactions.look();
            Ok(false)
        }
        Reply::Ended(outcome) => refused(format!(
            "the transaction of \"{id}\" was {} meanwhile: that stays",
            outcome_of(outcome)
        )),
        other => Err(mismatch(&other)),
    }
}

fn outcome_of(commit: bool) -> &'static str {
    match commit {
        true => "committed",
        false => "aborted",
    }
}

async fn ask(shared: &Arc<Shared>, id: &str, request: Request) -> Result<Reply, WireError> {
    coordinator(shared, id).await?;
    let request = AnyRequest::Transaction(request);
    match shared.coordination.call(shared, id, request).await? {
        AnyReply::Transaction(Reply::Refused(fault)) => Err(refused(id, fault)),
        AnyReply::Transaction(reply) => Ok(reply),
        other => Err(mismatch(&other)),
    }
}

fn mismatch(reply: &impl std::fmt::Debug) -> WireError {
    tracing::error!(?reply, "a coordinator answered another question");
    let text = "the coordinator gave an answer of another kind; see the broker's log";
    WireError::new(ErrorCode::Internal, text)
}

fn refused(id: &str, fault: Fault) -> WireError {
    let text = match fault {
        Fault::UnknownId => format!(
            "no transactional id \"{id}\" is known; `kera transaction list --all` shows those that are"
        ),
        Fault::NotOpen => format!("no transaction of \"{id}\" is open: there is nothing to abort"),
        Fault::Ending => format!(
            "the transaction of \"{id}\" is to be committed, which is decided: it ends as soon as each partition has its marker; `kera transaction describe` names those that wait"
        ),
        Fault::Prepared => format!(
            "the transaction of \"{id}\" is prepared or has no timeout: somebody else decides how it ends, and `kera transaction describe` says who; `kera transaction end` ends it if that one is gone"
        ),
        other => format!("transactional id \"{id}\": {other}"),
    };
    WireError::new(ErrorCode::InvalidArgument, text)
}

fn told(shared: &Shared, described: Described) -> v1::DescribeTransactionResponse {
    let open_ms = described
        .started_ms
        .map(|since| now_ms().saturating_sub(since));
    let summary = v1::TransactionSummary {
        transactional_id: described.id,
        state: described.stage.name().to_owned(),
        producer: described.producer,
        open_ms,
        coordinator: shared.data.directory.me(),
    };
    let prepared = described.prepared;
    let prepared = prepared.filter(|_| matches!(described.stage, Stage::Ongoing | Stage::Prepared));
    let (mut partitions, mut groups) = (Vec::new(), Vec::new());
    for part in described.parts {
        match part {
            Part::Partition(stream, partition) => {
                partitions.extend(partition_of(shared, stream, partition));
            }
            Part::Group(group) => groups.push(group),
        }
    }
    partitions.sort_by(|a, b| (&a.stream, a.partition).cmp(&(&b.stream, b.partition)));
    v1::DescribeTransactionResponse {
        summary: Some(summary),
        epoch: described.epoch.into(),
        timeout_ms: described.timeout_ms,
        partitions,
        groups,
        prepared_ms: prepared
            .as_ref()
            .map(|prepared| now_ms().saturating_sub(prepared.since_ms)),
        prepared_by: prepared.map_or_else(String::new, |prepared| prepared.principal),
    }
}

/// A partition for people; `None` if its stream is gone, which no transaction waits for.
fn partition_of(
    shared: &Shared,
    stream: StreamId,
    partition: u32,
) -> Option<v1::TransactionPartition> {
    let stream = shared.data.catalog.get(stream)?;
    let (streamlet, lane) = place_of(partition, stream.record.load().config.streamlets);
    let streamlet = stream.streamlet(streamlet)?;
    Some(v1::TransactionPartition {
        stream: stream.name(),
        partition,
        streamlet: streamlet.id().0,
        lane: lane.0,
        owner: shared.owner_of(&streamlet).broker,
    })
}
