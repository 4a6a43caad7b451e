//! What may be set for a share group, under Kafka's names.

use std::collections::BTreeMap;

/// Where a group begins in a partition.
const AUTO_OFFSET_RESET: &str = "share.auto.offset.reset";
/// How long an acquired record is locked.
const RECORD_LOCK_MS: &str = "share.record.lock.duration.ms";
/// Which records it gets.
const ISOLATION_LEVEL: &str = "share.isolation.level";
/// How often a record is delivered.
const DELIVERY_COUNT_LIMIT: &str = "share.delivery.count.limit";
/// How many records of a partition may be in flight.
const MAX_RECORD_LOCKS: &str = "share.partition.max.record.locks";

/// All of them, with their defaults: those of Kafka.
pub const CONFIGS: [(&str, &str); 5] = [
    (AUTO_OFFSET_RESET, "latest"),
    (RECORD_LOCK_MS, "30000"),
    (ISOLATION_LEVEL, "read_uncommitted"),
    (DELIVERY_COUNT_LIMIT, "5"),
    (MAX_RECORD_LOCKS, "2000"),
];

/// Where a group begins that has not read a partition yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// With the first record.
    Earliest,
    /// With what comes from then on.
    Latest,
}

/// Which records a group gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// All.
    Uncommitted,
    /// Those of transactions once they are committed.
    Committed,
}

/// What is set for a group, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareConfig(BTreeMap<String, String>);

impl ShareConfig {
    /// As it was kept, or told by a coordinator.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(pairs.into_iter().collect())
    }

    /// What is set, by name.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    /// True if nothing is set.
    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }

    /// Its value, set or by default.
    pub fn value(&self, name: &str) -> &str {
        let default = CONFIGS.iter().find(|(known, _)| *known == name);
        let default = default.map_or("", |(_, value)| *value);
        self.0.get(name).map_or(default, String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.value(name).parse().unwrap_or(0)
    }

    /// Where the group begins.
    pub fn reset(&self) -> Reset {
        match self.value(AUTO_OFFSET_RESET) {
            "earliest" => Reset::Earliest,
            _ => Reset::Latest,
        }
    }

    /// Which records it gets.
    pub fn isolation(&self) -> Isolation {
        match self.value(ISOLATION_LEVEL) {
            "read_committed" => Isolation::Committed,
            _ => Isolation::Uncommitted,
        }
    }

    /// How long an acquired record is locked, milliseconds.
    pub fn lock_ms(&self) -> u64 {
        self.number(RECORD_LOCK_MS)
    }

    /// How often a record is delivered at most.
    pub fn deliveries(&self) -> u16 {
        u16::try_from(self.number(DELIVERY_COUNT_LIMIT)).unwrap_or(u16::MAX)
    }

    /// How many records of a partition may be in flight.
    pub fn record_locks(&self) -> u64 {
        self.number(MAX_RECORD_LOCKS)
    }

    /// Sets a value, or takes it back.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let short: String = name.chars().take(80).collect();
        if !CONFIGS.iter().any(|(known, _)| *known == name) {
            let names = CONFIGS.map(|(name, _)| name).join(", ");
            return Err(format!(
                "\"{short}\" cannot be set for a group: its members bring their timeouts when they join; what can be set is {names}"
            ));
        }
        let Some(value) = value else {
            self.0.remove(name);
            return Ok(());
        };
        check(name, value)?;
        self.0.insert(name.to_owned(), value.to_owned());
        Ok(())
    }
}

fn check(name: &str, value: &str) -> Result<(), String> {
    let one_of = |words: &[&str]| match words.contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} is one of {}", words.join(", "))),
    };
    let between = |least: u64, most: u64| match value.parse::<u64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(()),
        _ => Err(format!("{name} is a number from {least} to {most}")),
    };
    match name {
        AUTO_OFFSET_RESET => one_of(&["earliest", "latest"]),
        ISOLATION_LEVEL => one_of(&["read_uncommitted", "read_committed"]),
        RECORD_LOCK_MS => between(1_000, 3_600_000),
        DELIVERY_COUNT_LIMIT => between(2, 10),
        _ => between(100, 10_000),
    }
}
