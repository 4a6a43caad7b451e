//! What names a transaction.

use std::time::Duration;

use kera_protocol::v1;

/// How long a coordinator is given to answer; it may wait for the transaction before to end.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Names a transaction. Whoever has it can end the transaction if it is prepared, from any process, and ask how it
/// ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransactionHandle {
    /// The transactional id.
    pub transactional_id: String,
    /// The id's producer id.
    pub producer: i64,
    /// The producer's epoch.
    pub epoch: i16,
    /// Which of the id's transactions it is.
    pub number: u64,
}

impl TransactionHandle {
    pub(crate) fn message(&self) -> Option<v1::TransactionHandle> {
        Some(v1::TransactionHandle {
            transactional_id: self.transactional_id.clone(),
            producer: self.producer,
            epoch: self.epoch.into(),
            number: self.number,
        })
    }
}
