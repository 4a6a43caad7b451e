//! Control calls as frames: they answer what gRPC answers, side by side, within their bounds.

use bytes::Bytes;
use kera_grpc::v1::clusters_client::ClustersClient;
use kera_grpc::v1::consumers_client::ConsumersClient;
use kera_grpc::v1::streams_client::StreamsClient;
use kera_grpc::{Channels, wire_error_of_status};
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{FrameKind, MAX_CALL_BYTES, MAX_CALLS, TAKES_CALLS};
use kera_protocol::v1::{self, CallMethod, find_ordinals_request::At};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::common::raw::{Raw, frame_of};
use crate::common::{Broker, PATIENCE};

/// Longer than any test: calls that wait so long are still under way when they are looked at.
const LONG_MS: u32 = 60_000;

type Outcome<M> = Result<M, WireError>;

fn send(raw: &mut Raw, correlation: u32, call: &v1::CallRequest, body: &[u8]) {
    raw.send(&frame_of(FrameKind::Call, correlation, call, body));
}

fn call_of(method: CallMethod) -> v1::CallRequest {
    v1::CallRequest {
        method: method.into(),
        deadline_ms: 0,
    }
}

/// The next reply, and whose it is.
fn answer(raw: &mut Raw) -> (u32, Outcome<Bytes>) {
    let frame = raw.next().expect("a call is answered");
    assert_eq!(frame.kind, FrameKind::CallReply);
    let told: v1::CallResponse = frame.message().expect("a reply");
    let outcome = match told.error {
        0 => Ok(frame.body),
        number => {
            assert!(frame.body.is_empty(), "an error has no body");
            Err(WireError::from_number(number, &told.message))
        }
    };
    (frame.correlation, outcome)
}

fn code(outcome: Outcome<Bytes>) -> ErrorCode {
    outcome.expect_err("it is refused").code
}

/// Both ways to the same broker.
struct Ways {
    raw: Raw,
    runtime: Runtime,
    streams: StreamsClient<Channel>,
    consumers: ConsumersClient<Channel>,
    clusters: ClustersClient<Channel>,
}

impl Ways {
    fn to(broker: &Broker) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let channel = runtime.block_on(async {
            let channels = Channels::new(PATIENCE);
            channels.to(broker.address()).expect("an address")
        });
        let streams = StreamsClient::new(channel.clone());
        let consumers = ConsumersClient::new(channel.clone());
        let clusters = ClustersClient::new(channel);
        Self {
            raw: Raw::open(broker),
            runtime,
            streams,
            consumers,
            clusters,
        }
    }

    /// As a frame. `_like` only tells the type of the reply.
    fn framed<M: Message + Default>(
        &mut self,
        method: CallMethod,
        request: &impl Message,
        _like: &Outcome<M>,
    ) -> Outcome<M> {
        let body = request.encode_to_vec();
        send(&mut self.raw, 3, &call_of(method), &body);
        let (correlation, outcome) = answer(&mut self.raw);
        assert_eq!(correlation, 3);
        outcome.map(|reply| M::decode(reply).expect("the method's reply"))
    }
}

fn over_grpc<M>(outcome: Result<Response<M>, Status>) -> Outcome<M> {
    let of = |status| wire_error_of_status(&status).expect("the broker's error");
    outcome.map(Response::into_inner).map_err(of)
}

/// The replies over gRPC and as a frame, to a request each.
macro_rules! each {
    ($ways:ident, $method:ident, $stub:ident.$function:ident, $grpc:expr, $framed:expr) => {{
        let outcome = $ways.runtime.block_on($ways.$stub.$function($grpc));
        let outcome = over_grpc(outcome);
        let framed = $ways.framed(CallMethod::$method, &$framed, &outcome);
        (outcome, framed)
    }};
}

