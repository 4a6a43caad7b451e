//! A connection of a Kafka client: places what is produced and answers in order.
//!
//! Kafka's clients expect replies in the order of their requests. Produce requests are placed as
//! they come and wait for durability side by side; any other request is worked on alone, and what
//! comes behind it waits in the socket, as with Kafka. How a connection is served is
//! [`kera_broker::client_link`].

mod fetches;
mod login;
mod waits;

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::StrBytes;
use kera_broker::auth::Session;
use kera_broker::client_link::{ClientLink, Overdue, Protocol};
use kera_broker::config::Entrance;
use kera_broker::counted::Counted;
use kera_broker::data::append;
use kera_broker::inbox::READ_AHEAD;
use kera_broker::quotas::Metered;
use kera_broker::tls::{self, Stream};
use kera_broker::unheard::Wanted;
use kera_coordinator::transactions::Fault;
use tokio::net::TcpStream;

use crate::apis;
use crate::behind::Failed;
use crate::context::Ctx;
use crate::dispatch::{self, DispatchError};
use crate::fetch::{self, Fetch, FetchRequest, Sessions};
use crate::produce::{Produce, ProduceRequest};
use crate::reply_room::ReplyRoom;
use crate::sasl;
use crate::throttle;
use crate::topic::TopicRef;
use crate::transactions;
use crate::versions;
use crate::wire::reader::ReadError;
use crate::wire::request::{HeadError, LENGTH_BYTES, RequestHead, metered_by, whole_requests};
use waits::{is_muted, must_wait, waits_for_turn};

/// Requests other than Produce are no longer than this: nothing real comes near it.
const MAX_OTHER_REQUEST: usize = 16 << 20;
/// JoinGroup, of which a coordinator keeps 256 KiB at most.
const MAX_JOIN_REQUEST: usize = 1 << 20;
/// JoinGroup and SyncGroup wait for the other members of a group, ShareFetch for records.
const WAITING: [i16; 3] = [11, 14, SHARE_FETCH];
const SHARE_FETCH: i16 = 78;
const JOIN: u8 = 11;
const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
/// Produce requests of one connection that wait for durability.
const MAX_PENDING: usize = 256;

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
    /// It wants something before it has proved who it is, or has not done so in time.
    #[error(
        "the client has not proved who it is; give it a user's name and password (security.protocol=SASL_SSL, or SASL_PLAINTEXT without TLS, and sasl.mechanism)"
    )]
    Unauthenticated,
    /// It asks too much before it has proved who it is.
    #[error(
        "a client that has not proved who it is sent {MOST_BEFORE_PROOF} requests; a login takes five or six"
    )]
    Chatty,
    /// It asks for something, and what it has proved counts no more.
    #[error(
        "the client has not proved anew in time who it is (auth.max_reauth); clients that know KIP-368 do so by themselves, others connect again"
    )]
    Expired,
    /// Nobody knows what it may do now. Kafka's errors for rights are final, and the end of a connection is not.
    #[error("the rules of access are older than acl.max_age")]
    OldRules,
    /// It begins like TLS.
    #[error(
        "the client speaks TLS, and this listener does not; add kafka to tls.listeners, or write SSL or SASL_SSL for its name in listeners.protocols, or have the client go without (security.protocol=PLAINTEXT)"
    )]
    Tls,
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
type Authenticated = Pin<Box<dyn Future<Output = Result<sasl::Answered, DispatchError>> + Send>>;
type Joined = Pin<Box<dyn Future<Output = Option<Fault>> + Send>>;
type FromDisk = Pin<Box<dyn Future<Output = Option<Fetch>> + Send>>;

