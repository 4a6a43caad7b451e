//! Recovery of one slot, after a batch was not acknowledged.
//!
//! Nothing is sent until every batch in flight is answered or its connection is gone; what is left is
//! then sent again in its old order. The broker recognises what it has stored already.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use kera_rpc::{DataConnection, RpcError};

use crate::error::ProduceError;
use crate::event::Event;
use crate::metrics::Counters;
use crate::reply::asks_for_owner;
use crate::shared::{Shared, wire_error};
use crate::slot::{Again, Finished, Mode, Slot, SlotState, Status};

/// Longest pause between attempts at a streamlet that changes its owner.
const OWNER_PAUSE: Duration = Duration::from_millis(100);

/// What is to be done next about a slot.
pub(crate) enum Next {
    /// Nothing: it runs, or an answer or event will bring it back.
    Leave,
    /// Look at it again at the next tick.
    Later,
    /// A new producer id is needed.
    Renew,
}

impl Shared {
    /// Looks after a slot that recovers.
    pub(crate) fn settle(
        &self,
        slot: &Slot,
        state: &mut SlotState,
        finished: &mut Vec<Finished>,
    ) -> (Next, Option<Arc<DataConnection>>) {
        if state.mode != Mode::Recovering {
            return (Next::Leave, self.send(slot, state));
        }
        if state.waiting > 0 {
            return (Next::Leave, None);
        }
        state.pop_done(finished);
        if self.transactional().is_some() && is_beyond_repair(state) {
            self.fail_transaction(state, finished);
            return (Next::Leave, None);
        }
        if state.renumber {
            // None of them is stored, since what was refused before them is not.
            if !renumber(slot, state) {
                return (Next::Renew, None);
            }
        }
        let Some(front) = state.in_flight.front_mut() else {
            state.mode = Mode::Running;
            return (Next::Leave, self.send(slot, state));
        };
        let Status::Again(why) = front.status else {
            return (Next::Later, None);
        };
        match why {
            Again::Stale => {
                self.stale.store(true, Ordering::SeqCst);
                return (Next::Later, None);
            }
            // What was given up before it may arrive late, in one piece with an attempt at this one, and so make
            // room for it after the broker has said that it is not stored. Under another epoch it could be
            // stored beside that, and nobody can tell any more. Of what has no attempt on its way nothing can
            // come, nor of what is behind it.
            //
            // Where the broker no longer knows the producer, nobody can tell either.
            Again::Gap | Again::UnknownProducer
                if front.uncertain && (state.broken || why == Again::UnknownProducer) =>
            {
                let error = match state.last_error.clone() {
                    Some(refused) => ProduceError::Uncertain(refused),
                    // What was told of the one before it was told of this one, too.
                    None if why == Again::UnknownProducer => {
                        let text = "its owner does not know this producer's batch any more";
                        ProduceError::Uncertain(WireError::new(ErrorCode::UnknownProducer, text))
                    }
                    None => self.timeout(true, None),
                };
                front.status = Status::Done(Err(error));
                state.pop_done(finished);
                return (Next::Later, None);
            }
            // Since what came before it is missing, it is not stored, nor is anything behind it. What a
            // `memory` stream forgot was promised to nobody: go on as another producer.
            Again::Gap if state.broken || self.forgetful => {
                if !go_on_anew(slot, state) {
                    return (Next::Renew, None);
                }
            }
            Again::Gap => {
                self.fail_lane(state, finished);
                return (Next::Leave, None);
            }
            Again::UnknownProducer => {
                if !go_on_anew(slot, state) {
                    return (Next::Renew, None);
                }
            }
            Again::Retry => {}
        }
        let now = Instant::now();
        let Some(connection) = state.link.connection() else {
            return (Next::Later, None);
        };
        let refused = state.last_error.as_ref().map(|error| error.code);
        let owner_asked = refused.is_some_and(asks_for_owner);
        if state.attempt > 0 {
            let mut pause = self.settings.retry.pause(state.attempt - 1);
            // A new owner serves as soon as it can, and records wait meanwhile.
            if owner_asked {
                pause = pause.min(OWNER_PAUSE);
            }
            let at = *state.not_before.get_or_insert(now + pause);
            if now < at {
                // The next owner may be known before this one is asked again.
                if refused == Some(ErrorCode::NotOwner) {
                    self.want_meta.store(true, Ordering::Relaxed);
                }
                return (Next::Later, None);
            }
        }
        state.not_before = None;
        state.attempt = state.attempt.saturating_add(1);
        let sent = match owner_asked {
            true => self.try_first(slot, state, &connection),
            false => self.resend(slot, state, &connection),
        };
        let next = match sent {
            true => Next::Leave,
            false => Next::Later,
        };
        self.send(slot, state);
        (next, Some(connection))
    }

