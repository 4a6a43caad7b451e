//! Copies as files on shared memory: they outlive the process, and cost a reboot.
//!
//! ```text
//! DIR/                              on shared memory
//!   LOCK                            locked while a process serves the store; holds its process id
//!   STORE                           format and the random store id, made when the directory was created empty
//!   SEALS, SEALS.new                which epochs have lost their right to write, and room for the next of it
//!   spare/                          warm memory that belongs to no copy
//!   <stream uuid>/<streamlet>/
//!     <group>.<generation>.log      laid out as a primary's file; only reserved ranges take memory
//!     <group>.<generation>.copy     what the file is, and how much of it the disk alone has; its presence
//!                                   makes the copy
//!     <group>.<generation>.*.damaged  what could not be used, set aside; nobody reads it
//! DISK/                             optional: the same, with an id of its own in STORE; what was flushed
//! ```
//! A replica that was opened in the life of the disk (`boot_id` is nil) outlives shared memory: what was flushed
//! of it counts at the next start, whatever there was besides.

mod copy;
mod dir;
mod disk;
mod extents;
mod record;
mod replica_mapping;
mod shared;
mod spare;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use kera_log_segments::io::{is_broken_file, volatile_file_system};
use kera_log_segments::layout::{DurableMark, MARK_BYTES, MARK_SLOT_STRIDE};
use kera_protocol::ids::{GroupId, StreamId, StreamletId};
use parking_lot::Mutex;
use uuid::Uuid;

use super::StartError;
use super::memory::{CopyMemory, CopySpec, Found, Hidden, Memory, TakenOver, is_full};
use super::seals::SealTable;
use crate::faults::Faults;
use crate::ids::{CopyId, Incarnation, StreamletKey};
use copy::{Asleep, ShmCopy};
use record::Kept;
pub use replica_mapping::Took;
use replica_mapping::{Look, look_at};
use spare::Spares;

/// Where a store lies.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// Its directory, on shared memory (`/dev/shm/...`). On another file system it works and is
    /// slower; what it holds unsynced still counts for one boot only.
    pub dir: PathBuf,
    /// Where copies are flushed to; `None` keeps them in memory until they are freed.
    pub disk: Option<PathBuf>,
    /// Bytes the file system must be able to hold, or the store does not start.
    pub quota: u64,
}

/// Files on shared memory.
#[derive(Debug)]
pub struct ShmMemory {
    options: ShmOptions,
    /// Held by every copy as well, so that no successor starts while bytes can still be placed.
    locks: Mutex<Vec<Arc<File>>>,
    spares: Mutex<Option<Arc<Spares>>>,
    /// The disk's directory, open since the start so that no failure of its file system is missed.
    disk: Mutex<Option<Arc<File>>>,
    took: Mutex<Took>,
}

/// Where the files of one copy lie.
#[derive(Clone, Debug)]
struct Paths {
    log: PathBuf,
    record: PathBuf,
}

impl Paths {
    fn of(root: &Path, copy: &CopyId) -> Self {
        let dir = root
            .join(copy.streamlet.stream.to_string())
            .join(copy.streamlet.streamlet.to_string());
        Self::at(&dir, copy.group, copy.generation)
    }

    fn at(dir: &Path, group: GroupId, generation: u32) -> Self {
        Self {
            log: dir.join(format!("{group}.{generation}.log")),
            record: dir.join(format!("{group}.{generation}.copy")),
        }
    }
}