/// The one request that is not Produce.
enum Current {
    Nothing,
    /// Its handler runs; `waits` if for other members of a group.
    Running {
        answer: Answer,
        waits: bool,
        room: Arc<ReplyRoom>,
    },
    /// The client's proof of who it is is looked at.
    Authenticating(Authenticated),
    /// The lanes of a Produce request, which stays until then, are made part of a transaction.
    Joining(Joined),
    /// A fetch that is looked at whenever something moves.
    Fetching(Box<Fetch>),
    /// A fetch whose bytes come from the disk.
    Reading(FromDisk),
    /// Its reply waits for those before it.
    Answered(Vec<Bytes>),
}

/// Serves a client's connection until it ends.
pub(crate) async fn serve(socket: TcpStream, mut ctx: Ctx, counted: Counted, wanted: Wanted) {
    let mut wanted = pin!(wanted.wait());
    let stream = tokio::select! {
        begun = begin(socket, &ctx) => match begun {
            Some(stream) => stream,
            None => return,
        },
        () = &mut wanted => return,
    };
    let mut link = ClientLink::new(stream, ctx.shared.clone(), counted.of_data());
    ctx.principal = link.principal.clone();
    let shared = &ctx.shared;
    let gate = ctx.listener.security.asks.then(|| Gate {
        step: sasl::Step::Mechanism,
        requests: 0,
        until: Instant::now() + shared.config.server.receive_timeout,
    });
    if gate.is_some() {
        link.meter.set_nobody();
        link.expect_proof();
    }
    let mut connection = Connection {
        gate,
        session: None,
        renewed: None,
        sessions: Sessions::new(ctx.settings.sessions.clone()),
        ctx,
        pending: VecDeque::new(),
        placing: None,
        joined: None,
        failed: Failed::default(),
        current: Current::Nothing,
        reading: 0,
        current_since: None,
        stopping: false,
    };
    let outcome = tokio::select! {
        outcome = link.serve(&mut connection) => outcome,
        // It has asked for nothing yet.
        () = &mut wanted => return,
    };
    connection.end(&link, &outcome);
}

/// What a connection begins with: TLS, where the address has it. `None` if nothing came of it.
async fn begin(socket: TcpStream, ctx: &Ctx) -> Option<Stream> {
    let shared = &ctx.shared;
    if !ctx.listener.security.has_tls {
        return Some(socket.into());
    }
    match shared.tls.as_ref() {
        // A defect: a client that would be served without TLS here stays out.
        None => None,
        Some(tls) => {
            let within = shared.config.server.receive_timeout;
            let mut stopping = shared.stopping.subscribe();
            let entrance = Entrance::of_kafka(ctx.listener.name.clone());
            tokio::select! {
                begun = Box::pin(tls.accept(socket, ctx.peer, entrance, within)) => begun.ok(),
                _ = stopping.wait_for(|stop| *stop) => None,
            }
        }
    }
}

/// Requests that a client has before it has proved who it is. A login takes five or six; what more a stranger asks costs time that
/// no quota counts.
const MOST_BEFORE_PROOF: u32 = 32;

/// What a client has to pass before it may do anything.
struct Gate {
    step: sasl::Step,
    /// Requests that were taken.
    requests: u32,
    /// It has to have passed by then.
    until: Instant,
}

/// What is under way on a client's connection.
struct Connection {
    /// None: the client may ask for anything.
    gate: Option<Gate>,
    /// From the client's proof on.
    session: Option<Session>,
    /// When the client last began to prove anew who it is.
    renewed: Option<Instant>,
    ctx: Ctx,
    /// Produce requests that wait for durability, oldest first.
    pending: VecDeque<(i16, Produce)>,
    /// Progress of the produce request at the front while memory is short.
    placing: Option<Produce>,
    /// The lanes of the produce request at the front were made part of its transaction, or the coordinator refused.
    joined: Option<Option<Fault>>,
    failed: Failed,
    current: Current,
    /// Bytes that are read from the disk, about.
    reading: usize,
    /// API and version of the current request, and since when it is that.
    current_since: Option<(i16, i16, Instant)>,
    sessions: Sessions,
    stopping: bool,
}

