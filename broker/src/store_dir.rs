//! The data directory: its lock, its format, its identity.
//!
//! ```text
//! DATA_DIR/
//!   LOCK          locked while a broker runs; holds its process id
//!   STORE         format version and the random store id, made when the directory was created empty
//!   metadata.redb the metadata store
//!   streams/<stream uuid>/<streamlet>/<group>.<generation>.log
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kera_log_segments::pump::Incarnation;
use kera_protocol::ids::StreamId;
use rustix::fs::{FlockOperation, flock};

use crate::error::BrokerError;

const STORE_FORMAT: u32 = 1;
const STORE_HEADER: &str = "kera store";
/// How often a lock is tried whose holder is ending, and the pause between.
const LOCK_ATTEMPTS: usize = 250;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// An opened, locked data directory. Dropping it releases the lock.
#[derive(Debug)]
pub struct StoreDir {
    path: PathBuf,
    incarnation: Incarnation,
    _lock: File,
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
            boot_id: boot_id(),
        };
        Ok(Self {
            path: path.to_path_buf(),
            incarnation,
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

    /// The metadata store's file.
    pub fn metadata(&self) -> PathBuf {
        self.path.join("metadata.redb")
    }

    /// The directory of stream directories.
    pub fn streams(&self) -> PathBuf {
        self.path.join("streams")
    }

    /// Free and total bytes of its file system.
    ///
    /// # Errors
    /// The system's.
    pub fn space(&self) -> std::io::Result<(u64, u64)> {
        let stat = rustix::fs::statvfs(&self.path)?;
        Ok((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
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
    let mut attempts = 0;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                file.seek(SeekFrom::Start(0)).map_err(fail)?;
                let _ = file.read_to_string(&mut pid);
                let pid = pid.trim();
                if attempts == LOCK_ATTEMPTS || !is_ending(pid) {
                    return Err(BrokerError::InUse {
                        path: path.to_path_buf(),
                        pid: pid.to_string(),
                    });
                }
                attempts += 1;
                std::thread::park_timeout(LOCK_PAUSE);
            }
            Err(error) => return Err(fail(error.into())),
        }
    }
    file.set_len(0).map_err(fail)?;
    writeln!(file, "{}", std::process::id()).map_err(fail)?;
    Ok(file)
}

/// True if the process has been killed but the system has not yet taken back all it held, as right
/// after a SIGKILL.
fn is_ending(pid: &str) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return true;
    };
    let state = status
        .lines()
        .find_map(|line| line.strip_prefix("State:"))
        .unwrap_or("");
    matches!(state.trim_start().chars().next(), Some('Z' | 'X'))
}

fn read_store(path: &Path) -> Result<Option<[u8; 16]>, String> {
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
    let id: StreamId = words
        .next()
        .and_then(|w| w.parse().ok())
        .ok_or("its STORE file is damaged: no store id")?;
    Ok(Some(*id.as_bytes()))
}

fn refuse_foreign(path: &Path) -> Result<(), String> {
    let entries = fs::read_dir(path).map_err(|e| format!("it cannot be listed: {e}"))?;
    for entry in entries {
        let name = entry
            .map_err(|e| format!("it cannot be listed: {e}"))?
            .file_name();
        if name != "LOCK" && name != "lost+found" && name != "STORE.new" {
            return Err(format!(
                "it holds {} but no STORE file, so it is no data directory of Kera's; choose an empty directory",
                name.to_string_lossy()
            ));
        }
    }
    Ok(())
}

fn create_store(path: &Path) -> std::io::Result<[u8; 16]> {
    // Written aside, synced and renamed: a crash leaves either no store or a whole one.
    let id = StreamId::random();
    let aside = path.join("STORE.new");
    let mut file = File::create(&aside)?;
    writeln!(file, "{STORE_HEADER} {STORE_FORMAT} {id}")?;
    file.sync_all()?;
    fs::rename(&aside, path.join("STORE"))?;
    File::open(path)?.sync_all()?;
    Ok(*id.as_bytes())
}

/// The machine's boot; a random one where the system does not tell, so that nothing unsynced is
/// ever believed to have survived.
fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id: StreamId = text.trim().parse().unwrap_or_else(|_| StreamId::random());
    *id.as_bytes()
}

#[cfg(test)]
mod tests {
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
    fn a_directory_in_use_is_refused_by_pid() {
        let dir = tempfile::tempdir().expect("a directory");
        let _held = StoreDir::open(dir.path()).expect("opens");
        let error = StoreDir::open(dir.path())
            .expect_err("is in use")
            .to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
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
