//! What share groups give up goes to their dead-letter topics (KIP-1191).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
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
use super::letters::{Copied, Copies, Letter, Origin, Room, read_copies};
use super::owned::Attached;
use crate::admin;
use crate::clock::{now_ms, wall_ms};
use crate::data::accept;
use crate::data::append::{self, Refused, append_error, batch_error, find_streamlet, not_owner};
use crate::data::catalog::Stream;
use crate::fault_rules::Rule;
use crate::others;
use crate::shared::Shared;
use crate::store_calls::blocking;
use crate::transactions::durable;

/// Records of a partition that become dead letters at a time: what an owner that goes leaves may be written twice.
const MOST_AT_ONCE: u64 = 500;
/// Bytes of records that are copied at a time.
const MOST_BYTES: usize = 1 << 20;
/// Partitions whose records are read at a time: compressed ones take memory.
static READING: Semaphore = Semaphore::const_new(2);
/// Partitions of which copies are in memory at a time, of each [`MOST_BYTES`] and one record.
static COPYING: Semaphore = Semaphore::const_new(16);
/// As many attempts as Kafka makes,
const ATTEMPTS: u32 = 5;
/// this long after the first one, and twice as long after each that follows.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an append may take to become durable, and how much longer another broker's answer.
const DURABLE_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Makes dead letters of what is given up in a partition, until nothing is.
pub(super) async fn bury(attached: Attached) {
    loop {
        // They go to the topic that is set by now.
        attached.hear_settings().await;
        let Some((given_up, version)) = attached.next_given_up(MOST_AT_ONCE) else {
            return;
        };
        // What is not kept yet would be delivered again by the next owner, and may be accepted then.
        if attached.kept(version).await.is_err() {
            // Not yet, or never: then the next look finds that all has ended here.
            continue;
        }
        if Rule::LettersNotWritten.is_broken() || write(&attached, &given_up).await {
            attached.buried(&given_up);
        }
    }
}

fn tell(attached: &Attached, letters: u64, error: &WireError) {
    let shares = &attached.shared().shares;
    shares.counts.unwritten_dead_letters.inc_by(letters);
    let Some(others) = shares.untold.lock().due(std::time::Instant::now()) else {
        return;
    };
    let (key, reason) = (attached.key(), error.to_string());
    tracing::error!(group = %key.group, stream = %key.stream, partition = key.partition, letters, others, reason, "records that a share group gave up are not in its dead-letter topic, and the group goes on without them");
}

/// What is given up and has no letter yet.
struct Unwritten(VecDeque<GivenUp>);

impl Unwritten {
    fn letters(&self) -> u64 {
        self.0.iter().map(|run| run.last - run.first + 1).sum()
    }

    /// The first records are dealt with.
    fn pass(&mut self, mut records: u64) {
        while let Some(run) = self.0.front_mut() {
            let length = run.last - run.first + 1;
            if records < length {
                run.first += records;
                return;
            }
            records -= length;
            self.0.pop_front();
        }
    }
}

/// Makes dead letters of records, or tells that nobody will. False if another owner does it.
async fn write(attached: &Attached, given_up: &[GivenUp]) -> bool {
    let key = attached.key();
    let source = attached.shared().data.catalog.get(key.stream);
    let origin = Origin {
        topic: source.map_or_else(|| key.stream.to_string(), |stream| stream.name()),
        partition: key.partition.to_string(),
        group: key.group.to_string(),
    };
    let mut unwritten = Unwritten(given_up.iter().copied().collect());
    let mut attempt = 0;
    while !unwritten.0.is_empty() {
        let before = unwritten.letters();
        let last = attempt + 1 == ATTEMPTS;
        let Err(error) = write_first(attached, &origin, &mut unwritten, last).await else {
            attempt = 0;
            continue;
        };
        if attached.ended().is_some() {
            return false;
        }
        if unwritten.letters() < before {
            attempt = 0;
        }
        attempt += 1;
        if attempt >= ATTEMPTS || !is_passing(&error) {
            tell(attached, unwritten.letters(), &error);
            return true;
        }
        tracing::debug!(group = %key.group, attempt, %error, "dead letters are not written yet");
        // Nothing of the records is in memory meanwhile.
        tokio::time::sleep(PAUSE * 2_u32.pow(attempt - 1)).await;
        if attached.ended().is_some() {
            return false;
        }
    }
    true
}

