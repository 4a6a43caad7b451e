//! Drives real Kafka clients, and the broker they talk to.
//!
//! Each client sits in a program (`java/`, `go/`, `python/`) or in this process (librdkafka) and does
//! what it is asked: one JSON request, one JSON answer. So each scenario is written once, and runs
//! with every client. What a client cannot do is listed in [`Kind::can`]; an answer "unsupported" to
//! anything else fails the test.

// Each test program uses a part of it.
#![allow(dead_code, unused_imports)]

pub mod agent;
pub mod apache;
pub mod broker;
pub mod copying;
pub mod kcat;
pub mod kind;
pub mod librdkafka;
pub mod logins;
pub mod records;
pub mod session;
pub mod tools;

use std::cell::Cell;
use std::time::{Duration, Instant};

pub use broker::{Broker, Setup};
pub use kera_testkit::{command, home, kera, machine, ports, reasons};
pub use kind::{Can, Kind};
pub use records::{NewRecord, Place, Read, murmur2_partition};
pub use session::Session;

/// Whatever takes longer has failed. Nothing is expected to take anywhere near as long.
pub const PATIENCE: Duration = Duration::from_secs(90);

thread_local! {
    static PATIENCE_HERE: Cell<Duration> = const { Cell::new(PATIENCE) };
}

/// Calls `play` with another patience, for what is expected to fail.
pub fn with_patience<T>(patience: Duration, play: impl FnOnce() -> T) -> T {
    PATIENCE_HERE.set(patience);
    let result = play();
    PATIENCE_HERE.set(PATIENCE);
    result
}

/// Calls `look` until it gives something; panics with `what` when that takes too long.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    let patience = PATIENCE_HERE.get();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            begin.elapsed() < patience,
            "{what}: not within {patience:?}"
        );
        pause();
    }
}

/// Between two looks at something that does not tell by itself.
#[expect(clippy::disallowed_methods, reason = "the pause of a poll")]
pub fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
