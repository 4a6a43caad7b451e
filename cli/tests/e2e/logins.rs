//! Native clients that prove who they are by a password: commands, the crates, and bytes by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use kera_consumer::{ConsumeError, Consumer, Reader};
use kera_producer::{BuildError, Producer};
use kera_protocol::frame::{Decoded, FrameKind, HELLO_REPLY_BYTES, Hello, decode};
use kera_protocol::login::{MAX_MESSAGE, first, next};
use kera_protocol::{Message, v1};
use kera_rpc::scram::{self, Mechanism};
use kera_rpc::{
    Client, ClientOptions, ConnectOptions, ConnectionError, DataConnection, Login, RetryPolicy,
    RpcError, SaslMechanism,
};
use tempfile::TempDir;

use crate::common::command::lines_of;
use crate::common::{Broker, Finished, PATIENCE, finish, home, http, kera};

pub const PASSWORD: &str = "long, secret = 1";

/// A broker with the users ann and admin, which asks who clients are.
pub struct World {
    pub broker: Broker,
    home: TempDir,
}

pub fn world(flags: &[&str]) -> World {
    world_at("native", flags)
}

/// The same, which asks at these listeners.
pub fn world_at(listeners: &str, flags: &[&str]) -> World {
    let mut broker = Broker::start();
    for user in ["ann", "admin"] {
        broker.feed(&["user", "create", user], PASSWORD.as_bytes());
    }
    broker.stop();
    let mut all = vec!["--auth-listeners", listeners];
    all.extend(flags);
    broker.set_flags(&all);
    broker.restart();
    let world = World {
        broker,
        home: home(),
    };
    for (name, text) in [("right", PASSWORD), ("wrong", "guessed")] {
        std::fs::write(world.password(name), text).expect("a file can be written");
    }
    world
}

impl World {
    fn password(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, user: &str, password: &str, words: &[&str]) -> std::process::Command {
        let mut command = kera();
        command
            .args(words)
            .args(["--user", user, "--user-password-file"])
            .arg(self.password(password))
            .env("KERA_BOOTSTRAP", self.broker.address());
        command
    }

    pub fn attempt(&self, user: &str, password: &str, words: &[&str], input: &[u8]) -> Finished {
        finish(self.command(user, password, words), input)
    }

    pub fn run(&self, user: &str, words: &[&str], input: &[u8]) -> String {
        let finished = self.attempt(user, "right", words, input);
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
        finished.text()
    }

    /// A connection on which nothing was said.
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.broker.address()).expect("it listens");
        let within = stream.set_read_timeout(Some(PATIENCE));
        within.expect("a socket has a timeout");
        stream
    }
}

/// A reader that follows a stream, until the test ends.
struct Following(Child);

