//! Numbers for people.

use std::time::Duration;

/// A count with thin groups: `1,234,567`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A lag; with a `+` where that of so many lanes is not known, and `-` where nothing is.
pub(crate) fn lag(records: u64, unknown_lanes: u64) -> String {
    match (records, unknown_lanes) {
        (_, 0) => count(records),
        (0, _) => "-".to_owned(),
        _ => format!("{}+", count(records)),
    }
}

/// Bytes rounded to three digits or so: `1.5 GiB`.
pub(crate) fn rounded_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 10.0 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 100.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// How many a second, rounded; 0 when no time has passed.
pub(crate) fn per_second(value: u64, time: Duration) -> u64 {
    let seconds = time.as_secs_f64();
    if seconds <= 0.0 {
        0
    } else {
        (value as f64 / seconds).round() as u64
    }
}

/// A length of time in the unit that suits it: `850 us`, `12.3 ms`, `4.56 s`, `3m 20s`.
pub(crate) fn short_time(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..10_000 => format!("{:.2} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        1_000_000..120_000_000 => format!("{:.2} s", time.as_secs_f64()),
        _ => {
            let seconds = time.as_secs();
            match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
                (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
                (0, hours, minutes) => format!("{hours}h {minutes}m"),
                (days, hours, _) => format!("{days}d {hours}h"),
            }
        }
    }
}

/// How many milliseconds ago something was, or `otherwise` if it never was.
pub(crate) fn ago(ms: Option<u64>, otherwise: &str) -> String {
    ms.map_or_else(
        || otherwise.into(),
        |ms| format!("{} ago", short_time(Duration::from_millis(ms))),
    )
}

/// `1 rule`, `2 rules`.
pub(crate) fn plural(number: u64, one: &str) -> String {
    format!(
        "{} {one}{}",
        count(number),
        if number == 1 { "" } else { "s" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!([lag(0, 0), lag(1200, 0)], ["0", "1,200"]);
        assert_eq!([lag(0, 3), lag(1200, 1)], ["-", "1,200+"]);
        assert_eq!(rounded_bytes(1023), "1023 B");
        assert_eq!(rounded_bytes(1536), "1.50 KiB");
        assert_eq!(rounded_bytes(300 << 20), "300 MiB");
        assert_eq!(rounded_bytes(u64::MAX), "16384 PiB");
        assert_eq!(per_second(10, Duration::from_millis(500)), 20);
        assert_eq!(per_second(10, Duration::ZERO), 0);
        assert_eq!(short_time(Duration::from_micros(850)), "850 us");
        assert_eq!(short_time(Duration::from_micros(12_300)), "12.3 ms");
        assert_eq!(short_time(Duration::from_secs(200)), "3m 20s");
        assert_eq!(short_time(Duration::from_secs(90_000)), "1d 1h");
    }
}
