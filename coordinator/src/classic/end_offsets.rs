//! The ends of transactions that commit offsets, or positions of native groups, and what comes late.

use super::event::OffsetsEnded;
use super::request::{EndOffsets, Fault, OfTransaction, Reply};
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;
use crate::view::LaneView;

/// How long it is remembered that a transaction ended in a group, so that what comes late is refused: longer than it
/// can be on its way. No more are remembered.
const REMEMBERED_MS: u64 = 60_000;
const REMEMBERED: usize = 100_000;

impl Coordinator {
    /// Refuses what belongs to a transaction that has ended in the group.
    pub(crate) fn classic_check_transaction(
        &self,
        group: &str,
        transaction: OfTransaction,
    ) -> Result<(), Fault> {
        let key = (group.to_owned(), transaction.producer);
        let ended = self.offsets_ended.get(&key);
        match ended.is_some_and(|(ended, _)| *ended >= transaction.number) {
            true => Err(Fault::TransactionEnded),
            false => Ok(()),
        }
    }

    pub(super) fn classic_end_offsets(
        &mut self,
        now_ms: u64,
        request: &EndOffsets,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let OfTransaction { producer, number } = request.transaction;
        let key = (request.group.clone(), producer);
        if !self.offsets_ended.contains_key(&key) && self.offsets_ended.len() >= REMEMBERED {
            self.offsets_ended
                .retain(|_, (_, at_ms)| now_ms < *at_ms + REMEMBERED_MS);
            if self.offsets_ended.len() >= REMEMBERED {
                return Err(Fault::TooManyOffsets);
            }
        }
        let (ended, at_ms) = self.offsets_ended.entry(key).or_default();
        *ended = number.max(*ended);
        *at_ms = now_ms;
        let group = self.state.classic.get(&request.group);
        let pending = group.and_then(|group| group.pending.get(&producer));
        if pending.is_some_and(|pending| pending.number == number) {
            let ended = OffsetsEnded {
                producer,
                number,
                commit: request.commit,
                ended_ms: Some(now_ms),
            };
            self.emit(step, &request.group, Body::OffsetsEnded(ended));
        }
        self.end_positions(now_ms, request, view, step);
        Ok(Reply::OffsetsEnded)
    }
}
