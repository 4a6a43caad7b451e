//! No order: leases are ranges of durable records, cut by demand.

use std::collections::VecDeque;

use kera_protocol::v1::Cursor;

use crate::coordinator::{Coordinator, Step};
use crate::event::{Body, GapSkipped, LeaseRecord};
use crate::lane::LaneProgress;
use crate::view::{CutWish, LaneView, StreamShape};

impl Coordinator {
    pub(crate) fn serve_ranges(
        &mut self,
        now_ms: u64,
        name: &str,
        shape: &StreamShape,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let mut lanes = self.lanes_with_work(name, shape, view);
        if lanes.is_empty() {
            return;
        }
        let group = &self.state.groups[name];
        let waiting: Vec<(String, usize, u32)> = self.live[name]
            .waiters
            .iter()
            .map(|waiter| (waiter.member.clone(), waiter.max_leases, waiter.max_bytes))
            .collect();
        let busy = group
            .members
            .iter()
            .filter(|(id, member)| {
                !member.leases.is_empty() && !waiting.iter().any(|(waits, ..)| waits == *id)
            })
            .count();
        // What one lane has is meant for this many members.
        let sharers = (waiting.len() + busy).div_ceil(lanes.len()).max(1) as u64;
        let mut used = 0;
        for (member, max_leases, max_bytes) in waiting {
            let held = self.state.groups[name].members[&member].leases.len();
            let room = self.room(held, max_leases);
            let mut grants: Vec<(LeaseRecord, Cursor)> = Vec::new();
            for _ in 0..lanes.len() {
                if grants.len() == room {
                    break;
                }
                let Some(lane) = lanes.pop_front() else {
                    break;
                };
                let lease = self.state.groups[name].next_lease + grants.len() as u64;
                if let Some(grant) =
                    self.cut_range(name, lease, lane, sharers, max_bytes, view, step)
                {
                    grants.push(grant);
                    lanes.push_back(lane);
                    used += 1;
                }
            }
            self.grant(now_ms, name, &member, grants, false, step);
            if lanes.is_empty() {
                break;
            }
        }
        if let Some(live) = self.live.get_mut(name) {
            live.next_scan = live.next_scan.wrapping_add(used);
        }
    }

    /// Lanes from which something may be leased: first those with ranges that came back, then in
    /// turn.
    fn lanes_with_work(
        &self,
        name: &str,
        shape: &StreamShape,
        view: &dyn LaneView,
    ) -> VecDeque<(u32, u32)> {
        let group = &self.state.groups[name];
        let total = shape.partitions() as usize;
        let first = self.live[name].next_scan.checked_rem(total).unwrap_or(0);
        let (mut returned, mut fresh) = (VecDeque::new(), VecDeque::new());
        for index in (first..total).chain(0..first) {
            let lane = shape.place_of(index as u32);
            let Some(status) = view.lane(group.lane_key(lane)) else {
                continue;
            };
            let progress = group.lanes.get(&lane);
            if progress.is_some_and(|progress| progress.lowest_hole().is_some()) {
                returned.push_back(lane);
            } else if progress.map_or(0, LaneProgress::fresh) < status.head
                && status.log_start < status.head
            {
                fresh.push_back(lane);
            }
        }
        returned.append(&mut fresh);
        returned
    }

    /// Cuts the next range off a lane; `None` if there is nothing to lease.
    #[allow(clippy::too_many_arguments)]
    fn cut_range(
        &mut self,
        name: &str,
        lease: u64,
        lane: (u32, u32),
        sharers: u64,
        max_bytes: u32,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Option<(LeaseRecord, Cursor)> {
        let key = self.state.groups[name].lane_key(lane);
        let status = view.lane(key)?;
        let low = self.lift_low(name, lane, view, step);
        loop {
            let progress = self.state.groups[name].lanes.get(&lane);
            let hole = progress.and_then(LaneProgress::lowest_hole);
            let fresh = progress.map_or(0, LaneProgress::fresh);
            let full = progress
                .is_some_and(|progress| progress.span_count() >= self.limits.finished_ranges);
            let (from, to) = hole.unwrap_or((fresh, status.head));
            // With the set of ranges full only the lowest records make it smaller again.
            if full && from > low {
                return None;
            }
            let to = to.min(status.head);
            if from >= to {
                return None;
            }
            let stored_from = view.skip_gap(key, from);
            let wish = CutWish {
                ordinals: to.saturating_sub(stored_from).div_ceil(sharers).max(1),
                bytes: max_bytes,
            };
            let cut = view.cut(key, from, wish)?;
            if let Some((start, end)) = hole
                && cut.start.ordinal >= end
            {
                self.emit(
                    step,
                    name,
                    Body::GapSkipped(GapSkipped {
                        streamlet: lane.0,
                        lane: lane.1,
                        start,
                        end,
                    }),
                );
                continue;
            }
            let end = cut.end.min(to);
            if end <= from {
                return None;
            }
            let record = LeaseRecord {
                lease,
                streamlet: lane.0,
                lane: lane.1,
                start: from,
                end,
                next: 0,
                generation: 0,
                slices: 0,
            };
            return Some((record, cut.start));
        }
    }
}
