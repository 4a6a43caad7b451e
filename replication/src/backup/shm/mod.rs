//! Copies as files on shared memory: they outlive the process, and cost a reboot.
//!
//! ```text
//! DIR/                              on shared memory
//!   LOCK                            locked while a process serves the store; holds its process id
//!   STORE                           format and the random store id, made when the directory was created empty
//!   SEALS                           which epochs have lost their right to write
//!   spare/                          warm memory that belongs to no copy
//!   <stream uuid>/<streamlet>/
//!     <group>.0.log                 laid out as a primary's file; only reserved ranges take memory
//!     <group>.0.copy                what the file is; its presence makes the copy
//! DISK/                             optional: the same without STORE; what was flushed
//! ```

mod copy;
mod dir;
mod record;
mod spare;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_log_segments::layout::{DurableMark, MARK_BYTES, MARK_SLOT_STRIDE};
use kera_protocol::ids::{GroupId, StreamId, StreamletId};
use parking_lot::Mutex;

use super::StartError;
use super::memory::{CopyMemory, CopySpec, Found, Memory, TakenOver};
use super::seals::SealTable;
use crate::faults::Faults;
use crate::ids::{CopyId, Incarnation, StreamletKey};
use copy::ShmCopy;
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
        Self {
            log: dir.join(format!("{}.0.log", copy.group)),
            record: dir.join(format!("{}.0.copy", copy.group)),
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
        })
    }

    fn io<T>(path: &Path, result: io::Result<T>) -> Result<T, StartError> {
        result.map_err(|error| StartError::Io {
            path: path.to_path_buf(),
            error,
        })
    }

    fn open_found(
        &self,
        copies: &mut Vec<Found>,
        seals: &mut SealTable,
        spares: &Arc<Spares>,
        locks: &[Arc<File>],
    ) -> Result<(), StartError> {
        let mut lost = Vec::new();
        for root in [Some(&self.options.dir), self.options.disk.as_ref()] {
            let Some(root) = root else { continue };
            let on_disk = Some(root) == self.options.disk.as_ref();
            for (copy, paths) in Self::io(root, find(root))? {
                // What cannot be read now, for want of descriptors for example, is not damaged.
                let bytes = match fs::read(&paths.record) {
                    Ok(bytes) => Some(bytes),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    Err(error) => return Self::io(&paths.record, Err(error)),
                };
                let log_bytes = match fs::metadata(&paths.log) {
                    Ok(metadata) => metadata.len(),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
                    Err(error) => return Self::io(&paths.log, Err(error)),
                };
                let spec = bytes.and_then(|bytes| record::decode(&bytes));
                let same =
                    |spec: &CopySpec| spec.copy.streamlet == copy.0 && spec.copy.group == copy.1;
                let mut spec = match spec.filter(same) {
                    // Touching a mapping beyond a file that was cut short would end the process.
                    Some(spec) if log_bytes >= spec.group_bytes() => spec,
                    damaged => {
                        if paths.record.exists() {
                            // There was a copy, and what it held is not known any more.
                            tracing::warn!(
                                record = %paths.record.display(),
                                readable = damaged.is_some(),
                                "a copy is lost: its files do not fit each other"
                            );
                            lost.push(copy);
                            // Stored before the traces go: the next start must not find it absent.
                            if seals.free(copy.0, copy.1) {
                                Self::io(root, self.store_seals(seals))?;
                            }
                        }
                        let _ = fs::remove_file(&paths.record);
                        let _ = fs::remove_file(&paths.log);
                        continue;
                    }
                };
                if on_disk && copies.iter().any(|found| found.spec.copy == spec.copy) {
                    continue;
                }
                if on_disk && lost.contains(&copy) {
                    // More may have been in memory than was flushed: it says nothing of its length
                    // any more, and counts for a closed group alone.
                    spec.incarnation = Incarnation::default();
                    let kept = dir::replace(&paths.record, &record::encode(&spec), true);
                    Self::io(&paths.record, kept)?;
                }
                let found = self.open_one(spec, paths, on_disk, spares, locks);
                copies.push(Self::io(root, found)?);
            }
        }
        Ok(())
    }

    fn open_one(
        &self,
        spec: CopySpec,
        paths: Paths,
        on_disk: bool,
        spares: &Arc<Spares>,
        locks: &[Arc<File>],
    ) -> io::Result<Found> {
        let disk = self.options.disk.as_ref().map(|d| Paths::of(d, &spec.copy));
        let flushed = match &disk {
            Some(paths) if paths.record.exists() => Some(open_rw(&paths.log)?),
            _ => None,
        };
        let mark = match &flushed {
            Some(file) => read_mark(file, spec.group_bytes())?,
            None => None,
        };
        let (spares, locks) = (spares.clone(), locks.to_vec());
        let (memory, reserved): (Arc<dyn CopyMemory>, u64) = if on_disk {
            let copy = ShmCopy::on_disk(spec, flushed, disk, spares, locks);
            (Arc::new(copy), 0)
        } else {
            let file = open_rw(&paths.log)?;
            let reserved = file.metadata()?.blocks() * 512;
            let copy = ShmCopy::found(spec, file, paths, flushed, disk, spares, locks)?;
            (Arc::new(copy), reserved)
        };
        Ok(Found {
            spec,
            memory,
            reserved,
            mark,
        })
    }
}

