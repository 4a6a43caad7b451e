//! One look at all brokers, shared by all who ask within the same second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_protocol::ack::AckPolicy;
use kera_protocol::error::WireError;
use kera_protocol::ids::StreamId;
use kera_protocol::v1;
use tokio::sync::Mutex;

use super::events::{Marks, Timeline};
use super::groups;
use super::health;
use super::observe::{observe, observe_others};
use super::pace::{FRESH, kept_for};
use super::rates::{self, Meter};
use super::told::Told;
use super::views::{BrokerRow, Event, GroupLag, GroupRow, Health, Overview, Rates, StreamRow};
use crate::admin::cluster;
use crate::clock::now_ms;
use crate::data::catalog::Stream;
use crate::process::thread_cpu_time;
use crate::shared::Shared;

/// How long other brokers have to say what they own.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// The role of what owns streamlets.
const BROKER: &str = "broker";
/// Rows of the overview.
const TOP: usize = 8;

/// One look.
pub(super) struct Snapshot {
    /// Each look has another.
    pub(super) number: u64,
    pub(super) overview: Overview,
    pub(super) streams: Vec<StreamRow>,
    pub(super) groups: Vec<GroupRow>,
    pub(super) brokers: Vec<BrokerRow>,
    /// Lanes in which a transaction is open, by stream, streamlet and lane.
    pub(super) unstable: HashMap<(String, u32, u32), Unstable>,
}

/// What an open transaction keeps from readers of what is committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unstable {
    /// The first of these ordinals.
    pub(super) from: u64,
    pub(super) records: u64,
}

/// Takes looks.
pub(super) struct Sampler {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

/// Brokers that live, and the controller.
type Members = (Vec<u32>, Option<u32>);

/// For how long a look counts as new.
struct Fresh {
    since: Instant,
    until: Instant,
    /// As they were before it.
    members: Members,
}

impl Fresh {
    /// A look that takes much of the processor is kept for long, but not beyond a change of members.
    fn is_new(&self, now: Instant, members: &Members) -> bool {
        now < self.until && (self.members == *members || now < self.since + FRESH)
    }
}

#[derive(Default)]
struct State {
    last: Option<(Fresh, Arc<Snapshot>)>,
    looks: u64,
    meter: Meter,
    timeline: Timeline,
}

impl Sampler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            state: Mutex::default(),
        }
    }

    /// The look of this second.
    ///
    /// # Errors
    /// [`ErrorCode::Internal`](kera_protocol::error::ErrorCode::Internal) after a panic.
    pub(super) async fn now(&self) -> Result<Arc<Snapshot>, WireError> {
        let mut state = self.state.lock().await;
        let members = self.members();
        if let Some((fresh, snapshot)) = &state.last
            && fresh.is_new(Instant::now(), &members)
        {
            return Ok(snapshot.clone());
        }
        let (own, others, (cluster, cost)) = tokio::join!(
            observe(&self.shared),
            observe_others(&self.shared, ANSWER_WITHIN),
            self.cluster(),
        );
        let told = Told::new(own?, others, cluster);
        let before = thread_cpu_time();
        let snapshot = Arc::new(state.look(&self.shared, &told));
        let cost = cost + thread_cpu_time().saturating_sub(before);
        // What others take to answer costs this broker nothing.
        let until = Instant::now() + kept_for(cost).min(8 * FRESH);
        let fresh = Fresh {
            since: Instant::now(),
            until,
            members,
        };
        state.last = Some((fresh, snapshot.clone()));
        Ok(snapshot)
    }

    fn members(&self) -> Members {
        let directory = &self.shared.data.directory;
        let live = directory.brokers();
        let live = live.iter().map(|broker| broker.id);
        (live.collect(), directory.controller())
    }

    /// What the metadata store says, if it is shared, and what it took to find out.
    async fn cluster(&self) -> (Option<v1::DescribeClusterResponse>, Duration) {
        if self.shared.clustered.is_none() {
            return (None, Duration::ZERO);
        }
        let since = Instant::now();
        let cluster = cluster::describe_cluster(&self.shared, None).await;
        (cluster.ok(), since.elapsed())
    }
}

