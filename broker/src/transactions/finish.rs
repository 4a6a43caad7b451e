//! Decided transactions: their markers are written wherever they have parts, again and again until all are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_coordinator::classic::{self, EndOffsets, OfTransaction};
use kera_coordinator::transactions::{Decided, Part, Reply, Request, Written};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_protocol::error::WireError;
use kera_protocol::ids::{Epoch, StreamId};
use kera_protocol::v1;
use kera_replication::seldom::Seldom;
use kera_streamlet::transactions::{EndTransaction, Ended, Grant};
use kera_streamlet::{Appended, Outcome};

use super::{epoch_of, lane_of, served};
use crate::clock::now_ms;
use crate::coordination::{CoordinatorKind, Host};
use crate::fault_rules::Rule;
use crate::others;
use crate::shared::Shared;

/// Decisions are looked for at least this often.
const LOOK: Duration = Duration::from_millis(200);
/// Pause after a round in which some part was not reached.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the markers of one round may take to become durable.
const DURABLE_WITHIN: Duration = Duration::from_secs(30);
/// Parts in one request to another broker.
const MOST_PARTS: usize = 10_000;

/// Carries out what this broker's coordinators decide. Runs as long as the broker.
pub async fn drive(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.transactions.decided.rung() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        for host in shared.coordination.transaction_hosts() {
            let key = (host.streamlet(), host.epoch());
            if host.has_decided() && shared.transactions.finishing.lock().insert(key) {
                let shared = shared.clone();
                tokio::spawn(async move {
                    finish_all(&shared, &host).await;
                    shared.transactions.finishing.lock().remove(&key);
                    // What was decided meanwhile.
                    shared.transactions.look();
                });
            }
        }
    }
}

