//! Requests for leases: first come, first served, each member within its share.

use kera_protocol::error::WireError;
use kera_protocol::ids::Ordinal;
use kera_protocol::slices::SliceSet;
use kera_protocol::v1::{self, AcquireRequest, AcquireResponse, Cursor, LaneBy, Order};

use crate::coordinator::{Coordinator, Reply, Step, Ticket, Waiter};
use crate::event::{Body, LeaseRecord, LeasesGranted, LowMoved};
use crate::group::Group;
use crate::lane::told_end;
use crate::members::invalid;
use crate::shares;
use crate::view::{LaneView, StreamShape};

impl Coordinator {
    pub(crate) fn acquire(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: AcquireRequest,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<(), WireError> {
        let name = request.group.as_str();
        self.shape_of(name, view, step)?;
        self.touch(now_ms, name, &request.member)?;
        if request.max_leases == 0 {
            return Err(invalid(format!(
                "acquire of member {:?} asks for no leases: max_leases must be at least 1",
                request.member
            )));
        }
        let wait_ms = u64::from(request.max_wait_ms.min(self.limits.max_wait_ms));
        let member = &self.state.groups[name].members[&request.member];
        let (held, session_ms) = (member.leases.len(), u64::from(member.session_ms));
        let max_leases = request.max_leases as usize;
        let Some(live) = self.live.get_mut(name) else {
            return Err(invalid(format!("consumer group {name:?} has no members")));
        };
        if let Some(session) = live.sessions.get_mut(&request.member) {
            session.wish = held.saturating_add(max_leases);
            session.wish_until_ms = now_ms.saturating_add(wait_ms.max(session_ms));
        }
        // A member that asks again has given up its earlier request.
        if let Some(at) = live
            .waiters
            .iter()
            .position(|waiter| waiter.member == request.member)
            && let Some(waiter) = live.waiters.remove(at)
        {
            step.replies.push((waiter.ticket, Ok(no_leases())));
        }
        live.waiters.push_back(Waiter {
            ticket,
            member: request.member,
            max_leases,
            max_bytes: match request.max_bytes {
                0 => self.limits.default_range_bytes,
                bytes => bytes,
            },
            deadline_ms: now_ms.saturating_add(wait_ms),
        });
        self.serve(now_ms, name, view, step);
        if wait_ms == 0 {
            self.expire_waiters(now_ms, name, step);
        }
        Ok(())
    }

    /// Answers requests whose wait is over.
    pub(crate) fn expire_waiters(&mut self, now_ms: u64, name: &str, step: &mut Step) {
        let Some(live) = self.live.get_mut(name) else {
            return;
        };
        live.waiters.retain(|waiter| {
            let over = waiter.deadline_ms <= now_ms;
            if over {
                step.replies.push((waiter.ticket, Ok(no_leases())));
            }
            !over
        });
        self.note_waiting(name);
    }

    /// Grants what can be granted to waiting requests.
    pub(crate) fn serve(&mut self, now_ms: u64, name: &str, view: &dyn LaneView, step: &mut Step) {
        let waits = self
            .live
            .get(name)
            .is_some_and(|live| !live.waiters.is_empty());
        if waits
            && let Some(group) = self.state.groups.get(name)
            && let Some(shape) = view.stream_by_id(group.stream)
        {
            match group.order {
                Order::Lane => self.serve_lanes(now_ms, name, &shape, view, step),
                Order::None => self.serve_ranges(now_ms, name, &shape, view, step),
                Order::Key => self.serve_slices(now_ms, name, &shape, view, step),
            }
        }
        self.note_waiting(name);
    }

    fn serve_lanes(
        &mut self,
        now_ms: u64,
        name: &str,
        shape: &StreamShape,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let group = &self.state.groups[name];
        let lanes = shares::lanes_to_share(group, shape, view);
        if group.leases.len() >= lanes {
            return;
        }
        let leased = shares::leased_lanes(group);
        let mut free = shares::open_lanes(group, shape, view);
        free.retain(|open| {
            !leased.contains(&open.lane)
                && !shares::is_held(group, open.lane)
                && view.lane(group.lane_key(open.lane)).is_some()
        });
        let mut free = free.into_iter().peekable();
        let by_key = shape.lane_by == LaneBy::Key;
        let demands = shares::demands(group, self.live.get(name), now_ms);
        let shares: std::collections::BTreeMap<String, usize> = group
            .members
            .keys()
            .cloned()
            .zip(shares::targets(lanes, &demands))
            .collect();
        for (member, max_leases) in self.waiting(name) {
            if free.peek().is_none() {
                break;
            }
            let share = shares.get(&member).copied().unwrap_or(0);
            let held = self.state.groups[name].members[&member].leases.len();
            let room = self.room(held, max_leases).min(share.saturating_sub(held));
            let mut grants = Vec::new();
            for open in free.by_ref().take(room) {
                let start = self.lift_low(name, open.lane, view, step);
                let group = &self.state.groups[name];
                grants.push((
                    LeaseRecord {
                        lease: group.next_lease + grants.len() as u64,
                        streamlet: open.lane.0,
                        lane: open.lane.1,
                        start,
                        end: told_end(open.end),
                        next: 0,
                        generation: open.generation,
                        slices: 0,
                    },
                    cursor_at_low(group, open.lane),
                ));
            }
            self.grant(now_ms, name, &member, grants, by_key, step);
        }
    }

    /// Members that wait for leases, in the order in which they asked, and how many each takes.
    pub(crate) fn waiting(&self, name: &str) -> Vec<(String, usize)> {
        let waiters = self.live[name].waiters.iter();
        waiters
            .map(|waiter| (waiter.member.clone(), waiter.max_leases))
            .collect()
    }

    /// How many leases more a request may get.
    pub(crate) fn room(&self, held: usize, max_leases: usize) -> usize {
        max_leases
            .min(self.limits.leases_per_member.saturating_sub(held))
            .min(self.limits.commits_per_request)
    }

    /// Counts what lies below the log start as finished. Returns the lane's low ordinal.
    pub(crate) fn lift_low(
        &mut self,
        name: &str,
        lane: (u32, u32),
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Ordinal {
        let group = &self.state.groups[name];
        let low = group.low(lane);
        let start = view
            .lane(group.lane_key(lane))
            .map_or(0, |status| status.log_start);
        if start <= low {
            return low;
        }
        self.emit(
            step,
            name,
            Body::LowMoved(LowMoved {
                streamlet: lane.0,
                lane: lane.1,
                low: start,
            }),
        );
        self.state.groups[name].low(lane)
    }

    /// Grants leases to a waiting member and answers it. With `generations`, its reads stop where
    /// the lane generation of a lease ends.
    pub(crate) fn grant(
        &mut self,
        now_ms: u64,
        name: &str,
        member: &str,
        grants: Vec<(LeaseRecord, Cursor)>,
        generations: bool,
        step: &mut Step,
    ) {
        if grants.is_empty() {
            return;
        }
        let group = &self.state.groups[name];
        let stream = group.stream;
        let leases = grants
            .iter()
            .map(|(record, cursor)| v1::Lease {
                slices: record.slices,
                slice_starts: slice_starts(group, record),
                lease: record.lease,
                stream: stream.as_bytes().to_vec().into(),
                streamlet: record.streamlet,
                lane: record.lane,
                start: Some(*cursor),
                end_ordinal: record.end,
                lane_generation: generations.then_some(record.generation),
            })
            .collect();
        let records: Vec<LeaseRecord> = grants.into_iter().map(|(record, _)| record).collect();
        if let Some(live) = self.live.get_mut(name) {
            if let Some(session) = live.sessions.get_mut(member) {
                session
                    .granted_ms
                    .extend(records.iter().map(|record| (record.lease, now_ms)));
            }
            if let Some(at) = live.waiters.iter().position(|w| w.member == member)
                && let Some(waiter) = live.waiters.remove(at)
            {
                let reply = Reply::Acquire(AcquireResponse { leases });
                step.replies.push((waiter.ticket, Ok(reply)));
            }
        }
        self.emit(
            step,
            name,
            Body::LeasesGranted(LeasesGranted {
                member: member.to_owned(),
                leases: records,
            }),
        );
    }
}

fn no_leases() -> Reply {
    Reply::Acquire(AcquireResponse::default())
}

/// How far above its start each slice of a lease begins; empty if all begin there.
fn slice_starts(group: &Group, record: &LeaseRecord) -> Vec<u64> {
    let Some(sliced) = group.sliced.get(&(record.streamlet, record.lane)) else {
        return Vec::new();
    };
    let slices = SliceSet::from_bits(record.slices).iter();
    let starts = slices.map(|slice| sliced.position(slice).saturating_sub(record.start));
    let starts: Vec<u64> = starts.collect();
    match starts.iter().all(|start| *start == 0) {
        true => Vec::new(),
        false => starts,
    }
}

fn cursor_at_low(group: &Group, lane: (u32, u32)) -> Cursor {
    group
        .lanes
        .get(&lane)
        .map(|progress| progress.cursor())
        .unwrap_or_default()
}
