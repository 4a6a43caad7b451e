//! What a clustered broker counts: changes of owners, what it decided as controller, and replicas that are to move.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::clock::now_ms;
use crate::metrics::{Counter, Family, Labels, gauge};

/// Counts of this process.
#[derive(Debug)]
pub(crate) struct OwnershipMetrics {
    /// Seconds from being named the owner, or from the start, until a streamlet is served.
    takeovers: Histogram,
    begun: Counter,
    ended: Family<Labels, Counter>,
    given_up: Counter,
    hand_overs: Family<Labels, Counter>,
    removed_files: Counter,
    removed_bytes: Counter,
}

impl Default for OwnershipMetrics {
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
pub(crate) struct Taken<'a> {
    metrics: &'a OwnershipMetrics,
    begun: Instant,
    served: bool,
}

impl Taken<'_> {
    /// It is served; after how long.
    pub(crate) fn served(mut self) -> Duration {
        self.served = true;
        let took = self.begun.elapsed();
        self.metrics.takeovers.observe(took.as_secs_f64());
        took
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let outcome = if self.served { "served" } else { "given_up" };
        self.metrics.ended.get_or_create(&labels(outcome)).inc();
    }
}

impl OwnershipMetrics {
    /// This broker begins to take a streamlet over.
    pub(crate) fn taking_over(&self) -> Taken<'_> {
        self.begun.inc();
        Taken {
            metrics: self,
            begun: Instant::now(),
            served: false,
        }
    }

    /// A streamlet that was this broker's is not any more.
    pub(crate) fn given_up(&self) {
        self.given_up.inc();
    }

    /// Files went that this broker wrote as an earlier owner, with what they took on disk.
    pub(crate) fn removed(&self, files: u64, bytes: u64) {
        self.removed_files.inc_by(files);
        self.removed_bytes.inc_by(bytes);
    }

    /// A hand-over that was begun has ended.
    pub(crate) fn handed_over(&self, done: bool) {
        let outcome = if done { "done" } else { "failed" };
        self.hand_overs.get_or_create(&labels(outcome)).inc();
    }
}

impl OwnershipMetrics {
    /// Take-overs of this broker.
    pub(crate) fn register_takeovers(&self, registry: &mut Registry) {
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
    pub(crate) fn register_moves(&self, registry: &mut Registry) {
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

/// Counts of this process, and of its reign if it is the controller.
#[derive(Debug)]
pub(crate) struct ControllerMetrics {
    elections: Counter,
    reassigned: Counter,
    /// Seconds from when an owner was found to be gone until others are recorded in its place.
    reassigning: Histogram,
    without_owner: AtomicU64,
    under_way: AtomicU64,
    /// When the last look ended, milliseconds since 1970; 0 while this broker is not the controller.
    looked_ms: AtomicU64,
}

impl Default for ControllerMetrics {
    fn default() -> Self {
        Self {
            elections: Counter::default(),
            reassigned: Counter::default(),
            // A millisecond to nine minutes.
            reassigning: Histogram::new(exponential_buckets(1e-3, 2.0, 20)),
            without_owner: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            looked_ms: AtomicU64::new(0),
        }
    }
}

impl ControllerMetrics {
    /// This broker was elected.
    pub(crate) fn elected(&self) {
        self.elections.inc();
    }

    /// This broker is not the controller any more.
    pub(crate) fn over(&self) {
        for gauge in [&self.without_owner, &self.under_way, &self.looked_ms] {
            gauge.store(0, Ordering::Relaxed);
        }
    }

    /// Streamlets of an owner that was found to be gone so long ago have others now.
    pub(crate) fn reassigned(&self, streamlets: u64, after: Duration) {
        self.reassigned.inc_by(streamlets);
        self.reassigning.observe(after.as_secs_f64());
    }

    /// A look has ended: so many streamlets have an owner that is not alive, and so many hand-overs have
    /// been asked for and not ended.
    pub(crate) fn looked(&self, without_owner: u64, under_way: u64) {
        self.without_owner.store(without_owner, Ordering::Relaxed);
        self.under_way.store(under_way, Ordering::Relaxed);
        self.looked_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// Everything, as a scrape sees it.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "controller_elections",
            "Times this broker was elected controller",
            self.elections.clone(),
        );
        registry.register(
            "controller_reassigned_streamlets",
            "Streamlets that this broker, as controller, assigned to another owner because theirs was gone",
            self.reassigned.clone(),
        );
        registry.register(
            "controller_reassign_duration_seconds",
            "From finding an owner gone until the new owners are recorded",
            self.reassigning.clone(),
        );
        let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
        gauge(
            registry,
            "controller_streamlets_without_owner",
            "Streamlets whose owner is not alive, as of the controller's last look; 0 at other brokers",
            value(&self.without_owner),
        );
        gauge(
            registry,
            "controller_moves_under_way",
            "Hand-overs that the controller has asked for and that have not ended; 0 at other brokers",
            value(&self.under_way),
        );
        gauge(
            registry,
            "controller_last_look_timestamp_seconds",
            "When the controller last compared live brokers and owners; 0 at other brokers",
            value(&self.looked_ms) / 1000,
        );
    }
}

/// Replicas that the last round found to move, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct WaitingMoves {
    bytes: AtomicU64,
    replicas: AtomicU64,
}

impl WaitingMoves {
    /// Bytes of copies of this broker's groups that are to move.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// These copies, and those that are one too many.
    pub(crate) fn waiting_copies(&self) -> u64 {
        self.replicas.load(Ordering::Relaxed)
    }

    /// What a round has found.
    pub(crate) fn set(&self, bytes: u64, replicas: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.replicas.store(replicas, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reign_that_is_over_has_nothing_under_way() {
        let metrics = ControllerMetrics::default();
        metrics.elected();
        metrics.looked(3, 2);
        metrics.reassigned(7, Duration::from_millis(300));
        let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
        assert_eq!(
            (value(&metrics.without_owner), value(&metrics.under_way)),
            (3, 2)
        );
        assert!(value(&metrics.looked_ms) > 0);
        metrics.over();
        assert_eq!(value(&metrics.without_owner), 0);
        assert_eq!(value(&metrics.looked_ms), 0);
        assert_eq!((metrics.elections.get(), metrics.reassigned.get()), (1, 7));
    }
}
