//! Clients that lie about who they are, about what they send and about how much of it, again and again: others are served
//! meanwhile and afterwards, and the broker grows by little.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use kera_protocol::frame::{FrameKind, Hello, PREFIX_BYTES};
use kera_protocol::login::{MAX_TOKEN_MESSAGE, OAUTHBEARER, first, next};
use kera_rpc::login::SaslMechanism;
use kera_rpc::scram::{self, Mechanism};
use kera_testkit::issuer::{AUDIENCE, Issuer, now};

use crate::certificates::{Authority, Files};
use crate::common::machine::Memory;
use crate::common::ports::Reserved;
use crate::common::{Broker, PATIENCE};
use crate::reload::until;
use crate::session::{Client, Session};

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
const PASSWORD: &str = "long secret";
const SHA512: SaslMechanism = SaslMechanism::Scram(Mechanism::Sha512);
/// Times that each of them tries.
const ROUNDS: usize = 30;
/// By so much the broker may grow, with all their connections open.
pub const GROWTH_MIB: u64 = 64;

/// A broker that lets in who has a password, a token or a certificate, and a client that is in.
struct World<'a> {
    broker: Broker,
    kafka: Reserved,
    client: Client<'a>,
    issuer: &'a Issuer,
}

impl World<'_> {
    fn native(&self) -> Session {
        let opened = self.client.open(self.broker.address());
        opened.expect("the handshake needs no login")
    }

    fn kafka(&self) -> Session {
        let opened = self.client.open(self.kafka.address());
        opened.expect("the handshake needs no login")
    }

    fn token(&self) -> Vec<u8> {
        bearer(&self.issuer.sign(&self.issuer.claims("ann", 600)))
    }
}

pub fn bearer(token: &str) -> Vec<u8> {
    format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}").into_bytes()
}

/// What the broker says of a proof.
fn told(session: &mut Session) -> (u16, String) {
    let mut head = [0; 8];
    session.0.read_exact(&mut head).expect("an answer");
    let [s0, s1, _, _, l0, l1, l2, l3] = head;
    let mut text = vec![0; u32::from_le_bytes([l0, l1, l2, l3]) as usize];
    session.0.read_exact(&mut text).expect("all of it");
    let text = String::from_utf8(text).expect("text");
    (u16::from_le_bytes([s0, s1]), text)
}

fn send(session: &mut Session, bytes: &[u8]) {
    // The broker may have ended the connection already, which shows in what it says.
    let _ = session.0.write_all(bytes);
    let _ = session.0.flush();
}

/// That the broker refuses a proof because of `why`, and ends the connection.
fn refused(session: &mut Session, proof: &[u8], why: &str) {
    send(session, proof);
    let (status, text) = told(session);
    assert!(status == 2 && text.contains(why), "{status} {text}");
    ends(session);
}

/// That nothing more comes but the end.
fn ends(session: &mut Session) {
    let mut rest = Vec::new();
    if let Err(error) = session.0.read_to_end(&mut rest) {
        let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof];
        assert!(kinds.contains(&error.kind()), "{error:?}");
    }
}

/// A request to a Kafka listener: API, version, and the body.
pub fn request(api: u16, version: u16, body: &[u8]) -> Vec<u8> {
    let head = [api.to_be_bytes(), version.to_be_bytes()].concat();
    // Correlation, and no client id.
    let rest = [&head[..], &[0, 0, 0, 7, 0xff, 0xff], body].concat();
    [&(rest.len() as u32).to_be_bytes(), &rest[..]].concat()
}

/// What is answered to it behind its head.
pub fn answered(stream: &mut (impl Read + Write), request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut reply = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut reply)?;
    Ok(reply.split_off(4))
}

/// Logs in at a Kafka listener by a message with a token.
pub fn log_in_by(stream: &mut (impl Read + Write), token: &[u8]) -> io::Result<()> {
    let refused = |answer: &[u8]| {
        let text = String::from_utf8_lossy(answer).into_owned();
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    };
    let name = [&11_u16.to_be_bytes()[..], b"OAUTHBEARER"].concat();
    let handshake = answered(stream, &request(17, 1, &name))?;
    if handshake[..2] != [0, 0] {
        return Err(refused(&handshake));
    }
    let proof = [&(token.len() as u32).to_be_bytes()[..], token].concat();
    let entered = answered(stream, &request(36, 1, &proof))?;
    // No error, and nothing to answer: a wrong token gets a challenge first.
    match entered[..2] == [0, 0] && entered[4..8] == [0, 0, 0, 0] {
        true => Ok(()),
        false => Err(refused(&entered)),
    }
}

/// The same over TLS.
fn log_in(world: &World<'_>) -> Session {
    let mut session = world.kafka();
    log_in_by(&mut session.0, &world.token()).expect("it is let in");
    session
}

