use std::path::Path;

use super::super::{ClusterConfig, Resolved, Sources};
use super::*;

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
    assert!(cluster.peers.is_empty() && !cluster.allow_same_host);
}

#[test]
fn peers_are_the_same_from_a_flag_and_a_file() {
    let cluster = with(&[
        ("cluster.broker_id", "1"),
        ("cluster.peers", "2@10.0.0.2:7601@hostb, 3@[::1]:7801"),
    ])
    .unwrap();
    let expected = [
        Peer {
            id: 2,
            address: "10.0.0.2:7601".into(),
            host: Some("hostb".into()),
        },
        Peer {
            id: 3,
            address: "[::1]:7801".into(),
            host: None,
        },
    ];
    assert_eq!(cluster.peers, expected);
    let listed = from_file(
        "[cluster]\nbroker_id = 1\npeers = [\"2@10.0.0.2:7601@hostb\", \"3@[::1]:7801\"]\n",
    );
    assert_eq!(listed.unwrap(), cluster);
}

#[test]
fn hosts_are_told_or_seen_from_the_address() {
    let host = |text: &str| {
        let peer: Peer = text.parse().unwrap();
        peer.host_seen_from("here").to_owned()
    };
    assert_eq!(host("2@10.0.0.2:7601@hostb"), "hostb");
    assert_eq!(host("2@10.0.0.2:7601"), "10.0.0.2");
    assert_eq!(host("2@[fd00::2]:7601"), "fd00::2");
    assert_eq!(host("2@localhost:7601"), "here");
    assert_eq!(host("2@127.0.0.9:7601"), "here");
    assert_eq!(host("2@[::1]:7601"), "here");
    assert_eq!(host("2@127.0.0.1:7601@other"), "other");
}

#[test]
fn peers_that_cannot_be_say_what_to_do() {
    let problem = |peers: &str| {
        let flags = [
            ("cluster.broker_id", "1"),
            ("cluster.listen", "127.0.0.1:7601"),
            ("cluster.peers", peers),
        ];
        with(&flags).unwrap_err()
    };
    assert_eq!(
        problem("1@10.0.0.1:7601"),
        "flag --cluster-peers: cluster.peers: `1@10.0.0.1:7601` has the number of this broker, cluster.broker_id = 1; name the other brokers only"
    );
    assert!(problem("2@a:1,2@b:1").contains("names broker 2 twice"));
    assert!(problem("2@a:1,3@a:1").contains("brokers 2 and 3 have the same address a:1"));
    assert!(problem("2@127.0.0.1:7601").contains("this broker listens on"));
    assert!(problem("10.0.0.2:7601").contains("write id@host:port"));
    assert!(problem("b@10.0.0.2:7601").contains("begins with no broker's number"));
    assert!(problem("0@10.0.0.2:7601").contains("an id from 1"));
    assert!(problem("2@10.0.0.2").contains("is not an address; write host:port"));
    assert!(problem("2@10.0.0.2:0").contains("names port 0"));
    assert!(problem("2@a:1@b@c").contains("the machine's name alone"));
    assert!(problem("2@a:1@").contains("the machine's name alone"));
    let many: Vec<_> = (2..300).map(|id| format!("{id}@a:{id}")).collect();
    assert!(problem(&many.join(",")).contains("at most 255"));
}

#[test]
fn a_cluster_needs_this_brokers_number_and_an_address_of_its_own() {
    let error = with(&[("cluster.peers", "2@a:1")]).unwrap_err();
    assert!(error.contains("set cluster.broker_id"), "{error}");
    for id in ["0", "-1", "one", "4294967296"] {
        let error = with(&[("cluster.broker_id", id)]).unwrap_err();
        assert!(error.contains("is not a broker's number"), "{error}");
    }
    let taken = [
        ("cluster.broker_id", "1"),
        ("cluster.listen", "127.0.0.1:7600"),
    ];
    let error = with(&taken).unwrap_err();
    assert!(error.contains("server.listen already"), "{error}");
    let error = from_file("[cluster]\nbroker_id = 1\npeer = [\"2@a:1\"]\n").unwrap_err();
    assert_eq!(
        error,
        "kera.toml:3: unknown key `cluster.peer`; did you mean `cluster.peers`?"
    );
    let error = with(&[("cluster.host", "a b")]).unwrap_err();
    assert!(error.contains("is not a machine's name"), "{error}");
}

#[test]
fn listening_where_no_peer_can_reach_it_is_doubted() {
    let flags = [
        ("cluster.broker_id", "1"),
        ("cluster.peers", "2@10.0.0.2:7601"),
    ];
    // That the key goes is said of every one.
    let doubts = |flags: &[(&str, &str)]| {
        let mut warnings = resolve(flags).unwrap().warnings;
        let last = warnings.pop().expect("the key goes");
        assert!(last.contains("kera cluster import"), "{last}");
        warnings
    };
    let warnings = doubts(&flags);
    assert!(warnings[0].contains("cannot reach"), "{warnings:?}");
    let near = [
        ("cluster.broker_id", "1"),
        ("cluster.peers", "2@127.0.0.1:7701"),
    ];
    assert!(doubts(&near).is_empty());
    let far = [flags[0], flags[1], ("cluster.listen", "0.0.0.0:7601")];
    assert!(doubts(&far).is_empty());
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
    says(&[far], "cluster.listen is 127.0.0.1:7601");
    says(&[far, server], "set cluster.advertise");
    says(&[far, cluster], "set server.advertise");
    let everywhere = [far, ("server.listen", "0.0.0.0:7600"), cluster];
    says(&everywhere, "server.listen is 0.0.0.0:7600");
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
    let error = with(&[
        ("cluster.broker_id", "1"),
        ("cluster.store", "etcd://a:1"),
        ("cluster.peers", "2@a:1"),
    ])
    .unwrap_err();
    assert!(error.contains("leave one of them out"), "{error}");
    assert_eq!(
        with(&[("cluster.rack", "east-1")]).unwrap().rack.as_deref(),
        Some("east-1")
    );
}
