//! The shapes of the requests that are understood, version by version, as a table.
//!
//! A field is written `name: kind;`, with `from N` and `until N` for the versions that have it and
//! `tag N` if it is a tagged field that the codec knows. A kind is a name, `[kind]` for an array or
//! `{ fields }` for a structure; one that may be null is written `[? kind]` or `(? kind)`.

/// What a field is made of.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// So many bytes, whatever they hold.
    Fixed(usize),
    /// UTF-8 text behind its length.
    Text {
        /// Whether it may be null.
        nullable: bool,
    },
    /// Bytes behind their length.
    Bytes {
        /// Whether they may be null.
        nullable: bool,
    },
    /// Elements behind their number.
    Array {
        /// Whether it may be null.
        nullable: bool,
        /// What each element is.
        of: &'static Kind,
    },
    /// Fields one after the other.
    Struct(&'static [Field]),
    /// A byte that tells whether fields follow, and those fields.
    OptionalStruct(&'static [Field]),
}

/// A field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, as in Kafka's documentation but in snake case.
    pub name: &'static str,
    /// What it is made of.
    pub kind: Kind,
    /// The first version that has it.
    pub from: i16,
    /// The last version that has it.
    pub until: i16,
    /// Its tag, if it is a tagged field.
    pub tag: Option<u32>,
}

impl Field {
    /// Whether `version` has the field.
    pub fn is_in(&self, version: i16) -> bool {
        self.from <= version && version <= self.until
    }
}

/// A request: its versions and its fields.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The API key.
    pub api_key: i16,
    /// The name of the API.
    pub name: &'static str,
    /// The first version described.
    pub min: i16,
    /// The last version described.
    pub max: i16,
    /// The first version with compact lengths and tagged fields.
    pub flexible: i16,
    /// What the body holds.
    pub fields: &'static [Field],
}

impl Shape {
    /// Whether `version` is described.
    pub fn has(&self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    /// Whether `version` has compact lengths and tagged fields.
    pub fn is_flexible(&self, version: i16) -> bool {
        version >= self.flexible
    }
}

/// The shape of an API's requests, if it is understood.
pub fn shape(api_key: i16) -> Option<&'static Shape> {
    let found = SHAPES.binary_search_by_key(&api_key, |shape| shape.api_key);
    found.ok().map(|index| &SHAPES[index])
}

/// The version that stands for "no such version": the bound of fields that were never removed, and
/// of requests that never became flexible.
const NEVER: i16 = i16::MAX;

macro_rules! kind {
    (bool) => { Kind::Fixed(1) };
    (int8) => { Kind::Fixed(1) };
    (int16) => { Kind::Fixed(2) };
    (int32) => { Kind::Fixed(4) };
    (int64) => { Kind::Fixed(8) };
    (float64) => { Kind::Fixed(8) };
    (uuid) => { Kind::Fixed(16) };
    (string) => { Kind::Text { nullable: false } };
    (bytes) => { Kind::Bytes { nullable: false } };
    ((? string)) => { Kind::Text { nullable: true } };
    ((? bytes)) => { Kind::Bytes { nullable: true } };
    ((? { $($fields:tt)* })) => { Kind::OptionalStruct(fields!($($fields)*)) };
    ([? $of:tt]) => { Kind::Array { nullable: true, of: &kind!($of) } };
    ([$of:tt]) => { Kind::Array { nullable: false, of: &kind!($of) } };
    ({ $($fields:tt)* }) => { Kind::Struct(fields!($($fields)*)) };
}

macro_rules! fields {
    ($( $name:ident : $kind:tt $(from $from:literal)? $(until $until:literal)? $(tag $tag:literal)? ; )*) => {
        &[ $( Field {
            name: stringify!($name),
            kind: kind!($kind),
            from: either!($($from)? else 0),
            until: either!($($until)? else NEVER),
            tag: either!($(Some($tag))? else None),
        } ),* ]
    };
}

