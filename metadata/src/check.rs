//! What a record may be: by itself, and after the one it replaces.

use std::collections::HashSet;
use std::ops::Range;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Ordinal, StreamletId};
use kera_protocol::partition::lanes_of;

use crate::error::{Conflict, MetadataError};
use kera_records::access::{self, MAX_ROLES, MAX_RULES, MAX_RULES_BYTES};
use kera_records::config::{LaneBy, MAX_LANES};
use kera_records::key::Key;
use kera_records::{
    BrokerRecord, Damage, GroupRecord, GroupState, MAX_COPIES, MAX_DAMAGE_DETAIL, PinRecord,
    QuotasRecord, Rule, RulesRecord, SettingsRecord, StreamRecord, StreamletRecord, UsersRecord,
};
use kera_records::{validate_internal_name, validate_stream_name};

/// Greatest ordinal: Kafka's offsets are signed.
pub const MAX_ORDINAL: Ordinal = i64::MAX as Ordinal;
/// Most records that a group's ordinals may span.
pub const MAX_GROUP_SPAN: u64 = 1 << 32;
/// Most boundaries that a stream's lane generations may list in all.
pub const MAX_GENERATION_STARTS: usize = 262_144;
/// Most bytes of the names and values of the settings of one broker, or of all.
pub const MAX_SETTINGS_BYTES: usize = 64 << 10;
/// Most bytes of a broker's address.
const MAX_ADDRESS: usize = 255;
/// Most bytes of a broker's version.
const MAX_VERSION: usize = 64;

/// What checks of streamlets, groups and log starts need to know of their stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    pub(crate) streamlets: u32,
    pub(crate) partitions: u32,
    pub(crate) group_bytes: u64,
}

impl StreamLimits {
    pub(crate) fn of(stream: &StreamRecord) -> Self {
        Self {
            streamlets: stream.config.streamlets,
            partitions: stream.config.partitions(),
            group_bytes: stream.config.group_bytes(),
        }
    }

    /// How many lanes a streamlet has.
    fn lanes_of(&self, streamlet: StreamletId) -> u32 {
        lanes_of(streamlet, self.streamlets, self.partitions)
    }
}

fn refuse<T>(what: &Key, problem: impl std::fmt::Display) -> Result<T, MetadataError> {
    Err(MetadataError::invalid(format!("{what}: {problem}")))
}

/// A stream by itself.
pub(crate) fn stream(record: &StreamRecord) -> Result<(), MetadataError> {
    if record.internal {
        validate_internal_name(&record.name)?;
    } else {
        validate_stream_name(&record.name)?;
    }
    record.config.validate()?;
    let key = Key::Stream(record.id);
    let generations = &record.lane_generations;
    let Some(first) = generations.first() else {
        return refuse(&key, "it has no lane generation; a stream has at least one");
    };
    if !first.starts.is_empty() {
        return refuse(&key, "its first lane generation lists boundaries");
    }
    let streamlets = record.config.streamlets;
    if generations.last().map(|g| (g.lanes, g.short_streamlets))
        != Some((record.config.lanes, record.config.short_streamlets))
    {
        return refuse(&key, "its last lane generation has another number of lanes");
    }
    if first.lanes == 0 {
        return refuse(&key, "its first lane generation has no lanes");
    }
    if record.config.cleanup.compacts() && generations.len() > 1 {
        return Err(MetadataError::Invalid(WireError::new(
            ErrorCode::InvalidArgument,
            format!(
                "cleanup is compact and the lanes of stream `{}` have grown: keys moved to other lanes then, and their old lanes would keep an old value for good; create another stream and copy the records",
                record.name
            ),
        )));
    }
    let total: usize = generations.iter().map(|g| g.starts.len()).sum();
    if total > MAX_GENERATION_STARTS {
        return Err(MetadataError::Invalid(WireError::new(
            ErrorCode::InvalidArgument,
            format!(
                "stream `{}` has grown its lanes so often that {total} boundaries would be kept, more than {MAX_GENERATION_STARTS}; grow in larger steps",
                record.name
            ),
        )));
    }
    for pair in generations.windows(2) {
        let (old, new) = (&pair[0], &pair[1]);
        let (before, after) = (old.partitions(streamlets), new.partitions(streamlets));
        if new.short_streamlets >= streamlets || after <= before || after > MAX_LANES {
            return refuse(&key, "a lane generation does not grow the number of lanes");
        }
        if new.starts.is_empty() && record.config.lane_by == LaneBy::Producer {
            continue;
        }
        if new.starts.len() as u64 != u64::from(before) {
            return refuse(
                &key,
                "a lane generation does not list every lane of the one before",
            );
        }
        let mut seen = HashSet::with_capacity(new.starts.len());
        for (streamlet, lane, ordinal) in &new.starts {
            if streamlet.0 >= streamlets
                || lane.0 >= lanes_of(*streamlet, streamlets, before)
                || *ordinal > MAX_ORDINAL
                || !seen.insert((streamlet, lane))
            {
                return refuse(
                    &key,
                    format_args!(
                        "the boundary of lane {streamlet}/{lane} at {ordinal} is out of range or listed twice"
                    ),
                );
            }
        }
    }
    Ok(())
}

