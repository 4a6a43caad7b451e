//! What the keys about authentication need of others.

use kera_rpc::SaslMechanism;

use super::api::OpenPath;
use super::exposure::Exposure;
use super::keys::{AuthConfig, BrokerConfig};
use super::kinds::ClientAuth;
use super::listeners::Listener;
use super::tls::TlsListener;

/// What is wrong between the keys of `[auth]` and others: the key and what to do.
pub(super) fn check_auth(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let asks = |listener| config.auth.listeners.contains(&listener);
    if asks(Listener::Kafka) && config.kafka.listen.is_empty() {
        let problem = "has kafka but kafka.listen is off; set kafka.listen, or take kafka out";
        return Err(("auth.listeners", problem.to_owned()));
    }
    if asks(Listener::Http) && config.http.listen.is_none() {
        let problem = "has http but http.listen is off; set http.listen, or take http out";
        return Err(("auth.listeners", problem.to_owned()));
    }
    check_first_user(&config.auth)?;
    if open_ones(config).contains(&Listener::Http) {
        let problem = "has http, where clients send the password itself with each request, and http.listen is neither loopback nor has TLS; add http to tls.listeners, or take http out";
        return Err(("auth.listeners", problem.to_owned()));
    }
    let has_tls = config.tls.listeners.contains(&TlsListener::Native);
    let brokers_prove = has_tls && config.tls.client_auth != ClientAuth::None;
    if asks(Listener::Native) && config.cluster.store.is_some() && !brokers_prove {
        let problem = "has native but the brokers of the cluster cannot prove to each other who they are; add native to tls.listeners, and set tls.client_auth to requested or required";
        return Err(("auth.listeners", problem.to_owned()));
    }
    let plain = config.auth.mechanisms.contains(&SaslMechanism::Plain);
    if let Some(open) = open_ones(config).into_iter().next().filter(|_| plain) {
        let problem = format!(
            "has PLAIN, which sends the password itself, and {} is neither loopback nor has TLS; add {open} to tls.listeners, or take PLAIN out",
            open.key()
        );
        return Err(("auth.mechanisms", problem));
    }
    Ok(())
}

/// What a first user needs.
fn check_first_user(auth: &AuthConfig) -> Result<(), (&'static str, String)> {
    const USER: &str = "auth.first_user";
    const FILE: &str = "auth.first_user_password_file";
    let (set, missing) = match (&auth.first_user, &auth.first_user_password_file) {
        (None, None) => return Ok(()),
        (Some(_), Some(_)) if !auth.listeners.is_empty() => return Ok(()),
        (Some(_), Some(_)) => (USER, "auth.listeners"),
        (Some(_), None) => (USER, FILE),
        (None, Some(_)) => (FILE, USER),
    };
    Err((
        set,
        format!("is set but {missing} is off; set both, or none"),
    ))
}

/// Listeners with passwords where others may listen on the way.
fn open_ones(config: &BrokerConfig) -> Vec<Listener> {
    let mut open = Vec::new();
    for one in Exposure::all(config) {
        let asks = config.auth.listeners.contains(&one.listener);
        if asks && !one.is_loopback && !one.has_tls && !open.contains(&one.listener) {
            open.push(one.listener);
        }
    }
    open
}

