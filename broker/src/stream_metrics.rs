//! Metrics of streams: of each by its name up to `http.max_streams` of them, of all others together.

use std::collections::BTreeMap;

use kera_streamlet::{LATENCY_BOUNDS_US, TrafficTotals};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::cluster::shortage;
use crate::data::catalog::Stream;
use crate::metrics::{Labels, counters, gauges, label};
use crate::shared::Shared;

/// The label of all streams that are not told by their names; no stream is called so.
const OTHERS: &str = "";

/// The figures of one stream, or of all streams without a name in the metrics.
#[derive(Debug, Default)]
struct Sums {
    records: u64,
    bytes: u64,
    groups: u64,
    behind: u64,
    above_stable: u64,
    under_replicated: Option<u64>,
    unrecovered: u64,
    traffic: TrafficTotals,
}

impl Sums {
    fn add(&mut self, shared: &Shared, stream: &Stream) {
        let mut behind = 0;
        for streamlet in &stream.streamlets {
            for lane in streamlet.describe() {
                self.records += lane.head.saturating_sub(lane.log_start);
                behind += lane.end_ordinal.saturating_sub(lane.head);
                self.groups += lane.groups.len() as u64;
                self.bytes += lane.groups.iter().map(|g| g.bytes).sum::<u64>();
                // Of the lane where it is most: one that waits is not hidden by others that go on.
                let stable = streamlet.stable(lane.lane).unwrap_or(lane.head);
                self.above_stable = lane.head.saturating_sub(stable).max(self.above_stable);
            }
        }
        // Many streams with a few records under way each are no reason for an alert.
        self.behind = self.behind.max(behind);
        let unserved = stream.streamlets.iter().filter(|s| !s.is_recovered());
        self.unrecovered += unserved.count() as u64;
        if !stream.record.load().config.is_replicated() {
            return;
        }
        if let Some(groups) = shortage::as_counted(shared, stream) {
            *self.under_replicated.get_or_insert(0) += groups;
        }
    }
}

pub(crate) fn register(shared: &Shared, registry: &mut Registry) {
    let sums = sums(shared);
    let of = |value: fn(&Sums) -> Option<u64>| {
        let values = sums
            .iter()
            .filter_map(move |(stream, sums)| Some((label("stream", stream), value(sums)?)));
        values.collect::<Vec<(Labels, u64)>>()
    };
    let all = of(|s| Some(s.records));
    gauges(registry, "stream_records", "Records readable", all);
    let all = of(|s| Some(s.bytes));
    gauges(registry, "stream_bytes", "Bytes stored", all);
    let all = of(|s| Some(s.groups));
    gauges(registry, "stream_groups", "Groups stored", all);
    gauges(
        registry,
        "stream_head_lag_records",
        "Records appended and not yet durable",
        of(|s| Some(s.behind)),
    );
    gauges(
        registry,
        "stream_stable_lag_records",
        "Durable records at and above the first one of an open transaction, in the lane where they are most",
        of(|s| Some(s.above_stable)),
    );
    if shared.clustered.is_some() {
        gauges(
            registry,
            "stream_under_replicated_groups",
            "Groups with fewer replicas than their stream asks for: too few are recorded, or a recorded broker lacks the bytes",
            of(|s| s.under_replicated),
        );
    }
    gauges(
        registry,
        "stream_unrecovered_streamlets",
        "Streamlets that serve nothing, since they wait for replicas or their files cannot be read",
        of(|s| Some(s.unrecovered)),
    );
    counters(
        registry,
        "stream_appended_records",
        "Records appended, by stream",
        of(|s| Some(s.traffic.appended_records)),
    );
    counters(
        registry,
        "stream_appended_bytes",
        "Bytes of batches appended, by stream",
        of(|s| Some(s.traffic.appended_bytes)),
    );
    counters(
        registry,
        "stream_read_bytes",
        "Bytes of batches sent to readers, by stream",
        of(|s| Some(s.traffic.read_bytes)),
    );
    let latencies = sums.into_iter();
    let latencies = latencies.map(|(stream, sums)| (label("stream", stream), sums.traffic));
    registry.register_collector(Box::new(Latencies(latencies.collect())));
}

/// What there is to tell, by the name of the stream.
fn sums(shared: &Shared) -> BTreeMap<String, Sums> {
    // Before the streams are looked at: what one scrape has counted no other is to count with older figures.
    let mut state = shared.data.metrics.streams.lock();
    let streams = shared.data.catalog.all();
    let traffic: Vec<_> = streams.iter().map(|s| (s.id(), s.traffic())).collect();
    let told = state.take(&traffic, shared.config.http.max_streams as usize);
    let others = state.others;
    drop(state);
    let mut sums = BTreeMap::<String, Sums>::new();
    for (stream, told) in streams.iter().zip(told) {
        let name = told.map_or(OTHERS.to_owned(), |_| stream.name());
        let of_name = sums.entry(name).or_default();
        of_name.add(shared, stream);
        of_name.traffic = told.unwrap_or(others);
    }
    sums
}

/// How long appends took until they were acknowledged, by stream.
#[derive(Debug)]
struct Latencies(Vec<(Labels, TrafficTotals)>);

impl Collector for Latencies {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "stream_append_duration_seconds",
            "From an append's arrival to its acknowledgement, by stream",
            None,
            MetricType::Histogram,
        )?;
        for (labels, traffic) in &self.0 {
            let seconds = |us: u64| us as f64 / 1e6;
            let bounds = LATENCY_BOUNDS_US.map(seconds);
            let bounds = bounds.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(traffic.latency_counts).collect();
            let count = traffic.latency_counts.iter().sum();
            let sum = seconds(traffic.latency_sum_us);
            family
                .encode_family(labels)?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}
