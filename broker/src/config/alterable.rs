//! The keys whose values may change while the broker runs, and Kafka's names for them.
//!
//! A key is here if every use of it reads the value anew and nothing that is stored depends on it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::addresses::check_sessions;
use super::key::Key;
use super::keys::BrokerConfig;
use super::units;

/// How Kafka writes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KafkaUnit {
    /// `true` or `false`.
    Switch,
    /// A number.
    Count,
    /// A number of bytes.
    Bytes,
    /// A number of milliseconds.
    Milliseconds,
    /// A number of milliseconds; a negative one is "never", which Kera writes as 0.
    MillisecondsOrNever,
    /// A number of minutes.
    Minutes,
    /// Text; none is empty, which Kera writes as `off`.
    TextOrNone,
}

/// A key that may change while the broker runs.
#[derive(Debug)]
pub struct Alterable {
    /// The key's name.
    pub name: &'static str,
    /// Kafka's name.
    pub kafka_name: &'static str,
    /// How Kafka writes its value.
    pub unit: KafkaUnit,
}

const fn alterable(name: &'static str, kafka_name: &'static str, unit: KafkaUnit) -> Alterable {
    Alterable {
        name,
        kafka_name,
        unit,
    }
}

use KafkaUnit::{Bytes, Count, Milliseconds, MillisecondsOrNever, Minutes, Switch, TextOrNone};

/// Every key that may change while the broker runs, by name.
pub const ALTERABLE: &[Alterable] = &[
    alterable(
        "compaction.check_interval",
        "log.cleaner.backoff.ms",
        Milliseconds,
    ),
    alterable("consumers.max_members", "group.max.size", Count),
    alterable(
        "kafka.auto_create_dead_letters",
        "errors.deadletterqueue.auto.create.topics.enable",
        Switch,
    ),
    alterable(
        "kafka.auto_create_topics",
        "auto.create.topics.enable",
        Switch,
    ),
    alterable(
        "kafka.consumer_heartbeat",
        "group.consumer.heartbeat.interval.ms",
        Milliseconds,
    ),
    alterable(
        "kafka.consumer_session",
        "group.consumer.session.timeout.ms",
        Milliseconds,
    ),
    alterable(
        "kafka.dead_letter_prefix",
        "errors.deadletterqueue.topic.name.prefix",
        TextOrNone,
    ),
    alterable("kafka.default_partitions", "num.partitions", Count),
    alterable(
        "kafka.group_initial_rebalance_delay",
        "group.initial.rebalance.delay.ms",
        Milliseconds,
    ),
    alterable("kafka.max_request_bytes", "socket.request.max.bytes", Bytes),
    alterable(
        "kafka.offsets_retention",
        "offsets.retention.minutes",
        Minutes,
    ),
    alterable(
        "kafka.session_max",
        "group.max.session.timeout.ms",
        Milliseconds,
    ),
    alterable(
        "kafka.session_min",
        "group.min.session.timeout.ms",
        Milliseconds,
    ),
    alterable(
        "retention.check_interval",
        "log.retention.check.interval.ms",
        Milliseconds,
    ),
    alterable(
        "server.connection_creation_rate",
        "max.connection.creation.rate",
        Count,
    ),
    alterable(
        "server.idle_timeout",
        "connections.max.idle.ms",
        MillisecondsOrNever,
    ),
    alterable("server.max_connections", "max.connections", Count),
    alterable(
        "server.max_connections_per_address",
        "max.connections.per.ip",
        Count,
    ),
    alterable(
        "server.max_connections_per_address_overrides",
        "max.connections.per.ip.overrides",
        TextOrNone,
    ),
    alterable(
        "storage.flush_interval",
        "log.flush.interval.ms",
        Milliseconds,
    ),
    alterable(
        "transactions.max_timeout",
        "transaction.max.timeout.ms",
        Milliseconds,
    ),
    alterable(
        "transactions.two_phase_commit",
        "transaction.two.phase.commit.enable",
        Switch,
    ),
];

