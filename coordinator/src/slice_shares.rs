//! Order of keys: which slices of which lanes may be leased now, who gets them, and who is to give some back.

use std::collections::{BTreeMap, BTreeSet};

use kera_protocol::ids::Ordinal;
use kera_protocol::partition::keys_move;
use kera_protocol::slices::{SLICES, SliceSet};
use kera_protocol::v1::{Cursor, LaneBy};

use crate::coordinator::{Coordinator, Live, Step};
use crate::event::LeaseRecord;
use crate::group::Group;
use crate::lane::{OPEN_END, told_end};
use crate::shares::{Demand, consumed_to, finished_generations, has_barriers, targets};
use crate::view::{LaneView, StreamShape};

/// Slices of a lane that stand further apart than this are leased apart: who reads a lane reads it from the last slice on.
const FAR: u64 = 100_000;
/// Leases of a member's that have come as near as this become one: it then reads the lane once.
const NEAR: u64 = FAR / 2;

/// Slices of a lane that may be leased, leased already or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenSlices {
    lane: (u32, u32),
    slices: SliceSet,
    end: Ordinal,
    generation: u32,
}

/// All slices that may be leased now. A slice is open in a streamlet's lanes of a generation once it is consumed in
/// all of its lanes of the one before; where keys may have moved between streamlets, once it is in all lanes.
fn open_slices(group: &Group, shape: &StreamShape, view: &dyn LaneView) -> Vec<OpenSlices> {
    let mut open = Vec::new();
    let newest = shape.generations.len().saturating_sub(1);
    let first = if has_barriers(shape) { 0 } else { newest };
    // By streamlet, the slices that have reached the generation.
    let mut reached = vec![SliceSet::ALL; shape.streamlets as usize];
    for (generation, count) in shape.generations.iter().enumerate().skip(first) {
        for (streamlet, reached) in (0..).zip(&mut reached) {
            if reached.is_empty() {
                continue;
            }
            let here = *reached;
            for lane in (0..shape.lanes_in(streamlet, *count)).map(|lane| (streamlet, lane)) {
                let boundary = match has_barriers(shape) && generation < newest {
                    true => view.boundary(group.lane_key(lane), generation as u32),
                    false => None,
                };
                let slices = match boundary {
                    Some(boundary) => below(group, view, lane, here, boundary),
                    None => here,
                };
                *reached = match boundary {
                    Some(_) => reached.without(slices),
                    // The streamlet has not begun a later generation.
                    None => SliceSet::NONE,
                };
                if !slices.is_empty() {
                    open.push(OpenSlices {
                        lane,
                        slices,
                        end: boundary.unwrap_or(OPEN_END),
                        generation: generation as u32,
                    });
                }
            }
        }
        let next = shape.generations.get(generation + 1);
        if next.is_some_and(|next| keys_move(shape.streamlets, *count, *next)) {
            let everywhere = reached.iter().copied().reduce(SliceSet::intersection);
            reached.fill(everywhere.unwrap_or_default());
        }
    }
    open
}

/// Those of some slices that are not consumed up to a boundary of the lane.
fn below(
    group: &Group,
    view: &dyn LaneView,
    lane: (u32, u32),
    slices: SliceSet,
    boundary: Ordinal,
) -> SliceSet {
    if consumed_to(group, view, lane, slices) >= boundary {
        return SliceSet::NONE;
    }
    // Most stand at few ordinals.
    let mut known: BTreeMap<Ordinal, bool> = BTreeMap::new();
    let below = slices.iter().filter(|slice| {
        let one = SliceSet::one(*slice);
        let at = group.low_of(lane, one);
        *known
            .entry(at)
            .or_insert_with(|| consumed_to(group, view, lane, one) < boundary)
    });
    below.collect()
}

/// What of the open slices nobody has, in lanes that can be read.
fn free_slices(group: &Group, shape: &StreamShape, view: &dyn LaneView) -> Vec<OpenSlices> {
    let mut free = open_slices(group, shape, view);
    for open in &mut free {
        if let Some(sliced) = group.sliced.get(&open.lane) {
            open.slices = open.slices.without(sliced.held());
        }
    }
    free.retain(|open| !open.slices.is_empty() && view.lane(group.lane_key(open.lane)).is_some());
    free
}

