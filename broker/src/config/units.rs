//! Sizes, durations and addresses as people write them.

use std::time::Duration;

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;
/// One tebibyte.
pub const TIB: u64 = 1 << 40;

const SIZES: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KiB", KIB),
    ("MiB", MIB),
    ("GiB", GIB),
    ("TiB", TIB),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const TIMES: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// Splits `8MiB` into its digits and its unit.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Multiplies a decimal number by a unit exactly; `None` if it is no number, does not come out as
/// a whole one, or does not fit.
fn scale(digits: &str, unit: u64) -> Option<u64> {
    let digits = digits.replace('_', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    if whole.is_empty() || (digits.contains('.') && fraction.is_empty()) || fraction.len() > 12 {
        return None;
    }
    let mut value = u128::from(whole.parse::<u64>().ok()?) * u128::from(unit);
    if !fraction.is_empty() {
        let divisor = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit);
        if part % divisor != 0 {
            return None;
        }
        value += part / divisor;
    }
    u64::try_from(value).ok()
}

/// Reads a size: `8MiB`, `10GiB`, `512KiB`, `1.5GiB`, `1500kB`, or a plain number of bytes.
///
/// # Errors
/// Says what is wrong with the text and what to write instead.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = split(text);
    let Some((_, factor)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        let hint = SIZES
            .iter()
            .find(|(name, _)| !name.is_empty() && name.eq_ignore_ascii_case(unit))
            .map(|(name, _)| format!(" (did you mean `{digits}{name}`?)"))
            .or_else(|| match unit.to_ascii_lowercase().as_str() {
                "k" => Some(format!(" (did you mean `{digits}KiB`?)")),
                "m" => Some(format!(" (did you mean `{digits}MiB`?)")),
                "g" => Some(format!(" (did you mean `{digits}GiB`?)")),
                "t" => Some(format!(" (did you mean `{digits}TiB`?)")),
                _ => None,
            })
            .unwrap_or_default();
        return Err(format!(
            "`{text}` is not a size: unknown unit `{unit}`{hint}; use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB"
        ));
    };
    scale(digits, *factor).ok_or_else(|| {
        format!("`{text}` is not a size; write a number and a unit, such as 8MiB or 10GiB")
    })
}

/// Writes a size with the largest binary unit that keeps it a whole number.
pub fn show_size(bytes: u64) -> String {
    for (name, unit) in [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{bytes}B")
}

/// Reads a duration: `5ms`, `10s`, `1h`, `7d`, `1h30m`, or `0`.
///
/// # Errors
/// Says what is wrong with the text and what to write instead; a number without a unit is one.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!("`{text}` is not a duration; write a number and a unit, such as 5ms, 10s, 1h or 7d")
    };
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = 0u64;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (digits, after) = split(rest);
        let end = after
            .find(|c: char| !c.is_alphabetic())
            .unwrap_or(after.len());
        let unit = &after[..end];
        if digits.is_empty() {
            return Err(wrong());
        }
        if unit.is_empty() {
            return Err(format!(
                "`{text}` has no unit; write {digits}ms, {digits}s, {digits}m, {digits}h or {digits}d"
            ));
        }
        let Some((_, factor)) = TIMES.iter().find(|(name, _)| *name == unit) else {
            return Err(format!(
                "`{text}` is not a duration: unknown unit `{unit}`; use us, ms, s, m, h or d"
            ));
        };
        let part = scale(digits, *factor).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = after[end..].trim_start();
    }
    Ok(Duration::from_micros(total))
}

/// Writes a duration with the largest unit that keeps it a whole number; below a microsecond is cut.
pub fn show_duration(value: Duration) -> String {
    let micros = value.as_micros();
    if micros == 0 {
        return "0".into();
    }
    for (name, unit) in TIMES.iter().rev() {
        let unit = u128::from(*unit);
        if micros >= unit && micros.is_multiple_of(unit) {
            return format!("{}{name}", micros / unit);
        }
    }
    format!("{micros}us")
}

/// Checks that the text is `host:port`; an IPv6 host stands in brackets.
///
/// # Errors
/// Says what is missing.
pub fn check_address(text: &str) -> Result<String, String> {
    let text = text.trim();
    let wrong = || format!("`{text}` is not an address; write host:port, such as 127.0.0.1:7600");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(wrong)?,
        None if host.contains(':') => {
            return Err(format!(
                "`{text}` is not an address; write an IPv6 host in brackets, such as [::1]:7600"
            ));
        }
        None => host,
    };
    if bare.is_empty() || bare.contains(|c: char| c.is_whitespace() || c == '/') {
        return Err(wrong());
    }
    port.parse::<u16>()
        .map_err(|_| format!("`{port}` in `{text}` is not a port; use 0 to 65535"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("8MiB"), Ok(8 * MIB));
        assert_eq!(parse_size("10 GiB"), Ok(10 * GIB));
        assert_eq!(parse_size("1.5GiB"), Ok(GIB + GIB / 2));
        assert_eq!(parse_size("1500kB"), Ok(1_500_000));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("0"), Ok(0));
        for bad in [
            "", "MiB", "8mib", "8 apples", "-1MiB", "1.MiB", ".5MiB", "0.3B",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(parse_size("18446744073709551616").is_err());
        assert!(parse_size("99999999999TiB").is_err());
        let error = parse_size("8mib").unwrap_err();
        assert!(error.contains("did you mean `8MiB`?"), "{error}");
        assert!(
            parse_size("8M")
                .unwrap_err()
                .contains("did you mean `8MiB`?")
                || parse_size("8M").unwrap_err().contains("8MB")
        );
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for bad in ["", "s", "5", "5 parsecs", "-5s", "1h30", "99999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(
            parse_duration("5").unwrap_err(),
            "`5` has no unit; write 5ms, 5s, 5m, 5h or 5d"
        );
    }

    #[test]
    fn what_is_shown_reads_back() {
        for bytes in [0, 1, 1023, 1024, 1500, 8 * MIB, 3 * GIB + 1, u64::MAX] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
        for micros in [0, 1, 999, 1000, 90_000_000, 86_400_000_000, 86_400_000_001] {
            let value = Duration::from_micros(micros);
            assert_eq!(parse_duration(&show_duration(value)), Ok(value));
        }
    }

    #[test]
    fn addresses() {
        for good in ["127.0.0.1:0", "localhost:7600", "[::1]:7600", "0.0.0.0:1"] {
            assert_eq!(check_address(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "7600",
            ":7600",
            "host",
            "host:",
            "host:99999",
            "::1:7600",
            "a b:1",
            "[::1:7600",
        ] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
