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

use super::super::mapping::Window;

/// Bytes written at once.
const AT_ONCE: usize = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of mapped memory handed to the device at once.
const MAPPED_AT_ONCE: u64 = 4 << 20;

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

    /// Writes `from..to` once more, so that the next sync brings it to the device.
    pub(super) fn renew(&self, from: u64, to: u64) -> io::Result<()> {
        let file = self.file()?;
        let mut buf = vec![0; (to - from).min(AT_ONCE as u64) as usize];
        let mut at = from;
        while at < to {
            let len = buf.len().min((to - at) as usize);
            file.read_exact_at(&mut buf[..len], at)?;
            self.place(&buf[..len], at)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Copies `from..to` of `source`, of which `mapped` may be the beginning; what it holds beyond is not
    /// looked at. All below `from` was copied before.
    pub(super) fn copy(
        &self,
        source: &File,
        mapped: Option<&Window>,
        from: u64,
        to: u64,
    ) -> io::Result<()> {
        let mut at = from / BLOCK * BLOCK;
        if let Some(mapped) = mapped {
            at = self.copy_mapped(mapped, at, to / BLOCK * BLOCK)?;
        }
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

    /// Hands whole blocks from where they are to the device, without a copy in between; how far that went.
    fn copy_mapped(&self, mapped: &Window, mut at: u64, to: u64) -> io::Result<u64> {
        let Some(direct) = &self.direct else {
            return Ok(at);
        };
        while at < to && !self.is_cached.load(Ordering::Acquire) {
            let len = (to - at).min(MAPPED_AT_ONCE) as usize;
            match mapped.write_to(at as usize, len, direct, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                // What is not a whole block is written once more.
                Ok(written) if (written as u64) < BLOCK => break,
                Ok(written) => at += written as u64 / BLOCK * BLOCK,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A device of larger blocks, or a file system that keeps to its cache, or to memory of
                // its own.
                Err(error) if takes_no_mapped(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(at)
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

/// The device cannot be handed memory that is mapped from a file; it may take other memory.
fn takes_no_mapped(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput || error.raw_os_error() == Some(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use rand::RngCore;

    use super::super::super::mapping::Mapping;
    use super::*;

    const BYTES: u64 = 64 * BLOCK;

    /// Brings a copy to its disk little by little, as flushes do, and compares.
    fn copied(disk: &Disk, path: &Path, is_mapped: bool) {
        let source = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
        let source = source.expect("a file");
        let mut bytes = vec![0; BYTES as usize];
        rand::rng().fill_bytes(&mut bytes);
        source.write_all_at(&bytes, 0).expect("room");
        let mapping = Mapping::new(&source, bytes.len()).expect("maps");
        let window = mapping.window(0, bytes.len()).expect("all of it");
        let mapped = is_mapped.then_some(&window);
        let mut at = 0;
        for to in [
            1,
            BLOCK - 1,
            BLOCK,
            BLOCK + 7,
            20 * BLOCK,
            20 * BLOCK,
            BYTES - 3,
            BYTES,
        ] {
            disk.copy(&source, mapped, at, to).expect("it is copied");
            let there = std::fs::read(path).expect("it is read");
            assert_eq!(there[..to as usize], bytes[..to as usize], "{at}..{to}");
            // What is beyond was not looked at.
            assert!(
                there[to as usize..].iter().all(|byte| *byte == 0),
                "{at}..{to}"
            );
            at = to;
        }
    }

    #[test]
    fn a_copy_gets_to_its_disk_whole_whichever_way_it_goes() {
        // Beside the test itself: temporary files may lie in memory, which takes nothing past a cache.
        let here = std::env::current_exe().expect("this test");
        let dir = tempfile::tempdir_in(here.parent().expect("a directory")).expect("room");
        for (number, (is_mapped, is_direct)) in
            [(true, true), (false, true), (true, false), (false, false)]
                .into_iter()
                .enumerate()
        {
            let path = dir.path().join(number.to_string());
            let mut disk = Disk::create(&path, BYTES).expect("a file");
            if !is_direct {
                disk.direct = None;
            }
            copied(&disk, &path, is_mapped);
        }
    }

    #[test]
    fn a_device_that_takes_no_mapped_memory_gets_a_copy_of_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("copy");
        let mut disk = Disk::create(&path, BYTES).expect("a file");
        // Refuses every write: it is open for reading.
        let refuses = File::open(&path).expect("a file");
        let error = refuses.write_at(&[0], 0).expect_err("it does not write");
        assert!(!takes_no_mapped(&error), "this is told: {error}");
        assert!(takes_no_mapped(&io::ErrorKind::InvalidInput.into()));
        assert!(takes_no_mapped(&io::Error::from_raw_os_error(libc::EFAULT)));
        disk.direct = Some(refuses);
        let source = tempfile::tempfile().expect("a file");
        source.set_len(BYTES).expect("sparse");
        let mapping = Mapping::new(&source, BYTES as usize).expect("maps");
        let window = mapping.window(0, BYTES as usize).expect("all of it");
        assert!(disk.copy(&source, Some(&window), 0, BYTES).is_err());
    }
}
