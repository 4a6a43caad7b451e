//! Memory that connections hold that do nothing, or next to nothing, for each kind of connection; and that
//! all of it goes back to the system once they are closed.
//!
//! What matters is by how much the broker grows from few connections to many: what it needs by itself falls
//! out. The figures beside the bounds were measured with a debug build.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kera_grpc::v1::backups_client::BackupsClient;
use kera_metadata::{EtcdOptions, EtcdStore};
use kera_protocol::frame::{HELLO_REPLY_BYTES, Hello};
use kera_replication::transport::tcp::HELLO_MAGIC;

use crate::common::machine::{Memory, skip};
use crate::common::{Broker, PATIENCE, shared_memory};
use crate::etcd::Etcd;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What a broker may keep of connections that were closed. By itself it grows by up to 4.5 MiB in its first
/// seconds, measured on a busy machine.
const LEFT: u64 = 8 * MIB;
/// The same of a replica store, which does less; 6.7 stay where it gives nothing back.
const LEFT_OF_A_STORE: u64 = 6 * MIB;
const MANY: usize = 2400;
const FEW: usize = 400;
/// Bytes that a trickling connection sends, one at a time.
const TRICKLED: usize = 4;

/// The preface of HTTP/2, and settings, none of them.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn resident(broker: &Broker) -> u64 {
    Memory::of(broker.pid()).expect("Linux tells").now
}

/// Looks again until `done`; nobody tells when a broker has taken what was sent, or has given memory back.
#[expect(
    clippy::disallowed_methods,
    reason = "nobody tells when memory has come or gone"
)]
fn look_until(mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Memory once it grows no more.
fn settled(broker: &Broker) -> u64 {
    let mut last = resident(broker);
    let mut still = 0;
    look_until(|| {
        let now = resident(broker);
        still = if now > last { 0 } else { still + 1 };
        last = last.max(now);
        still > 5
    });
    last
}

fn connect(address: &str, said: &[u8], answer_bytes: usize) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("the broker accepts");
    let patience = socket.set_read_timeout(Some(PATIENCE));
    patience.expect("a timeout can be set");
    socket.write_all(said).expect("it is taken");
    let mut answer = vec![0; answer_bytes];
    socket.read_exact(&mut answer).expect("an answer");
    socket
}

/// This process and the broker may have as many files; false if they may not, which is said.
fn may_open(name: &str, connections: usize) -> bool {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let wanted = 2 * connections as u64 + 500;
    if limit < wanted {
        skip(name, &format!("{limit} open files, {wanted} wanted"));
    }
    limit >= wanted
}

/// Opens `few` connections and then up to `many`: by how many bytes the broker grows for each. All are closed
/// again, and the broker must give back what they took.
fn each(
    broker: &Broker,
    left: u64,
    (few, many): (usize, usize),
    trickles: bool,
    mut open: impl FnMut(usize) -> TcpStream,
) -> u64 {
    let before = settled(broker);
    let mut sockets = Vec::new();
    let mut grown = [few, many].into_iter().map(|wanted| {
        sockets.extend((sockets.len()..wanted).map(&mut open));
        for _ in 0..if trickles { TRICKLED } else { 0 } {
            for socket in &mut sockets {
                // One that the broker has had enough of shows in its memory.
                let _ = socket.write_all(&[0]);
            }
        }
        settled(broker)
    });
    let (at_few, at_many) = (grown.next().unwrap_or(0), grown.next().unwrap_or(0));
    drop(sockets);
    let mut held = 0;
    let back = look_until(|| {
        held = resident(broker).saturating_sub(before);
        held <= left
    });
    assert!(back, "{} KiB are not given back", held / KIB);
    let each = at_many.saturating_sub(at_few) / (many - few) as u64;
    eprintln!(
        "{each} bytes for each, {} KiB for {many}",
        at_many.saturating_sub(before) / KIB
    );
    each
}

fn at_most(bound: u64, each: u64, what: &str) {
    assert!(
        each <= bound,
        "{what}: {each} bytes for each, at most {bound}"
    );
}

#[test]
fn native_connections() {
    if !may_open("held::native_connections", MANY) {
        return;
    }
    let broker = Broker::with(&["--memory-idle-release", "200ms"]);
    let hello = Hello::CURRENT.encode();
    let idle = |_| connect(broker.address(), &hello, HELLO_REPLY_BYTES);
    // 7.4 KiB, and 69 with buffers that begin with 64 KiB
    at_most(
        10 * KIB,
        each(&broker, LEFT, (FEW, MANY), false, idle),
        "idle",
    );
    // The beginning of a frame that claims 4 MB.
    let begun = [&hello[..], &4_000_000_u32.to_le_bytes(), &[1, 0]].concat();
    let trickling = |_| connect(broker.address(), &begun, HELLO_REPLY_BYTES);
    // 9.4 KiB
    at_most(
        13 * KIB,
        each(&broker, LEFT, (FEW, MANY), true, trickling),
        "trickling",
    );
}

