//! What requests and replies may take, in bytes and in time. The client is spoken by hand, with all that a
//! well-behaved one leaves out.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kera_grpc::serve::CallLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::{interval, timeout};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Code, Status};

use super::{ACK, LIMITS, PATIENCE, PING, Served};

/// Bytes of a request in these tests.
const REQUEST: usize = 10_000;
/// What the server counts for a call that arrives, beside its bytes.
const OF_CALL: usize = 16 << 10;
/// Beyond this a connection is refused what others take.
const SMALL: usize = 32 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What the service saw of a request: its bytes, or why they did not come.
type Arrived = Result<usize, Status>;

/// A service that reads requests, tells how they arrived, and answers once it may with so many bytes.
#[derive(Clone)]
struct Held {
    arrived: mpsc::Sender<Arrived>,
    may_answer: Arc<Semaphore>,
    reply_bytes: usize,
}

impl NamedService for Held {
    const NAME: &'static str = "kera.test";
}

impl Service<Request<Body>> for Held {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let held = self.clone();
        Box::pin(async move {
            let arrived = read(request.into_body()).await;
            let refusal = arrived.clone().err();
            // Where nobody asks how requests arrive, it matters to nobody.
            let _ = held.arrived.try_send(arrived);
            if let Some(refusal) = refusal {
                return Ok(refusal.into_http());
            }
            held.may_answer
                .acquire()
                .await
                .expect("never closed")
                .forget();
            Ok(Response::new(Body::new(Zeros(held.reply_bytes))))
        })
    }
}

async fn read(mut body: Body) -> Arrived {
    let mut bytes = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        bytes += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(bytes)
}

/// So many bytes, 16 KiB at a time.
struct Zeros(usize);

