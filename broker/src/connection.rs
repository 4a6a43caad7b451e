//! One data connection, one task: read what there is, place it, pump it, acknowledge, serve reads,
//! send, wait.
//!
//! Nothing here hands work to another task unless bytes must come from the disk. A connection is
//! woken by its socket, by a durable head it waits for, or by memory becoming free.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kera_log_segments::group::Group;
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{self, Decoded, FrameError, FrameHeader, FrameKind};
use kera_protocol::v1;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::append::{self, Partial, PendingAppend, Placed};
use crate::bell::Bell;
use crate::copy_reads;
use crate::fetch::{self, MAX_SUBSCRIPTIONS, Read, Step, Subscription, Target};
use crate::inbox::{Inbox, READ_AHEAD, Received};
use crate::listener::Counted;
use crate::memory_budget::{Claims, MOST_IN_A_CROWD};
use crate::outbox::Outbox;
use crate::shared::Shared;

/// A connection that has received nothing for this long gives back its buffer.
const KEEP_INPUT: Duration = Duration::from_secs(2);
/// Reads of one connection that wait for the disk at a time, and most bytes of each.
const MAX_DISK_READS: usize = 16;
const DISK_READ: usize = 1 << 20;
/// Long polls of one connection.
const MAX_PARKED_READS: usize = 16_384;
/// How often a connection looks at its deadlines,
const TICK: Duration = Duration::from_millis(100);
/// and how often if it has none, so that thousands of idle connections cost next to nothing.
const SLOW_TICK: Duration = Duration::from_secs(10);
/// Ticks after which every subscription and read is looked at, woken or not: its stream may be gone,
/// or its lane generation may have ended.
const LOOK_TICKS: u32 = 10;

/// What a thread that may wait has read.
enum FromDisk {
    Copy(u32, v1::ReadResponse, Vec<Bytes>),
    Read(Read, Step<v1::ReadResponse>),
    Push(Box<Subscription>, Step<v1::PushData>),
}

/// A data connection.
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    shared: Arc<Shared>,
    input: Inbox,
    /// Progress of the frame at the front of `input` while memory is short.
    partial: Partial,
    out: Outbox,
    pending: VecDeque<PendingAppend>,
    pending_bytes: usize,
    reads: Vec<Read>,
    /// Reads of copies of groups that other brokers own, waiting for their turn at the disk.
    copy_reads: VecDeque<(u32, v1::ReadRequest)>,
    subscriptions: BTreeMap<u32, Subscription>,
    /// The subscription that was pushed to last; the next round begins behind it.
    last_pushed: u32,
    /// Groups appended to and not yet pumped.
    touched: Vec<Arc<Group>>,
    bell: Arc<Bell>,
    waker: Waker,
    /// Boxed: a channel has room for many from its beginning.
    disk: (mpsc::Sender<Box<FromDisk>>, mpsc::Receiver<Box<FromDisk>>),
    /// Reads handed to threads that may wait.
    disk_reads: usize,
    /// Memory is short: no more frames are taken until it is not.
    starved: bool,
    /// Since when the frame at the front waits for memory.
    starved_since: Option<Instant>,
    /// There is too much in flight for the frame that is arriving; looked at again with each tick.
    crowded: bool,
    claims: Claims,
    /// Bytes sent until the last tick.
    sent_before: u64,
    /// Every subscription and read has been looked at since the last wake-up.
    quiet: bool,
    closing: bool,
    ticks: u32,
    last_input: Instant,
    _counted: Counted,
}

