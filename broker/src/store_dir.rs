//! The data directory: its lock, its format, its identity.
//!
//! ```text
//! DATA_DIR/
//!   LOCK          locked while a broker runs; holds its process id
//!   STORE         format version and the random store id, made when the directory was created empty
//!   metadata.redb the metadata store of a broker that shares none
//!   CLUSTER       the cluster of a broker that shares a store
//!   IMPORT        the cluster to which an import of metadata.redb was begun and has not ended
//!   REVISION      how far the broker has read that store; an operator removes it when the store was put back to an older state
//!   RESTORE       the last restore of that store that the broker knows of, by its number; nobody removes it
//!   BROKERS       the brokers that share that store, a line each: number, store id, address
//!   PROBE         written and removed from time to time, to see whether files can be written
//!   streams/<stream uuid>/<streamlet>/<group>.<generation>.log
//!   unknown/<stream uuid> files of streams that the metadata store did not know, and that are not known to be deleted
//!   damaged/<stream uuid>/<streamlet>/<group>.<generation>.log  files set aside by a recovery
//!   deleting/<stream uuid> empty; there from before the stream's records are deleted until its files are gone
//!   forget/<stream uuid>  deleted streams that not every backup has heard of
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use kera_metadata::BrokerRecord;
use kera_protocol::ids::{Incarnation, StreamId};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use crate::error::BrokerError;
use crate::known_brokers::{self, KnownBroker};

const STORE_FORMAT: u32 = 1;
const STORE_HEADER: &str = "kera store";
/// Names the cluster whose store holds the records.
const CLUSTER: &str = "CLUSTER";
const CLUSTER_HEADER: &str = "kera cluster";
/// Names the cluster into which the records here are being imported.
const IMPORT: &str = "IMPORT";
const IMPORT_HEADER: &str = "kera import";
/// Names a revision that the cluster's store has been at.
const REVISION: &str = "REVISION";
const REVISION_HEADER: &str = "kera revision";
/// Names the last restore of the cluster's store.
const RESTORE: &str = "RESTORE";
const RESTORE_HEADER: &str = "kera restore";
/// No store that holds a cluster is below it.
const FIRST_REVISION: u64 = 1;
/// Tells whether files can be written.
const PROBE: &str = "PROBE";
const PROBE_BYTES: usize = 4096;
/// Where files are set aside that a recovery found damaged, or of which it cannot tell that nobody needs them.
pub(crate) const DAMAGED_DIR: &str = "damaged";
/// Marks of streams whose records are being deleted.
const DELETING: &str = "deleting";
/// How often a lock is tried whose holder is ending, and the pause between.
const LOCK_ATTEMPTS: usize = 250;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// An opened, locked data directory. Dropping it releases the lock.
#[derive(Debug)]
pub struct StoreDir {
    path: PathBuf,
    incarnation: Incarnation,
    /// What is kept in the file; held while it is written.
    revision: Mutex<u64>,
    /// The same of the last restore.
    restore: Mutex<u64>,
    /// The same of the brokers that share the store.
    brokers: Mutex<BTreeMap<u32, KnownBroker>>,
    _lock: File,
}

/// How far the records of a data directory were imported into a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Imported {
    /// Not at all.
    Nothing,
    /// An import was begun.
    Begun,
    /// An import ended.
    Whole,
}

