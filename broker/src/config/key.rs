//! What is known of a configuration key.

use super::keys::{BrokerConfig, KEYS};
use super::kinds::Limits;

/// A configuration key: how it is named, what it means and which values it takes.
#[derive(Debug)]
pub struct Key {
    /// The name as files write it, such as `server.listen`.
    pub name: &'static str,
    /// The section the key stands in; empty for keys at the top of the file.
    pub section: &'static str,
    /// What the key means, as lines of text.
    pub doc: &'static [&'static str],
    /// What to write, for people.
    pub form: &'static str,
    /// The default as it would be written.
    pub default: &'static str,
    /// The limits of ordered kinds.
    pub limits: Limits,
    pub(super) show_limits: fn(&Limits) -> String,
    pub(super) set: fn(&mut BrokerConfig, &str, &Limits) -> Result<(), String>,
    pub(super) show: fn(&BrokerConfig) -> String,
    pub(super) bare: bool,
    pub(super) list: bool,
}

impl Key {
    /// The key of a name, if there is one.
    pub fn find(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The environment variable that sets the key: `KERA_SERVER_LISTEN` for `server.listen`.
    pub fn env(&self) -> String {
        env_of(self.name)
    }

    /// The flag of `kera serve` that sets the key, without dashes: `server-listen`.
    pub fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }

    /// A second, shorter flag that sets the key, without dashes.
    pub fn short_flag(&self) -> Option<&'static str> {
        match self.name {
            "server.listen" => Some("listen"),
            "cluster.broker_id" => Some("broker-id"),
            "cluster.listen" => Some("replication-listen"),
            "cluster.store" => Some("cluster"),
            "cluster.rack" => Some("rack"),
            "cluster.allow_same_host" => Some("allow-same-host"),
            _ => None,
        }
    }

    /// The name without its section.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// The limits for people; empty when the kind has none.
    pub fn limits_text(&self) -> String {
        (self.show_limits)(&self.limits)
    }

    /// The key's value in a configuration, as it would be written.
    pub fn value_in(&self, config: &BrokerConfig) -> String {
        (self.show)(config)
    }

    /// The whole meaning as one paragraph.
    pub fn paragraph(&self) -> String {
        let mut text = String::new();
        for line in self.doc {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line.trim());
        }
        text
    }
}

/// The environment variable of a key's name.
pub(super) fn env_of(name: &str) -> String {
    format!("KERA_{}", name.replace('.', "_").to_uppercase())
}
