//! Decided transactions: brokers are asked to end them wherever they have parts, again and again until all are.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use kera_coordinator::transactions::{Decided, Part, Partition, Reply, Request, Written};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_protocol::error::WireError;
use kera_protocol::ids::{Epoch, Ordinal, StreamId};
use kera_protocol::v1;
use kera_replication::seldom::Seldom;

use super::lane_of;
use super::marks::{DURABLE_WITHIN, end_here};
use crate::bell::Bell;
use crate::coordination::{Coordination, CoordinatorKind, Host};
use crate::fault_rules::Rule;
use crate::others;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Decisions are looked for at least this often.
const LOOK: Duration = Duration::from_millis(200);
/// Pause before parts are tried again that were not reached.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Rounds of what was decided since the last one, which may be under way at a time.
const MOST_ROUNDS: usize = 8;
/// After so long the log tells which transactions have not ended.
const SILENCE: Duration = Duration::from_secs(2);
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
            if !host.has_decided() {
                continue;
            }
            let key = (host.streamlet(), host.epoch());
            let bell = Arc::new(Bell::default());
            match shared.transactions.finishing.lock().entry(key) {
                Entry::Occupied(finishing) => {
                    finishing.get().ring();
                    continue;
                }
                Entry::Vacant(free) => drop(free.insert(bell.clone())),
            }
            let shared = shared.clone();
            tokio::spawn(async move {
                finish_all(&shared, &host, &bell).await;
                shared.transactions.finishing.lock().remove(&key);
                // What was decided meanwhile.
                shared.transactions.look();
            });
        }
    }
}

/// A transactional id, and which of its transactions.
type Key = (String, u64);

/// Until nothing is decided, or the coordinator is another's. What was decided since the last look has a round of its own, and
/// what earlier rounds have left shares one: a lane that cannot acknowledge its markers keeps no other transaction from its
/// end. The bell rings when more is decided.
async fn finish_all(shared: &Arc<Shared>, host: &Host, bell: &Bell) {
    let mut pause = PAUSE;
    let mut told = Seldom::default();
    let mut under_way: HashSet<Key> = HashSet::new();
    // What rounds have left, since when.
    let mut left: HashMap<Key, Instant> = HashMap::new();
    let mut is_tried_again = false;
    let mut rounds = FuturesUnordered::new();
    loop {
        // Answered once all of it is durable: no marker is of a decision that could be lost.
        let decided = match ask(shared, host, Request::Decided).await {
            Some(Reply::Decided(decided)) if !decided.is_empty() => decided,
            _ => return,
        };
        let keys: HashSet<Key> = decided.iter().map(key_of).collect();
        left.retain(|key, _| keys.contains(key));
        warn_of(&decided, &left, &mut told);
        let idle = decided.into_iter();
        let idle = idle.filter(|one| !under_way.contains(&key_of(one)));
        let (again, first): (Vec<_>, Vec<_>) =
            idle.partition(|one| left.contains_key(&key_of(one)));
        let has_room = rounds.len() < MOST_ROUNDS + usize::from(is_tried_again);
        let first = Some((first, None)).filter(|_| has_room);
        let again = Some((again, Some(pause))).filter(|_| !is_tried_again);
        for (round, wait) in first.into_iter().chain(again) {
            if round.is_empty() {
                continue;
            }
            is_tried_again |= wait.is_some();
            let keys: Vec<Key> = round.iter().map(key_of).collect();
            under_way.extend(keys.iter().cloned());
            rounds.push(async move {
                if let Some(wait) = wait {
                    tokio::time::sleep(wait).await;
                }
                (keys, wait, finish(shared, host, round).await)
            });
        }
        let (keys, wait, is_any_done) = tokio::select! {
            Some(over) = rounds.next() => over,
            () = bell.rung() => continue,
        };
        if let Some(wait) = wait {
            is_tried_again = false;
            pause = match is_any_done {
                true => PAUSE,
                false => (wait * 2).min(LONGEST_PAUSE),
            };
        }
        for key in keys {
            under_way.remove(&key);
            // If it has ended, the next look forgets it.
            left.entry(key).or_insert_with(Instant::now);
        }
    }
}

