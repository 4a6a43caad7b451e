//! A stream's settings: their ranges, defaults and what may change later.

use kera_protocol::batch::MAX_BATCH_BYTES;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::StreamletId;
use kera_protocol::partition::lanes_of;

use crate::numbered::numbered;
use crate::record::MAX_COPIES;

pub use kera_protocol::ack::AckPolicy;

/// Segments of a group that has copies, unless the stream says otherwise: a backup keeps a group in memory
/// until it is closed, so that groups of busy lanes must end soon.
pub const REPLICATED_SEGMENTS_PER_GROUP: u32 = 2;

/// Most streamlets of a stream, most lanes of a streamlet, and most lanes of a stream in all.
pub const MAX_LANES: u32 = 65_536;
/// Least bytes of a segment.
pub const MIN_SEGMENT_SIZE: u32 = 64 << 10;
/// Most bytes of a segment.
pub const MAX_SEGMENT_SIZE: u32 = 1 << 30;
/// Segments are multiples of this many bytes, the block of direct I/O.
pub const SEGMENT_SIZE_STEP: u32 = 4096;
/// Most segments of a group.
pub const MAX_SEGMENTS_PER_GROUP: u32 = 1024;
/// Least value of `max_batch_bytes`: a smaller one would refuse ordinary single records.
pub const MIN_MAX_BATCH_BYTES: u32 = 1024;
/// Bytes of every segment that no batch may count on: its header, rounded up to a block.
pub const SEGMENT_HEADER_ALLOWANCE: u32 = 4096;
/// Longest time that may be configured: 100 years, so that adding it to a clock never overflows.
pub const MAX_DURATION_MS: u64 = 100 * 365 * 24 * 3600 * 1000;
/// Largest size that may be configured, in bytes.
pub const MAX_RETENTION_BYTES: u64 = i64::MAX as u64;

numbered! {
    /// How records find their lane within a streamlet. Fixed at creation.
    #[derive(Default)]
    LaneBy {
        /// By the key's hash: records of a key stay in order.
        #[default]
        Key = 0 "key",
        /// By the producer: records of a producer stay in order, lanes may grow without a boundary.
        Producer = 1 "producer",
    }
}

numbered! {
    /// Which clock a record's timestamp comes from.
    #[derive(Default)]
    TimestampType {
        /// The producer's.
        #[default]
        Create = 0 "create",
        /// The broker's, one per batch.
        Append = 1 "append",
    }
}

numbered! {
    /// What the broker looks at in a batch before it is stored.
    #[derive(Default)]
    BatchCheck {
        /// Checksum and header: the same work for a batch of any size.
        #[default]
        Header = 0 "header",
        /// Also every record, decompressed.
        Full = 1 "full",
    }
}

numbered! {
    /// What becomes of old records.
    #[derive(Default)]
    Cleanup {
        /// Retention deletes them, by time and by size.
        #[default]
        Delete = 0 "delete",
        /// Of each key of a lane the newest is kept, and retention deletes nothing.
        Compact = 1 "compact",
        /// Both.
        CompactDelete = 2 "compact,delete",
    }
}

impl Cleanup {
    /// Whether only the newest record of each key is kept.
    pub const fn compacts(self) -> bool {
        matches!(self, Self::Compact | Self::CompactDelete)
    }

    /// Whether retention deletes records.
    pub const fn deletes(self) -> bool {
        matches!(self, Self::Delete | Self::CompactDelete)
    }
}

