//! Settings of topics as settings of streams, there and back.

use std::time::Duration;

use kera_metadata::config::{
    MAX_DURATION_MS, MAX_SEGMENT_SIZE, MAX_SEGMENTS_PER_GROUP, MIN_SEGMENT_SIZE,
    SEGMENT_HEADER_ALLOWANCE, SEGMENT_SIZE_STEP,
};
use kera_metadata::{AckPolicy, BatchCheck, Cleanup, LaneBy, StreamConfig, TimestampType};
use kera_protocol::v1;

use crate::config_table::{
    COMPRESSION_TYPE, COMPRESSION_TYPES, ConfigKind, Effect, NEVER, Setting, TOPIC_CONFIGS,
    TopicConfig,
};

/// What a request wants of a topic's settings, gathered name by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    retention_ms: Option<u64>,
    /// Of each partition; 0 is no limit.
    retention_bytes: Option<u64>,
    group_bytes: Option<u64>,
    group_max_age_ms: Option<u64>,
    max_batch_bytes: Option<Bytes>,
    timestamps: Option<TimestampType>,
    /// 0 is no limit.
    timestamp_before_ms: Option<u64>,
    /// 0 is no limit.
    timestamp_after_ms: Option<u64>,
    validate: Option<BatchCheck>,
    ack: Option<AckPolicy>,
    /// True: at every message; false: left to the rest.
    flush: Option<bool>,
    lanes: Option<u32>,
    streamlets: Option<u32>,
    lane_by: Option<LaneBy>,
    /// Copies of each group.
    replicas: Option<u32>,
    min_insync_replicas: Option<u32>,
    cleanup: Option<Cleanup>,
    min_compaction_lag_ms: Option<u64>,
    /// 0 is no limit.
    max_compaction_lag_ms: Option<u64>,
    delete_retention_ms: Option<u64>,
    min_dirty_permille: Option<u32>,
    dead_letters: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    Default,
    Of(u32),
}

/// The setting of a name.
///
/// # Errors
/// For people: there is none, and which may be meant.
pub(crate) fn known(name: &str) -> Result<&'static TopicConfig, String> {
    TopicConfig::find(name).ok_or_else(|| {
        // Cut, as it may be of any length.
        let shown: String = name.chars().take(80).collect();
        let near = TOPIC_CONFIGS
            .iter()
            .map(|c| (strsim::jaro_winkler(&shown, c.name), c.name))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(likeness, _)| *likeness > 0.85);
        match near {
            Some((_, near)) => {
                format!("unknown topic config \"{shown}\"; did you mean \"{near}\"?")
            }
            None => format!("unknown topic config \"{shown}\""),
        }
    })
}

impl Wanted {
    /// So many copies, or the default, and nothing else.
    pub(crate) fn of_replicas(replicas: Option<u32>) -> Self {
        Self {
            replicas,
            ..Self::default()
        }
    }

    /// Takes one value. `flush_interval` is the broker's.
    ///
    /// # Errors
    /// For people: the value is illegal, or promises what Kera does not do.
    pub(crate) fn set(
        &mut self,
        config: &TopicConfig,
        value: &str,
        flush_interval: Duration,
    ) -> Result<(), String> {
        let value = value.trim();
        legal(config, value)?;
        match config.effect {
            Effect::Hint => Ok(()),
            Effect::Only(only) if same(config.kind, value, only) => Ok(()),
            Effect::Only(only) => Err(format!(
                "{} can only be \"{only}\" in Kera, not \"{}\": {}",
                config.name,
                short(value),
                config.about
            )),
            Effect::Works(s) | Effect::AtCreation(s) | Effect::Shown(s) => {
                self.take(s, config, value, flush_interval)
            }
        }
    }

