//! The background task: linger, connections, recovery, deadlines.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kera_protocol::error::{ErrorCode, WireError};
use kera_rpc::{LOOK_EVERY, Reports, RpcError, StreamMeta};

use crate::error::ProduceError;
use crate::event::Event;
use crate::link::{Flushes, Link};
use crate::metrics::Counters;
use crate::settle::Next;
use crate::shared::{Shared, check_slots};
use crate::slot::Mode;
use crate::timer::Timer;

/// While something is open or recovering, at most.
const TICK: Duration = Duration::from_millis(1);
/// While something waits for its acknowledgement; also how exact deadlines are.
const SLOW_TICK: Duration = Duration::from_millis(50);

/// While an owner is not reached, the stream is asked for anew at this interval.
const OWNERS_EVERY: Duration = Duration::from_millis(150);
/// An owner that says nothing for so long, although batches wait for its answer, may have been replaced.
const SILENCE: Duration = Duration::from_secs(1);

/// The driver's own state.
#[derive(Default)]
struct Driver {
    fetching_meta: bool,
    meta_not_before: Option<Instant>,
    meta_attempt: u32,
    next_expiry: Option<Instant>,
    next_look_for_owners: Option<Instant>,
    /// What was told of lanes that do not go on, and when is looked next.
    reports: Reports,
    next_report: Option<Instant>,
    /// When appends that wait for memory are woken, if little comes back.
    next_wake: Option<Instant>,
}

impl Shared {
    /// Sends what waits for a connection that is there now.
    pub(crate) fn connected(&self, link: &Arc<Link>) {
        Counters::add(&self.counters.connections, 1);
        let mut flushes = Flushes::default();
        for slot in self.slots.iter() {
            let mut state = slot.state.lock();
            if !Arc::ptr_eq(&state.link, link) {
                continue;
            }
            match state.mode {
                Mode::Running => flushes.add(self.send(slot, &mut state)),
                Mode::Recovering => self.attend(slot, &mut state),
                Mode::Renewing => {}
            }
        }
        flushes.run();
    }

    /// Runs until the producer has ended.
    pub(crate) async fn drive(self: Arc<Self>) {
        let mut driver = Driver::default();
        let timer = Timer::new();
        while !self.ended.load(Ordering::SeqCst) {
            self.tick_clock();
            let events = std::mem::take(&mut *self.events.lock());
            for event in events {
                self.handle(&mut driver, event);
            }
            if self.pressed.swap(false, Ordering::AcqRel) && !self.much_in_flight() {
                self.send_open_batches();
            } else {
                self.send_due_batches(Some(Instant::now()));
            }
            let down = self.tend_links();
            if down {
                self.look_for_owners(&mut driver);
            }
            self.tend_slots();
            self.tend_transaction();
            self.expire(&mut driver);
            self.tend_memory(&mut driver);
            self.tend_meta(&mut driver);
            self.sleep(&timer, down).await;
        }
    }

    async fn sleep(&self, timer: &Timer, down: bool) {
        let attended = || !self.attention.lock().is_empty();
        let memory = &self.family.memory;
        let busy = || self.any_watched() || attended() || memory.owes_a_wake();
        let due = self.until_due();
        let stale = self.stale.load(Ordering::Relaxed);
        if due.is_some() || attended() || down || stale || memory.owes_a_wake() {
            // An append need not wake a task that looks by itself before its batch is due: all wait equally
            // long, so none is due before the first. Records' timestamps are as old as the last look.
            let pause = due.map_or(TICK, |due| due.min(TICK));
            tokio::select! {
                () = self.driver.notified() => {}
                () = timer.sleep(pause) => {}
            }
            return;
        }
        let pause = if self.anything_outstanding() {
            Some(SLOW_TICK)
        } else {
            None
        };
        self.driver_asleep.store(true, Ordering::SeqCst);
        if busy() {
            self.driver_asleep.store(false, Ordering::SeqCst);
            return;
        }
        match pause {
            Some(pause) => {
                let _ = tokio::time::timeout(pause, self.driver.notified()).await;
            }
            None => self.driver.notified().await,
        }
        self.driver_asleep.store(false, Ordering::SeqCst);
    }

