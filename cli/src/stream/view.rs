//! Streams as commands show them.

use kera_metadata::{AckPolicy, BatchCheck, Cleanup, LaneBy, TimestampType};
use kera_protocol::ids::StreamId;
use kera_protocol::v1;
use serde::Serialize;

use crate::output::{rfc3339, short_time};
use kera_broker::config::units;
use std::time::Duration;

/// A stream.
#[derive(Debug, Serialize)]
pub(super) struct StreamView {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) streamlets: u32,
    /// Of a streamlet; the last ones have one less where `partitions` is no multiple of the streamlets.
    pub(super) lanes: u32,
    /// Lanes of all streamlets.
    pub(super) partitions: u32,
    pub(super) lane_by: &'static str,
    pub(super) ack: &'static str,
    pub(super) replicas: u32,
    pub(super) min_insync_replicas: u32,
    pub(super) segment_size: u32,
    pub(super) segments_per_group: u32,
    /// 0: no limit.
    pub(super) retention_ms: u64,
    /// 0: no limit.
    pub(super) retention_bytes: u64,
    /// 0: never.
    pub(super) group_max_age_ms: u64,
    pub(super) max_batch_bytes: u32,
    pub(super) timestamps: &'static str,
    /// 0: no limit.
    pub(super) timestamp_before_max_ms: u64,
    /// 0: no limit.
    pub(super) timestamp_after_max_ms: u64,
    pub(super) validate: &'static str,
    pub(super) cleanup: &'static str,
    pub(super) min_compaction_lag_ms: u64,
    /// 0: no such time.
    pub(super) max_compaction_lag_ms: u64,
    pub(super) delete_retention_ms: u64,
    pub(super) min_dirty_ratio: f64,
    pub(super) dead_letters: bool,
    pub(super) lane_generation: u32,
    pub(super) created: String,
    pub(super) internal: bool,
    pub(super) owners: Vec<OwnerView>,
}

/// Who owns a streamlet.
#[derive(Debug, Serialize)]
pub(super) struct OwnerView {
    pub(super) streamlet: u32,
    pub(super) owner: String,
    pub(super) epoch: u32,
    /// Its number; none where brokers share nothing, or while it is away.
    pub(super) broker: Option<u32>,
    /// Brokers recorded to hold some of its groups.
    pub(super) replicas: Vec<u32>,
}

impl OwnerView {
    /// The owner, for people.
    pub(super) fn text(&self) -> String {
        match (self.broker, self.owner.as_str()) {
            (_, "") => "none".into(),
            (None, address) => address.into(),
            (Some(broker), address) => format!("broker {broker} at {address}"),
        }
    }

    /// Who holds its groups, for people.
    pub(super) fn replicas_text(&self) -> String {
        let numbers: Vec<_> = self.replicas.iter().map(u32::to_string).collect();
        match numbers.is_empty() {
            true => "-".into(),
            false => numbers.join(", "),
        }
    }
}

impl StreamView {
    pub(super) fn new(info: &v1::StreamInfo) -> Self {
        let config = info.config.unwrap_or_default();
        Self {
            name: info.name.clone(),
            id: StreamId::from_slice(&info.id)
                .map(|id| id.to_string())
                .unwrap_or_default(),
            streamlets: config.streamlets.unwrap_or_default(),
            lanes: config.lanes.unwrap_or_default(),
            // Brokers of older versions know no other number.
            partitions: config
                .partitions
                .unwrap_or_else(|| config.streamlets().saturating_mul(config.lanes())),
            lane_by: LaneBy::from(config.lane_by()).text(),
            ack: AckPolicy::from(config.ack()).text(),
            // Brokers of older builds know one copy only.
            replicas: config.replicas.unwrap_or(1),
            min_insync_replicas: config.min_insync_replicas.unwrap_or(1),
            segment_size: config.segment_size.unwrap_or_default(),
            segments_per_group: config.segments_per_group.unwrap_or_default(),
            retention_ms: config.retention_ms.unwrap_or_default(),
            retention_bytes: config.retention_bytes.unwrap_or_default(),
            group_max_age_ms: config.group_max_age_ms.unwrap_or_default(),
            max_batch_bytes: config.max_batch_bytes.unwrap_or_default(),
            timestamps: TimestampType::from(config.timestamp_type()).text(),
            timestamp_before_max_ms: config.timestamp_before_max_ms.unwrap_or_default(),
            timestamp_after_max_ms: config.timestamp_after_max_ms.unwrap_or_default(),
            validate: BatchCheck::from(config.validate()).text(),
            cleanup: Cleanup::from(config.cleanup()).text(),
            min_compaction_lag_ms: config.min_compaction_lag_ms(),
            max_compaction_lag_ms: config.max_compaction_lag_ms(),
            delete_retention_ms: config.delete_retention_ms(),
            min_dirty_ratio: f64::from(config.min_dirty_permille()) / 1000.0,
            dead_letters: config.dead_letters(),
            lane_generation: info.lane_generation,
            created: rfc3339(info.created_ms),
            internal: info.internal,
            owners: info
                .streamlets
                .iter()
                .map(|streamlet| OwnerView {
                    streamlet: streamlet.streamlet,
                    owner: streamlet.owner.clone(),
                    epoch: streamlet.epoch,
                    broker: streamlet.broker,
                    replicas: streamlet.replicas.clone(),
                })
                .collect(),
        }
    }