impl Protocol for Connection {
    type Ended = Ended;
    type Settled = Settled;
    const LOOK: Duration = Duration::from_millis(500);

    /// Of the request at the front, its length field included.
    fn frame_bytes(&self, link: &ClientLink) -> Result<usize, Ended> {
        let Some(field) = link.input.bytes().first_chunk::<LENGTH_BYTES>() else {
            return Ok(0);
        };
        if tls::is_client_hello(field) {
            return Err(Ended::Tls);
        }
        let claimed = i32::from_be_bytes(*field);
        let most = self.ctx.max_request_bytes();
        let limit = match link.input.bytes().get(LENGTH_BYTES..LENGTH_BYTES + 2) {
            _ if self.gate.is_some() => most.min(sasl::MAX_REQUEST),
            Some([0, 0]) | None => most,
            Some([0, JOIN]) => most.min(MAX_JOIN_REQUEST),
            Some(_) => most.min(MAX_OTHER_REQUEST),
        };
        match usize::try_from(claimed) {
            Ok(length) if length <= limit => Ok(LENGTH_BYTES + length),
            _ => Err(Ended::TooLong(claimed.into(), limit)),
        }
    }

    /// One round: requests, pumps, acknowledgements, the fetch that waits.
    fn work(&mut self, link: &mut ClientLink) -> Result<(), Ended> {
        let gate = self.gate.as_ref().filter(|_| !self.stopping);
        // While an answer waits for those before it, it is the broker that takes long.
        if self.is_idle() && gate.is_some_and(|gate| gate.until <= Instant::now()) {
            return Err(Ended::Unauthenticated);
        }
        for metered in [Metered::Appends, Metered::Reads] {
            if link.meter.is_waiting(metered) {
                link.meter.waits(metered);
            }
        }
        let outcome = self.take_requests(link);
        // Also what came before a request that ends the connection.
        append::pump(&link.shared.data, &mut link.touched);
        self.acknowledge(link);
        outcome?;
        let waits = self.waits_for_others() || is_muted(link);
        if link.has_ended() && waits && !self.outlives_client(link) {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        self.check_fetch_again()?;
        self.serve_fetch(link);
        self.send_answer(link);
        if self.has_request(link) {
            link.bell.ring();
        }
        Ok(())
    }

    /// While a request runs some bytes are still read, to see the peer go.
    fn takes_input(&self, link: &ClientLink) -> bool {
        let room = matches!(self.current, Current::Nothing) || link.input.len() < READ_AHEAD;
        room && !self.stopping && !is_muted(link) && self.pending.len() < MAX_PENDING
    }

    /// Nothing is claimed for a request that would wait until its client owes nothing: others would be without that
    /// memory as long.
    fn may_arrive(&mut self, link: &mut ClientLink) -> Option<bool> {
        let (key, client) = metered_by(link.input.bytes().get(LENGTH_BYTES..)?)?;
        // Bytes that are only claimed cost nothing: they are charged once they are there.
        let (metered, bytes) = match key {
            0 => (Metered::Appends, 0),
            FETCH | SHARE_FETCH => (Metered::Reads, usize::MAX),
            _ => return Some(true),
        };
        link.meter.set_client(client);
        Some(!link.meter.waits(metered) && !link.meter.waits_for_turn(metered, bytes, &link.waker))
    }

    /// Batches that are not acknowledged are stored, also behind requests that would be answered.
    fn outlives_client(&self, link: &ClientLink) -> bool {
        self.gate.is_none() && whole_requests(link.input.bytes()).any(wants_no_answer)
    }

    /// What is owed to the client is bounded.
    fn takes_frames(&self, link: &ClientLink) -> bool {
        matches!(self.current, Current::Nothing)
            && !self.stopping
            && !is_muted(link)
            && self.pending.len() < MAX_PENDING
            && link.room_to_send() > 0
            // Until its client has proved who it is one answer at a time waits for it.
            && (self.gate.is_none() || link.out.is_empty())
    }

    /// Waits for the current request, if that is what it needs.
    async fn settled(&mut self) -> Settled {
        match &mut self.current {
            Current::Running { answer, .. } => Settled::Answer(answer.await),
            Current::Reading(read) => Settled::Read(read.await.map(Box::new)),
            Current::Authenticating(answer) => Settled::Authenticated(answer.await),
            Current::Joining(joined) => Settled::Joined(joined.await),
            _ => std::future::pending().await,
        }
    }

    fn take_settled(&mut self, link: &mut ClientLink, settled: Settled) -> Result<(), Ended> {
        if let Current::Running { room, .. } = &self.current
            && let Some(step) = room.take_step()
        {
            link.claims.begin_step(step);
        }
        self.current = match settled {
            Settled::Answer(reply) => {
                link.claims.end_frame();
                let mut reply = [reply?];
                if let Some((SHARE_FETCH, version, _)) = self.current_since {
                    let bytes = reply[0].len();
                    let wait = link.meter.charge_answered(Metered::Reads, bytes);
                    throttle::tell(&mut reply, SHARE_FETCH, version, wait);
                    self.ctx.shared.data.metrics.read_bytes.inc_by(bytes as u64);
                }
                Current::Answered(reply.into())
            }
            Settled::Authenticated(answered) => {
                link.claims.end_frame();
                let sasl::Answered { reply, step } = answered?;
                link.hold_for_proof(step.holds());
                self.stepped(link, step);
                Current::Answered(vec![reply])
            }
            Settled::Joined(refused) => {
                self.joined = Some(refused);
                Current::Nothing
            }
            Settled::Read(Some(fetch)) => Current::Fetching(fetch),
            Settled::Read(None) => {
                let error = std::io::Error::other("reading from the disk failed");
                return Err(error.into());
            }
        };
        Ok(())
    }

    fn coming(&self) -> usize {
        match &self.current {
            Current::Reading(_) => self.reading,
            Current::Answered(parts) => parts.iter().map(Bytes::len).sum(),
            _ => 0,
        }
    }

    /// Whatever waits has a deadline: thousands of long polls cost next to nothing.
    fn is_busy(&self) -> bool {
        false
    }

    fn deadline(&self, link: &ClientLink) -> Option<Instant> {
        let fetch = match &self.current {
            // If it has passed, the reply waits for those before it to be sent.
            Current::Fetching(fetch) => Some(fetch.due(link.claims.waits_for_step())),
            _ => None,
        };
        let fetch = fetch.filter(|due| *due > Instant::now());
        let produce = self.pending.front().map(|(_, front)| front.deadline);
        let gate = self.gate.as_ref().map(|gate| gate.until);
        let gate = gate.filter(|until| *until > Instant::now());
        let muted = [Metered::Appends, Metered::Reads];
        let muted = muted.into_iter().filter_map(|one| link.meter.look_at(one));
        fetch
            .into_iter()
            .chain(produce)
            .chain(gate)
            .chain(muted)
            .min()
    }

    fn is_idle(&self) -> bool {
        matches!(self.current, Current::Nothing) && self.pending.is_empty()
    }

    fn overdue(&mut self, _: &mut ClientLink, what: Overdue) -> Result<(), Ended> {
        Err(match what {
            Overdue::Unread => Ended::Unread,
            Overdue::Frame => Ended::Slow,
            Overdue::Idle => Ended::Idle,
        })
    }

    fn stop(&mut self, _: &mut ClientLink) {
        self.stopping = true;
    }

    /// Nothing is owed to the client, but what may take for ever.
    fn is_over(&self, link: &ClientLink) -> bool {
        let working = match &self.current {
            Current::Running { waits, .. } => !waits,
            Current::Answered(_) | Current::Authenticating(_) | Current::Joining(_) => true,
            Current::Nothing | Current::Fetching(_) | Current::Reading(_) => false,
        };
        self.stopping && self.pending.is_empty() && link.out.is_empty() && !working
    }
}

impl Connection {
    /// Nobody wakes it any more; tells why it ended.
    fn end(&mut self, link: &ClientLink, outcome: &Result<(), Ended>) {
        if let Some((_, front)) = self.pending.front() {
            front.forget(&link.waker);
        }
        if let Current::Fetching(fetch) = &mut self.current {
            fetch.forget(&link.waker);
        }
        let (peer, principal): (SocketAddr, _) = (self.ctx.peer, &link.principal);
        match outcome {
            Err(Ended::Socket(_) | Ended::Idle | Ended::OldRules) | Ok(()) => {
                tracing::debug!(%peer, %principal, ?outcome, "a Kafka client's connection ended");
            }
            Err(error) => {
                link.shared.data.metrics.protocol_errors.inc();
                let client = self.ctx.client_id.as_deref().unwrap_or_default();
                let due = link.shared.bad_connections.lock().due(Instant::now());
                match due {
                    Some(others) => {
                        tracing::info!(%peer, %principal, client, %error, others, "closing the connection of a Kafka client, and so it was with others lately");
                    }
                    None => {
                        tracing::debug!(%peer, %principal, client, %error, "closing the connection of a Kafka client");
                    }
                }
            }
        }
    }

