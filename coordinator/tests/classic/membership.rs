//! Joining, syncing, heartbeats, leaving, and what happens to who does not.

use kera_coordinator::Limits;
use kera_coordinator::classic::{self, Fault, GroupState, Reply, Request, SyncGroup};
use kera_protocol::error::ErrorCode;
use kera_protocol::v1::Order;

use crate::driver::{GROUP, World, subscription};

#[test]
fn a_new_member_is_told_its_id_and_comes_back_with_it() {
    let mut w = World::new();
    let mut request = w.join_request("");
    request.require_known_member = true;
    let fresh = request.fresh_member.clone();
    assert_eq!(
        w.refused(Request::Join(request)),
        Fault::MemberIdRequired(fresh.clone())
    );
    assert_eq!(w.state(), GroupState::Empty);
    let ticket = w.join(&fresh);
    let joined = w.joined(ticket);
    assert_eq!(
        (joined.generation, joined.leader.as_str()),
        (1, fresh.as_str())
    );
    assert_eq!(joined.members.len(), 1);
    assert_eq!(joined.protocol, "range");
    let ticket = w.sync(&fresh, 1, &[(&fresh, "all")]);
    assert_eq!(w.synced(ticket).assignment, "all");
    assert_eq!(w.state(), GroupState::Stable);
}

#[test]
fn ids_that_were_given_out_and_never_used_end() {
    let mut w = World::new();
    let mut request = w.join_request("");
    request.require_known_member = true;
    let fresh = request.fresh_member.clone();
    w.refused(Request::Join(request));
    // The next one waits for the id that is out.
    let other = w.join("");
    assert!(w.answer(other).is_none());
    w.bench.tick(9_999);
    assert!(w.answer(other).is_none());
    w.bench.tick(1);
    assert_eq!(w.joined(other).members.len(), 1);
    let request = w.join_request(&fresh);
    assert_eq!(w.refused(Request::Join(request)), Fault::UnknownMember);
}

#[test]
fn members_that_start_together_share_a_generation() {
    let mut w = World::new();
    let ids = w.stable(4);
    let description = w.describe();
    assert_eq!(description.members.len(), 4);
    for id in &ids {
        assert_eq!(w.heartbeat(id, 1), Ok(()));
    }
}

#[test]
fn the_first_rebalance_may_wait_for_more() {
    let mut limits = Limits::default();
    limits.classic.initial_delay_ms = 500;
    let mut w = World::with(limits);
    let first = w.join("");
    w.bench.tick(400);
    let second = w.join("");
    w.bench.tick(100);
    assert!(w.answer(first).is_none(), "somebody came, so it waits on");
    w.bench.tick(499);
    assert!(w.answer(first).is_none());
    w.bench.tick(1);
    assert_eq!(w.joined(first).members.len(), 2);
    assert_eq!(w.joined(second).generation, 1);
}

#[test]
fn a_join_starts_a_rebalance_that_waits_for_all() {
    let mut w = World::new();
    let ids = w.stable(2);
    let third = w.join("");
    assert!(w.answer(third).is_none());
    assert_eq!(w.heartbeat(&ids[0], 1), Err(Fault::RebalanceInProgress));
    let late = w.sync(&ids[0], 1, &[]);
    assert_eq!(w.fault(late), Fault::RebalanceInProgress);
    // A commit of the generation that ends is still good.
    assert_eq!(w.commit(&ids[0], 1, &[(0, 5)]), Ok(()));
    let a = w.join(&ids[0]);
    assert!(w.answer(a).is_none());
    let b = w.join(&ids[1]);
    let (a, b, third) = (w.joined(a), w.joined(b), w.joined(third));
    assert_eq!([a.generation, b.generation, third.generation], [2; 3]);
    assert_eq!((a.members.len(), b.members.len()), (3, 0));
    // Commits wait until the shares are known.
    assert_eq!(
        w.commit(&ids[0], 2, &[(0, 6)]),
        Err(Fault::RebalanceInProgress)
    );
    assert_eq!(
        w.commit(&ids[0], 1, &[(0, 6)]),
        Err(Fault::IllegalGeneration)
    );
    assert_eq!(w.heartbeat(&ids[0], 2), Ok(()));
    assert_eq!(w.heartbeat(&ids[0], 1), Err(Fault::IllegalGeneration));
}

#[test]
fn who_does_not_join_in_time_is_dropped() {
    let mut w = World::new();
    let ids = w.stable(2);
    let first = w.join(&ids[0]);
    for _ in 0..5 {
        w.bench.tick(5_999);
        assert_eq!(w.heartbeat(&ids[1], 1), Err(Fault::RebalanceInProgress));
        assert!(w.answer(first).is_none());
    }
    w.bench.tick(5);
    let joined = w.joined(first);
    assert_eq!((joined.generation, joined.members.len()), (2, 1));
    assert_eq!(w.heartbeat(&ids[1], 2), Err(Fault::UnknownMember));
}

