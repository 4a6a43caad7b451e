//! The data connection against a broker played by the test.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{
    Frame, FrameKind, HELLO_BYTES, Hello, HelloReply, encode_empty, encode_go_away, encode_head,
};
use kera_protocol::v1;
use kera_rpc::{ConnectOptions, ConnectionError, DataConnection, FrameSink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

const MAX_FRAME: u32 = 8 << 20;

struct Broker {
    socket: TcpStream,
    buffer: BytesMut,
}

impl Broker {
    async fn accept(listener: &TcpListener) -> Self {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut hello = [0; HELLO_BYTES];
        socket.read_exact(&mut hello).await.unwrap();
        assert_eq!(Hello::decode(&hello), Ok(Hello::CURRENT));
        let reply = HelloReply {
            version: 1,
            flags: 0,
            max_frame_bytes: MAX_FRAME,
        };
        socket.write_all(&reply.encode()).await.unwrap();
        Self {
            socket,
            buffer: BytesMut::new(),
        }
    }

    async fn receive(&mut self) -> Frame {
        self.receive_or_end().await.expect("the client is there")
    }

    /// `None` once the client has closed the connection.
    async fn receive_or_end(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = Frame::split_from(&mut self.buffer, 1 << 30).unwrap() {
                return Some(frame);
            }
            if self.socket.read_buf(&mut self.buffer).await.unwrap() == 0 {
                return None;
            }
        }
    }

    async fn send<M: kera_protocol::Message>(
        &mut self,
        kind: FrameKind,
        correlation: u32,
        header: &M,
        body: &[u8],
    ) {
        let mut out = BytesMut::new();
        encode_head(&mut out, kind, correlation, header, body.len()).unwrap();
        out.extend_from_slice(body);
        self.socket.write_all(&out).await.unwrap();
    }
}

#[derive(Debug)]
enum Event {
    Reply(u64, Result<Frame, ConnectionError>),
    Push(Frame),
    Drained,
    Closed,
}

struct Sink(mpsc::Sender<Event>);

impl Sink {
    fn tell(&self, event: Event) {
        // A test that has seen enough no longer listens.
        if let Err(mpsc::error::TrySendError::Full(event)) = self.0.try_send(event) {
            panic!("no room for {event:?}");
        }
    }
}

impl FrameSink for Sink {
    fn reply(&self, token: u64, reply: Result<Frame, ConnectionError>) {
        self.tell(Event::Reply(token, reply));
    }
    fn push(&self, frame: Frame) {
        self.tell(Event::Push(frame));
    }
    fn closed(&self, _error: &ConnectionError) {
        self.tell(Event::Closed);
    }
}

/// As [`Sink`], but tells also when all is handed over.
struct SinkInFull(Sink);

impl FrameSink for SinkInFull {
    fn reply(&self, token: u64, reply: Result<Frame, ConnectionError>) {
        self.0.reply(token, reply);
    }
    fn push(&self, frame: Frame) {
        self.0.push(frame);
    }
    fn drained(&self) {
        self.0.tell(Event::Drained);
    }
    fn closed(&self, error: &ConnectionError) {
        self.0.closed(error);
    }
}

async fn connected(
    options: ConnectOptions,
) -> (Broker, Arc<DataConnection>, mpsc::Receiver<Event>) {
    connected_to(options, |events| Arc::new(Sink(events))).await
}

async fn connected_to(
    options: ConnectOptions,
    sink: impl Fn(mpsc::Sender<Event>) -> Arc<dyn FrameSink>,
) -> (Broker, Arc<DataConnection>, mpsc::Receiver<Event>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (events, received) = mpsc::channel(1 << 14);
    let (broker, connection) = tokio::join!(
        Broker::accept(&listener),
        DataConnection::connect(&address, &options, Some(sink(events)))
    );
    (broker, connection.unwrap(), received)
}

fn append(lane: u32) -> v1::AppendRequest {
    v1::AppendRequest {
        stream: Bytes::from_static(&[1; 16]),
        lane,
        ..v1::AppendRequest::default()
    }
}