    /// True while the current request may take as long as its client said.
    fn waits_for_others(&self) -> bool {
        matches!(
            self.current,
            Current::Fetching(_) | Current::Running { waits: true, .. }
        )
    }

    fn is_answered(&self) -> bool {
        matches!(self.current, Current::Answered(_))
    }

    /// A request waits in `input` that could be worked on.
    fn has_request(&self, link: &ClientLink) -> bool {
        let whole = self.frame_bytes(link).unwrap_or(0);
        self.takes_frames(link) && !link.starved && whole > 0 && whole <= link.input.len()
    }

    fn take_requests(&mut self, link: &mut ClientLink) -> Result<(), Ended> {
        while self.takes_frames(link) {
            let whole = self.frame_bytes(link)?;
            if whole == 0 || whole > link.input.len() {
                break;
            }
            // Worked on apart, so that a request's bytes and the connection can both be borrowed.
            let mut input = std::mem::take(&mut link.input);
            let outcome = self.take_request(link, &mut input.bytes_mut()[LENGTH_BYTES..whole]);
            link.input = input;
            let Some((key, version)) = outcome? else {
                break;
            };
            self.count(key, version);
            if ![PRODUCE, FETCH, SHARE_FETCH].contains(&key) {
                link.meter.take_turn();
            }
            link.input.consume(whole);
            if let Some(gate) = &mut self.gate {
                link.input.shrink();
                gate.requests += 1;
                if gate.requests > MOST_BEFORE_PROOF {
                    return Err(Ended::Chatty);
                }
            }
            // What a handler works on stays claimed until it has answered.
            if !matches!(self.current, Current::Running { waits: false, .. }) {
                link.claims.end_frame();
            }
        }
        Ok(())
    }

