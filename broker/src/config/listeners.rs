//! Kinds of listeners, and what `insecure` accepts.

use std::fmt;

use super::kinds::{Kind, Limits};
use super::named::ListenerName;

/// A kind of listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// `server.listen`.
    Native,
    /// The addresses of `kafka.listen`.
    Kafka,
    /// `http.listen`.
    Http,
    /// `cluster.listen`.
    Cluster,
}

impl Listener {
    /// All of a broker's.
    pub const ALL: [Self; 4] = [Self::Native, Self::Kafka, Self::Http, Self::Cluster];
    /// Those of a replica store.
    pub const OF_REPLICA_STORES: [Self; 2] = [Self::Http, Self::Cluster];

    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Kafka => "kafka",
            Self::Http => "http",
            Self::Cluster => "cluster",
        }
    }

    /// The key that says where it listens.
    pub fn key(self) -> &'static str {
        match self {
            Self::Native => "server.listen",
            Self::Kafka => "kafka.listen",
            Self::Http => "http.listen",
            Self::Cluster => "cluster.listen",
        }
    }
}

/// The listener that a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via {
    /// Its kind.
    pub listener: Listener,
    /// The name of the address, if it has one.
    pub name: Option<&'static str>,
}

impl Via {
    /// An address of this name.
    pub const fn new(listener: Listener, name: Option<&'static str>) -> Self {
        Self { listener, name }
    }
}

impl From<Listener> for Via {
    /// An address without a name.
    fn from(listener: Listener) -> Self {
        Self::new(listener, None)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, "{} ({name})", self.listener),
            None => self.listener.fmt(f),
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `insecure` accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Insecure {
    /// A listener that lets everybody in.
    Listener(Listener),
    /// The addresses of a name, which let everybody in.
    Named(ListenerName),
    /// An etcd on other machines without TLS, or to which the broker does not prove who it is, though clients are asked for
    /// a proof or have rules.
    Etcd,
}

impl Insecure {
    /// All there is.
    const ALL: [Self; 5] = [
        Self::Listener(Listener::Native),
        Self::Listener(Listener::Kafka),
        Self::Listener(Listener::Http),
        Self::Listener(Listener::Cluster),
        Self::Etcd,
    ];

    fn name(&self) -> &str {
        match self {
            Self::Listener(listener) => listener.name(),
            Self::Named(name) => name.as_str(),
            Self::Etcd => "etcd",
        }
    }
}

/// What may be insecure: `Vec<Insecure>`.
pub(super) enum Accepted {}

impl Kind for Accepted {
    type Value = Vec<Insecure>;
    const FORM: &'static str = "`true` for all, `false`, or `native`, `kafka`, `http`, `cluster`, `etcd`, names of addresses, several with commas between them (in a file also a list)";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<Insecure>, String> {
        match text.trim() {
            "" | "false" => return Ok(Vec::new()),
            "true" => return Ok(Insecure::ALL.to_vec()),
            _ => {}
        }
        let mut accepted = Vec::new();
        for part in text.split(',').map(str::trim) {
            let known = Insecure::ALL.into_iter().find(|one| one.name() == part);
            let named = || ListenerName::new(part).map(Insecure::Named);
            let one = known.map_or_else(named, Ok).map_err(|_| {
                format!("`{part}` is neither a listener nor etcd; write native, kafka, http, cluster, etcd, names of addresses, or true or false alone")
            })?;
            if !accepted.contains(&one) {
                accepted.push(one);
            }
        }
        Ok(accepted)
    }

    fn show(value: &Vec<Insecure>) -> String {
        if value.is_empty() {
            return "false".to_owned();
        }
        if Insecure::ALL.iter().all(|one| value.contains(one)) {
            return "true".to_owned();
        }
        let names: Vec<_> = value.iter().map(|one| one.name()).collect();
        names.join(",")
    }
}
