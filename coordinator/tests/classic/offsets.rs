//! Commits, reading them, forgetting them.

use kera_coordinator::classic::{
    CommittedOffset, DeleteOffsets, Fault, FetchOffsets, GroupState, OffsetsOfTopic, Reply, Request,
};
use kera_coordinator::{Limits, Request as AnyRequest};
use kera_protocol::error::ErrorCode;
use kera_protocol::ids::StreamId;
use kera_protocol::v1;

use crate::driver::{GROUP, World};
use crate::support::join;

const DAY_MS: u64 = 24 * 3_600_000;

#[test]
fn commits_of_members_and_of_others() {
    let mut w = World::new();
    assert_eq!(w.commit("", 3, &[(0, 1)]), Err(Fault::IllegalGeneration));
    assert_eq!(w.commit("", -1, &[(0, 1), (1, 7)]), Ok(()));
    let ids = w.stable(1);
    assert_eq!(w.commit("", -1, &[(0, 2)]), Err(Fault::UnknownMember));
    assert_eq!(w.commit("x", 1, &[(0, 2)]), Err(Fault::UnknownMember));
    assert_eq!(
        w.commit(&ids[0], 2, &[(0, 2)]),
        Err(Fault::IllegalGeneration)
    );
    assert_eq!(w.commit(&ids[0], 1, &[(0, 2)]), Ok(()));
    let offset = |offset: i64| CommittedOffset {
        offset,
        leader_epoch: 3,
        metadata: format!("at {offset}"),
        unstable: false,
    };
    assert_eq!(w.fetch(), [(0, offset(2)), (1, offset(7))]);
    let some = Request::Fetch(FetchOffsets {
        group: GROUP.into(),
        partitions: Some(vec![
            (w.stream(), 1),
            (w.stream(), 9),
            (StreamId::random(), 0),
        ]),
        max_bytes: usize::MAX,
        require_stable: false,
        member: None,
    });
    let Reply::Offsets(found) = w.call(some) else {
        panic!("expected offsets");
    };
    let found: Vec<_> = found
        .into_iter()
        .map(|(_, p, offset)| (p, offset))
        .collect();
    assert_eq!(found, [(1, Some(offset(7))), (9, None), (0, None)]);
}

/// kafkajs commits -2 for the beginning of a partition and -1 for its end, and reads them again.
#[test]
fn a_negative_offset_is_kept_as_it_is() {
    let mut w = World::new();
    let ids = w.stable(1);
    let committed = [(0, -2), (1, -1), (2, i64::MIN), (3, i64::MAX)];
    assert_eq!(w.commit(&ids[0], 1, &committed), Ok(()));
    let offsets = |w: &mut World| -> Vec<_> {
        let found = w.fetch().into_iter();
        found
            .map(|(partition, offset)| (partition, offset.offset))
            .collect()
    };
    assert_eq!(offsets(&mut w), committed);
    w.restart();
    assert_eq!(offsets(&mut w), committed, "also after a restart");
}

#[test]
fn metadata_and_numbers_of_offsets_are_bounded() {
    let mut limits = kera_coordinator::Limits::default();
    limits.classic.offsets = 2;
    let mut w = World::with(limits);
    let mut request = w.commit_request("", -1, &[(0, 1), (1, 1), (2, 1), (0, 2)]);
    request.offsets[1].metadata = "x".repeat(4_097);
    let Reply::Committed(results) = w.call(Request::Commit(request)) else {
        panic!("expected results");
    };
    assert_eq!(
        results,
        [Ok(()), Err(Fault::OffsetMetadataTooLarge), Ok(()), Ok(())]
    );
    assert_eq!(w.commit("", -1, &[(3, 1)]), Err(Fault::TooManyOffsets));
    assert_eq!(w.commit("", -1, &[(2, 9)]), Ok(()));
    let offsets: Vec<_> = w.fetch().into_iter().map(|(p, o)| (p, o.offset)).collect();
    assert_eq!(offsets, [(0, 2), (2, 9)]);
}

