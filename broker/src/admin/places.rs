//! Places in a stream: where a time or an end is, and forgetting what lies below one.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, Ordinal, StreamletId};
use kera_protocol::v1;
use kera_streamlet::{Located, Streamlet, Trimmed};

use super::elsewhere;
use crate::data::catalog::Stream;
use crate::data::fetch::{code_of, cursor};
use crate::fault_rules::Rule;
use crate::pins;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Forgets what lies below the place that a request names, in the lanes it names.
///
/// # Errors
/// [`ErrorCode::InvalidName`] for a stream of the broker's own, [`ErrorCode::UnknownStreamlet`],
/// [`ErrorCode::UnknownLane`], [`ErrorCode::InvalidArgument`] for a request without a place,
/// [`ErrorCode::NotOwner`] while nobody can answer for a streamlet (others may be trimmed by then; asking
/// again does no harm), or [`ErrorCode::StorageError`].
pub async fn trim_stream(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    request: v1::TrimStreamRequest,
) -> Result<v1::TrimStreamResponse, WireError> {
    super::changeable(stream)?;
    let (others, whole) = match request.local {
        true => (Vec::new(), Ok(pins::WholePins::new())),
        false => {
            let (store, of) = (shared.metadata.clone(), stream.id());
            let whole = blocking(move || pins::whole(&*store, of).map_err(|e| metadata_error(&e)));
            let whole = whole.await;
            (elsewhere::trim(shared, stream, &request).await?, whole)
        }
    };
    let (local, named) = (request.local, request.streamlet);
    let (here, asked) = (shared.clone(), stream.clone());
    let mut trimmed = blocking(move || trim(&here, &asked, &request)).await?;
    for other in others {
        trimmed.freed_bytes += other.freed_bytes;
        trimmed.lanes.extend(other.lanes);
    }
    if !local {
        let starts = trimmed.lanes.iter();
        let starts = starts.map(|l| (StreamletId(l.streamlet), LaneId(l.lane), l.log_start));
        let starts: Vec<_> = starts.collect();
        let hurt = match whole {
            Ok(whole) => hurt_pins(shared, stream, whole, starts).await,
            Err(error) => Err(error),
        };
        match hurt {
            Ok(hurt) => trimmed.lost_pins = hurt,
            Err(error) => {
                tracing::warn!(stream = stream.name(), %error, "which pins a trim has hurt cannot be told yet");
                trimmed.pins_unknown = true;
            }
        }
        answered(stream, named, trimmed.lanes.iter().map(|l| l.streamlet))?;
    }
    trimmed
        .lanes
        .sort_unstable_by_key(|lane| (lane.streamlet, lane.lane));
    Ok(trimmed)
}

/// Compacts what is durable of a stream now, and answers when that is done.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a stream that is not compacted, [`ErrorCode::InvalidName`] for one of the
/// broker's own, [`ErrorCode::NotOwner`] while nobody can answer for a streamlet, or [`ErrorCode::StorageError`].
pub async fn compact_stream(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    request: v1::CompactStreamRequest,
) -> Result<v1::CompactStreamResponse, WireError> {
    super::changeable(stream)?;
    let record = stream.record.load_full();
    if !record.config.cleanup.compacts() {
        let text = format!(
            "stream \"{}\" is not compacted; alter it with --cleanup compact first",
            record.name
        );
        return Err(WireError::new(ErrorCode::InvalidArgument, text));
    }
    let others = match request.local {
        true => Vec::new(),
        false => elsewhere::compact(shared, stream, &request).await?,
    };
    let mut told = shared.compactor.compact(record.id).await?;
    for other in others {
        told.streamlets.extend(other.streamlets);
        told.lanes += other.lanes;
        told.groups_before += other.groups_before;
        told.groups_after += other.groups_after;
        told.bytes_before += other.bytes_before;
        told.bytes_after += other.bytes_after;
        told.unreadable += other.unreadable;
    }
    if !request.local {
        answered(stream, None, told.streamlets.iter().copied())?;
    }
    Ok(told)
}

/// Forgets what lies below `ordinal` in one lane; at most everything below the durable head. Nothing
/// below is readable any more, also where it lies inside a group or a batch. Pins that needed it are to be
/// [recorded as lost](record_hurt_pins).
///
/// # Errors
/// [`ErrorCode::StorageError`] if the new start could not be recorded.
pub async fn trim_lane(
    streamlet: &Arc<Streamlet>,
    lane: LaneId,
    ordinal: Ordinal,
) -> Result<Trimmed, WireError> {
    let trimming = streamlet.clone();
    blocking(move || trim_to(&trimming, lane, ordinal)).await
}

