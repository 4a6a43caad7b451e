//! Options of an external table.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use kera_producer::Compression;
use kera_rpc::login::password_in_file;
use kera_rpc::{ClientTls, Login, SaslMechanism, TlsFiles};

use crate::builder::KeraTableBuilder;
use crate::connection::Connection;
use crate::error::KeraError;
use crate::json::OnBadJson;

/// All of them, for words about one that there is not.
const NAMES: [&str; 21] = [
    "from",
    "to",
    "value.format",
    "json.on-error",
    "metadata.prefix",
    "scan.on-data-loss",
    "scan.skip-damaged",
    "scan.partitions",
    "scan.memory-limit",
    "rack",
    "timeout",
    "sink.compression",
    "sink.linger",
    "tls.ca",
    "tls.certificate",
    "tls.key",
    "user",
    "password",
    "password-file",
    "token-file",
    "sasl.mechanism",
];

/// Options by name, each of which is used once.
pub(crate) struct Options {
    left: BTreeMap<String, String>,
}

impl Options {
    /// DataFusion puts `format.` before the names of options that have no dot.
    pub(crate) fn new<'a>(given: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let left = given.into_iter().map(|(name, value)| {
            let name = name.strip_prefix("format.").unwrap_or(name);
            (name.to_ascii_lowercase(), value.clone())
        });
        Self {
            left: left.collect(),
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.left.remove(name)
    }

    fn parse<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, KeraError> {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        let parsed = parse(&text);
        parsed
            .map(Some)
            .map_err(|reason| KeraError::option(name, reason))
    }

    /// One of some words.
    fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, KeraError> {
        self.parse(name, |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            found.map(|(_, meaning)| *meaning).ok_or_else(|| {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                format!("{text:?} is none; use {}", words.join(", "))
            })
        })
    }

    fn place<T: FromStr<Err = KeraError>>(&mut self, name: &str) -> Result<Option<T>, KeraError> {
        self.parse(name, |text| {
            text.parse().map_err(|error: KeraError| error.to_string())
        })
    }

    /// Whether values are JSON.
    pub(crate) fn is_json(&mut self) -> Result<bool, KeraError> {
        let words = [("raw", false), ("json", true)];
        Ok(self.word("value.format", &words)?.unwrap_or(false))
    }

    /// The way to the brokers.
    pub(crate) fn connection(&mut self, bootstrap: String) -> Result<Connection, KeraError> {
        let mut connection = Connection::to(bootstrap);
        if let Some(timeout) = self.parse("timeout", duration)? {
            connection = connection.with_timeout(timeout);
        }
        let tls = self.tls()?;
        if let Some(login) = self.login(tls.is_some())? {
            connection = connection.with_login(login);
        }
        if let Some(tls) = tls {
            connection = connection.with_tls(tls);
        }
        Ok(connection)
    }

    fn tls(&mut self) -> Result<Option<ClientTls>, KeraError> {
        let path = |text: Option<String>| text.map(PathBuf::from);
        let certificate = path(self.take("tls.certificate"));
        let key = path(self.take("tls.key"));
        let Some(ca) = path(self.take("tls.ca")) else {
            if certificate.is_some() || key.is_some() {
                let reason = "it is missing, and a certificate without it is not used: name the file of the authorities that are trusted";
                return Err(KeraError::option("tls.ca", reason));
            }
            return Ok(None);
        };
        let files = TlsFiles {
            ca,
            certificate,
            key,
        };
        let tls = ClientTls::from_files(&files);
        tls.map(Some)
            .map_err(|error| KeraError::option("tls.ca", error.to_string()))
    }

    fn login(&mut self, has_tls: bool) -> Result<Option<Login>, KeraError> {
        let user = self.take("user");
        let password = self.take("password");
        let file = self.take("password-file");
        let token = self.take("token-file");
        let mechanism = self.parse("sasl.mechanism", |text| {
            let named = SaslMechanism::named(text);
            named
                .filter(|one| SaslMechanism::WITH_PASSWORDS.contains(one))
                .ok_or_else(|| format!("{text} is none; use SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN"))
        })?;
        if let Some(token) = token {
            if user.is_some() || password.is_some() || file.is_some() || mechanism.is_some() {
                let reason = "a token has its user and its mechanism: leave user, password, password-file and sasl.mechanism out";
                return Err(KeraError::option("token-file", reason));
            }
            if !has_tls {
                let reason = "a token is sent as it is, and without TLS everybody on the way could read and use it: set tls.ca";
                return Err(KeraError::option("token-file", reason));
            }
            return Ok(Some(Login::with_token_file(token)));
        }
        let Some(user) = user else {
            if password.is_some() || file.is_some() || mechanism.is_some() {
                let reason = "it is missing: name the user whose password is given";
                return Err(KeraError::option("user", reason));
            }
            return Ok(None);
        };
        let password = match (password, file) {
            (Some(password), None) => password,
            (None, Some(file)) => password_in_file(file.as_ref())
                .map_err(|error| KeraError::option("password-file", format!("{file}: {error}")))?,
            _ => {
                let reason = "a user needs either password or password-file";
                return Err(KeraError::option("password-file", reason));
            }
        };
        let mechanism = mechanism.unwrap_or(SaslMechanism::WITH_PASSWORDS[1]);
        if mechanism == SaslMechanism::Plain && !has_tls {
            let reason = "PLAIN sends the password itself, and without TLS everybody on the way could read it: set tls.ca, or use SCRAM-SHA-512";
            return Err(KeraError::option("sasl.mechanism", reason));
        }
        Ok(Some(Login::new(&user, &password).with_mechanism(mechanism)))
    }

    /// All others. `is_unbounded` is a table that waits for more records.
    pub(crate) fn apply(
        mut self,
        mut table: KeraTableBuilder,
        is_unbounded: bool,
    ) -> Result<KeraTableBuilder, KeraError> {
        if let Some(place) = self.place("from")? {
            table = table.from(place);
        }
        if let Some(place) = self.place("to")? {
            if is_unbounded {
                let reason = "an unbounded table has no end: leave it out, or CREATE EXTERNAL TABLE without UNBOUNDED";
                return Err(KeraError::option("to", reason));
            }
            table = table.to(place);
        }
        if is_unbounded {
            table = table.unbounded();
        }
        let words = [("fail", OnBadJson::Fail), ("null", OnBadJson::Null)];
        if let Some(on_bad) = self.word("json.on-error", &words)? {
            table = table.on_bad_json(on_bad);
        }
        if let Some(prefix) = self.take("metadata.prefix") {
            table = table.metadata_prefix(prefix);
        }
        let words = [("fail", false), ("skip", true)];
        if let Some(skip) = self.word("scan.on-data-loss", &words)? {
            table = table.skip_lost(skip);
        }
        let words = [("false", false), ("true", true)];
        if let Some(skip) = self.word("scan.skip-damaged", &words)? {
            table = table.skip_damaged(skip);
        }
        if let Some(most) = self.parse("scan.partitions", number)? {
            table = table.partitions(most);
        }
        if let Some(bytes) = self.parse("scan.memory-limit", bytes)? {
            table = table.memory_limit(bytes);
        }
        if let Some(rack) = self.take("rack") {
            table = table.rack(rack);
        }
        let words = [
            ("none", Compression::None),
            ("gzip", Compression::Gzip),
            ("snappy", Compression::Snappy),
            ("lz4", Compression::Lz4),
            ("zstd", Compression::Zstd),
        ];
        if let Some(compression) = self.word("sink.compression", &words)? {
            table = table.compression(compression);
        }
        if let Some(linger) = self.parse("sink.linger", duration)? {
            table = table.linger(linger);
        }
        match self.left.keys().next() {
            None => Ok(table),
            Some(name) => {
                let reason = format!("there is none of this name; there are {}", NAMES.join(", "));
                Err(KeraError::option(name, reason))
            }
        }
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no number of 0 or more"))
}

