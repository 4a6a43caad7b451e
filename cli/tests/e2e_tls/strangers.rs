//! Clients that begin a proof of who they are, as long as they may make it, and do not end it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use kera_protocol::frame::{HELLO_REPLY_BYTES, Hello};
use kera_protocol::login::{MAX_TOKEN_MESSAGE, OAUTHBEARER, first};
use kera_testkit::issuer::{AUDIENCE, Issuer};
use rustix::process::{Resource, getrlimit};
use tempfile::TempDir;

use crate::common::machine::skip;
use crate::common::{Broker, PATIENCE};
use crate::hostile::{connect_from, resident};
use crate::hostile_suite::{GROWTH_MIB, answered, bearer, log_in_by, request};
use crate::reload::until;

/// As many as the broker has room for by default, but for some.
const MANY: usize = 4000;
/// Longest request of a client that has still to prove who it is.
const LONGEST: usize = 64 << 10;

struct World {
    broker: Broker,
    issuer: Issuer,
    home: TempDir,
}

impl World {
    fn start() -> Self {
        let issuer = Issuer::start("ann", 600);
        let home = tempfile::tempdir().expect("a directory");
        let password = home.path().join("password");
        std::fs::write(&password, "long secret").expect("a file");
        let (name, keys) = (issuer.name(), issuer.keys());
        let password = password.display().to_string();
        let flags = [
            ["--kafka-listen", "127.0.0.1:0"],
            ["--auth-listeners", "native,kafka"],
            ["--auth-mechanisms", "SCRAM-SHA-512,OAUTHBEARER"],
            ["--auth-first-user", "admin"],
            ["--auth-first-user-password-file", &password],
            ["--oauth-issuer", &name],
            ["--oauth-audience", AUDIENCE],
            ["--oauth-keys", &keys],
            // What never comes is waited for longer than the test takes.
            ["--server-receive-timeout", "10m"],
            ["--server-hello-timeout", "10m"],
        ];
        let world = Self {
            broker: Broker::with(flags.as_flattened()),
            issuer,
            home,
        };
        // A slow machine may need more time for the keys than a login waits.
        until("the token is taken", &world.broker, || {
            log_in_by(&mut world.kafka(), &world.token()).is_ok()
        });
        world
    }

    fn kafka(&self) -> TcpStream {
        let socket = TcpStream::connect(self.broker.kafka()).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket
    }

    /// A proof that takes more room than a connection begins with.
    fn token(&self) -> Vec<u8> {
        let mut claims = self.issuer.claims("ann", 600);
        claims["roles"] = "x".repeat(8 << 10).into();
        bearer(&self.issuer.sign(&claims))
    }

    /// Clients come, prove who they are and are served, by each protocol.
    fn serves_others(&self) {
        let mut kafka = self.kafka();
        log_in_by(&mut kafka, &self.token()).expect("it is let in");
        let all = request(3, 1, &u32::MAX.to_be_bytes());
        answered(&mut kafka, &all).expect("it is served");
        let mut native = TcpStream::connect(self.broker.address()).expect("it listens");
        native.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let proof = first(OAUTHBEARER, &self.token());
        let said = native.write_all(&proof).and_then(|()| {
            native.write_all(&Hello::CURRENT.encode())?;
            let mut reply = [0; 8 + HELLO_REPLY_BYTES];
            native.read_exact(&mut reply)?;
            Ok(u16::from_le_bytes([reply[0], reply[1]]))
        });
        assert_eq!(said.expect("it is let in"), 0);
        let password = self.home.path().join("password").display().to_string();
        let by_password = ["--user", "admin", "--user-password-file", &password];
        self.broker
            .run(&[&["stream", "list"][..], &by_password].concat());
    }
}

/// Sends as much as the broker and the system between take.
fn send(socket: &mut TcpStream, bytes: &[u8]) {
    socket.set_nonblocking(true).expect("a socket can");
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(more) => sent += more,
            // The broker takes no more now, or it has ended the connection.
            Err(error) if error.kind() != ErrorKind::Interrupted => break,
            Err(_) => {}
        }
    }
}

/// By how much a broker grows at most while strangers begin a proof each and others are served, in MiB.
fn grown(world: &World, address: &str, begun: &[u8]) -> io::Result<u64> {
    let before = resident(&world.broker);
    let (mut open, mut grown) = (Vec::new(), 0);
    for number in 0..MANY {
        let mut socket = connect_from(number, address)?;
        send(&mut socket, begun);
        open.push(socket);
        if number % 50 == 49 {
            grown = grown.max(resident(&world.broker).saturating_sub(before) >> 20);
        }
        if number % 500 == 499 {
            world.serves_others();
        }
    }
    // What has arrived by now was taken once the others are served again and again.
    for _ in 0..20 {
        world.serves_others();
        grown = grown.max(resident(&world.broker).saturating_sub(before) >> 20);
    }
    Ok(grown)
}

fn is_possible(name: &str) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let is_possible = limit >= MANY as u64 + 500;
    if !is_possible {
        skip(name, &format!("{limit} open files"));
    }
    is_possible
}

#[test]
fn four_thousand_begun_logins_of_kafka_clients_take_little() {
    if !is_possible("four thousand begun logins of Kafka clients") {
        return;
    }
    let world = World::start();
    let mut begun = request(36, 1, &vec![0; LONGEST]);
    begun.truncate(LONGEST - 1);
    let length = (LONGEST as u32).to_be_bytes();
    begun[..length.len()].copy_from_slice(&length);
    let address = world.broker.kafka().to_owned();
    let grown = grown(&world, &address, &begun).expect("the broker accepts");
    eprintln!("{MANY} begun requests take {grown} MiB");
    assert!(
        grown <= GROWTH_MIB,
        "{MANY} begun requests take {grown} MiB"
    );
}

#[test]
fn four_thousand_begun_native_logins_take_little() {
    if !is_possible("four thousand begun native logins") {
        return;
    }
    let world = World::start();
    let mut begun = first(OAUTHBEARER, &vec![0; MAX_TOKEN_MESSAGE]);
    begun.pop();
    let address = world.broker.address().to_owned();
    let grown = grown(&world, &address, &begun).expect("the broker accepts");
    eprintln!("{MANY} begun proofs take {grown} MiB");
    assert!(grown <= GROWTH_MIB, "{MANY} begun proofs take {grown} MiB");
}
