//! Where an etcd store is, and how it is spoken to.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::MetadataError;

/// The port that etcd listens on unless told otherwise.
const DEFAULT_PORT: u16 = 2379;
/// Most bytes of an address.
const MAX_ADDRESS: usize = 4096;

/// Settings of an [`EtcdStore`](super::EtcdStore).
#[derive(Clone, Copy, Debug)]
pub struct EtcdOptions {
    /// How long an operation is tried before it is answered with
    /// [`MetadataError::Unavailable`] or [`MetadataError::UnknownOutcome`]. One that waits for others
    /// when etcd goes away is answered within twice this time.
    pub timeout: Duration,
    /// Most operations of one of etcd's transactions, its `--max-txn-ops`.
    pub server_operations: usize,
    /// Most transactions under way at a time; those that have anything in common wait for each other.
    pub under_way: usize,
    /// Operations of transactions that may wait; more are refused as
    /// [`MetadataError::Overloaded`].
    pub queue_operations: usize,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            server_operations: 128,
            under_way: 16,
            queue_operations: 1 << 18,
        }
    }
}

/// An address such as `etcd://a:2379,b:2379/prefix`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// As it was given, for messages.
    pub(super) name: String,
    /// `host:port` of each member.
    pub(super) members: Vec<String>,
    /// What all keys begin with; ends with a slash.
    pub(super) prefix: String,
}

impl Location {
    /// # Errors
    /// What is no such address, as invalid.
    pub(super) fn parse(address: &str) -> Result<Self, MetadataError> {
        let refuse = |problem: &str| {
            let shown: String = address.chars().take(128).collect();
            Err(MetadataError::invalid(format!(
                "the store's address `{shown}` {problem}; write etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"
            )))
        };
        if address.len() > MAX_ADDRESS {
            return refuse("is too long");
        }
        let Some(rest) = address.strip_prefix("etcd://") else {
            return refuse("does not begin with etcd://");
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut members = Vec::new();
        for host in hosts.split(',') {
            let (name, port) = match host.rsplit_once(':') {
                // An IPv6 address in brackets may stand without a port.
                Some((name, port)) if !port.ends_with(']') => (name, port.parse::<u16>().ok()),
                _ => (host, Some(DEFAULT_PORT)),
            };
            let legal = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
            let (false, Some(port), true) = (name.is_empty(), port, name.chars().all(legal)) else {
                return refuse("names no host and port");
            };
            members.push(format!("{name}:{port}"));
        }
        let path = path.trim_matches('/');
        if !path
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        {
            return refuse("has a prefix with other characters than a-z A-Z 0-9 . _ - /");
        }
        let prefix = match path {
            "" => "/kera/".to_owned(),
            path => format!("/{path}/"),
        };
        Ok(Self {
            name: address.to_owned(),
            members,
            prefix,
        })
    }

    /// As errors name it.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let parsed = Location::parse("etcd://a:1,b,[::1]:3,[::1]/prod/east/").unwrap();
        assert_eq!(parsed.members, ["a:1", "b:2379", "[::1]:3", "[::1]:2379"]);
        assert_eq!(parsed.prefix, "/prod/east/");
        let parsed = Location::parse("etcd://127.0.0.1:2379").unwrap();
        assert_eq!(parsed.members, ["127.0.0.1:2379"]);
        assert_eq!(parsed.prefix, "/kera/");
    }

    #[test]
    fn what_is_no_address_is_refused_and_says_what_one_is() {
        for bad in [
            "",
            "http://a:1",
            "etcd://",
            "etcd://a:1,",
            "etcd://a:x",
            "etcd://a:99999",
            "etcd://a b:1",
            "etcd://a:1/p p",
            &format!("etcd://{}", "a".repeat(5000)),
        ] {
            let error = Location::parse(bad).unwrap_err().to_string();
            assert!(error.contains("etcd://HOST:PORT"), "{error}");
            assert!(error.len() < 400);
        }
    }
}
