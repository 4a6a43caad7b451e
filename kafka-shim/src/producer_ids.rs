//! InitProducerId: ids for idempotent producers, from the same store as native producers' ids.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use kera_broker::admin;

use crate::context::Ctx;
use crate::refusal::Refusal;
use crate::transactions;

/// A new id with epoch 0, also for a producer that names one it had: as in Kafka, an idempotent
/// producer raises the epoch of an id itself and asks only once it needs another id.
///
/// A transactional producer is answered `TRANSACTIONAL_ID_AUTHORIZATION_FAILED`: transactions are not
/// supported, and this is the one refusal at which every client stops at once; others it takes for
/// passing and asks again until its time is up.
pub(crate) async fn init_producer_id(
    ctx: &Ctx,
    _version: i16,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let refused = |code| {
        InitProducerIdResponse::default()
            .with_error_code(code)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
    };
    if let Some(id) = &request.transactional_id {
        if id.is_empty() {
            return refused(ResponseError::InvalidRequest.code());
        }
        return refused(transactions::refused(ctx));
    }
    if !ctx.may_write_idempotently() {
        return refused(ResponseError::ClusterAuthorizationFailed.code());
    }
    match admin::new_producer_id(&ctx.shared).await {
        Ok(id) => InitProducerIdResponse::default()
            .with_producer_id(ProducerId(i64::try_from(id).unwrap_or(i64::MAX)))
            .with_producer_epoch(0),
        Err(error) => {
            tracing::warn!(%error, "no producer id could be given out");
            refused(Refusal::from(error).code)
        }
    }
}
