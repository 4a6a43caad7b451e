//! What the keys about TLS need of each other, and of others.

use super::keys::BrokerConfig;
use super::kinds::{ClientAuth, TransportChoice};
use super::tls::TlsListener;

/// What is wrong with TLS at the native listener of a broker that does not know whom to trust among the others.
pub(crate) const NEEDS_BROKER_CA: &str = "has native but tls.broker_ca is off: the brokers that share cluster.store call each other at their native addresses; name the certificate of the authority that signed the brokers' certificates there";

/// What is wrong between the keys of `[tls]` and others: the key and what to do, one at a time.
pub(super) fn check_tls(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let tls = &config.tls;
    let files = [
        ("tls.certificate", tls.certificate.is_some()),
        ("tls.key", tls.key.is_some()),
    ];
    let wants_clients = config.wants_certificates();
    let (listeners, has_ca) = (&tls.listeners, tls.client_ca.is_some());
    let knows_brokers = tls.broker_ca.is_some();
    if !config.has_tls() {
        let unused = files.into_iter().chain([("tls.client_ca", has_ca)]);
        let unused = unused.chain([
            ("tls.client_auth", wants_clients),
            ("tls.broker_ca", knows_brokers),
            ("cluster.trusted_fabric", config.cluster.trusted_fabric),
        ]);
        return match unused.into_iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err((
                key,
                "is set but tls.listeners is off, so nothing would be encrypted; set tls.listeners, such as to native, or remove this".to_owned(),
            )),
            None => Ok(()),
        };
    }
    if let Some((key, _)) = files.into_iter().find(|(_, is_set)| !is_set) {
        let problem = format!("is set but {key} is off; name a file in PEM there");
        return match listeners.is_empty() {
            true => Err((
                "listeners.protocols",
                format!("names TLS but {key} is off; name a file in PEM there"),
            )),
            false => Err(("tls.listeners", problem)),
        };
    }
    if wants_clients && !has_ca {
        if tls.client_auth == ClientAuth::None {
            let problem = "asks clients for certificates but tls.client_ca is off; name the certificate of the authority that signs them";
            return Err(("listeners.client_auth", problem.to_owned()));
        }
        let problem = "asks clients for certificates but tls.client_ca is off; name the certificate of the authority that signs them";
        return Err(("tls.client_auth", problem.to_owned()));
    }
    if has_ca && !wants_clients {
        let problem = "is set but tls.client_auth is none, so no client would be asked for a certificate; set tls.client_auth to required, or remove this";
        return Err(("tls.client_ca", problem.to_owned()));
    }
    if listeners.contains(&TlsListener::Kafka) && config.kafka.listen.is_empty() {
        let problem = "has kafka but kafka.listen is off; set kafka.listen, or take kafka out";
        return Err(("tls.listeners", problem.to_owned()));
    }
    if listeners.contains(&TlsListener::Http) && config.http.listen.is_none() {
        let problem = "has http but http.listen is off; set http.listen, or take http out";
        return Err(("tls.listeners", problem.to_owned()));
    }
    let clustered = config.cluster.store.is_some();
    if listeners.contains(&TlsListener::Cluster) {
        check_cluster(config)?;
    } else if config.cluster.trusted_fabric {
        let problem = "is set but tls.listeners has no cluster, so replicas have no TLS on any way; add cluster there, or remove this";
        return Err(("cluster.trusted_fabric", problem.to_owned()));
    }
    let by_calls = config.security_of_brokers().has_tls;
    let calls_brokers = clustered && (by_calls || listeners.contains(&TlsListener::Cluster));
    if calls_brokers && !knows_brokers {
        return Err(match config.asks_by_name(&config.server.listen.first) {
            Some(name) if by_calls => (
                "listeners.protocols",
                format!(
                    "gives TLS to {name}, the first address of server.listen, but tls.broker_ca is off: the brokers that share cluster.store call each other there; name the certificate of the authority that signed the brokers' certificates, or put another address first"
                ),
            ),
            _ => ("tls.listeners", NEEDS_BROKER_CA.to_owned()),
        });
    }
    if knows_brokers && !calls_brokers {
        let problem = "is set but brokers call each other with TLS only where tls.listeners has native or cluster, or a name gives TLS to the first address of server.listen, and cluster.store is set; set these, or remove this";
        return Err(("tls.broker_ca", problem.to_owned()));
    }
    Ok(())
}

/// What TLS on the way to replicas needs.
fn check_cluster(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    if config.cluster.store.is_none() {
        let problem = "has cluster but cluster.store is off, so there are no replicas on other brokers; set cluster.store, or take cluster out";
        return Err(("tls.listeners", problem.to_owned()));
    }
    if config.tls.broker_ca.is_none() {
        let problem = "has cluster but tls.broker_ca is off: brokers prove to each other who they are on the way to replicas; name the certificate of the authority that signed the brokers' certificates there";
        return Err(("tls.listeners", problem.to_owned()));
    }
    let (transport, trusted) = (config.cluster.transport, config.cluster.trusted_fabric);
    if transport == TransportChoice::Rdma && !trusted {
        let problem = "is rdma but tls.listeners has cluster: network cards write replicas without TLS; set tcp or auto, or, if only brokers are on the network of the cards, cluster.trusted_fabric";
        return Err(("cluster.transport", problem.to_owned()));
    }
    if transport == TransportChoice::Tcp && trusted {
        let problem = "is set but cluster.transport is tcp, so no card is used; set auto or rdma, or remove this";
        return Err(("cluster.trusted_fabric", problem.to_owned()));
    }
    Ok(())
}

/// What is allowed and leaves more open than it may seem.
pub(super) fn doubts(config: &BrokerConfig) -> impl Iterator<Item = String> {
    let listeners = &config.tls.listeners;
    let is_doubtful = config.has_tls()
        && !listeners.contains(&TlsListener::Cluster)
        && config.cluster.store.is_some();
    let uncovered = is_doubtful.then(|| {
        let native = config.security_of_brokers().has_tls;
        let calls = if native { "" } else { ", nor server.listen, at which brokers call each other" };
        format!("TLS does not cover cluster.listen{calls}: records travel to replicas on other brokers without TLS; add cluster to tls.listeners (docs/security.md)")
    });
    let by_cards = config.cluster.trusted_fabric.then(|| {
        "as cluster.trusted_fabric says, only brokers are on the network of the cards that RDMA uses: whoever else is there reads records on their way to replicas, and writes replicas (docs/security.md)".to_owned()
    });
    uncovered.into_iter().chain(by_cards)
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
