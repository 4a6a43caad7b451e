//! Groups of the consumer protocol: their rules one by one.

use std::collections::BTreeSet;

use kera_coordinator::Limits;
use kera_coordinator::classic::consumer::{
    ConsumerBeat, ConsumerDescription, ConsumerHeartbeat, Partitions,
};
use kera_coordinator::classic::{Fault, FetchOffsets, GroupState, Reply, Request};

use crate::driver::{GROUP, World};
use crate::support::NO_VIEW;

/// A member as its client is.
#[derive(Clone, Debug)]
pub struct Client {
    pub id: String,
    pub instance: Option<String>,
    pub epoch: i32,
    pub owned: BTreeSet<u32>,
}

impl Client {
    pub fn new(id: &str) -> Self {
        Self {
            id: id.into(),
            instance: None,
            epoch: 0,
            owned: BTreeSet::new(),
        }
    }
}

impl World {
    /// Six partitions.
    fn six() -> Self {
        let mut world = Self::new();
        world.bench.stream.grow(3);
        world
    }

    pub fn partitions_of(&self, numbers: &BTreeSet<u32>) -> Partitions {
        match numbers.is_empty() {
            true => Partitions::new(),
            false => [(self.stream(), numbers.clone())].into(),
        }
    }

    pub fn whole(&self, client: &Client) -> ConsumerHeartbeat {
        ConsumerHeartbeat {
            group: GROUP.into(),
            member: client.id.clone(),
            epoch: client.epoch,
            instance: client.instance.clone(),
            rebalance_ms: Some(30_000),
            topics: Some(vec!["s".into()]),
            owned: Some(self.partitions_of(&client.owned)),
            client_id: "client".into(),
            client_host: "/127.0.0.1".into(),
            ..ConsumerHeartbeat::default()
        }
    }

    pub fn beat_with(&mut self, request: ConsumerHeartbeat) -> Result<ConsumerBeat, Fault> {
        match self.call(Request::ConsumerHeartbeat(request)) {
            Reply::ConsumerBeat(beat) => Ok(beat),
            Reply::Refused(fault) => Err(fault),
            other => panic!("a heartbeat was answered with {other:?}"),
        }
    }

    /// One heartbeat, of which the client does at once what it is told.
    fn beat(&mut self, client: &mut Client) -> Result<(), Fault> {
        let beat = self.beat_with(self.whole(client))?;
        client.epoch = beat.epoch;
        if let Some(assignment) = beat.assignment {
            client.owned = assignment.into_values().flatten().collect();
        }
        Ok(())
    }

    /// Heartbeats until the group is stable.
    fn settle(&mut self, clients: &mut [&mut Client]) {
        for _ in 0..10 {
            for client in &mut *clients {
                self.beat(client).unwrap();
            }
        }
        let described = self.consumers();
        assert_eq!(described.state, GroupState::Stable);
        for client in clients {
            assert_eq!(client.epoch, described.epoch);
        }
    }

    pub fn consumers(&mut self) -> ConsumerDescription {
        match self.call(Request::ConsumerDescribe(GROUP.into())) {
            Reply::ConsumerDescribed(described) => described,
            other => panic!("a description was asked for: {other:?}"),
        }
    }

    pub fn fetch_as(&mut self, member: &str, epoch: i32) -> Result<(), Fault> {
        match self.call(Request::Fetch(FetchOffsets {
            group: GROUP.into(),
            partitions: Some(Vec::new()),
            max_bytes: usize::MAX,
            require_stable: false,
            member: Some((member.into(), epoch)),
        })) {
            Reply::Offsets(_) => Ok(()),
            Reply::Refused(fault) => Err(fault),
            other => panic!("offsets were asked for: {other:?}"),
        }
    }
}

fn set(numbers: &[u32]) -> BTreeSet<u32> {
    numbers.iter().copied().collect()
}

