//! Copies that a broker has beside its store: the group files that it wrote itself, as an owner.
//!
//! Records name them as this broker's copies, under an incarnation of their own. The
//! streamlet's present owner asks this broker's store for them as for any other copy; the store ends the writers
//! first, as it does with its own, and passes on what is not in it.

use std::fmt::Debug;

use kera_protocol::ids::Epoch;

use crate::ids::{CopyId, Incarnation, StreamletKey};
use crate::transport::{CopyInfo, Refusal, Reply, Request};

/// The files that a broker wrote itself. Every call may wait for a disk.
pub trait Beside: Send + Sync + Debug {
    /// The incarnation under which records name them.
    fn incarnation(&self) -> Incarnation;

    /// `epoch` has sealed the streamlet, and that is stored: once this has returned, no owner of a
    /// lower epoch acknowledges anything here.
    fn sealed(&self, streamlet: StreamletKey, epoch: Epoch);

    /// Whether there is a file of this copy.
    fn has(&self, copy: &CopyId) -> bool;

    /// The files that other brokers may free, as [`Request::List`] tells of them: those of streamlets that
    /// this broker does not own.
    fn list(&self, streamlet: Option<StreamletKey>) -> Vec<CopyInfo>;

    /// Answers [`Request::Seal`], [`Request::Read`], [`Request::Check`], [`Request::Complete`],
    /// [`Request::Flush`] and [`Request::Free`], as [`OwnFiles`](crate::own::OwnFiles) does. The store has
    /// looked at epochs and seals.
    ///
    /// # Errors
    /// As a store's.
    fn handle(&self, request: Request) -> Result<Reply, Refusal>;
}
