//! What retention no longer keeps: by the time of records and by the bytes of a stream, in whole groups.

use std::collections::HashMap;

use kera_protocol::ids::{LaneId, Ordinal};

use crate::catalog::Stream;

/// A lane, by the number of its streamlet.
type Lane = (usize, LaneId);

/// A closed group, as retention by size looks at it.
#[derive(Clone, Copy, Debug)]
struct Closed {
    lane: Lane,
    /// Of its newest record, in milliseconds.
    timestamp: i64,
    end: Ordinal,
    bytes: u64,
}

/// Where retention by time and by size puts each lane's log start. `now` is in milliseconds.
pub(crate) fn doomed(stream: &Stream, now: u64) -> Vec<(usize, LaneId, Ordinal)> {
    let config = stream.record.load().config.clone();
    let mut starts: HashMap<Lane, Ordinal> = HashMap::new();
    if config.retention_ms > 0 {
        let limit = now.saturating_sub(config.retention_ms) as i64;
        for (index, streamlet) in stream.streamlets.iter().enumerate() {
            for (lane, log_start, _) in streamlet.bounds() {
                if let Some(ordinal) = streamlet
                    .expired_below(lane, limit)
                    .filter(|o| *o > log_start)
                {
                    starts.insert((index, lane), ordinal);
                }
            }
        }
    }
    if config.retention_bytes > 0 {
        let mut total = 0;
        let mut closed = Vec::new();
        for (index, streamlet) in stream.streamlets.iter().enumerate() {
            for lane in streamlet.describe() {
                for group in lane.groups {
                    total += group.bytes;
                    if group.closed {
                        closed.push(Closed {
                            lane: (index, lane.lane),
                            timestamp: group.max_timestamp,
                            end: group.end_ordinal,
                            bytes: group.bytes,
                        });
                    }
                }
            }
        }
        for (lane, end) in beyond(config.retention_bytes, total, closed) {
            let start = starts.entry(lane).or_insert(0);
            *start = (*start).max(end);
        }
    }
    starts
        .into_iter()
        .map(|((index, lane), ordinal)| (index, lane, ordinal))
        .collect()
}

/// Ends of the groups that go for `total` bytes to become at most `limit`: the oldest first, and within
/// a lane in its order, for nothing goes without what stands before it.
fn beyond(limit: u64, mut total: u64, mut closed: Vec<Closed>) -> Vec<(Lane, Ordinal)> {
    closed.sort_by_key(|group| (group.lane, group.end));
    // A lane's order need not be that of its times, as where records of long ago are filled in: a group
    // is as young as the youngest up to it.
    let mut before: Option<(Lane, i64)> = None;
    for group in &mut closed {
        if let Some((lane, youngest)) = before
            && lane == group.lane
        {
            group.timestamp = group.timestamp.max(youngest);
        }
        before = Some((group.lane, group.timestamp));
    }
    closed.sort_by_key(|group| (group.timestamp, group.lane, group.end));
    let mut gone = Vec::new();
    for group in closed {
        if total <= limit {
            break;
        }
        total = total.saturating_sub(group.bytes);
        gone.push((group.lane, group.end));
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(lane: u32, end: Ordinal, timestamp: i64) -> Closed {
        Closed {
            lane: (0, LaneId(lane)),
            timestamp,
            end,
            bytes: 10,
        }
    }

    fn ends(limit: u64, closed: &[Closed]) -> Vec<(u32, Ordinal)> {
        let total = closed.iter().map(|group| group.bytes).sum();
        let gone = beyond(limit, total, closed.to_vec());
        gone.into_iter()
            .map(|((_, lane), end)| (lane.0, end))
            .collect()
    }

    #[test]
    fn the_oldest_groups_of_all_lanes_go_first() {
        let closed = [
            group(0, 1, 100),
            group(0, 2, 300),
            group(1, 1, 200),
            group(1, 2, 400),
        ];
        assert_eq!(ends(40, &closed), []);
        assert_eq!(ends(39, &closed), [(0, 1)]);
        assert_eq!(ends(15, &closed), [(0, 1), (1, 1), (0, 2)]);
        assert_eq!(ends(1, &closed), [(0, 1), (1, 1), (0, 2), (1, 2)]);
    }

    #[test]
    fn records_of_long_ago_take_nothing_along_that_stands_before_them() {
        let filled_in = [group(0, 1, 100), group(0, 2, 200), group(0, 3, 10)];
        // One group is too many, and it is the first that goes.
        assert_eq!(ends(25, &filled_in), [(0, 1)]);
        assert_eq!(ends(15, &filled_in), [(0, 1), (0, 2)]);
        // Another lane's are older than what stands behind a young one.
        let closed = [group(0, 1, 500), group(0, 2, 10), group(1, 1, 300)];
        assert_eq!(ends(25, &closed), [(1, 1)]);
        assert_eq!(ends(15, &closed), [(1, 1), (0, 1)]);
    }
}