#[test]
fn what_moves_is_given_back_before_it_is_given_away() {
    let mut world = World::six();
    let (mut a, mut b) = (Client::new("a"), Client::new("b"));
    world.beat(&mut a).unwrap();
    assert_eq!((a.epoch, a.owned.len()), (1, 6));
    world.beat(&mut b).unwrap();
    assert_eq!((b.epoch, b.owned.len()), (2, 0), "a has everything still");
    assert_eq!(world.consumers().state, GroupState::Reconciling);
    // a is told, and goes on in its old epoch until it says that it has.
    let told = world.beat_with(world.whole(&a)).unwrap();
    assert_eq!(told.epoch, 1);
    let kept: BTreeSet<u32> = told.assignment.unwrap().into_values().flatten().collect();
    assert_eq!(kept.len(), 3);
    assert_eq!(world.commit("a", 1, &[(0, 5)]), Ok(()));
    let quiet = ConsumerHeartbeat {
        rebalance_ms: None,
        topics: None,
        owned: None,
        ..world.whole(&a)
    };
    assert_eq!(
        world.beat_with(quiet).unwrap().epoch,
        1,
        "it said nothing of them"
    );
    world.beat(&mut b).unwrap();
    assert_eq!(b.owned.len(), 0);
    a.owned = kept;
    world.beat(&mut a).unwrap();
    assert_eq!((a.epoch, a.owned.len()), (2, 3));
    world.beat(&mut b).unwrap();
    assert_eq!(b.owned.len(), 3);
    assert!(a.owned.is_disjoint(&b.owned));
    assert_eq!(world.consumers().state, GroupState::Stable);
    // Nothing is told again without need.
    let quiet = ConsumerHeartbeat {
        rebalance_ms: None,
        topics: None,
        owned: None,
        ..world.whole(&a)
    };
    assert_eq!(world.beat_with(quiet).unwrap().assignment, None);
}

#[test]
fn commits_and_questions_need_the_members_epoch() {
    let mut world = World::six();
    let (mut a, mut b) = (Client::new("a"), Client::new("b"));
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(world.commit("a", a.epoch, &[(0, 5)]), Ok(()));
    for epoch in [a.epoch - 1, a.epoch + 1] {
        assert_eq!(world.commit("a", epoch, &[(0, 6)]), Err(Fault::StaleEpoch));
        assert_eq!(world.fetch_as("a", epoch), Err(Fault::StaleEpoch));
    }
    assert_eq!(
        world.commit("c", a.epoch, &[(0, 6)]),
        Err(Fault::UnknownMember)
    );
    assert_eq!(world.commit("", -1, &[(0, 6)]), Err(Fault::UnknownMember));
    assert_eq!(world.fetch_as("c", 1), Err(Fault::UnknownMember));
    assert_eq!(world.fetch_as("", -1), Ok(()), "tools ask as nobody");
    assert_eq!(world.fetch()[0].1.offset, 5);
    // Who was fenced commits no more.
    world.bench.tick(44_000);
    world.beat(&mut b).unwrap();
    world.bench.tick(2_000);
    assert_eq!(
        world.commit("a", a.epoch, &[(0, 6)]),
        Err(Fault::UnknownMember)
    );
    world.settle(&mut [&mut b]);
    assert_eq!(b.owned.len(), 6);
}

#[test]
fn a_member_that_keeps_what_it_is_to_give_back_is_out() {
    let mut world = World::six();
    let (mut a, mut b) = (Client::new("a"), Client::new("b"));
    world.settle(&mut [&mut a]);
    world.beat(&mut b).unwrap();
    let stubborn = |world: &mut World| {
        let request = world.whole(&Client {
            owned: set(&[0, 1, 2, 3, 4, 5]),
            ..a.clone()
        });
        world.beat_with(request)
    };
    for _ in 0..3 {
        stubborn(&mut world).unwrap();
        world.bench.tick(9_000);
        world.beat(&mut b).unwrap();
        assert_eq!(b.owned.len(), 0);
    }
    world.bench.tick(4_000);
    assert_eq!(stubborn(&mut world), Err(Fault::UnknownMember));
    world.settle(&mut [&mut b]);
    assert_eq!(b.owned.len(), 6);
}

