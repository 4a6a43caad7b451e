//! A file's bytes as a target to receive into: what arrives on a socket is copied once, by the
//! kernel, into the place where it stays.
//!
//! Measured against reading into a buffer and writing that to the file, it spares the second copy
//! and a system call for each write. It is also what a network card is given.
//!
//! The mapping is never read through: whoever reads a copy asks the file. So no reference into the
//! mapped bytes ever exists, and bytes that change under the mapping are nobody's surprise.
#![allow(unsafe_code)]

mod touch;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

pub(super) use touch::cut_short;
use touch::touching;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Mapped addresses, until the last of those who use them is gone.
#[derive(Debug)]
struct Range {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Range` owns its addresses, which any thread may unmap.
unsafe impl Send for Range {}
// SAFETY: through `&Range` the bytes are neither read nor written.
unsafe impl Sync for Range {}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `Mapping::new`, and no reference into it exists.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The shared mapping of a file's beginning. Writing takes `&mut self`, so two threads never write
/// through it at once.
#[derive(Debug)]
pub(super) struct Mapping {
    range: Arc<Range>,
}

/// A part of a mapping for a network card to write; it stays mapped as long as this lives.
///
/// No reference into it exists or may be made: whoever reads the bytes asks the file.
#[derive(Clone, Debug)]
pub struct Window {
    range: Arc<Range>,
    at: usize,
    len: usize,
}

impl Window {
    /// Where it begins.
    pub fn address(&self) -> NonNull<u8> {
        // SAFETY: `Mapping::window` saw that `at` lies within the range.
        unsafe { self.range.base.add(self.at) }
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the `len` bytes at `from` to `file` at `at`, as they are when the system takes them; how many
    /// it took.
    ///
    /// # Errors
    /// `InvalidInput` beyond the window; the system's.
    pub(super) fn write_to(
        &self,
        from: usize,
        len: usize,
        file: &File,
        at: u64,
    ) -> io::Result<usize> {
        if from > self.len || len > self.len - from {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let offset = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `from` lies within the window, or is its end.
        let source = unsafe { self.address().add(from) };
        // SAFETY: the source is mapped as long as `self` lives. The system reads it; no reference into
        // it is made, so it does not matter if a byte changes meanwhile.
        let written =
            unsafe { libc::pwrite(file.as_raw_fd(), source.as_ptr().cast(), len, offset) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }
}

impl Mapping {
    /// Maps the first `len` bytes of `file`, which should be at least as long and stay so; see [`touch`].
    /// Nothing is touched by mapping.
    ///
    /// # Errors
    /// The system's, as when too many mappings exist.
    pub(super) fn new(file: &File, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let range = Arc::new(Range { base, len });
        Ok(Self { range })
    }

    /// The address of byte `at`, of which `len` bytes lie in the mapping.
    fn at(&self, at: usize, len: usize) -> io::Result<NonNull<u8>> {
        if at > self.range.len || len > self.range.len - at {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: `at` is within the mapping or one past its end.
        Ok(unsafe { self.range.base.add(at) })
    }

    /// The `len` bytes at `at`, for a network card.
    ///
    /// # Errors
    /// `InvalidInput` beyond the mapping.
    pub(super) fn window(&self, at: usize, len: usize) -> io::Result<Window> {
        self.at(at, len)?;
        let range = self.range.clone();
        Ok(Window { range, at, len })
    }

    /// Enters reserved pages into the page table ahead of their first use; only a hint.
    pub(super) fn populate(&self, at: usize, len: usize) {
        let page = rustix::param::page_size();
        let start = at / page * page;
        let end = (at + len).min(self.range.len);
        if let Ok(address) = self.at(start, end.saturating_sub(start)) {
            let advice = Advice::LinuxPopulateWrite;
            // SAFETY: the range lies within the mapping; populating changes no byte.
            let _ = unsafe { madvise(address.as_ptr().cast(), end - start, advice) };
        }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// `InvalidInput` beyond the mapping; `UnexpectedEof` if the file has become shorter: the mapping is not
    /// the file's any more there, and must not be used again.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let target = self.at(at, bytes.len())?;
        touching(target.as_ptr().addr(), bytes.len(), || {
            // SAFETY: the target lies within the mapping, `&mut self` keeps other writers away, and
            // `bytes` cannot overlap it, since no reference into the mapping is ever made.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        })
    }

    /// Makes a range zeros.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub(super) fn zero(&mut self, at: usize, len: usize) -> io::Result<()> {
        let target = self.at(at, len)?;
        touching(target.as_ptr().addr(), len, || {
            // SAFETY: as in `write`.
            unsafe { std::ptr::write_bytes(target.as_ptr(), 0, len) };
        })
    }

    /// Reads from `socket`, without waiting, up to `len` bytes to `at`, then into `spare`; returns the bytes
    /// read in all.
    ///
    /// # Errors
    /// `InvalidInput` beyond the mapping; `UnexpectedEof` as for [`write`](Self::write), and then what was read
    /// is lost; the socket's, `WouldBlock` if nothing is there.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        at: usize,
        len: usize,
        spare: &mut [u8],
    ) -> io::Result<usize> {
        let target = self.at(at, len)?;
        let mut parts = [
            libc::iovec {
                iov_base: target.as_ptr().cast(),
                iov_len: len,
            },
            libc::iovec {
                iov_base: spare.as_mut_ptr().cast(),
                iov_len: spare.len(),
            },
        ];
        // SAFETY: all zeros is a message without a name, parts and ancillary data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        // SAFETY: both parts are valid for writes of their lengths: the first lies within the
        // mapping, which `&mut self` keeps from other writers, the second is `spare`.
        let read =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        usize::try_from(read).map_err(|_| {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // The system does not find the mapped bytes: no signal comes then.
                Some(libc::EFAULT) => cut_short(),
                _ => error,
            }
        })
    }
}
