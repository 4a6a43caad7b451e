//! Messages of logins in any order, whole, cut and changed: a client that proves who it is gets in, and no other one does.

use kera_protocol::frame::Hello;
use kera_protocol::login::{self, REPLY_HEAD_BYTES, Status};
use kera_testkit::issuer::Issuer;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::*;

const CASES: usize = 1500;
const RIGHT: &[u8] = b"\0ann\0right";

/// What a client does next.
#[derive(Clone, Debug)]
enum Step {
    Name(&'static str),
    Message(Vec<u8>),
    Versions,
    Ask,
}

/// Messages as clients send them, of which some prove something.
struct Known {
    token: String,
    messages: Vec<Vec<u8>>,
}

impl Known {
    /// With messages of a login by SCRAM that has succeeded.
    async fn of(world: &World, issuer: &Issuer) -> Self {
        let token = issuer.sign(&issuer.claims("ann", 600));
        let mut elsewhere = issuer.claims("ann", 600);
        elsewhere["aud"] = "elsewhere".into();
        let bearer = |token: &str| format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}").into_bytes();
        let mut client = world.client().await;
        handshake(&mut client, Mechanism::Sha256.name()).await;
        let (mine, first) = Scram::begin(Mechanism::Sha256, "ann", b"right").unwrap();
        let challenge = send(&mut client, 2, first.as_bytes()).await;
        let (_, proof) = mine.answer(&challenge.auth_bytes).unwrap();
        assert_eq!(send(&mut client, 2, proof.as_bytes()).await.error_code, 0);
        let messages = vec![
            RIGHT.to_vec(),
            b"\0ann\0wrong".to_vec(),
            b"bob\0ann\0right".to_vec(),
            first.into_bytes(),
            proof.into_bytes(),
            b"n,,n=nobody,r=abc".to_vec(),
            bearer(&token),
            bearer(&issuer.sign(&elsewhere)),
            bearer("a.b.c"),
            b"\x01".to_vec(),
            Vec::new(),
        ];
        Self { token, messages }
    }

    /// True if the first message for a mechanism proves who a client is.
    fn proves(&self, mechanism: &str, message: &[u8]) -> bool {
        match mechanism {
            "PLAIN" => message == RIGHT,
            "OAUTHBEARER" => auth::TokenMessage::read(message).is_some_and(|message| {
                message.token == self.token && message.acts_as.is_none_or(|name| name == "ann")
            }),
            _ => false,
        }
    }

    fn message(&self) -> BoxedStrategy<Vec<u8>> {
        let known = || select(self.messages.clone());
        let changed = (known(), any::<Index>(), any::<u8>()).prop_map(|(mut message, at, byte)| {
            if !message.is_empty() {
                let at = at.index(message.len());
                message[at] = byte;
            }
            message
        });
        let cut = (known(), any::<Index>()).prop_map(|(mut message, at)| {
            message.truncate(at.index(message.len() + 1));
            message
        });
        let other = prop::collection::vec(any::<u8>(), 0..80);
        prop_oneof![5 => known(), 2 => changed, 1 => cut, 1 => other].boxed()
    }

    fn steps(&self) -> BoxedStrategy<Vec<Step>> {
        let names = ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI", ""];
        let step = prop_oneof![
            1 => select(names.to_vec()).prop_map(Step::Name),
            6 => self.message().prop_map(Step::Message),
            1 => Just(Step::Versions),
            1 => Just(Step::Ask),
        ];
        // Most begin as they should.
        let begin = select(names[..3].to_vec()).prop_map(Step::Name);
        let begin = prop::option::weighted(0.9, begin);
        let rest = prop::collection::vec(step, 1..6);
        let all = (begin, rest);
        all.prop_map(|(begin, rest)| begin.into_iter().chain(rest).collect())
            .boxed()
    }
}

async fn world(issuer: &Issuer) -> World {
    let world = World::with(|config| {
        tokens::asks_for_tokens(config, issuer);
        config.auth.listeners.push(Listener::Native);
    })
    .await;
    user(&world, "ann", "right").await;
    tokens::has_keys(&world, issuer).await;
    world
}

