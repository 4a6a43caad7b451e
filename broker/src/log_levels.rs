//! Which lines are logged: what `log.level` says, and what was changed while the broker runs.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use parking_lot::Mutex;

/// By this name the level of all that has none of its own is changed.
pub const ROOT: &str = "root";
/// What logs lines, each under its name or that of a module of it, as in `kera_broker::cluster`.
pub const LOGGERS: [&str; 13] = [
    "kera",
    "kera_broker",
    "kera_consumer",
    "kera_coordinator",
    "kera_grpc",
    "kera_kafka_shim",
    "kera_log_segments",
    "kera_metadata",
    "kera_producer",
    "kera_replication",
    "kera_rpc",
    "kera_streamlet",
    "kera_telemetry",
];
/// Under this name stands who changed what. It stays as configured: nobody is to hide what he does.
const AUDIT: &str = "kera_audit";
/// The levels of `log.level`, by rising number of lines, and the one of none.
pub const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", OFF];
const OFF: &str = "off";
/// Levels that differ from the configuration, at most.
const MOST_CHANGED: usize = 256;
/// Letters of a logger's name, at most.
const LONGEST_NAME: usize = 256;

/// Takes a new filter, in the form of `log.level`.
type Apply = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// The levels of a process's loggers.
///
/// ```
/// use kera_broker::log_levels::{LogLevels, ROOT};
///
/// let levels = LogLevels::new("info,kera_broker=debug");
/// levels.applied_by(|_filter| Ok(()));
/// assert_eq!(levels.level_of("kera_rpc"), "info");
/// levels.change(&[(ROOT, Some("warn"))], false).unwrap();
/// assert_eq!(levels.level_of("kera_rpc"), "warn");
/// assert_eq!(levels.level_of("kera_broker::cluster"), "debug");
/// ```
pub struct LogLevels {
    configured: String,
    changed: Mutex<BTreeMap<String, &'static str>>,
    apply: OnceLock<Apply>,
}

impl std::fmt::Debug for LogLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let changed = &*self.changed.lock();
        f.debug_struct("LogLevels")
            .field("configured", &self.configured)
            .field("changed", changed)
            .finish_non_exhaustive()
    }
}

/// A logger as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logger {
    /// Its name, or [`ROOT`].
    pub name: String,
    /// One of [`LEVELS`].
    pub level: &'static str,
    /// The level is not that of the configuration.
    pub is_changed: bool,
}

/// Why a change of levels is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelError {
    /// Nothing logs under this name.
    NoLogger(String),
    /// This is no level.
    NoLevel(String),
    /// So many levels are changed already.
    TooMany,
    /// The program that runs the broker does not take changes, or not this one: what it says.
    NotApplied(String),
}

impl std::fmt::Display for LevelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoLogger(name) => write!(
                f,
                "nothing logs as \"{name}\"; {ROOT}, {} and their modules, as kera_broker::cluster, do",
                LOGGERS.join(", ")
            ),
            Self::NoLevel(level) => write!(
                f,
                "\"{level}\" is not a log level; use one of {}",
                LEVELS.join(", ")
            ),
            Self::TooMany => write!(
                f,
                "the levels of {MOST_CHANGED} loggers are changed already; delete some first"
            ),
            Self::NotApplied(why) => write!(f, "log levels are as they were: {why}"),
        }
    }
}

impl std::error::Error for LevelError {}

impl LogLevels {
    /// Those of a configuration's `log.level`.
    pub fn new(configured: &str) -> Self {
        Self {
            configured: configured.to_owned(),
            changed: Mutex::default(),
            apply: OnceLock::new(),
        }
    }

    /// From now on `apply` is told each new filter. Only the first call counts.
    pub fn applied_by(&self, apply: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) {
        let _ = self.apply.set(Box::new(apply));
    }

    /// [`ROOT`], all [`LOGGERS`], and modules of theirs that have a level of their own.
    pub fn all(&self) -> Vec<Logger> {
        let changed = self.changed.lock();
        let rules = self.rules(&changed);
        let named = rules.iter().map(|(name, _)| *name);
        let mut names: Vec<&str> = LOGGERS.into_iter().chain(named).collect();
        names.retain(|name| *name != ROOT);
        names.sort_unstable();
        names.dedup();
        let shown = |name: &str| Logger {
            name: name.to_owned(),
            level: level_by(&rules, name),
            is_changed: changed.contains_key(name),
        };
        std::iter::once(ROOT).chain(names).map(shown).collect()
    }

