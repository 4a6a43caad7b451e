//! One client's data connection, one task, whatever protocol it speaks: read what there is, let the protocol work
//! on it, send, wait.
//!
//! Nothing here hands work to another task. A connection is woken by its socket, by its bell (a durable head that
//! it waits for, memory that became free), by what its [`Protocol`] waits for, or by its deadlines.

use std::future::Future;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use futures::FutureExt;
use kera_log_segments::group::Group;
use kera_rpc::stream::Stream;
use tokio::io::Interest;

use crate::bell::Bell;
use crate::counted::Counted;
use crate::data::append;
use crate::data::memory_budget::Claims;
use crate::inbox::{FIRST, Inbox, READ_AHEAD, Received};
use crate::outbox::Outbox;
use crate::principal::Principal;
use crate::quotas::{Meter, measured};
use crate::shared::Shared;
use crate::tls::principal_of;

/// A connection that has received nothing for this long gives back its buffer.
const KEEP_INPUT: Duration = Duration::from_secs(2);
/// How often an idle connection looks at its deadlines, so that thousands of them cost next to nothing,
const LOOK_IDLE: Duration = Duration::from_secs(10);
/// and how often one that waits for others' bytes to be worked off.
const LOOK_CROWDED: Duration = Duration::from_millis(50);
/// Read ahead from a client that has still to prove who it is.
const AHEAD_OF_PROOF: usize = 4 << 10;
/// So much a connection takes before other tasks have their turn.
const TURN_BYTES: usize = 64 << 10;

/// What takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The peer does not take what is sent to it, for `server.send_timeout`.
    Unread,
    /// A frame that has begun does not arrive, for `server.receive_timeout`.
    Frame,
    /// Nothing happens, for `server.idle_timeout`.
    Idle,
}

/// What a connection says, and how it is answered.
pub trait Protocol: Send {
    /// Why a connection ends before its peer ends it.
    type Ended: From<std::io::Error>;
    /// What comes of waiting for [`settled`](Self::settled).
    type Settled;
    /// How often a busy connection looks at its deadlines.
    const LOOK: Duration;

    /// Bytes of the frame at the front, its head included; 0 while that cannot be told.
    ///
    /// # Errors
    /// It can be told that it is no frame, or one that is too long.
    fn frame_bytes(&self, link: &ClientLink) -> Result<usize, Self::Ended>;

    /// Works on the frames that have arrived, and on whatever waits.
    ///
    /// # Errors
    /// Why the connection ends.
    fn work(&mut self, link: &mut ClientLink) -> Result<(), Self::Ended>;

    /// True while it works on frames: what it does not take then is still to arrive.
    fn takes_frames(&self, link: &ClientLink) -> bool;

    /// True while bytes may be taken from the socket, as far as the protocol knows.
    fn takes_input(&self, link: &ClientLink) -> bool {
        self.takes_frames(link)
    }

    /// True if the request that has begun to arrive, and that memory is to be claimed for, may arrive whole. If it may
    /// not, the protocol takes no input until it may. `None` while that cannot be told; it can be before as much is
    /// there as is read ahead.
    fn may_arrive(&mut self, _link: &mut ClientLink) -> Option<bool> {
        Some(true)
    }

    /// True if something has arrived that wants no answer, and is worked on although its client has gone.
    fn outlives_client(&self, _link: &ClientLink) -> bool {
        false
    }

    /// Bytes that will be sent and are not among those that wait to be: those that come from a disk.
    fn coming(&self) -> usize {
        0
    }

    /// True if there is more to work on at once, now that some bytes are sent.
    fn goes_on(&self, _link: &ClientLink) -> bool {
        false
    }

    /// The bell was rung: something that waits may go on.
    fn rung(&mut self) {}

    /// Waits for what others do for the connection; for ever if there is nothing.
    fn settled(&mut self) -> impl Future<Output = Self::Settled> + Send;