/// Pins come in pages: the one that the stream has, and another one for now.
fn pages_of_pins(ways: &mut Ways, stream: &str) {
    let pin = v1::CreatePinRequest {
        stream: stream.to_owned(),
        name: "later".to_owned(),
        positions: vec![v1::LanePosition::default()],
        ..Default::default()
    };
    let (made, _) = each!(ways, CreatePin, streams.create_pin, pin.clone(), pin);
    made.expect("it is made");
    let mut page = v1::ListPinsRequest {
        max_pins: 1,
        ..Default::default()
    };
    let mut names = Vec::new();
    loop {
        let (called, framed) = each!(ways, ListPins, streams.list_pins, page.clone(), page);
        let (called, framed) = (called.expect("a page"), framed.expect("a page"));
        assert_eq!(called.pins, framed.pins);
        assert!(called.pins.len() <= 1, "{:?}", called.pins);
        names.extend(called.pins.into_iter().map(|pin| pin.name));
        if called.more_after_stream.is_empty() {
            break;
        }
        page.after_stream = called.more_after_stream;
        page.after_name = called.more_after_name;
    }
    assert_eq!(names, ["later", "savepoint"]);
    let delete = v1::DeletePinRequest {
        stream: stream.to_owned(),
        name: "later".to_owned(),
        ..Default::default()
    };
    let (deleted, _) = each!(ways, DeletePin, streams.delete_pin, delete.clone(), delete);
    deleted.expect("it is deleted");
}

/// Both replies to one request are the same; it is returned.
macro_rules! same {
    ($ways:ident, $method:ident, $stub:ident.$function:ident, $request:expr) => {{
        let request = $request;
        let (grpc, framed) = each!($ways, $method, $stub.$function, request.clone(), request);
        assert_eq!(grpc, framed, "{}", stringify!($method));
        grpc
    }};
}

/// A request with only some fields.
macro_rules! ask {
    ($message:ident { $($field:ident: $value:expr),* }) => {{
        let mut message = v1::$message::default();
        $(message.$field = $value;)*
            message
    }};
}

fn named(which: &str) -> String {
    which.to_owned()
}