fn key_of(decided: &Decided) -> Key {
    (decided.id.clone(), decided.number)
}

/// Tells of transactions that rounds have left for long.
fn warn_of(decided: &[Decided], left: &HashMap<Key, Instant>, told: &mut Seldom) {
    let now = Instant::now();
    let is_late = |since: &Instant| now.duration_since(*since) >= SILENCE;
    let mut late = decided
        .iter()
        .filter(|one| left.get(&key_of(one)).is_some_and(is_late));
    if let Some(one) = late.next()
        && told.due(now).is_some()
    {
        tracing::warn!(
            id = one.id,
            parts = ?one.parts,
            more = late.count(),
            "a transaction is decided, and these partitions and groups could not be told yet: readers of what is committed wait there; see `kera stream describe` for their owners"
        );
    }
}

async fn ask(shared: &Arc<Shared>, host: &Host, request: Request) -> Option<Reply> {
    let request = AnyRequest::Transaction(request);
    match shared.coordination.call_at(shared, host, request).await? {
        Ok(AnyReply::Transaction(reply)) => Some(reply),
        _ => None,
    }
}

/// A transaction that a round ends.
struct Ending {
    decided: Decided,
    /// Parts of which the coordinator has not been told yet that they are done,
    done: BTreeSet<Part>,
    /// and where the markers among them end.
    ends: BTreeMap<Partition, Ordinal>,
    /// It is to be told something.
    is_news: bool,
}

impl Ending {
    fn new(decided: Decided) -> Self {
        Self {
            // Without parts it has ended.
            is_news: decided.parts.is_empty(),
            decided,
            done: BTreeSet::new(),
            ends: BTreeMap::new(),
        }
    }

    fn take(&mut self, parts: impl IntoIterator<Item = Part>) {
        self.done.extend(parts);
        self.is_news |= !self.done.is_empty();
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
                ended_before: Vec::new(),
            });
        }
        let last = self.parts.len() - 1;
        let (_, lanes, groups) = &mut self.parts[last];
        (&mut self.ends[last], lanes, groups)
    }
}

/// One round: asks each broker once. True if something was done.
pub(crate) async fn finish(shared: &Arc<Shared>, host: &Host, decided: Vec<Decided>) -> bool {
    let since = Instant::now();
    let mut endings: Vec<Ending> = decided.into_iter().map(Ending::new).collect();
    let by_broker = by_broker(shared, host, &mut endings).await;
    // The owners were just looked up. What another coordinator has ended meanwhile may be followed by transactions whose
    // lanes these owners took over, with nothing to tell them from the former ones.
    if !Coordination::still_coordinates(shared, host) {
        return false;
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
        // What is done at one broker waits a moment for the others, and not for one that does not answer.
        let is_any_news = endings.iter().any(|ending| ending.is_news);
        let within = if is_any_news { PAUSE } else { Duration::MAX };
        let answer = tokio::time::timeout(within, asked.next()).await;
        if let Ok(Some((broker, parts, ended))) = answer {
            take(broker, parts, ended, &mut endings);
            continue;
        }
        let Some(told) = report(shared, host, &mut endings, since).await else {
            return false;
        };
        any |= told;
        if answer.is_ok() {
            return any;
        }
    }
}

