//! Native clients that prove who they are by a token of an issuer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kera_consumer::{Reader, Start};
use kera_producer::{Producer, Record};
use kera_protocol::login::{MAX_MESSAGE, MAX_TOKEN_MESSAGE, OAUTHBEARER, first};
use kera_rpc::{
    Client, ClientOptions, ConnectOptions, ConnectionError, DataConnection, Login, RetryPolicy,
};
use kera_testkit::issuer::{AUDIENCE, Issuer};
use tempfile::TempDir;

use crate::common::{Broker, PATIENCE, home, http};
use crate::logins::refused;

/// A broker with a stream, which lets in who has a token of an issuer, and ann to everything.
struct World {
    broker: Broker,
    issuer: Arc<Issuer>,
    home: TempDir,
}

/// The flags of a broker that lets in at `listener` who has a token of the issuer of that name, and ann to everything.
pub fn token_flags<'a>(listener: &'a str, issuer: &'a str, keys: &'a str) -> [[&'a str; 2]; 9] {
    [
        ["--http-listen", "127.0.0.1:0"],
        ["--auth-listeners", listener],
        ["--auth-mechanisms", "OAUTHBEARER"],
        ["--oauth-issuer", issuer],
        ["--oauth-audience", AUDIENCE],
        ["--oauth-keys", keys],
        ["--oauth-clock-skew", "0s"],
        ["--acl-enabled", "true"],
        ["--acl-super-users", "User:ann"],
    ]
}

async fn world() -> World {
    let issuer = Issuer::start("ann", 600);
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "1"]);
    broker.stop();
    let (name, keys) = (issuer.name(), issuer.keys());
    broker.set_flags(token_flags("native", &name, &keys).as_flattened());
    broker.restart();
    let world = World {
        broker,
        issuer: Arc::new(issuer),
        home: home(),
    };
    // A slow machine may need more time for the keys than a login waits.
    let file = world.write(600);
    let login = Login::with_token_file(&file);
    let let_in = async { while world.connect(login.clone()).await.is_err() {} };
    let patient = tokio::time::timeout(PATIENCE, let_in).await;
    patient.expect("a token is taken");
    world
}

impl World {
    fn file(&self) -> PathBuf {
        self.home.path().join("token")
    }

    /// Puts a token of ann for so many seconds into the place of the one that is there.
    fn write(&self, life: u64) -> PathBuf {
        self.put(&self.issuer.sign(&self.issuer.claims("ann", life)))
    }

    fn put(&self, token: &str) -> PathBuf {
        let (file, new) = (self.file(), self.home.path().join("new"));
        std::fs::write(&new, token).expect("a file can be written");
        std::fs::rename(&new, &file).expect("a file can be renamed");
        file
    }

    async fn connect(&self, login: Login) -> Result<Arc<DataConnection>, ConnectionError> {
        let options = ConnectOptions {
            login: Some(login),
            ..ConnectOptions::default()
        };
        DataConnection::connect(self.broker.address(), &options, None).await
    }

    fn client(&self, login: Login) -> Client {
        let connect = ConnectOptions {
            login: Some(login),
            ..ConnectOptions::default()
        };
        let retry = RetryPolicy::within(Duration::from_secs(3600));
        let options = ClientOptions { retry, connect };
        Client::new(self.broker.address(), options).expect("an address")
    }

