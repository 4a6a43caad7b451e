//! One test per rule of consumer groups.

#[path = "rules/keys.rs"]
mod keys;
#[path = "rules/numbers.rs"]
mod numbers;
#[path = "rules/partitions.rs"]
mod partitions;
#[path = "rules/positions.rs"]
mod positions;
#[path = "rules/sent.rs"]
mod sent;
mod support;

use kera_coordinator::{Limits, Replay, Reply, Request};
use kera_protocol::error::ErrorCode;
use kera_protocol::v1::{self, LaneBy, Order, StartAt, start_at};
use support::{Bench, FakeStream, commit, ids, join, lanes, ranges};

fn bench(streamlets: u32, lanes: u32) -> Bench {
    Bench::new(FakeStream::new(streamlets, lanes, LaneBy::Key))
}

fn at(at: start_at::At) -> Option<StartAt> {
    Some(StartAt { at: Some(at) })
}

#[test]
fn one_member_gets_every_lane_and_none_twice() {
    let mut b = bench(2, 3);
    let m = b.join("g", "c", Order::Lane);
    let leases = b.acquire("g", &m, 100);
    assert_eq!(
        lanes(&leases),
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    );
    assert_eq!(ids(&leases), [1, 2, 3, 4, 5, 6]);
    assert!(leases.iter().all(|lease| lease.end_ordinal == 0));
    assert!(b.acquire("g", &m, 100).is_empty());
}

#[test]
fn a_member_that_joins_gets_its_share_from_the_fullest() {
    let mut b = bench(1, 5);
    let first = b.join("g", "a", Order::Lane);
    let held = ids(&b.acquire("g", &first, 100));
    let second = b.join("g", "b", Order::Lane);
    let parked = b.park("g", &second, 100, 10_000);
    assert!(b.leases(parked).is_none());
    let told = b.heartbeat("g", &first, &held);
    assert_eq!((told.give_back, told.lost), (vec![4, 5], vec![]));
    b.commit("g", &first, &[commit(5, None, true)]);
    assert_eq!(ids(&b.leases(parked).unwrap()), [6]);
    let parked = b.park("g", &second, 100, 10_000);
    b.commit("g", &first, &[commit(4, None, true)]);
    assert_eq!(lanes(&b.leases(parked).unwrap()), [(0, 3)]);
    let told = b.heartbeat("g", &first, &[1, 2, 3]);
    assert!(told.give_back.is_empty());
    assert!(b.acquire("g", &second, 100).is_empty(), "it has its share");
}

#[test]
fn a_lease_told_to_be_given_back_is_taken_back_in_the_end() {
    let mut b = bench(1, 2);
    let first = b.join("g", "a", Order::Lane);
    assert_eq!(b.acquire("g", &first, 9).len(), 2);
    let second = b.join("g", "b", Order::Lane);
    let parked = b.park("g", &second, 1, 60_000);
    let mut waited = 0;
    while b.leases(parked).is_none() {
        b.heartbeat("g", &first, &[1, 2]);
        b.heartbeat("g", &second, &[]);
        b.tick(1_000);
        waited += 1_000;
        assert!(waited <= Limits::default().give_back_ms + 2_000);
        if waited > 50_000 {
            continue;
        }
        assert!(b.describe("g").members[0].leases == 2);
    }
    assert_eq!(b.heartbeat("g", &first, &[1, 2]).lost, [2]);
}

#[test]
fn a_silent_member_loses_its_leases_and_a_heartbeat_keeps_them() {
    let mut b = bench(1, 2);
    let quiet = b.join("g", "quiet", Order::Lane);
    let alive = b.join("g", "alive", Order::Lane);
    assert_eq!(b.acquire("g", &quiet, 2).len(), 2);
    b.tick(2_000);
    b.heartbeat("g", &alive, &[]);
    let parked = b.park("g", &alive, 5, 30_000);
    b.tick(999);
    assert!(b.leases(parked).is_none());
    b.tick(1);
    assert_eq!(ids(&b.leases(parked).unwrap()), [3, 4]);
    let error = b.try_heartbeat("g", &quiet, &[1, 2]).unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownMember);
    let error = b.try_commit("g", &quiet, &[commit(1, Some(0), true)]);
    assert_eq!(error.unwrap_err().code, ErrorCode::UnknownMember);
}

