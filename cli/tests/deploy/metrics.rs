//! What a broker that has seen all kinds of traffic exposes at `/metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::cluster::Member;
use crate::common::{PATIENCE, home};
use crate::process::Process;

/// Names of series with the names of their labels.
pub type Exposed = BTreeMap<String, BTreeSet<String>>;

/// The series in a text of metrics, without those that are there under a former name.
fn series(text: &str) -> Exposed {
    let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
    let helps = helps.filter_map(|line| line.split_once(' '));
    let former: BTreeSet<&str> = helps
        .filter(|(_, help)| help.starts_with("Former name of "))
        .map(|(name, _)| name)
        .collect();
    let mut exposed = Exposed::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name_end = line.find(['{', ' ']).expect("a name and a value");
        let name = &line[..name_end];
        if former.contains(name.strip_suffix("_total").unwrap_or(name)) {
            continue;
        }
        let labels = exposed.entry(line[..name_end].to_owned()).or_default();
        let Some(inner) = line[name_end..].strip_prefix('{') else {
            continue;
        };
        // Values are in quotes, in which everything may stand.
        let (mut rest, mut in_value, mut name) = (inner.chars(), false, String::new());
        while let Some(c) = rest.next() {
            match c {
                '\\' if in_value => drop(rest.next()),
                '"' => in_value = !in_value,
                '}' if !in_value => break,
                '=' if !in_value => drop(labels.insert(std::mem::take(&mut name))),
                c if !in_value && c != ',' => name.push(c),
                _ => {}
            }
        }
    }
    exposed
}

/// A request of a Kafka client that is answered by any broker: ApiVersions, version 0.
fn ask_as_kafka_client(address: &str) {
    let mut socket = TcpStream::connect(address).expect("the broker accepts");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    // Length; API 18, version 0, correlation 7, no client id.
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    socket.write_all(&request).expect("a request");
    let mut head = [0; 8];
    socket.read_exact(&mut head).expect("an answer");
    assert_eq!(head[4..], [0, 0, 0, 7], "the answer is to another request");
}

/// What brokers expose, one by itself and one that shares its store with a replica store; `None`, and said so, where there is
/// no etcd.
pub fn exposed() -> Option<Exposed> {
    let member = Member::start()?;
    let _store = member.replica_store();
    let copied = ["stream", "create", "copied", "--replicas", "2"];
    member.broker.run(&copied, b"");
    // It is counted from time to time.
    let text = member.exposes("kera_stream_under_replicated_groups{stream=\"copied\"}");
    let mut all = by_itself();
    all.extend(with_tls()?);
    for (name, labels) in series(&text) {
        all.entry(name).or_default().extend(labels);
    }
    Some(all)
}

/// What a broker exposes once it has streams, consumer groups and clients of both kinds.
fn by_itself() -> Exposed {
    let broker = Process::with(&[]);
    broker.run(&["stream", "create", "s"], b"");
    broker.run(&["produce", "s", "-q"], b"one\ntwo\n");
    broker.run(&["consume", "s", "--group", "g", "--max", "1"], b"");
    ask_as_kafka_client(&broker.kafka);
    let objective = [
        "--objective-latency=1s",
        "--objective-request-rate=1",
        "--objective-byte-rate=1KiB",
    ];
    let set = ["quota", "set", "--principal", "User:ann"];
    broker.run(&[&set[..], &objective].concat(), b"");
    let (status, text) = broker.get("/metrics");
    assert_eq!(status, 200);
    assert!(text.ends_with("# EOF\n"), "OpenMetrics ends so: {text}");
    series(&text)
}

/// What a broker of a cluster exposes whose clients have TLS and tokens, by rules that count for a time; `None` where there is
/// no etcd.
fn with_tls() -> Option<Exposed> {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut asked = rcgen::CertificateParams::new(names).expect("names");
    let name = rcgen::DnType::CommonName;
    asked.distinguished_name.push(name, "broker");
    let key_pair = rcgen::KeyPair::generate().expect("a key");
    let made = asked.self_signed(&key_pair).expect("a certificate");
    let home = home();
    let (certificate, key) = (home.path().join("c.pem"), home.path().join("k.pem"));
    std::fs::write(&certificate, made.pem()).expect("a file can be written");
    std::fs::write(&key, key_pair.serialize_pem()).expect("a file can be written");
    let path = |path: &std::path::Path| path.display().to_string();
    let (certificate, key) = (path(&certificate), path(&key));
    let flags = [
        ["--auth-listeners", "kafka"],
        ["--auth-mechanisms", "OAUTHBEARER"],
        ["--oauth-issuer", "i"],
        ["--oauth-audience", "a"],
        ["--oauth-keys", "/nowhere"],
        ["--tls-listeners", "native,kafka"],
        ["--tls-certificate", &certificate],
        ["--tls-key", &key],
        ["--tls-broker-ca", &certificate],
        ["--tls-client-ca", &certificate],
        ["--tls-client-auth", "requested"],
        ["--acl-enabled", "true"],
        ["--acl-super-users", "User:broker"],
        ["--acl-max-age", "1h"],
        ["--audit-to", "log"],
        ["--telemetry-endpoint", "http://127.0.0.1:1"],
    ];
    let member = Member::with(flags.as_flattened())?;
    let broker = &member.broker;
    let (status, text) = broker.get("/metrics");
    assert_eq!(status, 200);
    let mut exposed = series(&text);
    let only_here = [
        "kera_access_rules_age_seconds",
        "kera_access_rules_outdated_total",
        "kera_authentications_total",
        "kera_audit_events_total",
        "kera_oauth_keys_failed",
        "kera_telemetry_dropped_total",
    ];
    exposed.retain(|name, _| name.starts_with("kera_tls_") || only_here.contains(&name.as_str()));
    Some(exposed)
}

#[test]
fn series_are_found_with_their_labels() {
    let text = "# HELP a x\n# TYPE a counter\na_total{x=\"1,}\\\"=\",y=\"2\"} 5\nb 1\n# EOF\n";
    let exposed = series(text);
    let labels: Vec<_> = exposed["a_total"].iter().map(String::as_str).collect();
    assert_eq!(labels, ["x", "y"]);
    assert!(exposed["b"].is_empty());
    assert_eq!(exposed.len(), 2);
}
