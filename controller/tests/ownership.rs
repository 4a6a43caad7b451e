//! Decisions about owners: their rules over random clusters, and their transactions at a store.

use std::collections::{BTreeMap, BTreeSet};

use kera_controller::*;
use kera_metadata::*;
use kera_protocol::ids::*;
use proptest::prelude::*;
use uuid::Uuid;

/// More steps than any scenario takes.
const STEPS: usize = 2000;

#[derive(Clone, Debug)]
struct GroupSpec {
    /// None: open.
    bytes: Option<u64>,
    /// Added to the owner's number, over all brokers.
    others: Vec<u32>,
    /// The owner has lost its copy.
    without_owner: bool,
}

#[derive(Clone, Debug)]
struct StreamSpec {
    replicas: u32,
    /// The owner and the groups of each streamlet.
    streamlets: Vec<(u32, Vec<GroupSpec>)>,
}

/// A cluster at some moment.
#[derive(Clone, Debug)]
struct Scenario {
    brokers: u32,
    hosts: Vec<u8>,
    racks: Vec<Option<u8>>,
    gone: BTreeSet<u32>,
    draining: BTreeSet<u32>,
    /// The last number is a replica store's, unless it is the only one.
    with_store: bool,
    allow_same_host: bool,
    streams: Vec<StreamSpec>,
}

impl Scenario {
    fn role(&self, id: u32) -> Role {
        match self.with_store && id > 1 && id == self.brokers {
            true => Role::ReplicaStore,
            false => Role::Broker,
        }
    }

    fn image(&self) -> Image {
        let mut image = Image {
            revision: 1,
            ..Image::default()
        };
        for (number, spec) in self.streams.iter().enumerate() {
            let config = StreamConfig {
                streamlets: spec.streamlets.len() as u32,
                replicas: spec.replicas,
                min_insync_replicas: StreamConfig::default_min_insync_replicas(spec.replicas),
                ..StreamConfig::default()
            };
            let mut stream = StreamRecord::new(format!("s{number}"), config, 0);
            stream.id = StreamId(Uuid::from_u128(number as u128 + 1));
            let owners = (1..=self.brokers).filter(|id| self.role(*id) == Role::Broker);
            let owners = owners.count() as u32;
            for (number, (owner, groups)) in spec.streamlets.iter().enumerate() {
                let streamlet = StreamletRecord {
                    stream: stream.id,
                    streamlet: StreamletId(number as u32),
                    owner: owner % owners + 1,
                    epoch: Epoch(1),
                    next_group: GroupId(groups.len() as u64 + 1),
                    restore: 0,
                    awaits_jumps: 0,
                    revision: 1,
                };
                for (group, spec_of) in groups.iter().enumerate() {
                    let id = GroupId(group as u64 + 1);
                    image
                        .groups
                        .push(self.group(&streamlet, id, spec_of, spec.replicas));
                }
                image.streamlets.push(streamlet);
            }
            image.streams.push(stream);
        }
        image
    }

    fn group(
        &self,
        streamlet: &StreamletRecord,
        group: GroupId,
        spec: &GroupSpec,
        replicas: u32,
    ) -> GroupRecord {
        let mut brokers = BTreeSet::new();
        if !spec.without_owner || replicas == 1 {
            brokers.insert(streamlet.owner);
        }
        for other in &spec.others {
            if brokers.len() < replicas as usize {
                brokers.insert((streamlet.owner + other) % self.brokers + 1);
            }
        }
        let copy = |broker: u32| Replica {
            broker: BrokerId(broker),
            incarnation: Incarnation {
                store_id: Uuid::from_u128(broker.into()),
                boot_id: Uuid::nil(),
            },
        };
        let bytes = spec.bytes.unwrap_or(0);
        GroupRecord {
            stream: streamlet.stream,
            streamlet: streamlet.streamlet,
            group,
            generation: 0,
            lane: LaneId(0),
            epoch: Epoch(1),
            state: match spec.bytes {
                Some(_) => GroupState::Closed,
                None => GroupState::Open,
            },
            first_ordinal: Some(0),
            length: bytes,
            end_ordinal: bytes.min(1000),
            next_ordinal: bytes.min(1000),
            max_timestamp_ms: -1,
            closed_ms: 0,
            live_bytes: bytes,
            copies: brokers.into_iter().map(copy).collect(),
            damaged: None,
            file_made: false,
            restore: 0,
            revision: 1,
        }
    }

