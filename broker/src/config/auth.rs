//! Kinds of keys about authentication.

use std::fmt;

use kera_rpc::scram::Mechanism;

use super::kinds::{Kind, Limits};

/// A way to prove who one is, of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaslMechanism {
    /// The password itself.
    Plain,
    /// A proof of knowing it.
    Scram(Mechanism),
}

impl SaslMechanism {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::Scram(Mechanism::Sha256),
        Self::Scram(Mechanism::Sha512),
        Self::Plain,
    ];

    /// Its name in SASL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Scram(mechanism) => mechanism.name(),
        }
    }
}

impl fmt::Display for SaslMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Mechanisms: `Vec<SaslMechanism>`.
pub(super) enum Mechanisms {}

impl Kind for Mechanisms {
    type Value = Vec<SaslMechanism>;
    const FORM: &'static str = "`SCRAM-SHA-256`, `SCRAM-SHA-512` and `PLAIN`, with commas between them (in a file also a list)";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<SaslMechanism>, String> {
        let mut mechanisms = Vec::new();
        for part in text.split(',').map(str::trim) {
            let mut all = SaslMechanism::ALL.into_iter();
            let known = all.find(|one| one.name().eq_ignore_ascii_case(part));
            let mechanism = known.ok_or_else(|| {
                format!("`{part}` is no mechanism; write SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN")
            })?;
            if !mechanisms.contains(&mechanism) {
                mechanisms.push(mechanism);
            }
        }
        Ok(mechanisms)
    }

    fn show(value: &Vec<SaslMechanism>) -> String {
        let names: Vec<_> = value.iter().map(|one| one.name()).collect();
        names.join(",")
    }
}

/// Listeners that ask for a password: `bool`, whether those of Kafka's clients do.
pub(super) enum AuthListeners {}

impl Kind for AuthListeners {
    type Value = bool;
    const FORM: &'static str = "`kafka` or `off` (in a file also a list)";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<bool, String> {
        match text.trim() {
            "" | "off" => Ok(false),
            "kafka" => Ok(true),
            _ if text.contains("native") => Err(
                "passwords are not taken at the native listener yet; it knows users by their certificates: set tls.client_auth, and write kafka or off here".to_owned(),
            ),
            other => Err(format!("`{other}` is no listener with passwords; write kafka, or off")),
        }
    }

    fn show(value: &bool) -> String {
        match value {
            true => "kafka".to_owned(),
            false => "off".to_owned(),
        }
    }
}