#[tokio::test]
async fn calls_get_their_own_reply_in_whatever_order_replies_come() {
    let (mut broker, connection, _events) = connected(ConnectOptions::default()).await;
    assert_eq!(connection.max_frame_bytes(), MAX_FRAME as usize);
    let request = v1::ReadRequest::default();
    let broker = async {
        let first = broker.receive().await;
        let second = broker.receive().await;
        for frame in [second, first] {
            let header = v1::ReadResponse::default();
            broker
                .send(
                    FrameKind::ReadReply,
                    frame.correlation,
                    &header,
                    &frame.body,
                )
                .await;
        }
        broker
    };
    let call =
        |body: &'static [u8]| connection.call(FrameKind::Read, &request, Bytes::from_static(body));
    let (_broker, one, two) = tokio::join!(broker, call(b"one"), call(b"two"));
    assert_eq!(&one.unwrap().body[..], b"one");
    assert_eq!(&two.unwrap().body[..], b"two");
    assert_eq!(connection.pending(), 0);
}

#[tokio::test]
async fn submitted_requests_leave_in_order_and_are_answered_by_token() {
    let (mut broker, connection, mut events) = connected(ConnectOptions::default()).await;
    for lane in 0..1_000 {
        let body = Bytes::from(vec![lane as u8; lane as usize]);
        connection
            .submit(
                FrameKind::Append,
                &append(lane),
                body,
                5_000 + u64::from(lane),
            )
            .unwrap();
    }
    connection.flush();
    for lane in 0..1_000 {
        let frame = broker.receive().await;
        assert_eq!(frame.message::<v1::AppendRequest>().unwrap().lane, lane);
        assert!(frame.body.len() == lane as usize && frame.body.iter().all(|b| *b == lane as u8));
        let reply = v1::AppendResponse {
            base_ordinal: u64::from(lane),
            ..v1::AppendResponse::default()
        };
        broker
            .send(FrameKind::AppendReply, frame.correlation, &reply, b"")
            .await;
    }
    for lane in 0..1_000 {
        let Some(Event::Reply(token, Ok(frame))) = events.recv().await else {
            panic!("a reply is missing");
        };
        assert_eq!(token, 5_000 + lane);
        let reply: v1::AppendResponse = frame.message().unwrap();
        assert_eq!(reply.base_ordinal, lane);
    }
}

#[tokio::test]
async fn after_replies_the_sink_is_told_that_there_are_no_more_for_now() {
    // Also if what follows them ends the connection.
    for (rest, ends) in [(&b""[..], false), (&[0xff; 16][..], true)] {
        let sink = |events| Arc::new(SinkInFull(Sink(events))) as Arc<dyn FrameSink>;
        let (mut broker, connection, mut events) =
            connected_to(ConnectOptions::default(), sink).await;
        let mut replies = BytesMut::new();
        for token in [1, 2] {
            let body = Bytes::new();
            connection
                .submit(FrameKind::Append, &append(0), body, token)
                .unwrap();
            connection.flush();
            let correlation = broker.receive().await.correlation;
            let reply = v1::AppendResponse::default();
            encode_head(&mut replies, FrameKind::AppendReply, correlation, &reply, 0).unwrap();
        }
        replies.extend_from_slice(rest);
        broker.socket.write_all(&replies).await.unwrap();
        let mut told = String::new();
        while !told.ends_with(if ends { "c" } else { "2d" }) {
            told += match events.recv().await.unwrap() {
                Event::Reply(1, Ok(_)) => "1",
                Event::Reply(2, Ok(_)) => "2",
                Event::Drained => "d",
                Event::Closed => "c",
                other => panic!("{other:?}"),
            };
        }
        // They came together.
        assert_eq!(told, if ends { "12dc" } else { "12d" });
    }
}

#[tokio::test]
async fn a_slow_broker_gets_every_byte_and_the_queue_is_bounded() {
    let options = ConnectOptions {
        max_queued_bytes: 16 << 20,
        ..ConnectOptions::default()
    };
    let (mut broker, connection, _events) = connected(options).await;
    let body = |index: u32| Bytes::from(vec![index as u8; 1 << 20]);
    let mut sent = 0;
    let refused = loop {
        match connection.submit(FrameKind::Append, &append(sent), body(sent), 0) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        connection.flush();
        assert!(sent < 1_000, "nothing bounds the queue");
    };
    assert!(matches!(refused, ConnectionError::Full { .. }));
    assert!(refused.is_retryable());
    for index in 0..sent {
        let frame = broker.receive().await;
        assert_eq!(frame.message::<v1::AppendRequest>().unwrap().lane, index);
        assert!(frame.body == body(index), "frame {index} is damaged");
    }
    connection
        .submit(FrameKind::Append, &append(0), body(7), 0)
        .unwrap();
    connection.flush();
    assert!(broker.receive().await.body == body(7));
}