    /// Takes what was waited for.
    ///
    /// # Errors
    /// Why the connection ends.
    fn take_settled(
        &mut self,
        link: &mut ClientLink,
        settled: Self::Settled,
    ) -> Result<(), Self::Ended>;

    /// When something is due that no look comes in time for, if so.
    fn deadline(&self, _link: &ClientLink) -> Option<Instant> {
        None
    }

    /// A look at deadlines, each [`LOOK`](Self::LOOK) while the connection is busy.
    fn look(&mut self, _link: &mut ClientLink, _now: Instant) {}

    /// True while something is to be looked at more often than on an idle connection.
    fn is_busy(&self) -> bool {
        !self.is_idle()
    }

    /// True if the peer waits for nothing, so that it may be idle.
    fn is_idle(&self) -> bool;

    /// Something takes too long.
    ///
    /// # Errors
    /// Why the connection ends, if it ends at once.
    fn overdue(&mut self, link: &mut ClientLink, what: Overdue) -> Result<(), Self::Ended>;

    /// The broker stops: nothing more is begun.
    fn stop(&mut self, link: &mut ClientLink);

    /// True once nothing more is begun and nothing is owed.
    fn is_over(&self, link: &ClientLink) -> bool;
}

/// What a client's connection has, whatever it speaks.
pub struct ClientLink {
    /// The broker.
    pub shared: Arc<Shared>,
    stream: Stream,
    /// Who the client is.
    pub principal: Principal,
    /// What it takes of quotas.
    pub meter: Meter,
    /// What has arrived and was not worked on.
    pub input: Inbox,
    /// What waits to be sent.
    pub out: Outbox,
    /// Its part of what all connections may hold.
    pub claims: Claims,
    /// Groups appended to and not yet pumped.
    pub touched: Vec<Arc<Group>>,
    /// Wakes the connection.
    pub bell: Arc<Bell>,
    /// The same.
    pub waker: Waker,
    /// Memory is short: no more frames are taken until it is not.
    pub starved: bool,
    /// Since when the frame at the front waits for memory.
    starved_since: Option<Instant>,
    /// There is too much in flight for the frame that is arriving; looked at again soon.
    crowded: bool,
    /// When deadlines were last looked at, and bytes sent until then.
    looked: Instant,
    sent_before: u64,
    last_input: Instant,
    /// Bytes taken since other tasks had their turn.
    taken: usize,
    /// The peer sends no more.
    ended: bool,
    /// Nothing can be sent to the peer any more.
    lost: bool,
    /// The client has still to prove who it is: what the connection holds counts among what all such hold.
    is_unproven: bool,
    /// Bytes that its proof holds beside.
    proof_bytes: usize,
    counted: Counted,
}

impl ClientLink {
    /// The client has said what it wants.
    pub fn heard(&mut self) {
        self.counted.heard();
        if std::mem::take(&mut self.is_unproven) {
            self.stream.take_little(false);
        }
    }

    /// The client has to prove who it is before it is [heard](Self::heard).
    pub fn expect_proof(&mut self) {
        self.is_unproven = true;
        self.stream.take_little(true);
        self.note_unproven();
    }

    /// Until the next of these calls its proof holds so many bytes beside what was received.
    pub fn hold_for_proof(&mut self, bytes: usize) {
        self.proof_bytes = bytes;
    }

    /// What it holds where its input takes `input` bytes.
    fn held(&self, input: usize) -> usize {
        input + self.out.bytes() + self.proof_bytes + self.stream.held()
    }

    /// True if so much room may be had for what a client sends that has still to prove who it is.
    fn may_prove(&self, room: usize) -> bool {
        let (before, after) = (self.input.capacity(), self.input.capacity_with(room));
        after <= before.max(FIRST) || self.counted.hold(self.held(after))
    }

    fn note_unproven(&self) {
        if self.is_unproven {
            self.counted.holds(self.held(self.input.capacity()));
        }
    }

    /// True if the peer sends no more: nobody waits for what is not there yet.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The client has proved who it is.
    pub fn set_principal(&mut self, principal: Principal) {
        self.meter.set_principal(&principal);
        self.claims.set_principal(&principal);
        self.principal = principal;
    }

