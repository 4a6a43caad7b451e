//! The one thread's work: evaluate what waits, commit it, and recover from failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use redb::{Database, ReadableTable, Table, WriteTransaction};

use super::file::{Opener, file_error, reopen};
use super::format::{META, RECORDS, Summary, table_apart, write_summary};
use super::{MAX_EMBEDDED_OPERATIONS, Shared};
use crate::error::MetadataError;
use crate::evaluate::{Keyspace, LimitsCache, evaluate};
use crate::image::corrupt;
use crate::queue::Outcome;
use kera_records::key::prefix_end;
use kera_records::seldom::Seldom;
use kera_records::{Committed, Transaction, Write};

/// The lines that tell of failures, each kind limited on its own: a full disk fails each of many batches a second, and the log
/// may be on it.
#[derive(Debug, Default)]
struct Lines {
    failed: Seldom,
    still_closed: Seldom,
    open_again: Seldom,
}

/// Why a whole batch failed.
struct Failure {
    error: MetadataError,
    /// False while nothing can have reached the file's newest state.
    committing: bool,
}

pub(super) struct Writer {
    path: PathBuf,
    database: Shared,
    opener: Box<dyn Opener>,
    /// What the last commit left.
    summary: Summary,
    cache: LimitsCache,
    lines: Lines,
}

impl Writer {
    pub(super) fn new(
        path: PathBuf,
        database: Shared,
        opener: Box<dyn Opener>,
        summary: Summary,
    ) -> Self {
        Self {
            path,
            database,
            opener,
            summary,
            cache: LimitsCache::default(),
            lines: Lines::default(),
        }
    }

    /// Commits a batch: one outcome for each transaction, in order.
    pub(super) fn commit(&mut self, batch: &[Transaction]) -> Vec<Outcome> {
        if self.database.read().is_none()
            && let Err(error) = self.open_again()
        {
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        match self.try_commit(batch) {
            Ok(outcomes) => outcomes,
            Err(failure) => self.recover(batch, failure),
        }
    }

    fn try_commit(&mut self, batch: &[Transaction]) -> Result<Vec<Outcome>, Failure> {
        let shared = self.database.clone();
        let database = shared.read();
        let Some(database) = database.as_ref() else {
            return Err(Failure {
                error: MetadataError::Closed,
                committing: false,
            });
        };
        let mut committing = false;
        // Damage that redb does not expect makes it panic.
        catch_unwind(AssertUnwindSafe(|| {
            self.write_batch(database, batch, &mut committing)
        }))
        .unwrap_or_else(|_| {
            Err(corrupt(
                &self.path,
                "writing it failed in an unexpected way".into(),
            ))
        })
        .map_err(|error| Failure { error, committing })
    }

    fn write_batch(
        &mut self,
        database: &Database,
        batch: &[Transaction],
        committing: &mut bool,
    ) -> Result<Vec<Outcome>, MetadataError> {
        let path = &self.path;
        let mut write = database.begin_write().map_err(|e| file_error(path, e))?;
        // With one phase, damage to the newest commit could not be told from a torn one: redb would
        // fall back to the commit before it and silently lose what was acknowledged.
        write.set_two_phase_commit(true);
        let mut summary = self.summary;
        let mut outcomes = Vec::with_capacity(batch.len());
        {
            let table = write.open_table(RECORDS).map_err(|e| file_error(path, e))?;
            let mut records = Records {
                path,
                write: &write,
                table,
                added: 0,
                removed: 0,
            };
            for transaction in batch {
                let revision = summary.revision + 1;
                let evaluated = evaluate(
                    &records,
                    &mut self.cache,
                    path,
                    transaction,
                    revision,
                    MAX_EMBEDDED_OPERATIONS,
                );
                outcomes.push(match evaluated {
                    Ok(changes) if changes.is_empty() => Ok(Committed {
                        revision: summary.revision,
                    }),
                    Ok(changes) => {
                        changes.apply(&mut records, &mut self.cache)?;
                        summary.revision = revision;
                        if let Some(version) = finalized_by(transaction) {
                            summary.finalize(version);
                        }
                        Ok(Committed { revision })
                    }
                    Err(refused) => Err(refused),
                });
            }
            summary.values = (summary.values + records.added).saturating_sub(records.removed);
            if summary.revision != self.summary.revision {
                let mut meta = write.open_table(META).map_err(|e| file_error(path, e))?;
                write_summary(path, &mut meta, &summary)?;
            }
        }
        if summary.revision == self.summary.revision {
            write.abort().map_err(|e| file_error(path, e))?;
            return Ok(outcomes);
        }
        *committing = true;
        write.commit().map_err(|e| file_error(path, e))?;
        self.summary = summary;
        Ok(outcomes)
    }

    /// After a failure redb refuses everything until the file is opened again. What is found then
    /// also tells what became of the batch.
    fn recover(&mut self, batch: &[Transaction], failure: Failure) -> Vec<Outcome> {
        let Failure { error, committing } = failure;
        if let Some(left_out) = self.lines.failed.due(Instant::now()) {
            tracing::error!(%error, transactions = batch.len(), left_out, "the metadata store failed");
        }
        self.cache.clear();
        self.database.write().take();
        let before = self.summary.revision;
        let unknown = match self.open_again() {
            Ok(()) => self.summary.revision > before,
            Err(again) => {
                if let Some(left_out) = self.lines.still_closed.due(Instant::now()) {
                    tracing::error!(error = %again, left_out, "the metadata store cannot be opened again yet");
                }
                committing
            }
        };
        // Refusals are part of it: they were judged by writes before them that failed.
        let outcome = if unknown {
            MetadataError::UnknownOutcome {
                path: self.path.clone(),
                detail: error.to_string(),
            }
        } else {
            error
        };
        batch.iter().map(|_| Err(outcome.clone())).collect()
    }

    fn open_again(&mut self) -> Result<(), MetadataError> {
        let mut shared = self.database.write();
        let (database, summary) = reopen(&self.path, self.opener.as_ref(), false)?;
        self.summary = summary;
        *shared = Some(database);
        if let Some(left_out) = self.lines.open_again.due(Instant::now()) {
            tracing::info!(path = %self.path.display(), left_out, "the metadata store is open again");
        }
        Ok(())
    }
}

/// The cluster version that a transaction records, if it records one: from then on older builds must not open the file.
fn finalized_by(transaction: &Transaction) -> Option<u32> {
    let writes = transaction.write.iter();
    let versions = writes.filter_map(|write| match write {
        Write::PutSettings(record) => Some(record.cluster_version),
        _ => None,
    });
    versions.max()
}

type BytesTable<'a> = Table<'a, &'static [u8], &'static [u8]>;

/// The records table within a write, and those of what lies apart where they are asked for.
struct Records<'txn> {
    path: &'txn Path,
    write: &'txn WriteTransaction,
    table: Table<'txn, &'static [u8], &'static [u8]>,
    added: u64,
    removed: u64,
}

