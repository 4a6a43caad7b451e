//! Connections that never say what they want, and too many of them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{self, FrameKind, Hello};
use kera_protocol::login;

use crate::common::Broker;
use crate::common::machine::Memory;
use crate::common::raw::Raw;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What follows the preface: settings, none of them.
const HTTP2_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// All clients of tests are on the broker's own machine.
const NO_RESERVE: [&str; 2] = ["--server-reserved-connections", "0"];
/// ApiVersions 0 of Kafka's protocol, correlation 1, client "x".
const API_VERSIONS: &[u8] = b"\0\0\0\x0b\0\x12\0\0\0\0\0\x01\0\x01x";

/// Bytes of memory that the broker holds.
fn resident(broker: &Broker) -> u64 {
    Memory::of(broker.pid()).expect("Linux tells").now
}

fn answers(raw: &mut Raw) -> bool {
    let mut ping = bytes::BytesMut::new();
    frame::encode_empty(&mut ping, FrameKind::Ping, 7);
    raw.send(&ping);
    raw.next()
        .is_some_and(|frame| frame.kind == FrameKind::Pong && frame.correlation == 7)
}

#[test]
fn a_connection_without_a_hello_is_closed() {
    let broker = Broker::with(&["--server-hello-timeout", "200ms"]);
    let mut good = Raw::open(&broker);
    for said in [
        &b""[..],
        &b"K"[..],
        &Hello::CURRENT.encode()[..5],
        &HTTP2_PREFACE[..3],
        &HTTP2_PREFACE[..10],
    ] {
        let mut raw = Raw::connect(&broker);
        raw.send(said);
        // Open on our side; it is the broker that has had enough.
        let mut answer = Vec::new();
        if let Err(error) = raw.socket.read_to_end(&mut answer) {
            // It closed without having read everything.
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "after {said:?}");
        }
        assert_eq!(answer, b"", "after {said:?}");
    }
    assert!(answers(&mut good), "one that said hello may be silent");
}

#[test]
fn one_connection_too_many_is_refused() {
    let flags = [["--server-max-connections", "4"], NO_RESERVE];
    let broker = Broker::with(flags.as_flattened());
    let mut open: Vec<Raw> = (0..4).map(|_| Raw::open(&broker)).collect();
    for _ in 0..3 {
        let mut refused = Raw::connect(&broker);
        refused.send(&Hello::CURRENT.encode());
        refused.goes_away(ErrorCode::TooManyConnections);
    }
    // A client that proves who it is is told so in answer to that, and that it may try again.
    let mut refused = Raw::connect(&broker);
    refused.send(&login::first(0, b"\0ann\0open sesame"));
    let mut told = Vec::new();
    let read = refused.socket.read_to_end(&mut told);
    read.expect("a refusal");
    let head = &login::reply(login::Status::Refused, b"")[..login::REPLY_HEAD_BYTES];
    let text = String::from_utf8_lossy(&told);
    assert!(told.starts_with(head), "{text}");
    assert!(
        login::passes(&text) && text.contains("4 connections"),
        "{text}"
    );
    assert!(open.iter_mut().all(answers), "the others do not notice");
    // One goes, one may come.
    let gone = open.pop().expect("four are open");
    gone.socket
        .shutdown(Shutdown::Both)
        .expect("a connection can be closed");
    let mut attempts = 0;
    loop {
        let mut raw = Raw::connect(&broker);
        raw.send(&Hello::CURRENT.encode());
        let mut first = [0; 4];
        raw.socket.read_exact(&mut first).expect("an answer");
        // Either our hello's answer, or a goodbye as long as the broker has not seen the other go.
        if first == frame::MAGIC {
            break;
        }
        attempts += 1;
        assert!(attempts < 10_000, "its place is not given to another");
    }
}