    /// A request of this API was taken.
    fn count(&mut self, key: i16, version: i16) {
        if let Some(metrics) = self.ctx.settings.requests.get(&key) {
            metrics.taken();
        }
        if key != PRODUCE {
            self.current_since = Some((key, version, Instant::now()));
        }
    }

    /// Counts how long a request of this API took that is answered now.
    fn count_answer(&self, key: i16, since: Instant) {
        if let Some(requests) = self.ctx.settings.requests.get(&key) {
            requests.answered(&self.ctx.shared.data.metrics, since);
        }
    }

    /// Acts on one request, and returns its API and version. `None`: it stays, because memory is short, or its lanes become part of
    /// a transaction, or the client has used up a quota.
    fn take_request(
        &mut self,
        link: &mut ClientLink,
        request: &mut [u8],
    ) -> Result<Option<(i16, i16)>, Ended> {
        let head = RequestHead::parse(request)?;
        let (key, version, correlation) = (head.api_key, head.api_version, head.correlation);
        if self.gate.is_none() {
            link.heard();
        }
        let body_at = head.body_at;
        if self.ctx.client_id.as_deref() != head.client_id {
            self.ctx.client_id = head
                .client_id
                .map(|id| StrBytes::from_string(id.to_owned()));
            link.meter.set_client(head.client_id.unwrap_or_default());
        }
        let is_new = self.gate.is_none() && self.placing.is_none();
        if is_new && must_wait(link, Metered::Time) {
            return Ok(None);
        }
        if is_new && waits_for_turn(link, &head, request) {
            return Ok(None);
        }
        let is_over = self.session.as_ref().is_some_and(Session::is_over);
        if is_over && self.gate.is_none() && key != sasl::HANDSHAKE {
            return Err(Ended::Expired);
        }
        if self.is_refused_for_age(key) {
            return Err(Ended::OldRules);
        }
        let taken = match key {
            versions::KEY => {
                let cluster_version = self.ctx.shared.settings.cluster_version();
                let (response, version) = versions::answer(version, cluster_version);
                let reply = dispatch::encode(ApiKey::ApiVersions, version, correlation, &response)?;
                self.current = Current::Answered(vec![reply]);
                true
            }
            sasl::HANDSHAKE | sasl::AUTHENTICATE => {
                if key == sasl::HANDSHAKE {
                    self.begin_anew();
                }
                let body = Bytes::copy_from_slice(&request[body_at..]);
                link.hold_for_proof(
                    body.len() + self.gate.as_ref().map_or(0, |gate| gate.step.holds()),
                );
                self.authenticate((key, version, correlation), body);
                true
            }
            _ if self.gate.is_some() => {
                let why = Ended::Unauthenticated.to_string();
                let auth = &self.ctx.shared.auth;
                auth.refused(sasl::peer(&self.ctx), "", "", why);
                return Err(Ended::Unauthenticated);
            }
            PRODUCE => self.take_produce(link, version, correlation, &mut request[body_at..])?,
            FETCH => self.take_fetch(link, version, correlation, &request[body_at..])?,
            SHARE_FETCH if must_wait(link, Metered::Reads) => false,
            _ => {
                let body = Bytes::copy_from_slice(&request[body_at..]);
                let mut ctx = self.ctx.clone();
                let room = Arc::<ReplyRoom>::default();
                ctx.room = room.clone();
                let answer = dispatch::answer(ctx, key, version, correlation, body);
                self.current = Current::Running {
                    answer: Box::pin(answer),
                    waits: WAITING.contains(&key),
                    room,
                };
                true
            }
        };
        Ok(taken.then_some((key, version)))
    }