    fn members(&self) -> Members {
        let living = (1..=self.brokers).filter(|id| !self.gone.contains(id));
        let members = living.map(|id| Member {
            id,
            host: format!("host{}", self.hosts[id as usize - 1]),
            rack: self.racks[id as usize - 1].map(|rack| format!("rack{rack}")),
            role: self.role(id),
            draining: self.draining.contains(&id),
            cannot_write: false,
        });
        Members::new(members, self.allow_same_host)
    }
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let group = (
        prop::option::weighted(0.6, 0u64..(8 << 30)),
        prop::collection::vec(0u32..8, 0..4),
        prop::bool::weighted(0.1),
    );
    let group = group.prop_map(|(bytes, others, without_owner)| GroupSpec {
        bytes,
        others,
        without_owner,
    });
    let groups = prop::collection::vec(group, 0..4);
    let stream = (1u32..=3, prop::collection::vec((0u32..8, groups), 1..10));
    let stream = stream.prop_map(|(replicas, streamlets)| StreamSpec {
        replicas,
        streamlets,
    });
    let some = || prop::collection::btree_set(1u32..=8, 0..3);
    (
        1u32..=8,
        prop::collection::vec(0u8..6, 8),
        prop::collection::vec(prop::option::of(0u8..3), 8),
        (some(), some(), any::<bool>(), any::<bool>()),
        prop::collection::vec(stream, 0..5),
    )
        .prop_map(|(brokers, hosts, racks, rest, streams)| Scenario {
            brokers,
            hosts,
            racks,
            gone: rest.0,
            draining: rest.1,
            allow_same_host: rest.2,
            with_store: rest.3,
            streams,
        })
}

/// Carries `moves` out, as if nothing went wrong.
fn carry_out(picture: &mut Picture, moves: &[Move]) {
    for one in moves {
        let old = picture.streamlet(one.which()).unwrap();
        let record = StreamletRecord {
            owner: one.to,
            epoch: (old.epoch().0 + 1).into(),
            revision: old.record.revision + 1,
            ..old.record.clone()
        };
        let key = Key::Streamlet(one.which());
        picture.apply(&key, Some(&Record::Streamlet(record)));
    }
}

/// Plans and carries out until nothing is left to do.
fn settle(picture: &mut Picture, members: &Members, limits: &Limits) -> usize {
    for step in 0..STEPS {
        let plan = plan(picture, members, &UnderWay::default(), limits);
        if plan.moves.is_empty() {
            return step;
        }
        carry_out(picture, &plan.moves);
    }
    panic!("still moving after {STEPS} steps");
}

fn counts(picture: &Picture, members: &Members) -> BTreeMap<u32, usize> {
    let mut counts: BTreeMap<u32, usize> = members.targets().map(|m| (m.id, 0)).collect();
    for (_, _, streamlet) in picture.streamlets() {
        if let Some(count) = counts.get_mut(&streamlet.owner()) {
            *count += 1;
        }
    }
    counts
}

