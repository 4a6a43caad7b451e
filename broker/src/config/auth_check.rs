//! What the keys about authentication need of others.

use super::auth::SaslMechanism;
use super::cluster::is_loopback;
use super::keys::BrokerConfig;
use super::tls::TlsListener;

/// What is wrong between the keys of `[auth]` and others: the key and what to do.
pub(super) fn check_auth(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    if !config.auth.listeners {
        return Ok(());
    }
    if config.kafka.listen.is_empty() {
        let problem = "has kafka but kafka.listen is off; set kafka.listen, or turn this off";
        return Err(("auth.listeners", problem.to_owned()));
    }
    if config.auth.mechanisms.contains(&SaslMechanism::Plain) && is_open(config) {
        let problem = "has PLAIN, which sends the password itself, and kafka.listen is neither loopback nor has TLS; add kafka to tls.listeners, or take PLAIN out";
        return Err(("auth.mechanisms", problem.to_owned()));
    }
    Ok(())
}

/// Others may listen on the way to Kafka's listeners.
fn is_open(config: &BrokerConfig) -> bool {
    let has_tls = config.tls.listeners.contains(&TlsListener::Kafka);
    let mut addresses = config.kafka.listen.iter();
    !has_tls && !addresses.all(|address| is_loopback(address))
}

/// What is allowed and leaves more open than it may seem.
pub(super) fn doubt(config: &BrokerConfig) -> Option<String> {
    let is_doubtful = config.auth.listeners && is_open(config);
    is_doubtful.then(|| {
        "auth.listeners asks Kafka's clients for passwords, and kafka.listen has no TLS: passwords are not sent by SCRAM, but everything else can be read and changed on the way; add kafka to tls.listeners (docs/security.md)".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_sent_where_others_may_listen() {
        let mut config = BrokerConfig::default();
        config.auth.listeners = true;
        config.kafka.listen.clear();
        assert_eq!(check_auth(&config).unwrap_err().0, "auth.listeners");
        config.kafka.listen = vec!["127.0.0.1:9092".to_owned()];
        config.auth.mechanisms = SaslMechanism::ALL.to_vec();
        assert_eq!(check_auth(&config), Ok(()));
        assert_eq!(doubt(&config), None);
        config.kafka.listen.push("0.0.0.0:9093".to_owned());
        assert_eq!(check_auth(&config).unwrap_err().0, "auth.mechanisms");
        assert!(doubt(&config).is_some());
        config.auth.mechanisms.truncate(2);
        assert_eq!(check_auth(&config), Ok(()));
        config.tls.listeners = vec![TlsListener::Kafka];
        config.auth.mechanisms = SaslMechanism::ALL.to_vec();
        assert_eq!(check_auth(&config), Ok(()));
        assert_eq!(doubt(&config), None);
    }
}