impl StoreDir {
    /// Opens `path`, making it if it does not exist, and locks it.
    ///
    /// # Errors
    /// [`BrokerError`] if another broker has it, if it holds foreign files and no store, if a newer
    /// build wrote it, or if it cannot be written.
    pub fn open(path: &Path) -> Result<Self, BrokerError> {
        let fail = |reason: String| BrokerError::DataDir {
            path: path.to_path_buf(),
            reason,
        };
        fs::create_dir_all(path).map_err(|e| fail(format!("it cannot be created: {e}")))?;
        let lock = lock(path)?;
        let store_id = match read_store(path).map_err(fail)? {
            Some(id) => id,
            None => {
                refuse_foreign(path).map_err(fail)?;
                create_store(path).map_err(|e| fail(format!("it cannot be written: {e}")))?
            }
        };
        fs::create_dir_all(path.join("streams"))
            .map_err(|e| fail(format!("it cannot be written: {e}")))?;
        let incarnation = Incarnation {
            store_id,
            boot_id: kera_log_segments::io::boot_id(),
        };
        Ok(Self {
            path: path.to_path_buf(),
            incarnation,
            revision: Mutex::new(read_revision(path).map_err(fail)?),
            restore: Mutex::new(
                read_named(path, RESTORE, RESTORE_HEADER)
                    .map_err(fail)?
                    .unwrap_or(0),
            ),
            brokers: Mutex::new(known_brokers::read(path).map_err(fail)?),
            _lock: lock,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Store and boot.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Makes it the directory of a broker of `cluster`, whose records are in a store that brokers share.
    ///
    /// # Errors
    /// [`BrokerError::DataDir`] if it is that of a broker that works alone or of another cluster, or
    /// cannot be written.
    pub fn belongs_to(&self, cluster: Uuid) -> Result<(), BrokerError> {
        match self.cluster()? {
            Some(found) if found == cluster => Ok(()),
            Some(found) => Err(self.unfit(format!(
                "it belongs to a broker of cluster {found}, and cluster.store is that of cluster {cluster}; name the store of that cluster, or choose another --data-dir"
            ))),
            None if self.metadata().exists() => {
                self.is_not_half_imported()?;
                Err(self.unfit(
                    "it belongs to a broker that works alone; start that without --cluster, copy its records into the cluster with `kera cluster import`, or choose another --data-dir for this one"
                        .into(),
                ))
            }
            None => {
                let text = format!("{CLUSTER_HEADER} {cluster}\n");
                // First: a directory of a cluster without it says that the store was put back.
                let written = self.keep_revision(FIRST_REVISION);
                let written = written.and_then(|()| write_whole(&self.path, CLUSTER, &text));
                written.map_err(|e| self.unfit(format!("it cannot be written: {e}")))
            }
        }
    }

    /// Refuses a directory whose records are in a store that brokers share.
    ///
    /// # Errors
    /// [`BrokerError::DataDir`].
    pub fn works_alone(&self) -> Result<(), BrokerError> {
        match self.cluster()? {
            None => self.is_not_half_imported(),
            Some(found) if self.metadata().exists() => Err(self.unfit(format!(
                "its records were imported into cluster {found} and go on there, so that those in metadata.redb are old; name that cluster's store with --cluster, or choose another --data-dir"
            ))),
            Some(found) => Err(self.unfit(format!(
                "it belongs to a broker of cluster {found}; name that cluster's store with --cluster, or choose another --data-dir"
            ))),
        }
    }

    /// Refuses a directory of whose records some may be in a cluster already and others not.
    fn is_not_half_imported(&self) -> Result<(), BrokerError> {
        match self.importing()? {
            None => Ok(()),
            Some(cluster) => Err(self.unfit(format!(
                "an import of its records into cluster {cluster} was begun and did not end; run `kera cluster import` again, which goes on with it"
            ))),
        }
    }

    /// The cluster into which an import was begun, whether or not it ended since.
    fn importing(&self) -> Result<Option<Uuid>, BrokerError> {
        let read = read_named(&self.path, IMPORT, IMPORT_HEADER);
        read.map_err(|reason| self.unfit(reason))
    }

    /// How far an import of the records here into `cluster` is.
    ///
    /// # Errors
    /// [`BrokerError::DataDir`] if the records are, or are to be, in another cluster, or there are none.
    pub(crate) fn imported_into(&self, cluster: Uuid) -> Result<Imported, BrokerError> {
        let has_records = self.metadata().exists();
        match (self.cluster()?, self.importing()?) {
            (Some(found), _) if found != cluster => Err(self.unfit(format!(
                "it belongs to a broker of cluster {found}, and --cluster names the store of cluster {cluster}; there is nothing to import"
            ))),
            (None, Some(found)) if found != cluster => Err(self.unfit(format!(
                "an import of its records into cluster {found} was begun and did not end, and --cluster names the store of cluster {cluster}; run the import again with that cluster's store"
            ))),
            _ if !has_records => Err(self.unfit(
                "it has no metadata.redb, so no broker that worked alone left records there; name the directory of one that did"
                    .into(),
            )),
            (Some(_), _) => Ok(Imported::Whole),
            (None, Some(_)) => Ok(Imported::Begun),
            (None, None) => Ok(Imported::Nothing),
        }
    }

    /// Remembers that records are about to be imported into `cluster`: no broker starts here until all are. Waits
    /// for the disk.
    ///
    /// # Errors
    /// [`BrokerError::DataDir`] if it cannot be written.
    pub(crate) fn begin_import(&self, cluster: Uuid) -> Result<(), BrokerError> {
        write_whole(&self.path, IMPORT, &format!("{IMPORT_HEADER} {cluster}\n"))
            .map_err(|e| self.unfit(format!("it cannot be written: {e}")))
    }

    /// Makes it the directory of a broker of `cluster`, whose store has all records of it at `revision`. Waits for
    /// the disk.
    ///
    /// # Errors
    /// [`BrokerError::DataDir`] if it cannot be written.
    pub(crate) fn end_import(&self, cluster: Uuid, revision: u64) -> Result<(), BrokerError> {
        let written = self.keep_revision(revision).and_then(|()| {
            write_whole(
                &self.path,
                CLUSTER,
                &format!("{CLUSTER_HEADER} {cluster}\n"),
            )?;
            // What it says is over; a crash before this does no harm.
            fs::remove_file(self.path.join(IMPORT))
        });
        written.map_err(|e| self.unfit(format!("it cannot be written: {e}")))
    }

    /// The highest revision that the cluster's store is known to have been at; 0 if none is.
    pub fn revision(&self) -> u64 {
        *self.revision.lock()
    }

    /// True if an operator has removed what is remembered: the cluster's store was put back to an older state, and how old is
    /// not known. Of a directory that [belongs to](Self::belongs_to) a cluster, before anything is remembered again.
    pub fn is_after_restore(&self) -> bool {
        self.revision() == 0
    }

    /// True of one that has [just become](Self::belongs_to) that of a broker of the cluster, until a revision is remembered.
    pub fn is_new(&self) -> bool {
        self.revision() == FIRST_REVISION
    }

    /// Remembers that the cluster's store has been at `revision`, if that is higher than what is
    /// remembered. Waits for the disk.
    ///
    /// # Errors
    /// The system's.
    pub fn keep_revision(&self, revision: u64) -> std::io::Result<()> {
        let mut kept = self.revision.lock();
        if revision > *kept {
            write_whole(
                &self.path,
                REVISION,
                &format!("{REVISION_HEADER} {revision}\n"),
            )?;
            *kept = revision;
        }
        Ok(())
    }

    /// Remembers that what follows a restore is done, at a `revision` of the store that has it: a start that fails from here on,
    /// and is tried again, is not after another one, and a store that was put back once more is refused. Waits for the disk.
    ///
    /// # Errors
    /// The system's.
    pub fn keep_restored(&self, revision: u64) -> std::io::Result<()> {
        self.keep_revision(revision.max(FIRST_REVISION))
    }

    /// The number of the last restore of the cluster's store that was [kept](Self::keep_restore); 0 for none.
    pub fn restore(&self) -> u64 {
        *self.restore.lock()
    }

    /// Remembers a restore of the cluster's store by its number, if that is higher than what is remembered. Waits for the
    /// disk.
    ///
    /// # Errors
    /// [`BrokerError::DataDir`] if it cannot be written.
    pub fn keep_restore(&self, restore: u64) -> Result<(), BrokerError> {
        let mut kept = self.restore.lock();
        if restore > *kept {
            let text = format!("{RESTORE_HEADER} {restore}\n");
            let written = write_whole(&self.path, RESTORE, &text);
            written.map_err(|e| self.unfit(format!("{RESTORE} cannot be written: {e}")))?;
            *kept = restore;
        }
        Ok(())
    }

    /// The brokers that share the cluster's store, by number, as far as this one has [heard](Self::keep_brokers) of them.
    pub(crate) fn brokers(&self) -> BTreeMap<u32, KnownBroker> {
        self.brokers.lock().clone()
    }

    /// Remembers recorded brokers: a store that is put back to an older state does not name those that were added since, which may
    /// have what nobody else has. Waits for the disk if any is new.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn keep_brokers<'a>(
        &self,
        recorded: impl IntoIterator<Item = &'a BrokerRecord>,
    ) -> std::io::Result<()> {
        let mut kept = self.brokers.lock();
        let all = known_brokers::with(&kept, recorded);
        if *kept != all {
            write_whole(&self.path, known_brokers::FILE, &known_brokers::text(&all))?;
            *kept = all;
        }
        Ok(())
    }

    fn unfit(&self, reason: String) -> BrokerError {
        BrokerError::DataDir {
            path: self.path.clone(),
            reason,
        }
    }

    fn cluster(&self) -> Result<Option<Uuid>, BrokerError> {
        cluster_of(&self.path).map_err(|reason| self.unfit(reason))
    }

    /// The metadata store's file.
    pub fn metadata(&self) -> PathBuf {
        self.path.join("metadata.redb")
    }

    /// The directory of stream directories.
    pub fn streams(&self) -> PathBuf {
        self.path.join("streams")
    }

    /// Where the directories of streams are set aside of which it is not known whether they exist.
    pub fn unknown(&self) -> PathBuf {
        self.path.join("unknown")
    }

    /// Refuses a directory that holds files of streams and has lost the metadata store that tells what they
    /// are.
    ///
    /// # Errors
    /// [`BrokerError::DataDir`].
    pub fn has_its_records(&self) -> Result<(), BrokerError> {
        let fail = |e: std::io::Error| self.unfit(format!("it cannot be listed: {e}"));
        let metadata = self.metadata();
        if metadata.try_exists().map_err(fail)? {
            return Ok(());
        }
        match fs::read_dir(self.streams()).map_err(fail)?.next() {
            None => Ok(()),
            Some(_) => Err(self.unfit(format!(
                "{} is gone, and only it tells which streams the files in {} belong to; nothing was changed. Restore {0} from a backup of the directory; to begin without these streams, move {1} elsewhere first",
                metadata.display(),
                self.streams().display()
            ))),
        }
    }

    /// Remembers that the records of `stream` are about to be deleted: should the broker end before its files
    /// are gone, the next start removes them. Waits for the disk.
    ///
    /// # Errors
    /// The system's.
    pub fn deleting(&self, stream: StreamId) -> std::io::Result<()> {
        let dir = self.path.join(DELETING);
        fs::create_dir_all(&dir)?;
        File::create(dir.join(stream.to_string()))?.sync_all()?;
        File::open(&dir)?.sync_all()?;
        File::open(&self.path)?.sync_all()
    }

    /// True if the records of `stream` were about to be deleted.
    pub fn is_deleting(&self, stream: StreamId) -> bool {
        self.path.join(DELETING).join(stream.to_string()).exists()
    }

    /// Forgets [`Self::deleting`]: its files are gone, or the stream is still there.
    pub fn deleted(&self, stream: StreamId) {
        let mark = self.path.join(DELETING).join(stream.to_string());
        if let Err(error) = fs::remove_file(&mark)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(mark = %mark.display(), %error, "the mark of a deleted stream cannot be removed");
        }
    }

    /// Writes a file, to its disk, and removes it.
    ///
    /// # Errors
    /// The system's, as whoever writes files there meets it.
    pub fn probe(&self) -> std::io::Result<()> {
        let path = self.path.join(PROBE);
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&[0; PROBE_BYTES])?;
            file.sync_all()
        });
        // One that a probe before this left behind does no harm.
        let removed = fs::remove_file(&path);
        written.and(removed)
    }

    /// Free and total bytes of its file system, as `df` counts them: what is kept for root or beyond a quota is neither, or
    /// a disk with a large reserve would never have much of it free.
    ///
    /// # Errors
    /// The system's.
    pub fn space(&self) -> std::io::Result<(u64, u64)> {
        let stat = rustix::fs::statvfs(&self.path)?;
        let used = stat.f_blocks.saturating_sub(stat.f_bfree);
        let of = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok((of(stat.f_bavail), of(used.saturating_add(stat.f_bavail))))
    }
}

