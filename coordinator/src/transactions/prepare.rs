//! Prepared transactions, those that a later instance of their producer keeps, and ends by handle.

use super::begin::LAST_EPOCH;
use super::event::TransactionEnded;
use super::request::{Fault, Handle, Init, Prepare, Reply};
use super::state::{Prepared, Stage, Transaction};
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;

impl Coordinator {
    /// The transaction of a handle, open, ending or ended.
    fn transaction_by(&self, handle: &Handle) -> Result<&Transaction, Fault> {
        let Handle { member, number } = handle;
        self.transaction_check_id(&member.id)?;
        let known = self.state.transactions.get(&member.id);
        let known = known.ok_or(Fault::UnknownId)?;
        let of_batches = known.of_batches();
        let is_same = of_batches == (member.producer, member.epoch) && known.number == *number;
        if is_same && known.stage != Stage::Empty {
            return Ok(known);
        }
        // A number beyond the next was given by a coordinator that has lost what it knew since: how that transaction ended
        // nobody can tell.
        let is_next = known.producer == member.producer && *number == known.number + 1;
        match is_next {
            true => Err(Fault::NotOpen),
            false => Err(Fault::Forgotten),
        }
    }

    pub(super) fn transaction_prepare(
        &mut self,
        now_ms: u64,
        request: Prepare,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let known = self.transaction_by(&request.handle)?;
        match known.stage {
            Stage::Ongoing => {}
            // The answer was lost.
            Stage::Prepared => return Ok(Reply::Prepared),
            _ => return Err(Fault::NotOpen),
        }
        let mut next = known.clone();
        let principal = request.principal;
        self.transaction_check_waiting(&request.handle.member.id, &principal)?;
        next.stage = Stage::Prepared;
        next.updated_ms = now_ms;
        next.prepared = Some(Prepared {
            principal,
            since_ms: now_ms,
        });
        self.transaction_put(&request.handle.member.id, &next, step);
        Ok(Reply::Prepared)
    }

    /// Checks that one more transaction of a user, of this id, may wait for its end without a timeout.
    fn transaction_check_waiting(&self, id: &str, principal: &str) -> Result<(), Fault> {
        let others = self.state.transactions.iter().filter(|(of, other)| {
            let by = other.waits_for();
            *of != id && by.is_some_and(|by| by.principal == principal)
        });
        match others.count() < self.limits.transactions.prepared_per_user {
            true => Ok(()),
            false => Err(Fault::TooManyPrepared),
        }
    }

    /// Who has the next transaction of a producer without a timeout; nobody if it has one.
    pub(super) fn transaction_without_timeout(
        &self,
        now_ms: u64,
        id: &str,
        producer: &Transaction,
    ) -> Result<Option<Prepared>, Fault> {
        let Some(principal) = producer.two_phase.clone() else {
            return Ok(None);
        };
        self.transaction_check_waiting(id, &principal)?;
        Ok(Some(Prepared {
            principal,
            since_ms: now_ms,
        }))
    }

    /// Another instance of a producer begins and keeps the transaction that waits for its end, to end it: the instance before
    /// is fenced, and the batches keep the producer id and the epoch that they have. What has no timeout gets none.
    pub(super) fn transaction_keep(
        &mut self,
        now_ms: u64,
        request: &Init,
        mut next: Transaction,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let id = request.id.as_str();
        let ongoing = next.of_batches();
        next.kept = Some(ongoing);
        next.last = request.known;
        next.two_phase = request.two_phase.clone();
        if next.prepared.is_none() {
            next.prepared = self.transaction_without_timeout(now_ms, id, &next)?;
        }
        (next.producer, next.epoch) = match next.epoch < LAST_EPOCH {
            true => (next.producer, next.epoch + 1),
            false => (request.fresh_producer, 0),
        };
        let reply = Reply::Kept {
            producer: next.producer,
            epoch: next.epoch,
            ongoing,
        };
        self.transaction_put(id, &next, step);
        Ok(reply)
    }

    /// Ends the transaction of a handle, or tells how it ended.
    pub(super) fn transaction_end_by(
        &mut self,
        now_ms: u64,
        handle: &Handle,
        commit: bool,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let known = self.transaction_by(handle)?;
        if let Some(outcome) = known.stage.outcome() {
            return Ok(Reply::Ended(outcome));
        }
        match known.stage.decision() {
            // As it is decided.
            Some(decided) => Ok(Reply::Ended(decided)),
            None => {
                let next = known.clone();
                self.transaction_decide(now_ms, &handle.member.id, next, commit, step);
                Ok(Reply::Ended(commit))
            }
        }
    }

    /// Aborts what nobody has ended for as long as operators let it wait. The epoch of what is prepared stays: all of it is
    /// durable, nothing of it comes late, and a client with its handle is told how it ended. What is open without a timeout is
    /// fenced, as where a timeout is over.
    pub(super) fn transactions_abort_prepared(&mut self, now_ms: u64, step: &mut Step) {
        let Some(longest_ms) = self.limits.transactions.max_prepared_ms else {
            return;
        };
        let waited_ms = |known: &Transaction| {
            let by = known.waits_for()?;
            Some(now_ms.saturating_sub(by.since_ms))
        };
        let all = self.state.transactions.iter();
        let over = all.filter(|(_, known)| waited_ms(known).is_some_and(|ms| ms >= longest_ms));
        let over: Vec<String> = over.map(|(id, _)| id.clone()).collect();
        for id in over {
            let Some(known) = self.state.transactions.get(&id).cloned() else {
                continue;
            };
            let number = known.number;
            tracing::warn!(
                id,
                number,
                longest_ms,
                "nobody has ended a prepared transaction in time; it is aborted"
            );
            if known.stage == Stage::Prepared {
                self.transaction_decide(now_ms, &id, known, false, step);
                continue;
            }
            self.transaction_time_out(now_ms, &id, step);
        }
    }

    /// Forgets how a transaction ended, and its id. One that is not known is forgotten already.
    pub(super) fn transaction_forget(
        &mut self,
        handle: &Handle,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        match self.transaction_by(handle) {
            Ok(known) if known.stage == Stage::Prepared => return Err(Fault::Prepared),
            Ok(known) if known.stage.is_open() => return Err(Fault::Ending),
            Ok(_) => {}
            Err(Fault::UnknownId | Fault::Forgotten) => return Ok(Reply::Noted),
            Err(fault) => return Err(fault),
        }
        let body = Body::TransactionEnded(TransactionEnded {});
        self.emit(step, &handle.member.id, body);
        Ok(Reply::Noted)
    }
}