#[tokio::test]
async fn pushed_frames_large_and_small_reach_the_sink_in_order() {
    let (mut broker, _connection, mut events) = connected(ConnectOptions::default()).await;
    let sizes = [10, 3 << 20, 0, 40_000, 5, 2 << 20, 2 << 20, 100];
    let sending = async {
        for (index, size) in sizes.into_iter().enumerate() {
            let header = v1::PushData {
                subscription: index as u32,
                ..v1::PushData::default()
            };
            let body = vec![index as u8; size];
            broker.send(FrameKind::PushData, 0, &header, &body).await;
        }
        broker
    };
    let receiving = async {
        for (index, size) in sizes.into_iter().enumerate() {
            let Some(Event::Push(frame)) = events.recv().await else {
                panic!("a push is missing");
            };
            assert!(frame.body == vec![index as u8; size]);
            let header: v1::PushData = frame.message().unwrap();
            assert_eq!(header.subscription, index as u32);
        }
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn when_the_broker_dies_everyone_who_waits_is_told_once() {
    let (broker, connection, mut events) = connected(ConnectOptions::default()).await;
    for token in 0..3 {
        connection
            .submit(FrameKind::Append, &append(0), Bytes::new(), token)
            .unwrap();
    }
    let request = v1::ReadRequest::default();
    let call = connection.call(FrameKind::Read, &request, Bytes::new());
    let die = async { drop(broker) };
    let (reply, ()) = tokio::join!(call, die);
    assert!(matches!(reply, Err(ConnectionError::Lost { .. })));
    let mut told = Vec::new();
    loop {
        match events.recv().await.unwrap() {
            Event::Reply(token, Err(error)) => {
                assert!(error.is_retryable());
                told.push(token);
            }
            Event::Closed => break,
            other => panic!("unexpected {other:?}"),
        }
    }
    told.sort_unstable();
    assert_eq!(told, [0, 1, 2]);
    assert!(connection.is_closed());
    connection.closed().await;
    assert!(
        connection
            .submit(FrameKind::Append, &append(0), Bytes::new(), 9)
            .is_err()
    );
    assert!(
        connection
            .post(FrameKind::Credit, &v1::CreditRequest::default())
            .is_err()
    );
    connection.close();
    drop(connection);
    assert!(events.recv().await.is_none(), "nobody is told twice");
}

#[tokio::test]
async fn a_go_away_tells_why() {
    let (mut broker, connection, _events) = connected(ConnectOptions::default()).await;
    let mut out = BytesMut::new();
    let error = WireError::new(ErrorCode::TooManyConnections, "limit of 3 connections");
    encode_go_away(&mut out, &error);
    broker.socket.write_all(&out).await.unwrap();
    match connection.closed().await {
        ConnectionError::GoAway { error: got, .. } => assert_eq!(got, error),
        other => panic!("unexpected {other:?}"),
    }
}

#[tokio::test]
async fn pings_are_answered() {
    let (mut broker, _connection, _events) = connected(ConnectOptions::default()).await;
    let mut out = BytesMut::new();
    encode_empty(&mut out, FrameKind::Ping, 77);
    broker.socket.write_all(&out).await.unwrap();
    let pong = broker.receive().await;
    assert_eq!((pong.kind, pong.correlation), (FrameKind::Pong, 77));
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_pinged_and_then_given_up() {
    let options = ConnectOptions {
        keepalive: Duration::from_millis(20),
        ..ConnectOptions::default()
    };
    let (mut broker, connection, _events) = connected(options).await;
    assert_eq!(broker.receive().await.kind, FrameKind::Ping);
    match connection.closed().await {
        ConnectionError::Lost { reason, .. } => assert!(reason.contains("no answer"), "{reason}"),
        other => panic!("unexpected {other:?}"),
    }
}

#[tokio::test]
async fn frames_that_make_no_sense_end_the_connection() {
    for bytes in [
        &[0xff; 16][..],                        // too long
        &[8, 0, 0, 0, 99, 1, 0, 0, 1, 0, 0, 0], // unknown kind
        &[8, 0, 0, 0, 2, 1, 0, 0, 9, 9, 9, 9],  // a reply to nothing
        &[8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0],  // a request
    ] {
        let (mut broker, connection, _events) = connected(ConnectOptions::default()).await;
        broker.socket.write_all(bytes).await.unwrap();
        connection.closed().await;
    }
}

#[tokio::test]
async fn what_does_not_fit_a_frame_is_refused_here() {
    let (_broker, connection, _events) = connected(ConnectOptions::default()).await;
    let body = Bytes::from(vec![0; MAX_FRAME as usize]);
    let error = connection
        .submit(FrameKind::Append, &append(0), body, 1)
        .unwrap_err();
    assert!(matches!(error, ConnectionError::Frame(_)) && !error.is_retryable());
    assert_eq!(connection.pending(), 0);
}

#[tokio::test]
async fn what_is_said_in_place_of_a_hello_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut said = BytesMut::new();
    let error = WireError::new(
        ErrorCode::TooManyConnections,
        "the broker has 4 connections",
    );
    encode_go_away(&mut said, &error);
    let whole = said.len();
    // Also one that ends in the middle is an error, and no goodbye.
    for (bytes, told) in [(whole, "4 connections"), (whole - 1, "another protocol")] {
        let full = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(&said[..bytes]).await.unwrap();
            socket.shutdown().await.unwrap();
            socket
        };
        let options = ConnectOptions::default();
        let (_socket, failed) =
            tokio::join!(full, DataConnection::connect(&address, &options, None));
        let failed = failed.unwrap_err();
        assert!(failed.to_string().contains(told), "{failed}");
        // Nothing was asked for, and there may be a place later.
        assert!(failed.is_retryable() && !failed.is_uncertain(), "{failed}");
    }
}

#[tokio::test]
async fn no_broker_and_no_kera_are_clear_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stranger = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad\r\n").await.unwrap();
        socket
    };
    let options = ConnectOptions::default();
    let (_socket, failed) =
        tokio::join!(stranger, DataConnection::connect(&address, &options, None));
    let error = failed.unwrap_err();
    assert!(error.to_string().contains("another protocol"), "{error}");
    // Bound and never listening: nobody else is given the port, and who connects is refused.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = closed.local_addr().unwrap().to_string();
    let error = DataConnection::connect(&address, &options, None)
        .await
        .unwrap_err();
    assert!(
        error.is_retryable() && error.to_string().contains(&address),
        "{error}"
    );
}

