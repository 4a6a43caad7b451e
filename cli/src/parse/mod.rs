//! Values of flags: sizes, durations, rates, positions, headers.

use std::str::FromStr;
use std::time::Duration;

use kera_broker::config::units;
use kera_protocol::v1;
use kera_rpc::SaslMechanism;

use crate::output::{now_ms, parse_rfc3339};

/// A size such as `8MiB`, in bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    units::parse_size(text)
}

/// A size that fits 32 bits.
pub(crate) fn small_size(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| format!("`{text}` is too large; use less than 4GiB"))
}

/// A size, or `none` for no limit (0).
pub(crate) fn size_or_none(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => size(text).map_err(|error| or_none(&error)),
    }
}

/// A duration such as `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    units::parse_duration(text)
}

/// A duration in milliseconds, or `none` for no limit (0).
pub(crate) fn millis_or_none(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => millis(text).map_err(|error| or_none(&error)),
    }
}

/// What is wrong with a limit that there may also be none of: people try `-1` and `NONE` for that.
fn or_none(error: &str) -> String {
    format!("{error}; none is no limit")
}

/// A part of a whole, `0` to `1`, in thousandths.
pub(crate) fn permille(text: &str) -> Result<u32, String> {
    let ratio: f64 = text.parse().unwrap_or(f64::NAN);
    match (0.0..=1.0).contains(&ratio) {
        true => Ok((ratio * 1000.0).round() as u32),
        false => Err(format!(
            "`{text}` is not a part of a whole; write 0 to 1, such as 0.5"
        )),
    }
}

/// A duration in milliseconds.
pub(crate) fn millis(text: &str) -> Result<u64, String> {
    let duration = duration(text)?;
    let millis = duration.as_millis();
    // 0 stands for no limit in most places: what is too short must not become that.
    if millis == 0 && !duration.is_zero() {
        return Err(format!("`{text}` is too short; write 1ms or more"));
    }
    u64::try_from(millis).map_err(|_| format!("`{text}` is too long"))
}

/// Records a second: `1000`, `1000/s`, `50k/s`, `1.5M`.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a rate; write records a second, such as 1000/s or 50k");
    let number = text.strip_suffix("/s").unwrap_or(text);
    let (number, factor) = match number.char_indices().next_back() {
        Some((at, 'k')) => (&number[..at], 1e3),
        Some((at, 'M')) => (&number[..at], 1e6),
        _ => (number, 1.0),
    };
    let value: f64 = number.parse().map_err(|_| wrong())?;
    let value = value * factor;
    if value.is_finite() && (1e-3..=1e9).contains(&value) {
        Ok(value)
    } else {
        Err(wrong())
    }
}

/// A count of records: `1000`, `50k`, `10M`, `1_000_000`.
pub(crate) fn records(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a number of records; write one such as 1000, 50k or 10M");
    let number = text.replace('_', "");
    let (number, factor) = match number.char_indices().next_back() {
        Some((at, 'k')) => (&number[..at], 1_000),
        Some((at, 'M')) => (&number[..at], 1_000_000),
        Some((at, 'G')) => (&number[..at], 1_000_000_000),
        _ => (number.as_str(), 1),
    };
    let value: u64 = number.parse().map_err(|_| wrong())?;
    value.checked_mul(factor).ok_or_else(wrong)
}

/// A header: `name=value`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not a header; write name=value")),
    }
}

/// One `host:port` to connect to, or several separated by commas.
pub(crate) fn addresses(text: &str) -> Result<String, String> {
    let checked: Result<Vec<String>, String> = text.split(',').map(units::check_address).collect();
    Ok(checked?.join(","))
}

/// A way to prove who one is.
pub(crate) fn mechanism(text: &str) -> Result<SaslMechanism, String> {
    let named = SaslMechanism::named(text);
    let named = named.filter(|one| SaslMechanism::WITH_PASSWORDS.contains(one));
    named.ok_or_else(|| {
        let names = SaslMechanism::WITH_PASSWORDS.map(SaslMechanism::name);
        format!(
            "`{text}` is no mechanism with a password; write one of {}, or name a file with a token (--token-file)",
            names.join(", ")
        )
    })
}