#[test]
fn silent_members_are_dropped_and_the_rest_rebalance() {
    let mut w = World::new();
    let ids = w.stable(2);
    w.bench.tick(9_000);
    assert_eq!(w.heartbeat(&ids[1], 1), Ok(()));
    w.bench.tick(1_000);
    assert_eq!(w.heartbeat(&ids[1], 1), Err(Fault::RebalanceInProgress));
    let ticket = w.join(&ids[1]);
    let joined = w.joined(ticket);
    assert_eq!((joined.generation, &joined.leader), (2, &ids[1]));
}

#[test]
fn who_never_syncs_is_dropped() {
    let mut w = World::new();
    let a = w.join("");
    let a = w.joined(a).member;
    let b = w.join("");
    let again = w.join(&a);
    let (b, a) = (w.joined(b).member, w.joined(again).member);
    // The leader never syncs, though it lives.
    let waiting = w.sync(&b, 2, &[]);
    for _ in 0..5 {
        w.bench.tick(6_000);
        let _ = w.heartbeat(&a, 2);
    }
    assert_eq!(w.fault(waiting), Fault::RebalanceInProgress);
    assert_eq!(w.heartbeat(&a, 2), Err(Fault::UnknownMember));
    let ticket = w.join(&b);
    assert_eq!(w.joined(ticket).leader, b);
}

#[test]
fn leaving_rebalances_and_the_last_one_empties_the_group() {
    let mut w = World::new();
    let ids = w.stable(2);
    assert_eq!(
        w.leave(&[(&ids[0], None), ("nobody", None)]),
        [Ok(()), Err(Fault::UnknownMember)]
    );
    assert_eq!(w.heartbeat(&ids[1], 1), Err(Fault::RebalanceInProgress));
    assert_eq!(w.leave(&[(&ids[1], None)]), [Ok(())]);
    assert_eq!(w.state(), GroupState::Empty);
    let next = w.join("");
    assert_eq!(w.joined(next).generation, 3, "the empty one counts");
}

#[test]
fn the_leader_rebalances_by_joining_again_and_others_do_not() {
    let mut w = World::new();
    let ids = w.stable(2);
    let ticket = w.join(&ids[1]);
    let joined = w.joined(ticket);
    assert_eq!((joined.generation, joined.members.len()), (1, 0));
    let mut changed = w.join_request(&ids[1]);
    changed.protocols = vec![("range".into(), subscription(&["s", "t"], b""))];
    let changed = w.send(Request::Join(changed));
    assert!(w.answer(changed).is_none());
    let leader = w.join(&ids[0]);
    assert_eq!(w.joined(leader).generation, 2);
    w.joined(changed);
    let ticket = w.sync(&ids[0], 2, &[]);
    w.synced(ticket);
    let leader = w.join(&ids[0]);
    assert!(w.answer(leader).is_none());
    assert_eq!(w.heartbeat(&ids[1], 2), Err(Fault::RebalanceInProgress));
}

#[test]
fn a_lost_answer_to_a_join_can_be_fetched_again() {
    let mut w = World::new();
    let ticket = w.join("");
    let id = w.joined(ticket).member;
    let again = w.join(&id);
    let again = w.joined(again);
    assert_eq!((again.generation, again.members.len()), (1, 1));
}

