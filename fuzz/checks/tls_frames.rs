//! What must hold for any bytes that a client sends through TLS to a broker, cut into any records, with a record changed
//! on its way: frames that arrived whole and unchanged are answered, nothing else is, and the connection ends.
//!
//! An input is a [`Script`] of four bytes, and the bytes to send, hello first.

mod panics;

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use kera_broker::Broker;
use kera_broker::config::{BrokerConfig, TlsListener};
use kera_metadata::{AckPolicy, StreamConfig, StreamRecord};
use kera_protocol::Message;
use kera_protocol::frame::{
    Frame, FrameKind, HELLO_BYTES, HELLO_REPLY_BYTES, Hello, HelloReply, PROTOCOL_VERSION,
    encode_empty,
};
use kera_protocol::ids::StreamId;
use kera_protocol::v1;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion, version};
use tokio::runtime::Runtime;

/// Longest input: a fuzzer's are shorter.
const LONGEST: usize = 64 << 10;
/// Bytes of a record's head: kind, version, and the length in the last two.
const RECORD_HEAD: usize = 5;
/// Most bytes that a client sends in one record here.
const RECORD: usize = 16_000;
/// Nothing takes as long on any machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The correlation of the ping behind everything else.
const LAST: u32 = 0xffff_fffe;

/// A broker with TLS, and how clients speak TLS.
pub struct World {
    address: SocketAddr,
    broker: Option<Broker>,
    runtime: Runtime,
    limit: usize,
    roots: Arc<RootCertStore>,
    /// By [`Script::tls12`] and [`Script::names_no_protocol`]; each resumes its sessions.
    configs: Vec<Arc<ClientConfig>>,
}

impl World {
    /// Starts a broker that keeps its files in `dir`. It has a stream of the id that the seeds name.
    pub fn start(dir: &Path) -> Self {
        panics::watch();
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
        let own = own.expect("a certificate is made");
        let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
        std::fs::write(&certificate, own.cert.pem()).expect("a file can be written");
        std::fs::write(&key, own.signing_key.serialize_pem()).expect("a file can be written");
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).expect("a certificate");

        let mut config = BrokerConfig {
            data_dir: dir.join("data"),
            ..BrokerConfig::default()
        };
        config.server.listen = "127.0.0.1:0".into();
        config.http.listen = None;
        config.kafka.listen = Vec::new();
        config.tls.listeners = vec![TlsListener::Native];
        config.tls.certificate = Some(certificate);
        config.tls.key = Some(key);
        let limit = config.server.max_frame_bytes as usize;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(panics::THREADS)
            .enable_all()
            .build()
            .expect("a runtime");
        let broker = runtime.block_on(Broker::start(config));
        let broker = broker.expect("a broker starts");
        let settings = StreamConfig {
            streamlets: 2,
            lanes: 3,
            ack: AckPolicy::Memory,
            ..StreamConfig::default()
        };
        let record = StreamRecord {
            id: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            ..StreamRecord::new("fuzzed", settings, 1)
        };
        let made = broker.shared().create_stream(record);
        made.expect("a stream is made");
        let mut world = Self {
            address: broker.local_addr(),
            broker: Some(broker),
            runtime,
            limit,
            roots: Arc::new(roots),
            configs: Vec::new(),
        };
        world.configs = [&version::TLS13, &version::TLS12]
            .into_iter()
            .flat_map(|version| [true, false].map(|named| world.config(version, named)))
            .collect();
        world
    }

    fn config(&self, version: &'static SupportedProtocolVersion, named: bool) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .expect("a version that ring has")
            .with_root_certificates(self.roots.clone());
        let mut config = config.with_no_client_auth();
        if named {
            config.alpn_protocols = vec![kera_rpc::stream::FRAMES.to_vec()];
        }
        Arc::new(config)
    }

    /// # Panics
    /// If a rule is broken.
    pub fn check(&self, data: &[u8]) {
        let data = &data[..data.len().min(LONGEST)];
        let Some((script, bytes)) = Script::parse(data) else {
            return;
        };
        let mut client = Client::connect(self, &script);
        let (sealed, arrives) = client.seal(&script, bytes);
        let story = Story::of(&bytes[..arrives], self.limit);
        client.send(&script, &sealed);
        let is_whole = arrives == bytes.len() && script.event != Event::Closes;
        if is_whole && story.end == End::Open {
            client.ping();
            client.reads(&story, |answers| {
                answers.pongs.is_empty() && !answers.owes()
            });
        } else {
            client.sends_no_more();
            if story.end != End::Unheard || !script.names_no_protocol {
                // Or the broker may wait a while for the rest of what it does not know yet.
                client.reads(&story, |_| false);
            }
        }
        panics::assert_none();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(broker) = self.broker.take() {
            self.runtime.block_on(broker.shutdown());
        }
    }
}

