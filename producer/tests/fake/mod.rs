//! Brokers for tests: they speak frames, the two control calls that producers make among them, keep lanes
//! in memory, recognise duplicates and gaps as real ones do, and misbehave when told to. Most tests need
//! one; several share what is stored, as if every copy were everywhere, and one of them owns it.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_producer::{Producer, ProducerBuilder, RetryPolicy};
use kera_protocol::Message;
use kera_protocol::batch::{BatchHeader, batches, validate_records};
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{
    Frame, FrameKind, HELLO_BYTES, Hello, HelloReply, PROTOCOL_VERSION, TAKES_CALLS, encode_empty,
    encode_head,
};
use kera_protocol::ids::ANY_LANE;
use kera_protocol::v1::{self, CallMethod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

pub(super) const STREAM_ID: [u8; 16] = [9; 16];

/// Streams whose names are "s" and digits lie side by side: of stream `s1` streamlet 0 is kept as number 100.
pub(super) const NEXT_STREAM: u32 = 100;

/// Which one has this name.
fn number_of(name: &str) -> u32 {
    let digits = name.strip_prefix('s').expect("a name");
    digits.parse().unwrap_or(0)
}

/// What the broker does with an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// As a good broker would.
    Accept,
    /// Answers this code; nothing is stored.
    Refuse(ErrorCode),
    /// Answers this code, and says that nothing is placed, which is true.
    Deny(ErrorCode),
    /// Stores the batch, yet answers this code.
    StoreAndRefuse(ErrorCode),
    /// Stores the batch, yet answers this code and says that nothing is placed.
    StoreAndDeny(ErrorCode),
    /// Drops the connection; the batch is stored first or not.
    Drop { store: bool },
    /// Forgets all producers, then does as a good broker would.
    Forget,
    /// Never answers; the batch is stored or not.
    Swallow { store: bool },
    /// Keeps the batch, as one that stands in a connection's buffer, and may drop the connection; it is
    /// stored by [`Broker::store_late`].
    Late { drop: bool },
    /// As a good broker would; when it has decided, what is kept arrives, as far as it may be stored.
    ThenLate,
}

pub(super) type Script = dyn FnMut(&v1::AppendRequest, &BatchHeader) -> Action + Send;

#[derive(Default)]
struct ProducerState {
    epoch: i16,
    next: i32,
    recent: VecDeque<(i32, i32, u64)>,
}

#[derive(Default)]
pub(super) struct State {
    /// Whole batches by streamlet and lane.
    pub lanes: BTreeMap<(u32, u32), Vec<Bytes>>,
    ends: HashMap<(u32, u32), u64>,
    producers: HashMap<(i64, u32, u32), ProducerState>,
    pub config: v1::StreamConfig,
    pub generation: u32,
    next_producer: u64,
    script: Option<Box<Script>>,
    late: Vec<(v1::AppendRequest, Vec<u8>)>,
    /// The connections by which appends came.
    pub appending: BTreeSet<SocketAddr>,
    pub gone: bool,
    /// Streams whose lanes were added to the transaction, in order.
    pub in_transaction: Vec<Bytes>,
    /// The client may not see the stream: whoever it asks by name says so.
    pub hidden: bool,
    /// Brokers that have not heard of the stream.
    pub unheard: Vec<usize>,
    /// The broker that owns all streamlets; the others refuse appends.
    pub owner: usize,
}

/// One of the brokers.
struct Member {
    address: String,
    condition: watch::Sender<Condition>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Lives,
    /// Connections break, and no new one comes about.
    Dead,
    /// Connections stay, and nothing comes over them.
    Stopped,
}

pub(super) struct Broker {
    pub state: parking_lot::Mutex<State>,
    /// All of them.
    pub bootstrap: String,
    members: Vec<Member>,
    /// While true, appends wait before they are looked at.
    held: watch::Sender<bool>,
    pub appends: AtomicUsize,
    /// Times that the stream was asked for.
    pub asked: AtomicUsize,
    arrived: Notify,
}

