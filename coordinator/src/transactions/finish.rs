//! How transactions end.

use std::collections::BTreeMap;

use kera_protocol::ids::Ordinal;

use super::begin::LAST_EPOCH;
use super::event::{MarkersWritten, TransactionEnded, TransactionSet};
use super::request::{AbortOne, Decided, End, Fault, Handle, Member, Partition, Reply, Written};
use super::state::{Stage, Transaction};
use super::unsettled::{Lost, MarkedParts, OpenThere};
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;

/// Of so many times as many transactions as it is kept how they ended it is kept that they did.
const ENDED: usize = 5;

/// How often ids are looked at for expiry, milliseconds.
const SWEEP_MS: u64 = 60_000;

/// Tells a producer what it has from now on.
fn raised(by: &Transaction) -> Reply {
    Reply::Raised {
        number: by.number,
        producer: by.producer,
        epoch: by.epoch,
    }
}

impl Coordinator {
    pub(super) fn transaction_end(
        &mut self,
        now_ms: u64,
        request: &End,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        if let Some(number) = request.number {
            let member = request.member.clone();
            return self.transaction_end_by(
                now_ms,
                &Handle { member, number },
                request.commit,
                step,
            );
        }
        if let Some(fresh_producer) = request.raise {
            return self.transaction_end_raising(now_ms, request, fresh_producer, step);
        }
        let known = self.transaction_of(&request.member)?;
        match (known.stage, request.commit) {
            (Stage::Ongoing | Stage::Prepared, commit) => {
                let number = known.number;
                self.transaction_decide(now_ms, &request.member.id, known.clone(), commit, step);
                Ok(Reply::Ending(number))
            }
            // The answer was lost.
            (Stage::CompleteCommit, true) | (Stage::CompleteAbort, false) => {
                Ok(Reply::Ending(known.number))
            }
            (Stage::PrepareCommit, true) | (Stage::PrepareAbort, false) => Err(Fault::Ending),
            _ => Err(Fault::NotOpen),
        }
    }

    /// Ends a transaction and gives its producer another epoch: whatever of it comes late is fenced, and so is whoever had
    /// the epoch before. Repeated, because its answer was lost, it comes under the epoch before and has the same answer.
    fn transaction_end_raising(
        &mut self,
        now_ms: u64,
        request: &End,
        fresh_producer: i64,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let Member {
            id,
            producer,
            epoch,
        } = &request.member;
        if let Some(known) = self.state.transactions.get(id)
            && known.ended == Some((*producer, *epoch))
        {
            let how = known.stage.decision().or(known.stage.outcome());
            return match how == Some(request.commit) {
                true => Ok(raised(known)),
                false => Err(Fault::NotOpen),
            };
        }
        let known = self.transaction_of(&request.member)?;
        let mut next = known.clone();
        next.stage = match (known.stage, request.commit) {
            (Stage::Ongoing | Stage::Prepared, true) => Stage::PrepareCommit,
            (Stage::Ongoing | Stage::Prepared, false) => Stage::PrepareAbort,
            // None of its batches were taken, as far as is known here. One that comes late begins nothing.
            (Stage::Empty | Stage::CompleteCommit | Stage::CompleteAbort, false) => {
                next.number += 1;
                next.prepared = None;
                next.kept = None;
                Stage::CompleteAbort
            }
            // The one before.
            (Stage::PrepareCommit | Stage::PrepareAbort, _) => return Err(Fault::Ending),
            (Stage::Empty | Stage::CompleteCommit | Stage::CompleteAbort, true) => {
                return Err(Fault::NotOpen);
            }
        };
        next.ended = Some((known.producer, known.epoch));
        next.last = None;
        (next.producer, next.epoch) = match known.epoch < LAST_EPOCH {
            true => (known.producer, known.epoch + 1),
            false => (fresh_producer, 0),
        };
        next.updated_ms = now_ms;
        self.transaction_put(id, &next, step);
        Ok(raised(&next))
    }

    /// How an open transaction ends is decided.
    pub(super) fn transaction_decide(
        &mut self,
        now_ms: u64,
        id: &str,
        mut next: Transaction,
        commit: bool,
        step: &mut Step,
    ) {
        next.stage = match commit {
            true => Stage::PrepareCommit,
            false => Stage::PrepareAbort,
        };
        next.updated_ms = now_ms;
        self.transaction_put(id, &next, step);
    }

    /// Aborts an open transaction under an epoch that its producer does not have. `last` is who may take that epoch as
    /// the same instance.
    pub(super) fn transaction_fence(
        &mut self,
        id: &str,
        mut next: Transaction,
        last: Option<(i64, i16)>,
        step: &mut Step,
    ) {
        next.stage = Stage::PrepareAbort;
        next.epoch += 1;
        next.raised = true;
        next.last = last;
        self.transaction_put(id, &next, step);
    }