impl ShmMemory {
    /// A store at `options.dir`; nothing is touched before it is taken over.
    pub fn new(options: ShmOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            locks: Mutex::default(),
            spares: Mutex::default(),
            disk: Mutex::default(),
            took: Mutex::default(),
        })
    }

    /// What it took to take over what was there.
    pub fn took(&self) -> Took {
        *self.took.lock()
    }

    /// Stores something on shared memory; where that is full, spare memory gives way.
    fn with_room(&self, store: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let spares = self.spares.lock().clone();
        loop {
            match store() {
                Err(error)
                    if is_full(&error)
                        && spares.as_ref().is_some_and(|spares| spares.yield_one()) => {}
                other => return other,
            }
        }
    }

    fn io<T>(path: &Path, result: io::Result<T>) -> Result<T, StartError> {
        result.map_err(|error| StartError::Io {
            path: path.to_path_buf(),
            error,
        })
    }

    /// Opens what is there. Copies whose files cannot be used are set aside and count as freed: their
    /// groups are never opened here again, and nobody is told that they never were.
    ///
    /// Of each copy the record is read, and no file stays open: there may be very many.
    fn open_found(
        &self,
        store_id: Uuid,
        seals: &mut SealTable,
        spares: &Arc<Spares>,
        locks: &[Arc<File>],
        hidden: &mut Vec<Hidden>,
    ) -> Result<Vec<Found>, StartError> {
        let took = &mut *self.took.lock();
        // The disk first: what is damaged there must be out of the way before a copy in memory goes
        // on with it.
        let (mut flushed, mut lost) = (BTreeMap::new(), Vec::new());
        let root = &self.options.dir;
        let mut there = Self::io(root, find(root, hidden))?;
        let mut on_disk = match &self.options.disk {
            Some(disk) => Self::io(disk, find(disk, hidden))?,
            None => FoundFiles::new(),
        };
        // What one of the two has of them says nothing without the other, and stays as it is.
        for found in [&mut there, &mut on_disk] {
            found.retain(|((key, ..), _)| !hidden.iter().any(|one| one.is_of(key)));
        }
        for (group, paths, found) in look_at(on_disk, took)? {
            match found {
                Look::Copy { spec, kept, .. } => {
                    flushed.insert(group, (spec, kept.whole, paths));
                }
                Look::Nothing => {}
                Look::Damaged => lost.push((group, paths)),
            }
        }
        let mut copies = Vec::new();
        for (group, paths, found) in look_at(there, took)? {
            match found {
                Look::Copy { spec, kept, bytes } => {
                    let disk = flushed.remove(&group);
                    let fits = disk.as_ref().is_some_and(|(other, ..)| *other == spec);
                    let released = kept.released;
                    if released > 0 {
                        let all = released == record::ALL;
                        let (whole, there) = match disk.as_ref().filter(|_| fits) {
                            Some((_, whole, _)) if all => (*whole, released),
                            Some((_, whole, paths)) => {
                                took.opened += 1;
                                (*whole, released_there(&spec, paths)?)
                            }
                            None => (false, 0),
                        };
                        if (all && !whole) || (!all && there < released) {
                            // The disk has lost what it alone had: who was told that it was here is
                            // not told that it never was.
                            lost.extend(disk.map(|(.., paths)| (group, paths)));
                            lost.push((group, paths));
                            continue;
                        }
                        if let (true, Some((.., of_disk))) = (all, &disk) {
                            if bytes.is_some() {
                                // The process ended before its memory went.
                                Self::io(&paths.log, fs::remove_file(&paths.log))?;
                            }
                            let stub = Some(paths.record);
                            let of_disk = of_disk.clone();
                            copies.push(self.on_disk(spec, whole, of_disk, stub, spares, locks));
                            continue;
                        }
                    }
                    // What is damaged or another's on disk begins anew: the bytes are in memory.
                    if let Some((.., paths)) = disk.filter(|_| !fits) {
                        Self::aside(&paths);
                    }
                    if let Some(at) = lost.iter().position(|(other, _)| *other == group) {
                        Self::aside(&lost.remove(at).1);
                    }
                    let mut charged = bytes.unwrap_or_default();
                    if released > 0 {
                        // The process may have ended before that was done.
                        took.opened += 1;
                        charged = Self::io(&paths.log, punched(&paths.log, released))?;
                    }
                    let asleep = Asleep {
                        paths,
                        released,
                        charged,
                        file: Weak::new(),
                    };
                    copies.push(self.in_memory(spec, asleep, fits, spares, locks));
                }
                Look::Nothing => {}
                Look::Damaged => lost.push((group, paths)),
            }
        }
        // Stored before the traces go: the next start must not find them absent.
        let mut changed = false;
        for ((streamlet, group, _), _) in &lost {
            changed |= seals.free(*streamlet, *group);
        }
        if changed {
            Self::io(root, self.store_seals(seals))?;
        }
        for (_, paths) in &lost {
            Self::aside(paths);
        }
        for (_, (mut spec, whole, paths)) in flushed {
            if !whole && !spec.incarnation.is_of_disk() {
                // More was in memory than was flushed: it says nothing of its length any more, and
                // counts for a closed group alone.
                let was = std::mem::take(&mut spec.incarnation);
                // That another store had it is told by its id, at the next start as well, and need not be
                // stored for each of very many copies.
                if was.store_id == store_id {
                    took.stored += 1;
                    let kept = record::rewrite(&paths.record, &spec, Kept::default());
                    Self::io(&paths.record, kept)?;
                }
            }
            copies.push(self.on_disk(spec, whole, paths, None, spares, locks));
        }
        took.copies = copies.len();
        Ok(copies)
    }

    /// The life of what is flushed to the disk with this id.
    fn life_of_disk(&self, disk_id: Option<Uuid>) -> Result<Incarnation, String> {
        let (Some(disk), Some(id)) = (&self.options.disk, disk_id) else {
            return Err("it keeps no replicas on a disk".into());
        };
        match volatile_file_system(disk) {
            Some(kind) => Err(format!(
                "its replicas are flushed to {}, which is {kind}: a loss of power empties it",
                disk.display()
            )),
            None => Ok(Incarnation::of_disk(id)),
        }
    }

    /// Sets the files of a copy aside.
    fn aside(paths: &Paths) {
        tracing::warn!(
            record = %paths.record.display(),
            "a replica cannot be used: its files are damaged or do not fit each other; they are set aside as *.damaged, remove them when you do not need them"
        );
        // The log first: its record stays until both are away.
        for path in [&paths.log, &paths.record] {
            let mut aside = path.as_os_str().to_owned();
            aside.push(".damaged");
            if let Err(error) = fs::rename(path, aside)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "it cannot be set aside");
            }
        }
    }

    /// A copy on shared memory, perhaps with a file on disk.
    fn in_memory(
        &self,
        spec: CopySpec,
        found: Asleep,
        is_flushed: bool,
        spares: &Arc<Spares>,
        locks: &[Arc<File>],
    ) -> Found {
        let disk = self.options.disk.as_ref().map(|d| Paths::of(d, &spec.copy));
        let reserved = found.charged;
        let (spares, locks) = (spares.clone(), locks.to_vec());
        let copy = ShmCopy::found(spec, found, is_flushed, disk, spares, locks);
        Found {
            spec,
            memory: Arc::new(copy),
            reserved,
            mark: None,
            whole: false,
            on_disk: false,
            record: true,
        }
    }

    /// A copy on disk alone; `stub` is its record on shared memory, if there still is one.
    fn on_disk(
        &self,
        spec: CopySpec,
        whole: bool,
        paths: Paths,
        stub: Option<PathBuf>,
        spares: &Arc<Spares>,
        locks: &[Arc<File>],
    ) -> Found {
        let (spares, locks) = (spares.clone(), locks.to_vec());
        let record = stub.is_some();
        let copy = ShmCopy::on_disk(spec, paths, stub, spares, locks);
        Found {
            spec,
            memory: Arc::new(copy),
            reserved: 0,
            mark: None,
            whole,
            on_disk: true,
            record,
        }
    }
}

