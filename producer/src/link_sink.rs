//! What comes back over a link.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use kera_protocol::frame::Frame;
use kera_rpc::{ConnectionError, FrameSink};
use parking_lot::Mutex;

use crate::family::Family;
use crate::link::{Flushes, Link};

/// Answers after which is sent what they made room for, although more have come: one write takes as many
/// batches, and the broker is not to wait for more.
const ROUND_ANSWERS: usize = 32;

/// Takes a link's replies. It does not keep the producers alive.
pub(crate) struct LinkSink {
    family: Weak<Family>,
    link: Weak<Link>,
    round: Mutex<Round>,
}

/// Answers that came together, and what is to be flushed for them: one write for all.
#[derive(Default)]
struct Round {
    answers: usize,
    flushes: Flushes,
}

impl LinkSink {
    pub(crate) fn new(family: &Arc<Family>, link: &Arc<Link>) -> Self {
        Self {
            family: Arc::downgrade(family),
            link: Arc::downgrade(link),
            round: Mutex::default(),
        }
    }

    fn end_round(&self) {
        // Not locked while it is flushed: a connection that breaks then tells its sink.
        let round = std::mem::take(&mut *self.round.lock());
        round.flushes.run();
    }
}

impl FrameSink for LinkSink {
    fn reply(&self, token: u64, reply: Result<Frame, ConnectionError>) {
        if let Some(link) = self.link.upgrade() {
            link.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        let Some(family) = self.family.upgrade() else {
            return;
        };
        let to_flush = family.replied(token, reply);
        let is_long = {
            let mut round = self.round.lock();
            round.answers += 1;
            round.flushes.add(to_flush);
            round.answers >= ROUND_ANSWERS
        };
        if is_long {
            self.end_round();
        }
    }

    fn push(&self, _frame: Frame) {
        // A producer subscribes to nothing.
    }

    fn drained(&self) {
        self.end_round();
        let (Some(family), Some(link)) = (self.family.upgrade(), self.link.upgrade()) else {
            return;
        };
        if !link.is_idle() {
            return;
        }
        // Nothing is under way that could bring back more.
        if family.memory.owes_a_wake() {
            family.memory.wake();
        }
        if !family.lingers {
            for member in family.members() {
                member.send_open_batches();
            }
        }
    }

    fn closed(&self, error: &ConnectionError) {
        // Answers that it will not bring may have made room on another connection.
        self.end_round();
        let (Some(family), Some(link)) = (self.family.upgrade(), self.link.upgrade()) else {
            return;
        };
        tracing::debug!(broker = %link.address, %error, "producer lost its connection");
        let dead = {
            let mut state = link.state.lock();
            // A new connection may have taken its place already.
            state
                .connection
                .take_if(|connection| connection.is_closed())
        };
        drop(dead);
        *link.trouble.lock() = Some(error.to_string());
        family.look_for_owners();
    }
}
