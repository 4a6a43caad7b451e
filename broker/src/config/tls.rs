//! Kinds of keys about TLS.

use std::fmt;

use super::kinds::{Kind, Limits};
use super::listeners::Listener;

/// A kind of listener that may have TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsListener {
    /// `server.listen`.
    Native,
    /// The addresses of `kafka.listen`.
    Kafka,
    /// `http.listen`.
    Http,
    /// `cluster.listen`.
    Cluster,
}

impl TlsListener {
    const ALL: [Self; 4] = [Self::Native, Self::Kafka, Self::Http, Self::Cluster];

    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Kafka => "kafka",
            Self::Http => "http",
            Self::Cluster => "cluster",
        }
    }

    /// The key that says where it listens.
    pub(crate) fn key(self) -> &'static str {
        self.kind().key()
    }

    /// The listener as other keys name it.
    pub(crate) fn kind(self) -> Listener {
        match self {
            Self::Native => Listener::Native,
            Self::Kafka => Listener::Kafka,
            Self::Http => Listener::Http,
            Self::Cluster => Listener::Cluster,
        }
    }
}

impl fmt::Display for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Listeners that have TLS: `Vec<TlsListener>`, empty for `off`.
pub(super) enum TlsListeners {}

impl Kind for TlsListeners {
    type Value = Vec<TlsListener>;
    const FORM: &'static str = "`native`, `kafka`, `http` and `cluster`, with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<TlsListener>, String> {
        let text = text.trim();
        if text.is_empty() || text == "off" {
            return Ok(Vec::new());
        }
        let mut listeners = Vec::new();
        for part in text.split(',').map(str::trim) {
            let known = TlsListener::ALL.into_iter().find(|one| one.name() == part);
            let listener = known.ok_or_else(|| {
                format!("`{part}` is no listener; write native, kafka, http, cluster, or off alone")
            })?;
            if !listeners.contains(&listener) {
                listeners.push(listener);
            }
        }
        Ok(listeners)
    }

    fn show(value: &Vec<TlsListener>) -> String {
        match value.is_empty() {
            true => "off".to_owned(),
            false => value
                .iter()
                .map(|one| one.name())
                .collect::<Vec<_>>()
                .join(","),
        }
    }
}
