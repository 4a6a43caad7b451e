//! CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteTopicsRequest, DeleteTopicsResponse, TopicName,
};
use kera_broker::admin;
use kera_broker::audit::{Change, settings_text};
use kera_broker::data::catalog::Stream;
use kera_metadata::StreamConfig;
use kera_metadata::access::{Kind, Operation};
use kera_metadata::config::MAX_LANES;
use kera_protocol::v1;
use uuid::Uuid;

use crate::access;
use crate::brokers;
use crate::context::Ctx;
use crate::refusal::{Refusal, doubled, short, text};
use crate::topic_config::{Wanted, known};
use crate::{configs, topic};

/// First version of CreateTopics whose answer tells the topic's settings.
const SETTINGS_FROM: i16 = 5;
/// First version of CreateTopics whose answer tells the topic's id.
const IDS_FROM: i16 = 7;
/// First version of DeleteTopics that names topics by name or id.
const BY_ID_FROM: i16 = 6;
/// First version of DeleteTopics whose answer has texts.
const TEXTS_FROM: i16 = 5;

fn named_twice(name: &str) -> Refusal {
    let text = format!("topic \"{}\" is named twice in one request", short(name));
    Refusal::new(ResponseError::InvalidRequest, text)
}

/// Creates topics, each by itself.
pub(crate) async fn create_topics(
    ctx: &Ctx,
    version: i16,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let doubled = doubled(request.topics.iter().map(|t| t.name.as_str()));
    let mut results = Vec::with_capacity(request.topics.len());
    let mut told = std::collections::HashSet::new();
    for asked in &request.topics {
        let name = asked.name.as_str();
        let outcome = if doubled.contains(name) {
            if !told.insert(name) {
                continue;
            }
            Err(named_twice(name))
        } else {
            create_one(ctx, asked, request.validate_only).await
        };
        let mut result = created(ctx, version, asked, outcome);
        if !ctx.has_room_for_item(&result, version).await && result.configs.is_some() {
            // The topic was created all the same; its settings can be asked for.
            result.configs = None;
            result.topic_config_error_code = ResponseError::PolicyViolation.code();
        }
        results.push(result);
    }
    CreateTopicsResponse::default()
        .with_throttle_time_ms(ctx.room.throttle_ms())
        .with_topics(results)
}

fn created(
    ctx: &Ctx,
    version: i16,
    asked: &CreatableTopic,
    outcome: Result<(Uuid, StreamConfig), Refusal>,
) -> CreatableTopicResult {
    let mut result = CreatableTopicResult::default()
        .with_name(asked.name.clone())
        .with_error_message(None);
    match outcome {
        Err(refusal) => {
            result.error_code = refusal.code;
            result.error_message = Some(refusal.text());
        }
        Ok((id, config)) => {
            if version >= IDS_FROM {
                result.topic_id = id;
            }
            let sees = ctx.may_also(Operation::DescribeConfigs, (Kind::Stream, &asked.name));
            if version >= SETTINGS_FROM && !sees {
                result.topic_config_error_code = access::topic_code();
            } else if version >= SETTINGS_FROM {
                result.num_partitions = i32::try_from(config.partitions()).unwrap_or(i32::MAX);
                result.replication_factor = i16::try_from(config.replicas).unwrap_or(i16::MAX);
                result.configs = Some(configs::of_created(ctx, &config));
            }
        }
    }
    result
}

/// Creates a topic, or only finds out whether it could be created.
async fn create_one(
    ctx: &Ctx,
    asked: &CreatableTopic,
    validate_only: bool,
) -> Result<(Uuid, StreamConfig), Refusal> {
    let name = asked.name.as_str();
    if !ctx.may_create(name) {
        return Err(access::no_topic());
    }
    let partitions = partitions_asked(ctx, asked)?;
    let mut wanted = Wanted::of_replicas(replicas_asked(ctx, asked)?);
    for config in &asked.configs {
        let invalid = |text| Refusal::new(ResponseError::InvalidConfig, text);
        let known = known(&config.name).map_err(invalid)?;
        let Some(value) = &config.value else {
            return Err(invalid(format!("{} has no value", known.name)));
        };
        wanted
            .set(known, value, configs::flush_interval(ctx))
            .map_err(invalid)?;
    }
    if validate_only {
        let wire = check(ctx, name, partitions, &wanted)?;
        let config = admin::new_config(&ctx.shared, name, &wire).map_err(Refusal::of_settings)?;
        return Ok((Uuid::nil(), config));
    }
    let stream = create(ctx, name, partitions, &wanted).await?;
    let config = stream.record.load().config.clone();
    Ok((topic::id_of(&stream), config))
}