    /// The level of what logs under `name`.
    pub fn level_of(&self, name: &str) -> &'static str {
        level_by(&self.rules(&self.changed.lock()), name)
    }

    /// Changes levels, all or none; a logger without a level gets that of the configuration again. With `only_check`
    /// it is only said whether that would be done. They count until the process ends.
    ///
    /// # Errors
    /// A logger that there is not, a level that is none, or too many of them; what applies them does not.
    pub fn change(
        &self,
        changes: &[(&str, Option<&str>)],
        only_check: bool,
    ) -> Result<(), LevelError> {
        let mut present = self.changed.lock();
        let mut wanted = present.clone();
        for (name, level) in changes {
            if !is_logger(name) && !present.contains_key(*name) {
                return Err(LevelError::NoLogger(shortened(name)));
            }
            match level {
                Some(level) => wanted.insert((*name).to_owned(), level_named(level)?),
                None => wanted.remove(*name),
            };
        }
        if wanted.len() > MOST_CHANGED {
            return Err(LevelError::TooMany);
        }
        if only_check || wanted == *present {
            return Ok(());
        }
        let Some(apply) = self.apply.get() else {
            let why = "the log of this process is not Kera's";
            return Err(LevelError::NotApplied(why.to_owned()));
        };
        let audit = level_by(&self.rules(&BTreeMap::new()), AUDIT);
        let filter = filter(&self.configured, &wanted, audit);
        apply(&filter).map_err(LevelError::NotApplied)?;
        *present = wanted;
        Ok(())
    }

    /// Each name's level; [`ROOT`]'s is that of all others. What comes later counts.
    fn rules<'a>(
        &'a self,
        changed: &'a BTreeMap<String, &'static str>,
    ) -> Vec<(&'a str, &'static str)> {
        let configured = self.configured.split(',').filter_map(|part| {
            let part = part.trim();
            let (name, level) = part.rsplit_once('=').unwrap_or((ROOT, part));
            // A span's or a field's rule is about no logger.
            let level = level_named(level.trim()).ok()?;
            (!name.contains(['[', '{'])).then_some((name.trim(), level))
        });
        let changed = changed.iter().map(|(name, level)| (name.as_str(), *level));
        configured.chain(changed).collect()
    }
}