/// Certificates of another authority, and one that has expired.
fn wrong_certificates(world: &World<'_>, ours: &Authority) {
    let other = Authority::new("other");
    for identity in [other.client("admin"), ours.expired(&NAMES)] {
        let client = Client {
            identity: Some(&identity),
            ..Client::trusting(world.client.trusts)
        };
        for address in [world.broker.address(), world.kafka.address()] {
            client.fails(address);
        }
    }
}

fn wrong_proofs(world: &World<'_>) {
    let mut claims = world.issuer.claims("ann", 0);
    claims["exp"] = (now() - 3600).into();
    let expired = bearer(&world.issuer.sign(&claims));
    let mut elsewhere = world.issuer.claims("ann", 600);
    elsewhere["aud"] = "elsewhere".into();
    let elsewhere = bearer(&world.issuer.sign(&elsewhere));
    for (proof, why) in [
        (first(OAUTHBEARER, &expired), "has expired"),
        (first(OAUTHBEARER, &elsewhere), "another audience"),
        // The password in the clear, at a broker that takes proofs of knowing it alone.
        (
            first(0, b"\0ann\0long secret"),
            "does not take this mechanism",
        ),
    ] {
        refused(&mut world.native(), &proof, why);
    }
}

/// Protocols below what the broker speaks.
fn downgrades(world: &World<'_>) {
    for address in [world.broker.address(), world.kafka.address()] {
        // Without TLS.
        let mut plain = TcpStream::connect(address).expect("it listens");
        plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let _ = plain.write_all(&Hello::CURRENT.encode());
        let mut said = Vec::new();
        let _ = plain.read_to_end(&mut said);
        assert!(!said.starts_with(b"KERA"), "{said:?}");

        // TLS 1.1: a hello with two suites that RSA keys were used with.
        let mut hello = vec![3, 2];
        hello.extend([7; 32]);
        hello.extend([0, 0, 4, 0, 0x2f, 0, 0x35, 1, 0]);
        let length = (hello.len() as u32).to_be_bytes();
        let message = [&[1], &length[1..], &hello].concat();
        let length = (message.len() as u16).to_be_bytes();
        let record = [&[22, 3, 1], &length[..], &message].concat();
        let mut old = TcpStream::connect(address).expect("it listens");
        old.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        old.write_all(&record).expect("it listens");
        let mut said = Vec::new();
        let _ = old.read_to_end(&mut said);
        // An alert of the worse kind, and nothing of a handshake.
        assert_eq!((said.first(), said.get(5)), (Some(&21), Some(&2)));
    }
}

/// A proof by SCRAM that was taken, with all that the client sent of it.
fn proof_by_scram(world: &World<'_>) -> (Vec<u8>, Vec<u8>) {
    let mut session = world.native();
    let password = PASSWORD.as_bytes();
    let (client, begin) = scram::Client::begin(Mechanism::Sha512, "ann", password).unwrap();
    let begin = first(SHA512.number(), begin.as_bytes());
    send(&mut session, &begin);
    let (status, challenge) = told(&mut session);
    assert_eq!(status, 1, "{challenge}");
    let (_, proof) = client.answer(challenge.as_bytes()).unwrap();
    let proof = next(proof.as_bytes());
    send(&mut session, &proof);
    assert_eq!(told(&mut session).0, 0);
    session.hello().expect("it is let in");
    (begin, proof)
}

fn replays(world: &World<'_>, (begin, proof): &(Vec<u8>, Vec<u8>)) {
    let mut session = world.native();
    send(&mut session, begin);
    assert_eq!(told(&mut session).0, 1);
    refused(&mut session, proof, "the user or the password is wrong");
}

/// Lengths that nothing follows, before a login: what stays open of them.
fn lies_before(world: &World<'_>) -> Vec<Session> {
    let head = first(OAUTHBEARER, b"");
    let claims = |length: u32| [&head[..8], &length.to_le_bytes()].concat();
    let mut session = world.native();
    refused(&mut session, &claims(u32::MAX), "at most 32768 bytes");
    for length in [i32::MAX, -1, (64 << 10) + 1] {
        let mut session = world.kafka();
        let request = [&length.to_be_bytes()[..], &[0, 36, 0, 1]].concat();
        send(&mut session, &request);
        ends(&mut session);
    }
    let mut waits = world.native();
    send(&mut waits, &claims(MAX_TOKEN_MESSAGE as u32));
    let mut kafka_waits = world.kafka();
    send(&mut kafka_waits, &(64_i32 << 10).to_be_bytes());
    send(&mut kafka_waits, &[0, 36, 0, 1]);
    vec![waits, kafka_waits]
}

