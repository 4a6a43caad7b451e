//! Versions of a cluster: what all of its brokers can, and therefore what may be used.
//!
//! Programs of two neighbouring versions work in one cluster. What the older one could not read is not
//! used until an operator says that there is no way back: `kera cluster finalize` records the newest
//! version that every broker can ([`SettingsRecord::cluster_version`](crate::SettingsRecord::cluster_version)). A broker
//! whose program is older than that does not start.
//!
//! | cluster version | what it brings |
//! |---|---|
//! | 0 | all that was before clusters had versions |
//! | 1 | [compaction](Feature::Compaction), [transactions](Feature::Transactions), [the consumer protocol](Feature::ConsumerProtocol) |
//! | 2 | [ends of transactions that raise the epoch](Feature::RaisingEnds), [positions of native groups in transactions](Feature::SentPositions) |
//! | 3 | [consumer groups that keep the order of keys](Feature::KeyOrder) |
//! | 4 | [share groups](Feature::ShareGroups) |
//! | 5 | [two-phase commit of Kafka's clients](Feature::TwoPhaseCommit) |
//! | 6 | [roles in rules of access](Feature::Roles) |
//! | 7 | [pinned positions](Feature::Pins) |

/// The newest cluster version that this program can.
pub const CLUSTER_VERSION: u32 = 7;

/// What a cluster needs a version for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Streams that keep the newest record of each key: closed groups that are written anew.
    Compaction,
    /// Transactions: what lanes and consumer groups remember of them, and their internal stream.
    Transactions,
    /// Consumer groups of Kafka's newer protocol: what coordinators remember of them.
    ConsumerProtocol,
    /// Transactions whose end gives their producer another epoch, and whose batches brokers add to them: Kafka's
    /// `transaction.version` 2.
    RaisingEnds,
    /// Transactions that commit positions of native consumer groups: what coordinators remember of them.
    SentPositions,
    /// Native consumer groups whose members share lanes by key: what coordinators remember of them.
    KeyOrder,
    /// Share groups of Kafka's clients: what coordinators remember of them.
    ShareGroups,
    /// Transactions of Kafka's clients without a timeout, and those that a later instance of their producer keeps: what
    /// coordinators remember of them.
    TwoPhaseCommit,
    /// Rules about roles: what is recorded of their members. A broker of an earlier version would not deny what they deny.
    Roles,
    /// Pins: positions that retention spares. A broker of an earlier version would delete what they need.
    Pins,
}

impl Feature {
    /// The first cluster version that has it.
    pub const fn since(self) -> u32 {
        match self {
            Feature::Compaction | Feature::Transactions | Feature::ConsumerProtocol => 1,
            Feature::RaisingEnds | Feature::SentPositions => 2,
            Feature::KeyOrder => 3,
            Feature::ShareGroups => 4,
            Feature::TwoPhaseCommit => 5,
            Feature::Roles => 6,
            Feature::Pins => 7,
        }
    }
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Feature::Compaction => "compaction",
            Feature::Transactions => "transactions",
            Feature::ConsumerProtocol => "the consumer protocol of groups",
            Feature::RaisingEnds => "version 2 of Kafka's transactions",
            Feature::ShareGroups => "share groups",
            Feature::TwoPhaseCommit => "two-phase commit of Kafka's clients",
            Feature::SentPositions => "positions of consumer groups in native transactions",
            Feature::Roles => "a role in rules of access",
            Feature::Pins => "a pin",
            Feature::KeyOrder => "the order of keys in consumer groups",
        })
    }
}
