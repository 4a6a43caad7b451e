//! Metrics of the copies that this broker keeps, and of those that it has elsewhere. All are read when
//! they are scraped.

use std::sync::atomic::AtomicU64;

use kera_replication::ids::BrokerId;
use kera_replication::primary::PeerTraffic;
use prometheus_client::registry::Registry;

use super::Clustered;
use super::peers::Peers;
use super::replica::backup::Backup;
use super::replica::replicated::Replicated;
use crate::metrics::{Counter, Family, Labels, counter, counters, gauge, gauges, label};
use crate::shared::Shared;

/// Both sides: the copies kept for others, and what goes to each peer.
pub(crate) fn register(registry: &mut Registry, shared: &Shared, clustered: &Clustered) {
    register_backup(registry, &clustered.peers.backup);
    register_peers(registry, &clustered.peers);
    register_members(registry, shared);
    register_jobs(registry, &clustered.replicated);
    register_owners(registry, shared, &clustered.replicated);
}

/// The copies that are kept for others.
pub(crate) fn register_backup(registry: &mut Registry, backup: &Backup) {
    let stats = backup.store().stats();
    gauge(
        registry,
        "replica_store_memory_limit_bytes",
        "Shared memory that replicas may take",
        stats.memory_bytes,
    );
    gauge(
        registry,
        "replica_store_memory_used_bytes",
        "Shared memory reserved for replicas, their records and the seals",
        stats.memory_used_bytes,
    );
    gauge(
        registry,
        "replica_store_unreadable_directories",
        "Directories of replicas that the start could not make out, and without which this broker runs",
        stats.unreadable_dirs,
    );
    gauge(
        registry,
        "replica_store_primaries",
        "Brokers that have a connection for data here",
        backup.primaries() as u64,
    );
    let (open, refused) = backup.connections();
    let from = |peers: u64, strangers: u64| {
        let each = [("broker", peers), ("elsewhere", strangers)];
        each.map(|(from, count)| (label("from", from), count))
    };
    gauges(
        registry,
        "replica_store_connections",
        "Connections to cluster.listen that are open",
        from(open.peers, open.strangers),
    );
    counters(
        registry,
        "replica_store_connections_refused",
        "Connections to cluster.listen beyond cluster.max_connections and, of brokers, cluster.reserved_connections",
        from(refused.peers, refused.strangers),
    );
    let states = [
        ("open", stats.copies_open),
        ("sealed", stats.copies_sealed),
        ("flushed", stats.copies_flushed),
    ];
    gauges(
        registry,
        "replica_store_replicas",
        "Replicas kept for other owners",
        states.map(|(state, count)| (label("state", state), count)),
    );
    counter(
        registry,
        "replica_store_received_bytes",
        "Bytes received over connections for data",
        backup.server().received_bytes(),
    );
    counter(
        registry,
        "replica_store_seals",
        "Seals carried out: a streamlet's owner restarted or was replaced",
        stats.seals,
    );
    let reasons = [
        ("no_room", stats.refused_no_room),
        ("sealed", stats.refused_sealed),
        ("other", stats.refused_other),
    ];
    counters(
        registry,
        "replica_store_refusals",
        "Requests of other brokers that were refused",
        reasons.map(|(reason, count)| (label("reason", reason), count)),
    );
}

/// Whether the others that share a store take this process for alive.
pub(crate) fn register_lease(registry: &mut Registry, is_valid: bool) {
    gauge(
        registry,
        "cluster_lease",
        "1 while this broker's lease is valid; without it others may take its streamlets over",
        u64::from(is_valid),
    );
}

/// The brokers that share a store, as this one sees them.
fn register_members(registry: &mut Registry, shared: &Shared) {
    let directory = &shared.data.directory;
    gauge(
        registry,
        "cluster_brokers",
        "Brokers that share the metadata store and are alive, as far as this one knows",
        directory.brokers().len() as u64,
    );
    register_lease(registry, shared.data.directory.is_current());
    gauge(
        registry,
        "cluster_store_stranger",
        "1 while this broker refuses the metadata store: another cluster's, an empty one, or an older state of its own",
        u64::from(shared.stranger().is_some()),
    );
    gauge(
        registry,
        "cluster_controller",
        "1 while this broker is the controller, as far as it knows",
        u64::from(directory.controller() == Some(directory.me())),
    );
    gauge(
        registry,
        "cluster_controller_broker",
        "Number of the controller that this broker knows; 0 while it knows none",
        u64::from(directory.controller().unwrap_or(0)),
    );
}

