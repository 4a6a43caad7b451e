//! How a primary reaches its backups: one [`Link`] for the data, [`Transport::call`] for control.
//!
//! A link carries one-sided writes: (buffer key, offset, bytes). Nobody at the backup answers a
//! write; what comes back is the transport's own word that the bytes lie in the backup's memory.
//! Pieces of writes may land in any order, late, and even after the backup's process has died.
//! All that is promised is this:
//!
//! * once submission `n` is reported as completed, all bytes of submissions `1..=n` are in the
//!   buffers, and stay there as long as the backup's incarnation;
//! * once the backup has ended the link (it sealed, it died, it destroyed the connection), no
//!   submission completes that had not;
//! * after an error nothing is known of what had not completed: each piece may have landed, may land
//!   later, or may be lost. Since every address receives one value only, sending it again is harmless.

mod capability;
mod control;
mod error;
mod hello;
mod lists;
#[cfg(feature = "rdma")]
pub mod rdma;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
pub mod tcp;
mod under_way;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

pub use capability::{Capability, Preference, TransportKind, capabilities};
pub use control::{
    Buffer, Checked, CopyAnswer, CopyInfo, CopyState, CopyVersion, Description, MAX_LISTS,
    MAX_TRANSFER_BYTES, Opened, Place, Progress, Refusal, Reply, Request, Room, Seal, SealedCopy,
};
pub use error::{CallError, LinkError};
pub use lists::{ChangedList, KnownList, ListTag};

use crate::ids::{BrokerId, BufferKey, ProcessId};

/// A future on the heap, as object-safe traits return it.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Bytes for one contiguous range of one buffer, gathered from the chunks they lie in.
#[derive(Clone, Debug)]
pub struct Write {
    /// The buffer.
    pub buffer: BufferKey,
    /// Where the first byte goes, counted from the buffer's start.
    pub offset: u64,
    /// What to write, one after the other.
    pub parts: Vec<Bytes>,
}

impl Write {
    /// Bytes of the write.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// True if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Bytes::is_empty)
    }
}

/// One connection from a primary to one process of a backup. Dropping it ends it.
pub trait Link: Send {
    /// Hands over `writes`, of any number of groups, as one submission and returns its number;
    /// numbers begin at 1 and grow by 1. Does not wait.
    ///
    /// # Errors
    /// [`LinkError::Full`] if too much is under way: nothing was taken, try again after the next
    /// completion. Any other error ends the link.
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError>;

    /// The highest completed submission, once it is higher than what was returned last. It
    /// acknowledges all before it. A link at rest is pending, and still notices its end.
    ///
    /// # Errors
    /// Whatever ended the link; again at each further call.
    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>>;
}

/// What connects one broker, as a primary, with all backups.
pub trait Transport: Send + Sync {
    /// Connects to the process `process` of a backup. The future resolves only after that process
    /// has destroyed any earlier connection from this broker, so that nothing sent over it can
    /// land any more.
    ///
    /// # Errors
    /// [`LinkError::OtherProcess`] if the backup has been started anew: what was open there is sealed.
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>>;

    /// Asks a backup for something. Requests may be lost, and so may replies: after
    /// [`CallError::Lost`] it is unknown whether the request was carried out. Every request may be
    /// repeated.
    ///
    /// # Errors
    /// [`CallError::Refused`] is the backup's own answer.
    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>>;
}

/// A shared transport.
pub type TransportRef = Arc<dyn Transport>;