/// A stream's settings, every one present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// M, 1 to [`MAX_LANES`]. Fixed at creation.
    pub streamlets: u32,
    /// Q, lanes of each streamlet but the [short](Self::short_streamlets) ones, 1 to [`MAX_LANES`], and
    /// at most that many in all streamlets. May only grow.
    pub lanes: u32,
    /// How many streamlets, the last ones, have one lane less than `lanes`: fewer than `streamlets`, and
    /// only with `lane_by = key`. 0 unless the number of partitions is no multiple of the streamlets.
    pub short_streamlets: u32,
    /// How records find their lane. Fixed at creation.
    pub lane_by: LaneBy,
    /// Bytes of a segment: [`MIN_SEGMENT_SIZE`] to [`MAX_SEGMENT_SIZE`], a multiple of
    /// [`SEGMENT_SIZE_STEP`]. Fixed at creation.
    pub segment_size: u32,
    /// P, 1 to [`MAX_SEGMENTS_PER_GROUP`]. Fixed at creation. Unless it is given, a stream with copies
    /// has [`REPLICATED_SEGMENTS_PER_GROUP`].
    pub segments_per_group: u32,
    /// What an acknowledgement promises.
    pub ack: AckPolicy,
    /// Milliseconds that records are kept, at most [`MAX_DURATION_MS`]; 0 is no limit by time.
    pub retention_ms: u64,
    /// Bytes of the whole stream that are kept, at most [`MAX_RETENTION_BYTES`]; 0 is no limit by
    /// size. Each lane may keep an equal share, whatever the others do.
    pub retention_bytes: u64,
    /// An active group older than this many milliseconds is rolled, at most [`MAX_DURATION_MS`];
    /// 0 is never.
    pub group_max_age_ms: u64,
    /// Largest batch that is accepted, in bytes: [`MIN_MAX_BATCH_BYTES`] up to a segment less
    /// [`SEGMENT_HEADER_ALLOWANCE`], and at most [`MAX_BATCH_BYTES`].
    pub max_batch_bytes: u32,
    /// Which clock records carry.
    pub timestamp_type: TimestampType,
    /// R, copies of each group, the owner's own included: 1 to [`MAX_COPIES`]. Fixed at creation.
    pub replicas: u32,
    /// Copies without which nothing is acknowledged and no group is closed: 1 to `replicas`. Fixed
    /// at creation.
    pub min_insync_replicas: u32,
    /// A batch with a record older than this many milliseconds is refused, at most
    /// [`MAX_DURATION_MS`]; 0 is no limit.
    pub timestamp_before_max_ms: u64,
    /// A batch with a record that is this many milliseconds ahead of the broker's clock is refused,
    /// at most [`MAX_DURATION_MS`]; 0 is no limit.
    pub timestamp_after_max_ms: u64,
    /// What is looked at in a batch before it is stored.
    pub validate: BatchCheck,
    /// What becomes of old records.
    pub cleanup: Cleanup,
    /// Records younger than this many milliseconds are not compacted, at most [`MAX_DURATION_MS`].
    pub min_compaction_lag_ms: u64,
    /// Records older than this many milliseconds are compacted however few they are, at most
    /// [`MAX_DURATION_MS`]; 0: there is no such time.
    pub max_compaction_lag_ms: u64,
    /// How many milliseconds a record without a value is kept once what it deletes has gone, at most
    /// [`MAX_DURATION_MS`].
    pub delete_retention_ms: u64,
    /// A lane is compacted once so many thousandths of it were not yet: 0 to 1000.
    pub min_dirty_permille: u32,
    /// Whether share groups may have brokers write there what they give up.
    pub dead_letters: bool,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            streamlets: 1,
            lanes: 1,
            short_streamlets: 0,
            lane_by: LaneBy::Key,
            segment_size: 8 << 20,
            segments_per_group: 16,
            ack: AckPolicy::Written,
            retention_ms: 7 * 24 * 3600 * 1000,
            retention_bytes: 0,
            group_max_age_ms: 3600 * 1000,
            max_batch_bytes: 1 << 20,
            timestamp_type: TimestampType::Create,
            replicas: 1,
            min_insync_replicas: 1,
            timestamp_before_max_ms: 0,
            timestamp_after_max_ms: 0,
            validate: BatchCheck::Header,
            cleanup: Cleanup::Delete,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: 0,
            delete_retention_ms: 24 * 3600 * 1000,
            min_dirty_permille: 500,
            dead_letters: false,
        }
    }
}

impl StreamConfig {
    /// The default of `max_batch_bytes` for segments of `segment_size` bytes: 1 MiB, or what a
    /// smaller segment can hold.
    pub fn default_max_batch_bytes(segment_size: u32) -> u32 {
        (1 << 20).min(segment_size.saturating_sub(SEGMENT_HEADER_ALLOWANCE))
    }

    /// The default of `min_insync_replicas` for `replicas` copies: more than half of them.
    ///
    /// ```
    /// use kera_records::StreamConfig;
    /// let of = StreamConfig::default_min_insync_replicas;
    /// assert_eq!((of(1), of(2), of(3)), (1, 2, 2));
    /// ```
    pub fn default_min_insync_replicas(replicas: u32) -> u32 {
        replicas / 2 + 1
    }

    /// n, lanes of all streamlets: Kafka's partitions.
    pub fn partitions(&self) -> u32 {
        partitions_of(self.streamlets, self.lanes, self.short_streamlets)
    }

    /// [`partitions`](Self::partitions) where they are no multiple of the streamlets, or else 0: what
    /// older versions do not know.
    pub fn uneven_partitions(&self) -> u32 {
        match self.short_streamlets {
            0 => 0,
            _ => self.partitions(),
        }
    }

