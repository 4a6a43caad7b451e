//! Committing, reading and forgetting offsets.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::audit::Change;
use kera_coordinator::classic::{
    CommitOffsets, CommittedOffset, DeleteOffsets, Fault, FetchOffsets, OffsetToCommit,
    OffsetsOfTopic, Reply, Request,
};
use kera_protocol::ids::StreamId;
use uuid::Uuid;

use super::{ask, mismatch, owned, result_code, text, try_ask};
use crate::access;
use crate::context::Ctx;
use crate::errors::NONE;
use crate::topic;

/// Partitions of a topic with Kafka's number for each, or none while the coordinator has it.
type Answers = Vec<(i32, Option<i16>)>;

/// OffsetCommit.
pub(crate) async fn offset_commit(
    ctx: &Ctx,
    _version: i16,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let mut commit = CommitOffsets {
        group: request.group_id.to_string(),
        client_host: super::host(ctx),
        member: request.member_id.to_string(),
        instance: owned(&request.group_instance_id),
        generation: request.generation_id_or_member_epoch,
        retention_ms: u64::try_from(request.retention_time_ms).ok(),
        offsets: Vec::new(),
        transaction: None,
    };
    let denied = !ctx.may_group(&request.group_id);
    // Per topic and partition: the answer, or none while the coordinator has it.
    let mut topics: Vec<(TopicName, Answers)> = Vec::new();
    for topic in request.topics {
        let refused = match denied {
            true => Some(access::group_code()),
            false if ctx.may_topic(&topic.name) => None,
            false => Some(access::topic_code()),
        };
        let stream = topic::named(&ctx.shared, &topic.name);
        let partitions = topic.partitions.into_iter().map(|wanted| {
            let partition = wanted.partition_index;
            if refused.is_some() {
                return (partition, refused);
            }
            let Some(stream) = stream
                .as_ref()
                .filter(|stream| topic::lane_of(stream, partition).is_some())
            else {
                let unknown = ResponseError::UnknownTopicOrPartition.code();
                return (partition, Some(unknown));
            };
            commit.offsets.push(OffsetToCommit {
                stream: stream.id(),
                partition: partition.unsigned_abs(),
                // Negative ones too: some clients name the beginning or the end by them.
                offset: wanted.committed_offset,
                leader_epoch: wanted.committed_leader_epoch,
                metadata: owned(&wanted.committed_metadata).unwrap_or_default(),
            });
            (partition, None)
        });
        let partitions = partitions.collect();
        topics.push((topic.name, partitions));
    }
    let mut results = match denied {
        true => Err(access::group_code()),
        false => self::commit(ctx, commit).await.map(Vec::into_iter),
    };
    let topics = topics.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|(partition, known)| {
            let code = match (&mut results, known) {
                (_, Some(code)) => code,
                (Ok(results), None) => results.next().unwrap_or(NONE),
                (Err(code), None) => *code,
            };
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition)
                .with_error_code(code)
        });
        OffsetCommitResponseTopic::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

/// Puts a commit to its coordinator: Kafka's number for each offset, in their order.
///
/// # Errors
/// Kafka's number for the commit as a whole.
pub(crate) async fn commit(ctx: &Ctx, commit: CommitOffsets) -> Result<Vec<i16>, i16> {
    let group = commit.group.clone();
    let results = match ask(ctx, Request::Commit(commit)).await? {
        Reply::Committed(results) => results,
        other => return Err(mismatch(&other)),
    };
    let full = |result: &&Result<(), Fault>| matches!(result, Err(Fault::TooManyOffsets));
    let refused = results.iter().filter(full).count();
    if refused > 0 {
        tell_full(ctx, &group, refused);
    }
    Ok(results.iter().map(result_code).collect())
}

