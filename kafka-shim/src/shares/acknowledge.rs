//! ShareAcknowledge, and the acknowledgements of ShareFetch.

use std::collections::BTreeMap;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::share_acknowledge_response::{
    PartitionData, ShareAcknowledgeTopicResponse,
};
use kafka_protocol::messages::{ShareAcknowledgeRequest, ShareAcknowledgeResponse};
use kera_broker::shares::Attached;
use kera_coordinator::share::Acknowledgement;
use kera_protocol::ids::Ordinal;

use super::session::{BEGINS, ENDS, Key, ShareSession};
use super::{refused, who};
use crate::context::Ctx;
use crate::refusal::Refusal;
use crate::wire::share::{Acknowledged, Renewing};
use crate::{access, topic};

/// First and last offset, and what is said of each, or of all.
pub(super) type Batch = (i64, i64, Vec<i8>);
/// From where to where, and what is said of all of it.
type Run = (Ordinal, Ordinal, Acknowledgement);
/// What is said in each partition. Where a request names one twice all of it is taken together, or none.
pub(super) type Said = BTreeMap<Key, Vec<Batch>>;
/// What became of the acknowledgements in each partition.
pub(super) type Outcomes = BTreeMap<Key, Result<(), Refusal>>;

/// ShareAcknowledge.
pub(crate) async fn share_acknowledge(
    ctx: &Ctx,
    _version: i16,
    request: Renewing<ShareAcknowledgeRequest>,
) -> Acknowledged {
    match acknowledge(ctx, request).await {
        Ok((outcomes, lock_ms)) => Acknowledged {
            response: response(outcomes),
            lock_ms: i32::try_from(lock_ms).unwrap_or(i32::MAX),
        },
        Err(refusal) => Acknowledged {
            response: ShareAcknowledgeResponse::default()
                .with_error_code(refusal.code)
                .with_error_message(Some(refusal.text())),
            lock_ms: 0,
        },
    }
}

/// What became of each partition's acknowledgements, and how long locks last.
async fn acknowledge(
    ctx: &Ctx,
    request: Renewing<ShareAcknowledgeRequest>,
) -> Result<(Outcomes, u64), Refusal> {
    let Renewing {
        request, renews, ..
    } = request;
    let who = who(ctx, request.group_id.as_ref(), request.member_id.as_ref())?;
    let epoch = request.share_session_epoch;
    if epoch == BEGINS {
        let text = "an acknowledgement begins no share session";
        return Err(Refusal::new(ResponseError::InvalidShareSessionEpoch, text));
    }
    let mut said = Said::new();
    for topic in request.topics {
        for partition in topic.partitions {
            let batches = partition.acknowledgement_batches.into_iter();
            let batches = batches.map(|b| (b.first_offset, b.last_offset, b.acknowledge_types));
            let key = (topic.topic_id, partition.partition_index);
            said.entry(key).or_default().extend(batches);
        }
    }
    let session = ctx.shares.take(&ctx.shared, &who, epoch)?;
    let outcomes = take(ctx, &session, said, renews).await;
    let lock_ms = session.lock_ms();
    if epoch != ENDS {
        ctx.shares.put_back(who, session);
    }
    Ok((outcomes, lock_ms))
}

fn response(outcomes: Outcomes) -> ShareAcknowledgeResponse {
    let mut topics: Vec<ShareAcknowledgeTopicResponse> = Vec::new();
    for ((id, partition), outcome) in outcomes {
        let mut data = PartitionData::default().with_partition_index(partition);
        data.error_message = None;
        if let Err(refusal) = outcome {
            data.error_code = refusal.code;
            data.error_message = Some(refusal.text());
        }
        match topics.last_mut() {
            Some(topic) if topic.topic_id == id => topic.partitions.push(data),
            _ => topics.push(
                ShareAcknowledgeTopicResponse::default()
                    .with_topic_id(id)
                    .with_partitions(vec![data]),
            ),
        }
    }
    ShareAcknowledgeResponse::default()
        .with_error_message(None)
        .with_responses(topics)
}

/// Takes what a session says, and waits until it is kept. Locks are renewed only where the request `renews` any.
pub(super) async fn take(ctx: &Ctx, session: &ShareSession, said: Said, renews: bool) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut taken = Vec::new();
    let mut all = Vec::new();
    for (key, batches) in said {
        match checked(ctx, session, key, &batches, renews) {
            Ok((attached, runs)) => all.push((key, attached, runs)),
            Err(refusal) => {
                outcomes.insert(key, Err(refusal));
            }
        }
    }
    let waits: Vec<_> = all
        .iter()
        .filter(|(_, _, runs)| runs.iter().any(needs_settings))
        .map(|(_, attached, _)| attached.hear_settings())
        .collect();
    if !waits.is_empty() {
        // Locks may end before a coordinator answers that stands still.
        all = renew_first(all, &mut outcomes);
        futures::future::join_all(waits).await;
    }
    for (key, attached, runs) in all {
        match attached.acknowledge(&runs) {
            Ok(version) => taken.push((key, attached, version)),
            Err(error) => {
                outcomes.insert(key, Err(refused(&error)));
            }
        }
    }
    for (key, attached, version) in taken {
        let kept = attached.kept(version).await;
        outcomes.insert(key, kept.map_err(|error| refused(&error)));
    }
    outcomes
}

