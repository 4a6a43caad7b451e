//! What owners' changes come to at this broker: streamlets taken over, given up and handed over.

use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::metrics::{Counter, Family, Labels};

/// Counts of this process.
#[derive(Debug)]
pub(super) struct Changes {
    /// Seconds from being named the owner, or from the start, until a streamlet is served.
    takeovers: Histogram,
    begun: Counter,
    ended: Family<Labels, Counter>,
    given_up: Counter,
    hand_overs: Family<Labels, Counter>,
    removed_files: Counter,
    removed_bytes: Counter,
}

impl Default for Changes {
    fn default() -> Self {
        let hand_overs = Family::default();
        for outcome in ["done", "failed"] {
            drop(hand_overs.get_or_create(&labels(outcome)));
        }
        let ended = Family::default();
        for outcome in ["served", "given_up"] {
            drop(ended.get_or_create(&labels(outcome)));
        }
        Self {
            // A millisecond to nine minutes.
            takeovers: Histogram::new(exponential_buckets(1e-3, 2.0, 20)),
            begun: Counter::default(),
            ended,
            given_up: Counter::default(),
            hand_overs,
            removed_files: Counter::default(),
            removed_bytes: Counter::default(),
        }
    }
}

fn labels(outcome: &'static str) -> Labels {
    vec![("outcome", outcome.to_owned())]
}

/// A streamlet that is being taken over; dropped before it is served, it was given up.
pub(super) struct Taken<'a> {
    changes: &'a Changes,
    begun: Instant,
    served: bool,
}

impl Taken<'_> {
    /// It is served; after how long.
    pub(super) fn served(mut self) -> Duration {
        self.served = true;
        let took = self.begun.elapsed();
        self.changes.takeovers.observe(took.as_secs_f64());
        took
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let outcome = if self.served { "served" } else { "given_up" };
        self.changes.ended.get_or_create(&labels(outcome)).inc();
    }
}

impl Changes {
    /// This broker begins to take a streamlet over.
    pub(super) fn taking_over(&self) -> Taken<'_> {
        self.begun.inc();
        Taken {
            changes: self,
            begun: Instant::now(),
            served: false,
        }
    }

    /// A streamlet that was this broker's is not any more.
    pub(super) fn given_up(&self) {
        self.given_up.inc();
    }

    /// Files went that this broker wrote as an earlier owner, with what they took on disk.
    pub(super) fn removed(&self, files: u64, bytes: u64) {
        self.removed_files.inc_by(files);
        self.removed_bytes.inc_by(bytes);
    }

    /// A hand-over that was begun has ended.
    pub(super) fn handed_over(&self, done: bool) {
        let outcome = if done { "done" } else { "failed" };
        self.hand_overs.get_or_create(&labels(outcome)).inc();
    }
}

impl Changes {
    /// Take-overs of this broker.
    pub(super) fn register_takeovers(&self, registry: &mut Registry) {
        registry.register(
            "takeover_duration_seconds",
            "Duration of a failover: from the record that names this broker, or from its start, until it serves the streamlet",
            self.takeovers.clone(),
        );
        registry.register(
            "takeovers_begun",
            "Failovers begun, of streamlets with replicas",
            self.begun.clone(),
        );
        registry.register(
            "takeovers_ended",
            "Failovers ended: served, or given up because the streamlet got another owner or was deleted",
            self.ended.clone(),
        );
    }

    /// What else changes where brokers share a store.
    pub(super) fn register_moves(&self, registry: &mut Registry) {
        registry.register(
            "streamlets_given_up",
            "Streamlets that this broker lost to another owner",
            self.given_up.clone(),
        );
        registry.register(
            "hand_overs",
            "Streamlets that this broker began to hand over to another one",
            self.hand_overs.clone(),
        );
        registry.register(
            "former_files_removed",
            "Orphaned files removed: of streamlets that other brokers own now, and named by no record",
            self.removed_files.clone(),
        );
        registry.register(
            "former_bytes_removed",
            "Bytes that orphaned files took on disk",
            self.removed_bytes.clone(),
        );
    }
}
