//! The store's directory: its lock, its identity, its seals.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use uuid::Uuid;

use super::super::StartError;
use super::super::memory::is_full;
use super::super::seals::SealTable;

pub(super) const SEALS: &str = "SEALS";
/// What the seals were before, or what they are to be; nobody reads it.
const SEALS_ASIDE: &str = "SEALS.new";
/// Room behind seals, at least.
const SEALS_ROOM: usize = 8 << 10;
const STORE: &str = "STORE";
const LOCK: &str = "LOCK";
const STORE_HEADER: &str = "kera backup store";
const STORE_FORMAT: u32 = 1;
/// How often a lock is tried whose holder is ending, and the pause between.
const LOCK_ATTEMPTS: usize = 500;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

fn failed(path: &Path, error: io::Error) -> StartError {
    StartError::Io {
        path: path.to_path_buf(),
        error,
    }
}

fn unusable(path: &Path, reason: impl Into<String>) -> StartError {
    StartError::Unusable {
        path: path.to_path_buf(),
        reason: reason.into(),
    }
}

/// Makes the directory if need be and locks it. A holder that was killed is waited for: the lock is
/// the system's, and goes with the last of the holder's threads, after which none of them can place
/// a byte.
pub(super) fn lock(dir: &Path) -> Result<Arc<File>, StartError> {
    fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    let name = dir.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&name)
        .map_err(|e| failed(&name, e))?;
    for attempt in 0.. {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                file.seek(SeekFrom::Start(0))
                    .map_err(|e| failed(&name, e))?;
                let _ = file.read_to_string(&mut pid);
                let pid = pid.trim().to_owned();
                if attempt == LOCK_ATTEMPTS || !is_ending(&pid) {
                    return Err(StartError::InUse {
                        path: dir.to_path_buf(),
                        pid,
                    });
                }
                std::thread::park_timeout(LOCK_PAUSE);
            }
            Err(error) => return Err(failed(&name, error.into())),
        }
    }
    // Over what is there: where nothing is free, what was given up might not come back.
    let id = format!("{}\n", std::process::id());
    let written = file
        .write_all_at(id.as_bytes(), 0)
        .and_then(|()| file.set_len(id.len() as u64));
    written.map_err(|e| failed(&name, e))?;
    Ok(Arc::new(file))
}

/// True if the process was killed and the system has not yet taken back all it held, or is this one,
/// whose earlier store's last copies are about to be dropped.
fn is_ending(pid: &str) -> bool {
    if pid.parse() == Ok(std::process::id()) {
        return true;
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return true;
    };
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    let state = state.unwrap_or("").trim_start();
    matches!(state.chars().next(), Some('Z' | 'X'))
}

/// Refuses a file system that cannot hold the quota: containers often give 64 MiB of shared memory.
pub(super) fn check_size(dir: &Path, quota: u64) -> Result<(), StartError> {
    let stat = rustix::fs::statvfs(dir).map_err(|e| failed(dir, e.into()))?;
    let size = stat.f_blocks.saturating_mul(stat.f_frsize);
    // Some file systems have no size of their own.
    if size != 0 && size < quota {
        return Err(StartError::TooSmall {
            path: dir.to_path_buf(),
            size,
            quota,
        });
    }
    Ok(())
}

/// The store's id; drawn if the directory holds nothing yet. Seals that say nothing are stored before
/// it is: a store that has an id and no seals has lost them.
pub(super) fn identity(dir: &Path) -> Result<Uuid, StartError> {
    if let Some(id) = stored_identity(dir)? {
        return Ok(id);
    }
    for entry in fs::read_dir(dir).map_err(|e| failed(dir, e))? {
        let name = entry.map_err(|e| failed(dir, e))?.file_name();
        let left_over = [LOCK, "STORE.new", SEALS_ASIDE].iter().any(|n| name == *n);
        // What a start left that was killed before it drew an id.
        let blank = || name == SEALS && read_seals(dir).is_ok_and(|seals| seals.is_empty());
        if !left_over && !blank() {
            let name = name.to_string_lossy();
            return Err(unusable(
                dir,
                format!("it holds {name} but no {STORE} file; name an empty directory"),
            ));
        }
    }
    write_seals(dir, &SealTable::default()).map_err(|e| failed(dir, e))?;
    draw_identity(dir)
}

fn stored_identity(dir: &Path) -> Result<Option<Uuid>, StartError> {
    let path = dir.join(STORE);
    match fs::read_to_string(&path) {
        Ok(text) => match read_identity(&text) {
            Ok(id) => Ok(Some(id)),
            Err(reason) => Err(unusable(&path, reason)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&path, error)),
    }
}

fn draw_identity(dir: &Path) -> Result<Uuid, StartError> {
    let (path, id) = (dir.join(STORE), Uuid::new_v4());
    let text = format!("{STORE_HEADER} {STORE_FORMAT} {id}\n");
    replace(&path, text.as_bytes(), true).map_err(|e| failed(&path, e))?;
    Ok(id)
}