impl Memory for ShmMemory {
    fn take_over(&self, faults: &Faults) -> Result<TakenOver, StartError> {
        let dir = &self.options.dir;
        let mut locks = vec![dir::lock(dir)?];
        dir::check_size(dir, self.options.quota)?;
        let store_id = dir::identity(dir)?;
        let mut seals = dir::read_seals(dir)?;
        if let Some(disk) = &self.options.disk {
            locks.push(dir::lock(disk)?);
            seals.merge(&dir::read_seals(disk)?);
        }
        if faults.seals_forgotten_at_restart {
            seals = SealTable::default();
        }
        let mut copies = Vec::new();
        let spares = Spares::new(dir, self.options.quota);
        let spares = Arc::new(Self::io(dir, spares)?);
        self.open_found(&mut copies, &mut seals, &spares, &locks)?;
        let found: u64 = copies.iter().map(|found| found.reserved).sum();
        spares.grow(found);
        *self.locks.lock() = locks;
        *self.spares.lock() = Some(spares);
        Ok(TakenOver {
            incarnation: Incarnation {
                store_id,
                boot_id: dir::boot_id(),
            },
            seals,
            copies,
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
            dir::replace(&paths.record, &record::encode(spec), false)?;
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

    fn store_seals(&self, seals: &SealTable) -> io::Result<()> {
        let bytes = seals.encode();
        dir::replace(&self.options.dir.join(dir::SEALS), &bytes, true)?;
        if let Some(disk) = &self.options.disk {
            dir::replace(&disk.join(dir::SEALS), &bytes, true)?;
        }
        Ok(())
    }
}

fn open_rw(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
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

type FoundFiles = Vec<((StreamletKey, GroupId), Paths)>;

/// The groups of which `root` holds a file. What is named like nothing of a store's is left alone.
fn find(root: &Path) -> io::Result<FoundFiles> {
    let mut out = FoundFiles::new();
    for (stream, dir) in children(root)? {
        let Ok(stream) = stream.parse::<StreamId>() else {
            continue;
        };
        for (streamlet, dir) in children(&dir)? {
            let Ok(streamlet) = streamlet.parse::<u32>() else {
                continue;
            };
            let key = StreamletKey {
                stream,
                streamlet: StreamletId(streamlet),
            };
            let names = children(&dir)?;
            let group = |name: &str| name.split_once('.')?.0.parse::<u64>().ok();
            let mut groups: Vec<u64> = names.iter().filter_map(|(name, _)| group(name)).collect();
            groups.sort_unstable();
            groups.dedup();
            out.extend(groups.into_iter().map(|group| {
                let paths = Paths {
                    log: dir.join(format!("{group}.0.log")),
                    record: dir.join(format!("{group}.0.copy")),
                };
                ((key, GroupId(group)), paths)
            }));
        }
    }
    Ok(out)
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
