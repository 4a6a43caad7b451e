//! Control calls as frames, against a broker played by the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{
    Frame, FrameKind, HELLO_BYTES, HelloReply, MAX_CALLS, TAKES_CALLS, encode_empty,
    encode_go_away, encode_head,
};
use kera_protocol::v1::{self, CallMethod, LaneCursor, find_ordinals_request::At};
use kera_rpc::{Admin, Client, ClientOptions, RetryPolicy, RpcError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// More than are under way.
const MANY: usize = 1_000;
const MAX_FRAME: usize = 64 << 20;
/// Far more than any answer takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A call that waits for its answer.
struct Waiting {
    request: v1::CallRequest,
    body: Bytes,
    correlation: u32,
    out: mpsc::Sender<Bytes>,
}

impl Waiting {
    fn answer(&self, told: &v1::CallResponse, body: &[u8]) {
        let mut out = BytesMut::new();
        let kind = FrameKind::CallReply;
        encode_head(&mut out, kind, self.correlation, told, body.len()).unwrap();
        out.extend_from_slice(body);
        // Its client may have gone.
        let _ = self.out.try_send(out.freeze());
    }

    fn reply(&self, reply: &impl Message) {
        self.answer(&v1::CallResponse::default(), &reply.encode_to_vec());
    }

    /// Ends the connection, as a broker does when a client's proof counts no more.
    fn go_away(&self) {
        let mut out = BytesMut::new();
        encode_go_away(
            &mut out,
            &WireError::new(ErrorCode::ShuttingDown, "log in again"),
        );
        let _ = self.out.try_send(out.freeze());
        let _ = self.out.try_send(Bytes::new());
    }
}

struct Broker {
    address: String,
    calls: mpsc::Receiver<Waiting>,
    connections: Arc<AtomicUsize>,
}

impl Broker {
    async fn start(flags: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (arrived, calls) = mpsc::channel(MANY);
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(socket, flags, arrived.clone()));
            }
        });
        Self {
            address,
            calls,
            connections,
        }
    }

    /// A client that makes each call once.
    fn client(&self) -> Client {
        let options = ClientOptions {
            retry: RetryPolicy::within(Duration::ZERO),
            ..ClientOptions::default()
        };
        Client::new(&self.address, options).unwrap()
    }

    async fn next(&mut self) -> Waiting {
        let next = tokio::time::timeout(PATIENCE, self.calls.recv()).await;
        next.expect("a call comes").unwrap()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(mut socket: TcpStream, flags: u16, arrived: mpsc::Sender<Waiting>) {
    let mut hello = [0; HELLO_BYTES];
    if socket.read_exact(&mut hello).await.is_err() {
        return;
    }
    let reply = HelloReply {
        version: 1,
        flags,
        max_frame_bytes: MAX_FRAME as u32,
    };
    socket.write_all(&reply.encode()).await.unwrap();
    let (mut reading, mut writing) = socket.into_split();
    let (out, mut queue) = mpsc::channel::<Bytes>(MANY);
    let writer = async {
        while let Some(bytes) = queue.recv().await {
            // An empty one ends it.
            if bytes.is_empty() || writing.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let reader = async {
        let mut buffer = BytesMut::new();
        loop {
            while let Some(frame) = Frame::split_from(&mut buffer, MAX_FRAME).unwrap() {
                if frame.kind == FrameKind::Ping {
                    let mut pong = BytesMut::new();
                    encode_empty(&mut pong, FrameKind::Pong, frame.correlation);
                    let _ = out.try_send(pong.freeze());
                    continue;
                }
                assert_eq!(frame.kind, FrameKind::Call);
                let waiting = Waiting {
                    request: frame.message().unwrap(),
                    body: frame.body,
                    correlation: frame.correlation,
                    out: out.clone(),
                };
                if arrived.try_send(waiting).is_err() {
                    return;
                }
            }
            match reading.read_buf(&mut buffer).await {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        }
    };
    tokio::select! {
        () = writer => {}
        () = reader => {}
    }
}

fn list() -> v1::ListStreamsRequest {
    v1::ListStreamsRequest::default()
}

/// So many calls of one client at once.
fn many(client: &Client, count: usize) -> JoinSet<Result<v1::ListStreamsResponse, RpcError>> {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        calls.spawn(async move { client.call(list()).await });
    }
    calls
}

#[tokio::test]
async fn calls_share_a_connection_until_it_has_as_many_as_it_may() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let client = broker.client();
    for (count, connections) in [(MAX_CALLS, 1), (MAX_CALLS + 1, 2)] {
        let calls = many(&client, count);
        let mut waiting = Vec::new();
        for _ in 0..count {
            waiting.push(broker.next().await);
        }
        assert_eq!(broker.connections(), connections, "{count} calls");
        for call in waiting {
            assert_eq!(call.request.method(), CallMethod::ListStreams);
            call.reply(&v1::ListStreamsResponse::default());
        }
        for answer in calls.join_all().await {
            answer.unwrap();
        }
    }
    // The first one goes on.
    let again = many(&client, 1);
    broker
        .next()
        .await
        .reply(&v1::ListStreamsResponse::default());
    again.join_all().await.remove(0).unwrap();
    assert_eq!(broker.connections(), 2);
}

#[tokio::test]
async fn a_call_after_the_end_of_its_connection_goes_over_another() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let client = broker.client();
    for connections in 1..4 {
        let call = many(&client, 1);
        let asked = broker.next().await;
        asked.reply(&v1::ListStreamsResponse::default());
        call.join_all().await.remove(0).unwrap();
        assert_eq!(broker.connections(), connections);
        asked.go_away();
        // The writer is gone with the connection.
        asked.out.closed().await;
    }
}

#[tokio::test]
async fn a_call_whose_connection_ends_may_have_been_done() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let client = broker.client();
    let request = v1::DeleteStreamRequest {
        name: "s".to_owned(),
        ..v1::DeleteStreamRequest::default()
    };
    let change = tokio::spawn(async move { client.change(request).await });
    broker.next().await.go_away();
    let error = change.await.unwrap().unwrap_err();
    assert!(error.is_uncertain(), "{error}");
    assert_eq!(error.error.code(), Some(ErrorCode::ShuttingDown));
}

