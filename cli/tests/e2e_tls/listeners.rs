//! Who gets in at a listener with TLS, and who does not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::certificates::{Authority, Files};
use crate::common::ports::Reserved;
use crate::common::raw::Raw;
use crate::common::{Broker, finish, home, kera, machine};
use crate::session::Client;
use crate::tells;
use crate::users::kcat;

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

/// A broker with three addresses for Kafka's clients, each of which protects something else, and a user.
struct Named {
    servers: Authority,
    clients: Authority,
    inner: Reserved,
    outer: Reserved,
    partners: Reserved,
    files: Files,
    broker: Broker,
}

impl Named {
    fn start() -> Self {
        let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
        let files = Files::new(&servers.server(&NAMES), Some(&clients));
        let (inner, outer, partners) = (Reserved::new(), Reserved::new(), Reserved::new());
        let listen = format!(
            "inner={},outer={},partners={}",
            inner.address(),
            outer.address(),
            partners.address()
        );
        let port = |address: &str| address.rsplit_once(':').expect("a port").1.to_owned();
        let advertise = format!("outer=localhost:{}", port(outer.address()));
        let flags = [
            ["--kafka-listen", &*listen],
            ["--kafka-advertise", &advertise],
            [
                "--listeners-protocols",
                "inner=PLAINTEXT,outer=SASL_SSL,partners=SSL",
            ],
            ["--listeners-client-auth", "partners=required"],
            ["--listeners-mechanisms", "outer=SCRAM-SHA-512"],
        ];
        let broker = files.broker("off", flags.as_flattened());
        Self {
            servers,
            clients,
            inner,
            outer,
            partners,
            files,
            broker,
        }
    }
}

#[test]
fn a_plain_listener_stands_beside_one_with_tls_and_logins_and_each_refuses_the_others_clients() {
    let named = Named::start();
    let client = Client::trusting(&named.servers);
    let versions = |config, address: &str| {
        let opened = client.open_with(config, address);
        opened.and_then(|mut session| session.kafka_versions())
    };
    let mut session = client.open(named.outer.address()).expect("it has TLS");
    assert_eq!(session.kafka_versions().expect("an answer"), 0);
    let mut session = client.open(named.outer.address()).expect("it has TLS");
    let (refused, taken) = session.sasl_handshake("PLAIN").expect("an answer");
    assert_eq!(refused, 33, "UNSUPPORTED_SASL_MECHANISM");
    assert_eq!(taken, ["SCRAM-SHA-512"]);

    // Without TLS at the one that has it, and the other way round.
    let mut plain = TcpStream::connect(named.outer.address()).expect("a connection");
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    plain.write_all(&request).expect("it is sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert_eq!(answer.first(), Some(&0x15), "an alert: {answer:?}");
    tells(
        &named.broker,
        "a TLS handshake failed at outer: the client does not speak TLS",
    );
    assert!(versions(client.config(), named.inner.address()).is_err());
    tells(&named.broker, "in listeners.protocols");
    let mut plain = TcpStream::connect(named.inner.address()).expect("a connection");
    plain.write_all(&request).expect("it is sent");
    let mut head = [0; 10];
    plain.read_exact(&mut head).expect("an answer");
    assert_eq!(head[8..], [0, 0], "no error");

    // Partners have certificates. A session that proved nothing is not resumed there.
    let nobody = client.config();
    for _ in 0..3 {
        assert_eq!(
            versions(nobody.clone(), named.outer.address()).expect("an answer"),
            0
        );
        assert!(versions(nobody.clone(), named.partners.address()).is_err());
    }
    let identity = named.clients.client("shop");
    let known = Client {
        identity: Some(&identity),
        ..Client::trusting(&named.servers)
    };
    let mut session = known.open(named.partners.address()).expect("it gets in");
    assert_eq!(session.kafka_versions().expect("an answer"), 0);
}

#[test]
fn librdkafka_is_told_the_address_of_the_listener_that_it_came_in_by() {
    let version = Command::new("kcat").arg("-V").output();
    if !version.is_ok_and(|output| output.status.success()) {
        machine::skip("kcat at listeners with names", "kcat is not installed");
        return;
    }
    let named = Named::start();
    named
        .broker
        .feed(&["user", "create", "ann"], b"long secret");
    let ca = named.files.write("ca.pem", &named.servers.pem);
    let ca = ca.to_str().expect("a path of the build");
    let tls = [
        ("security.protocol", "sasl_ssl"),
        ("ssl.ca.location", ca),
        ("sasl.mechanism", "SCRAM-SHA-512"),
        ("sasl.username", "ann"),
        ("sasl.password", "long secret"),
    ];
    let (inner, outer) = (named.inner.address(), named.outer.address());
    for (address, settings, host, user) in [
        (inner, &[][..], "127.0.0.1", "anonymous"),
        (outer, &tls, "localhost", "ann"),
    ] {
        let told = kcat(address, settings, &["-L", "-m", "20"], b"");
        let port = address.rsplit_once(':').expect("a port").1;
        let broker = format!("broker 1 at {host}:{port}");
        assert!(
            told.text().contains(&broker),
            "{}{}",
            told.text(),
            told.stderr
        );
        let produced = kcat(address, settings, &["-P", "-t", "orders"], user.as_bytes());
        assert!(produced.status.success(), "{}", produced.stderr);
    }
    // The same records for whoever came in by either.
    let read = kcat(inner, &[], &["-C", "-e", "-t", "orders"], b"");
    assert_eq!(read.text().lines().count(), 2, "{}", read.text());
    // A password that is sent itself is taken nowhere here, nor none at all.
    let wrong = |mechanism: &'static str| {
        let mut settings = tls.to_vec();
        settings[2].1 = mechanism;
        settings
    };
    for settings in [wrong("PLAIN"), wrong("SCRAM-SHA-256"), tls[..2].to_vec()] {
        let mut settings = settings;
        if settings.len() == 2 {
            settings[0].1 = "ssl";
        }
        let told = kcat(outer, &settings, &["-L", "-m", "2"], b"");
        assert!(!told.status.success(), "{settings:?}: {}", told.text());
    }
}

