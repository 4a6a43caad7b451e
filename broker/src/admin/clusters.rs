//! Brokers that share a metadata store: what they are told of each other, and what moves between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_controller::{
    GroupView, HeldBytes, KeptBecause, Members, Move, Needs, Picture, StreamView, TooLittleRoom,
    UnderWay, drained, plan, rebalance, restart_plan, share, spread,
};
use kera_metadata::{GroupState, LiveBroker, LiveState, Living, Role};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{StreamId, StreamletId, StreamletKey};
use kera_protocol::v1;
use kera_rpc::v1::clusters_client::ClustersClient;
use tonic::transport::Channel;

use super::{blocking, metadata_error};
use crate::cluster::Clustered;
use crate::cluster::ownership;
use crate::others;
use crate::shared::Shared;

/// The longest that a call which is passed on may take: a hand-over waits for what is in flight.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The longest wait for the store to tell this broker what another has just told it.
const HEARD_WITHIN: Duration = Duration::from_secs(5);
/// Moves of a plan, unless it is asked for fewer or more.
const MOVES: usize = 1000;
/// Most moves of a plan.
const MOST_MOVES: usize = 10_000;
/// Most stranded streamlets that are listed.
const MOST_STRANDED: usize = 1000;

/// The brokers that share a store with this one.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if this broker has one of its own.
pub(crate) fn clustered(shared: &Shared) -> Result<&Arc<Clustered>, WireError> {
    shared.clustered.as_ref().ok_or_else(|| {
        WireError::new(
            ErrorCode::InvalidArgument,
            "this broker has a metadata store of its own; brokers form a cluster when they are started with --cluster and the address of an etcd",
        )
    })
}

fn invalid(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

fn living(shared: &Shared) -> Result<Living, WireError> {
    Ok(clustered(shared)?.store.living().borrow().clone())
}

fn members_of(shared: &Shared, living: &Living) -> Members {
    let members = living.values().map(Into::into);
    Members::new(members, shared.config.cluster.allow_same_host)
}

/// The brokers that are alive, as decisions need them.
///
/// # Errors
/// As of [`store`].
pub(crate) fn members(shared: &Shared) -> Result<Members, WireError> {
    Ok(members_of(shared, &living(shared)?))
}

/// Looks at what is recorded, on a thread that may take its time.
async fn with_picture<T: Send + 'static>(
    shared: &Arc<Shared>,
    look: impl FnOnce(&Picture, &Members, &Living) -> T + Send + 'static,
) -> Result<T, WireError> {
    let living = living(shared)?;
    let members = members_of(shared, &living);
    let pictured = clustered(shared)?.pictured.clone();
    blocking(move || {
        let seen = pictured.read(|picture| look(picture, &members, &living));
        seen.ok_or_else(|| {
            let text = "this broker has not read the metadata store yet; ask again in a moment";
            WireError::new(ErrorCode::Overloaded, text)
        })
    })
    .await
}

/// The cluster as this broker sees it.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if this broker has a store of its own, [`ErrorCode::Overloaded`] while it
/// starts.
pub async fn describe_cluster(
    shared: &Arc<Shared>,
) -> Result<v1::DescribeClusterResponse, WireError> {
    let clustered = clustered(shared)?;
    let controller = *clustered.store.controller().borrow();
    let tolerance = shared.config.cluster.spread_tolerance_bytes;
    let look = move |picture: &Picture, members: &Members, living: &Living| {
        let mut answer = describe(picture, members, living);
        let spread = spread(picture, members, tolerance);
        answer.to_come_bytes = spread.to_come();
        for broker in &mut answer.brokers {
            let held = spread.held.get(&broker.id).copied().unwrap_or_default();
            (broker.held_bytes, broker.to_come_bytes) = (held.now, held.to_come);
        }
        answer
    };
    let mut answer = with_picture(shared, look).await?;
    if let Some(cluster) = clustered.pictured.cluster() {
        answer.cluster = cluster.as_bytes().to_vec().into();
    }
    answer.store = shared.config.cluster.store.clone().unwrap_or_default();
    answer.controller = controller;
    answer.answered_by = shared.broker_id;
    Ok(answer)
}

#[derive(Default)]
struct Counted {
    streamlets: u64,
    bytes: u64,
    copies: u64,
}