macro_rules! either {
    (else $default:expr) => {
        $default
    };
    ($given:literal else $default:expr) => {
        $given
    };
    (Some($given:literal) else $default:expr) => {
        Some($given)
    };
}

macro_rules! shapes {
    ($( $api_key:literal $name:ident $min:literal to $max:literal $(flexible $flexible:literal)? { $($fields:tt)* } )*) => {
        /// Every request that is understood, in the order of their keys.
        pub static SHAPES: &[Shape] = &[ $( Shape {
            api_key: $api_key,
            name: stringify!($name),
            min: $min,
            max: $max,
            flexible: either!($($flexible)? else NEVER),
            fields: fields!($($fields)*),
        } ),* ];
    };
}

shapes! {
    0 Produce 3 to 13 flexible 9 {
        transactional_id: (? string);
        acks: int16;
        timeout_ms: int32;
        topic_data: [{
            name: string until 12;
            topic_id: uuid from 13;
            partition_data: [{
                index: int32;
                records: (? bytes);
            }];
        }];
    }

    1 Fetch 4 to 18 flexible 12 {
        cluster_id: (? string) tag 0;
        replica_id: int32 until 14;
        replica_state: {
            replica_id: int32 from 15;
            replica_epoch: int64 from 15;
        } from 15 tag 1;
        max_wait_ms: int32;
        min_bytes: int32;
        max_bytes: int32;
        isolation_level: int8;
        session_id: int32 from 7;
        session_epoch: int32 from 7;
        topics: [{
            topic: string until 12;
            topic_id: uuid from 13;
            partitions: [{
                partition: int32;
                current_leader_epoch: int32 from 9;
                fetch_offset: int64;
                last_fetched_epoch: int32 from 12;
                log_start_offset: int64 from 5;
                partition_max_bytes: int32;
                replica_directory_id: uuid from 17 tag 0;
                high_watermark: int64 from 18 tag 1;
            }];
        }];
        forgotten_topics_data: [{
            topic: string until 12;
            topic_id: uuid from 13;
            partitions: [int32];
        }] from 7;
        rack_id: string from 11;
    }

    2 ListOffsets 1 to 10 flexible 6 {
        replica_id: int32;
        isolation_level: int8 from 2;
        topics: [{
            name: string;
            partitions: [{
                partition_index: int32;
                current_leader_epoch: int32 from 4;
                timestamp: int64;
            }];
        }];
        timeout_ms: int32 from 10;
    }

    3 Metadata 0 to 13 flexible 9 {
        topics: [? {
            topic_id: uuid from 10;
            name: (? string);
        }];
        allow_auto_topic_creation: bool from 4;
        include_cluster_authorized_operations: bool from 8 until 10;
        include_topic_authorized_operations: bool from 8;
    }

    8 OffsetCommit 2 to 9 flexible 8 {
        group_id: string;
        generation_id_or_member_epoch: int32;
        member_id: string;
        group_instance_id: (? string) from 7;
        retention_time_ms: int64 until 4;
        topics: [{
            name: string;
            partitions: [{
                partition_index: int32;
                committed_offset: int64;
                committed_leader_epoch: int32 from 6;
                committed_metadata: (? string);
            }];
        }];
    }

    9 OffsetFetch 1 to 9 flexible 6 {
        group_id: string until 7;
        topics: [? {
            name: string;
            partition_indexes: [int32];
        }] until 7;
        groups: [{
            group_id: string;
            member_id: (? string) from 9;
            member_epoch: int32 from 9;
            topics: [? {
                name: string;
                partition_indexes: [int32];
            }];
        }] from 8;
        require_stable: bool from 7;
    }

    10 FindCoordinator 0 to 6 flexible 3 {
        key: string until 3;
        key_type: int8 from 1;
        coordinator_keys: [string] from 4;
    }

    11 JoinGroup 0 to 9 flexible 6 {
        group_id: string;
        session_timeout_ms: int32;
        rebalance_timeout_ms: int32 from 1;
        member_id: string;
        group_instance_id: (? string) from 5;
        protocol_type: string;
        protocols: [{
            name: string;
            metadata: bytes;
        }];
        reason: (? string) from 8;
    }

    12 Heartbeat 0 to 4 flexible 4 {
        group_id: string;
        generation_id: int32;
        member_id: string;
        group_instance_id: (? string) from 3;
    }

    13 LeaveGroup 0 to 5 flexible 4 {
        group_id: string;
        member_id: string until 2;
        members: [{
            member_id: string;
            group_instance_id: (? string);
            reason: (? string) from 5;
        }] from 3;
    }

    14 SyncGroup 0 to 5 flexible 4 {
        group_id: string;
        generation_id: int32;
        member_id: string;
        group_instance_id: (? string) from 3;
        protocol_type: (? string) from 5;
        protocol_name: (? string) from 5;
        assignments: [{
            member_id: string;
            assignment: bytes;
        }];
    }

    15 DescribeGroups 0 to 6 flexible 5 {
        groups: [string];
        include_authorized_operations: bool from 3;
    }

    16 ListGroups 0 to 5 flexible 3 {
        states_filter: [string] from 4;
        types_filter: [string] from 5;
    }

    17 SaslHandshake 0 to 1 {
        mechanism: string;
    }

    18 ApiVersions 0 to 4 flexible 3 {
        client_software_name: string from 3;
        client_software_version: string from 3;
    }

    19 CreateTopics 2 to 7 flexible 5 {
        topics: [{
            name: string;
            num_partitions: int32;
            replication_factor: int16;
            assignments: [{
                partition_index: int32;
                broker_ids: [int32];
            }];
            configs: [{
                name: string;
                value: (? string);
            }];
        }];
        timeout_ms: int32;
        validate_only: bool;
    }

    20 DeleteTopics 1 to 6 flexible 4 {
        topics: [{
            name: (? string);
            topic_id: uuid;
        }] from 6;
        topic_names: [string] until 5;
        timeout_ms: int32;
    }

    21 DeleteRecords 0 to 2 flexible 2 {
        topics: [{
            name: string;
            partitions: [{
                partition_index: int32;
                offset: int64;
            }];
        }];
        timeout_ms: int32;
    }

    22 InitProducerId 0 to 6 flexible 2 {
        transactional_id: (? string);
        transaction_timeout_ms: int32;
        producer_id: int64 from 3;
        producer_epoch: int16 from 3;
        enable_2pc: bool from 6;
        keep_prepared_txn: bool from 6;
    }

    23 OffsetForLeaderEpoch 2 to 4 flexible 4 {
        replica_id: int32 from 3;
        topics: [{
            topic: string;
            partitions: [{
                partition: int32;
                current_leader_epoch: int32;
                leader_epoch: int32;
            }];
        }];
    }

    24 AddPartitionsToTxn 0 to 5 flexible 3 {
        transactions: [{
            transactional_id: string;
            producer_id: int64;
            producer_epoch: int16;
            verify_only: bool;
            topics: [{
                name: string;
                partitions: [int32];
            }];
        }] from 4;
        v3_and_below_transactional_id: string until 3;
        v3_and_below_producer_id: int64 until 3;
        v3_and_below_producer_epoch: int16 until 3;
        v3_and_below_topics: [{
            name: string;
            partitions: [int32];
        }] until 3;
    }

    25 AddOffsetsToTxn 0 to 4 flexible 3 {
        transactional_id: string;
        producer_id: int64;
        producer_epoch: int16;
        group_id: string;
    }

    26 EndTxn 0 to 5 flexible 3 {
        transactional_id: string;
        producer_id: int64;
        producer_epoch: int16;
        committed: bool;
    }

    27 WriteTxnMarkers 1 to 1 flexible 1 {
        markers: [{
            producer_id: int64;
            producer_epoch: int16;
            transaction_result: bool;
            topics: [{
                name: string;
                partition_indexes: [int32];
            }];
            coordinator_epoch: int32;
        }];
    }

    28 TxnOffsetCommit 0 to 5 flexible 3 {
        transactional_id: string;
        group_id: string;
        producer_id: int64;
        producer_epoch: int16;
        generation_id: int32 from 3;
        member_id: string from 3;
        group_instance_id: (? string) from 3;
        topics: [{
            name: string;
            partitions: [{
                partition_index: int32;
                committed_offset: int64;
                committed_leader_epoch: int32 from 2;
                committed_metadata: (? string);
            }];
        }];
    }

    29 DescribeAcls 1 to 3 flexible 2 {
        resource_type_filter: int8;
        resource_name_filter: (? string);
        pattern_type_filter: int8;
        principal_filter: (? string);
        host_filter: (? string);
        operation: int8;
        permission_type: int8;
    }

    30 CreateAcls 1 to 3 flexible 2 {
        creations: [{
            resource_type: int8;
            resource_name: string;
            resource_pattern_type: int8;
            principal: string;
            host: string;
            operation: int8;
            permission_type: int8;
        }];
    }

    31 DeleteAcls 1 to 3 flexible 2 {
        filters: [{
            resource_type_filter: int8;
            resource_name_filter: (? string);
            pattern_type_filter: int8;
            principal_filter: (? string);
            host_filter: (? string);
            operation: int8;
            permission_type: int8;
        }];
    }

    32 DescribeConfigs 1 to 4 flexible 4 {
        resources: [{
            resource_type: int8;
            resource_name: string;
            configuration_keys: [? string];
        }];
        include_synonyms: bool;
        include_documentation: bool from 3;
    }

    33 AlterConfigs 0 to 2 flexible 2 {
        resources: [{
            resource_type: int8;
            resource_name: string;
            configs: [{
                name: string;
                value: (? string);
            }];
        }];
        validate_only: bool;
    }

    35 DescribeLogDirs 1 to 4 flexible 2 {
        topics: [? {
            topic: string;
            partitions: [int32];
        }];
    }

    36 SaslAuthenticate 0 to 2 flexible 2 {
        auth_bytes: bytes;
    }

    37 CreatePartitions 0 to 3 flexible 2 {
        topics: [{
            name: string;
            count: int32;
            assignments: [? {
                broker_ids: [int32];
            }];
        }];
        timeout_ms: int32;
        validate_only: bool;
    }

    42 DeleteGroups 0 to 2 flexible 2 {
        groups_names: [string];
    }

    43 ElectLeaders 0 to 2 flexible 2 {
        election_type: int8 from 1;
        topic_partitions: [? {
            topic: string;
            partitions: [int32];
        }];
        timeout_ms: int32;
    }

    44 IncrementalAlterConfigs 0 to 1 flexible 1 {
        resources: [{
            resource_type: int8;
            resource_name: string;
            configs: [{
                name: string;
                config_operation: int8;
                value: (? string);
            }];
        }];
        validate_only: bool;
    }

    46 ListPartitionReassignments 0 to 0 flexible 0 {
        timeout_ms: int32;
        topics: [? {
            name: string;
            partition_indexes: [int32];
        }];
    }

    47 OffsetDelete 0 to 0 {
        group_id: string;
        topics: [{
            name: string;
            partitions: [{
                partition_index: int32;
            }];
        }];
    }

    48 DescribeClientQuotas 0 to 1 flexible 1 {
        components: [{
            entity_type: string;
            match_type: int8;
            match: (? string);
        }];
        strict: bool;
    }

    49 AlterClientQuotas 0 to 1 flexible 1 {
        entries: [{
            entity: [{
                entity_type: string;
                entity_name: (? string);
            }];
            ops: [{
                key: string;
                value: float64;
                remove: bool;
            }];
        }];
        validate_only: bool;
    }

    50 DescribeUserScramCredentials 0 to 0 flexible 0 {
        users: [? {
            name: string;
        }];
    }

    51 AlterUserScramCredentials 0 to 0 flexible 0 {
        deletions: [{
            name: string;
            mechanism: int8;
        }];
        upsertions: [{
            name: string;
            mechanism: int8;
            iterations: int32;
            salt: bytes;
            salted_password: bytes;
        }];
    }

    55 DescribeQuorum 0 to 2 flexible 0 {
        topics: [{
            topic_name: string;
            partitions: [{
                partition_index: int32;
            }];
        }];
    }

    60 DescribeCluster 0 to 2 flexible 0 {
        include_cluster_authorized_operations: bool;
        endpoint_type: int8 from 1;
        include_fenced_brokers: bool from 2;
    }

    61 DescribeProducers 0 to 0 flexible 0 {
        topics: [{
            name: string;
            partition_indexes: [int32];
        }];
    }

    65 DescribeTransactions 0 to 0 flexible 0 {
        transactional_ids: [string];
    }

    66 ListTransactions 0 to 2 flexible 0 {
        state_filters: [string];
        producer_id_filters: [int64];
        duration_filter: int64 from 1;
        transactional_id_pattern: (? string) from 2;
    }

    68 ConsumerGroupHeartbeat 0 to 1 flexible 0 {
        group_id: string;
        member_id: string;
        member_epoch: int32;
        instance_id: (? string);
        rack_id: (? string);
        rebalance_timeout_ms: int32;
        subscribed_topic_names: [? string];
        subscribed_topic_regex: (? string) from 1;
        server_assignor: (? string);
        topic_partitions: [? {
            topic_id: uuid;
            partitions: [int32];
        }];
    }

    69 ConsumerGroupDescribe 0 to 1 flexible 0 {
        group_ids: [string];
        include_authorized_operations: bool;
    }

    74 ListConfigResources 0 to 1 flexible 0 {
        resource_types: [int8] from 1;
    }

    75 DescribeTopicPartitions 0 to 0 flexible 0 {
        topics: [{
            name: string;
        }];
        response_partition_limit: int32;
        cursor: (? {
            topic_name: string;
            partition_index: int32;
        });
    }

    76 ShareGroupHeartbeat 1 to 1 flexible 0 {
        group_id: string;
        member_id: string;
        member_epoch: int32;
        rack_id: (? string);
        subscribed_topic_names: [? string];
    }

    77 ShareGroupDescribe 1 to 1 flexible 0 {
        group_ids: [string];
        include_authorized_operations: bool;
    }

    78 ShareFetch 1 to 2 flexible 0 {
        group_id: (? string);
        member_id: (? string);
        share_session_epoch: int32;
        max_wait_ms: int32;
        min_bytes: int32;
        max_bytes: int32;
        max_records: int32;
        batch_size: int32;
        share_acquire_mode: int8 from 2;
        is_renew_ack: bool from 2;
        topics: [{
            topic_id: uuid;
            partitions: [{
                partition_index: int32;
                acknowledgement_batches: [{
                    first_offset: int64;
                    last_offset: int64;
                    acknowledge_types: [int8];
                }];
            }];
        }];
        forgotten_topics_data: [{
            topic_id: uuid;
            partitions: [int32];
        }];
    }

    79 ShareAcknowledge 1 to 2 flexible 0 {
        group_id: (? string);
        member_id: (? string);
        share_session_epoch: int32;
        is_renew_ack: bool from 2;
        topics: [{
            topic_id: uuid;
            partitions: [{
                partition_index: int32;
                acknowledgement_batches: [{
                    first_offset: int64;
                    last_offset: int64;
                    acknowledge_types: [int8];
                }];
            }];
        }];
    }

    90 DescribeShareGroupOffsets 0 to 0 flexible 0 {
        groups: [{
            group_id: string;
            topics: [? {
                topic_name: string;
                partitions: [int32];
            }];
        }];
    }

    91 AlterShareGroupOffsets 0 to 0 flexible 0 {
        group_id: string;
        topics: [{
            topic_name: string;
            partitions: [{
                partition_index: int32;
                start_offset: int64;
            }];
        }];
    }

    92 DeleteShareGroupOffsets 0 to 0 flexible 0 {
        group_id: string;
        topics: [{
            topic_name: string;
        }];
    }
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
