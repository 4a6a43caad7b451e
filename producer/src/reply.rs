//! What a broker's answer to a batch means.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::Frame;
use kera_protocol::ids::{LaneId, StreamletId};
use kera_protocol::v1;
use kera_rpc::{ConnectionError, DataConnection};

use crate::delivery::Placed;
use crate::error::ProduceError;
use crate::family::Token;
use crate::metrics::Counters;
use crate::shared::{Shared, wire_error};
use crate::slot::{Again, Mode, Slot, SlotState, Status};

enum Verdict {
    Stored(v1::AppendResponse),
    /// To be sent again. `uncertain`: it may be stored nevertheless.
    Again {
        why: Again,
        uncertain: bool,
        error: WireError,
    },
    /// Not to be sent again.
    Refused {
        uncertain: bool,
        error: WireError,
    },
}

fn verdict(reply: Result<Frame, ConnectionError>) -> Verdict {
    let response = match reply {
        Ok(frame) => frame.message::<v1::AppendResponse>(),
        Err(error) => {
            return Verdict::Again {
                why: Again::Retry,
                uncertain: true,
                error: wire_error(&error),
            };
        }
    };
    let response = match response {
        Ok(response) if response.error == ErrorCode::Ok as u32 => {
            return Verdict::Stored(response);
        }
        Ok(response) => response,
        Err(error) => {
            return Verdict::Again {
                why: Again::Retry,
                uncertain: true,
                error: error.into(),
            };
        }
    };
    let uncertain = response.may_be_placed();
    let error = WireError::from_number(response.error, response.message);
    let why = match error.code {
        ErrorCode::SequenceGap => Again::Gap,
        ErrorCode::StaleLanes => Again::Stale,
        ErrorCode::UnknownProducer => Again::UnknownProducer,
        // An owner may hear of a stream, or that its lanes have grown, later than whoever told this client;
        // whether the stream is gone is decided by asking for it.
        ErrorCode::UnknownStream | ErrorCode::UnknownLane => Again::Retry,
        code if code.is_retryable() => Again::Retry,
        _ => return Verdict::Refused { uncertain, error },
    };
    Verdict::Again {
        why,
        uncertain,
        error,
    }
}

/// True if the streamlet may have another owner by now, or soon.
pub(crate) fn asks_for_owner(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NotOwner
            | ErrorCode::NotEnoughCopies
            | ErrorCode::ShuttingDown
            | ErrorCode::UnknownStream
    )
}

impl Shared {
    /// Takes the reply to the batch that `token` names. Returns the connection to flush for what could be
    /// sent since.
    #[must_use]
    pub(crate) fn replied(
        &self,
        token: Token,
        reply: Result<Frame, ConnectionError>,
    ) -> Option<Arc<DataConnection>> {
        let slot = self.slots.get(token.slot)?;
        let mut finished = Vec::new();
        let to_flush = {
            let mut state = slot.state.lock();
            self.judge(slot, &mut state, token.ticket, verdict(reply));
            state.pop_done(&mut finished);
            self.go_on(slot, &mut state)
        };
        self.finish(finished);
        to_flush
    }

    fn judge(&self, slot: &Slot, state: &mut SlotState, ticket: u32, verdict: Verdict) {
        let found = state
            .in_flight
            .iter_mut()
            .position(|sent| sent.ticket == ticket && matches!(sent.status, Status::Waiting));
        // Otherwise it was given up meanwhile.
        let Some(index) = found else {
            return;
        };
        let hidden = match &verdict {
            // It may be seen again.
            Verdict::Stored(_) => self.hidden.lock().take().and(None),
            _ => self.hidden.lock().clone(),
        };
        let verdict = match (verdict, hidden) {
            // It is not unknown, but may not be seen, and asking again is of no use before the right is back.
            (
                Verdict::Again {
                    uncertain, error, ..
                },
                Some(hidden),
            ) if error.code == ErrorCode::UnknownStream => {
                self.want_meta.store(true, Ordering::Relaxed);
                Verdict::Refused {
                    uncertain,
                    error: hidden,
                }
            }
            (verdict, _) => verdict,
        };
        state.waiting -= 1;
        let is_last = index + 1 == state.in_flight.len();
        let sent = &mut state.in_flight[index];
        match verdict {
            Verdict::Stored(response) => {
                if response.duplicate {
                    Counters::add(&self.counters.duplicates, 1);
                }
                sent.status = Status::Done(Ok(Placed {
                    streamlet: StreamletId(slot.streamlet),
                    lane: LaneId(response.lane),
                    base_ordinal: response.base_ordinal,
                    append_time: self.append_time.then_some(response.append_time_ms as i64),
                }));
                state.attempt = 0;
                state.heard_ms = self.clock.load(Ordering::Relaxed);
                state.last_error = None;
            }
            Verdict::Again {
                why,
                uncertain,
                error,
            } => {
                sent.status = Status::Again(why);
                // Only that it is stored settles an earlier attempt. That it is not stored yet does not:
                // the attempt may stand in the buffer of a connection that is lost.
                sent.uncertain |= uncertain;
                if asks_for_owner(error.code) {
                    self.want_meta.store(true, Ordering::Relaxed);
                }
                // A batch that is refused because one before it is not stored tells nothing of the cause.
                let follows = index > 0 && matches!(why, Again::Gap | Again::UnknownProducer);
                if !follows || state.last_error.is_none() {
                    state.last_error = Some(error);
                }
                state.mode = match state.mode {
                    Mode::Renewing => Mode::Renewing,
                    Mode::Running | Mode::Recovering => Mode::Recovering,
                };
            }
            Verdict::Refused { uncertain, error } => {
                sent.uncertain |= uncertain;
                let error = ProduceError::Refused(error).of_batch(sent.uncertain);
                sent.status = Status::Done(Err(error));
                if !is_last && state.mode == Mode::Running {
                    // Those behind it carry sequences that will not follow.
                    state.mode = Mode::Recovering;
                }
            }
        }
    }

    /// After replies or expiry: sends on, or asks for the slot to be looked after.
    pub(crate) fn go_on(&self, slot: &Slot, state: &mut SlotState) -> Option<Arc<DataConnection>> {
        match state.mode {
            Mode::Running => self.send(slot, state),
            Mode::Recovering | Mode::Renewing => {
                if state.waiting == 0 {
                    self.attend(slot, state);
                }
                None
            }
        }
    }
}
