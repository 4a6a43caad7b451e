//! ShareFetch.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::share_fetch_response::{
    AcquiredRecords, PartitionData, ShareFetchableTopicResponse,
};
use kafka_protocol::messages::{ShareFetchRequest, ShareFetchResponse};
use kera_broker::data::memory_budget::TURN_WITHIN;
use kera_broker::shares::Shares;
use kera_protocol::ids::Ordinal;
use tokio::time::Instant;

use super::acknowledge::{self, Outcomes, Said};
use super::read::{self, Got, Look};
use super::session::{BEGINS, ENDS, Key, ShareSession};
use super::wait::HeadsMove;
use super::{not_served, who};
use crate::context::Ctx;
use crate::refusal::Refusal;
use crate::wire::share::{Fetched, Renewing};

/// Most bytes of records in an answer; one batch may be longer.
const MOST_BYTES: usize = 4 << 20;
/// Longest wait for records.
const MOST_WAIT: Duration = Duration::from_secs(60);
/// What clients are told of locks where nothing was read yet: Kafka's default.
const LOCK_MS: u64 = 30_000;

/// Where there was nothing to acquire: where to read next, and the head; `None` if all that may be acquired is.
type Seen = Option<(Ordinal, Ordinal)>;
/// What is answered of each partition.
type Parts = BTreeMap<Key, Result<Got, Refusal>>;

/// ShareFetch.
pub(crate) async fn share_fetch(
    ctx: &Ctx,
    _version: i16,
    request: Renewing<ShareFetchRequest>,
) -> Fetched {
    Fetched(match fetch(ctx, request).await {
        Ok(response) => response,
        Err(refusal) => ShareFetchResponse::default()
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text())),
    })
}

/// A request that renews locks gets no records, and says so.
fn check_renewal(request: &Renewing<ShareFetchRequest>) -> Result<(), Refusal> {
    let invalid = |text: String| Err(Refusal::new(ResponseError::InvalidRequest, text));
    let mode = request.acquire_mode;
    if !(0..=1).contains(&mode) {
        return invalid(format!("the acquire mode is 0 or 1, and not {mode}"));
    }
    let fetch = &request.request;
    let wanted = [
        fetch.max_bytes,
        fetch.min_bytes,
        fetch.max_records,
        fetch.max_wait_ms,
    ];
    if request.renews && wanted != [0; 4] {
        let text = "a request that renews locks gets no records: its least and most bytes, most records and longest wait are 0";
        return invalid(text.to_owned());
    }
    Ok(())
}

async fn fetch(
    ctx: &Ctx,
    request: Renewing<ShareFetchRequest>,
) -> Result<ShareFetchResponse, Refusal> {
    check_renewal(&request)?;
    let Renewing {
        request, renews, ..
    } = request;
    let who = who(ctx, request.group_id.as_ref(), request.member_id.as_ref())?;
    let epoch = request.share_session_epoch;
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
    let deadline = Instant::now() + wait.min(MOST_WAIT);
    let bytes = usize::try_from(request.max_bytes).unwrap_or(0);
    let limits = Limits {
        bytes: bytes.min(MOST_BYTES),
        records: u64::try_from(request.max_records).unwrap_or(0).max(1),
    };
    let mut said = Said::new();
    let mut wanted = Vec::new();
    for topic in request.topics {
        for partition in topic.partitions {
            let key = (topic.topic_id, partition.partition_index);
            wanted.push(key);
            let batches = partition.acknowledgement_batches.into_iter();
            let batches = batches.map(|b| (b.first_offset, b.last_offset, b.acknowledge_types));
            let mut batches = batches.peekable();
            if batches.peek().is_some() {
                said.entry(key).or_default().extend(batches);
            }
        }
    }
    if epoch == BEGINS && !said.is_empty() {
        let text = "a request that begins a share session acknowledges nothing";
        return Err(Refusal::new(ResponseError::InvalidRequest, text));
    }
    let mut session = ctx.shares.take(&ctx.shared, &who, epoch)?;
    let outcomes = acknowledge::take(ctx, &session, said, renews).await;
    if epoch == ENDS {
        let lock_ms = session.lock_ms();
        // Its locks end with it, before the client hears of it.
        drop(session);
        return Ok(response(lock_ms, outcomes, Parts::new()));
    }
    for key in wanted {
        session.want(key)?;
    }
    for topic in request.forgotten_topics_data {
        for partition in topic.partitions {
            session.forget((topic.topic_id, partition));
        }
    }
    session.hold(&who, &ctx.settings.sessions)?;
    let parts = match renews {
        true => Parts::new(),
        false => session.fetch(ctx, &who.0, &limits, deadline).await,
    };
    let lock_ms = session.lock_ms();
    ctx.shares.put_back(who, session);
    Ok(response(lock_ms, outcomes, parts))
}