/// Clients are told INVALID_COMMIT_OFFSET_SIZE, which names neither the limit nor what to do.
fn tell_full(ctx: &Ctx, group: &str, refused: usize) {
    let told = ctx.shared.full_offsets.lock().due(Instant::now());
    if let Some(others) = told {
        let limits = kera_coordinator::classic::Limits::default();
        tracing::warn!(
            group,
            refused,
            others,
            "offsets are not committed: a group keeps at most {} of them and {} MiB with their metadata, and all groups of a coordinator at most consumers.max_group_bytes; commit less metadata, delete groups that are not used, or raise that setting",
            limits.offsets,
            limits.group_offset_bytes >> 20
        );
    }
}

/// What OffsetFetch says of a partition.
struct Found {
    code: i16,
    partition: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: StrBytes,
}

impl Found {
    fn new(partition: i32, offset: Option<CommittedOffset>) -> Self {
        match offset {
            Some(offset) if offset.unstable => Self {
                code: ResponseError::UnstableOffsetCommit.code(),
                ..Self::new(partition, None)
            },
            Some(offset) => Self {
                code: NONE,
                partition,
                offset: offset.offset,
                leader_epoch: offset.leader_epoch,
                metadata: text(offset.metadata),
            },
            None => Self {
                code: NONE,
                partition,
                offset: -1,
                leader_epoch: -1,
                metadata: StrBytes::new(),
            },
        }
    }
}

/// What the answer takes for a partition, beside its metadata.
const FOUND_BYTES: usize = 24;

/// Topics and partitions asked for.
type Wanted = Vec<(TopicName, Vec<i32>)>;
type FoundTopics = Vec<(TopicName, Vec<Found>)>;

/// OffsetFetch: of one group, or from version 8 on of several.
pub(crate) async fn offset_fetch(
    ctx: &Ctx,
    version: i16,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    let response = OffsetFetchResponse::default();
    if version >= 8 {
        let mut groups = Vec::with_capacity(request.groups.len());
        // Asked for twice it is answered once: an answer grows with offsets, not with requests.
        let mut seen = HashSet::new();
        for group in request.groups {
            if !seen.insert(group.group_id.clone()) {
                continue;
            }
            let wanted = group.topics.map(|topics| {
                let topics = topics.into_iter();
                topics.map(|t| (t.name, t.partition_indexes)).collect()
            });
            let answer = OffsetFetchResponseGroup::default();
            // Version 9 names who asks.
            let member = group.member_id.as_ref();
            let member = member.map(|id| (id.to_string(), group.member_epoch));
            let member = member.filter(|(id, epoch)| !id.is_empty() || *epoch >= 0);
            let who = Asker {
                member,
                stable: request.require_stable,
            };
            let answer = match fetch_group(ctx, group.group_id.to_string(), wanted, who).await {
                Ok(found) => answer.with_topics(topics_since_8(found)),
                Err(code) => answer.with_error_code(code),
            };
            groups.push(answer.with_group_id(group.group_id));
        }
        return response.with_groups(groups);
    }
    // Version 1 cannot ask for everything.
    let wanted: Option<Wanted> = request.topics.map(|topics| {
        let topics = topics.into_iter();
        topics.map(|t| (t.name, t.partition_indexes)).collect()
    });
    let who = Asker {
        member: None,
        stable: request.require_stable,
    };
    match fetch_group(ctx, request.group_id.to_string(), wanted.clone(), who).await {
        Ok(found) => response.with_topics(topics_before_8(found, version, NONE)),
        Err(code) if version >= 2 => response.with_error_code(code),
        Err(code) => {
            let nothing = wanted.unwrap_or_default().into_iter();
            let nothing = nothing.map(|(name, partitions)| {
                let partitions = partitions.into_iter();
                (name, partitions.map(|p| Found::new(p, None)).collect())
            });
            response.with_topics(topics_before_8(nothing.collect(), version, code))
        }
    }
}

/// Who asks for offsets, and for which.
struct Asker {
    /// Id and epoch of a member of the consumer protocol.
    member: Option<(String, i32)>,
    /// Only those that no open transaction changes.
    stable: bool,
}