fn movable(picture: &Picture, one: &Move) -> bool {
    picture.stream(one.stream).unwrap().is_movable()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_plan_keeps_the_rules(
        scenario in scenario(),
        takeovers in 1usize..20,
        hand_overs in 1usize..6,
        awaited in prop::collection::btree_set(1u32..=8, 0..2),
    ) {
        let (picture, members) = (Picture::of(&scenario.image()), scenario.members());
        let limits = Limits { takeovers, hand_overs };
        let awaited: BTreeSet<u32> = awaited.into_iter().filter(|id| !members.lives(*id)).collect();
        let under_way = UnderWay { awaited: awaited.clone(), ..UnderWay::default() };
        let found = plan(&picture, &members, &under_way, &limits);
        prop_assert_eq!(&found, &plan(&picture, &members, &under_way, &limits));

        let moved: BTreeSet<_> = found.moves.iter().map(Move::which).collect();
        prop_assert_eq!(moved.len(), found.moves.len(), "a streamlet moves once");
        let mut givers = BTreeSet::new();
        for one in &found.moves {
            let streamlet = picture.streamlet(one.which()).unwrap();
            prop_assert_eq!(one.from, streamlet.owner());
            prop_assert_eq!(one.epoch, streamlet.epoch());
            prop_assert!(one.from != one.to);
            prop_assert!(members.is_target(one.to), "{:?}", one);
            prop_assert_eq!(scenario.role(one.to), Role::Broker, "{:?}", one);
            prop_assert!(movable(&picture, one), "the only copy stays: {:?}", one);
            match one.cause {
                Cause::OwnerGone => {
                    prop_assert!(!members.lives(one.from) && !awaited.contains(&one.from));
                    for group in streamlet.open_groups() {
                        prop_assert!(group.copies.iter().any(|id| members.lives(*id)));
                    }
                }
                Cause::Drain => prop_assert!(members.get(one.from).unwrap().draining),
                Cause::Balance => {
                    prop_assert!(members.is_target(one.from));
                    prop_assert!(awaited.is_empty());
                }
            }
            if one.cause != Cause::OwnerGone {
                prop_assert!(givers.insert(one.from), "one at a time from each broker");
            }
        }
        let taken = found.moves.iter().filter(|one| one.cause == Cause::OwnerGone).count();
        prop_assert!(taken <= takeovers);
        prop_assert!(found.moves.len() - taken <= hand_overs);
        prop_assert!(taken == 0 || taken == found.moves.len(), "take-overs come first");

        // Nobody is forgotten.
        for (which, _, streamlet) in picture.streamlets() {
            let gone = !members.lives(streamlet.owner()) && !awaited.contains(&streamlet.owner());
            let stranded = found.stranded.iter().any(|s| (s.stream, s.streamlet) == (which.stream, which.streamlet));
            prop_assert!(!(stranded && moved.contains(&which)));
            prop_assert_eq!(stranded && !gone, false);
            if gone && taken < takeovers {
                prop_assert!(stranded || moved.contains(&which), "{:?} is left", which);
            }
        }
    }

    #[test]
    fn plans_come_to_an_end_and_leave_nothing_to_do(scenario in scenario()) {
        let (mut picture, members) = (Picture::of(&scenario.image()), scenario.members());
        let before = picture.clone();
        settle(&mut picture, &members, &Limits::default());
        let end = plan(&picture, &members, &UnderWay::default(), &Limits::default());
        prop_assert!(end.moves.is_empty());
        for (which, stream, streamlet) in picture.streamlets() {
            let first = before.streamlet(which).unwrap();
            if !stream.is_movable() {
                prop_assert_eq!(streamlet.owner(), first.owner());
            }
            if !members.lives(streamlet.owner()) {
                let waits = |s: &Stranded| (s.stream, s.streamlet) == (which.stream, which.streamlet);
                prop_assert!(end.stranded.iter().any(waits));
            }
        }
        for member in members.all().filter(|member| member.draining) {
            prop_assert_eq!(drained(&picture, &members, member.id).leaving, 0);
        }
        // As even as what can move allows.
        let counts = counts(&picture, &members);
        let least = counts.values().min().copied().unwrap_or(0);
        prop_assert!(least >= share(&picture, &members), "{:?}", counts);
        for (broker, count) in &counts {
            let kept = drained(&picture, &members, *broker);
            prop_assert!(*count <= least + 1 || kept.leaving == 0, "{:?}", counts);
        }
    }

    #[test]
    fn survivors_that_hold_everything_share_evenly(
        brokers in 3u32..8,
        streamlets in 1usize..60,
        gone in 1u32..8,
    ) {
        let gone = (gone - 1) % brokers + 1;
        let members = (1..=brokers).filter(|id| *id != gone);
        let members = Members::new(members.map(|id| Member::new(id, format!("h{id}"))), false);
        let everywhere = GroupSpec { bytes: None, others: (0..8).collect(), without_owner: false };
        let scenario = Scenario {
            brokers,
            hosts: (0..8).collect(),
            racks: vec![None; 8],
            gone: BTreeSet::from([gone]),
            draining: BTreeSet::new(),
            with_store: false,
            allow_same_host: false,
            streams: vec![StreamSpec {
                replicas: brokers,
                streamlets: (0..streamlets as u32).map(|n| (n, vec![everywhere.clone()])).collect(),
            }],
        };
        let mut picture = Picture::of(&scenario.image());
        let step = plan(&picture, &members, &UnderWay::default(), &Limits::default());
        carry_out(&mut picture, &step.moves);
        let counts = counts(&picture, &members);
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        prop_assert!(most - least <= 1, "{counts:?}");
        prop_assert_eq!(counts.values().sum::<usize>(), streamlets);
    }

    #[test]
    fn brokers_that_may_stop_can_all_stop_at_once(scenario in scenario()) {
        let (mut picture, members) = (Picture::of(&scenario.image()), scenario.members());
        settle(&mut picture, &members, &Limits::default());
        let stops = |id: u32| {
            let drains = members.get(id).is_some_and(|member| member.draining);
            drains && drained(&picture, &members, id).may_stop()
        };
        for (which, _, streamlet) in picture.streamlets() {
            prop_assert!(!stops(streamlet.owner()), "{:?} loses its owner", which);
            for (group, view) in streamlet.groups.iter().filter(|(_, group)| !group.empty) {
                let mut living = view.copies.iter().filter(|id| members.lives(**id)).peekable();
                let readable = living.peek().is_none() || living.any(|id| !stops(*id));
                prop_assert!(readable, "group {:?} of {:?} is lost", group, which);
            }
        }
    }

    #[test]
    fn what_is_under_way_is_left_alone(scenario in scenario()) {
        let (picture, members) = (Picture::of(&scenario.image()), scenario.members());
        let limits = Limits::default();
        let first = plan(&picture, &members, &UnderWay::default(), &limits);
        let asked = first.moves.iter().filter(|one| one.cause != Cause::OwnerGone);
        let under_way = UnderWay { moves: asked.copied().collect(), ..UnderWay::default() };
        let second = plan(&picture, &members, &under_way, &limits);
        for one in second.moves.iter().filter(|one| one.cause != Cause::OwnerGone) {
            prop_assert!(under_way.moves.iter().all(|m| m.which() != one.which() && m.from != one.from));
        }
        prop_assert!(
            second.moves.iter().filter(|one| one.cause != Cause::OwnerGone).count()
                + under_way.moves.len() <= limits.hand_overs
        );
    }

    #[test]
    fn evening_out_ends_and_makes_nothing_worse(scenario in scenario(), most in 0usize..100) {
        let (mut picture, members) = (Picture::of(&scenario.image()), scenario.members());
        let bytes = |picture: &Picture| {
            let mut bytes: BTreeMap<u32, u64> = members.targets().map(|m| (m.id, 0)).collect();
            for (_, _, streamlet) in picture.streamlets() {
                if let Some(sum) = bytes.get_mut(&streamlet.owner()) {
                    *sum += streamlet.bytes;
                }
            }
            bytes.values().max().copied().unwrap_or(0)
        };
        settle(&mut picture, &members, &Limits::default());
        let (even, heaviest) = (counts(&picture, &members), bytes(&picture));
        let moves = rebalance(&picture, &members, most);
        prop_assert!(moves.len() <= most);
        carry_out(&mut picture, &moves);
        let apart = |counts: &BTreeMap<u32, usize>| {
            counts.values().max().unwrap_or(&0) - counts.values().min().unwrap_or(&0)
        };
        prop_assert!(apart(&counts(&picture, &members)) <= apart(&even).max(1));
        prop_assert!(bytes(&picture) <= heaviest);
    }

    #[test]
    fn a_picture_kept_by_changes_is_that_of_the_image(scenario in scenario(), left in any::<u64>()) {
        let mut image = scenario.image();
        let mut kept = Picture::default();
        for record in &image.streams {
            kept.apply(&Key::Stream(record.id), Some(&Record::Stream(record.clone())));
        }
        for record in &image.streamlets {
            let key = Key::Streamlet(record.key());
            kept.apply(&key, Some(&Record::Streamlet(record.clone())));
        }
        for record in &image.groups {
            let open = GroupRecord { state: GroupState::Open, length: 0, live_bytes: 0, ..record.clone() };
            for record in [&open, record] {
                kept.apply(&Key::Group(record.key()), Some(&Record::Group(record.clone())));
            }
        }
        prop_assert_eq!(&kept, &Picture::of(&image));
        // Some groups go again.
        let gone: Vec<_> = image.groups.iter().enumerate()
            .filter(|(n, _)| left >> (n % 64) & 1 == 1).map(|(_, g)| g.key()).collect();
        for key in &gone {
            kept.apply(&Key::Group(*key), None);
        }
        image.groups.retain(|group| !gone.contains(&group.key()));
        prop_assert_eq!(&kept, &Picture::of(&image));
    }
}

