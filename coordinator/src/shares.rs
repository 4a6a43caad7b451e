//! Order by lane: which lanes may be leased now, and how many each member should hold.

use std::collections::BTreeSet;

use kera_protocol::ids::Ordinal;
use kera_protocol::partition::keys_move;
use kera_protocol::slices::SliceSet;
use kera_protocol::v1::LaneBy;

use crate::coordinator::Live;
use crate::group::Group;
use crate::lane::{LaneProgress, OPEN_END};
use crate::view::{LaneView, StreamShape};

/// A lane that may be leased, leased already or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenLane {
    pub(crate) lane: (u32, u32),
    pub(crate) end: Ordinal,
    pub(crate) generation: u32,
}

/// True if lane generations must be read one after the other.
pub(crate) fn has_barriers(shape: &StreamShape) -> bool {
    shape.lane_by == LaneBy::Key && shape.generations.len() > 1
}

/// Every lane that may be leased now. A streamlet's lanes of a generation follow once all of its lanes of
/// the one before are consumed; where keys may have moved between streamlets, once all lanes are.
pub(crate) fn open_lanes(group: &Group, shape: &StreamShape, view: &dyn LaneView) -> Vec<OpenLane> {
    let mut lanes = Vec::new();
    let newest = shape.generations.len().saturating_sub(1);
    let first = if has_barriers(shape) { 0 } else { newest };
    // Streamlets that have reached the generation.
    let mut reached: Vec<u32> = (0..shape.streamlets).collect();
    for (generation, count) in shape.generations.iter().enumerate().skip(first) {
        let ends = has_barriers(shape) && generation < newest;
        reached.retain(|streamlet| {
            let of = (0..shape.lanes_in(*streamlet, *count)).map(|lane| (*streamlet, lane));
            open_lanes_of(group, view, of, generation as u32, ends, &mut lanes)
        });
        let next = shape.generations.get(generation + 1);
        let moved = next.is_some_and(|next| keys_move(shape.streamlets, *count, *next));
        if reached.is_empty() || moved && reached.len() < shape.streamlets as usize {
            break;
        }
    }
    lanes.sort_unstable_by_key(|open| open.lane);
    lanes
}

/// Adds those lanes of a streamlet that may be leased in a generation. True if all are consumed to its
/// end.
fn open_lanes_of(
    group: &Group,
    view: &dyn LaneView,
    of: impl Iterator<Item = (u32, u32)>,
    generation: u32,
    mut ended: bool,
    lanes: &mut Vec<OpenLane>,
) -> bool {
    let before = lanes.len();
    for lane in of {
        let boundary = match ended {
            true => view.boundary(group.lane_key(lane), generation),
            false => None,
        };
        let Some(boundary) = boundary else {
            // The streamlet has not begun a later generation.
            ended = false;
            lanes.push(OpenLane {
                lane,
                end: OPEN_END,
                generation,
            });
            continue;
        };
        if consumed_to(group, view, lane, SliceSet::ALL) < boundary {
            lanes.push(OpenLane {
                lane,
                end: boundary,
                generation,
            });
        }
    }
    ended && lanes.len() == before
}

/// Everything in the lane below this ordinal is consumed, trimmed, or was never stored; where the order of keys is
/// kept, of these slices.
pub(crate) fn consumed_to(
    group: &Group,
    view: &dyn LaneView,
    lane: (u32, u32),
    slices: SliceSet,
) -> Ordinal {
    let key = group.lane_key(lane);
    let start = view.lane(key).map_or(0, |status| status.log_start);
    view.skip_gap(key, group.low_of(lane, slices).max(start))
}

/// Leases of a member without an end whose lane generation has ended meanwhile and is consumed.
pub(crate) fn finished_generations(
    group: &Group,
    member: &str,
    shape: &StreamShape,
    view: &dyn LaneView,
) -> Vec<u64> {
    if !has_barriers(shape) {
        return Vec::new();
    }
    let leases = &group.members[member].leases;
    leases
        .iter()
        .filter(|id| {
            group.leases.get(id).is_some_and(|lease| {
                lease.end == OPEN_END
                    && view
                        .boundary(group.lane_key(lease.lane), lease.generation)
                        .is_some_and(|boundary| {
                            consumed_to(group, view, lease.lane, lease.slices) >= boundary
                        })
            })
        })
        .copied()
        .collect()
}

/// How many lanes a member holds, and would hold if it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) held: usize,
    pub(crate) wish: usize,
}

