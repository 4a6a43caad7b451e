//! Decided transactions: their markers are written wherever they have parts, again and again until all are.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kera_coordinator::classic::{self, EndOffsets, OfTransaction};
use kera_coordinator::transactions::{Decided, Part, Reply, Request, Written};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_log_segments::head::LaneHead;
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
use crate::store_calls::{blocking, metadata_error};

/// Decisions are looked for at least this often.
const LOOK: Duration = Duration::from_millis(200);
/// Pause after a round in which some part was not reached.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the markers of one round may take to become durable; and once the first one is, the others. A lane that cannot
/// acknowledge holds up other transactions of its round no longer: those that are not done are asked about again.
const DURABLE_WITHIN: Duration = Duration::from_secs(2);
const OTHERS_WITHIN: Duration = Duration::from_millis(500);
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

/// What a round is about: transactional ids, and which of their transactions.
type Keys = Vec<(String, u64)>;

/// Until nothing is decided, or the coordinator is another's. A round that waits for a lane keeps no other transaction from
/// its end: what is decided meanwhile has a round of its own.
async fn finish_all(shared: &Arc<Shared>, host: &Host) {
    let mut pause = PAUSE;
    let mut told = Seldom::default();
    let mut under_way = HashSet::new();
    let mut tried = HashSet::new();
    let mut rounds = FuturesUnordered::new();
    loop {
        // Answered once all of it is durable: no marker is of a decision that could be lost.
        let decided = match ask(shared, host, Request::Decided).await {
            Some(Reply::Decided(decided)) if !decided.is_empty() => decided,
            _ => return,
        };
        let keys: HashSet<_> = decided.iter().map(key_of).collect();
        tried.retain(|key| keys.contains(key));
        let idle = decided.into_iter();
        let idle = idle.filter(|one| !under_way.contains(&key_of(one)));
        let (again, first): (Vec<_>, Vec<_>) = idle.partition(|one| tried.contains(&key_of(one)));
        if pause == LONGEST_PAUSE
            && let Some(one) = again.first()
            && told.due(Instant::now()).is_some()
        {
            tracing::warn!(
                id = one.id,
                parts = ?one.parts,
                more = again.len() - 1,
                "a transaction is decided, and these partitions and groups could not be told yet: readers of what is committed wait there; see `kera stream describe` for their owners"
            );
        }
        for (round, wait) in [(first, None), (again, Some(pause))] {
            if round.is_empty() {
                continue;
            }
            let keys: Keys = round.iter().map(key_of).collect();
            under_way.extend(keys.iter().cloned());
            rounds.push(async move {
                if let Some(wait) = wait {
                    tokio::time::sleep(wait).await;
                }
                (keys, wait, finish(shared, host, round).await)
            });
        }
        let over: Option<(Keys, _, bool)> = tokio::select! {
            over = rounds.next() => over,
            () = tokio::time::sleep(LOOK) => None,
        };
        let Some((keys, wait, is_any_done)) = over else {
            continue;
        };
        for key in &keys {
            under_way.remove(key);
        }
        tried.extend(keys);
        pause = match (is_any_done, wait) {
            (true, _) => PAUSE,
            (false, Some(wait)) => (wait * 2).min(LONGEST_PAUSE),
            (false, None) => pause,
        };
    }
}