fn replicated(streamlets: u32) -> StreamConfig {
    StreamConfig {
        streamlets,
        replicas: 3,
        min_insync_replicas: 2,
        ..StreamConfig::default()
    }
}

fn members(ids: impl IntoIterator<Item = u32>) -> Members {
    let member = |id: u32| Member::new(id, format!("host{id}"));
    Members::new(ids.into_iter().map(member), false)
}

/// What one controller has decided, another that decided the same cannot record again.
#[test]
fn of_two_controllers_one_records_a_new_owner() {
    let store = MemoryStore::new();
    let stream = StreamRecord::new("flights", replicated(300), 0);
    store.create_stream(stream, 1).unwrap();
    let picture = Picture::of(&store.load().unwrap());
    let found = plan(
        &picture,
        &members([2, 3]),
        &UnderWay::default(),
        &Limits::default(),
    );
    assert_eq!(found.moves.len(), 300);
    let transactions = takeovers(&picture, &found.moves, 128);
    assert_eq!(transactions.len(), 3, "bulk: 128, 128 and 44");
    for transaction in &transactions {
        assert!(transaction.operations() <= 128);
        store.commit(transaction.clone()).unwrap();
    }
    for transaction in transactions {
        let refused = store.commit(transaction).unwrap_err();
        assert!(matches!(refused, MetadataError::Conflict(_)), "{refused}");
    }
    let now = store.streamlets().unwrap();
    assert!(now.iter().all(|s| s.epoch == Epoch(2) && s.owner != 1));
    assert_eq!(now.iter().filter(|s| s.owner == 2).count(), 150);
}