/// Creates the stream of a topic.
///
/// # Errors
/// Why it cannot be.
pub(crate) async fn create(
    ctx: &Ctx,
    name: &str,
    partitions: i32,
    wanted: &Wanted,
) -> Result<Arc<Stream>, Refusal> {
    let wire = check(ctx, name, partitions, wanted)?;
    let config = admin::new_config(&ctx.shared, name, &wire).map_err(Refusal::of_settings)?;
    charge(ctx, config.partitions())?;
    let change = Change::new("create_stream", "stream", name, settings_text(&wire));
    let attempt = ctx.attempt(change);
    let created = admin::create_stream(&ctx.shared, name, &wire).await;
    attempt.end(created.as_ref());
    created.map_err(Refusal::of_settings)
}

/// What is wrong with a topic to create, but for what the stream's own rules say.
fn check(
    ctx: &Ctx,
    name: &str,
    partitions: i32,
    wanted: &Wanted,
) -> Result<v1::StreamConfig, Refusal> {
    if topic::is_kafkas_own(name) {
        let text = format!("topic \"{name}\" is Kafka's own; clients cannot create it");
        return Err(Refusal::new(ResponseError::InvalidRequest, text));
    }
    // As in Kafka, where such names would become the same name of a metric.
    let like = name.replace('.', "_");
    if topic::named(&ctx.shared, name).is_none()
        && name.contains(['.', '_'])
        && let Some(other) = topic::visible(&ctx.shared)
            .iter()
            .map(|s| s.name())
            .find(|other| other.contains(['.', '_']) && other.replace('.', "_") == like)
    {
        let text = format!(
            "topic \"{}\" collides with topic \"{other}\": '.' and '_' count as one",
            short(name)
        );
        return Err(Refusal::new(ResponseError::InvalidTopicException, text));
    }
    let count = u32::try_from(partitions).unwrap_or(0);
    if !(1..=MAX_LANES).contains(&count) {
        let text = format!("a topic has 1 to {MAX_LANES} partitions, not {partitions}");
        return Err(Refusal::new(ResponseError::InvalidPartitions, text));
    }
    wanted
        .for_creation(count)
        .map_err(|text| Refusal::new(ResponseError::InvalidConfig, text))
}

/// How many partitions a topic is to have, by number or by the assignments of its replicas.
fn partitions_asked(ctx: &Ctx, asked: &CreatableTopic) -> Result<i32, Refusal> {
    if !asked.assignments.is_empty() {
        if asked.num_partitions != -1 || asked.replication_factor != -1 {
            return Err(Refusal::new(
                ResponseError::InvalidRequest,
                "replicas are assigned, so number of partitions and replication factor must be -1",
            ));
        }
        return assigned(ctx, &asked.assignments);
    }
    Ok(match asked.num_partitions {
        -1 => ctx.default_partitions(),
        count => count,
    })
}

/// How many replicas a topic is to have; `None` leaves it to the default, which is what a client asks for with -1.
fn replicas_asked(ctx: &Ctx, asked: &CreatableTopic) -> Result<Option<u32>, Refusal> {
    let factor = asked.replication_factor;
    let possible = match (&ctx.shared.clustered, u32::try_from(factor)) {
        (_, Err(_)) if factor == -1 => return Ok(None),
        (_, Ok(1)) => Ok(1),
        (Some(clustered), Ok(replicas)) if replicas > 0 => {
            clustered.peers.check_copies(replicas).map(|()| replicas)
        }
        (Some(_), _) => Err("use -1 for the brokers' default, or 1 and more".to_owned()),
        (None, _) => Err("this broker works alone, use 1 or -1".to_owned()),
    };
    possible.map(Some).map_err(|why| {
        let text = format!("replication factor {factor} is not possible: {why}");
        Refusal::new(ResponseError::InvalidReplicationFactor, text)
    })
}

