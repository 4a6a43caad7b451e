//! What a client needs at each address, and names that no address has.

use kera_rpc::SaslMechanism;

use super::keys::BrokerConfig;
use super::kinds::ClientAuth;
use super::listeners::{Insecure, Listener};
use super::named::{ListenerName, NamedAddress};
use super::protocols::SecurityProtocol;
use super::tls::TlsListener;

/// The most addresses with a name: other brokers keep them in memory.
const MOST_NAMED: usize = 64;

/// What a client needs at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// Connections begin with a TLS handshake.
    pub has_tls: bool,
    /// Whether it needs a certificate; `None` without TLS.
    pub client_auth: ClientAuth,
    /// It has to log in.
    pub asks: bool,
    /// The ways to do so.
    pub mechanisms: Vec<SaslMechanism>,
}

impl Security {
    /// As Kafka calls it.
    pub fn protocol(&self) -> SecurityProtocol {
        SecurityProtocol::of(self.has_tls, self.asks)
    }
}

/// A listener with TLS that clients come in by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// Its kind.
    pub listener: TlsListener,
    /// The name of the address, if it has one.
    pub name: Option<ListenerName>,
}

impl Entrance {
    /// An address of `server.listen`.
    pub fn of_native(name: Option<ListenerName>) -> Self {
        Self {
            listener: TlsListener::Native,
            name,
        }
    }

    /// An address of `kafka.listen`.
    pub fn of_kafka(name: Option<ListenerName>) -> Self {
        Self {
            listener: TlsListener::Kafka,
            name,
        }
    }
}

impl From<TlsListener> for Entrance {
    /// An address without a name.
    fn from(listener: TlsListener) -> Self {
        Self {
            listener,
            name: None,
        }
    }
}

fn of<'a, V>(list: &'a [(ListenerName, V)], name: Option<&ListenerName>) -> Option<&'a V> {
    let name = name?;
    let mut list = list.iter();
    list.find(|(known, _)| known == name).map(|(_, one)| one)
}

impl BrokerConfig {
    /// What a client needs at an address of a listener, which has this name.
    pub fn security_at(&self, listener: Listener, name: Option<&ListenerName>) -> Security {
        let named = &self.listeners;
        let (has_tls, asks) = match of(&named.protocols, name) {
            Some(protocol) => (protocol.has_tls(), protocol.asks()),
            None => (
                self.tls.listeners.iter().any(|one| one.kind() == listener),
                self.auth.listeners.contains(&listener),
            ),
        };
        let client_auth = of(&named.client_auth, name).copied();
        let client_auth = client_auth.unwrap_or(self.tls.client_auth);
        let own = named.mechanisms.iter();
        let own = own.filter(|(known, _)| Some(known) == name);
        let mut mechanisms: Vec<_> = own.map(|(_, one)| *one).collect();
        if mechanisms.is_empty() {
            mechanisms.clone_from(&self.auth.mechanisms);
        }
        Security {
            has_tls,
            client_auth: match has_tls {
                true => client_auth,
                false => ClientAuth::None,
            },
            asks,
            mechanisms,
        }
    }

    /// The addresses that clients connect to, but for those over HTTP.
    fn addresses(&self) -> impl Iterator<Item = (Listener, &NamedAddress)> {
        let native = self.server.listen.iter();
        let kafka = self.kafka.listen.iter();
        let kafka = kafka.map(|address| (Listener::Kafka, address));
        native
            .map(|address| (Listener::Native, address))
            .chain(kafka)
    }

    /// What the other brokers need, which come to the first native address.
    pub(crate) fn security_of_brokers(&self) -> Security {
        let first = self.server.listen.first.name.as_ref();
        self.security_at(Listener::Native, first)
    }

    /// The name of an address, if `listeners.protocols` says by it what the address protects.
    pub(super) fn asks_by_name<'a>(&self, address: &'a NamedAddress) -> Option<&'a ListenerName> {
        let name = address.name.as_ref();
        name.filter(|_| of(&self.listeners.protocols, name).is_some())
    }

    /// What clients need at each of them.
    fn securities(&self) -> impl Iterator<Item = Security> {
        let all = self.addresses();
        all.map(|(listener, one)| self.security_at(listener, one.name.as_ref()))
    }

    /// True if clients have to prove by a login who they are, at some listener.
    pub fn asks_clients(&self) -> bool {
        !self.auth.listeners.is_empty() || self.securities().any(|one| one.asks)
    }

    /// The ways to log in at the listeners that ask for it.
    pub(crate) fn mechanisms_asked(&self) -> Vec<SaslMechanism> {
        let asking = self.securities().filter(|one| one.asks);
        asking.flat_map(|one| one.mechanisms).collect()
    }

    /// True if a listener has TLS.
    pub fn has_tls(&self) -> bool {
        !self.tls.listeners.is_empty() || self.securities().any(|one| one.has_tls)
    }

    /// True if clients are asked for certificates at some listener, or would be if it had TLS.
    pub fn wants_certificates(&self) -> bool {
        self.tls.client_auth != ClientAuth::None
            || self
                .securities()
                .any(|one| one.client_auth != ClientAuth::None)
    }

    /// True if tokens are taken at some listener that asks.
    pub fn takes_tokens(&self) -> bool {
        let named = self.listeners.mechanisms.iter().map(|(_, one)| one);
        let mut all = named.chain(&self.auth.mechanisms);
        all.any(|one| *one == SaslMechanism::OauthBearer)
    }

    /// The addresses with a name that have TLS, and whether clients need a certificate there.
    pub(crate) fn named_entrances(&self) -> Vec<(Entrance, ClientAuth)> {
        let named = self.addresses().filter_map(|(listener, address)| {
            let name = address.name.as_ref()?;
            let security = self.security_at(listener, Some(name));
            let entrance = Entrance {
                listener: match listener {
                    Listener::Kafka => TlsListener::Kafka,
                    _ => TlsListener::Native,
                },
                name: Some(name.clone()),
            };
            security.has_tls.then_some((entrance, security.client_auth))
        });
        named.collect()
    }
}