/// Whether another attempt may do better. Of a topic that was just made its owner may not have heard yet.
fn is_passing(error: &WireError) -> bool {
    error.code.is_retryable() || error.code == ErrorCode::UnknownStream
}

/// Makes dead letters of the first records: of all that are copied at a time.
///
/// # Errors
/// One that is not about a letter: what is left has its turn in the next attempt, unless this is the `last`.
async fn write_first(
    attached: &Attached,
    origin: &Origin,
    unwritten: &mut Unwritten,
    last: bool,
) -> Result<(), WireError> {
    let copy = attached.config().is_some_and(|c| c.copies_dead_letters());
    let topic = topic_of(attached).await?;
    // It is never closed.
    let _one_of_few = match copy {
        true => COPYING.acquire().await.ok(),
        false => None,
    };
    let limit = topic.record.load().config.max_batch_bytes as usize;
    let letters = read(attached, unwritten, copy, limit, last).await?;
    let (mut at, mut most) = (0, letters.len());
    while at < letters.len() {
        let first = &letters[at..letters.len().min(at + most)];
        let mut count = 1;
        let outcome = async {
            let built = origin.batch(first, limit, wall_ms() as i64);
            let (batch, letters) = built.map_err(|error| refused(error.to_string()))?;
            count = letters;
            append_to(attached, &topic, batch).await
        };
        match outcome.await {
            Ok(()) => {
                let counts = &attached.shared().shares.counts;
                counts.dead_letters.inc_by(count as u64);
            }
            Err(error) if is_passing(&error) => return Err(error),
            // What the topic does not take of one record costs no other its letter.
            Err(_) if count > 1 => {
                most = count / 2;
                continue;
            }
            Err(error) => tell(attached, 1, &error),
        }
        unwritten.pass(count as u64);
        at += count;
        most = most.saturating_mul(2);
    }
    Ok(())
}

/// The first letters, with copies up to [`MOST_BYTES`] of records and one more.
///
/// # Errors
/// As [`read_run`]. What this owner cannot read in the `last` attempt counts as gone.
async fn read(
    attached: &Attached,
    unwritten: &Unwritten,
    copy: bool,
    limit: usize,
    last: bool,
) -> Result<Vec<Letter>, WireError> {
    let (mut letters, mut bytes) = (Vec::new(), 0);
    for run in &unwritten.0 {
        let mut copies = match copy {
            true => {
                let most = MOST_BYTES.saturating_sub(bytes);
                match read_run(attached, run, Room { most, limit }).await {
                    Err(_) if last && attached.ended().is_none() => Copies::none(run.last + 1),
                    read => read?,
                }
            }
            false => Copies::none(run.last + 1),
        };
        bytes += copies.bytes;
        let mut copied = |at| match copy {
            true => Some(copies.found.remove(&at).unwrap_or(Copied::Gone)),
            false => None,
        };
        let ordinals = run.first..copies.until;
        letters.extend(ordinals.map(|at| Letter::of(run, at, copied(at))));
        if bytes >= MOST_BYTES || copies.until <= run.last {
            break;
        }
    }
    Ok(letters)
}

/// Records of a run as they are stored. Those that are gone become dead letters without what was in them.
///
/// # Errors
/// They may be read later, or by another owner.
async fn read_run(attached: &Attached, run: &GivenUp, room: Room) -> Result<Copies, WireError> {
    // It is never closed.
    let _one_of_few = READING.acquire().await;
    let (place, first, last) = (attached.place(), run.first, run.last);
    blocking(move || read_copies(&place, first, last, room)).await
}

/// An error that stays.
fn refused(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

/// The group's dead-letter topic, made if that is allowed and there is none.
async fn topic_of(attached: &Attached) -> Result<Arc<Stream>, WireError> {
    let (shared, key) = (attached.shared(), attached.key());
    let config = attached.config();
    let name = config
        .as_ref()
        .and_then(|config| config.dead_letter_topic());
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

async fn append_to(attached: &Attached, topic: &Stream, batch: Bytes) -> Result<(), WireError> {
    let shared = attached.shared();
    let (partitions, streamlets) = {
        let record = topic.record.load();
        (record.config.partitions(), record.config.streamlets)
    };
    let request = v1::AppendDeadLettersRequest {
        stream: topic.id().as_bytes().to_vec().into(),
        partition: attached.key().partition % partitions.max(1),
        batch,
    };
    let (streamlet, _) = place_of(request.partition, streamlets);
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
