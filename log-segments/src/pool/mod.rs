//! The pool of memory that open segments grow in.
//!
//! A segment's address range is fixed when it is opened, its memory is not: it takes
//! [`CHUNK_BYTES`] at a time, on its first byte, and gives each chunk back when the last reader of
//! it has gone. Chunks are handed out last in, first out, because the first touch of a fresh page
//! costs about twenty times what a copy into a warm one does.
//!
//! The pool reserves address space for its limit once and touches none of it, so an idle broker
//! pays for nothing; [`ChunkPool::give_back_idle`] returns the pages of chunks that stayed free to
//! the operating system.
//!
//! A chunk is append-only and its readers see only what was published, so bytes left behind by a
//! chunk's previous life can never be read.

mod chunk;
mod free_list;
pub mod heap;
mod region;
#[cfg(test)]
mod tests;
mod wait;

use std::io;
use std::sync::Arc;
use std::task::Waker;

use region::Region;

pub use chunk::{ChunkReader, ChunkWriter};
pub use wait::Take;

/// Size of one chunk in bytes.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// The largest limit a pool accepts, in bytes (16 TiB): a mistyped unit should fail at start.
pub const MAX_POOL_BYTES: usize = 1 << 44;

/// A bounded pool of [`CHUNK_BYTES`] chunks; cloning it gives another handle to the same pool.
#[derive(Clone)]
pub struct ChunkPool {
    shared: Arc<Shared>,
}

/// What all handles and all chunks of one pool share.
struct Shared {
    region: Region,
    chunks: u32,
    free: free_list::FreeList,
}

impl ChunkPool {
    /// Reserves address space for `limit_bytes` (rounded down to whole chunks) without touching it.
    ///
    /// # Errors
    /// `InvalidInput` when the limit holds no chunk or exceeds [`MAX_POOL_BYTES`]; the operating
    /// system's error when the address space cannot be reserved.
    pub fn new(limit_bytes: usize) -> io::Result<Self> {
        if limit_bytes < CHUNK_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "chunk pool limit of {limit_bytes} bytes holds no chunk; give it at least {CHUNK_BYTES} bytes"
                ),
            ));
        }
        if limit_bytes > MAX_POOL_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "chunk pool limit of {limit_bytes} bytes is over {MAX_POOL_BYTES}; check its unit"
                ),
            ));
        }
        let chunks = (limit_bytes / CHUNK_BYTES) as u32;
        let region = Region::reserve(chunks as usize * CHUNK_BYTES).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("reserving {limit_bytes} bytes of address space for the chunk pool failed ({error}); lower the limit or allow overcommit"),
            )
        })?;
        Ok(Self {
            shared: Arc::new(Shared {
                region,
                chunks,
                free: free_list::FreeList::new(chunks),
            }),
        })
    }

    /// Takes a free chunk, or `None` when all of the limit is handed out.
    pub fn try_take(&self) -> Option<ChunkWriter> {
        let index = self.shared.free.take()?;
        Some(ChunkWriter::new(self.shared.clone(), index))
    }

    /// Waits for a free chunk, first come, first served among those who wait.
    ///
    /// Dropping the future gives its turn to the next waiter.
    pub fn take(&self) -> Take {
        Take::new(self.clone())
    }

    /// Registers a waker that is woken once, when a chunk comes back.
    ///
    /// Returns `false`, registering nothing, when a chunk is free now: the caller tries again. All
    /// wakers registered this way are woken by the next chunk that comes back; where many may
    /// wait, [`ChunkPool::take`] wakes only as many as there are chunks.
    pub fn on_free(&self, waker: &Waker) -> bool {
        self.shared.free.on_free(waker)
    }

    /// The most bytes the pool hands out.
    pub fn limit(&self) -> usize {
        self.shared.chunks as usize * CHUNK_BYTES
    }

    /// Bytes handed out now: chunks with a writer, a reader or a slice.
    pub fn used(&self) -> usize {
        self.shared.free.used() as usize * CHUNK_BYTES
    }

    /// Bytes that are free yet still hold memory: what [`ChunkPool::give_back_idle`] may return.
    pub fn warm(&self) -> usize {
        self.shared.free.warm() * CHUNK_BYTES
    }

    /// Returns to the operating system the memory of every chunk that has stayed free since the
    /// previous call, and says how many bytes that were.
    ///
    /// Meant for a sweeper: the interval between two calls is how long a free chunk stays warm.
    pub fn give_back_idle(&self) -> usize {
        self.shared.free.give_back_idle(|run| {
            self.shared
                .region
                .give_back(run.start as usize * CHUNK_BYTES, run.len() * CHUNK_BYTES);
        }) * CHUNK_BYTES
    }
}

impl std::fmt::Debug for ChunkPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkPool")
            .field("limit", &self.limit())
            .field("used", &self.used())
            .field("warm", &self.warm())
            .finish()
    }
}