/// Every member's demand, in the order of their ids.
pub(crate) fn demands(group: &Group, live: Option<&Live>, now_ms: u64) -> Vec<Demand> {
    group
        .members
        .iter()
        .map(|(id, member)| {
            let held = member.leases.len();
            let wish = live
                .and_then(|live| live.sessions.get(id))
                .filter(|session| session.wish_until_ms > now_ms)
                .map_or(held, |session| session.wish.max(held));
            Demand { held, wish }
        })
        .collect()
}

/// Shares `lanes` evenly: nobody gets more than it wishes, shares below their wish differ by at most
/// one, and whoever holds more already keeps the one more, so that as little as possible moves.
pub(crate) fn targets(lanes: usize, demands: &[Demand]) -> Vec<usize> {
    let total_at = |level: usize| -> usize {
        demands
            .iter()
            .map(|demand| demand.wish.min(level))
            .fold(0, usize::saturating_add)
    };
    let (mut level, mut above) = (0, lanes + 1);
    while above - level > 1 {
        let middle = level + (above - level) / 2;
        if total_at(middle) <= lanes {
            level = middle;
        } else {
            above = middle;
        }
    }
    let mut targets: Vec<usize> = demands
        .iter()
        .map(|demand| demand.wish.min(level))
        .collect();
    let mut left = lanes.saturating_sub(total_at(level));
    let mut order: Vec<usize> = (0..demands.len())
        .filter(|index| demands[*index].wish > level)
        .collect();
    order.sort_by_key(|index| std::cmp::Reverse(demands[*index].held));
    for index in order {
        if left == 0 {
            break;
        }
        targets[index] += 1;
        left -= 1;
    }
    targets
}

/// Lanes that are leased.
pub(crate) fn leased_lanes(group: &Group) -> BTreeSet<(u32, u32)> {
    group.leases.values().map(|lease| lease.lane).collect()
}

/// Whether nobody knows where to begin in a lane that is not leased: an open transaction commits positions of a lease of it that
/// has ended.
pub(crate) fn is_held(group: &Group, lane: (u32, u32)) -> bool {
    group.lanes.get(&lane).is_some_and(LaneProgress::is_held)
}

/// Lanes to share: those that may be leased and those that are. A lane that is held counts once its transaction has ended,
/// which may take long: nobody's share has it until then.
pub(crate) fn lanes_to_share(group: &Group, shape: &StreamShape, view: &dyn LaneView) -> usize {
    if !has_barriers(shape) {
        let all = shape.partitions() as usize;
        // Only positions that an open transaction sends hold lanes: next to no group has any, and each heartbeat asks.
        if group.sent.by_lease().next().is_none() {
            return all;
        }
        let leased = leased_lanes(group);
        let held = group.lanes.keys();
        let held = held.filter(|lane| !leased.contains(lane) && is_held(group, **lane));
        return all.saturating_sub(held.count());
    }
    let leased = leased_lanes(group);
    let open = open_lanes(group, shape, view).into_iter();
    let free = open.filter(|open| !leased.contains(&open.lane) && !is_held(group, open.lane));
    leased.len() + free.count()
}

/// How many lanes one member should hold.
pub(crate) fn target_of(
    group: &Group,
    live: Option<&Live>,
    member: &str,
    shape: &StreamShape,
    view: &dyn LaneView,
    now_ms: u64,
) -> usize {
    let lanes = lanes_to_share(group, shape, view);
    let targets = targets(lanes, &demands(group, live, now_ms));
    group
        .members
        .keys()
        .position(|id| id == member)
        .and_then(|index| targets.get(index).copied())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(held: usize, wish: usize) -> Demand {
        Demand { held, wish }
    }

    #[test]
    fn shares_are_even_and_move_as_little_as_possible() {
        let all = |held| demand(held, 100);
        assert_eq!(targets(4, &[all(2), all(2), all(0)]), [2, 1, 1]);
        assert_eq!(targets(4, &[all(0), all(2), all(2)]), [1, 2, 1]);
        assert_eq!(targets(1, &[all(0), all(1)]), [0, 1]);
        assert_eq!(targets(10, &[all(10), all(0)]), [5, 5]);
        assert_eq!(targets(0, &[all(0)]), [0]);
        assert_eq!(targets(7, &[]), Vec::<usize>::new());
    }

    #[test]
    fn what_one_does_not_wish_goes_to_others() {
        let demands = [demand(0, 1), demand(0, 100), demand(3, 3)];
        assert_eq!(targets(10, &demands), [1, 6, 3]);
        assert_eq!(targets(200, &demands), [1, 100, 3]);
    }
}