    fn take(
        &mut self,
        setting: Setting,
        config: &TopicConfig,
        value: &str,
        flush_interval: Duration,
    ) -> Result<(), String> {
        match setting {
            Setting::RetentionTime => {
                let ms = number(config, value, -1)?;
                // Kera's 0 is no limit; Kafka's is to delete as soon as may be.
                self.retention_ms = Some(match u64::try_from(ms) {
                    Ok(ms) if ms <= MAX_DURATION_MS => ms.max(1),
                    _ => 0,
                });
            }
            Setting::RetentionBytes => {
                let bytes = number(config, value, -1)?;
                self.retention_bytes = Some(u64::try_from(bytes).map_or(0, |bytes| bytes.max(1)));
            }
            Setting::GroupBytes => self.group_bytes = Some(number(config, value, 1)? as u64),
            Setting::GroupAge => {
                let ms = number(config, value, 1)? as u64;
                self.group_max_age_ms = Some(if ms > MAX_DURATION_MS { 0 } else { ms });
            }
            Setting::MaxBatch => {
                let bytes = number(config, value, 0)?;
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.max_batch_bytes = Some(Bytes::Of(bytes));
            }
            Setting::Timestamps => {
                self.timestamps = Some(match value {
                    "CreateTime" => TimestampType::Create,
                    "LogAppendTime" => TimestampType::Append,
                    _ => return Err(words(config, value, "CreateTime or LogAppendTime")),
                });
            }
            Setting::TimestampBefore => {
                self.timestamp_before_ms = Some(timestamp_bound(config, value)?);
            }
            Setting::TimestampAfter => {
                self.timestamp_after_ms = Some(timestamp_bound(config, value)?);
            }
            Setting::Validate => {
                self.validate = Some(match value {
                    "header" => BatchCheck::Header,
                    "full" => BatchCheck::Full,
                    _ => return Err(words(config, value, "header or full")),
                });
            }
            Setting::FlushMessages => {
                self.flush = Some(match number(config, value, 1)? {
                    1 => true,
                    i64::MAX => false,
                    other => {
                        return Err(format!(
                            "flush.messages is {other}; Kera flushes before every acknowledgement (1, as kera.ack=synced) or leaves it to kera.ack ({NEVER})"
                        ));
                    }
                });
            }
            Setting::FlushInterval => {
                let ms = number(config, value, 0)?;
                let every = i64::try_from(flush_interval.as_millis()).unwrap_or(i64::MAX);
                if ms < every {
                    return Err(format!(
                        "flush.ms is {ms}; this broker flushes every {every} ms (storage.flush_interval), and before every acknowledgement with kera.ack=synced"
                    ));
                }
            }
            Setting::Ack => {
                self.ack = Some(match value {
                    "memory" => AckPolicy::Memory,
                    "written" => AckPolicy::Written,
                    "synced" => AckPolicy::Synced,
                    _ => return Err(words(config, value, "memory, written or synced")),
                });
            }
            Setting::MinInsyncReplicas => {
                let copies = number(config, value, 1)?;
                self.min_insync_replicas = Some(u32::try_from(copies).unwrap_or(u32::MAX));
            }
            Setting::Lanes => {
                let lanes = number(config, value, 1)?;
                self.lanes = Some(u32::try_from(lanes).unwrap_or(u32::MAX));
            }
            Setting::Streamlets => {
                let streamlets = number(config, value, 1)?;
                self.streamlets = Some(u32::try_from(streamlets).unwrap_or(u32::MAX));
            }
            Setting::LaneBy => {
                self.lane_by = Some(match value {
                    "key" => LaneBy::Key,
                    "producer" => LaneBy::Producer,
                    _ => return Err(words(config, value, "key or producer")),
                });
            }
            Setting::Cleanup => self.cleanup = Some(cleanup(config, value)?),
            Setting::MinCompactionLag => {
                let ms = number(config, value, 0)? as u64;
                self.min_compaction_lag_ms = Some(ms.min(MAX_DURATION_MS));
            }
            Setting::MaxCompactionLag => {
                let ms = number(config, value, 1)? as u64;
                self.max_compaction_lag_ms = Some(if ms > MAX_DURATION_MS { 0 } else { ms });
            }
            Setting::DeleteRetention => {
                let ms = number(config, value, 0)? as u64;
                self.delete_retention_ms = Some(ms.min(MAX_DURATION_MS));
            }
            Setting::MinDirtyRatio => {
                let ratio: f64 = value.parse().unwrap_or(f64::NAN);
                if !(0.0..=1.0).contains(&ratio) {
                    return Err(words(config, value, "a number from 0 to 1"));
                }
                self.min_dirty_permille = Some((ratio * 1000.0).round() as u32);
            }
            Setting::DeadLetters => self.dead_letters = Some(value.eq_ignore_ascii_case("true")),
        }
        Ok(())
    }

