//! What is read of a partition for a member, and acquired.

use bytes::{Bytes, BytesMut};
use kafka_protocol::error::ResponseError;
use kera_broker::shares::{Attached, SharePlace};
use kera_coordinator::classic::shares::Isolation;
use kera_coordinator::share::Acquired;
use kera_log_segments::read::ReadError;
use kera_protocol::batch::{BatchHeader, batches};
use kera_protocol::ids::Ordinal;
use kera_streamlet::{Committed, LaneReadError, LaneReadSpec, Located};

use super::lost;
use super::session::Key;
use crate::access;
use crate::context::Ctx;
use crate::refusal::Refusal;
use crate::topic;

/// Reads of a partition in one round in which nothing is for the member: markers, and what was aborted.
const PASSES: usize = 16;

/// What there is of a partition.
pub(super) struct Got {
    pub(super) records: Bytes,
    pub(super) acquired: Vec<Acquired>,
}

/// What came of looking.
pub(super) enum Look {
    Got(Got),
    /// Nothing to acquire at this place, with the head there was; `None` if all that may be acquired is.
    Nothing(Option<(Ordinal, Ordinal)>),
}

/// Where a partition is served from, if the client may read it.
pub(super) fn locate(ctx: &Ctx, (id, partition): Key) -> Result<SharePlace, Refusal> {
    let stream = topic::with_id(&ctx.shared, id);
    let stream = stream
        .ok_or_else(|| Refusal::new(ResponseError::UnknownTopicId, "no topic has this id"))?;
    if !ctx.may_topic(&stream.name()) {
        return Err(access::no_topic());
    }
    let (streamlet, lane) = topic::lane_of(&stream, partition).ok_or_else(|| {
        let text = "the topic has no such partition";
        Refusal::new(ResponseError::UnknownTopicOrPartition, text)
    })?;
    if !topic::is_led_here(&ctx.shared, &streamlet) || !streamlet.is_recovered() {
        let text = "this broker does not lead the partition, or not yet";
        return Err(Refusal::new(ResponseError::NotLeaderOrFollower, text));
    }
    Ok(SharePlace {
        stream: stream.id(),
        partition: u32::try_from(partition).unwrap_or(0),
        streamlet,
        lane,
    })
}

/// Acquires up to `records` records of about `bytes` bytes for a member.
pub(super) async fn look(
    ctx: &Ctx,
    attached: &Attached,
    bytes: usize,
    records: u64,
) -> Result<Look, Refusal> {
    let bytes = bytes.min(ctx.room_left());
    for _ in 0..PASSES {
        let Some(from) = attached.next() else {
            return Ok(Look::Nothing(None));
        };
        let read = match read(attached, from, bytes).await {
            Ok(read) => read,
            Err(LaneReadError::OutOfRange { ordinal, head, .. }) if ordinal >= head => {
                return Ok(Look::Nothing(Some((from, head))));
            }
            // Trimmed meanwhile: the next look begins behind it.
            Err(LaneReadError::OutOfRange { .. }) => continue,
            Err(error) => match lost::pass_over(ctx, attached, from, &error).await {
                Ok(()) => continue,
                Err(hint) => return Err(failed(&error, &hint)),
            },
        };
        let head = read.found.head;
        if read.found.bytes == 0 {
            if !topic::is_led_here(&ctx.shared, &attached.place().streamlet) {
                let text = "this broker does not lead the partition any more";
                return Err(Refusal::new(ResponseError::NotLeaderOrFollower, text));
            }
            return Ok(Look::Nothing(Some((from, head))));
        }
        let Some(found) = Batches::of(&read, from) else {
            let text = "what is stored cannot be read; see `kera scrub`";
            return Err(Refusal::new(ResponseError::CorruptMessage, text));
        };
        if found.kept.is_empty() {
            attached.pass_over(from, found.last);
            continue;
        }
        if !ctx.has_room_for(read.found.bytes).await {
            let text = Refusal::too_long().message;
            return Err(Refusal::new(ResponseError::UnknownServerError, text));
        }
        let spans: Vec<(Ordinal, Ordinal)> = found.kept.iter().map(|(span, _)| *span).collect();
        let acquired = attached.acquire(from, &spans, records);
        // Nothing where others were faster: answered all the same, so that no turn of others is held while it waits.
        return Ok(Look::Got(Got {
            records: found.with(&acquired),
            acquired,
        }));
    }
    Ok(Look::Nothing(None))
}