impl Memory for ShmMemory {
    fn take_over(&self, faults: &Faults) -> Result<TakenOver, StartError> {
        let dir = &self.options.dir;
        let mut locks = vec![dir::lock(dir)?];
        dir::check_size(dir, self.options.quota)?;
        let store_id = dir::identity(dir)?;
        let mut seals = dir::read_seals(dir)?;
        let mut disk_id = None;
        if let Some(disk) = &self.options.disk {
            locks.push(dir::lock(disk)?);
            dir::first_seals(disk)?;
            seals.merge(&dir::read_seals(disk)?);
            disk_id = Some(dir::disk_identity(disk)?);
            *self.disk.lock() = Some(Arc::new(Self::io(disk, File::open(disk))?));
        }
        if faults.seals_forgotten_at_restart() {
            seals.forget_seals();
        }
        let spares = Spares::new(dir, self.options.quota);
        let spares = Arc::new(Self::io(dir, spares)?);
        let begun = Instant::now();
        *self.took.lock() = Took::default();
        let mut hidden = Vec::new();
        let copies = self.open_found(store_id, &mut seals, &spares, &locks, &mut hidden)?;
        tracing::info!(copies = copies.len(), took = ?begun.elapsed(), dir = %dir.display(), "replicas of the last run are taken over");
        let found: u64 = copies.iter().map(|found| found.reserved).sum();
        spares.grow(found);
        *self.locks.lock() = locks;
        *self.spares.lock() = Some(spares);
        Ok(TakenOver {
            incarnation: Incarnation {
                store_id,
                boot_id: kera_log_segments::io::boot_id(),
            },
            disk: self.life_of_disk(disk_id),
            seals,
            copies,
            hidden,
        })
    }

