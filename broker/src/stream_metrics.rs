//! Metrics of streams: of each by its name up to `http.max_streams` of them, of all others together.
//!
//! Counters never fall while the broker runs. So a stream that is told by its name stays so until it is deleted, and one
//! of the others that comes to be told by its name begins at zero there.

use std::collections::{BTreeMap, HashMap, HashSet};

use kera_protocol::ids::StreamId;
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

/// Which streams are told by their names, and what the others have counted.
#[derive(Debug, Default)]
pub(crate) struct NamedStreams {
    named: HashSet<StreamId>,
    /// How far each of the others was counted in `others`, also of those that have got a name since.
    counted: HashMap<StreamId, TrafficTotals>,
    others: TrafficTotals,
}

impl NamedStreams {
    /// These are all streams there are, by name, with all that each has counted. Returns for each, in the same order,
    /// what is told of it under its name; `None`: it is one of the others.
    fn take(
        &mut self,
        all: &[(StreamId, TrafficTotals)],
        most: usize,
    ) -> Vec<Option<TrafficTotals>> {
        let present: HashSet<StreamId> = all.iter().map(|(id, _)| *id).collect();
        self.named.retain(|id| present.contains(id));
        self.counted.retain(|id, _| present.contains(id));
        let mut told = Vec::with_capacity(all.len());
        for (id, traffic) in all {
            if self.named.contains(id) || (self.named.len() < most && self.named.insert(*id)) {
                let before = self.counted.get(id).copied().unwrap_or_default();
                told.push(Some(traffic.since(&before)));
                continue;
            }
            let before = self.counted.insert(*id, *traffic).unwrap_or_default();
            self.others = self.others.plus(&traffic.since(&before));
            told.push(None);
        }
        told
    }
}

/// What is told of a stream, or of several.
#[derive(Debug, Default)]
struct Sums {
    records: u64,
    bytes: u64,
    groups: u64,
    behind: u64,
    above_stable: u64,
    under_replicated: Option<u64>,
    unrecovered: Option<u64>,
    traffic: TrafficTotals,
}

impl Sums {
    fn add(&mut self, shared: &Shared, stream: &Stream) {
        for streamlet in &stream.streamlets {
            for lane in streamlet.describe() {
                self.records += lane.head.saturating_sub(lane.log_start);
                self.behind += lane.end_ordinal.saturating_sub(lane.head);
                self.groups += lane.groups.len() as u64;
                self.bytes += lane.groups.iter().map(|g| g.bytes).sum::<u64>();
                // Of the lane where it is most: one that waits is not hidden by others that go on.
                let stable = streamlet.stable(lane.lane).unwrap_or(lane.head);
                self.above_stable = lane.head.saturating_sub(stable).max(self.above_stable);
            }
        }
        if !stream.record.load().config.is_replicated() {
            return;
        }
        if let Some(groups) = shortage::as_counted(shared, stream) {
            *self.under_replicated.get_or_insert(0) += groups as u64;
        }
        let unserved = stream.streamlets.iter().filter(|s| !s.is_recovered());
        *self.unrecovered.get_or_insert(0) += unserved.count() as u64;
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
    let mut gauge = |name, help, value| gauges(registry, name, help, of(value));
    gauge("stream_records", "Records readable", |s| Some(s.records));
    gauge("stream_bytes", "Bytes stored", |s| Some(s.bytes));
    gauge("stream_groups", "Groups stored", |s| Some(s.groups));
    gauge(
        "stream_head_lag_records",
        "Records appended and not yet durable",
        |s| Some(s.behind),
    );
    gauge(
        "stream_stable_lag_records",
        "Durable records at and above the first one of an open transaction, in the lane where they are most",
        |s| Some(s.above_stable),
    );
    if shared.clustered.is_some() {
        gauge(
            "stream_under_replicated_groups",
            "Groups with fewer replicas than their stream asks for: too few are recorded, or a recorded broker lacks the bytes",
            |s| s.under_replicated,
        );
        gauge(
            "stream_unrecovered_streamlets",
            "Streamlets that wait for replicas and serve nothing",
            |s| s.unrecovered,
        );
    }
    let mut counter = |name, help, value| counters(registry, name, help, of(value));
    counter("stream_appended_records", "Records appended", |s| {
        Some(s.traffic.appended_records)
    });
    counter("stream_appended_bytes", "Bytes of batches appended", |s| {
        Some(s.traffic.appended_bytes)
    });
    counter(
        "stream_read_bytes",
        "Bytes of batches sent to readers",
        |s| Some(s.traffic.read_bytes),
    );
    let latencies = sums.into_iter();
    let latencies = latencies.map(|(stream, sums)| (label("stream", stream), sums.traffic));
    registry.register_collector(Box::new(Latencies(latencies.collect())));
}

/// What there is to tell, by the name of the stream.
fn sums(shared: &Shared) -> BTreeMap<String, Sums> {
    let streams = shared.data.catalog.all();
    let traffic: Vec<_> = streams.iter().map(|s| (s.id(), s.traffic())).collect();
    let mut state = shared.data.metrics.streams.lock();
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
        let help = "From an append's arrival to its acknowledgement, by stream";
        let name = "stream_append_duration_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: u64) -> TrafficTotals {
        TrafficTotals {
            read_bytes: bytes,
            ..TrafficTotals::default()
        }
    }

    fn told(state: &mut NamedStreams, all: &[(StreamId, u64)], most: usize) -> Vec<Option<u64>> {
        let all: Vec<_> = all.iter().map(|(id, bytes)| (*id, read(*bytes))).collect();
        let told = state.take(&all, most).into_iter();
        told.map(|told| told.map(|traffic| traffic.read_bytes))
            .collect()
    }

    #[test]
    fn beyond_the_limit_streams_are_summed_and_no_counter_falls() {
        let [a, b, c, d] = [(); 4].map(|()| StreamId::random());
        let mut state = NamedStreams::default();
        let state = &mut state;
        assert_eq!(
            told(state, &[(a, 1), (b, 2), (c, 4)], 1),
            [Some(1), None, None]
        );
        assert_eq!(state.others, read(6));
        // One that comes first by name takes nobody's place.
        let all = [(d, 100), (a, 1), (b, 2), (c, 5)];
        assert_eq!(told(state, &all, 1), [None, Some(1), None, None]);
        assert_eq!(state.others, read(107));
        // The named one is deleted: another is told by its name, from zero on; of the others what they had counted stays.
        let all = [(d, 103), (b, 2), (c, 5)];
        assert_eq!(told(state, &all, 1), [Some(3), None, None]);
        assert_eq!(state.others, read(107));
        // One of the others is deleted.
        assert_eq!(told(state, &[(d, 103), (c, 6)], 1), [Some(3), None]);
        assert_eq!(state.others, read(108));
    }
}
