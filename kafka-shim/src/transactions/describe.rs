//! DescribeTransactions and ListTransactions.

use std::collections::BTreeMap;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_transactions_response::{
    TopicData, TransactionState as Described,
};
use kafka_protocol::messages::list_transactions_response::TransactionState as Listed;
use kafka_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, ListTransactionsRequest,
    ListTransactionsResponse, ProducerId, TopicName, TransactionalId,
};
use kera_broker::transactions;
use kera_coordinator::transactions::{Described as Known, Filter, Part, Reply, Request, Stage};

use super::{Knows, ask, fault_error, mismatch};
use crate::context::Ctx;
use crate::refusal::text;

/// Bytes of an answer about one transactional id beside its name, and about one partition, generously.
const ID_BYTES: usize = 96;
const PARTITION_BYTES: usize = 48;
/// What a pattern of ids may take.
const PATTERN_BYTES: usize = 1 << 20;

/// DescribeTransactions: the coordinator of each id knows it.
pub(crate) async fn describe_transactions(
    ctx: &Ctx,
    _version: i16,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    let mut states = Vec::with_capacity(request.transactional_ids.len());
    for id in request.transactional_ids {
        ctx.pause().await;
        let known = async {
            ctx.check_id(&id)?;
            match ask(ctx, Request::Describe(id.to_string())).await? {
                Ok(Reply::Described(known)) => Ok(known),
                Ok(other) => Err(mismatch(&other)),
                Err(fault) => Err(fault_error(fault, Knows::ALL)),
            }
        };
        let known = known.await;
        let parts = known.as_ref().map_or(0, |known| known.parts.len());
        let bytes = ID_BYTES + id.len() + parts * PARTITION_BYTES;
        let state = match (known, ctx.has_room_for(bytes).await) {
            (Ok(known), true) => described(ctx, known),
            (Ok(_), false) => failed(ResponseError::PolicyViolation),
            (Err(error), _) => failed(error),
        };
        states.push(state.with_transactional_id(id));
    }
    DescribeTransactionsResponse::default().with_transaction_states(states)
}

fn failed(error: ResponseError) -> Described {
    Described::default()
        .with_error_code(error.code())
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
        .with_transaction_start_time_ms(-1)
}

fn described(ctx: &Ctx, known: Known) -> Described {
    let mut topics: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for part in &known.parts {
        if let Part::Partition(stream, partition) = part
            && let Some(stream) = ctx.shared.data.catalog.get(*stream)
            && ctx.may_topic(&stream.name())
        {
            let partition = i32::try_from(*partition).unwrap_or(i32::MAX);
            topics.entry(stream.name()).or_default().push(partition);
        }
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        TopicData::default()
            .with_topic(TopicName(text(name)))
            .with_partitions(partitions)
    });
    let started = known.started_ms.and_then(|ms| i64::try_from(ms).ok());
    Described::default()
        .with_transaction_state(text(known.stage.name()))
        .with_transaction_timeout_ms(i32::try_from(known.timeout_ms).unwrap_or(i32::MAX))
        .with_transaction_start_time_ms(started.unwrap_or(-1))
        .with_producer_id(ProducerId(known.producer))
        .with_producer_epoch(known.epoch)
        .with_topics(topics.collect())
}

/// A pattern of whole ids, compiled into bounded memory.
fn of_pattern(pattern: &str) -> Result<regex::Regex, regex::Error> {
    let whole = format!("^(?:{pattern})$");
    regex::RegexBuilder::new(&whole)
        .size_limit(PATTERN_BYTES)
        .build()
}

/// ListTransactions: those that this broker coordinates.
pub(crate) async fn list_transactions(
    ctx: &Ctx,
    _version: i16,
    request: ListTransactionsRequest,
) -> ListTransactionsResponse {
    let response = ListTransactionsResponse::default();
    let (known, unknown): (Vec<_>, Vec<_>) = request
        .state_filters
        .into_iter()
        .partition(|name| Stage::from_name(name).is_some());
    let pattern = request.transactional_id_pattern.filter(|p| !p.is_empty());
    let pattern = match pattern.map(|pattern| of_pattern(&pattern)) {
        None => None,
        Some(Ok(pattern)) => Some(pattern),
        Some(Err(_)) => {
            return response.with_error_code(ResponseError::InvalidRegularExpression.code());
        }
    };
    let asks_for_none = known.is_empty() && !unknown.is_empty();
    let response = response.with_unknown_state_filters(unknown);
    if asks_for_none {
        return response;
    }
    let filter = Filter {
        stages: known
            .iter()
            .filter_map(|name| Stage::from_name(name))
            .collect(),
        producers: request.producer_id_filters.iter().map(|id| id.0).collect(),
        open_longer_ms: u64::try_from(request.duration_filter)
            .ok()
            .filter(|ms| *ms > 0),
        ..Filter::default()
    };
    let Ok(listed) = transactions::list(&ctx.shared, filter).await else {
        return response.with_error_code(ResponseError::CoordinatorLoadInProgress.code());
    };
    let mut states = Vec::new();
    for listed in listed {
        let is_asked_for = pattern.as_ref().is_none_or(|p| p.is_match(&listed.id));
        if !is_asked_for || !ctx.may_transactional_id(&listed.id) {
            continue;
        }
        if !ctx.has_room_for(ID_BYTES + listed.id.len()).await {
            return response.with_error_code(ResponseError::PolicyViolation.code());
        }
        states.push(
            Listed::default()
                .with_transactional_id(TransactionalId(text(listed.id)))
                .with_producer_id(ProducerId(listed.producer))
                .with_transaction_state(text(listed.stage.name())),
        );
    }
    response.with_transaction_states(states)
}
