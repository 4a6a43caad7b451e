//! A stream engine that starts again aborts what its earlier runs left open, by the beginning of their transactional ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_coordinator::transactions::{AbortOne, Reply, Request};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;

use super::native::{ask, handle_of};
use super::{LIST_WITHIN, id_of, list_open, mismatch};
use crate::coordination::CoordinatorKind;
use crate::others;
use crate::shared::Shared;

/// Most transactions of one page.
const MOST: usize = 1_000;

/// Aborts the transactions of a page, those of other brokers' coordinators as well. `may`: whether the caller may abort one
/// of this id; others are left alone, and not named.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] without a prefix, or as [`list_open`]: then nothing is aborted. What became of each
/// transaction is in the answer.
pub(crate) async fn abort_by_prefix(
    shared: &Arc<Shared>,
    request: &v1::AbortTransactionsRequest,
    may: impl Fn(&str) -> bool,
) -> Result<v1::AbortTransactionsResponse, WireError> {
    if !request.transactions.is_empty() {
        let transactions = abort_here(shared, &request.transactions, request.prepared).await;
        return Ok(v1::AbortTransactionsResponse {
            transactions,
            more: false,
        });
    }
    if request.prefix.is_empty() {
        let text = "name the beginning of the transactional ids: without one all would be aborted";
        return Err(WireError::new(ErrorCode::InvalidArgument, text));
    }
    let list = v1::ListOpenTransactionsRequest {
        prefix: request.prefix.clone(),
        ..v1::ListOpenTransactionsRequest::default()
    };
    let (listed, _) = list_open(shared, &list).await?;
    let mut chosen = listed
        .into_iter()
        .filter(|open| is_meant(request, open) && may(id_of(open)));
    let most = match request.max_transactions {
        0 => MOST,
        most => usize::try_from(most).map_or(MOST, |most| most.min(MOST)),
    };
    let page = chosen.by_ref().take(most);
    let page: Vec<v1::TransactionHandle> = page.filter_map(|open| open.transaction).collect();
    let more = chosen.next().is_some();
    let mut transactions = abort_each(shared, page, request.prepared).await;
    if !request.prepared {
        // Prepared since they were listed: they stay, as the others that were.
        transactions.retain(|one| one.error != ErrorCode::TransactionPrepared as u32);
    }
    Ok(v1::AbortTransactionsResponse { transactions, more })
}

/// Whether a transaction of the prefix is to be aborted.
fn is_meant(request: &v1::AbortTransactionsRequest, open: &v1::OpenTransaction) -> bool {
    let id = id_of(open);
    // For its handle, or for a database that has decided how it ends.
    let waits = open.prepared_ms != 0 || open.without_timeout;
    (request.prepared || !waits) && id > request.after.as_str() && is_above(request, id)
}

/// Whether the rest of an id behind the prefix is a number above the label that was asked for, if one was.
fn is_above(request: &v1::AbortTransactionsRequest, id: &str) -> bool {
    let Some(label_above) = request.label_above else {
        return true;
    };
    let rest = id.strip_prefix(&request.prefix).unwrap_or_default();
    // Not what `parse` takes as well, as "+7".
    let is_number = rest.bytes().all(|byte| byte.is_ascii_digit());
    is_number && rest.parse::<u64>().is_ok_and(|label| label > label_above)
}

/// Aborts these at their coordinators; what became of each, in their order.
async fn abort_each(
    shared: &Arc<Shared>,
    handles: Vec<v1::TransactionHandle>,
    prepared: bool,
) -> Vec<v1::AbortedTransaction> {
    let mut by_broker: BTreeMap<u32, Vec<v1::TransactionHandle>> = BTreeMap::new();
    let mut aborted = Vec::new();
    let kind = CoordinatorKind::Transactions;
    for handle in handles {
        let id = &handle.transactional_id;
        match shared.coordination.place(shared, kind, id).await {
            Ok(place) => by_broker.entry(place.broker).or_default().push(handle),
            Err(error) => aborted.push(told(handle, Err(error))),
        }
    }
    let asked = by_broker.into_iter().map(|(broker, handles)| async move {
        if broker == shared.data.directory.me() {
            return abort_here(shared, &handles, prepared).await;
        }
        match abort_at(shared, broker, &handles, prepared).await {
            Ok(answer) => answer,
            // They may be aborted, or not.
            Err(error) => handles
                .into_iter()
                .map(|handle| told(handle, Err(error.clone())))
                .collect(),
        }
    });
    aborted.extend(futures::future::join_all(asked).await.into_iter().flatten());
    let id_of = |one: &v1::AbortedTransaction| {
        let handle = one.transaction.as_ref();
        handle.map(|handle| handle.transactional_id.clone())
    };
    aborted.sort_by_cached_key(id_of);
    aborted
}