#[test]
fn offsets_of_topics_that_members_read_are_kept() {
    let mut w = World::new();
    let delete = |w: &World, name: &str, partitions: &[u32]| {
        Request::DeleteOffsets(DeleteOffsets {
            group: GROUP.into(),
            topics: vec![OffsetsOfTopic {
                name: name.into(),
                stream: w.stream(),
                partitions: partitions.to_vec(),
            }],
        })
    };
    let request = delete(&w, "s", &[0]);
    assert_eq!(w.refused(request), Fault::GroupNotFound);
    assert_eq!(w.commit("", -1, &[(0, 1), (1, 7)]), Ok(()));
    let ids = w.stable(1);
    let request = delete(&w, "s", &[0]);
    assert_eq!(
        w.call(request),
        Reply::OffsetsDeleted(vec![vec![Err(Fault::SubscribedToTopic)]])
    );
    let request = delete(&w, "another", &[0, 0, 5]);
    assert_eq!(
        w.call(request),
        Reply::OffsetsDeleted(vec![vec![Ok(()); 3]])
    );
    assert_eq!(w.fetch().len(), 1);
    w.leave(&[(&ids[0], None)]);
    let request = delete(&w, "s", &[1]);
    assert_eq!(w.call(request), Reply::OffsetsDeleted(vec![vec![Ok(())]]));
    assert!(w.fetch().is_empty());
    w.restart();
    assert!(w.fetch().is_empty());
}

#[test]
fn a_topic_made_anew_has_no_offsets() {
    let mut w = World::new();
    assert_eq!(w.commit("", -1, &[(0, 1)]), Ok(()));
    let old = w.stream();
    w.bench.stream.shape.id = StreamId::random();
    w.bench.tick(2_000);
    assert!(w.fetch().is_empty());
    assert_ne!(w.stream(), old);
    assert_eq!(w.commit("", -1, &[(0, 5)]), Ok(()));
    w.restart();
    assert_eq!(w.fetch().len(), 1);
}

#[test]
fn offsets_end_some_time_after_the_last_member() {
    let mut w = World::new();
    let ids = w.stable(1);
    assert_eq!(w.commit(&ids[0], 1, &[(0, 1)]), Ok(()));
    let mut request = w.commit_request(&ids[0], 1, &[(1, 1)]);
    request.retention_ms = Some(1_000);
    w.call(Request::Commit(request));
    for _ in 0..9 * 24 * 3_600 / 9 {
        w.bench.now += 9_000;
        assert_eq!(w.heartbeat(&ids[0], 1), Ok(()));
    }
    w.bench.tick(0);
    assert_eq!(w.fetch().len(), 2, "while somebody reads they stay");
    w.leave(&[(&ids[0], None)]);
    w.bench.tick(2_000);
    assert_eq!(w.fetch().len(), 1, "the client wished for a short time");
    w.bench.tick(7 * DAY_MS - 3_000);
    assert_eq!(w.fetch().len(), 1);
    w.restart();
    w.bench.tick(2_000);
    assert!(w.fetch().is_empty());
    assert!(
        w.bench.coordinator.classic_groups().is_empty(),
        "it is gone as well"
    );
    w.restart();
    assert!(w.bench.coordinator.classic_groups().is_empty());
}

#[test]
fn empty_groups_without_offsets_vanish_and_others_are_deleted_by_hand() {
    let mut w = World::new();
    let ids = w.stable(1);
    assert_eq!(
        w.refused(Request::Delete(GROUP.into())),
        Fault::NonEmptyGroup
    );
    w.leave(&[(&ids[0], None)]);
    w.bench.tick(59_000);
    assert_eq!(w.state(), GroupState::Empty);
    w.bench.tick(2_001);
    assert_eq!(
        w.refused(Request::Describe(GROUP.into())),
        Fault::GroupNotFound
    );

    assert_eq!(w.commit("", -1, &[(0, 1)]), Ok(()));
    assert_eq!(w.call(Request::Delete(GROUP.into())), Reply::Deleted);
    assert_eq!(
        w.refused(Request::Delete(GROUP.into())),
        Fault::GroupNotFound
    );
    assert!(w.fetch().is_empty());
    w.restart();
    assert!(w.fetch().is_empty());
}

