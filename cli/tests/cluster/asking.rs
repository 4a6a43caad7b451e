//! Client commands that are run until their answer is as it is to be.

use std::time::{Duration, Instant};

use crate::common::command::finish_within;
use crate::common::{Finished, PATIENCE, kera};

/// For what moves between brokers under load.
const LONG_PATIENCE: Duration = PATIENCE.saturating_mul(3);

/// Runs a client command at whichever of some brokers answers.
fn attempt(bootstrap: &str, words: &[&str]) -> Finished {
    let mut command = kera();
    command.args(words).env("KERA_BOOTSTRAP", bootstrap);
    finish_within(command, b"", LONG_PATIENCE)
}

/// Runs a client command until it succeeds, and until its answer is as it is to be.
#[expect(
    clippy::disallowed_methods,
    reason = "nobody tells when a broker has heard of another"
)]
pub fn until<T>(bootstrap: &str, words: &[&str], look: impl Fn(&str) -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        let finished = attempt(bootstrap, words);
        let text = finished.text();
        let found = finished.status.success().then(|| look(&text)).flatten();
        if let Some(found) = found {
            return found;
        }
        assert!(
            begin.elapsed() < LONG_PATIENCE,
            "kera {}: {text} {}",
            words.join(" "),
            finished.stderr
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}
