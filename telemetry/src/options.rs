//! Where the collector is, and what it is told.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A kind of telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// What `/metrics` tells.
    Metrics,
    /// Lines of the log.
    Logs,
    /// Spans.
    Traces,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Metrics, Self::Logs, Self::Traces];

    /// As settings and messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Logs => "logs",
            Self::Traces => "traces",
        }
    }
}

/// Where the collector is, and what it is told. Not shown whole anywhere: the headers may hold secrets.
#[derive(Clone)]
pub struct Options {
    /// Its address: `http://host:port`, or `https://host:port` for TLS.
    pub endpoint: String,
    /// For TLS: the certificates of the authorities that may have signed the collector's, a file in PEM.
    pub ca: Option<PathBuf>,
    /// Headers of each call, such as an API key.
    pub headers: Vec<(String, String)>,
    /// What the collector is told.
    pub signals: Vec<Signal>,
    /// How often it is told metrics.
    pub interval: Duration,
    /// Traces that may begin in a second; spans of more are not made.
    pub traces_per_second: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:4317".to_owned(),
            ca: None,
            headers: Vec::new(),
            signals: Signal::ALL.to_vec(),
            interval: Duration::from_secs(15),
            traces_per_second: 100,
        }
    }
}

/// A line of a file of headers that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongHeaders {
    /// Which line, from 1.
    pub line: usize,
}

impl fmt::Display for WrongHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {} is no header; write `name: value`, of printable ASCII, the name in lower case",
            self.line
        )
    }
}

impl std::error::Error for WrongHeaders {}

/// The headers of a file: on each line a name, a colon and a value. Empty lines and those that begin with `#` are
/// passed over.
///
/// # Errors
/// The first line that is neither. Its text is not told: it may be a secret.
///
/// ```
/// let headers = kera_telemetry::headers_of("# of the team\napi-key: abc\n");
/// assert_eq!(headers, Ok(vec![("api-key".to_owned(), "abc".to_owned())]));
/// assert!(kera_telemetry::headers_of("abc").is_err());
/// ```
pub fn headers_of(text: &str) -> Result<Vec<(String, String)>, WrongHeaders> {
    let lines = text.lines().enumerate();
    let told = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    told.map(|(at, line)| {
        let header = line
            .split_once(':')
            .map(|(name, value)| (name.trim(), value.trim()));
        let is_name = |name: &str| {
            let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
            !name.is_empty() && name.bytes().all(fits) && !name.ends_with("-bin")
        };
        let is_value = |value: &str| value.bytes().all(|b| (b' '..=b'~').contains(&b));
        match header {
            Some((name, value)) if is_name(name) && is_value(value) => {
                Ok((name.to_owned(), value.to_owned()))
            }
            _ => Err(WrongHeaders { line: at + 1 }),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_header_is_named_by_its_number_alone() {
        assert_eq!(headers_of(""), Ok(Vec::new()));
        let two = headers_of("\n# none\na: b:c\n d-2 : \n");
        let as_written = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(two, Ok(vec![as_written("a", "b:c"), as_written("d-2", "")]));
        for (text, line) in [
            ("a: b\nsecret", 2),
            (": b", 1),
            ("A: b", 1),
            ("a-bin: b", 1),
            ("a: \u{7f}", 1),
        ] {
            assert_eq!(headers_of(text), Err(WrongHeaders { line }), "{text:?}");
        }
        let told = WrongHeaders { line: 2 }.to_string();
        assert!(told.starts_with("line 2 is no header"), "{told}");
    }
}