/// Records which pins of a stream needed what lies below these starts, to which lanes were trimmed. If that fails, a round of
/// retention records it.
pub async fn record_hurt_pins(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    starts: Vec<(StreamletId, LaneId, Ordinal)>,
) {
    // Nobody is told which they are.
    let whole = pins::WholePins::new();
    if let Err(error) = hurt_pins(shared, stream, whole, starts).await {
        tracing::warn!(stream = stream.name(), %error, "pins that a trim has hurt cannot be recorded yet");
    }
}

/// Records which pins needed what lies below these starts, and answers their names.
async fn hurt_pins(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    whole: pins::WholePins,
    starts: Vec<(StreamletId, LaneId, Ordinal)>,
) -> Result<Vec<String>, WireError> {
    let (store, stream) = (shared.metadata.clone(), stream.clone());
    blocking(move || {
        let hurt = pins::after_trim(&*store, &stream, &whole, &starts);
        hurt.map_err(|error| metadata_error(&error))
    })
    .await
}

/// Where the place that a request names is, in every lane.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a request without a place, [`ErrorCode::NotEnoughCopies`] while a
/// streamlet is not recovered from its copies, [`ErrorCode::NotOwner`] while an owner is not reached, has
/// no lease or is just changing, or [`ErrorCode::StorageError`].
pub async fn find_ordinals(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    request: v1::FindOrdinalsRequest,
) -> Result<v1::FindOrdinalsResponse, WireError> {
    let others = match request.local {
        true => Vec::new(),
        false => elsewhere::find(shared, stream, &request).await?,
    };
    let local = request.local;
    let (shared, asked) = (shared.clone(), stream.clone());
    let mut found = blocking(move || find(&shared, &asked, &request)).await?;
    let lanes = &mut found.lanes;
    lanes.extend(others.into_iter().flat_map(|other| other.lanes));
    later_of_each(lanes, |l| (l.streamlet, l.lane, l.head_ordinal));
    if !local {
        answered(stream, None, found.lanes.iter().map(|l| l.streamlet))?;
    }
    Ok(found)
}

/// As [`find_ordinals`], of the streamlets that are wanted: what their owners say that answer within a time, and why others
/// say nothing.
pub(crate) async fn find_what_answers(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    mut request: v1::FindOrdinalsRequest,
    wanted: impl Fn(u32) -> bool,
    within: Duration,
) -> (Vec<v1::LaneCursor>, Vec<WireError>) {
    request.local = true;
    let me = shared.data.directory.me();
    let streamlets = stream.streamlets.iter();
    let streamlets = streamlets.filter(|streamlet| wanted(streamlet.id().0));
    let mut owners: BTreeSet<u32> = streamlets.map(|one| shared.owner_of(&one).broker).collect();
    let is_own = owners.remove(&me);
    let own = async {
        let (shared, stream, request) = (shared.clone(), stream.clone(), request.clone());
        match is_own {
            true => vec![(me, blocking(move || find(&shared, &stream, &request)).await)],
            false => Vec::new(),
        }
    };
    let (own, others) = tokio::join!(own, elsewhere::find_at(shared, owners, &request, within));
    let (mut lanes, mut silent) = (Vec::new(), Vec::new());
    for (_, answer) in own.into_iter().chain(others) {
        match answer {
            Ok(found) => lanes.extend(found.lanes),
            Err(error) => silent.push(error),
        }
    }
    lanes.retain(|lane| wanted(lane.streamlet));
    later_of_each(&mut lanes, |l| (l.streamlet, l.lane, l.head_ordinal));
    (lanes, silent)
}

/// Sorts what owners say of lanes, of which `key` tells streamlet, lane and head. Two owners, one after the other,
/// may both have answered: what the second says is no older, and stays.
pub(crate) fn later_of_each<T>(lanes: &mut Vec<T>, key: impl Fn(&T) -> (u32, u32, Ordinal)) {
    lanes.sort_unstable_by_key(|said| {
        let (streamlet, lane, head) = key(said);
        (streamlet, lane, Reverse(head))
    });
    lanes.dedup_by_key(|said| {
        let (streamlet, lane, _) = key(said);
        (streamlet, lane)
    });
}

