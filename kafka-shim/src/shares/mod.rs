//! Share groups (KIP-932) at the leader of a partition: ShareFetch and ShareAcknowledge.
//!
//! Who has acquired what is [`kera_broker::shares`]; here are the sessions of a connection, what is read for them, and
//! Kafka's words. A session belongs to its connection, as fetch sessions do: with the connection go its locks.

mod acknowledge;
mod fetch;
mod lost;
mod read;
mod session;
mod wait;

pub(crate) use acknowledge::share_acknowledge;
pub(crate) use fetch::share_fetch;
pub(crate) use session::ShareSessions;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::GroupId;
use kafka_protocol::protocol::StrBytes;
use kera_broker::shares::ShareError;
use kera_metadata::Feature;

use self::session::MOST_NAME_BYTES;
use crate::context::Ctx;
use crate::refusal::Refusal;

/// Refused as by a Kafka that has no such groups, until every broker can read what is remembered of them.
pub(crate) fn check_feature(ctx: &Ctx) -> Result<(), Refusal> {
    let required = ctx.shared.require(Feature::ShareGroups);
    required.map_err(|error| Refusal::new(ResponseError::UnsupportedVersion, error.message))
}

/// Whose session a request is of, if its client may read for the group.
fn who(
    ctx: &Ctx,
    group: Option<&GroupId>,
    member: Option<&StrBytes>,
) -> Result<(String, String), Refusal> {
    check_feature(ctx)?;
    let (Some(group), Some(member)) = (group, member) else {
        let text = "name the group and the member";
        return Err(Refusal::new(ResponseError::InvalidRequest, text));
    };
    if group.len() > MOST_NAME_BYTES || member.len() > MOST_NAME_BYTES {
        let text = format!("names of groups and members have at most {MOST_NAME_BYTES} bytes");
        return Err(Refusal::new(ResponseError::InvalidRequest, text));
    }
    ctx.check_group(group)?;
    Ok((group.to_string(), member.to_string()))
}

/// Kafka's refusal of an acknowledgement.
fn refused(error: &ShareError) -> Refusal {
    use ResponseError as Kafka;
    let kafka = match error {
        ShareError::Fenced => Kafka::FencedStateEpoch,
        ShareError::NotOwner => Kafka::NotLeaderOrFollower,
        ShareError::NoGroup => Kafka::GroupIdNotFound,
        ShareError::NoPartition => Kafka::UnknownTopicOrPartition,
        ShareError::Full => Kafka::PolicyViolation,
        ShareError::State(_) => Kafka::InvalidRecordState,
        ShareError::Coordinator(_) | ShareError::Late => Kafka::CoordinatorNotAvailable,
    };
    Refusal::new(kafka, error.to_string())
}

/// Kafka's refusal of a fetch. Java's client knows few numbers there, and gives up over any other.
fn not_served(error: &ShareError) -> Refusal {
    use ResponseError as Kafka;
    let kafka = match error {
        ShareError::NoPartition => Kafka::UnknownTopicOrPartition,
        ShareError::Full => Kafka::UnknownServerError,
        _ => Kafka::NotLeaderOrFollower,
    };
    Refusal::new(kafka, error.to_string())
}
