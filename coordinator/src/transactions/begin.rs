//! Producers begin, and add parts to their transactions.

use std::collections::BTreeSet;

use super::event::{TransactionEnded, TransactionSet};
use super::request::{Fault, Init, Member, Part, Reply};
use super::state::{Stage, Transaction};
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;

/// What one part takes, in bytes, about; the name of a group takes its own.
const PART_BYTES: usize = 32;

/// The timeout of transactions that have none, as Kafka tells it.
const NO_TIMEOUT_MS: u32 = i32::MAX.unsigned_abs();

/// Outcomes that are forgotten at once.
const OUTCOMES_AT_ONCE: usize = 100;

/// Whoever has begun makes room for no other id for so long.
const LATELY_MS: u64 = 900_000;

/// As many parts as these take the memory of.
fn weight(parts: &BTreeSet<Part>) -> usize {
    // Groups stand behind all partitions.
    let names = parts.iter().rev().map_while(|part| match part {
        Part::Group(group) => Some(group.len().div_ceil(PART_BYTES)),
        Part::Partition(..) => None,
    });
    parts.len() + names.sum::<usize>()
}

/// An id whose epoch is here gets another producer id. One epoch is left above it for an abort.
pub(super) const LAST_EPOCH: i16 = i16::MAX - 1;

impl Coordinator {
    /// Puts a changed state in the place of the one before.
    pub(super) fn transaction_put(&mut self, id: &str, transaction: &Transaction, step: &mut Step) {
        let body = Body::TransactionSet(TransactionSet::of(transaction));
        self.emit(step, id, body);
    }

    pub(super) fn transaction_check_id(&self, id: &str) -> Result<(), Fault> {
        match id.is_empty() || id.len() > self.limits.transactions.id_bytes {
            true => Err(Fault::InvalidId),
            false => Ok(()),
        }
    }

    pub(super) fn transaction_init(
        &mut self,
        now_ms: u64,
        request: &Init,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        self.transaction_check_id(&request.id)?;
        let timeout_ms = u32::try_from(request.timeout_ms).unwrap_or(0);
        let is_valid = timeout_ms > 0 && timeout_ms <= self.limits.transactions.max_timeout_ms;
        let timeout_ms = match (&request.two_phase, is_valid) {
            (Some(_), _) => NO_TIMEOUT_MS,
            (None, true) => timeout_ms,
            (None, false) => return Err(Fault::InvalidTimeout),
        };
        let id = request.id.as_str();
        let Some(known) = self.state.transactions.get(id) else {
            // Also of a client that had another producer id, which was forgotten with the transactional id.
            self.transactions_make_room(now_ms, step)?;
            let new = Transaction {
                producer: request.fresh_producer,
                epoch: 0,
                last: None,
                raised: false,
                ended: None,
                kept: None,
                two_phase: request.two_phase.clone(),
                heartbeats: request.heartbeats,
                timeout_ms,
                stage: Stage::Empty,
                number: 0,
                started_ms: 0,
                updated_ms: now_ms,
                parts: BTreeSet::new(),
                prepared: None,
            };
            self.transaction_put(id, &new, step);
            return Ok(Reply::Begun(new.producer, new.epoch));
        };
        let mut next = known.clone();
        next.updated_ms = now_ms;
        next.timeout_ms = timeout_ms;
        let present = (known.producer, known.epoch);
        // Its answer may have been lost: the client is the one that has what was given out last.
        let is_repeated = request.known.is_some()
            && (request.known == known.last || request.known == known.ended);
        if request.known.is_some_and(|known| known != present) && !is_repeated {
            return Err(Fault::Fenced);
        }
        if known.stage.decision().is_some() {
            return Err(Fault::Ending);
        }
        if request.keep && matches!(known.stage, Stage::Ongoing | Stage::Prepared) {
            return self.transaction_keep(now_ms, request, next, step);
        }
        if known.stage == Stage::Prepared {
            return Err(Fault::Prepared);
        }
        if known.stage == Stage::Ongoing {
            // Raised here, and taken by the Init that finds it ended; nobody else may go on until then.
            next.timeout_ms = known.timeout_ms;
            self.transaction_fence(id, next, request.known, step);
            return Err(Fault::Ending);
        }
        let was_raised = is_repeated || known.raised;
        next.last = request.known;
        if (was_raised && known.epoch > LAST_EPOCH) || (!was_raised && known.epoch >= LAST_EPOCH) {
            next.producer = request.fresh_producer;
            next.epoch = 0;
        } else if !was_raised {
            next.epoch = known.epoch + 1;
        }
        next.raised = false;
        next.ended = None;
        next.kept = None;
        next.two_phase = request.two_phase.clone();
        next.heartbeats = request.heartbeats;
        next.stage = Stage::Empty;
        next.prepared = None;
        let begun = Reply::Begun(next.producer, next.epoch);
        self.transaction_put(id, &next, step);
        Ok(begun)
    }

    /// The transaction of a producer that names itself rightly.
    pub(super) fn transaction_of(&self, member: &Member) -> Result<&Transaction, Fault> {
        self.transaction_check_id(&member.id)?;
        let known = self.state.transactions.get(&member.id);
        let known = known.ok_or(Fault::OtherProducer)?;
        if known.producer != member.producer {
            return Err(Fault::OtherProducer);
        }
        if known.epoch != member.epoch || known.raised {
            return Err(Fault::Fenced);
        }
        Ok(known)
    }