/// The cluster that a data directory belongs to, if it belongs to one.
///
/// # Errors
/// Why that cannot be told, for people.
pub(crate) fn cluster_of(path: &Path) -> Result<Option<Uuid>, String> {
    read_named(path, CLUSTER, CLUSTER_HEADER)
}

fn read_revision(path: &Path) -> Result<u64, String> {
    Ok(read_named(path, REVISION, REVISION_HEADER)?.unwrap_or(0))
}

/// What stands behind `header` in a file of one line, if there is one.
fn read_named<T: FromStr>(path: &Path, name: &str, header: &str) -> Result<Option<T>, String> {
    let text = match fs::read_to_string(path.join(name)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{name} cannot be read: {error}")),
    };
    let value = text.strip_prefix(header);
    match value.and_then(|value| value.trim().parse().ok()) {
        Some(value) => Ok(Some(value)),
        None => Err(format!(
            "its file {name} is damaged; restore it from a backup of the directory"
        )),
    }
}

fn lock(path: &Path) -> Result<File, BrokerError> {
    let name = path.join("LOCK");
    let fail = |e: std::io::Error| BrokerError::DataDir {
        path: path.to_path_buf(),
        reason: format!(
            "its lock file cannot be written: {e}; check owner, permissions and that it is not read-only"
        ),
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&name)
        .map_err(fail)?;
    let take = || match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let mut reader = &file;
            reader.seek(SeekFrom::Start(0)).map_err(fail)?;
            let _ = reader.read_to_string(&mut pid);
            Err(BrokerError::InUse {
                path: path.to_path_buf(),
                pid: pid.trim().to_string(),
            })
        }
        Err(error) => Err(fail(error.into())),
    };
    let may_end = |error: &BrokerError| match error {
        BrokerError::InUse { pid, .. } => is_ending(pid),
        _ => false,
    };
    outlasting(take, may_end)?;
    file.set_len(0).map_err(fail)?;
    writeln!(file, "{}", std::process::id()).map_err(fail)?;
    Ok(file)
}