#[test]
fn who_has_said_nothing_makes_room() {
    let kafka = crate::common::ports::Reserved::new();
    let flags = [
        "--server-max-connections",
        "4",
        "--server-hello-timeout",
        "5m",
        "--kafka-listen",
        kafka.address(),
        NO_RESERVE[0],
        NO_RESERVE[1],
    ];
    let broker = Broker::with(&flags);
    let mut heard = vec![Raw::open(&broker)];
    let mut silent: Vec<Raw> = (0..3).map(|_| Raw::connect(&broker)).collect();
    for said in [
        &b"K"[..],
        &HTTP2_PREFACE[..10],
        &Hello::CURRENT.encode()[..5],
    ] {
        let mut raw = Raw::connect(&broker);
        raw.send(said);
        silent.push(raw);
    }
    let connect = || TcpStream::connect(kafka.address()).expect("it listens");
    // The length of a request that does not follow.
    let mut begun: Vec<TcpStream> = (0..6).map(|_| connect()).collect();
    for socket in &mut begun {
        let _ = socket.write_all(&[0, 0, 1, 0, 0]);
    }
    broker.run(&["stream", "list"]);
    let mut client = connect();
    let asked = client.write_all(API_VERSIONS);
    asked.expect("it is taken");
    client.read_exact(&mut [0; 8]).expect("an answer");
    heard.push(Raw::open(&broker));
    heard.push(Raw::open(&broker));
    assert!(heard.iter_mut().all(answers), "the others do not notice");
    // All four have said what they want.
    let mut refused = Raw::connect(&broker);
    refused.send(&Hello::CURRENT.encode());
    refused.goes_away(ErrorCode::TooManyConnections);
}

#[test]
fn control_connections_count_too() {
    let flags = [
        "--server-max-connections",
        "4",
        "--server-hello-timeout",
        "2s",
        NO_RESERVE[0],
        NO_RESERVE[1],
    ];
    let broker = Broker::with(&flags);
    let open: Vec<Raw> = (0..4).map(|_| Raw::open(&broker)).collect();
    let said = broker.refused(&["stream", "list"]);
    assert!(said.contains("4 connections"), "{said}");
    assert!(said.contains("server.max_connections"), "{said}");
    assert!(said.contains("TOO_MANY_CONNECTIONS"), "{said}");
    // A refused one is not kept either.
    let mut idle = Raw::connect(&broker);
    idle.send(&[HTTP2_PREFACE, &HTTP2_SETTINGS].concat());
    let mut answer = Vec::new();
    let ended = idle.socket.read_to_end(&mut answer);
    assert!(ended.is_ok(), "{ended:?}");
    drop(open);
}