#[tokio::test]
async fn a_broker_that_reads_no_more_is_given_up_too() {
    let options = ConnectOptions {
        keepalive: Duration::from_millis(20),
        ..ConnectOptions::default()
    };
    let (_broker, connection, _events) = connected(options).await;
    let body = Bytes::from(vec![1; 1 << 20]);
    for _ in 0..32 {
        if connection
            .submit(FrameKind::Append, &append(0), body.clone(), 0)
            .is_err()
        {
            break;
        }
        connection.flush();
    }
    match connection.closed().await {
        ConnectionError::Lost { reason, .. } => assert!(reason.contains("no answer"), "{reason}"),
        other => panic!("unexpected {other:?}"),
    }
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed_unless_a_request_waits() {
    let options = ConnectOptions {
        keepalive: Duration::from_millis(10),
        idle_timeout: Some(Duration::from_millis(100)),
        ..ConnectOptions::default()
    };
    let (mut broker, connection, _events) = connected(options).await;
    let request = append(1);
    let waiting = connection.call(FrameKind::Append, &request, Bytes::new());
    let answered = async {
        let asked = broker.receive().await;
        // Longer than an idle connection has.
        for _ in 0..30 {
            let ping = broker.receive().await;
            assert_eq!(ping.kind, FrameKind::Ping);
            let mut pong = BytesMut::new();
            encode_empty(&mut pong, FrameKind::Pong, ping.correlation);
            broker.socket.write_all(&pong).await.unwrap();
        }
        let reply = v1::AppendResponse::default();
        let kind = FrameKind::AppendReply;
        broker.send(kind, asked.correlation, &reply, b"").await;
    };
    let (reply, ()) = tokio::join!(waiting, answered);
    reply.unwrap();
    let pongs = async {
        while let Some(ping) = broker.receive_or_end().await {
            let mut pong = BytesMut::new();
            encode_empty(&mut pong, FrameKind::Pong, ping.correlation);
            if broker.socket.write_all(&pong).await.is_err() {
                break;
            }
        }
        // The client itself is asked why it ended.
        std::future::pending::<()>().await;
    };
    let error = tokio::select! {
        error = connection.closed() => error,
        () = pongs => unreachable!("it answers for ever"),
    };
    assert!(matches!(error, ConnectionError::Closed { .. }), "{error:?}");
}
