//! Evening out copies of closed groups: its rules over random clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use kera_controller::*;
use kera_metadata::*;
use kera_protocol::ids::StreamletKey;
use kera_protocol::ids::*;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use uuid::Uuid;

const MIB: u64 = 1 << 20;
/// More plans than any cluster takes.
const PLANS: usize = 50;

/// Streamlets with their owners, and each one's groups.
#[derive(Clone, Debug)]
struct Scenario {
    replicas: u32,
    /// Machine and rack of each broker, from number 1 on.
    brokers: Vec<(u8, Option<u8>)>,
    draining: BTreeSet<u32>,
    /// The one that holds copies and owns nothing.
    store: Option<u32>,
    gone: BTreeSet<u32>,
    allow_same_host: bool,
    streamlets: Vec<(u32, Vec<Group>)>,
}

/// Bytes, and who holds copies.
type Group = (u64, Vec<u32>);

const STREAM: StreamId = StreamId(Uuid::from_u128(7));

impl Scenario {
    fn picture(&self) -> Picture {
        let config = StreamConfig {
            streamlets: self.streamlets.len() as u32,
            replicas: self.replicas,
            min_insync_replicas: 1,
            ..StreamConfig::default()
        };
        let mut stream = StreamRecord::new("flights", config, 0);
        stream.id = STREAM;
        let mut image = Image {
            revision: 1,
            streams: vec![stream],
            ..Image::default()
        };
        for (number, (owner, groups)) in self.streamlets.iter().enumerate() {
            let streamlet = StreamletRecord {
                stream: STREAM,
                streamlet: StreamletId(number as u32),
                owner: *owner,
                epoch: Epoch(1),
                next_group: GroupId(groups.len() as u64 + 1),
                restore: 0,
                awaits_jumps: 0,
                revision: 1,
            };
            for (at, (bytes, copies)) in groups.iter().enumerate() {
                image
                    .groups
                    .push(group(&streamlet, GroupId(at as u64 + 1), *bytes, copies));
            }
            image.streamlets.push(streamlet);
        }
        Picture::of(&image)
    }

    fn members(&self) -> Members {
        let numbered = (1..).zip(&self.brokers);
        let living = numbered.filter(|(id, _)| !self.gone.contains(id));
        let members = living.map(|(id, (host, rack))| Member {
            id,
            host: format!("host{host}"),
            rack: rack.map(|rack| format!("rack{rack}")),
            role: match self.store == Some(id) {
                true => Role::ReplicaStore,
                false => Role::Broker,
            },
            draining: self.draining.contains(&id),
            cannot_write: false,
        });
        Members::new(members, self.allow_same_host)
    }
}

fn group(streamlet: &StreamletRecord, id: GroupId, bytes: u64, copies: &[u32]) -> GroupRecord {
    let copy = |broker: &u32| Replica {
        broker: BrokerId(*broker),
        incarnation: Incarnation {
            store_id: Uuid::from_u128((*broker).into()),
            boot_id: Uuid::nil(),
        },
    };
    GroupRecord {
        stream: streamlet.stream,
        streamlet: streamlet.streamlet,
        group: id,
        generation: 0,
        lane: LaneId(0),
        epoch: Epoch(1),
        state: GroupState::Closed,
        first_ordinal: Some(0),
        length: bytes,
        end_ordinal: 1000,
        next_ordinal: 1000,
        max_timestamp_ms: -1,
        closed_ms: 0,
        live_bytes: bytes,
        copies: copies.iter().map(copy).collect(),
        damaged: None,
        file_made: false,
        restore: 0,
        revision: 1,
    }
}

/// Carries a plan out, as if nothing went wrong, history that follows its owner included.
fn carry_out(picture: &mut Picture, plan: &Spread) {
    let mut placed: Vec<(StreamletRecord, GroupId, u64, Vec<u32>)> = Vec::new();
    for (_, _, streamlet) in picture.streamlets() {
        for (id, group) in &streamlet.groups {
            let mut copies = group.copies.to_vec();
            if !copies.contains(&streamlet.owner()) {
                copies.push(streamlet.owner());
            }
            placed.push((streamlet.record.clone(), *id, group.bytes, copies));
        }
    }
    for one in &plan.moves {
        let which = (one.group.streamlet, one.group.group);
        let mut found = placed.iter_mut();
        let found = found.find(|(streamlet, id, ..)| (streamlet.streamlet, *id) == which);
        let copies = &mut found.expect("it is there").3;
        copies.retain(|id| *id != one.from);
        copies.extend(one.to);
    }
    for (streamlet, id, bytes, copies) in placed {
        let record = group(&streamlet, id, bytes, &copies);
        let key = Key::Group(record.key());
        picture.apply(&key, Some(&Record::Group(record)));
    }
}

