//! The one table of topic settings: every name that Kafka 4 knows, and Kera's own, with what each does
//! here. CreateTopics, DescribeConfigs, AlterConfigs and the documents are made from it.

/// How a value is written; the number is Kafka's for the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigKind {
    /// `true` or `false`.
    Boolean = 1,
    /// One of some words, or text.
    Text = 2,
    /// A number of 32 bits.
    Int = 3,
    /// A number of 64 bits.
    Long = 5,
    /// A number with a fraction.
    Double = 6,
    /// Words with commas between.
    List = 7,
}

/// A stream's setting that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `retention_ms`.
    RetentionTime,
    /// `retention_bytes`, of a partition.
    RetentionBytes,
    /// Bytes of a group: segments times their size.
    GroupBytes,
    /// `group_max_age_ms`.
    GroupAge,
    /// `max_batch_bytes`.
    MaxBatch,
    /// `timestamp_type`.
    Timestamps,
    /// `ack`, by the number of messages after which Kafka would flush.
    FlushMessages,
    /// `timestamp_before_max_ms`.
    TimestampBefore,
    /// `timestamp_after_max_ms`.
    TimestampAfter,
    /// `validate`.
    Validate,
    /// The broker's `storage.flush_interval`.
    FlushInterval,
    /// `ack`.
    Ack,
    /// `min_insync_replicas`, fixed at creation.
    MinInsyncReplicas,
    /// Q, fixed once the topic exists but for CreatePartitions.
    Lanes,
    /// M, fixed at creation.
    Streamlets,
    /// `lane_by`.
    LaneBy,
    /// `cleanup`.
    Cleanup,
    /// `min_compaction_lag_ms`.
    MinCompactionLag,
    /// `max_compaction_lag_ms`.
    MaxCompactionLag,
    /// `delete_retention_ms`.
    DeleteRetention,
    /// `min_dirty_permille`, as a ratio.
    MinDirtyRatio,
    /// `dead_letters`.
    DeadLetters,
}

/// What a name does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is set at creation and may be changed.
    Works(Setting),
    /// It is set at creation and stays as it is.
    AtCreation(Setting),
    /// It is shown; what Kera does cannot be changed by it.
    Shown(Setting),
    /// A hint or the detail of something that Kera does in another way: any legal value is accepted
    /// and nothing comes of it.
    Hint,
    /// It would promise what Kera does not do: only this value, which says what Kera does, is accepted.
    Only(&'static str),
}

/// A topic's setting.
#[derive(Clone, Copy, Debug)]
pub struct TopicConfig {
    /// Its name, Kafka's or, with `kera.` before it, Kera's own.
    pub name: &'static str,
    /// Kafka's name for what all topics of a broker have, empty where there is none.
    pub broker_name: &'static str,
    /// How its value is written.
    pub kind: ConfigKind,
    /// What a topic has for which nothing was set.
    pub default: &'static str,
    /// What it does here.
    pub effect: Effect,
    /// What it means here, for people.
    pub about: &'static str,
}

impl TopicConfig {
    /// The setting of a name.
    pub fn find(name: &str) -> Option<&'static TopicConfig> {
        TOPIC_CONFIGS.iter().find(|config| config.name == name)
    }

    /// How far the setting is supported, in the words of the documents.
    pub fn support(&self) -> String {
        match self.effect {
            Effect::Works(_) => "yes".to_owned(),
            Effect::AtCreation(_) => "at creation".to_owned(),
            Effect::Shown(_) => "shown".to_owned(),
            Effect::Hint => "accepted, no effect".to_owned(),
            Effect::Only("") => "only empty".to_owned(),
            Effect::Only(value) => format!("only `{value}`"),
        }
    }

    /// What DescribeConfigs says of it.
    pub fn documentation(&self) -> String {
        match self.effect {
            Effect::Hint => format!("Has no effect in Kera. {}", self.about),
            Effect::Only(_) => format!(
                "Has no effect in Kera, which supports {}. {}",
                self.support(),
                self.about
            ),
            _ => self.about.to_owned(),
        }
    }
}

const fn config(
    name: &'static str,
    broker_name: &'static str,
    kind: ConfigKind,
    default: &'static str,
    effect: Effect,
    about: &'static str,
) -> TopicConfig {
    TopicConfig {
        name,
        broker_name,
        kind,
        default,
        effect,
        about,
    }
}

/// The greatest number, with which Kafka says "never" and "no limit".
pub const NEVER: &str = "9223372036854775807";

/// The setting that names a codec.
pub(crate) const COMPRESSION_TYPE: &str = "compression.type";

