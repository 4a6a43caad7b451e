//! What the controller counts: when it was elected, whose streamlets it gave to others and how fast, and
//! what it has under way. A broker that is not the controller has nothing under way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::clock::now_ms;
use crate::metrics::{Counter, gauge};

/// Counts of this process, and of its reign if it is the controller.
#[derive(Debug)]
pub(crate) struct Ruling {
    elections: Counter,
    reassigned: Counter,
    /// Seconds from when an owner was found to be gone until others are recorded in its place.
    reassigning: Histogram,
    without_owner: AtomicU64,
    under_way: AtomicU64,
    /// When the last look ended, milliseconds since 1970; 0 while this broker is not the controller.
    looked_ms: AtomicU64,
}

impl Default for Ruling {
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

impl Ruling {
    /// This broker was elected.
    pub(super) fn elected(&self) {
        self.elections.inc();
    }

    /// This broker is not the controller any more.
    pub(super) fn over(&self) {
        for gauge in [&self.without_owner, &self.under_way, &self.looked_ms] {
            gauge.store(0, Ordering::Relaxed);
        }
    }

    /// Streamlets of an owner that was found to be gone so long ago have others now.
    pub(super) fn reassigned(&self, streamlets: u64, after: Duration) {
        self.reassigned.inc_by(streamlets);
        self.reassigning.observe(after.as_secs_f64());
    }

    /// A look has ended: so many streamlets have an owner that is not alive, and so many hand-overs have
    /// been asked for and not ended.
    pub(super) fn looked(&self, without_owner: u64, under_way: u64) {
        self.without_owner.store(without_owner, Ordering::Relaxed);
        self.under_way.store(under_way, Ordering::Relaxed);
        self.looked_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// Everything, as a scrape sees it.
    pub(super) fn register(&self, registry: &mut Registry) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reign_that_is_over_has_nothing_under_way() {
        let ruling = Ruling::default();
        ruling.elected();
        ruling.looked(3, 2);
        ruling.reassigned(7, Duration::from_millis(300));
        let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
        assert_eq!(
            (value(&ruling.without_owner), value(&ruling.under_way)),
            (3, 2)
        );
        assert!(value(&ruling.looked_ms) > 0);
        ruling.over();
        assert_eq!(value(&ruling.without_owner), 0);
        assert_eq!(value(&ruling.looked_ms), 0);
        assert_eq!((ruling.elections.get(), ruling.reassigned.get()), (1, 7));
    }
}