#[test]
fn a_commit_of_an_ended_lease_is_stale_and_changes_nothing() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "a", Order::Lane);
    let other = b.join("g", "b", Order::Lane);
    b.acquire("g", &m, 1);
    assert!(b.commit("g", &m, &[commit(1, Some(4), false)]).is_empty());
    assert_eq!(b.commit("g", &other, &[commit(1, Some(9), true)]), [1]);
    assert_eq!(b.commit("g", &m, &[commit(77, Some(9), false)]), [77]);
    b.leave("g", &m);
    let leases = b.acquire("g", &other, 1);
    assert_eq!((ids(&leases), ranges(&leases)), (vec![2], vec![(4, 0)]));
    assert_eq!(b.describe("g").lanes[0].committed, 4);
}

#[test]
fn commits_never_go_back_nor_above_the_head() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "a", Order::Lane);
    b.acquire("g", &m, 1);
    b.commit("g", &m, &[commit(1, Some(8), false)]);
    let events = b.events.len();
    assert!(b.commit("g", &m, &[commit(1, Some(3), false)]).is_empty());
    assert_eq!(b.events.len(), events);
    let error = b.try_commit("g", &m, &[commit(1, Some(11), false)]);
    assert_eq!(error.unwrap_err().code, ErrorCode::InvalidArgument);
    assert_eq!(b.describe("g").lanes[0].committed, 8);
}

#[test]
fn of_a_lane_served_elsewhere_more_may_have_been_read_than_was_heard() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    b.stream.elsewhere = true;
    let m = b.join("g", "a", Order::Lane);
    b.acquire("g", &m, 1);
    assert!(b.commit("g", &m, &[commit(1, Some(25), false)]).is_empty());
    let lane = &b.describe("g").lanes[0];
    assert_eq!((lane.committed, lane.head_ordinal, lane.lag), (25, 10, 0));
    assert_eq!(b.coordinator.streams_of("g"), [b.stream.shape.id]);
    assert!(b.coordinator.streams_of("h").is_empty());
}

#[test]
fn a_repeated_release_is_not_stale_even_after_a_restart() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "a", Order::Lane);
    b.acquire("g", &m, 1);
    let release = [commit(1, Some(6), true)];
    assert!(b.commit("g", &m, &release).is_empty());
    assert!(b.commit("g", &m, &release).is_empty());
    let snapshot = b.coordinator.snapshot();
    b.coordinator = b.replayed(&snapshot);
    assert!(b.commit("g", &m, &release).is_empty());
    assert_eq!(b.commit("g", &m, &[commit(1, Some(7), true)]), [1]);
    assert_eq!(b.describe("g").lanes[0].committed, 6);
}

#[test]
fn entries_for_the_same_lease_in_one_commit_act_as_one() {
    let mut b = bench(1, 2);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "a", Order::Lane);
    b.acquire("g", &m, 2);
    let entries = [
        commit(1, Some(4), true),
        commit(2, None, true),
        commit(1, Some(6), false),
    ];
    assert!(b.commit("g", &m, &entries).is_empty());
    let described = b.describe("g");
    assert_eq!(described.lanes[0].committed, 6);
    assert!(described.lanes.iter().all(|lane| lane.leases.is_empty()));
}

