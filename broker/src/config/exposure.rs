//! What each listener lets in, and which of them a broker refuses to open.

use std::fmt;

use kera_rpc::SaslMechanism;

use super::api::OpenPath;
use super::cluster::is_loopback;
use super::keys::BrokerConfig;
use super::kinds::ClientAuth;
use super::listeners::{Insecure, Listener};
use super::named::{ListenerName, NamedAddress};
use super::security::Security;
use super::tls::TlsListener;

/// What an open listener does: where, for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Which one.
    pub listener: Listener,
    /// The name of the address, if it has one.
    pub name: Option<ListenerName>,
    /// Where it listens.
    pub address: String,
    /// Only programs on this machine reach it.
    pub is_loopback: bool,
    /// Connections are encrypted.
    pub has_tls: bool,
    /// Clients log in, by one of these ways, over HTTP by any.
    pub logins: Option<Vec<SaslMechanism>>,
    /// Clients prove who they are, or who has proved nothing may do only what rules allow to everybody.
    pub is_guarded: bool,
    /// Who is let in, and to what, for people.
    pub lets_in: String,
}

impl Exposure {
    /// All that a configuration opens, address by address.
    pub fn all(config: &BrokerConfig) -> Vec<Self> {
        let native = config.server.listen.iter();
        let native = native.map(|address| Self::of_clients(config, Listener::Native, address));
        let mut all: Vec<_> = native.collect();
        let kafka = config.kafka.listen.iter();
        all.extend(kafka.map(|address| Self::of_clients(config, Listener::Kafka, address)));
        if let Some(address) = &config.http.listen {
            let asks = config.auth.listeners.contains(&Listener::Http);
            all.push(Self {
                listener: Listener::Http,
                name: None,
                logins: asks.then(Vec::new),
                address: address.clone(),
                is_loopback: is_loopback(address),
                has_tls: config.tls.listeners.contains(&TlsListener::Http),
                is_guarded: asks,
                lets_in: of_http(config),
            });
        }
        if config.cluster.store.is_some() {
            let has_tls = config.tls.listeners.contains(&TlsListener::Cluster);
            let who = match (has_tls, config.acl.enabled) {
                (false, _) => "everybody",
                (true, false) => {
                    "brokers: whoever has a certificate of an authority in tls.broker_ca"
                }
                (true, true) => {
                    "brokers: users in acl.super_users with a certificate of an authority in tls.broker_ca"
                }
            };
            all.push(Self {
                listener: Listener::Cluster,
                name: None,
                logins: None,
                address: config.cluster.listen.clone(),
                is_loopback: is_loopback(&config.cluster.listen),
                has_tls,
                is_guarded: has_tls,
                lets_in: format!("{who}, to write and read replicas"),
            });
        }
        all
    }

    fn of_clients(config: &BrokerConfig, listener: Listener, at: &NamedAddress) -> Self {
        let Security {
            has_tls,
            client_auth: certificates,
            asks,
            mechanisms,
        } = config.security_at(listener, at.name.as_ref());
        let address = &at.address;
        let proof = of_logins(&mechanisms);
        let proves = asks || certificates == ClientAuth::Required;
        let who = match (asks, certificates) {
            (true, ClientAuth::Required | ClientAuth::Requested)
                if listener == Listener::Native =>
            {
                format!("users with a certificate or {proof}")
            }
            (true, ClientAuth::Required) => format!("users with a certificate and {proof}"),
            (true, _) => format!("users with {proof}"),
            (false, ClientAuth::Required) => "clients with a certificate".to_owned(),
            (false, ClientAuth::Requested) => {
                "everybody, with a certificate or without one".to_owned()
            }
            (false, ClientAuth::None) => "everybody".to_owned(),
        };
        let acl = &config.acl;
        let what = match (acl.enabled, acl.allow_without_rule) {
            (false, _) => "to everything",
            (true, true) => "to what no rule denies",
            (true, false) => "to what rules allow",
        };
        Self {
            listener,
            name: at.name.clone(),
            address: address.clone(),
            is_loopback: is_loopback(address),
            logins: asks.then_some(mechanisms),
            has_tls,
            is_guarded: proves || (acl.enabled && !acl.allow_without_rule),
            lets_in: format!("{who}, {what}"),
        }
    }

    /// The address with its name.
    fn shown(&self) -> String {
        let at = NamedAddress {
            name: self.name.clone(),
            address: self.address.clone(),
        };
        at.to_string()
    }

    /// Anyone who can connect to the machine can use it.
    fn is_open(&self) -> bool {
        !self.is_loopback && !self.is_guarded
    }

