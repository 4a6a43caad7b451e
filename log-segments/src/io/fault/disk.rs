//! The state of the simulated machine: files, what of them is durable, and what only seems so.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Counts;
use super::image::{Image, PAGE};
use super::inject::{Kind, Rules, Verdict};
use super::rng::Rng;

/// A change of a file that is not known to be durable.
#[derive(Clone, Debug)]
pub(super) enum Unsynced {
    Write {
        offset: u64,
        bytes: Arc<[u8]>,
        direct: bool,
    },
    SetLen(u64),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// What power loss leaves at least.
    pub(super) durable: Image,
    /// What a reader sees.
    pub(super) current: Image,
    /// Changes since the last sync, oldest first.
    pub(super) unsynced: Vec<Unsynced>,
    /// Blocks whose allocation is durable: overwriting them changes no metadata.
    pub(super) allocated: BTreeSet<u64>,
    /// How it has been written: `Some(true)` with `O_DIRECT`.
    pub(super) direct: Option<bool>,
}

/// What is done at a read, once.
pub(super) type Meanwhile = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub(super) struct Disk {
    pub(super) rng: Rng,
    pub(super) rules: Rules,
    pub(super) counts: Counts,
    pub(super) magic: u64,
    /// One flush of the device covers direct writes to durably allocated blocks of all files.
    pub(super) one_flush: bool,
    pub(super) direct_refused: bool,
    pub(super) cold: bool,
    pub(super) inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    pub(super) files: BTreeMap<PathBuf, u64>,
    pub(super) durable_files: BTreeMap<PathBuf, u64>,
    pub(super) dirs: BTreeSet<PathBuf>,
    pub(super) durable_dirs: BTreeSet<PathBuf>,
    /// For the read after so many more.
    pub(super) meanwhile: Arc<Mutex<Option<(u64, Meanwhile)>>>,
}

/// The file system that is simulated unless told otherwise: ext4.
pub(super) const EXT4_MAGIC: u64 = 0xEF53;

