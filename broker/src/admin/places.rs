//! Places in a stream: where a time or an end is, and forgetting what lies below one.

use std::sync::Arc;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_protocol::v1;
use kera_streamlet::{Located, Streamlet, Trimmed};

use super::blocking;
use crate::catalog::Stream;
use crate::fetch::cursor;

/// Forgets what lies below the place that a request names, in the lanes it names.
///
/// # Errors
/// [`ErrorCode::InvalidName`] for a stream of the broker's own, [`ErrorCode::UnknownStreamlet`],
/// [`ErrorCode::UnknownLane`], [`ErrorCode::InvalidArgument`] for a request without a place, or
/// [`ErrorCode::StorageError`].
pub async fn trim_stream(
    stream: &Arc<Stream>,
    request: v1::TrimStreamRequest,
) -> Result<v1::TrimStreamResponse, WireError> {
    super::changeable(stream)?;
    let stream = stream.clone();
    blocking(move || trim(&stream, &request)).await
}

/// Forgets what lies below `ordinal` in one lane; at most everything below the durable head. Nothing
/// below is readable any more, also where it lies inside a group or a batch.
///
/// # Errors
/// [`ErrorCode::StorageError`] if the new start could not be recorded.
pub async fn trim_lane(
    streamlet: &Arc<Streamlet>,
    lane: LaneId,
    ordinal: Ordinal,
) -> Result<Trimmed, WireError> {
    let streamlet = streamlet.clone();
    blocking(move || trim_to(&streamlet, lane, ordinal)).await
}

/// Where the place that a request names is, in every lane.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a request without a place, or [`ErrorCode::StorageError`].
pub async fn find_ordinals(
    stream: &Arc<Stream>,
    request: v1::FindOrdinalsRequest,
) -> Result<v1::FindOrdinalsResponse, WireError> {
    let stream = stream.clone();
    blocking(move || find(&stream, &request)).await
}

fn trim_to(streamlet: &Streamlet, lane: LaneId, ordinal: Ordinal) -> Result<Trimmed, WireError> {
    streamlet
        .trim(lane, ordinal)
        .map_err(|e| WireError::new(ErrorCode::StorageError, e.to_string()))
}

fn trim(
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
        let ordinal = match to {
            To::Ordinal(ordinal) => *ordinal,
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

fn find(
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
    for (streamlet, lane) in lanes_of(stream, None, None)? {
        let Some((log_start, head)) = streamlet.lane_bounds(lane) else {
            continue;
        };
        let located = match at {
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