    /// True if what is under way will give back enough memory soon: then batches that are not full need
    /// not go out to make room. Appends that still find none ask again whenever one has come back.
    fn much_in_flight(&self) -> bool {
        let batches = self.family.batches_in_flight();
        batches.saturating_mul(self.batch_bytes) >= self.settings.memory_limit / 4
    }

    fn anything_outstanding(&self) -> bool {
        self.slots.iter().any(|slot| {
            let state = slot.state.lock();
            !state.in_flight.is_empty() || !state.queue.is_empty()
        })
    }

    fn handle(self: &Arc<Self>, driver: &mut Driver, event: Event) {
        match event {
            Event::Identity(index, answer) => {
                if let Some(slot) = self.slots.get(index) {
                    let mut state = slot.state.lock();
                    self.renewed(slot, &mut state, answer);
                }
            }
            Event::Added(identity, slots, added) => self.added(identity, &slots, added),
            Event::Meta(answer) => {
                driver.fetching_meta = false;
                match answer {
                    Ok(meta) => {
                        driver.meta_attempt = 0;
                        *self.hidden.lock() = None;
                        self.learn(&meta);
                    }
                    Err(error) => {
                        driver.meta_attempt += 1;
                        tracing::debug!(%error, "cannot refresh the stream yet");
                        if error.code() == Some(ErrorCode::UnknownStream) {
                            self.fail_everything(&error);
                        }
                        if let RpcError::Broker(error) = error
                            && error.code == ErrorCode::NotAuthorized
                        {
                            *self.hidden.lock() = Some(error);
                        }
                    }
                }
                let pause = self.settings.retry.pause(driver.meta_attempt.max(2));
                driver.meta_not_before = Some(Instant::now() + pause);
            }
        }
    }

    /// The stream is gone, or beyond this client: nothing can be delivered any more.
    fn fail_everything(&self, error: &RpcError) {
        let error = ProduceError::Refused(match error {
            RpcError::Broker(error) => error.clone(),
            other => WireError::new(ErrorCode::Internal, other.to_string()),
        });
        let mut finished = Vec::new();
        {
            let _no_resplit = self.resplitting.lock();
            for slot in self.slots.iter() {
                let mut state = slot.state.lock();
                state.fail_all(&error, &mut finished);
                state.failed = Some(error.clone());
                state.mode = Mode::Running;
            }
        }
        self.stale.store(false, Ordering::SeqCst);
        self.paused.store(false, Ordering::SeqCst);
        self.finish(finished);
    }

    /// Connects links that are needed and down; true if there are any.
    fn tend_links(self: &Arc<Self>) -> bool {
        let now = Instant::now();
        let mut down = false;
        for link in self.family.links() {
            if link.connection().is_some() || !self.is_needed(&link) {
                continue;
            }
            down = true;
            let mut state = link.state.lock();
            if !state.connecting && state.not_before.is_none_or(|at| at <= now) {
                state.connecting = true;
                drop(state);
                self.family.connect(&link);
            }
        }
        down
    }

    /// Asks for the stream anew now and then, while an owner is not reached.
    fn look_for_owners(&self, driver: &mut Driver) {
        let now = Instant::now();
        if driver.next_look_for_owners.is_none_or(|at| at <= now) {
            driver.next_look_for_owners = Some(now + OWNERS_EVERY);
            self.want_meta.store(true, Ordering::Relaxed);
        }
    }

    fn is_needed(&self, link: &Arc<Link>) -> bool {
        self.slots.iter().any(|slot| {
            let state = slot.state.lock();
            Arc::ptr_eq(&state.link, link)
                && (state.open.is_some() || !state.queue.is_empty() || !state.in_flight.is_empty())
        })
    }

    fn tend_slots(self: &Arc<Self>) {
        let indices = std::mem::take(&mut *self.attention.lock());
        let mut flushes = Flushes::default();
        let mut finished = Vec::new();
        for index in indices {
            let Some(slot) = self.slots.get(index) else {
                continue;
            };
            let mut state = slot.state.lock();
            state.attention = false;
            let (next, connection) = self.settle(slot, &mut state, &mut finished);
            flushes.add(connection);
            match next {
                Next::Leave => {}
                // Without waking: the next tick is soon enough.
                Next::Later => {
                    if !state.attention {
                        state.attention = true;
                        self.attention.lock().push(index);
                    }
                }
                Next::Renew => self.renew(slot),
            }
        }
        self.finish(finished);
        flushes.run();
    }

