//! Draining a broker: it keeps serving while its streamlets and replicas move to others.

use std::sync::Arc;

use kera_controller::{KeptBecause, Members, Picture, TooLittleRoom, drained};
use kera_metadata::LiveState;
use kera_protocol::error::WireError;
use kera_protocol::v1;

use super::{ANSWER_WITHIN, invalid, passed_to, with_picture};
use crate::cluster::ownership::live_state::{clustered, hear, members, set_state};
use crate::others;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Begins or ends the drain of a broker. This broker has heard of it when it answers, so that whoever asks it
/// how the drain goes is not told that there is none.
///
/// # Errors
/// [`kera_protocol::error::ErrorCode::InvalidArgument`] if the broker is not alive, or what it answers.
pub async fn set_draining(
    shared: &Arc<Shared>,
    request: v1::SetDrainingRequest,
) -> Result<v1::SetDrainingResponse, WireError> {
    let state = match request.draining {
        true => LiveState::Draining,
        false => LiveState::Serving,
    };
    if request.broker != shared.broker_id {
        if request.passed_on {
            return Err(invalid(format!(
                "this is broker {}, not {}; see `kera cluster status`",
                shared.broker_id, request.broker
            )));
        }
        let mut broker = passed_to(shared, request.broker)?;
        let passed_on = v1::SetDrainingRequest {
            passed_on: true,
            ..request
        };
        let call = broker.set_draining(passed_on);
        let answer = others::answer(request.broker, ANSWER_WITHIN, call).await?;
        hear(shared, request.broker, state).await?;
        return Ok(answer);
    }
    let changed = set_state(shared, state).await?;
    Ok(v1::SetDrainingResponse { changed })
}

/// What a broker still has, and what keeps it from leaving.
///
/// # Errors
/// As of [`super::describe_cluster`].
pub async fn describe_drain(
    shared: &Arc<Shared>,
    broker: u32,
) -> Result<v1::DescribeDrainResponse, WireError> {
    let told = with_picture(shared, move |picture, members, _| {
        describe(picture, members, broker)
    });
    let told = told.await?;
    if !told.may_stop || told.copies > 0 {
        return Ok(told);
    }
    // Its machine may be given away then. What this broker has heard of the records may be seconds old.
    let members = members(shared)?;
    let store = clustered(shared)?.store.clone();
    blocking(move || {
        let image = store.load().map_err(|error| metadata_error(&error))?;
        Ok(describe(&Picture::of(&image), &members, broker))
    })
    .await
}

fn describe(picture: &Picture, members: &Members, broker: u32) -> v1::DescribeDrainResponse {
    let found = drained(picture, members, broker);
    let draining = members.get(broker).is_some_and(|member| member.draining);
    v1::DescribeDrainResponse {
        draining,
        may_stop: draining && found.may_stop(),
        owned: found.owned as u64,
        leaving: found.leaving as u64,
        copies: found.copies as u64,
        copy_bytes: found.copy_bytes,
        last_copies: found.last_copies as u64,
        stuck: found.stuck as u64,
        stuck_because: found.room.as_ref().map(stuck_text).unwrap_or_default(),
        kept: found
            .kept
            .into_iter()
            .map(|kept| v1::KeptStreamlet {
                stream: kept.stream,
                streamlet: kept.which.streamlet.0,
                reason: kept_text(&kept.because),
                until_ms: kept.until_ms,
            })
            .collect(),
    }
}

fn kept_text(because: &KeptBecause) -> String {
    match because {
        KeptBecause::OnlyCopy => "its only replica is on this broker".into(),
        KeptBecause::NobodyElse => "no other broker lives that does not drain".into(),
        KeptBecause::TooFewMachines { wanted, living } => format!(
            "without this broker {living} machines can hold replicas and {wanted} are needed; start another broker"
        ),
    }
}

fn stuck_text(room: &TooLittleRoom) -> String {
    format!(
        "groups of stream {} need {} replicas, and the other live brokers that do not drain can hold {}",
        room.stream, room.wanted, room.left
    )
}