    /// Why a broker does not open it, and what to do.
    fn refusal(&self) -> String {
        let (key, address) = (self.listener.key(), self.shown());
        let lets_in = &self.lets_in;
        if let Some(name) = &self.name {
            return format!(
                "{key}: {address} is beyond loopback and lets in {lets_in}; listen on 127.0.0.1, or have clients prove who they are by passwords (listeners.protocols = {name}=SASL_SSL) or certificates (listeners.client_auth = {name}=required); to accept it as it is, say so with --insecure {name}, KERA_INSECURE={name} or insecure = \"{name}\" (docs/security.md)"
            );
        }
        let remedy = match self.listener {
            Listener::Native => {
                "have clients prove who they are by passwords (auth.listeners = native) or certificates (tls.client_auth = required)"
            }
            Listener::Kafka => {
                "have clients prove who they are by passwords (auth.listeners = kafka) or certificates (tls.client_auth = required)"
            }
            Listener::Http => {
                "have clients prove who they are by passwords (http in auth.listeners and in tls.listeners), or keep others off it by a firewall or a proxy"
            }
            Listener::Cluster => {
                "have brokers prove who they are by certificates (cluster in tls.listeners)"
            }
        };
        let name = self.listener;
        format!(
            "{key}: {address} is beyond loopback and lets in {lets_in}; listen on 127.0.0.1, or {remedy}; to accept it as it is, say so with --insecure {name}, KERA_INSECURE={name} or insecure = \"{name}\" (docs/security.md)"
        )
    }
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, address) = (self.listener.key(), self.shown());
        let reach = match self.is_loopback {
            true => "from this machine",
            false => "from wherever it is reached",
        };
        let tls = match self.has_tls {
            true => "with TLS",
            false => "without TLS",
        };
        let lets_in = &self.lets_in;
        write!(f, "{key} {address}, {reach}, {tls}: lets in {lets_in}")
    }
}

/// What logins of users prove who they are by, for people.
fn of_logins(mechanisms: &[SaslMechanism]) -> &'static str {
    let is_token = |one: &SaslMechanism| *one == SaslMechanism::OauthBearer;
    match mechanisms.iter().any(is_token) {
        true if mechanisms.iter().all(is_token) => "a token",
        true => "a password or a token",
        false => "a password",
    }
}

/// Who is let in at `http.listen`, and to what, for people.
fn of_http(config: &BrokerConfig) -> String {
    let open = &config.http.open_paths;
    let mut everybody = Vec::new();
    let mut users = Vec::new();
    let asks = config.auth.listeners.contains(&Listener::Http);
    for (path, name) in [(OpenPath::Metrics, "metrics"), (OpenPath::Probes, "probes")] {
        match asks && !open.contains(&path) {
            true => users.push(name),
            false => everybody.push(name),
        }
    }
    let mut parts = Vec::new();
    if !everybody.is_empty() {
        parts.push(format!("everybody, to {}", everybody.join(" and ")));
    }
    let shown = config.api.enabled;
    if asks {
        users.extend(shown.then_some("console and API"));
        let rules = match config.acl.enabled {
            true => ", as far as rules allow",
            false => "",
        };
        if !users.is_empty() {
            let users = users.join(", ");
            parts.push(format!("users with a password, to {users}{rules}"));
        }
    } else if shown {
        parts.push("console and API to programs on this machine".to_owned());
    }
    parts.join("; ")
}

/// The listeners in `opened` that anyone on the network could use and that `insecure` does not name: the key of each, and
/// why it is refused.
pub(super) fn refused(config: &BrokerConfig, opened: &[Listener]) -> Vec<(&'static str, String)> {
    let all = Exposure::all(config).into_iter();
    let open = all.filter(|one| opened.contains(&one.listener) && one.is_open());
    let refused = open.filter(|one| !is_accepted(config, one));
    refused
        .map(|one| (one.listener.key(), one.refusal()))
        .collect()
}

fn is_accepted(config: &BrokerConfig, one: &Exposure) -> bool {
    let by_name = one.name.clone().map(Insecure::Named);
    let mut ways = by_name.into_iter();
    config.insecure.contains(&Insecure::Listener(one.listener))
        || ways.any(|way| config.insecure.contains(&way))
}

/// What is accepted and lets everybody in, for people.
pub(super) fn doubt(config: &BrokerConfig) -> Option<String> {
    let all = Exposure::all(config).into_iter();
    let open = all.filter(|one| one.is_open() && is_accepted(config, one));
    let lines: Vec<String> = open.map(|one| one.to_string()).collect();
    let any = !lines.is_empty();
    any.then(|| {
        format!(
            "as insecure says, nobody is asked who they are: {}",
            lines.join("; ")
        )
    })
}

#[cfg(test)]
#[path = "exposure_tests.rs"]
mod tests;