/// What a client takes at a time.
struct Limits {
    bytes: usize,
    records: u64,
}

impl ShareSession {
    /// How long what is acquired is locked, milliseconds.
    pub(super) fn lock_ms(&self) -> u64 {
        let mut attached = self.attached.values();
        let config = attached.find_map(|attached| attached.config());
        config.map_or(LOCK_MS, |config| config.lock_ms())
    }

    /// Acquires what there is, or waits for it. Partitions get their turns from where the last answer ended; those where
    /// there was nothing are looked at again once something has changed there.
    async fn fetch(&mut self, ctx: &Ctx, group: &str, limits: &Limits, deadline: Instant) -> Parts {
        let begin = self.begin.min(self.wanted.len());
        let mut turns: Vec<Key> = self.wanted[begin..].to_vec();
        turns.extend_from_slice(&self.wanted[..begin]);
        let mut round: Vec<usize> = (0..turns.len()).collect();
        let mut idle: BTreeMap<usize, Seen> = BTreeMap::new();
        // Others may have their turns before it for longer than it is to wait for records.
        let turn_by = deadline.max(Instant::now() + TURN_WITHIN);
        loop {
            let mut parts = Parts::new();
            let Some(room) = ctx.may_read(turn_by).await else {
                return parts;
            };
            let (mut bytes, mut records) = (limits.bytes.min(room), limits.records);
            for at in round {
                if bytes == 0 || records == 0 {
                    break;
                }
                let key = turns[at];
                match self.look_at(ctx, group, key, bytes, records).await {
                    Ok(Look::Got(got)) => {
                        bytes = bytes.saturating_sub(got.records.len());
                        let acquired = got.acquired.iter().map(|run| run.last - run.first + 1);
                        records = records.saturating_sub(acquired.sum());
                        self.begin = (begin + at + 1) % turns.len();
                        parts.insert(key, Ok(got));
                    }
                    Ok(Look::Nothing(seen)) => {
                        idle.insert(at, seen);
                    }
                    Err(refusal) => {
                        parts.insert(key, Err(refusal));
                    }
                }
            }
            if !parts.is_empty() || Instant::now() >= deadline {
                return parts;
            }
            ctx.has_read_nothing();
            let places = idle.iter().map(|(at, seen)| (turns[*at], *seen));
            self.wait(places.collect(), deadline).await;
            let moved = idle.iter();
            let moved = moved.filter(|(at, seen)| self.has_moved(turns[**at], **seen));
            round = moved.map(|(at, _)| *at).collect();
        }
    }

    /// Whether there may be something in a partition where there was nothing, or it is not served any more.
    fn has_moved(&self, key: Key, seen: Seen) -> bool {
        let Some(attached) = self.attached.get(&key) else {
            return true;
        };
        let head_moved = || {
            let at = attached.place();
            let bounds = at.streamlet.lane_bounds(at.lane);
            seen.is_some_and(|(_, before)| bounds.is_none_or(|(_, head)| head > before))
        };
        attached.next() != seen.map(|(from, _)| from) || head_moved() || attached.ended().is_some()
    }

