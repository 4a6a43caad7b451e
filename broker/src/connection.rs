//! A connection of the native protocol: appends, reads, long polls, subscriptions and control calls.
//!
//! Nothing here hands work to another task unless bytes must come from the disk, or for a control call. How it is served is
//! [`crate::client_link`].

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kera_metadata::access::Operation;
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{self, Decoded, FrameError, FrameHeader, FrameKind};
use kera_protocol::ids::StreamId;
use kera_protocol::v1;
use kera_rpc::serve::Caller;
use kera_rpc::stream::Stream;
use kera_streamlet::Streamlet;
use tokio::sync::mpsc;

use crate::access::Granted;
use crate::admin::calls::framed_calls::{self, CallOver, ConnectionCalls, FramedCalls};
use crate::client_link::{ClientLink, Overdue, Protocol};
use crate::copy_reads;
use crate::data::append::{self, Partial, PendingAppend, Placed};
use crate::data::fetch::{self, MAX_SUBSCRIPTIONS, Read, Step, Subscription, Target};
use crate::data::memory_budget::MOST_IN_A_CROWD;
use crate::listener::Counted;
use crate::outbox::Outbox;
use crate::principal::Principal;
use crate::shared::Shared;

/// Reads of one connection that wait for the disk at a time, and most bytes of each.
const MAX_DISK_READS: usize = 16;
const DISK_READ: usize = 1 << 20;
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
    (peer, principal): (SocketAddr, Principal),
    shared: Arc<Shared>,
    calls: Arc<FramedCalls>,
    counted: Counted,
) -> io::Result<()> {
    let mut link = ClientLink::new(stream, shared, counted);
    link.principal = principal;
    let mut connection = Connection::new(peer, calls, &link.principal);
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

/// What is under way on a connection.
struct Connection {
    peer: SocketAddr,
    /// Progress of the frame at the front while memory is short.
    partial: Partial,
    pending: VecDeque<PendingAppend>,
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
        self.check_again(link);
        self.take_frames(link);
        append::pump(&link.shared.data, &mut link.touched);
        self.acknowledge(link);
        if !self.quiet && link.room_to_send() > 0 {
            self.quiet = true;
            self.serve_reads(link);
            self.serve_copy_reads(link);
            self.serve_subscriptions(link);
        }
        Ok(())
    }

    fn takes_frames(&self, _: &ClientLink) -> bool {
        !self.closing
    }

    fn coming(&self) -> usize {
        self.disk_reads * DISK_READ
    }

    /// Serving stopped at the limit on bytes to send, and they are sent.
    fn goes_on(&self, link: &ClientLink) -> bool {
        !self.quiet && link.room_to_send() > 0
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
        let mut released = 0;
        let (out, shared) = (&mut link.out, &*link.shared);
        self.pending.retain(|pending| {
            let Some(reply) = pending.overdue(&shared.data, now) else {
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
        link.release(released);
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
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
        if self.closing {
            return;
        }
        self.closing = true;
        let error = WireError::new(ErrorCode::ShuttingDown, "the broker is stopping");
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

    fn is_over(&self, link: &ClientLink) -> bool {
        self.closing && link.out.is_empty() && self.pending.is_empty()
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
    fn new(peer: SocketAddr, calls: Arc<FramedCalls>, principal: &Principal) -> Self {
        let caller = Caller {
            address: peer.ip(),
            user: principal.user(),
        };
        Self {
            granted: Granted::new(principal.clone(), peer.ip()),
            peer,
            partial: Partial::default(),
            pending: VecDeque::new(),
            reads: Vec::new(),
            copy_reads: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            last_pushed: 0,
            disk: mpsc::channel(MAX_DISK_READS),
            disk_reads: 0,
            calls: ConnectionCalls::new(calls, caller),
            quiet: false,
            closing: false,
            looks: 0,
        }
    }

    /// An idle lane must not collect the wakers of connections that have gone.
    fn forget(&self, link: &ClientLink) {
        let waker = &link.waker;
        self.pending
            .iter()
            .for_each(|pending| pending.forget(waker));
        let reads = self.reads.iter().map(|read| &read.target);
        let subscriptions = self.subscriptions.values().map(|s| &s.target);
        reads
            .chain(subscriptions)
            .for_each(|target| target.head.forget(waker));
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

    fn take_append(
        &mut self,
        link: &mut ClientLink,
        correlation: u32,
        request: &v1::AppendRequest,
        body: &mut [u8],
    ) -> bool {
        let granted = self
            .granted
            .require(&link.shared, Operation::Write, &request.stream);
        if let Err(error) = granted {
            // It may have waited for memory, with batches placed, when the rules changed.
            let partial = std::mem::take(&mut self.partial);
            link.shared.data.metrics.append_errors.inc();
            let reply = append::refusal(&error, partial.placement());
            link.out
                .push(FrameKind::AppendReply, correlation, &reply, Vec::new());
            link.has_memory();
            return true;
        }
        match append::place(
            &link.shared.data,
            correlation,
            request,
            body,
            &mut self.partial,
            &mut link.touched,
        ) {
            Placed::Pending(pending) => {
                self.partial = Partial::default();
                link.wait_for(pending.bytes);
                self.pending.push_back(pending);
            }
            Placed::Refused(reply) => {
                self.partial = Partial::default();
                link.out
                    .push(FrameKind::AppendReply, correlation, &reply, Vec::new());
            }
            Placed::Later => {
                if !link.gives_up_memory() {
                    link.wait_for_memory();
                    return false;
                }
                let text =
                    "the broker's memory.pool was full for too long; send again, or raise it";
                let error = WireError::new(ErrorCode::Overloaded, text);
                link.shared.data.metrics.append_errors.inc();
                let partial = std::mem::take(&mut self.partial);
                let reply = append::refusal(&error, partial.placement());
                link.out
                    .push(FrameKind::AppendReply, correlation, &reply, Vec::new());
            }
        }
        link.has_memory();
        true
    }

    fn take_read(&mut self, link: &mut ClientLink, correlation: u32, request: &v1::ReadRequest) {
        let full = WireError::new(
            ErrorCode::Overloaded,
            format!("the connection has {MAX_PARKED_READS} reads waiting; wait for their answers"),
        );
        let granted = self
            .granted
            .require(&link.shared, Operation::Read, &request.stream);
        let read = if self.reads.len() + self.copy_reads.len() >= MAX_PARKED_READS {
            Err(full)
        } else if let Err(error) = granted {
            Err(error)
        } else if request.from_copy {
            self.copy_reads.push_back((correlation, request.clone()));
            self.quiet = false;
            return;
        } else {
            Read::new(&link.shared.data, correlation, request)
        };
        match read {
            Ok(read) => {
                self.reads.push(read);
                self.quiet = false;
            }
            Err(error) => link.out.push(
                FrameKind::ReadReply,
                correlation,
                &fetch::read_refusal(&error),
                Vec::new(),
            ),
        }
    }

    fn take_subscribe(
        &mut self,
        link: &mut ClientLink,
        correlation: u32,
        request: &v1::SubscribeRequest,
    ) {
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
            let granted = self
                .granted
                .require(&link.shared, Operation::Read, &request.stream);
            granted.and_then(|()| Subscription::new(&link.shared.data, request))
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
        link.out
            .push(FrameKind::SubscribeReply, correlation, &reply, Vec::new());
    }

    fn take_credit(&mut self, link: &mut ClientLink, request: &v1::CreditRequest) {
        // Credit for a subscription that has just ended is no error: the two crossed on the way.
        if request.unsubscribe {
            if let Some(ended) = self.subscriptions.remove(&request.subscription) {
                ended.target.head.forget(&link.waker);
                // Others may have waited at the same head.
                self.unpark();
            }
        } else if let Some(subscription) = self.subscriptions.get_mut(&request.subscription) {
            subscription.add_credit(request.credit_bytes);
            self.quiet = false;
        }
    }

    /// If the rules have changed, ends reads and subscriptions that were allowed before and are not now.
    fn check_again(&mut self, link: &mut ClientLink) {
        if !self.granted.is_outdated(&link.shared) {
            return;
        }
        let (granted, shared) = (&mut self.granted, link.shared.clone());
        let mut denied = |stream: StreamId| {
            let stream = stream.as_bytes();
            granted.require(&shared, Operation::Read, stream).err()
        };
        self.reads.retain(|read| {
            let Some(error) = denied(read.target.streamlet.stream()) else {
                return true;
            };
            read.target.head.forget(&link.waker);
            let refusal = fetch::read_refusal(&error);
            link.out
                .push(FrameKind::ReadReply, read.correlation, &refusal, Vec::new());
            false
        });
        self.copy_reads.retain(|(correlation, request)| {
            let stream = StreamId::from_slice(&request.stream);
            let Some(error) = stream.and_then(&mut denied) else {
                return true;
            };
            let refusal = fetch::read_refusal(&error);
            link.out
                .push(FrameKind::ReadReply, *correlation, &refusal, Vec::new());
            false
        });
        self.subscriptions.retain(|id, subscription| {
            let Some(error) = denied(subscription.target.streamlet.stream()) else {
                return true;
            };
            subscription.target.head.forget(&link.waker);
            let push = v1::PushData {
                subscription: *id,
                error: error.code as u32,
                message: error.message,
                ..v1::PushData::default()
            };
            let of = &subscription.target.streamlet;
            push_out(&mut link.out, &link.shared, of, &push, Vec::new());
            false
        });
        // Others may have waited at the same heads.
        self.unpark();
    }

    /// Has every subscription and read looked at again.
    fn unpark(&mut self) {
        let subscriptions = self.subscriptions.values_mut().map(|s| &mut s.target);
        let reads = self.reads.iter_mut().map(|read| &mut read.target);
        subscriptions.chain(reads).for_each(Target::unpark);
        self.quiet &= self.subscriptions.is_empty() && self.reads.is_empty();
    }

    fn acknowledge(&mut self, link: &mut ClientLink) {
        let mut released = 0;
        let (out, waker, metrics) = (&mut link.out, &link.waker, &link.shared.data.metrics);
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
        link.release(released);
    }

    fn serve_reads(&mut self, link: &mut ClientLink) {
        let now = Instant::now();
        let mut index = 0;
        while index < self.reads.len() {
            let room = link.room_to_send();
            if room == 0 {
                self.quiet = false;
                return;
            }
            let read = &mut self.reads[index];
            if read.is_waiting(now) {
                index += 1;
                continue;
            }
            match read.step(&link.waker, now, room, false) {
                Step::Wait => index += 1,
                Step::Reply(reply, body) => {
                    let read = self.reads.swap_remove(index);
                    self.reply_read(link, &read, &reply, body);
                }
                // Looked at again when one of those at the disk is back.
                Step::Blocking if !self.may_read_disk(room) => index += 1,
                Step::Blocking => {
                    let mut read = self.reads.swap_remove(index);
                    let room = room.min(DISK_READ);
                    let (tell, waker) = (self.disk.0.clone(), link.waker.clone());
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
    fn serve_copy_reads(&mut self, link: &mut ClientLink) {
        while !self.copy_reads.is_empty() && self.may_read_disk(link.room_to_send()) {
            let Some((correlation, request)) = self.copy_reads.pop_front() else {
                return;
            };
            let (tell, shared) = (self.disk.0.clone(), link.shared.clone());
            self.disk_reads += 1;
            tokio::task::spawn_blocking(move || {
                let (reply, body) = copy_reads::answer(&shared, &request);
                let _ = tell.blocking_send(Box::new(FromDisk::Copy(correlation, reply, body)));
            });
        }
    }

    fn reply_read(
        &mut self,
        link: &mut ClientLink,
        read: &Read,
        reply: &v1::ReadResponse,
        body: Vec<Bytes>,
    ) {
        let bytes: usize = body.iter().map(Bytes::len).sum();
        link.shared.data.metrics.read_bytes.inc_by(bytes as u64);
        read.target.streamlet.traffic().note_read(bytes);
        link.out
            .push(FrameKind::ReadReply, read.correlation, reply, body);
    }

    /// One push for each subscription in turn, so that no lane's backlog starves another's.
    fn serve_subscriptions(&mut self, link: &mut ClientLink) {
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
            let room = link.room_to_send();
            if room == 0 {
                self.quiet = false;
                return;
            }
            let Some(subscription) = self.subscriptions.get_mut(&id) else {
                continue;
            };
            match subscription.step(&link.waker, room, false) {
                Step::Wait => {}
                Step::Reply(push, body) => {
                    self.last_pushed = id;
                    let of = &subscription.target.streamlet;
                    if push_out(&mut link.out, &link.shared, of, &push, body) {
                        self.subscriptions.remove(&id);
                    } else if subscription.has_credit() {
                        ready.push_back(id);
                    }
                }
                Step::Blocking if !self.may_read_disk(room) => {}
                Step::Blocking => self.push_from_disk(link, id, room.min(DISK_READ)),
            }
        }
    }

    /// Has a thread that may wait read for a subscription.
    fn push_from_disk(&mut self, link: &mut ClientLink, id: u32, room: usize) {
        let Some(mut subscription) = self.subscriptions.remove(&id) else {
            return;
        };
        self.subscriptions.insert(id, subscription.placeholder());
        let (tell, waker) = (self.disk.0.clone(), link.waker.clone());
        self.disk_reads += 1;
        tokio::task::spawn_blocking(move || {
            let step = subscription.step(&waker, room, true);
            let push = FromDisk::Push(Box::new(subscription), step);
            let _ = tell.blocking_send(Box::new(push));
        });
    }

    fn take_from_disk(&mut self, link: &mut ClientLink, read: FromDisk) {
        self.disk_reads -= 1;
        self.quiet = false;
        match read {
            FromDisk::Read(read, Step::Reply(reply, body)) => {
                self.reply_read(link, &read, &reply, body)
            }
            FromDisk::Read(read, _) => {
                let stream = read.target.streamlet.stream();
                let stream = stream.as_bytes();
                // It goes on waiting: the rules may have changed while it was away.
                match self.granted.require(&link.shared, Operation::Read, stream) {
                    Ok(()) => self.reads.push(read),
                    Err(error) => {
                        let refusal = fetch::read_refusal(&error);
                        self.reply_read(link, &read, &refusal, Vec::new());
                    }
                }
            }
            FromDisk::Copy(correlation, reply, body) => {
                link.out
                    .push(FrameKind::ReadReply, correlation, &reply, body);
            }
            FromDisk::Push(mut subscription, step) => {
                // Unsubscribed meanwhile: nobody wants it.
                let Some(placeholder) = self.subscriptions.remove(&subscription.id) else {
                    return;
                };
                subscription.add_credit(placeholder.credit());
                subscription.blocked = false;
                let of = &subscription.target.streamlet;
                if let Step::Reply(push, body) = step
                    && push_out(&mut link.out, &link.shared, of, &push, body)
                {
                    return;
                }
                self.subscriptions.insert(subscription.id, *subscription);
            }
        }
    }

    /// The frame that is arriving takes too long, with memory claimed that others may wait for.
    fn give_up_frame(&mut self, link: &mut ClientLink) {
        self.closing = true;
        let within = link.shared.config.server.receive_timeout;
        let text = format!("a frame did not arrive within {within:?}; send smaller frames");
        let error = WireError::new(ErrorCode::Timeout, text);
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
        link.out
            .push_raw(|out| frame::encode_go_away(out, &error.clone().into()));
    }
}

/// Queues a push; true if it is the subscription's last.
fn push_out(
    out: &mut Outbox,
    shared: &Shared,
    of: &Streamlet,
    push: &v1::PushData,
    body: Vec<Bytes>,
) -> bool {
    let bytes: usize = body.iter().map(Bytes::len).sum();
    shared.data.metrics.read_bytes.inc_by(bytes as u64);
    of.traffic().note_read(bytes);
    out.push(FrameKind::PushData, frame::PUSH_CORRELATION, push, body);
    push.error != 0 || push.finished
}

fn decode<M: Message + Default>(head: &[u8]) -> Result<M, FrameError> {
    M::decode(head).map_err(|error| FrameError::BadMessage(error.to_string()))
}