/// Where reading starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The oldest record stored.
    Earliest,
    /// Only what comes from now on.
    Latest,
    /// The first record at or after a time, milliseconds since 1970.
    Time(u64),
    /// An ordinal of each lane.
    Ordinal(u64),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => return Ok(Start::Earliest),
            "latest" => return Ok(Start::Latest),
            _ => {}
        }
        if let Some(ordinal) = text.strip_prefix("ordinal:") {
            return ordinal.parse().map(Start::Ordinal).map_err(|_| {
                format!("`{ordinal}` is not an ordinal; write one such as ordinal:1000")
            });
        }
        moment(text).map(Start::Time).map_err(|_| {
            format!(
                "`{text}` is not a place to start; write earliest, latest, ordinal:N, a time such as 2026-02-03T04:05:06Z, or an age such as 10m"
            )
        })
    }
}

/// A point in time: RFC 3339, or an age such as `10m` counted back from now.
pub(crate) fn moment(text: &str) -> Result<u64, String> {
    if let Some(ms) = parse_rfc3339(text) {
        return Ok(ms);
    }
    match duration(text) {
        Ok(age) => {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            Ok(now_ms().saturating_sub(age))
        }
        Err(_) => Err(format!(
            "`{text}` is not a time; write one such as 2026-02-03T04:05:06Z, or an age such as 7d"
        )),
    }
}

impl From<Start> for v1::StartAt {
    fn from(start: Start) -> Self {
        use v1::start_at::At;
        let at = match start {
            Start::Earliest => At::Earliest(true),
            Start::Latest => At::Latest(true),
            Start::Time(ms) => At::TimestampMs(ms),
            Start::Ordinal(ordinal) => At::Ordinal(ordinal),
        };
        v1::StartAt { at: Some(at) }
    }
}

impl From<Start> for kera_consumer::Start {
    fn from(start: Start) -> Self {
        match start {
            Start::Earliest => Self::Earliest,
            Start::Latest => Self::Latest,
            Start::Time(ms) => Self::Timestamp(ms),
            Start::Ordinal(ordinal) => Self::Ordinal(ordinal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_counts() {
        assert_eq!(rate("1000/s"), Ok(1000.0));
        assert_eq!(rate("50k/s"), Ok(50_000.0));
        assert_eq!(rate("1.5M"), Ok(1_500_000.0));
        for bad in ["", "0", "-1", "fast", "1e99", "NaN", "k", "inf"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(records("10M"), Ok(10_000_000));
        assert_eq!(records("1_000"), Ok(1000));
        assert!(records("99999999999999G").is_err());
        assert!(records("1.5k").is_err());
    }

    #[test]
    fn starts() {
        assert_eq!("earliest".parse(), Ok(Start::Earliest));
        assert_eq!("ordinal:7".parse(), Ok(Start::Ordinal(7)));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(Start::Time(1000)));
        let Ok(Start::Time(ms)) = "1h".parse::<Start>() else {
            panic!("an age is a place to start")
        };
        assert!(now_ms().abs_diff(ms + 3_600_000) < 60_000);
        for bad in ["", "ordinal:", "ordinal:-1", "noon", "5"] {
            assert!(bad.parse::<Start>().is_err(), "{bad}");
        }
    }

    #[test]
    fn headers_and_limits() {
        assert_eq!(header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(header("a="), Ok(("a".into(), String::new())));
        assert!(header("=b").is_err());
        assert!(header("ab").is_err());
        assert_eq!(size_or_none("none"), Ok(0));
        assert_eq!(millis_or_none("7d"), Ok(604_800_000));
        assert_eq!((millis_or_none("0"), millis("0s")), (Ok(0), Ok(0)));
        assert!(millis_or_none("10us").unwrap_err().contains("too short"));
        for limit in [size_or_none, millis_or_none] {
            for other in ["NONE", "-1", "infinite"] {
                let told = limit(other).unwrap_err();
                assert!(told.ends_with("; none is no limit"), "{told}");
            }
        }
        assert_eq!((millis("1s"), permille("0.25")), (Ok(1000), Ok(250)));
        assert!(millis("none").is_err() && permille("1.1").is_err() && permille("x").is_err());
        assert!(small_size("4GiB").is_err());
    }
}
