//! The end of decided transactions at a broker: markers in its lanes, and offsets of the groups that it coordinates.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kera_coordinator::classic::{self, EndOffsets, OfTransaction};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_log_segments::head::LaneHead;
use kera_protocol::error::WireError;
use kera_protocol::ids::{Epoch, Ordinal, StreamId};
use kera_protocol::v1;
use kera_streamlet::transactions::{EndTransaction, Ended, Grant};
use kera_streamlet::{Appended, Outcome};

use super::{epoch_of, served};
use crate::clock::now_ms;
use crate::shared::Shared;

/// How long what is asked for at once may take to become durable. A part that takes longer holds up the others no
/// more, and is asked for again.
pub(super) const DURABLE_WITHIN: Duration = Duration::from_secs(2);

/// Ends transactions in lanes that this broker owns, and in groups that it coordinates. Returns once that is durable,
/// and says which were not done.
///
/// # Errors
/// The request makes no sense.
pub async fn end_here(
    shared: &Arc<Shared>,
    request: v1::EndTransactionsRequest,
) -> Result<v1::EndTransactionsResponse, WireError> {
    let (mut lanes, mut groups) = (Vec::new(), Vec::new());
    let mut ended = Vec::with_capacity(request.ends.len());
    for (index, end) in request.ends.into_iter().enumerate() {
        let transaction = end.transaction.unwrap_or_default();
        let grant = Grant {
            producer: transaction.producer,
            epoch: epoch_of(transaction.epoch)?,
            number: transaction.number,
        };
        let epoch_after = epoch_of(end.epoch_after)?;
        ended.push(v1::TransactionEnded {
            lanes: vec![false; end.lanes.len()],
            groups: vec![false; end.groups.len()],
            ends: vec![0; end.lanes.len()],
        });
        // Coordinators of earlier versions do not say it.
        let ended_before = end.ended_before.iter().copied();
        let ended_before = ended_before.chain(std::iter::repeat(0));
        for ((at, lane), ended_before) in end.lanes.iter().enumerate().zip(ended_before) {
            let end = EndTransaction {
                grant,
                epoch_after,
                commit: end.commit,
                coordinator_epoch: end.coordinator_epoch,
                ended_before,
                owner_epoch: Some(Epoch(lane.owner_epoch)),
            };
            if let Some(marked) = mark(shared, lane, &end) {
                let until = marked.until();
                lanes.push(async move { marked.durable().await.then_some((index, at, until)) });
            }
        }
        for (at, group) in end.groups.into_iter().enumerate() {
            let end = EndOffsets {
                group,
                transaction: OfTransaction {
                    producer: transaction.producer,
                    number: transaction.number,
                },
                commit: end.commit,
            };
            groups.push(async move { end_offsets(shared, end).await.then_some((index, at)) });
        }
    }
    let deadline = tokio::time::Instant::now() + DURABLE_WITHIN;
    let (lanes, groups) = tokio::join!(done_by(deadline, lanes), done_by(deadline, groups));
    for (index, at, until) in lanes {
        ended[index].lanes[at] = true;
        ended[index].ends[at] = until;
    }
    for (index, at) in groups {
        ended[index].groups[at] = true;
    }
    Ok(v1::EndTransactionsResponse { ended })
}

/// What comes of these until then, without those that come to nothing.
async fn done_by<T>(
    deadline: tokio::time::Instant,
    all: Vec<impl Future<Output = Option<T>>>,
) -> Vec<T> {
    let mut all: FuturesUnordered<_> = all.into_iter().collect();
    let mut done = Vec::new();
    while let Ok(Some(one)) = tokio::time::timeout_at(deadline, all.next()).await {
        done.extend(one);
    }
    done
}

/// Ends a transaction's offsets in a group. True once that is durable.
async fn end_offsets(shared: &Arc<Shared>, end: EndOffsets) -> bool {
    let group = end.group.clone();
    let request = AnyRequest::Classic(classic::Request::EndOffsets(end));
    let answer = shared.coordination.call(shared, &group, request).await;
    let is_ended = AnyReply::Classic(classic::Reply::OffsetsEnded);
    answer.is_ok_and(|reply| reply == is_ended)
}

/// A lane in which a transaction ends.
enum Marking {
    Marker(Appended),
    /// The head, up to where it must come, and how often it had failed before.
    Head(Arc<LaneHead>, u64, u64),
}

impl Marking {
    /// Where the lane must be durable for it to count.
    fn until(&self) -> Ordinal {
        match self {
            Self::Marker(appended) => appended.next_ordinal,
            Self::Head(_, until, _) => *until,
        }
    }

