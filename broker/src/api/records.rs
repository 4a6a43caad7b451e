//! Records as people look at them: from a time, an ordinal or an end on, or of one key.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kera_metadata::LaneBy;
use kera_protocol::batch::{self, BatchHeader, Records};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, StreamletId};
use kera_protocol::partition::{lane_among, partition_of, place_of};
use kera_protocol::v1::{self, find_ordinals_request::At};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::decode::{HeaderView, Mask, Shown};
use super::observe::{PEEK_BYTES, peek_at};
use crate::admin;
use crate::data::catalog::Stream;
use crate::shared::Shared;

/// Most records of an answer.
const MOST_RECORDS: usize = 200;
/// Records of an answer, unless fewer or more are asked for.
const RECORDS: usize = 50;
/// Most bytes of keys, values and headers in an answer.
const MOST_SHOWN: usize = 384 << 10;
/// Most bytes of batches that one answer looks through, as they are or decompressed, whichever is more; and a batch beyond it.
const MOST_LOOKED_AT: usize = 8 << 20;
/// Most bytes of a batch's records, decompressed.
const MOST_DECOMPRESSED: usize = 32 << 20;
/// Problems of an answer that are told one by one.
const MOST_PROBLEMS: usize = 20;
/// Most lanes that one answer looks at.
const MOST_LANES: usize = 64;
/// Most time that it takes.
const WITHIN: Duration = Duration::from_secs(4);
/// How long an owner has for each of its batches.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    /// `earliest`, `latest`, `time`, `ordinal`; or `next`, with what an answer told.
    #[serde(default)]
    from: String,
    /// Milliseconds since 1970, an ordinal, or what an answer told to go on from.
    at: Option<String>,
    streamlet: Option<u32>,
    lane: Option<u32>,
    /// Only records with this key.
    key: Option<String>,
    limit: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct RecordsView {
    stream: String,
    records: Vec<RecordView>,
    /// To go on with: `from=next&at=` this. Empty: there is nothing more now.
    next: String,
    looked_at_bytes: usize,
    lanes: usize,
    /// Of the stream, not looked at: name a lane.
    lanes_left_out: usize,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct RecordView {
    streamlet: u32,
    lane: u32,
    partition: u64,
    ordinal: u64,
    timestamp_ms: i64,
    key: Shown,
    value: Shown,
    headers: Vec<HeaderView>,
}

/// A lane that is looked at.
struct Place {
    streamlet: u32,
    lane: u32,
    next: u64,
    head: u64,
    is_stuck: bool,
}

fn invalid(text: impl Into<String>) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

/// Looks for records.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a query that says nothing, or as of a read.
pub(super) async fn look(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    query: &Query,
) -> Result<RecordsView, WireError> {
    let limit = query.limit.unwrap_or(RECORDS);
    if !(1..=MOST_RECORDS).contains(&limit) {
        return Err(invalid(format!(
            "limit is {limit}; 1 to {MOST_RECORDS} records can be asked for"
        )));
    }
    let mask = Mask::of(&shared.live().api.mask, &stream.name());
    if query.key.is_some() && mask.hides_keys() {
        return Err(invalid(
            "api.mask hides the keys of this stream, so its records cannot be looked for by key",
        ));
    }
    let end = Instant::now() + WITHIN;
    let Beginning {
        mut places,
        unanswered,
        problems,
    } = places(shared, stream, query, limit).await?;
    let lanes_left_out = places.len().saturating_sub(MOST_LANES) + unanswered.lanes;
    places.truncate(MOST_LANES);
    let mut looking = Looking {
        shared,
        stream,
        key: query.key.as_deref().map(str::as_bytes),
        mask,
        records: Vec::new(),
        shown: 0,
        looked_at: 0,
        problems,
        untold: 0,
        scratch: Vec::new(),
        end,
    };
    let mut left = limit;
    // Round by round, so that each lane has its part.
    while left > 0 && !looking.is_enough() {
        let open = places.iter().filter(|place| place.is_open()).count();
        if open == 0 {
            break;
        }
        let share = left.div_ceil(open);
        for place in places.iter_mut().filter(|place| place.is_open()) {
            if left == 0 || looking.is_enough() {
                break;
            }
            left -= looking.at(place, share.min(left)).await;
        }
    }
    looking
        .records
        .sort_by_key(|one| (one.timestamp_ms, one.streamlet, one.lane, one.ordinal));
    if looking.untold > 0 {
        let more = format!("and {} more such batches or lanes", looking.untold);
        looking.problems.push(more);
    }
    let goes_on = places.iter().any(Place::is_open);
    let looked = places
        .iter()
        .map(|place| (place.streamlet, place.lane, place.next));
    // Where a lane stands whose owner did not answer is not forgotten.
    let next = looked
        .chain(unanswered.told)
        .map(|(streamlet, lane, next)| format!("{streamlet}.{lane}.{next}"));
    let next: Vec<_> = next.collect();
    Ok(RecordsView {
        stream: stream.name(),
        records: looking.records,
        next: if goes_on {
            next.join(",")
        } else {
            String::new()
        },
        looked_at_bytes: looking.looked_at,
        lanes: places.len(),
        lanes_left_out,
        problems: looking.problems,
    })
}

/// Where to begin.
struct Beginning {
    places: Vec<Place>,
    unanswered: Unanswered,
    problems: Vec<String>,
}

/// Lanes whose owners did not say anything.
struct Unanswered {
    lanes: usize,
    /// Where those of them stand that the query names.
    told: Vec<(u32, u32, u64)>,
}

impl Place {
    fn is_open(&self) -> bool {
        !self.is_stuck && self.next < self.head
    }
}

/// Where to begin in which lanes.
async fn places(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    query: &Query,
    limit: usize,
) -> Result<Beginning, WireError> {
    let at = query.at.as_deref().unwrap_or_default();
    let number = || {
        at.parse()
            .map_err(|_| invalid(format!("at is \"{at}\"; write a number")))
    };
    let find = match query.from.as_str() {
        "" | "latest" | "next" => At::Latest(true),
        "earliest" => At::Earliest(true),
        "time" => At::TimestampMs(number()?),
        "ordinal" => At::Ordinal(number()?),
        other => {
            return Err(invalid(format!(
                "from is \"{other}\"; write earliest, latest, time, ordinal, or next with what an answer told"
            )));
        }
    };
    let request = v1::FindOrdinalsRequest {
        name: stream.name(),
        at: Some(find),
        local: false,
    };
    let key_lane = lane_of_key(stream, query.key.as_deref());
    let in_streamlet = |streamlet: u32| {
        query.streamlet.is_none_or(|number| number == streamlet)
            && key_lane.is_none_or(|at| at.0 == streamlet)
    };
    let in_lane = |streamlet: u32, lane: u32| {
        in_streamlet(streamlet)
            && query.lane.is_none_or(|number| number == lane)
            && key_lane.is_none_or(|at| at == (streamlet, lane))
    };
    let (mut lanes, silent) =
        admin::find_what_answers(shared, stream, request, in_streamlet, ANSWER_WITHIN).await;
    lanes.retain(|lane| in_lane(lane.streamlet, lane.lane));
    let wire = stream.record.load().config.to_wire();
    let answered: HashSet<_> = lanes.iter().map(|l| (l.streamlet, l.lane)).collect();
    let mut unanswered: HashSet<_> = (0..wire.partitions())
        .map(|partition| place_of(partition, wire.streamlets()))
        .map(|(streamlet, lane)| (streamlet.0, lane.0))
        .filter(|(streamlet, lane)| in_lane(*streamlet, *lane))
        .collect();
    unanswered.retain(|place| !answered.contains(place));
    let mut problems: Vec<_> = silent.into_iter().map(|error| error.message).collect();
    if problems.is_empty() && !unanswered.is_empty() {
        problems.push("a streamlet is changing its owner; look again".to_owned());
    }
    if lanes.is_empty() {
        if !unanswered.is_empty() {
            return Err(WireError::new(ErrorCode::NotOwner, problems.join("; ")));
        }
        let text = format!(
            "stream \"{}\" has no such lane; `/api/v1/streams/` and its name lists them",
            stream.name()
        );
        return Err(WireError::new(ErrorCode::UnknownLane, text));
    }
    let of_each = limit.div_ceil(lanes.len().min(MOST_LANES)) as u64;
    let from = match query.from.as_str() {
        "next" => Some(positions(at)?),
        _ => None,
    };
    let told = |lane: &v1::LaneCursor| {
        let mut from = from.iter().flatten();
        from.find(|of| (of.0, of.1) == (lane.streamlet, lane.lane))
    };
    if from.is_some() {
        // The lanes of the answer before, whichever were added since.
        lanes.sort_by_key(|lane| told(lane).is_none());
    }
    let place = |lane: v1::LaneCursor| {
        let mut next = lane.cursor.map_or(0, |cursor| cursor.ordinal);
        if matches!(query.from.as_str(), "" | "latest") {
            // A key may have been seen long ago.
            let back = if query.key.is_some() {
                u64::MAX
            } else {
                of_each
            };
            next = lane.head_ordinal.saturating_sub(back);
        }
        if from.is_some() {
            // What was added has been seen by nobody. Of more lanes than are looked at the others are left out here, too.
            next = told(&lane).map_or(lane.log_start, |of| of.2);
        }
        Place {
            streamlet: lane.streamlet,
            lane: lane.lane,
            next: next.max(lane.log_start),
            head: lane.head_ordinal,
            is_stuck: false,
        }
    };
    let named = from.iter().flatten();
    let named = named.filter(|of| unanswered.contains(&(of.0, of.1)));
    Ok(Beginning {
        unanswered: Unanswered {
            told: named.copied().collect(),
            lanes: unanswered.len(),
        },
        problems,
        places: lanes.into_iter().map(place).collect(),
    })
}

/// The lane that records of a key go to, if they have always gone there.
fn lane_of_key(stream: &Stream, key: Option<&str>) -> Option<(u32, u32)> {
    let record = stream.record.load();
    let one = record.config.lane_by == LaneBy::Key && record.lane_generations.len() == 1;
    let key = key.filter(|_| one)?;
    let wire = record.config.to_wire();
    let (streamlet, lane) = lane_among(key.as_bytes(), wire.streamlets(), wire.partitions());
    Some((streamlet.0, lane.0))
}

/// `streamlet.lane.ordinal`, with commas between them.
fn positions(text: &str) -> Result<Vec<(u32, u32, u64)>, WireError> {
    let one = |part: &str| {
        let mut numbers = part.split('.');
        let place = (
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
        );
        numbers.next().is_none().then_some(place)
    };
    let all = text.split(',').take(2 * MOST_LANES).map(one);
    let all: Option<Vec<_>> = all.collect();
    all.ok_or_else(|| {
        invalid("at does not say where to go on; write what the answer before has as next")
    })
}

struct Looking<'a> {
    shared: &'a Arc<Shared>,
    stream: &'a Arc<Stream>,
    key: Option<&'a [u8]>,
    mask: Mask,
    records: Vec<RecordView>,
    shown: usize,
    looked_at: usize,
    problems: Vec<String>,
    /// Problems beyond those.
    untold: usize,
    scratch: Vec<u8>,
    end: Instant,
}

