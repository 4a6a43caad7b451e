//! Metrics, in the text format that Prometheus scrapes.

use std::sync::atomic::Ordering;

use kera_protocol::v1::GroupKind;
use prometheus_client::encoding::text::encode;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::start::Shared;

/// Counters of the data path; gauges are read when scraped.
pub struct Metrics {
    /// Records appended.
    pub appended_records: Counter,
    /// Bytes appended.
    pub appended_bytes: Counter,
    /// Batches recognised as sent before.
    pub duplicates: Counter,
    /// Append frames refused.
    pub append_errors: Counter,
    /// Seconds from an append's arrival to its acknowledgement.
    pub append_seconds: Histogram,
    /// Bytes sent to readers.
    pub read_bytes: Counter,
    /// Times an append waited for memory.
    pub memory_waits: Counter,
    /// Connections accepted.
    pub connections_accepted: Counter,
    /// Connections closed because the peer broke the protocol.
    pub protocol_errors: Counter,
    /// Requests of Kafka clients, by API.
    pub kafka_requests: Family<Labels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            appended_records: Counter::default(),
            appended_bytes: Counter::default(),
            duplicates: Counter::default(),
            append_errors: Counter::default(),
            append_seconds: Histogram::new(exponential_buckets(50e-6, 2.0, 18)),
            read_bytes: Counter::default(),
            memory_waits: Counter::default(),
            connections_accepted: Counter::default(),
            protocol_errors: Counter::default(),
            kafka_requests: Family::default(),
        }
    }
}

/// Names and values of a metric's labels.
pub type Labels = Vec<(&'static str, String)>;

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(value as i64);
    registry.register(name, help, gauge);
}

/// Everything, as a scrape sees it.
pub fn render(shared: &Shared) -> String {
    let mut registry = Registry::with_prefix("kera");
    let metrics = &shared.metrics;
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
        "kafka_requests",
        "Requests of Kafka clients, by API",
        metrics.kafka_requests.clone(),
    );
    gauge(
        &mut registry,
        "connections",
        "Connections open",
        shared.connections.load(Ordering::Relaxed),
    );
    gauge(
        &mut registry,
        "in_flight_bytes",
        "Bytes appended and not yet acknowledged",
        shared.in_flight.load(Ordering::Relaxed),
    );
    gauge(
        &mut registry,
        "pool_limit_bytes",
        "Memory the pool may hand out",
        shared.env.pool.limit() as u64,
    );
    gauge(
        &mut registry,
        "pool_used_bytes",
        "Memory the pool has handed out",
        shared.env.pool.used() as u64,
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
            "Bytes of the data directory's file system",
            total,
        );
    }
    streams(shared, &mut registry);
    groups(shared, &mut registry);
    let mut out = String::new();
    if encode(&mut out, &registry).is_err() {
        tracing::error!("metrics could not be encoded");
    }
    out
}

fn disk_full(shared: &Shared) -> bool {
    shared
        .env
        .disk_full
        .load(kera_log_segments::sync::Ordering::Relaxed)
}

fn streams(shared: &Shared, registry: &mut Registry) {
    let records = Family::<Labels, Gauge>::default();
    let bytes = Family::<Labels, Gauge>::default();
    let groups = Family::<Labels, Gauge>::default();
    let lag = Family::<Labels, Gauge>::default();
    for stream in shared.catalog.all() {
        let labels: Labels = vec![("stream", stream.name())];
        let (mut held, mut size, mut count, mut behind) = (0, 0, 0, 0);
        for lane in stream.streamlets.iter().flat_map(|s| s.describe()) {
            held += lane.head.saturating_sub(lane.log_start);
            behind += lane.end_ordinal.saturating_sub(lane.head);
            count += lane.groups.len();
            size += lane.groups.iter().map(|g| g.bytes).sum::<u64>();
        }
        records.get_or_create(&labels).set(held as i64);
        bytes.get_or_create(&labels).set(size as i64);
        groups.get_or_create(&labels).set(count as i64);
        lag.get_or_create(&labels).set(behind as i64);
    }
    registry.register("stream_records", "Records readable", records);
    registry.register("stream_bytes", "Bytes stored", bytes);
    registry.register("stream_groups", "Groups stored", groups);
    registry.register(
        "stream_head_lag_records",
        "Records appended and not yet durable",
        lag,
    );
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
        match group.kind() {
            GroupKind::Native => {
                lag.get_or_create(&labels(&group.stream))
                    .set(group.lag as i64);
            }
            GroupKind::Kafka => {
                for of_stream in &group.streams {
                    lag.get_or_create(&labels(&of_stream.stream))
                        .set(of_stream.lag as i64);
                }
            }
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
}