/// Native clients come in by the plain address of the broker's own machine, or by one with TLS and logins.
#[test]
fn native_clients_go_on_at_the_address_of_the_listener_that_they_came_in_by() {
    let servers = Authority::new("servers");
    // Not for 127.0.0.1: whoever is sent there does not get in.
    let files = Files::new(&servers.server(&["localhost"]), None);
    let ca = files.write("ca.pem", &servers.pem);
    let password = files.write("password", "long secret\n");
    let outer = Reserved::new();
    let (_, port) = outer.address().rsplit_once(':').expect("a port");
    let (listen, place) = (
        format!("outer={}", outer.address()),
        format!("localhost:{port}"),
    );
    let advertise = format!("outer={place}");
    let flags = [
        ["--listen", &*listen],
        ["--server-advertise", &advertise],
        ["--listeners-protocols", "outer=SASL_SSL"],
        ["--listeners-mechanisms", "outer=SCRAM-SHA-512"],
    ];
    let broker = files.broker("off", flags.as_flattened());
    broker.feed(&["user", "create", "ann"], b"long secret");
    broker.run(&["stream", "create", "clicks"]);
    let ask = |words: &[&str], tls: bool, user: bool, input: &[u8]| {
        let mut command = kera();
        command.args(words).env("KERA_BOOTSTRAP", &place);
        if tls {
            command.env("KERA_TLS_CA", &ca);
        }
        if user {
            command
                .env("KERA_USER", "ann")
                .env("KERA_USER_PASSWORD_FILE", &password);
        }
        finish(command, input)
    };
    // Producers and consumers connect to the owner, at the address that they are told.
    let sent = ask(&["produce", "clicks"], true, true, b"from outside\n");
    assert!(sent.status.success(), "{}", sent.stderr);
    for group in [&[][..], &["--group", "g", "--max", "1"]] {
        let words = [&["consume", "clicks"][..], group].concat();
        let read = ask(&words, true, true, b"");
        assert_eq!(read.text(), "from outside\n", "{}", read.stderr);
    }
    assert_eq!(broker.run(&["consume", "clicks"]), "from outside\n");
    for (tls, user, why) in [(true, false, "who you are"), (false, true, "TLS")] {
        let refused = ask(&["stream", "list"], tls, user, b"");
        assert!(!refused.status.success(), "{}", refused.text());
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    // The other way round: TLS where there is none.
    let mut command = kera();
    command
        .args(["stream", "list", "--bootstrap", broker.address()])
        .env("KERA_TLS_CA", &ca);
    assert!(!finish(command, b"").status.success());
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
