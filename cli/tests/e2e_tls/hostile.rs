//! Clients that begin a handshake and do not end it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::certificates::{Authority, Files};
use crate::common::machine::{Memory, skip};
use crate::common::ports::Reserved;
use crate::common::raw::Raw;
use crate::common::{Broker, PATIENCE};
use crate::http;
use crate::reload::until;
use crate::session::Client;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
/// Addresses of this machine that clients come from.
const SOURCES: usize = 20;

/// The first bytes of a handshake.
fn client_hello() -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions that ring has")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let mut session = ClientConnection::new(Arc::new(config), name).expect("a session");
    let mut hello = Vec::new();
    session.write_tls(&mut hello).expect("memory takes it");
    hello
}

pub fn resident(broker: &Broker) -> u64 {
    Memory::of(broker.pid()).expect("Linux tells").now
}

/// A connection from one of so many addresses of this machine.
pub fn connect_from(number: usize, to: &str) -> io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let source = format!("127.0.1.{}:0", 1 + number % SOURCES);
    let connected = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(source.parse().expect("an address"))?;
        let to = to.parse().expect("an address");
        socket.connect(to).await?.into_std()
    })?;
    connected.set_nonblocking(false)?;
    Ok(connected)
}

#[test]
fn ten_thousand_half_open_handshakes_from_twenty_addresses_keep_nobody_out() {
    const MANY: usize = 10_000;
    const GROWTH_MIB: u64 = 64;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < MANY as u64 + 500 {
        let name = "ten thousand half-open handshakes";
        skip(name, &format!("{limit} open files"));
        return;
    }
    let authority = Authority::new("ours");
    let kafka = Reserved::new();
    let files = Files::new(&authority.server(&NAMES), None);
    let broker = files.broker("native,kafka", &["--kafka-listen", kafka.address()]);
    let ca = files.write("ca.pem", &authority.pem).display().to_string();
    let tls = ["--tls-ca", &ca];
    broker.run(&[&["stream", "create", "s"][..], &tls].concat());
    let client = Client::trusting(&authority);
    let mut good = client.open(broker.address()).expect("it gets in");
    good.hello().expect("the hello is answered");
    let (before, hello) = (resident(&broker), client_hello());
    let (mut half_open, mut times) = (Vec::new(), Vec::new());
    let mut grown = 0;
    for number in 0..MANY {
        let address = [broker.address(), kafka.address()][number % 2];
        let mut socket = connect_from(number, address).expect("the broker accepts");
        // Nothing, a part of a handshake, or all but its end. Who came first has to make room, maybe by now.
        let part = [0, hello.len() / 2, hello.len()][number % 3];
        let _ = socket.write_all(&hello[..part]);
        half_open.push(socket);
        if number % 100 == 99 {
            let begin = Instant::now();
            let mut session = client.open(broker.address()).expect("it gets in");
            session.hello().expect("the hello is answered");
            assert!(session.answers());
            times.push(begin.elapsed());
            grown = grown.max(resident(&broker).saturating_sub(before) >> 20);
        }
    }
    times.sort();
    let slow = times[times.len() * 99 / 100];
    eprintln!("a client gets in within {slow:?} (p99); the broker has grown by {grown} MiB");
    assert!(good.answers(), "who was there before does not notice");
    broker.feed(&[&["produce", "s", "-q"][..], &tls].concat(), b"one\n");
    assert!(
        grown <= GROWTH_MIB,
        "{MANY} half-open handshakes take {grown} MiB"
    );
    // The first of them had to make room.
    let oldest = &mut half_open[0];
    oldest.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let ended = oldest.read(&mut [0; 1]);
    let is_reset = matches!(&ended, Err(error) if error.kind() == ErrorKind::ConnectionReset);
    assert!(matches!(ended, Ok(0)) || is_reset, "{ended:?}");
}

