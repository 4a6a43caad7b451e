//! What a restart keeps.

use kera_coordinator::Event;
use kera_coordinator::classic::{GroupState, Request};
use kera_protocol::ids::StreamId;

use crate::driver::{GROUP, World, replay};

#[test]
fn members_go_on_after_a_restart() {
    let mut w = World::new();
    let ids = w.stable(3);
    assert_eq!(w.commit(&ids[1], 1, &[(0, 4)]), Ok(()));
    w.restart();
    assert_eq!(w.state(), GroupState::Stable);
    w.bench.tick(9_999);
    for id in &ids {
        assert_eq!(w.heartbeat(id, 1), Ok(()));
        let ticket = w.sync(id, 1, &[]);
        assert_eq!(w.synced(ticket).assignment, format!("share of {id}"));
    }
    assert_eq!(w.commit(&ids[1], 1, &[(0, 5)]), Ok(()));
    let ticket = w.join(&ids[0]);
    assert!(w.answer(ticket).is_none(), "the leader still is the leader");
}

#[test]
fn a_generation_that_was_begun_goes_on_and_none_is_used_twice() {
    let mut w = World::new();
    let ids = w.stable(2);
    let a = w.join(&ids[0]);
    let b = w.join(&ids[1]);
    assert_eq!(w.joined(a).generation, 2);
    w.joined(b);
    w.restart();
    assert_eq!(w.state(), GroupState::CompletingRebalance);
    let waiting = w.sync(&ids[1], 2, &[]);
    let ticket = w.sync(&ids[0], 2, &[(&ids[1], "b")]);
    w.synced(ticket);
    assert_eq!(w.synced(waiting).assignment, "b");
    // A rebalance that was only prepared is forgotten; its generation was not given to anyone.
    let ticket = w.join(&ids[0]);
    assert!(w.answer(ticket).is_none());
    w.restart();
    assert_eq!(w.heartbeat(&ids[1], 2), Ok(()));
}

#[test]
fn members_that_do_not_come_back_after_a_restart_are_dropped() {
    let mut w = World::new();
    w.stable(2);
    w.restart();
    w.bench.tick(10_000);
    assert_eq!(w.state(), GroupState::Empty);
    w.restart();
    assert_eq!(w.state(), GroupState::Empty);
    let ticket = w.join("");
    assert_eq!(w.joined(ticket).generation, 3);
}

#[test]
fn a_snapshot_stands_for_everything_before_it() {
    let mut w = World::new();
    let ids = w.stable(3);
    assert_eq!(w.commit(&ids[0], 1, &[(0, 4), (1, 9)]), Ok(()));
    let ticket = w.join_static("one");
    let again: Vec<u64> = ids.iter().map(|id| w.join(id)).collect();
    w.joined(ticket);
    for ticket in again {
        w.joined(ticket);
    }
    let snapshot = w.bench.coordinator.snapshot();
    let replayed = replay(&snapshot, w.bench.now);
    assert!(replayed.same_durable_state(&w.bench.coordinator));
    w.bench.coordinator = replayed;
    assert_eq!(w.fetch().len(), 2);
    assert_eq!(w.state(), GroupState::CompletingRebalance);
    assert_eq!(w.describe().members.len(), 4);
}

#[test]
fn large_groups_are_written_in_parts_that_fit() {
    let mut w = World::new();
    let mut tickets = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..20 {
        let mut request = w.join_request("");
        request.protocols = vec![("range".into(), vec![1; 200 << 10].into())];
        request.require_known_member = true;
        ids.push(request.fresh_member.clone());
        w.refused(Request::Join(request));
    }
    for id in &ids {
        let mut request = w.join_request(id);
        request.protocols = vec![("range".into(), vec![1; 200 << 10].into())];
        tickets.push(w.send(Request::Join(request)));
    }
    assert_eq!(w.joined(tickets[0]).members.len(), 20);
    let share = "x".repeat(400 << 10);
    let shares: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), share.as_str())).collect();
    let ticket = w.sync(&ids[0], 1, &shares);
    w.synced(ticket);
    let longest = w.bench.events.iter().map(|event| event.value().len()).max();
    assert!(longest.unwrap() < 900 << 10);
    // A crash in the middle of a generation's parts leaves the one before.
    let events = &w.bench.events;
    for length in 1..events.len() {
        let cut = replay(&events[..length], 0);
        let groups = cut.classic_groups();
        let settled = groups[0].state;
        let whole = length == events.len();
        assert_eq!(settled == GroupState::Stable, whole, "{length} events");
    }
    let members = w.bench.coordinator.snapshot();
    assert!(members.iter().all(|event| event.value().len() < 900 << 10));
    assert!(replay(&members, 0).same_durable_state(&w.bench.coordinator));
    w.restart();
}

/// A group's life as it stands on disks, one event per line.
const WRITTEN: &[&str] = &[
    "08011a11080128e807420a2f3132372e302e302e31",
    "08017a5108011208636f6e73756d65721a0572616e676522026d3130e80740014a330a026d311a06636c69656e74220a2f3132372e302e302e3128904e30b0ea013a120a0572616e67651209000100000001000173",
    "08018201170801180122110a026d31420b7368617265206f66206d31",
    "08019201240a107369787465656e206279746573206964121010ac021803220661742033303028e807",
    "08017a8b0108021208636f6e73756d65721a0572616e676522026d3130e80740014a330a026d311a06636c69656e74220a2f3132372e302e302e3128904e30b0ea013a120a0572616e676512090001000000010001734a380a026d3312036f6e651a06636c69656e74220a2f3132372e302e302e3128904e30b0ea013a120a0572616e67651209000100000001000173",
    "080182010d0802180122070a026d33420162",
    "08018a01410a026d33123b0a026d3512036f6e651a06636c69656e74220a2f3132372e302e302e3128904e30b0ea013a120a0572616e67651209000100000001000173420162",
    "08019a01140a107369787465656e2062797465732069641801",
];

#[test]
fn events_keep_their_bytes() {
    let mut w = World::new();
    w.bench.stream.shape.id = StreamId::from_slice(b"sixteen bytes id").unwrap();
    let ids = w.stable(1);
    assert_eq!(w.commit(&ids[0], 1, &[(0, 300)]), Ok(()));
    let ticket = w.join_static("one");
    let again = w.join(&ids[0]);
    let one = w.joined(ticket).member;
    w.joined(again);
    let ticket = w.sync(&ids[0], 2, &[(&one, "b")]);
    w.synced(ticket);
    let ticket = w.join_static("one");
    w.joined(ticket);
    w.bench.stream.deleted = true;
    w.bench.tick(2_000);
    let hex = |event: &Event| -> String {
        let value = event.value();
        value.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let written: Vec<String> = w.bench.events.iter().map(hex).collect();
    assert_eq!(written, WRITTEN);
    // Earlier builds did not write who created a group.
    let created = [8, 1, 0x1a, 5, 8, 1, 0x28, 0xe8, 7];
    assert!(Event::decode(GROUP.as_bytes(), &created).is_ok());
}