    /// Lanes of a streamlet, for people: `2`, or `1 or 2`.
    pub(super) fn lanes_each(&self) -> String {
        match self.partitions == self.streamlets.saturating_mul(self.lanes) {
            true => self.lanes.to_string(),
            false => format!("{} or {}", self.lanes.saturating_sub(1), self.lanes),
        }
    }

    /// What is kept, for people.
    pub(super) fn retention(&self) -> String {
        match self.cleanup {
            "compact" => "the newest of each key".into(),
            "compact,delete" => format!("the newest of each key, {}", self.limits()),
            _ => self.limits(),
        }
    }

    /// When a lane is compacted, for people.
    fn compaction(&self) -> Option<String> {
        let time = |ms| units::show_duration(Duration::from_millis(ms));
        let late = match self.max_compaction_lag_ms {
            0 => String::new(),
            ms => format!(", or a record is {} old", time(ms)),
        };
        let young = match self.min_compaction_lag_ms {
            0 => String::new(),
            ms => format!("; not records of the last {}", time(ms)),
        };
        (self.cleanup != "delete").then(|| {
            format!(
                "once {} % of a lane is new{late}{young}; tombstones stay {}",
                self.min_dirty_ratio * 100.0,
                time(self.delete_retention_ms)
            )
        })
    }

    /// What retention keeps, for people.
    fn limits(&self) -> String {
        let time = (self.retention_ms > 0)
            .then(|| units::show_duration(Duration::from_millis(self.retention_ms)));
        let size = (self.retention_bytes > 0).then(|| units::show_size(self.retention_bytes));
        match (time, size) {
            (None, None) => "all".into(),
            (Some(one), None) | (None, Some(one)) => one,
            (Some(time), Some(size)) => format!("{time} or {size}"),
        }
    }

    /// Whose clock records carry, and within which bounds, for people.
    fn timestamps(&self) -> String {
        let bound = |ms: u64, what: &str| match ms {
            0 => String::new(),
            ms => format!(
                ", at most {} {what}",
                units::show_duration(Duration::from_millis(ms))
            ),
        };
        format!(
            "{}{}{}",
            self.timestamps,
            bound(self.timestamp_before_max_ms, "old"),
            bound(self.timestamp_after_max_ms, "ahead")
        )
    }

    /// One line.
    pub(super) fn summary(&self) -> String {
        let plural = |n: u32, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        format!(
            "stream {}, {} with {} lane{}{}, by {}, ack {}{}",
            self.name,
            plural(self.streamlets, "streamlet"),
            self.lanes_each(),
            if self.lanes == 1 { "" } else { "s" },
            if self.streamlets == 1 { "" } else { " each" },
            self.lane_by,
            self.ack,
            match self.replicas {
                1 => String::new(),
                _ => format!(", {}", self.copies()),
            }
        )
    }

    /// How many copies there are, for people.
    pub(super) fn copies(&self) -> String {
        match self.replicas {
            1 => "1 replica".into(),
            replicas => format!(
                "{replicas} replicas, at least {} in sync",
                self.min_insync_replicas
            ),
        }
    }