/// The beginning of a handshake message that never ends, as much of it as TLS keeps.
fn endless_hello() -> Vec<u8> {
    const MESSAGE: u32 = 60_000;
    const RECORD: usize = 16_000;
    let mut message = vec![1];
    message.extend(&MESSAGE.to_be_bytes()[1..]);
    message.resize(3 * RECORD, 0);
    let records = message.chunks(RECORD).map(|part| {
        let length = u16::try_from(part.len()).expect("a record is small");
        [&[22, 3, 1][..], &length.to_be_bytes(), part].concat()
    });
    records.collect::<Vec<_>>().concat()
}

#[test]
fn handshakes_hold_no_more_than_strangers_may() {
    // So much that one handshake is little of it: who holds little is let in.
    const MOST: u64 = 4 << 20;
    // Twice as much as there is, and fewer than are ended for their number.
    const MANY: usize = 150;
    let authority = Authority::new("ours");
    let (kafka, metrics) = (Reserved::new(), Reserved::new());
    let files = Files::new(&authority.server(&NAMES), None);
    let flags = [
        ["--kafka-listen", kafka.address()],
        ["--http-listen", metrics.address()],
        ["--auth-max-unproven-bytes", "4MiB"],
        // What never comes is waited for longer than the test takes.
        ["--server-receive-timeout", "10m"],
        ["--http-request-timeout", "10m"],
    ];
    let listeners = "native,kafka,http";
    let broker = files.broker(listeners, flags.as_flattened());
    let addresses = [broker.address(), kafka.address(), metrics.address()];
    let mut strangers = Vec::new();
    for number in 0..MANY {
        let mut socket = connect_from(number, addresses[number % 3]).expect("it listens");
        // The broker may have ended it already.
        let _ = socket.write_all(&endless_hello());
        strangers.push(socket);
    }
    for stranger in &mut strangers[..3] {
        stranger
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
        let ended = stranger.read(&mut [0; 64]);
        let waits = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
        assert!(!ended.is_err_and(|error| waits(&error)), "{}", broker.log());
    }
    // One from another address gets in meanwhile.
    let config = http::client(&authority);
    // Those that were told to end hold what they have until they do.
    until("strangers hold little", &broker, || {
        let text = http::get(&config, metrics.address(), "/metrics");
        let of = |series: &str| {
            let line = text.lines().find(|line| line.starts_with(series));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        };
        let (ended, bytes) = (of("kera_unproven_ended_total "), of("kera_unproven_bytes "));
        ended.is_some_and(|ended| ended > 0)
            && bytes.is_some_and(|bytes| (1..=MOST).contains(&bytes))
    });
    drop(strangers);
}

#[test]
fn a_handshake_that_trickles_is_ended() {
    let authority = Authority::new("ours");
    let kafka = Reserved::new();
    let files = Files::new(&authority.server(&NAMES), None);
    let flags = [
        "--kafka-listen",
        kafka.address(),
        // Long enough for the handshake of one that is held up.
        "--server-receive-timeout",
        "2s",
    ];
    let broker = files.broker("native,kafka", &flags);
    let mut good = Client::trusting(&authority)
        .open(broker.address())
        .expect("it gets in");
    good.hello().expect("the hello is answered");
    let hello = client_hello();
    for address in [broker.address(), kafka.address()] {
        let mut raw = Raw::connect_to(address);
        let pause = Duration::from_millis(50);
        raw.socket.set_read_timeout(Some(pause)).expect("a timeout");
        // A byte now and then: each of them comes in time, and all of them would take several times as long.
        assert!(pause * hello.len() as u32 > 3 * Duration::from_secs(2));
        let ended = hello.iter().any(|byte| {
            let sent = raw.socket.write_all(&[*byte]);
            let read = sent.and_then(|()| raw.socket.read(&mut [0; 1]));
            !matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        assert!(ended, "the broker waited for all of it");
    }
    assert!(good.answers(), "the others do not notice");
}