    fn create(&self, spec: &CopySpec) -> io::Result<Arc<dyn CopyMemory>> {
        let paths = Paths::of(&self.options.dir, &spec.copy);
        if let Some(dir) = paths.log.parent() {
            fs::create_dir_all(dir)?;
        }
        let disk = self.options.disk.as_ref().map(|d| Paths::of(d, &spec.copy));
        let locks = self.locks.lock().clone();
        let spares = self.spares.lock().clone();
        let spares = spares.ok_or_else(|| io::Error::other("the store has not started"))?;
        let copy = ShmCopy::create(*spec, paths.clone(), disk, spares, locks);
        // Its presence makes the copy, so it comes last.
        let made = copy.and_then(|copy| {
            let encoded = record::encode(spec, Kept::default());
            self.with_room(|| dir::replace(&paths.record, &encoded, false))?;
            Ok(copy)
        });
        match made {
            Ok(copy) => Ok(Arc::new(copy)),
            Err(error) => {
                let _ = fs::remove_file(&paths.log);
                Err(error)
            }
        }
    }

    fn forget(&self, stream: StreamId) {
        let roots = std::iter::once(&self.options.dir).chain(&self.options.disk);
        for dir in roots.map(|root| root.join(stream.to_string())) {
            let streamlets = fs::read_dir(&dir).into_iter().flatten().flatten();
            // One that is not empty stays: somebody who has not heard may have opened a copy meanwhile.
            streamlets.for_each(|streamlet| drop(fs::remove_dir(streamlet.path())));
            let _ = fs::remove_dir(&dir);
        }
    }

    fn store_seals(&self, seals: &SealTable) -> io::Result<()> {
        self.with_room(|| dir::write_seals(&self.options.dir, seals))?;
        if let Some(disk) = &self.options.disk {
            dir::write_seals(disk, seals)?;
        }
        Ok(())
    }

    fn sync_disk(&self) -> io::Result<()> {
        let disk = self.disk.lock().clone();
        let disk = disk.ok_or(io::ErrorKind::Unsupported)?;
        Ok(rustix::fs::syncfs(&disk)?)
    }

    fn own_bytes(&self) -> u64 {
        dir::own_bytes(&self.options.dir)
    }
}

/// Whether an error is of one file of a replica, which is told: it keeps no store from starting.
fn is_broken(path: &Path, error: &io::Error) -> bool {
    let is_broken = is_broken_file(error);
    if is_broken {
        tracing::warn!(path = %path.display(), %error, "a file of a replica cannot be made out");
    }
    is_broken
}

