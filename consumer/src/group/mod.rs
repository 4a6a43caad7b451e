//! Membership in a consumer group: joining, heartbeats, leases, commits.

mod lease_key;
mod leases;
mod moves;
mod session;
mod tasks;
mod waiters;

pub(crate) use lease_key::LeaseKey;
pub use leases::LeaseInfo;
pub(crate) use session::{Group, GroupSettings, RebalanceHook, ResumeHook};

/// News about leases, in the order in which they come. Told on a background task: return quickly.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Rebalance<'a> {
    /// Leases were granted; their batches follow.
    Assigned(&'a [LeaseInfo]),
    /// Leases are to be given back: no further batch of them is delivered, and they are released as
    /// soon as what was delivered is committed.
    GivingBack(&'a [LeaseInfo]),
    /// Leases were committed and released.
    Released(&'a [LeaseInfo]),
    /// Leases ended without our doing: what was not committed goes to another consumer.
    Lost(&'a [LeaseInfo]),
}