    /// Takes the default of a name, as a change that deletes its value wants it.
    pub(crate) fn reset(&mut self, config: &TopicConfig) {
        let Effect::Works(setting) = config.effect else {
            return;
        };
        let default = StreamConfig::default();
        match setting {
            Setting::RetentionTime => self.retention_ms = Some(default.retention_ms),
            Setting::RetentionBytes => self.retention_bytes = Some(default.retention_bytes),
            Setting::GroupAge => self.group_max_age_ms = Some(default.group_max_age_ms),
            Setting::MaxBatch => self.max_batch_bytes = Some(Bytes::Default),
            Setting::Timestamps => self.timestamps = Some(default.timestamp_type),
            Setting::TimestampBefore => {
                self.timestamp_before_ms = Some(default.timestamp_before_max_ms);
            }
            Setting::TimestampAfter => {
                self.timestamp_after_ms = Some(default.timestamp_after_max_ms);
            }
            Setting::Validate => self.validate = Some(default.validate),
            Setting::FlushMessages => self.flush = Some(false),
            Setting::Ack => self.ack = Some(default.ack),
            Setting::Cleanup => self.cleanup = Some(default.cleanup),
            Setting::MinCompactionLag => {
                self.min_compaction_lag_ms = Some(default.min_compaction_lag_ms);
            }
            Setting::MaxCompactionLag => {
                self.max_compaction_lag_ms = Some(default.max_compaction_lag_ms);
            }
            Setting::DeleteRetention => {
                self.delete_retention_ms = Some(default.delete_retention_ms);
            }
            Setting::MinDirtyRatio => self.min_dirty_permille = Some(default.min_dirty_permille),
            Setting::DeadLetters => self.dead_letters = Some(default.dead_letters),
            _ => {}
        }
    }

    /// The settings of a stream to create with so many partitions.
    ///
    /// # Errors
    /// For people: what does not fit together.
    pub(crate) fn for_creation(&self, partitions: u32) -> Result<v1::StreamConfig, String> {
        let lanes = self.lanes.unwrap_or(1);
        if !partitions.is_multiple_of(lanes) {
            return Err(format!(
                "kera.lanes is {lanes}, and {partitions} partitions are not a multiple of it"
            ));
        }
        let default = StreamConfig {
            streamlets: partitions / lanes,
            ..StreamConfig::default()
        };
        self.shown_alike(&default)?;
        let mut wire = v1::StreamConfig {
            streamlets: Some(default.streamlets),
            lanes: Some(lanes),
            replicas: self.replicas,
            min_insync_replicas: self.min_insync_replicas,
            ..self.changes(&default, partitions)?
        };
        let largest = match self.max_batch_bytes {
            Some(Bytes::Of(bytes)) => bytes,
            // However small a file is wished for, what clients send by default fits.
            _ => default.max_batch_bytes,
        };
        let (segment_size, segments) = segments(self.group_bytes, largest);
        wire.segment_size = Some(segment_size);
        wire.segments_per_group = Some(segments);
        if self.max_batch_bytes == Some(Bytes::Default) {
            wire.max_batch_bytes = None;
        }
        Ok(wire)
    }

    /// The change of a stream's settings.
    ///
    /// # Errors
    /// For people: what is fixed, and what does not fit together.
    pub(crate) fn for_change(&self, present: &StreamConfig) -> Result<v1::StreamConfig, String> {
        if let Some(lanes) = self.lanes.filter(|lanes| *lanes != present.lanes) {
            return Err(format!(
                "kera.lanes is {} and cannot be set to {lanes}; create partitions to raise it",
                present.lanes
            ));
        }
        if let Some(copies) = self
            .min_insync_replicas
            .filter(|c| *c != present.min_insync_replicas)
        {
            return Err(format!(
                "min.insync.replicas is fixed at creation: it is {} and cannot become {copies}",
                present.min_insync_replicas
            ));
        }
        if let Some(bytes) = self.group_bytes {
            let segment = u64::from(present.segment_size);
            let rounded = bytes.div_ceil(segment).max(1) * segment;
            if rounded != present.group_bytes() {
                return Err(format!(
                    "segment.bytes is fixed at creation: it is {} and cannot become {bytes}",
                    present.group_bytes()
                ));
            }
        }
        self.shown_alike(present)?;
        self.changes(present, present.partitions())
    }

    /// Checks that what is only shown is wanted as it is.
    fn shown_alike(&self, present: &StreamConfig) -> Result<(), String> {
        let streamlets = self.streamlets.is_none_or(|m| m == present.streamlets);
        let lane_by = self.lane_by.is_none_or(|by| by == present.lane_by);
        let (name, is) = match (streamlets, lane_by) {
            (true, true) => return Ok(()),
            (false, _) => ("kera.streamlets", present.streamlets.to_string()),
            (_, false) => ("kera.lane.by", present.lane_by.text().to_owned()),
        };
        Err(format!(
            "{name} is shown only: it is {is} and cannot be set"
        ))
    }