impl Drop for Following {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_proof_counts_for_a_time_and_clients_prove_anew_by_themselves_who_they_are() {
    let flags = ["--auth-max-reauth", "2s", "--http-listen", "127.0.0.1:0"];
    let world = world(&flags);
    let create = ["stream", "create", "s", "--streamlets", "1"];
    world.run("ann", &create, b"");
    let proofs = |result: &str| -> u64 {
        let text = http::get(world.broker.http(), "/metrics");
        let ended = format!("result=\"{result}\"");
        let of_logins =
            |line: &&str| line.starts_with("kera_authentications_total") && line.contains(&ended);
        let counts = text.lines().filter(of_logins);
        counts
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    };
    let begin = |words: &[&str]| {
        let mut command = world.command("ann", "right", words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("kera can be started")
    };
    let mut reader = Following(begin(&["consume", "s", "--follow"]));
    let lines = lines_of(reader.0.stdout.take().expect("a pipe"));
    let mut producer = begin(&["produce", "s", "-q", "--linger", "0ms"]);
    let mut input = producer.stdin.take().expect("a pipe");
    for number in 0..4 {
        writeln!(input, "{number}").expect("it is read");
        let line = lines.recv_timeout(PATIENCE);
        assert_eq!(line.ok(), Some(number.to_string()));
        let (before, begin) = (proofs("success"), Instant::now());
        while proofs("success") < before + 2 {
            assert!(begin.elapsed() < PATIENCE, "{}", world.broker.log());
        }
    }
    drop(input);
    assert!(producer.wait().expect("it ends").success());
    // Who is gone is not let in again once the time is over.
    assert_eq!(proofs("failure"), 0);
    world.run("admin", &["user", "delete", "ann", "--yes"], b"");
    let begin = Instant::now();
    while proofs("failure") == 0 {
        assert!(begin.elapsed() < PATIENCE, "{}", world.broker.log());
    }
}

#[test]
fn the_first_user_is_made_of_a_file_where_there_are_none() {
    let home = home();
    let file = home.path().join("right");
    let path = file.to_str().expect("a path of the build");
    let flags = [
        ["--auth-listeners", "native"],
        ["--auth-first-user", "admin"],
        ["--auth-first-user-password-file", path],
    ];
    let flags = flags.as_flattened();
    let mut serve = kera();
    let data = home.path().join("data");
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"])
        .args(flags)
        .arg("--data-dir")
        .arg(&data);
    let without = finish(serve, b"");
    assert!(!without.status.success(), "{}", without.text());
    assert!(
        without.stderr.contains("cannot be read"),
        "{}",
        without.stderr
    );

    std::fs::write(&file, PASSWORD).expect("a file can be written");
    std::fs::write(home.path().join("wrong"), "guessed").expect("a file can be written");
    let broker = Broker::with(flags);
    let mut world = World { broker, home };
    let wrong = world.attempt("admin", "wrong", &["user", "list"], b"");
    assert!(!wrong.status.success(), "{}", wrong.text());
    world.run("admin", &["user", "create", "ann"], PASSWORD.as_bytes());
    world.run("admin", &["user", "delete", "admin", "--yes"], b"");
    // Others are there: it is not made again, and nobody needs its password.
    std::fs::rename(world.password("right"), world.password("kept")).expect("it is renamed");
    world.broker.stop();
    world.broker.restart();
    let gone = world.attempt("admin", "kept", &["user", "list"], b"");
    assert!(!gone.status.success(), "{}", gone.text());
    let listed = world.attempt("ann", "kept", &["user", "list", "--json"], b"");
    let listed: serde_json::Value = serde_json::from_str(&listed.text()).expect("JSON");
    assert!(listed.to_string().contains("ann"), "{listed}");
    assert!(!listed.to_string().contains("admin"), "{listed}");
}

/// A broker's message: its status, and its text.
fn message(stream: &mut TcpStream) -> (u16, String) {
    let mut head = [0; 8];
    stream.read_exact(&mut head).expect("the broker answers");
    let [s0, s1, 0, 0, l0, l1, l2, l3] = head else {
        panic!("no message: {head:?}");
    };
    let mut text = vec![0; u32::from_le_bytes([l0, l1, l2, l3]) as usize];
    stream.read_exact(&mut text).expect("the whole message");
    let text = String::from_utf8(text).expect("text");
    (u16::from_le_bytes([s0, s1]), text)
}

/// Waits for the end of a connection on which nothing more comes.
fn ends(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "{rest:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

pub fn refused(stream: &mut TcpStream, why: &str) {
    let (status, text) = message(stream);
    assert!(status == 2 && text.contains(why), "{status} {text}");
    ends(stream);
}

const SHA512: SaslMechanism = SaslMechanism::Scram(Mechanism::Sha512);

#[test]
fn commands_get_in_with_a_users_password_and_not_without() {
    let world = world(&[]);
    world.run("ann", &["stream", "create", "orders"], b"");
    world.run("ann", &["produce", "orders", "-q"], b"one\ntwo\n");
    let read = ["consume", "orders", "--from", "earliest", "--max", "2"];
    assert_eq!(world.run("ann", &read, b"").lines().count(), 2);
    let grouped = [
        "consume", "orders", "--group", "g", "--from", "earliest", "--max", "2",
    ];
    assert_eq!(world.run("ann", &grouped, b"").lines().count(), 2);
    for mechanism in ["SCRAM-SHA-256", "scram-sha-512"] {
        let listed = world.run(
            "ann",
            &["stream", "list", "--sasl-mechanism", mechanism],
            b"",
        );
        assert!(listed.contains("orders"), "{listed}");
    }
    // From the environment.
    let mut command = kera();
    command
        .args(["stream", "list"])
        .env("KERA_BOOTSTRAP", world.broker.address())
        .env("KERA_USER", "ann")
        .env("KERA_USER_PASSWORD", PASSWORD);
    assert!(finish(command, b"").text().contains("orders"));

    let mut told = Vec::new();
    for (user, password) in [("ann", "wrong"), ("nobody", "right")] {
        for words in [&["stream", "list"][..], &["produce", "orders", "-q"]] {
            let finished = world.attempt(user, password, words, b"three\n");
            assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
            let who = format!("{}: user {user} is not let in", world.broker.address());
            assert!(finished.stderr.contains(&who), "{}", finished.stderr);
            let text = finished.stderr.replace("produce", "stream list");
            told.push(text.replace(user, "USER"));
        }
    }
    assert!(
        told[0].contains("the user or the password is wrong; check"),
        "{}",
        told[0]
    );
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    for words in [&["stream", "list"][..], &["produce", "orders", "-q"]] {
        let nobody = world.broker.attempt(words, b"three\n");
        assert_eq!(nobody.status.code(), Some(1), "{}", nobody.stderr);
        let says = nobody.stderr.contains("--user-password-file");
        assert!(
            says && nobody.stderr.contains("asks who you are"),
            "{}",
            nobody.stderr
        );
    }
    assert_eq!(
        world.run("ann", &read, b"").lines().count(),
        2,
        "nothing came of it"
    );
    for (words, why) in [
        (&["--sasl-mechanism", "PLAIN"][..], "use TLS"),
        (&["--sasl-mechanism", "CRAM"], "is no mechanism"),
    ] {
        let words = [&["stream", "list"], words].concat();
        let finished = world.attempt("ann", "right", &words, b"");
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(why), "{}", finished.stderr);
    }
    let log = world.broker.log();
    assert!(
        !log.contains("secret") && !log.contains("guessed"),
        "a password is in the log"
    );
    // Where nobody is asked, a user is told so.
    let plain = Broker::start();
    let mut command = world.command("ann", "right", &["stream", "list"]);
    command.env("KERA_BOOTSTRAP", plain.address());
    let finished = finish(command, b"");
    assert!(
        finished
            .stderr
            .contains("takes no password at this address"),
        "{}",
        finished.stderr
    );
}

/// What a client of the crates is told, which would try again for an hour.
async fn told<T>(attempt: impl Future<Output = Result<T, RpcError>>) -> String {
    let told = tokio::time::timeout(PATIENCE, attempt).await;
    let Err(error) = told.expect("it is told at once") else {
        panic!("it is let in");
    };
    let is_login = matches!(error, RpcError::Connection(ConnectionError::Login { .. }));
    assert!(is_login && !error.is_retryable(), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn clients_of_the_crates_are_told_at_once_that_they_are_not_let_in() {
    let world = world(&[]);
    let address = world.broker.address();
    let client = |user: &str, password: &str, mechanism| {
        let login = Login::new(user, password).with_mechanism(mechanism);
        let connect = ConnectOptions {
            login: Some(login),
            ..ConnectOptions::default()
        };
        let retry = RetryPolicy::within(Duration::from_secs(3600));
        Client::new(address, ClientOptions { retry, connect }).expect("an address")
    };
    let wrong = "authentication failed: the user or the password is wrong; check";
    for (user, password, mechanism, why) in [
        ("ann", "guessed", SHA512, wrong),
        ("nobody", PASSWORD, SHA512, wrong),
        (
            "ann",
            PASSWORD,
            SaslMechanism::Plain,
            "does not take this mechanism; it takes SCRAM-SHA-256, SCRAM-SHA-512",
        ),
    ] {
        let of = || client(user, password, mechanism);
        let listing = of();
        let listed = listing.call(v1::ListStreamsRequest::default());
        let producer = async {
            let producer = Producer::builder().client(of()).stream("s").build();
            producer.await.map_err(|error| match error {
                BuildError::Rpc(error) => error,
                other => panic!("{other}"),
            })
        };
        let of_rpc = |error| match error {
            ConsumeError::Rpc(error) => error,
            other => panic!("{other}"),
        };
        let consumer = Consumer::builder().client(of()).stream("s").group("g");
        let reader = Reader::builder().client(of()).stream("s");
        let data = of();
        for text in [
            told(listed).await,
            told(producer).await,
            told(async { consumer.open().await.map_err(of_rpc) }).await,
            told(async { reader.open().await.map_err(of_rpc) }).await,
            told(data.data(address)).await,
        ] {
            let who = format!("broker {address} does not let user {user} in: ");
            assert!(text.starts_with(&who) && text.contains(why), "{text}");
        }
    }
}

#[test]
fn frames_begin_with_a_proof_and_what_is_no_proof_ends() {
    let world = world(&[
        "--auth-mechanisms",
        "SCRAM-SHA-512,PLAIN",
        "--server-receive-timeout",
        "300ms",
    ]);
    // Frames without a proof: a hello comes back, and why the connection ends.
    let mut stream = world.connect();
    stream
        .write_all(&Hello::CURRENT.encode())
        .expect("it takes the hello");
    let mut hello = [0; HELLO_REPLY_BYTES];
    stream.read_exact(&mut hello).expect("a hello");
    let mut rest = Vec::new();
    stream
        .read_to_end(&mut rest)
        .expect("what it says, and the end");
    let Ok(Decoded::Frame(head)) = decode(&rest, 1 << 20) else {
        panic!("no frame: {rest:?}");
    };
    assert_eq!(head.kind, FrameKind::GoAway);
    let text = v1::GoAway::decode(&rest[12..]).expect("a message").message;
    assert!(text.contains("asks who you are"), "{text}");

    // A proof, and the same bytes once more: the second broker's nonce is another.
    let mut stream = world.connect();
    let (client, begin) =
        scram::Client::begin(Mechanism::Sha512, "ann", PASSWORD.as_bytes()).unwrap();
    let begin = first(SHA512.number(), begin.as_bytes());
    stream.write_all(&begin).expect("it listens");
    let (status, challenge) = message(&mut stream);
    assert_eq!(status, 1);
    let (client, proof) = client.answer(challenge.as_bytes()).unwrap();
    let proof = next(proof.as_bytes());
    stream.write_all(&proof).expect("it listens");
    let (status, signature) = message(&mut stream);
    assert_eq!(status, 0);
    client
        .end(signature.as_bytes())
        .expect("the broker knows the password");
    stream
        .write_all(&Hello::CURRENT.encode())
        .expect("it listens");
    stream.read_exact(&mut hello).expect("a hello");
    let mut replayed = world.connect();
    replayed.write_all(&begin).expect("it listens");
    assert_eq!(message(&mut replayed).0, 1);
    replayed.write_all(&proof).expect("it listens");
    refused(&mut replayed, "the user or the password is wrong");

    let attempts: [(Vec<u8>, &str); 8] = [
        // Out of turn: the proof comes first.
        (first(SHA512.number(), &proof[4..]), "no SCRAM message"),
        (first(SHA512.number(), b""), "no SCRAM message"),
        (first(SHA512.number(), b"n,,n=ann"), "no SCRAM message"),
        (first(1, b"n,,n=ann,r=abc"), "it takes SCRAM-SHA-512, PLAIN"),
        (first(77, b""), "it takes SCRAM-SHA-512, PLAIN"),
        (
            first(0, b"\0ann\0guessed"),
            "the user or the password is wrong",
        ),
        (first(0, b"ann\0guessed"), "no PLAIN message"),
        (
            [&b"KSAS\x02\0\x02\0"[..], &[0; 4]].concat(),
            "knows version 1",
        ),
    ];
    for (bytes, why) in attempts {
        let mut stream = world.connect();
        stream.write_all(&bytes).expect("it listens");
        refused(&mut stream, why);
    }
    // Lengths that lie.
    for length in [MAX_MESSAGE as u32 + 1, 64 << 10, u32::MAX] {
        let mut stream = world.connect();
        let head = [&begin[..8], &length.to_le_bytes()].concat();
        stream.write_all(&head).expect("it listens");
        refused(&mut stream, "at most 4096 bytes");
        let mut stream = world.connect();
        stream.write_all(&begin).expect("it listens");
        assert_eq!(message(&mut stream).0, 1);
        stream.write_all(&length.to_le_bytes()).expect("it listens");
        refused(&mut stream, "at most 4096 bytes");
    }
    // Too late, at each step.
    for bytes in [&b""[..], b"KSA", &begin[..9], &begin] {
        let mut stream = world.connect();
        stream.write_all(bytes).expect("it listens");
        if bytes.len() == begin.len() {
            assert_eq!(message(&mut stream).0, 1);
        }
        ends(&mut stream);
    }
    // By PLAIN over loopback, in the crates.
    let login = Login::new("ann", PASSWORD).with_mechanism(SaslMechanism::Plain);
    let options = ConnectOptions {
        login: Some(login),
        ..ConnectOptions::default()
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connected = DataConnection::connect(world.broker.address(), &options, None);
    let connected = runtime.block_on(connected).expect("it gets in");
    assert!(!connected.is_closed());
}

#[test]
fn a_right_that_ends_ends_what_a_user_does() {
    let world = world(&["--acl-enabled", "true", "--acl-super-users", "User:admin"]);
    world.run(
        "admin",
        &["stream", "create", "orders", "--streamlets", "1"],
        b"",
    );
    let denied = world.attempt("ann", "right", &["produce", "orders"], b"no\n");
    assert!(
        denied.stderr.contains("User:ann may not"),
        "{}",
        denied.stderr
    );
    let may_read = [
        "acl",
        "add",
        "--allow",
        "User:ann",
        "--consumer",
        "--stream",
        "orders",
    ];
    world.run("admin", &may_read, b"");
    let mut follow = world.command("ann", "right", &["consume", "orders", "--follow"]);
    let follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut follow = follow.expect("it starts");
    world.run("admin", &["produce", "orders"], b"one\n");
    let mut seen = [0; 4];
    let out = follow.stdout.as_mut().expect("it is piped");
    out.read_exact(&mut seen).expect("it follows");
    assert_eq!(&seen, b"one\n");
    world.run(
        "admin",
        &["acl", "remove", "--principal", "User:ann", "--yes"],
        b"",
    );
    world.run("admin", &["produce", "orders"], b"two\n");
    let ended = kera_testkit::command::ended_within(follow, PATIENCE, "consume");
    assert!(!ended.status.success() && !ended.text().contains("two"));
    assert!(ended.stderr.contains("may not"), "{}", ended.stderr);
}
