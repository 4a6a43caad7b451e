//! Append frames: check, place, pump, wait for the durable head, acknowledge.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kera_log_segments::group::{AckPolicy, Group};
use kera_protocol::batch::{self, BatchError, BatchHeader};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{ANY_LANE, Ordinal, StreamletId};
use kera_protocol::v1;
use kera_streamlet::producers::{REMEMBERED_BATCHES, SequenceError};
use kera_streamlet::transactions::TransactionError;
use kera_streamlet::{AppendError, AppendSpec, Appended, Outcome, Settings, Streamlet, Traffic};

use super::DataPlane;
use super::accept;
use super::catalog::{stream_id, unknown_id};
use super::traced::TracedAppend;
use crate::clock::{now_ms, wall_ms};
use crate::fault_rules::Rule;

/// A write to the page cache that takes longer than this means the disk cannot keep up: the next
/// ones are made where blocking is allowed.
const STALL: std::time::Duration = std::time::Duration::from_millis(5);

/// An append that is not durable by then is answered with a timeout, unless it waits for copies.
const APPEND_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// A broker whose lease has ended answers appends that wait for copies this soon: another may own the
/// streamlet.
const DEPOSED_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

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
    streamlet: Arc<Streamlet>,
    traced: Option<Box<TracedAppend>>,
}

/// What became of an append frame at its arrival.
pub enum Placed {
    /// Its batches have their places.
    Pending(PendingAppend),
    /// Memory is short: try the frame again, with the same [`Partial`].
    Later,
    /// It was refused, with this answer.
    Refused(v1::AppendResponse),
}

/// How much of a frame is placed already, while memory is short.
#[derive(Default)]
pub struct Partial {
    at: usize,
    first_base: Option<Ordinal>,
    fresh: bool,
    last: Option<Appended>,
    traced: Option<Box<TracedAppend>>,
}

impl Partial {
    /// Whether batches of a frame that is refused now may be stored.
    pub fn placement(&self) -> v1::Placement {
        match self.first_base {
            None => v1::Placement::NotPlaced,
            Some(_) => v1::Placement::MayBePlaced,
        }
    }
}

/// Places the batches of an append frame, which are patched in place.
pub fn place(
    data: &DataPlane,
    correlation: u32,
    request: &v1::AppendRequest,
    body: &mut [u8],
    partial: &mut Partial,
    touched: &mut Vec<Arc<Group>>,
) -> Placed {
    match place_all(data, correlation, request, body, partial, touched) {
        Ok(placed) => placed,
        Err(error) => {
            data.metrics.append_errors.inc();
            Placed::Refused(refusal(&error, partial.placement()))
        }
    }
}

