//! Finding brokers and coordinators, with several brokers played by the test.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use kera_rpc::v1::consumers_server::{Consumers, ConsumersServer};
use kera_rpc::v1::streams_server::{Streams, StreamsServer};
use kera_rpc::{ChangeError, Client, ClientOptions, RetryPolicy, RpcError, status_of};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

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
    /// Calls that this build is too old for.
    old: bool,
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
}

#[derive(Clone)]
struct Broker {
    world: Arc<Mutex<World>>,
    number: usize,
}

impl Broker {
    async fn enter(&self) -> Result<(), Status> {
        let stopped = {
            let mut world = self.world.lock();
            if world.dead.contains(&self.number) {
                return Err(Status::unavailable("it is dead"));
            }
            world.calls[self.number] += 1;
            world.stopped.contains(&self.number)
        };
        match stopped {
            true => std::future::pending().await,
            false => Ok(()),
        }
    }

    fn coordinates(&self) -> Result<(), Status> {
        let mut world = self.world.lock();
        let refused = if world.coordinator != self.number {
            ErrorCode::NotCoordinator
        } else if world.loading > 0 {
            world.loading -= 1;
            ErrorCode::CoordinatorLoading
        } else {
            return Ok(());
        };
        Err(status_of(&WireError::new(refused, "planted")))
    }
}

macro_rules! not_needed {
    ($($name:ident($request:ident) -> $response:ident;)+) => {
        $(
            fn $name<'life0, 'async_trait>(
                &'life0 self,
                _: Request<v1::$request>,
            ) -> Pin<Box<
                dyn Future<Output = Result<Response<v1::$response>, Status>> + Send + 'async_trait,
            >>
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                Box::pin(async { Err(Status::unimplemented("not needed here")) })
            }
        )+
    };
}

#[tonic::async_trait]
impl Streams for Broker {
    async fn get_stream(
        &self,
        request: Request<v1::GetStreamRequest>,
    ) -> Result<Response<v1::StreamInfo>, Status> {
        self.enter().await?;
        let (owners, epoch) = {
            let world = self.world.lock();
            if world.unheard.contains(&self.number) {
                let unknown = WireError::new(ErrorCode::UnknownStream, "planted");
                return Err(status_of(&unknown));
            }
            let epoch = world.epochs.get(self.number).copied().unwrap_or(1);
            let mut owners = world.addresses.clone();
            // With each epoch everything is its next broker's.
            let by = (epoch as usize - 1) % owners.len();
            if world.nameless.contains(&self.number) {
                owners[self.number].clear();
            }
            owners.rotate_left(by);
            (owners, epoch)
        };
        let owners = owners.into_iter().zip(0..);
        Ok(Response::new(v1::StreamInfo {
            name: request.into_inner().name,
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
        }))
    }

    async fn create_stream(
        &self,
        request: Request<v1::CreateStreamRequest>,
    ) -> Result<Response<v1::StreamInfo>, Status> {
        self.enter().await?;
        let mut world = self.world.lock();
        let name = request.into_inner().name;
        if world.created.contains(&name) {
            let exists = WireError::new(ErrorCode::StreamExists, "planted");
            return Err(status_of(&exists));
        }
        world.created.push(name);
        if world.lost > 0 {
            world.lost -= 1;
            return Err(Status::unavailable("the connection broke"));
        }
        Ok(Response::new(v1::StreamInfo::default()))
    }

    not_needed! {
        find_copies(FindCopiesRequest) -> FindCopiesResponse;
        list_streams(ListStreamsRequest) -> ListStreamsResponse;
        describe_stream(DescribeStreamRequest) -> DescribeStreamResponse;
        alter_stream(AlterStreamRequest) -> StreamInfo;
        recover_stream(RecoverStreamRequest) -> RecoverStreamResponse;
        delete_stream(DeleteStreamRequest) -> DeleteStreamResponse;
        trim_stream(TrimStreamRequest) -> TrimStreamResponse;
        compact_stream(CompactStreamRequest) -> CompactStreamResponse;
        find_ordinals(FindOrdinalsRequest) -> FindOrdinalsResponse;
        init_producer(InitProducerRequest) -> InitProducerResponse;
        describe_broker(DescribeBrokerRequest) -> DescribeBrokerResponse;
    }
}

#[tonic::async_trait]
impl Consumers for Broker {
    async fn find_coordinator(
        &self,
        _: Request<v1::FindCoordinatorRequest>,
    ) -> Result<Response<v1::FindCoordinatorResponse>, Status> {
        self.enter().await?;
        let mut world = self.world.lock();
        if world.old {
            return Err(Status::unimplemented("what is that"));
        }
        world.lookups += 1;
        Ok(Response::new(v1::FindCoordinatorResponse {
            broker_id: world.coordinator as u32,
            address: world.addresses[world.coordinator].clone(),
        }))
    }

    async fn leave(
        &self,
        _: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        self.enter().await?;
        self.coordinates()?;
        Ok(Response::new(v1::LeaveResponse {}))
    }

    not_needed! {
        join(JoinRequest) -> JoinResponse;
        heartbeat(HeartbeatRequest) -> HeartbeatResponse;
        acquire(AcquireRequest) -> AcquireResponse;
        commit(CommitRequest) -> CommitResponse;
        commit_positions(CommitPositionsRequest) -> CommitPositionsResponse;
        send_positions(SendPositionsRequest) -> SendPositionsResponse;
        list_groups(ListGroupsRequest) -> ListGroupsResponse;
        describe_group(DescribeGroupRequest) -> DescribeGroupResponse;
        reset_group(ResetGroupRequest) -> ResetGroupResponse;
        delete_group(DeleteGroupRequest) -> DeleteGroupResponse;
    }
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
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(StreamsServer::new(broker.clone()))
                .add_service(ConsumersServer::new(broker))
                .serve_with_incoming(TcpIncoming::from(listener)),
        );
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
    let left = client.group_call("g", within, |mut stub| async move {
        stub.leave(v1::LeaveRequest::default()).await
    });
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
    let created = client.change_streams(|mut stub| {
        let request = request.clone();
        async move { stub.create_stream(request).await }
    });
    created.await
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
async fn a_broker_that_knows_no_coordinators_is_asked_itself() {
    let world = brokers().await;
    world.lock().old = true;
    let client = client(&address(&world, 0));
    leave(&client, LONG).await.unwrap();
    assert_eq!(world.lock().calls, [2, 0, 0]);
}

#[tokio::test]
async fn a_refusal_is_no_reason_to_ask_another_broker() {
    let world = brokers().await;
    let list = world.lock().addresses.join(",");
    let client = client(&list);
    let refused: Result<(), _> = client
        .streams_call(|_stub| async {
            let error = WireError::new(ErrorCode::InvalidName, "planted");
            Err::<Response<()>, _>(status_of(&error))
        })
        .await;
    assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::InvalidName));
    assert_eq!(*client.bootstrap(), *address(&world, 0));
}