/// Takes a lock, again and again for a while where `may_end` says that whoever has it is ending. Blocks.
pub(crate) fn outlasting<T, E>(
    mut take: impl FnMut() -> Result<T, E>,
    may_end: impl Fn(&E) -> bool,
) -> Result<T, E> {
    for _ in 0..LOCK_ATTEMPTS {
        match take() {
            Err(error) if may_end(&error) => std::thread::park_timeout(LOCK_PAUSE),
            taken => return taken,
        }
    }
    take()
}

/// True if the process has been killed but the system has not yet taken back all it held, as right
/// after a SIGKILL, or is this one, whose earlier broker's last tasks are about to be dropped.
fn is_ending(pid: &str) -> bool {
    if pid.parse() == Ok(std::process::id()) {
        return true;
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return true;
    };
    let state = status
        .lines()
        .find_map(|line| line.strip_prefix("State:"))
        .unwrap_or("");
    matches!(state.trim_start().chars().next(), Some('Z' | 'X'))
}

fn read_store(path: &Path) -> Result<Option<Uuid>, String> {
    let text = match fs::read_to_string(path.join("STORE")) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("its STORE file cannot be read: {error}")),
    };
    let mut words = text
        .strip_prefix(STORE_HEADER)
        .ok_or("its STORE file is not Kera's; choose an empty directory")?
        .split_whitespace();
    let format: u32 = words
        .next()
        .and_then(|w| w.parse().ok())
        .ok_or("its STORE file is damaged: no format version")?;
    if format > STORE_FORMAT {
        return Err(format!(
            "it has format {format}, newer than {STORE_FORMAT}, the newest this build reads; use the newer build"
        ));
    }
    let id: Uuid = words
        .next()
        .and_then(|w| w.parse().ok())
        .ok_or("its STORE file is damaged: no store id")?;
    Ok(Some(id))
}

