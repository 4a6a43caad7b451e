//! One process, as `/proc` shows it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time, to the system's clock tick (10 ms as a rule).
    pub cpu: Duration,
    /// Bytes that it had written to disks, or that wait in the page cache for it.
    pub written: u64,
}

/// User and system time that `pid` has used so far, to the system's clock tick (10 ms as a rule).
///
/// # Errors
/// If there is no such process here.
pub fn cpu_of(pid: u32) -> Result<Duration> {
    let stat = Stat::parse(&read(pid, "stat")?).context("a line of /proc is odd")?;
    Ok(ticks(stat.ticks))
}

fn read(pid: u32, what: &str) -> Result<String> {
    fs::read_to_string(format!("/proc/{pid}/{what}"))
        .with_context(|| format!("cannot read /proc/{pid}/{what}"))
}

impl Usage {
    /// What `pid` has used so far.
    ///
    /// # Errors
    /// If there is no such process here.
    pub fn of(pid: u32) -> Result<Self> {
        Ok(Self {
            cpu: cpu_of(pid)?,
            written: number_after(&read(pid, "io")?, "write_bytes:").unwrap_or(0),
        })
    }

    /// Together with another's.
    pub fn with(&self, other: &Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            written: self.written + other.written,
        }
    }

    /// What was used since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            written: self.written.saturating_sub(earlier.written),
        }
    }
}

/// Resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Memory {
    /// Now.
    pub resident: u64,
    /// The highest since the process began, or since [`forget_peak`].
    pub peak: u64,
}

impl Memory {
    /// Of the process `pid`.
    ///
    /// # Errors
    /// If there is no such process here.
    pub fn of(pid: u32) -> Result<Self> {
        let text = read(pid, "status")?;
        let kib = |name| number_after(&text, name).unwrap_or(0) << 10;
        Ok(Self {
            resident: kib("VmRSS:"),
            peak: kib("VmHWM:"),
        })
    }

    /// Of several processes together; the sum of their peaks, which may have been at different times.
    ///
    /// # Errors
    /// If one of them is not here.
    pub fn of_all(pids: &[u32]) -> Result<Self> {
        pids.iter()
            .try_fold(Self::default(), |sum, &pid| Ok(sum.with(Self::of(pid)?)))
    }

    /// With another's.
    pub fn with(self, other: Self) -> Self {
        Self {
            resident: self.resident + other.resident,
            peak: self.peak + other.peak,
        }
    }
}

/// Has the kernel count the highest resident memory of `pid` anew. Where that is not allowed, the
/// peak stays that of the whole life.
pub fn forget_peak(pid: u32) {
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// True if there is no such process, or only what is left of it until its parent looks.
pub fn ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    Stat::parse(&stat).is_none_or(|stat| stat.state == 'Z')
}

/// Clock ticks as time.
pub fn ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The fields of `/proc/PID/stat` that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `Z` for one that has ended and was not waited for.
    pub state: char,
    /// The parent process.
    pub parent: u32,
    /// User and system time in clock ticks.
    pub ticks: u64,
}

impl Stat {
    /// The second field is the program's name in parentheses, which may hold anything, even
    /// parentheses.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let mut times = fields.skip(9);
        let user: u64 = times.next()?.parse().ok()?;
        let system: u64 = times.next()?.parse().ok()?;
        Some(Self {
            state,
            parent,
            ticks: user + system,
        })
    }
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_do_not_shift_fields() {
        let stat = "77 (a) b (c) S 12 77 77 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 5 0 100";
        let expected = Stat {
            state: 'S',
            parent: 12,
            ticks: 200,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse("77 (x"), None);
        assert_eq!(Stat::parse("77 (x) S 1"), None);
    }

    #[test]
    fn numbers_are_found_by_name() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n";
        assert_eq!(number_after(status, "VmRSS:"), Some(1024));
        assert_eq!(number_after(status, "VmSwap:"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let me = std::process::id();
        assert!(Memory::of(me).unwrap().resident > 1 << 20);
        assert!(!ended(me) && ended(u32::MAX));
        assert!(Usage::of(me).is_ok() && Usage::of(u32::MAX).is_err());
        forget_peak(me);
        let memory = Memory::of(me).unwrap();
        assert!(memory.peak >= memory.resident);
    }
}