impl State {
    fn look(&mut self, shared: &Shared, told: &Told) -> Snapshot {
        let lags = told
            .groups()
            .filter_map(|(_, group)| Some((group.group.clone(), groups::known_lag(group)?)));
        let brokers = told.brokers.iter().map(Arc::as_ref);
        self.meter.take(Instant::now(), brokers, lags);
        let all = shared.data.catalog.all();
        let users: Vec<_> = all.iter().filter(|s| !s.record.load().internal).collect();
        let mut lagging = lags_by_stream(told);
        let mut streams: Vec<_> = users
            .iter()
            .map(|stream| {
                let groups = lagging.remove(&stream.name()).unwrap_or_default();
                self.stream(stream, told, groups)
            })
            .collect();
        streams.sort_by(|a, b| a.name.cmp(&b.name));
        let by_name: HashMap<_, _> = streams.iter().map(|s| (s.name.as_str(), s)).collect();
        let mut groups: Vec<_> = told
            .groups()
            .map(|(broker, group)| {
                let read = groups::lags(group).filter_map(|of| by_name.get(of.stream.as_str()));
                let read: Vec<_> = read.collect();
                let comes = rates::sum(read.iter().map(|row| &row.rates)).records_in;
                let above_stable = read.iter().map(|row| row.above_stable).sum();
                groups::row(group, broker, &self.meter, comes, above_stable)
            })
            .collect();
        groups.sort_by(|a, b| a.group.cmp(&b.group));
        let brokers = self.brokers(shared, told);
        let health = health::of(told, &streams, &groups);
        let marks = Marks::of(shared, &users, &brokers, &groups, told);
        let events = self.timeline.take(now_ms(), marks);
        self.looks += 1;
        Snapshot {
            number: self.looks,
            overview: overview(shared, told, health, &streams, &groups, &brokers, events),
            unstable: unstable(&users, told),
            streams,
            groups,
            brokers,
        }
    }

    fn stream(&self, stream: &Stream, told: &Told, groups: Vec<GroupLag>) -> StreamRow {
        let record = stream.record.load();
        let wire = record.config.to_wire();
        let id = stream.id();
        let id: &[u8] = id.as_bytes();
        let (mut served, mut records, mut bytes, mut unacknowledged) = (0, 0, 0, 0);
        let mut above_stable = 0;
        let parts = told.brokers.iter().flat_map(|broker| &broker.streams);
        for part in parts.filter(|part| part.stream == id) {
            served += part.streamlets;
            records += part.records;
            bytes += part.bytes;
            unacknowledged += part.unacknowledged;
            above_stable += part.above_stable;
        }
        let streamlets = stream.streamlets.len() as u32;
        let mut row = StreamRow {
            name: record.name.clone(),
            streamlets,
            partitions: wire.partitions(),
            lane_generation: stream.lane_generation(),
            replicas: wire.replicas(),
            ack: AckPolicy::from(wire.ack()).text(),
            records,
            bytes,
            unacknowledged,
            above_stable,
            unserved_streamlets: streamlets.saturating_sub(served),
            rates: self.meter.of_stream(id),
            groups: Vec::new(),
            groups_total: 0,
            lag: 0,
        };
        row.set_groups(groups);
        row
    }

    fn brokers(&self, shared: &Shared, told: &Told) -> Vec<BrokerRow> {
        let mut known: Vec<v1::ClusterBroker> = match &told.cluster {
            Some(cluster) => cluster.brokers.clone(),
            None => shared
                .data
                .directory
                .brokers()
                .iter()
                .map(|broker| v1::ClusterBroker {
                    id: broker.id,
                    state: v1::BrokerState::Normal.into(),
                    address: broker.address.clone(),
                    kafka_address: broker.kafka.first().cloned().unwrap_or_default(),
                    host: broker.host.clone(),
                    rack: broker.rack.clone().unwrap_or_default(),
                    ..Default::default()
                })
                .collect(),
        };
        known.sort_by_key(|broker| broker.id);
        let controller = told.cluster.as_ref().and_then(|cluster| cluster.controller);
        let row = |broker: v1::ClusterBroker| self.broker(broker, controller, told);
        known.into_iter().map(row).collect()
    }

    fn broker(&self, broker: v1::ClusterBroker, controller: Option<u32>, told: &Told) -> BrokerRow {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let said = told.of(broker.id);
        let silent = told.silent.iter().find(|one| one.broker_id == broker.id);
        let (rates, cpu_share) = match said {
            Some(_) => self.meter.of_broker(broker.id),
            None => (Rates::default(), None),
        };
        let state = match broker.state() {
            _ if !broker.refused.is_empty() => "REFUSED",
            _ if silent.is_some() => "SILENT",
            v1::BrokerState::Unknown => "UNKNOWN",
            v1::BrokerState::Gone => "GONE",
            v1::BrokerState::Joining => "JOINING",
            v1::BrokerState::Partial => "PARTIAL",
            v1::BrokerState::Normal => "NORMAL",
            v1::BrokerState::Draining => "DRAINING",
            v1::BrokerState::Drained => "DRAINED",
        };
        let streamlets = match &told.cluster {
            Some(_) => broker.streamlets,
            None => said.map_or(0, |said| {
                said.streams.iter().map(|s| u64::from(s.streamlets)).sum()
            }),
        };
        let version = match said {
            Some(said) => said.version.clone(),
            None => broker.version,
        };
        BrokerRow {
            broker_id: broker.id,
            state,
            role: match broker.replica_store {
                true => "replica store",
                false => BROKER,
            },
            controller: controller == Some(broker.id),
            answered: said.is_some(),
            silent: silent.map(|one| one.reason.clone()),
            not_ready: said.and_then(|said| some(said.not_ready.clone())),
            address: broker.address,
            kafka: some(broker.kafka_address),
            host: broker.host,
            rack: some(broker.rack),
            version,
            started_ms: said.map(|said| said.started_ms),
            streamlets,
            share: broker.share,
            copies: broker.copies,
            held_bytes: broker.held_bytes,
            to_come_bytes: broker.to_come_bytes,
            disk_free_bytes: said.map(|said| said.disk_free_bytes),
            disk_total_bytes: said.map(|said| said.disk_total_bytes),
            pool_bytes: said.map(|said| said.pool_bytes),
            pool_used_bytes: said.map(|said| said.pool_used_bytes),
            resident_bytes: said.map(|said| said.resident_bytes),
            connections: said.map(|said| said.connections),
            cpu_share,
            rates,
        }
    }
}