#[test]
fn leases_survive_a_restart_and_ids_go_on() {
    let mut b = bench(1, 2);
    let m = b.join("g", "a", Order::Lane);
    assert_eq!(b.acquire("g", &m, 1).len(), 1);
    b.now += 1_000_000;
    b.coordinator = b.replayed(&b.events);
    let again = v1::JoinRequest {
        member: m.clone(),
        ..join("g", "a", Order::Lane)
    };
    let Ok(Reply::Join(reply)) = b.call(Request::join(again)) else {
        panic!("rejoin failed");
    };
    assert_eq!(reply.member, m);
    b.tick(2_999);
    assert!(b.heartbeat("g", &m, &[1]).lost.is_empty());
    assert_eq!(ids(&b.acquire("g", &m, 1)), [2]);
    let unknown = v1::JoinRequest {
        member: "a-0-99".into(),
        ..join("g", "a", Order::Lane)
    };
    let Ok(Reply::Join(reply)) = b.call(Request::join(unknown)) else {
        panic!("join failed");
    };
    assert_ne!(
        reply.member, "a-0-99",
        "an id that is not known is not taken over"
    );
}

#[test]
fn a_grant_that_never_arrived_comes_back() {
    let mut b = bench(1, 1);
    let m = b.join("g", "a", Order::Lane);
    let ticket = b.park("g", &m, 1, 0);
    b.replies.remove(&ticket);
    b.heartbeat("g", &m, &[]);
    assert_eq!(
        b.describe("g").summary.unwrap().leases,
        1,
        "it may be on its way"
    );
    b.tick(1_000);
    let told = b.heartbeat("g", &m, &[]);
    assert_eq!(told.lost, [1], "it may have arrived since that was sent");
    assert_eq!(b.describe("g").summary.unwrap().leases, 0);
    assert_eq!(ids(&b.acquire("g", &m, 1)), [2]);
}

#[test]
fn requests_for_leases_wait_in_turn_and_not_longer_than_they_say() {
    let mut b = bench(1, 1);
    let members: Vec<String> = (0..3).map(|_| b.join("g", "c", Order::None)).collect();
    let first = b.park("g", &members[0], 1, 10_000);
    let second = b.park("g", &members[1], 1, 10_000);
    let short = b.park("g", &members[2], 1, 100);
    assert!(b.coordinator.awaits_heads(b.stream.shape.id));
    b.tick(100);
    assert_eq!(b.leases(short), Some(vec![]));
    b.stream.append((0, 0), 5);
    b.heads();
    assert_eq!(ranges(&b.leases(first).unwrap()), [(0, 5)]);
    assert!(b.leases(second).is_none());
    let again = b.park("g", &members[0], 1, 10_000);
    b.stream.append((0, 0), 5);
    b.heads();
    assert_eq!(ranges(&b.leases(second).unwrap()), [(5, 10)]);
    assert!(b.leases(again).is_none());
    let replaced = b.park("g", &members[0], 1, 10_000);
    assert_eq!(
        b.leases(again),
        Some(vec![]),
        "asking again ends the earlier wait"
    );
    b.coordinator.cancel(replaced);
    assert!(!b.coordinator.awaits_any_heads());
    b.stream.append((0, 0), 5);
    b.heads();
    assert!(b.leases(replaced).is_none());
}

#[test]
fn sixteen_members_all_progress_on_one_slow_lane() {
    let mut b = bench(1, 1);
    let members: Vec<String> = (0..16).map(|_| b.join("g", "c", Order::None)).collect();
    let mut waiting: Vec<u64> = members
        .iter()
        .map(|member| b.park("g", member, 2, 30_000))
        .collect();
    let mut consumed = [0_u64; 16];
    // Two seconds of 1,000 records per second in batches of 5.
    for _ in 0..400 {
        b.stream.append((0, 0), 5);
        b.now += 5;
        b.heads();
        for (index, member) in members.iter().enumerate() {
            if let Some(leases) = b.leases(waiting[index]) {
                for lease in &leases {
                    consumed[index] += lease.end_ordinal - lease.start.unwrap().ordinal;
                    b.commit(
                        "g",
                        member,
                        &[commit(lease.lease, Some(lease.end_ordinal), true)],
                    );
                }
                waiting[index] = b.park("g", member, 2, 30_000);
            }
        }
    }
    assert_eq!(consumed.iter().sum::<u64>(), 2_000);
    assert!(
        consumed.iter().all(|records| *records >= 100),
        "uneven: {consumed:?}"
    );
}