async fn abort_at(
    shared: &Shared,
    broker: u32,
    handles: &[v1::TransactionHandle],
    prepared: bool,
) -> Result<Vec<v1::AbortedTransaction>, WireError> {
    let mut stub = others::transactions(shared, broker)?;
    let request = v1::AbortTransactionsRequest {
        prepared,
        transactions: handles.to_vec(),
        ..v1::AbortTransactionsRequest::default()
    };
    let answer = stub.abort_transactions(request);
    let answer = others::answer(broker, LIST_WITHIN, answer).await?;
    Ok(answer.transactions)
}

/// Aborts those of these that this broker coordinates: decided and durable on return.
async fn abort_here(
    shared: &Arc<Shared>,
    handles: &[v1::TransactionHandle],
    prepared: bool,
) -> Vec<v1::AbortedTransaction> {
    let aborts = handles.iter().map(|handle| async {
        let outcome = abort_one(shared, handle, prepared).await;
        told(handle.clone(), outcome)
    });
    futures::future::join_all(aborts).await
}

async fn abort_one(
    shared: &Arc<Shared>,
    handle: &v1::TransactionHandle,
    prepared: bool,
) -> Result<(), WireError> {
    let request = AbortOne {
        handle: handle_of(Some(handle.clone()))?,
        prepared,
    };
    match ask(shared, Request::AbortOne(request)).await {
        Ok(Reply::Ending(_)) => Ok(()),
        Ok(other) => Err(mismatch(&other)),
        Err(error) if error.code == ErrorCode::TransactionNotOpen => {
            let text = format!(
                "{}: somebody else has ended it meanwhile, or its id has begun another",
                error.message
            );
            Err(WireError::new(error.code, text))
        }
        Err(error) => Err(error),
    }
}

fn told(handle: v1::TransactionHandle, outcome: Result<(), WireError>) -> v1::AbortedTransaction {
    let (error, message) = match outcome {
        Ok(()) => (0, String::new()),
        Err(error) => (error.code as u32, error.message),
    };
    v1::AbortedTransaction {
        transaction: Some(handle),
        error,
        message,
    }
}

#[cfg(test)]
mod tests {
    use kera_coordinator::transactions::{Listed, Prepared, Stage};

    use super::super::native::open_transaction;
    use super::*;

    #[test]
    fn what_waits_without_a_timeout_is_aborted_only_if_that_is_asked_for() {
        let by = Prepared {
            principal: "flink".into(),
            since_ms: 5,
        };
        let listed = |stage, prepared: Option<&Prepared>| Listed {
            id: "job/1".into(),
            producer: 7,
            stage,
            started_ms: Some(3),
            epoch: 0,
            number: 1,
            prepared: prepared.cloned(),
        };
        let request = |prepared| v1::AbortTransactionsRequest {
            prefix: "job/".into(),
            prepared,
            ..v1::AbortTransactionsRequest::default()
        };
        for (stage, prepared, waits) in [
            (Stage::Ongoing, None, false),
            (Stage::Prepared, Some(&by), true),
            // Two-phase commit of Kafka's clients.
            (Stage::Ongoing, Some(&by), true),
        ] {
            let open = open_transaction(listed(stage, prepared));
            assert_eq!(is_meant(&request(false), &open), !waits, "{open:?}");
            assert!(is_meant(&request(true), &open), "{open:?}");
            let is_prepared = stage == Stage::Prepared;
            assert_eq!(open.prepared_ms != 0, is_prepared);
            assert_eq!(open.without_timeout, waits && !is_prepared);
        }
    }

    #[test]
    fn a_label_is_all_that_follows_the_prefix() {
        let request = |label_above| v1::AbortTransactionsRequest {
            prefix: "job/3/".into(),
            label_above,
            ..v1::AbortTransactionsRequest::default()
        };
        for id in ["job/3/8", "job/3/", "job/3/x", "job/3/7/1"] {
            assert!(is_above(&request(None), id), "{id}");
        }
        let asked = request(Some(7));
        for (id, is_it) in [
            ("job/3/8", true),
            ("job/3/18446744073709551615", true),
            ("job/3/08", true),
            ("job/3/7", false),
            ("job/3/", false),
            ("job/3/+8", false),
            ("job/3/8/1", false),
            ("job/3/8x", false),
            ("job/3/99999999999999999999", false),
        ] {
            assert_eq!(is_above(&asked, id), is_it, "{id}");
        }
    }
}