    pub(super) fn transaction_add(
        &mut self,
        now_ms: u64,
        member: &Member,
        parts: BTreeSet<Part>,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let known = self.transaction_of(member)?;
        if known.stage.decision().is_some() {
            return Err(Fault::Ending);
        }
        let is_going_on = known.stage == Stage::Ongoing;
        // What was kept has batches of another epoch, and takes none of this one.
        if known.stage == Stage::Prepared || (is_going_on && known.kept.is_some()) {
            return Err(Fault::Prepared);
        }
        if parts.is_empty() {
            return Ok(Reply::Added(known.number, parts));
        }
        let mut next = known.clone();
        if !is_going_on {
            next.stage = Stage::Ongoing;
            next.number += 1;
            next.started_ms = now_ms;
            next.parts.clear();
            next.prepared = self.transaction_without_timeout(now_ms, &member.id, &next)?;
            next.ended = None;
            next.kept = None;
        }
        let fresh: BTreeSet<Part> = parts.difference(&next.parts).cloned().collect();
        // No sign of life, which needs another right: what adds parts ends with them.
        if fresh.is_empty() && is_going_on {
            return Ok(Reply::Added(next.number, fresh));
        }
        next.parts.extend(fresh.iter().cloned());
        self.transaction_check_parts(&next.parts, weight(&fresh))?;
        next.updated_ms = now_ms;
        let number = next.number;
        self.transaction_put(&member.id, &next, step);
        Ok(Reply::Added(number, fresh))
    }

    /// Checks that a transaction may have these parts, of which those of so much weight are new.
    fn transaction_check_parts(&self, parts: &BTreeSet<Part>, more: usize) -> Result<(), Fault> {
        let limits = &self.limits.transactions;
        let groups = parts.iter().filter_map(|part| match part {
            Part::Group(group) => Some(group.len()),
            Part::Partition(..) => None,
        });
        let fits = groups.clone().count() <= limits.groups
            && groups.max().unwrap_or(0) <= limits.group_bytes
            && parts.len() <= limits.parts;
        let all = || -> usize {
            let all = self.state.transactions.values();
            all.map(|known| weight(&known.parts)).sum()
        };
        match fits && (weight(parts) <= limits.small_parts || all() + more <= limits.total_parts) {
            true => Ok(()),
            false => Err(Fault::TooManyParts),
        }
    }

    /// A producer gives a sign of life. It is not kept: whoever coordinates after this one counts anew.
    pub(super) fn transaction_heartbeat(
        &mut self,
        now_ms: u64,
        member: &Member,
    ) -> Result<Reply, Fault> {
        let known = self.transaction_of(member)?;
        if known.stage == Stage::Ongoing && known.heartbeats {
            self.transactions_heard_ms.insert(member.id.clone(), now_ms);
        }
        Ok(Reply::Noted)
    }

    /// When the time of an id's transaction is over, unless it is prepared.
    pub(super) fn transaction_over_ms(&self, id: &str, known: &Transaction) -> u64 {
        let heard_ms = self.transactions_heard_ms.get(id);
        known.over_ms(heard_ms.copied().unwrap_or(self.replayed_ms))
    }

    pub(super) fn transaction_verify(&self, member: &Member, part: &Part) -> Result<Reply, Fault> {
        let known = self.transaction_of(member)?;
        let is_open = known.stage == Stage::Ongoing && known.kept.is_none();
        match is_open && known.parts.contains(part) {
            true => Ok(Reply::Open(known.number)),
            false => Err(Fault::NotOpen),
        }
    }

    /// Makes room for one more id: the one without a transaction that was silent for longest goes. How prepared ones ended
    /// is counted apart, or an engine that prepares one with each checkpoint would drive out everybody else's ids.
    fn transactions_make_room(&mut self, now_ms: u64, step: &mut Step) -> Result<(), Fault> {
        let limits = &self.limits.transactions;
        let known = &self.state.transactions;
        if known.len() < limits.ids.min(limits.outcomes) {
            return Ok(());
        }
        let outcomes = known.values().filter(|one| one.is_outcome()).count();
        let mut going = Vec::new();
        if outcomes >= limits.outcomes {
            let ended = known.iter().filter(|(_, one)| one.is_outcome());
            let mut ended: Vec<_> = ended.collect();
            // The limit may have been lowered: then some more go each time.
            let over = (outcomes - limits.outcomes).saturating_add(1);
            let over = over.min(OUTCOMES_AT_ONCE).min(ended.len());
            if let Some(last) = over.checked_sub(1) {
                // There are very many of them: only these are put apart.
                ended.select_nth_unstable_by_key(last, |(_, one)| one.updated_ms);
                going.extend(ended.into_iter().take(over));
            }
        }
        if known.len() - outcomes >= limits.ids {
            // Whoever began lately is about to add to it, however long its transaction may be open then.
            let is_silent = |one: &Transaction| {
                let lately_ms = u64::from(one.timeout_ms).min(LATELY_MS);
                !one.stage.is_open() && one.updated_ms + lately_ms <= now_ms
            };
            let idle = known.iter();
            let idle = idle.filter(|(_, one)| !one.is_outcome() && is_silent(one));
            let longest = idle.min_by_key(|(_, one)| one.updated_ms);
            going.push(longest.ok_or(Fault::TooManyIds)?);
        }
        let going: Vec<String> = going.into_iter().map(|(id, _)| id.clone()).collect();
        for id in going {
            tracing::debug!(id, "a transactional id makes room for another");
            self.emit(step, &id, Body::TransactionEnded(TransactionEnded {}));
        }
        Ok(())
    }
}
