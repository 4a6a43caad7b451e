//! InitProducerId: ids for idempotent producers, from the same store as native producers' ids.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use kera_broker::access::ANONYMOUS;
use kera_broker::admin;
use kera_broker::principal::Principal;
use kera_coordinator::transactions::Init;
use kera_metadata::Feature;

use crate::context::Ctx;
use crate::refusal::Refusal;
use crate::transactions;

/// Whose transactions these are, as native ones are counted.
fn user_of(principal: &Principal) -> String {
    let user = principal.user();
    user.as_deref().unwrap_or(ANONYMOUS).to_owned()
}

/// A new id with epoch 0, also for a producer that names one it had: as in Kafka, an idempotent
/// producer raises the epoch of an id itself and asks only once it needs another id.
///
/// A transactional producer gets the id of its transactional id, and another epoch: older instances are fenced. One that
/// keeps a transaction is told its producer id and epoch as well (KIP-939).
pub(crate) async fn init_producer_id(
    ctx: &Ctx,
    version: i16,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let refused = |code| {
        InitProducerIdResponse::default()
            .with_error_code(code)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
    };
    let given = |producer, epoch| {
        InitProducerIdResponse::default()
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch)
    };
    if request.transactional_id.is_none() && !ctx.may_write_idempotently() {
        return refused(ResponseError::ClusterAuthorizationFailed.code());
    }
    let fresh_producer = match admin::new_producer_id(&ctx.shared).await {
        Ok(id) => i64::try_from(id).unwrap_or(i64::MAX),
        Err(error) => {
            tracing::warn!(%error, "no producer id could be given out");
            return refused(Refusal::from(error).code);
        }
    };
    let Some(id) = &request.transactional_id else {
        return given(fresh_producer, 0);
    };
    if let Err(error) = ctx.shared.require(Feature::Transactions) {
        tracing::warn!(%error, id = id.as_str(), "a transactional producer was refused");
        return refused(ResponseError::UnsupportedVersion.code());
    }
    let is_two_phase = request.enable_2_pc || request.keep_prepared_txn;
    if is_two_phase && let Err(error) = ctx.shared.require(Feature::TwoPhaseCommit) {
        tracing::warn!(%error, id = id.as_str(), "a transactional producer was refused");
        return refused(ResponseError::UnsupportedVersion.code());
    }
    let known = (request.producer_id.0, request.producer_epoch);
    let init = Init {
        id: id.to_string(),
        timeout_ms: request.transaction_timeout_ms,
        known: Some(known).filter(|(producer, epoch)| *producer >= 0 && *epoch >= 0),
        fresh_producer,
        keep: request.keep_prepared_txn,
        heartbeats: false,
        two_phase: request.enable_2_pc.then(|| user_of(&ctx.principal)),
    };
    match transactions::init(ctx, version, init).await {
        Ok(begun) => {
            let (producer, epoch) = begun.producer;
            let response = given(producer, epoch);
            match begun.ongoing {
                Some((producer, epoch)) => response
                    .with_ongoing_txn_producer_id(ProducerId(producer))
                    .with_ongoing_txn_producer_epoch(epoch),
                None => response,
            }
        }
        Err(error) => refused(error.code()),
    }
}
