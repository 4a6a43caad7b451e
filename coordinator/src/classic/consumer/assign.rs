//! How a group's work is divided: Kafka's `uniform` and `range`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kera_protocol::ids::StreamId;

use super::state::{Partitions, each};

/// Even shares that move as little as can be; the one that is taken if no member has a wish.
pub const UNIFORM: &str = "uniform";
/// A run of each topic's partitions for each member, so that partitions of the same number of several topics go together.
pub(super) const RANGE: &str = "range";
/// That of share groups: each partition has about as many members as any other, and each member as many partitions.
pub(super) const SIMPLE: &str = "simple";
/// All that members of consumer groups may wish for.
pub const ASSIGNORS: [&str; 2] = [UNIFORM, RANGE];

/// Streams that a member subscribes to.
pub(super) type Streams = Arc<BTreeSet<StreamId>>;

/// What is to be divided among whom.
pub(super) struct Work<'a> {
    /// Members: id, name of a static one, and what they subscribe to. Sorted by id.
    pub(super) members: Vec<(&'a str, Option<&'a str>, Streams)>,
    /// How many partitions the streams have.
    pub(super) partitions: &'a BTreeMap<StreamId, u32>,
}

pub(super) type Shares = BTreeMap<String, Partitions>;

impl Work<'_> {
    /// Divides it. `before` is how it was divided last.
    pub(super) fn divide(&self, assignor: &str, before: &Shares) -> Shares {
        let owners = match assignor {
            SIMPLE => return self.share_out(),
            RANGE => self.range(),
            _ => self.uniform(before),
        };
        let mut shares = Shares::new();
        for (stream, owners) in owners {
            for (owner, number) in owners.into_iter().zip(0..) {
                let Some(owner) = owner else { continue };
                let share = shares.entry(self.members[owner].0.to_owned()).or_default();
                share.entry(stream).or_default().insert(number);
            }
        }
        shares
    }

    /// Streams by who subscribes to them: positions of members, ascending.
    fn audiences(&self) -> Vec<(Vec<usize>, Vec<StreamId>)> {
        // Most members subscribe to the same: look at each set once.
        let mut kinds: BTreeMap<&BTreeSet<StreamId>, Vec<usize>> = BTreeMap::new();
        for (at, (_, _, streams)) in self.members.iter().enumerate() {
            kinds.entry(streams).or_default().push(at);
        }
        let kinds: Vec<_> = kinds.into_iter().collect();
        let mut by_kinds: BTreeMap<Vec<usize>, Vec<StreamId>> = BTreeMap::new();
        for stream in self.partitions.keys() {
            let of = kinds.iter().enumerate();
            let of = of.filter(|(_, (streams, _))| streams.contains(stream));
            let of: Vec<usize> = of.map(|(kind, _)| kind).collect();
            if !of.is_empty() {
                by_kinds.entry(of).or_default().push(*stream);
            }
        }
        let audiences = by_kinds.into_iter().map(|(of, streams)| {
            let mut members: Vec<usize> =
                of.iter().flat_map(|kind| kinds[*kind].1.clone()).collect();
            members.sort_unstable();
            (members, streams)
        });
        audiences.collect()
    }

    /// Every partition gets a member, and every member a partition, if there is one that it subscribes to.
    fn share_out(&self) -> Shares {
        let mut shares = Shares::new();
        for (members, streams) in self.audiences() {
            let partitions: Vec<(StreamId, u32)> = streams
                .iter()
                .flat_map(|stream| {
                    (0..self.partitions[stream]).map(move |number| (*stream, number))
                })
                .collect();
            if partitions.is_empty() {
                continue;
            }
            for at in 0..members.len().max(partitions.len()) {
                let (id, _, _) = &self.members[members[at % members.len()]];
                let (stream, number) = partitions[at % partitions.len()];
                let share: &mut Partitions = shares.entry((*id).to_owned()).or_default();
                share.entry(stream).or_default().insert(number);
            }
        }
        shares
    }

    fn range(&self) -> BTreeMap<StreamId, Vec<Option<usize>>> {
        let mut owners = BTreeMap::new();
        for (mut members, streams) in self.audiences() {
            // Static members first, by name: they keep their run under another id.
            members.sort_by_key(|at| {
                let (id, instance, _) = &self.members[*at];
                (instance.is_none(), instance.unwrap_or(id))
            });
            for stream in streams {
                let partitions = self.partitions[&stream] as usize;
                let (base, more) = (partitions / members.len(), partitions % members.len());
                let runs = members.iter().enumerate().flat_map(|(place, member)| {
                    let length = base + usize::from(place < more);
                    std::iter::repeat_n(Some(*member), length)
                });
                owners.insert(stream, runs.collect());
            }
        }
        owners
    }

    fn uniform(&self, before: &Shares) -> BTreeMap<StreamId, Vec<Option<usize>>> {
        let none = |partitions: &u32| vec![None; *partitions as usize];
        let all = self.partitions.iter();
        let mut owners: BTreeMap<StreamId, Vec<Option<usize>>> =
            all.map(|(stream, count)| (*stream, none(count))).collect();
        let mut counts = vec![0_u32; self.members.len()];
        for (at, (id, _, streams)) in self.members.iter().enumerate() {
            for (stream, number) in before.get(*id).into_iter().flat_map(each) {
                let numbers = owners.get_mut(&stream);
                let slot = numbers.and_then(|numbers| numbers.get_mut(number as usize));
                if let Some(slot @ None) = slot.filter(|_| streams.contains(&stream)) {
                    *slot = Some(at);
                    counts[at] += 1;
                }
            }
        }
        let audiences = self.audiences();
        for (members, streams) in &audiences {
            let mut order = by_count(members, &counts);
            for stream in streams {
                let numbers = owners.entry(*stream).or_default().iter_mut();
                for slot in numbers.filter(|slot| slot.is_none()) {
                    let Some((count, member)) = order.pop_first() else {
                        break;
                    };
                    *slot = Some(member);
                    counts[member] = count + 1;
                    order.insert((count + 1, member));
                }
            }
        }
        // Each move brings two counts closer to each other, so there is an end of it.
        let mut moved = true;
        while moved {
            moved = false;
            for (members, streams) in &audiences {
                let mut order = by_count(members, &counts);
                for stream in streams {
                    let numbers = owners.entry(*stream).or_default().iter_mut();
                    for owner in numbers.filter_map(Option::as_mut) {
                        let Some((least, member)) = order.first().copied() else {
                            break;
                        };
                        if counts[*owner] <= least + 1 {
                            continue;
                        }
                        order.remove(&(least, member));
                        order.remove(&(counts[*owner], *owner));
                        counts[member] += 1;
                        counts[*owner] -= 1;
                        order.insert((counts[member], member));
                        order.insert((counts[*owner], *owner));
                        *owner = member;
                        moved = true;
                    }
                }
            }
        }
        owners
    }
}