async fn read(
    attached: &Attached,
    from: Ordinal,
    bytes: usize,
) -> Result<Committed, LaneReadError> {
    let place = attached.place();
    let isolation = attached.config().map(|config| config.isolation());
    let committed = isolation == Some(Isolation::Committed);
    let spec = LaneReadSpec {
        lane: place.lane,
        from: Located {
            ordinal: from,
            at: None,
        },
        end_ordinal: Ordinal::MAX,
        max_bytes: bytes,
        cached_only: true,
    };
    match read_lane(&place, spec, committed) {
        Err(LaneReadError::Group(ReadError::WouldBlock)) => {
            let spec = LaneReadSpec {
                cached_only: false,
                ..spec
            };
            let read = tokio::task::spawn_blocking(move || read_lane(&place, spec, committed));
            // A thread that fell tells that the read failed, as the next one will.
            read.await
                .unwrap_or(Err(LaneReadError::Group(ReadError::WouldBlock)))
        }
        read => read,
    }
}

fn read_lane(
    place: &SharePlace,
    spec: LaneReadSpec,
    committed: bool,
) -> Result<Committed, LaneReadError> {
    match committed {
        true => place.streamlet.read_committed(spec),
        false => {
            let found = place.streamlet.read(spec)?;
            Ok(Committed {
                stable: found.head,
                found,
                aborted: Vec::new(),
            })
        }
    }
}

fn failed(error: &LaneReadError, hint: &str) -> Refusal {
    let kafka = match error {
        LaneReadError::UnknownLane { .. } | LaneReadError::Deleted => {
            ResponseError::UnknownTopicOrPartition
        }
        LaneReadError::Group(ReadError::Damaged { .. }) => ResponseError::CorruptMessage,
        LaneReadError::Group(_) => ResponseError::KafkaStorageError,
        _ => ResponseError::NotLeaderOrFollower,
    };
    Refusal::new(kafka, format!("{error}{hint}"))
}

/// The batches that were read, without markers and what was aborted.
struct Batches {
    kept: Vec<((Ordinal, Ordinal), Bytes)>,
    /// The last ordinal that was read.
    last: Ordinal,
}

impl Batches {
    /// `None` if they are none.
    fn of(read: &Committed, from: Ordinal) -> Option<Self> {
        let mut found = Self {
            kept: Vec::new(),
            last: from,
        };
        let is_aborted = |header: &BatchHeader| {
            let mut ends = read.aborted.iter().filter(|end| !end.commit);
            header.is_transactional()
                && ends.any(|end| {
                    end.producer == header.producer_id
                        && (end.first..end.marker).contains(&header.base_ordinal)
                })
        };
        // A batch may lie across two pieces of memory.
        let whole = match read.found.bufs.as_slice() {
            [one] => one.clone(),
            many => Bytes::from(many.concat()),
        };
        for batch in batches(&whole) {
            let (header, bytes) = batch.ok()?;
            let last = header.next_ordinal().checked_sub(1)?;
            found.last = found.last.max(last);
            if header.is_control() || is_aborted(&header) {
                continue;
            }
            let span = (header.base_ordinal, last);
            found.kept.push((span, whole.slice_ref(bytes)));
        }
        Some(found)
    }

    /// Those of which something was acquired.
    fn with(self, acquired: &[Acquired]) -> Bytes {
        let mut out = BytesMut::new();
        let mut runs = acquired.iter().peekable();
        for ((first, last), bytes) in self.kept {
            while runs.next_if(|run| run.last < first).is_some() {}
            if runs.peek().is_some_and(|run| run.first <= last) {
                out.extend_from_slice(&bytes);
            }
        }
        out.freeze()
    }
}
