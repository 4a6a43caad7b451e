//! What the keys about authentication need of others.

use kera_rpc::SaslMechanism;

use super::api::OpenPath;
use super::exposure::Exposure;
use super::keys::BrokerConfig;
use super::kinds::ClientAuth;
use super::listeners::Listener;
use super::oauth::KeySource;

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
    check_first_user(config)?;
    let open = open_ones(config);
    if open.iter().any(|one| one.listener == Listener::Http) {
        let problem = "has http, where clients send the password itself with each request, and http.listen is neither loopback nor has TLS; add http to tls.listeners, or take http out";
        return Err(("auth.listeners", problem.to_owned()));
    }
    let of_brokers = config.security_of_brokers();
    let brokers_prove = of_brokers.client_auth != ClientAuth::None;
    if of_brokers.asks && config.cluster.store.is_some() && !brokers_prove {
        let asking = config.asks_by_name(&config.server.listen.first);
        let (key, problem) = match asking {
            Some(name) => ("listeners.protocols", format!("has the brokers of the cluster log in at {name}, the first address of server.listen, where they cannot prove to each other who they are; write {name}=SASL_SSL there, and {name}=requested or {name}=required in listeners.client_auth, or put another address first")),
            None => ("auth.listeners", "has native but the brokers of the cluster cannot prove to each other who they are; add native to tls.listeners, and set tls.client_auth to requested or required".to_owned()),
        };
        return Err((key, problem));
    }
    check_tokens(config)?;
    let sent = [
        (SaslMechanism::Plain, "password"),
        (SaslMechanism::OauthBearer, "token"),
    ];
    for one in &open {
        let ways = one.logins.as_deref().unwrap_or_default();
        let sent = sent.iter().find(|(way, _)| ways.contains(way));
        if let Some((way, what)) = sent {
            let named = &config.listeners.mechanisms;
            let is_own = named
                .iter()
                .any(|(name, _)| Some(name) == one.name.as_ref());
            let key = match is_own {
                true => "listeners.mechanisms",
                false => "auth.mechanisms",
            };
            let problem = format!(
                "has {way}, which sends the {what} itself, and {} is neither loopback nor has TLS; {}, or take {way} out",
                place(one),
                for_tls(one)
            );
            return Err((key, problem));
        }
    }
    Ok(())
}

/// An address, for people.
fn place(one: &Exposure) -> String {
    match &one.name {
        Some(name) => format!("{name} in {}", one.listener.key()),
        None => one.listener.key().to_owned(),
    }
}

/// What gives it TLS.
fn for_tls(one: &Exposure) -> String {
    match &one.name {
        Some(name) => format!("write {name}=SASL_SSL in listeners.protocols"),
        None => format!("add {} to tls.listeners", one.listener),
    }
}

/// What OAUTHBEARER needs.
fn check_tokens(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let oauth = &config.oauth;
    let needs = [
        ("oauth.issuer", oauth.issuer.is_some()),
        ("oauth.audience", !oauth.audience.is_empty()),
        ("oauth.keys", oauth.keys.is_some()),
    ];
    if !config.takes_tokens() {
        return match needs.into_iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err((
                key,
                "is set but auth.mechanisms has no OAUTHBEARER, so no token is taken; add it there, or remove this".to_owned(),
            )),
            None => Ok(()),
        };
    }
    let problem = if let Some((key, _)) = needs.into_iter().find(|(_, is_set)| !is_set) {
        format!("has OAUTHBEARER but {key} is off; set it")
    } else if !config.asks_clients() {
        "has OAUTHBEARER but auth.listeners is off; name listeners there, or take OAUTHBEARER out"
            .to_owned()
    } else {
        let by_tls = matches!(&oauth.keys, Some(KeySource::Server(uri)) if uri.scheme_str() == Some("https"));
        if by_tls != oauth.keys_ca.is_some() {
            let problem = match by_tls {
                true => {
                    "is an https URL but oauth.keys_ca is off; name the file of authorities there, such as the system's"
                }
                false => {
                    "is no https URL but oauth.keys_ca is set, so it would not be used; remove it"
                }
            };
            return Err(("oauth.keys", problem.to_owned()));
        }
        return Ok(());
    };
    Err(("auth.mechanisms", problem))
}

/// What a first user needs.
fn check_first_user(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let auth = &config.auth;
    const USER: &str = "auth.first_user";
    const FILE: &str = "auth.first_user_password_file";
    let (set, missing) = match (&auth.first_user, &auth.first_user_password_file) {
        (None, None) => return Ok(()),
        (Some(_), Some(_)) if config.asks_clients() => return Ok(()),
        (Some(_), Some(_)) => {
            let problem = "is set but nobody is asked to log in; set auth.listeners, or give a name SASL_SSL in listeners.protocols, or remove this";
            return Err((USER, problem.to_owned()));
        }
        (Some(_), None) => (USER, FILE),
        (None, Some(_)) => (FILE, USER),
    };
    Err((
        set,
        format!("is set but {missing} is off; set both, or none"),
    ))
}