async fn fetch_group(
    ctx: &Ctx,
    group: String,
    wanted: Option<Wanted>,
    who: Asker,
) -> Result<FoundTopics, i16> {
    if !ctx.may_group(&group) {
        return Err(access::group_code());
    }
    let wanted = wanted.map(without_doubles);
    let asked = wanted
        .iter()
        .flatten()
        .map(|(name, partitions)| name.len() + partitions.len() * FOUND_BYTES);
    if !ctx.has_room_for(asked.sum()).await {
        return Err(ResponseError::PolicyViolation.code());
    }
    // A topic that does not exist has no offset; that is no error here, as with Kafka.
    let partitions = wanted.as_ref().map(|topics| {
        let known = topics.iter().filter_map(|(name, partitions)| {
            let seen = Some(name).filter(|name| ctx.may_topic(name))?;
            let id = topic::named(&ctx.shared, seen)?.id();
            let partitions = partitions.iter();
            Some(partitions.filter_map(move |p| Some((id, u32::try_from(*p).ok()?))))
        });
        known.flatten().collect()
    });
    let max_bytes = ctx.room_left();
    let fetch = FetchOffsets {
        group,
        partitions,
        max_bytes,
        require_stable: who.stable,
        member: who.member,
    };
    let reply = ask(ctx, Request::Fetch(fetch)).await?;
    let Reply::Offsets(offsets) = reply else {
        return Err(mismatch(&reply));
    };
    let found = offsets.iter().filter_map(|(_, _, offset)| offset.as_ref());
    let bytes = found.map(|offset| FOUND_BYTES + offset.metadata.len());
    if !ctx.has_room_for(bytes.sum()).await {
        return Err(ResponseError::PolicyViolation.code());
    }
    let mut by_stream: BTreeMap<StreamId, BTreeMap<u32, CommittedOffset>> = BTreeMap::new();
    for (stream, partition, offset) in offsets {
        if let Some(offset) = offset {
            by_stream
                .entry(stream)
                .or_default()
                .insert(partition, offset);
        }
    }
    let Some(wanted) = wanted else {
        let all = by_stream.into_iter().filter_map(|(id, offsets)| {
            let stream = ctx.shared.data.catalog.get(id)?;
            let stream = Some(stream).filter(|stream| ctx.sees_topic(&stream.name()))?;
            let offsets = offsets.into_iter();
            let found = offsets.filter_map(|(partition, offset)| {
                Some(Found::new(i32::try_from(partition).ok()?, Some(offset)))
            });
            Some((TopicName(text(stream.name())), found.collect()))
        });
        return Ok(all.collect());
    };
    let answers = wanted.into_iter().map(|(name, partitions)| {
        let code = match ctx.sees_topic(&name) {
            true => NONE,
            false => access::topic_code(),
        };
        let id = topic::named(&ctx.shared, &name).map(|stream| stream.id());
        let offsets = id.and_then(|id| by_stream.get(&id));
        let found = partitions.into_iter().map(|partition| {
            let offset = u32::try_from(partition)
                .ok()
                .and_then(|partition| offsets?.get(&partition).cloned());
            let found = Found::new(partition, offset);
            match code {
                NONE => found,
                code => Found { code, ..found },
            }
        });
        (name, found.collect())
    });
    Ok(answers.collect())
}

/// Each topic and each partition once, however often they are asked for.
fn without_doubles(wanted: Wanted) -> Wanted {
    let mut seen: HashSet<(TopicName, i32)> = HashSet::new();
    let topics = wanted.into_iter().map(|(name, mut partitions)| {
        partitions.retain(|partition| seen.insert((name.clone(), *partition)));
        (name, partitions)
    });
    topics.collect()
}

fn topics_since_8(topics: FoundTopics) -> Vec<OffsetFetchResponseTopics> {
    let topics = topics.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|found| {
            OffsetFetchResponsePartitions::default()
                .with_partition_index(found.partition)
                .with_committed_offset(found.offset)
                .with_committed_leader_epoch(found.leader_epoch)
                .with_metadata(Some(found.metadata))
                .with_error_code(found.code)
        });
        OffsetFetchResponseTopics::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    topics.collect()
}

