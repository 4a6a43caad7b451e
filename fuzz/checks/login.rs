//! What must hold for any messages of a login, of Kafka's clients and of native ones: who proves by a password, a proof of
//! SCRAM or a token that it is a user gets in; nobody else does, whose connection ends.
//!
//! An input is a byte that says which [listener and mechanism](Script), and [messages](Message): a kind, a length and that many
//! bytes. Proofs differ each time, so an input says how they are changed and not what they are.

mod panics;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use kera_broker::Broker;
use kera_broker::auth::TokenMessage;
use kera_broker::auth::scram::{Client as Scram, Mechanism};
use kera_broker::config::{BrokerConfig, KeySource, Listener, SaslMechanism};
use kera_protocol::frame::{HELLO_REPLY_BYTES, Hello};
use kera_protocol::login::{REPLY_HEAD_BYTES, Status, first, next, read_reply_head};
use kera_testkit::issuer::{AUDIENCE, Issuer};
use tokio::runtime::Runtime;

/// Longest input: a fuzzer's are shorter.
const LONGEST: usize = 4 << 10;
/// Nothing takes as long on any machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tokens count longer than any fuzzer runs.
const LIFE: u64 = 1 << 28;
const USER: &str = "ann";
const PASSWORD: &str = "right";
/// As the native protocol numbers them.
const MECHANISMS: [&str; 4] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"];

/// A broker that asks who clients are.
pub struct World {
    native: SocketAddr,
    kafka: SocketAddr,
    broker: Option<Broker>,
    runtime: Runtime,
    /// One that counts.
    token: String,
    /// The broker has the issuer's keys.
    has_keys: bool,
    _issuer: Issuer,
}

impl World {
    /// Starts a broker that keeps its files in `dir`, with one user. Returns once it takes tokens.
    pub fn start(dir: &Path) -> Self {
        panics::watch();
        let issuer = Issuer::start(USER, LIFE);
        let password = dir.join("password");
        std::fs::write(&password, PASSWORD).expect("a file can be written");
        let mut config = BrokerConfig {
            data_dir: dir.join("data"),
            ..BrokerConfig::default()
        };
        config.server.listen = "127.0.0.1:0".into();
        config.http.listen = None;
        config.kafka.listen = vec!["127.0.0.1:0".into()];
        config.auth.listeners = vec![Listener::Native, Listener::Kafka];
        config.auth.mechanisms = SaslMechanism::WITH_PASSWORDS.to_vec();
        config.auth.mechanisms.push(SaslMechanism::OauthBearer);
        config.auth.first_user = Some(USER.to_owned());
        config.auth.first_user_password_file = Some(password);
        config.oauth.issuer = Some(issuer.name());
        config.oauth.audience = vec![AUDIENCE.to_owned()];
        config.oauth.keys = Some(KeySource::Server(issuer.keys().parse().expect("a URL")));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(panics::THREADS)
            .enable_all()
            .build()
            .expect("a runtime");
        let broker = runtime.block_on(Broker::start(config));
        let broker = broker.expect("a broker starts");
        let listeners = runtime.block_on(kera_kafka_shim::start(broker.shared().clone()));
        let listeners = listeners.expect("it listens for Kafka's clients");
        let token = issuer.sign(&issuer.claims(USER, LIFE));
        let mut world = Self {
            native: broker.local_addr(),
            kafka: listeners.addresses[0],
            broker: Some(broker),
            runtime,
            token,
            has_keys: false,
            _issuer: issuer,
        };
        // Keys come in the background.
        let begin = Instant::now();
        let token = [3 << 1, 3, 0];
        while !world.play(&token) {
            assert!(begin.elapsed() < PATIENCE, "no token is taken");
        }
        world.has_keys = true;
        world
    }

    /// # Panics
    /// If a rule is broken.
    pub fn check(&self, data: &[u8]) {
        self.play(&data[..data.len().min(LONGEST)]);
        panics::assert_none();
    }

    /// True if the client got in.
    fn play(&self, data: &[u8]) -> bool {
        let Some((script, messages)) = Script::parse(data) else {
            return false;
        };
        let mut client = Client::connect(self, script);
        let mut known = Known::new(script, &self.token);
        for message in messages {
            let (sent, proves) = known.make(&message);
            let Some(answer) = client.tells(&sent) else {
                panic!("{script:?} does not answer {sent:?}");
            };
            // Without keys a right token is refused.
            let is_due = answer.is_in == proves || (!answer.is_in && !self.has_keys);
            assert!(is_due, "{script:?}, in: {}, {sent:?}", answer.is_in);
            if answer.is_over {
                client.is_served(answer.is_in);
                return answer.is_in;
            }
            known.challenged(&answer.bytes);
        }
        client.goes_away();
        false
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(broker) = self.broker.take() {
            self.runtime.block_on(broker.shutdown());
        }
    }
}

