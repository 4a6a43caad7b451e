//! Looking at groups, moving them, deleting them.

use std::collections::BTreeMap;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, LaneKey, Ordinal, StreamletId};
use kera_protocol::v1::{
    DeleteGroupResponse, DescribeGroupResponse, GroupSummary, HeldLease, HeldPosition,
    LaneProgress, MemberDescription, ResetGroupRequest, ResetGroupResponse, StartAt, start_at,
};

use crate::coordinator::{Coordinator, Step};
use crate::event::LaneRecord;
use crate::group::{EVENT_ENTRIES, Group, lanes_set};
use crate::lane::{self, told_end};
use crate::members::invalid;
use crate::slices::LaneSlices;
use crate::view::{LaneView, StreamShape};

impl Coordinator {
    /// Every group with its lag, sorted by name; also what metrics show.
    pub fn summaries(&self, view: &dyn LaneView) -> Vec<GroupSummary> {
        let native = self.state.groups.iter();
        let mut all: Vec<GroupSummary> = native
            .map(|(name, group)| summary(name, group, view))
            .chain(self.classic_summaries(view))
            .collect();
        all.sort_by(|a, b| a.group.cmp(&b.group));
        all
    }

    pub(crate) fn describe(
        &self,
        now_ms: u64,
        name: &str,
        view: &dyn LaneView,
    ) -> Result<DescribeGroupResponse, WireError> {
        if let Some(described) = self.classic_progress(now_ms, name, view) {
            return Ok(described);
        }
        let group = self.group(name)?;
        let live = self.live.get(name);
        let members = group
            .members
            .iter()
            .map(|(id, member)| MemberDescription {
                member: id.clone(),
                client: member.client.clone(),
                leases: member.leases.len() as u32,
                last_heartbeat_ms_ago: live
                    .and_then(|live| live.sessions.get(id))
                    .map_or(0, |session| now_ms.saturating_sub(session.seen_ms)),
                ..MemberDescription::default()
            })
            .collect();
        Ok(DescribeGroupResponse {
            summary: Some(summary(name, group, view)),
            members,
            lanes: progress(group, view, |_| true),
            ..DescribeGroupResponse::default()
        })
    }

