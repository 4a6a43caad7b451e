//! The stored form of records: messages written out by hand.
//!
//! A tag is never reused; fields are only added, absent ones read as zero, and fields of a newer build
//! are skipped.

use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BrokerMessage {
    #[prost(string, tag = "1")]
    pub(crate) address: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) store_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) boot_id: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub(crate) started_ms: u64,
    #[prost(string, tag = "5")]
    pub(crate) version: String,
    /// 0 broker, 1 replica store.
    #[prost(uint32, tag = "6")]
    pub(crate) role: u32,
    #[prost(uint64, tag = "7")]
    pub(crate) restore: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SettingsMessage {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(crate) values: BTreeMap<String, String>,
    #[prost(uint32, tag = "2")]
    pub(crate) cluster_version: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RulesMessage {
    #[prost(message, repeated, tag = "1")]
    pub(crate) rules: Vec<RuleMessage>,
    /// Since cluster version 6.
    #[prost(message, repeated, tag = "2")]
    pub(crate) roles: Vec<RoleMessage>,
}

/// Users that rules name together.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RoleMessage {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) members: Vec<String>,
}

/// Since cluster version 7.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PinMessage {
    #[prost(string, tag = "1")]
    pub(crate) job: String,
    #[prost(string, tag = "2")]
    pub(crate) owner: String,
    #[prost(uint64, tag = "3")]
    pub(crate) created_ms: u64,
    /// By partition.
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) positions: Vec<u64>,
    #[prost(uint64, tag = "5")]
    pub(crate) max_age_ms: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) max_bytes: u64,
    /// 1 warn, 2 wait.
    #[prost(uint32, tag = "7")]
    pub(crate) policy: u32,
    #[prost(message, optional, tag = "8")]
    pub(crate) lost: Option<PinLossMessage>,
}

/// The first records that a pin has lost.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PinLossMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) streamlet: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) lane: u32,
    #[prost(uint64, tag = "3")]
    pub(crate) ordinal: u64,
    /// 1 retention, 2 age, 3 bytes, 4 trim.
    #[prost(uint32, tag = "4")]
    pub(crate) cause: u32,
    #[prost(uint64, tag = "5")]
    pub(crate) at_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct QuotasMessage {
    #[prost(message, repeated, tag = "1")]
    pub(crate) quotas: Vec<QuotaMessage>,
}

/// Those it is not about are absent.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct QuotaMessage {
    #[prost(message, optional, tag = "1")]
    pub(crate) user: Option<WhomMessage>,
    #[prost(message, optional, tag = "2")]
    pub(crate) client: Option<WhomMessage>,
    #[prost(message, optional, tag = "3")]
    pub(crate) ip: Option<WhomMessage>,
    /// By Kafka's names.
    #[prost(btree_map = "string, double", tag = "4")]
    pub(crate) limits: BTreeMap<String, f64>,
    /// The parts of an objective, by name. Brokers of earlier versions refuse limits that they do not know, and skip these.
    #[prost(btree_map = "string, double", tag = "5")]
    pub(crate) objective: BTreeMap<String, f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WhomMessage {
    /// Absent: the default.
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UsersMessage {
    #[prost(message, repeated, tag = "1")]
    pub(crate) users: Vec<UserMessage>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) secret: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UserMessage {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) credentials: Vec<CredentialMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CredentialMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) mechanism: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) salt: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub(crate) iterations: u32,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) stored_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) server_key: Vec<u8>,
}

