//! Moves of streamlets from broker to broker, planned and made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kera_controller::{HeldBytes, Move, Picture, rebalance, spread};
use kera_metadata::{LiveState, Role};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{StreamId, StreamletId, StreamletKey};
use kera_protocol::v1;

use super::{ANSWER_WITHIN, invalid, passed_to, with_picture};
use crate::cluster::ownership;
use crate::cluster::ownership::live_state::living;
use crate::others;
use crate::shared::Shared;

/// Moves of a plan, unless it is asked for fewer or more.
const MOVES: usize = 1000;
/// Most moves of a plan.
const MOST_MOVES: usize = 10_000;

fn planned(picture: &Picture, one: &Move) -> Option<v1::PlannedMove> {
    Some(v1::PlannedMove {
        stream: picture.stream(one.stream)?.name.clone(),
        streamlet: one.streamlet.0,
        epoch: one.epoch.0,
        from: one.from,
        to: one.to,
        bytes: one.bytes,
    })
}

/// The moves that would even out streamlets and bytes, at most `most` of them, or 1,000 if that is 0.
///
/// # Errors
/// As of [`super::describe_cluster`].
pub async fn plan_moves(
    shared: &Arc<Shared>,
    most: u32,
) -> Result<v1::PlanMovesResponse, WireError> {
    let most = match most {
        0 => MOVES,
        most => (most as usize).min(MOST_MOVES),
    };
    let tolerance = shared.config.cluster.spread_tolerance_bytes;
    with_picture(shared, move |picture, members, _| {
        let moves = rebalance(picture, members, most);
        let spread = spread(picture, members, tolerance);
        let mut loads: BTreeMap<u32, v1::BrokerLoad> = BTreeMap::new();
        let nothing = |broker| v1::BrokerLoad {
            broker,
            ..Default::default()
        };
        for member in members.all() {
            loads.insert(member.id, nothing(member.id));
        }
        for (_, _, streamlet) in picture.streamlets() {
            let owner = streamlet.owner();
            let load = loads.entry(owner).or_insert_with(|| nothing(owner));
            load.streamlets += 1;
            load.streamlets_then += 1;
            load.bytes += streamlet.bytes;
            load.bytes_then += streamlet.bytes;
        }
        for one in &moves {
            if let Some(from) = loads.get_mut(&one.from) {
                from.streamlets_then -= 1;
                from.bytes_then -= one.bytes;
            }
            if let Some(to) = loads.get_mut(&one.to) {
                to.streamlets_then += 1;
                to.bytes_then += one.bytes;
            }
        }
        for (id, HeldBytes { now, then, .. }) in &spread.held {
            if let Some(load) = loads.get_mut(id) {
                (load.held_bytes, load.held_bytes_then) = (*now, *then);
            }
        }
        let mut copies: BTreeMap<_, v1::PlannedCopies> = BTreeMap::new();
        for one in &spread.moves {
            let Some(stream) = picture.stream(one.group.stream) else {
                continue;
            };
            let of = copies.entry((&*stream.name, one.from, one.to));
            let of = of.or_insert_with(|| v1::PlannedCopies {
                stream: stream.name.clone(),
                from: one.from,
                to: one.to,
                ..Default::default()
            });
            of.groups += 1;
            of.bytes += one.bytes;
        }
        let moves = moves.iter().filter_map(|one| planned(picture, one));
        v1::PlanMovesResponse {
            copies: copies.into_values().collect(),
            moves: moves.collect(),
            loads: loads.into_values().collect(),
        }
    })
    .await
}

