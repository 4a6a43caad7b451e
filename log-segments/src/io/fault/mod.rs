//! An engine for tests: a file system in memory that fails to order and crashes by seed.
//!
//! It keeps, per file, what is durable and the list of changes that are not, and for directories
//! which names are durable. [`FaultIo::crash`] gives a new engine holding what would be found after
//! a killed process or after power loss. Everything follows from seeds: the same calls with the same
//! seeds give the same bytes, on every machine.
//!
//! What it is strict about, because a real machine may be:
//! * a file's name is durable after a sync of the file or of its directory, a directory's name and
//!   a removal only after a sync of the directory above;
//! * a batch's operations are performed in any order between syncs;
//! * power loss tears unsynced writes at 512-byte sectors, reorders them, and may show zeros or
//!   stale bytes where a file grew;
//! * a failed sync marks data clean that is lost;
//! * a flush caused by one file covers direct writes of another only where that file's blocks were
//!   durably allocated, and only on a file system where that holds ([`FaultIo::set_file_system`]);
//! * a file written both through the page cache and around it is an error, and so is direct I/O
//!   that is not aligned.

mod crash;
mod disk;
mod file;
mod image;
mod inject;
mod rng;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Done, FileRef, Io, Op, OpenHow, perform};
use disk::Disk;
use file::FaultFile;

pub use crash::{CrashHow, CrashPlan, Flip, Plant};
pub use inject::Fault;

/// Operations performed so far, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files opened.
    pub opens: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Syncs of a file or of a file system.
    pub syncs: u64,
    /// Directories listed.
    pub lists: u64,
}

/// The fault engine; cloning it gives another handle to the same simulated machine.
#[derive(Clone)]
pub struct FaultIo {
    disk: Arc<Mutex<Disk>>,
}

impl FaultIo {
    /// An empty file system whose choices follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            disk: Arc::new(Mutex::new(Disk::new(seed))),
        }
    }

    /// Orders a failure.
    pub fn inject(&self, fault: Fault) {
        self.disk.lock().rules.add(fault, None);
    }

    /// Orders a failure for paths that contain `part`.
    pub fn inject_on(&self, part: &str, fault: Fault) {
        self.disk.lock().rules.add(fault, Some(part.to_owned()));
    }

    /// Does something once, before the read of any file that comes after `reads` more: what another thread does while a
    /// reader waits for the disk. The reader waits for it.
    pub fn before_read(&self, reads: u64, then: impl FnOnce() + Send + 'static) {
        *self.disk.lock().meanwhile.lock() = Some((reads, Box::new(then)));
    }

    /// Withdraws all failures.
    pub fn heal(&self) {
        self.disk.lock().rules.clear();
    }

    /// True once a [`Fault::StopAfter`] has stopped the machine.
    pub fn stopped(&self) -> bool {
        self.disk.lock().rules.stopped()
    }

    /// Operations performed so far.
    pub fn counts(&self) -> Counts {
        self.disk.lock().counts
    }

    /// Simulates another file system: its magic number, and whether one flush of the device covers
    /// direct writes to allocated blocks of all its files. The default is ext4, where it does.
    pub fn set_file_system(&self, magic: u64, one_flush: bool) {
        let mut disk = self.disk.lock();
        disk.magic = magic;
        disk.one_flush = one_flush;
    }

    /// Refuses `O_DIRECT` with `EINVAL`, as tmpfs did for long.
    pub fn refuse_direct(&self, refuse: bool) {
        self.disk.lock().direct_refused = refuse;
    }

    /// With `true`, no read is served from the cache ([`super::File::try_read_cached`]).
    pub fn set_cold(&self, cold: bool) {
        self.disk.lock().cold = cold;
    }

    /// The paths of all files, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.disk.lock().files.keys().cloned().collect()
    }

    /// What a reader of the file sees now; `None` if there is no such file.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let disk = self.disk.lock();
        let image = &disk.inodes.get(disk.files.get(path)?)?.current;
        let mut bytes = vec![0; image.len() as usize];
        image.read(0, &mut bytes);
        Some(bytes)
    }

    /// Overwrites bytes of a file behind everybody's back, durably; extends it if need be.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    pub fn plant(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.lock().plant(path, offset, bytes)
    }

    /// Flips one bit of a file behind everybody's back, durably.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, `InvalidInput` if it ends before the bit.
    pub fn flip(&self, flip: &Flip) -> io::Result<()> {
        self.disk.lock().flip(flip)
    }

    /// A number over all names and all contents, durable and not: equal machines give equal numbers.
    pub fn fingerprint(&self) -> u64 {
        self.disk.lock().fingerprint()
    }

    /// The machine as it is found after a crash now; this one goes on as if nothing had happened.
    ///
    /// Failures ordered here are not in force there. The second value names the bits that
    /// [`CrashPlan::random_flips`] flipped.
    pub fn crash(&self, plan: &CrashPlan) -> (FaultIo, Vec<Flip>) {
        let (disk, flips) = self.disk.lock().after_crash(plan);
        (
            FaultIo {
                disk: Arc::new(Mutex::new(disk)),
            },
            flips,
        )
    }

    fn check_parent(disk: &Disk, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(parent) if !disk.is_dir(parent) => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(()),
        }
    }
}

