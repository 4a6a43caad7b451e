use super::super::{BrokerConfig, Exposure, Sources};
use super::*;

fn resolve(settings: &[(&str, &str)]) -> Result<BrokerConfig, String> {
    let flag = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let sources = Sources {
        flags: settings.iter().map(flag).collect(),
        ..Sources::default()
    };
    let resolved = sources.resolve().map_err(|error| error.to_string())?;
    let opened = resolved.refuse_open(&Listener::ALL);
    opened.map_err(|error| error.to_string())?;
    Ok(resolved.config)
}

const LISTEN: (&str, &str) = (
    "kafka.listen",
    "inner=127.0.0.1:9092,outer=0.0.0.0:9093,127.0.0.1:9094",
);
const PROTOCOLS: (&str, &str) = ("listeners.protocols", "inner=PLAINTEXT,outer=SASL_SSL");
const FILES: [(&str, &str); 2] = [("tls.certificate", "/c.pem"), ("tls.key", "/k.pem")];
const CA: (&str, &str) = ("tls.client_ca", "/ca.pem");

/// The settings above with more.
fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[LISTEN, PROTOCOLS][..], &FILES, more].concat()
}

fn name(text: &str) -> ListenerName {
    ListenerName::new(text).expect("a name")
}

#[test]
fn each_name_has_its_own_security_and_what_has_none_goes_by_the_kind() {
    let config = resolve(&with(&[
        ("listeners.mechanisms", "outer=SCRAM-SHA-512"),
        ("auth.listeners", "kafka"),
        ("auth.mechanisms", "PLAIN"),
    ]))
    .expect("it fits together");
    let at = |text| config.security_at(Listener::Kafka, Some(&name(text)));
    let inner = at("inner");
    assert_eq!((inner.has_tls, inner.asks), (false, false));
    let outer = at("outer");
    assert_eq!((outer.has_tls, outer.asks), (true, true));
    let scram = SaslMechanism::named("SCRAM-SHA-512").expect("a mechanism");
    assert_eq!(outer.mechanisms, [scram]);
    let bare = config.security_at(Listener::Kafka, None);
    assert_eq!((bare.has_tls, bare.asks), (false, true));
    assert_eq!(bare.mechanisms, [SaslMechanism::Plain]);
    // A name that is not in the map goes by the kind as well.
    assert_eq!(at("other"), bare);
    assert!(config.has_tls() && config.asks_clients() && !config.wants_certificates());
    let entrances = config.named_entrances();
    let expected = Entrance::of_kafka(Some(name("outer")));
    assert_eq!(entrances, [(expected, ClientAuth::None)]);
}

#[test]
fn certificates_are_asked_for_where_a_name_says_so() {
    let settings = [
        ("kafka.listen", "outer=0.0.0.0:9093,partners=0.0.0.0:9094"),
        ("listeners.protocols", "outer=SASL_SSL,partners=SSL"),
        ("listeners.client_auth", "partners=required"),
        CA,
    ];
    let settings = [&settings[..], &FILES].concat();
    let config = resolve(&settings).expect("partners prove who they are");
    let at = |text| config.security_at(Listener::Kafka, Some(&name(text)));
    assert_eq!(at("outer").client_auth, ClientAuth::None);
    assert_eq!(at("partners").client_auth, ClientAuth::Required);
    assert!(config.wants_certificates());
    let told: Vec<_> = Exposure::all(&config)
        .iter()
        .map(Exposure::to_string)
        .collect();
    assert_eq!(
        told[1..3],
        [
            "kafka.listen outer=0.0.0.0:9093, from wherever it is reached, with TLS: lets in users with a password, to everything",
            "kafka.listen partners=0.0.0.0:9094, from wherever it is reached, with TLS: lets in clients with a certificate, to everything",
        ]
    );
}