/// Moves a streamlet to another broker: has its owner hand it over.
///
/// # Errors
/// [`ErrorCode::UnknownStream`], [`ErrorCode::UnknownStreamlet`], [`ErrorCode::InvalidArgument`] for a
/// move that cannot be made, [`ErrorCode::NotOwner`] if the streamlet has another owner or epoch by now, or
/// what the owner answers.
pub async fn move_streamlet(
    shared: &Arc<Shared>,
    request: v1::MoveStreamletRequest,
) -> Result<v1::MoveStreamletResponse, WireError> {
    let begun = Instant::now();
    let found = named(shared, &request).await?;
    let living = living(shared)?;
    if found.owner == request.to {
        return Err(invalid(format!(
            "broker {} owns stream {} streamlet {} already",
            request.to, request.stream, request.streamlet
        )));
    }
    if !found.movable {
        return Err(invalid(format!(
            "stream {} has one replica, so its streamlets stay on their brokers; only streams created with --replicas 2 or more can move",
            request.stream
        )));
    }
    let to = living.get(&request.to);
    match to.map(|live| live.state) {
        Some(_) if to.is_some_and(|live| live.role == Role::ReplicaStore) => {
            return Err(invalid(format!(
                "{} {} holds replicas and owns no streamlets; name a broker",
                Role::ReplicaStore,
                request.to
            )));
        }
        Some(LiveState::Serving) => {}
        Some(LiveState::Draining) => {
            return Err(invalid(format!(
                "broker {} drains and gets no streamlets; `kera broker drain {} --cancel` ends that",
                request.to, request.to
            )));
        }
        None => {
            return Err(invalid(format!(
                "broker {} is not alive; see `kera cluster status`",
                request.to
            )));
        }
    }
    if request.epoch.is_some_and(|epoch| epoch != found.epoch) {
        return Err(WireError::new(
            ErrorCode::NotOwner,
            format!(
                "stream {} streamlet {} has changed since the move was planned: it is at epoch {}; plan again",
                request.stream, request.streamlet, found.epoch
            ),
        ));
    }
    if found.owner != shared.broker_id {
        if request.passed_on {
            return Err(WireError::new(
                ErrorCode::NotOwner,
                format!(
                    "broker {} does not own stream {} streamlet {}; broker {} does",
                    shared.broker_id, request.stream, request.streamlet, found.owner
                ),
            ));
        }
        let mut owner = passed_to(shared, found.owner)?;
        let request = v1::MoveStreamletRequest {
            passed_on: true,
            ..request
        };
        let call = owner.move_streamlet(request);
        return others::answer(found.owner, ANSWER_WITHIN, call).await;
    }
    let (from, to) = (shared.broker_id, request.to);
    ownership::hand_over(shared, found.stream, found.streamlet, to).await?;
    Ok(v1::MoveStreamletResponse {
        from,
        epoch: found.epoch + 1,
        took_ms: begun.elapsed().as_millis() as u64,
    })
}

/// A streamlet as it is recorded.
struct RecordedStreamlet {
    stream: StreamId,
    streamlet: StreamletId,
    owner: u32,
    epoch: u32,
    movable: bool,
}

async fn named(
    shared: &Arc<Shared>,
    request: &v1::MoveStreamletRequest,
) -> Result<RecordedStreamlet, WireError> {
    let (name, number) = (request.stream.clone(), StreamletId(request.streamlet));
    with_picture(shared, move |picture, _, _| {
        let Some(stream) = picture.named(&name) else {
            return Err(WireError::new(
                ErrorCode::UnknownStream,
                format!("no stream is named \"{name}\"; see `kera stream list`"),
            ));
        };
        let streamlet = number;
        let found = picture.streamlet(StreamletKey { stream, streamlet });
        let found = found.zip(picture.stream(stream));
        let (streamlet, view) = found.ok_or_else(|| {
            WireError::new(
                ErrorCode::UnknownStreamlet,
                format!("stream \"{name}\" has no streamlet {number}"),
            )
        })?;
        Ok(RecordedStreamlet {
            stream,
            streamlet: number,
            owner: streamlet.owner(),
            epoch: streamlet.epoch().0,
            movable: view.is_movable(),
        })
    })
    .await?
}