/// Refuses an answer that lacks a streamlet, all of them or the one that is `named`: while its owner changes
/// it may be that each of two brokers takes the other for the owner.
fn answered(
    stream: &Stream,
    named: Option<u32>,
    by: impl Iterator<Item = u32>,
) -> Result<(), WireError> {
    let by: BTreeSet<u32> = by.collect();
    let mut wanted = stream.streamlets.iter().map(|found| found.id().0);
    match wanted.find(|id| named.is_none_or(|named| named == *id) && !by.contains(id)) {
        Some(id) => Err(WireError::new(
            ErrorCode::NotOwner,
            format!(
                "stream \"{}\" streamlet {id} is changing its owner; ask again",
                stream.name()
            ),
        )),
        None => Ok(()),
    }
}

fn trim_to(streamlet: &Streamlet, lane: LaneId, ordinal: Ordinal) -> Result<Trimmed, WireError> {
    streamlet
        .trim(lane, ordinal)
        .map_err(|e| WireError::new(ErrorCode::StorageError, e.to_string()))
}

/// Refuses an ordinal above where a lane ends: a digit too many would delete all of it.
fn not_above_head(
    stream: &Stream,
    streamlet: &Streamlet,
    lane: LaneId,
    ordinal: Ordinal,
) -> Result<(), WireError> {
    let head = streamlet.head(lane).map_or(0, |head| head.ordinal());
    if ordinal <= head {
        return Ok(());
    }
    let text = format!(
        "ordinal {ordinal} is above {head}, where lane {}/{lane} of stream \"{}\" ends; name that or less, or trim everything",
        streamlet.id(),
        stream.name()
    );
    Err(WireError::new(ErrorCode::InvalidArgument, text))
}

fn trim(
    shared: &Shared,
    stream: &Stream,
    request: &v1::TrimStreamRequest,
) -> Result<v1::TrimStreamResponse, WireError> {
    use v1::trim_stream_request::To;
    let to = request.to.as_ref().ok_or_else(|| {
        WireError::new(
            ErrorCode::InvalidArgument,
            "trim names no ordinal, time or \"everything\"; name one",
        )
    })?;
    if matches!(to, To::Ordinal(_)) && (request.streamlet.is_none() || request.lane.is_none()) {
        let text = "trim to an ordinal needs a streamlet and a lane: ordinals count within a lane";
        return Err(WireError::new(ErrorCode::InvalidArgument, text));
    }
    let mut response = v1::TrimStreamResponse::default();
    for (streamlet, lane) in lanes_of(stream, request.streamlet, request.lane)? {
        if !is_served(shared, &streamlet)? {
            continue;
        }
        let ordinal = match to {
            To::Ordinal(ordinal) => {
                not_above_head(stream, &streamlet, lane, *ordinal)?;
                *ordinal
            }
            To::Everything(_) => u64::MAX,
            To::TimestampMs(ms) => at_time(&streamlet, lane, *ms)?.ordinal,
        };
        let trimmed = trim_to(&streamlet, lane, ordinal)?;
        response.freed_bytes += trimmed.freed_bytes;
        response.lanes.push(v1::LaneStart {
            streamlet: streamlet.id().0,
            lane: lane.0,
            log_start: trimmed.log_start,
        });
    }
    Ok(response)
}

/// False for a streamlet of another broker: that one is asked. One that is not recovered says so itself.
///
/// # Errors
/// [`ErrorCode::NotOwner`] if this broker is the owner for all it knows, but has no lease, or has one again and
/// has not read yet what became of its streamlets meanwhile, or was sealed out: what it holds may not be all
/// there is.
pub(crate) fn is_served(shared: &Shared, streamlet: &Streamlet) -> Result<bool, WireError> {
    let me = shared.data.directory.me();
    let why = match shared.named_owner(streamlet) {
        Some(owner) if owner != me => return Ok(false),
        // Sealed by the next owner, of whom the records here do not tell yet.
        Some(_) if streamlet.is_moved() && !Rule::SealedOutTellsEnds.is_broken() => {
            "has given it up"
        }
        Some(_) => return Ok(true),
        None => "has no lease at the moment",
    };
    Err(WireError::new(
        ErrorCode::NotOwner,
        format!(
            "broker {me} owned streamlet {} of stream {} and {why}; ask again, or another broker",
            streamlet.id(),
            streamlet.stream()
        ),
    ))
}

