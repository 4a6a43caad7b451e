//! The machine, as its kernel describes it.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What the figures were measured on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Machine {
    /// Cores that the harness and all that it starts share.
    pub cores: usize,
    /// Such as "Intel(R) Xeon(R) Processor".
    pub processor: String,
    pub memory_bytes: u64,
    /// Such as "Linux 6.18.5".
    pub kernel: String,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let memory = value_of(&read("/proc/meminfo"), "MemTotal");
        let kib = memory.split(' ').next().and_then(|kib| kib.parse().ok());
        let release = read("/proc/sys/kernel/osrelease");
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: value_of(&read("/proc/cpuinfo"), "model name"),
            memory_bytes: kib.unwrap_or(0u64) << 10,
            kernel: format!("Linux {}", release.trim()),
        }
    }
}

/// The first line that `program` writes, to either output; `None` if it cannot be run.
pub(crate) fn first_line_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    let text = String::from_utf8_lossy(&text);
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Names the commit where git is not: in a virtual machine.
const COMMIT: &str = "KERA_BENCH_COMMIT";

/// The commit that was built, as far as git knows it.
pub(crate) fn commit() -> Option<String> {
    if let Ok(told) = std::env::var(COMMIT) {
        return Some(told);
    }
    let root = env!("CARGO_MANIFEST_DIR");
    let commit = first_line_of("git", &["-C", root, "rev-parse", "--short", "HEAD"])?;
    let changed = first_line_of("git", &["-C", root, "status", "--porcelain"]).is_some();
    let changed = if changed { " with changes" } else { "" };
    Some(format!("{commit}{changed}"))
}

/// Now, such as `2026-01-31 12:00`.
pub(crate) fn utc_now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    utc(since.map_or(0, |time| time.as_secs()))
}

/// Seconds since 1970 as a date of the Gregorian calendar.
fn utc(seconds: u64) -> String {
    let (mut day, minute) = (seconds / 86_400, seconds % 86_400 / 60);
    let mut year = 1970;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let (hour, minute, day) = (minute / 60, minute % 60, day + 1);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// The value of the first line `name : value`.
fn value_of(text: &str, name: &str) -> String {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| found.trim() == name)
        .map_or_else(
            || "unknown".to_owned(),
            |(_, value)| value.trim().to_owned(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00");
        assert_eq!(utc(951_825_599), "2000-02-29 11:59");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59");
    }

    #[test]
    fn the_kernel_is_read() {
        let text = "processor : 0\nmodel name\t: A CPU: fast\n";
        assert_eq!(value_of(text, "model name"), "A CPU: fast");
        assert_eq!(value_of(text, "flags"), "unknown");
        let machine = Machine::look();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20);
        assert!(machine.kernel.starts_with("Linux "));
    }
}