/// What happens to records on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// One bit of what is sent changes.
    Changes,
    /// The client says that it ends, and goes on.
    Closes,
    /// The client takes new keys.
    NewKeys,
}

/// How bytes are sent.
#[derive(Clone, Copy, Debug)]
struct Script {
    event: Event,
    tls12: bool,
    names_no_protocol: bool,
    /// Each record has a write of its own.
    apart: bool,
    /// Bytes of a record.
    record: usize,
    /// Where the event is: a record, or a bit of what is sent.
    at: usize,
}

impl Script {
    fn parse(data: &[u8]) -> Option<(Self, &[u8])> {
        let (&[how, record, a, b], bytes) = data.split_first_chunk()?;
        let event = match how & 3 {
            0 => Event::Nothing,
            1 => Event::Changes,
            2 => Event::Closes,
            _ => Event::NewKeys,
        };
        let script = Self {
            event,
            tls12: how & 4 != 0,
            names_no_protocol: how & 8 != 0,
            apart: how & 16 != 0,
            record: if record == 0 { RECORD } else { record.into() },
            at: u16::from_le_bytes([a, b]).into(),
        };
        Some((script, bytes))
    }
}

/// How what arrives ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There is no hello.
    Unheard,
    /// With a whole frame; others may follow.
    Open,
    /// Within a frame.
    Partial,
    /// With something that is no frame, or none that clients send.
    Broken,
    /// The client goes away.
    GoesAway,
}

/// Frames that arrive, as far as they are some.
struct Story {
    end: End,
    asked: Vec<(FrameKind, u32)>,
}

impl Story {
    fn of(bytes: &[u8], limit: usize) -> Self {
        let mut asked = Vec::new();
        let hello = bytes.first_chunk::<HELLO_BYTES>();
        let known = hello.and_then(|hello| Hello::decode(hello).ok());
        if known.is_none_or(|hello| hello.version != PROTOCOL_VERSION) {
            let end = End::Unheard;
            return Self { end, asked };
        }
        let mut rest = BytesMut::from(&bytes[HELLO_BYTES..]);
        let end = loop {
            match Frame::split_from(&mut rest, limit) {
                Ok(None) if rest.is_empty() => break End::Open,
                Ok(None) => break End::Partial,
                Ok(Some(frame)) if frame.kind == FrameKind::GoAway => break End::GoesAway,
                Ok(Some(frame)) if is_understood(&frame) => {
                    asked.push((frame.kind, frame.correlation));
                }
                Ok(Some(_)) | Err(_) => break End::Broken,
            }
        };
        Self { end, asked }
    }
}

/// True for what clients send, if it decodes.
fn is_understood(frame: &Frame) -> bool {
    fn decodes<M: Message + Default>(frame: &Frame) -> bool {
        frame.message::<M>().is_ok()
    }
    match frame.kind {
        FrameKind::Append => decodes::<v1::AppendRequest>(frame),
        FrameKind::Read => decodes::<v1::ReadRequest>(frame),
        FrameKind::Subscribe => decodes::<v1::SubscribeRequest>(frame),
        FrameKind::Credit => decodes::<v1::CreditRequest>(frame),
        FrameKind::Call => decodes::<v1::CallRequest>(frame),
        FrameKind::Ping | FrameKind::Pong => true,
        _ => false,
    }
}

