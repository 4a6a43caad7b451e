//! What the system says about this process.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Files, sockets among them, that the process holds open; `None` where the system does not tell.
pub fn open_files() -> Option<u64> {
    // Linux 6.2 and later keep the count as the directory's size; earlier ones say 0.
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64),
        count => Some(count),
    }
}

/// Files that it may hold open; `None` without a limit.
pub fn open_files_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Memory that it holds, in bytes, with pages of files that it has mapped.
pub fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// CPU time that it has used, by itself and in the kernel.
pub fn cpu_time() -> Duration {
    cpu_time_of(ClockId::ProcessCPUTime)
}

/// The same of this thread alone.
pub(crate) fn thread_cpu_time() -> Duration {
    cpu_time_of(ClockId::ThreadCPUTime)
}

fn cpu_time_of(clock: ClockId) -> Duration {
    let used = clock_gettime(clock);
    Duration::new(used.tv_sec.max(0) as u64, used.tv_nsec.max(0) as u32)
}

/// Memory that it may lock, in bytes; `None` without a limit, or with the right to lock any.
pub fn locked_limit() -> Option<u64> {
    if has_ipc_lock() {
        return None;
    }
    getrlimit(Resource::Memlock).current
}

/// True if it has CAP_IPC_LOCK, which lifts the limit of locked memory.
fn has_ipc_lock() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_follow_what_the_process_does() {
        let before = open_files().expect("the system tells");
        let held: Vec<_> = (0..64)
            .map(|_| fs::File::open("/dev/null").expect("opens"))
            .collect();
        // Other tests of this process open and close files too, but not as many.
        let after = open_files().expect("the system tells");
        assert!(after > before, "{before} then {after}");
        assert!(open_files_limit().is_none_or(|limit| limit >= after));
        drop(held);

        assert!(resident_bytes().expect("the system tells") > 1 << 20);
        let begun = cpu_time();
        let mut sum = 0_u64;
        while cpu_time() == begun {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_time() > begun);
    }
}
