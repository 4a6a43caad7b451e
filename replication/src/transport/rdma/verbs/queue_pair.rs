//! Queue pairs: their parts, and posting writes.

use std::io;
use std::sync::Arc;

use rdma_sys as ffi;

use super::completion::Cq;
use super::memory::{CardMemory, SendMemory};
use super::{Access, Completion, CompletionChannel, Device, Mr, Pd, numbered};

/// A write of bytes that lie in the pair's send memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::rdma) struct WriteRequest {
    /// Comes back with the completion.
    pub(in crate::transport::rdma) number: u64,
    /// Where the bytes lie in the send memory.
    pub(in crate::transport::rdma) at: usize,
    pub(in crate::transport::rdma) len: u32,
    /// Where they go, as the registration there counts.
    pub(in crate::transport::rdma) remote_at: u64,
    /// The key of the registration there.
    pub(in crate::transport::rdma) remote_key: u32,
    /// Whether its success is told; a failure always is.
    pub(in crate::transport::rdma) told: bool,
}

/// The parts of a queue pair. The pair itself belongs to its [`super::CmId`], which destroys it
/// before these.
pub(in crate::transport::rdma) struct Qp {
    pub(super) queue: Cq,
    /// What it sends from; a target sends nothing.
    source: Option<Mr<SendMemory>>,
    pub(super) domain: Arc<Pd>,
    pub(super) requests: u32,
    /// Room for the requests of one posting.
    entries: Vec<ffi::ibv_sge>,
    posting: Vec<ffi::ibv_send_wr>,
}

// SAFETY: the raw pointers in `posting` are read only within `post`, which fills them first.
unsafe impl Send for Qp {}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp")
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

impl Qp {
    /// Parts of a pair that writes: `send_bytes` bytes to send from, at most `requests` under way.
    ///
    /// # Errors
    /// The card's or the system's; `OutOfMemory` if the process may not lock so much.
    pub(in crate::transport::rdma) fn source(
        device: Device,
        send_bytes: usize,
        requests: u32,
        channel: Arc<CompletionChannel>,
    ) -> io::Result<Self> {
        let domain = Pd::new(device)?;
        let memory = SendMemory::new(send_bytes)?;
        // Its own queues count as peers would: by the program's addresses.
        let base = memory.range().0.as_ptr().addr() as u64;
        let source = Mr::new(&domain, memory, base, Access::Send)?;
        Ok(Self {
            queue: Cq::new(device, requests + 1, Some(channel))?,
            source: Some(source),
            domain,
            requests,
            entries: Vec::new(),
            posting: Vec::new(),
        })
    }

    /// Parts of a pair that is written to, in `domain`.
    ///
    /// # Errors
    /// The card's.
    pub(in crate::transport::rdma) fn target(device: Device, domain: Arc<Pd>) -> io::Result<Self> {
        Ok(Self {
            queue: Cq::new(device, 2, None)?,
            source: None,
            domain,
            requests: 1,
            entries: Vec::new(),
            posting: Vec::new(),
        })
    }

    /// Copies `bytes` to `at` of the send memory.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such place.
    pub(in crate::transport::rdma) fn fill(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let source = self.source.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
        source.memory_mut().write(at, bytes)
    }

    /// Adds to `out` what has completed, some of it at least if there is any.
    ///
    /// # Errors
    /// If the queue has broken.
    pub(in crate::transport::rdma) fn poll(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        self.queue.poll(out)
    }

    /// Asks that the next completion be announced.
    ///
    /// # Errors
    /// The card's.
    pub(in crate::transport::rdma) fn ask_for_word(&mut self) -> io::Result<()> {
        self.queue.ask_for_word()
    }

    /// Reads one announcement, if there is one.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn take_word(&mut self) -> io::Result<bool> {
        self.queue.take_word()
    }

    /// Posts `requests` as one list to the pair `raw`, whose parts these are.
    ///
    /// # Safety
    /// `raw` is alive and was made of these parts.
    pub(super) unsafe fn post(
        &mut self,
        raw: *mut ffi::ibv_qp,
        requests: &[WriteRequest],
    ) -> io::Result<()> {
        let source = self.source.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        let (base, len) = source.memory().range();
        let key = source.local_key();
        self.entries.clear();
        self.posting.clear();
        for request in requests {
            let end = request.at.checked_add(request.len as usize);
            if end.is_none_or(|end| end > len) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            self.entries.push(ffi::ibv_sge {
                addr: (base.as_ptr().addr() + request.at) as u64,
                length: request.len,
                lkey: key,
            });
        }
        let signalled = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        for (request, entry) in requests.iter().zip(&mut self.entries) {
            // SAFETY: a structure of numbers and pointers, for which zeros are a value.
            let mut one: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
            one.wr_id = request.number;
            one.sg_list = entry;
            one.num_sge = 1;
            one.opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            one.send_flags = if request.told { signalled } else { 0 };
            one.wr.rdma = ffi::rdma_t {
                remote_addr: request.remote_at,
                rkey: request.remote_key,
            };
            self.posting.push(one);
        }
        // Linked once none of them moves any more.
        let mut next = std::ptr::null_mut();
        for one in self.posting.iter_mut().rev() {
            one.next = next;
            next = one;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut refused = std::ptr::null_mut();
        // SAFETY: the pair is alive by this function's promise; the list and what it points to live
        // until the call returns, and the bytes stay mapped and registered as long as the pair.
        numbered(unsafe { ffi::ibv_post_send(raw, next, &mut refused) })
    }
}