#[test]
fn half_a_frame_is_not_waited_for() {
    let broker = Broker::with(&["--server-receive-timeout", "500ms"]);
    let mut good = Raw::open(&broker);
    let mut ping = bytes::BytesMut::new();
    frame::encode_empty(&mut ping, FrameKind::Ping, 7);
    let mut raw = Raw::open(&broker);
    raw.send(&ping[..ping.len() - 1]);
    raw.goes_away(ErrorCode::Timeout);
    assert!(answers(&mut good), "one that sends nothing may");
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "nobody tells when memory has gone back to the system"
)]
fn idle_connections_cost_next_to_nothing_and_leave_nothing() {
    const MIB: u64 = 1 << 20;
    let broker = Broker::with(&["--memory-idle-release", "200ms"]);
    let before = resident(&broker);
    let mut open: Vec<Raw> = (0..400).map(|_| Raw::open(&broker)).collect();
    assert!(open.iter_mut().all(answers));
    // Every other one has sent a part of a frame.
    open.iter_mut().step_by(2).for_each(|raw| raw.send(&[40]));
    let grown = resident(&broker).saturating_sub(before);
    assert!(
        grown < 20 * MIB,
        "400 idle connections cost {} KiB",
        grown / 1024
    );
    drop(open);
    let until = std::time::Instant::now() + crate::common::PATIENCE;
    while resident(&broker).saturating_sub(before) > 4 * MIB {
        let held = resident(&broker).saturating_sub(before) / 1024;
        assert!(
            std::time::Instant::now() < until,
            "{held} KiB are not given back"
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A connection from another address of this machine.
fn connect_from(source: &str, to: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime");
    let connected = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(format!("{source}:0").parse().expect("an address"))?;
        let to = to.parse().expect("an address");
        socket.connect(to).await?.into_std()
    });
    let socket = connected.expect("the broker accepts");
    socket.set_nonblocking(false).expect("a socket that waits");
    let patience = Some(crate::common::PATIENCE);
    socket.set_read_timeout(patience).expect("a timeout");
    socket
}

/// Whether the broker answers a hello with its own, and not with a goodbye.
fn is_greeted(socket: &mut TcpStream, rest: &[u8]) -> bool {
    let mut first = [0; 4];
    let said = socket.write_all(rest);
    said.and_then(|()| socket.read_exact(&mut first)).is_ok() && first == frame::MAGIC
}

#[test]
fn one_address_has_its_share_of_connections_and_no_more() {
    let kafka = crate::common::ports::Reserved::new();
    let flags = [
        "--server-max-connections-per-address",
        "3",
        "--server-max-connections-per-address-overrides",
        "127.0.0.2:1,127.0.0.4:0",
        "--kafka-listen",
        kafka.address(),
        NO_RESERVE[0],
        NO_RESERVE[1],
    ];
    let broker = Broker::with(&flags);
    let mut open: Vec<Raw> = (0..3).map(|_| Raw::open(&broker)).collect();
    let mut refused = Raw::connect(&broker);
    refused.send(&Hello::CURRENT.encode());
    let said = refused.goes_away(ErrorCode::TooManyConnections);
    assert!(
        said.contains("server.max_connections_per_address"),
        "{said}"
    );
    assert!(said.contains("127.0.0.1"), "{said}");
    // Kafka's protocol has no words for it.
    let mut client = TcpStream::connect(kafka.address()).expect("it listens");
    assert!(!is_answered(&mut client));
    let mut other = connect_from("127.0.0.2", broker.address());
    assert!(is_greeted(&mut other, &Hello::CURRENT.encode()));
    for with_its_own in ["127.0.0.2", "127.0.0.4"] {
        let mut refused = connect_from(with_its_own, broker.address());
        assert!(!is_greeted(&mut refused, &Hello::CURRENT.encode()));
    }
    assert!(open.iter_mut().all(answers), "the others do not notice");
    // One goes, one may come.
    let gone = open.pop().expect("three are open");
    let closed = gone.socket.shutdown(Shutdown::Both);
    closed.expect("a connection can be closed");
    let mut attempts = 0;
    while !is_greeted(&mut Raw::connect(&broker).socket, &Hello::CURRENT.encode()) {
        attempts += 1;
        assert!(attempts < 10_000, "its place is not given to another");
    }
}

/// Whether Kafka's listener answers, and does not close the connection.
fn is_answered(client: &mut TcpStream) -> bool {
    let asked = client.write_all(API_VERSIONS);
    asked.and_then(|()| client.read_exact(&mut [0; 8])).is_ok()
}

/// A broker that listens for Kafka's clients too and tells its metrics.
fn broker_with(flags: &[&str]) -> (Broker, String) {
    let kafka = crate::common::ports::Reserved::new();
    let mut all = vec!["--kafka-listen", kafka.address()];
    all.extend(["--http-listen", "127.0.0.1:0"]);
    all.extend(flags);
    (Broker::with(&all), kafka.address().to_owned())
}

/// A counter of refused connections, as metrics have it.
fn refused(broker: &Broker, limit: &str, listener: &str) -> u64 {
    let told = crate::common::http::get(broker.http(), "/metrics");
    let head =
        format!("kera_connections_refused_total{{limit=\"{limit}\",listener=\"{listener}\"}} ");
    let mut lines = told.lines();
    let count = lines.find_map(|line| line.strip_prefix(&head));
    count.map_or(0, |count| count.trim().parse().expect("a number"))
}

#[test]
fn the_command_line_gets_in_on_the_brokers_machine_when_clients_have_taken_all_places() {
    let (broker, kafka) = broker_with(&[
        "--server-max-connections",
        "4",
        "--server-reserved-connections",
        "1",
    ]);
    let connect = || TcpStream::connect(&kafka).expect("it listens");
    let mut clients: Vec<_> = (0..4).map(|_| connect()).collect();
    assert!(clients.iter_mut().all(is_answered));
    // They take none of the places that are kept.
    assert!(!is_answered(&mut connect()));
    assert_eq!(refused(&broker, "all", "kafka"), 1);
    // One command after the other, with one place.
    for _ in 0..3 {
        broker.run(&["stream", "list"]);
    }
    // The place of the last command is free once the broker has seen it go.
    let mut operator = Raw::connect(&broker);
    let mut attempts = 0;
    while !is_greeted(&mut operator.socket, &Hello::CURRENT.encode()) {
        operator = Raw::connect(&broker);
        attempts += 1;
        assert!(attempts < 10_000, "its place is not given to another");
    }
    let before = refused(&broker, "all", "native");
    let mut second = Raw::connect(&broker);
    second.send(&Hello::CURRENT.encode());
    second.goes_away(ErrorCode::TooManyConnections);
    assert_eq!(refused(&broker, "all", "native"), before + 1);
    assert!(clients.iter_mut().all(is_answered), "the others stay");
    let log = broker.log();
    assert!(log.contains("raise server.max_connections"), "{log}");
}

#[test]
fn kafkas_clients_have_a_limit_of_their_own() {
    let (broker, kafka) = broker_with(&["--kafka-max-connections", "2"]);
    let connect = || TcpStream::connect(&kafka).expect("it listens");
    let _native: Vec<_> = (0..4).map(|_| Raw::open(&broker)).collect();
    let mut first = connect();
    assert!(is_answered(&mut first));
    let _silent = connect();
    let mut second = connect();
    assert!(is_answered(&mut second), "a silent one makes room");
    assert_eq!(refused(&broker, "silent", "kafka"), 1);
    let mut third = connect();
    assert!(!is_answered(&mut third));
    assert_eq!(refused(&broker, "listener", "kafka"), 1);
    assert!(is_answered(&mut first) && is_answered(&mut second));
    let log = broker.log();
    assert!(log.contains("raise kafka.max_connections"), "{log}");
    broker.run(&["stream", "list"]);
}

#[test]
fn connections_that_come_too_fast_wait_for_their_turn_and_are_refused_if_that_is_too_long() {
    let (broker, kafka) = broker_with(&["--server-connection-creation-rate", "1"]);
    let connect = || TcpStream::connect(&kafka).expect("it listens");
    // As many as come in more than half a minute.
    let mut clients: Vec<_> = (0..40).map(|_| connect()).collect();
    // Who looks for the reason does not wait behind them, nor do they count him.
    broker.run(&["stream", "list"]);
    let answered = clients
        .iter_mut()
        .filter_map(|client| is_answered(client).then_some(()));
    let answered = answered.count();
    // Two at once; beyond what comes in 1.5 s the turns are left for others.
    assert!((3..40).contains(&answered), "{answered} of 40");
    let late = refused(&broker, "rate", "kafka");
    assert_eq!(answered as u64 + late, 40);
    let told = crate::common::http::get(broker.http(), "/metrics");
    let delayed = told.lines().find_map(|line| {
        let count = line.strip_prefix("kera_connections_delayed_total ")?;
        count.trim().parse::<usize>().ok()
    });
    assert!(
        delayed.is_some_and(|delayed| (1..answered).contains(&delayed)),
        "{delayed:?}"
    );
    let log = broker.log();
    assert!(log.contains("each waits for its turn"), "{log}");
    assert!(
        log.contains("raise server.connection_creation_rate"),
        "{log}"
    );
}

/// Connections that the broker counts, as its metrics have them.
fn counted(http: &str) -> u64 {
    let told = crate::common::http::get(http, "/metrics");
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("kera_connections "));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or_else(|| panic!("no count in {told}"))
}

