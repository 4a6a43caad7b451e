//! What to do where the machine lacks something.

use std::fs;
use std::io::Write;

/// Says loudly that a test did not run here; `make test` counts and lists it.
pub fn skip(name: &str, reason: &str) {
    eprintln!("SKIPPED: {name}: {reason}");
    if let Some(path) = std::env::var_os("KERA_SKIP_FILE") {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("the list of skipped tests can be written");
        writeln!(file, "SKIPPED: {name}: {}", reason.trim())
            .expect("the list of skipped tests can be written");
    }
}
