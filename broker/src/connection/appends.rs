//! Appends of a connection: their places, their answers, and answers that are held back because the client has used up
//! its quota.
//!
//! An append is charged when it arrives and placed at once; its answer waits until the debt is worked off. So a client
//! sends no faster than its quota, with no more under way than it is ready to have, and frames behind an append are
//! never held up: a member of a group goes on sending its heartbeats.

use std::time::{Duration, Instant};

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;

use super::{Connection, HeldAnswer};
use crate::client_link::ClientLink;
use crate::data::append::{self, Partial, Placed};
use crate::quotas::Metered;
use crate::transactions;

/// Longest time that an answer is held back, and the debt above which appends are refused: clients give up on answers
/// that do not come.
pub(super) const MOST_HELD: Duration = Duration::from_secs(10);
/// Answers of one connection that are held back; more appends are refused.
const MOST_ANSWERS: usize = 4096;

impl Connection {
    pub(super) fn take_append(
        &mut self,
        link: &mut ClientLink,
        correlation: u32,
        request: &v1::AppendRequest,
        body: &mut [u8],
    ) -> bool {
        let granted = self
            .granted
            .require_append(&link.shared, request)
            .and_then(|()| transactions::check_append(&link.shared, request, body));
        if let Err(error) = granted {
            // It may have waited for memory, with batches placed, when the rules changed.
            let partial = std::mem::take(&mut self.partial);
            refuse(link, correlation, &error, partial.placement());
            link.has_memory();
            self.charged = None;
            return true;
        }
        let not_before = match self.charge(link, body.len()) {
            Ok(not_before) => not_before,
            Err(error) => {
                refuse(link, correlation, &error, v1::Placement::NotPlaced);
                return true;
            }
        };
        match append::place(
            &link.shared.data,
            correlation,
            request,
            body,
            &mut self.partial,
            &mut link.touched,
        ) {
            Placed::Pending(pending) => {
                self.partial = Partial::default();
                link.claims.wait_for(pending.bytes);
                self.pending.push_back((not_before, pending));
            }
            Placed::Refused(reply) => {
                if reply.error == ErrorCode::TransactionPending as u32 {
                    transactions::verify_append(&link.shared, request, body);
                }
                self.partial = Partial::default();
                link.out
                    .push(FrameKind::AppendReply, correlation, &reply, Vec::new());
            }
            Placed::Later => {
                if !link.gives_up_memory() {
                    link.wait_for_memory();
                    return false;
                }
                let text =
                    "the broker's memory.pool was full for too long; send again, or raise it";
                let error = WireError::new(ErrorCode::Overloaded, text);
                let partial = std::mem::take(&mut self.partial);
                refuse(link, correlation, &error, partial.placement());
            }
        }
        link.has_memory();
        self.charged = None;
        true
    }

    /// Charges the append at the front, once: before when it is not to be answered, if it is to wait. Refused are those
    /// that share a quota and owe too much already.
    fn charge(
        &mut self,
        link: &mut ClientLink,
        bytes: usize,
    ) -> Result<Option<Instant>, WireError> {
        if let Some(charged) = self.charged {
            return Ok(charged);
        }
        if link.meter.debt(Metered::Appends) > MOST_HELD {
            let most = MOST_HELD.as_secs();
            let why = format!(
                "has used up its quota of appended bytes, and those that share it owe more than {most} seconds"
            );
            return Err(over_quota(link, &why));
        }
        if self.held.len() >= MOST_ANSWERS {
            let why = format!(
                "has used up a quota, and {MOST_ANSWERS} answers of this connection wait for it"
            );
            return Err(over_quota(link, &why));
        }
        let wait = link.meter.charge_answered(Metered::Appends, bytes);
        let not_before = (!wait.is_zero()).then(|| Instant::now() + wait.min(MOST_HELD));
        self.charged = Some(not_before);
        Ok(not_before)
    }

    pub(super) fn acknowledge(&mut self, link: &mut ClientLink) {
        if !self.held.is_empty() {
            self.answer_held(link);
        }
        let mut released = 0;
        let (out, waker, metrics) = (&mut link.out, &link.waker, &link.shared.data.metrics);
        let (meter, held) = (&link.meter, &mut self.held);
        self.pending.retain_mut(|(not_before, pending)| {
            let Some(reply) = pending.poll(waker) else {
                return true;
            };
            pending.answered(&reply);
            let took = pending.received.elapsed();
            metrics.append_seconds.observe(took.as_secs_f64());
            meter.answered(took);
            if reply.error == 0 {
                pending.traffic().note_acknowledged(took);
            }
            if let Some(not_before) = not_before.filter(|at| *at > Instant::now()) {
                held.push(HeldAnswer {
                    not_before,
                    correlation: pending.correlation,
                    reply,
                });
                released += pending.bytes;
                return false;
            }
            let correlation = pending.correlation;
            out.push(FrameKind::AppendReply, correlation, &reply, Vec::new());
            released += pending.bytes;
            false
        });
        link.claims.release(released);
    }

    /// Sends the answers that have waited long enough; all of them once nothing is owed, or the connection ends.
    fn answer_held(&mut self, link: &mut ClientLink) {
        let now = Instant::now();
        let all = self.closing || !link.meter.waits(Metered::Appends);
        let out = &mut link.out;
        self.held.retain(|held| {
            if !all && held.not_before > now {
                return true;
            }
            let correlation = held.correlation;
            out.push(FrameKind::AppendReply, correlation, &held.reply, Vec::new());
            false
        });
    }

    /// When answers that are held back are looked at next.
    pub(super) fn held_until(&self, link: &ClientLink) -> Option<Instant> {
        let first = self.held.iter().map(|held| held.not_before).min()?;
        let again = link.meter.look_at(Metered::Appends);
        Some(again.map_or(first, |again| again.min(first)))
    }

    /// Answers the appends that were not durable in time; they may still take effect.
    pub(super) fn give_up_appends(&mut self, link: &mut ClientLink, now: Instant) {
        let mut released = 0;
        let (out, shared) = (&mut link.out, &*link.shared);
        self.pending.retain_mut(|(_, pending)| {
            let Some(reply) = pending.overdue(&shared.data, now) else {
                return true;
            };
            pending.answered(&reply);
            let correlation = pending.correlation;
            out.push(FrameKind::AppendReply, correlation, &reply, Vec::new());
            released += pending.bytes;
            false
        });
        link.claims.release(released);
    }
}

pub(super) fn over_quota(link: &ClientLink, why: &str) -> WireError {
    let principal = &link.principal;
    let text = format!("{principal} {why}; send less, or see `kera quota list`");
    WireError::new(ErrorCode::Overloaded, text)
}

/// Answers an append that is not stored, or not all of it.
pub(super) fn refuse(
    link: &mut ClientLink,
    correlation: u32,
    why: &WireError,
    placement: v1::Placement,
) {
    link.shared.data.metrics.append_errors.inc();
    let reply = append::refusal(why, placement);
    link.out
        .push(FrameKind::AppendReply, correlation, &reply, Vec::new());
}
