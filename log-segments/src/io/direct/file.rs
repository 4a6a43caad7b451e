//! A file that bypasses the page cache and takes bytes of any alignment.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::layout::{BLOCK, Blocks, Layout, Piece};
use crate::io::{BLOCK_BYTES, Directness, Done, File, FileRef, FileSystem, Io, OpenHow, ReadAt};

/// Bytes of one read at most.
const READ_BYTES: u64 = 256 * 1024;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A file opened with `O_DIRECT` behind the interface of any other: offsets, lengths and buffers
/// need no alignment.
///
/// A partly filled block is written from a private copy, zero-padded, and rewritten whole when more
/// of it comes; no two writes are ever under way on one block. All writes must go through one
/// `DirectFile`: it remembers what it has put into the blocks it shares.
///
/// After a failed write or sync the file takes no more, since it is unknown what it holds; it can
/// still be read.
pub struct DirectFile {
    /// Locks are taken in the order of ids.
    pub(super) id: u64,
    io: Arc<dyn Io>,
    pub(super) inner: FileRef,
    pub(super) file_system: FileSystem,
    /// A flush of the device on behalf of any file covers this one's overwrites.
    pub(super) one_flush: bool,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    blocks: Blocks,
    /// Blocks were allocated since the last sync of this file.
    pub(super) unsynced_blocks: bool,
    failed: Option<(io::ErrorKind, Option<i32>)>,
}

impl State {
    /// Plans the writes of `pieces`, in ascending order.
    pub(super) fn lay_out(
        &mut self,
        io: &dyn Io,
        file: &FileRef,
        pieces: &[Piece<'_>],
    ) -> io::Result<Layout> {
        if let Some(failed) = self.failed {
            return Err(remembered(failed));
        }
        let layout = self.blocks.lay_out(io, file, pieces);
        match &layout {
            Ok(layout) => self.unsynced_blocks |= layout.allocates,
            Err(error) => self.fail(error),
        }
        layout
    }

    /// Takes no more writes from now on.
    pub(super) fn fail(&mut self, error: &io::Error) {
        self.failed
            .get_or_insert((error.kind(), error.raw_os_error()));
    }
}

pub(super) fn remembered((kind, code): (io::ErrorKind, Option<i32>)) -> io::Error {
    match code {
        Some(code) => io::Error::from_raw_os_error(code),
        None => kind.into(),
    }
}

impl DirectFile {
    /// Opens a file with `O_DIRECT`. Zeros are written ahead of appended bytes below `stage_limit`
    /// only; beyond it stand things at fixed places.
    ///
    /// # Errors
    /// As [`Io::open`]'s; `Unsupported` or `InvalidInput` mean that the file system does not do it.
    pub fn open(io: Arc<dyn Io>, path: &Path, how: OpenHow, stage_limit: u64) -> io::Result<Self> {
        let inner = io.open(path, how, true)?;
        Self::over(io, inner, stage_limit)
    }

    pub(super) fn over(io: Arc<dyn Io>, inner: FileRef, stage_limit: u64) -> io::Result<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let file_system = inner.file_system()?;
        let one_flush = super::one_flush_covers_all(file_system.magic)
            && inner.directness() == Directness::Confirmed;
        let blocks = Blocks::new(
            inner.len()?,
            stage_limit,
            id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1,
        );
        let state = State {
            blocks,
            unsynced_blocks: false,
            failed: None,
        };
        Ok(Self {
            id,
            io,
            inner,
            file_system,
            one_flush,
            state: Mutex::new(state),
        })
    }
}

impl fmt::Debug for DirectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectFile")
            .field("inner", &self.inner)
            .field("one_flush", &self.one_flush)
            .finish_non_exhaustive()
    }
}

impl ReadAt for DirectFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let start = at / BLOCK * BLOCK;
            let skip = (at - start) as usize;
            let want = (buf.len() - filled + skip)
                .next_multiple_of(BLOCK_BYTES)
                .min(READ_BYTES as usize);
            let mut blocks = self.io.buffer(want);
            let read = self.inner.read_at(&mut blocks[..want], start)?;
            let some = read.saturating_sub(skip).min(buf.len() - filled);
            buf[filled..filled + some].copy_from_slice(&blocks[skip..skip + some]);
            filled += some;
            if read < want {
                break;
            }
        }
        Ok(filled)
    }

    /// Includes the zeros written ahead.
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
}

impl File for DirectFile {
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let piece = (offset, bufs.iter().map(|buf| &buf[..]).collect());
        let mut state = self.state.lock();
        let layout = state.lay_out(&*self.io, &self.inner, &[piece])?;
        let failed = self
            .io
            .run(layout.ops)
            .into_iter()
            .find_map(|done: Done| done.result.err());
        match failed {
            None => Ok(()),
            Some(error) => {
                state.fail(&error);
                Err(error)
            }
        }
    }

    fn try_read_cached(&self, _buf: &mut [u8], _offset: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if let Some(failed) = state.failed {
            return Err(remembered(failed));
        }
        match self.inner.sync_data() {
            Ok(()) => {
                state.unsynced_blocks = false;
                Ok(())
            }
            Err(error) => {
                state.fail(&error);
                Err(error)
            }
        }
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.inner.sync_file_system()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        // Whatever comes of it, what is remembered of the blocks beyond is void.
        state.blocks.cut(len);
        state.unsynced_blocks = true;
        self.inner.set_len(len)
    }

    fn write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn file_system(&self) -> io::Result<FileSystem> {
        Ok(self.file_system)
    }

    fn directness(&self) -> Directness {
        self.inner.directness()
    }

    fn as_direct(&self) -> Option<&DirectFile> {
        Some(self)
    }
}