/// [`spread`], or what breaks one of its rules.
type Planner = fn(&Picture, &Members, u64) -> Spread;

/// Plans and carries out until nothing is left to do.
fn settle(plans: Planner, picture: &mut Picture, members: &Members, tolerance: u64) -> Spread {
    for _ in 0..PLANS {
        let plan = plans(picture, members, tolerance);
        if plan.moves.is_empty() && plan.to_come() == 0 {
            return plan;
        }
        carry_out(picture, &plan);
    }
    panic!("still moving after {PLANS} plans");
}

/// Six streamlets of three brokers, each with so many groups of 8 MiB at all three.
fn three(groups: usize) -> Scenario {
    let groups = vec![(8 * MIB, vec![1, 2, 3]); groups];
    Scenario {
        replicas: 3,
        brokers: vec![(1, None), (2, None), (3, None)],
        draining: BTreeSet::new(),
        store: None,
        gone: BTreeSet::new(),
        allow_same_host: false,
        streamlets: (0..8).map(|n| (n % 3 + 1, groups.clone())).collect(),
    }
}

#[test]
fn a_broker_that_joined_gets_its_share_of_the_bytes() {
    let mut scenario = three(30);
    scenario.brokers.push((4, None));
    let mut picture = scenario.picture();
    let members = scenario.members();
    // It is to own two streamlets first.
    assert!(!spread(&picture, &members, 16 * MIB).settled);
    for streamlet in [6, 7] {
        let key = StreamletKey {
            stream: STREAM,
            streamlet: StreamletId(streamlet),
        };
        let found = picture.streamlet(key);
        let mut record = found.expect("it is there").record.clone();
        (record.owner, record.revision) = (4, 2);
        picture.apply(&Key::Streamlet(key), Some(&Record::Streamlet(record)));
    }
    let plan = spread(&picture, &members, 16 * MIB);
    assert!(plan.settled);
    let total = 8 * 30 * 3 * 8 * MIB;
    let joined = plan.held[&4];
    assert_eq!(joined.now, 0);
    assert_eq!(joined.then, joined.to_come);
    assert!(joined.then.abs_diff(total / 4) <= total / 40, "{joined:?}");
    // What it owns comes by itself; the rest is moved, and nothing moves but to it.
    let to_it = plan.moves.iter().filter(|one| one.to == Some(4));
    let moved: u64 = to_it.map(|one| one.bytes).sum();
    assert_eq!(moved + 2 * 30 * 8 * MIB, joined.to_come);
    assert!(plan.moves.iter().all(|one| one.to == Some(4)));

    let end = settle(spread, &mut picture, &members, 16 * MIB);
    let held: Vec<_> = end.held.values().map(|held| held.now).collect();
    assert_eq!(held.iter().sum::<u64>(), total, "nothing is there twice");
    let apart = held.iter().max().unwrap() - held.iter().min().unwrap();
    assert!(apart <= total / 40, "{held:?}");
}

#[test]
fn a_replica_store_gets_its_share_of_the_bytes_without_owning_anything() {
    let mut scenario = three(30);
    scenario.brokers.push((4, None));
    scenario.store = Some(4);
    let (mut picture, members) = (scenario.picture(), scenario.members());
    assert_eq!(share(&picture, &members), 2, "of three brokers");
    let plan = spread(&picture, &members, 16 * MIB);
    assert!(plan.settled, "it is to own nothing");
    let end = settle(spread, &mut picture, &members, 16 * MIB);
    let total: u64 = 8 * 30 * 3 * 8 * MIB;
    assert!(end.held[&4].now.abs_diff(total / 4) <= total / 40);
    // What it holds counts: an owner may leave, and its copies are not the last.
    let leaving = drained(&picture, &members, 1);
    assert_eq!(leaving.last_copies, 0);
    assert_eq!(leaving.stuck, 0, "three are left that may hold them");
}

#[test]
fn what_is_even_enough_stays() {
    let mut scenario = three(4);
    scenario.brokers.push((4, None));
    scenario
        .streamlets
        .push((4, vec![(100 * MIB, vec![4, 1, 2])]));
    scenario
        .streamlets
        .push((4, vec![(100 * MIB, vec![4, 1, 2])]));
    let (picture, members) = (scenario.picture(), scenario.members());
    assert!(spread(&picture, &members, 1 << 40).moves.is_empty());
    assert!(!spread(&picture, &members, MIB).moves.is_empty());
}