/// What is allowed and leaves more open than it may seem.
pub(super) fn doubts(config: &BrokerConfig) -> impl Iterator<Item = String> {
    let open = &config.http.open_paths;
    let asks = config.auth.listeners.contains(&Listener::Http);
    // `off` says it plainly.
    let closes_probes = asks && !open.is_empty() && !open.contains(&OpenPath::Probes);
    let probes = closes_probes.then(|| {
        "http.open_paths opens metrics and leaves out probes, so /livez and /readyz ask for a password, which kubelets and load balancers do not give; write `probes,metrics` to keep them open".to_owned()
    });
    let open = open_ones(config).into_iter().map(|open| {
        format!(
            "auth.listeners asks clients for passwords, and {} has no TLS: passwords are not sent by SCRAM, but everything else can be read and changed on the way; add {open} to tls.listeners (docs/security.md)",
            open.key()
        )
    });
    open.chain(probes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubted(config: &BrokerConfig) -> usize {
        doubts(config).count()
    }

    #[test]
    fn a_password_is_not_sent_where_others_may_listen() {
        let mut config = BrokerConfig::default();
        config.auth.listeners = vec![Listener::Kafka];
        config.kafka.listen.clear();
        assert_eq!(check_auth(&config).unwrap_err().0, "auth.listeners");
        config.kafka.listen = vec!["127.0.0.1:9092".to_owned()];
        config.auth.mechanisms = SaslMechanism::ALL.to_vec();
        assert_eq!(check_auth(&config), Ok(()));
        assert_eq!(doubted(&config), 0);
        config.kafka.listen.push("0.0.0.0:9093".to_owned());
        assert_eq!(check_auth(&config).unwrap_err().0, "auth.mechanisms");
        assert_eq!(doubted(&config), 1);
        config.auth.mechanisms.truncate(2);
        assert_eq!(check_auth(&config), Ok(()));
        config.tls.listeners = vec![TlsListener::Kafka];
        config.auth.mechanisms = SaslMechanism::ALL.to_vec();
        assert_eq!(check_auth(&config), Ok(()));
        assert_eq!(doubted(&config), 0);
        // The native listener is another, and has no TLS.
        config.server.listen = "0.0.0.0:7600".to_owned();
        assert_eq!(check_auth(&config), Ok(()), "it asks nobody");
        config.auth.listeners.push(Listener::Native);
        assert!(check_auth(&config).unwrap_err().1.contains("server.listen"));
        assert_eq!(doubted(&config), 1);
    }

    #[test]
    fn a_password_of_every_request_takes_tls_or_loopback() {
        let mut config = BrokerConfig::default();
        config.auth.listeners = vec![Listener::Http];
        assert_eq!(check_auth(&config), Ok(()));
        config.http.listen = None;
        assert!(check_auth(&config).unwrap_err().1.contains("is off"));
        config.http.listen = Some("0.0.0.0:7680".to_owned());
        let (key, told) = check_auth(&config).unwrap_err();
        assert_eq!(key, "auth.listeners");
        assert!(told.contains("add http to tls.listeners"), "{told}");
        // Nobody may accept that by the way: a password is not only the broker's.
        config.insecure = Listener::ALL.to_vec();
        assert!(check_auth(&config).is_err());
        config.tls.listeners = vec![TlsListener::Http];
        assert_eq!(check_auth(&config), Ok(()));
        assert_eq!(doubted(&config), 0);
        // Probes are left out by whoever meant to add metrics; who opens nothing means it.
        config.http.open_paths = vec![OpenPath::Metrics];
        assert!(doubts(&config).any(|told| told.contains("probes,metrics")));
        for open in [vec![], vec![OpenPath::Probes, OpenPath::Metrics]] {
            config.http.open_paths = open;
            assert_eq!(doubted(&config), 0);
        }
        config.http.open_paths = vec![OpenPath::Metrics];
        config.auth.listeners.clear();
        assert_eq!(doubted(&config), 0, "nobody is asked");
    }

    #[test]
    fn a_first_user_has_a_password_and_is_asked_for() {
        let mut config = BrokerConfig::default();
        config.auth.first_user = Some("admin".to_owned());
        let (key, told) = check_auth(&config).unwrap_err();
        assert_eq!(key, "auth.first_user");
        assert!(
            told.contains("auth.first_user_password_file is off"),
            "{told}"
        );
        config.auth.first_user_password_file = Some("/password".into());
        assert!(
            check_auth(&config)
                .unwrap_err()
                .1
                .contains("auth.listeners is off")
        );
        config.auth.listeners = vec![Listener::Native];
        assert_eq!(check_auth(&config), Ok(()));
        config.auth.first_user = None;
        assert_eq!(
            check_auth(&config).unwrap_err().0,
            "auth.first_user_password_file"
        );
    }

    #[test]
    fn brokers_of_a_cluster_prove_who_they_are_by_certificates() {
        let mut config = BrokerConfig::default();
        config.auth.listeners = vec![Listener::Native];
        assert_eq!(check_auth(&config), Ok(()));
        config.cluster.store = Some("etcd://127.0.0.1:2379".to_owned());
        assert!(check_auth(&config).unwrap_err().1.contains("prove"));
        config.tls.listeners = vec![TlsListener::Native];
        assert!(check_auth(&config).is_err(), "TLS alone proves nothing");
        config.tls.client_auth = ClientAuth::Requested;
        assert_eq!(check_auth(&config), Ok(()));
    }
}
