//! Records as bytes.
//!
//! A value is `[crc32c u32 LE][revision u64 LE][record: prost message]`; the checksum covers the key,
//! the revision and the message, so that neither flipped bits nor a value under another's key pass.

use std::ops::Range;

use kera_protocol::batch::crc32c;
use kera_protocol::ids::{
    BrokerId, Epoch, GroupId, Incarnation, LaneId, Ordinal, StreamId, StreamletId,
};
use kera_protocol::v1;
use prost::Message;
use uuid::Uuid;

use crate::messages::*;
use crate::pin_form;
use kera_records::access::{self, Kind, Operation, Pattern, Permission};
use kera_records::config::{AckPolicy, BatchCheck, Cleanup, LaneBy, StreamConfig, TimestampType};
use kera_records::key::Key;
use kera_records::quota::{Limit, QuotaEntity, QuotaKind, Whom};
use kera_records::{
    BrokerRecord, Damage, GroupRecord, GroupState, LaneGeneration, LaneStart, PinRecord, Quota,
    QuotasRecord, Replica, Role, Rule, RulesRecord, SettingsRecord, StreamRecord, StreamletRecord,
    User, UserCredential, UsersRecord,
};

/// Any one record, as it is read back by its [`Key`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// A broker.
    Broker(BrokerRecord),
    /// A counter's value.
    Counter(u64),
    /// Broker settings.
    Settings(SettingsRecord),
    /// Who may do what.
    Rules(RulesRecord),
    /// Users.
    Users(UsersRecord),
    /// How much clients may do.
    Quotas(QuotasRecord),
    /// A pin.
    Pin(PinRecord),
    /// A group.
    Group(GroupRecord),
    /// The log start of a lane.
    LaneStart(LaneStart),
    /// The stream of a name.
    StreamName(StreamId),
    /// A stream.
    Stream(StreamRecord),
    /// A streamlet.
    Streamlet(StreamletRecord),
}

const CHECKSUM_BYTES: usize = 4;
const PREFIX_BYTES: usize = CHECKSUM_BYTES + 8;

