//! Settings of a stream as acts name them.

use kera_metadata::{BatchCheck, Cleanup, LaneBy, TimestampType};
use kera_protocol::ack::AckPolicy;
use kera_protocol::error::WireError;
use kera_protocol::v1;
use serde::Deserialize;

use super::resource::invalid;

/// Settings of a stream, under the names that the API tells them by. A setting that is left out stays as it is; in a new stream it has its default.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    streamlets: Option<u32>,
    lanes: Option<u32>,
    partitions: Option<u32>,
    lane_by: Option<String>,
    segment_size: Option<u32>,
    segments_per_group: Option<u32>,
    replicas: Option<u32>,
    min_insync_replicas: Option<u32>,
    ack: Option<String>,
    retention_ms: Option<u64>,
    retention_bytes: Option<u64>,
    group_max_age_ms: Option<u64>,
    max_batch_bytes: Option<u32>,
    timestamps: Option<String>,
    timestamp_before_max_ms: Option<u64>,
    timestamp_after_max_ms: Option<u64>,
    validate: Option<String>,
    cleanup: Option<String>,
    min_compaction_lag_ms: Option<u64>,
    max_compaction_lag_ms: Option<u64>,
    delete_retention_ms: Option<u64>,
    min_dirty_ratio: Option<f64>,
    dead_letters: Option<bool>,
}

/// The number of a word, as the protocol has it.
fn chosen<T: Copy + Into<i32>>(
    key: &str,
    word: Option<&str>,
    all: &[T],
    text: impl Fn(T) -> &'static str,
) -> Result<Option<i32>, WireError> {
    let Some(word) = word else { return Ok(None) };
    let found = all.iter().find(|value| text(**value) == word);
    let found = found.ok_or_else(|| {
        let words: Vec<_> = all.iter().map(|value| text(*value)).collect();
        invalid(format!(
            "{key} is \"{word}\"; write one of {}",
            words.join(", ")
        ))
    });
    found.map(|value| Some((*value).into()))
}

impl Settings {
    /// The same as the protocol has them.
    pub(super) fn config(self) -> Result<v1::StreamConfig, WireError> {
        let ack = [
            v1::AckPolicy::Memory,
            v1::AckPolicy::Written,
            v1::AckPolicy::Synced,
        ];
        let lane_by = [v1::LaneBy::Key, v1::LaneBy::Producer];
        let timestamps = [v1::TimestampType::Create, v1::TimestampType::Append];
        let validate = [v1::BatchCheck::Header, v1::BatchCheck::Full];
        let cleanup = [
            v1::Cleanup::Delete,
            v1::Cleanup::Compact,
            v1::Cleanup::CompactDelete,
        ];
        let min_dirty_permille = match self.min_dirty_ratio {
            None => None,
            Some(ratio) if (0.0..=1.0).contains(&ratio) => Some((ratio * 1000.0).round() as u32),
            Some(ratio) => {
                return Err(invalid(format!(
                    "min_dirty_ratio is {ratio}; write a number from 0 to 1"
                )));
            }
        };
        Ok(v1::StreamConfig {
            streamlets: self.streamlets,
            lanes: self.lanes,
            partitions: self.partitions,
            lane_by: chosen("lane_by", self.lane_by.as_deref(), &lane_by, |one| {
                LaneBy::from(one).text()
            })?,
            segment_size: self.segment_size,
            segments_per_group: self.segments_per_group,
            replicas: self.replicas,
            min_insync_replicas: self.min_insync_replicas,
            ack: chosen("ack", self.ack.as_deref(), &ack, |one| {
                AckPolicy::from(one).text()
            })?,
            retention_ms: self.retention_ms,
            retention_bytes: self.retention_bytes,
            group_max_age_ms: self.group_max_age_ms,
            max_batch_bytes: self.max_batch_bytes,
            timestamp_type: chosen(
                "timestamps",
                self.timestamps.as_deref(),
                &timestamps,
                |one| TimestampType::from(one).text(),
            )?,
            timestamp_before_max_ms: self.timestamp_before_max_ms,
            timestamp_after_max_ms: self.timestamp_after_max_ms,
            validate: chosen("validate", self.validate.as_deref(), &validate, |one| {
                BatchCheck::from(one).text()
            })?,
            cleanup: chosen("cleanup", self.cleanup.as_deref(), &cleanup, |one| {
                Cleanup::from(one).text()
            })?,
            min_compaction_lag_ms: self.min_compaction_lag_ms,
            max_compaction_lag_ms: self.max_compaction_lag_ms,
            delete_retention_ms: self.delete_retention_ms,
            min_dirty_permille,
            dead_letters: self.dead_letters,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_of_settings_are_those_that_are_told() {
        let body = br#"{"ack":"memory","cleanup":"compact,delete","min_dirty_ratio":0.25,"lane_by":"producer"}"#;
        let read = |body: &[u8]| {
            let settings: Result<Settings, _> = serde_json::from_slice(body);
            let settings = settings.map_err(|error| invalid(error.to_string()));
            settings.and_then(Settings::config)
        };
        let config = read(body).unwrap();
        assert_eq!(config.ack(), v1::AckPolicy::Memory);
        assert_eq!(config.cleanup(), v1::Cleanup::CompactDelete);
        assert_eq!(config.lane_by(), v1::LaneBy::Producer);
        assert_eq!((config.min_dirty_permille, config.lanes), (Some(250), None));
        for (body, word) in [
            (r#"{"ack":"never"}"#, "memory, written, synced"),
            (r#"{"min_dirty_ratio":2}"#, "0 to 1"),
            (r#"{"colour":1}"#, "colour"),
            (r#"{"lanes":-1}"#, "-1"),
        ] {
            let text = read(body.as_bytes()).unwrap_err().message;
            assert!(text.contains(word), "{body}: {text}");
        }
    }
}
