//! Whether the broker that a check asks has panicked.

use std::sync::atomic::{AtomicBool, Ordering};

/// The name of the broker's threads.
pub const THREADS: &str = "fuzzed-broker";

static SEEN: AtomicBool = AtomicBool::new(false);

/// From now on a panic of one of the broker's threads is remembered.
pub fn watch() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() == Some(THREADS) {
            SEEN.store(true, Ordering::SeqCst);
        }
        before(panic);
    }));
}

/// Fails if one has panicked.
pub fn assert_none() {
    assert!(!SEEN.load(Ordering::SeqCst), "the broker panicked");
}
