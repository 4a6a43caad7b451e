//! Where copies of closed groups lie: evening out what brokers hold, a copy at a time.
//!
//! The owner's own copy stays with it, since it reads from there. The others may be anywhere, as long as
//! no machine and no rack gets a second one that had none before. Every broker comes to the same plan
//! from the same picture, and each does the part that concerns what it owns.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use kera_protocol::ids::GroupKey;

use super::loads::share;
use super::{GroupView, Members, Picture, StreamView, StreamletView};
use kera_records::GroupState;

/// A copy of a closed group that is better elsewhere, or is one too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyMove {
    /// The group.
    pub group: GroupKey,
    /// The streamlet's owner, who sees to it.
    pub owner: u32,
    /// Who gives it up.
    pub from: u32,
    /// Who gets one instead; `None`: the group has more copies than it is to have.
    pub to: Option<u32>,
    /// Bytes of the group.
    pub bytes: u64,
}

/// What a broker holds of closed groups, its own among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Now.
    pub now: u64,
    /// Once everything has moved that is to move.
    pub then: u64,
    /// What has to come to it for that.
    pub to_come: u64,
}

/// What evens out the bytes that brokers hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Copies that move, or go, in this order.
    pub moves: Vec<CopyMove>,
    /// What each living broker holds.
    pub held: BTreeMap<u32, HeldBytes>,
    /// Whether owners are settled: until a broker that joined has its share of the streamlets, it is not
    /// known what it will hold of them anyway, and nothing should move on account of that.
    pub settled: bool,
}

impl Spread {
    /// Bytes that are to come to any broker.
    pub fn to_come(&self) -> u64 {
        self.held.values().map(|held| held.to_come).sum()
    }
}

/// A group whose copies may move, and where they are.
struct Candidate<'a> {
    which: GroupKey,
    owner: u32,
    bytes: u64,
    copies: &'a [u32],
}

/// What evens out the bytes of closed groups until no two brokers that may hold more differ by more than
/// `tolerance`, and by more than a tenth of what they hold on average; as far as copies can move at all.
/// Groups that lack a copy, or have one at a broker that leaves or is gone, are left alone: they get
/// others first.
///
/// ```
/// use kera_controller::{Member, Members, Picture, spread};
/// let members = Members::new([1, 2].map(|id| Member::new(id, format!("host{id}"))), false);
/// let spread = spread(&Picture::default(), &members, 1 << 20);
/// assert!(spread.moves.is_empty() && spread.settled);
/// ```
pub fn spread<'a>(picture: &'a Picture, members: &'a Members, tolerance: u64) -> Spread {
    let mut spreading = Spreading {
        members,
        held: members
            .all()
            .map(|member| (member.id, HeldBytes::default()))
            .collect(),
        moves: Vec::new(),
    };
    let closed = |streamlet: &'a StreamletView| {
        let groups = streamlet.groups.iter();
        groups.filter(|(_, group)| counts(group))
    };
    for (_, _, streamlet) in picture.streamlets() {
        closed(streamlet).for_each(|(_, group)| spreading.count(group));
    }
    let mut candidates = Vec::new();
    for (which, stream, streamlet) in picture.streamlets() {
        for (id, group) in closed(streamlet) {
            let which = which.group(*id);
            if let Some(found) = spreading.look(which, stream, streamlet, group) {
                candidates.push(found);
            }
        }
    }
    spreading.even_out(&candidates, tolerance);
    Spread {
        settled: is_settled(picture, members),
        moves: spreading.moves,
        held: spreading.held,
    }
}

fn counts(group: &GroupView) -> bool {
    group.state == GroupState::Closed && !group.empty && group.bytes > 0
}

/// True if every broker has its share of the streamlets.
fn is_settled(picture: &Picture, members: &Members) -> bool {
    let share = share(picture, members);
    let mut owned: BTreeMap<u32, usize> = members.targets().map(|m| (m.id, 0)).collect();
    for (_, _, streamlet) in picture.streamlets() {
        if let Some(count) = owned.get_mut(&streamlet.owner()) {
            *count += 1;
        }
    }
    owned.values().all(|count| *count >= share)
}

struct Spreading<'a> {
    members: &'a Members,
    held: BTreeMap<u32, HeldBytes>,
    moves: Vec<CopyMove>,
}

impl<'a> Spreading<'a> {
    fn count(&mut self, group: &GroupView) {
        for broker in &group.copies {
            if let Some(held) = self.held.get_mut(broker) {
                held.now += group.bytes;
                held.then += group.bytes;
            }
        }
    }

    fn comes(&mut self, broker: u32, bytes: u64) {
        if let Some(held) = self.held.get_mut(&broker) {
            held.then += bytes;
            held.to_come += bytes;
        }
    }

    fn goes(&mut self, broker: u32, bytes: u64) {
        if let Some(held) = self.held.get_mut(&broker) {
            held.then = held.then.saturating_sub(bytes);
        }
    }

    fn then(&self, broker: u32) -> u64 {
        self.held.get(&broker).map_or(0, |held| held.then)
    }