/// The same of clients that are in.
fn lies_after(world: &World<'_>) -> Vec<Session> {
    let enter = || {
        let mut session = world.native();
        send(&mut session, &first(OAUTHBEARER, &world.token()));
        assert_eq!(told(&mut session).0, 0);
        let most = session.hello().expect("it is let in").max_frame_bytes;
        (session, most)
    };
    let frame = |length: u32| {
        let mut prefix = [0; PREFIX_BYTES];
        prefix[..4].copy_from_slice(&length.to_le_bytes());
        (prefix[4], prefix[5]) = (FrameKind::Append as u8, 1);
        prefix
    };
    let (mut session, _) = enter();
    send(&mut session, &frame(u32::MAX));
    ends(&mut session);
    let (mut waits, most) = enter();
    send(&mut waits, &frame(most - 4));

    let mut kafka = log_in(world);
    send(&mut kafka, &i32::MAX.to_be_bytes());
    send(&mut kafka, &[0, 0, 0, 9]);
    ends(&mut kafka);
    // Two thousand million topics, names and records, of which there is none.
    for (api, version, body) in [
        (3, 1, &[0x7f, 0xff, 0xff, 0xff][..]),
        (2, 1, &[0xff, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]),
        (
            0,
            3,
            &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 9, 0x7f, 0xff, 0xff, 0xff],
        ),
    ] {
        let mut kafka = log_in(world);
        assert!(answered(&mut kafka.0, &request(api, version, body)).is_err());
    }
    let mut kafka_waits = log_in(world);
    send(&mut kafka_waits, &(8_i32 << 20).to_be_bytes());
    send(&mut kafka_waits, &[0, 0, 0, 9]);
    vec![waits, kafka_waits]
}

fn resident(broker: &Broker) -> u64 {
    Memory::of(broker.pid()).expect("Linux tells").now
}

#[test]
fn who_lies_gets_nothing_and_takes_little() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let issuer = Issuer::start("ann", 600);
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let kafka = Reserved::new();
    let (name, keys) = (issuer.name(), issuer.keys());
    let flags = [
        ["--kafka-listen", kafka.address()],
        ["--tls-client-auth", "requested"],
        ["--auth-listeners", "native,kafka"],
        ["--auth-mechanisms", "SCRAM-SHA-512,OAUTHBEARER"],
        ["--oauth-issuer", &name],
        ["--oauth-audience", AUDIENCE],
        ["--oauth-keys", &keys],
        // Those that wait wait longer than the test.
        ["--server-receive-timeout", "10m"],
        ["--server-hello-timeout", "10m"],
    ];
    let broker = files.broker("native,kafka", flags.as_flattened());
    let path = |name: &str, text: &str| files.write(name, text).display().to_string();
    let (ca, password) = (path("ca.pem", &servers.pem), path("password", PASSWORD));
    let admin = Files::new(&clients.client("admin"), None);
    let file = |name: &str| admin.path(name).display().to_string();
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let tls = ["--tls-ca", &ca];
    let by_certificate = ["--tls-cert", &certificate, "--tls-key", &key];
    let by_password = ["--user", "ann", "--user-password-file", &password];
    let create = ["user", "create", "ann"];
    broker.feed(
        &[&create[..], &tls, &by_certificate].concat(),
        PASSWORD.as_bytes(),
    );
    broker.run(&[&["stream", "create", "s"][..], &tls, &by_password].concat());
    let token = path("token", &issuer.sign(&issuer.claims("ann", 600)));
    let by_token = ["--token-file", &token];
    // A slow machine may need more time for the keys than a login waits.
    until("the token is taken", &broker, || {
        let list = [&["stream", "list"][..], &tls, &by_token].concat();
        broker.attempt(&list, b"").status.success()
    });
    let world = World {
        broker,
        kafka,
        client: Client::trusting(&servers),
        issuer: &issuer,
    };
    let mut good = world.native();
    send(&mut good, &first(OAUTHBEARER, &world.token()));
    assert_eq!(told(&mut good).0, 0);
    good.hello().expect("it is let in");
    let taken = proof_by_scram(&world);

    let before = resident(&world.broker);
    let mut open = Vec::new();
    let mut grown = 0;
    for _ in 0..ROUNDS {
        wrong_certificates(&world, &clients);
        wrong_proofs(&world);
        downgrades(&world);
        replays(&world, &taken);
        open.extend(lies_before(&world));
        open.extend(lies_after(&world));
        assert!(good.answers(), "who is in does not notice");
        grown = grown.max(resident(&world.broker).saturating_sub(before) >> 20);
    }
    eprintln!("{} connections wait, {grown} MiB more", open.len());
    assert!(grown <= GROWTH_MIB, "it has grown by {grown} MiB");
    // Who comes now is served as before.
    let broker = &world.broker;
    for who in [&by_password[..], &by_token] {
        let produce = [&["produce", "s", "-q"][..], &tls, who].concat();
        broker.feed(&produce, b"one\n");
    }
    let read = ["consume", "s", "--from", "earliest", "--max", "2"];
    let read = broker.run(&[&read[..], &tls, &by_token].concat());
    assert_eq!(read.lines().count(), 2, "{read}");
    drop(open);
}
