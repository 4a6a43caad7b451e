//! One coordinator and the lane of the internal stream that makes it durable.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use kera_coordinator::classic::Listing;
use kera_coordinator::transactions::{Lost, OpenThere, Partition};
use kera_coordinator::{
    Coordinator, Event, EventError, LaneView, Limits, Replay, Reply, Request, Step,
};
use kera_log_segments::local_writer::LocalWriter;
use kera_protocol::batch::{
    self, BatchBuilder, BatchHeader, Compression, MAX_BATCH_BYTES, NewRecord, ProducerStamp,
    Records,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal, StreamId, StreamletId};
use kera_protocol::v1;
use kera_streamlet::{
    AppendError, AppendSpec, Appended, LaneReadSpec, Located, Outcome, Streamlet,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::clock::now_ms;
use crate::coordination::{CoordinatorKind, TICK};
use crate::data::catalog::{Stream, Streamlets};
use crate::fault_rules::Rule;

/// The one lane of an internal streamlet.
const LANE: LaneId = LaneId(0);
/// Events are written in batches of about this size.
const BATCH_BYTES: usize = 64 * 1024;
/// Attempts to find memory for a batch of events before the coordinator is given up.
const MEMORY_ATTEMPTS: usize = 100;

/// Most bytes of the events of one batch.
const EVENTS_BYTES: usize = 64 << 20;
/// Longest pause between attempts to read a state that cannot be read.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// What could not be trimmed is tried again after this: requests wait while the metadata store does not answer.
const TRIM_AGAIN: Duration = Duration::from_secs(30);
/// So many attempts fail before the broker says that consumer groups cannot be read: what moves or is
/// fetched from other brokers can be read soon.
const ATTEMPTS: u32 = 4;

type Answer = Result<Reply, WireError>;
/// Answers on their way to those who asked.
type Replies = Vec<(oneshot::Sender<Answer>, Answer)>;

/// A coordinator with its lane, for as long as this broker owns the lane's streamlet under one epoch.
pub(crate) struct Host {
    kind: CoordinatorKind,
    streamlet: Arc<Streamlet>,
    epoch: Epoch,
    pump: Arc<LocalWriter>,
    /// The same for all coordinators of a broker.
    limits: Arc<Mutex<Limits>>,
    /// Its state is being read.
    loading: AtomicBool,
    /// What became of the attempts to read it since it was last read.
    failing: Mutex<Failing>,
    /// Records that the last reading passed over.
    passed_over: AtomicU64,
    /// Records below this were told of in the log, where they had to be passed over.
    told_below: AtomicU64,
    state: Mutex<State>,
}

/// Attempts to read a coordinator's state that failed.
#[derive(Default)]
struct Failing {
    attempts: u32,
    /// The error that the log tells of.
    told: String,
    next: Option<Instant>,
}

#[derive(Default)]
struct State {
    /// `None` while its state must be read (anew).
    coordinator: Option<Coordinator>,
    /// Another broker owns the streamlet, or this one under another epoch: nothing is served any more.
    ended: bool,
    next_ticket: u64,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    /// Replies that wait for durability, in order.
    held: VecDeque<(Appended, Replies)>,
    last: Option<Appended>,
    /// The group that a snapshot was written to.
    snapshot_in: Option<GroupId>,
    /// Bytes of the last snapshot, and of the events since.
    snapshot_bytes: usize,
    since_snapshot: usize,
    surplus: Option<Surplus>,
}

impl State {
    /// Whether the live state is to follow the events that were just appended: not before as much was written as it takes.
    ///
    /// The first events since the state was read are followed by it whatever its size. A coordinator that was given up
    /// may have left events that became durable only after that reading, so that this one does not know of them. The
    /// snapshot stands for all before it, and replies wait for it: no later reading takes such an event beside an
    /// answered one, which may have given its lease or its offset to another member.
    fn wants_snapshot(&self) -> bool {
        self.snapshot_in.is_none() || self.since_snapshot >= self.snapshot_bytes
    }
}

/// What lies before a snapshot, and is not needed once that is durable.
struct Surplus {
    snapshot: Appended,
    below: Ordinal,
    /// When it is tried again to trim it.
    again: Option<Instant>,
}

impl Host {
    /// A coordinator that is not loaded yet.
    pub(super) fn new(
        kind: CoordinatorKind,
        streamlet: Arc<Streamlet>,
        pump: Arc<LocalWriter>,
        limits: Arc<Mutex<Limits>>,
    ) -> Self {
        Self {
            kind,
            epoch: streamlet.epoch(),
            streamlet,
            pump,
            limits,
            loading: AtomicBool::new(false),
            failing: Mutex::default(),
            passed_over: AtomicU64::new(0),
            told_below: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// Bounds the coordinator otherwise from now on; one that is loaded later takes the common bounds.
    pub(super) fn set_limits(&self, limits: Limits) {
        if let Some(coordinator) = &mut self.state.lock().coordinator {
            coordinator.set_limits(limits);
        }
    }

    /// True if it is the host for `streamlet` as that is now.
    pub(super) fn is_for(&self, streamlet: &Arc<Streamlet>) -> bool {
        Arc::ptr_eq(&self.streamlet, streamlet) && self.epoch == streamlet.epoch()
    }

    /// Reads the state from the stream. Blocks. False if it cannot be read.
    pub(super) fn load(&self, now: u64) -> bool {
        if self.loading.swap(true, Ordering::AcqRel) {
            return false;
        }
        let read = self.replay(now);
        let loaded = match read {
            Ok(coordinator) => {
                let mut state = self.state.lock();
                if !state.ended {
                    *state = State {
                        next_ticket: state.next_ticket,
                        ..State::default()
                    };
                    let limits = self.limits.lock().clone();
                    state.coordinator.insert(coordinator).set_limits(limits);
                }
                *self.failing.lock() = Failing::default();
                true
            }
            Err(error) => {
                self.note_failure(error);
                false
            }
        };
        self.loading.store(false, Ordering::Release);
        loaded
    }

    /// Tells of an error once, and has the next attempt wait for longer than the one before.
    fn note_failure(&self, error: String) {
        let mut failing = self.failing.lock();
        let pause = (TICK * 2_u32.saturating_pow(failing.attempts)).min(LONGEST_PAUSE);
        failing.attempts += 1;
        failing.next = Some(Instant::now() + pause);
        if failing.told != error {
            let (what, streamlet) = (self.kind.what(), self.streamlet.id().0);
            // With its streamlet it goes to another broker, while this one reads: nothing is wrong.
            match self.streamlet.is_over() {
                true => tracing::info!(
                    streamlet,
                    error,
                    "the state of {what} is not read here any more"
                ),
                false => tracing::error!(
                    streamlet,
                    error,
                    "the state of {what} cannot be read; trying again"
                ),
            }
            failing.told = error;
        }
    }

    /// True if its state could not be read again and again, and nobody else is to read it.
    pub(super) fn is_unreadable(&self) -> bool {
        let failed = self.failing.lock().attempts >= ATTEMPTS;
        failed && {
            let state = self.state.lock();
            !state.ended && state.coordinator.is_none()
        }
    }

    /// Records that could not be read when its state was, and were passed over.
    pub(super) fn passed_over(&self) -> u64 {
        self.passed_over.load(Ordering::Relaxed)
    }

    /// Ends it: whoever waits is to ask another broker.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let elsewhere = WireError::new(
            ErrorCode::NotCoordinator,
            "another broker coordinates it now; look it up again",
        );
        drop_coordinator(&mut state, &elsewhere);
    }

    /// The streams that a group reads, or has offsets of.
    pub(super) fn streams_of(&self, group: &str) -> Vec<StreamId> {
        let state = self.state.lock();
        let coordinator = state.coordinator.as_ref();
        coordinator.map_or_else(Vec::new, |c| c.streams_of(group))
    }

    fn replay(&self, now: u64) -> Result<Coordinator, String> {
        // What is read would be given up at the first change.
        if self.streamlet.stable(LANE).is_none() {
            return Err("the lane that keeps it takes no appends: it could not be read or written, and the log names the file".to_owned());
        }
        let mut replay = Replay::new();
        let bounds = self.streamlet.bounds();
        let (log_start, head) = bounds
            .first()
            .map_or((0, 0), |(_, start, head)| (*start, *head));
        let mut from = Located {
            ordinal: log_start,
            at: None,
        };
        let mut scratch = Vec::new();
        loop {
            let found = self
                .streamlet
                .read(LaneReadSpec {
                    lane: LANE,
                    from,
                    end_ordinal: u64::MAX,
                    max_bytes: 1 << 20,
                    cached_only: false,
                })
                .map_err(|e| e.to_string())?;
            if found.batches == 0 {
                break;
            }
            let bytes = found.bufs.concat();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let header = batch::verify(rest).map_err(|e| e.to_string())?;
                let (one, after) = rest.split_at(header.total_bytes);
                rest = after;
                if Rule::LastEventsNotRead.is_broken()
                    && header.base_ordinal + header.ordinals() >= head
                {
                    continue;
                }
                self.replay_batch(&header, one, from.ordinal, &mut replay, &mut scratch)?;
            }
            from = found.next;
        }
        let (mut coordinator, report) = replay.finish(self.limits.lock().clone(), now);
        coordinator.begin_epoch(self.epoch);
        self.passed_over
            .store(report.passed_over, Ordering::Relaxed);
        self.told_below.fetch_max(from.ordinal, Ordering::Relaxed);
        let what = self.kind.what();
        tracing::debug!(streamlet = self.streamlet.id().0, ?report, "{what} loaded");
        Ok(coordinator)
    }

    /// Takes the events of one batch, from an ordinal on. What is no event is passed over: no build could
    /// read it, and the groups of this coordinator are not to wait for that.
    fn replay_batch(
        &self,
        header: &BatchHeader,
        batch: &[u8],
        from: Ordinal,
        replay: &mut Replay,
        scratch: &mut Vec<u8>,
    ) -> Result<(), String> {
        let records = match Records::open(batch, EVENTS_BYTES, scratch) {
            Ok(records) => records,
            Err(error) => {
                self.pass_over(replay, header.base_ordinal, &error);
                return Ok(());
            }
        };
        for (record, ordinal) in records.zip(header.base_ordinal..) {
            let event = match record {
                Ok(_) if ordinal < from => continue,
                Ok(record) => Event::decode(
                    record.key.unwrap_or_default(),
                    record.value.unwrap_or_default(),
                ),
                // Nothing of the batch follows a record that cannot be read.
                Err(error) => {
                    self.pass_over(replay, ordinal, &error);
                    break;
                }
            };
            match event {
                Ok(event) => replay.apply(&event),
                Err(error @ EventError::Malformed { .. }) => {
                    self.pass_over(replay, ordinal, &error);
                }
                // Passing it over would forget a lease or a commit: rather serve no group of
                // this coordinator until a build that knows the event reads it.
                Err(error @ EventError::NewerVersion { .. }) => {
                    return Err(format!("event at ordinal {ordinal}: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Passes over what is no event, and tells of it once.
    fn pass_over(&self, replay: &mut Replay, ordinal: Ordinal, error: &dyn Display) {
        replay.pass_over();
        if ordinal >= self.told_below.load(Ordering::Relaxed) {
            let what = self.kind.what();
            tracing::error!(
                stream = self.kind.stream(),
                streamlet = self.streamlet.id().0,
                ordinal,
                %error,
                "a record among the events of {what} is no event; it is passed over"
            );
        }
    }

    /// Hands a request to the coordinator. `None` while it is loading.
    pub(super) fn handle(
        &self,
        view: &dyn LaneView,
        request: Request,
        waker: &Waker,
    ) -> Option<(u64, oneshot::Receiver<Answer>)> {
        let (tell, told) = oneshot::channel();
        let mut state = self.state.lock();
        state.next_ticket += 1;
        let ticket = state.next_ticket;
        let coordinator = state.coordinator.as_mut()?;
        let step = coordinator.handle(now_ms(), ticket, request, view);
        state.waiting.insert(ticket, tell);
        self.take(&mut state, step);
        self.settle(&mut state, waker);
        drop(state);
        Some((ticket, told))
    }

    /// The client of a request has gone.
    pub(super) fn cancel(&self, ticket: u64) {
        let mut state = self.state.lock();
        state.waiting.remove(&ticket);
        if let Some(coordinator) = state.coordinator.as_mut() {
            coordinator.cancel(ticket);
        }
    }

    /// The streamlet of its internal stream.
    pub(crate) fn streamlet(&self) -> StreamletId {
        self.streamlet.id()
    }

    /// The epoch under which it decides.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// True if it has decided about transactions of which some markers are not known to be written.
    pub(crate) fn has_decided(&self) -> bool {
        let state = self.state.lock();
        state
            .coordinator
            .as_ref()
            .is_some_and(Coordinator::has_decided)
    }

    /// The partitions in which markers of ended transactions may be lost again; none while it is loading.
    pub(crate) fn unsettled_partitions(&self) -> Vec<Partition> {
        let state = self.state.lock();
        let coordinator = state.coordinator.as_ref();
        coordinator.map_or_else(Vec::new, Coordinator::unsettled_partitions)
    }

    /// See [`Coordinator::lost_in`]; `None` while it is loading.
    pub(crate) fn lost_in(&self, partition: Partition, open: &[OpenThere]) -> Option<Lost> {
        let state = self.state.lock();
        Some(state.coordinator.as_ref()?.lost_in(partition, open))
    }

    /// See [`Coordinator::knows`]; `None` while it is loading.
    pub(crate) fn knows(&self, open: &[(Partition, OpenThere)]) -> Option<Vec<bool>> {
        let state = self.state.lock();
        Some(state.coordinator.as_ref()?.knows(open))
    }

    /// See [`Coordinator::ended_before`].
    pub(crate) fn ended_before(&self, id: &str, partition: Partition) -> Ordinal {
        let state = self.state.lock();
        let coordinator = state.coordinator.as_ref();
        coordinator.map_or(0, |coordinator| coordinator.ended_before(id, partition))
    }

    /// See [`Coordinator::settle`].
    pub(crate) fn settle_markers(&self, partition: Partition, below: Ordinal) {
        if let Some(coordinator) = &mut self.state.lock().coordinator {
            coordinator.settle(partition, below);
        }
    }

    /// Transactions that are open or ending and not prepared, and when the oldest began.
    pub(crate) fn open_transactions(&self) -> (usize, Option<u64>) {
        let state = self.state.lock();
        let coordinator = state.coordinator.as_ref();
        coordinator.map_or((0, None), Coordinator::open_transactions)
    }

    /// See [`Coordinator::transactions_due_ms`].
    pub(crate) fn transactions_due_ms(&self) -> Option<u64> {
        let state = self.state.lock();
        state.coordinator.as_ref()?.transactions_due_ms()
    }

    /// Transactions that are prepared, and when the oldest was.
    pub(crate) fn prepared_transactions(&self) -> (usize, Option<u64>) {
        let state = self.state.lock();
        let coordinator = state.coordinator.as_ref();
        coordinator.map_or((0, None), Coordinator::prepared_transactions)
    }

    /// Groups of this coordinator.
    pub(super) fn summaries(&self, view: &dyn LaneView) -> Vec<v1::GroupSummary> {
        let mut state = self.state.lock();
        state
            .coordinator
            .as_mut()
            .map(|c| c.summaries(view))
            .unwrap_or_default()
    }

    /// Groups of Kafka's clients of this coordinator; `None` while it is loading.
    pub(super) fn classic_groups(&self) -> Option<Vec<Listing>> {
        let state = self.state.lock();
        state.coordinator.as_ref().map(Coordinator::classic_groups)
    }

    /// Moves everything on that can be moved on.
    pub(super) fn drive(
        &self,
        view: &dyn LaneView,
        streams: &[Arc<Stream>],
        waker: &Waker,
        ticked: bool,
    ) {
        let mut state = self.state.lock();
        if state.coordinator.is_none() {
            let ended = state.ended;
            drop(state);
            let due = self
                .failing
                .lock()
                .next
                .is_none_or(|next| next <= Instant::now());
            if ticked && !ended && due {
                self.load(now_ms());
            }
            return;
        }
        let now = now_ms();
        if ticked && let Some(coordinator) = state.coordinator.as_mut() {
            let step = coordinator.tick(now, view);
            self.take(&mut state, step);
        }
        if state
            .coordinator
            .as_ref()
            .is_some_and(Coordinator::awaits_any_heads)
        {
            for stream in streams {
                let awaited = |s: &State| {
                    s.coordinator
                        .as_ref()
                        .is_some_and(|c| c.awaits_heads(stream.id()))
                };
                if !awaited(&state) {
                    continue;
                }
                if let Some(coordinator) = state.coordinator.as_mut() {
                    let step = coordinator.heads_moved(now, stream.id(), view);
                    self.take(&mut state, step);
                }
                if awaited(&state) {
                    watch_heads(&stream.streamlets, waker);
                }
            }
        }
        self.settle(&mut state, waker);
    }

    /// Persists a step's events and holds its replies until they are durable.
    fn take(&self, state: &mut State, step: Step) {
        if step.is_empty() {
            return;
        }
        if !step.events.is_empty()
            && let Err(error) = self.append(state, &step.events)
        {
            self.give_up(state, &error.to_string());
            return;
        }
        let mut replies = Vec::with_capacity(step.replies.len());
        for (ticket, answer) in step.replies {
            if let Some(tell) = state.waiting.remove(&ticket) {
                replies.push((tell, answer));
            }
        }
        if replies.is_empty() {
            return;
        }
        match &state.last {
            Some(last) if !Rule::CommitAnsweredEarly.is_broken() => {
                state.held.push_back((last.clone(), replies));
            }
            // Nothing was ever appended since the state was read: all of it is durable.
            _ => replies
                .into_iter()
                .for_each(|(tell, answer)| drop(tell.send(answer))),
        }
    }

    fn append(&self, state: &mut State, events: &[Event]) -> Result<(), AppendError> {
        let mut last = None;
        for appended in self.append_events(events)? {
            last = Some(appended);
        }
        let Some(last) = last else { return Ok(()) };
        let group = last.group.id();
        state.last = Some(last);
        state.since_snapshot += bytes_of(events);
        if state.snapshot_in != Some(group) {
            // A new group begins with the live state, so that all before it can go.
            let is_wanted = state.wants_snapshot();
            state.snapshot_in = Some(group);
            if !is_wanted {
                return Ok(());
            }
            let Some(coordinator) = state.coordinator.as_mut() else {
                return Ok(());
            };
            let snapshot = coordinator.snapshot();
            state.snapshot_bytes = bytes_of(&snapshot);
            state.since_snapshot = 0;
            let written = self.append_events(&snapshot)?;
            if let (Some(first), Some(end)) = (written.first(), written.last()) {
                state.snapshot_in = Some(end.group.id());
                state.last = Some(end.clone());
                state.surplus = Some(Surplus {
                    snapshot: end.clone(),
                    below: first.base_ordinal,
                    again: None,
                });
            }
        }
        Ok(())
    }

    fn append_events(&self, events: &[Event]) -> Result<Vec<Appended>, AppendError> {
        let now = now_ms();
        let records = events.iter().map(|event| (event.key(), event.value()));
        let mut out = Vec::new();
        batched(records, now, |batch| {
            out.push(self.append_batch(batch, now)?);
            Ok(())
        })?;
        Ok(out)
    }

    fn append_batch(&self, builder: &mut BatchBuilder, now: u64) -> Result<Appended, AppendError> {
        let none = ProducerStamp {
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
        };
        let Ok(bytes) = builder.finish(Compression::None, none) else {
            return Err(AppendError::NoMemory);
        };
        let mut bytes = bytes.to_vec();
        let Ok(header) = BatchHeader::peek(&bytes) else {
            return Err(AppendError::NoMemory);
        };
        let spec = AppendSpec {
            lane: LANE.0,
            lane_generation: None,
            now_ms: now,
            essential: true,
        };
        for _ in 0..MEMORY_ATTEMPTS {
            match self.streamlet.append(&mut bytes, &header, spec) {
                Err(AppendError::NoMemory) => std::thread::yield_now(),
                Ok(appended) => {
                    appended.group.pump(&self.pump);
                    return Ok(appended);
                }
                Err(error) => return Err(error),
            }
        }
        Err(AppendError::NoMemory)
    }

    /// Sends the replies whose events are durable.
    fn settle(&self, state: &mut State, waker: &Waker) {
        while let Some((appended, _)) = state.held.front() {
            match appended.poll(waker) {
                Outcome::Durable => {
                    if let Some((_, replies)) = state.held.pop_front() {
                        replies
                            .into_iter()
                            .for_each(|(tell, answer)| drop(tell.send(answer)));
                    }
                }
                Outcome::Lost => {
                    self.give_up(state, "writing its events failed");
                    return;
                }
                Outcome::Pending => break,
            }
        }
        self.trim(state);
    }

    /// Removes what a durable snapshot stands for.
    fn trim(&self, state: &mut State) {
        let Some(surplus) = &mut state.surplus else {
            return;
        };
        match surplus.snapshot.outcome() {
            Outcome::Durable if surplus.again.is_some_and(|again| Instant::now() < again) => {}
            Outcome::Durable => match self.streamlet.trim(LANE, surplus.below) {
                Ok(_) => state.surplus = None,
                Err(error) => {
                    // Perhaps it was: the groups stay here until that is known.
                    surplus.again = Some(Instant::now() + TRIM_AGAIN);
                    let what = self.kind.what();
                    tracing::warn!(%error, "old state of {what} could not be trimmed; it is tried again");
                }
            },
            Outcome::Lost => state.surplus = None,
            Outcome::Pending => {}
        }
    }

    /// Drops a coordinator whose memory is ahead of what is durable.
    fn give_up(&self, state: &mut State, reason: &str) {
        let what = self.kind.what();
        tracing::warn!(
            streamlet = self.streamlet.id().0,
            reason,
            "{what} are read anew"
        );
        let loading = WireError::new(
            ErrorCode::CoordinatorLoading,
            "the coordinator is reading its state; try again",
        );
        drop_coordinator(state, &loading);
    }
}

/// Hands events to `keep` in batches, in order. Fails at one that is too large for any batch: nothing is to be answered
/// whose events are not all kept.
fn batched<'a>(
    events: impl Iterator<Item = (&'a [u8], Vec<u8>)>,
    now: u64,
    mut keep: impl FnMut(&mut BatchBuilder) -> Result<(), AppendError>,
) -> Result<(), AppendError> {
    let mut builder = BatchBuilder::new();
    for (key, value) in events {
        let record = NewRecord {
            key: Some(key),
            value: Some(&value),
            headers: &[],
            timestamp: now as i64,
        };
        builder.push(&record).map_err(|_| AppendError::TooLarge {
            size: value.len(),
            limit: MAX_BATCH_BYTES,
        })?;
        if builder.len() >= BATCH_BYTES {
            keep(&mut builder)?;
        }
    }
    match builder.is_empty() {
        true => Ok(()),
        false => keep(&mut builder),
    }
}

/// Forgets a coordinator and tells everyone who waits for it why.
fn drop_coordinator(state: &mut State, reason: &WireError) {
    state.coordinator = None;
    state.last = None;
    state.surplus = None;
    state.snapshot_in = None;
    state.snapshot_bytes = 0;
    for (_, replies) in state.held.drain(..) {
        replies
            .into_iter()
            .for_each(|(tell, _)| drop(tell.send(Err(reason.clone()))));
    }
    for (_, tell) in state.waiting.drain() {
        let _ = tell.send(Err(reason.clone()));
    }
}

fn bytes_of(events: &[Event]) -> usize {
    events.iter().map(Event::encoded_len).sum()
}

/// Has `waker` woken when any lane's head moves.
fn watch_heads(streamlets: &Streamlets, waker: &Waker) {
    for streamlet in streamlets {
        for (lane, _, seen) in streamlet.bounds() {
            let Some(head) = streamlet.head(lane) else {
                continue;
            };
            if !head.wait(seen + 1, waker) {
                waker.wake_by_ref();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_events_since_the_state_was_read_are_followed_by_a_snapshot() {
        let mut state = State {
            since_snapshot: 1,
            snapshot_bytes: 100,
            ..State::default()
        };
        assert!(state.wants_snapshot());
        state.snapshot_in = Some(GroupId(1));
        assert!(!state.wants_snapshot());
        state.since_snapshot = 100;
        assert!(state.wants_snapshot());
    }

    #[test]
    fn events_are_kept_together_or_not_at_all() {
        let event = |bytes: usize| (&b"group"[..], vec![0; bytes]);
        let kept = |events: Vec<_>| {
            let mut kept = Vec::new();
            let all = batched(events.into_iter(), 1, |batch| {
                kept.push(batch.record_count());
                *batch = BatchBuilder::new();
                Ok(())
            });
            (all, kept)
        };
        let (all, batches) = kept(vec![event(1), event(BATCH_BYTES), event(3)]);
        assert!(all.is_ok());
        assert_eq!(batches, [2, 1]);
        let (all, batches) = kept(vec![event(BATCH_BYTES), event(1), event(MAX_BATCH_BYTES)]);
        assert!(matches!(all, Err(AppendError::TooLarge { .. })));
        assert_eq!(
            batches,
            [1],
            "what was in the same batch is not kept either"
        );
        assert!(kept(Vec::new()).1.is_empty());
    }
}
