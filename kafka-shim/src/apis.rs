//! What is supported, and which rights it needs: the one table from which ApiVersions, dispatch, the checks of handlers and the
//! documents are made.

use Operation::{
    Alter, AlterConfigs, ClusterAction, Create, Delete, Describe, DescribeConfigs, IdempotentWrite,
    Read, TwoPhaseCommit, Write,
};
use kera_metadata::access::{Kind, Operation};

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
    /// The rights that its requests need. Of several to one kind of thing the first is asked for wherever a handler names no
    /// other.
    pub needs: &'static [Need],
}

/// A right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// What it does
    pub operation: Operation,
    /// to which kind of thing.
    pub kind: Kind,
    /// Which requests need it, where not all do.
    pub when: &'static str,
}

impl Need {
    const fn when(mut self, when: &'static str) -> Self {
        self.when = when;
        self
    }
}

impl Api {
    /// What its requests do to a kind of thing.
    pub(crate) fn operation(&self, kind: Kind) -> Option<Operation> {
        let need = self.needs.iter().find(|need| need.kind == kind);
        need.map(|need| need.operation)
    }

    /// Whether some of its requests do this to a kind of thing.
    pub(crate) fn has(&self, kind: Kind, operation: Operation) -> bool {
        let mut needs = self.needs.iter();
        needs.any(|need| need.kind == kind && need.operation == operation)
    }
}

const fn api(key: i16, name: &'static str, min: i16, max: i16, needs: &'static [Need]) -> Api {
    Api {
        key,
        name,
        min,
        max,
        needs,
    }
}

const fn to(kind: Kind, operation: Operation) -> Need {
    Need {
        operation,
        kind,
        when: "",
    }
}

const fn topic(operation: Operation) -> Need {
    to(Kind::Stream, operation)
}

const fn group(operation: Operation) -> Need {
    to(Kind::Group, operation)
}

const fn cluster(operation: Operation) -> Need {
    to(Kind::Cluster, operation)
}

const fn id(operation: Operation) -> Need {
    to(Kind::TransactionalId, operation)
}

/// Of requests that leave out what the client may not see.
const LISTS: &str = "else it is left out";

/// Lowest version of Produce that is served, though lower ones are advertised: librdkafka takes a
/// higher minimum for a broker that knows no compression.
pub const PRODUCE_MIN: i16 = 3;

