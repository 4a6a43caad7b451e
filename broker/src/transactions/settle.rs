//! Markers that may be lost again. A marker counts once it is as durable as its stream's records; a loss of power, the
//! loss of all replicas of its group, or a disk may take it after that, and its transaction is open again in the lane.
//!
//! So coordinators keep how transactions ended until the owners of their lanes have said that the markers stay, and until
//! then look for lanes that have another owner or have lost something. What is open there and has ended is ended again.
//! Nobody waits for that. All lanes of one owner are asked about in one call, at rest less and less often.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_coordinator::transactions::{EndedBefore, Lost, OpenThere, Partition};
use kera_protocol::error::WireError;
use kera_protocol::ids::{Epoch, Ordinal, StreamId};
use kera_protocol::v1;

use super::finish::is_deleted;
use super::marks::{DURABLE_WITHIN, settle_here};
use super::watched::{Key, Watch, Whole};
use super::{ASK_WITHIN, lane_of};
use crate::coordination::Host;
use crate::others;
use crate::shared::Shared;

/// Lanes with another owner are looked for so often.
const LOOK: Duration = Duration::from_millis(500);
/// An owner is asked again about a lane after this, and after longer as long as nothing changes.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Lanes in one request.
const MOST_LANES: usize = 4_096;
/// Transactions that are ended again in one lane and request; the others follow.
const MOST_ENDS: usize = 1_000;

/// Has markers written again that lanes have lost, for this broker's coordinators. Runs as long as the broker.
pub async fn drive(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(LOOK).await;
        look(&shared).await;
    }
}

/// What is asked of one lane.
struct Question {
    host: Arc<Host>,
    partition: Partition,
    broker: u32,
    lane: v1::TransactionLane,
    /// What is known of it.
    whole: Option<Whole>,
    ended: Vec<EndedBefore>,
}

impl Question {
    fn key(&self) -> Key {
        (self.host.streamlet(), self.host.epoch(), self.partition)
    }

    fn request(&self) -> v1::LaneToSettle {
        let ended = self.ended.iter().map(|ended| v1::TransactionEndedBefore {
            transaction: Some(v1::ProducerTransaction {
                producer: ended.producer,
                epoch: ended.epoch.into(),
                number: ended.number,
            }),
            epoch_after: ended.epoch_after.into(),
            commit: ended.commit,
            coordinator_epoch: self.host.epoch().0 as i32,
            before: ended.before,
        });
        v1::LaneToSettle {
            lane: Some(self.lane.clone()),
            with_open: self.whole.is_none(),
            ended: ended.collect(),
            by_hand: false,
        }
    }
}

/// One round over all lanes that are due.
async fn look(shared: &Arc<Shared>) {
    let asked = Instant::now();
    let due = due(shared, asked).await;
    if due.is_empty() {
        return;
    }
    let mut lost = Vec::new();
    for (mut question, answer) in ask(shared, due).await {
        if !answer.served || !answer.ended || question.whole.is_some() {
            take(shared, &question, &answer, asked);
            continue;
        }
        let open = answer.open.iter().filter_map(|open| {
            Some(OpenThere {
                producer: open.producer,
                epoch: i16::try_from(open.epoch).ok()?,
                first: open.first_ordinal,
            })
        });
        let open: Vec<_> = open.collect();
        match question.host.lost_in(question.partition, &open) {
            Some(Lost { ended, forgotten }) if ended.is_empty() && forgotten.is_empty() => {
                take(shared, &question, &answer, asked);
            }
            Some(Lost {
                mut ended,
                forgotten,
            }) => {
                tell_of(&question, &forgotten);
                // As long as one of them is open nothing of the lane is settled: what is kept tells it from later ones.
                let is_more = ended.len() > MOST_ENDS || !forgotten.is_empty();
                ended.truncate(MOST_ENDS);
                question.ended = ended;
                lost.push((question, answer.failures, is_more));
            }
            None => {}
        }
    }
    let before: HashMap<Key, (u64, bool)> = lost
        .iter()
        .map(|(question, failures, is_more)| (question.key(), (*failures, *is_more)))
        .collect();
    let lost = lost.into_iter().map(|(question, ..)| question).collect();
    for (question, mut answer) in ask(shared, lost).await {
        let (failures, is_more) = before[&question.key()];
        answer.ended &= !is_more && answer.failures == failures;
        take(shared, &question, &answer, asked);
    }
}

/// Says of which open transactions nobody knows any more how they ended.
fn tell_of(question: &Question, forgotten: &[OpenThere]) {
    let (stream, partition) = question.partition;
    for open in forgotten {
        tracing::error!(
            %stream, partition, producer = open.producer, ordinal = open.first,
            "the lane has lost the marker of a transaction that has ended, and how it ended is not kept any more, as too many ended after it: readers of what is committed wait there, and so do later transactions of its producer in this partition"
        );
    }
}