fn find(
    shared: &Shared,
    stream: &Stream,
    request: &v1::FindOrdinalsRequest,
) -> Result<v1::FindOrdinalsResponse, WireError> {
    use v1::find_ordinals_request::At;
    let at = request.at.as_ref().ok_or_else(|| {
        WireError::new(
            ErrorCode::InvalidArgument,
            "the request names no place; name earliest, latest, a time or an ordinal",
        )
    })?;
    let mut lanes = Vec::new();
    for waiting in &stream.streamlets {
        if !is_served(shared, &waiting)? || waiting.is_recovered() {
            continue;
        }
        return Err(not_recovered(stream, &waiting));
    }
    for (streamlet, lane) in lanes_of(stream, None, None)? {
        // What is told before that is where nothing ends, and this broker may become its owner meanwhile.
        let is_recovered = streamlet.is_recovered();
        let bounds = streamlet.lane_bounds(lane);
        let Some((log_start, head)) = bounds else {
            continue;
        };
        if !is_served(shared, &streamlet)? {
            continue;
        }
        if !is_recovered {
            return Err(not_recovered(stream, &streamlet));
        }
        // Records of open transactions are nobody's to read yet.
        let stable = streamlet.stable(lane);
        let head = head.min(stable.unwrap_or(head)).max(log_start);
        let located = match at {
            // A reader that begins behind the records of an open transaction never gets them.
            At::Latest(_) if stable.is_none() => {
                return Err(WireError::new(
                    ErrorCode::NotEnoughCopies,
                    format!(
                        "stream {} streamlet {} lane {lane}: which transactions are open is not known before what the lane remembers of its producers can be read, see the broker's log; try again, or begin elsewhere than at the latest record",
                        stream.name(),
                        streamlet.id(),
                    ),
                ));
            }
            At::Earliest(_) => Located {
                ordinal: log_start,
                at: None,
            },
            At::Latest(_) => Located {
                ordinal: head,
                at: None,
            },
            At::Ordinal(ordinal) => Located {
                ordinal: (*ordinal).clamp(log_start, head),
                at: None,
            },
            At::TimestampMs(ms) => at_time(&streamlet, lane, *ms)?,
        };
        lanes.push(v1::LaneCursor {
            streamlet: streamlet.id().0,
            lane: lane.0,
            cursor: Some(cursor(&located, streamlet.settings().segment_size)),
            head_ordinal: head,
            log_start,
        });
    }
    Ok(v1::FindOrdinalsResponse { lanes })
}

fn not_recovered(stream: &Stream, streamlet: &Streamlet) -> WireError {
    let (name, id, error) = (stream.name(), streamlet.id(), streamlet.not_recovered());
    let text = format!("stream {name} streamlet {id}: {error}");
    WireError::new(code_of(&error, true), text)
}

fn at_time(streamlet: &Streamlet, lane: LaneId, ms: u64) -> Result<Located, WireError> {
    streamlet
        .find_time(lane, i64::try_from(ms).unwrap_or(i64::MAX))
        .map_err(|error| WireError::new(ErrorCode::StorageError, error.to_string()))
}

/// The lanes that a request names: all, those of a streamlet, or one.
fn lanes_of(
    stream: &Stream,
    streamlet: Option<u32>,
    lane: Option<u32>,
) -> Result<Vec<(Arc<Streamlet>, LaneId)>, WireError> {
    let name = stream.name();
    let mut lanes = Vec::new();
    for found in &stream.streamlets {
        if streamlet.is_some_and(|s| s != found.id().0) {
            continue;
        }
        let count = found.settings().lanes;
        lanes.extend(
            (0..count)
                .filter(|l| lane.is_none_or(|wanted| wanted == *l))
                .map(|l| (found.clone(), LaneId(l))),
        );
    }
    if lanes.is_empty() {
        let (code, what) = match (streamlet, lane) {
            (Some(s), _) if s as usize >= stream.streamlets.len() => {
                (ErrorCode::UnknownStreamlet, format!("streamlet {s}"))
            }
            (_, lane) => (
                ErrorCode::UnknownLane,
                format!("lane {}", lane.unwrap_or(0)),
            ),
        };
        return Err(WireError::new(
            code,
            format!("stream \"{name}\" has no {what}; see `kera stream describe {name}`"),
        ));
    }
    Ok(lanes)
}
