//! Copies that a broker has beside its store: the group files that it wrote itself, as an owner.
//!
//! Records name them as this broker's copies, under an incarnation of their own. The
//! streamlet's present owner asks this broker's store for them as for any other copy; the store ends the writers
//! first, as it does with its own, and passes on what is not in it.

use std::fmt::Debug;

use kera_protocol::ids::Epoch;

use crate::ids::{CopyId, Incarnation, StreamletKey};
use crate::transport::{CopyInfo, CopyVersion, Refusal, Reply, Request};

/// The files that a broker wrote itself. Every call may wait for a disk.
pub trait Beside: Send + Sync + Debug {
    /// The incarnation under which records name them.
    fn incarnation(&self) -> Incarnation;

    /// Whether a record that names this life means them: it may be the life of their disk alone.
    fn is_mine(&self, recorded: Incarnation) -> bool {
        self.incarnation().includes(recorded)
    }

    /// `epoch` has sealed the streamlet, and that is stored: once this has returned, no owner of a
    /// lower epoch acknowledges anything here.
    fn sealed(&self, streamlet: StreamletKey, epoch: Epoch);

    /// Whether there is a file of this copy.
    fn has(&self, copy: &CopyId) -> bool;

    /// The files that other brokers may free, as [`Request::List`] tells of them: those of streamlets that
    /// this broker does not own.
    fn list(&self, streamlet: Option<StreamletKey>) -> Vec<CopyInfo>;

    /// The store has a copy of a closed group on its disk, and all of it is whole up to `length`. If that is what is
    /// recorded, a file of the same copy is of no use, and goes if it is the `version` that was listed.
    fn superseded(&self, _copy: &CopyId, _version: CopyVersion, _length: u64) {}

    /// Answers [`Request::Seal`], [`Request::Read`], [`Request::Check`], [`Request::Complete`],
    /// [`Request::Flush`] and [`Request::Free`], as [`OwnFiles`](crate::own::OwnFiles) does. The store has
    /// looked at epochs and seals.
    ///
    /// # Errors
    /// As a store's.
    fn handle(&self, request: Request) -> Result<Reply, Refusal>;
}