/// The value of `record` under `key`, stamped with `revision`.
pub(crate) fn encode_value(key: &[u8], record: &Record, revision: u64) -> Vec<u8> {
    let mut out = vec![0; CHECKSUM_BYTES];
    out.extend_from_slice(&revision.to_le_bytes());
    match record {
        Record::Broker(r) => append(&mut out, broker_message(r)),
        Record::Counter(value) => append(&mut out, NumberMessage { value: *value }),
        Record::Settings(r) => append(
            &mut out,
            SettingsMessage {
                values: r.values.clone(),
                cluster_version: r.cluster_version,
            },
        ),
        Record::Rules(r) => append(&mut out, rules_message(r)),
        Record::Users(r) => append(&mut out, users_message(r)),
        Record::Quotas(r) => append(&mut out, quotas_message(r)),
        Record::Pin(r) => append(&mut out, pin_form::message(r)),
        Record::Group(r) => append(&mut out, group_message(r)),
        Record::LaneStart(r) => append(&mut out, NumberMessage { value: r.ordinal }),
        Record::StreamName(id) => append(
            &mut out,
            NameMessage {
                stream: id.as_bytes().to_vec(),
            },
        ),
        Record::Stream(r) => append(&mut out, stream_message(r)),
        Record::Streamlet(r) => append(
            &mut out,
            StreamletMessage {
                owner: r.owner,
                epoch: r.epoch.0,
                next_group: r.next_group.0,
                restore: r.restore,
                awaits_jump: r.awaits_jumps > 0,
                awaits_jumps: r.awaits_jumps,
            },
        ),
    }
    let checksum = value_checksum(key, &out[CHECKSUM_BYTES..]);
    out[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// The revision of a value, after its checksum was found right.
pub(crate) fn decode_revision(key: &[u8], value: &[u8]) -> Result<u64, String> {
    split(key, value).map(|(revision, _)| revision)
}

/// A value with another revision in it, after its checksum was found right.
#[cfg(feature = "etcd")]
pub(crate) fn restamp(key: &[u8], value: &[u8], revision: u64) -> Result<Vec<u8>, String> {
    split(key, value)?;
    let mut out = value.to_vec();
    out[CHECKSUM_BYTES..PREFIX_BYTES].copy_from_slice(&revision.to_le_bytes());
    let checksum = value_checksum(key, &out[CHECKSUM_BYTES..]);
    out[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    Ok(out)
}

/// The record of a value under a key, with its revision in it; the error says what is wrong.
pub(crate) fn decode_value(key: &Key, key_bytes: &[u8], value: &[u8]) -> Result<Record, String> {
    let (revision, message) = split(key_bytes, value)?;
    Ok(match key {
        Key::Broker(id) => {
            let m: BrokerMessage = parse(message)?;
            Record::Broker(BrokerRecord {
                id: *id,
                address: m.address,
                store_id: uuid(&m.store_id)?,
                boot_id: uuid(&m.boot_id)?,
                started_ms: m.started_ms,
                version: m.version,
                role: Role::of_number(m.role).ok_or("its role is unknown")?,
                restore: m.restore,
                revision,
            })
        }
        Key::Counter(_) => Record::Counter(parse::<NumberMessage>(message)?.value),
        Key::Settings(broker) => {
            let m: SettingsMessage = parse(message)?;
            Record::Settings(SettingsRecord {
                broker: *broker,
                values: m.values,
                cluster_version: m.cluster_version,
                revision,
            })
        }
        Key::Users => {
            let m: UsersMessage = parse(message)?;
            let users = m.users.into_iter().map(user);
            Record::Users(UsersRecord {
                users: users.collect::<Result<_, _>>()?,
                secret: m.secret,
                revision,
            })
        }
        Key::Quotas => {
            let m: QuotasMessage = parse(message)?;
            Record::Quotas(QuotasRecord {
                quotas: m.quotas.into_iter().map(quota).collect::<Result<_, _>>()?,
                revision,
            })
        }
        Key::Pin(key) => Record::Pin(pin_form::record(key, parse(message)?, revision)?),
        Key::Rules => {
            let m: RulesMessage = parse(message)?;
            let roles = m.roles.into_iter().map(|m| access::Role {
                name: m.name,
                members: m.members,
            });
            Record::Rules(RulesRecord {
                rules: m.rules.into_iter().map(rule).collect::<Result<_, _>>()?,
                roles: roles.collect(),
                revision,
            })
        }
        Key::Group(key) => {
            let m: GroupMessage = parse(message)?;
            Record::Group(GroupRecord {
                stream: key.stream,
                streamlet: key.streamlet,
                group: key.group,
                generation: m.generation,
                lane: LaneId(m.lane),
                epoch: Epoch(m.epoch),
                state: known("state", m.state, GroupState::of_number)?,
                first_ordinal: m.first_ordinal,
                length: m.length,
                end_ordinal: m.end_ordinal,
                next_ordinal: m.next_ordinal,
                max_timestamp_ms: m.max_timestamp_ms,
                closed_ms: m.closed_ms,
                live_bytes: m.live_bytes,
                copies: m
                    .copies
                    .iter()
                    .map(|c| {
                        Ok(Replica {
                            broker: BrokerId(c.broker),
                            incarnation: Incarnation {
                                store_id: uuid(&c.store_id)?,
                                boot_id: uuid(&c.boot_id)?,
                            },
                        })
                    })
                    .collect::<Result<_, String>>()?,
                damaged: m.damaged.map(|d| Damage {
                    address: d.address,
                    detail: d.detail,
                    lost: d.lost.iter().map(|lost| lost.from..lost.to).collect(),
                }),
                file_made: m.file_made,
                restore: m.restore,
                revision,
            })
        }
        Key::LaneStart(key) => Record::LaneStart(LaneStart {
            key: *key,
            ordinal: parse::<NumberMessage>(message)?.value,
            revision,
        }),
        Key::StreamName(_) => {
            let m: NameMessage = parse(message)?;
            Record::StreamName(
                StreamId::from_slice(&m.stream).ok_or("stream id is not 16 bytes long")?,
            )
        }
        Key::Stream(id) => Record::Stream(stream_record(*id, parse(message)?, revision)?),
        Key::Streamlet(key) => {
            let m: StreamletMessage = parse(message)?;
            Record::Streamlet(StreamletRecord {
                stream: key.stream,
                streamlet: key.streamlet,
                owner: m.owner,
                epoch: Epoch(m.epoch),
                next_group: GroupId(m.next_group),
                restore: m.restore,
                awaits_jumps: m.awaits_jumps.max(m.awaits_jump.into()),
                revision,
            })
        }
    })
}

fn broker_message(r: &BrokerRecord) -> BrokerMessage {
    BrokerMessage {
        address: r.address.clone(),
        store_id: r.store_id.as_bytes().to_vec(),
        boot_id: r.boot_id.as_bytes().to_vec(),
        started_ms: r.started_ms,
        version: r.version.clone(),
        role: r.role.number().into(),
        restore: r.restore,
    }
}

fn quotas_message(record: &QuotasRecord) -> QuotasMessage {
    let whom = |whom: &Option<Whom>| {
        whom.as_ref().map(|whom| WhomMessage {
            name: match whom {
                Whom::Default => None,
                Whom::Name(name) => Some(name.clone()),
            },
        })
    };
    let quotas = record.quotas.iter().map(|quota| {
        let limits = quota.limits.iter();
        let (objective, limits) = limits
            .map(|(kind, limit)| (kind.name().to_owned(), limit.value()))
            .partition(|(name, _)| QuotaKind::named(name).is_some_and(QuotaKind::is_of_objective));
        QuotaMessage {
            user: whom(&quota.entity.user),
            client: whom(&quota.entity.client),
            ip: whom(&quota.entity.ip),
            limits,
            objective,
        }
    });
    QuotasMessage {
        quotas: quotas.collect(),
    }
}

fn quota(m: QuotaMessage) -> Result<Quota, String> {
    let whom = |m: Option<WhomMessage>| m.map(|whom| whom.name.map_or(Whom::Default, Whom::Name));
    let all = m.limits.into_iter().chain(m.objective);
    let limits = all.map(|(name, value)| {
        let kind = QuotaKind::named(&name).ok_or_else(|| format!("it limits {name:?}"))?;
        let limit = Limit::new(value).ok_or_else(|| format!("its {kind} is {value}"))?;
        Ok((kind, limit))
    });
    Ok(Quota {
        entity: QuotaEntity {
            user: whom(m.user),
            client: whom(m.client),
            ip: whom(m.ip),
        },
        limits: limits.collect::<Result<_, String>>()?,
    })
}

fn users_message(record: &UsersRecord) -> UsersMessage {
    let credential = |one: &UserCredential| CredentialMessage {
        mechanism: one.mechanism.into(),
        salt: one.salt.clone(),
        iterations: one.iterations,
        stored_key: one.stored_key.clone(),
        server_key: one.server_key.clone(),
    };
    let users = record.users.iter().map(|user| UserMessage {
        name: user.name.clone(),
        credentials: user.credentials.iter().map(credential).collect(),
    });
    UsersMessage {
        users: users.collect(),
        secret: record.secret.clone(),
    }
}

fn user(m: UserMessage) -> Result<User, String> {
    let credentials = m.credentials.into_iter().map(|one| {
        let mechanism = u8::try_from(one.mechanism);
        Ok(UserCredential {
            mechanism: mechanism.map_err(|_| unknown("mechanism", one.mechanism))?,
            salt: one.salt,
            iterations: one.iterations,
            stored_key: one.stored_key,
            server_key: one.server_key,
        })
    });
    Ok(User {
        name: m.name,
        credentials: credentials.collect::<Result<_, String>>()?,
    })
}

fn rules_message(record: &RulesRecord) -> RulesMessage {
    let rules = record.rules.iter().map(|rule| RuleMessage {
        kind: rule.kind.number().into(),
        name: rule.name.clone(),
        pattern: rule.pattern.number().into(),
        principal: rule.principal.clone(),
        host: rule.host.clone(),
        operation: rule.operation.number().into(),
        permission: rule.permission.number().into(),
    });
    let roles = record.roles.iter().map(|role| RoleMessage {
        name: role.name.clone(),
        members: role.members.clone(),
    });
    RulesMessage {
        rules: rules.collect(),
        roles: roles.collect(),
    }
}

/// A rule of a newer build is an error: left out, it might be the one that denies.
fn rule(m: RuleMessage) -> Result<Rule, String> {
    Ok(Rule {
        kind: known("kind", m.kind, Kind::of_number)?,
        name: m.name,
        pattern: known("pattern", m.pattern, Pattern::of_number)?,
        principal: m.principal,
        host: m.host,
        operation: known("operation", m.operation, Operation::of_number)?,
        permission: known("permission", m.permission, Permission::of_number)?,
    })
}

fn lost_message(stretch: &Range<Ordinal>) -> LostMessage {
    LostMessage {
        from: stretch.start,
        to: stretch.end,
    }
}

fn group_message(r: &GroupRecord) -> GroupMessage {
    GroupMessage {
        generation: r.generation,
        lane: r.lane.0,
        epoch: r.epoch.0,
        state: r.state.number().into(),
        first_ordinal: r.first_ordinal,
        length: r.length,
        end_ordinal: r.end_ordinal,
        next_ordinal: r.next_ordinal,
        max_timestamp_ms: r.max_timestamp_ms,
        closed_ms: r.closed_ms,
        live_bytes: r.live_bytes,
        copies: r
            .copies
            .iter()
            .map(|c| CopyMessage {
                broker: c.broker.0,
                store_id: c.incarnation.store_id.as_bytes().to_vec(),
                boot_id: c.incarnation.boot_id.as_bytes().to_vec(),
            })
            .collect(),
        damaged: r.damaged.as_ref().map(|d| DamageMessage {
            address: d.address,
            detail: d.detail.clone(),
            lost: d.lost.stretches().iter().map(lost_message).collect(),
        }),
        file_made: r.file_made,
        restore: r.restore,
    }
}

fn stream_message(r: &StreamRecord) -> StreamMessage {
    let c = &r.config;
    let counting = |limit: u64| if c.cleanup.deletes() { limit } else { 0 };
    StreamMessage {
        name: r.name.clone(),
        config: Some(ConfigMessage {
            streamlets: c.streamlets,
            lanes: c.lanes,
            short_streamlets: c.short_streamlets,
            lane_by: c.lane_by.number().into(),
            segment_size: c.segment_size,
            segments_per_group: c.segments_per_group,
            ack: v1::AckPolicy::from(c.ack) as u32,
            retention_ms: counting(c.retention_ms),
            retention_bytes: counting(c.retention_bytes),
            group_max_age_ms: c.group_max_age_ms,
            max_batch_bytes: c.max_batch_bytes,
            timestamp_type: c.timestamp_type.number().into(),
            // A stream without copies elsewhere is stored as it always was.
            replicas: stored_count(c.replicas),
            min_insync_replicas: stored_count(c.min_insync_replicas),
            timestamp_before_max_ms: c.timestamp_before_max_ms,
            timestamp_after_max_ms: c.timestamp_after_max_ms,
            validate: c.validate.number().into(),
            compaction: compaction_message(c),
            dead_letters: c.dead_letters,
        }),
        lane_generations: r
            .lane_generations
            .iter()
            .map(|g| LaneGenerationMessage {
                lanes: g.lanes,
                short_streamlets: g.short_streamlets,
                starts: g
                    .starts
                    .iter()
                    .map(|(streamlet, lane, ordinal)| GenerationStartMessage {
                        streamlet: streamlet.0,
                        lane: lane.0,
                        ordinal: *ordinal,
                    })
                    .collect(),
            })
            .collect(),
        created_ms: r.created_ms,
        internal: r.internal,
    }
}

/// How a stream is compacted; `None` if it is not and nothing else was set.
fn compaction_message(c: &StreamConfig) -> Option<CompactionMessage> {
    let idle = |limit: u64| if c.cleanup.deletes() { 0 } else { limit };
    let message = CompactionMessage {
        cleanup: c.cleanup.number().into(),
        min_lag_ms: c.min_compaction_lag_ms,
        max_lag_ms: c.max_compaction_lag_ms,
        delete_retention_ms: c.delete_retention_ms,
        min_dirty_permille: c.min_dirty_permille,
        idle_retention_ms: idle(c.retention_ms),
        idle_retention_bytes: idle(c.retention_bytes),
    };
    let default = StreamConfig::default();
    let is_default = c.cleanup == default.cleanup
        && (c.min_compaction_lag_ms, c.max_compaction_lag_ms) == (0, 0)
        && c.delete_retention_ms == default.delete_retention_ms
        && c.min_dirty_permille == default.min_dirty_permille;
    (!is_default).then_some(message)
}

fn stream_record(id: StreamId, m: StreamMessage, revision: u64) -> Result<StreamRecord, String> {
    let c = m.config.ok_or("the stream has no settings")?;
    let compaction = c.compaction.clone().unwrap_or_else(|| {
        let default = StreamConfig::default();
        CompactionMessage {
            delete_retention_ms: default.delete_retention_ms,
            min_dirty_permille: default.min_dirty_permille,
            ..CompactionMessage::default()
        }
    });
    Ok(StreamRecord {
        id,
        name: m.name,
        config: StreamConfig {
            streamlets: c.streamlets,
            lanes: c.lanes,
            short_streamlets: c.short_streamlets,
            lane_by: known("lane_by", c.lane_by, LaneBy::of_number)?,
            segment_size: c.segment_size,
            segments_per_group: c.segments_per_group,
            ack: known("ack", c.ack, ack)?,
            retention_ms: c.retention_ms.max(compaction.idle_retention_ms),
            retention_bytes: c.retention_bytes.max(compaction.idle_retention_bytes),
            group_max_age_ms: c.group_max_age_ms,
            max_batch_bytes: c.max_batch_bytes,
            timestamp_type: known("timestamp_type", c.timestamp_type, TimestampType::of_number)?,
            replicas: c.replicas.max(1),
            min_insync_replicas: c.min_insync_replicas.max(1),
            timestamp_before_max_ms: c.timestamp_before_max_ms,
            timestamp_after_max_ms: c.timestamp_after_max_ms,
            validate: known("validate", c.validate, BatchCheck::of_number)?,
            cleanup: known("cleanup", compaction.cleanup, Cleanup::of_number)?,
            min_compaction_lag_ms: compaction.min_lag_ms,
            max_compaction_lag_ms: compaction.max_lag_ms,
            delete_retention_ms: compaction.delete_retention_ms,
            min_dirty_permille: compaction.min_dirty_permille,
            dead_letters: c.dead_letters,
        },
        lane_generations: m
            .lane_generations
            .into_iter()
            .map(|g| LaneGeneration {
                lanes: g.lanes,
                short_streamlets: g.short_streamlets,
                starts: g
                    .starts
                    .into_iter()
                    .map(|s| (StreamletId(s.streamlet), LaneId(s.lane), s.ordinal))
                    .collect(),
            })
            .collect(),
        created_ms: m.created_ms,
        internal: m.internal,
        revision,
    })
}

/// A number of copies as it is stored: 1 is left out.
fn stored_count(copies: u32) -> u32 {
    if copies == 1 { 0 } else { copies }
}

fn append(out: &mut Vec<u8>, message: impl Message) {
    out.extend_from_slice(&message.encode_to_vec());
}

fn split<'a>(key: &[u8], value: &'a [u8]) -> Result<(u64, &'a [u8]), String> {
    let Some((checksum, body)) = value.split_first_chunk::<CHECKSUM_BYTES>() else {
        return Err("the value is too short".into());
    };
    let Some((revision, message)) = body.split_first_chunk::<{ PREFIX_BYTES - CHECKSUM_BYTES }>()
    else {
        return Err("the value is too short".into());
    };
    if u32::from_le_bytes(*checksum) != value_checksum(key, body) {
        return Err("the value's checksum does not match".into());
    }
    Ok((u64::from_le_bytes(*revision), message))
}

fn value_checksum(key: &[u8], body: &[u8]) -> u32 {
    // A checksum of both checksums: joining key and body first would copy the body.
    let mut seed = [0; 8];
    seed[..4].copy_from_slice(&crc32c(key).to_le_bytes());
    seed[4..].copy_from_slice(&crc32c(body).to_le_bytes());
    crc32c(&seed)
}

fn parse<M: Message + Default>(message: &[u8]) -> Result<M, String> {
    M::decode(message).map_err(|e| format!("the record cannot be decoded: {e}"))
}

fn uuid(bytes: &[u8]) -> Result<Uuid, String> {
    Uuid::from_slice(bytes).map_err(|_| "an id is not 16 bytes long".into())
}

/// What `of` makes of a field's number, which may be a newer build's.
pub(crate) fn known<T>(
    field: &str,
    number: u32,
    of: impl Fn(u32) -> Option<T>,
) -> Result<T, String> {
    of(number).ok_or_else(|| unknown(field, number))
}

/// The policy of the number in requests, by which it is stored as well.
fn ack(number: u32) -> Option<AckPolicy> {
    let wire = v1::AckPolicy::try_from(i32::try_from(number).ok()?);
    wire.ok().map(AckPolicy::from)
}

fn unknown(field: &str, number: u32) -> String {
    format!("{field} has the unknown value {number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_records::{GroupKey, LostRecords};

    fn group() -> (Key, Record) {
        let key = GroupKey {
            stream: StreamId(Uuid::from_u128(1)),
            streamlet: StreamletId(2),
            group: GroupId(3),
        };
        let copy = Replica {
            broker: BrokerId(9),
            incarnation: Incarnation {
                store_id: Uuid::from_u128(4),
                boot_id: Uuid::from_u128(5),
            },
        };
        let record = GroupRecord {
            stream: key.stream,
            streamlet: key.streamlet,
            group: key.group,
            generation: 1,
            lane: LaneId(2),
            epoch: Epoch(3),
            state: GroupState::Closed,
            first_ordinal: Some(0),
            length: 4,
            end_ordinal: 5,
            next_ordinal: 6,
            max_timestamp_ms: -1,
            closed_ms: 7,
            live_bytes: 8,
            copies: vec![copy],
            damaged: Some(Damage {
                address: 9,
                detail: "a hole".into(),
                lost: [1..2, 4..5].into_iter().collect(),
            }),
            file_made: true,
            restore: 4,
            revision: 77,
        };
        (Key::Group(key), Record::Group(record))
    }

    #[test]
    fn a_stream_of_an_older_build_has_one_copy() {
        let mut record = StreamRecord::new("clicks", StreamConfig::default(), 5);
        let key = Key::Stream(record.id);
        let bytes = key.encode();
        let decoded = |record: &StreamRecord| {
            let value = encode_value(&bytes, &Record::Stream(record.clone()), 0);
            match decode_value(&key, &bytes, &value) {
                Ok(Record::Stream(found)) => (found.config, value.len()),
                other => panic!("{other:?}"),
            }
        };
        let (one, short) = decoded(&record);
        assert_eq!((one.replicas, one.min_insync_replicas), (1, 1));
        (record.config.replicas, record.config.min_insync_replicas) = (3, 2);
        let (three, long) = decoded(&record);
        assert_eq!((three.replicas, three.min_insync_replicas), (3, 2));
        assert_eq!(long, short + 4, "one copy takes no bytes");
        let config = &mut record.config;
        config.timestamp_before_max_ms = 1;
        config.timestamp_after_max_ms = 2;
        config.validate = BatchCheck::Full;
        config.dead_letters = true;
        let (checked, longer) = decoded(&record);
        assert_eq!(checked, record.config);
        assert_eq!(longer, long + 11, "no check takes no bytes");
        let config = &mut record.config;
        config.retention_bytes = 77;
        for cleanup in [Cleanup::Compact, Cleanup::CompactDelete, Cleanup::Delete] {
            config.cleanup = cleanup;
            config.delete_retention_ms = 0;
            config.min_compaction_lag_ms = 3;
            let message = stream_message(&StreamRecord {
                config: config.clone(),
                ..StreamRecord::new("clicks", StreamConfig::default(), 5)
            });
            // A build that does not know of compaction deletes nothing.
            let told = message.config.expect("settings").retention_bytes;
            assert_eq!(told, if cleanup.deletes() { 77 } else { 0 });
        }
        for cleanup in [Cleanup::Compact, Cleanup::CompactDelete, Cleanup::Delete] {
            record.config.cleanup = cleanup;
            assert_eq!(decoded(&record).0, record.config);
        }
    }

    #[test]
    fn lanes_in_equal_numbers_are_stored_as_by_an_older_build() {
        let mut record = StreamRecord::new("clicks", StreamConfig::default(), 5);
        (record.config.streamlets, record.config.lanes) = (4, 2);
        record.lane_generations[0].lanes = 2;
        let key = Key::Stream(record.id);
        let bytes = key.encode();
        let encoded = |record: &StreamRecord| {
            let value = encode_value(&bytes, &Record::Stream(record.clone()), 0);
            assert_eq!(
                decode_value(&key, &bytes, &value),
                Ok(Record::Stream(record.clone()))
            );
            value.len()
        };
        let even = encoded(&record);
        record.config.short_streamlets = 2;
        record.lane_generations[0].short_streamlets = 2;
        assert_eq!(encoded(&record), even + 4, "equal numbers take no bytes");
        assert_eq!(record.config.partitions(), 6);
    }

    #[test]
    fn a_record_round_trips_with_its_revision() {
        let (key, record) = group();
        let bytes = key.encode();
        let value = encode_value(&bytes, &record, 77);
        assert_eq!(decode_value(&key, &bytes, &value), Ok(record));
        assert_eq!(decode_revision(&bytes, &value), Ok(77));
    }

    #[test]
    fn damage_of_an_older_build_is_one_place_and_what_lies_behind_it() {
        // An address and a text.
        let stored = [&[8, 9, 0x12, 6], &b"a hole"[..]].concat();
        let message = DamageMessage::decode(&stored[..]).expect("it is one");
        let (key, record) = group();
        let Record::Group(mut record) = record else {
            panic!("it is a group");
        };
        let damaged = record.damaged.as_mut().expect("it is damaged");
        damaged.lost = LostRecords::default();
        // What has no list is stored as before.
        assert_eq!(group_message(&record).damaged, Some(message));
        let bytes = key.encode();
        let value = encode_value(&bytes, &Record::Group(record.clone()), 77);
        let read = decode_value(&key, &bytes, &value);
        assert_eq!(read, Ok(Record::Group(record.clone())));
        let damaged = record.damaged.expect("it is damaged");
        assert!(damaged.covers(9, &(3..4)) && damaged.covers(100, &(4..5)));
        assert!(!damaged.covers(8, &(2..3)));
    }

    #[test]
    fn flipped_bits_cuts_and_foreign_keys_are_refused() {
        let (key, record) = group();
        let bytes = key.encode();
        let value = encode_value(&bytes, &record, 77);
        for at in 0..value.len() {
            let mut damaged = value.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(decode_value(&key, &bytes, &damaged).is_err(), "byte {at}");
            assert!(decode_value(&key, &bytes, &value[..at]).is_err());
        }
        let other = Key::Broker(1);
        assert!(decode_value(&other, &other.encode(), &value).is_err());
    }

    #[test]
    fn fields_of_a_newer_build_are_skipped_and_unknown_states_refused() {
        let (key, record) = group();
        let bytes = key.encode();
        let extend = |field: &[u8]| {
            let mut value = encode_value(&bytes, &record, 77);
            value.extend_from_slice(field);
            let checksum = value_checksum(&bytes, &value[CHECKSUM_BYTES..]);
            value[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
            decode_value(&key, &bytes, &value)
        };
        // Tag 1000, of which nothing is known.
        assert_eq!(extend(&[0xc0, 0x3e, 5]), Ok(record.clone()));
        // Tag 4, the state, once more; the last one counts.
        let refused = extend(&[0x20, 9]).unwrap_err();
        assert!(refused.contains("state has the unknown value 9"));
    }
}
