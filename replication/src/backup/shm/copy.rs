//! One copy's bytes: a file on shared memory, later one on disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use kera_log_segments::layout::{DurableMark, FOOTER_OFFSET};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};

use super::super::mapping::Mapping;
use super::super::memory::{CopyMemory, CopySpec};
use super::spare::{Spare, Spares};
use super::{Paths, dir, record};

/// Bytes copied to disk at once.
const FLUSH_BYTES: usize = 1 << 20;

/// The bytes of one copy.
#[derive(Debug)]
pub(super) struct ShmCopy {
    spec: CopySpec,
    disk_paths: Option<Paths>,
    inner: Mutex<Inner>,
    spares: Arc<Spares>,
    _locks: Vec<Arc<File>>,
}

#[derive(Debug)]
struct Inner {
    /// On shared memory; `None` once given back.
    shared: Option<Shared>,
    disk: Option<Arc<File>>,
}

#[derive(Debug)]
struct Shared {
    file: Arc<File>,
    mapping: Mapping,
    paths: Paths,
    /// Reserved ranges, sorted and apart from each other. Nothing is placed outside of them, so
    /// that a full machine refuses to reserve and never ends the process.
    reserved: Vec<(u64, u64)>,
    /// Ranges that have memory from an earlier copy and are zeros until they are reserved.
    warm: Vec<(u64, u64)>,
    /// All memory that the file has came by way of this process.
    known: bool,
}

impl Shared {
    fn new(spec: &CopySpec, file: File, paths: Paths) -> io::Result<Self> {
        let bytes = usize::try_from(spec.group_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Self {
            mapping: Mapping::new(&file, bytes)?,
            file: Arc::new(file),
            paths,
            reserved: Vec::new(),
            warm: Vec::new(),
            known: false,
        })
    }

    /// Takes `from..to` out of the warm ranges; what of it has no memory yet.
    fn cool(&mut self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut cold = Vec::new();
        let mut warm = Vec::new();
        let mut at = from;
        for (start, end) in std::mem::take(&mut self.warm) {
            let (low, high) = (start.max(from), end.min(to));
            if low >= high {
                warm.push((start, end));
                continue;
            }
            if start < low {
                warm.push((start, low));
            }
            if high < end {
                warm.push((high, end));
            }
            if at < low {
                cold.push((at, low));
            }
            at = high;
        }
        if at < to {
            cold.push((at, to));
        }
        self.warm = warm;
        cold
    }

    fn within(&self, address: u64, len: usize) -> io::Result<()> {
        let end = address.saturating_add(len as u64);
        let at = self.reserved.partition_point(|(_, to)| *to < end);
        match self.reserved.get(at) {
            Some((from, _)) if *from <= address => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the bytes lie outside of what is reserved",
            )),
        }
    }

    fn add(&mut self, from: u64, to: u64) {
        let at = self.reserved.partition_point(|(start, _)| *start < from);
        self.reserved.insert(at, (from, to));
        self.reserved.dedup_by(|later, earlier| {
            let joined = later.0 <= earlier.1;
            if joined {
                earlier.1 = earlier.1.max(later.1);
            }
            joined
        });
    }
}

