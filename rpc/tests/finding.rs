//! Finding brokers and coordinators, with several brokers played by the test.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{
    Frame, FrameKind, HELLO_BYTES, Hello, HelloReply, TAKES_CALLS, encode_empty, encode_head,
};
use kera_protocol::v1::{self, CallMethod};
use kera_rpc::{Admin, ChangeError, Client, ClientOptions, RetryPolicy, RpcError};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the brokers of a test are like.
#[derive(Default)]
struct World {
    addresses: Vec<String>,
    dead: Vec<usize>,
    stopped: Vec<usize>,
    loading: usize,
    coordinator: usize,
    /// Calls by broker.
    calls: Vec<usize>,
    /// Looks for a coordinator.
    lookups: usize,
    /// Brokers that name nobody as the owner of what is theirs.
    nameless: Vec<usize>,
    /// Epochs of the stream as brokers know them, by broker; 1 where it is not said.
    epochs: Vec<u32>,
    /// Brokers that have not heard of the stream.
    unheard: Vec<usize>,
    /// Streams that were created.
    created: Vec<String>,
    /// Answers to creations that are lost.
    lost: usize,
    /// The group was deleted, which nobody was told.
    deleted: bool,
    /// Creations that are made, and answered with SHUTTING_DOWN.
    stopping: usize,
}

#[derive(Clone)]
struct Broker {
    world: Arc<Mutex<World>>,
    number: usize,
}

/// What becomes of a call.
enum Outcome {
    Reply(Vec<u8>),
    Refused(ErrorCode),
    /// The connection breaks.
    Broken,
    /// Nothing.
    Silence,
}

impl Broker {
    async fn serve(self, mut socket: TcpStream) {
        let mut hello = [0; HELLO_BYTES];
        if socket.read_exact(&mut hello).await.is_err() {
            return;
        }
        assert_eq!(Hello::decode(&hello), Ok(Hello::CURRENT));
        let reply = HelloReply {
            version: 1,
            flags: TAKES_CALLS,
            max_frame_bytes: 1 << 20,
        };
        socket.write_all(&reply.encode()).await.unwrap();
        let mut buffer = BytesMut::new();
        loop {
            while let Some(frame) = Frame::split_from(&mut buffer, 1 << 20).unwrap() {
                let mut out = BytesMut::new();
                if frame.kind == FrameKind::Ping {
                    encode_empty(&mut out, FrameKind::Pong, frame.correlation);
                } else {
                    assert_eq!(frame.kind, FrameKind::Call);
                    let (error, body) = match self.call(&frame) {
                        Outcome::Reply(body) => (ErrorCode::Ok, body),
                        Outcome::Refused(code) => (code, Vec::new()),
                        Outcome::Broken => return,
                        Outcome::Silence => continue,
                    };
                    let told = v1::CallResponse {
                        error: error as u32,
                        message: "planted".to_owned(),
                    };
                    let kind = FrameKind::CallReply;
                    encode_head(&mut out, kind, frame.correlation, &told, body.len()).unwrap();
                    out.extend_from_slice(&body);
                }
                if socket.write_all(&out).await.is_err() {
                    return;
                }
            }
            match socket.read_buf(&mut buffer).await {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        }
    }

    fn call(&self, frame: &Frame) -> Outcome {
        let mut world = self.world.lock();
        if world.dead.contains(&self.number) {
            return Outcome::Broken;
        }
        world.calls[self.number] += 1;
        if world.stopped.contains(&self.number) {
            return Outcome::Silence;
        }
        let call: v1::CallRequest = frame.message().unwrap();
        match call.method() {
            CallMethod::GetStream => self.get_stream(&world, &frame.body),
            CallMethod::CreateStream => create_stream(&mut world, &frame.body),
            CallMethod::DeleteStream => Outcome::Refused(ErrorCode::InvalidName),
            CallMethod::FindCoordinator => {
                world.lookups += 1;
                let found = v1::FindCoordinatorResponse {
                    broker_id: world.coordinator as u32,
                    address: world.addresses[world.coordinator].clone(),
                };
                Outcome::Reply(found.encode_to_vec())
            }
            CallMethod::Leave if world.coordinator != self.number => {
                Outcome::Refused(ErrorCode::NotCoordinator)
            }
            CallMethod::Leave if world.loading > 0 => {
                world.loading -= 1;
                Outcome::Refused(ErrorCode::CoordinatorLoading)
            }
            CallMethod::Leave => Outcome::Reply(Vec::new()),
            CallMethod::DeleteGroup if world.deleted => {
                Outcome::Refused(ErrorCode::UnknownConsumerGroup)
            }
            CallMethod::DeleteGroup => {
                world.deleted = true;
                Outcome::Broken
            }
            other => panic!("{other:?} is not called here"),
        }
    }

    fn get_stream(&self, world: &World, body: &Bytes) -> Outcome {
        if world.unheard.contains(&self.number) {
            return Outcome::Refused(ErrorCode::UnknownStream);
        }
        let epoch = world.epochs.get(self.number).copied().unwrap_or(1);
        let mut owners = world.addresses.clone();
        // With each epoch everything is its next broker's.
        let by = (epoch as usize - 1) % owners.len();
        if world.nameless.contains(&self.number) {
            owners[self.number].clear();
        }
        owners.rotate_left(by);
        let owners = owners.into_iter().zip(0..);
        let info = v1::StreamInfo {
            name: v1::GetStreamRequest::decode(&body[..]).unwrap().name,
            id: Bytes::from_static(&[7; 16]),
            config: Some(v1::StreamConfig {
                streamlets: Some(3),
                lanes: Some(1),
                ..v1::StreamConfig::default()
            }),
            streamlets: owners
                .map(|(owner, streamlet)| v1::StreamletInfo {
                    streamlet,
                    owner,
                    epoch,
                    ..v1::StreamletInfo::default()
                })
                .collect(),
            ..v1::StreamInfo::default()
        };
        Outcome::Reply(info.encode_to_vec())
    }
}

fn create_stream(world: &mut World, body: &Bytes) -> Outcome {
    let name = v1::CreateStreamRequest::decode(&body[..]).unwrap().name;
    if world.created.contains(&name) {
        return Outcome::Refused(ErrorCode::StreamExists);
    }
    world.created.push(name);
    if world.lost > 0 {
        world.lost -= 1;
        return Outcome::Broken;
    }
    if world.stopping > 0 {
        world.stopping -= 1;
        return Outcome::Refused(ErrorCode::ShuttingDown);
    }
    Outcome::Reply(Vec::new())
}

/// Three brokers; number 0 coordinates.
async fn brokers() -> Arc<Mutex<World>> {
    let world = Arc::new(Mutex::new(World::default()));
    for number in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        world.lock().addresses.push(address);
        world.lock().calls.push(0);
        let broker = Broker {
            world: world.clone(),
            number,
        };
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(broker.clone().serve(socket));
            }
        });
    }
    world
}