fn unstable(streams: &[&Arc<Stream>], told: &Told) -> HashMap<(String, u32, u32), Unstable> {
    let names: HashMap<_, _> = streams.iter().map(|of| (of.id(), of.name())).collect();
    let mut all = HashMap::new();
    for part in told.brokers.iter().flat_map(|broker| &broker.streams) {
        let name = StreamId::from_slice(&part.stream);
        let Some(name) = name.and_then(|id| names.get(&id)) else {
            continue;
        };
        for lane in &part.unstable_lanes {
            let waits = Unstable {
                from: lane.stable_ordinal,
                records: lane.head_ordinal.saturating_sub(lane.stable_ordinal),
            };
            all.insert((name.clone(), lane.streamlet, lane.lane), waits);
        }
    }
    all
}

/// By stream, how far each group is behind in it.
fn lags_by_stream(told: &Told) -> HashMap<String, Vec<GroupLag>> {
    let mut lags: HashMap<String, Vec<GroupLag>> = HashMap::new();
    for (_, group) in told.groups() {
        for of in groups::lags(group) {
            lags.entry(of.stream).or_default().push(GroupLag {
                group: group.group.clone(),
                lag: of.lag,
                unknown_lanes: of.unknown_lanes,
            });
        }
    }
    lags
}

fn overview(
    shared: &Shared,
    told: &Told,
    health: Health,
    streams: &[StreamRow],
    groups: &[GroupRow],
    brokers: &[BrokerRow],
    events: Vec<Event>,
) -> Overview {
    let mut busiest: Vec<_> = streams.iter().collect();
    let comes = |row: &StreamRow| row.rates.records_in.unwrap_or_default();
    busiest.sort_by(|a, b| comes(b).total_cmp(&comes(a)).then(b.bytes.cmp(&a.bytes)));
    let mut lagging: Vec<_> = groups.iter().filter(|group| group.lag > 0).collect();
    lagging.sort_by_key(|group| (!group.falls_behind, std::cmp::Reverse(group.lag)));
    let cluster = told.cluster.as_ref();
    Overview {
        taken_ms: now_ms(),
        health,
        answered_by: shared.data.directory.me(),
        version: env!("CARGO_PKG_VERSION"),
        acts: shared.live().api.acts,
        cluster: cluster.map(|_| shared.cluster_id()),
        controller: cluster.and_then(|cluster| cluster.controller),
        brokers: brokers.iter().filter(|row| row.role == BROKER).count(),
        brokers_answering: told.brokers.len(),
        streams: streams.len(),
        partitions: streams.iter().map(|s| u64::from(s.partitions)).sum(),
        records: streams.iter().map(|s| s.records).sum(),
        bytes: streams.iter().map(|s| s.bytes).sum(),
        groups: groups.len(),
        groups_behind: groups.iter().filter(|group| group.falls_behind).count(),
        under_replicated_groups: cluster.map_or(0, |cluster| cluster.under_replicated_groups),
        to_come_bytes: cluster.map_or(0, |cluster| cluster.to_come_bytes),
        silent: told.silent.clone(),
        rates: rates::sum(streams.iter().map(|row| &row.rates)),
        busiest_streams: busiest.into_iter().take(TOP).cloned().collect(),
        lagging_groups: lagging
            .into_iter()
            .take(TOP)
            .cloned()
            .map(|row| row.cut(None))
            .collect(),
        events,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_kept_until_a_broker_comes_or_goes() {
        let since = Instant::now();
        let kept = Fresh {
            since,
            until: since + 8 * FRESH,
            members: (vec![1, 2, 3], Some(1)),
        };
        let later = since + 2 * FRESH;
        assert!(kept.is_new(later, &(vec![1, 2, 3], Some(1))));
        for members in [(vec![1, 2], Some(1)), (vec![1, 2, 3], Some(2))] {
            assert!(!kept.is_new(later, &members), "{members:?}");
            // However often they change, there is one look a second.
            assert!(kept.is_new(since + FRESH / 2, &members));
        }
        assert!(!kept.is_new(since + 8 * FRESH, &kept.members));
    }
}