/// How much of a copy its file on disk has, by its own mark.
fn released_there(spec: &CopySpec, paths: &Paths) -> Result<u64, StartError> {
    let mark = File::open(&paths.log).and_then(|file| read_mark(&file, spec.group_bytes()));
    let mark = match mark {
        Err(error) if is_broken(&paths.log, &error) => None,
        mark => ShmMemory::io(&paths.log, mark)?,
    };
    Ok(mark.map_or(0, |mark| mark.synced))
}

/// Gives what lies below `released` of a file back to the system; the bytes of memory that it has then.
fn punched(path: &Path, released: u64) -> io::Result<u64> {
    let file = File::options().read(true).write(true).open(path)?;
    extents::punch(&file, 0, released)?;
    Ok(file.metadata()?.blocks() * 512)
}

fn read_mark(file: &File, group_bytes: u64) -> io::Result<Option<DurableMark>> {
    use std::os::unix::fs::FileExt;
    let mut slots = [[0u8; MARK_BYTES]; 2];
    for (index, slot) in slots.iter_mut().enumerate() {
        let at = group_bytes + index as u64 * MARK_SLOT_STRIDE;
        match file.read_exact_at(slot, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(DurableMark::newest(&slots[0], &slots[1]))
}

/// Which copy files are named for: its streamlet, group and generation.
type Name = (StreamletKey, GroupId, u32);

type FoundFiles = Vec<(Name, Paths)>;

/// The copies of which `root` holds a file. What is named like nothing of a store's is left alone.
/// A directory that cannot be made out is told of, and what may be in it is `hidden`.
fn find(root: &Path, hidden: &mut Vec<Hidden>) -> io::Result<FoundFiles> {
    let mut out = FoundFiles::new();
    for (stream, dir) in children(root)? {
        let Ok(stream) = stream.parse::<StreamId>() else {
            continue;
        };
        let Some(streamlets) = children_if_whole(&dir)? else {
            hidden.push(Hidden {
                stream,
                streamlet: None,
            });
            continue;
        };
        for (streamlet, dir) in streamlets {
            let Ok(streamlet) = streamlet.parse::<u32>() else {
                continue;
            };
            let key = StreamletKey {
                stream,
                streamlet: StreamletId(streamlet),
            };
            let Some(names) = children_if_whole(&dir)? else {
                hidden.push(Hidden {
                    stream,
                    streamlet: Some(key.streamlet),
                });
                continue;
            };
            for (name, path) in &names {
                // What a process left that was killed while it stored a record.
                if name.ends_with(".copy.new") {
                    let _ = fs::remove_file(path);
                }
            }
            let group = |name: &str| {
                let (group, rest) = name.split_once('.')?;
                let (generation, kind) = rest.split_once('.')?;
                let of_copy = ["log", "copy"].contains(&kind);
                let named = (group.parse::<u64>().ok()?, generation.parse::<u32>().ok()?);
                Some(named).filter(|_| of_copy)
            };
            let mut groups: Vec<_> = names.iter().filter_map(|(name, _)| group(name)).collect();
            groups.sort_unstable();
            groups.dedup();
            out.extend(groups.into_iter().map(|(group, generation)| {
                let group = GroupId(group);
                let paths = Paths::at(&dir, group, generation);
                ((key, group, generation), paths)
            }));
        }
    }
    Ok(out)
}

/// What is in a directory; `None` if it cannot be made out, and never will be as it is. It keeps no store from starting: of what
/// may be in it nobody is told that it is not here.
fn children_if_whole(dir: &Path) -> io::Result<Option<Vec<(String, PathBuf)>>> {
    match children(dir) {
        Err(error) if is_broken_file(&error) => {
            tracing::error!(dir = %dir.display(), %error, "a directory of replicas cannot be made out: this broker starts without what is in it, and takes no replicas of its streamlet. Others have replicas of the same groups; check the file system, put the directory right or remove it, and start the broker again");
            Ok(None)
        }
        listed => listed.map(Some),
    }
}

fn children(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The next level is looked into, files only at the last.
        out.push((name, entry.path()));
    }
    Ok(out)
}