impl Disk {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            rules: Rules::default(),
            counts: Counts::default(),
            magic: EXT4_MAGIC,
            one_flush: true,
            direct_refused: false,
            cold: false,
            inodes: BTreeMap::new(),
            next_inode: 1,
            files: BTreeMap::new(),
            durable_files: BTreeMap::new(),
            dirs: BTreeSet::new(),
            durable_dirs: BTreeSet::new(),
            meanwhile: Arc::default(),
        }
    }

    /// What is to be done before this read.
    pub(super) fn meanwhile(&self) -> Option<Meanwhile> {
        let mut meanwhile = self.meanwhile.lock();
        let now = meanwhile.take_if(|(reads, _)| {
            let is_now = *reads == 0;
            *reads = reads.saturating_sub(1);
            is_now
        });
        now.map(|(_, then)| then)
    }

    pub(super) fn gate(&mut self, path: &Path, kind: Kind) -> Verdict {
        match kind {
            Kind::Read(_) => self.counts.reads += 1,
            Kind::Write(_) => self.counts.writes += 1,
            Kind::Sync => self.counts.syncs += 1,
            Kind::Open => self.counts.opens += 1,
            Kind::Other => {}
        }
        let mut verdict = self.rules.judge(&path.to_string_lossy(), kind);
        if let (Verdict::Short(len, _), true) = (&mut verdict, self.rules.stopped()) {
            // Stopped in the middle of a write: any part of it may have happened.
            *len = self.rng.below(*len as u64 + 1) as usize;
        }
        verdict
    }

    /// For operations that either happen or do not.
    pub(super) fn gate_plain(&mut self, path: &Path) -> io::Result<()> {
        self.gate(path, Kind::Other).plain()
    }

    pub(super) fn is_dir(&self, path: &Path) -> bool {
        // What no test made itself, such as `/` or a working directory, is taken to exist.
        path.parent().is_none() || path.as_os_str().is_empty() || self.dirs.contains(path)
    }

    pub(super) fn create(&mut self, path: &Path) -> u64 {
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, Inode::default());
        self.files.insert(path.to_owned(), id);
        id
    }

    pub(super) fn write(
        &mut self,
        id: u64,
        path: &Path,
        offset: u64,
        mut bytes: Vec<u8>,
        direct: bool,
    ) -> io::Result<()> {
        let (len, error) = match self.gate(path, Kind::Write(bytes.len())) {
            Verdict::Go => (bytes.len(), None),
            Verdict::Garble => {
                let middle = bytes.len() / 2;
                bytes.iter_mut().skip(middle).take(1).for_each(|b| *b ^= 1);
                (bytes.len(), None)
            }
            Verdict::Short(len, error) => (len, Some(error)),
            Verdict::Fail(error) | Verdict::LoseSync(error) => (0, Some(error)),
        };
        let inode = self.inode(id)?;
        match inode.direct {
            Some(was) if was != direct && len > 0 => {
                return Err(io::Error::other(format!(
                    "{} is written both through the page cache and around it",
                    path.display()
                )));
            }
            _ if len > 0 => inode.direct = Some(direct),
            _ => {}
        }
        if len > 0 {
            inode.current.write(offset, &bytes[..len]);
            inode.unsynced.push(Unsynced::Write {
                offset,
                bytes: bytes[..len].into(),
                direct,
            });
        }
        error.map_or(Ok(()), Err)
    }

    pub(super) fn inode(&mut self, id: u64) -> io::Result<&mut Inode> {
        self.inodes
            .get_mut(&id)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn set_len(&mut self, id: u64, path: &Path, len: u64) -> io::Result<()> {
        self.gate_plain(path)?;
        let inode = self.inode(id)?;
        inode.current.set_len(len);
        inode.unsynced.push(Unsynced::SetLen(len));
        Ok(())
    }

    /// Syncs one file and flushes the device.
    pub(super) fn sync(&mut self, id: u64, path: &Path) -> io::Result<()> {
        match self.gate(path, Kind::Sync) {
            Verdict::Go | Verdict::Garble => {}
            Verdict::LoseSync(error) => {
                self.lose(id);
                self.lose_cache_of_device();
                return Err(error);
            }
            Verdict::Fail(error) | Verdict::Short(_, error) => return Err(error),
        }
        self.inode(id)?.settle();
        if self.files.get(path) == Some(&id) {
            // Syncing a new file makes its own name durable, as ext4 and xfs do; not its directory's.
            self.durable_files.insert(path.to_owned(), id);
        }
        self.flush_device();
        Ok(())
    }

    pub(super) fn sync_all(&mut self, path: &Path) -> io::Result<()> {
        match self.gate(path, Kind::Sync) {
            Verdict::Go | Verdict::Garble => {}
            Verdict::LoseSync(error) => {
                for id in self.inodes.keys().copied().collect::<Vec<_>>() {
                    self.lose(id);
                }
                return Err(error);
            }
            Verdict::Fail(error) | Verdict::Short(_, error) => return Err(error),
        }
        self.inodes.values_mut().for_each(Inode::settle);
        self.durable_files = self.files.clone();
        self.durable_dirs = self.dirs.clone();
        Ok(())
    }

    fn flush_device(&mut self) {
        if self.one_flush {
            self.inodes.values_mut().for_each(Inode::settle_overwrites);
        }
    }

    /// A failed sync: some of the unsynced data is on the disk, the rest is in memory only and
    /// marked clean.
    fn lose(&mut self, id: u64) {
        let Some(inode) = self.inodes.get_mut(&id) else {
            return;
        };
        for change in std::mem::take(&mut inode.unsynced) {
            if self.rng.coin() {
                inode.apply(&change);
            }
        }
    }

    /// A failed flush: what went around the page cache was in the device's, whichever file it is of.
    fn lose_cache_of_device(&mut self) {
        for inode in self.inodes.values_mut() {
            let is_there =
                |change: &mut Unsynced| matches!(change, Unsynced::Write { direct, .. } if *direct);
            let lost: Vec<_> = inode.unsynced.extract_if(.., is_there).collect();
            for change in lost {
                if self.rng.coin() {
                    inode.apply(&change);
                }
            }
        }
    }
}

impl Inode {
    /// Makes a change durable.
    pub(super) fn apply(&mut self, change: &Unsynced) {
        match change {
            Unsynced::Write { offset, bytes, .. } => {
                self.durable.write(*offset, bytes);
                self.allocated.extend(blocks(*offset, bytes.len()));
            }
            Unsynced::SetLen(len) => {
                self.durable.set_len(*len);
                self.allocated.split_off(&len.div_ceil(PAGE));
            }
        }
    }

    fn settle(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            self.apply(&change);
        }
    }

    /// What a flush of the device makes durable by itself: direct writes to blocks that were
    /// durably allocated within the durable length.
    fn settle_overwrites(&mut self) {
        if self
            .unsynced
            .iter()
            .any(|change| matches!(change, Unsynced::SetLen(_)))
        {
            return;
        }
        for change in std::mem::take(&mut self.unsynced) {
            let overwrites = match &change {
                Unsynced::Write {
                    offset,
                    bytes,
                    direct: true,
                } => {
                    offset + bytes.len() as u64 <= self.durable.len()
                        && blocks(*offset, bytes.len()).all(|block| self.allocated.contains(&block))
                }
                _ => false,
            };
            if overwrites {
                self.apply(&change);
            } else {
                self.unsynced.push(change);
            }
        }
    }
}

fn blocks(offset: u64, len: usize) -> std::ops::Range<u64> {
    offset / PAGE..(offset + len as u64).div_ceil(PAGE)
}