    /// Takes note of a group whose owner is still to fetch it, or that has a copy too many; returns one
    /// whose copies may move.
    fn look(
        &mut self,
        which: GroupKey,
        stream: &StreamView,
        streamlet: &StreamletView,
        group: &'a GroupView,
    ) -> Option<Candidate<'a>> {
        let (owner, replicas) = (streamlet.owner(), stream.replicas as usize);
        let copies = &*group.copies;
        let whole = copies.iter().all(|id| self.members.stays(*id));
        if !stream.is_movable() || !self.members.is_target(owner) || !whole {
            return None;
        }
        if !copies.contains(&owner) {
            // Its history follows it by itself; then there is one copy too many.
            self.comes(owner, group.bytes);
            let then: Vec<u32> = copies.iter().copied().chain([owner]).collect();
            if then.len() > replicas
                && let Some(from) = self.superfluous(&then, owner)
            {
                self.goes(from, group.bytes);
            }
            return None;
        }
        if copies.len() > replicas {
            let mut left = copies.to_vec();
            while left.len() > replicas {
                let from = self.superfluous(&left, owner)?;
                left.retain(|id| *id != from);
                self.goes(from, group.bytes);
                self.moves.push(CopyMove {
                    group: which,
                    owner,
                    from,
                    to: None,
                    bytes: group.bytes,
                });
            }
            return None;
        }
        (copies.len() == replicas).then_some(Candidate {
            which,
            owner,
            bytes: group.bytes,
            copies,
        })
    }

    /// Whose copy is missed least: that leaves most racks and machines, then the fullest broker's.
    fn superfluous(&self, copies: &[u32], owner: u32) -> Option<u32> {
        let others = copies.iter().copied().filter(|id| *id != owner);
        others.max_by_key(|from| {
            let left: Vec<u32> = copies.iter().copied().filter(|id| id != from).collect();
            (self.members.apart(&left), self.then(*from), Reverse(*from))
        })
    }

    fn even_out(&mut self, candidates: &[Candidate<'a>], tolerance: u64) {
        let targets: Vec<u32> = self.members.staying().map(|member| member.id).collect();
        let total: u64 = targets.iter().map(|id| self.then(*id)).sum();
        let Some(average) = total.checked_div(targets.len() as u64) else {
            return;
        };
        let tolerance = tolerance.max(average / 10);
        let held = || targets.iter().map(|id| self.then(*id));
        if held().max().unwrap_or(0) - held().min().unwrap_or(0) <= tolerance {
            return;
        }
        // What each broker could give, the large ones first: few moves do much.
        let mut given: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, candidate) in candidates.iter().enumerate() {
            for from in candidate.copies.iter().filter(|id| **id != candidate.owner) {
                given.entry(*from).or_default().push(at);
            }
        }
        for of_one in given.values_mut() {
            of_one.sort_by_key(|at| (Reverse(candidates[*at].bytes), candidates[*at].which));
        }
        let mut moved = BTreeSet::new();
        // How far each pair has looked: what did not fit does not fit later.
        let mut looked: HashMap<(u32, u32), usize> = HashMap::new();
        while let Some((from, to, at)) =
            self.next(&targets, tolerance, candidates, &given, &moved, &mut looked)
        {
            let candidate = &candidates[at];
            moved.insert(at);
            self.goes(from, candidate.bytes);
            self.comes(to, candidate.bytes);
            self.moves.push(CopyMove {
                group: candidate.which,
                owner: candidate.owner,
                from,
                to: Some(to),
                bytes: candidate.bytes,
            });
        }
    }

    /// The next copy that moves: from the fullest broker to the emptiest, or from and to the next of them.
    fn next(
        &self,
        targets: &[u32],
        tolerance: u64,
        candidates: &[Candidate<'a>],
        given: &HashMap<u32, Vec<usize>>,
        moved: &BTreeSet<usize>,
        looked: &mut HashMap<(u32, u32), usize>,
    ) -> Option<(u32, u32, usize)> {
        let mut by_bytes = targets.to_vec();
        by_bytes.sort_unstable_by_key(|id| (self.then(*id), *id));
        for from in by_bytes.iter().rev().copied() {
            let Some(given) = given.get(&from) else {
                continue;
            };
            for to in by_bytes.iter().copied() {
                let apart = self.then(from).saturating_sub(self.then(to));
                if apart <= tolerance {
                    break;
                }
                let from_here = looked.entry((from, to)).or_default();
                while let Some(at) = given.get(*from_here).copied() {
                    *from_here += 1;
                    let candidate = &candidates[at];
                    // More than half of it, and the emptier one would be the fuller.
                    let fits = candidate.bytes <= apart / 2;
                    if fits && !moved.contains(&at) && self.may_move(candidate, from, to) {
                        return Some((from, to, at));
                    }
                }
            }
        }
        None
    }

    /// Whether copies stay on as many machines and in as many racks as they are.
    fn may_move(&self, candidate: &Candidate<'_>, from: u32, to: u32) -> bool {
        if candidate.copies.contains(&to) {
            return false;
        }
        let there = candidate.copies.iter().copied();
        let then: Vec<u32> = there.map(|id| if id == from { to } else { id }).collect();
        let (before, after) = (
            self.members.apart(candidate.copies),
            self.members.apart(&then),
        );
        after.racks >= before.racks && after.hosts >= before.hosts
    }
}
