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
/// Whether members may renew their locks (KIP-1222).
const RENEW_ENABLE: &str = "share.renew.acknowledge.enable";

/// The topic that gets what the group gives up (KIP-1191); empty: none.
pub const DEAD_LETTER_TOPIC: &str = "errors.deadletterqueue.topic.name";
/// Whether a dead letter has the key, the value and the headers of its record.
const DEAD_LETTER_COPY: &str = "errors.deadletterqueue.copy.record.enable";
/// Longest name of a topic.
const MOST_TOPIC_BYTES: usize = 249;

/// All of them, with their defaults: those of Kafka.
pub const CONFIGS: [(&str, &str); 8] = [
    (DEAD_LETTER_COPY, "false"),
    (DEAD_LETTER_TOPIC, ""),
    (AUTO_OFFSET_RESET, "latest"),
    (RECORD_LOCK_MS, "30000"),
    (ISOLATION_LEVEL, "read_uncommitted"),
    (DELIVERY_COUNT_LIMIT, "5"),
    (MAX_RECORD_LOCKS, "2000"),
    (RENEW_ENABLE, "true"),
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

    /// The topic that gets what the group gives up.
    pub fn dead_letter_topic(&self) -> Option<&str> {
        Some(self.value(DEAD_LETTER_TOPIC)).filter(|name| !name.is_empty())
    }

    /// Whether a dead letter has the key, the value and the headers of its record.
    pub fn copies_dead_letters(&self) -> bool {
        self.value(DEAD_LETTER_COPY).eq_ignore_ascii_case("true")
    }

    /// Whether members may renew their locks.
    pub fn renews(&self) -> bool {
        self.value(RENEW_ENABLE).eq_ignore_ascii_case("true")
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
        DEAD_LETTER_COPY | RENEW_ENABLE
            if ["true", "false"]
                .iter()
                .any(|word| word.eq_ignore_ascii_case(value)) =>
        {
            Ok(())
        }
        DEAD_LETTER_COPY | RENEW_ENABLE => one_of(&["true", "false"]),
        DEAD_LETTER_TOPIC => check_topic(value),
        ISOLATION_LEVEL => one_of(&["read_uncommitted", "read_committed"]),
        RECORD_LOCK_MS => between(1_000, 3_600_000),
        DELIVERY_COUNT_LIMIT => between(2, 10),
        _ => between(100, 10_000),
    }
}

/// Whether a topic of this name may get dead letters, for all that its name tells: it is none of Kafka's own.
fn check_topic(name: &str) -> Result<(), String> {
    let is_legal = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let fits = name.len() <= MOST_TOPIC_BYTES && name.chars().all(is_legal);
    if !fits || matches!(name, "." | "..") || name.starts_with("__") || name.starts_with("_kera") {
        return Err(format!(
            "{DEAD_LETTER_TOPIC} is the name of a topic, of at most {MOST_TOPIC_BYTES} of a-z, A-Z, 0-9, `.`, `_` and `-`, and begins with neither `__` nor `_kera`; empty: there is none"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_letters_go_to_a_topic_that_is_not_kafkas_own() {
        let mut config = ShareConfig::default();
        assert_eq!(config.dead_letter_topic(), None);
        for wrong in [
            "__consumer_offsets",
            "_kera.groups",
            "a/b",
            "..",
            &"a".repeat(250),
        ] {
            let error = config.set(DEAD_LETTER_TOPIC, Some(wrong)).unwrap_err();
            assert!(error.contains("the name of a topic"), "{error}");
        }
        config.set(DEAD_LETTER_TOPIC, Some("dlq.g-1_2")).unwrap();
        config.set(DEAD_LETTER_COPY, Some("TRUE")).unwrap();
        assert!(config.set(DEAD_LETTER_COPY, Some("yes")).is_err());
        assert_eq!(config.dead_letter_topic(), Some("dlq.g-1_2"));
        assert!(config.copies_dead_letters());
        config.set(DEAD_LETTER_TOPIC, Some("")).unwrap();
        assert_eq!(config.dead_letter_topic(), None, "none any more");
    }
}