/// Every API that is supported, by number. What is not here is not advertised, and a request of it
/// ends its connection, as with Kafka.
#[rustfmt::skip]
pub const APIS: &[Api] = &[
    api(0, "Produce", 0, 13, &[topic(Write), id(Write).when("for transactions")]),
    api(1, "Fetch", 4, 18, &[topic(Read)]),
    api(2, "ListOffsets", 1, 10, &[topic(Describe)]),
    api(3, "Metadata", 0, 13, &[topic(Describe), topic(Create).when("of a topic that is made"), cluster(Create).when("instead")]),
    api(8, "OffsetCommit", 2, 9, &[group(Read), topic(Read)]),
    api(9, "OffsetFetch", 1, 9, &[group(Describe), topic(Describe)]),
    api(10, "FindCoordinator", 0, 6, &[group(Describe).when("for groups"), id(Describe).when("for transactions")]),
    api(11, "JoinGroup", 0, 9, &[group(Read)]),
    api(12, "Heartbeat", 0, 4, &[group(Read)]),
    api(13, "LeaveGroup", 0, 5, &[group(Read)]),
    api(14, "SyncGroup", 0, 5, &[group(Read)]),
    api(15, "DescribeGroups", 0, 6, &[group(Describe)]),
    api(16, "ListGroups", 0, 5, &[group(Describe).when(LISTS), cluster(Describe).when("instead, for all")]),
    // Version 0 is refused: tokens without Kafka's heads would follow it. librdkafka looks for it all the same.
    api(17, "SaslHandshake", 0, 1, &[]),
    api(18, "ApiVersions", 0, 4, &[]),
    api(19, "CreateTopics", 2, 7, &[topic(Create), cluster(Create).when("instead"), topic(DescribeConfigs).when("to be told the settings")]),
    api(20, "DeleteTopics", 1, 6, &[topic(Delete)]),
    api(21, "DeleteRecords", 0, 2, &[topic(Delete)]),
    api(22, "InitProducerId", 0, 6, &[cluster(IdempotentWrite).when("without a transactional id"), topic(Write).when("instead, on any"), id(Write).when("for transactions"), id(TwoPhaseCommit).when("for two-phase commit")]),
    api(23, "OffsetForLeaderEpoch", 2, 4, &[topic(Describe)]),
    api(24, "AddPartitionsToTxn", 0, 5, &[id(Write).when("up to version 3"), topic(Write).when("up to version 3"), cluster(ClusterAction).when("from version 4")]),
    api(25, "AddOffsetsToTxn", 0, 4, &[id(Write), group(Read)]),
    api(26, "EndTxn", 0, 5, &[id(Write)]),
    api(27, "WriteTxnMarkers", 1, 1, &[cluster(ClusterAction), cluster(Alter).when("instead")]),
    api(28, "TxnOffsetCommit", 0, 5, &[id(Write), group(Read), topic(Read)]),
    api(29, "DescribeAcls", 1, 3, &[cluster(Describe)]),
    api(30, "CreateAcls", 1, 3, &[cluster(Alter)]),
    api(31, "DeleteAcls", 1, 3, &[cluster(Alter)]),
    api(32, "DescribeConfigs", 1, 4, &[topic(DescribeConfigs).when("for topics"), cluster(DescribeConfigs).when("for brokers and loggers"), group(DescribeConfigs).when("for groups")]),
    api(33, "AlterConfigs", 0, 2, &[topic(AlterConfigs).when("for topics"), cluster(AlterConfigs).when("for brokers and loggers"), group(AlterConfigs).when("for groups"), topic(Write).when("the one that is to get a group's dead letters")]),
    api(35, "DescribeLogDirs", 1, 4, &[cluster(Describe)]),
    api(36, "SaslAuthenticate", 0, 2, &[]),
    api(37, "CreatePartitions", 0, 3, &[topic(Alter)]),
    api(42, "DeleteGroups", 0, 2, &[group(Delete)]),
    api(43, "ElectLeaders", 0, 2, &[cluster(Alter)]),
    api(44, "IncrementalAlterConfigs", 0, 1, &[topic(AlterConfigs).when("for topics"), cluster(AlterConfigs).when("for brokers and loggers"), group(AlterConfigs).when("for groups"), topic(Write).when("the one that is to get a group's dead letters")]),
    api(46, "ListPartitionReassignments", 0, 0, &[cluster(Describe)]),
    api(47, "OffsetDelete", 0, 0, &[group(Delete), topic(Read)]),
    api(48, "DescribeClientQuotas", 0, 1, &[cluster(DescribeConfigs)]),
    api(49, "AlterClientQuotas", 0, 1, &[cluster(AlterConfigs)]),
    api(50, "DescribeUserScramCredentials", 0, 0, &[cluster(Describe)]),
    api(51, "AlterUserScramCredentials", 0, 0, &[cluster(Alter)]),
    api(55, "DescribeQuorum", 0, 2, &[cluster(Describe)]),
    api(60, "DescribeCluster", 0, 2, &[]),
    api(61, "DescribeProducers", 0, 0, &[topic(Read)]),
    api(65, "DescribeTransactions", 0, 0, &[id(Describe), topic(Describe).when(LISTS)]),
    api(66, "ListTransactions", 0, 2, &[id(Describe).when(LISTS)]),
    api(68, "ConsumerGroupHeartbeat", 0, 1, &[group(Read), topic(Describe)]),
    api(69, "ConsumerGroupDescribe", 0, 1, &[group(Describe), topic(Describe)]),
    api(74, "ListConfigResources", 0, 1, &[cluster(DescribeConfigs)]),
    api(75, "DescribeTopicPartitions", 0, 0, &[topic(Describe)]),
    api(76, "ShareGroupHeartbeat", 1, 1, &[group(Read), topic(Describe)]),
    api(77, "ShareGroupDescribe", 1, 1, &[group(Describe), topic(Describe)]),
    api(78, "ShareFetch", 1, 2, &[group(Read), topic(Read)]),
    api(79, "ShareAcknowledge", 1, 2, &[group(Read), topic(Read).when("of topics that are there")]),
    api(90, "DescribeShareGroupOffsets", 0, 0, &[group(Describe), topic(Describe)]),
    api(91, "AlterShareGroupOffsets", 0, 0, &[group(Read), topic(Read)]),
    api(92, "DeleteShareGroupOffsets", 0, 0, &[group(Delete), topic(Read)]),
];

/// Produce, which the connection answers itself.
pub(crate) const PRODUCE: &Api = &APIS[0];
/// Fetch, likewise.
pub(crate) const FETCH: &Api = &APIS[1];

/// The API of a number, if it is supported.
pub fn find(key: i16) -> Option<&'static Api> {
    APIS.iter().find(|api| api.key == key)
}

/// True if requests of this API and version are served.
pub fn serves(key: i16, version: i16) -> bool {
    let produce_too_old = key == 0 && version < PRODUCE_MIN;
    find(key).is_some_and(|api| (api.min..=api.max).contains(&version)) && !produce_too_old
}
