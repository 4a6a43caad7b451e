//! The cluster as a broker sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kera_controller::{
    GroupView, Members, Needs, Picture, Refused, StreamView, UnderWay, plan, refused, share, spread,
};
use kera_metadata::{GroupState, LiveBroker, LiveState, Living, Role};
use kera_protocol::error::WireError;
use kera_protocol::v1;

use super::with_picture;
use crate::cluster::ownership::live_state::clustered;
use crate::cluster::ownership::members::info_of;
use crate::shared::Shared;

/// Most stranded streamlets that are listed.
const MOST_STRANDED: usize = 1000;

/// The cluster as this broker sees it, for a client that came in by the native address of this name.
///
/// # Errors
/// [`kera_protocol::error::ErrorCode::InvalidArgument`] if this broker has a store of its own, [`kera_protocol::error::ErrorCode::Overloaded`] while it
/// starts.
pub async fn describe_cluster(
    shared: &Arc<Shared>,
    listener: Option<&str>,
) -> Result<v1::DescribeClusterResponse, WireError> {
    let clustered = clustered(shared)?;
    let controller = *clustered.store.controller().borrow();
    let tolerance = shared.config.cluster.spread_tolerance_bytes;
    let listener = listener.map(str::to_owned);
    let look = move |picture: &Picture, members: &Members, living: &Living| {
        let mut answer = describe(picture, members, living);
        let spread = spread(picture, members, tolerance);
        answer.to_come_bytes = spread.to_come();
        for broker in &mut answer.brokers {
            let held = spread.held.get(&broker.id).copied().unwrap_or_default();
            (broker.held_bytes, broker.to_come_bytes) = (held.now, held.to_come);
            if let (Some(name), Some(live)) = (&listener, living.get(&broker.id)) {
                broker.address = address_of(live, Some(name));
            }
        }
        answer
    };
    let mut answer = with_picture(shared, look).await?;
    if let Some(cluster) = clustered.cluster_view.cluster() {
        answer.cluster = cluster.as_bytes().to_vec().into();
    }
    answer.store = shared.config.cluster.store.clone().unwrap_or_default();
    answer.controller = controller;
    answer.answered_by = shared.broker_id;
    answer.cluster_version = shared.settings.cluster_version();
    Ok(answer)
}

/// Where a broker is found: by clients that came in by the native address of this name, or, if it serves no clients, by
/// brokers alone, which nobody is told who came in by a name.
pub(super) fn address_of(live: &LiveBroker, listener: Option<&str>) -> String {
    let info = info_of(live);
    let found = match (live.role, listener) {
        (Role::Broker, _) => info.native_at(listener),
        (Role::ReplicaStore, None) => Some(live.replication_address.as_str()),
        (Role::ReplicaStore, Some(_)) => None,
    };
    found.unwrap_or_default().to_owned()
}

#[derive(Default)]
struct Counted {
    streamlets: u64,
    bytes: u64,
    copies: u64,
}

pub(super) fn describe(
    picture: &Picture,
    members: &Members,
    living: &Living,
) -> v1::DescribeClusterResponse {
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
    let refused = refused(living);
    let numbers: BTreeSet<u32> = counted.keys().chain(living.keys()).copied().collect();
    answer.brokers = numbers
        .into_iter()
        .map(|id| v1::ClusterBroker {
            refused: refused.get(&id).map_or_else(String::new, refused_text),
            cannot_write: cannot_write(living.get(&id)),
            ..broker(id, living.get(&id), counted.get(&id), share)
        })
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
        cluster_version: live.map_or(0, |live| live.cluster_version),
        streamlets: counted.streamlets,
        share: if replica_store { 0 } else { share },
        bytes: counted.bytes,
        copies: counted.copies,
        replica_store,
        ..Default::default()
    }
}

/// Why a broker that lives cannot write its own files.
fn cannot_write(live: Option<&LiveBroker>) -> String {
    live.and_then(|live| live.cannot_write.clone())
        .unwrap_or_default()
}

/// Who refuses a broker's certificate, and why.
fn refused_text(refused: &Refused) -> String {
    let by: Vec<_> = refused.by.iter().map(u32::to_string).collect();
    let brokers = if by.len() == 1 { "broker" } else { "brokers" };
    format!("by {brokers} {}: {}", by.join(", "), refused.reason)
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

#[cfg(test)]
mod tests {
    use kera_controller::Member;
    use kera_metadata::{AdvertisedAddress, ClientKind, Incarnation};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn addresses_are_told_of_the_name_that_was_asked_by_and_of_no_other() {
        let native = |name: &str, address: &str| AdvertisedAddress {
            clients: ClientKind::Native,
            name: name.to_owned(),
            address: address.to_owned(),
        };
        let incarnation = Incarnation {
            store_id: Uuid::from_u128(2),
            boot_id: Uuid::from_u128(1),
        };
        let with = |named| LiveBroker {
            address: "inner.example:7600".to_owned(),
            replication_address: "inner.example:7601".to_owned(),
            named,
            ..LiveBroker::new(2, incarnation)
        };
        let both = with(vec![
            native("inner", "inner.example:7600"),
            native("outer", "outer.example:7610"),
        ]);
        assert_eq!(address_of(&both, None), "inner.example:7600");
        assert_eq!(address_of(&both, Some("outer")), "outer.example:7610");
        assert_eq!(address_of(&both, Some("partners")), "");
        let nameless = with(Vec::new());
        assert_eq!(address_of(&nameless, Some("outer")), "inner.example:7600");
        let store = LiveBroker {
            role: Role::ReplicaStore,
            ..nameless
        };
        assert_eq!(address_of(&store, None), "inner.example:7601");
        assert_eq!(address_of(&store, Some("outer")), "");
    }

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
                generation: 0,
                state: GroupState::Closed,
                bytes: 10,
                empty: false,
                max_timestamp_ms: -1,
                copies: copies.into(),
                lost: Box::default(),
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
