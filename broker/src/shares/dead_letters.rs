//! What share groups give up goes to their dead-letter topics (KIP-1191).

use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::share::GivenUp;
use kera_metadata::LaneBy;
use kera_protocol::batch;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::StreamId;
use kera_protocol::partition::place_of;
use kera_protocol::v1;
use kera_streamlet::{AppendSpec, Appended};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::ask::stream_of;
use super::letters::{Copies, Letter, Origin, read_copies};
use super::owned::Attached;
use crate::admin;
use crate::clock::{now_ms, wall_ms};
use crate::data::accept;
use crate::data::append::{self, Refused, append_error, batch_error, find_streamlet, not_owner};
use crate::data::catalog::Stream;
use crate::others;
use crate::shared::Shared;
use crate::store_calls::blocking;
use crate::transactions::durable;

/// Records of a partition that become dead letters at a time: what an owner that goes leaves may be written twice.
const MOST_AT_ONCE: u64 = 500;
/// Bytes of records that are copied at a time.
const MOST_BYTES: usize = 1 << 20;
/// Partitions whose records are copied at a time: compressed ones take memory.
static COPYING: Semaphore = Semaphore::const_new(2);
/// As many attempts as Kafka makes,
const ATTEMPTS: u32 = 5;
/// this long after the first one, and twice as long after each that follows.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an append may take to become durable, and how much longer another broker's answer.
const DURABLE_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Makes dead letters of what is given up in a partition, until nothing is.
pub(super) async fn bury(attached: Attached) {
    while let Some((given_up, version)) = attached.next_given_up(MOST_AT_ONCE) {
        // What is not kept yet would be delivered again by the next owner, and may be accepted then.
        if attached.kept(version).await.is_err() {
            // Not yet, or never: then the next look finds that all has ended here.
            continue;
        }
        match write(&attached, &given_up).await {
            Ok(()) => {}
            Err(Unwritten::Left) => continue,
            Err(Unwritten::For { letters, reason }) => tell(&attached, letters, &reason),
        }
        attached.buried(&given_up);
    }
}

/// Why records are no dead letters.
enum Unwritten {
    /// Another owner makes them such.
    Left,
    /// Nobody will.
    For { letters: u64, reason: String },
}

fn tell(attached: &Attached, letters: u64, reason: &str) {
    let shares = &attached.shared().shares;
    shares.counts.unwritten_dead_letters.inc_by(letters);
    let Some(others) = shares.untold.lock().due(std::time::Instant::now()) else {
        return;
    };
    let key = attached.key();
    tracing::error!(group = %key.group, stream = %key.stream, partition = key.partition, letters, others, reason, "records that a share group gave up are not in its dead-letter topic, and the group goes on without them");
}

async fn write(attached: &Attached, given_up: &[GivenUp]) -> Result<(), Unwritten> {
    let key = attached.key();
    let copy = attached.config().is_some_and(|c| c.copies_dead_letters());
    let source = attached.shared().data.catalog.get(key.stream);
    let origin = Origin {
        topic: source.map_or_else(|| key.stream.to_string(), |stream| stream.name()),
        partition: key.partition.to_string(),
        group: key.group.to_string(),
    };
    let mut left: u64 = given_up.iter().map(|run| run.last - run.first + 1).sum();
    let (mut letters, mut bytes) = (Vec::new(), 0);
    for run in given_up {
        let mut at = run.first;
        while at <= run.last {
            let mut copies = match copy {
                true => read_run(attached, at, run, MOST_BYTES - bytes).await,
                false => Copies {
                    until: run.last + 1,
                    ..Copies::default()
                },
            };
            bytes += copies.bytes;
            let ordinals = at..copies.until;
            letters.extend(ordinals.map(|at| Letter::of(run, at, copies.found.remove(&at))));
            at = copies.until;
            if bytes >= MOST_BYTES {
                send(attached, &origin, &letters, &mut left).await?;
                letters.clear();
                bytes = 0;
            }
        }
    }
    match letters.is_empty() {
        true => Ok(()),
        false => send(attached, &origin, &letters, &mut left).await,
    }
}

