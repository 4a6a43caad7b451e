//! What a member acquires at one broker over one connection, and says of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    ApiKey, GroupId, ShareAcknowledgeRequest, ShareAcknowledgeResponse, ShareFetchRequest,
    ShareFetchResponse, share_acknowledge_request as acknowledging,
    share_fetch_request as fetching, share_fetch_response as fetched,
};
use kera_history::payload;
use kera_protocol::batch::{Records, batches};
use uuid::Uuid;

use super::cluster::words;
use super::judge::{Answer, Delivery, Reign, Said};
use super::wire::Connection;
use super::{GROUP_NAME, Shared};
use crate::dice::Dice;
use crate::{inside, os};

/// Most bytes of records in an answer.
const MOST_BYTES: i32 = 64 << 10;
/// A batch is no longer than this.
const LONGEST_BATCH: usize = 1 << 20;
/// The epoch of a request that ends a session.
const ENDS: i32 = -1;

/// How a member works.
#[derive(Clone, Copy, Debug)]
pub struct Mood {
    /// Longest time that it takes over records.
    pub work: Duration,
    /// Of 1,000 records in a row so many take longer than they are locked.
    pub slow: u64,
    /// Records that it takes at a time.
    pub records: i32,
    /// How long brokers wait for records.
    pub wait: Duration,
}

/// Records that it acquired and has said nothing of.
struct Held {
    partition: i32,
    first: u64,
    last: u64,
    /// When the work is done.
    due: Duration,
}

/// What is said of the records from the first to the last: of each of them.
type Words = (u64, u64, Vec<Said>);

pub struct Session {
    shared: Arc<Shared>,
    /// Of the judge.
    number: u64,
    broker: i32,
    connection: Connection,
    topic: Uuid,
    member: String,
    epoch: i32,
    wanted: BTreeSet<i32>,
    held: Vec<Held>,
}

impl Session {
    pub fn new(
        shared: &Arc<Shared>,
        number: u64,
        broker: i32,
        connection: Connection,
        topic: Uuid,
        member: &str,
    ) -> Self {
        Self {
            shared: shared.clone(),
            number,
            broker,
            connection,
            topic,
            member: member.to_owned(),
            epoch: 0,
            wanted: BTreeSet::new(),
            held: Vec::new(),
        }
    }

