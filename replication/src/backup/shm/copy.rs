//! One copy's bytes: a file on shared memory, later one on disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use kera_log_segments::layout::DurableMark;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::RecvFlags;

use super::super::mapping::{Window, cut_short};
use super::super::memory::{CopyMemory, CopySpec};
use super::disk::Disk;
use super::extents::{data_ranges, punch, remove};
use super::record::{ALL, Kept};
use super::shared::Shared;
use super::spare::{Spare, Spares};
use super::{Paths, dir, read_mark, record};

/// Bytes read at once of what was sent again.
const RESENT_BYTES: u64 = 64 << 10;

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
    /// On shared memory as an earlier process left it: neither open nor mapped before somebody
    /// writes. There may be very many, and most are only read, or never used again.
    asleep: Option<Asleep>,
    /// The record that stays on shared memory when nothing else of the copy does.
    stub: Option<PathBuf>,
    disk: Option<Arc<Disk>>,
    /// There may be something on disk, even if no flush has come to its end.
    began_on_disk: bool,
    /// The record on disk is there, and durable.
    named: bool,
}

impl Inner {
    /// The record on shared memory of bytes that are there.
    fn record(&self) -> Option<&PathBuf> {
        let shared = self.shared.as_ref().map(|shared| &shared.paths);
        let paths = shared.or(self.asleep.as_ref().map(|asleep| &asleep.paths));
        paths.map(|paths| &paths.record)
    }
}

/// A copy's file as it was found on shared memory.
#[derive(Debug)]
pub(super) struct Asleep {
    pub(super) paths: Paths,
    /// What lies below is on disk alone.
    pub(super) released: u64,
    /// Bytes of memory that count as this file's.
    pub(super) charged: u64,
    /// Open while somebody reads.
    pub(super) file: Weak<File>,
}