fn client(bootstrap: &str) -> Client {
    let retry = RetryPolicy {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(10),
        deadline: Duration::from_secs(20),
    };
    let options = ClientOptions {
        retry,
        ..ClientOptions::default()
    };
    Client::new(bootstrap, options).unwrap()
}

fn address(world: &Mutex<World>, number: usize) -> String {
    world.lock().addresses[number].clone()
}

/// Longer than an answer takes, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

async fn leave(client: &Client, within: Duration) -> Result<v1::LeaveResponse, RpcError> {
    let left = client.group_call("g", within, v1::LeaveRequest::default());
    left.await
}

#[tokio::test]
async fn brokers_that_answers_named_are_asked_when_the_whole_list_is_gone() {
    let world = brokers().await;
    let client = client(&address(&world, 0));
    client.refresh("s").await.unwrap();
    world.lock().dead = vec![0, 1];
    client.refresh("s").await.unwrap();
    assert_eq!(world.lock().calls, [1, 0, 1]);
}

async fn create(client: &Client, name: &str) -> Result<v1::StreamInfo, ChangeError> {
    let request = v1::CreateStreamRequest {
        name: name.to_owned(),
        config: None,
    };
    client.change(request).await
}

#[tokio::test]
async fn a_refusal_is_uncertain_only_if_an_earlier_attempt_may_have_made_the_change() {
    let world = brokers().await;
    let list = world.lock().addresses.join(",");
    let all = client(&list);
    create(&all, "a").await.unwrap();
    let again = create(&all, "a").await.unwrap_err();
    assert_eq!(again.error.code(), Some(ErrorCode::StreamExists));
    assert!(
        !again.is_uncertain(),
        "it is the first attempt's answer: {again}"
    );

    world.lock().lost = 1;
    let lost = create(&all, "b").await.unwrap_err();
    assert_eq!(lost.error.code(), Some(ErrorCode::StreamExists));
    assert!(lost.is_uncertain() && !lost.error.is_uncertain(), "{lost}");
    let text = lost.to_string();
    assert!(
        text.contains("an earlier attempt may have done it: connection to broker"),
        "{text}"
    );

    // A broker that is about to stop may have made it too.
    world.lock().stopping = 1;
    let stopping = create(&all, "c").await.unwrap_err();
    assert_eq!(stopping.error.code(), Some(ErrorCode::StreamExists));
    assert!(stopping.is_uncertain(), "{stopping}");

    // Nobody listens at the first address: that attempt was not sent.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = gone.local_addr().unwrap();
    drop(gone);
    let not_sent = client(&format!("{nobody},{list}"));
    let refused = create(&not_sent, "a").await.unwrap_err();
    assert_eq!(refused.error.code(), Some(ErrorCode::StreamExists));
    assert!(!refused.is_uncertain(), "{refused}");
    assert_ne!(&*not_sent.bootstrap(), nobody.to_string());
}

