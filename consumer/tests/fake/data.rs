//! Frames.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{
    Frame, FrameKind, HELLO_BYTES, HelloReply, PROTOCOL_VERSION, TAKES_CALLS, encode_empty,
    encode_head,
};
use kera_protocol::v1::{self, Cursor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::control::Control;
use super::{Asked, Condition, Fake, STREAM_ID};

const MAX_FRAME: usize = 16 << 20;

pub(super) async fn accept(
    fake: Arc<Fake>,
    member: usize,
    listener: TcpListener,
    is_for_data: bool,
) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        if is_for_data && fake.refuse.load(Ordering::SeqCst) {
            continue;
        }
        let mut killed = fake.killed.subscribe();
        killed.borrow_and_update();
        let serving = serve(fake.clone(), member, socket);
        let mut condition = fake.members[member].condition.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = serving => {}
                _ = killed.changed(), if is_for_data => {}
                _ = condition.wait_for(|condition| *condition == Condition::Dead) => {}
            }
        });
    }
}

type Out = mpsc::Sender<Bytes>;

async fn send<M: Message>(out: &Out, kind: FrameKind, correlation: u32, header: &M, body: &[u8]) {
    let mut bytes = BytesMut::new();
    encode_head(&mut bytes, kind, correlation, header, body.len()).unwrap();
    bytes.extend_from_slice(body);
    let _ = out.send(bytes.freeze()).await;
}