#[test]
fn an_owner_that_came_back_and_took_a_new_epoch_keeps_its_streamlet() {
    let store = MemoryStore::new();
    let stream = StreamRecord::new("flights", replicated(2), 0);
    store.create_stream(stream, 1).unwrap();
    let picture = Picture::of(&store.load().unwrap());
    let found = plan(
        &picture,
        &members([2, 3]),
        &UnderWay::default(),
        &Limits::default(),
    );
    store.bump_epochs(1).unwrap();
    for transaction in takeovers(&picture, &found.moves, 128) {
        assert!(store.commit(transaction).is_err());
    }
    let picture = Picture::of(&store.load().unwrap());
    assert!(
        takeovers(&picture, &found.moves, 128).is_empty(),
        "the moves were meant for another epoch"
    );
}

fn one_stream(replicas: u32, groups: Vec<GroupSpec>) -> Scenario {
    Scenario {
        brokers: 4,
        hosts: (0..8).collect(),
        racks: vec![None; 8],
        gone: BTreeSet::new(),
        draining: BTreeSet::new(),
        with_store: false,
        allow_same_host: false,
        streams: vec![StreamSpec {
            replicas,
            streamlets: vec![(0, groups)],
        }],
    }
}

#[test]
fn who_holds_the_open_group_takes_over() {
    // Owner 1; (1 + 2) % 4 + 1 is broker 4.
    let open = GroupSpec {
        bytes: None,
        others: vec![2],
        without_owner: false,
    };
    let mut scenario = one_stream(2, vec![open]);
    scenario.gone = BTreeSet::from([1]);
    let picture = Picture::of(&scenario.image());
    let of = |scenario: &Scenario, under_way: &UnderWay| {
        plan(&picture, &scenario.members(), under_way, &Limits::default())
    };
    assert_eq!(of(&scenario, &UnderWay::default()).moves[0].to, 4);
    // That one is gone too: it waits for either.
    scenario.gone = BTreeSet::from([1, 4]);
    let found = of(&scenario, &UnderWay::default());
    assert!(found.moves.is_empty());
    assert_eq!(
        found.stranded[0].needs,
        Needs::OneOf(BTreeSet::from([1, 4]))
    );
    // Nobody has heard of either for long: somebody owns it, whom an operator can ask what is lost.
    for (forsaken, moved) in [(&[1, 4][..], true), (&[1], false)] {
        let under_way = UnderWay {
            forsaken: forsaken.iter().copied().collect(),
            ..UnderWay::default()
        };
        let found = of(&scenario, &under_way);
        let to: Vec<_> = found.moves.iter().map(|one| one.to).collect();
        assert!(to.iter().all(|to| [2, 3].contains(to)), "{to:?}");
        assert_eq!((to.len() == 1, found.stranded.is_empty()), (moved, moved));
    }
}