    /// A connection that nothing was received on yet but what began it.
    pub fn new(stream: Stream, shared: Arc<Shared>, counted: Counted) -> Self {
        let bell = Arc::new(Bell::default());
        let now = Instant::now();
        let principal = principal_of(&stream);
        Self {
            meter: Meter::new(shared.quotas.clone(), &principal),
            claims: Claims::new(shared.data.clone(), &principal),
            principal,
            stream,
            shared,
            input: Inbox::default(),
            out: Outbox::default(),
            touched: Vec::new(),
            waker: Waker::from(bell.clone()),
            bell,
            starved: false,
            starved_since: None,
            crowded: false,
            looked: now,
            sent_before: 0,
            last_input: now,
            taken: 0,
            ended: false,
            lost: false,
            is_unproven: false,
            proof_bytes: 0,
            counted,
        }
    }

    /// Serves the connection until it ends.
    ///
    /// # Errors
    /// The protocol's, and the socket's.
    pub async fn serve<P: Protocol>(&mut self, protocol: &mut P) -> Result<(), P::Ended> {
        let mut stopping = self.shared.stopping.subscribe();
        let mut stopped = false;
        let look = tokio::time::sleep(P::LOOK);
        tokio::pin!(look);
        let mut set_to = Instant::now() + P::LOOK;
        loop {
            self.starved = false;
            self.meter.begin_work();
            self.claims.begin_work();
            protocol.work(self)?;
            self.send(protocol)?;
            self.meter.end_work();
            self.claims
                .hold_outgoing(self.out.bytes() + protocol.coming(), self.out.sent());
            self.claims.hold_incoming(self.input.capacity());
            self.note_unproven();
            if protocol.is_over(self) {
                return Ok(());
            }
            if self.ended && !self.is_whole(protocol) && !protocol.outlives_client(self) {
                return Err(self.end_of_input().into());
            }
            let wanted = self.next_look(protocol);
            if wanted < set_to {
                // Later ones are set when the timer fires: setting it costs more than the look.
                set_to = wanted;
                look.as_mut().reset(set_to.into());
            }
            self.give_turn().await;
            let takes_input = self.takes_input(protocol);
            let mut interest = Interest::ERROR;
            if takes_input {
                interest |= Interest::READABLE;
            }
            if !self.out.is_empty() {
                interest |= Interest::WRITABLE;
            }
            let mut worked = self.meter.measures_time().then_some(Duration::ZERO);
            tokio::select! {
                // One that is lost is read to its end; its error is known.
                ready = self.stream.ready(interest), if takes_input || !self.lost => {
                    let ready = ready?;
                    if ready.is_readable() && self.takes_input(protocol) {
                        self.meter.begin_work();
                        self.read_input(protocol)?;
                        self.meter.end_work();
                    }
                    let closed = ready.is_error() || (ready.is_write_closed() && !self.out.is_empty());
                    if closed && !self.lost {
                        let error = self.stream.take_error()?;
                        self.lose(protocol, error.unwrap_or_else(|| std::io::ErrorKind::ConnectionReset.into()))?;
                    }
                }
                () = self.bell.rung() => protocol.rung(),
                () = std::future::ready(()), if protocol.goes_on(self) => {}
                settled = measured(protocol.settled(), &mut worked) => protocol.take_settled(self, settled)?,
                () = look.as_mut() => {
                    self.look_at_deadlines(protocol)?;
                    set_to = self.next_look(protocol);
                    look.as_mut().reset(set_to.into());
                }
                _ = stopping.wait_for(|stop| *stop), if !stopped => {
                    stopped = true;
                    protocol.stop(self);
                }
            }
            if let Some(worked) = worked {
                self.meter.charge_time(worked);
            }
        }
    }