#[test]
fn a_backlog_is_cut_by_demand_and_by_the_wish() {
    let mut b = bench(1, 1);
    for _ in 0..80 {
        b.stream.append((0, 0), 10);
    }
    let members: Vec<String> = (0..4).map(|_| b.join("g", "c", Order::None)).collect();
    assert_eq!(ranges(&b.acquire("g", &members[0], 4)), [(0, 800)]);
    assert!(b.acquire("g", &members[1], 4).is_empty());
    b.commit("g", &members[0], &[commit(1, Some(400), true)]);
    // Two are waiting, one is busy: a third of what came back each.
    let busy = b.park("g", &members[0], 4, 0);
    let first = ranges(&b.leases(busy).unwrap());
    assert_eq!(first, [(400, 800)], "nobody else waits");
    b.commit("g", &members[0], &[commit(2, None, true)]);
    b.stream.append((0, 0), 10);
    let request = v1::AcquireRequest {
        group: "g".into(),
        member: members[2].clone(),
        max_leases: 1,
        max_wait_ms: 0,
        max_bytes: 3 * support::BATCH_BYTES,
    };
    let ticket = b.send(Request::Acquire(request));
    assert_eq!(ranges(&b.leases(ticket).unwrap()), [(400, 430)]);
    let ticket = b.park("g", &members[3], 1, 0);
    let range = ranges(&b.leases(ticket).unwrap())[0];
    assert_eq!(range, (430, 620), "half of 380, one other is busy");
}

#[test]
fn what_comes_back_goes_out_first() {
    let mut b = bench(1, 1);
    for _ in 0..4 {
        b.stream.append((0, 0), 10);
    }
    let m = b.join("g", "c", Order::None);
    let n = b.join("g", "d", Order::None);
    let wish = |member: &str| {
        Request::Acquire(v1::AcquireRequest {
            group: "g".into(),
            member: member.into(),
            max_leases: 1,
            max_wait_ms: 0,
            max_bytes: 1,
        })
    };
    for member in [&m, &m, &n] {
        b.send(wish(member));
    }
    b.commit("g", &n, &[commit(3, Some(30), true)]);
    b.commit("g", &m, &[commit(1, Some(3), false)]);
    b.leave("g", &m);
    let ticket = b.send(wish(&n));
    assert_eq!(ranges(&b.leases(ticket).unwrap()), [(3, 10)]);
    let ticket = b.send(wish(&n));
    assert_eq!(ranges(&b.leases(ticket).unwrap()), [(10, 20)]);
    let ticket = b.send(wish(&n));
    assert_eq!(ranges(&b.leases(ticket).unwrap()), [(30, 40)]);
}

