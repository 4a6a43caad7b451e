//! What lies on disks and does not outlive a loss of power: contents of files since their last flush, and names since
//! the last flush of their directories.
//!
//! Of names it is kept how each change is undone. A loss of power does so with some, as the dice say. A flush of a new
//! file makes its own name durable, as on ext4 and xfs, and not that of its directory.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::contents::{Changed, DiskContents};
use super::world::{me, set_me};
use crate::dice::Dice;

/// A change of names.
enum Change {
    Made(PathBuf),
    /// The file is kept under another name, which no machine knows. A directory has none.
    Removed(PathBuf, Option<PathBuf>),
    /// From one name to another, and what had that name before.
    Renamed(PathBuf, PathBuf, Option<PathBuf>),
}

struct Named {
    period: u64,
    /// The directory whose flush makes it durable.
    dir: u64,
    /// The new file whose flush makes its name durable, as on ext4 and xfs.
    file: Option<u64>,
    change: Change,
}

#[derive(Default)]
struct Machine {
    contents: DiskContents,
    names: Vec<Named>,
}

/// What flushes make durable: all that was changed before they began.
pub(super) struct Flush {
    machine: u32,
    period: u64,
    /// `None`: everything.
    inode: Option<u64>,
}

/// What all machines have not flushed.
pub(super) struct Unflushed {
    /// Where removed files are kept.
    saved: PathBuf,
    last_saved: u64,
    machines: BTreeMap<u32, Machine>,
    /// Ends where a flush begins.
    period: u64,
}

/// Does `work` with files as they are, outside the simulation.
fn really<T>(work: impl FnOnce() -> T) -> T {
    let mine = me();
    set_me(0);
    let done = work();
    set_me(mine);
    done
}

/// The machine on whose disk a file lies: `…/b2/data/…` is on that of 2.
pub(super) fn machine_of(path: &Path) -> Option<u32> {
    let mut below = path.ancestors();
    below.find_map(|dir| {
        let above = dir.ends_with(ON_DISK).then(|| dir.parent())??;
        above.file_name()?.to_str()?.strip_prefix('b')?.parse().ok()
    })
}

/// What a machine keeps on its disk lies below a directory of this name. The rest is in its memory.
const ON_DISK: &str = "data";

/// Where the file lies; nowhere if it has no name any more.
pub(super) fn path_of(fd: RawFd) -> PathBuf {
    really(|| fs::read_link(format!("/proc/self/fd/{fd}"))).unwrap_or_default()
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.ino())
}

fn parent(path: &Path) -> Option<u64> {
    inode(path.parent()?)
}

pub(super) fn metadata(fd: RawFd) -> Option<Metadata> {
    // SAFETY: the descriptor is open, and is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    file.metadata().ok()
}

impl Unflushed {
    pub(super) fn new(saved: PathBuf) -> Self {
        Self {
            saved,
            last_saved: 0,
            machines: BTreeMap::new(),
            period: 0,
        }
    }

