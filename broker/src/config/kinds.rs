//! How each kind of value is written: parsing, showing, limits.
//!
//! A kind turns text from a file, the environment or a flag into a plain value, and back into text
//! that parses to the same value.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::units;
use crate::log_levels::LEVELS;

/// The smallest and largest value a key takes, in the kind's base unit (bytes, microseconds, or a
/// plain count). Kinds without an order ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest value allowed.
    pub min: u64,
    /// Largest value allowed.
    pub max: u64,
}

impl Limits {
    /// No limits: for kinds without an order.
    pub const NONE: Limits = Limits {
        min: 0,
        max: u64::MAX,
    };

    fn check(&self, value: u64, show: impl Fn(u64) -> String) -> Result<u64, String> {
        if value < self.min || value > self.max {
            return Err(format!(
                "{} is out of range; use {} to {}",
                show(value),
                show(self.min),
                show(self.max)
            ));
        }
        Ok(value)
    }
}

/// A way to write values of type [`Kind::Value`].
pub(super) trait Kind {
    /// The plain value after parsing.
    type Value;
    /// What to write, for people, with an example.
    const FORM: &'static str;
    /// Reads a value; the error says what is wrong with the text and what to write instead.
    fn parse(text: &str, limits: &Limits) -> Result<Self::Value, String>;
    /// Writes a value so that [`Kind::parse`] reads it back.
    fn show(value: &Self::Value) -> String;
    /// The limits as the documentation shows them; empty when there are none.
    fn show_limits(_limits: &Limits) -> String {
        String::new()
    }
    /// True when TOML writes the value without quotes.
    const BARE: bool = false;
    /// True when a file may also hold a list of texts.
    const LIST: bool = false;
}

/// A number of bytes: `u64`.
pub(super) enum Size {}

impl Kind for Size {
    type Value = u64;
    const FORM: &'static str = "size, such as `8MiB`";

    fn parse(text: &str, limits: &Limits) -> Result<u64, String> {
        limits.check(units::parse_size(text)?, units::show_size)
    }

    fn show(value: &u64) -> String {
        units::show_size(*value)
    }

    fn show_limits(limits: &Limits) -> String {
        format!(
            "{} to {}",
            units::show_size(limits.min),
            units::show_size(limits.max)
        )
    }
}

/// A length of time: [`Duration`]; limits are in microseconds.
pub(super) enum Time {}

impl Kind for Time {
    type Value = Duration;
    const FORM: &'static str = "duration, such as `500ms`, `10s`, `7d`";

    fn parse(text: &str, limits: &Limits) -> Result<Duration, String> {
        let value = units::parse_duration(text)?;
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        limits.check(micros, |us| units::show_duration(Duration::from_micros(us)))?;
        Ok(value)
    }

    fn show(value: &Duration) -> String {
        units::show_duration(*value)
    }

    fn show_limits(limits: &Limits) -> String {
        format!(
            "{} to {}",
            units::show_duration(Duration::from_micros(limits.min)),
            units::show_duration(Duration::from_micros(limits.max))
        )
    }
}

/// A plain count: `u32`.
pub(super) enum Count {}

impl Kind for Count {
    type Value = u32;
    const FORM: &'static str = "number";
    const BARE: bool = true;

    fn parse(text: &str, limits: &Limits) -> Result<u32, String> {
        let value: u64 =
            text.trim().replace('_', "").parse().map_err(|_| {
                format!("`{text}` is not a number; write a whole number such as 4096")
            })?;
        let value = limits.check(value, |n| n.to_string())?;
        u32::try_from(value).map_err(|_| format!("{value} is too large"))
    }

    fn show(value: &u32) -> String {
        value.to_string()
    }

    fn show_limits(limits: &Limits) -> String {
        format!("{} to {}", limits.min, limits.max)
    }
}

/// Yes or no: `bool`.
pub(super) enum Switch {}

impl Kind for Switch {
    type Value = bool;
    const FORM: &'static str = "`true` or `false`";
    const BARE: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<bool, String> {
        match text.trim() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("`{other}` is neither true nor false")),
        }
    }

    fn show(value: &bool) -> String {
        value.to_string()
    }
}

/// An address to listen on: `String`, checked to be `host:port`.
pub(super) enum Address {}

impl Kind for Address {
    type Value = String;
    const FORM: &'static str = "`host:port`; port 0 lets the system choose";

    fn parse(text: &str, _: &Limits) -> Result<String, String> {
        units::check_address(text)
    }

    fn show(value: &String) -> String {
        value.clone()
    }
}

/// An address that may be turned off: `Option<String>`.
pub(super) enum AddressOrOff {}

impl Kind for AddressOrOff {
    type Value = Option<String>;
    const FORM: &'static str = "`host:port`, or `off`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        match text.trim() {
            "off" => Ok(None),
            other => units::check_address(other).map(Some),
        }
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "off".into())
    }
}

/// An address that is derived unless given: `Option<String>`.
pub(super) enum AddressOrAuto {}

impl Kind for AddressOrAuto {
    type Value = Option<String>;
    const FORM: &'static str = "`host:port`, or `auto`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        match text.trim() {
            "auto" => Ok(None),
            other => units::check_address(other).map(Some),
        }
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "auto".into())
    }
}

/// A directory: [`PathBuf`]. A leading `~/` stands for the home directory.
pub(super) enum Directory {}

impl Kind for Directory {
    type Value = PathBuf;
    const FORM: &'static str = "directory; a leading `~/` is the home directory";

