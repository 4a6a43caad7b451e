//! A connection of the native protocol: appends, reads, long polls, subscriptions and control calls.
//!
//! Nothing here hands work to another task unless bytes must come from the disk, or for a control call. How it is served is
//! [`crate::client_link`].

mod appends;
mod aside;
mod reads;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kera_grpc::serve::Caller;
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{self, Decoded, FrameError, FrameHeader, FrameKind};
use kera_protocol::v1;
use kera_rpc::stream::Stream;
use tokio::sync::mpsc;

use crate::access::Granted;
use crate::admin::calls::framed_calls::{self, CallOver, ConnectionCalls, FramedCalls};
use crate::auth::Session;
use crate::client_link::{ClientLink, Overdue, Protocol};
use crate::counted::Counted;
use crate::data::append::{self, Partial, PendingAppend};
use crate::data::fetch::{self, Read, Step, Subscription};
use crate::data::memory_budget::LEAST_DISK_READ;
use crate::principal::Principal;
use crate::quotas::Metered;
use crate::shared::Shared;
use aside::AsideAppends;

/// Reads of one connection that wait for the disk at a time, and most bytes of each.
const MAX_DISK_READS: usize = 16;
const DISK_READ: usize = LEAST_DISK_READ;
/// Long polls of one connection.
const MAX_PARKED_READS: usize = 16_384;
/// Looks at deadlines after which every subscription and read is looked at, woken or not: its stream may be
/// gone, or its lane generation may have ended.
const LOOKS_AT_ALL: u32 = 10;

/// Serves a data connection that has said hello, until it ends.
///
/// # Errors
/// The socket's, or `TimedOut` for one that was idle for too long.
pub(crate) async fn serve(
    stream: Stream,
    (peer, caller, session): (SocketAddr, Caller, Session),
    shared: Arc<Shared>,
    calls: Arc<FramedCalls>,
    counted: Counted,
) -> io::Result<()> {
    let mut link = ClientLink::new(stream, shared, counted);
    link.set_principal(session.principal);
    let mut connection = Connection::new((peer, &caller), calls, &link.principal);
    connection.until = session.until;
    let outcome = link.serve(&mut connection).await;
    connection.forget(&link);
    tracing::debug!(%peer, principal = %link.principal, ?outcome, "data connection ended");
    outcome
}

/// What a thread that may wait has read.
enum FromDisk {
    Copy(u32, v1::ReadResponse, Vec<Bytes>),
    Read(Read, Step<v1::ReadResponse>),
    Push(Box<Subscription>, Step<v1::PushData>),
}

/// What others have done for a connection.
enum Settled {
    Read(Option<Box<FromDisk>>),
    Call(CallOver),
}

/// The answer to an append that is settled, held back because the client has used up its quota.
struct HeldAnswer {
    not_before: Instant,
    correlation: u32,
    reply: v1::AppendResponse,
}

/// What is under way on a connection.
struct Connection {
    peer: SocketAddr,
    /// Progress of the frame at the front while memory is short.
    partial: Partial,
    /// The append at the front is charged, and is not to be answered before this, if it is to wait.
    charged: Option<Option<Instant>>,
    /// Appends that wait to be durable, and before when each is not to be answered.
    pending: VecDeque<(Option<Instant>, PendingAppend)>,
    held: Vec<HeldAnswer>,
    /// Appends that wait until the client owes no time and has a turn.
    aside: AsideAppends,
    reads: Vec<Read>,
    /// Reads of copies of groups that other brokers own, waiting for their turn at the disk.
    copy_reads: VecDeque<(u32, v1::ReadRequest)>,
    subscriptions: BTreeMap<u32, Subscription>,
    /// The subscription that was pushed to last; the next round begins behind it.
    last_pushed: u32,
    /// Boxed: a channel has room for many from its beginning.
    disk: (mpsc::Sender<Box<FromDisk>>, mpsc::Receiver<Box<FromDisk>>),
    /// Reads handed to threads that may wait.
    disk_reads: usize,
    calls: ConnectionCalls,
    granted: Granted,
    /// Every subscription and read has been looked at since the last wake-up.
    quiet: bool,
    closing: bool,
    /// When what the client has proved counts no more.
    until: Option<Instant>,
    looks: u32,
}