    fn changes(&self, present: &StreamConfig, partitions: u32) -> Result<v1::StreamConfig, String> {
        let ack = match (self.ack, self.flush) {
            (Some(AckPolicy::Synced), _) => Some(AckPolicy::Synced),
            (Some(ack), Some(true)) => {
                return Err(format!(
                    "flush.messages=1 and kera.ack={} contradict each other",
                    ack.text()
                ));
            }
            (Some(ack), _) => Some(ack),
            (None, Some(true)) => Some(AckPolicy::Synced),
            // What only flushing had made so falls back.
            (None, Some(false)) if present.ack == AckPolicy::Synced => Some(AckPolicy::Written),
            (None, _) => None,
        };
        Ok(v1::StreamConfig {
            retention_ms: self.retention_ms,
            retention_bytes: self
                .retention_bytes
                .map(|each| each.saturating_mul(partitions.into()).min(i64::MAX as u64)),
            group_max_age_ms: self.group_max_age_ms,
            max_batch_bytes: self.max_batch_bytes.map(|bytes| match bytes {
                Bytes::Default => StreamConfig::default_max_batch_bytes(present.segment_size),
                Bytes::Of(bytes) => bytes,
            }),
            timestamp_type: self.timestamps.map(|t| t.number().into()),
            timestamp_before_max_ms: self.timestamp_before_ms,
            timestamp_after_max_ms: self.timestamp_after_ms,
            validate: self.validate.map(|check| check.number().into()),
            ack: ack.map(|ack| v1::AckPolicy::from(ack).into()),
            cleanup: self.cleanup.map(|cleanup| cleanup.number().into()),
            min_compaction_lag_ms: self.min_compaction_lag_ms,
            max_compaction_lag_ms: self.max_compaction_lag_ms,
            delete_retention_ms: self.delete_retention_ms,
            min_dirty_permille: self.min_dirty_permille,
            dead_letters: self.dead_letters,
            ..v1::StreamConfig::default()
        })
    }
}

/// Bytes of a segment and segments of a group, for groups of about so many bytes and batches of at
/// most `largest`.
fn segments(group_bytes: Option<u64>, largest: u32) -> (u32, u32) {
    let default = StreamConfig::default();
    let rounded = |bytes: u64| {
        let step = u64::from(SEGMENT_SIZE_STEP);
        let bytes = bytes.clamp(MIN_SEGMENT_SIZE.into(), MAX_SEGMENT_SIZE.into());
        u32::try_from(bytes.div_ceil(step) * step).unwrap_or(MAX_SEGMENT_SIZE)
    };
    let group_bytes = group_bytes.unwrap_or(default.group_bytes());
    let needed = rounded(u64::from(largest) + u64::from(SEGMENT_HEADER_ALLOWANCE));
    let size = rounded(group_bytes.min(default.segment_size.into())).max(needed);
    let segments = group_bytes.div_ceil(size.into()).max(1);
    let segments = u32::try_from(segments).unwrap_or(u32::MAX);
    (size, segments.min(MAX_SEGMENTS_PER_GROUP))
}