/// Records of a run as they are stored. Those that cannot be had become dead letters without what was in them.
async fn read_run(attached: &Attached, from: u64, run: &GivenUp, most: usize) -> Copies {
    // It is never closed.
    let _one_of_few = COPYING.acquire().await;
    let (place, last) = (attached.place(), run.last);
    let read = blocking(move || Ok::<_, WireError>(read_copies(&place, from, last, most)));
    read.await.unwrap_or_else(|_| Copies {
        until: last + 1,
        ..Copies::default()
    })
}

/// Appends letters to the dead-letter topic; `left` counts those that are not there yet.
async fn send(
    attached: &Attached,
    origin: &Origin,
    letters: &[Letter],
    left: &mut u64,
) -> Result<(), Unwritten> {
    let shared = attached.shared();
    let mut batches = Vec::new();
    let mut attempt = 0;
    loop {
        let outcome = async {
            let topic = topic_of(attached).await?;
            // What is there by now stays, whatever the topic takes by now.
            if batches.is_empty() {
                let limit = topic.record.load().config.max_batch_bytes as usize;
                let built = origin.batches(letters, limit, wall_ms() as i64);
                batches = built.map_err(|error| refused(error.to_string()))?;
                batches.reverse();
            }
            while let Some((batch, count)) = batches.last() {
                let count = *count;
                let of = topic.record.load().config.partitions();
                let request = v1::AppendDeadLettersRequest {
                    stream: topic.id().as_bytes().to_vec().into(),
                    partition: attached.key().partition % of.max(1),
                    batch: batch.clone(),
                };
                append_to(shared, &topic, request).await?;
                shared.shares.counts.dead_letters.inc_by(count);
                *left -= count;
                batches.pop();
            }
            Ok::<(), WireError>(())
        };
        let Err(error) = outcome.await else {
            return Ok(());
        };
        attempt += 1;
        // Of a topic that was just made its owner may not have heard yet.
        let is_passing = error.code.is_retryable() || error.code == ErrorCode::UnknownStream;
        if attempt >= ATTEMPTS || !is_passing {
            return Err(Unwritten::For {
                letters: *left,
                reason: error.to_string(),
            });
        }
        tracing::debug!(group = %attached.key().group, attempt, %error, "dead letters are not written yet");
        tokio::time::sleep(PAUSE * 2_u32.pow(attempt - 1)).await;
        if attached.ended().is_some() {
            return Err(Unwritten::Left);
        }
    }
}

