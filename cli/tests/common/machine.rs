//! What the machine says about a process, and what to do where it does not.

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

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Resident now.
    pub now: u64,
    /// The most that was ever resident.
    pub peak: u64,
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
        })
    }
}

/// `bytes` for people.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