#[test]
fn a_broker_that_cannot_write_its_files_is_given_nothing() {
    // Owner 1; (1 + 2) % 4 + 1 is broker 4, which holds the open group.
    let open = GroupSpec {
        bytes: None,
        others: vec![2],
        without_owner: false,
    };
    let mut scenario = one_stream(2, vec![open]);
    let unwritable = |scenario: &Scenario, which: &[u32]| {
        let mut all: Vec<_> = scenario.members().all().cloned().collect();
        for member in &mut all {
            member.cannot_write = which.contains(&member.id);
        }
        Members::new(all, false)
    };
    let planned = |scenario: &Scenario, which: &[u32]| {
        let picture = Picture::of(&scenario.image());
        let members = unwritable(scenario, which);
        plan(&picture, &members, &UnderWay::default(), &Limits::default())
    };
    // What it owns goes to others, if any can write.
    let moves = planned(&scenario, &[1]).moves;
    assert_eq!(
        (moves.len(), moves[0].cause),
        (1, Cause::Drain),
        "{moves:?}"
    );
    assert!(moves[0].to != 1);
    assert!(planned(&scenario, &[1, 2, 3, 4]).moves.is_empty());
    let picture = Picture::of(&scenario.image());
    let farewell = farewell(&picture, &unwritable(&scenario, &[1, 4]), 1);
    assert!([2, 3].contains(&farewell[0].to), "{farewell:?}");

    scenario.gone = BTreeSet::from([1]);
    assert_eq!(planned(&scenario, &[]).moves[0].to, 4);
    let to = planned(&scenario, &[4]).moves[0].to;
    assert!([2, 3].contains(&to), "{to}");
    let nobody = planned(&scenario, &[2, 3, 4]);
    assert!(nobody.moves.is_empty());
    assert_eq!(nobody.stranded[0].needs, Needs::Target);
}

