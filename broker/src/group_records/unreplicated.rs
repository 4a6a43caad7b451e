//! What a streamlet itself records: the groups of one without replicas on other brokers, and what retention gives up
//! in any.

use std::collections::HashMap;

use kera_metadata::{Compare, GroupKey, GroupRecord, Key, MetadataError, Transaction, Write};
use kera_protocol::ids::Epoch;
use kera_streamlet::recorder::{Done, GroupRecorder, RecordError};

use super::{GroupRecords, Inner};

/// Most changes of one transaction.
const CHANGES_PER_TRANSACTION: usize = 4096;

/// Most records that are read one by one; of more, all of the streamlet's are read at once.
const READ_ONE_BY_ONE: usize = 16;

impl Inner {
    /// What is recorded of the groups that `changes` touch without saying which revision they replace.
    fn recorded(&self, changes: &[Write]) -> Result<HashMap<GroupKey, GroupRecord>, MetadataError> {
        let touched = changes.iter().filter_map(|change| match change {
            Write::PutGroup(record) if record.revision == 0 => Some(record.key()),
            Write::DeleteGroup(key) => Some(*key),
            _ => None,
        });
        let touched: Vec<_> = touched.collect();
        if let Some(key) = touched.get(READ_ONE_BY_ONE) {
            let image = self.store.load_streamlet(key.stream, key.streamlet)?;
            let groups = image.groups.into_iter();
            return Ok(groups.map(|record| (record.key(), record)).collect());
        }
        let mut recorded = HashMap::with_capacity(touched.len());
        for key in touched {
            recorded.extend(self.store.group(key)?.map(|record| (key, record)));
        }
        Ok(recorded)
    }

    /// The transaction of `changes` to `recorded`: what they compare, and what the streamlet leaves to the recorder. A
    /// group that has come as far already is left out.
    pub(super) fn transaction(
        &self,
        epoch: Epoch,
        changes: Vec<Write>,
        recorded: &HashMap<GroupKey, GroupRecord>,
    ) -> Transaction {
        let mut transaction = Transaction::default();
        for change in changes {
            if let Some(streamlet) = change.key().streamlet_of()
                && transaction.compare.is_empty()
            {
                let epoch = Compare::epoch_of(streamlet, epoch);
                transaction.compare.push(epoch);
            }
            let Key::Group(key) = change.key() else {
                transaction.write.push(change);
                continue;
            };
            let found = recorded.get(&key);
            let mut revision = found.map_or(0, |found| found.revision);
            match change {
                Write::PutGroup(record) if record.revision != 0 => {
                    revision = record.revision;
                    transaction.write.push(Write::PutGroup(record));
                }
                Write::PutGroup(mut record) => {
                    // The answer to its closing was lost, and it closes again: when it did stays.
                    if let Some(closed) = found.filter(|found| found.is_closed())
                        && ends_alike(closed, &record)
                    {
                        transaction
                            .compare
                            .push(Compare::revision(Key::Group(key), revision));
                        continue;
                    }
                    match found.filter(|found| !found.is_closed()) {
                        Some(open) if open.state >= record.state => continue,
                        Some(open) if record.is_closed() => {
                            record.generation = open.generation;
                            record.copies.clone_from(&open.copies);
                            record.file_made = open.file_made;
                        }
                        _ if record.copies.is_empty() || !record.is_closed() => {
                            record.copies = vec![self.own];
                        }
                        _ => {}
                    }
                    transaction.write.push(Write::PutGroup(record));
                }
                // Of one that is not recorded only that is compared: its record may be on its way.
                deleted => transaction.write.extend(found.map(|_| deleted)),
            }
            let compare = Compare::revision(Key::Group(key), revision);
            transaction.compare.push(compare);
        }
        transaction
    }
}

/// Whether a closed group is recorded as `record` closes it.
fn ends_alike(closed: &GroupRecord, record: &GroupRecord) -> bool {
    let ends = |one: &GroupRecord| (one.first_ordinal, one.end_ordinal, one.next_ordinal);
    record.is_closed() && ends(closed) == ends(record)
}

fn failed(error: MetadataError) -> RecordError {
    RecordError(error.to_string())
}

impl GroupRecorder for GroupRecords {
    fn read(&self, group: GroupKey) -> Result<Option<GroupRecord>, RecordError> {
        self.0.store.group(group).map_err(failed)
    }

    fn record(&self, epoch: Epoch, changes: Vec<Write>, done: Done) {
        // Nobody may wait here, so nothing is read: what is not waited for are groups that were never recorded.
        let transaction = self.0.transaction(epoch, changes, &HashMap::new());
        self.0.submit(transaction, |outcome| {
            done(outcome.map(drop).map_err(failed))
        });
    }

    /// Records `changes` in their order, in as few transactions as the store allows, each once the one before is
    /// durable: what a later change relies on comes first.
    fn record_now(&self, epoch: Epoch, changes: Vec<Write>) -> Result<(), RecordError> {
        self.record_now_if(epoch, Vec::new(), changes)
    }

    fn record_now_if(
        &self,
        epoch: Epoch,
        compare: Vec<Compare>,
        mut changes: Vec<Write>,
    ) -> Result<(), RecordError> {
        // Each is a comparison and a write; the streamlet's are beside them.
        let most = self.0.store.max_operations().saturating_sub(compare.len()) / 2;
        let most = most.clamp(1, CHANGES_PER_TRANSACTION);
        while !changes.is_empty() {
            let rest = changes.split_off(most.min(changes.len()));
            let recorded = self.0.recorded(&changes).map_err(failed)?;
            let mut transaction = self.0.transaction(epoch, changes, &recorded);
            transaction.compare.extend(compare.iter().cloned());
            let committed = self.0.commit_async(transaction).wait();
            committed.map_err(failed)?;
            changes = rest;
        }
        Ok(())
    }
}