impl Protocol for Connection {
    type Ended = io::Error;
    type Settled = Settled;
    const LOOK: Duration = Duration::from_millis(100);

    fn frame_bytes(&self, link: &ClientLink) -> io::Result<usize> {
        // What is no frame is told of when it is worked on.
        Ok(match frame::decode(link.input.bytes(), max_frame(link)) {
            Ok(Decoded::Frame(header)) => header.total_bytes(),
            _ => 0,
        })
    }

    /// One round: frames, pumps, acknowledgements, reads and pushes.
    fn work(&mut self, link: &mut ClientLink) -> io::Result<()> {
        if self.until.is_some_and(|until| until <= Instant::now()) {
            self.until = None;
            self.close(
                link,
                "what the client has proved counts no more (auth.max_reauth); connect again",
            );
        }
        self.check_again(link);
        self.take_aside(link);
        self.take_frames(link);
        append::pump(&link.shared.data, &mut link.touched);
        self.acknowledge(link);
        let reads = !self.quiet || link.meter.is_waiting(Metered::Reads);
        let waits = reads && link.meter.waits(Metered::Reads);
        if !self.quiet && !waits && link.room_to_send() > 0 {
            self.quiet = true;
            self.serve_reads(link);
            self.serve_copy_reads(link);
            self.serve_subscriptions(link);
            if self.disk_reads == 0 {
                link.meter.found_nothing();
            }
        }
        Ok(())
    }

    fn takes_frames(&self, _: &ClientLink) -> bool {
        !self.closing
    }

    /// Appends that were put aside are stored, also for a client that has gone.
    fn outlives_client(&self, _: &ClientLink) -> bool {
        !self.aside.is_empty()
    }

    fn coming(&self) -> usize {
        self.disk_reads * DISK_READ
    }

    /// Serving stopped at the limit on bytes to send, and they are sent.
    fn goes_on(&self, link: &ClientLink) -> bool {
        let may_send = link.room_to_send() > 0 && !link.claims.waits_for_step();
        !self.quiet && may_send && !link.meter.is_waiting(Metered::Reads)
    }

    /// When something that a quota holds back may go on.
    fn deadline(&self, link: &ClientLink) -> Option<Instant> {
        let reads = link.meter.look_at(Metered::Reads);
        let answers = self.held_until(link);
        let until = self
            .until
            .filter(|_| !self.closing || !self.aside.is_empty());
        let aside = self.aside.gives_up().map(|gives_up| {
            let look = link.meter.look_at(Metered::Time);
            look.map_or(gives_up, |look| look.min(gives_up))
        });
        let all = reads.into_iter().chain(answers).chain(until);
        all.chain(aside).min()
    }

    fn rung(&mut self) {
        self.quiet = false;
    }

    async fn settled(&mut self) -> Settled {
        tokio::select! {
            read = self.disk.1.recv() => Settled::Read(read),
            call = self.calls.next(), if !self.calls.is_empty() => Settled::Call(call),
        }
    }

    fn take_settled(&mut self, link: &mut ClientLink, settled: Settled) -> io::Result<()> {
        match settled {
            Settled::Read(read) => {
                self.check_again(link);
                if let Some(read) = read {
                    self.take_from_disk(link, *read);
                }
            }
            Settled::Call(call) => {
                if let Some((correlation, answered)) = self.calls.take(call) {
                    answer_call(link, correlation, answered);
                }
            }
        }
        Ok(())
    }