/// The id of a store's disk, drawn if it has none: an empty disk, or one in another's place, has another.
/// One that an earlier version has written has none either, and nobody counts on what it flushed.
pub(super) fn disk_identity(dir: &Path) -> Result<Uuid, StartError> {
    if let Some(id) = stored_identity(dir)? {
        return Ok(id);
    }
    let id = draw_identity(dir)?;
    // The directory may be as new as the file.
    if let Some(above) = dir.parent() {
        let synced = File::open(above).and_then(|above| above.sync_all());
        synced.map_err(|e| failed(above, e))?;
    }
    Ok(id)
}

fn read_identity(text: &str) -> Result<Uuid, String> {
    let mut words = text
        .strip_prefix(STORE_HEADER)
        .ok_or("it is no replica store's; name an empty directory")?
        .split_whitespace();
    let format: u32 = words.next().and_then(|w| w.parse().ok()).ok_or(
        "it is damaged: no format version; remove the directory, the owners build new replicas",
    )?;
    if format > STORE_FORMAT {
        return Err(format!(
            "format {format} is newer than {STORE_FORMAT}, the newest this build reads; use the newer build"
        ));
    }
    let id: Uuid = words
        .next()
        .and_then(|w| w.parse().ok())
        .ok_or("it is damaged: no store id; remove the directory, the owners build new replicas")?;
    Ok(id)
}

/// Reads the seals of a store, or of its disk.
pub(super) fn read_seals(dir: &Path) -> Result<SealTable, StartError> {
    let path = dir.join(SEALS);
    let unknown = "without it the store does not know which owner may write: remove the directory, the owners build new replicas";
    match fs::read(&path) {
        Ok(bytes) => SealTable::decode(&bytes)
            .map_err(|reason| unusable(&path, format!("{reason}; {unknown}"))),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(unusable(&path, format!("it is missing; {unknown}")))
        }
        Err(error) => Err(failed(&path, error)),
    }
}

/// Stores seals that say nothing in a directory on disk that holds nothing yet.
pub(super) fn first_seals(dir: &Path) -> Result<(), StartError> {
    let entries = fs::read_dir(dir).map_err(|e| failed(dir, e))?;
    for entry in entries {
        let name = entry.map_err(|e| failed(dir, e))?.file_name();
        if name != LOCK && name != SEALS_ASIDE {
            return Ok(());
        }
    }
    write_seals(dir, &SealTable::default()).map_err(|e| failed(dir, e))
}

/// Bytes of the files that hold seals of which so many are encoded: zeros follow them, so that there is
/// room for more where nothing else is free.
fn room_for_seals(encoded: usize) -> usize {
    (encoded + encoded / 2 + SEALS_ROOM).next_multiple_of(4096)
}

/// Stores seals, whole or not at all. Two files of the same room change names with each other, so that
/// nothing needs to be free: a store without room must be able to seal, and to free what it holds.
pub(super) fn write_seals(dir: &Path, seals: &SealTable) -> io::Result<()> {
    let (path, aside) = (dir.join(SEALS), dir.join(SEALS_ASIDE));
    let bytes = seals.encode();
    write_with_room(&aside, &bytes)?;
    let names = renameat_with(CWD, &aside, CWD, &path, RenameFlags::EXCHANGE);
    match names {
        Ok(()) => {}
        // There is none yet, or the file system cannot exchange names.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            fs::rename(&aside, &path)?;
            // Room for the next time; if there is none now, there may be then.
            let _ = write_with_room(&aside, &bytes);
        }
        Err(error) => return Err(error.into()),
    }
    File::open(dir)?.sync_all()
}

/// Writes `bytes`, with room behind them where that can be had.
fn write_with_room(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let room = room_for_seals(bytes.len()) as u64;
    let mut padded = bytes.to_vec();
    if file.metadata()?.len() < room {
        padded.resize(room as usize, 0);
    }
    match file.write_all_at(&padded, 0) {
        Err(error) if is_full(&error) => file.write_all_at(bytes, 0)?,
        other => other?,
    }
    file.sync_all()
}

/// Bytes of a store's directory that belong to no copy.
pub(super) fn own_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let names = [SEALS, SEALS_ASIDE, STORE, LOCK];
    let files = names
        .iter()
        .filter_map(|name| fs::metadata(dir.join(name)).ok());
    files.map(|file| file.blocks() * 512).sum()
}

/// Replaces a file, whole or not at all; with `sync` it survives power loss where that means
/// anything. Where there is no room for another nothing is left behind.
pub(super) fn replace(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let written = File::create(&aside).and_then(|mut file| {
        file.write_all(bytes)?;
        if sync { file.sync_all() } else { Ok(()) }
    });
    if let Err(error) = written {
        let _ = fs::remove_file(&aside);
        return Err(error);
    }
    fs::rename(&aside, path)?;
    match path.parent() {
        Some(dir) if sync => File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}
