//! What a pass needs of whoever makes the replicas of a group that was made of others.

use kera_records::{GroupRecord, Replica};

/// Brings a rewritten group to other brokers.
pub trait Ship: Sync {
    /// Brings the file that `record` describes, which lies here, to as many other brokers as are to have it; the record
    /// names the replicas of the group that it replaces. Waits; asks `goes_on` now and then.
    ///
    /// # Errors
    /// [`ShipError`]: nothing may name the new file then.
    fn ship(
        &self,
        record: &GroupRecord,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Shipped, ShipError>;

    /// Waits until so many bytes more may be fetched from other brokers; asks `goes_on` now and then.
    ///
    /// # Errors
    /// [`ShipError::Stopped`].
    fn may_fetch(&self, bytes: u64, goes_on: &mut dyn FnMut() -> bool) -> Result<(), ShipError>;
}

/// Where a rewritten group is, byte for byte.
pub struct Shipped {
    /// All replicas, this broker's own among them.
    pub copies: Vec<Replica>,
    /// Until it is dropped nobody takes those for replicas that no record will name.
    pub hold: Box<dyn Send>,
}

/// Why a rewritten group is not at enough brokers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShipError {
    /// It was broken off.
    #[error("it was broken off")]
    Stopped,
    /// Too few brokers took it.
    #[error("{0}")]
    TooFew(String),
}
