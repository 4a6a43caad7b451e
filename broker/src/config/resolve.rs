//! From the sources to one configuration: flag before environment before file before default.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::acl_check;
use super::addresses::check_kafka;
use super::alterable::ALTERABLE;
use super::auth_check;
use super::cluster;
use super::exposure;
use super::key::{Key, env_of};
use super::keys::{BrokerConfig, KEYS, SECTIONS};
use super::listeners::Listener;
use super::renamed::{formerly, formerly_in_environment, is_former_section};
use super::{security, store_check, telemetry_check, tls_check};

/// Keys of earlier versions, and what to do instead.
pub const GONE: [(&str, &str); 1] = [(
    "cluster.peers",
    "is gone: brokers that hold replicas for each other share an etcd; remove it, name the etcd with cluster.store, and take what this broker has there with `kera cluster import` (docs/operations.md#from-a-broker-alone-to-a-cluster)",
)];

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A configuration file, at a line counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag of the command line, without dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Environment(name) => write!(f, "environment variable {name}"),
            Origin::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands.
    pub origin: Origin,
    /// What is wrong and what to do, lowercase, no full stop.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Default => f.write_str(&self.message),
            origin => write!(f, "{origin}: {}", self.message),
        }
    }
}

/// Everything that is wrong with a configuration, or why its file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read the configuration file {path}: {error}; check the path and its permissions"
    )]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The values are wrong; every problem is listed.
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

/// What a configuration is made from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// Environment variables; names that do not start with `KERA_` are ignored.
    pub environment: Vec<(String, String)>,
    /// Flags: the name of a key and its text.
    pub flags: Vec<(String, String)>,
}

impl Sources {
    /// Only the environment of this process.
    pub fn from_environment() -> Self {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("KERA_"))
            .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
            .collect();
        Self {
            environment,
            ..Self::default()
        }
    }

    /// Considers every source and checks the result.
    ///
    /// # Errors
    /// All problems found, each with the file and line, variable or flag it stands in.
    pub fn resolve(&self) -> Result<Resolved, ConfigError> {
        let text = match &self.file {
            None => None,
            Some(path) => match std::fs::read_to_string(path) {
                Ok(text) => Some((path.as_path(), text)),
                Err(error) => {
                    return Err(ConfigError::Unreadable {
                        path: path.display().to_string(),
                        error,
                    });
                }
            },
        };
        self.resolve_with(text.as_ref().map(|(path, text)| (*path, text.as_str())))
    }

    /// As [`Sources::resolve`], with the file's text given instead of read.
    ///
    /// # Errors
    /// All problems found.
    pub fn resolve_with(&self, file: Option<(&Path, &str)>) -> Result<Resolved, ConfigError> {
        let mut resolution = Resolution::new();
        if let Some((path, text)) = file {
            resolution.read_file(path, text);
        }
        resolution.read_environment(&self.environment);
        for (name, text) in &self.flags {
            let flag = name.replace(['.', '_'], "-");
            match (Key::find(name), formerly(name)) {
                (Some(key), _) => resolution.set(key, text, Origin::Flag(flag)),
                (None, Some(key)) => resolution.set_formerly(name, key, text, Origin::Flag(flag)),
                (None, None) => resolution.problem(Origin::Flag(flag), unknown_key(name)),
            }
        }
        resolution.finish()
    }
}

/// A configuration with the origin of each of its values.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The values.
    pub config: BrokerConfig,
    /// What is allowed but probably not meant, for people.
    pub warnings: Vec<String>,
    origins: HashMap<&'static str, Origin>,
}

impl Resolved {
    /// Where the value of a key came from.
    pub fn origin(&self, key: &Key) -> Origin {
        self.origins
            .get(key.name)
            .cloned()
            .unwrap_or(Origin::Default)
    }

    /// Checks that the broker may open the listeners in `opened`: each is on loopback, asks clients who they are, or is
    /// named by `insecure`; and that it may rely on its etcd.
    ///
    /// # Errors
    /// Each listener that it may not open, an etcd that it may not rely on, and what to do.
    pub fn refuse_open(&self, opened: &[Listener]) -> Result<(), ConfigError> {
        let problem = |(name, message)| Problem {
            origin: self.origins.get(name).cloned().unwrap_or(Origin::Default),
            message,
        };
        let refused = exposure::refused(&self.config, opened).into_iter();
        let refused = refused.chain(store_check::refused(&self.config));
        let problems: Vec<Problem> = refused.map(problem).collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Invalid(problems)),
        }
    }

    /// The value of a key as it would be written.
    pub fn value(&self, key: &Key) -> String {
        (key.show)(&self.config)
    }
}

