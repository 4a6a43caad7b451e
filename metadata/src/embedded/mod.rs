//! The store of one broker: a redb file in its data directory.
//!
//! One thread writes. It takes all transactions that wait, evaluates each by itself against one redb
//! write, commits that with an fsync, and only then tells the callers. So the cost of an fsync is
//! shared by everything that happened during the one before.

mod file;
mod format;
mod writer;

#[cfg(test)]
mod fault_file;
#[cfg(test)]
mod fault_tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_protocol::ids::{StreamId, StreamletId};
use parking_lot::RwLock;
use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, TableError};

use crate::encode::{Record, decode_value};
use crate::error::MetadataError;
use crate::image::{ImageBuilder, corrupt};
use crate::queue::{Job, Queue, Worker};
use crate::store::{Done, MetadataStore};
use file::{Opener, PathOpener, file_error};
use format::{APART, RECORDS, Summary, table_apart};
use kera_records::Transaction;
use kera_records::key::{self, Key, prefix_end};
use kera_records::{Image, PinKey, PinRecord, StreamletRecord};

/// Most operations of one transaction: enough to create a stream of most streamlets at once.
pub const MAX_EMBEDDED_OPERATIONS: usize = 1 << 17;

/// How an [`EmbeddedStore`] uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// Bytes of file pages that are kept in memory. At least 1 MiB is used.
    pub cache_bytes: usize,
    /// Operations that may wait to be committed; more are refused as overloaded. At least
    /// [`MAX_EMBEDDED_OPERATIONS`] is used. An operation holds about 300 bytes.
    pub queue_operations: usize,
    /// Operations that are committed with one fsync, unless a single transaction has more. At least
    /// 1 is used.
    pub batch_operations: usize,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 8 << 20,
            queue_operations: MAX_EMBEDDED_OPERATIONS,
            batch_operations: 16_384,
        }
    }
}

/// The database while it is open; `None` after a failure, until the writer opened it again, and
/// after the store was closed.
type Shared = Arc<RwLock<Option<Database>>>;

/// A table of records, as one transaction sees it.
type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// A metadata store in one local file, which one process has open at a time. See [`MetadataStore`].
///
/// Reads run on the calling thread and see the last commit; they neither wait for writes nor hold
/// them up. After a failed write, such as on a full disk, the file is opened anew at once and at each
/// later transaction until that succeeds, so that the store works again when the disk does.
pub struct EmbeddedStore {
    path: PathBuf,
    database: Shared,
    worker: Worker,
}

