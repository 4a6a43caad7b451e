//! What a history is judged against.

use serde::{Deserialize, Serialize};

/// The order a consumer group asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One consumer follows a lane: records arrive in the order of their ordinals.
    #[default]
    Lane,
    /// Ranges of a lane go to any member; order holds within a lease only.
    None,
}

/// What an acknowledgement promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckPolicy {
    /// Survives nothing.
    Memory,
    /// Survives the process.
    #[default]
    Written,
    /// Survives power loss.
    Synced,
}

/// The worst that was done to the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing.
    None,
    /// Its process was killed.
    #[default]
    Kill,
    /// Everything that was not synced was lost.
    PowerLoss,
}

/// When a consumer group may see a record again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Redelivery {
    /// Never: no member died, no lease expired.
    Never,
    /// Under a later lease, as long as it was not committed.
    #[default]
    Uncommitted,
}

/// The promises under which the history was made.
///
/// ```
/// use kera_history::{AckPolicy, Expectations, Fault};
/// let expectations = Expectations { ack: AckPolicy::Synced, fault: Fault::PowerLoss, ..Default::default() };
/// assert!(!expectations.may_lose());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectations {
    /// The order of groups that have no [`crate::Event::GroupDefined`].
    pub order: Order,
    /// Producers were idempotent: no record is stored twice and each lane keeps their order.
    pub idempotent: bool,
    /// What acknowledgements promised.
    pub ack: AckPolicy,
    /// The worst that happened. With a policy that does not survive it, acknowledged records may
    /// be missing, but only within ordinals that the broker reported as a gap, and none that was
    /// sent after the broker was last ready again.
    pub fault: Fault,
    /// Whether a group may see records again.
    pub redelivery: Redelivery,
    /// Leases may expire without their member's knowledge (members or brokers died or were slow).
    /// If false, two members that both hold a lease of a record is an anomaly at once; if true, only
    /// once the older lease's commit succeeds after the younger was granted.
    pub leases_expire: bool,
    /// The history ends only after all was read: every acknowledged record that nobody read is
    /// lost, whether or not a reader came past it.
    pub complete: bool,
    /// So many requests for leases in a row must have gone unanswered, after data was known to be
    /// durable, before it counts as never leased.
    pub asks_in_vain: u32,
}

impl Default for Expectations {
    fn default() -> Self {
        Self {
            order: Order::Lane,
            idempotent: true,
            ack: AckPolicy::Written,
            fault: Fault::Kill,
            redelivery: Redelivery::Uncommitted,
            leases_expire: true,
            complete: false,
            asks_in_vain: 3,
        }
    }
}

impl Expectations {
    /// Whether acknowledged records may be missing, within reported gaps.
    pub fn may_lose(&self) -> bool {
        match self.fault {
            Fault::None => false,
            Fault::Kill => self.ack == AckPolicy::Memory,
            Fault::PowerLoss => self.ack != AckPolicy::Synced,
        }
    }
}
