//! Append frames: check, place, pump, wait for the durable head, acknowledge.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kera_log_segments::group::{AckPolicy, Group};
use kera_protocol::batch::{self, BatchError, BatchHeader};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Ordinal, StreamId, StreamletId};
use kera_protocol::v1;
use kera_streamlet::producers::{REMEMBERED_BATCHES, SequenceError};
use kera_streamlet::{AppendError, AppendSpec, Appended, Outcome, Settings, Streamlet};

use crate::clock::now_ms;
use crate::start::Shared;

/// A write to the page cache that takes longer than this means the disk cannot keep up: the next
/// ones are made where blocking is allowed.
const STALL: std::time::Duration = std::time::Duration::from_millis(5);

/// An append frame whose batches have their places and wait for durability.
pub struct PendingAppend {
    /// Of its frame.
    pub correlation: u32,
    /// Bytes of its batches, for the limits.
    pub bytes: usize,
    /// When it was received.
    pub received: Instant,
    first_base: Ordinal,
    all_duplicates: bool,
    append_time_ms: u64,
    /// The last batch's place: durable when its lane's head is past it.
    last: Appended,
}

/// What became of an append frame at its arrival.
pub enum Placed {
    /// Its batches have their places.
    Pending(PendingAppend),
    /// Memory is short: try the frame again, with the same [`Partial`].
    Later,
    /// It was refused.
    Refused(WireError),
}

/// How much of a frame is placed already, while memory is short.
#[derive(Default)]
pub struct Partial {
    at: usize,
    first_base: Option<Ordinal>,
    fresh: bool,
    last: Option<Appended>,
}

/// Places the batches of an append frame, which are patched in place.
pub fn place(
    shared: &Shared,
    correlation: u32,
    request: &v1::AppendRequest,
    body: &mut [u8],
    partial: &mut Partial,
    touched: &mut Vec<Arc<Group>>,
) -> Placed {
    match place_all(shared, correlation, request, body, partial, touched) {
        Ok(placed) => placed,
        Err(error) => {
            shared.metrics.append_errors.inc();
            Placed::Refused(error)
        }
    }
}

fn place_all(
    shared: &Shared,
    correlation: u32,
    request: &v1::AppendRequest,
    body: &mut [u8],
    partial: &mut Partial,
    touched: &mut Vec<Arc<Group>>,
) -> Result<Placed, WireError> {
    let streamlet = find_streamlet(shared, &request.stream, request.streamlet)?;
    let settings = streamlet.settings();
    let now = now_ms();
    let spec = AppendSpec {
        lane: request.lane,
        lane_generation: Some(request.lane_generation),
        now_ms: now,
    };
    let bytes = body.len();
    if bytes == 0 {
        return Err(WireError::new(
            ErrorCode::InvalidBatch,
            "append holds no batch; send at least one",
        ));
    }
    check(&streamlet, &body[partial.at..])?;
    check_repeatable(&streamlet, body)?;
    while partial.at < bytes {
        let header =
            BatchHeader::peek(&body[partial.at..]).map_err(|e| batch_error(&streamlet, &e))?;
        let end = partial.at + header.total_bytes;
        let batch = &mut body[partial.at..end];
        let appended = match place_batch(shared, &streamlet, &settings, batch, spec, touched) {
            Ok(appended) => appended,
            Err(Refused::Batch(error)) => return Err(batch_error(&streamlet, &error)),
            Err(Refused::Append(AppendError::NoMemory)) => return Ok(Placed::Later),
            Err(Refused::Append(error)) => return Err(append_error(&streamlet, &error)),
        };
        partial.first_base.get_or_insert(appended.base_ordinal);
        partial.fresh |= !appended.duplicate;
        partial.last = Some(appended);
        partial.at = end;
    }
    let Some(last) = partial.last.take() else {
        return Err(WireError::new(
            ErrorCode::InvalidBatch,
            "append holds no batch; send at least one",
        ));
    };
    Ok(Placed::Pending(PendingAppend {
        correlation,
        bytes,
        received: Instant::now(),
        first_base: partial.first_base.unwrap_or(0),
        all_duplicates: !partial.fresh,
        append_time_ms: now,
        last,
    }))
}