/// An error that stays.
fn refused(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

/// The group's dead-letter topic, made if that is allowed and there is none.
async fn topic_of(attached: &Attached) -> Result<Arc<Stream>, WireError> {
    let (shared, key) = (attached.shared(), attached.key());
    let config = attached.config();
    let name = config.and_then(|config| config.dead_letter_topic());
    let name = name.ok_or_else(|| refused("the group has no dead-letter topic".into()))?;
    let kafka = shared.live().kafka.clone();
    if let Some(prefix) = &kafka.dead_letter_prefix
        && !name.starts_with(prefix)
    {
        return Err(refused(format!(
            "names of dead-letter topics begin with {prefix}, and {name} does not: set errors.deadletterqueue.topic.name of the group, or kafka.dead_letter_prefix"
        )));
    }
    let topic = match shared.data.catalog.named(name) {
        Some(topic) => topic,
        None if kafka.auto_create_dead_letters => {
            let wanted = v1::StreamConfig {
                streamlets: Some(kafka.default_partitions),
                // Letters have the time at which they were written, whatever is usual.
                timestamp_type: Some(v1::TimestampType::Create as i32),
                dead_letters: Some(true),
                ..v1::StreamConfig::default()
            };
            match admin::create_stream(shared, name, &wanted).await {
                Ok(topic) => {
                    tracing::info!(stream = name, group = %key.group, "a dead-letter topic was created");
                    topic
                }
                // Another broker was faster, and this one hears of it.
                Err(error) if error.code == ErrorCode::StreamExists => {
                    return Err(WireError::new(ErrorCode::NotOwner, error.message));
                }
                Err(error) => return Err(error),
            }
        }
        None => {
            return Err(refused(format!(
                "there is no topic {name}: create it with errors.deadletterqueue.group.enable=true, or set kafka.auto_create_dead_letters"
            )));
        }
    };
    check_topic(&topic)?;
    if topic.id() == key.stream {
        return Err(refused(format!(
            "{name} is the topic that the group reads, and what it gives up would come back for ever: set another errors.deadletterqueue.topic.name"
        )));
    }
    Ok(topic)
}

/// Whether a topic may have dead letters.
fn check_topic(topic: &Stream) -> Result<(), WireError> {
    let record = topic.record.load();
    let name = &record.name;
    let wrong = match () {
        () if record.internal => "is the brokers' own",
        () if !record.config.dead_letters => {
            "takes no dead letters: set its errors.deadletterqueue.group.enable to true"
        }
        () if record.config.lane_by != LaneBy::Key => "is no topic: it has lane_by = producer",
        () => return Ok(()),
    };
    Err(refused(format!("{name} {wrong}")))
}

async fn append_to(
    shared: &Arc<Shared>,
    topic: &Stream,
    request: v1::AppendDeadLettersRequest,
) -> Result<(), WireError> {
    let (streamlet, _) = place_of(request.partition, topic.record.load().config.streamlets);
    let streamlet = topic.streamlet(streamlet).ok_or_else(|| {
        let text = "the streamlet is not known here yet; try again";
        WireError::new(ErrorCode::NotOwner, text)
    })?;
    let broker = shared.owner_of(&streamlet).broker;
    if broker == shared.data.directory.me() {
        return append_here(shared, request).await.map(drop);
    }
    let mut stub = others::lanes(shared, broker)?;
    let within = DURABLE_WITHIN + ANSWER_WITHIN;
    others::answer(broker, within, stub.append_dead_letters(request))
        .await
        .map(drop)
}

/// Appends dead letters to a lane of this broker's. Returns once they are durable.
///
/// # Errors
/// Another broker's lane, a topic that takes none, or what an append is refused with.
pub(crate) async fn append_here(
    shared: &Arc<Shared>,
    request: v1::AppendDeadLettersRequest,
) -> Result<v1::AppendDeadLettersResponse, WireError> {
    let stream = stream_of(&request.stream)?;
    let appended = place(shared, stream, &request)?;
    let until = Instant::now() + DURABLE_WITHIN;
    match tokio::time::timeout_at(until, durable(appended)).await {
        Ok(true) => Ok(v1::AppendDeadLettersResponse {}),
        Ok(false) => {
            let text = "the batch was accepted and is lost; append it again";
            Err(WireError::new(ErrorCode::NotOwner, text))
        }
        Err(_) => {
            let text = format!(
                "the batch was not durable within {DURABLE_WITHIN:?}; it may still take effect"
            );
            Err(WireError::new(ErrorCode::Timeout, text))
        }
    }
}

/// Gives a batch its place.
fn place(
    shared: &Shared,
    stream: StreamId,
    request: &v1::AppendDeadLettersRequest,
) -> Result<Appended, WireError> {
    let data = &shared.data;
    let streamlets = {
        let topic = data.catalog.of_id(&request.stream)?;
        // The group's broker has checked this too, so this one has most likely not heard of a change yet.
        check_topic(&topic).map_err(|error| WireError::new(ErrorCode::NotOwner, error.message))?;
        topic.record.load().config.streamlets
    };
    let (streamlet, lane) = place_of(request.partition, streamlets);
    let streamlet = find_streamlet(data, &request.stream, streamlet.0)?;
    if data.directory.is_shared() && !data.directory.serves(stream, streamlet.id()) {
        return Err(not_owner(&streamlet));
    }
    let settings = streamlet.settings();
    let mut batch = request.batch.to_vec();
    let wrong = |error| batch_error(&streamlet, &error);
    let header = batch::verify(&batch).map_err(wrong)?;
    batch::check_produced(&header, &batch).map_err(wrong)?;
    if header.total_bytes != batch.len() || header.is_transactional() {
        return Err(refused(
            "dead letters come as one batch, of no transaction".into(),
        ));
    }
    if settings.rules.any() {
        accept::check(&settings, &header, &batch).map_err(wrong)?;
    }
    let spec = AppendSpec {
        lane: lane.0,
        lane_generation: None,
        now_ms: now_ms(),
        essential: false,
    };
    let stamp = settings.append_time.then(wall_ms);
    let mut touched = Vec::new();
    let placed = append::place_batch(data, &streamlet, stamp, &mut batch, spec, &mut touched);
    let appended = placed.map_err(|refused| match refused {
        Refused::Batch(error) => batch_error(&streamlet, &error),
        Refused::Append(error) => append_error(&streamlet, &error),
    })?;
    append::pump(data, &mut touched);
    Ok(appended)
}