fn describe(picture: &Picture, members: &Members, living: &Living) -> v1::DescribeClusterResponse {
    let mut answer = v1::DescribeClusterResponse {
        streams: picture.streams().count() as u32,
        ..Default::default()
    };
    let most = members.most_copies(None);
    answer.most_copies = most as u32;
    let limited = limited_streams(picture.streams().map(|(_, stream)| stream), most);
    answer.limited_streams = limited.len() as u32;
    if let Some(first) = limited.first() {
        answer.limited_stream.clone_from(&first.name);
        answer.limited_replicas = first.replicas;
    }
    let mut counted: BTreeMap<u32, Counted> = BTreeMap::new();
    for (_, stream, streamlet) in picture.streamlets() {
        answer.streamlets += 1;
        answer.groups += streamlet.groups.len() as u64;
        let owner = counted.entry(streamlet.owner()).or_default();
        owner.streamlets += 1;
        owner.bytes += streamlet.bytes;
        for group in streamlet.groups.values() {
            for broker in &group.copies {
                counted.entry(*broker).or_default().copies += 1;
            }
            match lacks(stream, group, members, most) {
                Lacks::Nothing => {}
                Lacks::Copies => answer.under_replicated_groups += 1,
                Lacks::Brokers => {
                    answer.under_replicated_groups += 1;
                    answer.limited_groups += 1;
                }
            }
        }
    }
    let share = share(picture, members) as u64;
    let numbers: BTreeSet<u32> = counted.keys().chain(living.keys()).copied().collect();
    answer.brokers = numbers
        .into_iter()
        .map(|id| broker(id, living.get(&id), counted.get(&id), share))
        .collect();
    let plan = plan(picture, members, &UnderWay::default(), &Default::default());
    let stranded = plan.stranded.into_iter().take(MOST_STRANDED);
    answer.stranded = stranded
        .filter_map(|one| {
            let name = picture.stream(one.stream)?.name.clone();
            let (needs, brokers) = needs_text(one.owner, &one.needs);
            Some(v1::StrandedStreamlet {
                stream: name,
                streamlet: one.streamlet.0,
                owner: one.owner,
                needs,
                brokers,
            })
        })
        .collect();
    answer
}

/// The streams that are to have more copies than the `most` that a group can have, the one that is to have most
/// first. The brokers' own are kept by as many as there are.
fn limited_streams<'a>(
    streams: impl Iterator<Item = &'a StreamView>,
    most: usize,
) -> Vec<&'a StreamView> {
    let limited = streams.filter(|stream| !stream.internal && stream.replicas as usize > most);
    let mut limited: Vec<_> = limited.collect();
    limited.sort_by(|a, b| (b.replicas, &a.name).cmp(&(a.replicas, &b.name)));
    limited
}

/// What a group lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    Nothing,
    /// It gets others in the background.
    Copies,
    /// It has as many as the living brokers can hold.
    Brokers,
}

/// What a group lacks where a group can have `most` copies.
fn lacks(stream: &StreamView, group: &GroupView, members: &Members, most: usize) -> Lacks {
    let living = group.copies.iter().filter(|id| members.lives(**id)).count();
    let counts = group.state == GroupState::Closed && !group.empty;
    match (stream.replicas as usize, stream.internal) {
        (replicas, _) if !counts || living >= replicas => Lacks::Nothing,
        // It is kept by as many brokers as there are.
        (_, true) if living >= most => Lacks::Nothing,
        (_, false) if living >= most => Lacks::Brokers,
        _ => Lacks::Copies,
    }
}

fn broker(
    id: u32,
    live: Option<&LiveBroker>,
    counted: Option<&Counted>,
    share: u64,
) -> v1::ClusterBroker {
    let none = Counted::default();
    let counted = counted.unwrap_or(&none);
    let replica_store = live.is_some_and(|live| live.role == Role::ReplicaStore);
    let state = match live.map(|live| live.state) {
        Some(_) if replica_store => v1::BrokerState::Normal,
        None => v1::BrokerState::Gone,
        Some(LiveState::Draining) if counted.streamlets == 0 => v1::BrokerState::Drained,
        Some(LiveState::Draining) => v1::BrokerState::Draining,
        Some(LiveState::Serving) if counted.streamlets >= share => v1::BrokerState::Normal,
        Some(LiveState::Serving) if counted.streamlets == 0 => v1::BrokerState::Joining,
        Some(LiveState::Serving) => v1::BrokerState::Partial,
    };
    let text = |of: fn(&LiveBroker) -> String| live.map(of).unwrap_or_default();
    v1::ClusterBroker {
        id,
        state: state.into(),
        address: text(|live| live.address.clone()),
        replication_address: text(|live| live.replication_address.clone()),
        kafka_address: text(|live| live.kafka_address.clone().unwrap_or_default()),
        host: text(|live| live.host.clone()),
        rack: text(|live| live.rack.clone().unwrap_or_default()),
        version: text(|live| live.version.clone()),
        streamlets: counted.streamlets,
        share: if replica_store { 0 } else { share },
        bytes: counted.bytes,
        copies: counted.copies,
        replica_store,
        ..Default::default()
    }
}