/// A stream after the one it replaces.
pub(crate) fn stream_change(old: &StreamRecord, new: &StreamRecord) -> Result<(), MetadataError> {
    let key = Key::Stream(new.id);
    if old.name != new.name || old.created_ms != new.created_ms || old.internal != new.internal {
        return refuse(
            &key,
            "name, creation time and kind of a stream cannot change",
        );
    }
    let mut config = old.config.clone();
    if old.internal && new.config.min_insync_replicas > config.min_insync_replicas {
        // The brokers' own stream may be older than most of the brokers.
        config.min_insync_replicas = new.config.min_insync_replicas;
    }
    config.validate_change(&new.config)?;
    if !new.lane_generations.starts_with(&old.lane_generations) {
        return refuse(&key, "recorded lane generations cannot change");
    }
    Ok(())
}

/// A streamlet by itself.
pub(crate) fn streamlet(
    record: &StreamletRecord,
    limits: StreamLimits,
) -> Result<(), MetadataError> {
    let key = Key::Streamlet(record.key());
    number_of_streamlet(&key, record.streamlet, limits)?;
    if record.epoch.0 > i32::MAX as u32 {
        return refuse(
            &key,
            format_args!("epoch {} is above {}", record.epoch, i32::MAX),
        );
    }
    Ok(())
}

fn number_of_streamlet(
    key: &Key,
    streamlet: StreamletId,
    limits: StreamLimits,
) -> Result<(), MetadataError> {
    if streamlet.0 >= limits.streamlets {
        return refuse(
            key,
            format_args!("the stream has only {} streamlets", limits.streamlets),
        );
    }
    Ok(())
}

/// A streamlet after the one it replaces.
pub(crate) fn streamlet_change(
    old: &StreamletRecord,
    new: &StreamletRecord,
) -> Result<(), MetadataError> {
    let key = Key::Streamlet(new.key());
    let back = |current: u64, written: u64| {
        if written < current {
            return Err(MetadataError::from(Conflict::MovesBack {
                key: key.clone(),
                current,
                written,
            }));
        }
        Ok(())
    };
    back(old.epoch.0.into(), new.epoch.0.into())?;
    back(old.next_group.0, new.next_group.0)?;
    if old.owner != new.owner && old.epoch == new.epoch {
        return refuse(&key, "a new owner needs a new epoch");
    }
    Ok(())
}