impl HttpBody for Zeros {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let now = self.0.min(16 << 10);
        self.0 -= now;
        Poll::Ready((now > 0).then(|| Ok(Frame::data(Bytes::from(vec![0; now])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0 as u64)
    }
}

struct Stage {
    served: Served,
    arrived: Mutex<mpsc::Receiver<Arrived>>,
    may_answer: Arc<Semaphore>,
}

impl Stage {
    async fn with(limits: CallLimits, reply_bytes: usize) -> Self {
        let (arrived, receiver) = mpsc::channel(64);
        let may_answer = Arc::new(Semaphore::new(0));
        let service = Held {
            arrived,
            may_answer: may_answer.clone(),
            reply_bytes,
        };
        Self {
            served: Served::of(limits, Routes::new(service)).await,
            arrived: Mutex::new(receiver),
            may_answer,
        }
    }

    /// How the next request arrived.
    async fn next(&self) -> Arrived {
        let mut arrived = self.arrived.lock().await;
        let next = timeout(PATIENCE, arrived.recv()).await;
        next.expect("a request arrives, or is refused")
            .expect("the service is there")
    }

    async fn overloaded(&self, limit: usize) {
        let refusal = self.next().await.expect_err("it is too much");
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
        let text = refusal.message();
        assert!(text.contains(&format!("take {limit} bytes")), "{text}");
        assert!(text.contains("try again"), "{text}");
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Begins a call, of which no byte of the request has come.
async fn begin(client: &mut TcpStream, stream: u32) {
    let begun = beginning(stream);
    client.write_all(&begun).await.expect("it is taken");
}

fn beginning(stream: u32) -> Vec<u8> {
    beginning_with(stream, &[])
}

/// The same with a header of so many bytes, fewer than 16 KiB.
async fn begin_long(client: &mut TcpStream, stream: u32, bytes: usize) {
    // Its length: the most that seven bits have, and the rest in sevens.
    let rest = bytes - 127;
    let length = [127, rest as u8 | 128, (rest >> 7) as u8];
    let header = [&[0, 1, b'x'], &length[..], &vec![b'v'; bytes]].concat();
    let begun = beginning_with(stream, &header);
    client.write_all(&begun).await.expect("it is taken");
}

fn beginning_with(stream: u32, more: &[u8]) -> Vec<u8> {
    // Method POST and scheme http by their numbers; the path as it stands.
    let mut head = vec![0x83, 0x86, 0];
    for text in [":path", "/kera.test/Call"] {
        head.push(text.len() as u8);
        head.extend_from_slice(text.as_bytes());
    }
    head.extend_from_slice(more);
    frame(HEADERS, END_HEADERS, stream, &head)
}

async fn send(client: &mut TcpStream, stream: u32, bytes: usize, flags: u8) {
    // Frames of HTTP/2 have at most 16 KiB.
    let mut left = bytes;
    while left > 16 << 10 {
        left -= 16 << 10;
        let data = frame(DATA, 0, stream, &[0; 16 << 10]);
        client.write_all(&data).await.expect("it is taken");
    }
    let data = frame(DATA, flags, stream, &vec![0; left]);
    client.write_all(&data).await.expect("it is taken");
}

/// Reads until the server ends the stream: the bytes of its reply.
async fn reply(client: &mut TcpStream, stream: u32) -> usize {
    let mut bytes = 0;
    loop {
        let mut head = [0; 9];
        timeout(PATIENCE, client.read_exact(&mut head))
            .await
            .expect("in time")
            .expect("a frame");
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let of = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        client
            .read_exact(&mut vec![0; len])
            .await
            .expect("all of it");
        if of == stream && head[3] == DATA {
            bytes += len;
        }
        if of == stream && head[3] <= HEADERS && head[4] & END_STREAM != 0 {
            return bytes;
        }
    }
}

#[tokio::test]
async fn the_requests_of_a_connection_have_a_limit() {
    let limits = CallLimits {
        // A call that arrives, and the bytes of two.
        connection_bytes: OF_CALL + 2 * REQUEST,
        ..LIMITS
    };
    let stage = Stage::with(limits, 10).await;
    let mut client = stage.served.client().await;
    begin(&mut client, 1).await;
    send(&mut client, 1, REQUEST, END_STREAM).await;
    assert_eq!(stage.next().await.expect("it fits"), REQUEST);
    // The first is worked on.
    // What the first took by itself is given back, but not its bytes.
    begin(&mut client, 3).await;
    send(&mut client, 3, REQUEST + 1, 0).await;
    stage.overloaded(limits.connection_bytes).await;
    begin(&mut client, 5).await;
    send(&mut client, 5, REQUEST, END_STREAM).await;
    assert_eq!(stage.next().await.expect("it fits"), REQUEST);
    // Another connection has a limit of its own.
    let mut other = stage.served.client().await;
    begin(&mut other, 1).await;
    send(&mut other, 1, REQUEST, END_STREAM).await;
    assert_eq!(stage.next().await.expect("it fits"), REQUEST);
}

#[tokio::test]
async fn a_request_that_is_answered_takes_nothing() {
    let limits = CallLimits {
        connection_bytes: OF_CALL + REQUEST,
        total_bytes: OF_CALL + REQUEST,
        ..LIMITS
    };
    let stage = Stage::with(limits, 10).await;
    let mut client = stage.served.client().await;
    stage.may_answer.add_permits(3);
    for stream in [1, 3, 5] {
        begin(&mut client, stream).await;
        send(&mut client, stream, REQUEST, END_STREAM).await;
        assert_eq!(stage.next().await.expect("it fits"), REQUEST);
        assert_eq!(reply(&mut client, stream).await, 10);
    }
}

#[tokio::test]
async fn the_requests_of_all_connections_have_a_limit_too() {
    let limits = CallLimits {
        total_bytes: SMALL + OF_CALL,
        ..LIMITS
    };
    let stage = Stage::with(limits, 10).await;
    let mut hoarder = stage.served.client().await;
    begin(&mut hoarder, 1).await;
    send(&mut hoarder, 1, SMALL, END_STREAM).await;
    assert_eq!(stage.next().await.expect("it fits"), SMALL);
    // Another has no more than there is.
    let mut other = stage.served.client().await;
    begin(&mut other, 1).await;
    send(&mut other, 1, SMALL, END_STREAM).await;
    stage.overloaded(limits.total_bytes).await;
    // But a small request comes through.
    let mut small = stage.served.client().await;
    begin(&mut small, 1).await;
    send(&mut small, 1, REQUEST, END_STREAM).await;
    assert_eq!(stage.next().await.expect("it is small"), REQUEST);
}

#[tokio::test]
async fn headers_of_a_call_have_a_limit_and_count_until_its_request_has_come() {
    const LONG: usize = 7_000;
    let limits = CallLimits {
        calls: 100,
        calls_at_work: 100,
        // Of the long headers of two calls there is room for one, of which 2 KiB are counted anyhow.
        connection_bytes: 2 * OF_CALL + LONG,
        ..LIMITS
    };
    let stage = Stage::with(limits, 10).await;
    let mut client = stage.served.client().await;
    begin_long(&mut client, 1, 9_000).await;
    // Answered at once, by HTTP/2 itself.
    assert_eq!(reply(&mut client, 1).await, 0);
    begin_long(&mut client, 3, LONG).await;
    begin_long(&mut client, 5, LONG).await;
    assert_eq!(reply(&mut client, 5).await, 0, "it is refused");
    send(&mut client, 3, 10, END_STREAM).await;
    assert_eq!(stage.next().await.expect("it fits"), 10);
    begin_long(&mut client, 7, LONG).await;
    send(&mut client, 7, 10, END_STREAM).await;
    assert_eq!(stage.next().await.expect("there is room again"), 10);
}

#[tokio::test]
async fn calls_whose_requests_do_not_come_have_a_limit() {
    let limits = CallLimits {
        calls: 100,
        calls_at_work: 100,
        connection_bytes: 10 * OF_CALL + 100,
        ..LIMITS
    };
    let stage = Stage::with(limits, 10).await;
    let mut client = stage.served.client().await;
    for number in 0..11 {
        begin(&mut client, 2 * number + 1).await;
    }
    // The eleventh is answered: with a refusal, which has no bytes.
    assert_eq!(reply(&mut client, 21).await, 0);
    // One arrives, and there is room for another.
    send(&mut client, 1, 10, END_STREAM).await;
    assert_eq!(stage.next().await.expect("it fits"), 10);
    begin(&mut client, 23).await;
    send(&mut client, 23, 10, END_STREAM).await;
    assert_eq!(stage.next().await.expect("there is room again"), 10);
}

#[tokio::test]
async fn calls_that_wait_have_a_limit_for_all_and_a_few_are_everybodys() {
    let limits = CallLimits {
        total_calls: 9,
        calls: 100,
        calls_at_work: 100,
        ..LIMITS
    };
    let stage = Stage::with(limits, 10).await;
    let mut hoarder = stage.served.client().await;
    for number in 0..9 {
        begin(&mut hoarder, 2 * number + 1).await;
        send(&mut hoarder, 2 * number + 1, 10, END_STREAM).await;
        assert_eq!(stage.next().await.expect("it fits"), 10);
    }
    // The tenth is answered: with a refusal, which has no bytes.
    begin(&mut hoarder, 19).await;
    assert_eq!(reply(&mut hoarder, 19).await, 0);
    // Others have their few all the same, and no more.
    let mut other = stage.served.client().await;
    for number in 0..8 {
        begin(&mut other, 2 * number + 1).await;
        send(&mut other, 2 * number + 1, 10, END_STREAM).await;
        assert_eq!(stage.next().await.expect("they are few"), 10);
    }
    begin(&mut other, 17).await;
    assert_eq!(reply(&mut other, 17).await, 0);
    // What is answered makes room.
    stage.may_answer.add_permits(17);
    let mut stream = 21;
    loop {
        begin(&mut hoarder, stream).await;
        send(&mut hoarder, stream, 10, END_STREAM).await;
        tokio::select! {
            arrived = stage.next() => break assert_eq!(arrived.expect("there is room again"), 10),
            // Refused: the others' replies are not taken yet.
            _ = reply(&mut hoarder, stream) => stream += 2,
        }
    }
}

#[tokio::test]
async fn a_request_arrives_in_time_or_not_at_all() {
    let limits = CallLimits {
        receive: Duration::from_millis(50),
        ..LIMITS
    };
    let stage = Stage::with(limits, 10).await;
    let late = |arrived: Arrived| {
        let refusal = arrived.expect_err("it is late");
        assert_eq!(refusal.code(), Code::DeadlineExceeded, "{refusal}");
        assert!(
            refusal.message().contains("did not arrive within 50ms"),
            "{refusal}"
        );
    };
    let mut client = stage.served.client().await;
    begin(&mut client, 1).await;
    late(stage.next().await);
    // A byte now and then is not enough.
    begin(&mut client, 3).await;
    let mut now_and_then = interval(Duration::from_millis(10));
    let trickling = async {
        loop {
            now_and_then.tick().await;
            send(&mut client, 3, 1, 0).await;
        }
    };
    tokio::select! {
        arrived = stage.next() => late(arrived),
        () = trickling => {}
    }
}

/// More than a client that gives no room is sent.
const LARGE: usize = 1 << 20;

/// Reads until the server closes, and answers when it asks whether anybody is there: bytes of replies.
async fn until_closed(client: &mut TcpStream) -> usize {
    let mut bytes = 0;
    let mut head = [0; 9];
    while client.read_exact(&mut head).await.is_ok() {
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; len];
        if client.read_exact(&mut payload).await.is_err() {
            break;
        }
        bytes += if head[3] == DATA { len } else { 0 };
        if head[3] == PING && head[4] & ACK == 0 {
            // It may close before it has read this.
            let _ = client.write_all(&frame(PING, ACK, 0, &payload)).await;
        }
    }
    bytes
}

#[tokio::test]
async fn a_client_that_takes_no_reply_loses_its_connection() {
    let limits = CallLimits {
        // When a connection that had no call yet is looked at.
        first_call: Duration::from_secs(1),
        idle: Duration::from_secs(1),
        send: Duration::from_millis(100),
        ..LIMITS
    };
    let stage = Stage::with(limits, LARGE).await;
    let mut client = stage.served.client().await;
    stage.may_answer.add_permits(1);
    begin(&mut client, 1).await;
    send(&mut client, 1, 10, END_STREAM).await;
    assert_eq!(stage.next().await.expect("it fits"), 10);
    // It reads, but never says that there is room for more.
    let taken = timeout(PATIENCE, until_closed(&mut client)).await;
    let taken = taken.expect("the server closes it");
    assert!(taken < LARGE, "{taken} bytes");
}

/// How many calls at a time a server allows, as it says first.
async fn may_begin(served: &Served) -> (TcpStream, u32) {
    /// The setting's number in HTTP/2.
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    let address = served.listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    let (stream, _) = served.listener.accept().await.unwrap();
    let server = served.server.clone();
    tokio::spawn(async move {
        let caller = std::net::IpAddr::from(std::net::Ipv4Addr::LOCALHOST);
        server.connection(stream, caller, None).await;
    });
    client.write_all(crate::PREFACE).await.unwrap();
    let mut head = [0; 9];
    client.read_exact(&mut head).await.unwrap();
    let mut settings = vec![0; usize::from(head[2])];
    client.read_exact(&mut settings).await.unwrap();
    let mut each = settings.as_chunks::<6>().0.iter();
    let found = each.find(|s| u16::from_be_bytes([s[0], s[1]]) == MAX_CONCURRENT_STREAMS);
    let [_, _, value @ ..] = found.expect("it says so");
    (client, u32::from_be_bytes(*value))
}

/// Nobody can refuse a call before HTTP/2 has taken memory for it.
#[tokio::test]
async fn the_more_connections_there_are_the_fewer_calls_each_may_begin() {
    let limits = CallLimits {
        calls: 500,
        total_calls: 1000,
        quiet_connections: 100,
        ..LIMITS
    };
    let served = Served::with(limits).await;
    let mut open = Vec::new();
    for expected in [500, 500, 333, 250, 200] {
        let (client, calls) = may_begin(&served).await;
        assert_eq!(calls, expected);
        open.push(client);
    }
    for _ in 0..20 {
        open.push(may_begin(&served).await.0);
    }
    assert_eq!(may_begin(&served).await.1, 64, "the least");
    // Those that ended count no more; nobody tells when that is.
    drop(open);
    let again = async {
        while may_begin(&served).await.1 < 500 {
            tokio::task::yield_now().await;
        }
    };
    let again = tokio::time::timeout(crate::PATIENCE, again).await;
    again.expect("it is as at the beginning");
}

/// A connection whose client leaves that unanswered ends 50 s later, by hyper's own word.
const BEFORE_KEEP_ALIVE: Duration = Duration::from_secs(30);
/// By which hyper asks whether a client has heard that the connection ends, before it refuses calls for that.
const IS_END_HEARD: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

/// A connection ends when its client's proof counts no more, also where the client acts as if it had not heard of it, and
/// begins one call after the other.
#[tokio::test]
async fn a_client_that_does_not_listen_is_served_no_longer_than_its_proof_counts() {
    let stage = Stage::with(LIMITS, 100).await;
    stage.may_answer.add_permits(Semaphore::MAX_PERMITS >> 1);
    let mut client = stage.served.client_until(Some(Instant::now())).await;
    let calls = async {
        for call in 0.. {
            let stream = 2 * call + 1;
            let empty = frame(DATA, END_STREAM, stream, &[]);
            let call = [beginning(stream), empty].concat();
            // It may have been closed.
            if client.write_all(&call).await.is_err() || !is_answered(&mut client, stream).await {
                return;
            }
        }
    };
    timeout(BEFORE_KEEP_ALIVE, calls)
        .await
        .expect("its calls are answered no longer");
}

/// Whether the reply to a call has a body, as those of the service have.
async fn is_answered(client: &mut TcpStream, stream: u32) -> bool {
    let mut bytes = 0;
    while let Ok((mut head, rest)) = super::frame(client).await {
        if (head[3], head[4] & ACK) == (PING, 0) && rest != IS_END_HEARD {
            head[4] |= ACK;
            let _ = client.write_all(&[&head[..], &rest].concat()).await;
        }
        let of = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        if of == stream && head[3] == DATA {
            bytes += rest.len();
        }
        if of == stream && head[3] <= HEADERS && head[4] & END_STREAM != 0 {
            return bytes > 0;
        }
    }
    false
}
