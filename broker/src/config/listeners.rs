//! Kinds of listeners, as `insecure` names them.

use std::fmt;

use super::kinds::{Kind, Limits};

/// A kind of listener, as `insecure` names it.
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

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Listeners that may be open to everybody: `Vec<Listener>`.
pub(super) enum OpenListeners {}

impl Kind for OpenListeners {
    type Value = Vec<Listener>;
    const FORM: &'static str = "`true` for all, `false`, or `native`, `kafka`, `http`, `cluster`, several with commas between them (in a file also a list)";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<Listener>, String> {
        match text.trim() {
            "" | "false" => return Ok(Vec::new()),
            "true" => return Ok(Listener::ALL.to_vec()),
            _ => {}
        }
        let mut listeners = Vec::new();
        for part in text.split(',').map(str::trim) {
            let known = Listener::ALL.into_iter().find(|one| one.name() == part);
            let listener = known.ok_or_else(|| {
                format!("`{part}` is no listener; write native, kafka, http, cluster, or true or false alone")
            })?;
            if !listeners.contains(&listener) {
                listeners.push(listener);
            }
        }
        Ok(listeners)
    }

    fn show(value: &Vec<Listener>) -> String {
        if value.is_empty() {
            return "false".to_owned();
        }
        if Listener::ALL.iter().all(|one| value.contains(one)) {
            return "true".to_owned();
        }
        let names: Vec<_> = value.iter().map(|one| one.name()).collect();
        names.join(",")
    }
}