    /// The settings, a line each.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("id", self.id.clone()),
            ("created", self.created.clone()),
            ("streamlets", self.streamlets.to_string()),
            (
                "lanes",
                format!(
                    "{} (generation {})",
                    self.lanes_each(),
                    self.lane_generation
                ),
            ),
            (
                "partitions",
                format!("{}, as Kafka counts them", self.partitions),
            ),
            ("lane by", self.lane_by.into()),
            ("ack", self.ack.into()),
            ("replicas", self.copies()),
            (
                "groups",
                format!(
                    "{} segments of {}, {}",
                    self.segments_per_group,
                    units::show_size(u64::from(self.segment_size)),
                    match self.group_max_age_ms {
                        0 => "of any age".into(),
                        ms => format!("at most {} old", short_time(Duration::from_millis(ms))),
                    }
                ),
            ),
            ("kept", self.retention()),
            (
                "largest batch",
                units::show_size(u64::from(self.max_batch_bytes)),
            ),
            ("timestamps", self.timestamps()),
            ("validate", self.validate.into()),
        ];
        settings.extend(self.compaction().map(|text| ("compacted", text)));
        let letters = self.dead_letters.then(|| "of share groups".into());
        settings.extend(letters.map(|text| ("dead letters", text)));
        settings
    }
}

/// A stream with its lanes.
#[derive(Debug, Serialize)]
pub(super) struct DescriptionView {
    #[serde(flatten)]
    pub(super) stream: StreamView,
    /// Groups recorded to have fewer copies than `replicas`.
    pub(super) under_replicated_groups: u64,
    /// Streamlets that wait for their copies; their lanes are not described.
    pub(super) unrecovered: Vec<UnrecoveredView>,
    pub(super) lane_descriptions: Vec<LaneView>,
    pub(super) consumer_groups: Vec<GroupLagView>,
    /// Why the groups above are not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) consumer_groups_error: Option<String>,
}

/// A streamlet that waits for its copies.
#[derive(Debug, Serialize)]
pub(super) struct UnrecoveredView {
    pub(super) streamlet: u32,
    pub(super) reason: String,
    pub(super) unclean: Vec<UncleanView>,
}

/// A group of which no copy counts.
#[derive(Debug, Serialize)]
pub(super) struct UncleanView {
    pub(super) group: u64,
    pub(super) lane: u32,
    /// Records from here on may be lost.
    pub(super) first_ordinal: u64,
    pub(super) brokers: Vec<u32>,
}

impl UnrecoveredView {
    pub(super) fn new(waiting: &v1::UnrecoveredStreamlet) -> Self {
        let unclean = waiting.unclean.iter().map(|group| UncleanView {
            group: group.group,
            lane: group.lane,
            first_ordinal: group.first_ordinal,
            brokers: group.brokers.clone(),
        });
        Self {
            streamlet: waiting.streamlet,
            reason: waiting.reason.clone(),
            unclean: unclean.collect(),
        }
    }

    /// One line, for people.
    pub(super) fn line(&self) -> String {
        match self.reason.as_str() {
            "" => format!("streamlet {} is being recovered", self.streamlet),
            reason => format!("streamlet {} waits: {reason}", self.streamlet),
        }
    }
}

/// How far a consumer group is behind on the stream.
#[derive(Debug, Serialize)]
pub(super) struct GroupLagView {
    pub(super) group: String,
    pub(super) members: u32,
    pub(super) lag: u64,
    /// Lanes whose owners have not told where they end: the lag lacks theirs.
    pub(super) unknown_lanes: u32,
}

impl GroupLagView {
    /// `None` for a group that does not read the stream.
    pub(super) fn new(group: &v1::GroupSummary, stream: &str) -> Option<Self> {
        let (lag, unknown_lanes) = match group.kind() {
            v1::GroupKind::Native => {
                (group.stream == stream).then_some((group.lag, group.unknown_lanes))?
            }
            v1::GroupKind::Kafka => {
                let of = group.streams.iter().find(|of| of.stream == stream)?;
                (of.lag, of.unknown_lanes)
            }
        };
        Some(Self {
            group: group.group.clone(),
            members: group.members,
            lag,
            unknown_lanes,
        })
    }
}

/// Records of a lane that can be read. Not every ordinal has one: a recovery that may have lost records goes on
/// above them, in a group of its own.
fn records(lane: &v1::LaneDescription) -> u64 {
    let readable = lane.groups.iter().map(|group| {
        let end = group.end_ordinal.min(lane.head_ordinal);
        end.saturating_sub(group.first_ordinal.max(lane.log_start))
    });
    readable.sum()
}