/// Where and how a client logs in.
#[derive(Clone, Copy, Debug)]
struct Script {
    is_native: bool,
    mechanism: u16,
}

/// What a client sends.
enum Message<'a> {
    /// These bytes.
    Raw(&'a [u8]),
    /// The first message of SCRAM, changed so.
    First(&'a [u8]),
    /// The proof that the challenge asks for, changed so.
    Proof(&'a [u8]),
    /// A token that counts, changed so.
    Token(&'a [u8]),
}

impl Script {
    fn parse(data: &[u8]) -> Option<(Self, Vec<Message<'_>>)> {
        let (&how, mut rest) = data.split_first()?;
        let script = Self {
            is_native: how & 1 != 0,
            mechanism: u16::from(how >> 1 & 3),
        };
        let mut messages = Vec::new();
        while let Some((&[kind, length], behind)) = rest.split_first_chunk() {
            let (bytes, behind) = behind.split_at(usize::from(length).min(behind.len()));
            messages.push(match kind & 3 {
                0 => Message::Raw(bytes),
                1 => Message::First(bytes),
                2 => Message::Proof(bytes),
                _ => Message::Token(bytes),
            });
            rest = behind;
        }
        Some((script, messages))
    }

    fn name(self) -> &'static str {
        MECHANISMS[usize::from(self.mechanism)]
    }
}

/// Bytes with some of them changed: each change is a place in two bytes, and bits to turn.
fn changed(bytes: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in changes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(place) {
            *byte ^= change[2];
        }
    }
    bytes
}

/// What a client knows of its login.
struct Known<'a> {
    script: Script,
    token: &'a str,
    /// Messages sent.
    sent: usize,
    /// Its first message went out as it was made.
    begun: Option<Scram>,
    proof: Option<String>,
}

impl<'a> Known<'a> {
    fn new(script: Script, token: &'a str) -> Self {
        Self {
            script,
            token,
            sent: 0,
            begun: None,
            proof: None,
        }
    }

    /// The bytes of a message, and whether the client is in if the broker looks at them next.
    fn make(&mut self, message: &Message<'_>) -> (Vec<u8>, bool) {
        let number = self.sent;
        self.sent += 1;
        let scram = Mechanism::named(self.script.name());
        let bytes = match message {
            Message::Raw(bytes) => bytes.to_vec(),
            Message::First(changes) => {
                let mechanism = scram.unwrap_or(Mechanism::Sha256);
                let begun = Scram::begin(mechanism, USER, PASSWORD.as_bytes());
                let (begun, text) = begun.expect("there are random numbers");
                let bytes = changed(text.as_bytes(), changes);
                self.begun = Some(begun).filter(|_| bytes == text.as_bytes() && number == 0);
                bytes
            }
            Message::Proof(changes) => {
                let proof = self.proof.take().unwrap_or_default();
                let bytes = changed(proof.as_bytes(), changes);
                let is_right = !proof.is_empty() && bytes == proof.as_bytes();
                return (bytes, is_right);
            }
            Message::Token(changes) => {
                let whole = format!("n,,\u{1}auth=Bearer {}\u{1}\u{1}", self.token);
                changed(whole.as_bytes(), changes)
            }
        };
        let proves = number == 0
            && match self.script.name() {
                "PLAIN" => {
                    let parts: Vec<_> = bytes.split(|byte| *byte == 0).collect();
                    let user = USER.as_bytes();
                    parts[1..] == [user, PASSWORD.as_bytes()]
                        && (parts[0].is_empty() || parts[0] == user)
                }
                "OAUTHBEARER" => TokenMessage::read(&bytes).is_some_and(|message| {
                    message.token == self.token && message.acts_as.is_none_or(|name| name == USER)
                }),
                _ => false,
            };
        (bytes, proves)
    }

    fn challenged(&mut self, challenge: &[u8]) {
        let begun = self.begun.take();
        let answered = begun.and_then(|begun| begun.answer(challenge).ok());
        self.proof = answered.map(|(_, proof)| proof);
    }
}

/// What the broker says to a message of a login.
struct Answer {
    is_over: bool,
    is_in: bool,
    bytes: Vec<u8>,
}