    /// Tokens that were taken.
    fn taken(&self) -> u64 {
        let text = http::get(self.broker.http(), "/metrics");
        let series = "kera_authentications_total{mechanism=\"oauthbearer\",result=\"success\"} ";
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix(series)?.parse().ok());
        count.unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_go_on_with_the_next_token_when_theirs_ends() {
    let world = world().await;
    // A token for each connection, by a function, and one that others renew, in a file.
    let (issuer, given) = (world.issuer.clone(), Arc::new(AtomicU64::new(0)));
    let gives = given.clone();
    let login = Login::with_tokens(move || {
        gives.fetch_add(1, Ordering::Relaxed);
        Ok(issuer.sign(&issuer.claims("ann", 600)))
    });
    let producer = Producer::builder().client(world.client(login));
    let producer = producer.stream("s").build().await.expect("ann is let in");
    world.write(3);
    let builder = Reader::builder().client(world.client(Login::with_token_file(world.file())));
    let builder = builder.stream("s").start(Start::Earliest);
    let mut reader = builder.open().await.expect("ann is let in");
    for value in ["one", "two"] {
        let sent = producer.append(&Record::of_value(value.as_bytes()));
        sent.expect("it is taken").await.expect("it is stored");
        let read = tokio::time::timeout(PATIENCE, reader.next_batch()).await;
        let batch = read.expect("it reads in time").expect("it goes on");
        assert_eq!(batch.expect("a batch").records().count(), 1);
        if value == "one" {
            world.write(600);
            let before = world.taken();
            let renewed = async {
                while world.taken() == before {
                    tokio::task::yield_now().await;
                }
            };
            let renewed = tokio::time::timeout(PATIENCE, renewed).await;
            assert!(renewed.is_ok(), "{}", world.broker.log());
        }
    }
    assert!(given.load(Ordering::Relaxed) > 0);
}

/// What a client is told that is not let in.
async fn told(world: &World, file: &Path) -> String {
    let refused = world.connect(Login::with_token_file(file)).await;
    let error = refused.expect_err("it is not let in");
    let is_login = matches!(error, ConnectionError::Login { .. });
    assert!(is_login && !error.is_retryable(), "{error:?}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_proves_nothing_lets_nobody_in() {
    let world = world().await;
    let mut elsewhere = world.issuer.claims("ann", 600);
    elsewhere["aud"] = "elsewhere".into();
    let wrong = world.issuer.sign(&elsewhere);
    let text = told(&world, &world.put(&wrong)).await;
    assert!(text.contains("the holder of this token"), "{text}");
    assert!(text.contains("another audience"), "{text}");
    let is_shown = |text: &str| wrong.split('.').any(|part| text.contains(part));
    assert!(!is_shown(&text) && !is_shown(&world.broker.log()), "{text}");
    let text = told(&world, &world.home.path().join("none")).await;
    assert!(text.contains("there is no token: cannot read"), "{text}");
    let text = told(&world, &world.put("two words")).await;
    assert!(text.contains("9 bytes that are none"), "{text}");
    // Bob has a right token, and no rights.
    let file = world.put(&world.issuer.sign(&world.issuer.claims("bob", 600)));
    let builder = Reader::builder().client(world.client(Login::with_token_file(&file)));
    let denied = builder.stream("s").open().await;
    let text = denied.expect_err("bob may not read").to_string();
    assert!(text.contains("User:bob"), "{text}");

    // By hand: lengths that lie, and messages that are none.
    let connect = || {
        let stream = std::net::TcpStream::connect(world.broker.address()).expect("it listens");
        let within = stream.set_read_timeout(Some(PATIENCE));
        within.expect("a socket has a timeout");
        stream
    };
    let send = |bytes: &[u8], why: &str| {
        let mut stream = connect();
        std::io::Write::write_all(&mut stream, bytes).expect("it listens");
        refused(&mut stream, why);
    };
    let long = |mechanism, most: usize| {
        let head = first(mechanism, b"");
        [&head[..8], &(most as u32 + 1).to_le_bytes()].concat()
    };
    send(&long(OAUTHBEARER, MAX_TOKEN_MESSAGE), "at most 32768 bytes");
    send(&long(2, MAX_MESSAGE), "at most 4096 bytes");
    send(&first(2, b"n,,n=ann,r=abc"), "it takes OAUTHBEARER");
    for message in [&b""[..], b"n,,", &[b'a'; MAX_TOKEN_MESSAGE]] {
        send(&first(OAUTHBEARER, message), "no OAUTHBEARER message");
    }
    send(
        &first(OAUTHBEARER, b"n,a=bob,\x01auth=Bearer a.b.c\x01\x01"),
        "no signed JSON web token",
    );
}