#[test]
fn who_begins_a_hello_and_goes_keeps_no_place() {
    let http = crate::common::ports::Reserved::new();
    let flags = [
        "--server-hello-timeout",
        "5m",
        "--http-listen",
        http.address(),
    ];
    let broker = Broker::with(&flags);
    let begun = [
        &b"K"[..],
        &Hello::CURRENT.encode()[..3],
        &HTTP2_PREFACE[..3],
        &HTTP2_PREFACE[..10],
    ];
    let crowd = begun.map(|said| {
        let mut raw = Raw::connect(&broker);
        raw.send(said);
        raw
    });
    let until = |wanted: u64| {
        let attempts = (0..10_000).find(|_| counted(http.address()) == wanted);
        attempts.unwrap_or_else(|| panic!("{} are counted", counted(http.address())));
    };
    until(4);
    drop(crowd);
    until(0);
}

#[test]
fn who_opens_many_shuts_out_nobody_at_another_address() {
    let flags = [
        "--server-max-connections",
        "8",
        "--server-hello-timeout",
        "5m",
        NO_RESERVE[0],
        NO_RESERVE[1],
    ];
    let broker = Broker::with(&flags);
    let hello = Hello::CURRENT.encode();
    let mut slow = connect_from("127.0.0.3", broker.address());
    slow.write_all(&hello[..5]).expect("it is taken");
    let crowd: Vec<Raw> = (0..40).map(|_| Raw::connect(&broker)).collect();
    // Those that came last are known to have been taken in.
    let mut heard = connect_from("127.0.0.2", broker.address());
    assert!(is_greeted(&mut heard, &hello));
    assert!(is_greeted(&mut slow, &hello[5..]), "its place was its own");
    drop(crowd);
}
