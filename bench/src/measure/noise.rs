//! How much of the machine others used during a run.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use kera_load::process::{Stat, ticks};

/// The parent of the kernel's own threads.
const KERNEL_THREADS: u32 = 2;

/// CPU time of the machine and of those that are known, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    at: Instant,
    /// All processors together, without idle time.
    busy: Duration,
    /// The processes of the comparison.
    ours: BTreeMap<u32, u64>,
    /// The kernel's threads: they write back what the brokers wrote.
    kernel: BTreeMap<u32, u64>,
}

impl Snapshot {
    /// Looks at the machine; `ours` are the processes that belong to the comparison.
    pub(crate) fn take(ours: &[u32]) -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let busy = ticks(busy_ticks(&stat).unwrap_or(0));
        let mut snapshot = Self {
            at: Instant::now(),
            busy,
            ours: BTreeMap::new(),
            kernel: BTreeMap::new(),
        };
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|s| s.parse().ok()) else {
                continue;
            };
            let text = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let Some(stat) = Stat::parse(&text) else {
                continue;
            };
            if ours.contains(&pid) {
                snapshot.ours.insert(pid, stat.ticks);
            } else if stat.parent == KERNEL_THREADS {
                snapshot.kernel.insert(pid, stat.ticks);
            }
        }
        snapshot
    }

    /// The share of all cores that neither the comparison nor the kernel's threads used since
    /// `earlier`; time that the machine's host took away counts too.
    pub(crate) fn others_since(&self, earlier: &Self) -> f64 {
        let elapsed = self.at.duration_since(earlier.at).as_secs_f64();
        let known = grown(&self.ours, &earlier.ours) + grown(&self.kernel, &earlier.kernel);
        let others = self
            .busy
            .saturating_sub(earlier.busy)
            .saturating_sub(ticks(known));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        others.as_secs_f64() / (elapsed.max(1e-3) * cores as f64)
    }
}

fn grown(now: &BTreeMap<u32, u64>, before: &BTreeMap<u32, u64>) -> u64 {
    now.iter()
        .map(|(pid, ticks)| ticks.saturating_sub(before.get(pid).copied().unwrap_or(0)))
        .sum()
}

/// user, nice, system, irq, softirq and steal of the line of all processors; guests are in user.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let [user, nice, system, _idle, _wait, irq, soft, steal, ..] = fields[..] else {
        return None;
    };
    Some(user + nice + system + irq + soft + steal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy() {
        let stat = "cpu  10 2 30 1000 500 4 5 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_ticks(stat), Some(57));
        assert_eq!(busy_ticks("cpu 1 2 3"), None);
    }

    #[test]
    fn the_known_are_taken_off() {
        let per_second = rustix::param::clock_ticks_per_second();
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let at = Instant::now();
        let earlier = Snapshot {
            at,
            busy: Duration::from_secs(100),
            ours: BTreeMap::from([(1, 10)]),
            kernel: BTreeMap::from([(3, 0)]),
        };
        let later = Snapshot {
            at: at + Duration::from_secs(10),
            busy: Duration::from_secs(100 + 10 * cores),
            // One that began in between counts from nothing.
            ours: BTreeMap::from([(1, 10 + 4 * cores * per_second), (2, cores * per_second)]),
            kernel: BTreeMap::from([(3, cores * per_second)]),
        };
        let others = later.others_since(&earlier);
        assert!((others - 0.4).abs() < 1e-6, "{others}");
        assert!(!Snapshot::take(&[std::process::id()]).ours.is_empty());
    }
}
