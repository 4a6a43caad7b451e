//! What answers of the API look like. Fields that the command line's `--json` has too have the same names there.

use std::cmp::Reverse;

use kera_grpc::serve::Caller;
use kera_metadata::access::Kind;
use kera_metadata::{BatchCheck, Cleanup, LaneBy, TimestampType};
use kera_protocol::ids::StreamId;
use kera_protocol::v1;
use serde::Serialize;

use crate::access::may_see;
use crate::shared::Shared;

/// Groups that are told with a stream in a list, and streams with a group.
const GROUPS_IN_ROW: usize = 8;
const STREAMS: usize = 8;
/// Characters of a name where many are told at once. Kafka's clients may give a group one of 1,024.
const NAME: usize = 100;

/// A name as it stands among many.
pub(super) fn short(name: &str) -> String {
    let mut shown: String = name.chars().take(NAME).map(visible).collect();
    if name.chars().nth(NAME).is_some() {
        shown.push('…');
    }
    shown
}

/// In place of what is not seen, or turns the text after it around.
fn visible(letter: char) -> char {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match turns || letter.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => letter,
    }
}

/// Something that is not well, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    pub(super) severity: Severity,
    pub(super) object: String,
    pub(super) problem: String,
    pub(super) advice: String,
}

/// How bad it is. The order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Nobody has to do anything.
    Ok,
    /// Somebody should look.
    Attention,
    /// Records do not flow, or may be lost if more happens.
    Trouble,
}

/// Whether all is well.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Health {
    pub(super) state: Severity,
    pub(super) sentence: String,
    pub(super) advice: String,
    pub(super) problems: Vec<Problem>,
    /// All there are; the list has the first hundred.
    pub(super) problems_total: usize,
}

/// A broker that did not say what it has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Silent {
    pub(super) broker_id: u32,
    pub(super) reason: String,
}

/// Per second, over the last seconds; absent until two looks can be compared.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Rates {
    pub(super) records_in: Option<f64>,
    pub(super) bytes_in: Option<f64>,
    pub(super) bytes_out: Option<f64>,
}

/// A stream in a list.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StreamRow {
    pub(super) name: String,
    pub(super) streamlets: u32,
    pub(super) partitions: u32,
    pub(super) lane_generation: u32,
    pub(super) replicas: u32,
    pub(super) ack: &'static str,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) unacknowledged: u64,
    /// Durable records that an open transaction keeps from readers of what is committed.
    pub(super) above_stable: u64,
    pub(super) unserved_streamlets: u32,
    #[serde(flatten)]
    pub(super) rates: Rates,
    /// The groups with most lag first, at most eight.
    pub(super) groups: Vec<GroupLag>,
    pub(super) groups_total: usize,
    /// Of the group that has most.
    pub(super) lag: u64,
}

impl StreamRow {
    /// Tells of these groups, which are all that there are or that somebody may see.
    pub(super) fn set_groups(&mut self, mut groups: Vec<GroupLag>) {
        groups.sort_by(|a, b| (b.lag, &a.group).cmp(&(a.lag, &b.group)));
        self.groups_total = groups.len();
        self.lag = groups.first().map_or(0, |group| group.lag);
        groups.truncate(GROUPS_IN_ROW);
        self.groups = groups;
    }
}

/// How far a group is behind in a stream.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GroupLag {
    pub(super) group: String,
    pub(super) lag: u64,
    pub(super) unknown_lanes: u32,
}

/// A consumer group in a list.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GroupRow {
    pub(super) group: String,
    pub(super) kind: &'static str,
    pub(super) order: Option<&'static str>,
    pub(super) state: Option<String>,
    pub(super) streams: Vec<StreamLag>,
    /// How many it reads.
    pub(super) streams_total: usize,
    pub(super) members: u32,
    pub(super) leases: u32,
    pub(super) lag: u64,
    /// Lanes whose owners have not told where they end: the lag lacks theirs.
    pub(super) unknown_lanes: u32,
    /// Of its streams, as there. Not part of the lag: nobody may read them yet.
    pub(super) above_stable: Option<u64>,
    pub(super) records_in: Option<f64>,
    pub(super) records_consumed: Option<f64>,
    /// Seconds until it has caught up, at the pace of the last seconds; absent if it does not.
    pub(super) catches_up_s: Option<f64>,
    pub(super) falls_behind: bool,
    pub(super) why: String,
    pub(super) coordinator: u32,
}

impl GroupRow {
    /// With the streams that lag most, `first` before them if it is one of them: a group may read thousands.
    pub(super) fn cut(mut self, first: Option<&str>) -> Self {
        self.streams_total = self.streams.len();
        let by_lag = |of: &StreamLag| (Some(of.stream.as_str()) != first, Reverse(of.lag));
        self.streams
            .sort_by(|a, b| (by_lag(a), &a.stream).cmp(&(by_lag(b), &b.stream)));
        self.streams.truncate(STREAMS);
        self
    }

    /// Without the streams that the caller may not see, and what is made of them.
    pub(super) fn seen_by(&self, shared: &Shared, caller: &Caller) -> Self {
        let may = |of: &StreamLag| may_see(shared, Some(caller), (Kind::Stream, &of.stream));
        let mut row = self.clone();
        row.streams.retain(may);
        if row.streams.len() < self.streams.len() {
            row.lag = row.streams.iter().map(|of| of.lag).sum();
            row.unknown_lanes = row.streams.iter().map(|of| of.unknown_lanes).sum();
            (row.records_in, row.records_consumed, row.catches_up_s) = (None, None, None);
            row.above_stable = None;
            row.falls_behind = false;
            "it reads streams that you may not see".clone_into(&mut row.why);
        }
        row
    }
}

