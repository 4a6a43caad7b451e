//! Many files made durable with one flush: how `synced` streams are written.
//!
//! A sync of each of a thousand files costs a thousand waits for the device. Yet a sync does two
//! different things: it makes a file's blocks reachable (size, extents: a transaction of the file
//! system) and it empties the device's cache. Where a block is allocated and written already,
//! overwriting it with `O_DIRECT` changes nothing that has to be reachable, and the bytes are in the
//! device when the write completes; then **one** flush of the device makes the overwrites of all
//! files durable, and a `fdatasync` of any file of that file system flushes the device.
//!
//! So a [`DirectFile`] writes zeros at most 1 MiB ahead of its end (more the faster it grows, and
//! only when something is written), and [`DirectWriter::write_and_sync`] writes all ranges of a round
//! through [`Io::run`], then syncs only the files that allocated blocks in this round, or one of them
//! all if none did. `fallocate` would not do: the first write to such a block changes the extent from
//! unwritten to written, which is a transaction again.
//!
//! # Where one flush is enough
//! Only where it was shown, told by the magic number of `statfs`:
//!
//! | file system | what is done | why |
//! |---|---|---|
//! | ext4 (ext2 and ext3 have the same driver and number) | `O_DIRECT`, one flush | `fdatasync` sends a flush to the device even for a file with nothing to write, unless the journal commit it waits for sends one itself (`ext4_sync_file`); and ext4 never moves or shares a block that is written |
//! | xfs | page cache, `fdatasync` of each | it sends the flush likewise (`xfs_file_fsync`), but blocks may be shared (`cp` clones by default), and overwriting a shared block allocates another one, which the file's own sync has to make reachable |
//! | all others | page cache, `fdatasync` of each | btrfs and zfs never overwrite; network and layered file systems promise nothing here; tmpfs has no device |
//!
//! The flush can be counted: the bench `io` of `kera-bench` overwrites one file and syncs another,
//! clean one, a hundred times, and prints how many flushes the device saw. On Linux 6.18 these were
//! 100 on ext4 with a journal, on ext4 without, and on xfs.
//!
//! A file of ext4 that journals its data, or is encrypted, goes through the page cache even with
//! `O_DIRECT`; the kernel says so (`statx`, from Linux 6.1 on), and such a file is treated as any
//! other. Where the kernel is older and cannot say, each file is synced by itself.
//!
//! Where files are synced one by one, the syncs still go out as one batch, so that they share the
//! file system's commits. `syncfs` would be a little faster for a thousand files, but it would also
//! wait for whatever else the page cache holds, which on a broker may be gigabytes.

mod extents;
mod file;
mod layout;
mod round;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::{FileRef, Io, OpenHow};

pub use file::DirectFile;

/// The magic number of ext2, ext3 and ext4.
const EXT4_MAGIC: u64 = 0xEF53;

/// Whether a flush on behalf of one file makes completed overwrites of all others durable.
fn one_flush_covers_all(magic: u64) -> bool {
    magic == EXT4_MAGIC
}

/// Bytes for one place in one file.
#[derive(Debug)]
pub struct DirectRange {
    /// A file from [`DirectWriter::open`], or any other.
    pub file: FileRef,
    /// Where the bytes go.
    pub offset: u64,
    /// The bytes, one buffer after the other.
    pub bufs: Vec<Bytes>,
}

impl DirectRange {
    /// A range.
    pub fn new(file: FileRef, offset: u64, bufs: Vec<Bytes>) -> Self {
        Self { file, offset, bufs }
    }
}

/// Writes ranges of many files and makes them durable together.
pub struct DirectWriter {
    io: Arc<dyn Io>,
}

impl DirectWriter {
    /// A writer over an engine.
    pub fn new(io: Arc<dyn Io>) -> Self {
        Self { io }
    }

    /// Opens a file in the way that [`DirectWriter::write_and_sync`] makes durable at least cost: a
    /// [`DirectFile`] where one flush is enough for many of them, through the page cache elsewhere.
    ///
    /// Bytes are appended below `stage_limit`, and zeros written ahead of them there; what stands
    /// beyond is written at fixed places.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn open(&self, path: &Path, how: OpenHow, stage_limit: u64) -> io::Result<FileRef> {
        let direct = match self.io.open(path, how, true) {
            Ok(file) => file,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput
                ) =>
            {
                return self.io.open(path, how, false);
            }
            Err(error) => return Err(error),
        };
        if one_flush_covers_all(direct.file_system()?.magic) {
            return Ok(Arc::new(DirectFile::over(
                self.io.clone(),
                direct,
                stage_limit,
            )?));
        }
        drop(direct);
        let again = if how == OpenHow::CreateNew {
            OpenHow::ReadWrite
        } else {
            how
        };
        self.io.open(path, again, false)
    }

    /// Writes all ranges and makes them durable; returns a result for each, in their order.
    ///
    /// Where ranges of one file overlap, each other or what was written before, the bytes must
    /// agree. Files that are no [`DirectFile`] are written as they are and synced each by itself.
    /// When a range fails, all ranges of its file fail; other files go on. The calling thread is
    /// blocked meanwhile; calls from several threads are safe, on the same files too.
    pub fn write_and_sync(&self, ranges: Vec<DirectRange>) -> Vec<io::Result<()>> {
        round::Round::new(&*self.io, &ranges).run()
    }
}

impl fmt::Debug for DirectWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectWriter")
            .field("engine", &self.io.name())
            .finish()
    }
}
