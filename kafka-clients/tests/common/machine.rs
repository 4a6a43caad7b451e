//! What to do where the machine lacks something.

use std::fs;
use std::io::Write;

/// Says loudly that a test did not run here; `make test` counts and lists it.
pub fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED: {name}: {}", reason.trim());
    note("KERA_SKIP_FILE", &line);
}

/// Says, here and in the summary, that a test failed and is tried once more.
pub fn tried_twice(name: &str) {
    let line = format!("TRIED TWICE: {name}: the first try failed, see the log");
    note("KERA_RETRY_FILE", &line);
}

/// Adds a line to the list that the variable names, if it is set.
fn note(list: &str, line: &str) {
    eprintln!("{line}");
    if let Some(path) = std::env::var_os(list) {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("the list for the summary can be written");
        writeln!(file, "{line}").expect("the list for the summary can be written");
    }
}