async fn serve(fake: Arc<Fake>, member: usize, mut socket: TcpStream) {
    fake.while_it_runs(member).await;
    let mut hello = [0; HELLO_BYTES];
    if socket.read_exact(&mut hello).await.is_err() {
        return;
    }
    let reply = HelloReply {
        version: PROTOCOL_VERSION,
        flags: TAKES_CALLS,
        max_frame_bytes: MAX_FRAME as u32,
    };
    let _ = socket.write_all(&reply.encode()).await;
    let (mut reading, mut writing) = socket.into_split();
    let (out, mut queue) = mpsc::channel::<Bytes>(64);
    let mut tasks = JoinSet::new();
    let speaking = fake.clone();
    tasks.spawn(async move {
        while let Some(bytes) = queue.recv().await {
            speaking.while_it_runs(member).await;
            if writing.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut subscriptions: HashMap<u32, Arc<Notify>> = HashMap::new();
    let mut buffer = BytesMut::new();
    loop {
        while let Some(frame) = Frame::split_from(&mut buffer, MAX_FRAME).unwrap() {
            match frame.kind {
                FrameKind::Ping => {
                    let mut pong = BytesMut::new();
                    encode_empty(&mut pong, FrameKind::Pong, frame.correlation);
                    let _ = out.send(pong.freeze()).await;
                }
                FrameKind::Call => {
                    let (control, out) = (Control(fake.clone(), member), out.clone());
                    tasks.spawn(async move {
                        let correlation = frame.correlation;
                        let (told, body) = match control.answer(frame).await {
                            Ok(body) => (v1::CallResponse::default(), body),
                            Err(code) => {
                                let (error, message) = (code as u32, "planted".to_owned());
                                (v1::CallResponse { error, message }, Vec::new())
                            }
                        };
                        send(&out, FrameKind::CallReply, correlation, &told, &body).await;
                    });
                }
                FrameKind::Read => {
                    fake.reads.fetch_add(1, Ordering::SeqCst);
                    let request: v1::ReadRequest = frame.message().unwrap();
                    fake.note(member, request.cursor, request.from_copy);
                    let (fake, out) = (fake.clone(), out.clone());
                    tasks.spawn(read(fake, member, out, frame.correlation, request));
                }
                FrameKind::Subscribe => {
                    fake.subscribes.fetch_add(1, Ordering::SeqCst);
                    let request: v1::SubscribeRequest = frame.message().unwrap();
                    fake.note(member, request.cursor, false);
                    let subscription = Arc::new(Notify::new());
                    fake.grant_credit(request.subscription, request.credit_bytes);
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
                    tasks.spawn(push(
                        fake.clone(),
                        member,
                        out.clone(),
                        request,
                        subscription,
                    ));
                }
                FrameKind::Credit => {
                    let credit: v1::CreditRequest = frame.message().unwrap();
                    if credit.unsubscribe {
                        subscriptions.remove(&credit.subscription);
                        fake.change(|state| _ = state.credit.remove(&credit.subscription));
                    } else if let Some(granted) = subscriptions.get(&credit.subscription) {
                        fake.grant_credit(credit.subscription, credit.credit_bytes);
                        granted.notify_one();
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
    fn note(&self, member: usize, cursor: Option<Cursor>, from_copy: bool) {
        let ordinal = cursor.unwrap().ordinal;
        self.change(|state| {
            state.asked.push(Asked {
                member,
                ordinal,
                from_copy,
            });
        });
    }

    fn grant_credit(&self, subscription: u32, bytes: u64) {
        self.change(|state| {
            *state.credit.entry(subscription).or_default() += bytes as usize;
            state.granted += bytes as usize;
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn look(
        &self,
        member: usize,
        from_copy: bool,
        stream: &[u8],
        lane: (u32, u32),
        from: u64,
        end: u64,
        generation: Option<u32>,
        max_bytes: usize,
    ) -> Looked {
        assert_eq!(stream, STREAM_ID);
        let mut state = self.state.lock();
        let copy_end = match from_copy {
            true => state
                .copy_end(member, lane, from)
                .map_err(|code| (code, 0))?,
            false if state.owner != member => return Err((ErrorCode::NotOwner, 0)),
            false => u64::MAX,
        };
        if let Some(code) = state.refusal {
            return Err((code, 0));
        }
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
        let here = end.min(copy_end);
        let mut body = Vec::new();
        let mut next = from;
        let mut damaged = Vec::new();
        for (base, after, bytes) in &log.batches {
            if *after <= from {
                continue;
            }
            if *base >= here || (!body.is_empty() && body.len() + bytes.len() > max_bytes) {
                break;
            }
            let at = body.len();
            body.extend_from_slice(bytes);
            if corrupt.contains(base) {
                *body.last_mut().unwrap() ^= 1;
                damaged.push(*base);
            }
            // For a batch that is left out the test gives no bytes.
            assert!(body.len() > at || bytes.is_empty());
            next = *after;
        }
        let head = log.head;
        for base in damaged {
            state.corrupt.remove(&base);
        }
        let next = next.min(here);
        let cursor = Cursor {
            ordinal: next,
            group: 1,
            has_hint: true,
            ..Cursor::default()
        };
        Ok((body, cursor, head, next >= end))
    }
}

async fn read(
    fake: Arc<Fake>,
    member: usize,
    out: Out,
    correlation: u32,
    request: v1::ReadRequest,
) {
    let wait = Duration::from_millis(u64::from(request.max_wait_ms));
    let deadline = tokio::time::Instant::now() + wait;
    let reply = loop {
        let changed = fake.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let cursor = request.cursor.unwrap();
        let looked = fake.look(
            member,
            request.from_copy,
            &request.stream,
            (request.streamlet, request.lane),
            cursor.ordinal,
            request.end_ordinal,
            request.lane_generation,
            request.max_bytes as usize,
        );
        match looked {
            Ok((ref body, next, ..)) if body.is_empty() && next.ordinal == cursor.ordinal => {
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
    member: usize,
    out: Out,
    request: v1::SubscribeRequest,
    granted: Arc<Notify>,
) {
    let mut next = request.cursor.unwrap();
    loop {
        let changed = fake.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let credit = fake.state.lock().credit.get(&request.subscription).copied();
        let credit = credit.unwrap_or(0);
        if credit == 0 {
            granted.notified().await;
            continue;
        }
        let looked = fake.look(
            member,
            false,
            &request.stream,
            (request.streamlet, request.lane),
            next.ordinal,
            request.end_ordinal,
            request.lane_generation,
            credit.min(request.max_bytes as usize),
        );
        let mut message = v1::PushData {
            subscription: request.subscription,
            ..v1::PushData::default()
        };
        match looked {
            Ok((body, to, _, false)) if body.is_empty() && to.ordinal == next.ordinal => {
                tokio::select! {
                    () = changed => {}
                    () = granted.notified() => {}
                }
            }
            Ok((body, cursor, head_ordinal, finished)) => {
                next = cursor;
                message.next = Some(cursor);
                message.head_ordinal = head_ordinal;
                message.finished = finished;
                fake.change(|state| {
                    state.pushed_bytes += body.len();
                    if let Some(credit) = state.credit.get_mut(&request.subscription) {
                        let left = *credit as i64 - body.len() as i64;
                        state.overdraft = state.overdraft.max(-left);
                        // What the last batch exceeds it by is forgiven.
                        *credit = left.max(0) as usize;
                    }
                });
                send(&out, FrameKind::PushData, 0, &message, &body).await;
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