impl ShmCopy {
    /// A new copy, in memory that another has left if there is any.
    pub(super) fn create(
        spec: CopySpec,
        paths: Paths,
        disk_paths: Option<Paths>,
        spares: Arc<Spares>,
        locks: Vec<Arc<File>>,
    ) -> io::Result<Self> {
        let shared = match spares.take(spec.group_bytes(), &paths.log)? {
            Some(Spare {
                file,
                mapping,
                ranges,
                ..
            }) => Shared {
                file,
                mapping,
                paths,
                reserved: Vec::new(),
                warm: ranges,
                known: true,
            },
            None => {
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&paths.log)?;
                file.set_len(spec.group_bytes())?;
                Shared {
                    known: true,
                    ..Shared::new(&spec, file, paths)?
                }
            }
        };
        Ok(Self::with(
            spec,
            Some(shared),
            None,
            disk_paths,
            spares,
            locks,
        ))
    }

    /// A copy that was found on shared memory, perhaps flushed in part.
    pub(super) fn found(
        spec: CopySpec,
        file: File,
        paths: Paths,
        flushed: Option<File>,
        disk_paths: Option<Paths>,
        spares: Arc<Spares>,
        locks: Vec<Arc<File>>,
    ) -> io::Result<Self> {
        let shared = Shared::new(&spec, file, paths)?;
        Ok(Self::with(
            spec,
            Some(shared),
            flushed,
            disk_paths,
            spares,
            locks,
        ))
    }

    fn with(
        spec: CopySpec,
        shared: Option<Shared>,
        flushed: Option<File>,
        disk_paths: Option<Paths>,
        spares: Arc<Spares>,
        locks: Vec<Arc<File>>,
    ) -> Self {
        Self {
            spec,
            disk_paths,
            inner: Mutex::new(Inner {
                shared,
                disk: flushed.map(Arc::new),
            }),
            spares,
            _locks: locks,
        }
    }

    /// A copy that is on disk alone.
    pub(super) fn on_disk(
        spec: CopySpec,
        flushed: Option<File>,
        disk_paths: Option<Paths>,
        spares: Arc<Spares>,
        locks: Vec<Arc<File>>,
    ) -> Self {
        Self::with(spec, None, flushed, disk_paths, spares, locks)
    }

    /// Forgets a file on shared memory. Its record goes first: without it there is no copy.
    fn leave(&self, shared: Shared) -> io::Result<()> {
        remove(&shared.paths.record)?;
        let log = &shared.paths.log;
        if !shared.known {
            return remove(log);
        }
        let mut ranges = shared.reserved;
        ranges.extend(shared.warm);
        ranges.sort_unstable();
        let group_bytes = self.spec.group_bytes();
        self.spares
            .put(shared.file, shared.mapping, ranges, group_bytes, log)
    }

    /// The copy's file on disk, made if it is not there.
    fn disk_file(&self, paths: &Paths) -> io::Result<Arc<File>> {
        if let Some(file) = &self.inner.lock().disk {
            return Ok(file.clone());
        }
        if let Some(dir) = paths.log.parent() {
            fs::create_dir_all(dir)?;
            // Its name and those of the directories above it, up to the store's own.
            for dir in dir.ancestors().take(3) {
                File::open(dir)?.sync_all()?;
            }
        }
        // A file without a record is what a flush left that did not get to its end.
        let _ = fs::remove_file(&paths.log);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&paths.log)?;
        file.set_len(self.spec.group_bytes() + FOOTER_OFFSET)?;
        Ok(Arc::new(file))
    }

    /// The file that readers ask.
    fn readable(&self) -> io::Result<Arc<File>> {
        let inner = self.inner.lock();
        let file = match &inner.shared {
            Some(shared) => Some(&shared.file),
            None => inner.disk.as_ref(),
        };
        file.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl CopyMemory for ShmCopy {
    fn reserve(&self, address: u64, len: u64) -> io::Result<u64> {
        let mut inner = self.inner.lock();
        let Some(shared) = &mut inner.shared else {
            return Ok(0);
        };
        for (from, to) in shared.cool(address, address + len) {
            self.spares.grow(to - from);
            loop {
                match fallocate(&shared.file, FallocateFlags::KEEP_SIZE, from, to - from) {
                    Ok(()) => break,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::NOSPC) if self.spares.yield_one() => {}
                    Err(error) => {
                        // What was cooled before counts as fresh when it is asked for again.
                        self.spares.shrink(to - from);
                        return Err(error.into());
                    }
                }
            }
            shared.mapping.populate(from as usize, (to - from) as usize);
        }
        shared.add(address, address + len);
        Ok(len)
    }

    fn place(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.inner.lock();
        match &mut inner.shared {
            Some(shared) => {
                shared.within(address, bytes.len())?;
                shared.mapping.write(address as usize, bytes)
            }
            None => match &inner.disk {
                Some(file) => file.write_all_at(bytes, address),
                None => Err(io::ErrorKind::NotFound.into()),
            },
        }
    }

    fn receive(
        &self,
        socket: BorrowedFd<'_>,
        address: u64,
        len: usize,
        spare: &mut [u8],
    ) -> io::Result<usize> {
        let mut inner = self.inner.lock();
        let Some(shared) = &mut inner.shared else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        shared.within(address, len)?;
        shared.mapping.receive(socket, address as usize, len, spare)
    }

    fn read_at(&self, buf: &mut [u8], address: u64) -> io::Result<usize> {
        let room = self.spec.group_bytes().saturating_sub(address);
        let len = (buf.len() as u64).min(room) as usize;
        loop {
            let file = self.readable()?;
            let mut filled = 0;
            while filled < len {
                match file.read_at(&mut buf[filled..len], address + filled as u64) {
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            // Memory that was given back meanwhile may be zeros or another copy's by now.
            if Arc::ptr_eq(&file, &self.readable()?) {
                return Ok(filled);
            }
        }
    }

    fn flush(&self, from: u64, to: u64, mark: &DurableMark, last: bool) -> io::Result<bool> {
        let Some(paths) = &self.disk_paths else {
            return Ok(false);
        };
        let disk = self.disk_file(paths)?;
        let source = self.readable()?;
        // A copy that is on disk alone has its bytes there already.
        if !Arc::ptr_eq(&disk, &source) {
            let mut buf = vec![0; FLUSH_BYTES.min(to.saturating_sub(from) as usize)];
            let mut at = from;
            while at < to {
                let len = buf.len().min((to - at) as usize);
                source.read_exact_at(&mut buf[..len], at)?;
                disk.write_all_at(&buf[..len], at)?;
                at += len as u64;
            }
        }
        // The mark speaks of bytes that are on disk, so it comes after them.
        disk.sync_data()?;
        disk.write_all_at(&mark.encode(), mark.slot_offset(self.spec.group_bytes()))?;
        disk.sync_data()?;
        if !paths.record.exists() {
            dir::replace(&paths.record, &record::encode(&self.spec), true)?;
        }
        let mut inner = self.inner.lock();
        inner.disk = Some(disk);
        if last && let Some(shared) = inner.shared.take() {
            drop(inner);
            self.leave(shared)?;
        }
        Ok(last)
    }

    fn remove(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let shared = inner.shared.take();
        inner.disk = None;
        drop(inner);
        if let Some(shared) = shared {
            self.leave(shared)?;
        }
        if let Some(paths) = &self.disk_paths {
            remove(&paths.record)?;
            remove(&paths.log)?;
        }
        Ok(())
    }
}

/// Removes a file that may be gone already.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