/// A lane.
#[derive(Debug, Serialize)]
pub(super) struct LaneView {
    pub(super) streamlet: u32,
    pub(super) lane: u32,
    pub(super) log_start: u64,
    pub(super) head_ordinal: u64,
    pub(super) end_ordinal: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) producers: u32,
    pub(super) groups: Vec<GroupView>,
    /// Of groups that are not closed.
    pub(super) replicas: Vec<ReplicaView>,
}

/// How far one replica of a group has come; addresses in the group.
#[derive(Debug, Serialize)]
pub(super) struct ReplicaView {
    pub(super) group: u64,
    pub(super) broker: u32,
    pub(super) end: u64,
    pub(super) placed: Option<u64>,
    pub(super) flushed: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) lost: String,
}

impl ReplicaView {
    /// What keeps it from having all of the group, for people.
    pub(super) fn state(&self) -> String {
        match (self.flushed.or(self.placed), self.lost.as_str()) {
            (_, lost) if !lost.is_empty() => format!("lost: {lost}"),
            (Some(there), _) if there >= self.end => "whole".into(),
            (Some(_), _) => "behind".into(),
            (None, _) => "not known".into(),
        }
    }
}

/// A group.
#[derive(Debug, Serialize)]
pub(super) struct GroupView {
    pub(super) group: u64,
    pub(super) generation: u32,
    pub(super) epoch: u32,
    pub(super) first_ordinal: u64,
    pub(super) end_ordinal: u64,
    pub(super) bytes: u64,
    pub(super) closed: bool,
}

impl LaneView {
    pub(super) fn new(lane: &v1::LaneDescription) -> Self {
        Self {
            streamlet: lane.streamlet,
            lane: lane.lane,
            log_start: lane.log_start,
            head_ordinal: lane.head_ordinal,
            end_ordinal: lane.end_ordinal,
            records: records(lane),
            bytes: lane.bytes,
            producers: lane.producers,
            groups: lane
                .groups
                .iter()
                .map(|group| GroupView {
                    group: group.group,
                    generation: group.generation,
                    epoch: group.epoch,
                    first_ordinal: group.first_ordinal,
                    end_ordinal: group.end_ordinal,
                    bytes: group.bytes,
                    closed: group.closed,
                })
                .collect(),
            replicas: lane
                .replicas
                .iter()
                .map(|replica| ReplicaView {
                    group: replica.group,
                    broker: replica.broker,
                    end: replica.end,
                    placed: replica.placed,
                    flushed: replica.flushed,
                    lost: replica.lost.clone(),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_kinds_read_a_stream() {
        let of = |stream: &str, lag| v1::StreamLag {
            stream: stream.into(),
            lag,
            unknown_lanes: 1,
        };
        let native = v1::GroupSummary {
            stream: "orders".into(),
            lag: 7,
            ..v1::GroupSummary::default()
        };
        let kafka = v1::GroupSummary {
            kind: v1::GroupKind::Kafka.into(),
            lag: 12,
            streams: vec![of("clicks", 9), of("orders", 3)],
            ..v1::GroupSummary::default()
        };
        let told = |group: &v1::GroupSummary, stream| {
            let view = GroupLagView::new(group, stream)?;
            Some((view.lag, view.unknown_lanes))
        };
        assert_eq!(told(&native, "orders"), Some((7, 0)));
        assert_eq!(told(&native, "clicks"), None);
        assert_eq!(told(&kafka, "orders"), Some((3, 1)));
        assert_eq!(told(&kafka, "views"), None);
    }

    #[test]
    fn ordinals_that_a_recovery_passed_over_are_no_records() {
        let group = |first_ordinal, end_ordinal| v1::GroupInfo {
            first_ordinal,
            end_ordinal,
            ..Default::default()
        };
        let lane = v1::LaneDescription {
            log_start: 4,
            head_ordinal: (1 << 32) + 7,
            end_ordinal: (1 << 32) + 9,
            groups: vec![group(0, 10), group(1 << 32, (1 << 32) + 9)],
            ..Default::default()
        };
        assert_eq!(LaneView::new(&lane).records, 6 + 7);
        let emptied = v1::LaneDescription {
            groups: Vec::new(),
            ..lane
        };
        assert_eq!(LaneView::new(&emptied).records, 0);
    }
}