    fn look(&mut self, link: &mut ClientLink, now: Instant) {
        self.check_again(link);
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_AT_ALL) {
            self.unpark();
        } else if self.reads.iter().any(|read| read.deadline <= now) {
            self.quiet = false;
        }
        self.give_up_appends(link, now);
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.held.is_empty()
            && self.aside.is_empty()
            && self.reads.is_empty()
            && self.copy_reads.is_empty()
            && self.subscriptions.is_empty()
            && self.disk_reads == 0
            && self.calls.is_empty()
    }

    fn overdue(&mut self, link: &mut ClientLink, what: Overdue) -> io::Result<()> {
        match what {
            Overdue::Unread | Overdue::Idle => Err(io::ErrorKind::TimedOut.into()),
            Overdue::Frame => {
                self.give_up_frame(link);
                Ok(())
            }
        }
    }

    /// No more frames; what is in flight is still answered.
    fn stop(&mut self, link: &mut ClientLink) {
        self.close(link, "the broker is stopping");
    }

    fn is_over(&self, link: &ClientLink) -> bool {
        let owes = !(self.pending.is_empty() && self.held.is_empty() && self.aside.is_empty());
        self.closing && link.out.is_empty() && !owes
    }
}

impl Connection {
    /// No more frames; what is in flight is still answered. Clients connect again, and send again what was refused.
    fn close(&mut self, link: &mut ClientLink, why: &str) {
        let error = WireError::new(ErrorCode::ShuttingDown, why);
        // Also of a client that says it sends nothing more, and waits for the answers.
        self.refuse_aside(link, &error);
        if self.closing {
            return;
        }
        self.closing = true;
        let reads = std::mem::take(&mut self.reads).into_iter();
        let copies = std::mem::take(&mut self.copy_reads).into_iter();
        let reads = reads.map(|read| read.correlation);
        for correlation in reads.chain(copies.map(|(correlation, _)| correlation)) {
            link.out.push(
                FrameKind::ReadReply,
                correlation,
                &fetch::read_refusal(&error),
                Vec::new(),
            );
        }
        for correlation in self.calls.give_up() {
            answer_call(link, correlation, Err(error.clone()));
        }
        self.subscriptions.clear();
        link.out.push_raw(|out| frame::encode_go_away(out, &error));
    }
}

fn answer_call(link: &mut ClientLink, correlation: u32, answered: framed_calls::Answered) {
    let (header, body) = match answered {
        Ok(reply) => (v1::CallResponse::default(), vec![reply]),
        Err(error) => (framed_calls::refusal(&error), Vec::new()),
    };
    link.out
        .push(FrameKind::CallReply, correlation, &header, body);
}

fn max_frame(link: &ClientLink) -> usize {
    link.shared.config.server.max_frame_bytes as usize
}

impl Connection {
    fn new(
        (peer, caller): (SocketAddr, &Caller),
        calls: Arc<FramedCalls>,
        principal: &Principal,
    ) -> Self {
        Self {
            granted: Granted::new(principal.clone(), caller),
            peer,
            partial: Partial::default(),
            charged: None,
            pending: VecDeque::new(),
            held: Vec::new(),
            aside: AsideAppends::default(),
            reads: Vec::new(),
            copy_reads: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            last_pushed: 0,
            disk: mpsc::channel(MAX_DISK_READS),
            disk_reads: 0,
            calls: ConnectionCalls::new(calls, caller.clone()),
            quiet: false,
            closing: false,
            until: None,
            looks: 0,
        }
    }

    /// An idle lane must not collect the wakers of connections that have gone.
    fn forget(&self, link: &ClientLink) {
        let waker = &link.waker;
        self.pending
            .iter()
            .for_each(|(_, pending)| pending.forget(waker));
        let reads = self.reads.iter().map(|read| &read.target);
        let subscriptions = self.subscriptions.values().map(|s| &s.target);
        reads
            .chain(subscriptions)
            .for_each(|target| target.head.forget(waker));
    }