/// Numbers are Kafka's.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuleMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) kind: u32,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(uint32, tag = "3")]
    pub(crate) pattern: u32,
    #[prost(string, tag = "4")]
    pub(crate) principal: String,
    #[prost(string, tag = "5")]
    pub(crate) host: String,
    #[prost(uint32, tag = "6")]
    pub(crate) operation: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) permission: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NumberMessage {
    /// A counter's value, or a log start.
    #[prost(uint64, tag = "1")]
    pub(crate) value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NameMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stream: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamMessage {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) config: Option<ConfigMessage>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) lane_generations: Vec<LaneGenerationMessage>,
    #[prost(uint64, tag = "4")]
    pub(crate) created_ms: u64,
    #[prost(bool, tag = "5")]
    pub(crate) internal: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfigMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) streamlets: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) lanes: u32,
    /// 0 key, 1 producer.
    #[prost(uint32, tag = "3")]
    pub(crate) lane_by: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) segment_size: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) segments_per_group: u32,
    /// 0 written, 1 memory, 2 synced.
    #[prost(uint32, tag = "6")]
    pub(crate) ack: u32,
    #[prost(uint64, tag = "7")]
    pub(crate) retention_ms: u64,
    #[prost(uint64, tag = "8")]
    pub(crate) retention_bytes: u64,
    #[prost(uint64, tag = "9")]
    pub(crate) group_max_age_ms: u64,
    #[prost(uint32, tag = "10")]
    pub(crate) max_batch_bytes: u32,
    /// 0 create, 1 append.
    #[prost(uint32, tag = "11")]
    pub(crate) timestamp_type: u32,
    /// 0, as older builds have it: 1.
    #[prost(uint32, tag = "12")]
    pub(crate) replicas: u32,
    /// 0, as older builds have it: 1.
    #[prost(uint32, tag = "13")]
    pub(crate) min_insync_replicas: u32,
    #[prost(uint32, tag = "14")]
    pub(crate) short_streamlets: u32,
    #[prost(uint64, tag = "15")]
    pub(crate) timestamp_before_max_ms: u64,
    #[prost(uint64, tag = "16")]
    pub(crate) timestamp_after_max_ms: u64,
    /// 0, as older builds have it: header; 1: full.
    #[prost(uint32, tag = "17")]
    pub(crate) validate: u32,
    /// Absent, as older builds have it: the defaults, and old records are deleted.
    #[prost(message, tag = "18")]
    pub(crate) compaction: Option<CompactionMessage>,
    #[prost(bool, tag = "19")]
    pub(crate) dead_letters: bool,
}

/// How a stream is compacted.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CompactionMessage {
    /// 0 delete, 1 compact, 2 both.
    #[prost(uint32, tag = "1")]
    pub(crate) cleanup: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) min_lag_ms: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) max_lag_ms: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) delete_retention_ms: u64,
    #[prost(uint32, tag = "5")]
    pub(crate) min_dirty_permille: u32,
    /// Limits of retention that do not count while records are compacted only. A build that does not know of
    /// compaction reads that there are none, and deletes nothing.
    #[prost(uint64, tag = "6")]
    pub(crate) idle_retention_ms: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) idle_retention_bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LaneGenerationMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) lanes: u32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) starts: Vec<GenerationStartMessage>,
    #[prost(uint32, tag = "3")]
    pub(crate) short_streamlets: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GenerationStartMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) streamlet: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) lane: u32,
    #[prost(uint64, tag = "3")]
    pub(crate) ordinal: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamletMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) owner: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) epoch: u32,
    #[prost(uint64, tag = "3")]
    pub(crate) next_group: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) restore: u64,
    /// Of versions that know of one jump at a time.
    #[prost(bool, tag = "5")]
    pub(crate) awaits_jump: bool,
    #[prost(uint32, tag = "6")]
    pub(crate) awaits_jumps: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GroupMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) generation: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) lane: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) epoch: u32,
    /// 1 ahead, 2 open, 3 closed.
    #[prost(uint32, tag = "4")]
    pub(crate) state: u32,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) first_ordinal: Option<u64>,
    #[prost(uint64, tag = "6")]
    pub(crate) length: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) end_ordinal: u64,
    #[prost(uint64, tag = "8")]
    pub(crate) next_ordinal: u64,
    #[prost(sint64, tag = "9")]
    pub(crate) max_timestamp_ms: i64,
    #[prost(uint64, tag = "10")]
    pub(crate) closed_ms: u64,
    #[prost(uint64, tag = "11")]
    pub(crate) live_bytes: u64,
    #[prost(message, repeated, tag = "12")]
    pub(crate) copies: Vec<CopyMessage>,
    #[prost(message, optional, tag = "13")]
    pub(crate) damaged: Option<DamageMessage>,
    #[prost(bool, tag = "14")]
    pub(crate) file_made: bool,
    #[prost(uint64, tag = "15")]
    pub(crate) restore: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CopyMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) broker: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) store_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) boot_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DamageMessage {
    #[prost(uint64, tag = "1")]
    pub(crate) address: u64,
    #[prost(string, tag = "2")]
    pub(crate) detail: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) lost: Vec<LostMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LostMessage {
    #[prost(uint64, tag = "1")]
    pub(crate) from: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) to: u64,
}