/// Until nothing is decided, or the coordinator is another's.
async fn finish_all(shared: &Arc<Shared>, host: &Host) {
    let mut pause = PAUSE;
    let mut told = Seldom::default();
    loop {
        // Answered once all of it is durable: no marker is of a decision that could be lost.
        let decided = match ask(shared, host, Request::Decided).await {
            Some(Reply::Decided(decided)) if !decided.is_empty() => decided,
            _ => return,
        };
        let (first, count) = (decided[0].clone(), decided.len());
        match finish(shared, host, decided).await {
            true => pause = PAUSE,
            false => {
                if pause == LONGEST_PAUSE && told.due(Instant::now()).is_some() {
                    tracing::warn!(
                        id = first.id,
                        parts = ?first.parts,
                        more = count - 1,
                        "a transaction is decided, and these partitions and groups could not be told yet: readers of what is committed wait there; see `kera stream describe` for their owners"
                    );
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

async fn ask(shared: &Arc<Shared>, host: &Host, request: Request) -> Option<Reply> {
    let request = AnyRequest::Transaction(request);
    match shared.coordination.call_at(shared, host, request).await? {
        Ok(AnyReply::Transaction(reply)) => Some(reply),
        _ => None,
    }
}

/// What one broker is asked to end, and which parts of which decision that is.
#[derive(Default)]
struct Batch {
    ends: Vec<v1::TransactionEnd>,
    parts: Vec<(usize, Vec<Part>, Vec<Part>)>,
    /// Of all of them.
    count: usize,
}

impl Batch {
    /// Whether there is room for one more part, which counts from now on.
    fn takes_one(&mut self) -> bool {
        let has_room = self.count < MOST_PARTS;
        self.count += usize::from(has_room);
        has_room
    }

    /// The entry for a decision.
    fn entry(
        &mut self,
        index: usize,
        decided: &Decided,
        coordinator: Epoch,
    ) -> (&mut v1::TransactionEnd, &mut Vec<Part>, &mut Vec<Part>) {
        if self.parts.last().is_none_or(|(last, _, _)| *last != index) {
            self.parts.push((index, Vec::new(), Vec::new()));
            self.ends.push(v1::TransactionEnd {
                transaction: Some(v1::ProducerTransaction {
                    producer: decided.producer,
                    epoch: decided.batch_epoch.into(),
                    number: decided.number,
                }),
                epoch_after: decided.epoch.into(),
                commit: decided.commit,
                coordinator_epoch: coordinator.0 as i32,
                lanes: Vec::new(),
                groups: Vec::new(),
            });
        }
        let last = self.parts.len() - 1;
        let (_, lanes, groups) = &mut self.parts[last];
        (&mut self.ends[last], lanes, groups)
    }
}

/// One round: asks each broker once. True if something was done.
async fn finish(shared: &Arc<Shared>, host: &Host, decided: Vec<Decided>) -> bool {
    let mut done: Vec<BTreeSet<Part>> = vec![BTreeSet::new(); decided.len()];
    let mut by_broker: BTreeMap<u32, Batch> = BTreeMap::new();
    for (index, one) in decided.iter().enumerate() {
        for part in &one.parts {
            match part {
                Part::Partition(stream, partition) => {
                    match lane_of(shared, *stream, *partition) {
                        // Its stream was deleted.
                        None => drop(done[index].insert(part.clone())),
                        Some(place) => {
                            let batch = by_broker.entry(place.broker).or_default();
                            if batch.takes_one() {
                                let (end, lanes, _) = batch.entry(index, one, host.epoch());
                                end.lanes.push(place.lane);
                                lanes.push(part.clone());
                            }
                        }
                    }
                }
                Part::Group(group) => {
                    let kind = CoordinatorKind::Groups;
                    let Ok(place) = shared.coordination.place(shared, kind, group).await else {
                        continue;
                    };
                    let batch = by_broker.entry(place.broker).or_default();
                    if batch.takes_one() {
                        let (end, _, groups) = batch.entry(index, one, host.epoch());
                        end.groups.push(group.clone());
                        groups.push(part.clone());
                    }
                }
            }
        }
    }
    let me = shared.data.directory.me();
    let asked = by_broker.into_iter().map(|(broker, batch)| async move {
        let request = v1::EndTransactionsRequest { ends: batch.ends };
        let ended = match broker == me {
            true => end_here(shared, request).await,
            false => end_at(shared, broker, request).await,
        };
        (broker, batch.parts, ended)
    });
    for (broker, parts, ended) in futures::future::join_all(asked).await {
        let ended = match ended {
            Ok(ended) => ended.ended,
            Err(error) => {
                tracing::debug!(broker, %error, "markers were not written; trying again");
                if Rule::MarkersAssumed.is_broken() {
                    for (index, lanes, groups) in parts {
                        done[index].extend(lanes.into_iter().chain(groups));
                    }
                }
                continue;
            }
        };
        for ((index, lanes, groups), ended) in parts.into_iter().zip(ended) {
            let lanes = lanes.into_iter().zip(ended.lanes);
            let groups = groups.into_iter().zip(ended.groups);
            let is_done = lanes.chain(groups).filter(|(_, is_done)| *is_done);
            done[index].extend(is_done.map(|(part, _)| part));
        }
    }
    let mut any = false;
    for (decided, parts) in decided.into_iter().zip(done) {
        if parts.is_empty() && !decided.parts.is_empty() {
            continue;
        }
        any = true;
        let written = Written {
            id: decided.id,
            number: decided.number,
            parts,
        };
        if ask(shared, host, Request::Written(written)).await.is_none() {
            return false;
        }
    }
    any
}

async fn end_at(
    shared: &Shared,
    broker: u32,
    request: v1::EndTransactionsRequest,
) -> Result<v1::EndTransactionsResponse, WireError> {
    let mut stub = others::lanes(shared, broker)?;
    let within = DURABLE_WITHIN + super::ASK_WITHIN;
    others::answer(broker, within, stub.end_transactions(request)).await
}

/// Ends transactions in lanes that this broker owns, and in groups that it coordinates. Returns once that is durable,
/// and says which were not done.
///
/// # Errors
/// The request makes no sense.
pub async fn end_here(
    shared: &Arc<Shared>,
    request: v1::EndTransactionsRequest,
) -> Result<v1::EndTransactionsResponse, WireError> {
    let mut waiting = Vec::new();
    let mut ended = Vec::with_capacity(request.ends.len());
    for (index, end) in request.ends.iter().enumerate() {
        let transaction = end.transaction.unwrap_or_default();
        let grant = Grant {
            producer: transaction.producer,
            epoch: epoch_of(transaction.epoch)?,
            number: transaction.number,
        };
        let epoch_after = epoch_of(end.epoch_after)?;
        for (at, lane) in end.lanes.iter().enumerate() {
            let end = EndTransaction {
                grant,
                epoch_after,
                commit: end.commit,
                coordinator_epoch: end.coordinator_epoch,
                owner_epoch: Some(Epoch(lane.owner_epoch)),
            };
            if let Some(marked) = mark(shared, lane, &end) {
                waiting.push((index, at, marked));
            }
        }
        ended.push(v1::TransactionEnded {
            lanes: vec![false; end.lanes.len()],
            groups: vec![false; end.groups.len()],
        });
    }
    let deadline = tokio::time::Instant::now() + DURABLE_WITHIN;
    for (index, at, marked) in waiting {
        let durable = tokio::time::timeout_at(deadline, marked.durable());
        ended[index].lanes[at] = durable.await.unwrap_or(false);
    }
    for (index, end) in request.ends.into_iter().enumerate() {
        let transaction = end.transaction.unwrap_or_default();
        for (at, group) in end.groups.into_iter().enumerate() {
            let request = classic::Request::EndOffsets(EndOffsets {
                group: group.clone(),
                transaction: OfTransaction {
                    producer: transaction.producer,
                    number: transaction.number,
                },
                commit: end.commit,
            });
            let request = AnyRequest::Classic(request);
            let answer = shared.coordination.call(shared, &group, request).await;
            let is_ended = AnyReply::Classic(classic::Reply::OffsetsEnded);
            ended[index].groups[at] = answer.is_ok_and(|reply| reply == is_ended);
        }
    }
    Ok(v1::EndTransactionsResponse { ended })
}

/// A lane in which a transaction ends.
enum Marking {
    Marker(Appended),
    Head(std::sync::Arc<kera_log_segments::head::LaneHead>, u64),
}

impl Marking {
    /// True once it is durable; false if it is lost.
    async fn durable(&self) -> bool {
        std::future::poll_fn(|context| match self {
            Self::Marker(appended) => match appended.poll(context.waker()) {
                Outcome::Durable => std::task::Poll::Ready(true),
                Outcome::Lost => std::task::Poll::Ready(false),
                Outcome::Pending => std::task::Poll::Pending,
            },
            Self::Head(head, until) => match head.wait(*until, context.waker()) {
                false => std::task::Poll::Ready(true),
                true => std::task::Poll::Pending,
            },
        })
        .await
    }
}

/// Appends a marker; `None` if that is to be tried again.
fn mark(shared: &Shared, lane: &v1::TransactionLane, end: &EndTransaction) -> Option<Marking> {
    let stream = StreamId::from_slice(&lane.stream)?;
    let Some((streamlet, id)) = served(shared, lane) else {
        tracing::debug!(%stream, lane = lane.lane, "a marker is for a lane of another broker");
        return None;
    };
    match streamlet.end_transaction(id, end, now_ms()) {
        Ok(Ended::Marked(appended)) => {
            appended.group.pump(&shared.data.env.pump);
            Some(Marking::Marker(appended))
        }
        Ok(Ended::Nothing(head, ordinal)) => Some(Marking::Head(head, ordinal)),
        Err(error) => {
            tracing::debug!(%stream, lane = lane.lane, %error, "a marker has no place yet");
            None
        }
    }
}