fn assigned(ctx: &Ctx, assignments: &[CreatableReplicaAssignment]) -> Result<i32, Refusal> {
    let invalid = |text: String| Refusal::new(ResponseError::InvalidReplicaAssignment, text);
    let mut indexes: Vec<i32> = assignments.iter().map(|a| a.partition_index).collect();
    indexes.sort_unstable();
    if !indexes.iter().copied().eq(0..indexes.len() as i32) {
        let text = "the partitions with assigned replicas must be 0, 1, 2 and so on, each once";
        return Err(invalid(text.to_owned()));
    }
    chosen_here(ctx)?;
    let me = brokers::me(ctx);
    if let Some(wrong) = assignments.iter().find(|a| a.broker_ids != [me]) {
        return Err(invalid(format!(
            "partition {} is assigned to other brokers than {}, which is the only one",
            wrong.partition_index, me.0
        )));
    }
    Ok(indexes.len() as i32)
}

/// Deletes topics by name or id, each by itself.
pub(crate) async fn delete_topics(
    ctx: &Ctx,
    version: i16,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let mut asked: Vec<(Option<TopicName>, Uuid)> = Vec::new();
    if version >= BY_ID_FROM {
        asked.extend(request.topics.into_iter().map(|t| (t.name, t.topic_id)));
    } else {
        let names = request.topic_names.into_iter();
        asked.extend(names.map(|name| (Some(name), Uuid::nil())));
    }
    let names = asked.iter().filter_map(|(name, _)| name.as_ref());
    let doubled = doubled(names.map(|name| name.as_str()));
    let mut responses = Vec::with_capacity(asked.len());
    for (name, id) in asked {
        ctx.pause().await;
        let mut result = DeletableTopicResult::default().with_name(name.clone());
        if version >= BY_ID_FROM {
            result.topic_id = id;
        }
        let twice = name.as_ref().filter(|n| doubled.contains(n.as_str()));
        let outcome = match twice {
            None => delete_one(ctx, name.as_ref(), id).await,
            Some(name) => Err(named_twice(name)),
        };
        match outcome {
            Ok(stream) => {
                result.name = Some(TopicName(text(stream.name())));
                if version >= BY_ID_FROM {
                    result.topic_id = topic::id_of(&stream);
                }
            }
            Err(refusal) => {
                result.error_code = refusal.code;
                if version >= TEXTS_FROM {
                    result.error_message = Some(refusal.text());
                }
            }
        }
        responses.push(result);
    }
    DeleteTopicsResponse::default()
        .with_throttle_time_ms(ctx.room.throttle_ms())
        .with_responses(responses)
}