#[test]
fn a_copy_too_many_goes_where_most_is() {
    let mut scenario = three(4);
    scenario.brokers.push((4, None));
    // Broker 4 owns two by now and has fetched what they hold; nobody has given anything up.
    for (owner, groups) in &mut scenario.streamlets[6..] {
        *owner = 4;
        groups.iter_mut().for_each(|(_, copies)| copies.push(4));
    }
    let (mut picture, members) = (scenario.picture(), scenario.members());
    let plan = spread(&picture, &members, 1 << 40);
    assert_eq!(plan.moves.len(), 8);
    assert!(
        plan.moves
            .iter()
            .all(|one| one.to.is_none() && one.from != 4)
    );
    let gave: BTreeSet<u32> = plan.moves.iter().map(|one| one.from).collect();
    assert_eq!(gave, BTreeSet::from([1, 2, 3]), "not all from one");
    carry_out(&mut picture, &plan);
    assert!(spread(&picture, &members, 1 << 40).moves.is_empty());
}

/// Brokers 1 and 2 in one rack, 3 to 6 in another; 4 and 5 on one machine of that.
fn two_racks(plans: Planner) {
    let mut scenario = three(20);
    scenario.brokers = vec![
        (1, Some(0)),
        (2, Some(0)),
        (3, Some(1)),
        (4, Some(1)),
        (4, Some(1)),
        (6, Some(1)),
    ];
    let (mut picture, members) = (scenario.picture(), scenario.members());
    let end = settle(plans, &mut picture, &members, MIB);
    assert!([4, 5, 6].iter().all(|id| end.held[id].now > 0), "{end:?}");
    for (_, _, streamlet) in picture.streamlets() {
        for group in streamlet.groups.values() {
            let both = group.copies.contains(&4) && group.copies.contains(&5);
            assert!(!both, "two on one machine: {group:?}");
            let west = group.copies.iter().any(|id| *id <= 2);
            let east = group.copies.iter().any(|id| *id > 2);
            assert!(west && east, "all in one rack: {group:?}");
        }
    }
}

#[test]
fn racks_and_machines_are_kept() {
    two_racks(spread);
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let group = (1u64..64, prop::collection::vec(0u32..8, 0..4));
    let streamlet = (0u32..8, prop::collection::vec(group, 0..12));
    let some = || prop::collection::btree_set(1u32..=8, 0..2);
    (
        1u32..=3,
        prop::collection::vec((0u8..6, prop::option::of(0u8..3)), 1..8),
        (some(), some(), any::<bool>()),
        prop::collection::vec(streamlet, 1..12),
    )
        .prop_map(|(replicas, brokers, rest, streamlets)| {
            let count = brokers.len() as u32;
            let streamlets = streamlets.into_iter().map(|(owner, groups)| {
                let owner = owner % count + 1;
                let groups = groups.into_iter().map(|(mib, others)| {
                    let mut copies = BTreeSet::new();
                    if others.len() != 3 || replicas == 1 {
                        copies.insert(owner);
                    }
                    copies.extend(others.iter().map(|other| other % count + 1));
                    let copies = copies.into_iter().take(replicas as usize + 1);
                    (mib * MIB, copies.collect())
                });
                (owner, groups.collect())
            });
            Scenario {
                replicas,
                brokers,
                gone: rest.0,
                draining: rest.1,
                store: None,
                allow_same_host: rest.2,
                streamlets: streamlets.collect(),
            }
        })
}

/// Machines and racks of copies.
fn places(members: &Members, copies: &[u32]) -> (usize, usize) {
    let member = |id: &u32| members.get(*id).expect("it lives");
    let hosts: BTreeSet<_> = copies.iter().map(|id| member(id).host.clone()).collect();
    let rack = |id: &u32| member(id).rack.clone().ok_or(*id);
    let racks: BTreeSet<_> = copies.iter().map(rack).collect();
    (hosts.len(), racks.len())
}