impl Records<'_> {
    /// The table of a key that lies apart; it is made when it is first opened.
    fn apart(&self, key: &[u8]) -> Option<Result<BytesTable<'_>, MetadataError>> {
        let table = self.write.open_table(table_apart(key)?);
        Some(table.map_err(|e| file_error(self.path, e)))
    }
}

impl Keyspace for Records<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetadataError> {
        if let Some(table) = self.apart(key) {
            let table = table?;
            let value = table.get(key).map_err(|e| file_error(self.path, e))?;
            return Ok(value.map(|v| v.value().to_vec()));
        }
        let value = self.table.get(key).map_err(|e| file_error(self.path, e))?;
        Ok(value.map(|v| v.value().to_vec()))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetadataError> {
        if let Some(table) = self.apart(key) {
            let mut table = table?;
            let put = table.insert(key, value).map(drop);
            return put.map_err(|e| file_error(self.path, e));
        }
        let old = self
            .table
            .insert(key, value)
            .map_err(|e| file_error(self.path, e))?;
        self.added += u64::from(old.is_none());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetadataError> {
        if let Some(table) = self.apart(key) {
            let mut table = table?;
            let removed = table.remove(key).map(drop);
            return removed.map_err(|e| file_error(self.path, e));
        }
        let old = self
            .table
            .remove(key)
            .map_err(|e| file_error(self.path, e))?;
        self.removed += u64::from(old.is_some());
        Ok(())
    }

    fn delete_prefix(&mut self, prefix: &[u8]) -> Result<(), MetadataError> {
        if let Some(table) = self.apart(prefix) {
            // Those are not counted.
            return remove_all(self.path, &mut table?, prefix).map(drop);
        }
        self.removed += remove_all(self.path, &mut self.table, prefix)?;
        Ok(())
    }
}

/// Removes what begins with `prefix`; how much that was.
fn remove_all(
    path: &Path,
    table: &mut BytesTable<'_>,
    prefix: &[u8],
) -> Result<u64, MetadataError> {
    let mut removed = 0;
    let keep_none = |_: &[u8], _: &[u8]| {
        removed += 1;
        false
    };
    match prefix_end(prefix) {
        Some(end) => table.retain_in(prefix..end.as_slice(), keep_none),
        None => table.retain_in(prefix.., keep_none),
    }
    .map_err(|e| file_error(path, e))?;
    Ok(removed)
}
