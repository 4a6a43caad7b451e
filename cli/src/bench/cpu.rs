//! CPU time of this process and of a broker on the same machine.

use std::time::Duration;

/// CPU time this process has used so far, user and system.
pub(super) fn own() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// CPU time another process of this machine has used so far, to the system's clock tick (10 ms
/// as a rule); `None` if there is no such process here.
pub(super) fn of_process(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = parse_stat(&stat)?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// `utime + stime`: the 14th and 15th field. The second is the program's name in parentheses,
/// which may hold anything, even parentheses.
fn parse_stat(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_do_not_shift_fields() {
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 5 0 100";
        assert_eq!(parse_stat(stat), Some(200));
        assert_eq!(parse_stat("77 (x"), None);
        assert_eq!(parse_stat("77 (x) S 1"), None);
    }

    #[test]
    fn this_process_is_found_both_ways() {
        let before = own();
        let mut x = 0u64;
        while own() - before < Duration::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(1));
        }
        let seen = of_process(std::process::id()).unwrap();
        assert!(own() + Duration::from_millis(20) >= seen);
        assert_eq!(of_process(u32::MAX), None);
    }
}
