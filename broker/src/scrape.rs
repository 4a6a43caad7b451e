//! Metrics, in the text format that Prometheus scrapes.

use std::sync::atomic::{AtomicU64, Ordering};

use kera_protocol::v1::{GroupKind, GroupSummary};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::cluster::{self, Backup};
use crate::compaction::Stats;
use crate::former_metrics::with_former_names;
use crate::http::Told;
use crate::metrics::{self, Counter, Family, Gauge, Labels, gauge};
use crate::process;
use crate::shared::Shared;
use crate::stream_metrics;
use crate::telemetry;
use crate::tls::ServerTls;
use crate::turns;

/// Everything, as a scrape sees it.
pub(crate) fn render(shared: &Shared) -> String {
    with_former_names(current(shared))
}

/// Clients that have still to prove who they are.
fn unproven(registry: &mut Registry, shared: &Shared) {
    gauge(
        registry,
        "unproven_bytes",
        "Bytes that connections hold whose clients have still to prove who they are",
        shared.unheard.bytes(),
    );
    metrics::counter(
        registry,
        "unproven_ended",
        "Connections of such clients that were closed to make room for others",
        shared.unheard.ended(),
    );
}

/// Everything, by the names of this version alone.
pub(crate) fn current(shared: &Shared) -> String {
    let mut registry = Registry::with_prefix("kera");
    let metrics = &shared.data.metrics;
    registry.register(
        "appended_records",
        "Records appended",
        metrics.appended_records.clone(),
    );
    registry.register(
        "appended_bytes",
        "Bytes of batches appended",
        metrics.appended_bytes.clone(),
    );
    registry.register(
        "duplicate_batches",
        "Batches recognised as sent before",
        metrics.duplicates.clone(),
    );
    registry.register(
        "append_errors",
        "Append requests refused",
        metrics.append_errors.clone(),
    );
    registry.register(
        "append_duration_seconds",
        "From an append's arrival to its acknowledgement",
        metrics.append_seconds.clone(),
    );
    registry.register(
        "read_bytes",
        "Bytes of batches sent to readers",
        metrics.read_bytes.clone(),
    );
    registry.register(
        "read_duration_seconds",
        "From a read's arrival to its answer, of reads that brought records and did not wait for any",
        metrics.read_seconds.clone(),
    );
    registry.register(
        "replica_read_bytes",
        "Bytes of batches sent to readers from replicas, of streamlets that other brokers own",
        metrics.copy_read_bytes.clone(),
    );
    registry.register(
        "memory_waits",
        "Times an append waited for pool memory",
        metrics.memory_waits.clone(),
    );
    registry.register(
        "connections_accepted",
        "Connections accepted",
        metrics.connections_accepted.clone(),
    );
    registry.register(
        "protocol_errors",
        "Connections closed because the peer broke the protocol",
        metrics.protocol_errors.clone(),
    );
    registry.register(
        "unread_connections",
        "Connections closed because the peer did not read what was sent to it",
        metrics.unread_connections.clone(),
    );
    registry.register(
        "kafka_large_replies",
        "Replies to Kafka clients cut short at kafka.max_reply_bytes",
        metrics.large_replies.clone(),
    );
    registry.register(
        "kafka_requests",
        "Requests of Kafka clients, by API",
        metrics.kafka_requests.clone(),
    );
    registry.register(
        "kafka_request_duration_seconds",
        "From a Kafka client's request, when its turn comes, to its answer, by API",
        metrics.kafka_request_seconds.clone(),
    );
    of_shares(shared, &mut registry);
    of_compaction(&shared.compactor.stats, &mut registry);
    ready(&mut registry, shared.ready().is_ok());
    gauge(
        &mut registry,
        "recovery_damaged_groups",
        "Groups that recoveries since the start found damaged, cut short or gone",
        shared.data.env.losses.groups.load(Ordering::Relaxed),
    );
    gauge(
        &mut registry,
        "recovery_files_set_aside",
        "Damaged files that recoveries since the start moved to the folder damaged",
        shared.data.env.losses.files_aside.load(Ordering::Relaxed),
    );
    gauge(
        &mut registry,
        "connections",
        "Connections open",
        shared.connections.load(Ordering::Relaxed),
    );
    gauge(
        &mut registry,
        "connections_limit",
        "Connections that may be open",
        shared.admission.limit(),
    );
    registry.register(
        "connections_refused",
        "Connections refused, and silent ones closed to make room, by listener and by the limit that was met",
        shared.admission.refused.clone(),
    );
    registry.register(
        "connections_delayed",
        "Connections that waited for their turn because of server.connection_creation_rate",
        shared.admission.delayed.clone(),
    );
    unproven(&mut registry, shared);
    gauge(
        &mut registry,
        "in_flight_limit_bytes",
        "Bytes in flight at which sockets are not read any more",
        shared.config.server.max_in_flight_bytes,
    );
    gauge(
        &mut registry,
        "in_flight_bytes",
        "Bytes appended and not yet acknowledged",
        shared.data.in_flight.load(Ordering::Relaxed),
    );
    gauge(
        &mut registry,
        "incoming_bytes",
        "Bytes of larger buffers that connections receive into",
        shared.data.incoming.load(Ordering::Relaxed),
    );
    gauge(
        &mut registry,
        "outgoing_bytes",
        "Bytes that wait to be sent",
        shared.data.outgoing.load(Ordering::Relaxed),
    );
    gauge(
        &mut registry,
        "waiting_to_send",
        "Connections whose reads wait until others have taken enough of what waits to be sent",
        shared.data.steps.waiting() as u64,
    );
    gauge(
        &mut registry,
        "pool_limit_bytes",
        "Memory the pool may hand out",
        shared.data.env.pool.limit() as u64,
    );
    gauge(
        &mut registry,
        "pool_used_bytes",
        "Memory the pool has handed out",
        shared.data.env.pool.used() as u64,
    );
    gauge(
        &mut registry,
        "disk_full",
        "1 while appends are refused because the disk is full",
        u64::from(disk_full(shared)),
    );
    gauge(
        &mut registry,
        "recovery_milliseconds",
        "Time the last start took until appends were served",
        shared.recovery_ms.load(Ordering::Relaxed),
    );
    if let Ok((free, total)) = shared.dir.space() {
        gauge(
            &mut registry,
            "disk_free_bytes",
            "Free bytes of the data directory's file system",
            free,
        );
        gauge(
            &mut registry,
            "disk_total_bytes",
            "Bytes of the data directory's file system, without what is kept for root",
            total,
        );
    }
    // Where nobody is asked there is nothing to count.
    if shared.tls.is_some() || shared.config.asks_clients() {
        registry.register(
            "authentications",
            "Proofs of who a client is, by mechanism and result",
            shared.auth.authentications.clone(),
        );
    }
    if let Some(events) = shared.audit.events() {
        registry.register(
            "audit_events",
            "Lines of the audit log, by what became of them",
            events,
        );
    }
    registry.register(
        "access_denied",
        "Requests, or parts of them, that the rules of access denied",
        shared.access.denied.clone(),
    );
    if let Some(age) = shared.access.age() {
        let seconds = Gauge::<i64>::default();
        seconds.set(i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
        registry.register(
            "access_rules_age_seconds",
            "Time since the metadata store last confirmed the rules of access",
            seconds,
        );
        registry.register(
            "access_rules_outdated",
            "Requests that were refused because the rules of access are older than acl.max_age",
            shared.access.outdated.clone(),
        );
    }
    registry.register(
        "quota_throttled",
        "Times that clients had to wait because they had used up a quota",
        shared.quotas.throttled.clone(),
    );
    registry.register(
        "quota_throttled_milliseconds",
        "How long they were told to wait",
        shared.quotas.throttled_ms.clone(),
    );
    turns::register(&shared.quotas.turns, &mut registry);
    if let Some(tls) = &shared.tls {
        of_tls(tls, &mut registry);
    }
    if let Some(oauth) = shared.auth.oauth() {
        gauge(
            &mut registry,
            "oauth_keys_failed",
            "1 while the keys of oauth.keys cannot be fetched",
            u64::from(oauth.is_stale()),
        );
    }
    of_process(Some(shared.data.engine()), &mut registry);
    telemetry::register(shared, &mut registry);
    stream_metrics::register(shared, &mut registry);
    shared.pins.figures.register(&mut registry);
    groups(shared, &mut registry);
    if let Some(clustered) = &shared.clustered {
        cluster::metrics::register(&mut registry, shared, clustered);
    }
    text(&registry)
}

/// What a scrape sees while the broker recovers.
pub(crate) fn render_recovering() -> String {
    let mut registry = Registry::with_prefix("kera");
    ready(&mut registry, false);
    with_former_names(text(&registry))
}

/// What a process that only keeps copies has to say, as a scrape sees it.
pub(crate) fn render_backup(backup: &Backup, is_ready: bool, lease: bool) -> String {
    with_former_names(current_backup(backup, is_ready, lease))
}

/// The same, by the names of this version alone.
pub(crate) fn current_backup(backup: &Backup, is_ready: bool, lease: bool) -> String {
    let mut registry = Registry::with_prefix("kera");
    ready(&mut registry, is_ready);
    cluster::metrics::register_lease(&mut registry, lease);
    of_process(None, &mut registry);
    cluster::metrics::register_backup(&mut registry, backup);
    text(&registry)
}

fn of_shares(shared: &Shared, registry: &mut Registry) {
    let counts = &shared.shares.counts;
    gauge(
        registry,
        "share_partitions",
        "Partitions of share groups that the broker serves: members read them, or something is yet to be kept",
        shared.shares.partitions() as u64,
    );
    registry.register(
        "share_acquired_records",
        "Records that members of share groups acquired, each delivery counted",
        counts.acquired.clone(),
    );
    registry.register(
        "share_accepted_records",
        "Records that members of share groups accepted",
        counts.accepted.clone(),
    );
    registry.register(
        "share_released_records",
        "Records that members of share groups gave back for another attempt",
        counts.released.clone(),
    );
    registry.register(
        "share_rejected_records",
        "Records that members of share groups rejected",
        counts.rejected.clone(),
    );
    registry.register(
        "share_renewed_records",
        "Records whose locks members of share groups renewed, each time counted",
        counts.renewed.clone(),
    );
    registry.register(
        "share_expired_locks",
        "Times that locks of share groups in a partition ended before their holders acknowledged",
        counts.expired.clone(),
    );
    registry.register(
        "share_dead_letters",
        "Records that share groups gave up and that were written to dead-letter topics",
        counts.dead_letters.clone(),
    );
    registry.register(
        "share_unwritten_dead_letters",
        "Records that share groups gave up and that could not be written to their dead-letter topics",
        counts.unwritten_dead_letters.clone(),
    );
}

fn of_compaction(stats: &Stats, registry: &mut Registry) {
    let counter = |value: &AtomicU64| {
        let counter = Counter::<u64>::default();
        counter.inc_by(value.load(Ordering::Relaxed));
        counter
    };
    registry.register(
        "compaction_passes",
        "Passes over lanes that left only the newest record of each key",
        counter(&stats.passes),
    );
    registry.register(
        "compaction_failed",
        "Passes that could not be done; such a lane keeps all its records",
        counter(&stats.failed),
    );
    registry.register(
        "compaction_read_bytes",
        "Bytes read by passes, each byte twice",
        counter(&stats.read_bytes),
    );
    registry.register(
        "compaction_removed_bytes",
        "Bytes that passes removed",
        counter(&stats.removed_bytes),
    );
    registry.register(
        "compaction_unreadable_batches",
        "Batches that passes could not read and left as they are",
        counter(&stats.unreadable),
    );
    let value = |value: &AtomicU64| value.load(Ordering::Relaxed);
    gauge(
        registry,
        "compaction_dirty_bytes",
        "Bytes of compacted streams that were not compacted yet, at the last look",
        value(&stats.dirty_bytes),
    );
    gauge(
        registry,
        "compaction_dirty_permille",
        "Thousandths not compacted yet of the lane that has most of them, at the last look",
        value(&stats.dirty_permille),
    );
    gauge(
        registry,
        "compaction_due_seconds",
        "For how long the lane was due that has been so for longest, at the last look",
        value(&stats.due_seconds),
    );
}

fn ready(registry: &mut Registry, ready: bool) {
    let help = "1 while the process does what it is there for";
    gauge(registry, "ready", help, u64::from(ready));
}

fn text(registry: &Registry) -> String {
    let mut out = String::new();
    if encode(&mut out, registry).is_err() {
        tracing::error!("metrics could not be encoded");
    }
    out
}

/// The program, and what the system says about its process.
fn of_process(engine: Option<&str>, registry: &mut Registry) {
    let info = Family::<Labels, Gauge>::default();
    info.get_or_create(&vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("engine", engine.unwrap_or_default().to_owned()),
    ])
    .set(1);
    registry.register(
        "info",
        "1; the labels say the version and the I/O engine",
        info,
    );
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(process::cpu_time().as_secs_f64());
    registry.register("cpu_seconds", "CPU time used", cpu);
    if let Some(bytes) = process::resident_bytes() {
        gauge(registry, "resident_bytes", "Memory held", bytes);
    }
    if let Some(files) = process::open_files() {
        gauge(registry, "open_files", "Files and sockets open", files);
    }
    if let Some(limit) = process::open_files_limit() {
        gauge(
            registry,
            "open_files_limit",
            "Files and sockets that may be open",
            limit,
        );
    }
}