/// The lanes whose owners are to be asked now.
async fn due(shared: &Arc<Shared>, now: Instant) -> Vec<Question> {
    let (mut due, mut present, mut unknown) = (Vec::new(), HashSet::new(), Vec::new());
    for host in shared.coordination.transaction_hosts() {
        let partitions = host.unsettled_partitions();
        let mut watched = shared.transactions.settling.watched.lock();
        for partition in partitions {
            let key = (host.streamlet(), host.epoch(), partition);
            present.insert(key);
            let watch = watched.entry(key).or_insert(Watch {
                whole: None,
                next: now,
                pause: PAUSE,
            });
            let (stream, number) = partition;
            let place = lane_of(shared, stream, number);
            let epoch = place.as_ref().map(|place| Epoch(place.lane.owner_epoch));
            if watch.whole.is_some_and(|whole| Some(whole.epoch) != epoch) {
                watch.whole = None;
                watch.next = now;
                watch.pause = PAUSE;
            }
            if watch.next > now {
                continue;
            }
            let whole = watch.whole;
            watch.next = now + watch.pause;
            watch.pause = (watch.pause * 2).min(LONGEST_PAUSE);
            match place {
                Some(place) => due.push(Question {
                    host: host.clone(),
                    partition,
                    broker: place.broker,
                    lane: place.lane,
                    whole,
                    ended: Vec::new(),
                }),
                None => unknown.push((host.clone(), partition)),
            }
        }
    }
    let settling = &shared.transactions.settling;
    settling
        .watched
        .lock()
        .retain(|key, _| present.contains(key));
    let mut deleted: BTreeMap<StreamId, bool> = BTreeMap::new();
    for (host, partition) in unknown {
        let stream = partition.0;
        let is_gone = match deleted.get(&stream) {
            Some(is_gone) => *is_gone,
            None => is_deleted(shared, stream).await,
        };
        deleted.insert(stream, is_gone);
        if is_gone {
            host.settle_markers(partition, Ordinal::MAX);
        }
    }
    due
}

/// Takes in what the owner of a lane says.
fn take(shared: &Shared, question: &Question, answer: &v1::SettledLane, asked: Instant) {
    let mut watched = shared.transactions.settling.watched.lock();
    let Some(watch) = watched.get_mut(&question.key()) else {
        return;
    };
    if !answer.served || !answer.ended {
        return;
    }
    let whole = match question.whole {
        Some(whole) if whole.failures == answer.failures => whole,
        // It has lost something: what is open there is asked next.
        Some(_) => {
            watch.whole = None;
            watch.next = asked;
            return;
        }
        None => {
            let whole = Whole {
                epoch: Epoch(question.lane.owner_epoch),
                failures: answer.failures,
                end: answer.end,
                asked: Instant::now(),
            };
            watch.whole = Some(whole);
            watch.pause = PAUSE;
            watch.next = asked + PAUSE;
            whole
        }
    };
    if answer.settled >= whole.end {
        question
            .host
            .settle_markers(question.partition, answer.settled);
        watch.pause = PAUSE;
        watch.next = asked + PAUSE;
    }
}

/// Asks each owner once about all its lanes, or a few times about very many. What comes of those that answer.
async fn ask(shared: &Arc<Shared>, questions: Vec<Question>) -> Vec<(Question, v1::SettledLane)> {
    let mut by_broker: BTreeMap<u32, Vec<Question>> = BTreeMap::new();
    for question in questions {
        let of_broker = by_broker.entry(question.broker).or_default();
        of_broker.push(question);
    }
    let asked = by_broker
        .into_iter()
        .map(|(broker, mut questions)| async move {
            let mut answered = Vec::new();
            while !questions.is_empty() {
                let rest = questions.split_off(questions.len().min(MOST_LANES));
                let lanes = questions.iter().map(Question::request).collect();
                match ask_broker(shared, broker, v1::SettleTransactionsRequest { lanes }).await {
                    Ok(answer) => answered.extend(questions.into_iter().zip(answer.lanes)),
                    Err(error) => {
                        tracing::debug!(broker, %error, "an owner did not say which markers stay");
                        break;
                    }
                }
                questions = rest;
            }
            answered
        });
    let answered = futures::future::join_all(asked).await;
    answered.into_iter().flatten().collect()
}

async fn ask_broker(
    shared: &Arc<Shared>,
    broker: u32,
    request: v1::SettleTransactionsRequest,
) -> Result<v1::SettleTransactionsResponse, WireError> {
    if broker == shared.data.directory.me() {
        return settle_here(shared, request).await;
    }
    let mut stub = others::lanes(shared, broker)?;
    let within = DURABLE_WITHIN + ASK_WITHIN;
    others::answer(broker, within, stub.settle_transactions(request)).await
}