    /// The time of a transaction is over: it is aborted, and whoever is its producer goes on with an Init that names the epoch
    /// it has (KIP-588).
    pub(super) fn transaction_time_out(&mut self, now_ms: u64, id: &str, step: &mut Step) {
        let Some(known) = self.state.transactions.get(id) else {
            return;
        };
        let mut next = known.clone();
        next.updated_ms = now_ms;
        let last = Some((known.producer, known.epoch));
        self.transaction_fence(id, next, last, step);
    }

    /// Somebody else aborts what is open, because its producer is not to go on: no Init that names the epoch before takes
    /// the raised one, as with Kafka's `fenceProducers`.
    fn transaction_shut_out(&mut self, now_ms: u64, id: &str, known: Transaction, step: &mut Step) {
        let mut next = known;
        next.updated_ms = now_ms;
        self.transaction_fence(id, next, None, step);
    }

    /// Likewise where its time was over before, and its producer may have been about to go on.
    fn transaction_shut_out_late(&mut self, id: &str, known: &Transaction, step: &mut Step) {
        if known.raised && known.last.is_some() {
            let mut next = known.clone();
            next.last = None;
            self.transaction_put(id, &next, step);
        }
    }

    /// Aborts the open transaction of an id, and fences its producer for good.
    pub(super) fn transaction_abort(
        &mut self,
        now_ms: u64,
        id: &str,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let known = self.state.transactions.get(id).ok_or(Fault::UnknownId)?;
        let (known, number) = (known.clone(), known.number);
        match known.stage {
            // An engine outside may have decided how it ends, and relies on it.
            Stage::Ongoing if known.prepared.is_some() => Err(Fault::Prepared),
            Stage::Ongoing => {
                self.transaction_shut_out(now_ms, id, known, step);
                Ok(Reply::Ending(number))
            }
            Stage::PrepareAbort => {
                self.transaction_shut_out_late(id, &known, step);
                Ok(Reply::Ending(number))
            }
            Stage::PrepareCommit => Err(Fault::Ending),
            Stage::Prepared => Err(Fault::Prepared),
            Stage::Empty | Stage::CompleteCommit | Stage::CompleteAbort => Err(Fault::NotOpen),
        }
    }

    /// Aborts the transaction of a handle, as a list names it, and fences its producer as
    /// [`transaction_abort`](Self::transaction_abort) does. Of one that is prepared nothing comes late, but its producer may be
    /// about to begin the next one.
    pub(super) fn transaction_abort_one(
        &mut self,
        now_ms: u64,
        request: &AbortOne,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let Handle { member, number } = &request.handle;
        let known = self.state.transactions.get(&member.id);
        let known = known.ok_or(Fault::UnknownId)?.clone();
        if known.number != *number || known.of_batches().0 != member.producer {
            return Err(Fault::NotOpen);
        }
        let waits = known.waits_for().is_some();
        match known.stage {
            Stage::Ongoing | Stage::Prepared if waits && !request.prepared => Err(Fault::Prepared),
            Stage::Ongoing | Stage::Prepared => {
                self.transaction_shut_out(now_ms, &member.id, known, step);
                Ok(Reply::Ending(*number))
            }
            Stage::PrepareAbort | Stage::CompleteAbort => {
                self.transaction_shut_out_late(&member.id, &known, step);
                Ok(Reply::Ending(*number))
            }
            Stage::Empty | Stage::PrepareCommit | Stage::CompleteCommit => Err(Fault::NotOpen),
        }
    }

    pub(super) fn transactions_decided(&self) -> Reply {
        let decided = self.state.transactions.iter().filter_map(|(id, known)| {
            let commit = known.stage.decision()?;
            let mut parts = known.parts.clone();
            if let Some(marked) = self.markers_written.get(id)
                && marked.number == known.number
            {
                parts.retain(|part| !marked.parts.contains(part));
            }
            let (producer, batch_epoch) = known.of_batches();
            Some(Decided {
                id: id.clone(),
                producer,
                epoch: known.of_markers(),
                batch_epoch,
                number: known.number,
                commit,
                parts,
            })
        });
        Reply::Decided(decided.collect())
    }

