//! Opens and creates the file, and says what went wrong in the store's words.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use redb::{Builder, Database};
use uuid::Uuid;

use super::begin_read;
use super::format::{FORMAT_VERSION, META, RECORDS, Summary, read_summary, write_summary};
use crate::error::MetadataError;
use crate::image::corrupt;

/// Opens the database, which exists unless `create` is set: at a store's start, and again after a
/// failure.
pub(super) trait Opener: Send {
    /// Answers the database and whether redb verified all of it on the way, as it does after a
    /// process was killed.
    fn open(&self, create: bool) -> Result<(Database, bool), MetadataError>;
}

/// Opens a path of the file system.
pub(super) struct PathOpener {
    path: PathBuf,
    cache_bytes: usize,
}

impl PathOpener {
    pub(super) fn new(path: PathBuf, cache_bytes: usize) -> Self {
        Self { path, cache_bytes }
    }

    /// Makes the file under another name and renames it when it is complete, so that a kill leaves
    /// no half-made file that a later start would have to take for a damaged one.
    fn create(&self) -> Result<Database, MetadataError> {
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        let new = PathBuf::from(name);
        let io = |what: &str, e: io::Error| io_error(&self.path, what, &e);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&new)
            .map_err(|e| io("cannot be created", e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(MetadataError::Locked {
                    path: self.path.clone(),
                });
            }
            Err(std::fs::TryLockError::Error(e)) => return Err(io("cannot be locked", e)),
        }
        // Another process may have finished the file between the look at it and the lock; then the
        // locked file is the real one.
        if self.path.exists() {
            return Err(MetadataError::Locked {
                path: self.path.clone(),
            });
        }
        file.set_len(0).map_err(|e| io("cannot be created", e))?;
        let (builder, _) = builder(self.cache_bytes);
        let database = builder
            .create_file(file)
            .map_err(|e| file_error(&self.path, e))?;
        initialise(&self.path, &database)?;
        std::fs::rename(&new, &self.path).map_err(|e| io("cannot be renamed", e))?;
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(parent)
            .and_then(|directory| directory.sync_all())
            .map_err(|e| io("its directory cannot be synced", e))?;
        Ok(database)
    }
}

impl Opener for PathOpener {
    fn open(&self, create: bool) -> Result<(Database, bool), MetadataError> {
        match std::fs::metadata(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound && create => {
                return self.create().map(|database| (database, true));
            }
            Err(e) => return Err(io_error(&self.path, "cannot be opened", &e)),
            Ok(metadata) if !metadata.is_file() => {
                return Err(corrupt(&self.path, "it is not a file".into()));
            }
            Ok(metadata) if metadata.len() == 0 => {
                return Err(corrupt(&self.path, "it is empty".into()));
            }
            Ok(_) => {}
        }
        if !create {
            forget_cached_pages(&self.path);
        }
        let (builder, repaired) = builder(self.cache_bytes);
        let database = builder
            .open(&self.path)
            .map_err(|e| file_error(&self.path, e))?;
        Ok((database, repaired.get()))
    }
}

/// A builder, and whether the database it opened was verified by a repair.
pub(super) fn builder(cache_bytes: usize) -> (Builder, Rc<Cell<bool>>) {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    let repaired = Rc::new(Cell::new(false));
    let seen = repaired.clone();
    builder.set_repair_callback(move |_| seen.set(true));
    (builder, repaired)
}

/// Drops the kernel's clean pages of the file, as far as it does: after a failed write-back they
/// may hold what never reached the disk, and what is read next is to be what a power loss leaves.
fn forget_cached_pages(path: &Path) {
    if let Ok(file) = File::open(path) {
        // Advice only; without it the file is read from memory as usual.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// Opens the database, verifies every page and reads the summary.
pub(super) fn open(path: &Path, opener: &dyn Opener) -> Result<(Database, Summary), MetadataError> {
    reopen(path, opener, true)
}

pub(super) fn reopen(
    path: &Path,
    opener: &dyn Opener,
    create: bool,
) -> Result<(Database, Summary), MetadataError> {
    // Damage that redb does not expect makes it panic.
    catch_unwind(AssertUnwindSafe(|| {
        let (mut database, verified) = opener.open(create)?;
        let read_before_repair = begin_read(path, &database)
            .and_then(|transaction| read_summary(path, &transaction));
        if let Err(error @ MetadataError::NewerFormat { .. }) = read_before_repair {
            return Err(error);
        }
        if !verified {
            // Every commit is two-phase, so this never falls back to an older commit: it finds the
            // newest one whole, or reports it. What it may repair is which pages are free.
            match database.check_integrity() {
                Ok(true) => {}
                Ok(false) => tracing::warn!(
                    path = %path.display(),
                    "the metadata store's list of free pages was damaged and is rebuilt; its records are intact"
                ),
                Err(e) => return Err(file_error(path, e)),
            }
        }
        let transaction = begin_read(path, &database)?;
        let summary = read_summary(path, &transaction)?;
        drop(transaction);
        Ok((database, summary))
    }))
    .unwrap_or_else(|_| {
        Err(corrupt(
            path,
            "opening it failed in an unexpected way".into(),
        ))
    })
}

/// Makes the tables and the summary of a new database.
pub(super) fn initialise(path: &Path, database: &Database) -> Result<(), MetadataError> {
    let mut transaction = database.begin_write().map_err(|e| file_error(path, e))?;
    transaction.set_two_phase_commit(true);
    {
        transaction
            .open_table(RECORDS)
            .map_err(|e| file_error(path, e))?;
        let mut meta = transaction
            .open_table(META)
            .map_err(|e| file_error(path, e))?;
        write_summary(
            path,
            &mut meta,
            &Summary {
                cluster: Uuid::new_v4(),
                revision: 0,
                values: 0,
                format: FORMAT_VERSION,
            },
        )?;
    }
    transaction.commit().map_err(|e| file_error(path, e))
}

/// Any error of redb, in the store's words.
pub(super) fn file_error(path: &Path, error: impl Into<redb::Error>) -> MetadataError {
    match error.into() {
        redb::Error::Io(e) => io_error(path, "cannot be read or written", &e),
        redb::Error::DatabaseAlreadyOpen => MetadataError::Locked {
            path: path.to_path_buf(),
        },
        e @ (redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::RepairAborted
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TableIsNotMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::TableDoesNotExist(_)) => corrupt(path, e.to_string()),
        e => MetadataError::Storage {
            path: path.to_path_buf(),
            detail: e.to_string(),
        },
    }
}

fn io_error(path: &Path, what: &str, error: &io::Error) -> MetadataError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => MetadataError::Full {
            path: path.to_path_buf(),
        },
        // redb's words for a file that is shorter than it says, or no redb file.
        ErrorKind::UnexpectedEof | ErrorKind::InvalidData => corrupt(path, error.to_string()),
        _ => MetadataError::Storage {
            path: path.to_path_buf(),
            detail: format!("{what}: {error}"),
        },
    }
}