    fn take_frames(&mut self, link: &mut ClientLink) {
        // Worked on apart, so that a frame's bytes and the connection can both be borrowed.
        let mut input = std::mem::take(&mut link.input);
        while !self.closing && link.may_take() {
            match frame::decode(input.bytes(), max_frame(link)) {
                Ok(Decoded::NeedMore(_)) => break,
                Ok(Decoded::Frame(header)) if header.total_bytes() > input.len() => break,
                Ok(Decoded::Frame(header)) => {
                    let total = header.total_bytes();
                    match self.take_frame(link, header, &mut input.bytes_mut()[..total]) {
                        Ok(true) => {
                            input.consume(total);
                            link.claims.end_frame();
                        }
                        Ok(false) => break,
                        Err(error) => {
                            self.fail(link, &error);
                            break;
                        }
                    }
                }
                Err(error) => {
                    self.fail(link, &error);
                    break;
                }
            }
        }
        link.input = input;
    }

    /// Acts on one frame. False: memory is short, the frame stays.
    fn take_frame(
        &mut self,
        link: &mut ClientLink,
        header: FrameHeader,
        bytes: &mut [u8],
    ) -> Result<bool, FrameError> {
        let (head, body) = bytes[frame::PREFIX_BYTES..].split_at_mut(header.header_bytes);
        let correlation = header.correlation;
        match header.kind {
            FrameKind::Append => {
                let request: v1::AppendRequest = decode(head)?;
                if self.append_waits(link, body.len()) {
                    self.put_aside(link, correlation, request, body);
                    return Ok(true);
                }
                return Ok(self.take_append(link, correlation, &request, body));
            }
            FrameKind::Read => {
                let request: v1::ReadRequest = decode(head)?;
                self.take_read(link, correlation, &request);
            }
            FrameKind::Subscribe => {
                let request: v1::SubscribeRequest = decode(head)?;
                self.take_subscribe(link, correlation, &request);
            }
            FrameKind::Credit => {
                let request: v1::CreditRequest = decode(head)?;
                self.take_credit(link, &request);
            }
            FrameKind::Call => {
                let request: v1::CallRequest = decode(head)?;
                if let Err(error) = self.calls.begin(correlation, &request, body) {
                    answer_call(link, correlation, Err(error));
                }
            }
            FrameKind::Ping => link
                .out
                .push_raw(|out| frame::encode_empty(out, FrameKind::Pong, correlation)),
            FrameKind::Pong => {}
            FrameKind::GoAway => self.closing = true,
            other => {
                return Err(FrameError::BadMessage(format!(
                    "{other:?} is not for a broker"
                )));
            }
        }
        Ok(true)
    }

    /// The frame that is arriving takes too long, with memory claimed that others may wait for.
    fn give_up_frame(&mut self, link: &mut ClientLink) {
        self.closing = true;
        let within = link.shared.config.server.receive_timeout;
        let text = format!("a frame did not arrive within {within:?}; send smaller frames");
        let error = WireError::new(ErrorCode::Timeout, text);
        self.refuse_aside(link, &error);
        link.out.push_raw(|out| frame::encode_go_away(out, &error));
    }

    /// The peer broke the protocol: say why, and end.
    fn fail(&mut self, link: &mut ClientLink, error: &FrameError) {
        tracing::debug!(peer = %self.peer, %error, "closing a connection that broke the protocol");
        link.shared.data.metrics.protocol_errors.inc();
        self.closing = true;
        self.subscriptions.clear();
        self.reads.clear();
        self.copy_reads.clear();
        let error: WireError = error.clone().into();
        self.refuse_aside(link, &error);
        link.out.push_raw(|out| frame::encode_go_away(out, &error));
    }
}

fn decode<M: Message + Default>(head: &[u8]) -> Result<M, FrameError> {
    M::decode(head).map_err(|error| FrameError::BadMessage(error.to_string()))
}