#[test]
fn a_full_set_of_finished_ranges_stops_a_lane_until_its_lowest_range_is_done() {
    let mut b = bench(1, 1);
    let limit = Limits::default().finished_ranges as u64;
    for _ in 0..limit * 3 {
        b.stream.append((0, 0), 1);
    }
    let slow = b.join("g", "slow", Order::None);
    let fast = b.join("g", "fast", Order::None);
    let one = |b: &mut Bench, member: &str| {
        let ticket = b.send(Request::Acquire(v1::AcquireRequest {
            group: "g".into(),
            member: member.into(),
            max_leases: 1,
            max_wait_ms: 0,
            max_bytes: 1,
        }));
        b.leases(ticket).unwrap().first().cloned()
    };
    // Every other record is held by the slow one, so that finished ranges never join.
    let mut held = Vec::new();
    let mut finished = 0;
    while let Some(lease) = one(&mut b, &slow) {
        held.push(lease);
        let Some(lease) = one(&mut b, &fast) else {
            break;
        };
        finished += 1;
        b.commit(
            "g",
            &fast,
            &[commit(lease.lease, Some(lease.end_ordinal), true)],
        );
    }
    assert!(held.len() as u64 + finished <= limit + 1);
    assert!(finished >= limit / 2 - 1, "{finished} finished");
    assert!(one(&mut b, &fast).is_none());
    b.heartbeat("g", &slow, &ids(&held));
    // The lowest comes back and may go out although the set is full.
    b.commit("g", &slow, &[commit(held[0].lease, None, true)]);
    let lowest = one(&mut b, &fast).expect("the lowest range");
    assert_eq!(ranges(std::slice::from_ref(&lowest)), [(0, 1)]);
    assert!(one(&mut b, &fast).is_none());
    b.commit("g", &fast, &[commit(lowest.lease, Some(1), true)]);
    assert!(one(&mut b, &fast).is_some());
}

#[test]
fn what_is_trimmed_counts_as_finished() {
    for order in [Order::None, Order::Lane] {
        let mut b = bench(1, 1);
        b.stream.append((0, 0), 10);
        b.stream.append((0, 0), 10);
        b.stream.trim((0, 0), 10);
        let m = b.join("g", "c", order);
        let leases = b.acquire("g", &m, 1);
        assert_eq!(ranges(&leases)[0].0, 10);
        b.stream.append((0, 0), 10);
        b.stream.trim((0, 0), 20);
        b.commit("g", &m, &[commit(1, Some(20), true)]);
        assert_eq!(ranges(&b.acquire("g", &m, 1))[0].0, 20);
        assert_eq!(b.describe("g").lanes[0].committed, 20);
    }
}

#[test]
fn lag_is_what_is_left_of_what_was_not_trimmed() {
    let mut b = bench(1, 1);
    for _ in 0..4 {
        b.stream.append((0, 0), 10);
    }
    let m = b.join("g", "c", Order::None);
    for lease in [(0, 10), (10, 20)] {
        let ticket = b.send(Request::Acquire(v1::AcquireRequest {
            group: "g".into(),
            member: m.clone(),
            max_leases: 1,
            max_wait_ms: 0,
            max_bytes: 1,
        }));
        assert_eq!(ranges(&b.leases(ticket).unwrap()), [lease]);
    }
    b.commit("g", &m, &[commit(2, Some(20), true)]);
    let lane = b.describe("g").lanes[0].clone();
    assert_eq!((lane.committed, lane.finished_above, lane.lag), (0, 10, 30));
    b.stream.trim((0, 0), 15);
    assert_eq!(
        b.describe("g").lanes[0].lag,
        20,
        "what was finished and then trimmed is not taken off twice"
    );
    b.stream.trim((0, 0), 40);
    assert_eq!(b.describe("g").lanes[0].lag, 0);
}

#[test]
fn gaps_of_ordinals_are_stepped_over() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "c", Order::None);
    b.acquire("g", &m, 1);
    b.stream.jump((0, 0), 1 << 32);
    b.stream.append((0, 0), 10);
    let next = b.acquire("g", &m, 1);
    assert_eq!(
        ranges(&next),
        [(10 + (1 << 32), 20 + (1 << 32))],
        "read from what is stored"
    );
    // The records of the first lease vanish: the range is skipped, not leased for ever.
    b.stream.lanes.get_mut(&(0, 0)).unwrap().batches.remove(0);
    b.commit(
        "g",
        &m,
        &[commit(1, None, true), commit(2, Some(20 + (1 << 32)), true)],
    );
    assert!(b.acquire("g", &m, 1).is_empty());
    assert_eq!(b.describe("g").lanes[0].committed, 20 + (1 << 32));
}

