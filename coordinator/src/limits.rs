//! What bounds a coordinator.

use crate::{classic, transactions};

/// Limits of one [`Coordinator`](crate::Coordinator). Requests beyond them are refused with
/// `INVALID_ARGUMENT` or `OVERLOADED`; nothing is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Consumer groups of all kinds. At the limit one without members and progress makes room for the
    /// next. Clients of one host may create no more than half of them.
    pub groups: usize,
    /// Members of one group.
    pub members: usize,
    /// Leases that one member holds at a time.
    pub leases_per_member: usize,
    /// Finished ranges above a lane's low ordinal; when they are full, nothing but the lowest
    /// unfinished range of that lane is leased.
    pub finished_ranges: usize,
    /// Commits in one request, and leases in one answer.
    pub commits_per_request: usize,
    /// Bytes of the name a client gives for people.
    pub client_name_bytes: usize,
    /// Shortest session, milliseconds; shorter wishes are raised.
    pub min_session_ms: u32,
    /// Longest session, milliseconds; longer wishes are lowered.
    pub max_session_ms: u32,
    /// Session of a member that names none, milliseconds.
    pub default_session_ms: u32,
    /// Longest wait of a request for leases, milliseconds.
    pub max_wait_ms: u32,
    /// How long a member may keep a lease that it was told to give back, milliseconds.
    pub give_back_ms: u64,
    /// Size of a range lease when the member names none, bytes.
    pub default_range_bytes: u32,
    /// What bounds groups of Kafka's classic kind.
    pub classic: classic::Limits,
    /// What bounds transactions.
    pub transactions: transactions::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            groups: 20_000,
            members: 4_096,
            leases_per_member: 16_384,
            finished_ranges: 1_024,
            commits_per_request: 1_024,
            client_name_bytes: 128,
            min_session_ms: 1_000,
            max_session_ms: 300_000,
            default_session_ms: 10_000,
            max_wait_ms: 60_000,
            give_back_ms: 60_000,
            default_range_bytes: 1 << 20,
            classic: classic::Limits::default(),
            transactions: transactions::Limits::default(),
        }
    }
}