#[test]
fn a_lost_answer_is_no_harm_and_an_older_epoch_is_fenced() {
    let mut world = World::six();
    let (mut a, mut b) = (Client::new("a"), Client::new("b"));
    // Its first answer was lost.
    world.beat_with(world.whole(&a)).unwrap();
    world.settle(&mut [&mut a]);
    let before = a.clone();
    world.beat(&mut b).unwrap();
    world.beat(&mut a).unwrap();
    // The answer with its new epoch is lost: it says the one before, and is told again.
    world.beat_with(world.whole(&a)).unwrap();
    assert!(world.consumers().members[0].epoch > a.epoch);
    world.beat(&mut a).unwrap();
    assert_eq!(a.owned.len(), 3);
    // What it gave back it does not own in an epoch of long ago.
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(
        world.beat_with(world.whole(&before)),
        Err(Fault::FencedEpoch)
    );
    let ahead = Client {
        epoch: a.epoch + 1,
        ..a.clone()
    };
    assert_eq!(
        world.beat_with(world.whole(&ahead)),
        Err(Fault::FencedEpoch)
    );
    // Who is fenced begins anew, under its id.
    let mut anew = Client::new("a");
    world.settle(&mut [&mut anew, &mut b]);
    assert_eq!(anew.owned.len(), 3);
}

#[test]
fn a_static_member_keeps_its_place() {
    let mut world = World::six();
    let named = |id: &str| Client {
        instance: Some("first".into()),
        ..Client::new(id)
    };
    let (mut a, mut b) = (named("a"), Client::new("b"));
    world.settle(&mut [&mut a, &mut b]);
    let (epoch, held) = (world.consumers().epoch, a.owned.clone());
    let mut again = named("a2");
    assert_eq!(world.beat(&mut again), Err(Fault::UnreleasedInstance));
    let leaves = ConsumerHeartbeat {
        epoch: -2,
        ..world.whole(&a)
    };
    assert_eq!(world.beat_with(leaves).unwrap().epoch, -2);
    world.beat(&mut b).unwrap();
    assert_eq!(b.owned.len(), 3, "nothing of it is given away");
    world.beat(&mut again).unwrap();
    assert_eq!((again.epoch, &again.owned), (epoch, &held), "no rebalance");
    assert_eq!(world.beat_with(world.whole(&a)), Err(Fault::FencedInstance));
    assert_eq!(world.consumers().members.len(), 2);
    // If it does not come back in time its partitions go to others.
    let leaves = ConsumerHeartbeat {
        epoch: -2,
        ..world.whole(&again)
    };
    world.beat_with(leaves).unwrap();
    world.bench.tick(30_000);
    world.beat(&mut b).unwrap();
    world.bench.tick(16_000);
    world.settle(&mut [&mut b]);
    assert_eq!(b.owned.len(), 6);
}

#[test]
fn lanes_that_are_added_reach_members_by_an_epoch() {
    let mut world = World::six();
    let (mut a, mut b) = (Client::new("a"), Client::new("b"));
    world.settle(&mut [&mut a, &mut b]);
    let epoch = world.consumers().epoch;
    world.bench.tick(1_000);
    assert_eq!(world.consumers().epoch, epoch, "nothing changed");
    world.bench.stream.grow(4);
    world.bench.tick(1_000);
    assert_eq!(world.consumers().epoch, epoch + 1);
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!((a.owned.len(), b.owned.len()), (4, 4));
    // A coordinator that starts finds what was added meanwhile, and nothing else to change.
    world.restart();
    world.bench.tick(1_000);
    assert_eq!(world.consumers().epoch, epoch + 1);
    world.bench.stream.grow(5);
    world.restart();
    world.bench.tick(1_000);
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!((a.owned.len(), b.owned.len()), (5, 5));
    // The stream goes, and with it what members have.
    world.bench.stream.deleted = true;
    world.bench.tick(1_000);
    world.settle(&mut [&mut a, &mut b]);
    assert!(a.owned.is_empty() && b.owned.is_empty());
}

