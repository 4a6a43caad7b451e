//! Data frames.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{
    Frame, FrameKind, HELLO_BYTES, HelloReply, PROTOCOL_VERSION, encode_empty, encode_head,
};
use kera_protocol::v1::{self, Cursor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::{Fake, STREAM_ID};

const MAX_FRAME: usize = 16 << 20;

pub async fn accept(fake: Arc<Fake>, listener: TcpListener) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        if fake.refuse.load(Ordering::SeqCst) {
            continue;
        }
        let mut killed = fake.killed.subscribe();
        killed.borrow_and_update();
        let serving = serve(fake.clone(), socket);
        tokio::spawn(async move {
            tokio::select! {
                () = serving => {}
                _ = killed.changed() => {}
            }
        });
    }
}

struct Subscription {
    credit: AtomicI64,
    changed: Notify,
}

type Out = mpsc::Sender<Bytes>;

async fn send<M: Message>(out: &Out, kind: FrameKind, correlation: u32, header: &M, body: &[u8]) {
    let mut bytes = BytesMut::new();
    encode_head(&mut bytes, kind, correlation, header, body.len()).unwrap();
    bytes.extend_from_slice(body);
    let _ = out.send(bytes.freeze()).await;
}

async fn serve(fake: Arc<Fake>, mut socket: TcpStream) {
    let mut hello = [0; HELLO_BYTES];
    if socket.read_exact(&mut hello).await.is_err() {
        return;
    }
    let reply = HelloReply {
        version: PROTOCOL_VERSION,
        max_frame_bytes: MAX_FRAME as u32,
    };
    let _ = socket.write_all(&reply.encode()).await;
    let (mut reading, mut writing) = socket.into_split();
    let (out, mut queue) = mpsc::channel::<Bytes>(64);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Some(bytes) = queue.recv().await {
            if writing.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut subscriptions: HashMap<u32, Arc<Subscription>> = HashMap::new();
    let mut buffer = BytesMut::new();
    loop {
        while let Some(frame) = Frame::split_from(&mut buffer, MAX_FRAME).unwrap() {
            match frame.kind {
                FrameKind::Ping => {
                    let mut pong = BytesMut::new();
                    encode_empty(&mut pong, FrameKind::Pong, frame.correlation);
                    let _ = out.send(pong.freeze()).await;
                }
                FrameKind::Read => {
                    fake.reads.fetch_add(1, Ordering::SeqCst);
                    let request = frame.message().unwrap();
                    tasks.spawn(read(fake.clone(), out.clone(), frame.correlation, request));
                }
                FrameKind::Subscribe => {
                    fake.subscribes.fetch_add(1, Ordering::SeqCst);
                    let request: v1::SubscribeRequest = frame.message().unwrap();
                    let subscription = Arc::new(Subscription {
                        credit: AtomicI64::new(request.credit_bytes as i64),
                        changed: Notify::new(),
                    });
                    let old = subscriptions.insert(request.subscription, subscription.clone());
                    assert!(old.is_none(), "subscription ids are unique");
                    let reply = v1::SubscribeResponse::default();
                    send(
                        &out,
                        FrameKind::SubscribeReply,
                        frame.correlation,
                        &reply,
                        b"",
                    )
                    .await;
                    tasks.spawn(push(fake.clone(), out.clone(), request, subscription));
                }
                FrameKind::Credit => {
                    let credit: v1::CreditRequest = frame.message().unwrap();
                    if credit.unsubscribe {
                        if let Some(ended) = subscriptions.remove(&credit.subscription) {
                            ended.credit.store(i64::MIN / 2, Ordering::SeqCst);
                        }
                    } else if let Some(subscription) = subscriptions.get(&credit.subscription) {
                        let more = credit.credit_bytes as i64;
                        subscription.credit.fetch_add(more, Ordering::SeqCst);
                        subscription.changed.notify_one();
                    }
                }
                other => panic!("consumer sent {other:?}"),
            }
        }
        match reading.read_buf(&mut buffer).await {
            Ok(count) if count > 0 => {}
            _ => return,
        }
    }
}

/// Body, next, head, finished; or the code and the log start.
type Looked = Result<(Vec<u8>, Cursor, u64, bool), (ErrorCode, u64)>;

impl Fake {
    fn look(
        &self,
        stream: &[u8],
        lane: (u32, u32),
        from: u64,
        end: u64,
        generation: Option<u32>,
        max_bytes: usize,
    ) -> Looked {
        assert_eq!(stream, STREAM_ID);
        let mut state = self.state.lock();
        let corrupt = state.corrupt.clone();
        let log = state
            .lanes
            .get_mut(&lane)
            .ok_or((ErrorCode::UnknownLane, 0))?;
        if from < log.log_start || from > log.head {
            return Err((ErrorCode::OutOfRange, log.log_start));
        }
        let mut end = if end == 0 { u64::MAX } else { end };
        if let Some(boundary) = generation.and_then(|generation| log.boundaries.get(&generation)) {
            end = end.min(*boundary);
        }
        let mut body = Vec::new();
        let mut next = from;
        let mut damaged = Vec::new();
        for (base, after, bytes) in &log.batches {
            if *after <= from {
                continue;
            }
            if *base >= end || (!body.is_empty() && body.len() + bytes.len() > max_bytes) {
                break;
            }
            let at = body.len();
            body.extend_from_slice(bytes);
            if corrupt.contains(base) {
                *body.last_mut().unwrap() ^= 1;
                damaged.push(*base);
            }
            assert!(body.len() > at);
            next = *after;
        }
        let head = log.head;
        for base in damaged {
            state.corrupt.remove(&base);
        }
        let next = next.min(end);
        let cursor = Cursor {
            ordinal: next,
            group: 1,
            has_hint: true,
            ..Cursor::default()
        };
        Ok((body, cursor, head, next >= end))
    }
}

async fn read(fake: Arc<Fake>, out: Out, correlation: u32, request: v1::ReadRequest) {
    let wait = Duration::from_millis(u64::from(request.max_wait_ms));
    let deadline = tokio::time::Instant::now() + wait;
    let reply = loop {
        let changed = fake.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let cursor = request.cursor.unwrap();
        let looked = fake.look(
            &request.stream,
            (request.streamlet, request.lane),
            cursor.ordinal,
            request.end_ordinal,
            request.lane_generation,
            request.max_bytes as usize,
        );
        match looked {
            Ok((ref body, ..)) if body.is_empty() => {
                let waited = tokio::time::timeout_at(deadline, changed).await;
                if waited.is_ok() {
                    continue;
                }
                break looked;
            }
            looked => break looked,
        }
    };
    let (response, body) = match reply {
        Ok((body, next, head_ordinal, finished)) => (
            v1::ReadResponse {
                next: Some(next),
                head_ordinal,
                finished,
                ..v1::ReadResponse::default()
            },
            body,
        ),
        Err((code, log_start)) => (
            v1::ReadResponse {
                error: code as u32,
                message: "planted".to_owned(),
                log_start,
                ..v1::ReadResponse::default()
            },
            Vec::new(),
        ),
    };
    send(&out, FrameKind::ReadReply, correlation, &response, &body).await;
}

async fn push(
    fake: Arc<Fake>,
    out: Out,
    request: v1::SubscribeRequest,
    subscription: Arc<Subscription>,
) {
    let mut next = request.cursor.unwrap();
    loop {
        let changed = fake.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if subscription.credit.load(Ordering::SeqCst) <= 0 {
            subscription.changed.notified().await;
            continue;
        }
        let looked = fake.look(
            &request.stream,
            (request.streamlet, request.lane),
            next.ordinal,
            request.end_ordinal,
            request.lane_generation,
            request.max_bytes as usize,
        );
        let mut message = v1::PushData {
            subscription: request.subscription,
            ..v1::PushData::default()
        };
        match looked {
            Ok((body, _, _, false)) if body.is_empty() => {
                tokio::select! {
                    () = changed => {}
                    () = subscription.changed.notified() => {}
                }
            }
            Ok((body, cursor, head_ordinal, finished)) => {
                let length = body.len() as i64;
                let left = subscription.credit.fetch_sub(length, Ordering::SeqCst) - length;
                next = cursor;
                message.next = Some(cursor);
                message.head_ordinal = head_ordinal;
                message.finished = finished;
                send(&out, FrameKind::PushData, 0, &message, &body).await;
                fake.change(|state| {
                    state.pushed_bytes += body.len();
                    state.overdraft = state.overdraft.max(-left);
                });
                if finished {
                    return;
                }
            }
            Err((code, _)) => {
                message.error = code as u32;
                send(&out, FrameKind::PushData, 0, &message, b"").await;
                return;
            }
        }
    }
}