    /// Waits until there may be something, or until then.
    async fn wait(&self, idle: Vec<(Key, Seen)>, deadline: Instant) {
        let mut heads = HeadsMove::default();
        let mut news: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        let mut until = deadline;
        for (key, seen) in idle {
            let Some(attached) = self.attached.get(&key) else {
                continue;
            };
            news.push(Box::pin(attached.news()));
            // Looked at again from here on, so that no news is missed.
            if attached.next() != seen.map(|(from, _)| from) {
                return;
            }
            if let Some(expiry) = attached.next_expiry() {
                until = until.min(Instant::now() + expiry + Duration::from_millis(1));
            }
            let at = attached.place();
            if let (Some((_, head)), Some(lane)) = (seen, at.streamlet.head(at.lane)) {
                heads.heads.push((lane, head));
            }
        }
        if news.is_empty() {
            news.push(Box::pin(std::future::pending()));
        }
        tokio::select! {
            () = heads => {}
            _ = futures::future::select_all(news) => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }

    async fn look_at(
        &mut self,
        ctx: &Ctx,
        group: &str,
        key: Key,
        bytes: usize,
        records: u64,
    ) -> Result<Look, Refusal> {
        // Each look asks anew: rights may have changed, and leaders.
        let place = read::locate(ctx, key)?;
        let known = self.attached.get(&key);
        if known.is_none_or(|attached| attached.ended().is_some()) {
            self.attached.remove(&key);
            let attached = Shares::attach(&ctx.shared, group, place, self.holder).await;
            let attached = attached.map_err(|error| not_served(&error))?;
            self.attached.insert(key, attached);
        }
        match self.attached.get(&key) {
            Some(attached) => read::look(ctx, attached, bytes, records).await,
            None => Ok(Look::Nothing(None)),
        }
    }
}

fn response(lock_ms: u64, outcomes: Outcomes, parts: Parts) -> ShareFetchResponse {
    let mut partitions: BTreeMap<Key, PartitionData> = BTreeMap::new();
    let empty = |(_, partition): Key| {
        PartitionData::default()
            .with_partition_index(partition)
            .with_error_message(None)
            .with_acknowledge_error_message(None)
            .with_records(Some(Bytes::new()))
    };
    for (key, outcome) in outcomes {
        let mut data = empty(key);
        if let Err(refusal) = outcome {
            data.acknowledge_error_code = refusal.code;
            data.acknowledge_error_message = Some(refusal.text());
        }
        partitions.insert(key, data);
    }
    for (key, part) in parts {
        let data = partitions.entry(key).or_insert_with(|| empty(key));
        match part {
            Ok(got) => {
                data.records = Some(got.records);
                let acquired = got.acquired.into_iter().map(|run| {
                    AcquiredRecords::default()
                        .with_first_offset(run.first as i64)
                        .with_last_offset(run.last as i64)
                        .with_delivery_count(i16::try_from(run.deliveries).unwrap_or(i16::MAX))
                });
                data.acquired_records = acquired.collect();
            }
            Err(refusal) => {
                data.error_code = refusal.code;
                data.error_message = Some(refusal.text());
            }
        }
    }
    let mut topics: Vec<ShareFetchableTopicResponse> = Vec::new();
    for ((id, _), data) in partitions {
        match topics.last_mut() {
            Some(topic) if topic.topic_id == id => topic.partitions.push(data),
            _ => topics.push(
                ShareFetchableTopicResponse::default()
                    .with_topic_id(id)
                    .with_partitions(vec![data]),
            ),
        }
    }
    ShareFetchResponse::default()
        .with_error_message(None)
        .with_acquisition_lock_timeout_ms(i32::try_from(lock_ms).unwrap_or(i32::MAX))
        .with_responses(topics)
}