    pub(crate) fn reset(
        &mut self,
        now_ms: u64,
        request: ResetGroupRequest,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<ResetGroupResponse, WireError> {
        let name = request.group.as_str();
        let Some(StartAt { at: Some(at) }) = request.to else {
            return Err(invalid(format!(
                "reset of group {name:?} says not where to: give earliest, latest, a time or an ordinal"
            )));
        };
        if self.state.classic.contains_key(name) {
            return self.classic_reset(now_ms, &request, &at, view, step);
        }
        let shape = self.shape_of(name, view, step)?;
        self.expire_sessions(now_ms, name, step);
        self.check_empty(name, "reset")?;
        self.check_settled(name, "reset")?;
        if request.stream.is_some() || request.partition.is_some() {
            return Err(invalid(format!(
                "group {name:?} reads stream {:?} by streamlets and lanes: choose by these, not by stream or partition",
                shape.name
            )));
        }
        if let Some(streamlet) = request.streamlet
            && streamlet >= shape.streamlets
        {
            return Err(WireError::new(
                ErrorCode::UnknownStreamlet,
                format!(
                    "stream {:?} has no streamlet {streamlet}: it has {}",
                    shape.name, shape.streamlets
                ),
            ));
        }
        let most = request
            .streamlet
            .map_or_else(|| shape.lanes(), |streamlet| shape.lanes_of(streamlet));
        if let Some(lane) = request.lane.filter(|lane| *lane >= most) {
            return Err(WireError::new(
                ErrorCode::UnknownLane,
                format!(
                    "stream {:?} has no lane {lane} there: its streamlets have {most}",
                    shape.name
                ),
            ));
        }
        let places = chosen_ordinals(&shape, &at, request.streamlet, request.lane, view)?;
        self.place(name, &places, step);
        let chosen = |lane: (u32, u32)| {
            request
                .streamlet
                .is_none_or(|streamlet| streamlet == lane.0)
                && request.lane.is_none_or(|wanted| wanted == lane.1)
        };
        Ok(ResetGroupResponse {
            lanes: progress(&self.state.groups[name], view, chosen),
            partitions: Vec::new(),
        })
    }

    pub(crate) fn delete(
        &mut self,
        now_ms: u64,
        name: &str,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<DeleteGroupResponse, WireError> {
        if self.state.classic.contains_key(name) {
            self.classic_check_empty(name, "deleted")?;
            self.classic_forget_group(name, step);
            return Ok(DeleteGroupResponse {});
        }
        self.shape_of(name, view, step)?;
        self.expire_sessions(now_ms, name, step);
        self.check_empty(name, "deleted")?;
        let reason = WireError::new(
            ErrorCode::UnknownConsumerGroup,
            format!("consumer group {name:?} was deleted"),
        );
        self.end_group(name, &reason, step);
        Ok(DeleteGroupResponse {})
    }

    pub(crate) fn check_empty(&self, name: &str, what: &str) -> Result<(), WireError> {
        match self.group(name)?.members.len() {
            0 => Ok(()),
            members => Err(not_empty(name, what, members)),
        }
    }

    /// Sets where the group stands in lanes.
    pub(crate) fn place(&mut self, name: &str, places: &[(LaneKey, Ordinal)], step: &mut Step) {
        let mut records = Vec::new();
        for (lane, low) in places {
            records.push(LaneRecord {
                streamlet: lane.streamlet.0,
                lane: lane.lane.0,
                low: *low,
                hint: None,
                finished: Vec::new(),
                slices: Vec::new(),
            });
            if records.len() == EVENT_ENTRIES {
                self.emit(step, name, lanes_set(std::mem::take(&mut records)));
            }
        }
        if !records.is_empty() {
            self.emit(step, name, lanes_set(records));
        }
    }
}

/// A place that cannot be told yet: a group that took ordinal 0 for the head, or the log start for a time, would read
/// everything.
fn not_told(
    shape: &StreamShape,
    at: &start_at::At,
    lane: LaneKey,
    view: &dyn LaneView,
) -> WireError {
    let text = match at {
        start_at::At::TimestampMs(time) if view.lane(lane).is_some() => format!(
            "stream {:?} streamlet {} lane {}: the owner has not told in time where its records of {time} ms and later begin: try again, or name another place",
            shape.name, lane.streamlet, lane.lane
        ),
        _ => format!(
            "stream {:?} is not recovered yet, so where it ends is not known: try again, or begin at the earliest record",
            shape.name
        ),
    };
    WireError::new(ErrorCode::NotEnoughCopies, text)
}

/// As [`ordinals_at`], for the chosen lanes.
///
/// # Errors
/// [`ErrorCode::NotEnoughCopies`].
pub(crate) fn chosen_ordinals(
    shape: &StreamShape,
    at: &start_at::At,
    streamlet: Option<u32>,
    lane: Option<u32>,
    view: &dyn LaneView,
) -> Result<Vec<(LaneKey, Ordinal)>, WireError> {
    let chosen = chosen_lanes(shape, streamlet, lane).map(|(streamlet, lane)| LaneKey {
        stream: shape.id,
        streamlet: StreamletId(streamlet),
        lane: LaneId(lane),
    });
    ordinals_at(shape, at, chosen, view)
}

/// The lanes of a stream, of one streamlet, of one number, or just one.
fn chosen_lanes(
    shape: &StreamShape,
    streamlet: Option<u32>,
    lane: Option<u32>,
) -> impl Iterator<Item = (u32, u32)> {
    let streamlets = streamlet.map_or(0..shape.streamlets, |one| one..one + 1);
    streamlets.flat_map(move |streamlet| {
        let lanes = (0..shape.lanes_of(streamlet)).map(move |lane| (streamlet, lane));
        lanes.filter(move |(_, number)| lane.is_none_or(|wanted| wanted == *number))
    })
}

/// The ordinals of a place in every one of `lanes`. That of the earliest record can always be told: a group moves up to
/// it by itself.
///
/// # Errors
/// [`ErrorCode::NotEnoughCopies`].
pub(crate) fn ordinals_at(
    shape: &StreamShape,
    at: &start_at::At,
    lanes: impl Iterator<Item = LaneKey>,
    view: &dyn LaneView,
) -> Result<Vec<(LaneKey, Ordinal)>, WireError> {
    let ordinals = lanes.map(|lane| match ordinal_at(lane, at, view) {
        Some(ordinal) => Ok((lane, ordinal)),
        None => Err(not_told(shape, at, lane, view)),
    });
    ordinals.collect()
}

/// The ordinal of a place in a lane, within what is stored of it.
fn ordinal_at(lane: LaneKey, at: &start_at::At, view: &dyn LaneView) -> Option<Ordinal> {
    let Some(status) = view.lane(lane) else {
        return matches!(at, start_at::At::Earliest(_)).then_some(0);
    };
    let end = status.head.max(status.log_start);
    Some(match *at {
        start_at::At::Earliest(_) => status.log_start,
        start_at::At::Latest(_) => status.head,
        start_at::At::TimestampMs(time) => view.at_time(lane, time)?.clamp(status.log_start, end),
        start_at::At::Ordinal(ordinal) => ordinal.clamp(status.log_start, end),
    })
}

pub(crate) fn not_empty(name: &str, what: &str, members: usize) -> WireError {
    WireError::new(
        ErrorCode::GroupNotEmpty,
        format!("consumer group {name:?} cannot be {what}: stop its {members} members first"),
    )
}

/// Lanes to show: those of the stream as it is, or those the group touched if that is unknown.
fn lanes_of(group: &Group, view: &dyn LaneView) -> Vec<(u32, u32)> {
    match view.stream_by_id(group.stream) {
        Some(shape) => chosen_lanes(&shape, None, None).collect(),
        None => group
            .lanes
            .keys()
            .chain(group.sliced.keys())
            .copied()
            .collect(),
    }
}

fn progress(
    group: &Group,
    view: &dyn LaneView,
    chosen: impl Fn((u32, u32)) -> bool,
) -> Vec<LaneProgress> {
    let mut held: BTreeMap<(u32, u32), Vec<HeldLease>> = BTreeMap::new();
    for (id, lease) in &group.leases {
        held.entry(lease.lane).or_default().push(HeldLease {
            lease: *id,
            member: lease.member.clone(),
            start_ordinal: lease.start,
            end_ordinal: told_end(lease.end),
            slices: lease.slices.bits(),
            committed: match lease.slices.is_empty() {
                true => 0,
                false => lease.next,
            },
        });
    }
    let mut sent: BTreeMap<(u32, u32), Vec<HeldPosition>> = BTreeMap::new();
    for (lease, position) in group.sent.by_lease() {
        sent.entry(position.lane).or_default().push(HeldPosition {
            lease,
            producer_id: position.producer,
            from_ordinal: position.from,
            next_ordinal: position.next.ordinal,
        });
    }
    lanes_of(group, view)
        .into_iter()
        .filter(|lane| chosen(*lane))
        .map(|lane| {
            let LaneFigures {
                committed,
                finished_above,
                end,
            } = lane_figures(group, lane, view);
            let (head_ordinal, lag) = end.unwrap_or_default();
            LaneProgress {
                streamlet: lane.0,
                lane: lane.1,
                committed,
                finished_above,
                head_ordinal,
                lag,
                head_unknown: end.is_none(),
                leases: held.remove(&lane).unwrap_or_default(),
                held: sent.remove(&lane).unwrap_or_default(),
                slice_offsets: group
                    .sliced
                    .get(&lane)
                    .map_or_else(Vec::new, LaneSlices::offsets),
            }
        })
        .collect()
}

/// How far a group is in a lane.
struct LaneFigures {
    committed: Ordinal,
    /// Records consumed above it.
    finished_above: u64,
    /// The head, and records not yet consumed; `None` while the lane's owner has not told where it ends.
    end: Option<(Ordinal, u64)>,
}

fn lane_figures(group: &Group, lane: (u32, u32), view: &dyn LaneView) -> LaneFigures {
    let committed = group.low(lane);
    let progress = group.lanes.get(&lane);
    let finished_above = progress.map_or(0, lane::LaneProgress::finished_above);
    let key = group.lane_key(lane);
    let end = view.lane(key).map(|status| {
        let from = view.skip_gap(key, committed.max(status.log_start));
        // What is finished below it is passed over already, as where records were trimmed.
        let finished = progress.map_or(0, |progress| progress.finished_from(from));
        let lag = status.head.saturating_sub(from).saturating_sub(finished);
        (status.head, lag)
    });
    LaneFigures {
        committed,
        finished_above,
        end,
    }
}

/// The sum of what is known, and how many are not.
pub(crate) fn sum_of(lags: impl Iterator<Item = Option<u64>>) -> (u64, u32) {
    lags.fold((0, 0), |(sum, unknown): (u64, u32), lag| match lag {
        Some(lag) => (sum.saturating_add(lag), unknown),
        None => (sum, unknown + 1),
    })
}

fn summary(name: &str, group: &Group, view: &dyn LaneView) -> GroupSummary {
    let lanes = lanes_of(group, view).into_iter();
    let lags = lanes.map(|lane| Some(lane_figures(group, lane, view).end?.1));
    let (lag, unknown_lanes) = sum_of(lags);
    GroupSummary {
        group: name.to_owned(),
        stream: group.stream_name.clone(),
        order: group.order as i32,
        members: group.members.len() as u32,
        leases: group.leases.len() as u32,
        lag,
        unknown_lanes,
        ..GroupSummary::default()
    }
}