    /// Lets other tasks have their turn, and the thread look at other sockets. A socket that always has input, and the
    /// bell, do not count against what tokio gives a task: without this a client that never pauses would have the
    /// thread for itself.
    async fn give_turn(&mut self) {
        match self.taken < TURN_BYTES {
            true => tokio::task::coop::consume_budget().await,
            false => {
                self.taken = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    /// True while bytes may be taken: within the limits on what is in flight, and with memory.
    fn takes_input<P: Protocol>(&self, protocol: &P) -> bool {
        !self.ended && !self.crowded && self.may_take() && protocol.takes_input(self)
    }

    /// True while frames may be taken: within the limits on bytes in flight, and with memory.
    pub fn may_take(&self) -> bool {
        !self.starved && self.claims.may_append() && self.claims.may_owe(self.out.bytes())
    }

    /// Sends what waits; it is dropped if nobody is there to take it.
    fn send<P: Protocol>(&mut self, protocol: &P) -> Result<(), P::Ended> {
        if !self.lost {
            match self.out.send(&self.stream) {
                Ok(_) => return Ok(()),
                Err(error) => self.lose(protocol, error)?,
            }
        }
        self.out = Outbox::default();
        Ok(())
    }

    /// The connection ends with `error`, unless something is still to be worked on that nobody waits for.
    fn lose<P: Protocol>(&mut self, protocol: &P, error: std::io::Error) -> Result<(), P::Ended> {
        if !protocol.outlives_client(self) {
            return Err(error.into());
        }
        self.lost = true;
        Ok(())
    }

    fn read_input<P: Protocol>(&mut self, protocol: &mut P) -> Result<(), P::Ended> {
        loop {
            let there = self.input.len();
            let frame = protocol.frame_bytes(self)?;
            let mut missing = frame.saturating_sub(there);
            if missing > 0 && !self.is_unproven && self.claims.is_needed_for(frame) {
                match protocol.may_arrive(self) {
                    Some(true) if self.claims.admit_frame(frame) => {}
                    Some(true) => {
                        self.crowded = true;
                        return Ok(());
                    }
                    Some(false) => return Ok(()),
                    // Read ahead, and no further: what has a claim waits for nothing any more.
                    None => missing = 0,
                }
            }
            let ahead = match self.is_unproven {
                true => AHEAD_OF_PROOF,
                false => self.claims.read_ahead(),
            };
            let room = self.input.room_for(missing, ahead);
            if self.is_unproven && !self.may_prove(room) {
                self.crowded = true;
                return Ok(());
            }
            if room == 0 {
                // Looked at again soon: others' buffers leave no room for more than this.
                self.crowded = !protocol.takes_frames(self);
                return Ok(());
            }
            match self.input.receive(&self.stream, room) {
                Ok(Received::Nothing) => return Ok(()),
                Ok(Received::Bytes(bytes)) => {
                    self.taken += bytes;
                    self.last_input = Instant::now();
                }
                Err(error) => {
                    self.ended = true;
                    return self.lose(protocol, error);
                }
                Ok(Received::End) => {
                    // A client that wants no answers closes right after it has sent. What has arrived is worked on, as
                    // fast as limits and quotas allow.
                    self.ended = true;
                    return Ok(());
                }
            }
            if self.input.len() >= READ_AHEAD && self.is_whole(protocol) {
                return Ok(());
            }
        }
    }

    /// True if the peer sends no more, and all that it sent was received.
    fn is_at_end(&self) -> bool {
        let looked = self.stream.peek(&mut [0]).now_or_never();
        matches!(looked, Some(Ok(0)))
    }

    /// Why a connection ends whose peer sends no more.
    fn end_of_input(&self) -> std::io::Error {
        if !self.input.is_empty() {
            let bytes = self.input.len();
            tracing::debug!(bytes, "a connection ended within a frame");
        }
        std::io::ErrorKind::UnexpectedEof.into()
    }

    /// True if the frame at the front has arrived, or can be told to be none.
    fn is_whole<P: Protocol>(&self, protocol: &P) -> bool {
        let there = self.input.len();
        protocol
            .frame_bytes(self)
            .map_or(true, |bytes| bytes > 0 && bytes <= there)
    }

    /// Bytes that the next read or push may bring; 0: first some must be sent.
    pub fn room_to_send(&self) -> usize {
        self.claims.room_to_send(self.out.bytes())
    }

    /// The same for one that is served now; 0 also while it is others' turn.
    pub fn claim_room(&mut self) -> usize {
        self.claims.claim_room(self.out.bytes(), &self.waker)
    }

    /// True if the frame at the front has waited for memory as long as one may.
    pub fn gives_up_memory(&self) -> bool {
        let waited = self.starved_since.map(|at| at.elapsed());
        waited.is_some_and(|waited| waited >= self.shared.data.memory_wait())
    }

    /// The frame at the front is refused, or was taken: it waits for memory no more.
    pub fn has_memory(&mut self) {
        self.starved_since = None;
    }

    /// There is no memory for the frame at the front: takes no more until there is some.
    pub fn wait_for_memory(&mut self) {
        // Our own written chunks may be what is missing: pump first, then wait for others.
        append::pump(&self.shared.data, &mut self.touched);
        self.shared.data.metrics.memory_waits.inc();
        self.shared.data.release_memory();
        self.starved_since.get_or_insert_with(Instant::now);
        self.starved = self.shared.data.env.pool.on_free(&self.waker);
    }

    fn next_look<P: Protocol>(&self, protocol: &P) -> Instant {
        let busy = protocol.is_busy()
            || self.claims.has_frame()
            || !self.out.is_empty()
            || self.starved
            || self.input.capacity() > self.input.len();
        let idle = self.shared.live().server.idle_timeout;
        let pause = match busy {
            _ if self.crowded => LOOK_CROWDED,
            true => P::LOOK,
            false if idle.is_zero() => LOOK_IDLE,
            false => LOOK_IDLE.min(idle).max(P::LOOK),
        };
        let at = Instant::now() + pause;
        protocol
            .deadline(self)
            .map_or(at, |deadline| at.min(deadline))
    }

    fn look_at_deadlines<P: Protocol>(&mut self, protocol: &mut P) -> Result<(), P::Ended> {
        let now = Instant::now();
        self.crowded = false;
        if now.duration_since(self.looked) < P::LOOK {
            return Ok(());
        }
        self.looked = now;
        protocol.look(self, now);
        // Where nothing is received because of a quota or a limit, its end would not be seen as long.
        self.ended |= !self.takes_input(protocol) && self.is_at_end();
        if self.out.sent() == self.sent_before {
            self.out.detach();
        }
        self.sent_before = self.out.sent();
        let (sent, waiting) = (self.out.sent(), self.out.bytes());
        if self.claims.is_unread(now, sent, waiting) {
            self.shared.data.metrics.unread_connections.inc();
            return protocol.overdue(self, Overdue::Unread);
        }
        // It is the peer that is waited for.
        let waits = protocol.takes_frames(self) && self.takes_input(protocol);
        let within = self.shared.config.server.receive_timeout;
        let late = self.input.is_late(now, within, waits);
        let received = self.input.len();
        if (late || (waits && self.claims.is_late(now, received))) && !self.is_whole(protocol) {
            protocol.overdue(self, Overdue::Frame)?;
        }
        let small = self.input.len() <= READ_AHEAD && !self.claims.has_frame();
        let passed = small && self.input.capacity() > 2 * READ_AHEAD;
        // A large frame has passed, or nothing comes any more.
        if passed || now.duration_since(self.last_input) > KEEP_INPUT {
            let freed = self.input.shrink() + self.out.shrink();
            self.shared.data.note_freed(freed);
        }
        let idle = self.shared.live().server.idle_timeout;
        let is_idle = !idle.is_zero() && protocol.is_idle();
        if is_idle && now.duration_since(self.last_input) > idle {
            return protocol.overdue(self, Overdue::Idle);
        }
        Ok(())
    }
}
