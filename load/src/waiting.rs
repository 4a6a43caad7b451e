//! How long the clients of a load wait, and for what.

use std::thread;
use std::time::{Duration, Instant};

/// A load in which nothing arrives or is acknowledged for this long has failed.
pub const SILENCE: Duration = Duration::from_secs(30);
/// How long a consumer waits for records before it looks around.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Whoever is ahead of the rate waits at least this long and then sends all that is due: a shorter
/// wait would take a core away from the broker. What it adds counts as latency.
pub const LEAST_WAIT: Duration = Duration::from_micros(200);

/// Waits until records are due; see [`LEAST_WAIT`].
pub fn wait_until(due: Instant) {
    while let Some(left) = due.checked_duration_since(Instant::now()) {
        if left.is_zero() {
            return;
        }
        // May come back early.
        thread::park_timeout(left.max(LEAST_WAIT));
    }
}