#[test]
fn every_method_answers_as_it_does_over_grpc() {
    let broker = Broker::start();
    let mut ways = Ways::to(&broker);
    let create = |name| ask!(CreateStreamRequest { name: named(name) });
    let (called, framed) = each!(
        ways,
        CreateStream,
        streams.create_stream,
        create("called"),
        create("framed")
    );
    assert_eq!(called.map(|s| s.config), framed.map(|s| s.config));
    let exists = same!(ways, CreateStream, streams.create_stream, create("framed"));
    assert_eq!(
        exists.map_err(|e| e.code).err(),
        Some(ErrorCode::StreamExists)
    );

    let list = v1::ListStreamsRequest::default();
    let listed = same!(ways, ListStreams, streams.list_streams, list);
    assert_eq!(listed.map(|list| list.streams.len()), Ok(2));
    for (name, is_there) in [("framed", true), ("absent", false)] {
        let name = || named(name);
        let get = ask!(GetStreamRequest { name: name() });
        let got = same!(ways, GetStream, streams.get_stream, get);
        assert_eq!(got.is_ok(), is_there);
        let alter = ask!(AlterStreamRequest { name: name() });
        let _ = same!(ways, AlterStream, streams.alter_stream, alter);
        let describe = ask!(DescribeStreamRequest { name: name() });
        let described = same!(ways, DescribeStream, streams.describe_stream, describe);
        assert_eq!(described.is_ok(), is_there);
        let trim = ask!(TrimStreamRequest { name: name() });
        let _ = same!(ways, TrimStream, streams.trim_stream, trim);
        let compact = ask!(CompactStreamRequest { name: name() });
        let _ = same!(ways, CompactStream, streams.compact_stream, compact);
        let recover = ask!(RecoverStreamRequest { name: name() });
        let _ = same!(ways, RecoverStream, streams.recover_stream, recover);
        // As an earlier client asks: nobody may have been shown what is lost now.
        let blind = ask!(RecoverStreamRequest {
            name: name(),
            accept_loss: true
        });
        let refused = same!(ways, RecoverStream, streams.recover_stream, blind);
        let refused = refused.expect_err("no group is named");
        assert!(
            !is_there || refused.message.contains("names no group"),
            "{refused}"
        );
        let pin = v1::CreatePinRequest {
            stream: name(),
            name: "savepoint".to_owned(),
            positions: vec![v1::LanePosition::default()],
            ..Default::default()
        };
        let (called, framed) = each!(ways, CreatePin, streams.create_pin, pin.clone(), pin);
        assert_eq!(
            called.map(|made| made.moved).ok(),
            is_there.then_some(false)
        );
        assert_eq!(framed.map(|made| made.moved).ok(), is_there.then_some(true));
        let beyond = v1::CreatePinRequest {
            stream: name(),
            name: "beyond".to_owned(),
            positions: vec![v1::LanePosition {
                ordinal: 1 << 40,
                ..Default::default()
            }],
            ..Default::default()
        };
        let (called, framed) = each!(ways, CreatePin, streams.create_pin, beyond.clone(), beyond);
        let refused = framed.expect_err("the lane ends before").message;
        assert!(
            called.is_err() && (!is_there || refused.contains("where lane 0/0 ends")),
            "{refused}"
        );
        let list = ask!(ListPinsRequest { stream: name() });
        let (called, framed) = each!(ways, ListPins, streams.list_pins, list.clone(), list);
        assert_eq!(called.map(|list| list.pins), framed.map(|list| list.pins));
        if is_there {
            pages_of_pins(&mut ways, &name());
        }
        let delete = ask!(DeletePinRequest {
            stream: name(),
            name: "savepoint".to_owned()
        });
        let (called, framed) = each!(ways, DeletePin, streams.delete_pin, delete.clone(), delete);
        assert_eq!(called.is_ok(), is_there);
        let again = framed.expect_err("it is deleted").message;
        assert!(!is_there || again.contains("has no pin"), "{again}");
        let at = Some(At::Earliest(true));
        let find = ask!(FindOrdinalsRequest {
            name: name(),
            at: at
        });
        let found = same!(ways, FindOrdinals, streams.find_ordinals, find);
        assert_eq!(found.is_ok(), is_there);
        let find = ask!(FindCopiesRequest { name: name() });
        let _ = same!(ways, FindCopies, streams.find_copies, find);
    }
    let init = v1::InitProducerRequest::default;
    let (called, framed) = each!(ways, InitProducer, streams.init_producer, init(), init());
    let (called, framed) = (called.expect("an id"), framed.expect("an id"));
    assert!(framed.producer_id > called.producer_id);

    groups_answer_as_they_do_over_grpc(&mut ways);

    let delete = |name| ask!(DeleteStreamRequest { name: named(name) });
    // One that was made again under its name is another one.
    let other = ask!(DeleteStreamRequest {
        name: named("called"),
        id: Bytes::from_static(&[7; 16])
    });
    let kept = same!(ways, DeleteStream, streams.delete_stream, other);
    let refusal = kept.expect_err("it is another one");
    assert_eq!(refusal.code, ErrorCode::UnknownStream);
    assert!(refusal.message.contains("another one"), "{refusal:?}");
    let (called, framed) = each!(
        ways,
        DeleteStream,
        streams.delete_stream,
        delete("called"),
        delete("framed")
    );
    assert_eq!((called.is_ok(), framed.is_ok()), (true, true));
    let gone = same!(ways, DeleteStream, streams.delete_stream, delete("framed"));
    assert_eq!(
        gone.map_err(|e| e.code).err(),
        Some(ErrorCode::UnknownStream)
    );
}