fn of_tls(tls: &ServerTls, registry: &mut Registry) {
    let not_after = u64::try_from(tls.not_after()).unwrap_or_default();
    gauge(
        registry,
        "tls_certificate_not_after_seconds",
        "When the certificate in use ends, in seconds since 1970",
        not_after,
    );
    gauge(
        registry,
        "tls_reload_failed",
        "1 while the files of [tls] have changed and cannot be used",
        u64::from(tls.is_stale()),
    );
    registry.register(
        "tls_handshakes",
        "TLS handshakes completed",
        tls.completed.clone(),
    );
    registry.register(
        "tls_handshake_failures",
        "TLS handshakes that failed, by why",
        tls.failed.clone(),
    );
}

fn disk_full(shared: &Shared) -> bool {
    shared
        .data
        .env
        .disk_full
        .load(kera_log_segments::sync::Ordering::Relaxed)
}

/// A group's lag in each of its streams. One that is not known is left out: 0 would end an alert.
fn known_lags(group: &GroupSummary) -> Vec<(&str, u64)> {
    let lags = match group.kind() {
        GroupKind::Native => vec![(group.stream.as_str(), group.lag, group.unknown_lanes)],
        GroupKind::Kafka => {
            let streams = group.streams.iter();
            let lags = streams.map(|of| (of.stream.as_str(), of.lag, of.unknown_lanes));
            lags.collect()
        }
    };
    let known = lags.into_iter().filter(|(_, _, unknown)| *unknown == 0);
    known.map(|(stream, lag, _)| (stream, lag)).collect()
}