    /// True once it is durable; false if it is lost.
    async fn durable(&self) -> bool {
        let mut waiter = Waiter {
            head: match self {
                Self::Marker(appended) => &appended.head,
                Self::Head(head, ..) => head,
            },
            waker: None,
        };
        std::future::poll_fn(|context| {
            let outcome = match self {
                Self::Marker(appended) => match appended.poll(context.waker()) {
                    Outcome::Durable => Some(true),
                    Outcome::Lost => Some(false),
                    Outcome::Pending => None,
                },
                Self::Head(head, until, failures) => {
                    // The head first: what it has reached counts unless it failed before that.
                    let waits = head.wait(*until, context.waker());
                    match head.failures() == *failures {
                        true => (!waits).then_some(true),
                        false => Some(false),
                    }
                }
            };
            waiter.waker = outcome.is_none().then(|| context.waker().clone());
            outcome.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}

/// Waits for what was appended: true once it is durable, false if it is lost.
pub(crate) async fn durable(appended: Appended) -> bool {
    Marking::Marker(appended).durable().await
}

/// Who waits at a lane's head, until it waits no more: the head may stand still for very long.
struct Waiter<'a> {
    head: &'a LaneHead,
    waker: Option<std::task::Waker>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(waker) = &self.waker {
            self.head.forget(waker);
        }
    }
}

/// Appends a marker; `None` if that is to be tried again.
fn mark(shared: &Shared, lane: &v1::TransactionLane, end: &EndTransaction) -> Option<Marking> {
    let stream = StreamId::from_slice(&lane.stream)?;
    let Some((streamlet, id)) = served(shared, lane) else {
        tracing::debug!(%stream, lane = lane.lane, "a marker is for a lane of another broker");
        return None;
    };
    let ended = streamlet.end_transaction(id, end, now_ms());
    if let Err(error) = &ended {
        tracing::debug!(%stream, lane = lane.lane, %error, "a marker has no place yet");
    }
    let marking = marking(shared, ended.ok()?);
    if marking.is_none() {
        tracing::debug!(%stream, lane = lane.lane, producer = end.grant.producer, "a marker waits until an earlier transaction of its producer has its own again");
    }
    marking
}

/// `None` if an earlier transaction is to be ended again first.
fn marking(shared: &Shared, ended: Ended) -> Option<Marking> {
    match ended {
        Ended::Marked(appended) => {
            appended.group.pump(&shared.data.env.pump);
            Some(Marking::Marker(appended))
        }
        Ended::Nothing(head, ordinal, failures) => Some(Marking::Head(head, ordinal, failures)),
        Ended::NotYet => None,
    }
}

/// Ends transactions again that have ended in lanes of this broker, where their markers were lost, and tells what of each
/// lane stays.
///
/// # Errors
/// The request makes no sense.
pub async fn settle_here(
    shared: &Arc<Shared>,
    request: v1::SettleTransactionsRequest,
) -> Result<v1::SettleTransactionsResponse, WireError> {
    let deadline = tokio::time::Instant::now() + DURABLE_WITHIN;
    let mut settling = Vec::with_capacity(request.lanes.len());
    for asked in request.lanes {
        let ended = asked.ended.iter().map(ended_before);
        let ended = ended.collect::<Result<Vec<_>, _>>()?;
        settling.push(settle_lane(shared, asked, ended, deadline));
    }
    let lanes = futures::future::join_all(settling).await;
    Ok(v1::SettleTransactionsResponse { lanes })
}

fn ended_before(
    asked: &v1::TransactionEndedBefore,
) -> Result<(EndTransaction, Ordinal), WireError> {
    let transaction = asked.transaction.unwrap_or_default();
    let end = EndTransaction {
        grant: Grant {
            producer: transaction.producer,
            epoch: epoch_of(transaction.epoch)?,
            number: transaction.number,
        },
        epoch_after: epoch_of(asked.epoch_after)?,
        commit: asked.commit,
        coordinator_epoch: asked.coordinator_epoch,
        ended_before: 0,
        owner_epoch: None,
    };
    Ok((end, asked.before))
}

async fn settle_lane(
    shared: &Shared,
    asked: v1::LaneToSettle,
    ended: Vec<(EndTransaction, Ordinal)>,
    deadline: tokio::time::Instant,
) -> v1::SettledLane {
    let lane = asked.lane.unwrap_or_default();
    let owner_epoch = Epoch(lane.owner_epoch);
    let served = served(shared, &lane);
    let served = served.filter(|(streamlet, _)| streamlet.epoch() == owner_epoch);
    let head = served.as_ref().and_then(|(one, id)| one.head(*id));
    let (Some((streamlet, id)), Some(head)) = (served, head) else {
        return v1::SettledLane::default();
    };
    // What fails from here on makes another lane of it, which is asked again.
    let failures = head.failures();
    let mut is_ended = true;
    for (end, before) in ended {
        let end = EndTransaction {
            owner_epoch: Some(owner_epoch),
            ..end
        };
        let marked = match streamlet.end_again(id, &end, before, now_ms()) {
            Ok(ended) => marking(shared, ended),
            Err(error) => {
                let lane = streamlet.key();
                tracing::debug!(%lane, lane = id.0, %error, "a marker has no place again yet");
                is_ended = false;
                break;
            }
        };
        let Some(marked) = marked else {
            is_ended = false;
            break;
        };
        if let Marking::Marker(marker) = &marked
            && !asked.by_hand
        {
            tracing::warn!(
                stream = %streamlet.stream(), streamlet = streamlet.id().0, lane = id.0,
                producer = end.grant.producer, number = end.grant.number, commit = end.commit,
                ordinal = marker.base_ordinal,
                "the lane had lost the marker of a transaction that has ended; it is written again"
            );
        }
        let durable = tokio::time::timeout_at(deadline, marked.durable()).await;
        is_ended &= durable == Ok(true);
    }
    let open = match asked.with_open {
        true => streamlet.open_transactions(id),
        false => Some(Vec::new()),
    };
    let (end, settled) = (streamlet.lane_end(id), streamlet.settled(id));
    is_ended &= end.is_some() && open.is_some();
    let open = open.unwrap_or_default().into_iter();
    v1::SettledLane {
        served: true,
        ended: is_ended,
        open: open
            .map(|(producer, epoch, first_ordinal)| v1::LaneTransaction {
                producer,
                epoch: epoch.into(),
                first_ordinal,
                last_append_ms: 0,
            })
            .collect(),
        failures,
        end: end.unwrap_or(0),
        settled: settled.unwrap_or(0),
    }
}