#[test]
fn lanes_of_a_new_generation_wait_for_the_old_one() {
    let mut b = bench(2, 2);
    for lane in [(0, 0), (0, 1), (1, 0)] {
        b.stream.append(lane, 10);
    }
    let m = b.join("g", "c", Order::Lane);
    assert_eq!(b.acquire("g", &m, 9).len(), 4);
    b.stream.grow(3);
    b.stream.append((0, 0), 5);
    b.stream.append((0, 2), 5);
    // Lane (1, 1) was empty; the rest of streamlet 1 is not consumed yet.
    assert!(b.acquire("g", &m, 9).is_empty());
    assert_eq!(b.heartbeat("g", &m, &[1, 2, 3, 4]).give_back, [4]);
    b.commit("g", &m, &[commit(4, None, true), commit(3, Some(10), true)]);
    let leases = b.acquire("g", &m, 9);
    assert_eq!(lanes(&leases), [(1, 0), (1, 1), (1, 2)]);
    b.commit("g", &m, &[commit(1, Some(10), true)]);
    assert!(b.acquire("g", &m, 9).is_empty());
    b.commit("g", &m, &[commit(2, Some(6), true)]);
    let leases = b.acquire("g", &m, 9);
    assert_eq!(
        (lanes(&leases), ranges(&leases)),
        (vec![(0, 1)], vec![(6, 10)])
    );
    b.commit("g", &m, &[commit(leases[0].lease, Some(10), false)]);
    let leases = b.acquire("g", &m, 9);
    assert_eq!(
        lanes(&leases),
        [(0, 0), (0, 1), (0, 2)],
        "a lease at its end is over without a release"
    );
    assert_eq!(ranges(&leases), [(10, 0), (10, 0), (0, 0)]);
}

#[test]
fn lanes_by_producer_know_no_barrier() {
    let mut b = Bench::new(FakeStream::new(1, 1, LaneBy::Producer));
    b.stream.append((0, 0), 10);
    b.stream.grow(3);
    let m = b.join("g", "c", Order::Lane);
    assert_eq!(b.acquire("g", &m, 9).len(), 3);
}

#[test]
fn a_group_does_not_start_at_an_end_that_is_not_known() {
    let mut b = bench(2, 1);
    b.stream.append((0, 0), 10);
    // The second streamlet is not recovered from its copies.
    let mut away = b.stream.lanes.remove(&(1, 0)).unwrap();
    away.head = 7;
    let starting = |start| v1::JoinRequest {
        start: at(start),
        ..join("late", "c", Order::Lane)
    };
    for start in [
        start_at::At::Latest(true),
        start_at::At::TimestampMs(5),
        start_at::At::Ordinal(5),
    ] {
        assert_eq!(b.join_error(starting(start)), ErrorCode::NotEnoughCopies);
    }
    // The earliest record is found whenever the streamlet is back.
    let early = v1::JoinRequest {
        group: "early".into(),
        ..starting(start_at::At::Earliest(true))
    };
    assert!(matches!(b.call(Request::join(early)), Ok(Reply::Join(_))));
    b.stream.lanes.insert((1, 0), away);
    let joined = b.call(Request::join(starting(start_at::At::Latest(true))));
    let Ok(Reply::Join(reply)) = joined else {
        panic!("join failed");
    };
    let leases = b.acquire("late", &reply.member, 9);
    let starts: Vec<_> = leases
        .iter()
        .map(|lease| lease.start.as_ref().map(|start| start.ordinal))
        .collect();
    assert_eq!(starts, [Some(10), Some(7)]);
}