/// `500ms`, `5s`, `2min`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("min", 60_000), ("s", 1_000), ("h", 3_600_000)];
    let found = units.iter().find_map(|(unit, millis)| {
        let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(*millis)
    });
    found
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is no time: write such as 500ms, 5s, 2min or 1h"))
}

/// `65536`, `64KiB`, `8MiB`, `1GiB`.
fn bytes(text: &str) -> Result<usize, String> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("", 1),
    ];
    let found = units.iter().find_map(|(unit, factor)| {
        let number: usize = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(*factor)
    });
    found.ok_or_else(|| format!("{text:?} is no size: write such as 65536, 64KiB or 8MiB"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use crate::table::KeraTable;

    fn apply(given: &[(&str, &str)], is_unbounded: bool) -> Result<KeraTableBuilder, KeraError> {
        let given = given.iter().map(|(name, value)| {
            let prefix = if name.contains('.') { "" } else { "format." };
            (format!("{prefix}{name}"), (*value).to_owned())
        });
        let given: BTreeMap<String, String> = given.collect();
        let mut options = Options::new(&given);
        let connection = options.connection("a:1".to_owned())?;
        options.is_json()?;
        options.apply(KeraTable::builder("s").connection(connection), is_unbounded)
    }

    #[test]
    fn options_are_settings() {
        let table = apply(
            &[
                ("from", "ordinal:3"),
                ("to", "1970-01-01T00:00:01Z"),
                ("timeout", "2min"),
                ("scan.memory-limit", "1MiB"),
                ("sink.linger", "20ms"),
                ("sink.compression", "zstd"),
                ("scan.on-data-loss", "skip"),
            ],
            false,
        );
        let settings = table.unwrap().settings;
        assert_eq!(settings.from, Place::Ordinal(3));
        assert_eq!(settings.to, Some(Place::Timestamp(1_000)));
        assert_eq!(settings.connection.timeout(), Duration::from_secs(120));
        assert_eq!(settings.memory_limit, 1 << 20);
        assert_eq!(settings.linger, Duration::from_millis(20));
        assert_eq!(settings.compression, Compression::Zstd);
        assert!(settings.skip_lost && !settings.skip_damaged);
        assert_eq!(apply(&[], true).unwrap().settings.to, None);
    }

    #[test]
    fn options_that_make_no_sense_are_refused_with_words() {
        for (given, words) in [
            (
                &[("form", "earliest")][..],
                "option form is not usable: there is none",
            ),
            (&[("from", "now")], "is no place in a lane"),
            (&[("to", "latest")], "an unbounded table has no end"),
            (&[("value.format", "avro")], "use raw, json"),
            (&[("timeout", "5")], "500ms"),
            (&[("scan.memory-limit", "-1")], "64KiB"),
            (&[("scan.partitions", "many")], "is no number"),
            (&[("password", "x")], "option user"),
            (&[("user", "ann")], "either password or password-file"),
            (
                &[
                    ("user", "ann"),
                    ("password", "x"),
                    ("sasl.mechanism", "PLAIN"),
                ],
                "without TLS",
            ),
            (&[("token-file", "t")], "without TLS"),
            (&[("tls.key", "k")], "option tls.ca"),
            (&[("tls.ca", "/nowhere/ca.pem")], "/nowhere/ca.pem"),
            (
                &[("user", "ann"), ("password-file", "/nowhere/p")],
                "/nowhere/p",
            ),
        ] {
            let error = apply(given, true).unwrap_err().to_string();
            assert!(error.contains(words), "{given:?}: {error}");
        }
    }

    #[test]
    fn every_option_that_is_told_of_is_known() {
        for name in NAMES {
            let error = apply(&[(name, "\u{1}")], false).err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(
                !error.contains("there is none of this name"),
                "{name}: {error}"
            );
        }
    }
}
