//! The pool's address range.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

/// A private, anonymous, zero-filled range of memory that costs nothing until it is touched.
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `Region` is only an address range; who may touch which part of it is decided by the
// chunks, each of which has one writer and publishes what readers may see.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` offers no access to the memory by itself.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len` bytes, a non-zero multiple of the page size.
    #[cfg(not(miri))]
    pub(super) fn reserve(len: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    #[cfg(miri)]
    pub(super) fn reserve(len: usize) -> io::Result<Self> {
        // SAFETY: `len` is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout(len)) };
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    #[cfg(miri)]
    fn layout(len: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(len, 4096).expect("the pool's limit bounds the layout")
    }

    /// The address `offset` bytes into the region.
    ///
    /// # Panics
    /// If `offset` is beyond the region.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(
            offset < self.len,
            "offset {offset} lies beyond a region of {} bytes",
            self.len
        );
        // SAFETY: `offset` is within the one allocation that starts at `base`.
        unsafe { self.base.add(offset) }
    }

    /// Returns the memory of a range to the operating system; it reads as zeros afterwards.
    ///
    /// The caller has checked that nobody holds a reference into the range: the chunks in it are
    /// free and in the sweep's hands. Failure only means that the memory stays.
    pub(super) fn give_back(&self, offset: usize, len: usize) {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "range lies beyond the region"
        );
        #[cfg(not(miri))]
        {
            use rustix::mm::{Advice, madvise};
            // SAFETY: the range lies within the mapping, and no reference into it exists.
            let _ = unsafe {
                madvise(
                    self.base.add(offset).as_ptr().cast(),
                    len,
                    Advice::LinuxDontNeed,
                )
            };
        }
        #[cfg(miri)]
        // SAFETY: the range lies within the allocation, and no reference into it exists.
        unsafe {
            self.base.add(offset).write_bytes(0, len);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: the mapping was made by `reserve` with this length; chunks hold the region alive,
        // so none of them remains.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        #[cfg(miri)]
        // SAFETY: allocated by `reserve` with the same layout.
        unsafe {
            std::alloc::dealloc(self.base.as_ptr(), Self::layout(self.len));
        }
    }
}
