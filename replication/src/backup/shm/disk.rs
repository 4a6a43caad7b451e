//! A copy's file on disk: read through the page cache, and written past it where the file system lets
//! it be, since a copy is hardly ever read. Once nothing of it is written any more it has no descriptor,
//! so that the system's limit of those does not bound the copies that lie on a disk. Copying into the page cache, and finding pages for it,
//! costs several times as much as handing the device what is there.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use kera_log_segments::io::{AlignedBuf, BLOCK_BYTES};
use kera_log_segments::layout::{DurableMark, FOOTER_OFFSET};
use parking_lot::Mutex;

/// Bytes written at once.
const AT_ONCE: usize = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A copy's file on disk.
#[derive(Debug)]
pub(super) struct Disk {
    cached: Cached,
    /// Writes past the page cache, in whole blocks.
    direct: Option<File>,
    /// Something was written through the page cache: all that follows goes the same way.
    is_cached: AtomicBool,
}

/// How the file is had.
#[derive(Debug)]
enum Cached {
    Open(Arc<File>),
    /// Opened when somebody asks for it; whoever does so meanwhile gets the same.
    Named {
        path: PathBuf,
        open: Mutex<Weak<File>>,
    },
}

impl Disk {
    /// A new file for a copy of a group of so many bytes, and its marks.
    pub(super) fn create(path: &Path, group_bytes: u64) -> io::Result<Self> {
        let cached = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        cached.set_len(group_bytes + FOOTER_OFFSET)?;
        // Marks stand in blocks of their own where the group ends on a block.
        let direct = group_bytes.is_multiple_of(BLOCK).then(|| {
            File::options()
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(path)
        });
        Ok(Self {
            cached: Cached::Open(Arc::new(cached)),
            // Refused by some file systems.
            direct: direct.and_then(Result::ok),
            is_cached: AtomicBool::new(false),
        })
    }

    /// A file that is there and is opened only while somebody uses it.
    pub(super) fn named(path: PathBuf) -> Self {
        Self {
            cached: Cached::Named {
                path,
                open: Mutex::default(),
            },
            direct: None,
            is_cached: AtomicBool::new(true),
        }
    }

    /// For readers.
    pub(super) fn file(&self) -> io::Result<Arc<File>> {
        match &self.cached {
            Cached::Open(file) => Ok(file.clone()),
            Cached::Named { path, open } => {
                let mut open = open.lock();
                if let Some(file) = open.upgrade() {
                    return Ok(file);
                }
                let file = Arc::new(File::options().read(true).write(true).open(path)?);
                *open = Arc::downgrade(&file);
                Ok(file)
            }
        }
    }

    /// Writes bytes that are not taken from memory.
    pub(super) fn place(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.is_cached.store(true, Ordering::Release);
        self.file()?.write_all_at(bytes, at)
    }

    /// Copies `from..to` of `source`; what it holds beyond is not looked at. All below `from` was copied
    /// before.
    pub(super) fn copy(&self, source: &File, from: u64, to: u64) -> io::Result<()> {
        let mut at = from / BLOCK * BLOCK;
        let bytes = to.saturating_sub(at).min(AT_ONCE as u64);
        let mut buf = AlignedBuf::zeroed(bytes as usize);
        while at < to {
            let len = buf.len().min((to - at) as usize);
            source.read_exact_at(&mut buf[..len], at)?;
            self.write(&mut buf, len, at)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Makes what was written survive power loss.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    /// Writes the mark into its slot.
    pub(super) fn mark(&self, mark: &DurableMark, group_bytes: u64) -> io::Result<()> {
        let encoded = mark.encode();
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        block[..encoded.len()].copy_from_slice(&encoded);
        self.write(&mut block, encoded.len(), mark.slot_offset(group_bytes))
    }

    /// Writes the first `len` bytes of `buf` at `at`, which is where a block begins; where it goes past
    /// the page cache the rest of the last block becomes zeros.
    fn write(&self, buf: &mut AlignedBuf, len: usize, at: u64) -> io::Result<()> {
        let direct = self.direct.as_ref();
        if let Some(direct) = direct.filter(|_| !self.is_cached.load(Ordering::Acquire)) {
            let whole = len.next_multiple_of(BLOCK_BYTES);
            buf[len..whole].fill(0);
            match direct.write_all_at(&buf[..whole], at) {
                // A device of larger blocks, or a file system that keeps to its cache.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                other => return other,
            }
        }
        self.place(&buf[..len], at)
    }
}