struct Resolution {
    config: BrokerConfig,
    origins: HashMap<&'static str, Origin>,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Resolution {
    fn new() -> Self {
        let config = BrokerConfig {
            data_dir: super::data_dir::default_data_dir(),
            ..BrokerConfig::default()
        };
        Self {
            config,
            origins: HashMap::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn problem(&mut self, origin: Origin, message: String) {
        self.problems.push(Problem { origin, message });
    }

    fn set(&mut self, key: &'static Key, text: &str, origin: Origin) {
        match (key.set)(&mut self.config, text, &key.limits) {
            Ok(()) => {
                self.origins.insert(key.name, origin);
            }
            Err(error) => self.problem(origin, format!("{}: {error}", key.name)),
        }
    }

    /// Sets a key by the name that it had. Where the same source has the new name as well, that counts.
    fn set_formerly(&mut self, name: &str, key: &'static Key, text: &str, origin: Origin) {
        self.warnings.push(format!(
            "{origin}: {name} is {} now; the former name is accepted until the next version",
            key.name
        ));
        let same = std::mem::discriminant(&origin);
        let known = self.origins.get(key.name).map(std::mem::discriminant);
        if known != Some(same) {
            self.set(key, text, origin);
        }
    }

    fn read_file(&mut self, path: &Path, text: &str) {
        let lines = Lines { path, text };
        let document = match DeTable::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let message = error.message().trim().replace('\n', "; ");
                self.problem(lines.origin(at), format!("not valid TOML: {message}"));
                return;
            }
        };
        for (name, value) in document.get_ref() {
            let at = name.span().start;
            let section = name.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Table(table)
                    if SECTIONS.iter().any(|(known, _)| *known == section)
                        || is_former_section(section) =>
                {
                    for (key, value) in table {
                        let full = format!("{section}.{}", key.get_ref());
                        self.file_value(&lines, &full, key.span().start, value);
                    }
                }
                DeValue::Table(_) => {
                    let known = SECTIONS.iter().map(|(name, _)| *name);
                    let hint = closest(section, known)
                        .map(|name| format!("; did you mean `[{name}]`?"))
                        .unwrap_or_else(|| {
                            let names: Vec<String> = SECTIONS
                                .iter()
                                .map(|(name, _)| format!("[{name}]"))
                                .collect();
                            format!("; the sections are {}", names.join(", "))
                        });
                    self.problem(
                        lines.origin(at),
                        format!("unknown section `[{section}]`{hint}"),
                    );
                }
                _ => self.file_value(&lines, section, at, value),
            }
        }
        // The parser hands keys out by name; people read from top to bottom.
        self.problems.sort_by_key(|problem| match problem.origin {
            Origin::File { line, .. } => line,
            _ => usize::MAX,
        });
    }

    fn file_value(
        &mut self,
        lines: &Lines<'_>,
        name: &str,
        at: usize,
        value: &Spanned<DeValue<'_>>,
    ) {
        let origin = lines.origin(at);
        let former = formerly(name);
        let Some(key) = Key::find(name).or(former) else {
            self.problem(origin, unknown_key(name));
            return;
        };
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Array(items) if key.list => match texts(items) {
                Some(texts) => texts.join(","),
                None => {
                    self.problem(origin, format!("{name}: write {}, as texts", key.form));
                    return;
                }
            },
            _ => {
                self.problem(
                    origin,
                    format!("{name}: wrong type of value; write {}", key.form),
                );
                return;
            }
        };
        match former {
            Some(key) => self.set_formerly(name, key, &text, origin),
            None => self.set(key, &text, origin),
        }
    }

    fn read_environment(&mut self, variables: &[(String, String)]) {
        for (name, text) in variables {
            if let Some(key) = KEYS.iter().find(|key| key.env() == *name) {
                self.set(key, text, Origin::Environment(name.clone()));
            } else if let Some((former, key)) = formerly_in_environment(name) {
                self.set_formerly(former, key, text, Origin::Environment(name.clone()));
            } else if let Some((key, _)) = GONE.iter().find(|(key, _)| env_of(key) == *name) {
                self.problem(Origin::Environment(name.clone()), unknown_key(key));
            } else if let Some(key) = KEYS
                .iter()
                .find(|key| strsim::damerau_levenshtein(&key.env(), name) <= 2)
            {
                // Not an error: others may set variables that start with KERA_, as Kubernetes
                // does for a service of that name.
                self.warnings.push(format!(
                    "environment variable {name} sets nothing; did you mean {}?",
                    key.env()
                ));
            }
        }
    }

    /// What no single key can check.
    fn check_together(&mut self) {
        let config = &self.config;
        let mut wrong = Vec::new();
        let consumers = &config.consumers;
        if consumers.session_min > consumers.session_default {
            wrong.push((
                "consumers.session_default",
                "is below consumers.session_min; raise it or lower the minimum".to_owned(),
            ));
        }
        if consumers.session_default > consumers.session_max {
            wrong.push((
                "consumers.session_default",
                "is above consumers.session_max; lower it or raise the maximum".to_owned(),
            ));
        }
        let server = &config.server;
        if server.connection_in_flight_bytes < server.max_frame_bytes {
            wrong.push((
                "server.connection_in_flight_bytes",
                "is below server.max_frame_bytes, so the largest frame could never be read; raise it".to_owned(),
            ));
        }
        if server.max_in_flight_bytes < server.connection_in_flight_bytes {
            wrong.push((
                "server.max_in_flight_bytes",
                "is below server.connection_in_flight_bytes; raise it".to_owned(),
            ));
        }
        if let Err((name, message)) = check_kafka(config) {
            wrong.push((name, message));
        }
        if let Err((name, message)) = security::check_names(config) {
            wrong.push((name, message));
        }
        if let Err((name, message)) = cluster::check_cluster(config) {
            wrong.push((name, message));
        }
        if let Err((name, message)) = tls_check::check_tls(config) {
            wrong.push((name, message));
        }
        if let Err((name, message)) = auth_check::check_auth(config) {
            wrong.push((name, message));
        }
        if let Err((name, message)) = acl_check::check_acl(config) {
            wrong.push((name, message));
        }
        if let Err((name, message)) = telemetry_check::check_telemetry(config) {
            wrong.push((name, message));
        }
        self.warnings.extend(cluster::doubts(config));
        self.warnings.extend(tls_check::doubts(config));
        self.warnings.extend(security::doubts(config));
        self.warnings.extend(auth_check::doubts(config));
        self.warnings.extend(exposure::doubt(config));
        self.warnings.extend(store_check::doubt(config));
        for (name, message) in wrong {
            let origin = self.origins.get(name).cloned().unwrap_or(Origin::Default);
            self.problem(origin, format!("{name}: {message}"));
        }
    }

    fn finish(mut self) -> Result<Resolved, ConfigError> {
        if self.problems.is_empty() {
            self.check_together();
        }
        if !self.problems.is_empty() {
            return Err(ConfigError::Invalid(self.problems));
        }
        Ok(Resolved {
            config: self.config,
            warnings: self.warnings,
            origins: self.origins,
        })
    }
}