fn groups_answer_as_they_do_over_grpc(ways: &mut Ways) {
    let group = || named("framed");
    let find = v1::FindCoordinatorRequest {
        group: group(),
        ..Default::default()
    };
    let found = same!(ways, FindCoordinator, consumers.find_coordinator, find);
    assert!(found.is_ok());
    let join = |group| {
        ask!(JoinRequest {
            group: named(group),
            stream: named("framed"),
            session_ms: LONG_MS
        })
    };
    let (called, framed) = each!(ways, Join, consumers.join, join("called"), join("framed"));
    let (called, framed) = (called.expect("a member"), framed.expect("a member"));
    assert_eq!(called.heartbeat_ms, framed.heartbeat_ms);
    let member = || framed.member.clone();
    let acquire = |group, member| {
        ask!(AcquireRequest {
            group: named(group),
            member: member,
            max_leases: 8
        })
    };
    let (called, framed) = each!(
        ways,
        Acquire,
        consumers.acquire,
        acquire("called", called.member),
        acquire("framed", member())
    );
    assert_eq!(called, framed, "leases of the same lanes, of two groups");
    let leases: Vec<u64> = framed
        .expect("leases")
        .leases
        .iter()
        .map(|l| l.lease)
        .collect();
    assert!(!leases.is_empty());

    let beat = ask!(HeartbeatRequest {
        group: group(),
        member: member(),
        leases: leases
    });
    assert!(same!(ways, Heartbeat, consumers.heartbeat, beat).is_ok());
    let ended = ask!(LeaseCommit {
        lease: 999,
        next: Some(v1::Cursor::default())
    });
    let commit = ask!(CommitRequest {
        group: group(),
        member: member(),
        commits: vec![ended],
        accepts_pending: true
    });
    let committed = same!(ways, Commit, consumers.commit, commit);
    assert_eq!(committed.map(|c| c.stale), Ok(vec![999]));
    let list = v1::ListGroupsRequest::default();
    let listed = same!(ways, ListGroups, consumers.list_groups, list);
    assert_eq!(listed.map(|list| list.groups.len()), Ok(2));
    let ask = v1::DescribeClusterRequest {};
    let cluster = same!(ways, DescribeCluster, clusters.describe_cluster, ask);
    let alone = cluster.expect_err("a broker with a store of its own is no cluster");
    assert_eq!(alone.code, ErrorCode::InvalidArgument);
    let reset = ask!(ResetGroupRequest { group: group() });
    let _ = same!(ways, ResetGroup, consumers.reset_group, reset);
    let leave = ask!(LeaveRequest {
        group: named("absent"),
        member: member()
    });
    let _ = same!(ways, Leave, consumers.leave, leave);
    let leave = ask!(LeaveRequest {
        group: group(),
        member: member()
    });
    let left = ways.framed(CallMethod::Leave, &leave, &Ok(v1::LeaveResponse {}));
    assert!(left.is_ok());
    let describe = ask!(DescribeGroupRequest { group: group() });
    let described = same!(ways, DescribeGroup, consumers.describe_group, describe);
    assert_eq!(described.map(|d| d.members.len()), Ok(0), "it left");
    let delete = ask!(DeleteGroupRequest { group: group() });
    let deleted = ways.framed(
        CallMethod::DeleteGroup,
        &delete,
        &Ok(v1::DeleteGroupResponse {}),
    );
    assert!(deleted.is_ok());
    let gone = same!(ways, DeleteGroup, consumers.delete_group, delete);
    assert_eq!(
        gone.map_err(|e| e.code).err(),
        Some(ErrorCode::UnknownConsumerGroup)
    );
}

/// A connection to a broker, and requests of `members` that wait: another member has all leases. One each, for the next
/// request of a member ends the one before it.
fn waiting(broker: &Broker, members: usize) -> (Raw, Vec<Vec<u8>>) {
    broker.run(&["stream", "create", "s"]);
    let mut ways = Ways::to(broker);
    let mut joined = || {
        let join = ask!(JoinRequest {
            group: named("g"),
            stream: named("s"),
            session_ms: LONG_MS
        });
        let joined = ways.framed(CallMethod::Join, &join, &Ok(v1::JoinResponse::default()));
        ask!(AcquireRequest {
            group: named("g"),
            member: joined.expect("a member").member,
            max_leases: 1000
        })
    };
    let first = joined();
    let mut others: Vec<_> = (0..members).map(|_| joined()).collect();
    let none = Ok(v1::AcquireResponse::default());
    let leases = |ways: &mut Ways, request: &v1::AcquireRequest| {
        let acquired = ways.framed(CallMethod::Acquire, request, &none);
        acquired.expect("leases").leases.len()
    };
    // A member's share depends on how many there are.
    while leases(&mut ways, &first) > 0 {}
    for other in &mut others {
        while leases(&mut ways, other) > 0 {}
        other.max_wait_ms = LONG_MS;
    }
    let requests = others.iter().map(Message::encode_to_vec);
    (ways.raw, requests.collect())
}

