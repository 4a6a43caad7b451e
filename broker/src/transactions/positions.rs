//! A transaction commits positions of a native consumer group.

use std::sync::Arc;

use kera_coordinator::classic::OfTransaction;
use kera_coordinator::transactions::{Fault, Part};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest, SendPositions};
use kera_metadata::Feature;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;

use super::native::{handle_of, refusal};
use super::{mismatch, verify};
use crate::shared::Shared;

/// Has an open transaction commit positions of a member's leases. The group is coordinated here, and is part of the
/// transaction: so it is told how that ends.
///
/// # Errors
/// The refusal of either coordinator, or why one was not asked.
pub(crate) async fn send_positions(
    shared: &Arc<Shared>,
    request: v1::SendPositionsRequest,
) -> Result<v1::SendPositionsResponse, WireError> {
    shared.require(Feature::SentPositions)?;
    let handle = handle_of(request.transaction)?;
    let id = handle.member.id.clone();
    let producer = handle.member.producer;
    let part = Part::Group(request.group.clone());
    let said = verify(shared, handle.member, part).await;
    let number = said.map_err(|error| unasked(&error, &id))?;
    match number {
        Ok(number) if number == handle.number => {}
        // Another one is open by now.
        Ok(_) => return Err(refusal(Fault::NotOpen, &id)),
        Err(fault) => return Err(refusal(fault, &id)),
    }
    let group = request.group.clone();
    let send = AnyRequest::SendPositions(SendPositions {
        group: request.group,
        member: request.member,
        transaction: OfTransaction {
            producer,
            number: handle.number,
        },
        commits: request.commits,
    });
    match shared.coordination.call(shared, &group, send).await? {
        AnyReply::SendPositions(reply) => Ok(reply),
        other => Err(mismatch(&other)),
    }
}

/// The coordinator of the transaction was not reached. Clients take an answer for one about the group's coordinator, which
/// is this broker: they ask it again.
fn unasked(error: &WireError, id: &str) -> WireError {
    if !error.code.is_retryable() {
        return error.clone();
    }
    // The id is the client's own word, and may be long.
    let id: String = id.chars().take(249).collect();
    let text = format!("the coordinator of transactional id \"{id}\" cannot say yet: {error}");
    WireError::new(ErrorCode::TransactionPending, text)
}