impl Connection {
    /// A connection that has said hello.
    pub fn new(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>, counted: Counted) -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            stream,
            peer,
            claims: Claims::new(shared.clone()),
            shared,
            input: Inbox::default(),
            partial: Partial::default(),
            out: Outbox::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            reads: Vec::new(),
            copy_reads: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            last_pushed: 0,
            touched: Vec::new(),
            waker: Waker::from(bell.clone()),
            bell,
            disk: mpsc::channel(MAX_DISK_READS),
            disk_reads: 0,
            starved: false,
            starved_since: None,
            crowded: false,
            sent_before: 0,
            quiet: false,
            closing: false,
            ticks: 0,
            last_input: Instant::now(),
            _counted: counted,
        }
    }

    /// Serves the connection until it ends.
    ///
    /// # Errors
    /// The socket's, or `TimedOut` for one that was idle for too long.
    pub async fn run(mut self) -> std::io::Result<()> {
        let outcome = self.serve().await;
        self.shared
            .in_flight
            .fetch_sub(self.pending_bytes as u64, Ordering::Relaxed);
        // An idle lane must not collect the wakers of connections that have gone.
        self.pending
            .iter()
            .for_each(|pending| pending.forget(&self.waker));
        self.reads
            .iter()
            .for_each(|read| read.target.head.forget(&self.waker));
        self.subscriptions
            .values()
            .for_each(|s| s.target.head.forget(&self.waker));
        tracing::debug!(peer = %self.peer, ?outcome, "data connection ended");
        outcome
    }

    async fn serve(&mut self) -> std::io::Result<()> {
        let mut stopping = self.shared.stopping.subscribe();
        let tick = tokio::time::sleep(TICK);
        tokio::pin!(tick);
        let mut slow = false;
        loop {
            self.work();
            self.out.send(&self.stream)?;
            self.claims.hold_outgoing(self.outgoing());
            self.claims.hold_incoming(self.input.capacity());
            if self.closing && self.out.is_empty() && self.pending.is_empty() {
                return Ok(());
            }
            let mut interest = Interest::ERROR;
            if self.takes_input() {
                interest |= Interest::READABLE;
            }
            if !self.out.is_empty() {
                interest |= Interest::WRITABLE;
            }
            if slow && self.is_busy() {
                slow = false;
                tick.as_mut().reset((Instant::now() + TICK).into());
            }
            tokio::select! {
                ready = self.stream.ready(interest) => {
                    let ready = ready?;
                    if ready.is_readable() && self.takes_input() {
                        self.read_input()?;
                    }
                    if ready.is_error() || (ready.is_write_closed() && !self.out.is_empty()) {
                        return Err(self.stream.take_error()?.unwrap_or_else(|| std::io::ErrorKind::ConnectionReset.into()));
                    }
                }
                () = self.bell.rung() => self.quiet = false,
                // Serving stopped at the limit on bytes to send, and they are sent: go on at once.
                () = std::future::ready(()), if !self.quiet && self.room_to_send() > 0 => {}
                Some(read) = self.disk.1.recv() => self.take_from_disk(*read),
                () = tick.as_mut() => {
                    self.look_at_deadlines()?;
                    slow = !self.is_busy();
                    let pause = if slow { self.slow_tick() } else { TICK };
                    tick.as_mut().reset((Instant::now() + pause).into());
                }
                _ = stopping.wait_for(|stop| *stop), if !self.closing => self.go_away(),
            }
        }
    }

    /// True while there is anything that a tick looks at, but for the idle timeout.
    fn is_busy(&self) -> bool {
        !self.pending.is_empty()
            || !self.reads.is_empty()
            || !self.copy_reads.is_empty()
            || !self.subscriptions.is_empty()
            || !self.out.is_empty()
            || self.disk_reads > 0
            || self.crowded
            || self.claims.has_frame()
            || self.input.capacity() > self.input.len()
    }

    fn slow_tick(&self) -> Duration {
        let idle = self.shared.live().server.idle_timeout;
        if idle.is_zero() {
            return SLOW_TICK;
        }
        SLOW_TICK.min(idle).max(TICK)
    }

    /// True while frames may be taken: within the limits on bytes in flight, and with memory.
    fn takes_input(&self) -> bool {
        let server = &self.shared.config.server;
        !self.closing
            && !self.starved
            && !self.crowded
            && self.pending_bytes < server.connection_in_flight_bytes as usize
            && self.claims.may_owe(self.out.bytes())
            && (self.pending_bytes == 0
                || self.shared.in_flight.load(Ordering::Relaxed) < server.max_in_flight_bytes)
    }

    fn read_input(&mut self) -> std::io::Result<()> {
        loop {
            let (there, missing) = (self.input.len(), self.missing_of_frame());
            if missing > 0 && !self.claims.admit_frame(there + missing) {
                self.crowded = true;
                return Ok(());
            }
            let room = self.input.room_for(missing, self.claims.read_ahead());
            if room == 0 {
                return Ok(());
            }
            match self.input.receive(&self.stream, room)? {
                Received::Nothing => return Ok(()),
                Received::Bytes(_) => self.last_input = Instant::now(),
                Received::End => {
                    if !self.input.is_empty() {
                        tracing::debug!(peer = %self.peer, bytes = self.input.len(), "connection ended within a frame");
                    }
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
            if self.input.len() >= READ_AHEAD && self.missing_of_frame() == 0 {
                return Ok(());
            }
        }
    }

    /// Bytes that the frame at the front still lacks.
    fn missing_of_frame(&self) -> usize {
        match frame::decode(self.input.bytes(), self.max_frame()) {
            Ok(Decoded::Frame(header)) => header.total_bytes().saturating_sub(self.input.len()),
            _ => 0,
        }
    }

    fn max_frame(&self) -> usize {
        self.shared.config.server.max_frame_bytes as usize
    }

    /// Bytes held for the peer: those to be sent, and those that come from the disk.
    fn outgoing(&self) -> usize {
        self.out.bytes() + self.disk_reads * DISK_READ
    }

    /// Bytes that the next read or push may bring; 0: first some must be sent.
    fn room_to_send(&self) -> usize {
        self.claims.room_to_send(self.out.bytes())
    }

    /// True if one more read may wait for the disk; `room` is what it may bring.
    fn may_read_disk(&self, room: usize) -> bool {
        let most = if room <= MOST_IN_A_CROWD {
            1
        } else {
            MAX_DISK_READS
        };
        self.disk_reads < most
    }

    /// One round: frames, pumps, acknowledgements, reads and pushes.
    fn work(&mut self) {
        self.starved = false;
        self.take_frames();
        append::pump(&self.shared, &mut self.touched);
        self.acknowledge();
        if !self.quiet && self.room_to_send() > 0 {
            self.quiet = true;
            self.serve_reads();
            self.serve_copy_reads();
            self.serve_subscriptions();
        }
    }

    fn take_frames(&mut self) {
        // Worked on apart, so that a frame's bytes and the connection can both be borrowed.
        let mut input = std::mem::take(&mut self.input);
        while self.takes_input() {
            match frame::decode(input.bytes(), self.max_frame()) {
                Ok(Decoded::NeedMore(_)) => break,
                Ok(Decoded::Frame(header)) if header.total_bytes() > input.len() => break,
                Ok(Decoded::Frame(header)) => {
                    let total = header.total_bytes();
                    match self.take_frame(header, &mut input.bytes_mut()[..total]) {
                        Ok(true) => {
                            input.consume(total);
                            self.claims.end_frame();
                        }
                        Ok(false) => break,
                        Err(error) => {
                            self.fail(&error);
                            break;
                        }
                    }
                }
                Err(error) => {
                    self.fail(&error);
                    break;
                }
            }
        }
        self.input = input;
    }

    /// Acts on one frame. False: memory is short, the frame stays.
    fn take_frame(&mut self, header: FrameHeader, bytes: &mut [u8]) -> Result<bool, FrameError> {
        let (head, body) = bytes[frame::PREFIX_BYTES..].split_at_mut(header.header_bytes);
        let correlation = header.correlation;
        match header.kind {
            FrameKind::Append => {
                let request: v1::AppendRequest = decode(head)?;
                return Ok(self.take_append(correlation, &request, body));
            }
            FrameKind::Read => {
                let request: v1::ReadRequest = decode(head)?;
                self.take_read(correlation, &request);
            }
            FrameKind::Subscribe => {
                let request: v1::SubscribeRequest = decode(head)?;
                self.take_subscribe(correlation, &request);
            }
            FrameKind::Credit => {
                let request: v1::CreditRequest = decode(head)?;
                self.take_credit(&request);
            }
            FrameKind::Ping => self
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

    fn take_append(
        &mut self,
        correlation: u32,
        request: &v1::AppendRequest,
        body: &mut [u8],
    ) -> bool {
        match append::place(
            &self.shared,
            correlation,
            request,
            body,
            &mut self.partial,
            &mut self.touched,
        ) {
            Placed::Pending(pending) => {
                self.partial = Partial::default();
                self.pending_bytes += pending.bytes;
                self.shared
                    .in_flight
                    .fetch_add(pending.bytes as u64, Ordering::Relaxed);
                self.pending.push_back(pending);
            }
            Placed::Refused(reply) => {
                self.partial = Partial::default();
                self.out
                    .push(FrameKind::AppendReply, correlation, &reply, Vec::new());
            }
            Placed::Later => {
                // Our own written chunks may be what is missing: pump first, then wait for others.
                append::pump(&self.shared, &mut self.touched);
                self.shared.metrics.memory_waits.inc();
                self.shared.release_memory();
                let since = *self.starved_since.get_or_insert_with(Instant::now);
                if since.elapsed() < self.shared.memory_wait() {
                    if self.shared.env.pool.on_free(&self.waker) {
                        self.starved = true;
                    }
                    return false;
                }
                let text =
                    "the broker's memory.pool was full for too long; send again, or raise it";
                let error = WireError::new(ErrorCode::Overloaded, text);
                self.shared.metrics.append_errors.inc();
                let partial = std::mem::take(&mut self.partial);
                let reply = append::refusal(&error, partial.placement());
                self.out
                    .push(FrameKind::AppendReply, correlation, &reply, Vec::new());
            }
        }
        self.starved_since = None;
        true
    }

    fn take_read(&mut self, correlation: u32, request: &v1::ReadRequest) {
        let full = WireError::new(
            ErrorCode::Overloaded,
            format!("the connection has {MAX_PARKED_READS} reads waiting; wait for their answers"),
        );
        let read = if self.reads.len() + self.copy_reads.len() >= MAX_PARKED_READS {
            Err(full)
        } else if request.from_copy {
            self.copy_reads.push_back((correlation, request.clone()));
            self.quiet = false;
            return;
        } else {
            Read::new(&self.shared, correlation, request)
        };
        match read {
            Ok(read) => {
                self.reads.push(read);
                self.quiet = false;
            }
            Err(error) => self.out.push(
                FrameKind::ReadReply,
                correlation,
                &fetch::read_refusal(&error),
                Vec::new(),
            ),
        }
    }

    fn take_subscribe(&mut self, correlation: u32, request: &v1::SubscribeRequest) {
        let outcome = if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let text = format!(
                "the connection has {MAX_SUBSCRIPTIONS} subscriptions; use another connection"
            );
            Err(WireError::new(ErrorCode::Overloaded, text))
        } else if self.subscriptions.contains_key(&request.subscription) {
            let text = format!(
                "subscription {} exists on this connection; choose another number",
                request.subscription
            );
            Err(WireError::new(ErrorCode::InvalidArgument, text))
        } else {
            Subscription::new(&self.shared, request)
        };
        let mut reply = v1::SubscribeResponse::default();
        match outcome {
            Ok(subscription) => {
                self.subscriptions.insert(subscription.id, subscription);
                self.quiet = false;
            }
            Err(error) => {
                reply.error = error.code as u32;
                reply.message = error.message;
            }
        }
        self.out
            .push(FrameKind::SubscribeReply, correlation, &reply, Vec::new());
    }

    fn take_credit(&mut self, request: &v1::CreditRequest) {
        // Credit for a subscription that has just ended is no error: the two crossed on the way.
        if request.unsubscribe {
            if let Some(ended) = self.subscriptions.remove(&request.subscription) {
                ended.target.head.forget(&self.waker);
                // Others may have waited at the same head.
                self.unpark();
            }
        } else if let Some(subscription) = self.subscriptions.get_mut(&request.subscription) {
            subscription.add_credit(request.credit_bytes);
            self.quiet = false;
        }
    }

    /// Has every subscription and read looked at again.
    fn unpark(&mut self) {
        let subscriptions = self.subscriptions.values_mut().map(|s| &mut s.target);
        let reads = self.reads.iter_mut().map(|read| &mut read.target);
        subscriptions.chain(reads).for_each(Target::unpark);
        self.quiet &= self.subscriptions.is_empty() && self.reads.is_empty();
    }

    fn acknowledge(&mut self) {
        let mut released = 0;
        let (out, waker, metrics) = (&mut self.out, &self.waker, &self.shared.metrics);
        self.pending.retain(|pending| {
            let Some(reply) = pending.poll(waker) else {
                return true;
            };
            metrics
                .append_seconds
                .observe(pending.received.elapsed().as_secs_f64());
            out.push(
                FrameKind::AppendReply,
                pending.correlation,
                &reply,
                Vec::new(),
            );
            released += pending.bytes;
            false
        });
        self.release(released);
    }

    fn release(&mut self, bytes: usize) {
        self.pending_bytes -= bytes;
        self.shared
            .in_flight
            .fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    fn serve_reads(&mut self) {
        let now = Instant::now();
        let mut index = 0;
        while index < self.reads.len() {
            let room = self.room_to_send();
            if room == 0 {
                self.quiet = false;
                return;
            }
            let read = &mut self.reads[index];
            if read.is_waiting(now) {
                index += 1;
                continue;
            }
            match read.step(&self.waker, now, room, false) {
                Step::Wait => index += 1,
                Step::Reply(reply, body) => {
                    let read = self.reads.swap_remove(index);
                    self.reply_read(&read, &reply, body);
                }
                // Looked at again when one of those at the disk is back.
                Step::Blocking if !self.may_read_disk(room) => index += 1,
                Step::Blocking => {
                    let mut read = self.reads.swap_remove(index);
                    let room = room.min(DISK_READ);
                    let (tell, waker) = (self.disk.0.clone(), self.waker.clone());
                    self.disk_reads += 1;
                    tokio::task::spawn_blocking(move || {
                        let step = read.step(&waker, now, room, true);
                        let _ = tell.blocking_send(Box::new(FromDisk::Read(read, step)));
                    });
                }
            }
        }
    }

    /// Has threads that may wait read copies.
    fn serve_copy_reads(&mut self) {
        while !self.copy_reads.is_empty() && self.may_read_disk(self.room_to_send()) {
            let Some((correlation, request)) = self.copy_reads.pop_front() else {
                return;
            };
            let (tell, shared) = (self.disk.0.clone(), self.shared.clone());
            self.disk_reads += 1;
            tokio::task::spawn_blocking(move || {
                let (reply, body) = copy_reads::answer(&shared, &request);
                let _ = tell.blocking_send(Box::new(FromDisk::Copy(correlation, reply, body)));
            });
        }
    }

    fn reply_read(&mut self, read: &Read, reply: &v1::ReadResponse, body: Vec<Bytes>) {
        let bytes: usize = body.iter().map(Bytes::len).sum();
        self.shared.metrics.read_bytes.inc_by(bytes as u64);
        self.out
            .push(FrameKind::ReadReply, read.correlation, reply, body);
    }

    /// One push for each subscription in turn, so that no lane's backlog starves another's.
    fn serve_subscriptions(&mut self) {
        let mut ready: VecDeque<u32> = self
            .subscriptions
            .values()
            .filter(|s| s.is_ready())
            .map(|s| s.id)
            .collect();
        if let Some(at) = ready.iter().position(|id| *id > self.last_pushed) {
            ready.rotate_left(at);
        }
        while let Some(id) = ready.pop_front() {
            let room = self.room_to_send();
            if room == 0 {
                self.quiet = false;
                return;
            }
            let Some(subscription) = self.subscriptions.get_mut(&id) else {
                continue;
            };
            match subscription.step(&self.waker, room, false) {
                Step::Wait => {}
                Step::Reply(push, body) => {
                    self.last_pushed = id;
                    if push_out(&mut self.out, &self.shared, &push, body) {
                        self.subscriptions.remove(&id);
                    } else if subscription.has_credit() {
                        ready.push_back(id);
                    }
                }
                Step::Blocking if !self.may_read_disk(room) => {}
                Step::Blocking => self.push_from_disk(id, room.min(DISK_READ)),
            }
        }
    }

    /// Has a thread that may wait read for a subscription.
    fn push_from_disk(&mut self, id: u32, room: usize) {
        let Some(mut subscription) = self.subscriptions.remove(&id) else {
            return;
        };
        self.subscriptions.insert(id, subscription.placeholder());
        let (tell, waker) = (self.disk.0.clone(), self.waker.clone());
        self.disk_reads += 1;
        tokio::task::spawn_blocking(move || {
            let step = subscription.step(&waker, room, true);
            let push = FromDisk::Push(Box::new(subscription), step);
            let _ = tell.blocking_send(Box::new(push));
        });
    }

    fn take_from_disk(&mut self, read: FromDisk) {
        self.disk_reads -= 1;
        self.quiet = false;
        match read {
            FromDisk::Read(read, Step::Reply(reply, body)) => self.reply_read(&read, &reply, body),
            FromDisk::Read(read, _) => self.reads.push(read),
            FromDisk::Copy(correlation, reply, body) => {
                self.out
                    .push(FrameKind::ReadReply, correlation, &reply, body);
            }
            FromDisk::Push(mut subscription, step) => {
                // Unsubscribed meanwhile: nobody wants it.
                let Some(placeholder) = self.subscriptions.remove(&subscription.id) else {
                    return;
                };
                subscription.add_credit(placeholder.credit());
                subscription.blocked = false;
                if let Step::Reply(push, body) = step
                    && push_out(&mut self.out, &self.shared, &push, body)
                {
                    return;
                }
                self.subscriptions.insert(subscription.id, *subscription);
            }
        }
    }

    fn look_at_deadlines(&mut self) -> std::io::Result<()> {
        let now = Instant::now();
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(LOOK_TICKS) {
            self.unpark();
        } else if self.reads.iter().any(|read| read.deadline <= now) {
            self.quiet = false;
        }
        let mut released = 0;
        let (out, shared) = (&mut self.out, &*self.shared);
        self.pending.retain(|pending| {
            let Some(reply) = pending.overdue(shared, now) else {
                return true;
            };
            out.push(
                FrameKind::AppendReply,
                pending.correlation,
                &reply,
                Vec::new(),
            );
            released += pending.bytes;
            false
        });
        self.release(released);
        if self.out.sent() == self.sent_before {
            self.out.detach();
        }
        self.sent_before = self.out.sent();
        self.crowded = false;
        if self
            .claims
            .is_unread(now, self.out.sent(), self.out.bytes())
        {
            self.shared.metrics.unread_connections.inc();
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let within = self.shared.config.server.receive_timeout;
        let waits = self.takes_input();
        let claimed = self.claims.is_late(now) && self.missing_of_frame() > 0;
        if self.input.is_late(now, within, waits) || (claimed && !self.closing) {
            self.give_up_frame();
        }
        let small = self.input.len() <= READ_AHEAD && !self.claims.has_frame();
        let passed = small && self.input.capacity() > 2 * READ_AHEAD;
        // A large frame has passed, or nothing comes any more.
        if passed || now.duration_since(self.last_input) > KEEP_INPUT {
            self.shared
                .note_freed(self.input.shrink() + self.out.shrink());
        }
        let idle = self.shared.live().server.idle_timeout;
        let nothing_open = self.pending.is_empty()
            && self.reads.is_empty()
            && self.copy_reads.is_empty()
            && self.subscriptions.is_empty()
            && self.disk_reads == 0;
        if !idle.is_zero() && nothing_open && now.duration_since(self.last_input) > idle {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// The frame that is arriving takes too long, with memory claimed that others may wait for.
    fn give_up_frame(&mut self) {
        self.closing = true;
        let within = self.shared.config.server.receive_timeout;
        let text = format!("a frame did not arrive within {within:?}; send smaller frames");
        let error = WireError::new(ErrorCode::Timeout, text);
        self.out.push_raw(|out| frame::encode_go_away(out, &error));
    }

    /// The broker stops: no more frames; what is in flight is still answered.
    fn go_away(&mut self) {
        self.closing = true;
        let error = WireError::new(ErrorCode::ShuttingDown, "the broker is stopping");
        let reads = std::mem::take(&mut self.reads).into_iter();
        let copies = std::mem::take(&mut self.copy_reads).into_iter();
        let reads = reads.map(|read| read.correlation);
        for correlation in reads.chain(copies.map(|(correlation, _)| correlation)) {
            self.out.push(
                FrameKind::ReadReply,
                correlation,
                &fetch::read_refusal(&error),
                Vec::new(),
            );
        }
        self.subscriptions.clear();
        self.out.push_raw(|out| frame::encode_go_away(out, &error));
    }

    /// The peer broke the protocol: say why, and end.
    fn fail(&mut self, error: &FrameError) {
        tracing::debug!(peer = %self.peer, %error, "closing a connection that broke the protocol");
        self.shared.metrics.protocol_errors.inc();
        self.closing = true;
        self.subscriptions.clear();
        self.reads.clear();
        self.copy_reads.clear();
        self.out
            .push_raw(|out| frame::encode_go_away(out, &error.clone().into()));
    }
}

/// Queues a push; true if it is the subscription's last.
fn push_out(out: &mut Outbox, shared: &Shared, push: &v1::PushData, body: Vec<Bytes>) -> bool {
    let bytes: usize = body.iter().map(Bytes::len).sum();
    shared.metrics.read_bytes.inc_by(bytes as u64);
    out.push(FrameKind::PushData, frame::PUSH_CORRELATION, push, body);
    push.error != 0 || push.finished
}

fn decode<M: Message + Default>(head: &[u8]) -> Result<M, FrameError> {
    M::decode(head).map_err(|error| FrameError::BadMessage(error.to_string()))
}