/// Why a batch has no place.
#[derive(Debug)]
pub enum Refused {
    /// Its bytes.
    Batch(BatchError),
    /// The streamlet's answer.
    Append(AppendError),
}

/// Checks checksum and header of every batch in `body`, before anything of it is placed, so that
/// damaged bytes are refused whole.
///
/// # Errors
/// What the first batch that is wrong is refused with.
fn check(streamlet: &Streamlet, body: &[u8]) -> Result<(), WireError> {
    let mut rest = body;
    while !rest.is_empty() {
        let header = batch::verify(rest).map_err(|e| batch_error(streamlet, &e))?;
        batch::check_produced(&header).map_err(|e| batch_error(streamlet, &e))?;
        rest = &rest[header.total_bytes..];
    }
    Ok(())
}

/// Refuses a frame of several batches unless its sender may send all of it again after it was
/// refused half-way: each batch that had its place by then is recognised. With batches of one
/// producer they also share one lane, whose durable head acknowledges them together.
fn check_repeatable(streamlet: &Streamlet, body: &[u8]) -> Result<(), WireError> {
    let peek = |at: usize| BatchHeader::peek(&body[at..]).map_err(|e| batch_error(streamlet, &e));
    let first = peek(0)?;
    let (mut at, mut batches) = (first.total_bytes, 1);
    while at < body.len() {
        let next = peek(at)?;
        batches += 1;
        let same =
            (next.producer_id, next.producer_epoch) == (first.producer_id, first.producer_epoch);
        if !first.is_idempotent() || !same || batches > REMEMBERED_BATCHES {
            let text = format!(
                "stream {}: an append of several batches holds at most {REMEMBERED_BATCHES}, all of one \
                 idempotent producer; send each of the others in an append of its own",
                streamlet.stream()
            );
            return Err(WireError::new(ErrorCode::InvalidBatch, text));
        }
        at += next.total_bytes;
    }
    Ok(())
}

/// Places one batch that was checked, patched in place, and notes the group that is to be pumped.
///
/// # Errors
/// [`Refused`]; nothing was appended.
pub fn place_batch(
    shared: &Shared,
    streamlet: &Streamlet,
    settings: &Settings,
    batch: &mut [u8],
    spec: AppendSpec,
    touched: &mut Vec<Arc<Group>>,
) -> Result<Appended, Refused> {
    if settings.append_time {
        batch::patch_append_time(batch, spec.now_ms as i64);
    }
    let header = BatchHeader::peek(batch).map_err(Refused::Batch)?;
    let appended = streamlet
        .append(batch, &header, spec)
        .map_err(Refused::Append)?;
    if appended.duplicate {
        shared.metrics.duplicates.inc();
    } else {
        shared.metrics.appended_records.inc_by(header.ordinals());
        shared
            .metrics
            .appended_bytes
            .inc_by(header.total_bytes as u64);
    }
    if !touched
        .iter()
        .rev()
        .take(4)
        .any(|g| Arc::ptr_eq(g, &appended.group))
    {
        touched.push(appended.group.clone());
    }
    Ok(appended)
}

/// Makes what was appended durable, as far as it is the appender's to do. No lock is held.
pub fn pump(shared: &Shared, touched: &mut Vec<Arc<Group>>) {
    for group in touched.drain(..) {
        if group.policy() == AckPolicy::Written && shared.stalling.load(Ordering::Relaxed) {
            tokio::task::block_in_place(|| timed(shared, &group));
        } else {
            timed(shared, &group);
        }
    }
}

fn timed(shared: &Shared, group: &Arc<Group>) {
    let begun = Instant::now();
    group.pump(&shared.env.pump);
    let stalled = begun.elapsed() > STALL;
    if stalled != shared.stalling.load(Ordering::Relaxed) {
        shared.stalling.store(stalled, Ordering::Relaxed);
    }
}