fn topics_before_8(topics: FoundTopics, version: i16, code: i16) -> Vec<OffsetFetchResponseTopic> {
    let topics = topics.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|found| {
            let partition = OffsetFetchResponsePartition::default()
                .with_partition_index(found.partition)
                .with_committed_offset(found.offset)
                .with_metadata(Some(found.metadata))
                .with_error_code(if code == NONE { found.code } else { code });
            if version >= 5 {
                partition.with_committed_leader_epoch(found.leader_epoch)
            } else {
                partition
            }
        });
        OffsetFetchResponseTopic::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    topics.collect()
}

/// OffsetDelete.
pub(crate) async fn offset_delete(
    ctx: &Ctx,
    _version: i16,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    if !ctx.may_group(&request.group_id) {
        return OffsetDeleteResponse::default().with_error_code(access::group_code());
    }
    let mut topics = Vec::new();
    // Per topic: partitions with their answer, or none while the coordinator has them.
    let mut answers: Vec<(TopicName, Answers)> = Vec::new();
    for wanted in request.topics {
        let denied = !ctx.may_topic(&wanted.name);
        let stream = topic::named(&ctx.shared, &wanted.name);
        let mut known = Vec::new();
        let partitions = wanted.partitions.iter().map(|partition| {
            let partition = partition.partition_index;
            if denied {
                return (partition, Some(access::topic_code()));
            }
            let exists = stream
                .as_ref()
                .is_some_and(|stream| topic::lane_of(stream, partition).is_some());
            if exists {
                known.push(partition.unsigned_abs());
                return (partition, None);
            }
            let unknown = ResponseError::UnknownTopicOrPartition.code();
            (partition, Some(unknown))
        });
        let partitions = partitions.collect();
        topics.push(OffsetsOfTopic {
            name: wanted.name.to_string(),
            stream: stream.map_or(StreamId(Uuid::nil()), |stream| stream.id()),
            partitions: known,
        });
        answers.push((wanted.name, partitions));
    }
    let group = request.group_id.to_string();
    let response = OffsetDeleteResponse::default();
    // Of each topic that something is asked of: the others are refused above.
    let attempts = topics.iter().map(|topic| {
        let detail = format!("{} {:?}", topic.name, topic.partitions);
        let change = Change::new("delete_offsets", "group", &group, detail);
        (!topic.partitions.is_empty()).then(|| ctx.attempt(change))
    });
    let attempts: Vec<_> = attempts.collect();
    let asked = Request::DeleteOffsets(DeleteOffsets { group, topics });
    let results = match try_ask(ctx, asked).await {
        Ok(Reply::OffsetsDeleted(results)) => results,
        Ok(other) => return response.with_error_code(mismatch(&other)),
        Err(refusal) => {
            for attempt in attempts.into_iter().flatten() {
                refusal.end(attempt);
            }
            return response.with_error_code(refusal.code);
        }
    };
    for (attempt, results) in attempts.into_iter().zip(&results) {
        let Some(attempt) = attempt else { continue };
        match results.iter().find_map(|result| result.as_ref().err()) {
            None => attempt.made(),
            Some(fault) if results.iter().all(Result::is_err) => attempt.failed(&fault.to_string()),
            Some(fault) => attempt.may_be_made(&format!("not of all partitions: {fault}")),
        }
    }
    let topics = answers
        .into_iter()
        .zip(results)
        .map(|((name, partitions), results)| {
            let mut results = results.iter();
            let partitions = partitions.into_iter().map(|(partition, known)| {
                let code = known.unwrap_or_else(|| results.next().map_or(NONE, result_code));
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(partition)
                    .with_error_code(code)
            });
            OffsetDeleteResponseTopic::default()
                .with_name(name)
                .with_partitions(partitions.collect())
        });
    response.with_topics(topics.collect())
}
