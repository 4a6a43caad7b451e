//! Positions of whoever keeps its positions itself, such as a stream engine: the group shows where it stands.

use std::collections::BTreeMap;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, LaneKey, Ordinal, StreamletId};
use kera_protocol::v1::{CommitPositionsRequest, CommitPositionsResponse, Order};

use crate::coordinator::{Coordinator, Step};
use crate::event::LaneRecord;
use crate::group::{EVENT_ENTRIES, lanes_set};
use crate::members::{check_group_name, invalid, shape_named};
use crate::view::{LaneView, StreamShape};

impl Coordinator {
    /// Sets where a group without members stands. Positions may go back, as after an engine's return to an
    /// older checkpoint.
    pub(crate) fn commit_positions(
        &mut self,
        now_ms: u64,
        request: &CommitPositionsRequest,
        host: &str,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<CommitPositionsResponse, WireError> {
        check_group_name(&request.group)?;
        let name = request.group.as_str();
        let most = self.limits.commits_per_request;
        if request.positions.len() > most {
            return Err(invalid(format!(
                "positions of group {name:?}: {} in one request, send at most {most}",
                request.positions.len(),
            )));
        }
        let shape = shape_named(&request.stream, view)?;
        let wanted = checked(request, &shape, view)?;
        if self.is_taken(name, &shape, None, view, step)? {
            self.expire_sessions(now_ms, name, step);
            self.check_empty(name, "given positions without membership")?;
            self.check_settled(name, "given positions without membership")?;
        } else {
            self.create_group(now_ms, name, Order::Lane, &shape, None, host, view, step)?;
        }
        let group = &self.state.groups[name];
        // Only what moves something is worth an event.
        let moved = wanted.into_iter();
        let moved = moved.filter(|(lane, ordinal)| !group.is_at(*lane, *ordinal));
        let records = moved.map(|((streamlet, lane), low)| LaneRecord {
            streamlet,
            lane,
            low,
            hint: None,
            finished: Vec::new(),
            slices: Vec::new(),
        });
        let records: Vec<LaneRecord> = records.collect();
        for part in records.chunks(EVENT_ENTRIES) {
            self.emit(step, name, lanes_set(part.to_vec()));
        }
        Ok(CommitPositionsResponse {})
    }
}

/// The positions by lane; of two for one lane the last one counts.
fn checked(
    request: &CommitPositionsRequest,
    shape: &StreamShape,
    view: &dyn LaneView,
) -> Result<BTreeMap<(u32, u32), Ordinal>, WireError> {
    let mut wanted = BTreeMap::new();
    for position in &request.positions {
        let (streamlet, lane) = (position.streamlet, position.lane);
        if streamlet >= shape.streamlets || lane >= shape.lanes_of(streamlet) {
            return Err(WireError::new(
                ErrorCode::UnknownLane,
                format!(
                    "stream {:?} has no streamlet {streamlet} with a lane {lane}",
                    shape.name
                ),
            ));
        }
        let ordinal = position.ordinal;
        let key = LaneKey {
            stream: shape.id,
            streamlet: StreamletId(streamlet),
            lane: LaneId(lane),
        };
        if let Some(head) = view.highest_readable(key).filter(|head| ordinal > *head) {
            return Err(invalid(format!(
                "position {ordinal} of group {:?} in streamlet {streamlet} lane {lane} is above the lane's durable head {head}",
                request.group
            )));
        }
        wanted.insert((streamlet, lane), ordinal);
    }
    Ok(wanted)
}