/// Listeners with passwords where others may listen on the way.
fn open_ones(config: &BrokerConfig) -> Vec<Exposure> {
    let mut open: Vec<Exposure> = Vec::new();
    for one in Exposure::all(config) {
        let is_open = one.logins.is_some() && !one.is_loopback && !one.has_tls;
        let is_same = |known: &Exposure| known.listener == one.listener && known.name == one.name;
        if is_open && !open.iter().any(is_same) {
            open.push(one);
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
    let is_asked = asks || !config.asks_clients() || config.http.listen.is_none();
    let shows = config.api.enabled && !is_asked;
    let api = shows.then(|| {
        let what = match config.api.acts {
            true => "shows the records of all streams to every program on this machine, and changes streams and groups for it",
            false => "shows the records of all streams to every program on this machine",
        };
        format!("the API at http.listen {what}, while auth.listeners asks clients elsewhere who they are; add http to auth.listeners (docs/security.md)")
    });
    let open = open_ones(config).into_iter().map(|open| {
        format!(
            "clients are asked for passwords at {}, which has no TLS: passwords are not sent by SCRAM, but everything else can be read and changed on the way; {} (docs/security.md)",
            place(&open),
            for_tls(&open)
        )
    });
    open.chain(probes).chain(api)
}

#[cfg(test)]
mod tests {
    use super::super::listeners::Insecure;
    use super::super::tls::TlsListener;
    use super::*;

    fn doubted(config: &BrokerConfig) -> usize {
        doubts(config).count()
    }

    #[test]
    fn an_api_for_whoever_is_on_this_machine_is_told_where_others_are_asked() {
        let mut config = BrokerConfig::default();
        assert_eq!(doubted(&config), 0, "nobody is asked anywhere");
        config.auth.listeners = vec![Listener::Native];
        for acts in [false, true] {
            config.api.acts = acts;
            let told: Vec<_> = doubts(&config).collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0].contains("changes streams"), acts, "{told:?}");
        }
        config.auth.listeners.push(Listener::Http);
        assert_eq!(doubted(&config), 0);
        config.auth.listeners.pop();
        config.api.enabled = false;
        assert_eq!(doubted(&config), 0);
        (config.api.enabled, config.http.listen) = (true, None);
        assert_eq!(doubted(&config), 0);
    }

    #[test]
    fn a_password_is_not_sent_where_others_may_listen() {
        let mut config = BrokerConfig::default();
        config.http.listen = None;
        config.auth.listeners = vec![Listener::Kafka];
        config.kafka.listen.clear();
        assert_eq!(check_auth(&config).unwrap_err().0, "auth.listeners");
        config.kafka.listen = vec!["127.0.0.1:9092".into()];
        config.auth.mechanisms = SaslMechanism::WITH_PASSWORDS.to_vec();
        assert_eq!(check_auth(&config), Ok(()));
        assert_eq!(doubted(&config), 0);
        config.kafka.listen.push("0.0.0.0:9093".into());
        assert_eq!(check_auth(&config).unwrap_err().0, "auth.mechanisms");
        assert_eq!(doubted(&config), 1);
        config.auth.mechanisms.truncate(2);
        assert_eq!(check_auth(&config), Ok(()));
        config.tls.listeners = vec![TlsListener::Kafka];
        config.auth.mechanisms = SaslMechanism::WITH_PASSWORDS.to_vec();
        assert_eq!(check_auth(&config), Ok(()));
        assert_eq!(doubted(&config), 0);
        // The native listener is another, and has no TLS.
        config.server.listen = "0.0.0.0:7600".into();
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
        config.insecure = Listener::ALL.map(Insecure::Listener).to_vec();
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
    fn tokens_have_an_issuer_an_audience_keys_and_tls() {
        let mut config = BrokerConfig::default();
        config.oauth.issuer = Some("https://issuer.example".to_owned());
        assert_eq!(check_auth(&config).unwrap_err().0, "oauth.issuer");
        config.auth.listeners = vec![Listener::Http];
        config.auth.mechanisms = vec![SaslMechanism::OauthBearer];
        let told = |config: &BrokerConfig| check_auth(config).unwrap_err().1;
        assert!(told(&config).contains("oauth.audience is off"));
        config.oauth.audience = vec!["kera".to_owned()];
        assert!(told(&config).contains("oauth.keys is off"));
        config.oauth.keys = Some(KeySource::File("/keys".into()));
        for one in [Listener::Http, Listener::Native] {
            config.auth.listeners = vec![one];
            assert_eq!(check_auth(&config), Ok(()));
        }
        config.auth.listeners.clear();
        assert!(told(&config).contains("auth.listeners is off"));
        config.kafka.listen = vec!["127.0.0.1:9092".into()];
        config.auth.listeners = vec![Listener::Kafka];
        assert_eq!(check_auth(&config), Ok(()));
        let server = axum::http::Uri::from_static("https://issuer.example/keys");
        config.oauth.keys = Some(KeySource::Server(server));
        assert!(told(&config).contains("keys_ca is off"));
        config.oauth.keys_ca = Some("/ca".into());
        assert_eq!(check_auth(&config), Ok(()));
        config.kafka.listen.push("0.0.0.0:9093".into());
        assert!(told(&config).contains("sends the token itself"));
        config.tls.listeners = vec![TlsListener::Kafka];
        assert_eq!(check_auth(&config), Ok(()));
        config.oauth.keys = Some(KeySource::File("/keys".into()));
        assert!(told(&config).contains("would not be used"));
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
                .contains("nobody is asked to log in")
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