    /// Lanes of one streamlet.
    pub fn lanes_of(&self, streamlet: StreamletId) -> u32 {
        lanes_of(streamlet, self.streamlets, self.partitions())
    }

    /// True if groups have copies at other brokers.
    pub fn is_replicated(&self) -> bool {
        self.replicas > 1
    }

    /// Bytes that a group's segments span: `segment_size * segments_per_group`.
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.segment_size) * u64::from(self.segments_per_group)
    }

    /// Checks every value against its range and against the others.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] with the key, the value and the legal range of the first that
    /// does not fit.
    pub fn validate(&self) -> Result<(), WireError> {
        range("streamlets", self.streamlets, 1, MAX_LANES)?;
        range("lanes", self.lanes, 1, MAX_LANES)?;
        if self.partitions() > MAX_LANES {
            return Err(invalid(format!(
                "lanes is {} for each of {} streamlets; with so many streamlets the legal range is 1 to {}, as a stream has at most {MAX_LANES} lanes in all",
                self.lanes,
                self.streamlets,
                MAX_LANES / self.streamlets
            )));
        }
        if self.short_streamlets >= self.streamlets || self.short_streamlets > 0 && self.lanes < 2 {
            return Err(invalid(format!(
                "{} of {} streamlets with {} lanes cannot have one less; each streamlet has at least one lane",
                self.short_streamlets, self.streamlets, self.lanes
            )));
        }
        if self.short_streamlets > 0 && self.lane_by == LaneBy::Producer {
            return Err(invalid(format!(
                "partitions is {} for {} streamlets; with lane_by = producer each streamlet has as many lanes as the others, so choose a multiple of {}",
                self.partitions(),
                self.streamlets,
                self.streamlets
            )));
        }
        let (least, most) = (MIN_SEGMENT_SIZE, MAX_SEGMENT_SIZE);
        range("segment_size", self.segment_size, least, most)?;
        if !self.segment_size.is_multiple_of(SEGMENT_SIZE_STEP) {
            return Err(invalid(format!(
                "segment_size is {} bytes; it must be a multiple of {SEGMENT_SIZE_STEP}, from {MIN_SEGMENT_SIZE} to {MAX_SEGMENT_SIZE}",
                self.segment_size
            )));
        }
        let most = MAX_SEGMENTS_PER_GROUP;
        range("segments_per_group", self.segments_per_group, 1, most)?;
        for (key, limit, most) in [
            ("retention_ms", self.retention_ms, MAX_DURATION_MS),
            ("retention_bytes", self.retention_bytes, MAX_RETENTION_BYTES),
            ("group_max_age_ms", self.group_max_age_ms, MAX_DURATION_MS),
        ] {
            range(key, limit, 0, most)?;
        }
        for (key, limit) in [
            ("timestamp_before_max_ms", self.timestamp_before_max_ms),
            ("timestamp_after_max_ms", self.timestamp_after_max_ms),
            ("min_compaction_lag_ms", self.min_compaction_lag_ms),
            ("max_compaction_lag_ms", self.max_compaction_lag_ms),
            ("delete_retention_ms", self.delete_retention_ms),
        ] {
            range(key, limit, 0, MAX_DURATION_MS)?;
        }
        let largest_batch =
            (self.segment_size - SEGMENT_HEADER_ALLOWANCE).min(MAX_BATCH_BYTES as u32);
        if !(MIN_MAX_BATCH_BYTES..=largest_batch).contains(&self.max_batch_bytes) {
            return Err(invalid(format!(
                "max_batch_bytes is {}; with a segment_size of {} the legal range is {MIN_MAX_BATCH_BYTES} to {largest_batch}, as a batch must fit a segment beside its header",
                self.max_batch_bytes, self.segment_size
            )));
        }
        range("replicas", self.replicas, 1, MAX_COPIES as u32)?;
        if !(1..=self.replicas).contains(&self.min_insync_replicas) {
            return Err(invalid(format!(
                "min_insync_replicas is {} of {} replicas; the legal range is 1 to {}, a record cannot have more replicas than the stream",
                self.min_insync_replicas, self.replicas, self.replicas
            )));
        }
        self.validate_compaction()
    }

    fn validate_compaction(&self) -> Result<(), WireError> {
        range("min_dirty_permille", self.min_dirty_permille, 0, 1000)?;
        let (least, most) = (self.min_compaction_lag_ms, self.max_compaction_lag_ms);
        if most > 0 && least > most {
            return Err(invalid(format!(
                "min_compaction_lag_ms is {least} and max_compaction_lag_ms is {most}; records cannot be too young and too old at once, make the first no greater"
            )));
        }
        if !self.cleanup.compacts() {
            return Ok(());
        }
        if self.lane_by == LaneBy::Producer {
            return Err(invalid(
                "cleanup is compact and lane_by is producer; the records of a key lie in many lanes then, and each is compacted by itself: create the stream with lane_by = key".into(),
            ));
        }
        Ok(())
    }

    /// Checks that a stream with these settings may be altered to `new`: `new` is legal by itself,
    /// what is fixed at creation is the same, and lanes do not shrink.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] with the key and both values.
    pub fn validate_change(&self, new: &StreamConfig) -> Result<(), WireError> {
        new.validate()?;
        let fixed = |config: &Self| {
            [
                ("streamlets", config.streamlets.to_string()),
                ("lane_by", format!("{:?}", config.lane_by)),
                ("segment_size", config.segment_size.to_string()),
                ("segments_per_group", config.segments_per_group.to_string()),
                ("replicas", config.replicas.to_string()),
                (
                    "min_insync_replicas",
                    config.min_insync_replicas.to_string(),
                ),
            ]
        };
        for ((key, old), (_, new)) in fixed(self).into_iter().zip(fixed(new)) {
            if old != new {
                return Err(invalid(format!(
                    "{key} is fixed at creation: it is {old} and cannot become {new}; create another stream"
                )));
            }
        }
        if new.lanes < self.lanes {
            return Err(invalid(format!(
                "lanes is {} and may only grow; {} is less, the legal range is {} to {}",
                self.lanes,
                new.lanes,
                self.lanes,
                MAX_LANES / self.streamlets.max(1)
            )));
        }
        if new.partitions() > self.partitions() && new.cleanup.compacts() {
            return Err(invalid(format!(
                "partitions is {} and cannot become {} while cleanup is compact: keys would move to other lanes, and their old lanes would keep an old value for good; create another stream and copy the records",
                self.partitions(),
                new.partitions()
            )));
        }
        if new.partitions() < self.partitions() {
            return Err(invalid(format!(
                "partitions is {} and may only grow; {} is less, the legal range is {} to {MAX_LANES}",
                self.partitions(),
                new.partitions(),
                self.partitions()
            )));
        }
        Ok(())
    }
}