impl Alterable {
    /// The key of a name, Kera's or Kafka's.
    pub fn find(name: &str) -> Option<&'static Alterable> {
        ALTERABLE
            .iter()
            .find(|one| one.name == name || one.kafka_name == name)
    }

    /// A value in Kafka's form, as Kera writes it.
    ///
    /// # Errors
    /// Says what is wrong with the text. Whether the value is in range is checked elsewhere.
    pub fn from_kafka(&self, text: &str) -> Result<String, String> {
        let text = text.trim();
        match (self.unit, text) {
            (Switch, _) => return Ok(text.to_ascii_lowercase()),
            (TextOrNone, "") => return Ok("off".to_owned()),
            (TextOrNone, _) => return Ok(text.to_owned()),
            _ => {}
        }
        let number: i64 = text
            .parse()
            .map_err(|_| format!("`{text}` is not a whole number"))?;
        let unit = match self.unit {
            Switch | Count | Bytes | TextOrNone => "",
            Milliseconds | MillisecondsOrNever => "ms",
            Minutes => "m",
        };
        match number {
            0 if unit.is_empty() => Ok("0".to_owned()),
            0 if self.unit == MillisecondsOrNever => {
                Err("0 would close every connection at once; -1 is never".to_owned())
            }
            0 => Ok("0".to_owned()),
            number if number > 0 => Ok(format!("{number}{unit}")),
            _ if self.unit == MillisecondsOrNever => Ok("0".to_owned()),
            number => Err(format!("{number} is negative")),
        }
    }

    /// The key's value in a configuration, as Kafka writes it. What is no whole number of minutes is
    /// rounded down.
    pub fn kafka_value(&self, config: &BrokerConfig) -> String {
        let shown = self.value(config);
        let time = || units::parse_duration(&shown).unwrap_or(Duration::ZERO);
        match self.unit {
            Switch | Count => shown,
            TextOrNone if shown == "off" => String::new(),
            TextOrNone => shown,
            Bytes => units::parse_size(&shown).map_or(shown, |bytes| bytes.to_string()),
            MillisecondsOrNever if time().is_zero() => "-1".to_owned(),
            Milliseconds | MillisecondsOrNever => time().as_millis().to_string(),
            Minutes => (time().as_secs() / 60).to_string(),
        }
    }

    /// The key's value in a configuration, as Kera writes it.
    pub fn value(&self, config: &BrokerConfig) -> String {
        self.key()
            .map_or_else(String::new, |key| key.value_in(config))
    }

    /// What the key means.
    pub fn about(&self) -> String {
        self.key().map_or_else(String::new, Key::paragraph)
    }

    fn key(&self) -> Option<&'static Key> {
        Key::find(self.name)
    }
}

impl BrokerConfig {
    /// Sets one key that may change while the broker runs.
    ///
    /// # Errors
    /// A name that is none of those, or a value that is not one of the key's.
    pub fn alter(&mut self, name: &str, value: &str) -> Result<(), String> {
        let key = Alterable::find(name).and_then(Alterable::key);
        let Some(key) = key else {
            return Err(format!("{name} cannot change while the broker runs"));
        };
        (key.set)(self, value, &key.limits).map_err(|error| format!("{}: {error}", key.name))
    }

    /// Sets several such keys and checks what they are together.
    ///
    /// # Errors
    /// Each value that is not one of its key's, or what does not go together.
    pub fn alter_all(&mut self, values: &BTreeMap<String, String>) -> Result<(), Vec<String>> {
        let outcomes = values.iter().map(|(name, value)| self.alter(name, value));
        let wrong: Vec<String> = outcomes.filter_map(Result::err).collect();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        check_sessions(self).map_err(|(name, message)| vec![format!("{name} {message}")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_reads_back_from_kafkas_form() {
        let names: Vec<_> = ALTERABLE.iter().map(|one| one.name).collect();
        assert!(names.is_sorted(), "{names:?}");
        for one in ALTERABLE {
            assert!(Key::find(one.name).is_some(), "{}", one.name);
            assert!(Alterable::find(one.kafka_name).is_some_and(|found| found.name == one.name));
            let mut config = BrokerConfig::default();
            let kafka = one.kafka_value(&config);
            let back = one.from_kafka(&kafka).unwrap();
            config.alter(one.name, &back).unwrap();
            assert_eq!(config, BrokerConfig::default(), "{} = {kafka}", one.name);
        }
    }

    #[test]
    fn never_is_negative_in_kafka_and_0_here() {
        let idle = Alterable::find("connections.max.idle.ms").unwrap();
        assert_eq!(idle.from_kafka("-1"), Ok("0".to_owned()));
        assert!(idle.from_kafka("0").is_err());
        let mut config = BrokerConfig::default();
        config.alter("server.idle_timeout", "0").unwrap();
        assert_eq!(idle.kafka_value(&config), "-1");
        let size = Alterable::find("group.max.size").unwrap();
        assert!(size.from_kafka("-1").is_err() && size.from_kafka("1k").is_err());
    }

    #[test]
    fn what_does_not_go_together_is_refused_and_so_is_what_is_fixed() {
        let values = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            pairs.collect::<BTreeMap<_, _>>()
        };
        let check = |pairs: &[(&str, &str)]| BrokerConfig::default().alter_all(&values(pairs));
        assert_eq!(check(&[("kafka.session_min", "10s")]), Ok(()));
        let crossed = check(&[("kafka.session_min", "10m"), ("kafka.session_max", "5m")]);
        assert!(crossed.unwrap_err()[0].contains("above kafka.session_max"));
        let wrong = check(&[("data_dir", "/x"), ("server.max_connections", "0")]).unwrap_err();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("data_dir cannot change"));
        assert!(wrong[1].contains("out of range"));
    }
}