/// How far a group is behind in one of its streams.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StreamLag {
    pub(super) stream: String,
    pub(super) lag: u64,
    pub(super) unknown_lanes: u32,
}

/// A broker in a list.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BrokerRow {
    pub(super) broker_id: u32,
    pub(super) state: &'static str,
    pub(super) role: &'static str,
    pub(super) controller: bool,
    pub(super) answered: bool,
    pub(super) silent: Option<String>,
    pub(super) not_ready: Option<String>,
    pub(super) address: String,
    pub(super) kafka: Option<String>,
    pub(super) host: String,
    pub(super) rack: Option<String>,
    pub(super) version: String,
    pub(super) started_ms: Option<u64>,
    pub(super) streamlets: u64,
    pub(super) share: u64,
    pub(super) copies: u64,
    pub(super) held_bytes: u64,
    pub(super) to_come_bytes: u64,
    pub(super) disk_free_bytes: Option<u64>,
    pub(super) disk_total_bytes: Option<u64>,
    pub(super) pool_bytes: Option<u64>,
    pub(super) pool_used_bytes: Option<u64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) connections: Option<u32>,
    /// Of one core.
    pub(super) cpu_share: Option<f64>,
    #[serde(flatten)]
    pub(super) rates: Rates,
}

/// The first page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Overview {
    pub(super) taken_ms: u64,
    pub(super) health: Health,
    pub(super) answered_by: u32,
    pub(super) version: &'static str,
    /// Something can be changed here.
    pub(super) acts: bool,
    pub(super) cluster: Option<String>,
    pub(super) controller: Option<u32>,
    pub(super) brokers: usize,
    pub(super) brokers_answering: usize,
    pub(super) streams: usize,
    pub(super) partitions: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) groups: usize,
    pub(super) groups_behind: usize,
    pub(super) under_replicated_groups: u64,
    pub(super) to_come_bytes: u64,
    pub(super) silent: Vec<Silent>,
    #[serde(flatten)]
    pub(super) rates: Rates,
    /// With most coming in, at most eight.
    pub(super) busiest_streams: Vec<StreamRow>,
    /// Those that fall behind first, at most eight.
    pub(super) lagging_groups: Vec<GroupRow>,
    /// What happened since this broker has been asked, the newest first, at most fifty.
    pub(super) events: Vec<Event>,
}

/// Something that changed between two looks.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    pub(super) at_ms: u64,
    pub(super) severity: Severity,
    pub(super) text: String,
}

/// A part of a list.
#[derive(Debug, Serialize)]
pub(super) struct Page<T> {
    pub(super) taken_ms: u64,
    pub(super) silent: Vec<Silent>,
    pub(super) total: usize,
    pub(super) offset: usize,
    pub(super) items: Vec<T>,
}

/// A stream's settings, named as the command line has them.
#[derive(Debug, Serialize)]
pub(super) struct StreamSettings {
    pub(super) id: String,
    pub(super) lanes: u32,
    pub(super) lane_by: &'static str,
    pub(super) min_insync_replicas: u32,
    pub(super) segment_size: u32,
    pub(super) segments_per_group: u32,
    pub(super) retention_ms: u64,
    pub(super) retention_bytes: u64,
    pub(super) group_max_age_ms: u64,
    pub(super) max_batch_bytes: u32,
    pub(super) timestamps: &'static str,
    pub(super) timestamp_before_max_ms: u64,
    pub(super) timestamp_after_max_ms: u64,
    pub(super) validate: &'static str,
    pub(super) cleanup: &'static str,
    pub(super) min_compaction_lag_ms: u64,
    pub(super) max_compaction_lag_ms: u64,
    pub(super) delete_retention_ms: u64,
    pub(super) min_dirty_ratio: f64,
    pub(super) dead_letters: bool,
    pub(super) created_ms: u64,
}

impl StreamSettings {
    pub(super) fn of(info: &v1::StreamInfo) -> Self {
        let config = info.config.unwrap_or_default();
        let id = StreamId::from_slice(&info.id);
        Self {
            id: id.map(|id| id.to_string()).unwrap_or_default(),
            lanes: config.lanes(),
            lane_by: LaneBy::from(config.lane_by()).text(),
            min_insync_replicas: config.min_insync_replicas(),
            segment_size: config.segment_size(),
            segments_per_group: config.segments_per_group(),
            retention_ms: config.retention_ms(),
            retention_bytes: config.retention_bytes(),
            group_max_age_ms: config.group_max_age_ms(),
            max_batch_bytes: config.max_batch_bytes(),
            timestamps: TimestampType::from(config.timestamp_type()).text(),
            timestamp_before_max_ms: config.timestamp_before_max_ms(),
            timestamp_after_max_ms: config.timestamp_after_max_ms(),
            validate: BatchCheck::from(config.validate()).text(),
            cleanup: Cleanup::from(config.cleanup()).text(),
            min_compaction_lag_ms: config.min_compaction_lag_ms(),
            max_compaction_lag_ms: config.max_compaction_lag_ms(),
            delete_retention_ms: config.delete_retention_ms(),
            min_dirty_ratio: f64::from(config.min_dirty_permille()) / 1000.0,
            dead_letters: config.dead_letters(),
            created_ms: info.created_ms,
        }
    }
}
