//! Memory that was given back and is warm: the first touch of a fresh page costs several times what
//! it costs to receive into it.
//!
//! A copy that ends leaves its file under another name; its bytes are made zeros there, and the next
//! copy of the same size takes it over under keys of its own. A start removes what it finds here.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::mapping::Mapping;

/// The directory of files that belong to no copy.
pub(super) const SPARE: &str = "spare";
/// Files kept at most.
const MAX_FILES: usize = 256;

/// A file of zeros, some of whose ranges have memory.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) file: Arc<File>,
    pub(super) mapping: Mapping,
    pub(super) group_bytes: u64,
    /// Sorted, apart from each other.
    pub(super) ranges: Vec<(u64, u64)>,
    path: PathBuf,
}

impl Spare {
    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(from, to)| to - from).sum()
    }
}

/// Whether a file is as long as it was made.
fn is_whole(file: &File, group_bytes: u64) -> bool {
    file.metadata().is_ok_and(|file| file.len() >= group_bytes)
}

/// The spare files of a store, which take no more than its quota leaves.
#[derive(Debug)]
pub(super) struct Spares {
    dir: PathBuf,
    quota: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    files: Vec<Spare>,
    /// Memory of files that belong to copies.
    used: u64,
    next: u64,
}

impl Inner {
    fn held(&self) -> u64 {
        self.used + self.files.iter().map(Spare::bytes).sum::<u64>()
    }

    fn drop_oldest(&mut self) -> bool {
        if self.files.is_empty() {
            return false;
        }
        let spare = self.files.remove(0);
        // Its memory goes with its last name and its mapping; a name that stays is removed at the
        // next start.
        let _ = fs::remove_file(&spare.path);
        true
    }
}

impl Spares {
    /// None yet; removes what an earlier process left.
    pub(super) fn new(store: &Path, quota: u64) -> io::Result<Self> {
        let dir = store.join(SPARE);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(&dir)?;
        Ok(Self {
            dir,
            quota,
            inner: Mutex::default(),
        })
    }

    /// A file for a copy of this size, renamed to `path`; `None` if there is no such spare one.
    pub(super) fn take(&self, group_bytes: u64, path: &Path) -> io::Result<Option<Spare>> {
        let mut inner = self.inner.lock();
        // The last one is the warmest.
        let found = inner
            .files
            .iter()
            .rposition(|f| f.group_bytes == group_bytes);
        let Some(at) = found else { return Ok(None) };
        let spare = inner.files.remove(at);
        if !is_whole(&spare.file, group_bytes) {
            let _ = fs::remove_file(&spare.path);
            return Ok(None);
        }
        inner.used += spare.bytes();
        drop(inner);
        fs::rename(&spare.path, path)?;
        Ok(Some(spare))
    }

    /// Makes room for `bytes` that a copy is about to take.
    pub(super) fn grow(&self, bytes: u64) {
        let mut inner = self.inner.lock();
        inner.used += bytes;
        while inner.held() > self.quota && inner.drop_oldest() {}
    }

    /// The copy did not get `bytes` after all, or has given them back to the system.
    pub(super) fn shrink(&self, bytes: u64) {
        let mut inner = self.inner.lock();
        inner.used = inner.used.saturating_sub(bytes);
    }

    /// Gives the oldest spare file's memory to whoever finds the file system full; false if there
    /// is none.
    pub(super) fn yield_one(&self) -> bool {
        self.inner.lock().drop_oldest()
    }

    /// Takes the file of a copy that is no more. It is no copy's as soon as it has another name.
    pub(super) fn put(
        &self,
        file: Arc<File>,
        mut mapping: Mapping,
        ranges: Vec<(u64, u64)>,
        group_bytes: u64,
        path: &Path,
    ) -> io::Result<()> {
        let bytes: u64 = ranges.iter().map(|(from, to)| to - from).sum();
        let aside = {
            let mut inner = self.inner.lock();
            inner.used = inner.used.saturating_sub(bytes);
            inner.next += 1;
            self.dir.join(inner.next.to_string())
        };
        fs::rename(path, &aside)?;
        let zeroed = ranges
            .iter()
            .try_for_each(|(from, to)| mapping.zero(*from as usize, (to - from) as usize));
        if zeroed.is_err() || !is_whole(&file, group_bytes) {
            // Cut short by somebody else: it is of no use to another copy.
            return fs::remove_file(&aside);
        }
        let spare = Spare {
            file,
            mapping,
            group_bytes,
            ranges,
            path: aside,
        };
        let mut inner = self.inner.lock();
        inner.files.push(spare);
        while inner.files.len() > MAX_FILES || inner.held() > self.quota {
            if !inner.drop_oldest() {
                break;
            }
        }
        Ok(())
    }
}
