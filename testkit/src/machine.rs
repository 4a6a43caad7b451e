//! What the machine says about a process, and what to do where it does not.

use std::fs;
use std::io::Write;

/// Says loudly that a test did not run here; `make test` counts and lists it.
pub fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED: {name}: {}", reason.trim());
    note("KERA_SKIP_FILE", &line);
}

/// The same of the test whose thread this is.
pub fn skip_this(reason: &str) {
    skip(std::thread::current().name().unwrap_or("a test"), reason);
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

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Resident now.
    pub now: u64,
    /// The most that was ever resident.
    pub peak: u64,
    /// Resident now without the pages of files, which are mostly those of the program itself.
    pub own: u64,
}

impl Memory {
    /// Of the process `pid`; none where the system does not tell.
    pub fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib << 10)
        };
        Some(Self {
            now: field("VmRSS:")?,
            peak: field("VmHWM:")?,
            own: field("RssAnon:")? + field("RssShmem:")?,
        })
    }
}

/// `bytes` for people.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