impl Broker {
    pub(super) async fn start(streamlets: u32, lanes: u32) -> Arc<Self> {
        Self::start_with(v1::StreamConfig {
            streamlets: Some(streamlets),
            lanes: Some(lanes),
            max_batch_bytes: Some(1 << 20),
            ..v1::StreamConfig::default()
        })
        .await
    }

    pub(super) async fn start_with(config: v1::StreamConfig) -> Arc<Self> {
        Self::start_several(1, config).await
    }

    /// Starts so many brokers; number 0 owns all streamlets.
    pub(super) async fn start_several(count: usize, config: v1::StreamConfig) -> Arc<Self> {
        let mut listeners = Vec::new();
        let mut members = Vec::new();
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            members.push(Member {
                address: listener.local_addr().unwrap().to_string(),
                condition: watch::Sender::new(Condition::Lives),
            });
            listeners.push(listener);
        }
        let addresses: Vec<_> = members.iter().map(|m| m.address.as_str()).collect();
        let broker = Arc::new(Self {
            state: parking_lot::Mutex::new(State {
                config,
                next_producer: 100,
                ..State::default()
            }),
            bootstrap: addresses.join(","),
            members,
            held: watch::Sender::new(false),
            appends: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            arrived: Notify::new(),
        });
        for (member, listener) in listeners.into_iter().enumerate() {
            tokio::spawn(broker.clone().accept(member, listener));
        }
        broker
    }

    async fn accept(self: Arc<Self>, member: usize, listener: TcpListener) {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let broker = self.clone();
            tokio::spawn(async move {
                let mut condition = broker.members[member].condition.subscribe();
                tokio::select! {
                    () = broker.clone().serve(member, socket) => {}
                    _ = condition.wait_for(|condition| *condition == Condition::Dead) => {}
                }
            });
        }
    }

    /// Kills a broker: its connections break.
    pub(super) fn kill(&self, member: usize) {
        self.members[member].condition.send_replace(Condition::Dead);
    }

    /// Stops a broker as SIGSTOP does: its connections stay, and it says nothing.
    pub(super) fn stop(&self, member: usize) {
        let condition = &self.members[member].condition;
        condition.send_replace(Condition::Stopped);
    }

    /// Makes a broker the owner of all streamlets.
    pub(super) fn own(&self, member: usize) {
        self.state.lock().owner = member;
    }

    /// Does nothing while a broker is stopped.
    async fn while_it_runs(&self, member: usize) {
        let mut condition = self.members[member].condition.subscribe();
        let _ = condition
            .wait_for(|condition| *condition != Condition::Stopped)
            .await;
    }

    /// A producer for its stream, yet to be built.
    pub(super) fn producer(&self) -> ProducerBuilder {
        Producer::builder().bootstrap(&self.bootstrap).stream("s")
    }

    /// One that tries again soon, and for long.
    pub(super) fn eager(&self) -> ProducerBuilder {
        self.producer().batch_size(1 << 10).retry(RetryPolicy {
            first: Duration::from_millis(1),
            longest: Duration::from_millis(10),
            deadline: Duration::from_secs(20),
        })
    }

    pub(super) fn script(
        &self,
        script: impl FnMut(&v1::AppendRequest, &BatchHeader) -> Action + Send + 'static,
    ) {
        self.state.lock().script = Some(Box::new(script));
    }

    pub(super) fn behave(&self) {
        self.state.lock().script = None;
    }

    pub(super) fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Forgets its producers, as after their state expired.
    pub(super) fn forget_producers(&self) {
        self.state.lock().producers.clear();
    }

    /// Stores what came late, as far as it may be; how many batches were.
    pub(super) fn store_late(&self) -> usize {
        self.state.lock().store_late()
    }

    /// Loses the last batches of a lane, and what it knew of their producers, as a broker that was
    /// killed does with a `memory` stream.
    pub(super) fn lose_last(&self, lane: (u32, u32), count: usize) {
        let mut state = self.state.lock();
        for _ in 0..count {
            let batch = state.lanes.get_mut(&lane).and_then(Vec::pop);
            let header = BatchHeader::peek(&batch.expect("so many are stored")).unwrap();
            let key = (header.producer_id, lane.0, lane.1);
            let known = state
                .producers
                .get_mut(&key)
                .expect("its producer is known");
            known.next = header.base_sequence;
            known
                .recent
                .retain(|(_, last, _)| *last < header.base_sequence);
            // Its ordinals are never used again.
        }
    }

    pub(super) fn grow_lanes(&self, lanes: u32) {
        let mut state = self.state.lock();
        state.config.lanes = Some(lanes);
        state.generation += 1;
    }

    /// Waits until `count` appends have arrived since the start.
    pub(super) async fn appends_arrived(&self, count: usize) {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if self.appends.load(Ordering::SeqCst) >= count {
                return;
            }
            arrived.await;
        }
    }

    /// Values stored in each lane, in order, decoded.
    pub(super) fn values(&self) -> BTreeMap<(u32, u32), Vec<String>> {
        self.records(|record| String::from_utf8_lossy(record.value.unwrap_or(b"null")).into())
    }

    pub(super) fn records<T>(
        &self,
        read: impl Fn(&kera_protocol::batch::Record<'_>) -> T,
    ) -> BTreeMap<(u32, u32), Vec<T>> {
        let state = self.state.lock();
        let mut out = BTreeMap::new();
        for (lane, stored) in &state.lanes {
            let records: &mut Vec<T> = out.entry(*lane).or_default();
            for batch in stored {
                let mut scratch = Vec::new();
                for record in
                    kera_protocol::batch::Records::open(batch, 1 << 24, &mut scratch).unwrap()
                {
                    records.push(read(&record.unwrap()));
                }
            }
        }
        out
    }

    async fn serve(self: Arc<Self>, member: usize, mut socket: TcpStream) {
        self.while_it_runs(member).await;
        let mut hello = [0; HELLO_BYTES];
        if socket.read_exact(&mut hello).await.is_err() {
            return;
        }
        assert_eq!(Hello::decode(&hello), Ok(Hello::CURRENT));
        let reply = HelloReply {
            version: PROTOCOL_VERSION,
            flags: TAKES_CALLS,
            max_frame_bytes: 4 << 20,
        };
        let _ = socket.write_all(&reply.encode()).await;
        let mut buffer = BytesMut::new();
        let mut held = self.held.subscribe();
        loop {
            while let Some(frame) = Frame::split_from(&mut buffer, 4 << 20).unwrap() {
                self.while_it_runs(member).await;
                let mut out = BytesMut::new();
                if frame.kind == FrameKind::Ping {
                    encode_empty(&mut out, FrameKind::Pong, frame.correlation);
                } else if frame.kind == FrameKind::Call {
                    let (told, body) = match self.call(member, &frame) {
                        Ok(body) => (v1::CallResponse::default(), body),
                        Err(code) => {
                            let (error, message) = (code as u32, "planted".to_owned());
                            (v1::CallResponse { error, message }, Vec::new())
                        }
                    };
                    let kind = FrameKind::CallReply;
                    encode_head(&mut out, kind, frame.correlation, &told, body.len()).unwrap();
                    out.extend_from_slice(&body);
                } else {
                    assert_eq!(frame.kind, FrameKind::Append);
                    let from = socket.peer_addr().unwrap();
                    self.state.lock().appending.insert(from);
                    self.appends.fetch_add(1, Ordering::SeqCst);
                    self.arrived.notify_waiters();
                    let _ = held.wait_for(|held| !held).await;
                    let reply = self.append(member, &frame);
                    self.while_it_runs(member).await;
                    match reply {
                        Reply::Answer(answer) => {
                            encode_head(
                                &mut out,
                                FrameKind::AppendReply,
                                frame.correlation,
                                &answer,
                                0,
                            )
                            .unwrap();
                        }
                        Reply::Nothing => {}
                        Reply::Close => return,
                    }
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

    fn append(&self, member: usize, frame: &Frame) -> Reply {
        let request: v1::AppendRequest = frame.message().unwrap();
        let mut state = self.state.lock();
        let refusal = |code, placement: v1::Placement| {
            Reply::Answer(v1::AppendResponse {
                error: code as u32,
                message: "planted".to_owned(),
                placement: placement as i32,
                ..v1::AppendResponse::default()
            })
        };
        let refuse = |code| refusal(code, v1::Placement::Unspecified);
        if state.owner != member {
            return refuse(ErrorCode::NotOwner);
        }
        let (header, batch) = batches(&frame.body).next().unwrap().unwrap();
        assert_eq!(batch.len(), frame.body.len(), "one batch per frame");
        let action = match &mut state.script {
            Some(script) => script(&request, &header),
            None => Action::Accept,
        };
        match action {
            Action::Refuse(code) => refuse(code),
            Action::Deny(code) => refusal(code, v1::Placement::NotPlaced),
            Action::Drop { store: false } => Reply::Close,
            Action::Late { drop } => {
                state.late.push((request.clone(), batch.to_vec()));
                match drop {
                    true => Reply::Close,
                    false => Reply::Nothing,
                }
            }
            Action::ThenLate => {
                let decided = state.store(&request, batch);
                state.store_late();
                match decided {
                    Ok(answer) => Reply::Answer(answer),
                    Err(code) => refuse(code),
                }
            }
            Action::Swallow { store: false } => Reply::Nothing,
            Action::Accept
            | Action::Forget
            | Action::StoreAndRefuse(_)
            | Action::StoreAndDeny(_)
            | Action::Drop { store: true }
            | Action::Swallow { store: true } => {
                if action == Action::Forget {
                    state.producers.clear();
                }
                let answer = match state.store(&request, batch) {
                    Ok(answer) => answer,
                    Err(code) => return refuse(code),
                };
                match action {
                    Action::StoreAndRefuse(code) => refuse(code),
                    Action::StoreAndDeny(code) => refusal(code, v1::Placement::NotPlaced),
                    Action::Drop { .. } => Reply::Close,
                    Action::Swallow { .. } => Reply::Nothing,
                    _ => Reply::Answer(answer),
                }
            }
        }
    }

    /// The control calls that producers make.
    fn call(&self, member: usize, frame: &Frame) -> Result<Vec<u8>, ErrorCode> {
        let call: v1::CallRequest = frame.message().unwrap();
        let mut info = self.info(member)?;
        match call.method() {
            CallMethod::GetStream => {
                self.asked.fetch_add(1, Ordering::SeqCst);
                let request = v1::GetStreamRequest::decode(&frame.body[..]).unwrap();
                let number = number_of(&request.name) as u8;
                info.id = Bytes::copy_from_slice(&STREAM_ID.map(|byte| byte + number));
                info.name = request.name;
                Ok(info.encode_to_vec())
            }
            CallMethod::InitProducer => {
                let mut state = self.state.lock();
                state.next_producer += 1;
                let made = v1::InitProducerResponse {
                    producer_id: state.next_producer,
                    producer_epoch: 0,
                };
                Ok(made.encode_to_vec())
            }
            CallMethod::FindCoordinator => {
                Ok(v1::FindCoordinatorResponse::default().encode_to_vec())
            }
            CallMethod::InitTransactions => {
                let begun = v1::InitTransactionsResponse {
                    producer: 7,
                    ..v1::InitTransactionsResponse::default()
                };
                Ok(begun.encode_to_vec())
            }
            CallMethod::AddToTransaction => {
                let request = v1::AddToTransactionRequest::decode(&frame.body[..]).unwrap();
                let added = request.streams.into_iter().map(|added| added.stream);
                self.state.lock().in_transaction.extend(added);
                let answer = v1::AddToTransactionResponse { number: 1 };
                Ok(answer.encode_to_vec())
            }
            CallMethod::EndTransaction => {
                let request = v1::EndTransactionRequest::decode(&frame.body[..]).unwrap();
                let ended = v1::EndTransactionResponse {
                    committed: request.commit,
                };
                Ok(ended.encode_to_vec())
            }
            other => panic!("producers do not call {other:?}"),
        }
    }

    fn info(&self, member: usize) -> Result<v1::StreamInfo, ErrorCode> {
        let state = self.state.lock();
        if state.hidden {
            return Err(ErrorCode::NotAuthorized);
        }
        if state.gone || state.unheard.contains(&member) {
            return Err(ErrorCode::UnknownStream);
        }
        Ok(v1::StreamInfo {
            name: "s".to_owned(),
            id: Bytes::copy_from_slice(&STREAM_ID),
            config: Some(state.config),
            streamlets: (0..state.config.streamlets())
                .map(|streamlet| v1::StreamletInfo {
                    streamlet,
                    owner: self.members[state.owner].address.clone(),
                    epoch: 1,
                    ..v1::StreamletInfo::default()
                })
                .collect(),
            lane_generation: state.generation,
            ..v1::StreamInfo::default()
        })
    }
}

enum Reply {
    Answer(v1::AppendResponse),
    Nothing,
    Close,
}

impl State {
    /// See [`Broker::store_late`].
    fn store_late(&mut self) -> usize {
        let late = std::mem::take(&mut self.late);
        let stored = late
            .iter()
            .map(|(request, batch)| self.store(request, batch));
        stored.filter(Result::is_ok).count()
    }

    /// Stores a batch as a broker must: duplicates are recognised, gaps, old lanes and unknown
    /// producers refused.
    fn store(
        &mut self,
        request: &v1::AppendRequest,
        batch: &[u8],
    ) -> Result<v1::AppendResponse, ErrorCode> {
        let header = validate_records(batch, 1 << 24, &mut Vec::new()).expect("the batch is sound");
        let streamlet =
            request.streamlet + NEXT_STREAM * u32::from(request.stream[0] - STREAM_ID[0]);
        let by_producer = self.config.lane_by() == v1::LaneBy::Producer;
        assert_eq!(request.lane == ANY_LANE, by_producer);
        let lane = if by_producer {
            header.producer_id as u32 % self.config.lanes()
        } else {
            request.lane
        };
        let key = (header.producer_id, streamlet, lane);
        if header.is_idempotent()
            && let Some(known) = self.producers.get(&key)
            && known.epoch == header.producer_epoch
            && let Some((.., base_ordinal)) = known.recent.iter().find(|(first, last, _)| {
                (*first, *last) == (header.base_sequence, header.last_sequence())
            })
        {
            return Ok(v1::AppendResponse {
                lane,
                base_ordinal: *base_ordinal,
                duplicate: true,
                ..v1::AppendResponse::default()
            });
        }
        if !by_producer && request.lane_generation != self.generation {
            return Err(ErrorCode::StaleLanes);
        }
        let end = self.ends.entry((streamlet, lane)).or_default();
        if header.is_idempotent() {
            if header.base_sequence != 0 && !self.producers.contains_key(&key) {
                return Err(ErrorCode::UnknownProducer);
            }
            let known = self.producers.entry(key).or_default();
            if header.producer_epoch < known.epoch {
                return Err(ErrorCode::FencedProducer);
            }
            if header.producer_epoch > known.epoch {
                *known = ProducerState {
                    epoch: header.producer_epoch,
                    ..ProducerState::default()
                };
            }
            if header.base_sequence != known.next {
                return Err(ErrorCode::SequenceGap);
            }
            known.next = header.last_sequence() + 1;
            known
                .recent
                .push_back((header.base_sequence, header.last_sequence(), *end));
            if known.recent.len() > 16 {
                known.recent.pop_front();
            }
        }
        let base_ordinal = *end;
        *end += header.ordinals();
        self.lanes
            .entry((streamlet, lane))
            .or_default()
            .push(Bytes::copy_from_slice(batch));
        Ok(v1::AppendResponse {
            lane,
            base_ordinal,
            append_time_ms: 77,
            ..v1::AppendResponse::default()
        })
    }
}
