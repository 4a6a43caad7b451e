use std::path::Path;

use super::super::{ClusterConfig, Resolved, Sources};

fn resolve(flags: &[(&str, &str)]) -> Result<Resolved, String> {
    let sources = Sources {
        flags: flags
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..Sources::default()
    };
    sources.resolve().map_err(|error| error.to_string())
}

fn with(flags: &[(&str, &str)]) -> Result<ClusterConfig, String> {
    resolve(flags).map(|resolved| resolved.config.cluster)
}

fn from_file(text: &str) -> Result<ClusterConfig, String> {
    Sources::default()
        .resolve_with(Some((Path::new("kera.toml"), text)))
        .map(|resolved| resolved.config.cluster)
        .map_err(|error| error.to_string())
}

#[test]
fn off_unless_told() {
    let cluster = with(&[]).unwrap();
    assert_eq!(cluster.broker_id, None);
    assert!(cluster.store.is_none() && !cluster.allow_same_host);
}

#[test]
fn peers_are_refused_wherever_they_stand_and_it_is_said_what_to_do() {
    let from_variable = || {
        let variable = ("KERA_CLUSTER_PEERS".to_owned(), "2@a:1".to_owned());
        let sources = Sources {
            environment: vec![variable],
            ..Sources::default()
        };
        sources.resolve().map_err(|error| error.to_string())
    };
    for (told, from) in [
        (
            with(&[("cluster.peers", "2@a:1")]).err(),
            "flag --cluster-peers: ",
        ),
        (
            from_file("[cluster]\nbroker_id = 1\npeers = [\"2@a:1\"]\n").err(),
            "kera.toml:3: ",
        ),
        (
            from_variable().err(),
            "environment variable KERA_CLUSTER_PEERS: ",
        ),
    ] {
        let told = told.expect("it is refused");
        let rest = told.strip_prefix(from).unwrap_or_else(|| panic!("{told}"));
        assert!(rest.starts_with("cluster.peers is gone"), "{told}");
        for part in [
            "cluster.store",
            "`kera cluster import`",
            "docs/operations.md",
        ] {
            assert!(told.contains(part), "no `{part}` in: {told}");
        }
    }
}

#[test]
fn a_cluster_needs_this_brokers_number_and_an_address_of_its_own() {
    for id in ["0", "-1", "one", "4294967296"] {
        let error = with(&[("cluster.broker_id", id)]).unwrap_err();
        assert!(error.contains("is not a broker's number"), "{error}");
    }
    let taken = [
        ("cluster.broker_id", "1"),
        ("cluster.store", "etcd://127.0.0.1:2379"),
        ("cluster.listen", "127.0.0.1:7600"),
    ];
    assert!(
        with(&[taken[0], taken[2]]).is_ok(),
        "alone nobody listens there"
    );
    let error = with(&taken).unwrap_err();
    assert!(error.contains("server.listen already"), "{error}");
    let error = with(&[("cluster.host", "a b")]).unwrap_err();
    assert!(error.contains("is not a machine's name"), "{error}");
}

#[test]
fn addresses_of_one_machine_are_doubted_where_the_store_is_on_another() {
    let doubts = |more: &[(&str, &str)]| {
        let flags = [&[("cluster.broker_id", "1")], more].concat();
        resolve(&flags).unwrap().warnings
    };
    let far = ("cluster.store", "etcd://10.0.0.1:2379,127.0.0.1:2379/kera");
    let server = ("server.listen", "10.0.0.2:7600");
    let cluster = ("cluster.listen", "10.0.0.2:7601");
    let says = |more: &[(&str, &str)], part: &str| {
        let found = doubts(more);
        assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
    };
    says(&[], "this broker works alone");
    assert!(resolve(&[]).unwrap().warnings.is_empty());
    says(&[far], "cluster.listen is 127.0.0.1:7601");
    says(&[far, server], "set cluster.advertise");
    says(&[far, cluster], "set server.advertise");
    let everywhere = [far, ("server.listen", "0.0.0.0:7600"), cluster];
    says(&everywhere, "server.listen is 0.0.0.0:7600");
    let named = ("server.listen", "inner=10.0.0.2:7600,outer=0.0.0.0:7610");
    says(&[far, named, cluster], "server.listen is 0.0.0.0:7610");
    assert!(doubts(&[far, server, cluster]).is_empty());
    let told = ("server.advertise", "broker1:7600");
    let every = ("cluster.listen", "0.0.0.0:7601");
    assert!(doubts(&[far, ("server.listen", "0.0.0.0:7600"), told, every]).is_empty());
    let near = ("cluster.store", "etcd://127.0.0.1:2379,[::1]:2379/kera");
    assert!(doubts(&[near]).is_empty());
}

#[test]
fn a_store_is_named_by_its_members() {
    let store = |text: &str| {
        let flags = [("cluster.broker_id", "1"), ("cluster.store", text)];
        with(&flags).map(|cluster| cluster.store)
    };
    assert_eq!(store("off").unwrap(), None);
    for (text, read) in [
        ("etcd://127.0.0.1:2379", "etcd://127.0.0.1:2379"),
        ("etcd://a:1, b:2/", "etcd://a:1,b:2"),
        ("etcd://a:1/kera/one/", "etcd://a:1/kera/one"),
    ] {
        assert_eq!(store(text).unwrap().as_deref(), Some(read), "{text}");
    }
    for text in ["127.0.0.1:2379", "etcd://", "etcd://a", "etcd://a:1,"] {
        let error = store(text).unwrap_err();
        assert!(error.contains("is no store"), "{error}");
    }
    let error = with(&[("cluster.store", "etcd://a:1")]).unwrap_err();
    assert!(error.contains("set cluster.broker_id"), "{error}");
    assert_eq!(
        with(&[("cluster.rack", "east-1")]).unwrap().rack.as_deref(),
        Some("east-1")
    );
}