    pub(super) fn transaction_written(
        &mut self,
        now_ms: u64,
        request: Written,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let known = self.state.transactions.get(&request.id);
        let known = known.ok_or(Fault::UnknownId)?;
        let Some(commit) = known.stage.decision() else {
            return Ok(Reply::Noted);
        };
        if known.number != request.number {
            return Ok(Reply::Noted);
        }
        let marked = self.markers_written.entry(request.id.clone());
        let marked = marked.or_default();
        if marked.number != request.number {
            *marked = MarkedParts {
                number: request.number,
                ..MarkedParts::default()
            };
        }
        marked.parts.extend(request.parts);
        marked.ends.extend(request.ends);
        if !known.parts.is_subset(&marked.parts) {
            return Ok(Reply::Noted);
        }
        let (unsettled, most) = (&self.state.unsettled, self.limits.transactions.unsettled);
        // That one ended is kept for longer than how: what begins later must not be taken for it. Without room for that either
        // it ends once there is: its producer waits until then.
        let ends = marked.ends.keys();
        let more = ends.filter(|place| unsettled.takes_room(&request.id, **place));
        let is_kept = unsettled.count() + more.count() <= most.saturating_mul(ENDED);
        if !marked.ends.is_empty() && !is_kept {
            tracing::warn!(
                id = request.id,
                kept = unsettled.count(),
                "a transaction does not end yet: of too many it is not known yet whether their markers stay; see `kera stream describe` for brokers that are away or disks that are slow"
            );
            return Ok(Reply::Noted);
        }
        let has_room = unsettled.count() + marked.ends.len() <= most;
        let mut next = known.clone();
        next.stage = match commit {
            true => Stage::CompleteCommit,
            false => Stage::CompleteAbort,
        };
        next.parts.clear();
        next.updated_ms = now_ms;
        let marked = self.markers_written.remove(&request.id);
        let ends = marked.unwrap_or_default().ends;
        let mut set = TransactionSet::of(&next);
        let (told, endless): (BTreeMap<_, _>, _) = ends.into_iter().partition(|(_, end)| *end > 0);
        for (ends, is_known) in [(told, has_room), (endless, false)] {
            if !ends.is_empty() {
                let written = MarkersWritten::of(&next, commit, &ends, is_known);
                set.written.push(written);
            }
        }
        self.emit(step, &request.id, Body::TransactionSet(set));
        Ok(Reply::Noted)
    }

    /// Aborts transactions whose time is over, and forgets ids that were silent for long.
    pub(crate) fn transactions_tick(&mut self, now_ms: u64, step: &mut Step) {
        let over = self.state.transactions.iter().filter(|(id, known)| {
            let has_timeout = known.stage == Stage::Ongoing && known.prepared.is_none();
            has_timeout && self.transaction_over_ms(id, known) <= now_ms
        });
        let over: Vec<String> = over.map(|(id, _)| id.clone()).collect();
        for id in over {
            tracing::info!(id, "the time of a transaction is over; it is aborted");
            self.transaction_time_out(now_ms, &id, step);
        }
        self.transactions_abort_prepared(now_ms, step);
        if self.transactions_sweep_ms > now_ms {
            return;
        }
        self.transactions_sweep_ms = now_ms.saturating_add(SWEEP_MS);
        let all = &self.state.transactions;
        self.transactions_heard_ms.retain(|id, _| {
            all.get(id)
                .is_some_and(|known| known.stage == Stage::Ongoing)
        });
        let limits = &self.limits.transactions;
        let silent = self.state.transactions.iter().filter(|(_, known)| {
            let expiry_ms = match known.prepared {
                Some(_) if known.is_outcome() => limits.outcome_ms,
                // Its producer is about to go on, and somebody may ask how the last one ended.
                Some(_) => limits.outcome_ms.max(limits.expiry_ms),
                None => limits.expiry_ms,
            };
            !known.stage.is_open() && known.updated_ms.saturating_add(expiry_ms) <= now_ms
        });
        let silent: Vec<String> = silent.map(|(id, _)| id.clone()).collect();
        for id in silent {
            self.emit(step, &id, Body::TransactionEnded(TransactionEnded {}));
        }
    }

    /// The partitions in which markers of ended transactions may be lost again.
    pub fn unsettled_partitions(&self) -> Vec<Partition> {
        self.state.unsettled.partitions().collect()
    }

    /// How those of the transactions ended that are open in a partition: it has lost their markers.
    pub fn lost_in(&self, partition: Partition, open: &[OpenThere]) -> Lost {
        self.state.unsettled.lost_in(partition, open)
    }

    /// What the producer of an id began in a partition before this has ended; 0 if that is not kept.
    pub fn ended_before(&self, id: &str, partition: Partition) -> Ordinal {
        self.state.unsettled.ended_before(id, partition)
    }

    /// Markers below this stay in a partition, whatever fails. That needs no event: after a replay it is asked again.
    pub fn settle(&mut self, partition: Partition, below: Ordinal) {
        self.state.unsettled.settle(partition, below);
    }

    /// True if a decision lacks markers.
    pub fn has_decided(&self) -> bool {
        let mut all = self.state.transactions.values();
        all.any(|known| known.stage.decision().is_some())
    }
}