impl Asleep {
    fn file(&mut self) -> io::Result<Arc<File>> {
        if let Some(file) = self.file.upgrade() {
            return Ok(file);
        }
        let file = File::options()
            .read(true)
            .write(true)
            .open(&self.paths.log)?;
        let file = Arc::new(file);
        self.file = Arc::downgrade(&file);
        Ok(file)
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
                released: 0,
                reserved: Vec::new(),
                charged: ranges.iter().map(|(from, to)| to - from).sum(),
                warm: ranges,
                known: true,
                is_cut: false,
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
                    ..Shared::new(&spec, Arc::new(file), paths)?
                }
            }
        };
        let inner = Inner {
            shared: Some(shared),
            asleep: None,
            stub: None,
            disk: None,
            began_on_disk: false,
            named: false,
        };
        Ok(Self::with(spec, inner, disk_paths, spares, locks))
    }

    /// A copy that was found on shared memory, perhaps flushed in part: with a file at `disk_paths` then.
    pub(super) fn found(
        spec: CopySpec,
        found: Asleep,
        is_flushed: bool,
        disk_paths: Option<Paths>,
        spares: Arc<Spares>,
        locks: Vec<Arc<File>>,
    ) -> Self {
        let flushed = disk_paths.as_ref().filter(|_| is_flushed);
        let disk = flushed.map(|paths| Arc::new(Disk::named(paths.log.clone())));
        let inner = Inner {
            shared: None,
            asleep: Some(found),
            stub: None,
            began_on_disk: disk.is_some(),
            named: disk.is_some(),
            disk,
        };
        Self::with(spec, inner, disk_paths, spares, locks)
    }

    /// The bytes on shared memory, to be written; opened and mapped if they were found and nobody has
    /// written them since.
    fn awake<'a>(&self, inner: &'a mut Inner) -> io::Result<Option<&'a mut Shared>> {
        if let Some(asleep) = &mut inner.asleep {
            let file = asleep.file()?;
            let reserved = data_ranges(&file, self.spec.group_bytes())?;
            let shared = Shared {
                released: asleep.released,
                reserved,
                charged: asleep.charged,
                ..Shared::new(&self.spec, file, asleep.paths.clone())?
            };
            inner.shared = Some(shared);
            inner.asleep = None;
        }
        Ok(inner.shared.as_mut())
    }

    /// Forgets a file that was found, whose record is gone or says that nothing is there.
    fn leave_asleep(&self, asleep: &Asleep) -> io::Result<()> {
        self.spares.shrink(asleep.charged);
        remove(&asleep.paths.log)
    }

    fn with(
        spec: CopySpec,
        inner: Inner,
        disk_paths: Option<Paths>,
        spares: Arc<Spares>,
        locks: Vec<Arc<File>>,
    ) -> Self {
        Self {
            spec,
            disk_paths,
            inner: Mutex::new(inner),
            spares,
            _locks: locks,
        }
    }

    /// A copy that is on disk alone, perhaps with its record still on shared memory.
    pub(super) fn on_disk(
        spec: CopySpec,
        disk_paths: Paths,
        stub: Option<PathBuf>,
        spares: Arc<Spares>,
        locks: Vec<Arc<File>>,
    ) -> Self {
        let inner = Inner {
            shared: None,
            asleep: None,
            stub,
            disk: Some(Arc::new(Disk::named(disk_paths.log.clone()))),
            began_on_disk: true,
            named: true,
        };
        Self::with(spec, inner, Some(disk_paths), spares, locks)
    }

    /// Forgets a file on shared memory, whose record is gone or says that nothing is there.
    fn leave(&self, shared: Shared) -> io::Result<()> {
        let log = &shared.paths.log;
        if !shared.known || shared.is_cut {
            self.spares.shrink(shared.charged);
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
    fn disk_file(&self, paths: &Paths) -> io::Result<Arc<Disk>> {
        {
            let mut inner = self.inner.lock();
            inner.began_on_disk = true;
            if let Some(file) = &inner.disk {
                return Ok(file.clone());
            }
        }
        if let Some(dir) = paths.log.parent() {
            fs::create_dir_all(dir)?;
            // Its name and those of the directories above it, up to the store's own.
            for dir in dir.ancestors().take(3) {
                File::open(dir)?.sync_all()?;
            }
        }
        // What a flush left that did not get to its end, or a copy that had the name before.
        remove(&paths.record)?;
        remove(&paths.log)?;
        let disk = Disk::create(&paths.log, self.spec.group_bytes())?;
        Ok(Arc::new(disk))
    }

    /// Copies `from..to` to the disk, but for what the disk alone has.
    fn copy_to(&self, disk: &Disk, from: u64, to: u64) -> io::Result<()> {
        let from = from.max(self.on_disk_alone().1);
        if from >= to {
            return Ok(());
        }
        let (source, _) = self.readable(from)?;
        disk.copy(&source, self.mapped(&source).as_ref(), from, to)
    }

    /// Stores the record on disk, unless it is there. Its file must be synced, since a record without it tells
    /// of a damaged copy; and the name of both is durable with the record's.
    fn name(&self, paths: &Paths) -> io::Result<()> {
        if self.inner.lock().named {
            return Ok(());
        }
        let kept = Kept::default();
        dir::replace(&paths.record, &record::encode(&self.spec, kept), true)?;
        self.inner.lock().named = true;
        Ok(())
    }

    /// The file that readers of `address` ask, and where it ends for them.
    fn readable(&self, address: u64) -> io::Result<(Arc<File>, u64)> {
        let (disk, released) = {
            let Inner {
                shared,
                asleep,
                disk,
                ..
            } = &mut *self.inner.lock();
            let released = match (shared, asleep) {
                (Some(shared), _) if address >= shared.released => {
                    return Ok((shared.file.clone(), ALL));
                }
                (None, Some(asleep)) if address >= asleep.released => {
                    return Ok((asleep.file()?, ALL));
                }
                (Some(shared), _) => shared.released,
                (None, Some(asleep)) => asleep.released,
                (None, None) => ALL,
            };
            (disk.clone(), released)
        };
        // To open it may take a disk's time.
        let disk = disk.ok_or(io::ErrorKind::NotFound)?;
        Ok((disk.file()?, released))
    }

    /// The copy's file on disk, and the address below which it alone has the bytes.
    fn on_disk_alone(&self) -> (Option<Arc<Disk>>, u64) {
        let inner = self.inner.lock();
        let released = match (&inner.shared, &inner.asleep) {
            (Some(shared), _) => shared.released,
            (None, Some(asleep)) => asleep.released,
            (None, None) => ALL,
        };
        (inner.disk.clone(), released)
    }

    /// The mapping of `file`, if it is this copy's and mapped. It stays while it is used, whoever the
    /// memory belongs to by then: as with what is read from the file.
    fn mapped(&self, file: &Arc<File>) -> Option<Window> {
        let inner = self.inner.lock();
        let shared = inner.shared.as_ref();
        let shared = shared.filter(|shared| Arc::ptr_eq(&shared.file, file))?;
        let all = usize::try_from(self.spec.group_bytes()).ok()?;
        shared.mapping.window(0, all).ok()
    }

    /// Fills `buf` as far as one file has it; what was never written is zeros there.
    fn read_some(&self, buf: &mut [u8], address: u64) -> io::Result<usize> {
        loop {
            let (file, end) = self.readable(address)?;
            let len = (buf.len() as u64).min(end - address) as usize;
            let mut filled = 0;
            while filled < len {
                match file.read_at(&mut buf[filled..len], address + filled as u64) {
                    // Every file is as long as its group, and longer, from its beginning.
                    Ok(0) => return Err(cut_short()),
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            // Memory that was given back meanwhile may be zeros or another copy's by now.
            if Arc::ptr_eq(&file, &self.readable(address)?.0) {
                return Ok(filled);
            }
        }
    }
}

impl CopyMemory for ShmCopy {
    fn reserve(&self, address: u64, len: u64) -> io::Result<u64> {
        let mut inner = self.inner.lock();
        let Some(shared) = self.awake(&mut inner)? else {
            return Ok(0);
        };
        let taken = shared.lacking(address, address + len);
        let mut cold = Vec::new();
        for (from, to) in shared.missing(address, address + len) {
            cold.extend(shared.cool(from, to));
        }
        for (from, to) in cold {
            self.spares.grow(to - from);
            shared.charged += to - from;
            loop {
                match fallocate(&shared.file, FallocateFlags::KEEP_SIZE, from, to - from) {
                    Ok(()) => break,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::NOSPC) if self.spares.yield_one() => {}
                    Err(error) => {
                        // What was cooled before counts as fresh when it is asked for again.
                        self.spares.shrink(to - from);
                        shared.charged -= to - from;
                        return Err(error.into());
                    }
                }
            }
        }
        shared.add(address, address + len);
        Ok(taken)
    }

    fn lacking(&self, address: u64, len: u64) -> u64 {
        match self.awake(&mut self.inner.lock()) {
            Ok(shared) => shared.map_or(0, |shared| shared.lacking(address, address + len)),
            // Reserving will say why.
            Err(_) => len,
        }
    }

    fn warm(&self, address: u64, len: u64) {
        let inner = self.inner.lock();
        if let Some(shared) = &inner.shared {
            shared.mapping.populate(address as usize, len as usize);
        }
    }

    fn window(&self, address: u64, len: u64) -> io::Result<Window> {
        let mut inner = self.inner.lock();
        let Some(shared) = self.awake(&mut inner)? else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        shared.within(address, len as usize)?;
        shared.mapping.window(address as usize, len as usize)
    }

    fn place(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.inner.lock();
        self.awake(&mut inner)?;
        let Some(shared) = &mut inner.shared else {
            return Ok(());
        };
        // What is sent again is on disk already.
        let below = shared.released.saturating_sub(address);
        let below = below.min(bytes.len() as u64) as usize;
        let (address, bytes) = (address + below as u64, &bytes[below..]);
        if bytes.is_empty() {
            return Ok(());
        }
        shared.within(address, bytes.len())?;
        let written = shared.mapping.write(address as usize, bytes);
        shared.noting(written)
    }

    fn complete(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let (disk, released) = self.on_disk_alone();
        let below = released.saturating_sub(address);
        let below = below.min(bytes.len() as u64) as usize;
        if below > 0 {
            let disk = disk.ok_or(io::ErrorKind::NotFound)?;
            disk.place(&bytes[..below], address)?;
        }
        self.place(address, bytes)
    }

    fn receive(
        &self,
        socket: BorrowedFd<'_>,
        address: u64,
        len: usize,
        spare: &mut [u8],
    ) -> io::Result<usize> {
        let mut inner = self.inner.lock();
        let Some(shared) = self.awake(&mut inner)? else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if address < shared.released {
            // Sent again after a break, and on disk already.
            let below = (len as u64)
                .min(shared.released - address)
                .min(RESENT_BYTES) as usize;
            let mut again = vec![0; below];
            return Ok(rustix::net::recv(socket, &mut again, RecvFlags::DONTWAIT)?.0);
        }
        shared.within(address, len)?;
        let read = shared.mapping.receive(socket, address as usize, len, spare);
        shared.noting(read)
    }

    fn read_at(&self, buf: &mut [u8], address: u64) -> io::Result<usize> {
        let room = self.spec.group_bytes().saturating_sub(address);
        let len = (buf.len() as u64).min(room) as usize;
        let mut filled = 0;
        while filled < len {
            match self.read_some(&mut buf[filled..len], address + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }

    fn flush(&self, from: u64, to: u64, mark: &DurableMark) -> io::Result<()> {
        let Some(paths) = &self.disk_paths else {
            return Ok(());
        };
        let disk = self.disk_file(paths)?;
        self.copy_to(&disk, from, to)?;
        // The mark speaks of bytes that are on disk, so it comes after them.
        disk.sync()?;
        disk.mark(mark, self.spec.group_bytes())?;
        disk.sync()?;
        self.name(paths)?;
        self.inner.lock().disk = Some(disk);
        Ok(())
    }

    fn write_to_disk(&self, from: u64, to: u64) -> io::Result<()> {
        let paths = self.disk_paths.as_ref();
        let disk = self.disk_file(paths.ok_or(io::ErrorKind::Unsupported)?)?;
        self.copy_to(&disk, from, to)?;
        self.inner.lock().disk = Some(disk);
        Ok(())
    }

    fn sync_to_disk(&self) -> io::Result<()> {
        let disk = self.inner.lock().disk.clone();
        disk.ok_or(io::ErrorKind::NotFound)?.sync()
    }

    fn name_on_disk(&self) -> io::Result<()> {
        let paths = self.disk_paths.as_ref();
        self.name(paths.ok_or(io::ErrorKind::Unsupported)?)
    }

    fn renew(&self, from: u64, to: u64) -> io::Result<bool> {
        let (disk, released) = self.on_disk_alone();
        let to = to.min(released);
        if from >= to {
            return Ok(false);
        }
        disk.ok_or(io::ErrorKind::NotFound)?.renew(from, to)?;
        Ok(true)
    }

    fn lower_mark(&self, mark: &DurableMark) -> io::Result<()> {
        let disk = self.inner.lock().disk.clone();
        let Some(disk) = disk else { return Ok(()) };
        disk.mark(mark, self.spec.group_bytes())?;
        disk.sync()
    }

    fn mark(&self) -> io::Result<Option<DurableMark>> {
        let disk = self.inner.lock().disk.clone();
        match disk {
            Some(disk) => {
                let file = disk.file()?;
                read_mark(&file, self.spec.group_bytes())
            }
            None => Ok(None),
        }
    }

    fn release(&self, to: u64) -> io::Result<u64> {
        let record = {
            let mut inner = self.inner.lock();
            if inner.disk.is_none() {
                return Ok(0);
            }
            match self.awake(&mut inner)?.filter(|s| to > s.released) {
                Some(shared) => shared.paths.record.clone(),
                None => return Ok(0),
            }
        };
        // From now on what is lost there is missed.
        record::rewrite(&record, &self.spec, Kept::from(to))?;
        let mut inner = self.inner.lock();
        let Some(shared) = inner.shared.as_mut() else {
            return Ok(0);
        };
        shared.released = to;
        let (reserved, with_memory) = shared.leave_below(to);
        shared.charged = shared.charged.saturating_sub(with_memory);
        self.spares.shrink(with_memory);
        punch(&shared.file, 0, to)?;
        Ok(reserved)
    }

    fn give_back(&self, closed: bool) -> io::Result<bool> {
        let Some(paths) = &self.disk_paths else {
            return Ok(false);
        };
        let record = {
            let inner = self.inner.lock();
            if inner.disk.is_none() {
                return Ok(false);
            }
            inner.record().cloned()
        };
        if let Some(record) = &record {
            // From now on nothing is missing when there is nothing in memory.
            record::rewrite(&paths.record, &self.spec, Kept::WHOLE)?;
            if !closed {
                // And something is when there is nothing on disk.
                record::rewrite(record, &self.spec, Kept::from(ALL))?;
            }
        }
        let mut inner = self.inner.lock();
        if !closed && record.is_some() {
            inner.stub.clone_from(&record);
        }
        let (shared, asleep) = (inner.shared.take(), inner.asleep.take());
        let stub = inner.stub.take_if(|_| closed);
        // Hardly anybody asks for it any more.
        inner.disk = Some(Arc::new(Disk::named(paths.log.clone())));
        drop(inner);
        // A record goes first: without it there is no copy.
        if let Some(record) = record.filter(|_| closed).or(stub) {
            remove(&record)?;
        }
        if let Some(asleep) = asleep {
            self.leave_asleep(&asleep)?;
        }
        if let Some(shared) = shared {
            self.leave(shared)?;
        }
        Ok(true)
    }

    fn vacate(&self) -> io::Result<()> {
        let inner = self.inner.lock();
        let paths = inner.shared.as_ref().map(|shared| &shared.paths);
        let paths = paths
            .or(inner.asleep.as_ref().map(|asleep| &asleep.paths))
            .cloned();
        let stub = paths.as_ref().map(|paths| paths.record.clone());
        let (stub, began_on_disk) = (stub.or(inner.stub.clone()), inner.began_on_disk);
        drop(inner);
        // The records first: they say that bytes are missing. Until all of them do, what is in memory is known, and
        // goes with the copy.
        if let Some(stub) = &stub {
            record::blot(stub)?;
        }
        if let Some(disk) = self.disk_paths.as_ref().filter(|_| began_on_disk) {
            match record::blot(&disk.record) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            remove(&disk.log)?;
        }
        let mut inner = self.inner.lock();
        let (shared, asleep) = (inner.shared.take(), inner.asleep.take());
        (inner.stub, inner.disk) = (stub, None);
        drop(inner);
        if let Some(paths) = paths {
            let charged = shared.as_ref().map(|shared| shared.charged);
            let charged = charged.or(asleep.map(|asleep| asleep.charged));
            self.spares.shrink(charged.unwrap_or_default());
            remove(&paths.log)?;
        }
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let (shared, stub) = (inner.shared.take(), inner.stub.take());
        let asleep = inner.asleep.take();
        inner.disk = None;
        let began_on_disk = inner.began_on_disk;
        drop(inner);
        // Its record goes first: without it there is no copy.
        if let Some(stub) = stub {
            remove(&stub)?;
        }
        if let Some(asleep) = asleep {
            remove(&asleep.paths.record)?;
            self.leave_asleep(&asleep)?;
        }
        if let Some(shared) = shared {
            remove(&shared.paths.record)?;
            self.leave(shared)?;
        }
        if let Some(paths) = self.disk_paths.as_ref().filter(|_| began_on_disk) {
            remove(&paths.record)?;
            remove(&paths.log)?;
        }
        Ok(())
    }
}