#[test]
fn protocols_must_go_together_and_are_voted_for() {
    let mut w = World::new();
    let with = |w: &mut World, names: &[&str]| {
        let mut request = w.join_request("");
        request.protocols = names
            .iter()
            .map(|name| (name.to_string(), subscription(&["s"], name.as_bytes())))
            .collect();
        w.send(Request::Join(request))
    };
    let first = with(&mut w, &["a", "b", "c"]);
    let first = w.joined(first);
    assert_eq!(first.protocol, "a");
    let second = with(&mut w, &["b", "a"]);
    let third = with(&mut w, &["x", "b", "a"]);
    let odd = with(&mut w, &["c", "x"]);
    assert_eq!(w.fault(odd), Fault::InconsistentProtocol);
    let mut other = w.join_request("");
    other.protocol_type = "connect".into();
    assert_eq!(w.refused(Request::Join(other)), Fault::InconsistentProtocol);
    let mut request = w.join_request(&first.member);
    request.protocols = ["a", "b", "c"]
        .iter()
        .map(|name| (name.to_string(), subscription(&["s"], name.as_bytes())))
        .collect();
    let again = w.send(Request::Join(request));
    let again = w.joined(again);
    assert_eq!(again.protocol, "b", "two of three like it best");
    assert!(again.members.iter().all(|m| m.metadata.ends_with(b"b")));
    w.joined(second);
    w.joined(third);
    let wrong = Request::Sync(SyncGroup {
        group: GROUP.into(),
        member: first.member,
        generation: 2,
        protocol_type: Some("consumer".into()),
        protocol: Some("a".into()),
        ..SyncGroup::default()
    });
    assert_eq!(w.refused(wrong), Fault::InconsistentProtocol);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut w = World::new();
    type Change = fn(&mut classic::JoinGroup);
    let cases: [(Change, Fault); 8] = [
        (|r| r.group.clear(), Fault::InvalidGroupId),
        (|r| r.group = "g".repeat(1_025), Fault::InvalidGroupId),
        (|r| r.session_ms = 999, Fault::InvalidSessionTimeout),
        (|r| r.session_ms = -1, Fault::InvalidSessionTimeout),
        (|r| r.session_ms = 1_800_001, Fault::InvalidSessionTimeout),
        (|r| r.protocols.clear(), Fault::InconsistentProtocol),
        (|r| r.protocol_type.clear(), Fault::InconsistentProtocol),
        (|r| r.member = "stranger".into(), Fault::UnknownMember),
    ];
    for (change, fault) in cases {
        let mut request = w.join_request("");
        change(&mut request);
        assert_eq!(w.refused(Request::Join(request)), fault);
    }
    let mut request = w.join_request("");
    request.protocols = vec![("p".into(), vec![0; (256 << 10) + 1].into())];
    assert_eq!(w.refused(Request::Join(request)), Fault::TooLarge);
    assert!(w.bench.events.is_empty(), "nothing of it left a trace");
    assert_eq!(w.heartbeat("m", 0), Err(Fault::UnknownMember));
    assert_eq!(w.leave(&[("m", None)]), [Err(Fault::UnknownMember)]);
}

#[test]
fn a_group_takes_only_so_many_members_and_bytes() {
    let limits = Limits {
        members: 2,
        groups: 1,
        ..Limits::default()
    };
    let mut w = World::with(limits);
    w.stable(2);
    let request = w.join_request("");
    assert_eq!(w.refused(Request::Join(request)), Fault::GroupFull);
    let mut other = w.join_request("");
    other.group = "other".into();
    assert_eq!(w.refused(Request::Join(other)), Fault::TooManyGroups);

    let mut limits = Limits::default();
    limits.classic.group_bytes = 1_000;
    let mut w = World::with(limits);
    let ticket = w.join("");
    let id = w.joined(ticket).member;
    let share = "x".repeat(1_000);
    let ticket = w.sync(&id, 1, &[(&id, &share)]);
    assert_eq!(w.fault(ticket), Fault::TooLarge);
    let mut large = w.join_request("");
    large.protocols = vec![("range".into(), vec![0; 800].into())];
    assert_eq!(w.refused(Request::Join(large)), Fault::TooLarge);
}

#[test]
fn a_client_that_goes_while_it_waits_does_not_hold_up_the_others() {
    let mut w = World::new();
    let ids = w.stable(1);
    // It does not know its id, so it cannot come back.
    let anonymous = w.join("");
    w.bench.coordinator.cancel(anonymous);
    let ticket = w.join(&ids[0]);
    assert_eq!(w.joined(ticket).members.len(), 1);
    // It may come back: it is waited for as long as its session lasts.
    let ticket = w.sync(&ids[0], 2, &[]);
    w.synced(ticket);
    let mut request = w.join_request("");
    request.require_known_member = true;
    let Fault::MemberIdRequired(id) = w.refused(Request::Join(request)) else {
        panic!("expected an id");
    };
    let known = w.join(&id);
    w.bench.tick(8_000);
    assert_eq!(w.heartbeat(&ids[0], 2), Err(Fault::RebalanceInProgress));
    w.bench.coordinator.cancel(known);
    let ticket = w.join(&ids[0]);
    w.bench.tick(9_999);
    assert!(w.answer(ticket).is_none());
    w.bench.tick(1);
    assert_eq!(w.joined(ticket).members.len(), 1);
}

