//! Transactions in a lane, by Kafka's model: batches of a transaction lie among others, and a marker ends it.
//!
//! | module | what it is |
//! |---|---|
//! | `grants` | of which transactions the lane takes batches, as their coordinators said |
//! | `unstable` | where open transactions began: the last stable ordinal |
//! | `end` | what coordinators ask of a lane: grants, and markers |
//! | `ends` | where transactions ended, by group |
//! | `committed` | reads up to the last stable ordinal, with what was aborted |
//!
//! **Rules.** 1. A producer's first batch of a transaction is taken only under a grant, which its coordinator gives
//! while the transaction is open and the lane is recorded to be part of it. A grant lives in memory: a new owner asks
//! anew. 2. A marker ends the grant, whether or not a batch came, so that no late batch begins a transaction that
//! nobody would end. 3. A marker names the epoch of the streamlet that its coordinator sent it to, and the number of
//! the transaction: one that is late ends no other. 4. Nothing forgets an open transaction. 5. A lane may lose a marker that
//! counted, and its transaction is open again. Coordinators know where the marker ended: what began before that is ended
//! again, and no batch of a later transaction is added to it.

mod committed;
mod end;
mod ends;
mod grants;
mod unstable;

pub use committed::{Committed, LostEnd};
pub use end::{EndTransaction, Ended};
pub(crate) use ends::{KnownEnds, is_needed};
pub use grants::{Grant, Grants};
pub(crate) use unstable::Unstable;

use kera_protocol::ids::Ordinal;

/// A transaction that ended in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its producer.
    pub producer: i64,
    /// Ordinal of its first record in the lane.
    pub first: Ordinal,
    /// Ordinal of its marker.
    pub marker: Ordinal,
    /// Whether its records count.
    pub commit: bool,
}

/// Why a batch is refused for its transaction, or for having none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// Whether the transaction is open must be asked of its coordinator; try again then.
    #[error("whether the transaction of producer {producer} is open is being asked; send again")]
    Unverified {
        /// The producer.
        producer: i64,
    },
    /// Its coordinator knows of no such transaction.
    #[error(
        "producer {producer} has no open transaction that this partition is part of: it has ended, or the partition was not added to it"
    )]
    NotOpen {
        /// The producer.
        producer: i64,
    },
    /// A batch outside of the producer's open transaction.
    #[error("producer {producer} has an open transaction, and the batch is not part of it")]
    Open {
        /// The producer.
        producer: i64,
    },
    /// The lane cannot remember another open transaction.
    #[error(
        "the lane has {limit} open transactions and has no room for that of producer {producer}: abort it and begin again"
    )]
    TooManyOpen {
        /// The producer.
        producer: i64,
        /// How many the lane can remember.
        limit: usize,
    },
}