#[test]
fn patterns_find_topics_that_the_user_may_see() {
    let mut world = World::six();
    let joins = |world: &World, id: &str, pattern: &str, user: &str| ConsumerHeartbeat {
        topics: None,
        pattern: Some(pattern.into()),
        user: Some(user.into()),
        ..world.whole(&Client::new(id))
    };
    let mut owned = |id: &str, pattern: &str, user: &str| -> Result<usize, Fault> {
        let beat = world.beat_with(joins(&world, id, pattern, user))?;
        world.beat_with(ConsumerHeartbeat {
            epoch: -1,
            ..world.whole(&Client::new(id))
        })?;
        let assigned = beat.assignment.unwrap_or_default();
        Ok(assigned.into_values().flatten().count())
    };
    assert_eq!(owned("a", "[r-t]", "alice"), Ok(6));
    assert_eq!(
        owned("a", "s.+", "alice"),
        Ok(0),
        "the whole name is matched"
    );
    assert_eq!(
        owned("a", "s|never", "nobody"),
        Ok(0),
        "nobody sees nothing"
    );
    assert_eq!(
        owned("a", r"\w", "alice"),
        Ok(6),
        "classes are those of ASCII"
    );
    // The last would be whole only with what is put around it.
    for bad in ["(", "a{1000000}", "never)|(?:.*"] {
        let refused = owned("a", bad, "alice");
        assert!(
            matches!(refused, Err(Fault::InvalidPattern(_))),
            "{bad}: {refused:?}"
        );
    }
}

#[test]
fn patterns_find_topics_that_may_be_seen_from_the_members_own_host() {
    for first in [NO_VIEW, "127.0.0.1"] {
        let mut world = World::six();
        let mut owned = |id: &str, host: &str| {
            let beat = ConsumerHeartbeat {
                topics: None,
                pattern: Some("s".into()),
                user: Some("alice".into()),
                client_host: format!("/{host}"),
                ..world.whole(&Client::new(id))
            };
            let beat = world.beat_with(beat).expect("it joins");
            beat.assignment
                .unwrap_or_default()
                .into_values()
                .flatten()
                .count()
        };
        let second = if first == NO_VIEW {
            "127.0.0.1"
        } else {
            NO_VIEW
        };
        let both = [(first, owned("a", first)), (second, owned("b", second))];
        for (host, partitions) in both {
            let expected = if host == NO_VIEW { 0 } else { 6 };
            assert_eq!(partitions, expected, "at {host}");
        }
    }
}

#[test]
fn patterns_count_in_the_memory_of_groups() {
    let mut world = World::six();
    let joins = |world: &World, id: &str, pattern: &str| ConsumerHeartbeat {
        topics: None,
        pattern: Some(pattern.into()),
        user: Some("alice".into()),
        ..world.whole(&Client::new(id))
    };
    // Members with the same pattern share what it takes.
    let large = "(a|b){200}|s";
    for n in 0..200 {
        let joined = world.beat_with(joins(&world, &format!("m{n}"), large));
        assert!(joined.is_ok(), "{joined:?}");
    }
    let mut taken = 0;
    let refused = loop {
        let pattern = format!("{large}|{taken}");
        match world.beat_with(joins(&world, &format!("other{taken}"), &pattern)) {
            Ok(_) => taken += 1,
            Err(fault) => break fault,
        }
        assert!(taken < 1_000, "patterns take no memory");
    };
    assert_eq!(refused, Fault::TooLarge);
    assert!(taken > 50, "{taken}");
    // One who is in may take another pattern if there is room, and one that is small always has it.
    let member = world.whole(&Client::new("m0"));
    let small = ConsumerHeartbeat {
        pattern: Some(String::new()),
        ..member
    };
    assert!(world.beat_with(small).is_ok());
}

#[test]
fn an_empty_group_changes_its_kind_and_one_with_members_does_not() {
    let mut world = World::six();
    let ids = world.stable(1);
    assert_eq!(world.commit(&ids[0], 1, &[(0, 5)]), Ok(()));
    let mut a = Client::new("a");
    assert_eq!(world.beat(&mut a), Err(Fault::NotConsumer));
    world.leave(&[(&ids[0], None)]);
    world.beat(&mut a).unwrap();
    assert!(a.epoch > 1, "epochs go on where generations ended");
    assert_eq!(world.fetch()[0].1.offset, 5, "offsets stay");
    // Requests of the classic protocol find no classic group.
    let request = world.join_request("");
    assert_eq!(
        world.refused(Request::Join(request)),
        Fault::InconsistentProtocol
    );
    assert_eq!(
        world.refused(Request::Describe(GROUP.into())),
        Fault::NotClassic
    );
    assert_eq!(world.heartbeat("a", a.epoch), Err(Fault::UnknownMember));
    assert_eq!(
        world.refused(Request::Delete(GROUP.into())),
        Fault::NonEmptyGroup
    );
    world.restart();
    world
        .beat_with(ConsumerHeartbeat {
            epoch: -1,
            ..world.whole(&a)
        })
        .unwrap();
    assert_eq!(world.consumers().state, GroupState::Empty);
    let ticket = world.join("");
    let joined = world.joined(ticket);
    assert!(joined.generation > a.epoch);
    assert_eq!(world.beat(&mut a), Err(Fault::NotConsumer));
    world.restart();
    assert_eq!(world.fetch()[0].1.offset, 5);
}

