use super::super::{ClientAuth, Sources, TlsConfig, TlsListener};

fn with(flags: &[(&str, &str)]) -> Result<(TlsConfig, Vec<String>), String> {
    let flags = flags
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let sources = Sources {
        flags: flags.collect(),
        ..Sources::default()
    };
    let resolved = sources.resolve().map_err(|error| error.to_string())?;
    Ok((resolved.config.tls, resolved.warnings))
}

const NATIVE: (&str, &str) = ("tls.listeners", "native");
const CERTIFICATE: (&str, &str) = ("tls.certificate", "/c.pem");
const KEY: (&str, &str) = ("tls.key", "/k.pem");
const CA: (&str, &str) = ("tls.client_ca", "/ca.pem");
const REQUIRED: (&str, &str) = ("tls.client_auth", "required");
const STORE: (&str, &str) = ("cluster.store", "etcd://127.0.0.1:2379");
const ID: (&str, &str) = ("cluster.broker_id", "1");

#[test]
fn what_belongs_together_is_taken() {
    let (tls, _) = with(&[]).unwrap();
    assert_eq!(
        (tls.listeners, tls.client_auth),
        (Vec::new(), ClientAuth::None)
    );
    let kafka = ("kafka.listen", "127.0.0.1:0");
    let both = ("tls.listeners", "native, kafka,native");
    let (tls, warnings) = with(&[both, CERTIFICATE, KEY, CA, REQUIRED, kafka]).unwrap();
    assert_eq!(tls.listeners, [TlsListener::Native, TlsListener::Kafka]);
    assert_eq!(tls.client_auth, ClientAuth::Required);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn settings_that_contradict_each_other_are_refused_with_what_to_do() {
    for (flags, said) in [
        (
            &[("tls.listeners", "http2")][..],
            "is no listener; write native",
        ),
        (&[NATIVE], "tls.certificate is off"),
        (&[NATIVE, CERTIFICATE], "tls.key is off"),
        (
            &[CERTIFICATE],
            "tls.listeners is off, so nothing would be encrypted",
        ),
        (
            &[REQUIRED],
            "tls.listeners is off, so nothing would be encrypted",
        ),
        (&[NATIVE, CERTIFICATE, KEY, CA], "tls.client_auth is none"),
        (
            &[NATIVE, CERTIFICATE, KEY, REQUIRED],
            "tls.client_ca is off",
        ),
        (
            &[("tls.listeners", "kafka"), CERTIFICATE, KEY],
            "kafka.listen is off",
        ),
        (
            &[
                ("tls.listeners", "http"),
                ("http.listen", "off"),
                CERTIFICATE,
                KEY,
            ],
            "http.listen is off",
        ),
        (
            &[("tls.client_auth", "maybe")],
            "use one of none, requested, required",
        ),
        (
            &[("tls.certificat", "/c.pem")],
            "did you mean `tls.certificate`?",
        ),
    ] {
        let error = with(flags).unwrap_err();
        assert!(error.contains(said), "{flags:?}: {error}");
    }
}

#[test]
fn brokers_that_share_a_store_are_never_silently_without_tls() {
    let error = with(&[NATIVE, CERTIFICATE, KEY, STORE, ID]).unwrap_err();
    assert!(error.contains("tls.broker_ca is off"), "{error}");
    let authority = ("tls.broker_ca", "/ca.pem");
    let error = with(&[NATIVE, CERTIFICATE, KEY, authority]).unwrap_err();
    assert!(error.contains("cluster.store is set"), "{error}");
    let error = with(&[STORE, ID, authority]).unwrap_err();
    assert!(error.contains("tls.listeners is off"), "{error}");
    let (_, warnings) = with(&[NATIVE, CERTIFICATE, KEY, STORE, ID, authority]).unwrap();
    let told = |warning: &String| warning.contains("does not cover cluster.listen");
    assert!(warnings.iter().any(told), "{warnings:?}");
    // Also where only clients at a name have TLS.
    let named = [
        ("kafka.listen", "outer=127.0.0.1:9093"),
        ("listeners.protocols", "outer=SSL"),
    ];
    let (_, warnings) = with(&[&named[..], &[CERTIFICATE, KEY, STORE, ID]].concat()).unwrap();
    assert!(warnings.iter().any(told), "{warnings:?}");
    let both = ("tls.listeners", "native,cluster");
    let (_, warnings) = with(&[both, CERTIFICATE, KEY, STORE, ID, authority]).unwrap();
    assert!(!warnings.iter().any(told), "{warnings:?}");
    let cluster = ("tls.listeners", "cluster");
    for (flags, said) in [
        (vec![authority], "cluster.store is off"),
        (vec![STORE, ID], "tls.broker_ca is off"),
        (
            vec![STORE, ID, authority, ("cluster.transport", "rdma")],
            "without TLS",
        ),
    ] {
        let flags = [vec![cluster, CERTIFICATE, KEY], flags].concat();
        let error = with(&flags).unwrap_err();
        assert!(error.contains(said), "{flags:?}: {error}");
    }
    let trusted = ("cluster.trusted_fabric", "true");
    let proven = [cluster, CERTIFICATE, KEY, STORE, ID, authority, trusted];
    for transport in ["rdma", "auto"] {
        let flags = [&proven[..], &[("cluster.transport", transport)]].concat();
        let (_, warnings) = with(&flags).unwrap();
        let told = |warning: &String| warning.contains("as cluster.trusted_fabric says");
        assert!(warnings.iter().any(told), "{warnings:?}");
    }
    for (flags, said) in [
        (vec![trusted], "nothing would be encrypted"),
        (
            [&proven[1..], &[NATIVE]].concat(),
            "tls.listeners has no cluster",
        ),
        (
            [&proven[..], &[("cluster.transport", "tcp")]].concat(),
            "no card is used",
        ),
    ] {
        let error = with(&flags).unwrap_err();
        assert!(error.contains(said), "{flags:?}: {error}");
    }
    let kafka = [("tls.listeners", "kafka"), ("kafka.listen", "127.0.0.1:0")];
    let (_, warnings) = with(&[kafka[0], kafka[1], CERTIFICATE, KEY, STORE, ID]).unwrap();
    assert!(warnings.iter().any(told), "{warnings:?}");
}
