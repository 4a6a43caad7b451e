//! What bounds transactions.

/// Most bytes of a transactional id.
pub const MAX_ID_BYTES: usize = 1_024;

/// Limits of the transactions of one [`Coordinator`](crate::Coordinator).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Transactional ids, without [`Self::outcomes`]. At the limit the one without a transaction that was silent for longest
    /// makes room, once it was so for its transactions' timeout.
    pub ids: usize,
    /// Transactional ids whose last transaction was prepared and has ended, but those of two-phase commit of Kafka's clients,
    /// which are among [`Self::ids`]. At the limit the oldest is forgotten.
    pub outcomes: usize,
    /// Bytes of a transactional id.
    pub id_bytes: usize,
    /// Partitions and groups of one transaction.
    pub parts: usize,
    /// Groups of one transaction, and bytes of the name of one.
    pub groups: usize,
    /// See [`Self::groups`].
    pub group_bytes: usize,
    /// Parts of all transactions; those of no more than [`Self::small_parts`] may grow even then. A group counts as one
    /// more for each 32 bytes of its name.
    pub total_parts: usize,
    /// See [`Self::total_parts`].
    pub small_parts: usize,
    /// Ends of transactions that are kept until their markers stay whatever fails; see [`EndedBefore`](super::EndedBefore).
    pub unsettled: usize,
    /// Prepared transactions of one user.
    pub prepared_per_user: usize,
    /// Longest time that a producer may have a transaction open, milliseconds.
    pub max_timeout_ms: u32,
    /// A transaction that was prepared so long ago is aborted, milliseconds; `None`: it waits for its handle.
    pub max_prepared_ms: Option<u64>,
    /// How long an id without a transaction is remembered, milliseconds.
    pub expiry_ms: u64,
    /// Likewise of one whose last transaction was prepared: whoever prepared it may ask how it ended. With two-phase commit of
    /// Kafka's clients the longer of the two.
    pub outcome_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ids: 20_000,
            outcomes: 100_000,
            id_bytes: MAX_ID_BYTES,
            parts: 10_000,
            groups: 64,
            group_bytes: 1_024,
            total_parts: 1_000_000,
            small_parts: 100,
            unsettled: 200_000,
            prepared_per_user: 2_000,
            max_timeout_ms: 900_000,
            max_prepared_ms: None,
            expiry_ms: 7 * 24 * 3_600_000,
            outcome_ms: 30 * 24 * 3_600_000,
        }
    }
}
