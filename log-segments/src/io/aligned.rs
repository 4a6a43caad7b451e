//! Buffers that `O_DIRECT` accepts.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

/// The block of direct I/O in bytes: offsets, lengths and addresses are multiples of it.
pub const BLOCK_BYTES: usize = 4096;

/// Zeros to write from, a whole number of blocks.
pub(super) static ZEROS: Zeros = Zeros([0; ZERO_BYTES]);

const ZERO_BYTES: usize = 64 * 1024;

#[repr(C, align(4096))]
pub(super) struct Zeros(pub(super) [u8; ZERO_BYTES]);

/// An owned buffer of whole, aligned blocks.
///
/// Comes from the heap ([`AlignedBuf::zeroed`]) or from an engine's registered memory
/// ([`super::Io::buffer`]), to which it returns when dropped.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    home: Home,
}

enum Home {
    Heap,
    Arena { arena: Arc<Arena>, slot: u32 },
}

// SAFETY: the buffer owns its memory exclusively, as a `Box<[u8]>` does.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` gives only `&[u8]`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of zeros; `len` is rounded up to whole blocks, at least one.
    ///
    /// # Panics
    /// If `len` is within a block of `isize::MAX`; aborts when memory is exhausted, as `Vec` does.
    pub fn zeroed(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(BLOCK_BYTES);
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            std::alloc::handle_alloc_error(layout)
        };
        Self {
            start,
            len,
            home: Home::Heap,
        }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, BLOCK_BYTES).expect("buffer length fits the address space")
    }

    /// Whether the buffer lies in `arena`.
    pub(super) fn is_in(&self, arena: &Arc<Arena>) -> bool {
        matches!(&self.home, Home::Arena { arena: home, .. } if Arc::ptr_eq(home, arena))
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start..start + len` is initialised (it was zeroed) and owned by this buffer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match &self.home {
            // SAFETY: allocated by `zeroed` with this layout.
            Home::Heap => unsafe {
                std::alloc::dealloc(self.start.as_ptr(), Self::layout(self.len))
            },
            Home::Arena { arena, slot } => arena.free.lock().push(*slot),
        }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// One mapping cut into equal slots, so that an engine can register it with the kernel once.
pub(super) struct Arena {
    start: NonNull<u8>,
    slots: u32,
    slot_bytes: usize,
    free: Mutex<Vec<u32>>,
}

// SAFETY: the arena hands each slot to one `AlignedBuf` at a time and touches none of them itself.
unsafe impl Send for Arena {}
// SAFETY: as above; the free list is behind a lock.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `slots` slots of `slot_bytes`, a multiple of the block; memory is used on first touch.
    pub(super) fn new(slots: u32, slot_bytes: usize) -> io::Result<Arc<Self>> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        assert!(slots > 0 && slot_bytes > 0 && slot_bytes.is_multiple_of(BLOCK_BYTES));
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                slots as usize * slot_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self {
            start,
            slots,
            slot_bytes,
            free: Mutex::new((0..slots).rev().collect()),
        }))
    }

    /// A free slot, if `len` fits into one and one is left.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<AlignedBuf> {
        if len > self.slot_bytes {
            return None;
        }
        let slot = self.free.lock().pop()?;
        // SAFETY: `slot` is below `slots`, so the address lies within the mapping.
        let start = unsafe { self.start.add(slot as usize * self.slot_bytes) };
        Some(AlignedBuf {
            start,
            len: self.slot_bytes,
            home: Home::Arena {
                arena: self.clone(),
                slot,
            },
        })
    }

    /// The whole arena, as the kernel wants it for registering.
    pub(super) fn iovec(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start.as_ptr().cast(),
            iov_len: self.slots as usize * self.slot_bytes,
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; every buffer holds the arena, so none is left.
        let _ = unsafe {
            rustix::mm::munmap(
                self.start.as_ptr().cast(),
                self.slots as usize * self.slot_bytes,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_buffers_are_whole_aligned_blocks_of_zeros() {
        for (asked, got) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192)] {
            let buf = AlignedBuf::zeroed(asked);
            assert_eq!(buf.len(), got);
            assert_eq!(buf.as_ptr() as usize % BLOCK_BYTES, 0);
            assert!(buf.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn arena_slots_are_distinct_and_come_back() {
        let arena = Arena::new(2, BLOCK_BYTES).unwrap();
        let mut a = arena.take(10).unwrap();
        let mut b = arena.take(BLOCK_BYTES).unwrap();
        assert!(a.is_in(&arena) && b.is_in(&arena));
        assert!(arena.take(1).is_none(), "both slots are out");
        assert!(arena.take(BLOCK_BYTES + 1).is_none(), "does not fit a slot");
        a.fill(1);
        b.fill(2);
        assert!(a.iter().all(|byte| *byte == 1));
        drop(a);
        assert!(arena.take(1).is_some());
        assert!(!AlignedBuf::zeroed(1).is_in(&arena));
    }
}
