//! Protection domains and registered memory.

use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as ffi;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{Device, numbered};
use crate::backup::Window;

/// A protection domain.
#[derive(Debug)]
pub(in crate::transport::rdma) struct Pd {
    pub(super) raw: NonNull<ffi::ibv_pd>,
}

// SAFETY: a domain is only a name in the card; the library locks what it must.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// A domain of `device`.
    ///
    /// # Errors
    /// The card's.
    pub(in crate::transport::rdma) fn new(device: Device) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_alloc_pd(device.context.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { raw }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: whatever was made in the domain keeps it alive, so nothing is left in it.
        let _ = unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

/// Memory that a card may read or write behind the program's back.
///
/// # Safety
/// The range stays mapped as long as the value lives, and no reference into it is ever made.
pub(in crate::transport::rdma) unsafe trait CardMemory {
    /// The first byte and the number of bytes.
    fn range(&self) -> (NonNull<u8>, usize);
}

// SAFETY: a window keeps its mapping, and its type promises that there is no reference into it.
unsafe impl CardMemory for Window {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.address(), self.len())
    }
}

/// What a registration allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::rdma) enum Access {
    /// The card reads what is sent from there.
    Send,
    /// Remote peers with the key write there.
    RemoteWrite,
}

/// Registered memory.
#[derive(Debug)]
pub(in crate::transport::rdma) struct Mr<M> {
    raw: NonNull<ffi::ibv_mr>,
    /// Kept while the registration lives.
    _domain: Arc<Pd>,
    memory: M,
}

// SAFETY: a registration may be ended by any thread; its memory says for itself whether it moves.
unsafe impl<M: Send> Send for Mr<M> {}
// SAFETY: through `&Mr` only numbers that never change are read.
unsafe impl<M: Sync> Sync for Mr<M> {}

impl<M: CardMemory> Mr<M> {
    /// Registers `memory`. Remote peers count its bytes from `base` on, which must be as far from
    /// the beginning of a page as the memory's first byte is.
    ///
    /// # Errors
    /// `OutOfMemory` if the process may not lock so much, and the card's.
    pub(in crate::transport::rdma) fn new(
        domain: &Arc<Pd>,
        memory: M,
        base: u64,
        access: Access,
    ) -> io::Result<Self> {
        let (address, len) = memory.range();
        let flags = match access {
            Access::Send => ffi::ibv_access_flags(0),
            Access::RemoteWrite => {
                ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                    | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
        };
        // SAFETY: the range is mapped and stays so, since `memory` is kept beside the registration;
        // that its bytes change unseen is what `CardMemory` allows.
        let raw = unsafe {
            ffi::ibv_reg_mr_iova(
                domain.raw.as_ptr(),
                address.as_ptr().cast(),
                len,
                base,
                flags.0 as c_int,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            raw,
            _domain: domain.clone(),
            memory,
        })
    }

    /// The key by which remote peers write.
    pub(in crate::transport::rdma) fn remote_key(&self) -> u32 {
        // SAFETY: the registration is alive.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The key by which the card's own queues read.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the registration is alive.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    pub(super) fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Ends the registration: once this has returned well the card writes there no more.
    ///
    /// # Errors
    /// The card's, with the registration, which is still there.
    pub(in crate::transport::rdma) fn end(self) -> Result<(), (io::Error, Self)> {
        // SAFETY: the registration is alive; it is not dropped again after a success.
        match numbered(unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) }) {
            Ok(()) => {
                let this = ManuallyDrop::new(self);
                // SAFETY: both are read once and `this` is never dropped.
                let (domain, memory) =
                    unsafe { (std::ptr::read(&this._domain), std::ptr::read(&this.memory)) };
                drop((domain, memory));
                Ok(())
            }
            Err(error) => Err((error, self)),
        }
    }
}

impl<M> Drop for Mr<M> {
    fn drop(&mut self) {
        // SAFETY: the registration is alive: `end` does not come here.
        let ended = numbered(unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) });
        if let Err(error) = ended {
            tracing::error!(%error, "registered memory could not be taken from the network card");
        }
    }
}

/// Memory of one's own to send from. Shared with nobody, yet mapped as shared: a child process
/// would otherwise make the next write to it go to another page than the card reads.
#[derive(Debug)]
pub(super) struct SendMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its addresses; writing takes `&mut self`.
unsafe impl Send for SendMemory {}
// SAFETY: through `&SendMemory` no byte is read or written.
unsafe impl Sync for SendMemory {}

// SAFETY: it is unmapped when it is dropped and not before, and gives out no reference.
unsafe impl CardMemory for SendMemory {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.base, self.len)
    }
}

impl SendMemory {
    /// `len` bytes.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end; nothing is copied then.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        if at > self.len || bytes.len() > self.len - at {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the target lies within the mapping, `&mut self` keeps other writers away, and
        // `bytes` cannot overlap it, since no reference into the mapping is ever made.
        unsafe {
            let target = self.base.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
        Ok(())
    }
}

impl Drop for SendMemory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no reference into it exists.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
