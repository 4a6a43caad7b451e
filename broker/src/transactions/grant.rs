//! A coordinator tells the owners of lanes that batches of a transaction may come. An owner that does not hear of it
//! asks when a batch comes.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_coordinator::transactions::{Member, Part};
use kera_protocol::error::WireError;
use kera_protocol::ids::{Epoch, Ordinal};
use kera_protocol::v1;
use kera_streamlet::transactions::Grant;

use super::{ASK_WITHIN, coordinator_of, epoch_of, lane_of, served};
use crate::clock::now_ms;
use crate::coordination::{Coordination, Host};
use crate::others;
use crate::shared::Shared;

/// Tells owners, here and elsewhere, of an open transaction and the partitions among its parts. Returns when all have
/// heard of it, or were not reached.
pub async fn grant(shared: &Arc<Shared>, member: &Member, number: u64, parts: &[Part]) {
    let host = coordinator_of(shared, &member.id).await;
    let mut by_broker: BTreeMap<u32, (Vec<v1::TransactionLane>, Vec<Ordinal>)> = BTreeMap::new();
    for part in parts {
        if let Part::Partition(stream, partition) = part
            && let Some(place) = lane_of(shared, *stream, *partition)
        {
            let (lanes, ended_before) = by_broker.entry(place.broker).or_default();
            lanes.push(place.lane);
            let ended = host.as_ref();
            let ended = ended.map(|host| host.ended_before(&member.id, (*stream, *partition)));
            ended_before.push(ended.unwrap_or(0));
        }
    }
    // The owners were just looked up. What another coordinator has ended meanwhile must not be granted to owners that took
    // the lanes over since, and remember no end: a late batch would begin what nobody ends. Owners that are told nothing ask.
    let coordinates = |host: &Arc<Host>| Coordination::still_coordinates(shared, host);
    if !host.as_ref().is_some_and(coordinates) {
        return;
    }
    let me = shared.data.directory.me();
    let told = by_broker.into_iter();
    let told = told.map(|(broker, (lanes, ended_before))| async move {
        let request = v1::GrantTransactionRequest {
            transaction: Some(v1::ProducerTransaction {
                producer: member.producer,
                epoch: member.epoch.into(),
                number,
            }),
            lanes,
            transactional_id: member.id.clone(),
            ended_before,
        };
        let told = match broker == me {
            true => grant_here(shared, &request),
            false => grant_at(shared, broker, request).await,
        };
        if let Err(error) = told {
            tracing::debug!(broker, %error, "an owner was not told of a transaction");
        }
    });
    futures::future::join_all(told).await;
}

async fn grant_at(
    shared: &Shared,
    broker: u32,
    request: v1::GrantTransactionRequest,
) -> Result<(), WireError> {
    let mut stub = others::lanes(shared, broker)?;
    let answer = others::answer(broker, ASK_WITHIN, stub.grant_transaction(request));
    answer.await.map(drop)
}

/// Takes a grant for lanes of this broker; those that it does not own are left out.
///
/// # Errors
/// The request makes no sense.
pub fn grant_here(shared: &Shared, request: &v1::GrantTransactionRequest) -> Result<(), WireError> {
    let transaction = request.transaction.unwrap_or_default();
    let grant = Grant {
        producer: transaction.producer,
        epoch: epoch_of(transaction.epoch)?,
        number: transaction.number,
    };
    if !request.transactional_id.is_empty() {
        let id = &request.transactional_id;
        shared.transactions.belongs(grant.producer, id);
    }
    // Brokers of earlier versions do not know what has ended.
    let ended_before = request.ended_before.iter().copied();
    let ended_before = ended_before.chain(std::iter::repeat(0));
    for (lane, ended_before) in request.lanes.iter().zip(ended_before) {
        if let Some((streamlet, id)) = served(shared, lane)
            && streamlet.epoch() == Epoch(lane.owner_epoch)
        {
            streamlet.grant(id, grant, ended_before, None, now_ms());
        }
    }
    Ok(())
}