/// Whether a plan keeps all rules.
fn keeps_the_rules(
    plans: Planner,
    scenario: &Scenario,
    tolerance: u64,
) -> Result<(), TestCaseError> {
    let (picture, members) = (scenario.picture(), scenario.members());
    let plan = plans(&picture, &members, tolerance * MIB);
    prop_assert_eq!(&plan, &plans(&picture, &members, tolerance * MIB));
    let mut held: BTreeMap<u32, u64> = members.all().map(|m| (m.id, 0)).collect();
    for (_, _, streamlet) in picture.streamlets() {
        for group in streamlet.groups.values() {
            for id in &group.copies {
                held.entry(*id).and_modify(|held| *held += group.bytes);
            }
        }
    }
    for (id, now) in held {
        prop_assert_eq!(plan.held[&id].now, now);
    }
    let mut moved = BTreeSet::new();
    for one in &plan.moves {
        let streamlet = picture.streamlet(one.group.streamlet_key()).unwrap();
        let group = &streamlet.groups[&one.group.group];
        prop_assert_eq!(one.owner, streamlet.owner());
        prop_assert!(one.from != one.owner, "the owner's own stays: {:?}", one);
        prop_assert!(group.copies.contains(&one.from));
        prop_assert!(group.copies.iter().all(|id| members.is_target(*id)));
        let without: Vec<_> = group
            .copies
            .iter()
            .copied()
            .filter(|id| *id != one.from)
            .collect();
        match one.to {
            None => prop_assert!(without.len() >= scenario.replicas as usize),
            Some(to) => {
                prop_assert!(moved.insert(one.group), "twice: {:?}", one);
                prop_assert!(members.is_target(to), "to who leaves: {:?}", one);
                prop_assert!(!group.copies.contains(&to), "it has one: {:?}", one);
                let then = [&without[..], &[to]].concat();
                let (hosts, racks) = places(&members, &group.copies);
                let (hosts_then, racks_then) = places(&members, &then);
                prop_assert!(hosts_then >= hosts, "on fewer machines: {:?}", one);
                prop_assert!(racks_then >= racks, "in fewer racks: {:?}", one);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_plan_keeps_the_rules(scenario in scenario(), tolerance in 1u64..200) {
        keeps_the_rules(spread, &scenario, tolerance)?;
        // Carried out again and again it comes to an end.
        let (mut picture, members) = (scenario.picture(), scenario.members());
        let end = settle(spread, &mut picture, &members, tolerance * MIB);
        prop_assert!(end.moves.is_empty());
    }
}

/// The members as a planner sees them that ignores something of each.
fn blind(members: &Members, blinded: impl Fn(&mut Member)) -> Members {
    let all = members.all().cloned().map(|mut member| {
        blinded(&mut member);
        member
    });
    Members::new(all, false)
}

fn racks_ignored(picture: &Picture, members: &Members, tolerance: u64) -> Spread {
    let blind = blind(members, |member| member.rack = None);
    spread(picture, &blind, tolerance)
}

fn machines_ignored(picture: &Picture, members: &Members, tolerance: u64) -> Spread {
    let blind = blind(members, |member| member.host = member.id.to_string());
    spread(picture, &blind, tolerance)
}

fn leaving_ignored(picture: &Picture, members: &Members, tolerance: u64) -> Spread {
    let blind = blind(members, |member| member.draining = false);
    spread(picture, &blind, tolerance)
}

/// The owner's copy goes in place of another's.
fn owners_moved(picture: &Picture, members: &Members, tolerance: u64) -> Spread {
    let mut plan = spread(picture, members, tolerance);
    for one in &mut plan.moves {
        one.from = one.owner;
    }
    plan
}

/// Whoever moves a copy of a group forgets that it does.
fn moved_twice(picture: &Picture, members: &Members, tolerance: u64) -> Spread {
    let mut plan = spread(picture, members, tolerance);
    plan.moves = plan
        .moves
        .iter()
        .flat_map(|one| [one.clone(), one.clone()])
        .collect();
    plan
}

/// It takes whoever has a copy for one that may get it.
fn holders_ignored(picture: &Picture, members: &Members, tolerance: u64) -> Spread {
    let mut plan = spread(picture, members, tolerance);
    for one in plan.moves.iter_mut().filter(|one| one.to.is_some()) {
        one.to = Some(one.owner);
    }
    plan
}

/// Rules broken on purpose, each of which the property above must notice for its harm.
#[test]
fn broken_rules_are_noticed() {
    let broken: [(Planner, &str); 6] = [
        (racks_ignored, "in fewer racks"),
        (machines_ignored, "on fewer machines"),
        (leaving_ignored, "to who leaves"),
        (owners_moved, "the owner's own stays"),
        (moved_twice, "twice"),
        (holders_ignored, "it has one"),
    ];
    for (planner, harm) in broken {
        let mut runner = TestRunner::new_with_rng(
            ProptestConfig {
                failure_persistence: None,
                ..ProptestConfig::with_cases(4_000)
            },
            TestRng::deterministic_rng(RngAlgorithm::ChaCha),
        );
        let all = (scenario(), 1u64..200);
        let judged = runner.run(&all, |(scenario, tolerance)| {
            match keeps_the_rules(planner, &scenario, tolerance) {
                // Another rule that it breaks proves nothing.
                Err(TestCaseError::Fail(why)) if !why.message().contains(harm) => Ok(()),
                judged => judged,
            }
        });
        let judged = judged.expect_err(harm).to_string();
        assert!(judged.contains(harm), "{judged}");
    }
}

#[test]
fn a_plan_that_ignores_racks_is_noticed_in_a_story_too() {
    for (planner, harm) in [
        (racks_ignored as Planner, "all in one rack"),
        (machines_ignored, "two on one machine"),
    ] {
        let told = catch_unwind(AssertUnwindSafe(|| two_racks(planner)));
        let panic = told.expect_err("the story does not notice");
        let said = panic.downcast_ref::<String>().expect("words");
        assert!(said.contains(harm), "{said}");
    }
}
