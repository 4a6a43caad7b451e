//! Who gets in at a listener with TLS, and who does not.

use std::io::{Read, Write};

use crate::certificates::{Authority, Files};
use crate::common::ports::Reserved;
use crate::common::raw::Raw;
use crate::common::{Broker, finish, home, kera};
use crate::session::Client;
use crate::tells;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

#[test]
fn frames_and_calls_share_the_native_address_with_and_without_a_word_in_the_handshake() {
    let authority = Authority::new("ours");
    let broker = Files::new(&authority.server(&NAMES), None).broker("native", &[]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for protocol in [Some(&b"kera"[..]), None] {
            let client = Client {
                protocol,
                version,
                ..Client::trusting(&authority)
            };
            let mut session = client.open(broker.address()).expect("it gets in");
            session.hello().expect("the hello is answered");
            assert!(session.answers(), "{version:?} {protocol:?}");
        }
        for protocol in [Some(&b"h2"[..]), None] {
            let client = Client {
                protocol,
                version,
                ..Client::trusting(&authority)
            };
            let mut session = client.open(broker.address()).expect("it gets in");
            // In two records, each of which could be something else.
            session.0.write_all(b"PRI * HTTP").expect("it is sent");
            session.0.flush().expect("it is sent");
            session
                .0
                .write_all(b"/2.0\r\n\r\nSM\r\n\r\n")
                .expect("it is sent");
            session
                .0
                .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
                .expect("it is sent");
            let mut head = [0; 9];
            session.0.read_exact(&mut head).expect("HTTP/2 answers");
            assert_eq!(head[3], 4, "its settings: {head:?}");
        }
    }
}

#[test]
fn kafkas_addresses_have_tls_and_the_native_one_does_not() {
    let authority = Authority::new("ours");
    let kafka = Reserved::new();
    let files = Files::new(&authority.server(&NAMES), None);
    let broker = files.broker("kafka", &["--kafka-listen", kafka.address()]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        // What a client says that it speaks, if anything, is its own affair.
        for protocol in [None, Some(&b"kafka"[..])] {
            let client = Client {
                protocol,
                version,
                ..Client::trusting(&authority)
            };
            let mut session = client.open(kafka.address()).expect("it gets in");
            assert_eq!(session.kafka_versions().expect("an answer"), 0);
        }
    }
    broker.run(&["stream", "create", "clicks"]);
}

#[test]
fn clients_see_through_a_wrong_certificate() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let broker = Files::new(&ours.server(&NAMES), None).broker("native", &[]);
    let said = Client::trusting(&other).fails(broker.address());
    assert!(said.contains("UnknownIssuer"), "{said}");
    let told = "the client does not know the authority that signed tls.certificate";
    tells(&broker, told);
    let misnamed = Client {
        name: "elsewhere.example",
        ..Client::trusting(&ours)
    };
    let said = misnamed.fails(broker.address());
    assert!(said.contains("elsewhere.example"), "{said}");

    let broker = Files::new(&ours.expired(&NAMES), None).broker("native", &[]);
    let said = Client::trusting(&ours).fails(broker.address());
    assert!(said.contains("expired"), "{said}");
    let told = "the certificate in tls.certificate has expired";
    tells(&broker, told);
}

#[test]
fn clients_prove_who_they_are_where_that_is_required() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let other = Authority::new("other");
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let (known, stranger) = (clients.client("ann"), other.client("ann"));
    for (wanted, nobody_gets_in) in [("required", true), ("requested", false)] {
        let broker = files.broker("native", &["--tls-client-auth", wanted]);
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let nobody = Client {
                version,
                ..Client::trusting(&servers)
            };
            let of = |identity| Client {
                identity: Some(identity),
                version,
                ..Client::trusting(&servers)
            };
            let mut session = of(&known).open(broker.address()).expect("it gets in");
            session.hello().expect("the hello is answered");
            of(&stranger).fails(broker.address());
            let outcome = nobody.open(broker.address()).and_then(|mut s| s.hello());
            assert_eq!(outcome.is_err(), nobody_gets_in, "{wanted}");
        }
        let told = "the client's certificate is refused";
        tells(&broker, told);
    }
    let broker = files.broker("native", &["--tls-client-auth", "required"]);
    Client::trusting(&servers).fails(broker.address());
    let told = "the client has no certificate, and tls.client_auth is `required`";
    tells(&broker, told);
}

#[test]
fn who_mixes_up_tls_and_plain_is_told_of_in_the_log() {
    let authority = Authority::new("ours");
    let kafka = Reserved::new();
    let files = Files::new(&authority.server(&NAMES), None);
    let broker = files.broker("native", &[]);
    for _ in 0..20 {
        let mut raw = Raw::connect(&broker);
        raw.send(&kera_protocol::frame::Hello::CURRENT.encode());
        let mut answer = Vec::new();
        // What TLS has to say against it, and the end.
        let _ = raw.socket.read_to_end(&mut answer);
        assert_eq!(answer.first(), Some(&0x15), "an alert: {answer:?}");
    }
    tells(&broker, "the client does not speak TLS");
    let log = broker.log();
    assert_eq!(
        log.matches("the client does not speak TLS").count(),
        1,
        "{log}"
    );

    let plain = Broker::start();
    Client::trusting(&authority).fails(plain.address());
    tells(&plain, "server.listen: a client speaks TLS");
    // A broker of its own: such lines are few.
    let plain = Broker::with(&["--kafka-listen", kafka.address()]);
    Client::trusting(&authority).fails(kafka.address());
    tells(&plain, "add kafka to tls.listeners");
}

#[test]
fn files_that_cannot_be_used_are_refused_at_the_start_with_what_to_do() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let (good, foreign) = (ours.server(&NAMES), other.server(&NAMES));
    let files = Files::new(&good, None);
    let certificate = files.write("c.pem", &good.certificate);
    let key = files.write("k.pem", &good.key);
    let wrong_key = files.write("w.pem", &foreign.key);
    let missing = home().path().join("missing.pem");
    for (certificate, key, said) in [
        (&missing, &key, "tls.certificate: cannot read"),
        (&key, &key, "holds no certificate; name one in PEM"),
        (&certificate, &certificate, "holds no private key in PEM"),
        (&certificate, &wrong_key, "do not go together"),
    ] {
        let data = home();
        let mut serve = kera();
        serve
            .args(["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"])
            .args(["--tls-listeners", "native", "--data-dir"])
            .arg(data.path())
            .arg("--tls-certificate")
            .arg(certificate)
            .arg("--tls-key")
            .arg(key);
        let finished = finish(serve, b"");
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
}