struct Client {
    socket: TcpStream,
    script: Script,
    has_begun: bool,
}

impl Client {
    fn connect(world: &World, script: Script) -> Self {
        let address = match script.is_native {
            true => world.native,
            false => world.kafka,
        };
        let socket = TcpStream::connect(address).expect("the broker listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        socket.set_nodelay(true).expect("a socket");
        let mut client = Self {
            socket,
            script,
            has_begun: false,
        };
        if !script.is_native {
            let name = script.name().as_bytes();
            let body = [&(name.len() as u16).to_be_bytes()[..], name].concat();
            let answer = client.asks(17, &body).expect("a handshake is answered");
            assert_eq!(answer[..2], [0, 0], "the mechanism is known");
        }
        client
    }

    /// Sends a request of Kafka's, in version 1; the answer's body.
    fn asks(&mut self, api: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut request = api.to_be_bytes().to_vec();
        // The version, a correlation, and no client id.
        request.extend([0, 1, 0, 0, 0, 7, 0xff, 0xff]);
        request.extend(body);
        let length = (request.len() as u32).to_be_bytes();
        self.socket.write_all(&[&length[..], &request].concat())?;
        let mut length = [0; 4];
        self.socket.read_exact(&mut length)?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.socket.read_exact(&mut answer)?;
        assert_eq!(answer[..4], [0, 0, 0, 7], "the correlation");
        Ok(answer.split_off(4))
    }

    /// Sends a message of a login; `None` if the connection ended instead of an answer.
    fn tells(&mut self, message: &[u8]) -> Option<Answer> {
        match self.script.is_native {
            true => self.tells_native(message).ok(),
            false => self.tells_kafka(message).ok(),
        }
    }

    fn tells_native(&mut self, message: &[u8]) -> io::Result<Answer> {
        let sent = match std::mem::replace(&mut self.has_begun, true) {
            false => first(self.script.mechanism, message),
            true => next(message),
        };
        self.socket.write_all(&sent)?;
        let mut head = [0; REPLY_HEAD_BYTES + 4];
        self.socket.read_exact(&mut head)?;
        let (status, length) = head.split_first_chunk().expect("a head and a length");
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        let mut bytes = vec![0; length as usize];
        self.socket.read_exact(&mut bytes)?;
        let status = read_reply_head(status).expect("a status");
        Ok(Answer {
            is_over: status != Status::GoesOn,
            is_in: status == Status::Proved,
            bytes,
        })
    }

    fn tells_kafka(&mut self, message: &[u8]) -> io::Result<Answer> {
        let length = (message.len() as u32).to_be_bytes();
        let answer = self.asks(36, &[&length[..], message].concat())?;
        let short = || io::Error::from(ErrorKind::UnexpectedEof);
        let (code, rest) = answer.split_first_chunk::<2>().ok_or_else(short)?;
        let (text, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
        let text = usize::try_from(i16::from_be_bytes(*text)).unwrap_or(0);
        let rest = rest.get(text..).ok_or_else(short)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let bytes = rest.get(..u32::from_be_bytes(*length) as usize);
        let bytes = bytes.ok_or_else(short)?.to_vec();
        let is_refused = *code != [0, 0];
        // A challenge says something, and so does the end of SCRAM.
        let is_scram = self.script.name().starts_with("SCRAM");
        let is_last = match is_scram {
            true => bytes.starts_with(b"v="),
            // The refusal of a token is a challenge, which the client answers.
            false => bytes.is_empty(),
        };
        let is_in = !is_refused && is_last;
        Ok(Answer {
            is_over: is_refused || is_in,
            is_in,
            bytes,
        })
    }

    /// Who is in is served, and who is not has no connection any more.
    fn is_served(&mut self, is_in: bool) {
        let is_served = match self.script.is_native {
            true => {
                let mut reply = [0; HELLO_REPLY_BYTES];
                let said = self.socket.write_all(&Hello::CURRENT.encode());
                said.and_then(|()| self.socket.read_exact(&mut reply))
                    .is_ok()
            }
            // Metadata of no topic.
            false => self.asks(3, &[0; 4]).is_ok(),
        };
        assert_eq!(is_served, is_in, "{:?}", self.script);
    }

    /// The connection of a client that sends no more ends, with nothing else.
    fn goes_away(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the broker waits"),
            _ => assert!(rest.is_empty(), "nothing was asked: {rest:?}"),
        }
    }
}