/// A group by itself, in its stream and streamlet.
pub(crate) fn group(
    record: &GroupRecord,
    limits: StreamLimits,
    streamlet: &StreamletRecord,
) -> Result<(), MetadataError> {
    let key = Key::Group(record.key());
    let refuse = |problem: String| refuse(&key, problem);
    let lanes = limits.lanes_of(record.streamlet);
    if record.lane.0 >= lanes {
        return refuse(format!("the streamlet has only {lanes} lanes"));
    }
    if record.group >= streamlet.next_group {
        return refuse(format!(
            "the streamlet's next group is {}; raise it in the same transaction",
            streamlet.next_group
        ));
    }
    if record.epoch > streamlet.epoch {
        return refuse(format!(
            "its epoch {} is above the streamlet's, {}",
            record.epoch, streamlet.epoch
        ));
    }
    if record.state != GroupState::Closed && record.epoch != streamlet.epoch {
        return refuse(format!(
            "its epoch {} has ended, the streamlet's is {}; close or delete it",
            record.epoch, streamlet.epoch
        ));
    }
    if record.length > limits.group_bytes || record.live_bytes > limits.group_bytes {
        return refuse(format!(
            "{} bytes are more than the {} of a group",
            record.length.max(record.live_bytes),
            limits.group_bytes
        ));
    }
    let ordinals = [
        record.first_ordinal.unwrap_or(0),
        record.end_ordinal,
        record.next_ordinal,
    ];
    if ordinals.iter().any(|o| *o > MAX_ORDINAL) {
        return refuse(format!("an ordinal is above {MAX_ORDINAL}"));
    }
    if record.max_timestamp_ms < -1 {
        return refuse(format!("timestamp {} is negative", record.max_timestamp_ms));
    }
    if record.copies.is_empty() || record.copies.len() > MAX_COPIES {
        return refuse(format!(
            "it has {} replicas; the legal range is 1 to {MAX_COPIES}",
            record.copies.len()
        ));
    }
    let mut brokers: Vec<u32> = record.copies.iter().map(|c| c.broker.0).collect();
    brokers.sort_unstable();
    if brokers.windows(2).any(|pair| pair[0] == pair[1]) {
        return refuse("a broker holds two of its replicas".into());
    }
    if let Some(Damage {
        address,
        detail,
        lost,
    }) = &record.damaged
    {
        let ordinals = record.first_ordinal.unwrap_or(0)..record.end_ordinal;
        let is_outside =
            |one: &Range<Ordinal>| one.start < ordinals.start || one.end > ordinals.end;
        if *address > limits.group_bytes
            || detail.len() > MAX_DAMAGE_DETAIL
            || lost.stretches().iter().any(is_outside)
        {
            return refuse("its damage is out of range".into());
        }
    }
    match (record.state, record.first_ordinal) {
        (GroupState::Ahead, _) if record.length > 0 || record.live_bytes > 0 => {
            refuse("it is recorded ahead and holds bytes already".into())
        }
        (GroupState::Closed, None) => {
            refuse("it is closed and its first ordinal is unknown; delete it if it is empty".into())
        }
        (GroupState::Closed, Some(first)) => {
            if record.end_ordinal < first || record.end_ordinal - first > MAX_GROUP_SPAN {
                return refuse(format!(
                    "its ordinals {first} to {} do not span 0 to 2^32 records",
                    record.end_ordinal
                ));
            }
            if record.next_ordinal < record.end_ordinal {
                return refuse(format!(
                    "its next ordinal {} is below its end {}",
                    record.next_ordinal, record.end_ordinal
                ));
            }
            if record.live_bytes > record.length {
                return refuse("it has more live bytes than bytes".into());
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A group after the one it replaces.
pub(crate) fn group_change(old: &GroupRecord, new: &GroupRecord) -> Result<(), MetadataError> {
    let key = Key::Group(new.key());
    let refuse = |problem: &str| refuse(&key, problem);
    if old.lane != new.lane || old.epoch != new.epoch {
        return refuse("lane and epoch of a group cannot change");
    }
    if new.state < old.state {
        return refuse("a group's state cannot go back");
    }
    if new.generation < old.generation {
        return refuse("a group's generation cannot go back");
    }
    if old.first_ordinal.is_some()
        && old.first_ordinal != new.first_ordinal
        && !new.takes_in_others(old)
    {
        return refuse("a group's first ordinal cannot change");
    }
    match (old.state, new.state) {
        (GroupState::Open, GroupState::Open) if !same_copies(old, new) => {
            refuse("the replica set of an open group cannot change; close it first")
        }
        (GroupState::Closed, GroupState::Closed) => {
            if old.end_ordinal != new.end_ordinal || old.closed_ms != new.closed_ms {
                return refuse("a closed group's end and closing time cannot change");
            }
            if old.length != new.length && old.generation == new.generation {
                return refuse("a closed group's length changes only with a new generation");
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A group that [takes in others](GroupRecord::takes_in_others): `deleted`, which go in the same transaction, are all the groups
/// from where it begins now to where it began.
pub(crate) fn taken_in(
    old: &GroupRecord,
    new: &GroupRecord,
    deleted: Vec<GroupRecord>,
) -> Result<(), MetadataError> {
    if new.covers(old, deleted) {
        return Ok(());
    }
    refuse(
        &Key::Group(new.key()),
        format_args!(
            "its first ordinal goes down from {} to {}, and the transaction does not delete closed groups that hold all between",
            old.start_ordinal(),
            new.start_ordinal()
        ),
    )
}

fn same_copies(old: &GroupRecord, new: &GroupRecord) -> bool {
    // Both name each broker at most once, so equal length and inclusion make them equal sets.
    old.copies.len() == new.copies.len() && old.copies.iter().all(|c| new.copies.contains(c))
}

/// A log start by itself.
pub(crate) fn lane_start(
    key: &kera_protocol::ids::LaneKey,
    ordinal: Ordinal,
    limits: StreamLimits,
) -> Result<(), MetadataError> {
    let name = Key::LaneStart(*key);
    number_of_streamlet(&name, key.streamlet, limits)?;
    let lanes = limits.lanes_of(key.streamlet);
    if key.lane.0 >= lanes {
        return refuse(&name, format_args!("the streamlet has only {lanes} lanes"));
    }
    if ordinal > MAX_ORDINAL {
        return refuse(
            &name,
            format_args!("ordinal {ordinal} is above {MAX_ORDINAL}"),
        );
    }
    Ok(())
}

/// A broker by itself.
pub(crate) fn broker(record: &BrokerRecord) -> Result<(), MetadataError> {
    let key = Key::Broker(record.id);
    if record.address.is_empty() || record.address.len() > MAX_ADDRESS {
        return refuse(
            &key,
            format_args!(
                "its address has {} bytes; the legal range is 1 to {MAX_ADDRESS}",
                record.address.len()
            ),
        );
    }
    if record.version.len() > MAX_VERSION {
        return refuse(
            &key,
            format_args!(
                "its version has {} bytes, more than {MAX_VERSION}",
                record.version.len()
            ),
        );
    }
    Ok(())
}

/// Rules of access.
pub(crate) fn rules(record: &RulesRecord) -> Result<(), MetadataError> {
    let RulesRecord { rules, roles, .. } = record;
    let bytes: usize = rules.iter().map(Rule::text_bytes).sum();
    let bytes = bytes + roles.iter().map(access::Role::text_bytes).sum::<usize>();
    if rules.len() > MAX_RULES || bytes > MAX_RULES_BYTES {
        let found = rules.len();
        return refuse(
            &Key::Rules,
            format_args!(
                "there would be {found}, of {bytes} bytes with the roles; at most {MAX_RULES} of {MAX_RULES_BYTES} bytes are kept; use prefixes, roles, or `User:*`"
            ),
        );
    }
    if roles.len() > MAX_ROLES {
        let found = roles.len();
        return refuse(
            &Key::Rules,
            format_args!("there would be {found} roles; at most {MAX_ROLES} are kept"),
        );
    }
    if !roles.is_sorted_by(|one, next| one.name < next.name) {
        return refuse(&Key::Rules, "their roles are not in order, each once");
    }
    for role in roles {
        if let Err(problem) = role.check() {
            return refuse(&Key::Rules, problem);
        }
    }
    if !rules.is_sorted_by(|one, next| one < next) {
        return refuse(&Key::Rules, "they are not in order, each once");
    }
    for rule in rules {
        if let Err(problem) = rule.check() {
            return refuse(&Key::Rules, problem);
        }
    }
    Ok(())
}

/// Users.
pub(crate) fn users(record: &UsersRecord) -> Result<(), MetadataError> {
    record
        .check()
        .or_else(|problem| refuse(&Key::Users, problem))
}

/// How much clients may do.
pub(crate) fn quotas(record: &QuotasRecord) -> Result<(), MetadataError> {
    record
        .check()
        .or_else(|problem| refuse(&Key::Quotas, problem))
}

/// A pin, in its stream.
pub(crate) fn pin(record: &PinRecord, limits: StreamLimits) -> Result<(), MetadataError> {
    let key = Key::Pin(record.key());
    if let Err(problem) = record.check() {
        return refuse(&key, problem);
    }
    let (found, lanes) = (record.positions.len(), limits.partitions as usize);
    if found > lanes {
        return refuse(
            &key,
            format_args!("it has {found} positions, and the stream {lanes} lanes"),
        );
    }
    if record.positions.iter().any(|o| *o > MAX_ORDINAL) {
        return refuse(&key, format_args!("an ordinal is above {MAX_ORDINAL}"));
    }
    Ok(())
}

/// Settings by themselves.
pub(crate) fn settings(record: &SettingsRecord) -> Result<(), MetadataError> {
    let values = record.values.iter();
    let bytes: usize = values.map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_SETTINGS_BYTES {
        return refuse(
            &Key::Settings(record.broker),
            format_args!("they have {bytes} bytes, more than {MAX_SETTINGS_BYTES}"),
        );
    }
    Ok(())
}