#[test]
fn a_static_member_comes_back_without_a_rebalance() {
    let mut w = World::new();
    let ticket = w.join_static("one");
    let leader = w.joined(ticket).member;
    let two = w.join_static("two");
    let again = w.join(&leader);
    let two = w.joined(two).member;
    w.joined(again);
    let ticket = w.sync(&leader, 2, &[(&leader, "a"), (&two, "b")]);
    w.synced(ticket);
    let ticket = w.sync(&two, 2, &[]);
    w.synced(ticket);

    // A follower: what it owns may differ, its topics may not.
    let mut request = w.join_request("");
    request.instance = Some("two".into());
    request.protocols = vec![("range".into(), subscription(&["s"], b"owned"))];
    let Reply::Joined(back) = w.call(Request::Join(request)) else {
        panic!("expected to be back");
    };
    assert_eq!((back.generation, &back.leader), (2, &leader));
    assert_ne!(back.member, two);
    let ticket = w.sync(&back.member, 2, &[]);
    assert_eq!(w.synced(ticket).assignment, "b");
    let fenced = Request::Heartbeat(classic::Heartbeat {
        group: GROUP.into(),
        member: two,
        instance: Some("two".into()),
        generation: 2,
    });
    assert_eq!(w.refused(fenced), Fault::FencedInstance);

    // The leader, of a client that cannot be told to skip its work: it is not told that it leads.
    let ticket = w.join_static("one");
    let back = w.joined(ticket);
    assert_eq!((&back.leader, back.skip_assignment), (&leader, false));
    assert!(back.members.is_empty());
    // And of one that can.
    let mut request = w.join_request("");
    request.instance = Some("one".into());
    request.can_skip_assignment = true;
    let Reply::Joined(back) = w.call(Request::Join(request)) else {
        panic!("expected to be back");
    };
    assert_eq!(back.leader, back.member);
    assert!(back.skip_assignment);
    assert_eq!(back.members.len(), 2);
    let ticket = w.sync(&back.member, 2, &[]);
    assert_eq!(w.synced(ticket).assignment, "a");
    w.restart();
    assert_eq!(w.heartbeat(&back.member, 2), Ok(()));
    // Other topics are another matter.
    let mut request = w.join_request("");
    request.instance = Some("two".into());
    request.protocols = vec![("range".into(), subscription(&["other"], b""))];
    let ticket = w.send(Request::Join(request));
    assert!(w.answer(ticket).is_none());
    assert_eq!(w.state(), GroupState::PreparingRebalance);
}

#[test]
fn static_members_survive_rebalances_they_miss_and_are_removed_by_name() {
    let mut w = World::new();
    let ticket = w.join_static("one");
    let one = w.joined(ticket).member;
    let ticket = w.sync(&one, 1, &[(&one, "a")]);
    w.synced(ticket);
    let mut request = w.join_request("");
    request.session_ms = 60_000;
    let two = w.send(Request::Join(request));
    // It misses the rebalance, but its session lasts longer than that.
    for _ in 0..6 {
        w.bench.tick(5_000);
        let beat = w.heartbeat(&one, 1);
        if w.bench.replies.contains_key(&two) {
            assert_eq!(beat, Err(Fault::IllegalGeneration));
        }
    }
    let joined = w.joined(two);
    assert_eq!(joined.members.len(), 2, "a static member stays");
    assert_eq!(joined.leader, joined.member, "who joined leads");
    assert_eq!(
        w.leave(&[("", Some("one")), ("", Some("three")), ("", None)]),
        [Ok(()), Err(Fault::UnknownMember), Err(Fault::UnknownMember)]
    );
    assert_eq!(w.describe().members.len(), 1);
}

#[test]
fn a_static_member_that_joins_twice_fences_the_join_that_waits() {
    let mut w = World::new();
    let ids = w.stable(1);
    let first = w.join_static("one");
    assert!(w.answer(first).is_none());
    let second = w.join_static("one");
    assert_eq!(w.fault(first), Fault::FencedInstance);
    let ticket = w.join(&ids[0]);
    assert_eq!(w.joined(ticket).members.len(), 2);
    w.joined(second);
}

#[test]
fn one_name_belongs_to_one_kind_of_group() {
    let mut w = World::new();
    w.stable(1);
    let native = crate::support::join(GROUP, "c", Order::Lane);
    assert_eq!(w.bench.join_error(native), ErrorCode::GroupConflict);
    let beat = w.bench.try_heartbeat(GROUP, "m", &[]);
    assert_eq!(beat.unwrap_err().code, ErrorCode::GroupConflict);

    let mut w = World::new();
    w.bench.join(GROUP, "c", Order::Lane);
    let request = w.join_request("");
    assert_eq!(
        w.refused(Request::Join(request)),
        Fault::InconsistentProtocol
    );
    assert_eq!(w.heartbeat("m", 0), Err(Fault::UnknownMember));
    assert_eq!(w.commit("", -1, &[(0, 1)]), Err(Fault::OtherKind));
    assert_eq!(
        w.refused(Request::Delete(GROUP.into())),
        Fault::GroupNotFound
    );
    assert!(w.bench.coordinator.classic_groups().is_empty());
}