    fn expire(&self, driver: &mut Driver) {
        let now = Instant::now();
        if driver.next_expiry.is_some_and(|at| now < at) {
            return;
        }
        driver.next_expiry = Some(now + SLOW_TICK);
        for link in self.family.links() {
            if link.was_silent(now, SILENCE) {
                tracing::debug!(broker = %link.address, "broker says nothing, looking for another owner");
                self.family.look_for_owners();
            }
        }
        if driver.next_report.is_none_or(|at| at <= now) {
            driver.next_report = Some(now + LOOK_EVERY);
            self.tell_stall(&mut driver.reports);
        }
        let mut flushes = Flushes::default();
        let mut finished = Vec::new();
        for slot in self.slots.iter() {
            let mut state = slot.state.lock();
            if state.in_flight.is_empty() && state.queue.is_empty() {
                continue;
            }
            let before = finished.len();
            let last = state.last_error.as_ref().map(ToString::to_string);
            let timeout = |uncertain| self.timeout(uncertain, last.as_deref());
            state.expire(now, timeout, &mut finished);
            if finished.len() > before {
                flushes.add(self.go_on(slot, &mut state));
            }
        }
        self.finish(finished);
        flushes.run();
    }

    /// Wakes appends for whose memory less than enough has come back for a tick.
    fn tend_memory(&self, driver: &mut Driver) {
        if !self.family.memory.owes_a_wake() {
            driver.next_wake = None;
            return;
        }
        let now = Instant::now();
        let due = *driver.next_wake.get_or_insert(now + TICK);
        if due <= now {
            driver.next_wake = None;
            self.family.memory.wake();
        }
    }

    /// Refreshes the stream when lanes have grown or owners changed.
    fn tend_meta(self: &Arc<Self>, driver: &mut Driver) {
        let stale = self.stale.load(Ordering::SeqCst);
        if stale {
            self.paused.store(true, Ordering::SeqCst);
        }
        // What keeps the others from being quiet may be an owner that is gone.
        let wanted = self.want_meta.load(Ordering::Relaxed) || stale && self.is_quiet();
        let now = Instant::now();
        if !wanted || driver.fetching_meta || driver.meta_not_before.is_some_and(|at| now < at) {
            return;
        }
        driver.fetching_meta = true;
        self.want_meta.store(false, Ordering::Relaxed);
        let shared = self.clone();
        tokio::spawn(async move {
            let client = &shared.family.client;
            let answer = client.refresh(&shared.settings.stream).await;
            shared.post(Event::Meta(answer));
        });
    }

    /// Takes over what a refresh told: owners, then lanes.
    fn learn(&self, meta: &Arc<StreamMeta>) {
        if let Err(error) = check_slots(meta).and_then(|()| self.check_same_stream(meta)) {
            return self.fail_everything(&error);
        }
        for slot in self.slots.iter() {
            let Some(owner) = meta.owners().get(slot.streamlet as usize) else {
                continue;
            };
            let mut state = slot.state.lock();
            if state.link.address != *owner {
                state.link = self.family.link(owner);
                state.attempt = 0;
                state.not_before = None;
                // Without an id nothing would be recognised: the former owner's answers are waited for.
                if state.waiting > 0 && state.identity.is_some() {
                    state.abandon_attempts();
                    if state.mode == Mode::Running {
                        state.mode = Mode::Recovering;
                    }
                }
                self.attend(slot, &mut state);
            }
        }
        if self.stale.load(Ordering::SeqCst) && self.is_quiet() {
            // Who was asked may have heard of less than this producer.
            match meta.lane_generation > self.slots.shape().generation {
                true => self.resplit(meta),
                false => self.stay_split(),
            }
            self.stale.store(false, Ordering::SeqCst);
        }
    }
}