/// The same request with a field that no broker knows: number 100, of 3.5 MiB.
fn padded(request: &[u8]) -> Vec<u8> {
    let field = [0xa2, 0x06, 0x80, 0x80, 0xe0, 0x01];
    [request, &field, &vec![0; 0x38_0000]].concat()
}

#[test]
fn calls_that_wait_hold_up_no_others_and_are_told_of_a_stop() {
    let mut broker = Broker::with(&["--server-idle-timeout", "300ms"]);
    let mut announced = Raw::connect(&broker);
    announced.send(&kera_protocol::frame::Hello::CURRENT.encode());
    assert_eq!(announced.hello_reply().flags, TAKES_CALLS);
    let (mut raw, waiting) = waiting(&broker, 2);
    send(&mut raw, 10, &call_of(CallMethod::Acquire), &waiting[0]);
    let list = call_of(CallMethod::ListStreams);
    send(&mut raw, 11, &list, &[]);
    let (correlation, outcome) = answer(&mut raw);
    assert_eq!((correlation, outcome.is_ok()), (11, true));
    let mut soon = call_of(CallMethod::Acquire);
    soon.deadline_ms = 1000;
    send(&mut raw, 12, &soon, &waiting[1]);
    // Longer than a connection may be idle: the calls keep it.
    let (correlation, outcome) = answer(&mut raw);
    assert_eq!((correlation, code(outcome)), (12, ErrorCode::Timeout));
    send(&mut raw, 13, &list, &[]);
    assert_eq!(answer(&mut raw).0, 13);
    broker.stop();
    let (correlation, outcome) = answer(&mut raw);
    assert_eq!((correlation, code(outcome)), (10, ErrorCode::ShuttingDown));
    raw.goes_away(ErrorCode::ShuttingDown);
}

#[test]
fn calls_beyond_a_bound_are_refused_and_the_connection_goes_on() {
    let broker = Broker::start();
    let (mut raw, waiting) = waiting(&broker, MAX_CALLS);
    let list = call_of(CallMethod::ListStreams);
    let refused = |raw: &mut Raw, call: &v1::CallRequest, body: &[u8]| {
        send(raw, 20, call, body);
        let (correlation, outcome) = answer(raw);
        assert_eq!(correlation, 20);
        code(outcome)
    };
    for method in [0, 9999, -1] {
        let call = v1::CallRequest {
            method,
            deadline_ms: 0,
        };
        let code = refused(&mut raw, &call, &[]);
        assert_eq!(code, ErrorCode::UnsupportedVersion, "method {method}");
    }
    let code = refused(&mut raw, &list, &[0xff]);
    assert_eq!(code, ErrorCode::InvalidArgument);
    let code = refused(&mut raw, &list, &vec![0; MAX_CALL_BYTES + 1]);
    assert_eq!(code, ErrorCode::FrameTooLarge);
    // Four requests of 3.5 MiB leave no room for a fifth among the 16 MiB that a connection may have.
    let acquire = call_of(CallMethod::Acquire);
    let (long, short) = waiting.split_at(4);
    for (correlation, request) in (100..).zip(long) {
        send(&mut raw, correlation, &acquire, &padded(request));
    }
    let code = refused(&mut raw, &acquire, &padded(&short[0]));
    assert_eq!(code, ErrorCode::Overloaded, "bytes of requests");
    for (correlation, request) in (200..).zip(short) {
        send(&mut raw, correlation, &acquire, request);
    }
    let code = refused(&mut raw, &list, &[]);
    assert_eq!(code, ErrorCode::Overloaded, "a call more than {MAX_CALLS}");
    // The calls end with their connection.
    drop(raw);
    let mut ways = Ways::to(&broker);
    let list = v1::ListStreamsRequest::default();
    assert!(same!(ways, ListStreams, streams.list_streams, list).is_ok());
}