/// The level of `name`: that of the longest name with which it begins.
fn level_by(rules: &[(&str, &'static str)], name: &str) -> &'static str {
    let length = |rule: &str| if rule == ROOT { 0 } else { rule.len() };
    let of_name = rules
        .iter()
        .filter(|(rule, _)| *rule == ROOT || name != ROOT && name.starts_with(rule));
    let longest = of_name.max_by_key(|(rule, _)| length(rule));
    longest.map_or(OFF, |(_, level)| *level)
}

/// What `log.level` would say.
fn filter(configured: &str, changed: &BTreeMap<String, &'static str>, audit: &str) -> String {
    let mut text = configured.to_owned();
    for (name, level) in changed {
        text.push(',');
        if name != ROOT {
            text.push_str(name);
            text.push('=');
        }
        text.push_str(level);
    }
    format!("{text},{AUDIT}={audit}")
}

fn is_logger(name: &str) -> bool {
    let mut modules = name.split("::");
    let is_word = |word: &str| {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !word.is_empty() && word.chars().all(is_letter)
    };
    let is_ours = modules.next().is_some_and(|first| LOGGERS.contains(&first));
    name == ROOT || name.len() <= LONGEST_NAME && is_ours && modules.all(is_word)
}

/// The level of that name, in whatever case. Kafka's `FATAL` is `error`: Kera has nothing above it.
fn level_named(name: &str) -> Result<&'static str, LevelError> {
    if name.eq_ignore_ascii_case("fatal") {
        return Ok("error");
    }
    let mut levels = LEVELS.into_iter();
    let found = levels.find(|level| level.eq_ignore_ascii_case(name));
    found.ok_or_else(|| LevelError::NoLevel(shortened(name)))
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn told(configured: &str) -> (LogLevels, Arc<Mutex<Vec<String>>>) {
        let levels = LogLevels::new(configured);
        let filters: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = filters.clone();
        levels.applied_by(move |filter| {
            seen.lock().push(filter.to_owned());
            Ok(())
        });
        (levels, filters)
    }

    #[test]
    fn the_longest_name_decides_and_what_was_changed_counts() {
        let (levels, filters) = told("info,kera_broker=debug");
        assert_eq!(levels.level_of("kera_broker::cluster"), "debug");
        let changes = [
            ("kera_broker::cluster", Some("TRACE")),
            ("kera_broker", Some("warn")),
            (ROOT, Some("Fatal")),
        ];
        levels.change(&changes, false).expect("changed");
        assert_eq!(levels.level_of("kera_broker::cluster::x"), "trace");
        assert_eq!(levels.level_of("kera_broker"), "warn");
        assert_eq!(levels.level_of("kera_rpc"), "error");
        assert_eq!(levels.level_of(ROOT), "error");
        levels
            .change(&[("kera_broker", None)], false)
            .expect("reset");
        assert_eq!(levels.level_of("kera_broker"), "debug");
        assert_eq!(
            *filters.lock(),
            [
                "info,kera_broker=debug,kera_broker=warn,kera_broker::cluster=trace,error,kera_audit=info",
                "info,kera_broker=debug,kera_broker::cluster=trace,error,kera_audit=info",
            ]
        );
    }

    #[test]
    fn a_change_is_made_as_a_whole_or_not_at_all() {
        let (levels, filters) = told("info");
        let wrong = [("kera_rpc", Some("debug")), ("kera_nobody", Some("debug"))];
        let refused = levels.change(&wrong, false);
        assert_eq!(refused, Err(LevelError::NoLogger("kera_nobody".to_owned())));
        let refused = levels.change(&[("kera_rpc", Some("loud"))], false);
        assert_eq!(refused, Err(LevelError::NoLevel("loud".to_owned())));
        for name in ["kera_rpc=trace,x", "kera_rpc::", "kera_rpc::a b", ""] {
            assert!(levels.change(&[(name, Some("debug"))], false).is_err());
        }
        levels
            .change(&[("kera_rpc", Some("debug"))], true)
            .expect("well");
        assert_eq!(levels.level_of("kera_rpc"), "info");
        assert!(filters.lock().is_empty());
    }

    #[test]
    fn what_is_not_applied_does_not_count() {
        let levels = LogLevels::new("info");
        let refused = levels.change(&[(ROOT, Some("debug"))], false);
        assert!(matches!(refused, Err(LevelError::NotApplied(_))));
        levels.applied_by(|_| Err("gone".to_owned()));
        let refused = levels.change(&[(ROOT, Some("debug"))], false);
        assert_eq!(refused, Err(LevelError::NotApplied("gone".to_owned())));
        assert_eq!(levels.level_of(ROOT), "info");
    }

    #[test]
    fn changed_levels_are_bounded() {
        let (levels, _) = told("info");
        let names: Vec<_> = (0..=MOST_CHANGED).map(|n| format!("kera::m{n}")).collect();
        let all: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), Some("debug")))
            .collect();
        assert_eq!(levels.change(&all, false), Err(LevelError::TooMany));
        levels.change(&all[1..], false).expect("room");
        assert_eq!(levels.all().len(), 1 + LOGGERS.len() + MOST_CHANGED);
    }

    /// Every crate of the program that logs is named.
    #[test]
    fn all_that_log_are_loggers() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut logging = Vec::new();
        for entry in std::fs::read_dir(root).expect("the workspace") {
            let folder = entry.expect("an entry").path();
            let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else {
                continue;
            };
            let folder = folder
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let depends = manifest.split("[dev-dependencies]").next().unwrap_or("");
            let in_program = !["sim", "cli"].contains(&folder.as_str());
            if in_program
                && depends
                    .lines()
                    .any(|line| line.starts_with("tracing.workspace"))
            {
                logging.push(format!("kera_{}", folder.replace('-', "_")));
            }
        }
        logging.push("kera".to_owned());
        logging.sort();
        assert_eq!(logging, LOGGERS);
    }
}
