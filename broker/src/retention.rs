//! What retention no longer keeps: by the time of records and by the bytes of a stream, in whole groups.
//!
//! No producer's clock decides about the records of others. Retention by size looks at no time at all: each
//! lane has an equal share of the stream's limit, nothing of a lane goes as long as that would leave it
//! less, and of the lanes that have more the one with most gives first. Retention by time goes by the
//! timestamps in a group, unless they lie ahead of the broker's clock; see [`Group::newest_ms`].
//!
//! [`Group::newest_ms`]: kera_log_segments::group::Group::newest_ms

use std::collections::{BinaryHeap, HashMap, VecDeque};

use kera_metadata::StreamConfig;
use kera_protocol::ids::{LaneId, Ordinal};

use crate::data::catalog::Stream;

/// A lane, by the number of its streamlet.
type Lane = (usize, LaneId);

/// What a lane holds, as retention by size looks at it.
#[derive(Clone, Debug)]
struct Held {
    lane: Lane,
    /// Of all its groups.
    bytes: u64,
    /// Those that may go, oldest first: where each ends, and its bytes.
    closed: VecDeque<(Ordinal, u64)>,
}

/// Where retention by time and by size puts each lane's log start. `now` is in milliseconds.
pub(crate) fn doomed(stream: &Stream, now: u64) -> Vec<(usize, LaneId, Ordinal)> {
    let config = stream.record.load().config.clone();
    let mut starts: HashMap<Lane, Ordinal> = HashMap::new();
    if !config.cleanup.deletes() {
        return Vec::new();
    }
    if config.retention_ms > 0 {
        let limit = now.saturating_sub(config.retention_ms) as i64;
        for (index, streamlet) in stream.streamlets.iter().enumerate() {
            for (lane, log_start, _) in streamlet.bounds() {
                if let Some(ordinal) = streamlet
                    .expired_below(lane, limit, now as i64)
                    .filter(|o| *o > log_start)
                {
                    starts.insert((index, lane), ordinal);
                }
            }
        }
    }
    if config.retention_bytes > 0 {
        for (lane, end) in beyond(&config, held(stream)) {
            let start = starts.entry(lane).or_insert(0);
            *start = (*start).max(end);
        }
    }
    starts
        .into_iter()
        .map(|((index, lane), ordinal)| (index, lane, ordinal))
        .collect()
}

/// What the lanes hold that are served here.
fn held(stream: &Stream) -> Vec<Held> {
    let mut all = Vec::new();
    for (index, streamlet) in stream.streamlets.iter().enumerate() {
        all.extend(streamlet.describe().into_iter().map(|lane| {
            Held {
                lane: (index, lane.lane),
                bytes: lane.groups.iter().map(|group| group.bytes).sum(),
                closed: lane
                    .groups
                    .iter()
                    .take_while(|group| group.closed)
                    .map(|group| (group.end_ordinal, group.bytes))
                    .collect(),
            }
        }));
    }
    all
}

/// Ends of the groups that go for `lanes` to keep no more than their part of the stream's limit, as far as
/// whole groups allow: of each lane its oldest, and only as long as both the lane and all of them together
/// keep what they may. Where brokers share a stream, each sees to the lanes that it owns.
fn beyond(config: &StreamConfig, lanes: Vec<Held>) -> Vec<(Lane, Ordinal)> {
    let all = u128::from(config.partitions());
    let part = |lanes: usize| {
        let part = u128::from(config.retention_bytes) * lanes as u128 / all.max(1);
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let (share, limit) = (part(1), part(lanes.len()));
    let mut total: u64 = lanes.iter().map(|held| held.bytes).sum();
    let mut gone = Vec::new();
    // The one with most first; of equal ones always the same.
    let mut most: BinaryHeap<(u64, Lane, usize)> = lanes
        .iter()
        .enumerate()
        .map(|(at, held)| (held.bytes, held.lane, at))
        .collect();
    let mut lanes = lanes;
    while let Some((bytes, lane, at)) = most.pop() {
        let Some((end, size)) = lanes[at].closed.pop_front() else {
            continue;
        };
        // All together only become less, so what cannot go now cannot go later.
        if bytes < share.saturating_add(size) || total < limit.saturating_add(size) {
            continue;
        }
        total -= size;
        gone.push((lane, end));
        most.push((bytes - size, lane, at));
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes of one streamlet, each with the bytes of its closed groups.
    fn ends(limit: u64, lanes: u32, held: &[&[u64]]) -> Vec<(u32, Ordinal)> {
        let config = StreamConfig {
            lanes,
            retention_bytes: limit,
            ..StreamConfig::default()
        };
        let held = held.iter().enumerate().map(|(lane, groups)| Held {
            lane: (0, LaneId(lane as u32)),
            bytes: groups.iter().sum(),
            closed: (1..).zip(groups.iter().copied()).collect(),
        });
        let mut gone: Vec<_> = beyond(&config, held.collect())
            .into_iter()
            .map(|((_, lane), end)| (lane.0, end))
            .collect();
        gone.sort_unstable();
        gone
    }

    #[test]
    fn a_lane_keeps_its_limit_and_less_than_a_group_more() {
        assert_eq!(ends(30, 1, &[&[10, 10, 10]]), []);
        assert_eq!(ends(29, 1, &[&[10, 10, 10]]), [], "20 would be less");
        assert_eq!(ends(20, 1, &[&[10, 10, 10]]), [(0, 1)]);
        assert_eq!(ends(1, 1, &[&[10, 10, 10]]), [(0, 1), (0, 2)]);
        assert_eq!(ends(0, 1, &[&[10, 10]]), [(0, 1), (0, 2)]);
    }

    #[test]
    fn the_lane_with_most_gives_first_and_none_gives_of_its_share() {
        // 40 bytes for four lanes: 10 each.
        let uneven: [&[u64]; 4] = [&[10, 10, 10, 10], &[10, 10], &[10], &[]];
        assert_eq!(ends(40, 4, &uneven), [(0, 1), (0, 2), (1, 1)]);
        // What others leave, a busy lane may use.
        assert_eq!(ends(70, 4, &uneven), []);
        assert_eq!(ends(60, 4, &uneven), [(0, 1)]);
        let even: [&[u64]; 2] = [&[10, 10, 10], &[10, 10, 10]];
        assert_eq!(ends(40, 2, &even), [(0, 1), (1, 1)]);
        // A lane of which no more may go stops no other.
        assert_eq!(ends(40, 2, &[&[50], &[10, 10, 10]]), [(1, 1)]);
    }

    #[test]
    fn an_owner_of_some_lanes_keeps_their_part() {
        // Two of four lanes are here: 20 of 40 bytes.
        let here: [&[u64]; 2] = [&[10, 10], &[10, 10]];
        assert_eq!(ends(40, 4, &here), [(0, 1), (1, 1)]);
        assert_eq!(ends(80, 4, &here), []);
    }

    #[test]
    fn a_group_that_is_too_large_for_the_share_is_kept_until_others_follow() {
        assert_eq!(ends(5, 1, &[&[100]]), []);
        assert_eq!(ends(5, 1, &[&[100, 4]]), []);
        assert_eq!(ends(5, 1, &[&[100, 5]]), [(0, 1)]);
        assert_eq!(ends(u64::MAX, 1, &[&[100, 5]]), []);
    }
}