/// Each page is asked for after the last name of the one before; one that says that there is more and brings nothing is the
/// last.
#[tokio::test]
async fn lists_are_read_page_by_page() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let admin = Admin::new(broker.client());
    let listed = tokio::spawn(async move { admin.streams(true).await });
    let pages = [(&["a", "b"][..], ""), (&["c"], "b"), (&[], "c")];
    for (names, after) in pages {
        let asked = broker.next().await;
        assert_eq!(asked.request.method(), CallMethod::ListStreams);
        let request = v1::ListStreamsRequest::decode(asked.body.clone()).unwrap();
        assert_eq!(request.after, after);
        assert!(request.include_internal && request.max_streams > 0);
        let streams = names.iter().map(|name| v1::StreamInfo {
            name: (*name).to_owned(),
            ..v1::StreamInfo::default()
        });
        asked.reply(&v1::ListStreamsResponse {
            streams: streams.collect(),
            more: true,
        });
    }
    let names: Vec<_> = listed.await.unwrap().unwrap();
    let names: Vec<_> = names.iter().map(|stream| &stream.name[..]).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

/// What somebody agreed to delete, by its id.
#[tokio::test]
async fn a_stream_that_was_looked_at_is_deleted_and_no_other() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let admin = Admin::new(broker.client());
    let seen = v1::StreamInfo {
        name: "s".to_owned(),
        id: Bytes::from_static(&[7; 16]),
        ..v1::StreamInfo::default()
    };
    let deleted = tokio::spawn(async move { admin.delete_exactly(&seen).await });
    let asked = broker.next().await;
    assert_eq!(asked.request.method(), CallMethod::DeleteStream);
    let request = v1::DeleteStreamRequest::decode(asked.body.clone()).unwrap();
    assert_eq!((&request.name[..], &request.id[..]), ("s", &[7; 16][..]));
    asked.reply(&v1::DeleteStreamResponse {});
    deleted.await.unwrap().unwrap();
}

