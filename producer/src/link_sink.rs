//! What comes back over a link.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use kera_protocol::frame::Frame;
use kera_rpc::{ConnectionError, FrameSink};
use parking_lot::Mutex;

use crate::link::{Flushes, Link};
use crate::shared::Shared;

/// Answers after which is sent what they made room for, although more have come: one write takes as many
/// batches, and the broker is not to wait for more.
const ROUND_ANSWERS: usize = 32;

/// Takes a link's replies. It does not keep the producer alive.
pub(crate) struct LinkSink {
    shared: Weak<Shared>,
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
    pub(crate) fn new(shared: &Arc<Shared>, link: &Arc<Link>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
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
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let to_flush = shared.replied(token, reply);
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
        let (Some(shared), Some(link)) = (self.shared.upgrade(), self.link.upgrade()) else {
            return;
        };
        if !link.is_idle() {
            return;
        }
        // Nothing is under way that could bring back more.
        if shared.memory.owes_a_wake() {
            shared.memory.wake();
        }
        if shared.settings.linger.is_zero() {
            shared.send_open_batches();
        }
    }

    fn closed(&self, error: &ConnectionError) {
        // Answers that it will not bring may have made room on another connection.
        self.end_round();
        let (Some(shared), Some(link)) = (self.shared.upgrade(), self.link.upgrade()) else {
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
        // Its streamlets may have another owner soon.
        shared.want_meta.store(true, Ordering::Relaxed);
        shared.wake_driver();
    }
}
