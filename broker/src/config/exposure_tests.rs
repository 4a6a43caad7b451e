use super::super::{ConfigError, Sources};
use super::*;

const CLOSED: [&str; 0] = [];

/// The keys of the listeners that a broker with these settings refuses to open.
fn refused_of(settings: &[(&str, &str)], opened: &[Listener]) -> Vec<&'static str> {
    refused(&config(settings), opened)
        .into_iter()
        .map(|(key, _)| key)
        .collect()
}

fn config(settings: &[(&str, &str)]) -> BrokerConfig {
    sources(settings)
        .resolve()
        .expect("it fits together")
        .config
}

fn sources(settings: &[(&str, &str)]) -> Sources {
    let flag = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Sources {
        flags: settings.iter().map(flag).collect(),
        ..Sources::default()
    }
}

const FILES: [(&str, &str); 2] = [("tls.certificate", "/c.pem"), ("tls.key", "/k.pem")];
const NATIVE: (&str, &str) = ("server.listen", "0.0.0.0:7600");
const KAFKA: (&str, &str) = ("kafka.listen", "127.0.0.1:9092,[::]:9093");
const HTTP: (&str, &str) = ("http.listen", "broker1.example:7680");
const CLUSTER: [(&str, &str); 3] = [
    ("cluster.listen", "10.0.0.1:7601"),
    ("cluster.store", "etcd://127.0.0.1:2379"),
    ("cluster.broker_id", "1"),
];

#[test]
fn loopback_is_open_to_this_machine_and_other_addresses_to_nobody() {
    let here = [
        ("server.listen", "127.0.0.2:7600"),
        ("kafka.listen", "[::1]:9092,localhost:9093"),
        ("http.listen", "127.0.0.1:7680"),
    ];
    assert_eq!(refused_of(&here, &Listener::ALL), CLOSED);
    let everywhere = [&[NATIVE, KAFKA, HTTP][..], &CLUSTER].concat();
    let keys = [
        "server.listen",
        "kafka.listen",
        "http.listen",
        "cluster.listen",
    ];
    assert_eq!(refused_of(&everywhere, &Listener::ALL), keys);
    // A replica store has no address for clients.
    let of_store = refused_of(&everywhere, &Listener::OF_REPLICA_STORES);
    assert_eq!(of_store, ["http.listen", "cluster.listen"]);
    let with_tls = [
        &[HTTP][..],
        &CLUSTER,
        &FILES,
        &[("tls.listeners", "cluster"), ("tls.broker_ca", "/ca.pem")],
    ];
    let of_store = refused_of(&with_tls.concat(), &Listener::OF_REPLICA_STORES);
    assert_eq!(of_store, ["http.listen"]);
    // Alone nobody listens there.
    assert_eq!(refused_of(&CLUSTER[..1], &Listener::ALL), CLOSED);
}

#[test]
fn what_is_accepted_is_opened_and_nothing_else() {
    let all = [&[NATIVE, KAFKA, HTTP][..], &CLUSTER].concat();
    for (insecure, left) in [
        ("true", vec![]),
        ("http,cluster", vec!["server.listen", "kafka.listen"]),
        ("native , kafka", vec!["http.listen", "cluster.listen"]),
    ] {
        let settings = [&all[..], &[("insecure", insecure)]].concat();
        assert_eq!(refused_of(&settings, &Listener::ALL), left, "{insecure}");
    }
    let accepted = sources(&[NATIVE, ("insecure", "native")])
        .resolve()
        .unwrap();
    let told = "server.listen 0.0.0.0:7600, from wherever it is reached, without TLS: lets in everybody, to everything";
    assert!(
        accepted
            .warnings
            .iter()
            .any(|warning| warning.ends_with(told)),
        "{:?}",
        accepted.warnings
    );
    let wrong = sources(&[("insecure", "kafka,ftp")]).resolve().unwrap_err();
    assert!(
        wrong
            .to_string()
            .contains("`ftp` is neither a listener nor etcd"),
        "{wrong}"
    );
}

