//! The broker's clock: milliseconds since 1970 that never go back within a process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static LATEST: AtomicU64 = AtomicU64::new(0);

/// Now. When the machine's clock jumps back, the latest time seen is answered until it has caught
/// up: timestamps and timeouts must not go back.
pub fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64);
    LATEST.fetch_max(now, Ordering::Relaxed).max(now)
}
