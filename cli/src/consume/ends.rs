//! Where a group's reading ends that does not follow.

use std::collections::HashMap;
use std::time::Duration;

use kera_protocol::v1;
use kera_rpc::Client;

use crate::connect::failed;
use crate::failure::Failure;

/// How long the group's coordinator is given before it is looked up anew.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What was durable when the command began.
pub(super) struct Ends {
    client: Client,
    group: String,
    heads: HashMap<(u32, u32), u64>,
}

impl Ends {
    pub(super) async fn now(client: Client, stream: &str, group: &str) -> Result<Self, Failure> {
        let stream = client.stream(stream).await.map_err(failed)?;
        let latest = v1::find_ordinals_request::At::Latest(true);
        let found = client.find_ordinals(&stream, latest).await;
        let lanes = found.map_err(failed)?;
        Ok(Self {
            client,
            group: group.to_owned(),
            heads: lanes
                .into_iter()
                .map(|lane| ((lane.streamlet, lane.lane), lane.head_ordinal))
                .collect(),
        })
    }

    /// Whether the group is done with all of it.
    pub(super) async fn are_reached(&self) -> Result<bool, Failure> {
        let request = v1::DescribeGroupRequest {
            group: self.group.clone(),
        };
        let answer = self.client.group_call(&self.group, ANSWER_WITHIN, request);
        let lanes = answer.await.map_err(failed)?.lanes;
        let lanes: HashMap<(u32, u32), v1::LaneProgress> = lanes
            .into_iter()
            .map(|lane| ((lane.streamlet, lane.lane), lane))
            .collect();
        Ok(self
            .heads
            .iter()
            .all(|(lane, end)| *end == 0 || lanes.get(lane).is_some_and(|l| is_reached(l, *end))))
    }
}

/// Whether a group is done with a lane up to `end`. Of what was trimmed or what a recovery passed over
/// there is no record to commit, so the commits may end below it with nothing left.
fn is_reached(lane: &v1::LaneProgress, end: u64) -> bool {
    // A lane of which nothing is known at the moment is told with neither a head nor a lag.
    lane.committed >= end || (lane.lag == 0 && lane.head_ordinal >= end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(committed: u64, head_ordinal: u64, lag: u64) -> v1::LaneProgress {
        v1::LaneProgress {
            committed,
            head_ordinal,
            lag,
            ..v1::LaneProgress::default()
        }
    }

    #[test]
    fn a_lane_is_reached_with_nothing_left() {
        assert!(is_reached(&lane(10, 12, 2), 10));
        assert!(is_reached(&lane(3, 10, 0), 10), "trimmed, or passed over");
        assert!(!is_reached(&lane(3, 10, 7), 10));
        assert!(!is_reached(&lane(3, 0, 0), 10), "nothing is known of it");
        assert!(!is_reached(&lane(3, 5, 0), 10), "it is known too late");
    }
}