/// What it may be in Kafka.
pub(crate) const COMPRESSION_TYPES: [&str; 6] =
    ["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];

use ConfigKind::{Boolean, Double, Int, List, Long, Text};
use Effect::{AtCreation, Hint, Only, Shown, Works};

/// Every setting of a topic, by name.
pub const TOPIC_CONFIGS: &[TopicConfig] = &[
    config(
        "cleanup.policy",
        "log.cleanup.policy",
        List,
        "delete",
        Works(Setting::Cleanup),
        "Whether old records are deleted by retention, compacted so that the newest of each key is kept, or both. A topic that is compacted keeps its number of partitions, and takes no records without a key.",
    ),
    config(
        "compression.gzip.level",
        "compression.gzip.level",
        Int,
        "-1",
        Hint,
        "The broker compresses nothing: batches stay as producers made them.",
    ),
    config(
        "compression.lz4.level",
        "compression.lz4.level",
        Int,
        "9",
        Hint,
        "The broker compresses nothing: batches stay as producers made them.",
    ),
    config(
        COMPRESSION_TYPE,
        COMPRESSION_TYPE,
        Text,
        "producer",
        Hint,
        "Any of Kafka's codecs: batches stay as producers made them.",
    ),
    config(
        "compression.zstd.level",
        "compression.zstd.level",
        Int,
        "3",
        Hint,
        "The broker compresses nothing: batches stay as producers made them.",
    ),
    config(
        "delete.retention.ms",
        "log.cleaner.delete.retention.ms",
        Long,
        "86400000",
        Works(Setting::DeleteRetention),
        "How many milliseconds a tombstone is kept once compaction has removed what it deletes.",
    ),
    config(
        "errors.deadletterqueue.group.enable",
        "",
        Boolean,
        "false",
        Works(Setting::DeadLetters),
        "Whether the topic may be the dead-letter topic of share groups: brokers write there what groups give up.",
    ),
    config(
        "file.delete.delay.ms",
        "log.segment.delete.delay.ms",
        Long,
        "60000",
        Hint,
        "Files are removed at once; a reader that has one open can finish.",
    ),
    config(
        "flush.messages",
        "log.flush.interval.messages",
        Long,
        NEVER,
        Works(Setting::FlushMessages),
        "1 is kera.ack=synced: records are on the device before they are acknowledged. The greatest number leaves that to kera.ack; others are refused.",
    ),
    config(
        "flush.ms",
        "log.flush.interval.ms",
        Long,
        "1000",
        Shown(Setting::FlushInterval),
        "Files are flushed at the broker's storage.flush_interval; that time or a longer one is accepted.",
    ),
    config(
        "follower.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        List,
        "",
        Hint,
        "Replication is not throttled.",
    ),
    config(
        "index.interval.bytes",
        "log.index.interval.bytes",
        Int,
        "4096",
        Hint,
        "The index is Kera's own: an entry for every 64 KiB.",
    ),
    config(
        "kera.ack",
        "",
        Text,
        "written",
        Works(Setting::Ack),
        "What an acknowledgement promises: memory (nothing), written (survives the process), synced (survives power loss).",
    ),
    config(
        "kera.lane.by",
        "",
        Text,
        "key",
        Shown(Setting::LaneBy),
        "How records find their lane: by key, as Kafka's clients choose partitions, or by producer, which only native clients can create.",
    ),
    config(
        "kera.lanes",
        "",
        Int,
        "1",
        AtCreation(Setting::Lanes),
        "Lanes of each streamlet at creation, when the number of partitions is a multiple of it; CreatePartitions raises it, for some streamlets before others.",
    ),
    config(
        "kera.streamlets",
        "",
        Int,
        "1",
        Shown(Setting::Streamlets),
        "Streamlets of the stream: its partitions at creation, divided by kera.lanes.",
    ),
    config(
        "kera.validate",
        "",
        Text,
        "header",
        Works(Setting::Validate),
        "What is looked at in a batch before it is stored: header (and checksum), the same work for a batch of any size, or full, which decompresses it and reads every record.",
    ),
    config(
        "leader.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        List,
        "",
        Hint,
        "Replication is not throttled.",
    ),
    config(
        "local.retention.bytes",
        "log.local.retention.bytes",
        Long,
        "-2",
        Only("-2"),
        "All records are kept locally, by retention.bytes.",
    ),
    config(
        "local.retention.ms",
        "log.local.retention.ms",
        Long,
        "-2",
        Only("-2"),
        "All records are kept locally, by retention.ms.",
    ),
    config(
        "max.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
        Long,
        NEVER,
        Works(Setting::MaxCompactionLag),
        "Records that are so many milliseconds old are compacted however few they are. Files that take records end at this age too.",
    ),
    config(
        "max.message.bytes",
        "message.max.bytes",
        Int,
        "1048576",
        Works(Setting::MaxBatch),
        "Largest batch in bytes, as it is sent. A topic that is to take larger ones than a segment holds must be created so.",
    ),
    config(
        "message.downconversion.enable",
        "log.message.downconversion.enable",
        Boolean,
        "false",
        Only("false"),
        "Batches are served as they are stored. Kafka 4 has this setting no more.",
    ),
    config(
        "message.format.version",
        "log.message.format.version",
        Text,
        "3.0-IV1",
        Hint,
        "There is one format, Kafka's second. Kafka 4 has this setting no more.",
    ),
    config(
        "message.timestamp.after.max.ms",
        "log.message.timestamp.after.max.ms",
        Long,
        NEVER,
        Works(Setting::TimestampAfter),
        "A batch with a record that is this many milliseconds ahead of the broker's clock is refused with INVALID_TIMESTAMP. Not by default, unlike with Kafka 4 (an hour): retention needs no such check, and a broker whose clock is behind refuses nobody.",
    ),
    config(
        "message.timestamp.before.max.ms",
        "log.message.timestamp.before.max.ms",
        Long,
        NEVER,
        Works(Setting::TimestampBefore),
        "A batch whose first record is older than this many milliseconds is refused with INVALID_TIMESTAMP.",
    ),
    config(
        "message.timestamp.difference.max.ms",
        "log.message.timestamp.difference.max.ms",
        Long,
        NEVER,
        Only(NEVER),
        "Kafka 4 has this setting no more: see message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
    ),
    config(
        "message.timestamp.type",
        "log.message.timestamp.type",
        Text,
        "CreateTime",
        Works(Setting::Timestamps),
        "Whose clock records carry: CreateTime, the producer's, or LogAppendTime, the broker's.",
    ),
    config(
        "min.cleanable.dirty.ratio",
        "log.cleaner.min.cleanable.ratio",
        Double,
        "0.5",
        Works(Setting::MinDirtyRatio),
        "A partition is compacted once this part of its closed files was not compacted yet; kept to thousandths.",
    ),
    config(
        "min.compaction.lag.ms",
        "log.cleaner.min.compaction.lag.ms",
        Long,
        "0",
        Works(Setting::MinCompactionLag),
        "Records younger than so many milliseconds are not compacted.",
    ),
    config(
        "min.insync.replicas",
        "min.insync.replicas",
        Int,
        "1",
        AtCreation(Setting::MinInsyncReplicas),
        "Replicas that must have a record before it is acknowledged, whatever acks says; at most the replication factor, by default more than half of it.",
    ),
    config(
        "preallocate",
        "log.preallocate",
        Boolean,
        "false",
        Hint,
        "Files grow as records come.",
    ),
    config(
        "remote.log.copy.disable",
        "",
        Boolean,
        "false",
        Hint,
        "There is no remote storage.",
    ),
    config(
        "remote.log.delete.on.disable",
        "",
        Boolean,
        "false",
        Hint,
        "There is no remote storage.",
    ),
    config(
        "remote.storage.enable",
        "",
        Boolean,
        "false",
        Only("false"),
        "There is no remote storage.",
    ),
    config(
        "retention.bytes",
        "log.retention.bytes",
        Long,
        "-1",
        Works(Setting::RetentionBytes),
        "Bytes kept of each partition, -1 without limit. Nothing of a partition goes as long as that would leave it less. Beyond that Kera counts over the whole topic: the number is multiplied by the partitions, and a busy partition may keep more while others have less.",
    ),
    config(
        "retention.ms",
        "log.retention.ms",
        Long,
        "604800000",
        Works(Setting::RetentionTime),
        "Milliseconds that records are kept, -1 without limit; so is more than 100 years.",
    ),
    config(
        "segment.bytes",
        "log.segment.bytes",
        Int,
        "134217728",
        AtCreation(Setting::GroupBytes),
        "Bytes of a file, which is deleted as a whole: in Kera a group, and rounded up to whole segments.",
    ),
    config(
        "segment.index.bytes",
        "log.index.size.max.bytes",
        Int,
        "10485760",
        Hint,
        "The index is Kera's own and as large as its file needs.",
    ),
    config(
        "segment.jitter.ms",
        "log.roll.jitter.ms",
        Long,
        "0",
        Hint,
        "The times at which files end are not spread.",
    ),
    config(
        "segment.ms",
        "log.roll.ms",
        Long,
        "3600000",
        Works(Setting::GroupAge),
        "A file that takes appends ends at this age, in milliseconds; more than 100 years is never.",
    ),
    config(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        Boolean,
        "false",
        Hint,
        "Kera never gives up records by itself; `kera stream recover --accept-loss` gives up those that no replica has.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_defaults_are_of_their_kind() {
        let names: Vec<_> = TOPIC_CONFIGS.iter().map(|c| c.name).collect();
        assert!(names.is_sorted(), "{names:?}");
        for c in TOPIC_CONFIGS {
            let legal = match c.kind {
                Boolean => c.default.parse::<bool>().is_ok(),
                Int => c.default.parse::<i32>().is_ok(),
                Long => c.default.parse::<i64>().is_ok(),
                Double => c.default.parse::<f64>().is_ok(),
                Text => !c.default.is_empty(),
                List => true,
            };
            assert!(legal, "{}: {}", c.name, c.default);
            assert!(c.about.ends_with('.'), "{}", c.name);
            if let Only(value) = c.effect {
                assert_eq!(value, c.default, "{}", c.name);
            }
        }
    }
}
