//! One connection, one task: read what there is, place what is produced, answer in order.
//!
//! Kafka's clients expect replies in the order of their requests. Produce requests are placed as
//! they come and wait for durability side by side; any other request is worked on alone, and what
//! comes behind it waits in the socket, as with Kafka.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::StrBytes;
use kera_broker::append;
use kera_broker::bell::Bell;
use kera_broker::inbox::{Inbox, READ_AHEAD, Received};
use kera_broker::listener::Counted;
use kera_broker::memory_budget::Claims;
use kera_broker::outbox::Outbox;
use kera_log_segments::group::Group;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::context::Ctx;
use crate::dispatch::{self, DispatchError};
use crate::fetch::{self, Fetch, FetchRequest, Progress, Sessions};
use crate::produce::{Produce, ProduceRequest};
use crate::versions;
use crate::wire::reader::ReadError;
use crate::wire::request::{HeadError, LENGTH_BYTES, RequestHead};

/// Requests other than Produce are no longer than this: nothing real comes near it.
const MAX_OTHER_REQUEST: usize = 16 << 20;
/// JoinGroup, of which a coordinator keeps 256 KiB at most.
const MAX_JOIN_REQUEST: usize = 1 << 20;
/// JoinGroup and SyncGroup wait for the other members of a group.
const WAITING: [i16; 2] = [11, 14];
const JOIN: u8 = 11;
/// Produce requests of one connection that wait for durability.
const MAX_PENDING: usize = 256;
/// How often a busy connection looks at what takes too long, and an idle one.
const LOOK_BUSY: Duration = Duration::from_millis(500);
const LOOK_IDLE: Duration = Duration::from_secs(10);
/// How often one that waits for others' bytes to be worked off asks again.
const LOOK_CROWDED: Duration = Duration::from_millis(50);
/// A connection that has received nothing for this long gives back its buffer.
const KEEP_INPUT: Duration = Duration::from_secs(2);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The peer closed it, or the system did.
    #[error(transparent)]
    Socket(#[from] std::io::Error),
    /// The request's head is wrong.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// The request's body is wrong.
    #[error("the request cannot be read: {0}")]
    Body(#[from] ReadError),
    /// The request is wrong, or has no answer.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// It claims to be longer than requests may be.
    #[error("a request of {0} bytes is longer than the {1} that are accepted")]
    TooLong(i64, usize),
    /// A batch sent without acknowledgement was refused; closing is the only way to tell.
    #[error("a batch sent with acks = 0 was refused")]
    Unacknowledged,
    /// The peer takes nothing.
    #[error("the client did not read what was sent to it within server.send_timeout")]
    Unread,
    /// It did not arrive in time.
    #[error("a request did not arrive within server.receive_timeout")]
    Slow,
    /// Nothing happened for too long.
    #[error("idle for too long")]
    Idle,
}

type Answer = Pin<Box<dyn Future<Output = Result<Bytes, DispatchError>> + Send>>;
type FromDisk = Pin<Box<dyn Future<Output = Option<Fetch>> + Send>>;

/// The one request that is not Produce.
enum Current {
    Nothing,
    /// Its handler runs; `waits` if for other members of a group.
    Running {
        answer: Answer,
        waits: bool,
    },
    /// A fetch that is looked at whenever something moves.
    Fetching(Box<Fetch>),
    /// A fetch whose bytes come from the disk.
    Reading(FromDisk),
    /// Its reply waits for those before it.
    Answered(Vec<Bytes>),
}

/// A client's connection.
pub(crate) struct Connection {
    stream: TcpStream,
    ctx: Ctx,
    input: Inbox,
    out: Outbox,
    /// Produce requests that wait for durability, oldest first.
    pending: VecDeque<(i16, Produce)>,
    pending_bytes: usize,
    /// Progress of the produce request at the front of `input` while memory is short.
    placing: Option<Produce>,
    starved: bool,
    starved_since: Option<Instant>,
    /// Too much is in flight for the request that is arriving.
    crowded: bool,
    current: Current,
    sessions: Sessions,
    touched: Vec<Arc<Group>>,
    bell: Arc<Bell>,
    waker: Waker,
    claims: Claims,
    /// When deadlines were last looked at, and bytes sent until then.
    looked: Instant,
    sent_before: u64,
    last_input: Instant,
    stopping: bool,
    _counted: Counted,
}

impl Connection {
    /// A connection that was just accepted.
    pub(crate) fn new(stream: TcpStream, ctx: Ctx, counted: Counted) -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            stream,
            claims: Claims::new(ctx.shared.clone()),
            sessions: Sessions::new(ctx.settings.sessions.clone()),
            ctx,
            input: Inbox::default(),
            out: Outbox::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            placing: None,
            starved: false,
            starved_since: None,
            crowded: false,
            current: Current::Nothing,
            touched: Vec::new(),
            waker: Waker::from(bell.clone()),
            bell,
            looked: Instant::now(),
            sent_before: 0,
            last_input: Instant::now(),
            stopping: false,
            _counted: counted,
        }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn run(mut self) {
        let outcome = self.serve().await;
        self.release(self.pending_bytes);
        if let Some((_, front)) = self.pending.front() {
            front.forget(&self.waker);
        }
        if let Current::Fetching(fetch) = &mut self.current {
            fetch.forget(&self.waker);
        }
        let peer: SocketAddr = self.ctx.peer;
        match outcome {
            Err(Ended::Socket(_) | Ended::Idle) | Ok(()) => {
                tracing::debug!(%peer, ?outcome, "a Kafka client's connection ended");
            }
            Err(error) => {
                self.ctx.shared.metrics.protocol_errors.inc();
                let client = self.ctx.client_id.as_deref().unwrap_or_default();
                let due = self.ctx.shared.bad_connections.lock().due(Instant::now());
                match due {
                    Some(others) => {
                        tracing::info!(%peer, client, %error, others, "closing the connection of a Kafka client, and so it was with others lately");
                    }
                    None => {
                        tracing::debug!(%peer, client, %error, "closing the connection of a Kafka client");
                    }
                }
            }
        }
    }

    async fn serve(&mut self) -> Result<(), Ended> {
        let mut stopping = self.ctx.shared.stopping.subscribe();
        let look = tokio::time::sleep(LOOK_BUSY);
        tokio::pin!(look);
        let mut set_to = Instant::now() + LOOK_BUSY;
        loop {
            self.work()?;
            self.out.send(&self.stream)?;
            self.claims.hold_outgoing(self.out.bytes());
            self.claims.hold_incoming(self.input.capacity());
            if self.stopping && self.is_quiet() {
                return Ok(());
            }
            let wanted = self.next_look();
            if wanted < set_to {
                // Later ones are set when the timer fires: setting it costs more than the look.
                set_to = wanted;
                look.as_mut().reset(set_to.into());
            }
            let mut interest = Interest::ERROR;
            if self.takes_input() {
                interest |= Interest::READABLE;
            }
            if !self.out.is_empty() {
                interest |= Interest::WRITABLE;
            }
            tokio::select! {
                ready = self.stream.ready(interest) => {
                    let ready = ready?;
                    if ready.is_readable() && self.takes_input() {
                        self.read_input()?;
                    }
                    if ready.is_error() || (ready.is_write_closed() && !self.out.is_empty()) {
                        return Err(self.stream.take_error()?.unwrap_or_else(|| std::io::ErrorKind::ConnectionReset.into()).into());
                    }
                }
                () = self.bell.rung() => {}
                settled = settle(&mut self.current) => self.take_settled(settled)?,
                () = look.as_mut() => {
                    self.look_at_deadlines()?;
                    set_to = self.next_look();
                    look.as_mut().reset(set_to.into());
                }
                _ = stopping.wait_for(|stop| *stop), if !self.stopping => self.stopping = true,
            }
        }
    }

    fn is_answered(&self) -> bool {
        matches!(self.current, Current::Answered(_))
    }

    /// Nothing is owed to the client, but what may take for ever.
    fn is_quiet(&self) -> bool {
        let working = match &self.current {
            Current::Running { waits, .. } => !waits,
            Current::Answered(_) => true,
            Current::Nothing | Current::Fetching(_) | Current::Reading(_) => false,
        };
        self.pending.is_empty() && self.out.is_empty() && !working
    }

    /// A request waits in `input` that could be worked on.
    fn has_request(&self) -> bool {
        let whole = self.front_bytes().ok().flatten();
        self.takes_requests()
            && !self.starved
            && whole.is_some_and(|whole| whole <= self.input.len())
    }

    /// True while requests are worked on: what is owed to the client is bounded.
    fn takes_requests(&self) -> bool {
        matches!(self.current, Current::Nothing)
            && !self.stopping
            && self.pending.len() < MAX_PENDING
            && self.claims.room_to_send(self.out.bytes()) > 0
    }

    /// True while bytes may be taken from the socket. While a request runs some are still read, to
    /// see the peer go.
    fn takes_input(&self) -> bool {
        let server = &self.ctx.shared.config.server;
        let room = matches!(self.current, Current::Nothing) || self.input.len() < READ_AHEAD;
        room && !self.starved
            && !self.crowded
            && !self.stopping
            && self.pending.len() < MAX_PENDING
            && self.pending_bytes < server.connection_in_flight_bytes as usize
            && self.claims.may_owe(self.out.bytes())
            && (self.pending_bytes == 0
                || self.ctx.shared.in_flight.load(Ordering::Relaxed) < server.max_in_flight_bytes)
    }

    /// Length of the request at the front, its length field included, if that is there.
    fn front_bytes(&self) -> Result<Option<usize>, Ended> {
        let Some(field) = self.input.bytes().first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let claimed = i32::from_be_bytes(*field);
        let most = self.ctx.max_request_bytes();
        let limit = match self.input.bytes().get(LENGTH_BYTES..LENGTH_BYTES + 2) {
            Some([0, 0]) | None => most,
            Some([0, JOIN]) => most.min(MAX_JOIN_REQUEST),
            Some(_) => most.min(MAX_OTHER_REQUEST),
        };
        match usize::try_from(claimed) {
            Ok(length) if length <= limit => Ok(Some(LENGTH_BYTES + length)),
            _ => Err(Ended::TooLong(claimed.into(), limit)),
        }
    }

    fn read_input(&mut self) -> Result<(), Ended> {
        loop {
            let there = self.input.len();
            let whole = self.front_bytes()?.unwrap_or(0);
            let missing = whole.saturating_sub(there);
            if missing > 0 && !self.claims.admit_frame(whole) {
                self.crowded = true;
                return Ok(());
            }
            let room = self.input.room_for(missing, self.claims.read_ahead());
            if room == 0 {
                // Looked at again soon: others' buffers leave no room for more than this.
                self.crowded = !self.takes_requests();
                return Ok(());
            }
            match self.input.receive(&self.stream, room)? {
                Received::Nothing => return Ok(()),
                Received::Bytes(_) => self.last_input = Instant::now(),
                Received::End => {
                    // A producer that wants no acknowledgements sends, and goes.
                    self.work()?;
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
            }
            if self.input.len() >= READ_AHEAD {
                return Ok(());
            }
        }
    }

    /// One round: requests, pumps, acknowledgements, the fetch that waits.
    fn work(&mut self) -> Result<(), Ended> {
        self.starved = false;
        let outcome = self.take_requests();
        // Also what came before a request that ends the connection.
        append::pump(&self.ctx.shared, &mut self.touched);
        self.acknowledge();
        outcome?;
        self.serve_fetch();
        self.send_answer();
        if self.has_request() {
            self.bell.ring();
        }
        Ok(())
    }

    fn take_requests(&mut self) -> Result<(), Ended> {
        while self.takes_requests()
            && let Some(whole) = self.front_bytes()?
            && whole <= self.input.len()
        {
            // Worked on apart, so that a request's bytes and the connection can both be borrowed.
            let mut input = std::mem::take(&mut self.input);
            let outcome = self.take_request(&mut input.bytes_mut()[LENGTH_BYTES..whole]);
            self.input = input;
            if !outcome? {
                break;
            }
            self.input.consume(whole);
            // What a handler works on stays claimed until it has answered.
            if !matches!(self.current, Current::Running { waits: false, .. }) {
                self.claims.end_frame();
            }
        }
        Ok(())
    }

    /// Acts on one request. False: memory is short, it stays.
    fn take_request(&mut self, request: &mut [u8]) -> Result<bool, Ended> {
        let head = RequestHead::parse(request)?;
        let (key, version, correlation) = (head.api_key, head.api_version, head.correlation);
        let body_at = head.body_at;
        if self.ctx.client_id.as_deref() != head.client_id {
            self.ctx.client_id = head
                .client_id
                .map(|id| StrBytes::from_string(id.to_owned()));
        }
        if let Some(counter) = self.ctx.settings.requests.get(&key) {
            counter.inc();
        }
        match key {
            versions::KEY => {
                let (response, version) = versions::answer(version);
                let reply = dispatch::encode(ApiKey::ApiVersions, version, correlation, &response)?;
                self.current = Current::Answered(vec![reply]);
            }
            0 => return self.take_produce(version, correlation, &mut request[body_at..]),
            1 => self.take_fetch(version, correlation, &request[body_at..])?,
            _ => {
                let body = Bytes::copy_from_slice(&request[body_at..]);
                let mut ctx = self.ctx.clone();
                ctx.room = Arc::default();
                let answer = dispatch::answer(ctx, key, version, correlation, body);
                self.current = Current::Running {
                    answer: Box::pin(answer),
                    waits: WAITING.contains(&key),
                };
            }
        }
        Ok(true)
    }

    fn take_produce(
        &mut self,
        version: i16,
        correlation: i32,
        body: &mut [u8],
    ) -> Result<bool, Ended> {
        let request = ProduceRequest::parse(body, version)?;
        let mut produce = match self.placing.take() {
            Some(begun) => begun,
            None => Produce::new(&request, version, correlation),
        };
        let shared = &self.ctx.shared;
        let waited = self.starved_since.map_or(Duration::ZERO, |at| at.elapsed());
        let give_up = waited >= shared.memory_wait();
        if !produce.place(shared, &request, body, &mut self.touched, give_up) {
            // Our own written chunks may be what is missing: pump first, then wait for others.
            append::pump(shared, &mut self.touched);
            shared.metrics.memory_waits.inc();
            shared.release_memory();
            self.starved_since.get_or_insert_with(Instant::now);
            self.starved = shared.env.pool.on_free(&self.waker);
            self.placing = Some(produce);
            return Ok(false);
        }
        self.starved_since = None;
        self.pending_bytes += produce.bytes;
        shared
            .in_flight
            .fetch_add(produce.bytes as u64, Ordering::Relaxed);
        if request.acks == 0 && produce.any_refused() {
            return Err(Ended::Unacknowledged);
        }
        self.pending.push_back((request.acks, produce));
        Ok(true)
    }

    fn take_fetch(&mut self, version: i16, correlation: i32, body: &[u8]) -> Result<(), Ended> {
        let request = FetchRequest::parse(body, version)?;
        let shared = &self.ctx.shared;
        let fetch = Fetch::new(request, version, correlation, &mut self.sessions, shared);
        self.current = match fetch {
            Ok(fetch) => Current::Fetching(Box::new(fetch)),
            Err(code) => {
                let mut out = dispatch::begin(ApiKey::Fetch, version, correlation);
                fetch::respond::refusal(version, code, &mut out);
                dispatch::finish(&mut out, 0);
                Current::Answered(vec![out.freeze()])
            }
        };
        Ok(())
    }

    /// Answers the produce requests that are settled, in order.
    fn acknowledge(&mut self) {
        while let Some((acks, front)) = self.pending.front_mut() {
            if !front.poll(&self.waker) && Instant::now() < front.deadline {
                break;
            }
            let metrics = &self.ctx.shared.metrics;
            let seconds = front.received.elapsed().as_secs_f64();
            metrics.append_seconds.observe(seconds);
            if *acks != 0 {
                front.forget(&self.waker);
                let version = front.version();
                let mut out = dispatch::begin(ApiKey::Produce, version, front.correlation);
                front.encode(self.ctx.shared.is_member(), &mut out);
                dispatch::finish(&mut out, 0);
                self.out
                    .push_raw(|gathering| gathering.extend_from_slice(&out));
            }
            let bytes = front.bytes;
            self.pending.pop_front();
            self.release(bytes);
        }
    }

    fn release(&mut self, bytes: usize) {
        self.pending_bytes -= bytes;
        let in_flight = &self.ctx.shared.in_flight;
        in_flight.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    fn serve_fetch(&mut self) {
        let Current::Fetching(fetch) = &mut self.current else {
            return;
        };
        let room = self.claims.room_to_send(self.out.bytes());
        if room == 0 {
            return;
        }
        match fetch.step(&self.ctx.shared, &self.waker, Instant::now(), room) {
            Progress::Wait => {}
            Progress::Reply(parts) => self.reply_fetch(parts),
            Progress::Disk(reads) => {
                let Current::Fetching(mut fetch) =
                    std::mem::replace(&mut self.current, Current::Nothing)
                else {
                    return;
                };
                let shared = self.ctx.shared.clone();
                let read = tokio::task::spawn_blocking(move || {
                    let read = reads.into_iter().map(|read| read.run(&shared));
                    fetch.take_from_disk(read.collect());
                    *fetch
                });
                self.current = Current::Reading(Box::pin(async { read.await.ok() }));
            }
        }
    }

    fn reply_fetch(&mut self, parts: Vec<fetch::serve::Part>) {
        let Current::Fetching(mut fetch) = std::mem::replace(&mut self.current, Current::Nothing)
        else {
            return;
        };
        fetch.forget(&self.waker);
        let head = dispatch::begin(ApiKey::Fetch, fetch.version, fetch.correlation);
        let mut body = fetch::respond::reply(&fetch, parts, head);
        dispatch::finish(&mut body.meta, body.slices);
        let metrics = &self.ctx.shared.metrics;
        metrics.read_bytes.inc_by(body.slices as u64);
        self.current = Current::Answered(body.into_parts());
        fetch.end(&mut self.sessions);
    }

    /// Sends the answer that waited for those before it.
    fn send_answer(&mut self) {
        if !self.pending.is_empty() || !self.is_answered() {
            return;
        }
        if let Current::Answered(parts) = std::mem::replace(&mut self.current, Current::Nothing) {
            self.out.push_parts(parts);
        }
    }

    fn take_settled(&mut self, settled: Settled) -> Result<(), Ended> {
        self.current = match settled {
            Settled::Answer(reply) => {
                self.claims.end_frame();
                Current::Answered(vec![reply?])
            }
            Settled::Read(Some(fetch)) => Current::Fetching(fetch),
            Settled::Read(None) => {
                let error = std::io::Error::other("reading from the disk failed");
                return Err(error.into());
            }
        };
        Ok(())
    }

    /// When to look at deadlines next.
    fn next_look(&self) -> Instant {
        let busy = self.claims.has_frame()
            || !self.out.is_empty()
            || self.crowded
            || self.starved
            || self.input.capacity() > self.input.len();
        let idle = self.ctx.shared.live().server.idle_timeout;
        let pause = match busy {
            true if self.crowded => LOOK_CROWDED,
            true => LOOK_BUSY,
            false if idle.is_zero() => LOOK_IDLE,
            false => LOOK_IDLE.min(idle).max(LOOK_BUSY),
        };
        let now = Instant::now();
        let mut at = now + pause;
        if let Current::Fetching(fetch) = &self.current
            && fetch.deadline > now
        {
            // If it has passed, the reply waits for those before it to be sent.
            at = at.min(fetch.deadline);
        }
        if let Some((_, front)) = self.pending.front() {
            at = at.min(front.deadline);
        }
        at
    }

    fn look_at_deadlines(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        self.crowded = false;
        if now.duration_since(self.looked) < LOOK_BUSY {
            return Ok(());
        }
        self.looked = now;
        if self.out.sent() == self.sent_before {
            self.out.detach();
        }
        self.sent_before = self.out.sent();
        let metrics = &self.ctx.shared.metrics;
        if self
            .claims
            .is_unread(now, self.out.sent(), self.out.bytes())
        {
            metrics.unread_connections.inc();
            return Err(Ended::Unread);
        }
        let waits = self.takes_requests() && self.takes_input();
        let within = self.ctx.shared.config.server.receive_timeout;
        let late = self.input.is_late(now, within, waits) && !self.has_request();
        if late || (waits && self.claims.is_late(now)) {
            return Err(Ended::Slow);
        }
        let small = self.input.len() <= READ_AHEAD && !self.claims.has_frame();
        let passed = small && self.input.capacity() > 2 * READ_AHEAD;
        // A large request has passed, or nothing comes any more.
        if passed || now.duration_since(self.last_input) > KEEP_INPUT {
            let freed = self.input.shrink() + self.out.shrink();
            self.ctx.shared.note_freed(freed);
        }
        let idle = self.ctx.shared.live().server.idle_timeout;
        let waits = !matches!(self.current, Current::Nothing) || !self.pending.is_empty();
        if !idle.is_zero() && !waits && now.duration_since(self.last_input) > idle {
            return Err(Ended::Idle);
        }
        Ok(())
    }
}

/// What has come of the current request.
enum Settled {
    Answer(Result<Bytes, DispatchError>),
    Read(Option<Box<Fetch>>),
}

/// Waits for the current request, if that is what it needs.
async fn settle(current: &mut Current) -> Settled {
    match current {
        Current::Running { answer, .. } => Settled::Answer(answer.await),
        Current::Reading(read) => Settled::Read(read.await.map(Box::new)),
        _ => std::future::pending().await,
    }
}
