//! What a crash leaves behind.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, Inode, Unsynced};
use super::image::{Image, PAGE};
use super::rng::Rng;

/// The unit that a disk writes whole or not at all, in bytes.
const SECTOR: u64 = 512;

/// What crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashHow {
    /// The process (`kill -9`): every completed write survives in the page cache, unsynced still.
    Kill,
    /// The machine: unsynced writes and names are dropped, torn at sectors and reordered by seed.
    PowerLoss,
}

/// A crash.
#[derive(Clone, Debug)]
pub struct CrashPlan {
    /// Decides everything left to chance.
    pub seed: u64,
    /// What crashes.
    pub how: CrashHow,
    /// Shown where a file grew and its bytes did not reach the disk, in place of zeros: repeated
    /// from the file's start on. Empty for zeros, as good file systems show.
    pub stale: Vec<u8>,
    /// Bits to flip anywhere in the files that survive.
    pub random_flips: u32,
    /// Bits to flip; those that no file has are passed over.
    pub flips: Vec<Flip>,
    /// Bytes to plant; those for files that do not survive are passed over.
    pub plants: Vec<Plant>,
}

impl CrashPlan {
    /// A killed process.
    pub fn kill() -> Self {
        Self {
            seed: 0,
            how: CrashHow::Kill,
            stale: Vec::new(),
            random_flips: 0,
            flips: Vec::new(),
            plants: Vec::new(),
        }
    }

    /// Power loss, by seed.
    pub fn power_loss(seed: u64) -> Self {
        Self {
            seed,
            how: CrashHow::PowerLoss,
            ..Self::kill()
        }
    }
}

/// A bit of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// The file.
    pub path: PathBuf,
    /// Its byte.
    pub offset: u64,
    /// The bit in the byte, 0 to 7.
    pub bit: u8,
}

/// Bytes to put into a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plant {
    /// The file.
    pub path: PathBuf,
    /// Where.
    pub offset: u64,
    /// What.
    pub bytes: Vec<u8>,
}

impl Disk {
    pub(super) fn after_crash(&self, plan: &CrashPlan) -> (Disk, Vec<Flip>) {
        let mut rng = Rng::new(plan.seed ^ 0x6b65_7261);
        let mut disk = self.clone();
        disk.rules.clear();
        disk.counts = Default::default();
        if plan.how == CrashHow::PowerLoss {
            disk.lose_names(&mut rng);
            for inode in disk.inodes.values_mut() {
                inode.lose_power(&mut rng, &plan.stale);
            }
        }
        for inode in disk.inodes.values_mut() {
            inode.direct = None;
        }
        // A file that nobody can name or hold any more is gone.
        let named: std::collections::BTreeSet<u64> = disk.files.values().copied().collect();
        disk.inodes.retain(|id, _| named.contains(id));
        for plant in &plan.plants {
            let _ = disk.plant(&plant.path, plant.offset, &plant.bytes);
        }
        for flip in &plan.flips {
            let _ = disk.flip(flip);
        }
        let flips = disk.flip_randomly(&mut rng, plan.random_flips);
        disk.rng = rng;
        (disk, flips)
    }

    /// Makes the names in `dir` durable as they are.
    pub(super) fn sync_names(&mut self, dir: &Path) {
        let within = |path: &Path| path.parent() == Some(dir);
        self.durable_files.retain(|path, _| !within(path));
        self.durable_files.extend(
            self.files
                .iter()
                .filter(|(path, _)| within(path))
                .map(|(p, id)| (p.clone(), *id)),
        );
        // A directory whose removal is durable took everything in it along.
        let gone: Vec<PathBuf> = self
            .durable_dirs
            .iter()
            .filter(|path| within(path) && !self.dirs.contains(*path))
            .cloned()
            .collect();
        for top in gone {
            self.durable_dirs.retain(|path| !path.starts_with(&top));
            self.durable_files.retain(|path, _| !path.starts_with(&top));
        }
        self.durable_dirs
            .extend(self.dirs.iter().filter(|path| within(path)).cloned());
    }

    fn lose_names(&mut self, rng: &mut Rng) {
        let mut dirs = self.durable_dirs.clone();
        for dir in self.dirs.symmetric_difference(&self.durable_dirs) {
            if rng.coin() {
                dirs.insert(dir.clone());
            } else {
                dirs.remove(dir);
            }
        }
        let mut files: BTreeMap<PathBuf, u64> = BTreeMap::new();
        let paths: std::collections::BTreeSet<&PathBuf> =
            self.files.keys().chain(self.durable_files.keys()).collect();
        for path in paths {
            let (now, durable) = (self.files.get(path), self.durable_files.get(path));
            let found = if now == durable || rng.coin() {
                now
            } else {
                durable
            };
            if let Some(id) = found {
                files.insert(path.clone(), *id);
            }
        }
        let reachable = |path: &Path| {
            path.ancestors()
                .skip(1)
                .all(|dir| dir.parent().is_none() || dirs.contains(dir))
        };
        let kept: Vec<PathBuf> = dirs.iter().filter(|dir| reachable(dir)).cloned().collect();
        files.retain(|path, _| reachable(path));
        self.dirs = kept.into_iter().collect();
        self.durable_dirs = self.dirs.clone();
        self.files = files;
        self.durable_files = self.files.clone();
    }

    pub(super) fn plant(&mut self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let id = *self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        let inode = self.inode(id)?;
        inode.current.write(offset, bytes);
        inode.durable.write(offset, bytes);
        // Unsynced changes are older than what is planted.
        for change in &mut inode.unsynced {
            if let Unsynced::Write {
                offset: at,
                bytes: old,
                ..
            } = change
            {
                let mut new = old.to_vec();
                let from = offset.max(*at);
                let to = (offset + bytes.len() as u64).min(*at + new.len() as u64);
                if from < to {
                    new[(from - *at) as usize..(to - *at) as usize]
                        .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
                    *old = Arc::from(new);
                }
            }
        }
        Ok(())
    }