    fn take_produce(
        &mut self,
        link: &mut ClientLink,
        version: i16,
        correlation: i32,
        body: &mut [u8],
    ) -> Result<bool, Ended> {
        if self.placing.is_none() && must_wait(link, Metered::Appends) {
            return Ok(false);
        }
        let request = ProduceRequest::parse(body, version)?;
        if self.joined.is_none()
            && self.placing.is_none()
            && let Some(joining) = transactions::to_join(&self.ctx, version, &request, body)
        {
            self.current = Current::Joining(Box::pin(joining));
            return Ok(false);
        }
        let mut produce = match self.placing.take() {
            Some(begun) => begun,
            None => {
                let mut produce = Produce::new(&request, version, correlation);
                produce.throttle = link.meter.charge(Metered::Appends, body.len());
                produce
            }
        };
        let give_up = link.gives_up_memory();
        let (ctx, touched) = (&self.ctx, &mut link.touched);
        let refused = self.joined.flatten();
        if !produce.place(ctx, &request, body, touched, refused, give_up) {
            link.wait_for_memory();
            self.placing = Some(produce);
            return Ok(false);
        }
        self.joined = None;
        link.has_memory();
        link.claims.wait_for(produce.bytes);
        if request.acks == 0 && produce.any_refused() {
            return Err(Ended::Unacknowledged);
        }
        self.pending.push_back((request.acks, produce));
        Ok(true)
    }