#[test]
fn what_contradicts_itself_or_is_too_much_is_refused() {
    let limits = Limits {
        members: 2,
        ..Limits::default()
    };
    let mut world = World::with(limits);
    let a = Client::new("a");
    let whole = world.whole(&a);
    let bad = [
        ConsumerHeartbeat {
            group: String::new(),
            ..whole.clone()
        },
        ConsumerHeartbeat {
            member: String::new(),
            ..whole.clone()
        },
        ConsumerHeartbeat {
            rebalance_ms: None,
            ..whole.clone()
        },
        ConsumerHeartbeat {
            owned: None,
            ..whole.clone()
        },
        ConsumerHeartbeat {
            owned: Some(world.partitions_of(&set(&[1]))),
            ..whole.clone()
        },
        ConsumerHeartbeat {
            topics: None,
            ..whole.clone()
        },
        ConsumerHeartbeat {
            instance: Some(String::new()),
            ..whole.clone()
        },
        ConsumerHeartbeat {
            epoch: -2,
            ..whole.clone()
        },
        ConsumerHeartbeat {
            epoch: -3,
            ..whole.clone()
        },
    ];
    for request in bad {
        let refused = world.beat_with(request.clone());
        assert!(
            matches!(refused, Err(Fault::InvalidRequest(_))),
            "{request:?}: {refused:?}"
        );
    }
    let other = ConsumerHeartbeat {
        assignor: Some("mine".into()),
        ..whole.clone()
    };
    assert_eq!(world.beat_with(other), Err(Fault::UnsupportedAssignor));
    let long = ConsumerHeartbeat {
        topics: Some(vec!["x".repeat(300 << 10)]),
        ..whole.clone()
    };
    assert_eq!(world.beat_with(long), Err(Fault::TooLarge));
    let late = Client {
        epoch: 3,
        ..a.clone()
    };
    assert_eq!(
        world.beat_with(world.whole(&late)),
        Err(Fault::UnknownMember)
    );
    assert!(world.bench.events.is_empty(), "nothing came of any of it");
    for id in ["a", "b"] {
        world.beat_with(world.whole(&Client::new(id))).unwrap();
    }
    assert_eq!(
        world.beat_with(world.whole(&Client::new("c"))),
        Err(Fault::GroupFull)
    );
    // More partitions than a member's record may hold.
    world.bench.stream.grow(200_000);
    let gone = |id: &str| ConsumerHeartbeat {
        epoch: -1,
        ..world.whole(&Client::new(id))
    };
    let (first, second) = (gone("a"), gone("b"));
    world.beat_with(first).unwrap();
    world.beat_with(second).unwrap();
    assert_eq!(
        world.beat_with(world.whole(&Client::new("c"))),
        Err(Fault::TooLarge)
    );
}

#[test]
fn the_assignor_that_most_members_want_divides_the_work() {
    let mut world = World::six();
    for (id, assignor) in [("a", "range"), ("b", "range"), ("c", "uniform")] {
        let request = ConsumerHeartbeat {
            assignor: Some(assignor.into()),
            ..world.whole(&Client::new(id))
        };
        world.beat_with(request).unwrap();
    }
    let described = world.consumers();
    assert_eq!(described.assignor, "range");
    let targets = described.members.into_iter().map(|member| member.target);
    let targets: Vec<BTreeSet<u32>> = targets
        .map(|t| t.into_values().flatten().collect())
        .collect();
    assert_eq!(targets, [set(&[0, 1]), set(&[2, 3]), set(&[4, 5])]);
}