#[test]
fn kafka_connections() {
    if !may_open("held::kafka_connections", MANY) {
        return;
    }
    let kafka = crate::common::ports::Reserved::new();
    let flags = [
        "--memory-idle-release",
        "200ms",
        "--kafka-listen",
        kafka.address(),
    ];
    let broker = Broker::with(&flags);
    // ApiVersions 0, correlation 1, client "x", whose answer's length comes first.
    let asks = b"\0\0\0\x0b\0\x12\0\0\0\0\0\x01\0\x01x";
    let idle = |_| connect(kafka.address(), asks, 4);
    // 7.2 KiB
    at_most(
        10 * KIB,
        each(&broker, LEFT, (FEW, MANY), false, idle),
        "idle",
    );
    let begun = [&asks[..], &4_000_000_u32.to_be_bytes(), &[0, 0]].concat();
    let trickling = |_| connect(kafka.address(), &begun, 4);
    // 7.2 KiB
    at_most(
        10 * KIB,
        each(&broker, LEFT, (FEW, MANY), true, trickling),
        "trickling",
    );
}

#[test]
fn control_connections() {
    // More than the 1,024 that may be quiet: what they take by then is all that they take.
    let (few, many) = (1400, 3400);
    if !may_open("held::control_connections", many) {
        return;
    }
    let broker = Broker::with(&["--memory-idle-release", "200ms"]);
    // Settings are what the broker says first.
    let idle = |_| connect(broker.address(), HTTP2, 9);
    // 2 to 6 KiB, and 18 without a limit
    at_most(
        9 * KIB,
        each(&broker, LEFT, (few, many), false, idle),
        "idle",
    );
    // Half a frame's head.
    let begun = [HTTP2, &[0, 1, 0, 1]].concat();
    let trickling = |_| connect(broker.address(), &begun, 9);
    at_most(
        9 * KIB,
        each(&broker, LEFT, (few, many), true, trickling),
        "trickling",
    );
}

/// The head of a call to `ListStreams`, whose request does not follow.
fn begun_call(number: u32) -> Vec<u8> {
    // Method POST and scheme http by their numbers; the others as they stand.
    let mut head = vec![0x83, 0x86];
    for (name, value) in [
        (":path", "/kera.v1.Streams/ListStreams"),
        (":authority", "kera"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        for text in [name, value] {
            if text == name {
                head.push(0);
            }
            head.push(text.len() as u8);
            head.extend_from_slice(text.as_bytes());
        }
    }
    // Its length, a frame of headers that ends them, and the stream's number.
    let mut frame = vec![0, 0, head.len() as u8, 1, 4];
    frame.extend_from_slice(&(2 * number + 1).to_be_bytes());
    frame.extend_from_slice(&head);
    frame
}

#[test]
fn calls_whose_requests_never_arrive() {
    const CONNECTIONS: usize = 10;
    let broker = Broker::with(&["--memory-idle-release", "200ms"]);
    broker.run(&["stream", "create", "s"]);
    let calls: Vec<u8> = (0..4000).flat_map(begun_call).collect();
    let begun = [HTTP2, &calls].concat();
    let open = |_| connect(broker.address(), &begun, 9);
    // 8.9 KiB for each call, of which a connection may have 1,024 and all together 4,096, and what the refusals
    // of the others leave: 79 to 103 MiB. Without a limit 348 MiB.
    let before = settled(&broker);
    let sockets: Vec<TcpStream> = (0..CONNECTIONS).map(open).collect();
    let grown = settled(&broker).saturating_sub(before);
    eprintln!("{} MiB for calls that never arrive", grown / MIB);
    assert!(grown < 160 * MIB, "{} MiB", grown / MIB);
    // Others may call all the same.
    assert!(broker.run(&["stream", "list"]).contains('s'));
    drop(sockets);
    let back = look_until(|| resident(&broker).saturating_sub(before) <= LEFT);
    let held = resident(&broker).saturating_sub(before) / KIB;
    assert!(back, "{held} KiB are not given back");
}

/// The whole of a request for streams, which has no bytes: a message of none, which ends it.
fn request_of(number: u32) -> Vec<u8> {
    let mut frame = vec![0, 0, 5, 0, 1];
    frame.extend_from_slice(&(2 * number + 1).to_be_bytes());
    frame.extend_from_slice(&[0; 5]);
    frame
}

#[test]
fn calls_whose_replies_are_not_taken() {
    const CONNECTIONS: usize = 200;
    let broker = Broker::with(&["--memory-idle-release", "200ms"]);
    broker.run(&["stream", "create", "s"]);
    // The preface, and settings: an initial window of no bytes.
    let begins = [
        &HTTP2[..24],
        &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0][..],
    ];
    let calls = (0..1000).map(|number| [begun_call(number), request_of(number)].concat());
    let said = [begins.concat(), calls.flatten().collect()].concat();
    let open = |_| connect(broker.address(), &said, 9);
    let before = settled(&broker);
    let sockets: Vec<TcpStream> = (0..CONNECTIONS).map(open).collect();
    let grown = settled(&broker).saturating_sub(before);
    eprintln!("{} MiB for replies that are not taken", grown / MIB);
    // 152 MiB, and 537 where each may begin as many calls as one alone.
    assert!(grown < 300 * MIB, "{} MiB", grown / MIB);
    // Others may call all the same.
    assert!(broker.run(&["stream", "list"]).contains('s'));
    drop(sockets);
    let back = look_until(|| resident(&broker).saturating_sub(before) <= 2 * LEFT);
    let held = resident(&broker).saturating_sub(before) / KIB;
    assert!(back, "{held} KiB are not given back");
}

