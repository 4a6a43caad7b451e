//! Files and the engines that move bytes to and from them.
//!
//! One trait, [`Io`], stands between the log and the operating system. It has three engines:
//!
//! * `uring` submits a batch of operations to the kernel at once through io_uring; it pays off for
//!   `O_DIRECT` and for cold reads.
//! * `blocking` uses plain system calls, and a few short-lived threads where many operations of a
//!   batch would wait for the device.
//! * `fault` (feature `testing`) is an in-memory file system that forgets, tears, reorders and refuses by seed, for
//!   tests.
//!
//! Buffered writes do not go through a batch: whoever has bytes to write calls
//! [`File::write_vectored_at`], because on a page cache that is the cheapest call there is.
//!
//! Errors are the operating system's own, with their codes, so that callers can tell a full disk
//! from a broken one; the caller knows the path and names it.

pub mod aligned;
mod blocking;
mod boot;
mod broken;
pub mod direct;
mod engine;
#[cfg(any(test, feature = "testing"))]
pub mod fault;
mod flight;
mod os;
mod perform;
mod sys;
#[cfg(test)]
mod tests;
mod uring;
mod volatile;

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

pub use aligned::{AlignedBuf, BLOCK_BYTES};
pub use boot::boot_id;
pub use broken::is_broken_file;
pub use engine::{EngineKind, open_engine};
pub use uring::LOCKED_BYTES;
pub use volatile::volatile_file_system;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow {
    /// An existing file, for reading only.
    ReadOnly,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A file that must not exist yet, for reading and writing.
    CreateNew,
}

/// Where a file lies: what one flush can cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileSystem {
    /// The device number of the file system.
    pub device: u64,
    /// The file system's magic number as `statfs` gives it.
    pub magic: u64,
}

/// Whether a file is open for `O_DIRECT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directness {
    /// Through the page cache.
    Cached,
    /// Opened with `O_DIRECT`; the kernel does not say whether it keeps to it.
    Unconfirmed,
    /// Opened with `O_DIRECT`, and the kernel confirms that this file bypasses the page cache with
    /// blocks of at most [`BLOCK_BYTES`].
    Confirmed,
}

/// An open file, shared.
pub type FileRef = Arc<dyn File>;

/// What can be read at any place, which is all that a scan needs.
#[allow(clippy::len_without_is_empty)] // a length that must be asked for is not a collection's
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Fills as much of `buf` as the file has from `offset` on; returns the bytes read.
    ///
    /// # Errors
    /// The operating system's error.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The file's length.
    ///
    /// # Errors
    /// The operating system's error.
    fn len(&self) -> io::Result<u64>;
}

/// An open file. All offsets and lengths are in bytes.
///
/// A file opened direct takes only block-aligned offsets, lengths and buffers (see
/// [`AlignedBuf`]); [`direct::DirectFile`] wraps one into a file that takes any.
pub trait File: ReadAt {
    /// Writes all of `bufs` at `offset`, or fails; on failure any part may have been written.
    ///
    /// # Errors
    /// The operating system's error, such as a full disk.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// As [`ReadAt::read_at`], but `None` where it would have to wait for the device, or where that
    /// cannot be told.
    ///
    /// # Errors
    /// The operating system's error.
    fn try_read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>>;

    /// Makes everything written to this file before survive power loss, with the size and the
    /// extents needed to read it back.
    ///
    /// # Errors
    /// The operating system's error. What was written since the last success counts as lost then:
    /// the kernel may have dropped it, and a second call may succeed without having written it.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes everything written before to any file of this file system survive power loss.
    ///
    /// # Errors
    /// As for [`File::sync_data`].
    fn sync_file_system(&self) -> io::Result<()>;

