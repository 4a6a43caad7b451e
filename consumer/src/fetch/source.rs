//! One lane, or part of one, that is being read.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::Ordinal;
use kera_protocol::v1::{self, Cursor};
use tokio::time::Instant;

use super::replicas::KnownReplicas;
use super::trouble::{Tried, Trouble};
use super::{SourceSpec, stream_bytes};
use crate::config::FetchSettings;

/// Smallest answer asked for, and smallest credit.
const MIN_FETCH_BYTES: usize = 16 << 10;
/// An empty answer that comes sooner is followed by a pause: the broker does not wait for us.
const EMPTY_PAUSE: Duration = Duration::from_millis(5);

/// What a source waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// In the queue of those to be asked for.
    Idle,
    /// A pause before it is idle again.
    Paused,
    /// A reply.
    Asked,
    /// Pushes.
    Subscribed,
    /// Nothing: all was read, or reading is hopeless.
    Ended,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) spec: SourceSpec,
    /// Everything below was received.
    pub(super) next: Cursor,
    pub(super) phase: Phase,
    /// Tells replies to earlier requests apart.
    pub(super) round: u16,
    pub(super) owner: Option<Arc<str>>,
    pub(super) link: u64,
    pub(super) subscription: u32,
    /// Bytes the broker may still push, as far as is known here. It forgives what its last batch exceeded
    /// them by.
    pub(super) credit: usize,
    /// Bytes that arrived and were not taken.
    pub(super) untaken: usize,
    /// An error of it was not taken yet.
    pub(super) error_waits: bool,
    /// Why it does not go on.
    pub(super) trouble: Option<Trouble>,
    /// What may be over: an attempt was made since.
    pub(super) tried: Option<Tried>,
    /// Failures in a row.
    pub(super) attempt: u32,
    /// Ask once although it is pushed: only replies tell where the log starts.
    pub(super) ask_once: bool,
    pub(super) asked_at: Option<Instant>,
    pub(super) head: Ordinal,
    /// The broker that is asked for a copy now, in place of the owner.
    pub(super) detour: Option<Arc<str>>,
    pub(super) replicas: KnownReplicas,
}

impl Source {
    pub(super) fn new(spec: SourceSpec, owner: Option<Arc<str>>) -> Self {
        Self {
            next: spec.from,
            phase: Phase::Idle,
            round: 0,
            owner,
            link: 0,
            subscription: 0,
            credit: 0,
            untaken: 0,
            error_waits: false,
            trouble: None,
            tried: None,
            attempt: 0,
            ask_once: false,
            asked_at: None,
            head: 0,
            detour: None,
            replicas: KnownReplicas::new(false),
            spec,
        }
    }

    /// True if nothing is to come any more.
    pub(super) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    pub(super) fn is_pushed(&self) -> bool {
        self.spec.push && !self.ask_once
    }

    /// The broker that is asked now.
    pub(super) fn broker(&self) -> Option<&Arc<str>> {
        self.detour.as_ref().or(self.owner.as_ref())
    }

    /// Bytes of the window of one of `sources`, so that all together keep to the limit: a share that is
    /// halved now and then as sources are added, and not with each of them.
    pub(super) fn window(settings: &FetchSettings, sources: usize) -> usize {
        (settings.memory_limit / sources.max(1).next_power_of_two()).max(MIN_FETCH_BYTES)
    }

    fn end_ordinal(&self) -> Ordinal {
        if self.spec.end == Ordinal::MAX {
            0
        } else {
            self.spec.end
        }
    }

    pub(super) fn read_request(
        &mut self,
        settings: &FetchSettings,
        window: usize,
        now: Instant,
    ) -> v1::ReadRequest {
        self.asked_at = Some(now);
        let lane = self.spec.lane;
        v1::ReadRequest {
            stream: stream_bytes(lane),
            streamlet: lane.streamlet.0,
            lane: lane.lane.0,
            cursor: Some(self.next),
            end_ordinal: self.end_ordinal(),
            max_bytes: settings.fetch_bytes.min(window) as u32,
            min_bytes: 1,
            max_wait_ms: settings.poll_wait.as_millis() as u32,
            lane_generation: self.spec.lane_generation,
            from_copy: self.detour.is_some(),
        }
    }

    pub(super) fn subscribe_request(
        &mut self,
        subscription: u32,
        settings: &FetchSettings,
        window: usize,
    ) -> v1::SubscribeRequest {
        self.subscription = subscription;
        let lane = self.spec.lane;
        v1::SubscribeRequest {
            subscription,
            stream: stream_bytes(lane),
            streamlet: lane.streamlet.0,
            lane: lane.lane.0,
            cursor: Some(self.next),
            end_ordinal: self.end_ordinal(),
            credit_bytes: self.credit as u64,
            max_bytes: settings.fetch_bytes.min(window) as u32,
            lane_generation: self.spec.lane_generation,
        }
    }

    /// Credit to subscribe with where `room` bytes are left for all sources. What waits here will bring
    /// more when it is taken; without that, a batch has to come in any case.
    pub(super) fn first_credit(&self, window: usize, room: usize) -> usize {
        match self.untaken {
            0 => room.clamp(1, window),
            untaken => room.min(window.saturating_sub(untaken)),
        }
    }

    /// How much credit to add after data was taken; 0 until it is worth a frame. What still waits here
    /// counts: otherwise each chunk that is taken would let a window more of them come.
    pub(super) fn credit_due(&self, window: usize) -> usize {
        let due = window.saturating_sub(self.credit + self.untaken);
        if due < window / 2 { 0 } else { due }
    }

    /// A pause if the broker answered "nothing" although it was asked to wait.
    pub(super) fn pause_after_empty(&self, now: Instant) -> Option<Duration> {
        let waited = now.duration_since(self.asked_at?);
        (waited < EMPTY_PAUSE).then_some(EMPTY_PAUSE)
    }
}
