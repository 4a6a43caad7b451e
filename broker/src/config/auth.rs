//! Kinds of keys about authentication.

use kera_rpc::SaslMechanism;

use super::kinds::{Kind, Limits};
use super::listeners::Listener;

/// Mechanisms: `Vec<SaslMechanism>`.
pub(super) enum Mechanisms {}

impl Kind for Mechanisms {
    type Value = Vec<SaslMechanism>;
    const FORM: &'static str = "`SCRAM-SHA-256`, `SCRAM-SHA-512`, `PLAIN` and `OAUTHBEARER`, with commas between them (in a file also a list)";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<SaslMechanism>, String> {
        let mut mechanisms = Vec::new();
        for part in text.split(',').map(str::trim) {
            let mechanism = SaslMechanism::named(part).ok_or_else(|| {
                format!("`{part}` is no mechanism; write SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or OAUTHBEARER")
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

/// Listeners that ask for a password: `Vec<Listener>`, empty for `off`.
pub(super) enum AuthListeners {}

impl Kind for AuthListeners {
    type Value = Vec<Listener>;
    const FORM: &'static str =
        "`native`, `kafka` and `http`, with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<Listener>, String> {
        let text = text.trim();
        if text.is_empty() || text == "off" {
            return Ok(Vec::new());
        }
        let mut listeners = Vec::new();
        for part in text.split(',').map(str::trim) {
            let listener = match part {
                "native" => Listener::Native,
                "kafka" => Listener::Kafka,
                "http" => Listener::Http,
                _ => {
                    return Err(format!(
                        "`{part}` is no listener with passwords; write native, kafka, http, or off alone"
                    ));
                }
            };
            if !listeners.contains(&listener) {
                listeners.push(listener);
            }
        }
        Ok(listeners)
    }

    fn show(value: &Vec<Listener>) -> String {
        let names: Vec<String> = value.iter().map(Listener::to_string).collect();
        match names.is_empty() {
            true => "off".to_owned(),
            false => names.join(","),
        }
    }
}
