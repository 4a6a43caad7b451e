//! What is supported: the one table from which ApiVersions, dispatch and the documents are made.

/// An API of Kafka's protocol as far as it is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    /// Its number on the wire.
    pub key: i16,
    /// Its name in Kafka's documentation.
    pub name: &'static str,
    /// Lowest version that is advertised.
    pub min: i16,
    /// Highest version that is advertised and served.
    pub max: i16,
}

const fn api(key: i16, name: &'static str, min: i16, max: i16) -> Api {
    Api {
        key,
        name,
        min,
        max,
    }
}

/// Lowest version of Produce that is served, though lower ones are advertised: librdkafka takes a
/// higher minimum for a broker that knows no compression.
pub const PRODUCE_MIN: i16 = 3;

/// Every API that is supported, by number. What is not here is not advertised, and a request of it
/// ends its connection, as with Kafka.
pub const APIS: &[Api] = &[
    api(0, "Produce", 0, 13),
    api(1, "Fetch", 4, 18),
    api(2, "ListOffsets", 1, 10),
    api(3, "Metadata", 0, 13),
    api(8, "OffsetCommit", 2, 9),
    api(9, "OffsetFetch", 1, 9),
    api(10, "FindCoordinator", 0, 6),
    api(11, "JoinGroup", 0, 9),
    api(12, "Heartbeat", 0, 4),
    api(13, "LeaveGroup", 0, 5),
    api(14, "SyncGroup", 0, 5),
    api(15, "DescribeGroups", 0, 6),
    api(16, "ListGroups", 0, 5),
    // Version 0 is refused: tokens without Kafka's heads would follow it. librdkafka looks for it all the same.
    api(17, "SaslHandshake", 0, 1),
    api(18, "ApiVersions", 0, 4),
    api(19, "CreateTopics", 2, 7),
    api(20, "DeleteTopics", 1, 6),
    api(21, "DeleteRecords", 0, 2),
    api(22, "InitProducerId", 0, 6),
    api(23, "OffsetForLeaderEpoch", 2, 4),
    api(24, "AddPartitionsToTxn", 0, 5),
    api(25, "AddOffsetsToTxn", 0, 4),
    api(26, "EndTxn", 0, 5),
    api(27, "WriteTxnMarkers", 1, 1),
    api(28, "TxnOffsetCommit", 0, 5),
    api(29, "DescribeAcls", 1, 3),
    api(30, "CreateAcls", 1, 3),
    api(31, "DeleteAcls", 1, 3),
    api(32, "DescribeConfigs", 1, 4),
    api(33, "AlterConfigs", 0, 2),
    api(35, "DescribeLogDirs", 1, 4),
    api(36, "SaslAuthenticate", 0, 2),
    api(37, "CreatePartitions", 0, 3),
    api(42, "DeleteGroups", 0, 2),
    api(43, "ElectLeaders", 0, 2),
    api(44, "IncrementalAlterConfigs", 0, 1),
    api(46, "ListPartitionReassignments", 0, 0),
    api(47, "OffsetDelete", 0, 0),
    api(48, "DescribeClientQuotas", 0, 1),
    api(49, "AlterClientQuotas", 0, 1),
    api(50, "DescribeUserScramCredentials", 0, 0),
    api(51, "AlterUserScramCredentials", 0, 0),
    api(55, "DescribeQuorum", 0, 2),
    api(60, "DescribeCluster", 0, 2),
    api(61, "DescribeProducers", 0, 0),
    api(65, "DescribeTransactions", 0, 0),
    api(66, "ListTransactions", 0, 2),
    api(68, "ConsumerGroupHeartbeat", 0, 1),
    api(69, "ConsumerGroupDescribe", 0, 1),
    api(74, "ListConfigResources", 0, 1),
    api(75, "DescribeTopicPartitions", 0, 0),
    api(76, "ShareGroupHeartbeat", 1, 1),
    api(77, "ShareGroupDescribe", 1, 1),
    api(78, "ShareFetch", 1, 1),
    api(79, "ShareAcknowledge", 1, 1),
    api(90, "DescribeShareGroupOffsets", 0, 0),
    api(91, "AlterShareGroupOffsets", 0, 0),
    api(92, "DeleteShareGroupOffsets", 0, 0),
];

/// The API of a number, if it is supported.
pub fn find(key: i16) -> Option<&'static Api> {
    APIS.iter().find(|api| api.key == key)
}

/// True if requests of this API and version are served.
pub fn serves(key: i16, version: i16) -> bool {
    let produce_too_old = key == 0 && version < PRODUCE_MIN;
    find(key).is_some_and(|api| (api.min..=api.max).contains(&version)) && !produce_too_old
}