#[tokio::test]
async fn a_group_that_is_gone_may_have_been_deleted_by_the_attempt_before() {
    let world = brokers().await;
    let admin = Admin::new(client(&address(&world, 0)));
    let lost = admin.delete_group("g").await.unwrap_err();
    assert_eq!(lost.error.code(), Some(ErrorCode::UnknownConsumerGroup));
    assert!(lost.is_uncertain(), "{lost}");
    let again = admin.delete_group("g").await.unwrap_err();
    assert_eq!(again.error.code(), Some(ErrorCode::UnknownConsumerGroup));
    assert!(!again.is_uncertain(), "{again}");
}

#[tokio::test]
async fn a_broker_that_hears_of_no_changes_is_not_asked_for_ever() {
    let world = brokers().await;
    let list = world.lock().addresses.join(",");
    let client = client(&list);
    let before = client.refresh("s").await.unwrap();
    assert_eq!(before.owners()[0], address(&world, 0));
    // Everything has changed hands, and the broker in use does not know.
    world.lock().epochs = vec![1, 2, 1];
    client.refresh("s").await.unwrap();
    let after = client.refresh("s").await.unwrap();
    assert_eq!(after.owners()[0], address(&world, 1));
    // What others tell of earlier does not count.
    for _ in 0..4 {
        let again = client.refresh("s").await.unwrap();
        assert_eq!(again.owners(), after.owners());
    }
    let calls = world.lock().calls.clone();
    assert!(calls.iter().all(|calls| *calls > 0), "{calls:?}");
}

#[tokio::test]
async fn where_a_broker_names_no_owner_others_are_asked_at_once() {
    let world = brokers().await;
    let list = world.lock().addresses.join(", ");
    world.lock().nameless = vec![0];
    let client = client(&list);
    let found = client.refresh("s").await.unwrap();
    assert_eq!(found.owners(), world.lock().addresses);
    assert_eq!(world.lock().calls, [1, 1, 0]);
    // What it has not heard of does not count, even if it names everybody.
    world.lock().epochs = vec![1, 2, 1];
    world.lock().nameless = vec![1];
    client.refresh("s").await.unwrap();
    let calls = world.lock().calls.clone();
    assert_eq!(calls, [2, 2, 1], "each was asked once more");
    // Nobody knows: it is no error, and ends.
    world.lock().nameless = vec![0, 1, 2];
    client.refresh("s").await.unwrap();
}

#[tokio::test]
async fn where_a_broker_does_not_know_a_stream_each_of_the_others_is_asked_once() {
    let world = brokers().await;
    let list = world.lock().addresses.join(",");
    // Nobody knows it.
    world.lock().unheard = vec![0, 1, 2];
    let client = client(&list);
    let error = client.refresh("s").await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownStream));
    assert_eq!(world.lock().calls, [1, 1, 1]);
    // One does, and is asked from now on.
    world.lock().unheard = vec![0, 1];
    client.refresh("s").await.unwrap();
    assert_eq!(world.lock().calls, [2, 2, 2]);
    assert_eq!(*client.bootstrap(), *address(&world, 2));
    client.refresh("s").await.unwrap();
    assert_eq!(world.lock().calls, [2, 2, 3]);
}

#[tokio::test]
async fn callers_that_look_at_the_same_time_each_find_who_knows_a_stream() {
    let world = brokers().await;
    let list = world.lock().addresses.join(",");
    world.lock().unheard = vec![0, 2];
    let client = client(&list);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        callers.spawn(async move { client.refresh("s").await });
    }
    for found in callers.join_all().await {
        found.unwrap();
    }
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_left_for_the_next_of_the_list() {
    let world = brokers().await;
    let list = world.lock().addresses.join(", ");
    world.lock().stopped = vec![0];
    let client = client(&list);
    client.refresh("s").await.unwrap();
    assert_eq!(world.lock().calls, [1, 1, 0]);
}

#[tokio::test]
async fn a_coordinator_is_looked_up_once_and_again_when_it_is_none() {
    let world = brokers().await;
    let client = client(&address(&world, 1));
    world.lock().coordinator = 2;
    leave(&client, LONG).await.unwrap();
    leave(&client, LONG).await.unwrap();
    {
        let mut world = world.lock();
        assert_eq!((world.lookups, world.calls[2]), (1, 2));
        world.coordinator = 0;
        world.loading = 3;
    }
    leave(&client, LONG).await.unwrap();
    let world = world.lock();
    assert_eq!((world.lookups, world.loading), (2, 0));
}

#[tokio::test]
async fn a_coordinator_that_says_nothing_is_looked_up_anew() {
    let world = brokers().await;
    let client = client(&address(&world, 1));
    leave(&client, LONG).await.unwrap();
    {
        let mut world = world.lock();
        world.stopped = vec![0];
        world.coordinator = 2;
    }
    leave(&client, Duration::from_secs(3)).await.unwrap();
    assert_eq!(world.lock().lookups, 2);
}

#[tokio::test]
async fn a_refusal_is_no_reason_to_ask_another_broker() {
    let world = brokers().await;
    let list = world.lock().addresses.join(",");
    let client = client(&list);
    let refused = client.call(v1::DeleteStreamRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::InvalidName));
    assert_eq!(*client.bootstrap(), *address(&world, 0));
}