    /// Sends the first batch again and no other: as long as nobody serves the streamlet they would all be
    /// refused, time and again. Once it is taken the others follow.
    fn try_first(&self, slot: &Slot, state: &mut SlotState, connection: &DataConnection) -> bool {
        for sent in state.in_flight.iter_mut().skip(1) {
            // What they were refused for may be that this one was.
            if let Status::Again(why) = &mut sent.status {
                *why = Again::Retry;
            }
        }
        Counters::add(&self.counters.batches_resent, 1);
        match self.submit(slot, state, 0, connection) {
            Ok(()) => true,
            Err(error) => {
                state.last_error = Some(wire_error(&error));
                false
            }
        }
    }

    /// Sends all batches in flight again, in order.
    fn resend(&self, slot: &Slot, state: &mut SlotState, connection: &DataConnection) -> bool {
        state.mode = Mode::Running;
        for index in 0..state.in_flight.len() {
            if let Status::Done(_) | Status::Waiting = state.in_flight[index].status {
                continue;
            }
            Counters::add(&self.counters.batches_resent, 1);
            if let Err(error) = self.submit(slot, state, index, connection) {
                state.last_error = Some(wire_error(&error));
                state.mode = Mode::Recovering;
                return false;
            }
        }
        true
    }

    /// The broker misses sequences that were acknowledged: order cannot be kept.
    fn fail_lane(&self, state: &mut SlotState, finished: &mut Vec<Finished>) {
        let error = match state.last_error.take() {
            Some(error) => ProduceError::Refused(error),
            None => ProduceError::Closed,
        };
        tracing::warn!(%error, "lane failed: the broker misses batches that it had acknowledged");
        state.fail_all(&error, finished);
        state.failed = Some(error);
        state.mode = Mode::Running;
    }

    /// The batches of a transaction cannot go on as another epoch's: it is aborted.
    pub(crate) fn fail_transaction(&self, state: &mut SlotState, finished: &mut Vec<Finished>) {
        let error = match state.last_error.take() {
            Some(error) => ProduceError::Refused(error),
            None => ProduceError::Aborted,
        };
        state.fail_all(&error, finished);
        state.renumber = false;
        state.mode = Mode::Running;
    }

    /// Asks for a new producer id for one slot.
    pub(crate) fn renew(self: &Arc<Self>, slot: &Slot) {
        let shared = self.clone();
        let index = slot.index;
        tokio::spawn(async move {
            let request = v1::InitProducerRequest {
                name: shared.settings.stream.clone(),
            };
            let client = &shared.family.client;
            let answer = client.stream_call(&shared.settings.stream, request).await;
            shared.post(Event::Identity(index, answer));
        });
    }

    /// Starts the slot's sequences anew under another producer id.
    pub(crate) fn renewed(
        &self,
        slot: &Slot,
        state: &mut SlotState,
        answer: Result<v1::InitProducerResponse, RpcError>,
    ) {
        if state.mode != Mode::Renewing {
            return;
        }
        match answer {
            Ok(answer) => {
                let identity = (answer.producer_id as i64, answer.producer_epoch as i16);
                state.begin_as(Some(identity));
                restart(slot, state);
                state.attempt = 0;
            }
            Err(error) => {
                tracing::debug!(%error, "no new producer id yet");
                state.attempt = state.attempt.saturating_add(1);
            }
        }
        // Without an answer the front's status asks for a new id again.
        state.mode = Mode::Recovering;
        self.attend(slot, state);
    }
}

/// True if what is in flight needs other sequences, or the broker misses what came before it.
fn is_beyond_repair(state: &SlotState) -> bool {
    let front = state.in_flight.front().map(|sent| &sent.status);
    state.renumber
        || matches!(
            front,
            Some(Status::Again(Again::Gap | Again::UnknownProducer))
        )
}

/// Gives what is in flight, none of which is stored, sequences of the identity that the slot has now.
fn restart(slot: &Slot, state: &mut SlotState) {
    let (producer_id, producer_epoch) = state.identity.unwrap_or((-1, -1));
    tracing::info!(
        streamlet = slot.streamlet,
        lane = slot.lane,
        producer_id,
        producer_epoch,
        "lane goes on with new sequences"
    );
    resend_restamped(state);
}

fn resend_restamped(state: &mut SlotState) {
    state.restamp();
    for sent in &mut state.in_flight {
        sent.status = Status::Again(Again::Retry);
    }
}

/// Gives what is in flight, none of which is stored, the sequences of what was refused for good before
/// it; new ones if an attempt at any of it may still be on its way, which would be taken for the
/// batch that has its sequence by then. False if another producer id is needed.
fn renumber(slot: &Slot, state: &mut SlotState) -> bool {
    if state.is_uncertain() && state.identity.is_some() {
        return go_on_anew(slot, state);
    }
    resend_restamped(state);
    true
}

/// Starts the slot's sequences anew under its next epoch, which fences what of the one before may
/// still be on its way to the broker. False if there is none: another producer id is needed.
fn go_on_anew(slot: &Slot, state: &mut SlotState) -> bool {
    if !state.raise_epoch() {
        state.mode = Mode::Renewing;
        return false;
    }
    restart(slot, state);
    true
}