fn reset(w: &World, change: impl FnOnce(&mut v1::ResetGroupRequest)) -> AnyRequest {
    let mut request = v1::ResetGroupRequest {
        group: GROUP.into(),
        to: Some(v1::StartAt {
            at: Some(v1::start_at::At::Latest(true)),
        }),
        ..v1::ResetGroupRequest::default()
    };
    assert!(!w.bench.stream.deleted);
    change(&mut request);
    AnyRequest::ResetGroup(request)
}

#[test]
fn a_reset_to_a_time_that_is_not_known_in_a_partition_moves_none() {
    let mut w = World::new();
    w.bench.stream.append((0, 0), 10);
    w.bench.stream.append((1, 0), 20);
    assert_eq!(w.commit("", -1, &[(0, 5), (1, 5)]), Ok(()));
    let offsets = |w: &mut World| -> Vec<_> {
        let offsets = w.fetch().into_iter();
        offsets.map(|(p, offset)| (p, offset.offset)).collect()
    };
    for (timeless, expected) in [(true, [(0, 5), (1, 5)]), (false, [(0, 7), (1, 7)])] {
        w.bench.stream.lanes.get_mut(&(1, 0)).unwrap().timeless = timeless;
        let to_time = reset(&w, |request| {
            request.to = Some(v1::StartAt {
                at: Some(v1::start_at::At::TimestampMs(7)),
            });
        });
        let error = w.bench.call(to_time).err().map(|error| error.code);
        assert_eq!(error, timeless.then_some(ErrorCode::NotEnoughCopies));
        assert_eq!(offsets(&mut w), expected);
    }
}

#[test]
fn people_see_lag_and_reset_it() {
    let mut w = World::new();
    w.bench.stream.append((0, 0), 10);
    w.bench.stream.append((1, 0), 20);
    assert_eq!(w.commit("", -1, &[(1, 5)]), Ok(()));
    let seen = w.bench.describe(GROUP);
    let summary = seen.summary.clone().unwrap();
    assert_eq!((summary.kind(), summary.lag), (v1::GroupKind::Kafka, 15));
    assert_eq!(summary.streams[0].lag, 15);
    let partition = &seen.partitions[0];
    assert_eq!((partition.partition, partition.committed), (1, Some(5)));
    assert_eq!((partition.head_ordinal, partition.lag), (20, 15));
    assert_eq!(partition.metadata, "at 5");
    w.bench.stream.trim((1, 0), 12);
    assert_eq!(
        w.bench.coordinator.summaries(&w.bench.stream)[0].lag,
        8,
        "what is gone does not lag"
    );

    // An owner has told nothing.
    let lane = w.bench.stream.lanes.remove(&(1, 0)).expect("it is there");
    let seen = w.bench.describe(GROUP);
    let summary = seen.summary.unwrap();
    assert_eq!((summary.lag, summary.unknown_lanes), (0, 1));
    assert_eq!(summary.streams[0].unknown_lanes, 1);
    let partition = &seen.partitions[0];
    assert_eq!(
        (partition.head_unknown, partition.committed),
        (true, Some(5))
    );
    w.bench.stream.lanes.insert((1, 0), lane);

    // All that has offsets; one partition; a whole stream.
    let request = reset(&w, |_| {});
    assert!(w.bench.call(request).is_ok());
    assert_eq!(w.fetch()[0].1.offset, 20);
    let request = reset(&w, |r| {
        r.stream = Some("s".into());
        r.partition = Some(0);
        r.to = Some(v1::StartAt {
            at: Some(v1::start_at::At::Ordinal(4)),
        });
    });
    assert!(w.bench.call(request).is_ok());
    let offsets: Vec<_> = w.fetch().into_iter().map(|(p, o)| (p, o.offset)).collect();
    assert_eq!(offsets, [(0, 4), (1, 20)]);
    w.restart();
    assert_eq!(w.bench.describe(GROUP).summary.unwrap().lag, 6);

    type Change = fn(&mut v1::ResetGroupRequest);
    let refusals: [(Change, ErrorCode); 5] = [
        (|r| r.stream = Some("none".into()), ErrorCode::UnknownStream),
        (|r| r.partition = Some(0), ErrorCode::InvalidArgument),
        (|r| r.lane = Some(0), ErrorCode::InvalidArgument),
        (|r| r.to = None, ErrorCode::InvalidArgument),
        (
            |r| {
                r.stream = Some("s".into());
                r.partition = Some(2);
            },
            ErrorCode::UnknownLane,
        ),
    ];
    for (change, code) in refusals {
        let request = reset(&w, change);
        assert_eq!(w.bench.call(request).unwrap_err().code, code);
    }
}