async fn delete_one(ctx: &Ctx, name: Option<&TopicName>, id: Uuid) -> Result<Arc<Stream>, Refusal> {
    let stream = match name {
        Some(_) if !id.is_nil() => {
            return Err(Refusal::new(
                ResponseError::InvalidRequest,
                "a topic to delete is named by its name or by its id, not by both",
            ));
        }
        Some(name) => {
            ctx.check_topic(name)?;
            topic::named(&ctx.shared, name).ok_or_else(|| Refusal::no_topic(name))?
        }
        None => topic::with_id(&ctx.shared, id).ok_or_else(|| {
            let text = format!("no topic has the id {id}");
            Refusal::new(ResponseError::UnknownTopicId, text)
        })?,
    };
    ctx.check_topic(&stream.name())?;
    charge(ctx, stream.record.load().config.partitions())?;
    let attempt = ctx.attempt(Change::new("delete_stream", "stream", stream.name(), ""));
    let deleted = admin::delete_stream(&ctx.shared, &stream).await;
    attempt.end(deleted.as_ref());
    match deleted {
        Ok(()) => Ok(stream),
        // Another client was faster.
        Err(_) if ctx.shared.data.catalog.get(stream.id()).is_none() => {
            Err(Refusal::no_topic(&stream.name()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Adds partitions, any number of them: lanes, one streamlet after the other.
pub(crate) async fn create_partitions(
    ctx: &Ctx,
    _version: i16,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let doubled = doubled(request.topics.iter().map(|t| t.name.as_str()));
    let mut results = Vec::with_capacity(request.topics.len());
    let mut told = std::collections::HashSet::new();
    for asked in &request.topics {
        ctx.pause().await;
        let name = asked.name.as_str();
        let outcome = if doubled.contains(name) {
            if !told.insert(name) {
                continue;
            }
            Err(named_twice(name))
        } else {
            grow(ctx, asked, request.validate_only).await
        };
        let mut result = CreatePartitionsTopicResult::default()
            .with_name(asked.name.clone())
            .with_error_message(None);
        if let Err(refusal) = outcome {
            result.error_code = refusal.code;
            result.error_message = Some(refusal.text());
        }
        results.push(result);
    }
    CreatePartitionsResponse::default()
        .with_throttle_time_ms(ctx.room.throttle_ms())
        .with_results(results)
}

async fn grow(
    ctx: &Ctx,
    asked: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<(), Refusal> {
    let name = asked.name.as_str();
    ctx.check_topic(name)?;
    let stream = topic::named(&ctx.shared, name).ok_or_else(|| Refusal::no_topic(name))?;
    let config = stream.record.load().config.clone();
    let present = config.partitions();
    let wanted = more_than(name, present, asked.count)?;
    if let Some(assignments) = &asked.assignments {
        assigned_alike(ctx, assignments, i64::from(wanted) - i64::from(present))?;
    }
    let wire = v1::StreamConfig {
        partitions: Some(wanted),
        // What each partition keeps stays the same.
        retention_bytes: (config.retention_bytes > 0).then(|| {
            let all = u128::from(config.retention_bytes) * u128::from(wanted);
            let all = all.div_ceil(present.max(1).into());
            u64::try_from(all).unwrap_or(u64::MAX).min(i64::MAX as u64)
        }),
        ..v1::StreamConfig::default()
    };
    admin::altered_config(&ctx.shared, &stream, &wire)?;
    if validate_only {
        return Ok(());
    }
    charge(ctx, wanted - present)?;
    let change = Change::new("alter_stream", "stream", name, settings_text(&wire));
    let attempt = ctx.attempt(change);
    let altered = admin::alter_stream(&ctx.shared, &stream, &wire).await;
    attempt.end(altered.as_ref());
    altered?;
    Ok(())
}

/// Charges the client with partitions that it is about to create or delete.
///
/// # Errors
/// It has used up its quota.
fn charge(ctx: &Ctx, partitions: u32) -> Result<(), Refusal> {
    let client = ctx.client_id.as_deref().unwrap_or_default();
    let charged = ctx.shared.quotas.mutate(&ctx.principal, client, partitions);
    charged.map_err(|wait| {
        ctx.room.note_throttle(wait);
        let text = format!(
            "the quota controller_mutation_rate is used up for {} ms",
            wait.as_millis()
        );
        Refusal::new(ResponseError::ThrottlingQuotaExceeded, text)
    })
}

/// The number of partitions asked for, if it is more than there are and a stream can have it.
fn more_than(name: &str, present: u32, count: i32) -> Result<u32, Refusal> {
    let invalid = |text: String| Err(Refusal::new(ResponseError::InvalidPartitions, text));
    match u32::try_from(count).unwrap_or(0) {
        wanted if wanted <= present => invalid(format!(
            "topic \"{name}\" has {present} partitions; {count} is not more"
        )),
        wanted if wanted > MAX_LANES => invalid(format!(
            "topic \"{name}\" cannot have {wanted} partitions: the most is {MAX_LANES}"
        )),
        wanted => Ok(wanted),
    }
}

/// Refuses assignments in a cluster: its brokers choose who owns a partition, and change that.
fn chosen_here(ctx: &Ctx) -> Result<(), Refusal> {
    if !ctx.shared.data.directory.is_shared() {
        return Ok(());
    }
    let text = "the cluster chooses its partitions' brokers: give a number of partitions and a replication factor instead of assignments";
    Err(Refusal::new(ResponseError::InvalidReplicaAssignment, text))
}

fn assigned_alike(
    ctx: &Ctx,
    assignments: &[CreatePartitionsAssignment],
    added: i64,
) -> Result<(), Refusal> {
    chosen_here(ctx)?;
    let me = brokers::me(ctx);
    let fits =
        assignments.len() as i64 == added && assignments.iter().all(|a| a.broker_ids == [me]);
    if fits {
        return Ok(());
    }
    let text = format!(
        "the assignments must name broker {} for each of the {added} partitions that are added",
        me.0
    );
    Err(Refusal::new(ResponseError::InvalidReplicaAssignment, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_grow_to_any_larger_number() {
        for count in [5, 6, 7, 13, 65_536] {
            assert_eq!(more_than("t", 4, count).ok(), u32::try_from(count).ok());
        }
        for (count, expected) in [
            (4, "4 is not more"),
            (3, "3 is not more"),
            (0, "0 is not more"),
            (-1, "-1 is not more"),
            (65_537, "the most is 65536"),
        ] {
            let refusal = more_than("t", 4, count).expect_err("refused");
            assert_eq!(refusal.code, ResponseError::InvalidPartitions.code());
            assert!(refusal.message.ends_with(expected), "{}", refusal.message);
        }
    }
}
