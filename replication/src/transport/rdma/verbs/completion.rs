//! Completions: where they lie, and where they are announced.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as ffi;
use tokio::io::unix::AsyncFd;

use super::{Device, never_waits, numbered};

/// Completions read at once.
const AT_ONCE: usize = 16;
/// Announcements acknowledged together: each acknowledgement takes a lock.
const ACKNOWLEDGED_TOGETHER: u32 = 32;

/// What announces completions, as a descriptor that can be waited for.
#[derive(Debug)]
pub(in crate::transport::rdma) struct CompletionChannel {
    raw: NonNull<ffi::ibv_comp_channel>,
}

// SAFETY: the channel is a descriptor; reading it from any thread is fine.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A channel of `device` whose reads do not wait.
    ///
    /// # Errors
    /// The card's or the system's.
    pub(in crate::transport::rdma) fn new(device: Device) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_create_comp_channel(device.context.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Self { raw };
        // SAFETY: the descriptor is open as long as the channel.
        never_waits(unsafe { BorrowedFd::borrow_raw(channel.as_raw_fd()) })?;
        Ok(Arc::new(channel))
    }
}

impl CompletionChannel {
    /// The channel as something to wait for, within a tokio runtime.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn watched(self: &Arc<Self>) -> io::Result<AsyncFd<Arc<Self>>> {
        // SAFETY: the descriptor is the channel's own, which is kept, and it is neither closed nor
        // replaced before the channel is gone.
        let watched = unsafe { AsyncFd::register(self.clone()) }?;
        Ok(watched)
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues keep their channel alive, so none is left.
        let _ = unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::rdma) enum Outcome {
    /// The bytes are in the peer's memory.
    Done,
    /// The peer's card refused: wrong key, out of bounds, or no longer registered.
    AccessRefused,
    /// The peer's card was not heard of, however often it was tried.
    Unheard,
    /// It was under way when the queue pair ended.
    Flushed,
    /// Something else, by its number.
    Failed(u32),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::AccessRefused => f.write_str("its network card refused the key or the address"),
            Self::Unheard => f.write_str("its network card does not answer"),
            Self::Flushed => f.write_str("the queue pair has ended"),
            Self::Failed(number) => {
                // SAFETY: the library returns text that lives for ever, or nothing.
                let text = unsafe { ffi::ibv_wc_status_str(*number) };
                if text.is_null() {
                    return write!(f, "completion status {number}");
                }
                // SAFETY: text that ends with a zero.
                let text = unsafe { CStr::from_ptr(text) };
                write!(f, "completion status {number}, {}", text.to_string_lossy())
            }
        }
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::rdma) struct Completion {
    /// The request's number, as it was posted.
    pub(in crate::transport::rdma) number: u64,
    pub(in crate::transport::rdma) outcome: Outcome,
}

/// A queue of completions.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) raw: NonNull<ffi::ibv_cq>,
    /// Announcements read and not acknowledged.
    unacknowledged: u32,
    channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: the queue is used through `&mut self` only.
unsafe impl Send for Cq {}
// SAFETY: through `&Cq` nothing is called.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue of at least `size` completions, announced on `channel` if there is one.
    ///
    /// # Errors
    /// The card's.
    pub(super) fn new(
        device: Device,
        size: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> io::Result<Self> {
        let raw_channel = channel.as_ref().map(|c| c.raw.as_ptr());
        // SAFETY: context and channel are alive; the channel is kept beside the queue.
        let raw = unsafe {
            ffi::ibv_create_cq(
                device.context.as_ptr(),
                i32::try_from(size).unwrap_or(i32::MAX),
                std::ptr::null_mut(),
                raw_channel.unwrap_or(std::ptr::null_mut()),
                0,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            raw,
            unacknowledged: 0,
            channel,
        })
    }

    /// Adds to `out` what has completed, some of it at least if there is any.
    ///
    /// # Errors
    /// If the queue has overrun or broken.
    pub(super) fn poll(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        // SAFETY: structures of numbers, for which zeros are a value.
        let mut found: [ffi::ibv_wc; AT_ONCE] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is alive and `found` valid for writes of as many entries.
        let count =
            unsafe { ffi::ibv_poll_cq(self.raw.as_ptr(), AT_ONCE as i32, found.as_mut_ptr()) };
        let count = usize::try_from(count)
            .map_err(|_| io::Error::other("the completion queue cannot be read"))?;
        out.extend(found.iter().take(count).map(|one| Completion {
            number: one.wr_id,
            outcome: outcome(one.status),
        }));
        Ok(())
    }

    /// Asks that the next completion be announced.
    ///
    /// # Errors
    /// The card's.
    pub(super) fn ask_for_word(&mut self) -> io::Result<()> {
        // SAFETY: the queue is alive.
        numbered(unsafe { ffi::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }

    /// Reads one announcement, if there is one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn take_word(&mut self) -> io::Result<bool> {
        let Some(channel) = &self.channel else {
            return Ok(false);
        };
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive and both targets are valid for writes.
        let read = unsafe { ffi::ibv_get_cq_event(channel.raw.as_ptr(), &mut queue, &mut context) };
        if read != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        self.unacknowledged += 1;
        if self.unacknowledged >= ACKNOWLEDGED_TOGETHER {
            self.acknowledge();
        }
        Ok(true)
    }

    fn acknowledge(&mut self) {
        if self.unacknowledged > 0 {
            // SAFETY: the queue is alive, and so many announcements of it were read.
            unsafe { ffi::ibv_ack_cq_events(self.raw.as_ptr(), self.unacknowledged) };
            self.unacknowledged = 0;
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Destroying waits for acknowledgements.
        self.acknowledge();
        // SAFETY: queue pairs keep their queue alive, so none uses it any more.
        let _ = unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

fn outcome(status: ffi::ibv_wc_status::Type) -> Outcome {
    match status {
        ffi::ibv_wc_status::IBV_WC_SUCCESS => Outcome::Done,
        ffi::ibv_wc_status::IBV_WC_REM_ACCESS_ERR => Outcome::AccessRefused,
        ffi::ibv_wc_status::IBV_WC_RETRY_EXC_ERR => Outcome::Unheard,
        ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Outcome::Flushed,
        other => Outcome::Failed(other),
    }
}