#[test]
fn people_see_members_with_what_they_are_assigned() {
    let mut w = World::new();
    w.bench.stream.append((1, 0), 3);
    let ticket = w.join("");
    let id = w.joined(ticket).member;
    // Version 0, one topic "s", partition 1.
    let share = "\0\0\0\0\0\x01\0\x01s\0\0\0\x01\0\0\0\x01";
    let ticket = w.sync(&id, 1, &[(&id, share)]);
    w.synced(ticket);
    let seen = w.bench.describe(GROUP);
    assert_eq!((seen.generation, seen.protocol.as_str()), (1, "range"));
    assert_eq!(
        (seen.members[0].partitions, seen.members[0].host.as_str()),
        (1, "127.0.0.1")
    );
    let partition = &seen.partitions[0];
    assert_eq!(
        (partition.partition, partition.committed, partition.lag),
        (1, None, 0)
    );
    assert_eq!(partition.member, id);
    let request = reset(&w, |_| {});
    assert_eq!(
        w.bench.call(request).unwrap_err().code,
        ErrorCode::GroupNotEmpty
    );
    let group = GROUP.into();
    let delete = AnyRequest::DeleteGroup(v1::DeleteGroupRequest { group });
    assert_eq!(
        w.bench.call(delete.clone()).unwrap_err().code,
        ErrorCode::GroupNotEmpty
    );
    w.leave(&[(&id, None)]);
    assert!(w.bench.call(delete).is_ok());
    assert!(w.bench.coordinator.summaries(&w.bench.stream).is_empty());
}

/// Commits one offset of partition 0 with so many bytes of metadata for a group.
fn commit_for(w: &mut World, group: &str, host: &str, metadata: usize) -> Result<(), Fault> {
    let mut request = w.commit_request("", -1, &[(0, 1)]);
    request.group = group.into();
    request.client_host = host.into();
    request.offsets[0].metadata = "m".repeat(metadata);
    match w.call(Request::Commit(request)) {
        Reply::Committed(results) => results.into_iter().collect(),
        Reply::Refused(fault) => Err(fault),
        other => panic!("commit answered {other:?}"),
    }
}

#[test]
fn what_some_groups_take_does_not_hold_up_the_commits_of_others() {
    let mut limits = Limits::default();
    limits.classic.total_bytes = 2_000;
    limits.classic.group_offset_bytes = 1_500;
    limits.classic.small_group_bytes = 200;
    let mut w = World::with(limits);
    let full = Err(Fault::TooManyOffsets);
    // One group alone takes no more than its part.
    assert_eq!(commit_for(&mut w, "large", "", 1_600), full);
    assert_eq!(commit_for(&mut w, "large", "", 1_400), Ok(()));
    assert_eq!(commit_for(&mut w, "second", "", 450), Ok(()));
    // All together are at the limit: only what is small is taken,
    assert_eq!(commit_for(&mut w, "third", "", 450), full);
    assert_eq!(commit_for(&mut w, "third", "", 10), Ok(()));
    // and what was there before goes on.
    assert_eq!(commit_for(&mut w, "large", "", 1_400), Ok(()));
    assert_eq!(commit_for(&mut w, "second", "", 449), Ok(()));
}

#[test]
fn offsets_that_are_too_many_for_an_answer_are_refused() {
    let mut w = World::new();
    assert_eq!(commit_for(&mut w, GROUP, "", 1_000), Ok(()));
    let fetch = |partitions, max_bytes| {
        Request::Fetch(FetchOffsets {
            group: GROUP.into(),
            partitions,
            max_bytes,
            require_stable: false,
            member: None,
        })
    };
    let one = Some(vec![(w.stream(), 0)]);
    for partitions in [None, one] {
        assert_eq!(w.refused(fetch(partitions.clone(), 999)), Fault::TooLarge);
        let found = w.call(fetch(partitions, 1_000));
        assert!(matches!(found, Reply::Offsets(found) if found.len() == 1));
    }
}