    /// Whether it reads nothing and holds nothing.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.held.is_empty()
    }

    /// Says what is due, and acquires more of these partitions. Whether the broker serves all of them.
    ///
    /// # Errors
    /// The session has ended.
    pub async fn turn(
        &mut self,
        partitions: &BTreeSet<i32>,
        mood: &Mood,
        dice: &mut Dice,
    ) -> Result<bool, String> {
        let mut said = self.due(dice);
        let mut serves = true;
        let apart = said.keys().any(|partition| !partitions.contains(partition));
        if !said.is_empty() && (apart || dice.chance(500)) {
            serves = self.acknowledge(std::mem::take(&mut said)).await?;
        }
        let fetched = self.fetch(partitions, said, mood, dice).await?;
        Ok(serves && fetched)
    }

    /// Ends the session; what is held and not said goes back, or is accepted.
    pub async fn end(&mut self, accepts: bool) -> Result<(), String> {
        let mut said: BTreeMap<i32, Vec<Words>> = BTreeMap::new();
        if accepts {
            for held in std::mem::take(&mut self.held) {
                let words = vec![Said::Accept; (held.last - held.first + 1) as usize];
                let of = said.entry(held.partition).or_default();
                of.push((held.first, held.last, words));
            }
        }
        in_order(&mut said);
        self.epoch = ENDS;
        self.acknowledge(said).await.map(drop)
    }

    /// Forgets what it holds: nobody works on it.
    pub fn abandon(&mut self) {
        self.shared.judge.gone(self.number);
        self.held.clear();
    }

    /// What is said now, by partition. At the end everything is accepted at once.
    fn due(&mut self, dice: &mut Dice) -> BTreeMap<i32, Vec<Words>> {
        let (now, last) = (os::now(), self.shared.load.is_stopping());
        let mut said: BTreeMap<i32, Vec<Words>> = BTreeMap::new();
        for held in self.held.extract_if(.., |held| last || held.due <= now) {
            let count = (held.last - held.first + 1) as usize;
            let one = |dice: &mut Dice| match dice.below(1000) {
                _ if last => Said::Accept,
                0..=99 => Said::Release,
                100..=149 => Said::Reject,
                _ => Said::Accept,
            };
            let words = match dice.chance(300) {
                true => (0..count).map(|_| one(dice)).collect(),
                false => vec![one(dice); count],
            };
            let of = said.entry(held.partition).or_default();
            of.push((held.first, held.last, words));
        }
        in_order(&mut said);
        said
    }

    /// Tells the judge what is about to be said; by partition, the number of its answer.
    fn says(&self, said: &BTreeMap<i32, Vec<Words>>) -> BTreeMap<i32, u64> {
        let numbers = said.iter().map(|(partition, said)| {
            let runs = said.iter().flat_map(|(first, _, words)| {
                (*first..).zip(words).map(|(at, what)| (at, at, *what))
            });
            let runs: Vec<_> = runs.collect();
            let judge = &self.shared.judge;
            let number = judge.says(self.number, *partition as u32, &runs);
            (*partition, number)
        });
        numbers.collect()
    }

    fn answered(&self, number: Option<u64>, code: i16) {
        let Some(number) = number else {
            return;
        };
        let is = |error: ResponseError| code == error.code();
        if is(ResponseError::InvalidRequest) {
            let text = "what a member of the share group said makes no sense to its broker";
            self.shared.load.complain(text.to_owned());
        }
        let answer = match code {
            0 => Answer::Kept,
            _ if is(ResponseError::InvalidRecordState) => Answer::NotHeld,
            _ => Answer::Unknown,
        };
        self.shared.judge.answered(number, answer, os::now());
    }

    /// What has no answer may count or not.
    fn unanswered(&self, numbers: BTreeMap<i32, u64>) {
        for number in numbers.into_values() {
            self.shared
                .judge
                .answered(number, Answer::Unknown, os::now());
        }
    }

    /// Whether the broker serves the partitions.
    async fn acknowledge(&mut self, said: BTreeMap<i32, Vec<Words>>) -> Result<bool, String> {
        let mut numbers = self.says(&said);
        let partitions = said.into_iter().map(|(partition, said)| {
            let batches = said.into_iter().map(|(first, last, words)| {
                acknowledging::AcknowledgementBatch::default()
                    .with_first_offset(first as i64)
                    .with_last_offset(last as i64)
                    .with_acknowledge_types(kinds(&words))
            });
            acknowledging::AcknowledgePartition::default()
                .with_partition_index(partition)
                .with_acknowledgement_batches(batches.collect())
        });
        let topic = acknowledging::AcknowledgeTopic::default()
            .with_topic_id(self.topic)
            .with_partitions(partitions.collect());
        let request = ShareAcknowledgeRequest::default()
            .with_group_id(Some(GroupId(words(GROUP_NAME))))
            .with_member_id(Some(words(&self.member)))
            .with_share_session_epoch(self.epoch)
            .with_topics(vec![topic]);
        let sent = os::now();
        let answer = self
            .connection
            .call(ApiKey::ShareAcknowledge, 1, &request, Duration::ZERO);
        let answer: ShareAcknowledgeResponse = match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                self.unanswered(numbers);
                return Err(error);
            }
        };
        if answer.error_code != 0 {
            self.unanswered(numbers);
            return Err(format!("ShareAcknowledge: error {}", answer.error_code));
        }
        self.shared.judge.alive(self.number, sent);
        self.epoch = self.epoch.saturating_add(1);
        let mut serves = true;
        for part in answer.responses.iter().flat_map(|topic| &topic.partitions) {
            serves &= part.error_code == 0;
            self.answered(numbers.remove(&part.partition_index), part.error_code);
        }
        self.unanswered(numbers);
        Ok(serves)
    }

    async fn fetch(
        &mut self,
        partitions: &BTreeSet<i32>,
        mut said: BTreeMap<i32, Vec<Words>>,
        mood: &Mood,
        dice: &mut Dice,
    ) -> Result<bool, String> {
        let mut numbers = self.says(&said);
        let named = partitions.iter().filter(|partition| {
            self.epoch == 0 || !self.wanted.contains(partition) || said.contains_key(partition)
        });
        let named: Vec<i32> = named.copied().collect();
        let named = named.into_iter().map(|partition| {
            let said = said.remove(&partition).unwrap_or_default();
            let batches = said.into_iter().map(|(first, last, words)| {
                fetching::AcknowledgementBatch::default()
                    .with_first_offset(first as i64)
                    .with_last_offset(last as i64)
                    .with_acknowledge_types(kinds(&words))
            });
            fetching::FetchPartition::default()
                .with_partition_index(partition)
                .with_acknowledgement_batches(batches.collect())
        });
        let topic = fetching::FetchTopic::default()
            .with_topic_id(self.topic)
            .with_partitions(named.collect());
        let forgotten: Vec<i32> = self.wanted.difference(partitions).copied().collect();
        let mut request = ShareFetchRequest::default()
            .with_group_id(Some(GroupId(words(GROUP_NAME))))
            .with_member_id(Some(words(&self.member)))
            .with_share_session_epoch(self.epoch)
            .with_max_wait_ms(mood.wait.as_millis() as i32)
            .with_min_bytes(1)
            .with_max_bytes(MOST_BYTES)
            .with_max_records(mood.records)
            .with_batch_size(mood.records)
            .with_topics(vec![topic]);
        if !forgotten.is_empty() {
            let forgotten = fetching::ForgottenTopic::default()
                .with_topic_id(self.topic)
                .with_partitions(forgotten);
            request = request.with_forgotten_topics_data(vec![forgotten]);
        }
        let (owners, sent) = (self.reigns(partitions), os::now());
        let answer = self
            .connection
            .call(ApiKey::ShareFetch, 1, &request, mood.wait);
        let answer: ShareFetchResponse = match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                self.unanswered(numbers);
                let partitions = partitions.iter().map(|partition| *partition as u32);
                self.shared.judge.lost(partitions);
                return Err(error);
            }
        };
        if answer.error_code != 0 {
            self.unanswered(numbers);
            return Err(format!("ShareFetch: error {}", answer.error_code));
        }
        self.shared.judge.alive(self.number, sent);
        self.epoch = self.epoch.saturating_add(1);
        self.wanted.clone_from(partitions);
        let (owners_now, mut serves) = (self.reigns(partitions), true);
        for part in answer.responses.iter().flat_map(|topic| &topic.partitions) {
            let partition = part.partition_index;
            serves &= part.error_code == 0 && part.acknowledge_error_code == 0;
            self.answered(numbers.remove(&partition), part.acknowledge_error_code);
            let reign = owners.get(&partition);
            let reign = reign.filter(|reign| owners_now.get(&partition) == Some(reign));
            self.take(part, sent, reign.copied(), mood, dice);
        }
        self.unanswered(numbers);
        Ok(serves)
    }

    /// Of which partitions the broker is the recorded owner now.
    fn reigns(&self, partitions: &BTreeSet<i32>) -> BTreeMap<i32, Reign> {
        let ended = inside::shares_ended();
        let owned = partitions.iter().filter_map(|partition| {
            let (owner, epoch) = self.shared.owner(*partition as u32)?;
            (i64::from(owner) == i64::from(self.broker)).then_some((*partition, (epoch, ended)))
        });
        owned.collect()
    }

    /// Notes what a fetch acquired, and when the work on it will be done.
    fn take(
        &mut self,
        part: &fetched::PartitionData,
        sent: Duration,
        reign: Option<Reign>,
        mood: &Mood,
        dice: &mut Dice,
    ) {
        let (partition, got) = (part.partition_index, os::now());
        let numbers = match numbers(part.records.as_deref().unwrap_or_default()) {
            Ok(numbers) => numbers,
            Err(error) => {
                let text = format!("records for the share group in partition {partition}: {error}");
                return self.shared.load.complain(text);
            }
        };
        for run in &part.acquired_records {
            let (first, last) = (run.first_offset as u64, run.last_offset as u64);
            let delivery = Delivery {
                session: self.number,
                partition: partition as u32,
                first,
                last,
                count: run.delivery_count as u16,
                sent,
                got,
                reign,
            };
            self.shared.judge.got(&delivery, &numbers);
            // Acquired anew after its lock had ended.
            self.held.retain(|held| {
                held.partition != partition || held.last < first || held.first > last
            });
            let mut at = first;
            while at <= last {
                let until = last.min(at + dice.below(10));
                let work = Duration::from_micros(dice.below(mood.work.as_micros() as u64 + 1));
                let late = match dice.chance(mood.slow) {
                    true => self.shared.plan.lock * 3 / 2,
                    false => Duration::ZERO,
                };
                self.held.push(Held {
                    partition,
                    first: at,
                    last: until,
                    due: got + work + late,
                });
                at = until + 1;
            }
        }
    }
}

