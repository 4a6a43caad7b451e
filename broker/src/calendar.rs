//! Points in time: milliseconds since 1970 inside, RFC 3339 in UTC for people.

/// `2026-02-03T04:05:06.789Z`; times beyond the year 9999 are shown as plain milliseconds.
pub fn rfc3339(ms: u64) -> String {
    let days = i64::try_from(ms / 86_400_000).unwrap_or(i64::MAX);
    if days > 2_932_896 {
        return format!("{ms} ms");
    }
    let (year, month, day) = civil_from_days(days);
    let rest = ms % 86_400_000;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        rest / 3_600_000,
        rest / 60_000 % 60,
        rest / 1000 % 60,
        rest % 1000
    )
}

/// Reads `2026-02-03`, `2026-02-03T04:05`, `2026-02-03T04:05:06.789Z` or with an offset such as
/// `+02:00`; without an offset it is UTC. `None` if it is no such time, or before 1970.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    };
    let mut parts = date.split('-');
    let year: i64 = fixed(parts.next()?, 4)?;
    let month: i64 = fixed(parts.next()?, 2)?;
    let day: i64 = fixed(parts.next()?, 2)?;
    if parts.next().is_some() || !(1..=12).contains(&month) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    if civil_from_days(days) != (year, month, day) {
        return None;
    }
    let (clock, offset_minutes) = split_offset(time)?;
    let ms = days
        .checked_mul(86_400_000)?
        .checked_add(clock_ms(clock)?)?
        .checked_sub(offset_minutes * 60_000)?;
    u64::try_from(ms).ok()
}

fn fixed(text: &str, width: usize) -> Option<i64> {
    (text.len() == width && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

fn split_offset(time: &str) -> Option<(&str, i64)> {
    if let Some(clock) = time.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let Some(at) = time.find(['+', '-']) else {
        return Some((time, 0));
    };
    let sign = if time.as_bytes()[at] == b'-' { -1 } else { 1 };
    let (hours, minutes) = time[at + 1..].split_once(':')?;
    let minutes = fixed(hours, 2)? * 60 + fixed(minutes, 2)?;
    Some((&time[..at], sign * minutes))
}

fn clock_ms(clock: &str) -> Option<i64> {
    if clock.is_empty() {
        return Some(0);
    }
    let mut parts = clock.split(':');
    let hours = fixed(parts.next()?, 2)?;
    let minutes = fixed(parts.next()?, 2)?;
    let seconds = parts.next().unwrap_or("00");
    if parts.next().is_some() {
        return None;
    }
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let seconds = fixed(seconds, 2)?;
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    (hours < 24 && minutes < 60 && seconds < 60)
        .then_some(((hours * 60 + minutes) * 60 + seconds) * 1000 + millis)
}

/// The proleptic Gregorian date of a day counted from 1970-01-01, after Howard Hinnant.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(
            parse_rfc3339("2023-11-14T22:13:20.123Z"),
            Some(1_700_000_000_123)
        );
        assert_eq!(
            parse_rfc3339("2023-11-14T23:13:20.123+01:00"),
            Some(1_700_000_000_123)
        );
        assert_eq!(
            parse_rfc3339("2023-11-14 22:13:20.1234"),
            Some(1_700_000_000_123)
        );
        assert_eq!(parse_rfc3339("2000-02-29"), Some(951_782_400_000));
        assert_eq!(rfc3339(u64::MAX), "18446744073709551615 ms");
    }

    #[test]
    fn every_day_reads_back() {
        for day in (0..60_000u64).step_by(7) {
            let ms = day * 86_400_000 + 3_723_004;
            assert_eq!(parse_rfc3339(&rfc3339(ms)), Some(ms));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for bad in [
            "",
            "yesterday",
            "2023-13-01",
            "2023-02-29",
            "2023-1-1",
            "2023-01-01T25:00:00Z",
            "2023-01-01T10",
            "1969-12-31",
            "2023-01-01T10:00:00.Z",
            "2023-01-01T10:00:00+1",
            "2023-01-01-01",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
    }
}
