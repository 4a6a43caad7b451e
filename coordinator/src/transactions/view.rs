//! Transactions for people.

use std::collections::HashMap;

use super::request::{Described, Fault, Filter, Listed, Part, Partition, Reply};
use super::state::Transaction;
use super::unsettled::OpenThere;
use crate::coordinator::Coordinator;

fn started_ms(transaction: &Transaction) -> Option<u64> {
    let is_open = transaction.stage.is_open();
    is_open.then_some(transaction.started_ms)
}

fn count_with_oldest(since: impl Iterator<Item = u64>) -> (usize, Option<u64>) {
    since.fold((0, None), |(count, oldest), since| {
        (count + 1, Some(oldest.map_or(since, |o: u64| o.min(since))))
    })
}

impl Coordinator {
    pub(super) fn transaction_describe(&self, id: &str) -> Result<Reply, Fault> {
        self.transaction_check_id(id)?;
        let known = self.state.transactions.get(id).ok_or(Fault::UnknownId)?;
        let mut parts = known.parts.clone();
        let (producer, epoch) = known.named();
        if let Some(marked) = self.markers_written.get(id) {
            parts.retain(|part| !marked.parts.contains(part));
        }
        Ok(Reply::Described(Described {
            id: id.to_owned(),
            stage: known.stage,
            producer,
            epoch,
            timeout_ms: known.timeout_ms,
            started_ms: started_ms(known),
            number: known.number,
            prepared: known.prepared.clone(),
            parts,
        }))
    }

    pub(super) fn transactions_list(&self, now_ms: u64, filter: &Filter) -> Reply {
        let listed = self.state.transactions.iter().filter_map(|(id, known)| {
            let started_ms = started_ms(known);
            let (producer, epoch) = known.named();
            let open_ms = started_ms.map(|started| now_ms.saturating_sub(started));
            let fits = id.starts_with(&filter.prefix)
                && (filter.stages.is_empty() || filter.stages.contains(&known.stage))
                && (filter.producers.is_empty() || filter.producers.contains(&producer))
                && filter
                    .open_longer_ms
                    .is_none_or(|longer| open_ms.is_some_and(|open| open > longer));
            fits.then(|| Listed {
                id: id.clone(),
                producer,
                stage: known.stage,
                started_ms,
                epoch,
                number: known.number,
                prepared: known.prepared.clone(),
            })
        });
        Reply::Listed(listed.collect())
    }

    /// Which of these, that are open in partitions, end in time: they are open or ending here, or have ended and get their
    /// markers again. Of some that have ended it is not kept how; they end by hand alone.
    pub fn knows(&self, open: &[(Partition, OpenThere)]) -> Vec<bool> {
        let all = self.state.transactions.values();
        let known = all.filter(|known| known.stage.is_open());
        let by_producer: HashMap<i64, &Transaction> =
            known.map(|known| (known.of_batches().0, known)).collect();
        let is_known = |(partition, open): &(Partition, OpenThere)| {
            let lost = self.state.unsettled.lost_in(*partition, &[*open]);
            if !lost.forgotten.is_empty() || !lost.ended.is_empty() {
                return lost.forgotten.is_empty();
            }
            let part = Part::Partition(partition.0, partition.1);
            let known = by_producer.get(&open.producer);
            known.is_some_and(|known| known.parts.contains(&part))
        };
        open.iter().map(is_known).collect()
    }

    /// Transactions that are open or ending and do not wait for somebody to end them without a timeout, and when the oldest
    /// began.
    pub fn open_transactions(&self) -> (usize, Option<u64>) {
        let open = self.state.transactions.values();
        let open = open.filter(|known| known.waits_for().is_none());
        count_with_oldest(open.filter_map(started_ms))
    }

    /// When the time of the transaction was over that is longest overdue, of those that are open or ending and not prepared.
    /// It may be to come.
    pub fn transactions_due_ms(&self) -> Option<u64> {
        let all = self.state.transactions.iter();
        let open = all.filter(|(_, known)| known.stage.is_open() && known.waits_for().is_none());
        open.map(|(id, known)| self.transaction_over_ms(id, known))
            .min()
    }

    /// Transactions that are prepared or open without a timeout, and since when the oldest is.
    pub fn prepared_transactions(&self) -> (usize, Option<u64>) {
        let all = self.state.transactions.values();
        count_with_oldest(all.filter_map(|known| Some(known.waits_for()?.since_ms)))
    }
}