fn by_count(members: &[usize], counts: &[u32]) -> BTreeSet<(u32, usize)> {
    members.iter().map(|at| (counts[*at], *at)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::state::has;
    use super::*;

    fn stream(number: u128) -> StreamId {
        StreamId::from_slice(&number.to_be_bytes()).unwrap()
    }

    /// Sizes of the shares, in the order of the members.
    fn sizes(work: &Work<'_>, shares: &Shares) -> Vec<usize> {
        let ids = work.members.iter().map(|(id, _, _)| *id);
        let count = |share: &Partitions| each(share).count();
        ids.map(|id| shares.get(id).map_or(0, count)).collect()
    }

    fn work<'a>(
        members: &[(&'a str, &[u128])],
        partitions: &'a BTreeMap<StreamId, u32>,
    ) -> Work<'a> {
        let members = members.iter().map(|(id, streams)| {
            let streams = streams.iter().map(|number| stream(*number)).collect();
            (*id, None, Arc::new(streams))
        });
        Work {
            members: members.collect(),
            partitions,
        }
    }

    #[test]
    fn ranges_are_those_of_kafka() {
        let partitions = BTreeMap::from([(stream(1), 5), (stream(2), 5), (stream(3), 1)]);
        let mut work = work(
            &[("a", &[1, 2, 3]), ("b", &[1, 2]), ("c", &[3])],
            &partitions,
        );
        let shares = work.divide(RANGE, &Shares::new());
        let low = BTreeSet::from([0, 1, 2]);
        assert_eq!(shares["a"][&stream(1)], low);
        assert_eq!(shares["a"][&stream(2)], low);
        assert_eq!(shares["b"][&stream(2)], BTreeSet::from([3, 4]));
        assert_eq!(shares["a"][&stream(3)], BTreeSet::from([0]));
        assert!(!shares.contains_key("c"));
        // A static member comes before those that are none.
        work.members[1].1 = Some("z");
        let shares = work.divide(RANGE, &Shares::new());
        assert_eq!(shares["b"][&stream(1)], low);
    }

    #[test]
    fn members_of_share_groups_share_partitions() {
        let partitions = BTreeMap::from([(stream(1), 3)]);
        let all: &[u128] = &[1];
        let two = work(&[("a", all), ("b", all)], &partitions);
        assert_eq!(sizes(&two, &two.divide(SIMPLE, &Shares::new())), [2, 1]);
        let names: Vec<String> = (0..7).map(|n| format!("m{n}")).collect();
        let members: Vec<(&str, &[u128])> = names.iter().map(|name| (name.as_str(), all)).collect();
        let seven = work(&members, &partitions);
        let shares = seven.divide(SIMPLE, &Shares::new());
        assert_eq!(sizes(&seven, &shares), [1; 7]);
        for number in 0..3 {
            let having = shares
                .values()
                .filter(|share| has(share, stream(1), number));
            assert!((2..=3).contains(&having.count()));
        }
    }

    #[test]
    fn uniform_shares_are_even_and_move_as_little_as_can_be() {
        let partitions = BTreeMap::from([(stream(1), 7), (stream(2), 5)]);
        let all: &[u128] = &[1, 2];
        let two = work(&[("a", all), ("b", all)], &partitions);
        let first = two.divide(UNIFORM, &Shares::new());
        assert_eq!(sizes(&two, &first), [6, 6]);
        assert_eq!(
            two.divide(UNIFORM, &first),
            first,
            "nothing moves without need"
        );
        let three = work(&[("a", all), ("b", all), ("c", all)], &partitions);
        let second = three.divide(UNIFORM, &first);
        assert_eq!(sizes(&three, &second), [4, 4, 4]);
        for id in ["a", "b"] {
            let kept = each(&second[id]).all(|(s, p)| has(&first[id], s, p));
            assert!(kept, "{id} got something though it gives back");
        }
        // b goes: the others keep what they have.
        let left = work(&[("a", all), ("c", all)], &partitions);
        let third = left.divide(UNIFORM, &second);
        assert_eq!(sizes(&left, &third), [6, 6]);
        for id in ["a", "c"] {
            assert!(each(&second[id]).all(|(s, p)| has(&third[id], s, p)));
        }
    }

    #[test]
    fn who_subscribes_to_less_does_not_keep_others_from_even_shares() {
        let partitions = BTreeMap::from([(stream(1), 4), (stream(2), 4)]);
        let work = work(&[("a", &[1, 2]), ("b", &[1]), ("c", &[1, 2])], &partitions);
        let shares = work.divide(UNIFORM, &Shares::new());
        let mut found = sizes(&work, &shares);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 3]);
        assert!(!shares["b"].contains_key(&stream(2)));
        let everything: BTreeSet<_> = shares.values().flat_map(each).collect();
        assert_eq!(everything.len(), 8);
    }
}