/// Slices that a member holds.
fn held_by(group: &Group, member: &str) -> usize {
    let leases = group.members.get(member).map(|member| &member.leases);
    let leases = leases.into_iter().flatten();
    let slices = leases.filter_map(|id| group.leases.get(id));
    slices.map(|lease| lease.slices.len()).sum()
}

/// Leases that a member was told to give back.
fn told<'a>(live: Option<&'a Live>, member: &str) -> impl Iterator<Item = &'a u64> {
    let session = live.and_then(|live| live.sessions.get(member));
    let told = session.map(|session| session.told_ms.keys());
    told.into_iter().flatten()
}

/// How many slices each member should hold, by its id, and holds. Who asks for a lease more would take a whole lane.
///
/// Where slices cannot be shared evenly, the first members by id get one more, whoever holds it now. Otherwise this slice
/// would move to another member each time that somebody gives leases back to get them as one.
fn shares(
    group: &Group,
    live: Option<&Live>,
    free: &[OpenSlices],
    now_ms: u64,
) -> BTreeMap<String, (usize, usize)> {
    let held: Vec<usize> = group.members.keys().map(|id| held_by(group, id)).collect();
    let demands = group.members.keys().zip(&held).map(|(id, held)| {
        let session = live.and_then(|live| live.sessions.get(id));
        let session = session.filter(|session| session.wish_until_ms > now_ms);
        let wish = session.map_or(0, |session| session.wish.saturating_mul(SLICES as usize));
        Demand {
            held: 0,
            wish: wish.max(*held),
        }
    });
    let demands: Vec<Demand> = demands.collect();
    let free: usize = free.iter().map(|open| open.slices.len()).sum();
    let targets = targets(held.iter().sum::<usize>() + free, &demands);
    let members = group.members.keys().cloned();
    members.zip(targets.into_iter().zip(held)).collect()
}

impl Coordinator {
    pub(crate) fn serve_slices(
        &mut self,
        now_ms: u64,
        name: &str,
        shape: &StreamShape,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let group = &self.state.groups[name];
        let mut free = free_slices(group, shape, view);
        if free.is_empty() {
            return;
        }
        let by_key = shape.lane_by == LaneBy::Key;
        let shares = shares(group, self.live.get(name), &free, now_ms);
        for (member, max_leases) in self.waiting(name) {
            let group = &self.state.groups[name];
            let (target, held) = shares.get(&member).copied().unwrap_or_default();
            let leases = self.room(group.members[&member].leases.len(), max_leases);
            let returning = self.lanes_returned_by(name, &member);
            let mut room = target.saturating_sub(held);
            let mut grants: Vec<(LeaseRecord, Cursor)> = Vec::new();
            while room > 0 && grants.len() < leases {
                // From where most is free: as few as possible read a lane.
                let most = free
                    .iter_mut()
                    .filter(|open| !open.slices.is_empty() && !returning.contains(&open.lane));
                let Some(open) = most.rev().max_by_key(|open| open.slices.len()) else {
                    break;
                };
                let lease = group.next_lease + grants.len() as u64;
                let (record, cursor) = take(group, open, room, lease, view);
                let taken = SliceSet::from_bits(record.slices);
                open.slices = open.slices.without(taken);
                room -= taken.len().min(room);
                grants.push((record, cursor));
            }
            self.grant(now_ms, name, &member, grants, by_key, step);
        }
    }

    /// Lanes of which a member was told to give leases back, and has not yet: what it gets of them then is one lease.
    fn lanes_returned_by(&self, name: &str, member: &str) -> BTreeSet<(u32, u32)> {
        let group = &self.state.groups[name];
        let told = told(self.live.get(name), member);
        let held = told.filter_map(|id| group.leases.get(id));
        held.filter(|lease| lease.member == member)
            .map(|lease| lease.lane)
            .collect()
    }