#[test]
fn each_address_beyond_loopback_is_guarded_or_named_as_insecure() {
    let open = ("listeners.protocols", "inner=PLAINTEXT,outer=PLAINTEXT");
    let all = ("insecure", "outer");
    let told = resolve(&[LISTEN, open]).expect_err("outer lets in everybody");
    for part in [
        "outer=0.0.0.0:9093 is beyond loopback and lets in everybody",
        "listeners.protocols = outer=SASL_SSL",
        "--insecure outer",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert!(!told.contains("inner="), "loopback alone: {told}");
    assert!(resolve(&[LISTEN, open, all]).is_ok());
    assert!(resolve(&[LISTEN, open, ("insecure", "inner")]).is_err());
    // The word for all of Kafka's covers it too, and TLS alone does not.
    assert!(resolve(&[LISTEN, open, ("insecure", "kafka")]).is_ok());
    let tls = ("listeners.protocols", "outer=SSL");
    assert!(resolve(&[&[LISTEN, tls][..], &FILES].concat()).is_err());
    // What the kind asks for does not guard a name that says otherwise.
    let kind = ("auth.listeners", "kafka");
    assert!(resolve(&[LISTEN, open, kind]).is_err());
}

#[test]
fn what_contradicts_itself_is_refused_with_what_to_do() {
    for (more, told) in [
        (
            &[("listeners.mechanisms", "outr=PLAIN")][..],
            "`outr` is no name of addresses; did you mean outer?",
        ),
        (
            &[("insecure", "nobody")],
            "the names in server.listen and kafka.listen are inner, outer",
        ),
        (
            &[("listeners.client_auth", "inner=required"), CA],
            "has inner, which has no TLS",
        ),
        (
            &[("listeners.mechanisms", "inner=PLAIN")],
            "has inner, where nobody logs in",
        ),
        (
            &[("listeners.client_auth", "outer=required")],
            "listeners.client_auth: asks clients for certificates but tls.client_ca is off",
        ),
        (
            &[("listeners.mechanisms", "outer=OAUTHBEARER")],
            "oauth.issuer is off",
        ),
    ] {
        let error = resolve(&with(more)).expect_err(told);
        assert!(error.contains(told), "{error}");
    }
    let bare = ("kafka.listen", "127.0.0.1:9092");
    let error = resolve(&[bare, ("listeners.protocols", "outer=SSL")]).unwrap_err();
    assert!(
        error.contains("write outer=host:port in kafka.listen or server.listen"),
        "{error}"
    );
    let error = resolve(&[LISTEN, PROTOCOLS]).unwrap_err();
    assert!(
        error.contains("listeners.protocols: names TLS but tls.certificate is off"),
        "{error}"
    );
    // PLAIN is the password itself: it takes TLS at that address, whatever others have.
    let open = ("listeners.protocols", "inner=SASL_SSL,outer=SASL_PLAINTEXT");
    let plain = ("listeners.mechanisms", "outer=PLAIN");
    let settings = [&[LISTEN, open, plain][..], &FILES].concat();
    let error = resolve(&settings).unwrap_err();
    assert!(
        error.contains("listeners.mechanisms: has PLAIN, which sends the password itself, and outer in kafka.listen is neither loopback nor has TLS"),
        "{error}"
    );
}

#[test]
fn native_addresses_have_names_too_and_brokers_go_to_the_first() {
    let listen = ("server.listen", "inner=10.0.0.1:7600,outer=0.0.0.0:7610");
    let told = ("server.advertise", "outer=broker1.example:7610");
    let insecure = ("insecure", "inner");
    let settings = [&[listen, told, PROTOCOLS, insecure][..], &FILES].concat();
    let config = resolve(&settings).expect("it fits together");
    let outer = config.security_at(Listener::Native, Some(&name("outer")));
    assert!(outer.has_tls && outer.asks);
    let brokers = config.security_of_brokers();
    assert!(!brokers.has_tls && !brokers.asks);
    assert_eq!(config.server.first_advertised(), None);
    let told = config.server.listeners().map(|(_, told)| told);
    assert_eq!(
        told.collect::<Vec<_>>(),
        [None, Some("broker1.example:7610")]
    );
    let entrances = config.named_entrances();
    let expected = Entrance::of_native(Some(name("outer")));
    assert_eq!(entrances, [(expected, ClientAuth::None)]);
    // The same name stands for the addresses of both keys.
    let kafka = ("kafka.listen", "127.0.0.1:9092,outer=0.0.0.0:9093");
    let config = resolve(&[&settings[..], &[kafka]].concat()).expect("it fits together");
    assert_eq!(config.named_entrances().len(), 2);
    for (listen, told) in [
        ("", "it is empty"),
        ("inner=a:1,inner=a:2", "two addresses with the name inner"),
        ("inner=a:1,a:1", "a:1 is not the first and has no name"),
        ("inner=a:1,outer=a:1", "names a:1 twice"),
    ] {
        let error = resolve(&[("server.listen", listen)]).expect_err(told);
        assert!(error.contains(told), "{error}");
    }
    // Other brokers come to the first, and have to prove who they are where it asks.
    let cluster = [
        ("server.listen", "outer=127.0.0.1:7610,inner=127.0.0.1:7600"),
        PROTOCOLS,
        ("cluster.store", "etcd://127.0.0.1:2379"),
        ("cluster.broker_id", "1"),
        ("tls.broker_ca", "/ca.pem"),
    ];
    let settings = [&cluster[..], &FILES].concat();
    let error = resolve(&settings).unwrap_err();
    assert!(error.contains("cannot prove to each other"), "{error}");
    assert!(error.contains("outer=requested"), "{error}");
    let alone = settings.iter().filter(|(key, _)| *key != "tls.broker_ca");
    let error = resolve(&alone.copied().collect::<Vec<_>>()).unwrap_err();
    assert!(
        error.contains("listeners.protocols: gives TLS to outer"),
        "{error}"
    );
    let proven = [("listeners.client_auth", "outer=requested"), CA];
    assert!(resolve(&[&settings[..], &proven].concat()).is_ok());
}

#[test]
fn keys_that_no_address_goes_by_are_told() {
    let listen = ("kafka.listen", "inner=127.0.0.1:9092,outer=0.0.0.0:9093");
    let certificates = [("listeners.client_auth", "outer=required"), CA];
    let settings = [&[listen, PROTOCOLS][..], &FILES, &certificates].concat();
    let told = |more: &[(&str, &str)]| {
        let all = [&settings[..], more].concat();
        doubts(&resolve(&all).expect("it fits together"))
    };
    assert_eq!(told(&[]), Vec::<String>::new());
    let all = [
        ("auth.listeners", "kafka"),
        ("tls.listeners", "kafka"),
        ("tls.client_auth", "required"),
    ];
    for (key, _) in all {
        let told = told(&all);
        assert!(
            told.iter().any(|one| one.starts_with(key)),
            "{key}: {told:?}"
        );
    }
    // An address without a name goes by them.
    let bare = "127.0.0.1:9094,inner=127.0.0.1:9092,outer=0.0.0.0:9093";
    let told = told(&[&all[..], &[("kafka.listen", bare)]].concat());
    assert_eq!(told, Vec::<String>::new());
}

#[test]
fn more_than_other_brokers_can_be_told_is_refused() {
    let host = "h".repeat(60);
    let advertise = |count: usize| {
        let all: Vec<_> = (0..count).map(|n| format!("{host}:{}", 9000 + n)).collect();
        all.join(",")
    };
    let tells = |count: usize, store: bool| {
        let listen: Vec<_> = (0..count)
            .map(|n| format!("127.0.0.1:{}", 9000 + n))
            .collect();
        let (listen, told) = (listen.join(","), advertise(count));
        let mut all = vec![("kafka.listen", &*listen), ("kafka.advertise", &*told)];
        if store {
            all.extend([
                ("cluster.store", "etcd://127.0.0.1:2379"),
                ("cluster.broker_id", "1"),
            ]);
        }
        resolve(&all)
    };
    assert!(tells(15, true).is_ok());
    assert!(tells(16, false).is_ok(), "it tells nobody");
    let error = tells(16, true).unwrap_err();
    assert!(error.contains("other brokers can be told 1024"), "{error}");
}
