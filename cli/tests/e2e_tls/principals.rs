//! Who a client is by its certificate.

use std::io::Write;
use std::net::TcpStream;

use rustls::HandshakeKind;

use crate::certificates::{Authority, Files};
use crate::common::http;
use crate::common::ports::Reserved;
use crate::reload::until;
use crate::session::Client;
use crate::tells;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
const VERSIONS: [&rustls::SupportedProtocolVersion; 2] =
    [&rustls::version::TLS12, &rustls::version::TLS13];

fn counted(result: &str, times: usize) -> String {
    format!("kera_authentications_total{{mechanism=\"certificate\",result=\"{result}\"}} {times}\n")
}

#[test]
fn certificates_are_counted_by_whether_they_tell_who_a_client_is() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let metrics = Reserved::new();
    let flags = [
        "--tls-client-auth",
        "requested",
        "--http-listen",
        metrics.address(),
    ];
    let broker = files.broker("native", &flags);
    let (ann, nameless) = (clients.client("ann"), clients.client(""));
    let stranger = Authority::new("other").client("ann");
    for version in VERSIONS {
        let of = |identity| Client {
            identity,
            version,
            ..Client::trusting(&servers)
        };
        // A session that is resumed is the same client's.
        let config = of(Some(&ann)).config();
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let opened = of(Some(&ann)).open_with(config.clone(), broker.address());
            let mut session = opened.expect("it gets in");
            session.hello().expect("the hello is answered");
            assert_eq!(session.0.conn.handshake_kind(), Some(kind), "{version:?}");
        }
        for identity in [Some(&nameless), None] {
            let mut session = of(identity).open(broker.address()).expect("it gets in");
            session.hello().expect("the hello is answered");
        }
        of(Some(&stranger)).fails(broker.address());
    }
    until("they are not counted", &broker, || {
        let text = http::get(metrics.address(), "/metrics");
        // Clients without a certificate have proved nothing, and are not counted.
        [("success", 4), ("unnamed", 2), ("failure", 2)]
            .iter()
            .all(|(result, times)| text.contains(&counted(result, *times)))
    });
}

#[test]
fn handshakes_that_fail_are_counted_by_why() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let metrics = Reserved::new();
    let flags = [
        ["--tls-client-auth", "required"],
        ["--http-listen", metrics.address()],
    ];
    let broker = files.broker("native", flags.as_flattened());
    let stranger = Authority::new("other").client("ann");
    let expired = clients.expired(&NAMES);
    for version in VERSIONS {
        for identity in [Some(&stranger), Some(&expired), None] {
            let client = Client {
                identity,
                version,
                ..Client::trusting(&servers)
            };
            client.fails(broker.address());
        }
    }
    Client::trusting(&clients).fails(broker.address());
    let connect = || TcpStream::connect(broker.address()).expect("it listens");
    connect().write_all(b"KERA\x01\0\0\0").expect("it is sent");
    drop(connect());
    let expected = [
        ("unknown_authority", 2),
        ("expired", 2),
        ("no_certificate", 2),
        ("broker_refused", 1),
        ("no_tls", 1),
        ("bad_certificate", 0),
        ("other", 0),
    ];
    until("they are not counted", &broker, || {
        let text = http::get(metrics.address(), "/metrics");
        expected.iter().all(|(reason, times)| {
            text.contains(&format!(
                "kera_tls_handshake_failures_total{{reason=\"{reason}\"}} {times}\n"
            ))
        })
    });
}

#[test]
fn the_log_names_the_principal_of_a_kafka_client_that_breaks_the_protocol() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let ann = clients.client("ann");
    for (identity, principal) in [(Some(&ann), "User:ann"), (None, "anonymous")] {
        let kafka = Reserved::new();
        // A broker for each: such lines are few.
        let flags = [
            "--kafka-listen",
            kafka.address(),
            "--tls-client-auth",
            "requested",
        ];
        let broker = files.broker("kafka", &flags);
        let client = Client {
            identity,
            ..Client::trusting(&servers)
        };
        let mut session = client.open(kafka.address()).expect("it gets in");
        let length = i32::MAX.to_be_bytes();
        session.0.write_all(&length).expect("it is sent");
        session.0.flush().expect("it is sent");
        tells(&broker, "closing the connection of a Kafka client");
        let log = broker.log();
        let line = log.lines().find(|line| line.contains("closing the conn"));
        let line = line.expect("it was there");
        assert!(line.contains(principal), "{line}");
    }
}
