//! One chunk: a single writer that appends, and readers of what it has published.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::{CHUNK_BYTES, Shared};

/// A chunk's memory and how much of it is published; goes back to the pool when dropped.
struct Chunk {
    pool: Arc<Shared>,
    index: u32,
    base: NonNull<u8>,
    /// Bytes `[0, published)` are initialised and never change while the chunk lives.
    published: AtomicUsize,
}

// SAFETY: bytes below `published` are immutable; those at or above it are touched only by the one
// `ChunkWriter`, which is neither `Clone` nor reachable from a reader. The Release store and the
// Acquire load of `published` order the copy before every read.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn published(&self) -> usize {
        self.published.load(Ordering::Acquire)
    }

    fn bytes(&self, range: Range<usize>) -> &[u8] {
        let published = self.published();
        assert!(
            range.start <= range.end && range.end <= published,
            "range {range:?} lies beyond the {published} bytes published in the chunk"
        );
        // SAFETY: the range is within the chunk's CHUNK_BYTES and below `published`, so it is
        // initialised and immutable for as long as this chunk lives, which the borrow ensures.
        unsafe { std::slice::from_raw_parts(self.base.add(range.start).as_ptr(), range.len()) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.free.put(self.index);
    }
}

/// The one writer of a chunk.
///
/// Append-only: nothing a reader can see is ever rewritten. Bytes can be
/// [staged](ChunkWriter::stage) and patched before they are [published](ChunkWriter::publish);
/// [`ChunkWriter::append`] does both at once. Staged bytes that are never published vanish with
/// the writer.
pub struct ChunkWriter {
    chunk: Arc<Chunk>,
    staged: usize,
}

impl ChunkWriter {
    pub(super) fn new(pool: Arc<Shared>, index: u32) -> Self {
        let base = pool.region.at(index as usize * CHUNK_BYTES);
        Self {
            chunk: Arc::new(Chunk {
                pool,
                index,
                base,
                published: AtomicUsize::new(0),
            }),
            staged: 0,
        }
    }

    /// Bytes written, staged ones included.
    pub fn len(&self) -> usize {
        self.staged
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.staged == 0
    }

    /// Bytes that still fit.
    pub fn remaining(&self) -> usize {
        CHUNK_BYTES - self.staged
    }

    /// Copies as much of `bytes` as fits, publishes it together with anything staged before, and
    /// returns how many bytes were taken.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let taken = self.stage(bytes);
        self.publish();
        taken
    }

    /// Copies as much of `bytes` as fits, without letting readers see it yet, and returns how many
    /// bytes were taken.
    pub fn stage(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.remaining());
        // SAFETY: `[staged, staged + taken)` lies within the chunk and above `published`, where
        // this writer alone has access; `bytes` is a reference to initialised memory, and it
        // cannot overlap a range that no reference points into.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.chunk.base.add(self.staged).as_ptr(),
                taken,
            );
        }
        self.staged += taken;
        taken
    }

    /// Overwrites staged bytes at `at`, an offset in the chunk.
    ///
    /// # Panics
    /// If the range is not wholly staged and unpublished.
    pub fn patch(&mut self, at: usize, bytes: &[u8]) {
        let published = self.chunk.published.load(Ordering::Relaxed);
        assert!(
            at >= published && at <= self.staged && bytes.len() <= self.staged - at,
            "patch of {} bytes at {at} leaves the staged range {published}..{}",
            bytes.len(),
            self.staged
        );
        // SAFETY: the range is staged and above `published`: this writer alone has access to it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.chunk.base.add(at).as_ptr(),
                bytes.len(),
            );
        }
    }

    /// Lets readers see everything staged so far.
    pub fn publish(&mut self) {
        self.chunk.published.store(self.staged, Ordering::Release);
    }

    /// A reader of this chunk.
    pub fn reader(&self) -> ChunkReader {
        ChunkReader {
            chunk: self.chunk.clone(),
        }
    }
}

impl std::fmt::Debug for ChunkWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkWriter")
            .field("chunk", &self.chunk.index)
            .field("staged", &self.staged)
            .field("published", &self.chunk.published())
            .finish()
    }
}

/// A reader of a chunk; holds the chunk's memory as long as it lives.
#[derive(Clone)]
pub struct ChunkReader {
    chunk: Arc<Chunk>,
}

impl ChunkReader {
    /// Bytes published so far; only ever grows.
    pub fn len(&self) -> usize {
        self.chunk.published()
    }

    /// Whether nothing is published yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The published bytes of `range`, without a copy; the slice holds the chunk's memory.
    ///
    /// # Panics
    /// If the range reaches beyond [`ChunkReader::len`].
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        // Checked here, so that the owner's `as_ref` cannot panic.
        let _ = self.chunk.bytes(range.clone());
        Bytes::from_owner(Slice {
            chunk: self.chunk.clone(),
            range,
        })
    }

    /// The published bytes of `range`, borrowed.
    ///
    /// # Panics
    /// If the range reaches beyond [`ChunkReader::len`].
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.chunk.bytes(range)
    }
}

impl std::fmt::Debug for ChunkReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkReader")
            .field("chunk", &self.chunk.index)
            .field("published", &self.len())
            .finish()
    }
}

/// The owner behind the `Bytes` of [`ChunkReader::slice`].
struct Slice {
    chunk: Arc<Chunk>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self.chunk.bytes(self.range.clone())
    }
}