impl PendingAppend {
    /// Looks whether it can be answered; otherwise arranges that `waker` is woken when it may be.
    pub fn poll(&self, waker: &std::task::Waker) -> Option<v1::AppendResponse> {
        match self.last.poll(waker) {
            Outcome::Durable => Some(self.acknowledged()),
            Outcome::Lost => {
                let text = "writing failed after the batch was accepted; send it again";
                Some(refusal(&WireError::new(ErrorCode::StorageError, text)))
            }
            Outcome::Pending => None,
        }
    }

    /// Forgets a waker given to [`Self::poll`].
    pub fn forget(&self, waker: &std::task::Waker) {
        self.last.head.forget(waker);
    }

    fn acknowledged(&self) -> v1::AppendResponse {
        v1::AppendResponse {
            error: 0,
            message: String::new(),
            lane: self.last.lane.0,
            base_ordinal: self.first_base,
            append_time_ms: self.append_time_ms,
            duplicate: self.all_duplicates,
        }
    }
}

/// The reply that carries an error.
pub fn refusal(error: &WireError) -> v1::AppendResponse {
    v1::AppendResponse {
        error: error.code as u32,
        message: error.message.clone(),
        ..Default::default()
    }
}

/// The streamlet a frame names.
///
/// # Errors
/// `UNKNOWN_STREAM` or `UNKNOWN_STREAMLET`.
pub fn find_streamlet(
    shared: &Shared,
    stream: &[u8],
    streamlet: u32,
) -> Result<Arc<Streamlet>, WireError> {
    let id = StreamId::from_slice(stream)
        .ok_or_else(|| WireError::new(ErrorCode::MalformedFrame, "stream id is not 16 bytes"))?;
    match shared.streamlet(id, StreamletId(streamlet)) {
        Some(found) if !found.is_deleted() => Ok(found),
        Some(_) => Err(unknown_stream(id)),
        None => match shared.catalog.get(id) {
            Some(stream) => Err(WireError::new(
                ErrorCode::UnknownStreamlet,
                format!(
                    "stream {} has {} streamlets, there is no {streamlet}",
                    stream.name(),
                    stream.streamlets.len()
                ),
            )),
            None => Err(unknown_stream(id)),
        },
    }
}

fn unknown_stream(id: StreamId) -> WireError {
    WireError::new(
        ErrorCode::UnknownStream,
        format!("no stream has id {id}; it may have been deleted: look its name up again"),
    )
}

/// What a batch that is wrong means to its sender.
fn batch_error(streamlet: &Streamlet, error: &BatchError) -> WireError {
    let code = match error {
        BatchError::Inconsistent(_) | BatchError::BadRecord { .. } => ErrorCode::InvalidBatch,
        BatchError::UnknownCompression(_) => ErrorCode::UnsupportedCompression,
        _ => ErrorCode::CorruptBatch,
    };
    WireError::new(code, format!("stream {}: {error}", streamlet.stream()))
}

/// What a refused append means to its sender.
pub fn append_error(streamlet: &Streamlet, error: &AppendError) -> WireError {
    let code = match error {
        AppendError::UnknownLane { .. } => ErrorCode::UnknownLane,
        AppendError::StaleLanes { .. } => ErrorCode::StaleLanes,
        AppendError::Sequence(SequenceError::Gap { .. }) => ErrorCode::SequenceGap,
        AppendError::Sequence(SequenceError::Fenced { .. }) => ErrorCode::FencedProducer,
        AppendError::Sequence(SequenceError::Unknown { .. }) => ErrorCode::UnknownProducer,
        AppendError::TooLarge { .. } => ErrorCode::BatchTooLarge,
        AppendError::NoMemory => ErrorCode::Overloaded,
        AppendError::DiskFull => ErrorCode::StorageFull,
        AppendError::Recovering => ErrorCode::StorageError,
        AppendError::Deleted => ErrorCode::UnknownStream,
        AppendError::Exhausted => ErrorCode::InvalidArgument,
    };
    WireError::new(
        code,
        format!(
            "stream {} streamlet {}: {error}",
            streamlet.stream(),
            streamlet.id()
        ),
    )
}