#[test]
fn http_connections() {
    if !may_open("held::http_connections", MANY) {
        return;
    }
    let http = crate::common::ports::Reserved::new();
    let flags = [
        "--memory-idle-release",
        "200ms",
        "--http-listen",
        http.address(),
    ];
    let broker = Broker::with(&flags);
    let idle = |_| connect(http.address(), b"", 0);
    // 0.2 to 0.6 KiB
    at_most(
        2 * KIB,
        each(&broker, LEFT, (FEW, MANY), false, idle),
        "idle",
    );
    let trickling = |_| connect(http.address(), b"GET /metrics HTTP/1.1\r\nX: ", 0);
    // 0.4 to 1.3 KiB
    at_most(
        2 * KIB,
        each(&broker, LEFT, (FEW, MANY), true, trickling),
        "trickling",
    );
}

#[test]
fn connections_of_other_brokers() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.address();
    EtcdStore::init(&store, EtcdOptions::default()).expect("the cluster is made");
    // Gone with the test.
    let shared = shared_memory();
    let path = shared.path().display().to_string();
    let flags = [
        ["--cluster", &store],
        ["--broker-id", "3"],
        ["--replica-store-shared-dir", &path],
        ["--cluster-max-connections", "4096"],
    ];
    let backup = Broker::backup(&flags.concat());
    let process = tokio::runtime::Runtime::new()
        .expect("a runtime")
        .block_on(async {
            let mut backups = BackupsClient::connect(format!("http://{}", backup.address()))
                .await
                .expect("it answers");
            let described = backups
                .describe(kera_protocol::v1::DescribeBackupRequest::default())
                .await;
            described.expect("it is there").into_inner().process
        });
    let (few, many) = (100, 700);
    if !may_open("held::connections_of_other_brokers", 2 * many) {
        return;
    }
    // Version 2; each from a broker of its own.
    let hello = |number: usize| {
        let mut hello = HELLO_MAGIC.to_vec();
        hello.extend_from_slice(&[2, 0, 0, 0]);
        hello.extend_from_slice(&(9000 + number as u32).to_le_bytes());
        hello.extend_from_slice(&process.to_le_bytes());
        hello
    };
    // The word "welcome" has 16 bytes.
    let idle = |number| connect(backup.address(), &hello(number), 16);
    // 20 KiB, most of it the thread's, and 148 with a buffer that is written to at once
    at_most(
        32 * KIB,
        each(&backup, LEFT_OF_A_STORE, (few, many), false, idle),
        "idle",
    );
    let begun = |number| {
        connect(
            backup.address(),
            &[&hello(number)[..], b"KRWR"].concat(),
            16,
        )
    };
    at_most(
        36 * KIB,
        each(&backup, LEFT_OF_A_STORE, (few, many), true, begun),
        "trickling",
    );
    // The part of a hello.
    let part = |_| connect(backup.address(), &HELLO_MAGIC[..6], 0);
    at_most(
        4 * KIB,
        each(&backup, LEFT_OF_A_STORE, (few, many), false, part),
        "half a hello",
    );
}
