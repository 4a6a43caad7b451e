//! Prepared transactions, and ends by handle.

use super::event::TransactionEnded;
use super::request::{Fault, Handle, Prepare, Reply};
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
        let was_before = known.producer != member.producer || *number <= known.number;
        match was_before {
            true => Err(Fault::Forgotten),
            false => Err(Fault::NotOpen),
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
        let all = self.state.transactions.values();
        let same_user = all.filter(|other| {
            let by = other.prepared.as_ref();
            other.stage == Stage::Prepared && by.is_some_and(|by| by.principal == principal)
        });
        if same_user.count() >= self.limits.transactions.prepared_per_user {
            return Err(Fault::TooManyPrepared);
        }
        next.stage = Stage::Prepared;
        next.updated_ms = now_ms;
        next.prepared = Some(Prepared {
            principal,
            since_ms: now_ms,
        });
        self.transaction_put(&request.handle.member.id, &next, step);
        Ok(Reply::Prepared)
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

    /// Aborts what nobody has ended for as long as operators let it wait. Its epoch stays: all of it is durable, nothing of
    /// it comes late, and whoever has its handle is told how it ended.
    pub(super) fn transactions_abort_prepared(&mut self, now_ms: u64, step: &mut Step) {
        let Some(longest_ms) = self.limits.transactions.max_prepared_ms else {
            return;
        };
        let waited_ms = |known: &Transaction| {
            let by = known.prepared.as_ref();
            let by = by.filter(|_| known.stage == Stage::Prepared)?;
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
            self.transaction_decide(now_ms, &id, known, false, step);
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