/// Where it is found: by clients, or by brokers alone if it serves no others.
fn address_of(live: &LiveBroker) -> String {
    match live.role {
        Role::Broker => live.address.clone(),
        Role::ReplicaStore => live.replication_address.clone(),
    }
}

fn numbers(brokers: &BTreeSet<u32>) -> String {
    let numbers: Vec<_> = brokers.iter().map(u32::to_string).collect();
    numbers.join(" or ")
}

fn needs_text(owner: u32, needs: &Needs) -> (String, Vec<u32>) {
    match needs {
        Needs::Owner => (
            format!("broker {owner} is back: it has the only replica"),
            vec![owner],
        ),
        Needs::OneOf(brokers) => (
            format!(
                "broker {} is back: no live broker has a replica",
                numbers(brokers)
            ),
            brokers.iter().copied().collect(),
        ),
        Needs::Machines { wanted, living } => (
            format!(
                "brokers live on {wanted} machines, one for each replica; now there are {living}"
            ),
            Vec::new(),
        ),
        Needs::Target => ("a broker lives that does not drain".into(), Vec::new()),
    }
}

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
/// As of [`describe_cluster`].
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

/// The calls of another broker, which must be alive.
fn passed_to(shared: &Shared, broker: u32) -> Result<ClustersClient<Channel>, WireError> {
    match living(shared)?.get(&broker).map(|live| live.role) {
        Some(Role::Broker) => {}
        Some(Role::ReplicaStore) => {
            return Err(invalid(format!(
                "{broker} is a replica store and owns no streamlets; to remove it, stop it: after cluster.lost_after its replicas are built again on other brokers"
            )));
        }
        None => {
            return Err(invalid(format!(
                "broker {broker} is not alive; see `kera cluster status`"
            )));
        }
    }
    Ok(ClustersClient::new(others::channel(shared, broker)?))
}

/// A streamlet as it is recorded.
struct Found {
    stream: StreamId,
    streamlet: StreamletId,
    owner: u32,
    epoch: u32,
    movable: bool,
}

async fn named(
    shared: &Arc<Shared>,
    request: &v1::MoveStreamletRequest,
) -> Result<Found, WireError> {
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
        Ok(Found {
            stream,
            streamlet: number,
            owner: streamlet.owner(),
            epoch: streamlet.epoch().0,
            movable: view.is_movable(),
        })
    })
    .await?
}

/// Begins or ends the drain of a broker. This broker has heard of it when it answers, so that whoever asks it
/// how the drain goes is not told that there is none.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if the broker is not alive, or what it answers.
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

/// Tells the others what this broker does; false if they know already.
///
/// # Errors
/// What the metadata store answers.
pub(crate) async fn set_state(shared: &Arc<Shared>, state: LiveState) -> Result<bool, WireError> {
    let living = living(shared)?;
    let Some(mine) = living.get(&shared.broker_id) else {
        return Err(WireError::new(
            ErrorCode::Overloaded,
            "this broker has no lease at the metadata store right now; try again once it is reached",
        ));
    };
    if mine.state == state {
        return Ok(false);
    }
    let members = clustered(shared)?.members.clone();
    blocking(move || {
        let told = members.describe(|mine| mine.state = state);
        told.map_err(|error| metadata_error(&error))
    })
    .await?;
    tracing::info!(?state, "told the other brokers");
    // The next change is compared with this one.
    hear(shared, shared.broker_id, state).await?;
    Ok(true)
}

/// Waits for the store to tell this broker that `broker` is in `state`, or gone; not for long, since it may be
/// in another by then.
async fn hear(shared: &Shared, broker: u32, state: LiveState) -> Result<(), WireError> {
    let mut living = clustered(shared)?.store.living();
    let is_so = |living: &Living| living.get(&broker).is_none_or(|live| live.state == state);
    let heard = tokio::time::timeout(HEARD_WITHIN, living.wait_for(is_so)).await;
    if heard.is_err() {
        tracing::debug!(broker, ?state, "the store has not told of it yet");
    }
    Ok(())
}