#[test]
fn a_group_starts_where_its_first_member_says() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    b.stream.append((0, 0), 10);
    let cases = [
        (at(start_at::At::Earliest(true)), 5),
        (at(start_at::At::Latest(true)), 20),
        (at(start_at::At::TimestampMs(12)), 12),
        (at(start_at::At::Ordinal(7)), 7),
        (at(start_at::At::Ordinal(1)), 5),
        (at(start_at::At::Ordinal(99)), 20),
        (None, 5),
    ];
    b.stream.trim((0, 0), 5);
    for (index, (start, expected)) in cases.into_iter().enumerate() {
        let group = format!("g{index}");
        let request = v1::JoinRequest {
            start,
            ..join(&group, "c", Order::Lane)
        };
        let Ok(Reply::Join(reply)) = b.call(Request::join(request)) else {
            panic!("join failed");
        };
        let leases = b.acquire(&group, &reply.member, 1);
        assert_eq!(ranges(&leases), [(expected, 0)], "case {index}");
    }
}

#[test]
fn a_group_has_one_stream_order_and_kind() {
    let mut b = bench(1, 1);
    b.join("g", "c", Order::Lane);
    assert_eq!(
        b.join_error(join("g", "c", Order::None)),
        ErrorCode::GroupConflict
    );
    let elsewhere = v1::JoinRequest {
        stream: "t".into(),
        ..join("g", "c", Order::Lane)
    };
    assert_eq!(b.join_error(elsewhere), ErrorCode::UnknownStream);
    for name in ["", "a b", "..", &"x".repeat(250)] {
        assert_eq!(
            b.join_error(join(name, "c", Order::Lane)),
            ErrorCode::InvalidName
        );
    }
    let unknown = v1::JoinRequest {
        order: 9,
        ..join("h", "c", Order::Lane)
    };
    assert_eq!(b.join_error(unknown), ErrorCode::InvalidArgument);
    assert_eq!(
        b.join_error(join("h", &"x".repeat(129), Order::Lane)),
        ErrorCode::InvalidArgument
    );
}

#[test]
fn a_group_is_reset_and_deleted_only_without_members() {
    let mut b = bench(1, 2);
    b.stream.append((0, 0), 10);
    b.stream.append((0, 1), 10);
    let m = b.join("g", "c", Order::None);
    let leases = b.acquire("g", &m, 2);
    b.commit("g", &m, &[commit(leases[0].lease, Some(10), true)]);
    let reset = |lane, ordinal| {
        Request::ResetGroup(v1::ResetGroupRequest {
            group: "g".into(),
            to: at(start_at::At::Ordinal(ordinal)),
            lane,
            ..v1::ResetGroupRequest::default()
        })
    };
    let delete = || Request::DeleteGroup(v1::DeleteGroupRequest { group: "g".into() });
    for request in [reset(None, 3), delete()] {
        let error = b.call(request).unwrap_err();
        assert_eq!(error.code, ErrorCode::GroupNotEmpty);
    }
    b.now += 3_000;
    let Ok(Reply::ResetGroup(reply)) = b.call(reset(Some(0), 3)) else {
        panic!("an expired member does not keep the group from being reset");
    };
    assert_eq!(reply.lanes.len(), 1);
    assert_eq!((reply.lanes[0].committed, reply.lanes[0].lag), (3, 7));
    assert_eq!(
        b.call(reset(Some(2), 3)).unwrap_err().code,
        ErrorCode::UnknownLane
    );
    let m = b.join("g", "c", Order::None);
    let leases = b.acquire("g", &m, 2);
    assert!(
        leases.iter().all(|lease| lease.lease > 2),
        "ids go on after a reset"
    );
    b.leave("g", &m);
    assert!(matches!(b.call(delete()), Ok(Reply::DeleteGroup(_))));
    assert_eq!(
        b.call(delete()).unwrap_err().code,
        ErrorCode::UnknownConsumerGroup
    );
}

#[test]
fn a_group_ends_with_its_stream() {
    let mut b = bench(1, 1);
    let m = b.join("g", "c", Order::None);
    let parked = b.park("g", &m, 1, 30_000);
    b.stream.deleted = true;
    b.tick(1);
    let error = b.replies.remove(&parked).unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownStream);
    assert_eq!(
        b.try_heartbeat("g", &m, &[]).unwrap_err().code,
        ErrorCode::UnknownConsumerGroup
    );
    // The name lives again with another stream.
    b.stream = FakeStream::new(1, 1, LaneBy::Key);
    b.join("g", "c", Order::Lane);
}

