//! What the keys about TLS need of each other, and of others.

use super::keys::BrokerConfig;
use super::kinds::ClientAuth;
use super::tls::TlsListener;

/// What is wrong between the keys of `[tls]` and others: the key and what to do, one at a time.
pub(super) fn check_tls(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let tls = &config.tls;
    let files = [
        ("tls.certificate", tls.certificate.is_some()),
        ("tls.key", tls.key.is_some()),
    ];
    let wants_clients = tls.client_auth != ClientAuth::None;
    let (listeners, has_ca) = (&tls.listeners, tls.client_ca.is_some());
    if listeners.is_empty() {
        let unused = files.into_iter().chain([("tls.client_ca", has_ca)]);
        let unused = unused.chain([("tls.client_auth", wants_clients)]);
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
        return Err(("tls.listeners", problem));
    }
    if wants_clients && !has_ca {
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
    if listeners.contains(&TlsListener::Native) && config.cluster.store.is_some() {
        let problem = "has native but brokers that share cluster.store call each other at their native addresses, and do not use TLS for that yet; take native out, or cluster.store";
        return Err(("tls.listeners", problem.to_owned()));
    }
    Ok(())
}

/// What is allowed and leaves more open than it may seem.
pub(super) fn doubt(config: &BrokerConfig) -> Option<String> {
    let is_doubtful = !config.tls.listeners.is_empty() && config.cluster.store.is_some();
    is_doubtful.then(|| {
        "tls.listeners does not cover the connections between brokers: records, replicas and control calls travel between server.listen and cluster.listen of brokers without TLS (docs/security.md)".to_owned()
    })
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