    /// Cuts the file or extends it by zeros.
    ///
    /// # Errors
    /// The operating system's error.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Writes a range of the page cache to the device and waits for that: not durable before
    /// [`Self::sync_data`], which then has less to do. Does nothing where it is not supported.
    ///
    /// # Errors
    /// The operating system's error. It may be told this once, and not by a sync that follows.
    fn write_back(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The file system this file lies on.
    ///
    /// # Errors
    /// The operating system's error.
    fn file_system(&self) -> io::Result<FileSystem>;

    /// Whether the file is open for `O_DIRECT`.
    fn directness(&self) -> Directness {
        Directness::Cached
    }

    /// The descriptor an engine may submit operations on; `None` for files that are not the
    /// operating system's, which engines serve through the other methods.
    fn raw_fd(&self) -> Option<RawFd> {
        None
    }

    /// The file as a [`direct::DirectFile`], if it is one.
    fn as_direct(&self) -> Option<&direct::DirectFile> {
        None
    }
}

/// Writes what stands in `from..to` of a file once more, so that the next sync brings it to the device even if an
/// earlier one failed: the kernel takes such bytes for clean. It may also have dropped them and read older ones
/// back, so that the bytes have to be checked before or after.
///
/// # Errors
/// The store's; `UnexpectedEof` if the file is shorter.
pub fn rewrite(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    let mut bytes = vec![0; REWRITTEN_AT_ONCE.min(to.saturating_sub(from) as usize)];
    while at < to {
        let want = bytes.len().min((to - at) as usize);
        let got = file.read_at(&mut bytes[..want], at)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_vectored_at(&[IoSlice::new(&bytes[..got])], at)?;
        at += got as u64;
    }
    Ok(())
}

/// Bytes that [`rewrite`] holds at once.
const REWRITTEN_AT_ONCE: usize = 1 << 20;

/// One operation of a batch; owns its buffers until it is done.
#[derive(Debug)]
pub enum Op {
    /// Writes `bufs`, one after the other, at `offset`.
    Write {
        /// The file.
        file: FileRef,
        /// Where the first buffer goes.
        offset: u64,
        /// What to write.
        bufs: Vec<Bytes>,
    },
    /// Writes all of `buf` at `offset`, a multiple of [`BLOCK_BYTES`].
    WriteDirect {
        /// The file, opened direct.
        file: FileRef,
        /// Where the buffer goes.
        offset: u64,
        /// What to write: whole blocks.
        buf: AlignedBuf,
        /// Bytes of the buffer to write, a multiple of [`BLOCK_BYTES`].
        len: usize,
    },
    /// Writes `len` zero bytes at `offset`; both multiples of [`BLOCK_BYTES`].
    WriteZeros {
        /// The file, opened direct or not.
        file: FileRef,
        /// Where the zeros go.
        offset: u64,
        /// How many.
        len: usize,
    },
    /// Reads up to `len` bytes from `offset` into `buf`; fewer only at the end of the file.
    Read {
        /// The file.
        file: FileRef,
        /// Where to read.
        offset: u64,
        /// Where the bytes go.
        buf: AlignedBuf,
        /// How many bytes, at most the buffer's length.
        len: usize,
    },
    /// [`File::sync_data`], of everything completed before and of all that stands before it in the batch.
    SyncData {
        /// The file.
        file: FileRef,
    },
    /// [`File::sync_file_system`], likewise.
    SyncFileSystem {
        /// Any file of the file system.
        file: FileRef,
    },
}

impl Op {
    /// Syncs wait for what stands before them, and what stands after waits for them.
    fn is_sync(&self) -> bool {
        matches!(self, Op::SyncData { .. } | Op::SyncFileSystem { .. })
    }

    fn file(&self) -> &FileRef {
        match self {
            Op::Write { file, .. }
            | Op::WriteDirect { file, .. }
            | Op::WriteZeros { file, .. }
            | Op::Read { file, .. }
            | Op::SyncData { file }
            | Op::SyncFileSystem { file } => file,
        }
    }
}

/// What became of an operation, with the buffers it owned.
#[derive(Debug)]
pub struct Done {
    /// Bytes moved, 0 for a sync; a write that succeeds has written everything.
    pub result: io::Result<usize>,
    /// The buffer of a direct write or a read.
    pub buf: Option<AlignedBuf>,
    /// The buffers of a vectored write.
    pub bufs: Vec<Bytes>,
}

impl Done {
    fn of(op: Op, result: io::Result<usize>) -> Self {
        match op {
            Op::Write { bufs, .. } => Self {
                result,
                buf: None,
                bufs,
            },
            Op::WriteDirect { buf, .. } | Op::Read { buf, .. } => Self {
                result,
                buf: Some(buf),
                bufs: Vec::new(),
            },
            Op::WriteZeros { .. } | Op::SyncData { .. } | Op::SyncFileSystem { .. } => Self {
                result,
                buf: None,
                bufs: Vec::new(),
            },
        }
    }
}

/// A file system and a way to move bytes: the operating system's files, unless an engine has its own.
pub trait Io: Send + Sync + 'static {
    /// The engine's name, for logs.
    fn name(&self) -> &'static str;

    /// Makes a directory and those above it; does nothing if it exists.
    ///
    /// # Errors
    /// The operating system's error.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        os::create_dir_all(dir)
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// The operating system's error.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        os::list(dir)
    }

    /// Removes a file; its removal is durable after [`Io::sync_dir`].
    ///
    /// # Errors
    /// The operating system's error.
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    /// Gives a file another name, in place of what has that name; durable after [`Io::sync_dir`].
    ///
    /// # Errors
    /// The operating system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    /// Removes a directory and everything in it.
    ///
    /// # Errors
    /// The operating system's error.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(dir)
    }

    /// Makes the creation and removal of a directory's entries survive power loss.
    ///
    /// # Errors
    /// The operating system's error.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        os::sync_dir(dir)
    }

    /// Whether a file or directory of this name is there.
    fn exists(&self, path: &Path) -> bool {
        os::exists(path)
    }

    /// Opens a file, with `O_DIRECT` if `direct`.
    ///
    /// # Errors
    /// The operating system's error; `Unsupported` or `InvalidInput` where the file system does not
    /// do `O_DIRECT` with blocks of [`BLOCK_BYTES`]. A file that was to be created does not exist then.
    fn open(&self, path: &Path, how: OpenHow, direct: bool) -> io::Result<FileRef> {
        os::open(path, how, direct)
    }

    /// Performs a batch and returns when all of it is complete, in the order given.
    ///
    /// Operations may be performed in any order, so no two of them may touch the same bytes; a sync
    /// waits for all that stands before it in the batch and holds back all that stands after it.
    /// Each operation fails on its own. The calling thread is blocked meanwhile.
    fn run(&self, ops: Vec<Op>) -> Vec<Done>;

    /// An aligned buffer of at least `len` bytes, from the engine's registered memory while that
    /// lasts. Its contents are unspecified.
    fn buffer(&self, len: usize) -> AlignedBuf {
        AlignedBuf::zeroed(len)
    }
}
