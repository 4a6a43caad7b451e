//! The name of a lease.

/// A lease of this membership. Numbers say nothing by themselves: a group that was deleted and made anew grants the
/// same ones again, for other records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseKey {
    /// Counts how often the membership, and all leases with it, were lost.
    pub(crate) life: u64,
    /// Its number at the coordinator.
    pub(crate) lease: u64,
}