    fn parse(text: &str, _: &Limits) -> Result<PathBuf, String> {
        if text.is_empty() {
            return Err("the path is empty; name a directory".into());
        }
        match text.strip_prefix("~/") {
            Some(rest) => match std::env::var_os("HOME") {
                Some(home) => Ok(PathBuf::from(home).join(rest)),
                None => Err(format!(
                    "`{text}` needs the variable HOME, which is not set; write the whole path"
                )),
            },
            None => Ok(PathBuf::from(text)),
        }
    }

    fn show(value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// A filter for log lines: `String`, a level or `module=level` pairs.
pub(super) enum LogFilter {}

impl Kind for LogFilter {
    type Value = String;
    const FORM: &'static str = "`error`, `warn`, `info`, `debug`, `trace`, `off`, or a list such as `info,kera_broker=debug`";

    fn parse(text: &str, _: &Limits) -> Result<String, String> {
        for part in text.split(',') {
            let level = part.rsplit('=').next().unwrap_or(part).trim();
            if !LEVELS.contains(&level) {
                return Err(format!(
                    "`{level}` is not a log level; use one of {}",
                    LEVELS.join(", ")
                ));
            }
        }
        Ok(text.to_owned())
    }

    fn show(value: &String) -> String {
        value.clone()
    }
}

macro_rules! choice {
    ($(#[$meta:meta])* $kind:ident -> $name:ident, $form:literal { $( $(#[$vmeta:meta])* $variant:ident = $text:literal, )+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[$vmeta])* $variant, )+ }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $( Self::$variant => $text, )+ })
            }
        }

        /// Parses and shows the choices.
        pub(super) enum $kind {}

        impl Kind for $kind {
            type Value = $name;
            const FORM: &'static str = $form;

            fn parse(text: &str, _: &Limits) -> Result<$name, String> {
                match text.trim() {
                    $( $text => Ok($name::$variant), )+
                    other => Err(format!("`{other}` is not a choice; use one of {}", [$($text),+].join(", "))),
                }
            }

            fn show(value: &$name) -> String {
                value.to_string()
            }
        }
    };
}

choice! {
    /// Which I/O engine the broker uses for direct and cold I/O.
    EngineKind -> EngineChoice, "`auto`, `uring` or `blocking`" {
        /// io_uring if the system allows it, otherwise blocking calls.
        Auto = "auto",
        /// io_uring; the broker falls back, with a log line, where the system refuses it.
        Uring = "uring",
        /// Blocking calls on a small pool of threads.
        Blocking = "blocking",
    }
}

choice! {
    /// Over what copies travel between brokers.
    TransportKind -> TransportChoice, "`auto`, `tcp` or `rdma`" {
        /// RDMA where this build and machine can, for peers that can as well; TCP otherwise.
        Auto = "auto",
        /// TCP.
        Tcp = "tcp",
        /// RDMA; the broker does not start where it cannot be used.
        Rdma = "rdma",
    }
}

choice! {
    /// Whether clients prove who they are by a certificate.
    ClientAuthKind -> ClientAuth, "`none`, `requested` or `required`" {
        /// Clients are not asked.
        None = "none",
        /// Clients may have one; one that is wrong is refused.
        Requested = "requested",
        /// Clients must have one.
        Required = "required",
    }
}

choice! {
    /// How log lines are written.
    LogFormatKind -> LogFormat, "`text` or `json`" {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

/// What names begin with, if with anything: `Option<String>`.
pub(super) enum PrefixOrOff {}

impl Kind for PrefixOrOff {
    type Value = Option<String>;
    const FORM: &'static str = "beginning of a name, or `off`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        let text = text.trim();
        let is_legal = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        match text {
            "off" => Ok(None),
            "" => Err("is empty; write what names begin with, or `off`".into()),
            _ if text.len() < 249 && text.chars().all(is_legal) => Ok(Some(text.to_owned())),
            _ => Err("is nothing that a name begins with; use fewer than 249 of a-z A-Z 0-9 . _ -, or write `off`".into()),
        }
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "off".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_name_the_range() {
        let limits = Limits {
            min: 16 << 20,
            max: 1 << 40,
        };
        let error = Size::parse("1MiB", &limits).unwrap_err();
        assert_eq!(error, "1MiB is out of range; use 16MiB to 1TiB");
        assert_eq!(Size::parse("16MiB", &limits), Ok(16 << 20));
        assert!(Count::parse("-1", &Limits::NONE).is_err());
        assert!(Count::parse("4294967296", &Limits::NONE).is_err());
        assert_eq!(Count::parse("1_000", &Limits::NONE), Ok(1000));
    }

    #[test]
    fn choices_are_listed_in_the_error() {
        let error = EngineKind::parse("io_uring", &Limits::NONE).unwrap_err();
        assert_eq!(
            error,
            "`io_uring` is not a choice; use one of auto, uring, blocking"
        );
        assert_eq!(
            EngineKind::parse("uring", &Limits::NONE),
            Ok(EngineChoice::Uring)
        );
    }

    #[test]
    fn off_and_auto_are_not_addresses() {
        assert_eq!(AddressOrOff::parse("off", &Limits::NONE), Ok(None));
        assert_eq!(AddressOrAuto::parse("auto", &Limits::NONE), Ok(None));
        assert!(AddressOrOff::parse("auto", &Limits::NONE).is_err());
        assert_eq!(AddressOrOff::show(&None), "off");
    }

    #[test]
    fn log_filters_are_checked() {
        assert!(LogFilter::parse("info,kera_broker=debug", &Limits::NONE).is_ok());
        assert!(LogFilter::parse("verbose", &Limits::NONE).is_err());
    }
}
