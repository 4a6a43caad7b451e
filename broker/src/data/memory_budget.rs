//! What one connection claims of the bytes that all connections together may hold: for what it receives
//! into, for a large frame that is on its way in, and for what waits to be sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::DataPlane;
use super::memory_shares::{Share, held, may_hold, may_hold_frame};
use super::send_steps::{Asked, Place, Step};
use crate::inbox::READ_AHEAD;
use crate::principal::Principal;

/// Frames up to this size need no claim of their own while there is room for buffers that hold them.
const SMALL_FRAME: usize = READ_AHEAD;
/// A buffer of this size every connection may have.
const SMALL_BUFFER: usize = 16 << 10;
/// A peer that takes less than this, and not all there was, within `server.send_timeout` does not read.
const LEAST_TAKEN: u64 = 64 << 10;
/// While all connections together hold too much, a peer that does not read has this part of the time.
const CROWD_PART: u32 = 4;
/// The same of one that is at a step while others wait for their turn.
const STEP_PART: u32 = 60;
/// But no less than this.
const LEAST_STEP: Duration = Duration::from_secs(1);
/// Bytes a second that a frame with a claim brings at least, on average, while others get no room for theirs.
const LEAST_PACE: u64 = 256 << 10;
/// From so long after the claim on.
const SLOW_AFTER: Duration = Duration::from_secs(5);
/// Who got no room asks again within this, or waits no more.
const STARVES: Duration = Duration::from_secs(2);
/// A connection stops serving reads and pushes with so much still to be sent.
const SEND_AHEAD: usize = 1 << 20;
/// Most bytes of one read or push.
const MOST: usize = 8 << 20;
/// Most bytes of one read or push while all connections together hold too much, unless the first batch is larger.
pub const MOST_IN_A_CROWD: usize = 64 << 10;
/// Who waits for its turn in a crowd is told that there is nothing after this time, and keeps its place: clients wait so much
/// longer than they ask for, and no more.
pub const TURN_WITHIN: Duration = Duration::from_secs(5);
/// What is counted of a read that waits for the disk is no less than this: it brings a batch at least.
pub const LEAST_DISK_READ: usize = 1 << 20;

/// One connection's claims; released when dropped.
pub struct Claims {
    data: Arc<DataPlane>,
    /// Of the connection's principal, if there are several.
    share: Option<Arc<Share>>,
    /// Bytes of appends that wait to be durable.
    appended: usize,
    frame: usize,
    frame_since: Instant,
    incoming: usize,
    outgoing: usize,
    /// Its leave to go on in a crowd, or its place among those that wait for one.
    step: Option<Step>,
    place: Option<Arc<Place>>,
    /// Bytes sent since the connection began, as of when what waits to be sent was last counted.
    sent: u64,
    /// `sent` when the step began.
    sent_before: u64,
    /// The peer has taken all of a step before.
    has_taken: bool,
    /// While bytes wait to be sent: how many had been, and when, as of the last time at which the peer was
    /// known to read.
    read_until: Option<(u64, Instant)>,
}

impl Claims {
    /// No claims yet, of a connection of that principal.
    pub fn new(data: Arc<DataPlane>, principal: &Principal) -> Self {
        Self {
            share: data.shares.of(principal),
            data,
            appended: 0,
            frame: 0,
            frame_since: Instant::now(),
            incoming: 0,
            outgoing: 0,
            step: None,
            place: None,
            sent: 0,
            sent_before: 0,
            has_taken: false,
            read_until: None,
        }
    }

    /// The client has proved who it is: what the connection holds, it holds of that principal's share.
    pub fn set_principal(&mut self, principal: &Principal) {
        let (in_flight, outgoing) = (self.appended + self.frame, self.outgoing);
        self.count(in_flight, outgoing, u64::wrapping_neg);
        self.share = self.data.shares.of(principal);
        self.count(in_flight, outgoing, |bytes| bytes);
    }

    /// Counts in the share what it holds more, or with a change of sign less.
    fn count(&self, in_flight: usize, outgoing: usize, sign: impl Fn(u64) -> u64) {
        if let Some(share) = &self.share {
            let add = |to: &AtomicU64, bytes: usize| {
                if bytes > 0 {
                    to.fetch_add(sign(bytes as u64), Ordering::Relaxed);
                }
            };
            add(&share.in_flight, in_flight);
            add(&share.outgoing, outgoing);
        }
    }