/// What the broker may answer still.
struct Answers {
    hello: bool,
    /// In this order.
    pongs: VecDeque<u32>,
    /// In any order.
    others: Vec<(FrameKind, u32)>,
    subscribed: bool,
    may_go_away: bool,
}

impl Answers {
    fn to(story: &Story, last: Option<u32>) -> Self {
        let mut answers = Self {
            hello: true,
            pongs: VecDeque::new(),
            others: Vec::new(),
            subscribed: false,
            may_go_away: matches!(story.end, End::Broken | End::Unheard),
        };
        for (kind, correlation) in &story.asked {
            let kind = match kind {
                FrameKind::Ping => {
                    answers.pongs.push_back(*correlation);
                    continue;
                }
                FrameKind::Append => FrameKind::AppendReply,
                FrameKind::Read => FrameKind::ReadReply,
                FrameKind::Subscribe => FrameKind::SubscribeReply,
                FrameKind::Call => FrameKind::CallReply,
                _ => continue,
            };
            answers.subscribed |= kind == FrameKind::SubscribeReply;
            answers.others.push((kind, *correlation));
        }
        answers.pongs.extend(last);
        answers
    }

    /// True while something is to come that does not wait for records of others.
    fn owes(&self) -> bool {
        let waits = [FrameKind::ReadReply, FrameKind::CallReply];
        self.others.iter().any(|(kind, _)| !waits.contains(kind))
    }

    /// Takes what is there whole off `arrived`.
    fn take(&mut self, arrived: &mut BytesMut, limit: usize) {
        if self.hello {
            let Some(hello) = arrived.first_chunk::<HELLO_REPLY_BYTES>() else {
                return;
            };
            if self.may_go_away && HelloReply::decode(hello).is_err() {
                // Refused at once.
                self.hello = false;
            } else {
                HelloReply::decode(hello).expect("the broker answers a hello");
                let _ = arrived.split_to(HELLO_REPLY_BYTES);
                self.hello = false;
            }
        }
        while let Some(frame) = Frame::split_from(arrived, limit).expect("the broker sends frames")
        {
            self.take_one(frame.kind, frame.correlation);
        }
    }

    fn take_one(&mut self, kind: FrameKind, correlation: u32) {
        let expected = match kind {
            FrameKind::Pong => self.pongs.pop_front() == Some(correlation),
            FrameKind::PushData => self.subscribed,
            FrameKind::GoAway => self.may_go_away,
            _ => {
                let at = self
                    .others
                    .iter()
                    .position(|one| *one == (kind, correlation));
                at.map(|at| self.others.swap_remove(at)).is_some()
            }
        };
        assert!(expected, "nothing asks for {kind:?} {correlation}");
    }
}

struct Client {
    tls: ClientConnection,
    socket: TcpStream,
    limit: usize,
    pinged: bool,
    event: Event,
}