    pub(super) fn flip(&mut self, flip: &Flip) -> io::Result<()> {
        let id = *self.files.get(&flip.path).ok_or(io::ErrorKind::NotFound)?;
        let mut byte = [0];
        if self.inode(id)?.current.read(flip.offset, &mut byte) == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.plant(&flip.path, flip.offset, &[byte[0] ^ (1 << (flip.bit & 7))])
    }

    fn flip_randomly(&mut self, rng: &mut Rng, count: u32) -> Vec<Flip> {
        // Only where something was written: a flip in a hole of gigabytes would hit nothing.
        let mut pages: Vec<(PathBuf, u64, u64)> = Vec::new();
        for (path, id) in &self.files {
            if let Some(inode) = self.inodes.get(id) {
                let len = inode.current.len();
                pages.extend(
                    inode
                        .current
                        .written_pages()
                        .filter(|start| *start < len)
                        .map(|start| (path.clone(), start, (len - start).min(PAGE))),
                );
            }
        }
        let mut flips = Vec::new();
        for _ in 0..count {
            let Some((path, start, len)) = pages.get(rng.below(pages.len() as u64) as usize) else {
                break;
            };
            let flip = Flip {
                path: path.clone(),
                offset: start + rng.below(*len),
                bit: rng.below(8) as u8,
            };
            if self.flip(&flip).is_ok() {
                flips.push(flip);
            }
        }
        flips
    }

    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325;
        for (names, inodes) in [(&self.files, true), (&self.durable_files, false)] {
            for (path, id) in names {
                for byte in path.to_string_lossy().bytes() {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
                if let Some(inode) = self.inodes.get(id) {
                    hash = if inodes {
                        inode.current.fold(hash)
                    } else {
                        inode.durable.fold(hash)
                    };
                }
            }
        }
        for dir in self.dirs.iter().chain(&self.durable_dirs) {
            for byte in dir.to_string_lossy().bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        hash
    }
}

/// How much of a file's unsynced data a power loss leaves.
#[derive(Clone, Copy)]
enum Mercy {
    Nothing,
    Everything,
    /// The first so many changes whole, the next one torn.
    Prefix(usize),
    /// Any version of any sector.
    Scattered,
}

impl Inode {
    fn lose_power(&mut self, rng: &mut Rng, stale: &[u8]) {
        let changes = std::mem::take(&mut self.unsynced);
        if !changes.is_empty() {
            let mercy = match rng.below(4) {
                0 => Mercy::Nothing,
                1 => Mercy::Everything,
                2 => Mercy::Prefix(rng.below(changes.len() as u64) as usize),
                _ => Mercy::Scattered,
            };
            self.survive(&changes, mercy, rng, stale);
        }
        self.current = self.durable.clone();
    }

    fn survive(&mut self, changes: &[Unsynced], mercy: Mercy, rng: &mut Rng, stale: &[u8]) {
        let before = self.durable.clone();
        // Versions of each sector that was touched, oldest first, and of the length.
        let mut sectors: BTreeMap<u64, Vec<[u8; SECTOR as usize]>> = BTreeMap::new();
        let mut lengths = vec![before.len()];
        let mut replay = before.clone();
        let (all, torn) = match mercy {
            Mercy::Nothing => (0, false),
            Mercy::Everything => (changes.len(), false),
            Mercy::Prefix(whole) => (whole, true),
            Mercy::Scattered => (changes.len(), true),
        };
        for (at, change) in changes.iter().enumerate() {
            let Unsynced::Write { offset, bytes, .. } = change else {
                if let Unsynced::SetLen(len) = change
                    && (at < all || (torn && at == all))
                {
                    replay.set_len(*len);
                    lengths.push(*len);
                }
                continue;
            };
            if at > all || (at == all && !torn) {
                break;
            }
            replay.write(*offset, bytes);
            lengths.push(replay.len());
            for sector in offset / SECTOR..(offset + bytes.len() as u64).div_ceil(SECTOR) {
                let mut version = [0; SECTOR as usize];
                replay.get(sector * SECTOR, &mut version);
                let versions = sectors.entry(sector).or_default();
                let scattered = matches!(mercy, Mercy::Scattered);
                if at < all && !scattered {
                    versions.clear();
                    versions.push(version);
                } else if scattered || rng.coin() {
                    versions.push(version);
                }
            }
        }
        let len = match mercy {
            Mercy::Nothing => before.len(),
            Mercy::Everything => replay.len(),
            Mercy::Prefix(_) | Mercy::Scattered => {
                lengths[rng.below(lengths.len() as u64) as usize]
            }
        };
        let scattered = matches!(mercy, Mercy::Scattered);
        for (sector, versions) in sectors {
            let start = sector * SECTOR;
            let choice = if scattered {
                rng.below(versions.len() as u64 + 1) as usize
            } else {
                versions.len()
            };
            match choice.checked_sub(1).and_then(|at| versions.get(at)) {
                Some(version) => {
                    self.durable.put(start, version);
                    self.allocated.insert(start / PAGE);
                }
                None if start >= before.len() && !stale.is_empty() => {
                    let shown: Vec<u8> = (start..start + SECTOR)
                        .map(|at| stale[at as usize % stale.len()])
                        .collect();
                    self.durable.put(start, &shown);
                }
                None => {}
            }
        }
        self.durable.cut(len);
    }
}

impl Image {
    /// Sets the length and clears whatever was put beyond it.
    fn cut(&mut self, len: u64) {
        self.set_len(u64::MAX);
        self.set_len(len);
    }
}