fn refuse_foreign(path: &Path) -> Result<(), String> {
    let entries = fs::read_dir(path).map_err(|e| format!("it cannot be listed: {e}"))?;
    for entry in entries {
        let name = entry
            .map_err(|e| format!("it cannot be listed: {e}"))?
            .file_name();
        // Replica stores of earlier versions left `backup` and no more.
        let known = ["LOCK", "lost+found", "STORE.new", "backup"];
        if known.iter().all(|known| name != *known) {
            return Err(format!(
                "it holds {} but no STORE file, so it is no data directory of Kera's; choose an empty directory",
                name.to_string_lossy()
            ));
        }
    }
    Ok(())
}

fn create_store(path: &Path) -> std::io::Result<Uuid> {
    let id = Uuid::new_v4();
    let text = format!("{STORE_HEADER} {STORE_FORMAT} {id}\n");
    write_whole(path, "STORE", &text)?;
    Ok(id)
}

/// Written aside, synced and renamed: a crash leaves either no file or a whole one.
fn write_whole(dir: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let aside = dir.join(format!("{name}.new"));
    let mut file = File::create(&aside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, dir.join(name))?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use kera_metadata::Role;

    use super::*;

    #[test]
    fn a_directory_is_made_once_and_keeps_its_identity() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = StoreDir::open(dir.path()).expect("opens").incarnation();
        let again = StoreDir::open(dir.path())
            .expect("opens again")
            .incarnation();
        assert_eq!(first, again);
    }

    #[test]
    fn brokers_are_remembered_and_a_damaged_list_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let record = |id: u32, role| BrokerRecord {
            id,
            address: format!("host-{id}:7600"),
            store_id: Uuid::from_u128(id.into()),
            boot_id: Uuid::nil(),
            started_ms: 0,
            version: String::new(),
            role,
            restore: 0,
            revision: 0,
        };
        let one = StoreDir::open(dir.path()).expect("opens");
        assert!(one.brokers().is_empty());
        one.keep_brokers(&[record(1, Role::Broker), record(9, Role::ReplicaStore)])
            .expect("is written");
        one.keep_brokers(&[record(3, Role::Broker)])
            .expect("is written");
        drop(one);
        let again = StoreDir::open(dir.path()).expect("opens again");
        let brokers = again.brokers();
        assert_eq!(brokers.keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(brokers[&3].address, "host-3:7600");
        assert_eq!(brokers[&3].store_id, Uuid::from_u128(3));
        drop(again);
        for damaged in ["", "kera brokers 1\n3 x host:1\n", "kera brokers 2\n"] {
            fs::write(dir.path().join(known_brokers::FILE), damaged).expect("is written");
            let error = StoreDir::open(dir.path()).expect_err("it is damaged");
            assert!(error.to_string().contains("BROKERS is damaged"), "{error}");
        }
    }

    #[test]
    fn an_earlier_replica_stores_directory_is_one_and_a_foreign_one_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("backup")).expect("a directory");
        StoreDir::open(dir.path()).expect("opens");
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("letter.txt"), b"dear").expect("writes");
        let error = StoreDir::open(dir.path()).expect_err("it is somebody's");
        assert!(error.to_string().contains("holds letter.txt"), "{error}");
    }

    #[test]
    fn a_directory_in_use_is_refused_by_pid() {
        let dir = tempfile::tempdir().expect("a directory");
        let _held = StoreDir::open(dir.path()).expect("opens");
        let error = StoreDir::open(dir.path())
            .expect_err("is in use")
            .to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
    }

    #[test]
    fn a_directory_keeps_to_its_cluster() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = StoreDir::open(dir.path()).expect("opens");
        assert!(store.works_alone().is_ok());
        let cluster = Uuid::new_v4();
        for _ in 0..2 {
            assert!(store.belongs_to(cluster).is_ok());
        }
        let other = store.belongs_to(Uuid::new_v4()).expect_err("another's");
        assert!(other.to_string().contains(&cluster.to_string()), "{other}");
        let alone = store.works_alone().expect_err("it is a cluster's");
        assert!(alone.to_string().contains("--cluster"), "{alone}");

        let dir = tempfile::tempdir().expect("a directory");
        let store = StoreDir::open(dir.path()).expect("opens");
        fs::write(store.metadata(), b"").expect("writes");
        let alone = store.belongs_to(cluster).expect_err("it has a store");
        assert!(alone.to_string().contains("works alone"), "{alone}");
    }

    #[test]
    fn a_directory_that_is_being_imported_starts_nowhere_and_then_in_its_cluster() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = StoreDir::open(dir.path()).expect("opens");
        let (cluster, other) = (Uuid::new_v4(), Uuid::new_v4());
        let refused = |outcome: Result<(), BrokerError>, part: &str| {
            let error = outcome.expect_err("refused").to_string();
            assert!(error.contains(part), "no `{part}` in: {error}");
        };
        refused(store.imported_into(cluster).map(drop), "no metadata.redb");
        fs::write(store.metadata(), b"x").expect("writes");
        assert_eq!(
            store.imported_into(cluster).expect("none"),
            Imported::Nothing
        );

        store.begin_import(cluster).expect("writes");
        assert_eq!(store.imported_into(cluster).expect("one"), Imported::Begun);
        refused(store.works_alone(), "kera cluster import");
        refused(store.belongs_to(cluster), "kera cluster import");
        refused(
            store.imported_into(other).map(drop),
            &format!("into cluster {cluster} was begun"),
        );

        store.end_import(cluster, 7).expect("writes");
        assert_eq!(
            store.imported_into(cluster).expect("ended"),
            Imported::Whole
        );
        assert_eq!(store.revision(), 7);
        refused(
            store.works_alone(),
            &format!("imported into cluster {cluster}"),
        );
        assert!(store.belongs_to(cluster).is_ok());
        refused(store.imported_into(other).map(drop), "nothing to import");
    }

    #[test]
    fn a_directory_without_its_metadata_store_is_refused_once_it_holds_streams() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = StoreDir::open(dir.path()).expect("opens");
        assert!(store.has_its_records().is_ok(), "nothing is there to lose");
        let stream = store.streams().join(StreamId::random().to_string());
        fs::create_dir(&stream).expect("a directory");
        let error = store.has_its_records().expect_err("refused").to_string();
        for part in ["metadata.redb is gone", "Restore", "move"] {
            assert!(error.contains(part), "{error}");
        }
        fs::write(store.metadata(), b"x").expect("writes");
        assert!(store.has_its_records().is_ok());
    }

    #[test]
    fn a_directory_remembers_how_far_the_store_was_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = StoreDir::open(dir.path()).expect("opens");
        assert_eq!(store.revision(), 0);
        for revision in [7, 9, 8] {
            store.keep_revision(revision).expect("it is written");
        }
        assert_eq!(store.revision(), 9);
        drop(store);
        let again = StoreDir::open(dir.path()).expect("opens again");
        assert_eq!(again.revision(), 9);
        drop(again);
        fs::write(dir.path().join(REVISION), "kera revision x").expect("writes");
        let error = StoreDir::open(dir.path()).expect_err("damaged").to_string();
        assert!(error.contains("REVISION is damaged"), "{error}");
    }

    #[test]
    fn foreign_files_and_newer_formats_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("holiday.jpg"), b"x").expect("writes");
        let error = StoreDir::open(dir.path()).expect_err("foreign").to_string();
        assert!(error.contains("holiday.jpg"), "{error}");

        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("STORE"), "kera store 9 x").expect("writes");
        let error = StoreDir::open(dir.path()).expect_err("newer").to_string();
        assert!(error.contains("newer"), "{error}");
    }
}
