//! How much one request may be answered with, and whose turn it is to answer with much.
//!
//! A short request may ask for much: a topic's partitions, a group's offsets, all settings of everything.
//! So a handler asks for room before it adds an item to its reply, and answers with an error in the item's
//! place where there is none. What all replies together take is bounded as well: one that becomes large
//! waits until clients have taken enough of the others, and only a few are made at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use kafka_protocol::protocol::Encodable;
use kera_broker::data::memory_budget::LEAST_DISK_READ;
use kera_broker::data::send_steps::Step;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use crate::context::Ctx;

/// A reply up to this many bytes needs no turn.
const SMALL: usize = 64 << 10;
/// Large replies that are made at a time.
const TURNS: usize = 2;
/// Longest wait for a turn. Clients wait 30 s for a reply as a rule.
const TURN_WITHIN: Duration = Duration::from_secs(20);
/// How often it is looked whether clients have taken enough.
const LOOK: Duration = Duration::from_millis(20);
/// Others run after so many items.
const ITEMS_PER_PAUSE: usize = 64;

/// The turns of all requests.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TURNS)))
    }
}

/// The room of one request's reply.
#[derive(Debug, Default)]
pub(crate) struct ReplyRoom {
    used: AtomicUsize,
    items: AtomicUsize,
    full: AtomicBool,
    turn: Mutex<Option<OwnedSemaphorePermit>>,
    /// Leave to answer with records while clients do not take what is sent.
    step: Mutex<Option<Step>>,
    /// How long the client is told to wait, in milliseconds.
    throttle_ms: AtomicI32,
}

/// How long a client is told to wait, in whole milliseconds: rather too long than too short.
pub(crate) fn throttle_ms(wait: Duration) -> i32 {
    i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

impl ReplyRoom {
    /// The client is to wait so long: what it asked for is refused because it has used up a quota.
    pub(crate) fn note_throttle(&self, wait: Duration) {
        let ms = throttle_ms(wait);
        self.throttle_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// The step that the reply's records were read with, if there was one.
    pub(crate) fn take_step(&self) -> Option<Step> {
        self.step.lock().take()
    }

    fn has_turn(&self) -> bool {
        self.turn.lock().is_some() || self.step.lock().is_some()
    }

    /// How long the client is told to wait.
    pub(crate) fn throttle_ms(&self) -> i32 {
        self.throttle_ms.load(Ordering::Relaxed)
    }
}

impl Ctx {
    /// Room for `bytes` more in the reply. False: an error takes the item's place. Lets others run now and
    /// then.
    pub(crate) async fn has_room_for(&self, bytes: usize) -> bool {
        self.pause().await;
        let room = &self.room;
        let used = room.used.load(Ordering::Relaxed).saturating_add(bytes);
        let fits = used <= self.settings.max_reply_bytes
            && (used <= SMALL || room.has_turn() || self.take_turn().await);
        if fits {
            room.used.store(used, Ordering::Relaxed);
        } else if !room.full.swap(true, Ordering::Relaxed) {
            self.shared.data.metrics.large_replies.inc();
            tracing::debug!(peer = %self.peer, "a reply is cut short: it would be longer than kafka.max_reply_bytes, or clients do not take other large replies");
        }
        fits
    }

    /// As [`Self::has_room_for`] an item that exists already.
    pub(crate) async fn has_room_for_item(&self, item: &impl Encodable, version: i16) -> bool {
        let bytes = item.compute_size(version).unwrap_or(usize::MAX);
        self.has_room_for(bytes).await
    }

    /// Bytes of records that may be read for the reply now. While all connections together hold too much that waits to be
    /// sent it is a step, as for other reads; `None` if it is not its turn by `deadline`.
    pub(crate) async fn may_read(&self, deadline: Instant) -> Option<usize> {
        let data = &self.shared.data;
        if !data.sends_much() {
            return Some(usize::MAX);
        }
        let mut step = data.steps.step(deadline.into_std()).await?;
        step.hold(LEAST_DISK_READ as u64);
        *self.room.step.lock() = Some(step);
        Some(SMALL)
    }

    /// Nothing was read.
    pub(crate) fn has_read_nothing(&self) {
        drop(self.room.take_step());
    }

    /// Bytes that the reply may still grow by.
    pub(crate) fn room_left(&self) -> usize {
        let used = self.room.used.load(Ordering::Relaxed);
        self.settings.max_reply_bytes.saturating_sub(used)
    }

    /// Lets others run now and then; called for each item of a request.
    pub(crate) async fn pause(&self) {
        let items = self.room.items.fetch_add(1, Ordering::Relaxed) + 1;
        if items.is_multiple_of(ITEMS_PER_PAUSE) {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until few enough large replies are made, and clients have taken enough of those before.
    async fn take_turn(&self) -> bool {
        let deadline = Instant::now() + TURN_WITHIN;
        let turn = self.settings.turns.0.clone().acquire_owned();
        let Ok(Ok(turn)) = timeout_at(deadline, turn).await else {
            return false;
        };
        while self.shared.data.sends_much() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK).await;
        }
        *self.room.turn.lock() = Some(turn);
        true
    }
}