fn key_of(decided: &Decided) -> (String, u64) {
    (decided.id.clone(), decided.number)
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
async fn finish(shared: &Arc<Shared>, host: &Host, mut decided: Vec<Decided>) -> bool {
    let mut done: Vec<BTreeSet<Part>> = vec![BTreeSet::new(); decided.len()];
    let mut by_broker: BTreeMap<u32, Batch> = BTreeMap::new();
    let mut gone: BTreeMap<StreamId, bool> = BTreeMap::new();
    for (index, one) in decided.iter().enumerate() {
        for part in &one.parts {
            match part {
                Part::Partition(stream, partition) => match lane_of(shared, *stream, *partition) {
                    None => {
                        let is_gone = match gone.get(stream) {
                            Some(is_gone) => *is_gone,
                            None => is_deleted(shared, *stream).await,
                        };
                        gone.insert(*stream, is_gone);
                        if is_gone {
                            done[index].insert(part.clone());
                        }
                    }
                    Some(place) => {
                        let batch = by_broker.entry(place.broker).or_default();
                        if batch.takes_one() {
                            let (end, lanes, _) = batch.entry(index, one, host.epoch());
                            end.lanes.push(place.lane);
                            lanes.push(part.clone());
                        }
                    }
                },
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
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut any = false;
    loop {
        // What is done here waits a moment for what is done elsewhere, and not for a broker that does not answer.
        let is_some_done = done.iter().any(|parts| !parts.is_empty());
        let within = if is_some_done { PAUSE } else { Duration::MAX };
        match tokio::time::timeout(within, asked.next()).await {
            Ok(Some((broker, parts, ended))) => take(broker, parts, ended, &mut done),
            Ok(None) => {
                let reported = report(shared, host, decided, done).await;
                return reported.is_some_and(|reported| any || reported);
            }
            Err(_) => {
                let some = std::mem::replace(&mut done, vec![BTreeSet::new(); decided.len()]);
                let Some(reported) = report(shared, host, decided.clone(), some.clone()).await
                else {
                    return false;
                };
                any |= reported;
                for (one, some) in decided.iter_mut().zip(some) {
                    one.parts.retain(|part| !some.contains(part));
                }
            }
        }
    }
}

/// Whether a stream that is not known here was deleted. It may also be too new: owners make their lanes part of a
/// transaction, and may know of them before its coordinator does. Only the metadata store can tell the two apart.
async fn is_deleted(shared: &Shared, stream: StreamId) -> bool {
    let metadata = shared.metadata.clone();
    let read = move || metadata.stream(stream).map_err(|e| metadata_error(&e));
    matches!(blocking(read).await, Ok(None))
}

/// Takes in which parts a broker has ended.
fn take(
    broker: u32,
    parts: Vec<(usize, Vec<Part>, Vec<Part>)>,
    ended: Result<v1::EndTransactionsResponse, WireError>,
    done: &mut [BTreeSet<Part>],
) {
    let ended = match ended {
        Ok(ended) => ended.ended,
        Err(error) => {
            tracing::debug!(broker, %error, "markers were not written; trying again");
            if Rule::MarkersAssumed.is_broken() {
                for (index, lanes, groups) in parts {
                    done[index].extend(lanes.into_iter().chain(groups));
                }
            }
            return;
        }
    };
    for ((index, lanes, groups), ended) in parts.into_iter().zip(ended) {
        let lanes = lanes.into_iter().zip(ended.lanes);
        let groups = groups.into_iter().zip(ended.groups);
        let is_done = lanes.chain(groups).filter(|(_, is_done)| *is_done);
        done[index].extend(is_done.map(|(part, _)| part));
    }
}

/// Tells the coordinator which parts are done. Whether there are any; `None` if it is another's by now.
async fn report(
    shared: &Arc<Shared>,
    host: &Host,
    decided: Vec<Decided>,
    done: Vec<BTreeSet<Part>>,
) -> Option<bool> {
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
        ask(shared, host, Request::Written(written)).await?;
    }
    Some(any)
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
    let mut waiting: FuturesUnordered<_> = waiting
        .into_iter()
        .map(|(index, at, marked)| async move { (index, at, marked.durable().await) })
        .collect();
    let mut deadline = tokio::time::Instant::now() + DURABLE_WITHIN;
    while let Ok(Some((index, at, is_durable))) =
        tokio::time::timeout_at(deadline, waiting.next()).await
    {
        ended[index].lanes[at] = is_durable;
        if is_durable {
            // The coordinator asks again for those that wait longer.
            deadline = deadline.min(tokio::time::Instant::now() + OTHERS_WITHIN);
        }
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
    Head(Arc<LaneHead>, u64),
}

impl Marking {
    /// True once it is durable; false if it is lost.
    async fn durable(&self) -> bool {
        let mut waiter = Waiter {
            head: match self {
                Self::Marker(appended) => &appended.head,
                Self::Head(head, _) => head,
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
                Self::Head(head, until) => (!head.wait(*until, context.waker())).then_some(true),
            };
            waiter.waker = outcome.is_none().then(|| context.waker().clone());
            outcome.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
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