fn groups(shared: &Shared, registry: &mut Registry) {
    let lag = Family::<Labels, Gauge>::default();
    let members = Family::<Labels, Gauge>::default();
    for group in shared.coordination.summaries(shared) {
        let labels = |stream: &str| -> Labels {
            vec![
                ("group", group.group.clone()),
                ("stream", stream.to_owned()),
            ]
        };
        for (stream, records) in known_lags(&group) {
            lag.get_or_create(&labels(stream)).set(records as i64);
        }
        members
            .get_or_create(&labels(&group.stream))
            .set(i64::from(group.members));
    }
    registry.register(
        "consumer_lag_records",
        "Durable records a consumer group has not committed",
        lag,
    );
    registry.register("consumer_members", "Members of a consumer group", members);
    gauge(
        registry,
        "consumer_events_passed_over",
        "Records among the events of consumer groups that could not be read when their state was",
        shared.coordination.passed_over(),
    );
    let (open, oldest_ms) = crate::transactions::open(shared);
    gauge(
        registry,
        "transactions_open",
        "Transactions that are open or ending and not prepared, of the transactional ids that this broker coordinates",
        open as u64,
    );
    gauge(
        registry,
        "transactions_oldest_seconds",
        "How long the oldest of them has been open; 0 if there is none",
        seconds_since(oldest_ms),
    );
    gauge(
        registry,
        "transactions_overdue_seconds",
        "For how long the time of one of them has been over that has not ended; 0 if there is none",
        seconds_since(crate::transactions::due_ms(shared)),
    );
    let (prepared, oldest_ms) = crate::transactions::prepared(shared);
    gauge(
        registry,
        "transactions_prepared",
        "Transactions that are prepared, or open without a timeout, and wait for somebody to end them, of the transactional ids that this broker coordinates",
        prepared as u64,
    );
    gauge(
        registry,
        "transactions_prepared_oldest_seconds",
        "How long ago the oldest of them was prepared, or began without a timeout; 0 if there is none",
        seconds_since(oldest_ms),
    );
}

/// How long a time, milliseconds since 1970, is past; 0 for none.
fn seconds_since(since_ms: Option<u64>) -> u64 {
    since_ms.map_or(0, |since| {
        crate::clock::now_ms().saturating_sub(since) / 1000
    })
}

#[cfg(test)]
mod tests {
    use kera_protocol::v1::StreamLag;

    use super::*;

    #[test]
    fn a_lag_that_is_not_known_is_not_told() {
        let of = |stream: &str, unknown_lanes| StreamLag {
            stream: stream.into(),
            lag: 5,
            unknown_lanes,
        };
        let native = |unknown_lanes| GroupSummary {
            stream: "s".into(),
            lag: 7,
            unknown_lanes,
            ..GroupSummary::default()
        };
        assert_eq!(known_lags(&native(0)), [("s", 7)]);
        assert_eq!(known_lags(&native(1)), []);
        let kafka = GroupSummary {
            kind: GroupKind::Kafka.into(),
            streams: vec![of("a", 0), of("b", 2)],
            ..GroupSummary::default()
        };
        assert_eq!(known_lags(&kafka), [("a", 5)]);
    }
}