/// Asks for what only users get.
async fn ask(client: &mut Client) -> bool {
    let all = MetadataRequest::default().with_topics(None);
    let sent = client.try_send(ApiKey::Metadata, 9, &all).await;
    sent.is_ok() && client.frame().await.is_ok()
}

/// Does what `steps` say until the client is in or out; true if it is in.
async fn play(world: &World, known: &Known, steps: &[Step]) -> bool {
    let mut client = world.client().await;
    let mut named = None;
    for step in steps {
        match step {
            Step::Name(name) => {
                if handshake(&mut client, name).await.error_code != 0 {
                    assert!(client.closed().await);
                    return false;
                }
                named = Some(*name);
            }
            Step::Message(message) => {
                let proves = named.take().is_some_and(|name| known.proves(name, message));
                let answer = send(&mut client, 2, message).await;
                // A challenge is none yet.
                let is_in = answer.error_code == 0 && answer.auth_bytes.is_empty();
                assert_eq!(is_in, proves, "{:?}", answer.error_message);
                if is_in {
                    assert!(ask(&mut client).await);
                    return true;
                }
                if answer.error_code != 0 {
                    assert!(client.closed().await);
                    return false;
                }
            }
            Step::Versions => {
                let ask = ApiVersionsRequest::default();
                let _: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 0, &ask).await;
            }
            Step::Ask => {
                assert!(!ask(&mut client).await, "who has proved nothing is served");
                return false;
            }
        }
    }
    assert!(!ask(&mut client).await, "who has proved nothing is served");
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_clients_get_in_by_a_proof_and_by_nothing_else() {
    let issuer = Issuer::start("ann", 600);
    let world = world(&issuer).await;
    let known = Known::of(&world, &issuer).await;
    let (strategy, mut runner) = (known.steps(), TestRunner::deterministic());
    let mut entered = 0;
    for _ in 0..CASES {
        let steps = strategy.new_tree(&mut runner).unwrap().current();
        entered += usize::from(play(&world, &known, &steps).await);
    }
    assert!((1..CASES).contains(&entered), "{entered}");
}

/// The broker's next message.
async fn told(stream: &mut TcpStream) -> Status {
    let answer = async {
        let mut head = [0; REPLY_HEAD_BYTES];
        stream.read_exact(&mut head).await?;
        let length = stream.read_u32_le().await?;
        let mut message = vec![0; length as usize];
        stream.read_exact(&mut message).await?;
        Ok::<_, std::io::Error>(login::read_reply_head(&head))
    };
    let answer = tokio::time::timeout(common::PATIENCE, answer).await;
    let answer = answer.expect("it is answered in time");
    answer.expect("it is answered").expect("a message")
}

#[tokio::test(flavor = "multi_thread")]
async fn native_clients_get_in_by_a_proof_and_by_nothing_else() {
    let issuer = Issuer::start("ann", 600);
    let world = world(&issuer).await;
    let known = Known::of(&world, &issuer).await;
    let mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", ""];
    let strategy = (0..mechanisms.len(), known.message(), known.message());
    let mut runner = TestRunner::deterministic();
    let mut entered = 0;
    for _ in 0..CASES {
        let (mechanism, first, next) = strategy.new_tree(&mut runner).unwrap().current();
        let mut stream = TcpStream::connect(world.broker.local_addr()).await.unwrap();
        let bytes = login::first(mechanism as u16, &first);
        stream.write_all(&bytes).await.unwrap();
        let mut status = told(&mut stream).await;
        let proves = known.proves(mechanisms[mechanism], &first);
        assert_eq!(status == Status::Proved, proves, "{status:?}");
        if status == Status::GoesOn {
            stream.write_all(&login::next(&next)).await.unwrap();
            status = told(&mut stream).await;
            assert_eq!(status, Status::Refused);
        }
        // What comes behind a refusal is not answered.
        let mut byte = [0];
        let hello = stream.write_all(&Hello::CURRENT.encode()).await;
        let read = tokio::time::timeout(common::PATIENCE, stream.read(&mut byte)).await;
        let read = read.expect("it answers or ends");
        let is_served = hello.is_ok() && matches!(read, Ok(1));
        assert_eq!(is_served, proves);
        entered += usize::from(proves);
    }
    assert!((1..CASES).contains(&entered), "{entered}");
}
