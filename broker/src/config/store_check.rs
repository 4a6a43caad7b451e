//! What a broker that protects anything needs of its etcd: users, rules and owners are recorded there.

use super::cluster::members_beyond_loopback;
use super::keys::BrokerConfig;
use super::listeners::Insecure;

/// How an etcd on another machine is reached.
struct Reach<'a> {
    store: &'a str,
    has_tls: bool,
    /// Who the broker is to etcd, if it proves it.
    as_whom: Option<String>,
}

impl<'a> Reach<'a> {
    /// `None`: there is no etcd, or it is on this machine.
    fn of(config: &'a BrokerConfig) -> Option<Self> {
        let cluster = &config.cluster;
        let store = cluster.store.as_deref()?;
        members_beyond_loopback(store).then(|| {
            let user = cluster.store_user.as_ref();
            let user = user.map(|name| format!("as user {name}"));
            let certified = cluster.store_certificate.is_some();
            let certificate = certified.then(|| "with a certificate".to_owned());
            Self {
                store,
                has_tls: cluster.store_ca.is_some(),
                as_whom: user.or(certificate),
            }
        })
    }

    /// What is missing, for people; `None`: nothing.
    fn missing(&self) -> Option<&'static str> {
        match (self.has_tls, self.as_whom.is_some()) {
            (true, true) => None,
            (true, false) => Some("without a proof of who the broker is"),
            (false, true) => Some("without TLS"),
            (false, false) => Some("without TLS, and without a proof of who the broker is"),
        }
    }

    /// What to set.
    fn remedy(&self) -> &'static str {
        const USER: &str = "cluster.store_user and cluster.store_password_file, or cluster.store_certificate and cluster.store_key";
        match (self.has_tls, self.as_whom.is_some()) {
            (true, _) => USER,
            (false, true) => "cluster.store_ca",
            (false, false) => {
                "cluster.store_ca, and cluster.store_user and cluster.store_password_file (or cluster.store_certificate and cluster.store_key)"
            }
        }
    }
}

/// The key that says that clients are protected from each other or from others, if one does.
fn protects(config: &BrokerConfig) -> Option<&'static str> {
    let all = [
        ("acl.enabled", config.acl.enabled),
        ("auth.listeners", !config.auth.listeners.is_empty()),
        ("tls.listeners", !config.tls.listeners.is_empty()),
        (
            "listeners.protocols",
            config.has_tls() || config.asks_clients(),
        ),
    ];
    let set = all.into_iter().find(|(_, is_set)| *is_set);
    set.map(|(key, _)| key)
}

/// An etcd that undoes what the broker protects, unless `insecure` names it: the key, and what to do.
pub(super) fn refused(config: &BrokerConfig) -> Option<(&'static str, String)> {
    let reach = Reach::of(config)?;
    let (missing, because) = (reach.missing()?, protects(config)?);
    if config.insecure.contains(&Insecure::Etcd) {
        return None;
    }
    let (store, remedy) = (reach.store, reach.remedy());
    Some((
        "cluster.store",
        format!(
            "cluster.store: {store} is not on this machine and is reached {missing}, while {because} is set: whoever gets to etcd, or in between, makes users and rules as he likes; set {remedy}; to accept it as it is, say so with --insecure etcd, KERA_INSECURE=etcd or insecure = \"etcd\" (docs/security.md)"
        ),
    ))
}

/// What is accepted, for people.
pub(super) fn doubt(config: &BrokerConfig) -> Option<String> {
    let reach = Reach::of(config)?;
    let (missing, because) = (reach.missing()?, protects(config)?);
    config.insecure.contains(&Insecure::Etcd).then(|| {
        let store = reach.store;
        format!("as insecure says, {store} is reached {missing}, while {because} is set: whoever gets to etcd, or in between, makes users and rules as he likes (docs/security.md)")
    })
}

/// How a broker with this configuration reaches its etcd, for people; `None`: it has none.
pub fn store_reach(config: &BrokerConfig) -> Option<String> {
    let store = config.cluster.store.as_deref()?;
    let Some(reach) = Reach::of(config) else {
        return Some(format!("cluster.store {store}, on this machine"));
    };
    let tls = match reach.has_tls {
        true => "with TLS",
        false => "without TLS",
    };
    let whom = reach
        .as_whom
        .as_deref()
        .unwrap_or("as nobody in particular");
    Some(format!(
        "cluster.store {store}, not on this machine, {tls}, {whom}"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::listeners::Listener;
    use super::super::tls::TlsListener;
    use super::*;

    const BEYOND: &str = "etcd://127.0.0.1:2379,10.0.0.1:2379/prefix";

    fn guarded(store: &str) -> BrokerConfig {
        let mut config = BrokerConfig::default();
        config.cluster.store = Some(store.to_owned());
        config.acl.enabled = true;
        config
    }

    #[test]
    fn an_etcd_elsewhere_needs_tls_and_a_proof_where_anything_is_protected() {
        type Protect = fn(&mut BrokerConfig);
        let protections: [(&str, Protect); 3] = [
            ("acl.enabled", |config| config.acl.enabled = true),
            ("auth.listeners", |config| {
                config.auth.listeners = vec![Listener::Kafka];
            }),
            ("tls.listeners", |config| {
                config.tls.listeners = vec![TlsListener::Kafka];
            }),
        ];
        for (key, protect) in protections {
            let mut config = BrokerConfig::default();
            config.cluster.store = Some(BEYOND.to_owned());
            assert_eq!(refused(&config), None, "nothing is protected");
            protect(&mut config);
            let (name, told) = refused(&config).expect("it is refused");
            assert_eq!(name, "cluster.store");
            let because = format!("while {key} is set");
            for part in [&because, "without TLS, and", "--insecure etcd", "store_ca"] {
                assert!(told.contains(part), "{told}");
            }
            config.cluster.store = None;
            assert_eq!(refused(&config), None);
        }
    }

    #[test]
    fn each_of_both_is_asked_for_and_a_certificate_is_a_proof() {
        let mut config = guarded(BEYOND);
        config.cluster.store_user = Some("kera".to_owned());
        let told = refused(&config).expect("it is refused").1;
        assert!(told.contains("set cluster.store_ca;"), "{told}");
        config.cluster.store_ca = Some("/ca.pem".into());
        assert_eq!(refused(&config), None);
        config.cluster.store_user = None;
        let told = refused(&config).expect("it is refused").1;
        assert!(told.contains("set cluster.store_user and"), "{told}");
        config.cluster.store_certificate = Some("/c.pem".into());
        assert_eq!(refused(&config), None);
        let reach = store_reach(&config).expect("there is one");
        assert!(reach.ends_with("with TLS, with a certificate"), "{reach}");
    }

    #[test]
    fn this_machine_and_what_is_accepted_are_let_through() {
        for store in ["etcd://127.0.0.1:2379", "etcd://localhost:1,[::1]:2"] {
            assert_eq!(refused(&guarded(store)), None, "{store}");
        }
        let mut config = guarded(BEYOND);
        assert_eq!(doubt(&config), None, "it is refused");
        config.insecure = vec![Insecure::Listener(Listener::Cluster)];
        assert!(refused(&config).is_some());
        config.insecure.push(Insecure::Etcd);
        assert_eq!(refused(&config), None);
        let told = doubt(&config).expect("it is told at each start");
        assert!(told.contains("without TLS"), "{told}");
        config.acl.enabled = false;
        assert_eq!(doubt(&config), None, "nothing is protected");
    }
}