impl EmbeddedStore {
    /// Opens the store at `path`, a file; creates it if it does not exist and its directory does.
    /// Verifies every page, which takes about 1 ms per 1,000 groups.
    ///
    /// # Errors
    /// [`MetadataError::Locked`], [`MetadataError::NewerFormat`], [`MetadataError::Corrupt`], or
    /// [`MetadataError::Storage`] and [`MetadataError::Full`] if the file cannot be opened for
    /// writing.
    pub fn open(path: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Self, MetadataError> {
        let path = path.as_ref().to_path_buf();
        let opener = PathOpener::new(path.clone(), options.cache_bytes.max(1 << 20));
        Self::open_with(path, options, Box::new(opener))
    }

    fn open_with(
        path: PathBuf,
        options: EmbeddedOptions,
        opener: Box<dyn Opener>,
    ) -> Result<Self, MetadataError> {
        let (database, summary) = file::open(&path, opener.as_ref())?;
        let database: Shared = Arc::new(RwLock::new(Some(database)));
        let queue = Arc::new(Queue::new(
            options.queue_operations.max(MAX_EMBEDDED_OPERATIONS),
        ));
        let mut writer = writer::Writer::new(path.clone(), database.clone(), opener, summary);
        let worker = Worker::start(queue, options.batch_operations.max(1), move |batch| {
            writer.commit(batch)
        })
        .map_err(|error| MetadataError::Storage {
            path: path.clone(),
            detail: format!("cannot start its thread: {error}"),
        })?;
        Ok(Self {
            path,
            database,
            worker,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Transactions that wait to be committed.
    pub fn waiting(&self) -> usize {
        self.worker.queue().waiting()
    }

    /// Runs `read` on one consistent state of the records.
    fn with_records<T>(
        &self,
        read: impl FnOnce(&ReadOnlyTable<&[u8], &[u8]>, Summary) -> Result<T, MetadataError>,
    ) -> Result<T, MetadataError> {
        self.with_state(|transaction, summary| {
            let records = transaction
                .open_table(RECORDS)
                .map_err(|e| file_error(&self.path, e))?;
            read(&records, summary)
        })
    }

    /// Runs `read` on one consistent state of the file.
    fn with_state<T>(
        &self,
        read: impl FnOnce(&ReadTransaction, Summary) -> Result<T, MetadataError>,
    ) -> Result<T, MetadataError> {
        let database = self.database.read();
        let Some(database) = database.as_ref() else {
            return Err(MetadataError::Storage {
                path: self.path.clone(),
                detail: "it is closed, or failed and could not be opened again yet".into(),
            });
        };
        // Damage that redb does not expect makes it panic.
        catch_unwind(AssertUnwindSafe(|| {
            let transaction = begin_read(&self.path, database)?;
            let summary = format::read_summary(&self.path, &transaction)?;
            read(&transaction, summary)
        }))
        .unwrap_or_else(|_| {
            Err(corrupt(
                &self.path,
                "reading it failed in an unexpected way".into(),
            ))
        })
    }

    /// The table of a kind of keys; `None` where there is no such key.
    fn table(
        &self,
        transaction: &ReadTransaction,
        key: &[u8],
    ) -> Result<Option<Table>, MetadataError> {
        let apart = table_apart(key);
        match transaction.open_table(apart.unwrap_or(RECORDS)) {
            Err(TableError::TableDoesNotExist(_)) if apart.is_some() => Ok(None),
            other => other.map(Some).map_err(|e| file_error(&self.path, e)),
        }
    }

    /// Visits the values of all keys that begin with `prefix`, in order.
    fn scan(
        &self,
        records: &ReadOnlyTable<&[u8], &[u8]>,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), MetadataError>,
    ) -> Result<(), MetadataError> {
        let end = prefix_end(prefix);
        let range = match &end {
            Some(end) => records.range(prefix..end.as_slice()),
            None => records.range(prefix..),
        }
        .map_err(|e| file_error(&self.path, e))?;
        for entry in range {
            let (key, value) = entry.map_err(|e| file_error(&self.path, e))?;
            visit(key.value(), value.value())?;
        }
        Ok(())
    }
}

fn begin_read(path: &Path, database: &Database) -> Result<ReadTransaction, MetadataError> {
    database.begin_read().map_err(|e| file_error(path, e))
}

impl MetadataStore for EmbeddedStore {
    fn made_with(&self) -> Result<u32, MetadataError> {
        self.with_state(|_, summary| Ok(summary.cluster_version()))
    }

    fn load(&self) -> Result<Image, MetadataError> {
        self.with_state(|transaction, summary| {
            let records = transaction
                .open_table(RECORDS)
                .map_err(|e| file_error(&self.path, e))?;
            let mut builder = ImageBuilder::new(&self.path);
            self.scan(&records, &[], |key, value| builder.push(key, value))?;
            if builder.values() != summary.values {
                return Err(corrupt(
                    &self.path,
                    format!(
                        "it should hold {} records and holds {}",
                        summary.values,
                        builder.values()
                    ),
                ));
            }
            for kind in APART {
                if let Some(apart) = self.table(transaction, &[kind])? {
                    self.scan(&apart, &[], |key, value| builder.push(key, value))?;
                }
            }
            let image = builder.finish_whole()?;
            Ok(Image {
                cluster: summary.cluster,
                revision: summary.revision,
                ..image
            })
        })
    }

    fn load_streamlet(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Image, MetadataError> {
        self.with_records(|records, summary| {
            let mut builder = ImageBuilder::new(&self.path);
            for kind in [key::STREAMLET, key::GROUP, key::LANE_START] {
                let prefix = key::streamlet_prefix(kind, stream, streamlet);
                self.scan(records, &prefix, |key, value| builder.push(key, value))?;
            }
            Ok(Image {
                cluster: summary.cluster,
                revision: summary.revision,
                ..builder.finish()
            })
        })
    }

    fn read(&self, key: &Key) -> Result<Option<Record>, MetadataError> {
        self.with_state(|transaction, _| {
            let bytes = key.encode();
            let Some(records) = self.table(transaction, &bytes)? else {
                return Ok(None);
            };
            let value = records
                .get(bytes.as_slice())
                .map_err(|e| file_error(&self.path, e))?;
            value
                .map(|value| {
                    decode_value(key, &bytes, value.value())
                        .map_err(|detail| corrupt(&self.path, format!("{key}: {detail}")))
                })
                .transpose()
        })
    }

    fn streamlets(&self) -> Result<Vec<StreamletRecord>, MetadataError> {
        self.with_records(|records, _| {
            let mut builder = ImageBuilder::new(&self.path);
            self.scan(records, &[key::STREAMLET], |key, value| {
                builder.push(key, value)
            })?;
            Ok(builder.finish().streamlets)
        })
    }

    fn records_of(&self, kind: u8, stream: Option<StreamId>) -> Result<Image, MetadataError> {
        self.with_state(|transaction, _| {
            let mut builder = ImageBuilder::new(&self.path);
            if let Some(table) = self.table(transaction, &[kind])? {
                let prefix = key::kind_prefix(kind, stream);
                self.scan(&table, &prefix, |key, value| builder.push(key, value))?;
            }
            Ok(builder.finish())
        })
    }

    fn pins_after(
        &self,
        after: Option<&PinKey>,
        most: usize,
    ) -> Result<Vec<PinRecord>, MetadataError> {
        self.with_state(|transaction, _| {
            let mut builder = ImageBuilder::new(&self.path);
            if let Some(table) = self.table(transaction, &[key::PIN])? {
                // The table has nothing but pins.
                let from = key::pin_after(after);
                let range = table.range(from.as_slice()..);
                let range = range.map_err(|e| file_error(&self.path, e))?;
                for entry in range.take(most) {
                    let (key, value) = entry.map_err(|e| file_error(&self.path, e))?;
                    builder.push(key.value(), value.value())?;
                }
            }
            Ok(builder.finish().pins)
        })
    }

    fn submit(&self, transaction: Transaction, done: Done) {
        self.worker.queue().push(Job { transaction, done });
    }

    fn max_operations(&self) -> usize {
        MAX_EMBEDDED_OPERATIONS
    }

    fn close(&self) {
        if self.worker.close() {
            // Now, so that the file can be opened again even while a handle is still held.
            self.database.write().take();
        }
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.close();
    }
}