/// What the jobs have done for the copies of this broker's streams.
fn register_jobs(registry: &mut Registry, replicated: &Replicated) {
    let stats = replicated.job_stats();
    counter(
        registry,
        "repair_replicas",
        "Replicas of closed groups built in place of lost ones, of those on a leaving broker, and of moved ones",
        stats.built,
    );
    counter(
        registry,
        "repair_bytes",
        "Bytes written to build replicas of closed groups",
        stats.bytes,
    );
    counter(
        registry,
        "repair_failures",
        "Failed attempts to restore a group's replicas; the broker tries again",
        stats.failed,
    );
    counter(
        registry,
        "scrubbed_groups",
        "Closed groups whose replicas were compared",
        stats.scrubbed,
    );
    counter(
        registry,
        "scrubbed_bytes",
        "Bytes read to compare replicas, on all brokers together",
        stats.scrubbed_bytes,
    );
    let kinds = [
        ("damaged", stats.damaged),
        ("missing", stats.missing),
        ("differing", stats.differing),
    ];
    counters(
        registry,
        "scrub_bad_replicas",
        "Bad replicas of closed groups: damaged, missing or differing",
        kinds.map(|(kind, count)| (label("kind", kind), count)),
    );
    counter(
        registry,
        "scrub_replaced_replicas",
        "Bad replicas that were replaced",
        stats.mended,
    );
    counter(
        registry,
        "spread_replicas",
        "Replicas of closed groups moved so that brokers hold about as many bytes each",
        stats.shifted,
    );
    counter(
        registry,
        "spread_surplus_replicas",
        "Replicas of closed groups freed because their group had more than its stream asks for",
        stats.surplus,
    );
    let spreading = replicated.spreading();
    gauge(
        registry,
        "spread_waiting_replicas",
        "Replicas that have still to move for that, and surplus ones to be freed, as of the last round",
        spreading.waiting_copies(),
    );
    gauge(
        registry,
        "spread_waiting_bytes",
        "Bytes of replicas that have still to move for that, as of the last round",
        spreading.waiting_bytes(),
    );
    gauge(
        registry,
        "unrecoverable_groups",
        "Closed groups with records that are whole on no replica that answers: `kera stream recover` names them",
        replicated.waiting().lacking_total(),
    );
    gauge(
        registry,
        "scrub_unrepaired_groups",
        "Closed groups with a bad replica that could not be replaced yet",
        stats.unsound,
    );
}

fn register_peers(registry: &mut Registry, cluster: &Peers) {
    let peers = cluster.peers();
    let traffic = peers.iter().map(|peer| {
        let id = BrokerId(peer.id);
        let is_down = cluster.primary.down_for(id).is_some();
        (label("peer", peer.id), cluster.primary.traffic(id), is_down)
    });
    let traffic: Vec<_> = traffic.collect();
    let each = |value: fn(&PeerTraffic) -> u64| {
        let values = traffic.iter();
        values.map(move |(peer, traffic, _)| (peer.clone(), value(traffic)))
    };
    counters(
        registry,
        "peer_shipped_bytes",
        "Bytes that a peer has in memory",
        each(|peer| peer.shipped_bytes),
    );
    counters(
        registry,
        "peer_lost_replicas",
        "Replicas on a peer that were lost while their group was open",
        each(|peer| peer.lost_copies),
    );
    gauges(
        registry,
        "peer_in_flight_bytes",
        "Bytes on their way to a peer",
        each(|peer| peer.in_flight_bytes),
    );
    gauges(
        registry,
        "peer_lag_bytes",
        "Bytes of open groups that a peer lacks",
        each(|peer| peer.lag_bytes),
    );
    let down = traffic.iter();
    gauges(
        registry,
        "peer_down",
        "1 while a peer gets no replicas, because it did not answer",
        down.map(|(peer, _, is_down)| (peer.clone(), u64::from(*is_down))),
    );
    gauges(
        registry,
        "peer_open_groups",
        "Open groups with a replica on a peer",
        each(|peer| peer.open_groups),
    );
    counters(
        registry,
        "peer_flush_rounds",
        "Flushes at a peer that acknowledgements of synced groups waited for",
        each(|peer| peer.flush_rounds),
    );
    counters(
        registry,
        "peer_flushed_groups",
        "Groups in all flush rounds at a peer",
        each(|peer| peer.flushed_groups),
    );
    let flushing = Family::<Labels, Counter<f64, AtomicU64>>::default();
    for (peer, traffic, _) in &traffic {
        let took = traffic.flush_time.as_secs_f64();
        flushing.get_or_create(peer).inc_by(took);
    }
    registry.register(
        "peer_flush_seconds",
        "Time that flush rounds at a peer took",
        flushing,
    );
}

/// Owners' changes at this broker; how many streamlets it owns.
fn register_owners(registry: &mut Registry, shared: &Shared, replicated: &Replicated) {
    replicated.ownership_metrics().register_takeovers(registry);
    replicated.controller_metrics().register(registry);
    let me = shared.broker_id;
    let streams = shared.data.catalog.all();
    let owned = streams.iter().map(|stream| {
        let owners = stream.owners();
        owners.iter().filter(|owner| owner.broker == me).count() as u64
    });
    gauge(
        registry,
        "streamlets_owned",
        "Streamlets that are recorded to be this broker's, as far as it knows",
        owned.sum(),
    );
    replicated.ownership_metrics().register_moves(registry);
}