fn place_all(
    data: &DataPlane,
    correlation: u32,
    request: &v1::AppendRequest,
    body: &mut [u8],
    partial: &mut Partial,
    touched: &mut Vec<Arc<Group>>,
) -> Result<Placed, WireError> {
    let streamlet = find_streamlet(data, &request.stream, request.streamlet)?;
    let settings = streamlet.settings();
    let begun = Instant::now();
    let now = now_ms();
    let stamp = settings.append_time.then(wall_ms);
    let spec = AppendSpec {
        lane: request.lane,
        lane_generation: Some(request.lane_generation),
        now_ms: now,
        essential: false,
    };
    let bytes = body.len();
    if bytes == 0 {
        return Err(WireError::new(
            ErrorCode::InvalidBatch,
            "append holds no batch; send at least one",
        ));
    }
    if settings.rules.internal {
        return Err(internal(&streamlet));
    }
    if settings.uneven_partitions != request.partitions {
        check_split(&streamlet, &settings, request)?;
    }
    check(&streamlet, &settings, request, &body[partial.at..])?;
    check_repeatable(&streamlet, body)?;
    while partial.at < bytes {
        let header =
            BatchHeader::peek(&body[partial.at..]).map_err(|e| batch_error(&streamlet, &e))?;
        let end = partial.at + header.total_bytes;
        let batch = &mut body[partial.at..end];
        let appended = match place_batch(data, &streamlet, stamp, batch, spec, touched) {
            Ok(appended) => appended,
            Err(Refused::Batch(error)) => return Err(batch_error(&streamlet, &error)),
            Err(Refused::Append(AppendError::NoMemory)) => return Ok(Placed::Later),
            Err(Refused::Append(error)) => return Err(append_error(&streamlet, &error)),
        };
        if partial.traced.is_none() {
            let batch = &body[partial.at..end];
            partial.traced = TracedAppend::begin(data, &streamlet, batch, &appended, begun);
        }
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
        received: begun,
        first_base: partial.first_base.unwrap_or(0),
        all_duplicates: !partial.fresh,
        append_time_ms: stamp.unwrap_or(now),
        last,
        streamlet,
        traced: partial.traced.take(),
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

/// The refusal of an append to an internal stream.
fn internal(streamlet: &Streamlet) -> WireError {
    let text = format!(
        "stream {} is the broker's own, and nobody else appends to it; choose another stream",
        streamlet.stream()
    );
    WireError::new(ErrorCode::InvalidName, text)
}

/// Checks checksum and header of every batch in `body`, and what else its stream asks for, before
/// anything of it is placed, so that damaged bytes are refused whole.
///
/// # Errors
/// What the first batch that is wrong is refused with.
fn check(
    streamlet: &Streamlet,
    settings: &Settings,
    request: &v1::AppendRequest,
    body: &[u8],
) -> Result<(), WireError> {
    let mut rest = body;
    // Whose transaction the batches are of, if they are. That its producer id belongs to the transactional id is asked of
    // the first one alone.
    let mut first = None;
    while !rest.is_empty() {
        let header = batch::verify(rest).map_err(|e| batch_error(streamlet, &e))?;
        batch::check_produced(&header, rest).map_err(|e| batch_error(streamlet, &e))?;
        if settings.rules.any() {
            accept::check(settings, &header, rest).map_err(|e| batch_error(streamlet, &e))?;
        }
        let of = header.is_transactional().then_some(header.producer_id);
        if *first.get_or_insert(of) != of {
            let stream = streamlet.stream();
            let text = format!(
                "stream {stream}: batches of one append are of one producer's transaction, or of none; send them one by one"
            );
            return Err(WireError::new(ErrorCode::InvalidBatch, text));
        }
        if of.is_some() {
            check_transactional(streamlet, settings, request)?;
        }
        rest = &rest[header.total_bytes..];
    }
    Ok(())
}

/// Whether batches of a transaction may be appended so.
fn check_transactional(
    streamlet: &Streamlet,
    settings: &Settings,
    request: &v1::AppendRequest,
) -> Result<(), WireError> {
    let stream = streamlet.stream();
    let (code, text) = if request.transactional_id.is_empty() {
        let text = "a batch of a transaction came without its transactional id; name it";
        (ErrorCode::InvalidBatch, text)
    } else if request.lane == ANY_LANE {
        let text = "a batch of a transaction names its lane, which is part of the transaction";
        (ErrorCode::InvalidArgument, text)
    } else if settings.ack == AckPolicy::Memory {
        (ErrorCode::InvalidArgument, NO_TRANSACTIONS)
    } else {
        return Ok(());
    };
    Err(WireError::new(code, format!("stream {stream}: {text}")))
}

/// Why a stream takes no transactions that acknowledges in memory.
pub(crate) const NO_TRANSACTIONS: &str = "it has ack = memory, which promises nothing that a transaction needs; alter it to written or synced";

/// Refuses batches of a client that takes each streamlet to have as many lanes as the others: its keys
/// would go to other lanes than everybody else's. What was split for an older generation is refused
/// later, unless it is a retry.
fn check_split(
    streamlet: &Streamlet,
    settings: &Settings,
    request: &v1::AppendRequest,
) -> Result<(), WireError> {
    if request.partitions != 0 || request.lane_generation != settings.lane_generation {
        return Ok(());
    }
    Err(WireError::new(
        ErrorCode::UnsupportedVersion,
        format!(
            "stream {} has {} partitions, which its streamlets hold in unequal numbers, and this producer is of a version that does not split keys so; update it, or grow the stream to a multiple of its streamlets",
            streamlet.stream(),
            settings.uneven_partitions
        ),
    ))
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

/// Places one batch that was checked, patched in place, and notes the group that is to be pumped. Where
/// the stream has the broker's time, `stamp` is [`wall_ms`].
///
/// # Errors
/// [`Refused`]; nothing was appended.
pub fn place_batch(
    data: &DataPlane,
    streamlet: &Streamlet,
    stamp: Option<u64>,
    batch: &mut [u8],
    spec: AppendSpec,
    touched: &mut Vec<Arc<Group>>,
) -> Result<Appended, Refused> {
    if let Some(stamp) = stamp {
        batch::patch_append_time(batch, stamp as i64);
    }
    let mut header = BatchHeader::peek(batch).map_err(Refused::Batch)?;
    if Rule::DuplicatesStored.is_broken() {
        header.producer_id = -1;
    }
    let appended = streamlet.append(batch, &header, spec).map_err(|error| {
        // What this broker knows of producers and lanes may be of before another owned the streamlet,
        // and what is refused by it would be refused for good.
        Refused::Append(match error {
            AppendError::Sequence(_) | AppendError::StaleLanes { .. }
                if !data.directory.is_current() && !Rule::StaleSequenceRefused.is_broken() =>
            {
                AppendError::NotOwner
            }
            error => error,
        })
    })?;
    if appended.duplicate {
        data.metrics.duplicates.inc();
    } else {
        data.metrics.appended_records.inc_by(header.ordinals());
        data.metrics
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
pub fn pump(data: &DataPlane, touched: &mut Vec<Arc<Group>>) {
    for group in touched.drain(..) {
        if group.policy() == AckPolicy::Written && data.stalling.load(Ordering::Relaxed) {
            tokio::task::block_in_place(|| timed(data, &group));
        } else {
            timed(data, &group);
        }
    }
}

fn timed(data: &DataPlane, group: &Arc<Group>) {
    let begun = Instant::now();
    group.pump(&data.env.pump);
    let stalled = begun.elapsed() > STALL;
    if stalled != data.stalling.load(Ordering::Relaxed) {
        data.stalling.store(stalled, Ordering::Relaxed);
    }
}

impl PendingAppend {
    /// What is counted of its streamlet.
    pub fn traffic(&self) -> &Traffic {
        self.streamlet.traffic()
    }

    /// It is answered: tells its trace, if it has one.
    pub fn answered(&mut self, reply: &v1::AppendResponse) {
        if let Some(traced) = self.traced.take() {
            traced.end((reply.error != 0).then_some(reply.message.as_str()));
        }
    }

    /// Looks whether it can be answered; otherwise arranges that `waker` is woken when it may be.
    pub fn poll(&self, waker: &std::task::Waker) -> Option<v1::AppendResponse> {
        if Rule::AcknowledgedAtOnce.is_broken() {
            return Some(self.acknowledged());
        }
        match self.last.poll(waker) {
            Outcome::Durable => Some(self.acknowledged()),
            Outcome::Lost if self.streamlet.is_moved() => {
                Some(unsettled(&not_owner(&self.streamlet)))
            }
            Outcome::Lost => {
                let text = "writing failed after the batch was accepted; send it again";
                Some(unsettled(&WireError::new(ErrorCode::StorageError, text)))
            }
            Outcome::Pending => None,
        }
    }

    /// What it is answered with once it was not durable for too long; it may still take effect.
    pub fn overdue(&self, data: &DataPlane, now: Instant) -> Option<v1::AppendResponse> {
        let shipped = self.last.group.is_shipped();
        let deadline = if shipped {
            data.config.cluster.append_deadline
        } else {
            APPEND_TIMEOUT
        };
        let waited = now.duration_since(self.received);
        if shipped && waited >= DEPOSED_TIMEOUT.min(deadline) && !data.directory.is_current() {
            return Some(unsettled(&not_owner(&self.streamlet)));
        }
        if waited < deadline {
            return None;
        }
        let (code, what) = if shipped {
            (ErrorCode::NotEnoughCopies, "reached too few replicas")
        } else {
            (ErrorCode::Timeout, "was not durable")
        };
        let text = format!("the append {what} within {deadline:?}; it may still take effect");
        Some(unsettled(&WireError::new(code, text)))
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
            placement: v1::Placement::Unspecified as i32,
        }
    }
}

/// The reply that carries an error, and says whether anything of the frame may be stored all the same.
pub fn refusal(error: &WireError, placement: v1::Placement) -> v1::AppendResponse {
    v1::AppendResponse {
        error: error.code as u32,
        message: error.message.clone(),
        placement: placement as i32,
        ..Default::default()
    }
}

/// The reply to an append whose batches have their places: they may be stored whatever it says.
fn unsettled(error: &WireError) -> v1::AppendResponse {
    let placement = match Rule::UncertainRefused.is_broken() {
        true => v1::Placement::NotPlaced,
        false => v1::Placement::MayBePlaced,
    };
    refusal(error, placement)
}

/// The streamlet a frame names.
///
/// # Errors
/// `UNKNOWN_STREAM` or `UNKNOWN_STREAMLET`.
pub fn find_streamlet(
    data: &DataPlane,
    stream: &[u8],
    streamlet: u32,
) -> Result<Arc<Streamlet>, WireError> {
    let id = stream_id(stream)?;
    match data.catalog.streamlet(id, StreamletId(streamlet)) {
        Some(found) if !found.is_over() => Ok(found),
        Some(found) if found.is_moved() => Err(elsewhere(data, &found)),
        Some(_) => Err(unknown_id(id)),
        None => match data.catalog.get(id) {
            Some(stream) => Err(WireError::new(
                ErrorCode::UnknownStreamlet,
                format!(
                    "stream {} has {} streamlets, there is no {streamlet}",
                    stream.name(),
                    stream.streamlets.len()
                ),
            )),
            None => Err(unknown_id(id)),
        },
    }
}

/// What whoever waits at a streamlet is told that is another broker's now; what was appended may have
/// taken effect.
pub(crate) fn not_owner(streamlet: &Streamlet) -> WireError {
    let text = format!(
        "stream {} streamlet {}: another broker owns it; look its owner up again and send again",
        streamlet.stream(),
        streamlet.id()
    );
    WireError::new(ErrorCode::NotOwner, text)
}

/// Says who owns a streamlet that this broker does not own.
fn elsewhere(data: &DataPlane, streamlet: &Streamlet) -> WireError {
    let owner = data.directory.owner(streamlet.stream(), streamlet.id());
    // Not at which address: that depends on where the client came in.
    let at = owner.map(|owner| match data.directory.broker(owner.broker) {
        Some(_) => format!("broker {}", owner.broker),
        None => format!("broker {}, which is away", owner.broker),
    });
    let text = format!(
        "stream {} streamlet {} is owned by {}; look its owner up again",
        streamlet.stream(),
        streamlet.id(),
        at.as_deref().unwrap_or("another broker")
    );
    WireError::new(ErrorCode::NotOwner, text)
}

/// What a batch that is wrong means to its sender.
pub(crate) fn batch_error(streamlet: &Streamlet, error: &BatchError) -> WireError {
    let code = match error {
        BatchError::Inconsistent(_)
        | BatchError::BadRecord { .. }
        | BatchError::NoKey { .. }
        | BatchError::Decompress(_)
        | BatchError::TooLarge(_)
        | BatchError::BadTimestamp { .. } => ErrorCode::InvalidBatch,
        BatchError::UnknownCompression(_) => ErrorCode::UnsupportedCompression,
        _ => ErrorCode::CorruptBatch,
    };
    WireError::new(code, format!("stream {}: {error}", streamlet.stream()))
}

/// What it means to the sender of a batch that its transaction does not take it.
fn transaction_code(error: &TransactionError) -> ErrorCode {
    match error {
        TransactionError::Unverified { .. } => ErrorCode::TransactionPending,
        TransactionError::NotOpen { .. } => ErrorCode::TransactionNotOpen,
        TransactionError::Open { .. } => ErrorCode::InvalidBatch,
        TransactionError::TooManyOpen { .. } => ErrorCode::TransactionAbortable,
    }
}

/// What a refused append means to its sender.
pub fn append_error(streamlet: &Streamlet, error: &AppendError) -> WireError {
    let code = match error {
        AppendError::UnknownLane { .. } => ErrorCode::UnknownLane,
        AppendError::StaleLanes { .. } => ErrorCode::StaleLanes,
        AppendError::Sequence(SequenceError::Transaction(error)) => transaction_code(error),
        AppendError::Sequence(SequenceError::Gap { .. }) => ErrorCode::SequenceGap,
        AppendError::Sequence(SequenceError::Fenced { .. }) => ErrorCode::FencedProducer,
        AppendError::Sequence(SequenceError::Unknown { .. } | SequenceError::Lost { .. }) => {
            ErrorCode::UnknownProducer
        }
        AppendError::Sequence(SequenceError::TooMany { .. }) => ErrorCode::Overloaded,
        AppendError::TooLarge { .. } => ErrorCode::BatchTooLarge,
        AppendError::NoMemory => ErrorCode::Overloaded,
        AppendError::DiskFull => ErrorCode::StorageFull,
        AppendError::Recovering
        | AppendError::Unread { .. }
        | AppendError::Unreadable { .. }
        | AppendError::DiskFailing => ErrorCode::StorageError,
        AppendError::Deleted => ErrorCode::UnknownStream,
        AppendError::Exhausted => ErrorCode::InvalidArgument,
        AppendError::NotRecovered => ErrorCode::NotEnoughCopies,
        AppendError::NotOwner => ErrorCode::NotOwner,
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