/// What is wrong with the names of addresses: the key and what to do.
pub(super) fn check_names(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let named = &config.listeners;
    let addresses = config.addresses();
    let mut known: Vec<_> = addresses.filter_map(|(_, one)| one.name.as_ref()).collect();
    if known.len() > MOST_NAMED {
        let problem = format!(
            "has {} addresses with names; at most {MOST_NAMED} may have one",
            known.len()
        );
        return Err(("listeners.protocols", problem));
    }
    // A name may stand in both keys, and means the same there.
    known.sort_by_key(|name| name.as_str());
    known.dedup();
    let insecure = config.insecure.iter().filter_map(|one| match one {
        Insecure::Named(name) => Some(("insecure", name)),
        _ => None,
    });
    let all = insecure
        .chain(names_of("listeners.protocols", &named.protocols))
        .chain(names_of("listeners.client_auth", &named.client_auth))
        .chain(names_of("listeners.mechanisms", &named.mechanisms))
        .chain(names_of(
            "listeners.max_connections",
            &named.max_connections,
        ));
    for (key, name) in all {
        if !known.contains(&name) {
            return Err((key, unknown(key, name, &known)));
        }
        let at = config
            .addresses()
            .filter(|(_, one)| one.name.as_ref() == Some(name));
        let at: Vec<_> = at
            .map(|(listener, _)| config.security_at(listener, Some(name)))
            .collect();
        if key == "listeners.client_auth" && !at.iter().any(|one| one.has_tls) {
            let problem = format!(
                "has {name}, which has no TLS, so no client would be asked for a certificate; write {name}=SSL or {name}=SASL_SSL in listeners.protocols, or take it out"
            );
            return Err((key, problem));
        }
        if key == "listeners.mechanisms" && !at.iter().any(|one| one.asks) {
            let problem = format!(
                "has {name}, where nobody logs in; write {name}=SASL_SSL in listeners.protocols, or take it out"
            );
            return Err((key, problem));
        }
    }
    Ok(())
}

/// Keys of all addresses of a kind by which none of them goes, for people: names say something else of each.
pub(super) fn doubts(config: &BrokerConfig) -> Vec<String> {
    let goes_by_key = |listener: Listener| {
        let mut all = config.addresses().filter(move |(of, _)| *of == listener);
        all.any(|(_, one)| config.asks_by_name(one).is_none())
    };
    let kinds = [Listener::Native, Listener::Kafka];
    let overridden = kinds.into_iter().filter(|kind| !goes_by_key(*kind));
    let unused = overridden.flat_map(|kind| {
        let of_tls = config.tls.listeners.iter().any(|one| one.kind() == kind);
        let of_auth = config.auth.listeners.contains(&kind);
        let keys = [(of_tls, "tls.listeners"), (of_auth, "auth.listeners")];
        let keys = keys.into_iter().filter(|(is_set, _)| *is_set);
        keys.map(move |(_, key)| {
            format!(
                "{key} has {kind}, by which no address of {} goes: listeners.protocols says of each by its name what it protects; take {kind} out",
                kind.key()
            )
        })
    });
    let asks = config.tls.client_auth != ClientAuth::None;
    let mut with_tls = config
        .addresses()
        .filter(|(listener, one)| config.security_at(*listener, one.name.as_ref()).has_tls);
    let goes_by_it =
        with_tls.any(|(_, one)| of(&config.listeners.client_auth, one.name.as_ref()).is_none());
    let certificates = (asks && config.has_tls() && !goes_by_it).then(|| {
        "tls.client_auth is set, and no address goes by it: none for clients has TLS, or listeners.client_auth says so of each by its name; take it out".to_owned()
    });
    unused.chain(certificates).collect()
}

fn names_of<'a, V>(
    key: &'static str,
    list: &'a [(ListenerName, V)],
) -> impl Iterator<Item = (&'static str, &'a ListenerName)> {
    list.iter().map(move |(name, _)| (key, name))
}

fn unknown(key: &str, name: &ListenerName, known: &[&ListenerName]) -> String {
    let alike = |one: &&&ListenerName| {
        let (one, name) = (one.as_str(), name.as_str());
        strsim::damerau_levenshtein(&one.to_lowercase(), &name.to_lowercase()) <= 2
    };
    let hint = match (known.iter().find(alike), known) {
        (Some(alike), _) => format!("did you mean {alike}?"),
        (None, []) => {
            format!(
                "no address has a name; write {name}=host:port in kafka.listen or server.listen"
            )
        }
        (None, known) => {
            let known: Vec<_> = known.iter().map(|one| one.as_str()).collect();
            format!(
                "the names in server.listen and kafka.listen are {}",
                known.join(", ")
            )
        }
    };
    match key {
        "insecure" => {
            format!("`{name}` is neither a listener nor etcd, nor a name of addresses; {hint}")
        }
        _ => format!("`{name}` is no name of addresses; {hint}"),
    }
}

#[cfg(test)]
#[path = "security_tests.rs"]
mod tests;