#[test]
fn random_names_of_groups_take_no_room_from_others() {
    let limits = Limits {
        groups: 4,
        ..Limits::default()
    };
    let mut w = World::with(limits);
    // Groups without members and offsets make room, the oldest first.
    for name in 0..20 {
        let mut join = w.join_request("");
        join.group = format!("random-{name}");
        join.require_known_member = true;
        assert!(matches!(
            w.refused(Request::Join(join)),
            Fault::MemberIdRequired(_)
        ));
        // The id that was given out runs out.
        w.bench.tick(70_000);
    }
    // Those with offsets do not; one host creates half of them at most.
    for name in ["a", "b"] {
        assert_eq!(commit_for(&mut w, name, "/10.0.0.1", 10), Ok(()));
    }
    let too_many = Err(Fault::TooManyGroups);
    assert_eq!(commit_for(&mut w, "c", "/10.0.0.1", 10), too_many);
    assert_eq!(commit_for(&mut w, "b", "/10.0.0.1", 10), Ok(()));
    assert_eq!(commit_for(&mut w, "c", "/10.0.0.2", 10), Ok(()));
    assert_eq!(commit_for(&mut w, "d", "/10.0.0.1", 10), too_many);
    assert_eq!(commit_for(&mut w, "d", "/10.0.0.2", 10), Ok(()));
    assert_eq!(commit_for(&mut w, "e", "/10.0.0.3", 10), too_many);
}

#[test]
fn a_host_that_is_refused_displaces_no_group_of_others() {
    let limits = Limits {
        groups: 4,
        ..Limits::default()
    };
    let mut w = World::with(limits);
    let (one, two) = ("/10.0.0.1", "/10.0.0.2");
    for name in ["a", "b"] {
        assert_eq!(commit_for(&mut w, name, one, 10), Ok(()));
    }
    // One without members, whose id was given out and runs out, and one with offsets.
    let mut join = w.join_request("");
    (join.group, join.client_host) = ("empty".into(), two.into());
    join.require_known_member = true;
    let told = w.refused(Request::Join(join));
    assert!(matches!(told, Fault::MemberIdRequired(_)));
    w.bench.tick(11_000);
    assert_eq!(commit_for(&mut w, "c", two, 10), Ok(()));
    let groups = |w: &World| -> Vec<String> {
        let groups = w.bench.coordinator.classic_groups();
        groups.into_iter().map(|listed| listed.group).collect()
    };
    let before = groups(&w);
    assert_eq!(before, ["a", "b", "c", "empty"]);
    let refused = commit_for(&mut w, "d", one, 10);
    assert_eq!(refused, Err(Fault::TooManyGroups));
    assert_eq!(join_native(&mut w, "d", one), Err(ErrorCode::Overloaded));
    assert_eq!(groups(&w), before);
    // Its own empty one makes room, and for a host below its share anybody's.
    assert_eq!(commit_for(&mut w, "d", two, 10), Ok(()));
    assert_eq!(groups(&w), ["a", "b", "c", "d"]);
}

/// Joins a native group from a host.
fn join_native(w: &mut World, group: &str, host: &str) -> Result<(), ErrorCode> {
    let request = AnyRequest::Join {
        request: join(group, "c", v1::Order::Lane),
        client_host: host.into(),
    };
    let joined = w.bench.call(request);
    joined.map(|_| ()).map_err(|error| error.code)
}

#[test]
fn native_groups_count_towards_the_half_of_their_host() {
    let limits = Limits {
        groups: 4,
        ..Limits::default()
    };
    let mut w = World::with(limits);
    let (one, two) = ("/10.0.0.1", "/10.0.0.2");
    assert_eq!(join_native(&mut w, "a", one), Ok(()));
    assert_eq!(commit_for(&mut w, "b", one, 10), Ok(()));
    let refused = Err(ErrorCode::Overloaded);
    assert_eq!(join_native(&mut w, "c", one), refused);
    assert_eq!(commit_for(&mut w, "c", one, 10), Err(Fault::TooManyGroups));
    assert_eq!(join_native(&mut w, "a", one), Ok(()), "it is there already");
    assert_eq!(join_native(&mut w, "c", two), Ok(()));
    assert_eq!(join_native(&mut w, "d", one), refused);
    // Who made them lasts.
    w.restart();
}
