//! What a consumer counts.

/// Counts since the start, and sizes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Batches delivered.
    pub batches: u64,
    /// Records delivered.
    pub records: u64,
    /// Bytes of delivered batches, as they were sent.
    pub bytes: u64,
    /// Records that were durable when last heard of, in the lanes and ranges held here, and are not
    /// delivered yet.
    pub lag: u64,
    /// Leases held.
    pub leases: usize,
    /// Bytes received and not delivered.
    pub buffered_bytes: usize,
    /// Commit requests answered.
    pub commits: u64,
    /// Records that were trimmed before they were read. Alert on any growth: retention is shorter
    /// than the consumer is late.
    pub skipped_records: u64,
    /// Batches, or groups of them, that could not be read and were skipped; see
    /// [`skip_damaged`](crate::ReaderBuilder::skip_damaged).
    pub skipped_batches: u64,
    /// Bytes received that were read from copies of closed groups, in the reader's rack or because the
    /// owner was away.
    pub copy_bytes: u64,
    /// Data connections made, the first ones included.
    pub connects: u64,
    /// Batches that arrived damaged. Alert on any growth.
    pub corrupt_batches: u64,
}
