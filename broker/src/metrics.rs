//! The counters of the data path. What a scrape sees stands in `scrape.rs`.

use std::time::Instant;

use parking_lot::Mutex;
pub use prometheus_client::metrics::counter::Counter;
pub(crate) use prometheus_client::metrics::family::Family;
pub(crate) use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::histogram::exponential_buckets;
use prometheus_client::registry::Registry;

use crate::named_streams::NamedStreams;

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
    /// Seconds from a read's arrival to its answer, of reads that brought records and did not wait for any.
    pub read_seconds: Histogram,
    /// Bytes of them that came from copies of groups whose streamlets other brokers own.
    pub copy_read_bytes: Counter,
    /// Times an append waited for memory.
    pub memory_waits: Counter,
    /// Connections accepted.
    pub connections_accepted: Counter,
    /// Connections closed because the peer broke the protocol.
    pub protocol_errors: Counter,
    /// Connections closed because the peer did not read what was sent to it.
    pub unread_connections: Counter,
    /// Replies to Kafka clients that would have been longer than `kafka.max_reply_bytes`.
    pub large_replies: Counter,
    /// Requests of Kafka clients, by API.
    pub kafka_requests: Family<Labels, Counter>,
    /// Seconds from a request's turn to its answer, by API.
    pub kafka_request_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    /// Which streams a scrape tells by their names.
    pub(crate) streams: Mutex<NamedStreams>,
}

impl Metrics {
    /// A read is answered with so many bytes, and has waited for no records since then.
    pub fn read_at_once(&self, since: Option<Instant>, bytes: usize) {
        if let Some(since) = since.filter(|_| bytes > 0) {
            self.read_seconds.observe(since.elapsed().as_secs_f64());
        }
    }
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
            read_seconds: Histogram::new(exponential_buckets(50e-6, 2.0, 18)),
            copy_read_bytes: Counter::default(),
            memory_waits: Counter::default(),
            connections_accepted: Counter::default(),
            protocol_errors: Counter::default(),
            kafka_requests: Family::default(),
            // There are many APIs: from 100 µs to half a minute, which a fetch may wait.
            kafka_request_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(100e-6, 4.0, 10))
            }),
            streams: Mutex::default(),
            unread_connections: Counter::default(),
            large_replies: Counter::default(),
        }
    }
}

/// Names and values of a metric's labels.
pub type Labels = Vec<(&'static str, String)>;

/// One label with its value.
pub(crate) fn label(name: &'static str, value: impl ToString) -> Labels {
    vec![(name, value.to_string())]
}

pub(crate) fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(value as i64);
    registry.register(name, help, gauge);
}

/// A gauge that has a value for each of these labels.
pub(crate) fn gauges(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, u64)>,
) {
    let gauges = Family::<Labels, Gauge>::default();
    for (labels, value) in values {
        gauges.get_or_create(&labels).set(value as i64);
    }
    registry.register(name, help, gauges);
}

/// A counter that has come to `value`.
pub(crate) fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter: Counter = Counter::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

/// A counter that has come to a value for each of these labels.
pub(crate) fn counters(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, u64)>,
) {
    let counters = Family::<Labels, Counter>::default();
    for (labels, value) in values {
        counters.get_or_create(&labels).inc_by(value);
    }
    registry.register(name, help, counters);
}