/// What a broker still has, and what keeps it from leaving.
///
/// # Errors
/// As of [`describe_cluster`].
pub async fn describe_drain(
    shared: &Arc<Shared>,
    broker: u32,
) -> Result<v1::DescribeDrainResponse, WireError> {
    with_picture(shared, move |picture, members, _| {
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
    })
    .await
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

/// An order in which brokers can be restarted.
///
/// # Errors
/// As of [`describe_cluster`].
pub async fn plan_restart(shared: &Arc<Shared>) -> Result<v1::PlanRestartResponse, WireError> {
    let clustered = clustered(shared)?;
    let controller = *clustered.store.controller().borrow();
    with_picture(shared, move |picture, members, living| {
        let steps = restart_plan(picture, members, controller).into_iter();
        let steps = steps.map(|step| {
            let live = living.get(&step.broker);
            v1::RestartStep {
                broker: step.broker,
                address: live.map(address_of).unwrap_or_default(),
                host: live.map(|live| live.host.clone()).unwrap_or_default(),
                handed_over: step.handed_over as u64,
                offline: step.offline.into_iter().collect(),
                waiting: step.waiting.into_iter().collect(),
                unreadable: step.unreadable.into_iter().collect(),
                open_copies: step.open_copies as u64,
                controller: controller == Some(step.broker),
            }
        });
        v1::PlanRestartResponse {
            steps: steps.collect(),
            wait_for: wait_for(picture, members, living),
        }
    })
    .await
}

/// What is amiss before a rolling restart begins.
fn wait_for(picture: &Picture, members: &Members, living: &Living) -> Vec<String> {
    let now = describe(picture, members, living);
    let mut reasons = Vec::new();
    let away = |one: &&v1::ClusterBroker| one.state() == v1::BrokerState::Gone;
    for broker in now.brokers.iter().filter(away) {
        reasons.push(format!("broker {} is not alive", broker.id));
    }
    let partial = |one: &&v1::ClusterBroker| {
        matches!(
            one.state(),
            v1::BrokerState::Joining | v1::BrokerState::Partial
        )
    };
    for broker in now.brokers.iter().filter(partial) {
        reasons.push(format!(
            "broker {} has not got its share of the streamlets yet, {} of {}",
            broker.id, broker.streamlets, broker.share
        ));
    }
    if now.under_replicated_groups > 0 {
        reasons.push(format!(
            "{} closed groups have too few live replicas",
            now.under_replicated_groups
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use kera_controller::Member;

    use super::*;

    #[test]
    fn streams_lack_brokers_before_a_group_of_theirs_does() {
        let stream = |name: &str, replicas, internal| StreamView {
            name: name.into(),
            internal,
            replicas,
            min_insync_replicas: 1,
            retention_ms: 0,
        };
        let all = [
            stream("a", 1, false),
            stream("b", 3, false),
            stream("c", 4, false),
            stream("_groups", 5, true),
        ];
        let names = |most| -> Vec<&str> {
            let limited = limited_streams(all.iter(), most);
            limited.into_iter().map(|stream| &*stream.name).collect()
        };
        assert_eq!(names(2), ["c", "b"]);
        assert_eq!(names(3), ["c"]);
        assert!(names(4).is_empty());
    }

    #[test]
    fn a_group_lacks_copies_only_where_brokers_could_hold_them() {
        let members = |count: u32| {
            let members = (1..=count).map(|id| Member::new(id, format!("host{id}")));
            Members::new(members, false)
        };
        let of = |internal, copies: &[u32], members: &Members| {
            let stream = StreamView {
                name: "flights".into(),
                internal,
                replicas: 3,
                min_insync_replicas: 2,
                retention_ms: 0,
            };
            let group = GroupView {
                state: GroupState::Closed,
                bytes: 10,
                empty: false,
                max_timestamp_ms: -1,
                copies: copies.into(),
            };
            lacks(&stream, &group, members, members.most_copies(None))
        };
        assert_eq!(of(false, &[1, 2, 3], &members(3)), Lacks::Nothing);
        assert_eq!(of(false, &[1, 2], &members(3)), Lacks::Copies);
        assert_eq!(of(false, &[1, 2], &members(2)), Lacks::Brokers);
        assert_eq!(of(false, &[1, 2, 3], &members(2)), Lacks::Brokers);
        assert_eq!(of(false, &[1, 3], &members(2)), Lacks::Copies);
        assert_eq!(of(true, &[1, 2], &members(2)), Lacks::Nothing);
        assert_eq!(of(true, &[1], &members(1)), Lacks::Nothing);
        assert_eq!(of(true, &[1], &members(2)), Lacks::Copies);
    }
}