    /// False: the client waits, and the request stays.
    fn take_fetch(
        &mut self,
        link: &mut ClientLink,
        version: i16,
        correlation: i32,
        body: &[u8],
    ) -> Result<bool, Ended> {
        if must_wait(link, Metered::Reads) {
            return Ok(false);
        }
        let request = FetchRequest::parse(body, version)?;
        let ctx = &self.ctx;
        let (sessions, shared) = (&mut self.sessions, &*ctx.shared);
        let is_denied = |topic: &TopicRef| ctx.is_denied(apis::FETCH, topic);
        let fetch = Fetch::new(request, version, correlation, sessions, shared, is_denied);
        self.current = match fetch {
            Ok(mut fetch) => {
                // What comes later is for a client that has proved anew who it is.
                let until = self.session.as_ref().and_then(|session| session.until);
                fetch.deadline = until.map_or(fetch.deadline, |until| fetch.deadline.min(until));
                Current::Fetching(Box::new(fetch))
            }
            Err(code) => {
                let mut out = dispatch::begin(ApiKey::Fetch, version, correlation);
                fetch::respond::refusal(version, code, &mut out);
                dispatch::finish(&mut out, 0);
                Current::Answered(vec![out.freeze()])
            }
        };
        Ok(true)
    }

    /// Answers the produce requests that are settled, in order.
    fn acknowledge(&mut self, link: &mut ClientLink) {
        while let Some((acks, front)) = self.pending.front_mut() {
            if !front.poll(&link.waker) && Instant::now() < front.deadline {
                break;
            }
            front.throttle = front.throttle.max(link.meter.time_wait());
            let received = front.received;
            let took = received.elapsed();
            let metrics = &self.ctx.shared.data.metrics;
            metrics.append_seconds.observe(took.as_secs_f64());
            link.meter.answered(took);
            if *acks != 0 {
                front.forget(&link.waker);
                let version = front.version();
                let mut out = dispatch::begin(ApiKey::Produce, version, front.correlation);
                let member = self.ctx.shared.data.directory.is_current();
                front.encode(member, &mut self.failed, &mut out);
                dispatch::finish(&mut out, 0);
                link.out
                    .push_raw(|gathering| gathering.extend_from_slice(&out));
            }
            let bytes = front.bytes;
            self.pending.pop_front();
            self.count_answer(PRODUCE, received);
            link.claims.release(bytes);
        }
    }

    /// Sends the answer that waited for those before it.
    fn send_answer(&mut self, link: &mut ClientLink) {
        if !self.pending.is_empty() || !self.is_answered() {
            return;
        }
        if let Current::Answered(mut parts) = std::mem::replace(&mut self.current, Current::Nothing)
        {
            let current = self.current_since.take();
            if let Some((key, version, _)) = current {
                throttle::tell(&mut parts, key, version, link.meter.time_wait());
            }
            link.out.push_parts(parts);
            if let Some((key, _, since)) = current {
                self.count_answer(key, since);
                self.renew_gate(key);
            }
        }
    }
}

/// True for a Produce request with acks = 0.
fn wants_no_answer(request: &[u8]) -> bool {
    let head = RequestHead::parse(request)
        .ok()
        .filter(|head| head.api_key == 0);
    let produce =
        head.map(|head| ProduceRequest::parse(&request[head.body_at..], head.api_version));
    produce.is_some_and(|produce| produce.is_ok_and(|produce| produce.acks == 0))
}

/// What has come of the current request.
enum Settled {
    Answer(Result<Bytes, DispatchError>),
    Read(Option<Box<Fetch>>),
    Authenticated(Result<sasl::Answered, DispatchError>),
    /// What the coordinator of the transaction refused.
    Joined(Option<Fault>),
}