/// The items of a list, if each of them is a text.
fn texts(items: &DeArray<'_>) -> Option<Vec<String>> {
    let text = |item: &Spanned<DeValue<'_>>| item.get_ref().as_str().map(str::to_owned);
    items.iter().map(text).collect()
}

/// Turns byte offsets of a file's text into lines.
struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Lines<'_> {
    fn origin(&self, at: usize) -> Origin {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        Origin::File {
            path: self.path.to_owned(),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
        }
    }
}

fn unknown_key(name: &str) -> String {
    if let Some((_, instead)) = GONE.iter().find(|(gone, _)| *gone == name) {
        return format!("{name} {instead}");
    }
    if let Some(one) = ALTERABLE
        .iter()
        .find(|one| is_of_kafka(name, one.kafka_name))
    {
        return format!(
            "unknown key `{name}`; Kafka's {} is called `{}` here",
            one.kafka_name, one.name
        );
    }
    let short = name.rsplit('.').next().unwrap_or(name);
    // A key in the wrong section is as common as a slip of the fingers.
    let hint = closest(name, KEYS.iter().map(|key| key.name)).or_else(|| {
        KEYS.iter()
            .find(|key| key.short_name() == short)
            .map(|key| key.name)
    });
    match hint {
        Some(hint) => format!("unknown key `{name}`; did you mean `{hint}`?"),
        None => {
            format!("unknown key `{name}`; `kera config print` lists every key")
        }
    }
}

/// Whether a key is one of Kafka's, alone or behind the name of a section, with dots or as Kera writes words.
fn is_of_kafka(name: &str, kafka_name: &str) -> bool {
    let (name, kafka_name) = (name.replace('.', "_"), kafka_name.replace('.', "_"));
    let section = name.strip_suffix(&kafka_name);
    section.is_some_and(|section| {
        let section = section.strip_suffix('_').unwrap_or(section);
        section.is_empty() || SECTIONS.iter().any(|(known, _)| *known == section)
    })
}

fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.88)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