#[test]
fn who_must_prove_something_is_let_in() {
    let tls = |listeners| [&[NATIVE, KAFKA, listeners][..], &FILES].concat();
    let proven = |auth| [("tls.client_ca", "/ca.pem"), ("tls.client_auth", auth)];
    let both = tls(("tls.listeners", "native,kafka"));
    // TLS alone asks nobody.
    assert_eq!(refused_of(&both, &Listener::ALL).len(), 2);
    let required = [&both[..], &proven("required")].concat();
    assert_eq!(refused_of(&required, &Listener::ALL), CLOSED);
    let requested = [&both[..], &proven("requested")].concat();
    assert_eq!(refused_of(&requested, &Listener::ALL).len(), 2);
    // The other listener has no certificates.
    let one = [&tls(("tls.listeners", "native"))[..], &proven("required")].concat();
    assert_eq!(refused_of(&one, &Listener::ALL), ["kafka.listen"]);
    let passwords = [NATIVE, KAFKA, ("auth.listeners", "native,kafka")];
    assert_eq!(refused_of(&passwords, &Listener::ALL), CLOSED);
    let passwords = [&one[..], &[("auth.listeners", "kafka")]].concat();
    assert_eq!(refused_of(&passwords, &Listener::ALL), CLOSED);
    // By rules nobody may do anything, unless they say the opposite.
    let rules = [
        NATIVE,
        KAFKA,
        ("acl.enabled", "true"),
        ("acl.super_users", "User:a"),
    ];
    assert_eq!(refused_of(&rules, &Listener::ALL), CLOSED);
    let lax = [&rules[..], &[("acl.allow_without_rule", "true")]].concat();
    assert_eq!(refused_of(&lax, &Listener::ALL).len(), 2);
}

#[test]
fn it_says_whether_users_have_passwords_or_tokens() {
    let told = |listeners, mechanisms| {
        let settings = [
            ("kafka.listen", "127.0.0.1:9092"),
            ("auth.listeners", listeners),
            ("auth.mechanisms", mechanisms),
            ("oauth.issuer", "i"),
            ("oauth.audience", "a"),
            ("oauth.keys", "/keys"),
        ];
        let all = Exposure::all(&config(&settings)).into_iter();
        let lets_in = all.take(2).map(|one| one.lets_in);
        let whom = lets_in.map(|one| one.replace(", to everything", ""));
        whom.collect::<Vec<_>>()
    };
    let either = "users with a password or a token";
    assert_eq!(told("native,kafka", "PLAIN,OAUTHBEARER"), [either, either]);
    let token = told("kafka", "OAUTHBEARER");
    assert_eq!(token, ["everybody", "users with a token"]);
}

#[test]
fn http_is_for_users_where_they_are_asked_for() {
    let tls = [&[HTTP, ("tls.listeners", "http")][..], &FILES].concat();
    assert_eq!(refused_of(&tls, &Listener::ALL), ["http.listen"]);
    let asks = [&tls[..], &[("auth.listeners", "http")]].concat();
    assert_eq!(refused_of(&asks, &Listener::ALL), CLOSED);
    let open = [&asks[..], &[("http.open_paths", "probes,metrics")]].concat();
    assert_eq!(refused_of(&open, &Listener::ALL), CLOSED, "as was said");
    let acl = [("acl.enabled", "true"), ("acl.super_users", "User:a")];
    let lets_in = |settings: &[(&str, &str)]| {
        let all = Exposure::all(&config(settings)).into_iter();
        let mut http = all.filter(|one| one.listener == Listener::Http);
        http.next().expect("it listens").lets_in
    };
    for (settings, told) in [
        (
            vec![],
            "everybody, to metrics and probes; console and API to programs on this machine",
        ),
        (
            vec![("api.enabled", "false")],
            "everybody, to metrics and probes",
        ),
        (
            asks.clone(),
            "everybody, to probes; users with a password, to metrics, console and API",
        ),
        (
            [&open[..], &acl].concat(),
            "everybody, to metrics and probes; users with a password, to console and API, as far as rules allow",
        ),
        (
            [&open[..], &[("api.enabled", "false")]].concat(),
            "everybody, to metrics and probes",
        ),
        (
            [&asks[..], &[("http.open_paths", "off")]].concat(),
            "users with a password, to metrics, probes, console and API",
        ),
    ] {
        assert_eq!(lets_in(&settings), told);
    }
}

#[test]
fn a_refusal_says_where_it_stands_and_what_to_do() {
    let resolved = sources(&[NATIVE]).resolve().unwrap();
    let Err(ConfigError::Invalid(problems)) = resolved.refuse_open(&Listener::ALL) else {
        panic!("it is refused");
    };
    let text = problems[0].to_string();
    for part in [
        "flag --server-listen: server.listen: 0.0.0.0:7600 is beyond loopback and lets in everybody, to everything",
        "tls.client_auth = required",
        "--insecure native, KERA_INSECURE=native or insecure = \"native\"",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let resolved = sources(&[]).resolve().unwrap();
    assert!(resolved.refuse_open(&Listener::ALL).is_ok());
}