impl Io for FaultIo {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.gate_plain(dir)?;
        for part in dir.ancestors().filter(|part| part.parent().is_some()) {
            if disk.files.contains_key(part) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            disk.dirs.insert(part.to_owned());
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut disk = self.disk.lock();
        disk.gate_plain(dir)?;
        disk.counts.lists += 1;
        if !disk.is_dir(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let children = disk
            .files
            .keys()
            .chain(&disk.dirs)
            .filter(|path| path.parent() == Some(dir));
        let mut names: Vec<String> = children
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.gate_plain(path)?;
        disk.files
            .remove(path)
            .map(|_| ())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.gate_plain(from)?;
        Self::check_parent(&disk, to)?;
        let id = disk.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.files.insert(to.to_owned(), id);
        Ok(())
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.gate_plain(dir)?;
        if !disk.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.files.retain(|path, _| !path.starts_with(dir));
        disk.dirs.retain(|path| !path.starts_with(dir));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.gate(dir, inject::Kind::Sync).plain()?;
        if !disk.is_dir(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.sync_names(dir);
        Ok(())
    }

    fn exists(&self, path: &Path) -> bool {
        let disk = self.disk.lock();
        disk.files.contains_key(path) || disk.dirs.contains(path)
    }

    fn open(&self, path: &Path, how: OpenHow, direct: bool) -> io::Result<FileRef> {
        let mut disk = self.disk.lock();
        disk.gate(path, inject::Kind::Open).plain()?;
        if direct && disk.direct_refused {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let id = match (how, disk.files.get(path).copied()) {
            (OpenHow::CreateNew, Some(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (OpenHow::CreateNew, None) => {
                if disk.dirs.contains(path) {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                Self::check_parent(&disk, path)?;
                disk.create(path)
            }
            (_, Some(id)) => id,
            (_, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Arc::new(FaultFile::new(
            self.disk.clone(),
            id,
            path.to_owned(),
            how,
            direct,
        )))
    }

    fn run(&self, ops: Vec<Op>) -> Vec<Done> {
        let mut done: Vec<Option<Done>> = ops.iter().map(|_| None).collect();
        let mut ops = ops.into_iter().enumerate().peekable();
        while let Some(first) = ops.next() {
            let sync = first.1.is_sync();
            let mut phase = vec![first];
            while let Some(op) = ops.next_if(|(_, op)| op.is_sync() == sync) {
                phase.push(op);
            }
            self.disk.lock().rng.shuffle(&mut phase);
            for (at, op) in phase {
                done[at] = Some(perform::perform(op));
            }
        }
        done.into_iter().flatten().collect()
    }
}