    /// Which leases a member is to give back: those that are read to the end of their lane generation, those that it was
    /// told of before, what is beyond its share, and leases of one lane that can be one. Sorted.
    ///
    /// A lease goes back as a whole. The member gets at once what of it is still its share.
    pub(crate) fn slices_to_give_back(
        &self,
        now_ms: u64,
        name: &str,
        member: &str,
        shape: &StreamShape,
        view: &dyn LaneView,
    ) -> Vec<u64> {
        let group = &self.state.groups[name];
        let live = self.live.get(name);
        let mine = &group.members[member].leases;
        let finished = finished_generations(group, member, shape, view);
        let mut back: BTreeSet<u64> = finished.into_iter().collect();
        back.extend(told(live, member).filter(|id| mine.contains(id)));
        let size = |id: &u64| group.leases.get(id).map_or(0, |lease| lease.slices.len());

        let shares = shares(group, live, &free_slices(group, shape, view), now_ms);
        let (target, held) = shares.get(member).copied().unwrap_or_default();
        let given: usize = back.iter().map(size).sum();
        let mut over = held.saturating_sub(target).saturating_sub(given);
        // Little more or less is not worth that a lane is read anew, while nobody has much less.
        let little = target / 8;
        let is_short = |(target, held): &(usize, usize)| held + little < *target;
        if over > little || over > 0 && shares.values().any(is_short) {
            while over > 0 {
                let rest = mine.iter().filter(|id| !back.contains(*id));
                // The smallest that is enough, or else the largest.
                let best = rest.max_by_key(|id| match size(id) {
                    enough if enough >= over => (true, usize::MAX - enough),
                    less => (false, less),
                });
                let Some(best) = best.copied() else {
                    break;
                };
                over = over.saturating_sub(size(&best));
                back.insert(best);
            }
        }
        back.extend(leases_that_can_be_one(group, mine, &back));
        back.into_iter().collect()
    }
}

/// Takes at most so many slices off those that are free in a lane: of those that stand near the last one.
fn take(
    group: &Group,
    open: &OpenSlices,
    room: usize,
    lease: u64,
    view: &dyn LaneView,
) -> (LeaseRecord, Cursor) {
    let sliced = group.sliced.get(&open.lane);
    let log_start = view.lane(group.lane_key(open.lane));
    let log_start = log_start.map_or(0, |status| status.log_start);
    // What was trimmed before the group first came is not lost to it. What was trimmed since then its reader finds gone, and says so.
    let begins = |slice| match sliced.map_or(0, |sliced| sliced.position(slice)) {
        0 => log_start,
        at => at,
    };
    let mut slices: Vec<(Ordinal, u32)> = open.slices.iter().map(|s| (begins(s), s)).collect();
    slices.sort_unstable();
    let start = slices.first().map_or(log_start, |(at, _)| *at);
    let near = slices.iter().take_while(|(at, _)| at - start <= FAR);
    let taken: SliceSet = near.take(room).map(|(_, slice)| *slice).collect();
    let record = LeaseRecord {
        lease,
        streamlet: open.lane.0,
        lane: open.lane.1,
        start,
        end: told_end(open.end),
        next: 0,
        generation: open.generation,
        slices: taken.bits(),
    };
    let cursor = sliced.map(|sliced| sliced.cursor(start));
    let at = || Cursor {
        ordinal: start,
        ..Cursor::default()
    };
    (record, cursor.unwrap_or_else(at))
}

/// Leases of one lane and generation that have come near each other.
fn leases_that_can_be_one(
    group: &Group,
    mine: &BTreeSet<u64>,
    returning: &BTreeSet<u64>,
) -> Vec<u64> {
    let mut by_lane: BTreeMap<_, Vec<(Ordinal, u64)>> = BTreeMap::new();
    for id in mine.iter().filter(|id| !returning.contains(*id)) {
        if let Some(lease) = group.leases.get(id) {
            let place = (lease.lane, lease.generation, lease.end);
            by_lane.entry(place).or_default().push((lease.next, *id));
        }
    }
    let mut back = Vec::new();
    for mut leases in by_lane.into_values() {
        leases.sort_unstable();
        for pair in leases.windows(2) {
            if pair[1].0 - pair[0].0 <= NEAR {
                back.extend([pair[0].1, pair[1].1]);
            }
        }
    }
    back
}