/// What is said of a partition, if the client may say it.
fn checked<'a>(
    ctx: &Ctx,
    session: &'a ShareSession,
    key: Key,
    batches: &[Batch],
    renews: bool,
) -> Result<(&'a Attached, Vec<Run>), Refusal> {
    // The right may have gone since they were acquired.
    let stream = topic::with_id(&ctx.shared, key.0);
    if stream.is_some_and(|stream| !ctx.may_topic(&stream.name())) {
        return Err(access::no_topic());
    }
    let attached = session.attached.get(&key).ok_or_else(|| {
        let text = "the session has acquired nothing in this partition";
        Refusal::new(ResponseError::InvalidRecordState, text)
    })?;
    let runs = runs(batches)?;
    check_renewals(attached, &runs, renews)?;
    Ok((attached, runs))
}

/// Renews locks of a partition, if all acknowledgements of it are right. Answers the acknowledgements that are left.
fn renew_first<'a>(
    all: Vec<(Key, &'a Attached, Vec<Run>)>,
    outcomes: &mut Outcomes,
) -> Vec<(Key, &'a Attached, Vec<Run>)> {
    let renewed = all.into_iter().filter_map(|(key, attached, runs)| {
        let (renewals, rest): (Vec<Run>, Vec<Run>) = runs.iter().partition(|run| is_renewal(run));
        if renewals.is_empty() {
            return Some((key, attached, rest));
        }
        let said = attached.check(&runs);
        match said.and_then(|()| attached.acknowledge(&renewals)) {
            Ok(_) => Some((key, attached, rest)),
            Err(error) => {
                outcomes.insert(key, Err(refused(&error)));
                None
            }
        }
    });
    renewed.collect()
}

fn is_renewal((.., what): &Run) -> bool {
    *what == Acknowledgement::Renew
}

/// Where something is given back or rejected, what is set for the group by now decides what becomes of it. Nothing else waits
/// for that.
fn needs_settings((.., what): &Run) -> bool {
    matches!(what, Acknowledgement::Reject | Acknowledgement::Release)
}

/// Whether a partition's locks may be renewed, if any are to be.
fn check_renewals(attached: &Attached, runs: &[Run], renews: bool) -> Result<(), Refusal> {
    if !runs.iter().any(is_renewal) {
        return Ok(());
    }
    if !renews {
        let text = "the request renews locks, and does not say so (IsRenewAck)";
        return Err(Refusal::new(ResponseError::InvalidRequest, text));
    }
    if attached.config().is_some_and(|config| !config.renews()) {
        let text = "locks are not renewed: share.renew.acknowledge.enable is false for the group";
        return Err(Refusal::new(ResponseError::InvalidRecordState, text));
    }
    Ok(())
}

/// What is said of which records, each run of them once.
fn runs(batches: &[Batch]) -> Result<Vec<Run>, Refusal> {
    let invalid = |text: &str| Refusal::new(ResponseError::InvalidRequest, text);
    let mut runs: Vec<Run> = Vec::new();
    let mut behind = 0;
    for (first, last, types) in batches {
        let (Ok(first), Ok(last)) = (Ordinal::try_from(*first), Ordinal::try_from(*last)) else {
            return Err(invalid("an offset is below zero"));
        };
        if first < behind || last < first {
            return Err(invalid("batches of acknowledgements are not in order"));
        }
        behind = last + 1;
        let count = last - first + 1;
        match types.as_slice() {
            [one] => runs.push((first, last, acknowledgement(*one)?)),
            many if many.len() as u64 == count => {
                for (at, one) in (first..).zip(many) {
                    let what = acknowledgement(*one)?;
                    match runs.last_mut() {
                        Some((_, last, before)) if *last + 1 == at && *before == what => *last = at,
                        _ => runs.push((at, at, what)),
                    }
                }
            }
            _ => {
                return Err(invalid(
                    "a batch of acknowledgements has one for all records, or one for each",
                ));
            }
        }
    }
    Ok(runs)
}

fn acknowledgement(kind: i8) -> Result<Acknowledgement, Refusal> {
    match kind {
        // A gap: there is no record, as the client found.
        0 | 1 => Ok(Acknowledgement::Accept),
        2 => Ok(Acknowledgement::Release),
        3 => Ok(Acknowledgement::Reject),
        4 => Ok(Acknowledgement::Renew),
        other => {
            let text = format!("there is no acknowledgement of kind {other}");
            Err(Refusal::new(ResponseError::InvalidRequest, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_taken_record_by_record_or_for_all() {
        use Acknowledgement::{Accept, Reject, Release};
        let said = vec![(3, 9, vec![2]), (10, 13, vec![1, 1, 3, 0])];
        let expected = vec![
            (3, 9, Release),
            (10, 11, Accept),
            (12, 12, Reject),
            (13, 13, Accept),
        ];
        assert_eq!(runs(&said).unwrap(), expected);
        for wrong in [
            vec![(-1, 3, vec![1])],
            vec![(3, 2, vec![1])],
            vec![(3, 5, vec![1, 1])],
            vec![(3, 5, vec![])],
            vec![(3, 5, vec![9])],
            vec![(3, 5, vec![1]), (5, 6, vec![1])],
            vec![(i64::MAX, i64::MAX, vec![1]), (0, 0, vec![1])],
        ] {
            let code = runs(&wrong).unwrap_err().code;
            assert_eq!(code, ResponseError::InvalidRequest.code(), "{wrong:?}");
        }
    }
}