/// Lanes of `streamlets` streamlets with `lanes` each, but the last `short`, which have one less.
pub fn partitions_of(streamlets: u32, lanes: u32, short: u32) -> u32 {
    streamlets.saturating_mul(lanes).saturating_sub(short)
}

fn range<T: PartialOrd + std::fmt::Display>(
    key: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), WireError> {
    if value < least || value > most {
        return Err(invalid(format!(
            "{key} is {value}; the legal range is {least} to {most}"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut StreamConfig)) -> String {
        let mut config = StreamConfig::default();
        change(&mut config);
        let error = config.validate().unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        error.message
    }

    #[test]
    fn defaults_are_legal() {
        StreamConfig::default().validate().unwrap();
    }

    #[test]
    fn each_value_out_of_range_is_named_with_its_range() {
        let cases = [
            (refused(|c| c.streamlets = 0), "streamlets is 0"),
            (refused(|c| c.streamlets = 65_537), "streamlets is 65537"),
            (refused(|c| c.lanes = 0), "lanes is 0"),
            (refused(|c| c.segment_size = 4096), "segment_size is 4096"),
            (refused(|c| c.segment_size = u32::MAX), "segment_size is"),
            (
                refused(|c| c.segment_size = (64 << 10) + 1),
                "multiple of 4096",
            ),
            (refused(|c| c.segments_per_group = 0), "segments_per_group"),
            (
                refused(|c| c.segments_per_group = 1025),
                "segments_per_group",
            ),
            (refused(|c| c.retention_ms = u64::MAX), "retention_ms"),
            (refused(|c| c.retention_bytes = u64::MAX), "retention_bytes"),
            (
                refused(|c| c.group_max_age_ms = u64::MAX),
                "group_max_age_ms",
            ),
            (
                refused(|c| c.timestamp_before_max_ms = u64::MAX),
                "timestamp_before_max_ms",
            ),
            (
                refused(|c| c.timestamp_after_max_ms = u64::MAX),
                "timestamp_after_max_ms",
            ),
            (
                refused(|c| c.max_batch_bytes = 1),
                "max_batch_bytes is 1; with a segment_size of 8388608 the legal range is 1024 to 8384512",
            ),
            (
                refused(|c| c.max_batch_bytes = 8 << 20),
                "max_batch_bytes is 8388608",
            ),
            (
                refused(|c| {
                    c.segment_size = MAX_SEGMENT_SIZE;
                    c.max_batch_bytes = (64 << 20) + 1;
                }),
                "1024 to 67108864",
            ),
        ];
        for (message, expected) in cases {
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn what_cannot_be_compacted_is_refused() {
        let compacted = |c: &mut StreamConfig| c.cleanup = Cleanup::CompactDelete;
        let cases = [
            (
                refused(|c| {
                    compacted(c);
                    c.lane_by = LaneBy::Producer;
                }),
                "lane_by is producer",
            ),
            (
                refused(|c| {
                    c.min_compaction_lag_ms = 2;
                    c.max_compaction_lag_ms = 1;
                }),
                "max_compaction_lag_ms is 1",
            ),
            (
                refused(|c| c.min_dirty_permille = 1001),
                "legal range is 0 to 1000",
            ),
        ];
        for (message, expected) in cases {
            assert!(message.contains(expected), "{message}");
        }
        let mut old = StreamConfig::default();
        compacted(&mut old);
        old.validate().unwrap();
        let mut replicated = old.clone();
        replicated.replicas = 3;
        replicated.validate().unwrap();
        let mut new = old.clone();
        new.lanes = 2;
        let message = old.validate_change(&new).unwrap_err().message;
        assert!(message.contains("keys would move"), "{message}");
        new.cleanup = Cleanup::Delete;
        old.validate_change(&new).unwrap();
    }

    #[test]
    fn lanes_are_bounded_over_all_streamlets() {
        let message = refused(|c| {
            c.streamlets = 1000;
            c.lanes = 66;
        });
        assert!(message.contains("the legal range is 1 to 65,"), "{message}");
        let mut config = StreamConfig {
            streamlets: 1000,
            lanes: 65,
            ..StreamConfig::default()
        };
        config.validate().unwrap();
        config.streamlets = 65_536;
        config.lanes = 1;
        config.validate().unwrap();
    }

    #[test]
    fn replicas_are_bounded_whatever_is_acknowledged() {
        let cases = [
            (refused(|c| c.replicas = 0), "replicas is 0"),
            (refused(|c| c.replicas = 17), "legal range is 1 to 16"),
            (
                refused(|c| c.min_insync_replicas = 2),
                "min_insync_replicas is 2 of 1",
            ),
            (
                refused(|c| c.min_insync_replicas = 0),
                "min_insync_replicas is 0",
            ),
        ];
        for (message, expected) in cases {
            assert!(message.contains(expected), "{message}");
        }
        for ack in [AckPolicy::Memory, AckPolicy::Written, AckPolicy::Synced] {
            let config = StreamConfig {
                replicas: 3,
                min_insync_replicas: 3,
                ack,
                ..StreamConfig::default()
            };
            config.validate().unwrap();
            assert!(config.is_replicated());
        }
    }

    #[test]
    fn the_smallest_segment_has_a_legal_default_batch() {
        let mut config = StreamConfig {
            segment_size: MIN_SEGMENT_SIZE,
            ..StreamConfig::default()
        };
        assert!(config.validate().is_err());
        config.max_batch_bytes = StreamConfig::default_max_batch_bytes(MIN_SEGMENT_SIZE);
        config.validate().unwrap();
        assert_eq!(StreamConfig::default_max_batch_bytes(8 << 20), 1 << 20);
    }

    #[test]
    fn fixed_settings_cannot_change_and_lanes_only_grow() {
        let old = StreamConfig {
            streamlets: 4,
            lanes: 4,
            ..StreamConfig::default()
        };
        let mut new = old.clone();
        new.lanes = 8;
        new.ack = AckPolicy::Synced;
        new.retention_ms = 0;
        old.validate_change(&new).unwrap();
        type Change = fn(&mut StreamConfig);
        let changes: [(&str, Change); 7] = [
            ("streamlets", |c| c.streamlets = 5),
            ("lane_by", |c| c.lane_by = LaneBy::Producer),
            ("segment_size", |c| c.segment_size *= 2),
            ("segments_per_group", |c| c.segments_per_group += 1),
            ("lanes is 4", |c| c.lanes = 3),
            ("replicas is fixed", |c| {
                (c.replicas, c.ack) = (3, AckPolicy::Written);
            }),
            ("min_insync_replicas", |c| c.min_insync_replicas = 2),
        ];
        for (name, change) in changes {
            let mut new = old.clone();
            change(&mut new);
            let message = old.validate_change(&new).unwrap_err().message;
            assert!(message.contains(name), "{message}");
        }
    }
}