#[test]
fn a_new_owner_is_in_another_rack_if_it_can_be() {
    let everywhere = GroupSpec {
        bytes: None,
        others: (0..8).collect(),
        without_owner: false,
    };
    let mut scenario = one_stream(4, vec![everywhere]);
    scenario.racks = [0, 0, 1, 0, 0, 0, 0, 0].map(Some).to_vec();
    let picture = Picture::of(&scenario.image());
    let all: Vec<_> = scenario.members().all().cloned().collect();
    scenario.gone = BTreeSet::from([1]);
    let members = scenario.members().remembering(&all);
    let found = plan(&picture, &members, &UnderWay::default(), &Limits::default());
    assert_eq!(found.moves[0].to, 3);
}

#[test]
fn nobody_takes_over_while_too_few_machines_live() {
    let mut scenario = one_stream(3, Vec::new());
    scenario.gone = BTreeSet::from([1, 2, 3]);
    let picture = Picture::of(&scenario.image());
    let found = plan(
        &picture,
        &scenario.members(),
        &UnderWay::default(),
        &Limits::default(),
    );
    assert!(found.moves.is_empty());
    let needs = Needs::Machines {
        wanted: 2,
        living: 1,
    };
    assert_eq!(found.stranded[0].needs, needs);
}

#[test]
fn a_drain_tells_what_stays_and_until_when() {
    let closed = GroupSpec {
        bytes: Some(1 << 20),
        others: Vec::new(),
        without_owner: false,
    };
    let mut scenario = one_stream(1, vec![closed]);
    scenario.draining = BTreeSet::from([1]);
    let mut image = scenario.image();
    image.groups[0].max_timestamp_ms = 5000;
    image.streams[0].config.retention_ms = 1000;
    let picture = Picture::of(&image);
    let members = scenario.members();
    assert!(
        plan(&picture, &members, &UnderWay::default(), &Limits::default())
            .moves
            .is_empty()
    );
    let found = drained(&picture, &members, 1);
    assert_eq!((found.owned, found.leaving, found.last_copies), (1, 0, 1));
    assert_eq!(found.kept[0].because, KeptBecause::OnlyCopy);
    assert_eq!(found.kept[0].until_ms, Some(6000));
    assert!(!found.may_stop());
    assert!(drained(&picture, &members, 2).may_stop());
}

#[test]
fn a_broker_whose_copies_have_nowhere_to_go_is_told_why() {
    let closed = || GroupSpec {
        bytes: Some(1 << 20),
        others: vec![0, 1],
        without_owner: false,
    };
    let mut scenario = one_stream(3, vec![closed()]);
    let picture = Picture::of(&scenario.image());
    // Three of the four can hold three copies.
    assert_eq!(drained(&picture, &scenario.members(), 2).stuck, 0);
    scenario.gone = BTreeSet::from([4]);
    let found = drained(&picture, &scenario.members(), 2);
    let room = found.room.expect("two are left");
    assert_eq!((found.stuck, room.wanted, room.left), (1, 3, 2));
    // It has none of them.
    assert_eq!(drained(&picture, &scenario.members(), 4).stuck, 0);
    scenario.gone.clear();
    scenario.draining = BTreeSet::from([4]);
    assert_eq!(
        drained(&picture, &scenario.members(), 2).stuck,
        1,
        "another leaves"
    );
}