/// One that is made again under its name while the request is on its way is another one.
#[tokio::test]
async fn a_stream_is_deleted_by_the_id_that_it_had_before_the_first_attempt() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let client = broker.client();
    let deleted = tokio::spawn(async move { client.delete_stream("s").await });
    let asked = broker.next().await;
    assert_eq!(asked.request.method(), CallMethod::GetStream);
    let id = Bytes::from_static(&[7; 16]);
    asked.reply(&v1::StreamInfo {
        name: "s".to_owned(),
        id: id.clone(),
        config: Some(v1::StreamConfig {
            streamlets: Some(1),
            lanes: Some(1),
            ..v1::StreamConfig::default()
        }),
        ..v1::StreamInfo::default()
    });
    let asked = broker.next().await;
    assert_eq!(asked.request.method(), CallMethod::DeleteStream);
    let request = v1::DeleteStreamRequest::decode(asked.body.clone()).unwrap();
    assert_eq!((request.name.as_str(), &request.id), ("s", &id));
    asked.reply(&v1::DeleteStreamResponse {});
    deleted.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_broker_that_takes_no_calls_is_too_old() {
    let broker = Broker::start(0).await;
    let error = broker.client().call(list()).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnsupportedVersion));
    let text = error.to_string();
    assert!(text.contains("a newer broker is needed"), "{text}");
}

#[tokio::test]
async fn a_broker_is_told_when_nobody_waits_any_more() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let client = broker.client();
    let asked = client.call_once(Duration::from_millis(50), list());
    let error = asked.await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    let request = broker.next().await.request;
    assert_eq!(request.deadline_ms, 1_050, "it is given up a second later");
}

#[tokio::test]
async fn an_answer_that_is_none_is_told() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let client = broker.client();
    let call = many(&client, 1);
    let asked = broker.next().await;
    asked.answer(&v1::CallResponse::default(), &[0xff; 3]);
    let error = call.join_all().await.remove(0).unwrap_err();
    assert!(matches!(error, RpcError::BadAnswer(_)), "{error:?}");
    assert!(error.is_uncertain(), "it may have been a yes");

    let call = many(&client, 1);
    let asked = broker.next().await;
    let told = v1::CallResponse {
        error: ErrorCode::NotAuthorized as u32,
        message: "ann may not list".to_owned(),
    };
    asked.answer(&told, &[]);
    let error = call.join_all().await.remove(0).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotAuthorized));
    assert!(error.to_string().contains("ann may not list"), "{error}");
}

#[tokio::test]
async fn places_that_are_longer_than_any_stream_has_are_refused() {
    let mut broker = Broker::start(TAKES_CALLS).await;
    let client = broker.client();
    let finding = tokio::spawn(async move {
        let stream = client.refresh("s").await?;
        client.find_ordinals(&stream, At::Latest(true)).await
    });
    let asked = broker.next().await;
    assert_eq!(asked.request.method(), CallMethod::GetStream);
    asked.reply(&v1::StreamInfo {
        name: v1::GetStreamRequest::decode(&asked.body[..]).unwrap().name,
        id: Bytes::from_static(&[7; 16]),
        config: Some(v1::StreamConfig {
            streamlets: Some(1),
            lanes: Some(1),
            ..v1::StreamConfig::default()
        }),
        ..v1::StreamInfo::default()
    });
    let asked = broker.next().await;
    assert_eq!(asked.request.method(), CallMethod::FindOrdinals);
    let lane = LaneCursor {
        cursor: Some(v1::Cursor::default()),
        head_ordinal: u64::MAX,
        ..LaneCursor::default()
    };
    let lanes = vec![lane; (8 << 20) / lane.encoded_len()];
    asked.reply(&v1::FindOrdinalsResponse { lanes });
    let error = finding.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("more than the 8388608"), "{error}");
}
