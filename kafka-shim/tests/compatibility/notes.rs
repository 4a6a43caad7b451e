//! What the tables of docs/kafka-compatibility.md say beside the numbers.

/// How far an API that is served is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Whole, with something worth knowing.
    Whole,
    /// Something is missing.
    Partly,
}

use Support::{Partly, Whole};

/// What is missing or worth knowing; an API without a line here is served whole.
pub const NOTES: &[(i16, Support, &str)] = &[
    (
        0,
        Partly,
        "versions 0 to 2 are advertised and refused, as librdkafka does not compress otherwise; streams with ack = memory refuse transactions; from version 12 on partitions join the transaction",
    ),
    (
        1,
        Partly,
        "followers serve closed groups, to clients in their rack; what belongs to a transaction is served by the owner alone; a session belongs to its connection",
    ),
    (
        2,
        Whole,
        "nothing is tiered: the earliest local offset is the earliest, and no offset is tiered",
    ),
    (
        3,
        Whole,
        "`__consumer_offsets` is listed as internal, and its records are not for clients",
    ),
    (10, Whole, "coordinators of groups and of transactions"),
    (
        15,
        Whole,
        "groups of the classic protocol, as with Kafka; `kera group` shows all",
    ),
    (
        16,
        Whole,
        "groups of Kafka's clients that the broker coordinates; `kera group` shows all",
    ),
    (
        19,
        Partly,
        "replication factor -1 for the brokers' default (3, or as many brokers as there are), or as many replicas as there are brokers for; the brokers choose where they go",
    ),
    (
        22,
        Whole,
        "at most 20,000 transactional ids for each coordinator; one that was silent for seven days is forgotten; version 6 (KIP-939) from cluster version 5 on",
    ),
    (
        24,
        Whole,
        "not needed by clients that know `transaction.version` 2; its versions from 4 on are for brokers, and need ClusterAction",
    ),
    (
        25,
        Whole,
        "not needed by clients that know `transaction.version` 2",
    ),
    (
        26,
        Whole,
        "from version 5 on each end gives the producer another epoch",
    ),
    (
        27,
        Whole,
        "ends what no coordinator knows (`kafka-transactions.sh abort`), with Alter or ClusterAction on the cluster; what one knows is refused with INVALID_TXN_STATE",
    ),
    (
        28,
        Whole,
        "fenced by generation and by transactional id; from version 5 on the group joins the transaction",
    ),
    (32, Partly, "of topics, of brokers and of groups"),
    (
        17,
        Partly,
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, where `auth.listeners` has kafka; version 0 is refused",
    ),
    (29, Whole, RULES),
    (30, Whole, RULES),
    (31, Whole, RULES),
    (33, Partly, ALTERED),
    (35, Whole, "the data directory is the one log directory"),
    (
        36,
        Whole,
        "a login counts as long as the connection, or for `auth.max_reauth` (KIP-368), and no longer than a token",
    ),
    (
        42,
        Whole,
        "with a group go offsets that open transactions have not committed yet, as with Kafka",
    ),
    (
        43,
        Partly,
        "never needed: the brokers choose owners by themselves",
    ),
    (44, Partly, ALTERED),
    (
        46,
        Partly,
        "empty: the brokers move replicas by themselves, see `kera cluster status`",
    ),
    (48, Whole, ""),
    (49, Whole, ""),
    (50, Whole, "users and their mechanisms"),
    (51, Whole, "4,096 to 16,384 iterations; at most 4,096 users"),
    (
        55,
        Partly,
        "refused with UNSUPPORTED_VERSION, as by a Kafka that keeps metadata elsewhere: there is no log of controllers; DescribeCluster tells the controller",
    ),
    (60, Partly, "brokers; there are no separate controllers"),
    (
        61,
        Whole,
        "idempotent producers, with the time of their last append by the broker's clock, and where their open transaction begins; the epoch of its coordinator is -1",
    ),
    (
        65,
        Whole,
        "of one that is ending, the partitions that lack their marker",
    ),
    (
        66,
        Whole,
        "those that the broker coordinates; COORDINATOR_LOAD_IN_PROGRESS until all its coordinators have read their state",
    ),
    (
        68,
        Whole,
        "assignors `uniform` and `range`; a group changes its kind while it is empty, as with Kafka's migration policy `disabled`",
    ),
    (
        69,
        Whole,
        "the epoch of the assignment is always that of the group",
    ),
    (74, Whole, "topics and brokers"),
    (
        76,
        Whole,
        "a group is a share group from its first member on, and never of another kind",
    ),
    (
        77,
        Whole,
        "the epoch of the assignment is always that of the group",
    ),
    (
        78,
        Partly,
        "no records are acquired beyond `max_records`, in either mode; a session belongs to its connection, and its locks go with it",
    ),
    (90, Partly, "without the lag (version 1)"),
];

const RULES: &str = "kept whether `acl.enabled` is set or not; at most 8,192 rules";

const ALTERED: &str = "of topics, the broker settings below, and what is set for share groups; nothing is set for other groups";

/// The APIs of Kafka 4 that are not served, and why.
pub const ABSENT: &[(i16, &str, &str)] = &[
    (34, "AlterReplicaLogDirs", "one data directory"),
    (38, "CreateDelegationToken", DELEGATION),
    (39, "RenewDelegationToken", DELEGATION),
    (40, "ExpireDelegationToken", DELEGATION),
    (41, "DescribeDelegationToken", DELEGATION),
    (45, "AlterPartitionReassignments", REPLICAS),
    (52, "Vote", BETWEEN),
    (53, "BeginQuorumEpoch", BETWEEN),
    (54, "EndQuorumEpoch", BETWEEN),
    (56, "AlterPartition", BETWEEN),
    (57, "UpdateFeatures", "no versions of features to change"),
    (58, "Envelope", BETWEEN),
    (59, "FetchSnapshot", BETWEEN),
    (62, "BrokerRegistration", BETWEEN),
    (63, "BrokerHeartbeat", BETWEEN),
    (
        64,
        "UnregisterBroker",
        "a broker that has left needs no deregistration",
    ),
    (67, "AllocateProducerIds", BETWEEN),
    (70, "ControllerRegistration", BETWEEN),
    (71, "GetTelemetrySubscriptions", TELEMETRY),
    (72, "PushTelemetry", TELEMETRY),
    (73, "AssignReplicasToDirs", BETWEEN),
    (80, "AddRaftVoter", BETWEEN),
    (81, "RemoveRaftVoter", BETWEEN),
    (82, "UpdateRaftVoter", BETWEEN),
    (83, "InitializeShareGroupState", SHARE),
    (84, "ReadShareGroupState", SHARE),
    (85, "WriteShareGroupState", SHARE),
    (86, "DeleteShareGroupState", SHARE),
    (87, "ReadShareGroupStateSummary", SHARE),
    (88, "StreamsGroupHeartbeat", STREAMS),
    (89, "StreamsGroupDescribe", STREAMS),
];

const DELEGATION: &str = "no delegation tokens yet; an issuer's tokens log in by OAUTHBEARER";
const REPLICAS: &str = "the brokers choose leaders and replicas";
const BETWEEN: &str = "between Kafka's own brokers and controllers";
const TELEMETRY: &str = "metrics of clients are not collected";
const SHARE: &str =
    "between Kafka's own brokers: what share groups have read is kept by their coordinators";
const STREAMS: &str = "no Streams groups";

/// Keys that Kafka 4 knows and the codec does not.
pub const BEYOND_THE_CODEC: [i16; 2] = [88, 89];