    /// Appends of `bytes` wait to be durable.
    pub fn wait_for(&mut self, bytes: usize) {
        self.appended += bytes;
        let all = &self.data.in_flight;
        all.fetch_add(bytes as u64, Ordering::Relaxed);
        self.count(bytes, 0, |bytes| bytes);
    }

    /// They wait no more.
    pub fn release(&mut self, bytes: usize) {
        self.appended -= bytes;
        let all = &self.data.in_flight;
        all.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.count(bytes, 0, u64::wrapping_neg);
    }

    /// True while more may be appended.
    pub fn may_append(&self) -> bool {
        let server = &self.data.config.server;
        let has_room = || {
            let total = self.data.in_flight.load(Ordering::Relaxed);
            may_hold(total + 1, self.own_in_flight(), server.max_in_flight_bytes)
        };
        self.appended < server.connection_in_flight_bytes as usize
            && (self.appended == 0 || has_room())
    }

    fn own_in_flight(&self) -> Option<u64> {
        held(self.share.as_ref().map(|share| &share.in_flight))
    }

    /// True if an incoming frame of `total` bytes needs a claim that it does not have.
    pub fn is_needed_for(&self, total: usize) -> bool {
        self.frame == 0 && total > self.read_ahead()
    }

    /// Claims room for an incoming frame of `total` bytes. False: there is too much in flight; ask
    /// again later.
    pub fn admit_frame(&mut self, total: usize) -> bool {
        if !self.is_needed_for(total) {
            return true;
        }
        let limit = self.data.config.server.max_in_flight_bytes;
        let more = total as u64;
        let own = self.own_in_flight();
        // One at least is always admitted.
        let may = |now: u64| now == 0 || may_hold_frame(now, more, own, limit);
        let admit = |now: u64| may(now).then_some(now + more);
        let in_flight = &self.data.in_flight;
        let admitted = in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit);
        if admitted.is_ok() {
            (self.frame, self.frame_since) = (total, Instant::now());
            self.count(total, 0, |bytes| bytes);
        } else if own.is_none_or(|own| own == 0) {
            *self.data.starved.lock() = Some(Instant::now());
        }
        admitted.is_ok()
    }

    /// Bytes that may be received before they are worked on.
    pub fn read_ahead(&self) -> usize {
        let limit = self.data.config.server.max_in_flight_bytes;
        let crowd = self.incoming == 0 && self.data.incoming.load(Ordering::Relaxed) >= limit;
        if crowd { SMALL_BUFFER } else { SMALL_FRAME }
    }

    /// The connection's buffer holds `capacity` bytes. What is small, or claimed for a frame, is not counted.
    pub fn hold_incoming(&mut self, capacity: usize) {
        let counted = capacity > SMALL_BUFFER && self.frame == 0;
        let now = if counted { capacity } else { 0 };
        hold(&self.data.incoming, &mut self.incoming, now);
    }

    /// The frame was worked on: its claim ends, the batches in it are counted where they wait.
    pub fn end_frame(&mut self) {
        let ended = std::mem::take(&mut self.frame);
        if ended > 0 {
            self.data
                .in_flight
                .fetch_sub(ended as u64, Ordering::Relaxed);
            self.count(ended, 0, u64::wrapping_neg);
        }
    }

    /// True while a frame has a claim.
    pub fn has_frame(&self) -> bool {
        self.frame > 0
    }

    /// True if a frame, of which `received` bytes are there, has had its claim for longer than it may: others may wait
    /// for it. While somebody does who holds nothing, it has to come at `LEAST_PACE`.
    pub fn is_late(&self, now: Instant, received: usize) -> bool {
        if !self.has_frame() {
            return false;
        }
        let since = now.saturating_duration_since(self.frame_since);
        let is_slow = since > SLOW_AFTER && (received as u64) < since.as_secs() * LEAST_PACE;
        let starved = || {
            let starved = *self.data.starved.lock();
            starved.is_some_and(|last| now.saturating_duration_since(last) < STARVES)
        };
        since > self.data.config.server.receive_timeout || is_slow && starved()
    }

    /// True if the peer has not read for too long: `waiting` bytes are still to be sent, `sent` have been
    /// since the connection began. Called at every look at deadlines.
    pub fn is_unread(&mut self, now: Instant, sent: u64, waiting: usize) -> bool {
        let since = match self.read_until {
            _ if waiting == 0 => {
                self.read_until = None;
                return false;
            }
            Some((before, since)) if sent < before + LEAST_TAKEN => since,
            _ => {
                self.read_until = Some((sent, now));
                return false;
            }
        };
        let timeout = self.data.config.server.send_timeout;
        let in_a_crowd = timeout / CROWD_PART;
        let within = if self.step.is_some() && self.data.steps.waiting() > 0 {
            in_a_crowd.min(LEAST_STEP.max(timeout / STEP_PART))
        } else if self.is_crowd() {
            in_a_crowd
        } else {
            timeout
        };
        now.duration_since(since) > within
    }

    /// True while all connections together hold more that waits to be sent than they should.
    pub fn is_crowd(&self) -> bool {
        let own = held(self.share.as_ref().map(|share| &share.outgoing));
        self.data.is_crowded(own)
    }

    /// True while the connection may take more requests, with `waiting` bytes of replies still to be sent.
    pub fn may_owe(&self, waiting: usize) -> bool {
        let most = if self.is_crowd() {
            MOST_IN_A_CROWD
        } else {
            self.data.config.server.connection_in_flight_bytes as usize
        };
        waiting < most
    }

    /// Bytes that the next read or push may bring when `waiting` bytes are still to be sent. 0: none
    /// may be served before some are sent. In a crowd it needs a step besides: [`Self::claim_room`].
    pub fn room_to_send(&self, waiting: usize) -> usize {
        if waiting >= SEND_AHEAD {
            return 0;
        }
        if !self.is_crowd() {
            MOST
        } else if waiting == 0 {
            // Each connection goes on, in small steps.
            MOST_IN_A_CROWD
        } else {
            0
        }
    }

    /// As [`Self::room_to_send`], for a read or push that is served now. 0 also: in a crowd it is others' turn; `waker` is
    /// woken once it is this connection's, which is then to serve something or goes to the end of the row.
    pub fn claim_room(&mut self, waiting: usize, waker: &Waker) -> usize {
        let room = self.room_to_send(waiting);
        if room > MOST_IN_A_CROWD {
            self.leave_row();
            if waiting == 0 {
                // What comes now needs none, and says nothing of what steps bring.
                self.step = None;
            }
            return room;
        }
        if room == 0 || self.step.is_some() {
            return room;
        }
        if self.place.is_some() {
            return 0;
        }
        match self.data.steps.ask(waker, self.has_taken) {
            Asked::Step(step) => {
                self.begin_step(step);
                room
            }
            Asked::Place(place) => {
                self.place = Some(place);
                0
            }
        }
    }

    /// What is sent next was made by a handler that had this step.
    pub fn begin_step(&mut self, step: Step) {
        self.step = Some(step);
        self.sent_before = self.sent;
    }

    /// True while it is others' turn.
    pub fn waits_for_step(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.waits())
    }

    /// The connection is about to work on what it has: if its turn has come, it has its step from here on.
    pub fn begin_work(&mut self) {
        let Some(place) = &self.place else {
            return;
        };
        if let Some(turn) = self.data.steps.look(place) {
            self.place = None;
            if let Some(step) = turn {
                self.begin_step(step);
            }
        }
    }

    fn leave_row(&mut self) {
        if let Some(place) = self.place.take() {
            self.data.steps.leave(&place);
        }
    }

    /// The connection holds `bytes` that are to be sent, and has sent `sent` since it began.
    pub fn hold_outgoing(&mut self, bytes: usize, sent: u64) {
        self.sent = sent;
        match &mut self.step {
            Some(_) if bytes == 0 => {
                self.has_taken |= sent > self.sent_before;
                self.step = None;
            }
            Some(step) => step.hold(bytes as u64),
            None => {}
        }
        let before = self.outgoing;
        match bytes >= before {
            true => self.count(0, bytes - before, |bytes| bytes),
            false => self.count(0, before - bytes, u64::wrapping_neg),
        }
        hold(&self.data.outgoing, &mut self.outgoing, bytes);
        if bytes < before {
            self.data.end_crowd();
        }
    }
}

/// Counts `now` bytes in `total` where `mine` were counted before.
fn hold(total: &AtomicU64, mine: &mut usize, now: usize) {
    let before = std::mem::replace(mine, now);
    if now > before {
        total.fetch_add((now - before) as u64, Ordering::Relaxed);
    } else if now < before {
        total.fetch_sub((before - now) as u64, Ordering::Relaxed);
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.release(self.appended);
        self.end_frame();
        self.hold_incoming(0);
        self.leave_row();
        self.hold_outgoing(0, self.sent);
    }
}

#[cfg(test)]
#[path = "memory_budget_tests.rs"]
mod tests;