/// A topic's value of a name, as Kafka's clients read it.
pub(crate) fn value_of(
    config: &TopicConfig,
    stream: &StreamConfig,
    flush_interval: Duration,
) -> String {
    let (Effect::Works(setting) | Effect::AtCreation(setting) | Effect::Shown(setting)) =
        config.effect
    else {
        return config.default.to_owned();
    };
    let unlimited = |value: u64, none: &str| match value {
        0 => none.to_owned(),
        value => value.to_string(),
    };
    match setting {
        Setting::RetentionTime => unlimited(stream.retention_ms, "-1"),
        Setting::RetentionBytes => {
            let partitions = u64::from(stream.partitions().max(1));
            let each = stream.retention_bytes.div_ceil(partitions);
            unlimited(each, "-1")
        }
        Setting::GroupBytes => stream.group_bytes().min(i32::MAX as u64).to_string(),
        Setting::GroupAge => unlimited(stream.group_max_age_ms, NEVER),
        Setting::MaxBatch => stream.max_batch_bytes.to_string(),
        Setting::Timestamps => match stream.timestamp_type {
            TimestampType::Create => "CreateTime".to_owned(),
            TimestampType::Append => "LogAppendTime".to_owned(),
        },
        Setting::TimestampBefore => unlimited(stream.timestamp_before_max_ms, NEVER),
        Setting::TimestampAfter => unlimited(stream.timestamp_after_max_ms, NEVER),
        Setting::Validate => stream.validate.text().to_owned(),
        Setting::FlushMessages => match stream.ack {
            AckPolicy::Synced => "1".to_owned(),
            _ => NEVER.to_owned(),
        },
        Setting::FlushInterval => flush_interval.as_millis().to_string(),
        Setting::Ack => stream.ack.text().to_owned(),
        Setting::MinInsyncReplicas => stream.min_insync_replicas.to_string(),
        Setting::Lanes => stream.lanes.to_string(),
        Setting::Streamlets => stream.streamlets.to_string(),
        Setting::LaneBy => stream.lane_by.text().to_owned(),
        Setting::Cleanup => stream.cleanup.text().to_owned(),
        Setting::MinCompactionLag => stream.min_compaction_lag_ms.to_string(),
        Setting::MaxCompactionLag => unlimited(stream.max_compaction_lag_ms, NEVER),
        Setting::DeleteRetention => stream.delete_retention_ms.to_string(),
        Setting::MinDirtyRatio => (f64::from(stream.min_dirty_permille) / 1000.0).to_string(),
        Setting::DeadLetters => stream.dead_letters.to_string(),
    }
}

/// The words of a cleanup policy, in any order.
fn cleanup(config: &TopicConfig, value: &str) -> Result<Cleanup, String> {
    let words: Vec<_> = list(value).collect();
    let has = |word| words.contains(&word);
    let known = words
        .iter()
        .all(|word| matches!(*word, "compact" | "delete"));
    match (known, has("compact"), has("delete")) {
        (true, true, true) => Ok(Cleanup::CompactDelete),
        (true, true, false) => Ok(Cleanup::Compact),
        (true, false, true) => Ok(Cleanup::Delete),
        _ => Err(self::words(
            config,
            value,
            "compact, delete or both with a comma between",
        )),
    }
}

/// How far a record's time may lie from the broker's, 0 for any; Kafka's 0 is as little as there is.
fn timestamp_bound(config: &TopicConfig, value: &str) -> Result<u64, String> {
    let ms = number(config, value, 0)? as u64;
    Ok(if ms > MAX_DURATION_MS { 0 } else { ms.max(1) })
}

/// Checks that a value is of its kind.
fn legal(config: &TopicConfig, value: &str) -> Result<(), String> {
    let (fits, kind) = match config.kind {
        ConfigKind::Boolean => (
            value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false"),
            "true or false",
        ),
        ConfigKind::Int => (value.parse::<i32>().is_ok(), "a number of 32 bits"),
        ConfigKind::Long => (value.parse::<i64>().is_ok(), "a number of 64 bits"),
        ConfigKind::Double => (value.parse::<f64>().is_ok_and(f64::is_finite), "a number"),
        ConfigKind::Text if config.name == COMPRESSION_TYPE => (
            COMPRESSION_TYPES.contains(&value),
            "one of uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ConfigKind::Text | ConfigKind::List => (true, ""),
    };
    if fits {
        return Ok(());
    }
    Err(words(config, value, kind))
}

fn words(config: &TopicConfig, value: &str, legal: &str) -> String {
    format!(
        "{} cannot be \"{}\"; it is {legal}",
        config.name,
        short(value)
    )
}

fn number(config: &TopicConfig, value: &str, least: i64) -> Result<i64, String> {
    match value.parse::<i64>() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(format!(
            "{} cannot be \"{}\"; it is a number of at least {least}",
            config.name,
            short(value)
        )),
    }
}

/// True if two values of a kind mean the same.
pub(crate) fn same(kind: ConfigKind, a: &str, b: &str) -> bool {
    match kind {
        ConfigKind::Int | ConfigKind::Long => a.parse::<i64>().is_ok_and(|a| Ok(a) == b.parse()),
        ConfigKind::Boolean => a.eq_ignore_ascii_case(b),
        ConfigKind::List => {
            let words = |text| list(text).collect::<Vec<&str>>();
            words(a) == words(b)
        }
        ConfigKind::Text | ConfigKind::Double => a == b,
    }
}

/// The words of a list.
pub(crate) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// Enough of a value to recognise it.
fn short(value: &str) -> String {
    value.chars().take(80).collect()
}

#[cfg(test)]
#[path = "topic_config_tests.rs"]
mod tests;