#[test]
fn limits_are_refusals() {
    let mut b = bench(1, 3);
    b.coordinator = kera_coordinator::Coordinator::new(Limits {
        groups: 1,
        members: 2,
        leases_per_member: 2,
        commits_per_request: 3,
        ..Limits::default()
    });
    let m = b.join("g", "a", Order::Lane);
    b.join("g", "b", Order::Lane);
    assert_eq!(
        b.join_error(join("g", "c", Order::Lane)),
        ErrorCode::Overloaded
    );
    assert_eq!(
        b.join_error(join("h", "c", Order::Lane)),
        ErrorCode::Overloaded
    );
    assert_eq!(b.acquire("g", &m, 9).len(), 2);
    let commits: Vec<_> = (0..4).map(|lease| commit(lease, None, true)).collect();
    let error = b.try_commit("g", &m, &commits).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
}

#[test]
fn a_group_that_began_at_the_end_of_an_empty_stream_makes_no_room() {
    for (start, makes_room) in [
        (start_at::At::Earliest(true), true),
        (start_at::At::Latest(true), false),
        (start_at::At::TimestampMs(5), false),
    ] {
        let mut b = bench(1, 2);
        b.coordinator = kera_coordinator::Coordinator::new(Limits {
            groups: 1,
            ..Limits::default()
        });
        let request = v1::JoinRequest {
            start: at(start),
            ..join("g", "a", Order::Lane)
        };
        let Ok(Reply::Join(member)) = b.call(Request::join(request)) else {
            panic!("join failed");
        };
        let leave = v1::LeaveRequest {
            group: "g".into(),
            member: member.member,
        };
        b.call(Request::Leave(leave)).unwrap();
        // The next member reads the records that come now, unless the group is forgotten.
        b.stream.append((0, 0), 10);
        let joined = b.call(Request::join(join("h", "b", Order::Lane)));
        assert_eq!(joined.is_ok(), makes_room, "{start:?}");
    }
}

#[test]
fn a_snapshot_cut_short_is_ignored() {
    let mut b = bench(1, 2);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "c", Order::Lane);
    b.acquire("g", &m, 1);
    let snapshot = b.coordinator.snapshot();
    for kept in 0..=snapshot.len() {
        let mut log = b.events.clone();
        log.extend(snapshot[..kept].iter().cloned());
        assert!(b.replayed(&log).same_durable_state(&b.coordinator));
        // The broker went on after the crash, and its next snapshot is whole.
        let mut next = b.replayed(&log);
        let step = next.handle(
            b.now,
            1,
            Request::join(join("g", "late", Order::Lane)),
            &b.stream,
        );
        log.extend(step.events);
        assert!(b.replayed(&log).same_durable_state(&next));
        log.extend(next.snapshot());
        let mut replay = Replay::new();
        log.iter().for_each(|event| replay.apply(event));
        let (again, report) = replay.finish(Limits::default(), b.now);
        assert!(again.same_durable_state(&next));
        assert_eq!(report.snapshots, 1 + u64::from(kept == snapshot.len()));
    }
}

#[test]
fn a_snapshot_with_a_record_that_is_no_event_counts() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "c", Order::Lane);
    b.acquire("g", &m, 1);
    let snapshot = b.coordinator.snapshot();
    for at in 0..=snapshot.len() {
        // Somebody else's, between two of its events.
        let mut replay = Replay::new();
        snapshot[..at].iter().for_each(|event| replay.apply(event));
        replay.pass_over();
        snapshot[at..].iter().for_each(|event| replay.apply(event));
        let (again, report) = replay.finish(Limits::default(), b.now);
        assert!(again.same_durable_state(&b.coordinator), "{at}");
        assert_eq!((report.snapshots, report.passed_over), (1, 1));
    }
}