/// Brokers take what is said of a partition in the order of its records.
fn in_order(said: &mut BTreeMap<i32, Vec<Words>>) {
    for of in said.values_mut() {
        of.sort_by_key(|(first, ..)| *first);
    }
}

/// As Kafka's protocol says it: once for all records, or of each.
fn kinds(words: &[Said]) -> Vec<i8> {
    let kind = |said: &Said| match said {
        Said::Accept => 1,
        Said::Release => 2,
        Said::Reject => 3,
    };
    match words {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => vec![kind(first)],
        words => words.iter().map(kind).collect(),
    }
}

/// What records say, by offset.
fn numbers(bytes: &[u8]) -> Result<BTreeMap<u64, u64>, String> {
    let (mut numbers, mut scratch) = (BTreeMap::new(), Vec::new());
    for batch in batches(bytes) {
        let (header, batch) = batch.map_err(|error| error.to_string())?;
        let records = Records::open(batch, LONGEST_BATCH, &mut scratch);
        for record in records.map_err(|error| error.to_string())? {
            let record = record.map_err(|error| error.to_string())?;
            let value = record.value.ok_or("a record without a value")?;
            let payload = payload::decode(value).map_err(|error| error.to_string())?;
            let offset = header.base_ordinal + u64::from(record.ordinal_delta);
            numbers.insert(offset, payload.seq);
        }
    }
    Ok(numbers)
}