/// What each broker is to be asked. Partitions of deleted streams are done.
async fn by_broker(
    shared: &Arc<Shared>,
    host: &Host,
    endings: &mut [Ending],
) -> BTreeMap<u32, Batch> {
    let mut by_broker: BTreeMap<u32, Batch> = BTreeMap::new();
    let mut deleted: BTreeMap<StreamId, bool> = BTreeMap::new();
    for (index, ending) in endings.iter_mut().enumerate() {
        let mut gone = Vec::new();
        for part in &ending.decided.parts {
            match part {
                Part::Partition(stream, partition) => {
                    let Some(place) = lane_of(shared, *stream, *partition) else {
                        let is_gone = match deleted.get(stream) {
                            Some(is_gone) => *is_gone,
                            None => is_deleted(shared, *stream).await,
                        };
                        deleted.insert(*stream, is_gone);
                        if is_gone {
                            gone.push(part.clone());
                        }
                        continue;
                    };
                    let batch = by_broker.entry(place.broker).or_default();
                    if batch.takes_one() {
                        let ended_before =
                            host.ended_before(&ending.decided.id, (*stream, *partition));
                        let (end, lanes, _) = batch.entry(index, &ending.decided, host.epoch());
                        end.lanes.push(place.lane);
                        end.ended_before.push(ended_before);
                        lanes.push(part.clone());
                    }
                }
                Part::Group(group) => {
                    let kind = CoordinatorKind::Groups;
                    let Ok(place) = shared.coordination.place(shared, kind, group).await else {
                        continue;
                    };
                    let batch = by_broker.entry(place.broker).or_default();
                    if batch.takes_one() {
                        let (end, _, groups) = batch.entry(index, &ending.decided, host.epoch());
                        end.groups.push(group.clone());
                        groups.push(part.clone());
                    }
                }
            }
        }
        ending.take(gone);
    }
    by_broker
}

/// Whether a stream that is not known here was deleted. It may also be too new: owners make their lanes part of a
/// transaction, and may know of them before its coordinator does. Only the metadata store can tell the two apart.
pub(super) async fn is_deleted(shared: &Shared, stream: StreamId) -> bool {
    let metadata = shared.metadata.clone();
    let read = move || metadata.stream(stream).map_err(|e| metadata_error(&e));
    matches!(blocking(read).await, Ok(None))
}

/// Takes in which parts a broker has ended.
fn take(
    broker: u32,
    parts: Vec<(usize, Vec<Part>, Vec<Part>)>,
    ended: Result<v1::EndTransactionsResponse, WireError>,
    endings: &mut [Ending],
) {
    let ended = match ended {
        Ok(ended) => ended.ended,
        Err(error) => {
            tracing::debug!(broker, %error, "markers were not written; trying again");
            if Rule::MarkersAssumed.is_broken() {
                for (index, lanes, groups) in parts {
                    endings[index].take(lanes.into_iter().chain(groups));
                }
            }
            return;
        }
    };
    for ((index, lanes, groups), ended) in parts.into_iter().zip(ended) {
        // Brokers of earlier versions do not say where markers end. Those that do say 0 of a lane in which nothing is.
        let says_ends = ended.ends.len() == ended.lanes.len();
        let ends = ended.ends.into_iter().chain(std::iter::repeat(0));
        for ((part, is_done), end) in lanes.iter().zip(&ended.lanes).zip(ends) {
            if let Part::Partition(stream, partition) = part
                && *is_done
                && (end > 0 || !says_ends)
                && !Rule::EndsForgotten.is_broken()
            {
                endings[index].ends.insert((*stream, *partition), end);
            }
        }
        let lanes = lanes.into_iter().zip(ended.lanes);
        let groups = groups.into_iter().zip(ended.groups);
        let is_done = lanes.chain(groups).filter(|(_, is_done)| *is_done);
        endings[index].take(is_done.map(|(part, _)| part));
    }
}

/// Tells the coordinator which parts are done. Whether there are any; `None` if it is another's by now.
async fn report(
    shared: &Arc<Shared>,
    host: &Host,
    endings: &mut [Ending],
    since: Instant,
) -> Option<bool> {
    let mut marked = BTreeSet::new();
    let news = endings.iter_mut().filter(|ending| ending.is_news);
    let told = news.map(|ending| {
        ending.is_news = false;
        let written = Written {
            id: ending.decided.id.clone(),
            number: ending.decided.number,
            parts: std::mem::take(&mut ending.done),
            ends: std::mem::take(&mut ending.ends),
        };
        marked.extend(written.ends.keys().copied());
        ask(shared, host, Request::Written(written))
    });
    // All at once: they become durable together.
    let told = join_all(told).await;
    let coordinator = (host.streamlet(), host.epoch());
    let settling = &shared.transactions.settling;
    settling.marked(coordinator, &marked, since);
    told.iter().all(Option::is_some).then_some(!told.is_empty())
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
