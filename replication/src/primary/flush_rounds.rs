//! Flush rounds at one backup: what acknowledgements of synced groups wait for.
//!
//! At most one is under way. Whatever is placed meanwhile, of all groups, makes up the next one, so the cost of
//! an acknowledgement does not grow with the number of groups. A round is a control call and not a word on the
//! link for data: it is the same for all transports, and it is one call for many groups.

use std::task::{Context, Poll};
use std::time::Duration;

use super::Caller;
use super::shipment::Shipment;
use super::slots::Slots;
use crate::faults::Faults;
use crate::ids::{BrokerId, CopyId};
use crate::runtime::within;
use crate::transport::{CallError, Pending, Refusal, Reply, Request};

/// Groups of one round, at most: more are left for the next, so that a request stays small.
const GROUPS: usize = 8192;

/// The rounds of one shipper.
pub(super) struct FlushRounds {
    /// Groups with bytes that are placed and not flushed, by number; each once.
    due: Vec<(u32, CopyId)>,
    under_way: Option<Round>,
    faults: Faults,
}

/// A round under way.
struct Round {
    /// The groups, each with the address below which it is flushed then.
    groups: Vec<(u32, CopyId, u64)>,
    begun: Duration,
    call: Pending<Result<Reply, CallError>>,
}

/// What came of a round.
pub(super) struct EndedRound {
    pub(super) groups: usize,
    pub(super) took: Duration,
    pub(super) went: Went,
    /// Groups whose replica is lost, and why.
    pub(super) lost: Vec<(CopyId, String)>,
}

/// How the backup took a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Went {
    /// It answered; what it refused is over there.
    Well,
    /// It could not flush: its disk may be full, or broken.
    DiskFailed,
    /// It did not answer.
    Unanswered,
}

impl FlushRounds {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            due: Vec::new(),
            under_way: None,
            faults,
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// More of a synced group is placed.
    pub(super) fn placed(&mut self, shipment: &mut Shipment, number: u32) {
        if !std::mem::replace(&mut shipment.flush_due, true) {
            self.due.push((number, shipment.set.id()));
        }
        let (set, index) = (&shipment.set, shipment.index);
        let early = self.faults.one_flush_not_awaited() && set.is_last_shipped(index)
            || self.faults.closed_before_flush() && set.group().is_frozen();
        if early {
            set.completed(index, shipment.completed);
        }
    }

    /// Begins the next round, if there is anything to be flushed and none is under way.
    pub(super) fn begin(&mut self, caller: &Caller, backup: BrokerId, all: &mut Slots) -> bool {
        if self.due.is_empty() || self.under_way.is_some() {
            return false;
        }
        let some = self.due.len().min(GROUPS);
        let groups = self.due.drain(..some).filter_map(|(number, id)| {
            let shipment = all.of(number, &id)?;
            shipment.flush_due = false;
            Some((number, id, shipment.completed))
        });
        let groups: Vec<_> = groups.collect();
        let copies = groups.iter().map(|(_, id, end)| (*id, *end)).collect();
        let asked = caller.ask(backup, Request::FlushRound { copies });
        let (runtime, patience) = (caller.runtime.clone(), caller.config.flush_timeout);
        let call = async move {
            // However often it is asked: appends wait for it.
            let answered = within(&*runtime, patience, asked).await;
            let reason = format!("no flush within {patience:?}");
            answered.unwrap_or(Err(CallError::Lost { backup, reason }))
        };
        self.under_way = Some(Round {
            groups,
            begun: caller.runtime.now(),
            call: Box::pin(call),
        });
        true
    }

    /// Counts what the round under way has flushed, once it has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        caller: &Caller,
        backup: BrokerId,
        all: &mut Slots,
    ) -> Option<EndedRound> {
        let round = self.under_way.as_mut()?;
        let Poll::Ready(answer) = round.call.as_mut().poll(cx) else {
            return None;
        };
        let Round { groups, begun, .. } = self.under_way.take()?;
        let went = went(&answer);
        let outcomes = outcomes_of(answer, groups.len(), backup);
        let mut ended = EndedRound {
            went,
            groups: groups.len(),
            took: caller.runtime.now().saturating_sub(begun),
            lost: Vec::new(),
        };
        for ((number, id, end), outcome) in groups.into_iter().zip(outcomes) {
            let Some(shipment) = all.of(number, &id) else {
                continue;
            };
            match outcome {
                Ok(()) if self.faults.newer_bytes_counted() => {
                    shipment.set.completed(shipment.index, shipment.completed);
                }
                Ok(()) => shipment.set.completed(shipment.index, end),
                Err(reason) => ended.lost.push((id, reason)),
            }
        }
        Some(ended)
    }
}

fn went(answer: &Result<Reply, CallError>) -> Went {
    let failed = |outcome: &Result<(), Refusal>| matches!(outcome, Err(Refusal::Failed(_)));
    match answer {
        Ok(Reply::FlushedRound(outcomes)) if outcomes.iter().any(failed) => Went::DiskFailed,
        Ok(_) => Went::Well,
        Err(error) if error.refusal().is_some() => Went::Well,
        Err(_) => Went::Unanswered,
    }
}

/// What an answer says of each of so many groups. Without one none of them counts as flushed.
fn outcomes_of(
    answer: Result<Reply, CallError>,
    groups: usize,
    backup: BrokerId,
) -> Vec<Result<(), String>> {
    let refused = |refusal: Refusal| format!("{backup} cannot flush it: {refusal}");
    match answer {
        Ok(Reply::FlushedRound(outcomes)) if outcomes.len() == groups => {
            let outcomes = outcomes.into_iter();
            outcomes.map(|one| one.map_err(refused)).collect()
        }
        Ok(other) => vec![Err(format!("{backup} answered a flush round with {other:?}")); groups],
        Err(error) => vec![Err(error.to_string()); groups],
    }
}
