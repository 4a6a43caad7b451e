//! Consumer groups: Kafka's requests as those of the broker's coordinators, and back.

mod consumer;
mod describe;
mod membership;
mod offsets;
mod share;
mod share_offsets;

pub(crate) use consumer::{consumer_describe, consumer_heartbeat};
pub(crate) use describe::{delete_groups, describe_groups, find_coordinator, list_groups};
pub(crate) use membership::{heartbeat, join_group, leave_group, sync_group};
pub(crate) use offsets::{commit, offset_commit, offset_delete, offset_fetch};
pub(crate) use share::{share_describe, share_heartbeat};
pub(crate) use share_offsets::{alter_share_offsets, delete_share_offsets, describe_share_offsets};

use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;
use kera_coordinator::classic::{Fault, Reply, Request};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_protocol::error::{ErrorCode, WireError};

use crate::context::Ctx;
use crate::refusal::Refusal;

/// Puts a request to the coordinator of its group.
///
/// # Errors
/// Kafka's number for what went wrong with the request as a whole.
async fn ask(ctx: &Ctx, request: Request) -> Result<Reply, i16> {
    try_ask(ctx, request).await.map_err(|refusal| refusal.code)
}

/// As [`ask`], with what went wrong in words.
async fn try_ask(ctx: &Ctx, request: Request) -> Result<Reply, Refusal> {
    let group = request.group().to_owned();
    let coordination = &ctx.shared.coordination;
    let asked = coordination
        .call(&ctx.shared, &group, AnyRequest::Classic(request))
        .await;
    match asked {
        Ok(AnyReply::Classic(Reply::Refused(fault))) => {
            Err(Refusal::of(fault_code(&fault), fault.to_string()))
        }
        Ok(AnyReply::Classic(reply)) => Ok(reply),
        Ok(other) => {
            tracing::error!(?other, group, "a coordinator answered another question");
            let message = "a coordinator answered another question";
            Err(Refusal::new(ResponseError::UnknownServerError, message))
        }
        Err(error) => Err(Refusal::of(coordinator_code(&error), error.message)),
    }
}

/// For a reply of another kind than the request's; a defect, and told as such.
fn mismatch(reply: &Reply) -> i16 {
    tracing::error!(?reply, "a coordinator answered another question");
    ResponseError::UnknownServerError.code()
}

/// Kafka's number for a coordinator that cannot serve. Clients try again.
fn coordinator_code(error: &WireError) -> i16 {
    match error.code {
        ErrorCode::CoordinatorLoading => ResponseError::CoordinatorLoadInProgress.code(),
        ErrorCode::NotCoordinator => ResponseError::NotCoordinator.code(),
        _ => ResponseError::CoordinatorNotAvailable.code(),
    }
}

/// Kafka's number for a refusal.
fn fault_code(fault: &Fault) -> i16 {
    use ResponseError as Kafka;
    let kafka = match fault {
        Fault::InvalidGroupId => Kafka::InvalidGroupId,
        Fault::OtherKind
        | Fault::GroupNotFound
        | Fault::NotConsumer
        | Fault::NotClassic
        | Fault::NotShare => Kafka::GroupIdNotFound,
        Fault::FencedShare => Kafka::FencedStateEpoch,
        Fault::InvalidConfig(_) => Kafka::InvalidConfig,
        Fault::UnknownPartition => Kafka::UnknownTopicOrPartition,
        Fault::InvalidRequest(_) => Kafka::InvalidRequest,
        Fault::UnsupportedAssignor => Kafka::UnsupportedAssignor,
        Fault::InvalidPattern(_) => Kafka::InvalidRegularExpression,
        Fault::UnreleasedInstance => Kafka::UnreleasedInstanceId,
        Fault::FencedEpoch => Kafka::FencedMemberEpoch,
        Fault::StaleEpoch => Kafka::StaleMemberEpoch,
        Fault::NonEmptyGroup => Kafka::NonEmptyGroup,
        // Clients give up at once instead of trying for ever.
        Fault::TooManyGroups => Kafka::PolicyViolation,
        Fault::GroupFull => Kafka::GroupMaxSizeReached,
        Fault::TooLarge => Kafka::MessageTooLarge,
        Fault::InvalidSessionTimeout => Kafka::InvalidSessionTimeout,
        Fault::InconsistentProtocol => Kafka::InconsistentGroupProtocol,
        Fault::MemberIdRequired(_) => Kafka::MemberIdRequired,
        Fault::UnknownMember => Kafka::UnknownMemberId,
        Fault::FencedInstance => Kafka::FencedInstanceId,
        Fault::IllegalGeneration => Kafka::IllegalGeneration,
        Fault::RebalanceInProgress => Kafka::RebalanceInProgress,
        Fault::OffsetMetadataTooLarge => Kafka::OffsetMetadataTooLarge,
        Fault::TooManyOffsets => Kafka::InvalidCommitOffsetSize,
        Fault::SubscribedToTopic => Kafka::GroupSubscribedToTopic,
        Fault::TransactionEnded => Kafka::InvalidTxnState,
    };
    kafka.code()
}

fn result_code(result: &Result<(), Fault>) -> i16 {
    result
        .as_ref()
        .map_or_else(fault_code, |()| crate::errors::NONE)
}

/// The client's host as Kafka writes it.
pub(crate) fn host(ctx: &Ctx) -> String {
    format!("/{}", ctx.peer.ip())
}

/// What the client calls itself; empty if it does not.
fn client_id(ctx: &Ctx) -> String {
    ctx.client_id
        .as_ref()
        .map_or_else(String::new, ToString::to_string)
}

fn text(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}

/// A text of a request, as the coordinators take it.
pub(crate) fn owned(text: &Option<StrBytes>) -> Option<String> {
    text.as_ref().map(ToString::to_string)
}