impl Looking<'_> {
    fn is_enough(&self) -> bool {
        self.shown >= MOST_SHOWN || self.looked_at >= MOST_LOOKED_AT || Instant::now() >= self.end
    }

    /// Looks at the next batches of a lane, for at most `most` records; how many it found.
    async fn at(&mut self, place: &mut Place, most: usize) -> usize {
        let id = StreamletId(place.streamlet);
        let Some(streamlet) = self.stream.streamlets.get(id.0 as usize) else {
            place.is_stuck = true;
            return 0;
        };
        let owner = self.shared.owner_of(&streamlet).broker;
        let request = v1::ReadRequest {
            stream: self.stream.id().as_bytes().to_vec().into(),
            streamlet: place.streamlet,
            lane: place.lane,
            cursor: Some(v1::Cursor {
                ordinal: place.next,
                ..Default::default()
            }),
            end_ordinal: place.head,
            max_bytes: PEEK_BYTES,
            ..Default::default()
        };
        let left = self.end.saturating_duration_since(Instant::now());
        let peeked = match peek_at(self.shared, owner, request, ANSWER_WITHIN.min(left)).await {
            Ok(peeked) => peeked,
            Err(error) => return self.give_up(place, &error.message),
        };
        let reply = peeked.reply.unwrap_or_default();
        if reply.error != 0 {
            return self.give_up(place, &reply.message);
        }
        // To decompress takes the processor for long: others have their turn meanwhile.
        let from = place.next;
        let found = tokio::task::block_in_place(|| self.batches(place, &peeked.batches, most));
        let is_stuck = place.next == from && !place.is_stuck && !self.is_enough();
        if is_stuck && !peeked.batches.is_empty() {
            return self.give_up(place, "the next batch does not decode");
        }
        if peeked.batches.is_empty() {
            // A gap: nothing was ever stored there, or the read is at its end.
            let next = reply.next.map_or(place.head, |next| next.ordinal);
            place.is_stuck = next <= place.next;
            place.next = next;
        }
        found
    }

    fn give_up(&mut self, place: &mut Place, why: &str) -> usize {
        place.is_stuck = true;
        self.tell(format!(
            "streamlet {} lane {}: {why}",
            place.streamlet, place.lane
        ));
        0
    }

    fn tell(&mut self, problem: String) {
        match self.problems.len() < MOST_PROBLEMS {
            true => self.problems.push(problem),
            false => self.untold += 1,
        }
    }

    fn batches(&mut self, place: &mut Place, mut batches: &[u8], most: usize) -> usize {
        let before = self.records.len();
        while let Ok(header) = BatchHeader::peek(batches) {
            let Some((one, rest)) = batches.split_at_checked(header.total_bytes) else {
                break;
            };
            batches = rest;
            if let Err(error) = batch::verify(one) {
                return self.give_up(place, &error.to_string());
            }
            let found = self.records.len() - before;
            self.scratch.clear();
            let is_whole = self.batch(place, &header, one, most - found);
            self.looked_at += one.len().max(self.scratch.len());
            if !is_whole {
                break;
            }
            place.next = header.next_ordinal().max(place.next);
            if self.is_enough() {
                break;
            }
        }
        self.records.len() - before
    }

    /// Takes records of a batch; false if there is room for no more of them.
    fn batch(
        &mut self,
        place: &mut Place,
        header: &BatchHeader,
        bytes: &[u8],
        most: usize,
    ) -> bool {
        if header.is_control() {
            return true;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut taken = 0;
        let mut is_whole = true;
        match Records::open(bytes, MOST_DECOMPRESSED, &mut scratch) {
            Ok(records) => {
                for record in records {
                    let Ok(record) = record else {
                        let at = header.base_ordinal;
                        self.tell(format!("a record of the batch at {at} does not decode"));
                        break;
                    };
                    let ordinal = header.base_ordinal + u64::from(record.ordinal_delta);
                    if ordinal < place.next || self.key.is_some_and(|key| record.key != Some(key)) {
                        continue;
                    }
                    if taken == most || self.shown >= MOST_SHOWN {
                        place.next = ordinal;
                        is_whole = false;
                        break;
                    }
                    let view = RecordView {
                        streamlet: place.streamlet,
                        lane: place.lane,
                        partition: partition_of(
                            StreamletId(place.streamlet),
                            LaneId(place.lane),
                            self.stream.streamlets.len() as u32,
                        ),
                        ordinal,
                        timestamp_ms: record.timestamp,
                        key: self.mask.key(record.key),
                        value: self.mask.value(record.value),
                        headers: self.mask.headers(&record),
                    };
                    self.shown += view.shown();
                    self.records.push(view);
                    taken += 1;
                }
            }
            Err(error) => {
                let at = header.base_ordinal;
                self.tell(format!("the batch at {at} does not decompress: {error}"));
            }
        }
        self.scratch = scratch;
        is_whole
    }
}

impl RecordView {
    /// About what it takes of an answer.
    fn shown(&self) -> usize {
        let headers = self.headers.iter().map(HeaderView::shown);
        256 + self.key.data.len() + self.value.data.len() + headers.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_go_on_is_read_as_it_was_told() {
        assert_eq!(positions("0.1.77,3.0.9").unwrap(), [(0, 1, 77), (3, 0, 9)]);
        for wrong in ["", "1", "1.2", "1.2.3.4", "a.b.c", "1.2.3,"] {
            assert!(positions(wrong).is_err(), "{wrong}");
        }
    }
}