impl Client {
    /// Does a handshake.
    fn connect(world: &World, script: &Script) -> Self {
        let at = 2 * usize::from(script.tls12) + usize::from(script.names_no_protocol);
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = ClientConnection::new(world.configs[at].clone(), name);
        let socket = TcpStream::connect(world.address).expect("the broker listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        socket.set_nodelay(true).expect("a socket");
        let mut client = Self {
            tls: tls.expect("a session"),
            socket,
            limit: world.limit,
            pinged: false,
            event: script.event,
        };
        while client.tls.is_handshaking() {
            let done = client.tls.complete_io(&mut client.socket);
            done.expect("a handshake");
        }
        client
    }

    /// The records that `bytes` are sent in, and how many of the bytes arrive unchanged.
    fn seal(&mut self, script: &Script, bytes: &[u8]) -> (Vec<Vec<u8>>, usize) {
        let mut records = Vec::new();
        let pieces = bytes.chunks(script.record);
        let event_at = script.at % pieces.len().max(1);
        for (number, piece) in pieces.enumerate() {
            match script.event {
                Event::Closes if number == event_at => {
                    self.tls.send_close_notify();
                    records.push(self.sealed());
                    // TLS sends nothing behind it: what comes is not a record of this session.
                    records.push(bytes[number * script.record..].to_vec());
                    return (records, number * script.record);
                }
                Event::NewKeys if number == event_at && !script.tls12 => {
                    let taken = self.tls.refresh_traffic_keys();
                    taken.expect("TLS 1.3 has new keys");
                }
                _ => {}
            }
            self.tls.writer().write_all(piece).expect("it is buffered");
            records.push(self.sealed());
        }
        let mut arrives = bytes.len();
        if script.event == Event::Changes && !records.is_empty() {
            let number = event_at;
            arrives = number * script.record;
            let record = &mut records[number];
            // Nothing vouches for the kind and the version before it.
            let bits = 8 * (record.len() - RECORD_HEAD + 2);
            let bit = (script.at * 131) % bits;
            record[RECORD_HEAD - 2 + bit / 8] ^= 1 << (bit % 8);
        }
        (records, arrives)
    }

    fn sealed(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out).expect("memory takes it");
        }
        out
    }

    /// The broker may have ended the connection already, which shows in what it says.
    fn send(&mut self, script: &Script, records: &[Vec<u8>]) {
        match script.apart {
            true => records.iter().for_each(|record| self.write(record)),
            false => self.write(&records.concat()),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    fn ping(&mut self) {
        let mut ping = BytesMut::new();
        encode_empty(&mut ping, FrameKind::Ping, LAST);
        self.tls.writer().write_all(&ping).expect("it is buffered");
        let sealed = self.sealed();
        self.write(&sealed);
        self.pinged = true;
    }

    fn sends_no_more(&mut self) {
        self.tls.send_close_notify();
        let sealed = self.sealed();
        self.write(&sealed);
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Reads until `enough`, or the broker ends the connection.
    fn reads(&mut self, story: &Story, enough: impl Fn(&Answers) -> bool) {
        let mut answers = Answers::to(story, self.pinged.then_some(LAST));
        let mut arrived = BytesMut::new();
        let mut buffer = vec![0; 16 << 10];
        loop {
            answers.take(&mut arrived, self.limit);
            if !answers.hello && enough(&answers) {
                return;
            }
            let ended = match self.tls.read_tls(&mut self.socket) {
                Ok(read) => read == 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("the broker neither answers nor ends: {:?}", story.end)
                }
                Err(_) => true,
            };
            match self.tls.process_new_packets() {
                Ok(_) => {}
                // The broker says what it thinks of the record.
                Err(rustls::Error::AlertReceived(_)) if self.event == Event::Changes => return,
                Err(error) => panic!("the broker's records: {error}"),
            }
            let closed = loop {
                match std::io::Read::read(&mut self.tls.reader(), &mut buffer) {
                    Ok(0) => break true,
                    Ok(read) => arrived.extend_from_slice(&buffer[..read]),
                    Err(error) => break error.kind() != ErrorKind::WouldBlock,
                }
            };
            if ended || closed {
                answers.take(&mut arrived, self.limit);
                assert!(!self.pinged, "the connection ended: {:?}", answers.pongs);
                // Where nothing happened to the records, pings that came whole are answered before the end.
                let untouched = matches!(self.event, Event::Nothing | Event::NewKeys);
                let all = story.end == End::Partial && untouched;
                assert!(!all || answers.pongs.is_empty(), "{:?}", answers.pongs);
                return;
            }
        }
    }
}