#[test]
fn two_that_drain_do_not_count_on_each_others_copies() {
    // The owner is broker 1; its group is at brokers 2 and 3.
    let closed = GroupSpec {
        bytes: Some(1 << 20),
        others: vec![0, 1],
        without_owner: true,
    };
    let mut scenario = one_stream(2, vec![closed]);
    let picture = Picture::of(&scenario.image());
    scenario.draining = BTreeSet::from([2]);
    assert!(drained(&picture, &scenario.members(), 2).may_stop());
    scenario.draining = BTreeSet::from([2, 3]);
    for broker in [2, 3] {
        let found = drained(&picture, &scenario.members(), broker);
        assert_eq!((found.copies, found.last_copies), (1, 1));
        assert!(!found.may_stop(), "the other one may stop as well");
    }
}

#[test]
fn a_restart_plan_ends_with_the_controller_and_names_what_it_interrupts() {
    let mut scenario = one_stream(3, Vec::new());
    scenario.streams.push(StreamSpec {
        replicas: 1,
        streamlets: vec![(1, Vec::new())],
    });
    let picture = Picture::of(&scenario.image());
    let steps = restart_plan(&picture, &scenario.members(), Some(3));
    let order: Vec<_> = steps.iter().map(|one| one.broker).collect();
    assert_eq!(
        order,
        [4, 1, 2, 3],
        "smooth ones first, the controller last"
    );
    assert_eq!(steps[1].handed_over, 1);
    assert!(steps[1].is_smooth());
    assert_eq!(steps[2].offline, BTreeSet::from(["s1".to_owned()]));
    // With two machines left, the stream's appends wait for whichever is away.
    scenario.gone = BTreeSet::from([3, 4]);
    let steps = restart_plan(&picture, &scenario.members(), None);
    assert!(steps.iter().all(|one| one.waiting.contains("s0")));
    assert!(steps.iter().all(|one| one.handed_over == 0));
}

#[test]
fn a_broker_that_joins_gets_its_share_one_by_one() {
    let store = MemoryStore::new();
    let stream = StreamRecord::new("flights", replicated(12), 0);
    store.create_stream(stream, 1).unwrap();
    let mut picture = Picture::of(&store.load().unwrap());
    let three = members([1, 2, 3]);
    settle(&mut picture, &three, &Limits::default());
    let four = members([1, 2, 3, 4]);
    assert_eq!(share(&picture, &four), 3);
    let unsettled = UnderWay {
        unsettled: true,
        ..UnderWay::default()
    };
    assert!(
        plan(&picture, &four, &unsettled, &Limits::default())
            .moves
            .is_empty()
    );
    let limits = Limits {
        hand_overs: 1,
        ..Limits::default()
    };
    assert_eq!(
        settle(&mut picture, &four, &limits),
        3,
        "no more than it takes"
    );
    assert!(counts(&picture, &four).values().all(|count| *count == 3));
}

#[test]
fn what_was_handed_over_counts_before_and_after_the_picture_shows_it() {
    let store = MemoryStore::new();
    let stream = StreamRecord::new("flights", replicated(6), 0);
    store.create_stream(stream, 1).unwrap();
    let mut picture = Picture::of(&store.load().unwrap());
    let (three, limits) = (members([1, 2, 3]), Limits::default());
    let mut under_way = UnderWay::default();
    for _ in 0..4 {
        let moves = plan(&picture, &three, &under_way, &limits).moves;
        assert_eq!(moves.len(), 1, "one from each broker");
        under_way.made.extend(&moves);
        under_way.resting.extend(moves.iter().map(Move::which));
    }
    let is_even = |picture: &Picture, under_way: &UnderWay| {
        let moves = plan(picture, &three, under_way, &limits).moves;
        assert_eq!(moves, [], "what was made is made up for");
    };
    is_even(&picture, &under_way);
    let made: Vec<Move> = under_way.made.iter().copied().collect();
    for one in made {
        carry_out(&mut picture, &[one]);
        is_even(&picture, &under_way);
    }
}