    /// Contents of a file are about to change.
    pub(super) fn changes(&mut self, fd: RawFd, changed: Changed) {
        let path = path_of(fd);
        let Some(machine) = machine_of(&path) else {
            return;
        };
        // The descriptor may be for writing alone.
        let read = really(|| File::open(format!("/proc/self/fd/{fd}")));
        self.keep(machine, read, changed)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn keep(&mut self, machine: u32, file: io::Result<File>, changed: Changed) -> io::Result<()> {
        let period = self.period;
        let contents = &mut self.machine(machine).contents;
        really(|| contents.keep(&file?, changed, period))
    }

    /// A file is about to be opened with `flags`: whether that makes it, if it succeeds.
    pub(super) fn opens(&mut self, path: &Path, flags: i32) -> bool {
        let Some(machine) = machine_of(path) else {
            return false;
        };
        let is_there = really(|| path.exists());
        if is_there && flags & libc::O_TRUNC != 0 {
            let file = really(|| File::open(path));
            let kept = self.keep(machine, file, Changed::Cut(0));
            kept.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        !is_there && flags & libc::O_CREAT != 0
    }

    /// A file or a directory was made.
    pub(super) fn made(&mut self, path: &Path) {
        if let (Some(machine), Some(dir)) = (machine_of(path), really(|| parent(path))) {
            let made = really(|| inode(path));
            // Another file may have had the number.
            if let Some(made) = made {
                self.machine(machine).contents.forget(made);
            }
            let file = made.filter(|_| really(|| !path.is_dir()));
            self.named(machine, (dir, file), Change::Made(path.to_owned()));
        }
    }

    /// A name is about to go, or to become that of something else: what it is kept under, if it is a file's.
    pub(super) fn saves(&mut self, path: &Path) -> Option<PathBuf> {
        machine_of(path)?;
        self.last_saved += 1;
        let aside = self.saved.join(self.last_saved.to_string());
        really(|| fs::hard_link(path, &aside)).ok().map(|()| aside)
    }

    /// What was kept of a name is not needed: it did not go.
    pub(super) fn stays(&self, saved: Option<PathBuf>) {
        if let Some(saved) = saved {
            discard(&saved);
        }
    }

    pub(super) fn removed(&mut self, path: &Path, saved: Option<PathBuf>) {
        if let (Some(machine), Some(dir)) = (machine_of(path), really(|| parent(path))) {
            let change = Change::Removed(path.to_owned(), saved);
            self.named(machine, (dir, None), change);
        }
    }

    pub(super) fn renamed(&mut self, from: &Path, to: &Path, replaced: Option<PathBuf>) {
        if let (Some(machine), Some(dir)) = (machine_of(to), really(|| parent(to))) {
            let change = Change::Renamed(from.to_owned(), to.to_owned(), replaced);
            self.named(machine, (dir, None), change);
        }
    }

    fn named(&mut self, machine: u32, (dir, file): (u64, Option<u64>), change: Change) {
        let period = self.period;
        self.machine(machine).names.push(Named {
            period,
            dir,
            file,
            change,
        });
    }

    fn machine(&mut self, machine: u32) -> &mut Machine {
        self.machines.entry(machine).or_default()
    }

    /// A flush of a file or a directory begins, or of `everything` on its disk.
    pub(super) fn flush_begins(&mut self, fd: RawFd, everything: bool) -> Option<Flush> {
        let machine = machine_of(&path_of(fd))?;
        let found = really(|| metadata(fd))?;
        self.period += 1;
        Some(Flush {
            machine,
            period: self.period - 1,
            inode: (!everything).then(|| found.ino()),
        })
    }

    /// A flush has come to its end without an error.
    pub(super) fn flushed(&mut self, flush: &Flush) {
        let machine = self.machine(flush.machine);
        let meant = |inode: u64| flush.inode.is_none_or(|one| one == inode);
        machine.contents.flushed(flush.inode, flush.period);
        let durable = |named: &mut Named| {
            named.period <= flush.period && (meant(named.dir) || named.file.is_some_and(meant))
        };
        for named in machine.names.extract_if(.., durable) {
            if let Change::Removed(_, Some(saved)) | Change::Renamed(_, _, Some(saved)) =
                named.change
            {
                discard(&saved);
            }
        }
    }

    /// The machine has another disk.
    pub(super) fn forget(&mut self, machine: u32) {
        for named in self.machines.remove(&machine).unwrap_or_default().names {
            if let Change::Removed(_, Some(saved)) | Change::Renamed(_, _, Some(saved)) =
                named.change
            {
                discard(&saved);
            }
        }
    }

    /// The power is lost: what is on the disk below `dir` from now on, which nothing runs on. What that changed, in words.
    pub(super) fn lose(&mut self, machine: u32, dir: &Path, dice: &mut Dice) -> Vec<String> {
        let Machine { contents, names } = self.machines.remove(&machine).unwrap_or_default();
        really(|| {
            let mut told = Vec::new();
            let kept = how_many(names.len(), dice);
            if kept < names.len() {
                told.push(format!("{} of {} names", names.len() - kept, names.len()));
            }
            for (at, named) in names.into_iter().enumerate().rev() {
                settle(named.change, at >= kept);
            }
            let mut paths = Vec::new();
            below(dir, &mut paths);
            paths.sort();
            for path in paths {
                match contents.bring_back(&path, dice) {
                    Ok(None) => {}
                    Ok(Some(text)) => {
                        let name = path.strip_prefix(dir).unwrap_or(&path);
                        told.push(format!("{}: {text}", name.display()));
                    }
                    Err(error) => panic!("{}: {error}", path.display()),
                }
            }
            told
        })
    }
}

fn discard(saved: &Path) {
    // Only the room that it takes depends on it.
    let _ = really(|| fs::remove_file(saved));
}

/// How many of these outlive a loss of power: all, none, or the first so many.
fn how_many(all: usize, dice: &mut Dice) -> usize {
    match dice.below(10) {
        0..=3 => all,
        4..=6 => 0,
        _ => dice.below(all as u64 + 1) as usize,
    }
}

/// Undoes a change of names, or lets it be. What is not there any more was changed by what is durable.
fn settle(change: Change, is_undone: bool) {
    let saved = match &change {
        Change::Removed(_, saved) | Change::Renamed(_, _, saved) => saved.clone(),
        Change::Made(_) => None,
    };
    if is_undone {
        let _ = match &change {
            Change::Made(path) if path.is_dir() => fs::remove_dir(path),
            Change::Made(path) => fs::remove_file(path),
            Change::Removed(path, Some(saved)) => fs::hard_link(saved, path),
            Change::Removed(path, None) => fs::create_dir(path),
            Change::Renamed(from, to, replaced) => fs::rename(to, from).and_then(|()| {
                let replaced = replaced.as_ref();
                replaced.map_or(Ok(()), |replaced| fs::hard_link(replaced, to))
            }),
        };
    }
    if let Some(saved) = saved {
        discard(&saved);
    }
}

fn below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => below(&path, found),
            false => found.push(path),
        }
    }
}

/// Bytes that several parts have together.
///
/// # Safety
/// `parts` points to `count` of them.
pub(super) unsafe fn bytes_of(parts: *const libc::iovec, count: i32) -> u64 {
    // SAFETY: as the caller promises.
    let parts = (0..count.max(0) as usize).map(|at| unsafe { (*parts.add(at)).iov_len as u64 });
    parts.sum()
}
