//! Groups that keep the order of keys.

use kera_protocol::slices::SliceSet;

use super::sent::{end, of, restart, send};
use super::*;

fn slices(lease: &v1::Lease) -> SliceSet {
    SliceSet::from_bits(lease.slices)
}

fn sizes(leases: &[v1::Lease]) -> Vec<usize> {
    leases.iter().map(|lease| slices(lease).len()).collect()
}

/// Gives back what it is told to, and takes what it gets, until nothing moves any more.
fn settle(b: &mut Bench, members: &[String]) -> Vec<Vec<v1::Lease>> {
    let mut held = vec![Vec::<v1::Lease>::new(); members.len()];
    for _ in 0..20 {
        for (member, held) in members.iter().zip(&mut held) {
            let told = b.heartbeat("g", member, &ids(held));
            held.retain(|lease| !told.lost.contains(&lease.lease));
            for lease in told.give_back {
                b.commit("g", member, &[commit(lease, None, true)]);
                held.retain(|known| known.lease != lease);
            }
        }
        for (member, held) in members.iter().zip(&mut held) {
            // What was granted before and is not known here counts as forgotten in time.
            held.extend(b.acquire("g", member, 100));
        }
        b.tick(1_000);
    }
    held
}

#[test]
fn more_members_than_lanes_share_evenly() {
    let mut b = bench(1, 2);
    let members: Vec<String> = (0..8).map(|_| b.join("g", "c", Order::Key)).collect();
    let first = b.acquire("g", &members[0], 100);
    assert_eq!(
        (lanes(&first), sizes(&first)),
        (vec![(0, 0), (0, 1)], vec![64, 64])
    );
    assert!(
        first
            .iter()
            .all(|lease| lease.end_ordinal == 0 && lease.lane_generation == Some(0))
    );
    for held in settle(&mut b, &members) {
        assert_eq!(
            sizes(&held),
            [16],
            "one lane is read, for a fourth of its keys"
        );
    }
    b.leave("g", &members[3]);
    let mut rest = members;
    rest.remove(3);
    let shares = settle(&mut b, &rest);
    assert_eq!(
        shares.iter().flat_map(|held| sizes(held)).sum::<usize>(),
        128
    );
    for held in shares {
        let share: usize = sizes(&held).iter().sum();
        assert!((16..=21).contains(&share), "{share} of {:?}", sizes(&held));
    }
    let described = b.describe("g").lanes;
    let leases: usize = described.iter().map(|lane| lane.leases.len()).sum();
    assert!(leases <= 9, "a lane between two shares: {described:?}");
}

#[test]
fn a_slice_begins_where_its_last_holder_committed_and_not_before() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 100);
    let first = b.join("g", "a", Order::Key);
    let all = b.acquire("g", &first, 100);
    let second = b.join("g", "b", Order::Key);
    let parked = b.park("g", &second, 100, 10_000);
    let told = b.heartbeat("g", &first, &ids(&all));
    assert_eq!(told.give_back, ids(&all));
    b.commit("g", &first, &[commit(1, Some(40), false)]);
    assert_eq!(b.leases(parked), None, "it is held");
    b.commit("g", &first, &[commit(1, Some(50), true)]);
    let granted = b.leases(parked).expect("half of it");
    assert_eq!(
        (sizes(&granted), ranges(&granted)),
        (vec![32], vec![(50, 0)])
    );
    assert!(granted[0].slice_starts.is_empty());

    // Its holder dies: what is not committed comes again, and the other has come further meanwhile.
    let rest = b.acquire("g", &first, 100);
    assert!(
        slices(&rest[0])
            .intersection(slices(&granted[0]))
            .is_empty()
    );
    b.commit("g", &first, &[commit(rest[0].lease, Some(90), false)]);
    b.commit("g", &second, &[commit(granted[0].lease, Some(60), false)]);
    b.now += 2_900;
    b.heartbeat("g", &first, &ids(&rest));
    b.tick(200);
    let again = b.acquire("g", &first, 100);
    assert_eq!(
        (slices(&again[0]), ranges(&again)),
        (slices(&granted[0]), vec![(60, 0)])
    );
    assert_eq!(
        b.commit("g", &first, &[commit(granted[0].lease, Some(70), false)]),
        [granted[0].lease]
    );
    // Both are near: they become one lease, in which each slice begins at its own place.
    let held = [rest[0].lease, again[0].lease];
    assert_eq!(b.heartbeat("g", &first, &held).give_back, held);
    b.commit(
        "g",
        &first,
        &[commit(held[0], None, true), commit(held[1], None, true)],
    );
    let one = b.acquire("g", &first, 100);
    assert_eq!((sizes(&one), ranges(&one)), (vec![64], vec![(60, 0)]));
    let above = |set: SliceSet| set.iter().map(|slice| one[0].slice_starts[slice as usize]);
    assert!(above(slices(&rest[0])).all(|above| above == 30));
    assert!(above(slices(&again[0])).all(|above| above == 0));
    // The lag is that of the last slice.
    let lane = &b.describe("g").lanes[0];
    assert_eq!(
        (lane.committed, lane.lag, lane.slice_offsets.len()),
        (60, 40, 64)
    );
}

#[test]
fn a_slice_of_more_lanes_waits_for_itself_in_the_old_ones_and_for_no_other() {
    let mut b = bench(1, 2);
    b.stream.append((0, 0), 10);
    b.stream.append((0, 1), 10);
    let m = b.join("g", "a", Order::Key);
    let other = b.join("g", "b", Order::Key);
    let held = settle(&mut b, &[m.clone(), other.clone()]);
    let shares = [&held[0][0], &held[1][0]];
    assert_ne!(shares[0].lane, shares[1].lane, "a lane for each");
    b.stream.grow(3);
    b.stream.append((0, 2), 5);
    b.commit("g", &m, &[commit(shares[0].lease, Some(10), true)]);
    assert!(
        b.acquire("g", &m, 100).is_empty(),
        "the other lane may have keys of it"
    );
    // Half of the other lane is consumed, by slices.
    b.commit("g", &other, &[commit(shares[1].lease, None, true)]);
    let halves = b.acquire("g", &other, 100);
    assert_eq!((sizes(&halves), ranges(&halves)), (vec![32], vec![(0, 10)]));
    assert!(
        b.commit("g", &other, &[commit(halves[0].lease, Some(10), false)])
            .is_empty()
    );
    let rest = b.acquire("g", &other, 100);
    let next = b.acquire("g", &m, 100);
    let all = rest.iter().chain(&next);
    let mut begun: Vec<_> = all.clone().map(|lease| lease.lane_generation).collect();
    begun.sort_unstable();
    begun.dedup();
    assert_eq!(begun, [Some(0), Some(1)]);
    for lease in all {
        let of_other = slices(lease).intersection(slices(&halves[0]));
        match lease.lane_generation {
            Some(0) => assert!(of_other.is_empty()),
            _ => assert_eq!(of_other, slices(lease)),
        }
    }
}

#[test]
fn a_slice_waits_for_itself_in_other_streamlets_where_keys_move_between_them() {
    for (partitions, do_move) in [(4, false), (3, true)] {
        let mut b = bench(2, 1);
        b.stream.append((0, 0), 10);
        b.stream.append((1, 0), 10);
        let m = b.join("g", "a", Order::Key);
        let held = b.acquire("g", &m, 100);
        assert_eq!(lanes(&held), [(0, 0), (1, 0)]);
        b.stream.grow_to(partitions);
        b.commit("g", &m, &[commit(held[0].lease, Some(10), true)]);
        let next = b.acquire("g", &m, 100);
        let expected: &[_] = match do_move {
            true => &[],
            false => &[(0, 0), (0, 1)],
        };
        assert_eq!(lanes(&next), expected, "{partitions} lanes");
        b.commit("g", &m, &[commit(held[1].lease, Some(10), true)]);
        let rest = b.acquire("g", &m, 100);
        assert_eq!(next.len() + rest.len(), partitions as usize);
        let mut newest = next.iter().chain(&rest);
        assert!(newest.all(|lease| lease.lane_generation == Some(1)));
    }
}

#[test]
fn a_lease_goes_back_once_its_lane_generation_is_read() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "a", Order::Key);
    let held = b.acquire("g", &m, 100);
    b.stream.grow(2);
    assert!(b.heartbeat("g", &m, &ids(&held)).give_back.is_empty());
    b.commit("g", &m, &[commit(held[0].lease, Some(10), false)]);
    assert_eq!(b.heartbeat("g", &m, &ids(&held)).give_back, ids(&held));
}

#[test]
fn slices_far_behind_are_leased_apart_and_what_is_gone_is_found_gone() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 300_000);
    let first = b.join("g", "a", Order::Key);
    let second = b.join("g", "b", Order::Key);
    let held = settle(&mut b, &[first.clone(), second.clone()]);
    b.commit(
        "g",
        &first,
        &[commit(held[0][0].lease, Some(250_000), true)],
    );
    b.commit("g", &second, &[commit(held[1][0].lease, Some(1_000), true)]);
    b.leave("g", &second);
    let apart = b.acquire("g", &first, 100);
    assert_eq!(
        (sizes(&apart), ranges(&apart)),
        (vec![32, 32], vec![(1_000, 0), (250_000, 0)])
    );
    assert!(b.heartbeat("g", &first, &ids(&apart)).give_back.is_empty());
    b.commit("g", &first, &[commit(apart[0].lease, Some(210_000), false)]);
    let told = b.heartbeat("g", &first, &ids(&apart));
    assert_eq!(told.give_back, ids(&apart), "they have come near");
    for lease in ids(&apart) {
        b.commit("g", &first, &[commit(lease, None, true)]);
    }
    b.stream.trim((0, 0), 260_000);
    // Its reader is told by the broker that they are gone, and says so.
    assert_eq!(ranges(&b.acquire("g", &first, 100)), [(210_000, 0)]);
    // A group that never was there has lost nothing.
    let late = b.join("late", "c", Order::Key);
    assert_eq!(ranges(&b.acquire("late", &late, 100)), [(260_000, 0)]);
}

#[test]
fn a_transaction_holds_the_slices_that_it_has_positions_of() {
    for (is_committed, from_snapshot) in
        [(true, true), (true, false), (false, true), (false, false)]
    {
        let mut b = bench(1, 1);
        b.stream.append((0, 0), 100);
        let first = b.join("g", "a", Order::Key);
        let second = b.join("g", "b", Order::Key);
        let held = settle(&mut b, &[first.clone(), second.clone()]);
        let (mine, other) = (held[0][0].clone(), held[1][0].clone());
        let to = commit(mine.lease, Some(40), false);
        assert_eq!(send(&mut b, &first, of(7, 1), &[to]), Ok(()));
        b.leave("g", &first);
        b.commit("g", &second, &[commit(other.lease, Some(50), false)]);
        restart(&mut b, from_snapshot);
        // The rest is the other's; what is held is nobody's until it is known where it begins.
        assert!(b.acquire("g", &second, 100).is_empty());
        assert_eq!(b.describe("g").lanes[0].held[0].next_ordinal, 40);
        end(&mut b, of(7, 1), is_committed);
        let granted = b.acquire("g", &second, 100);
        let start = if is_committed { 40 } else { 0 };
        assert_eq!(
            (slices(&granted[0]), ranges(&granted)),
            (slices(&mine), vec![(start, 0)])
        );
        restart(&mut b, from_snapshot);
    }
}

#[test]
fn other_orders_are_refused_and_positions_from_outside_are_of_all_slices() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "a", Order::Key);
    for order in [Order::Lane, Order::None] {
        let refused = b.call(Request::join(join("g", "b", order))).unwrap_err();
        assert_eq!(refused.code, ErrorCode::GroupConflict);
        assert!(refused.message.contains("order=key"), "{}", refused.message);
    }
    let held = b.acquire("g", &m, 1);
    b.commit("g", &m, &[commit(held[0].lease, Some(7), false)]);
    b.leave("g", &m);
    let positions = Request::CommitPositions {
        request: v1::CommitPositionsRequest {
            group: "g".into(),
            stream: "s".into(),
            positions: vec![v1::LanePosition {
                streamlet: 0,
                lane: 0,
                ordinal: 3,
            }],
            ..v1::CommitPositionsRequest::default()
        },
        client_host: String::new(),
    };
    assert!(b.call(positions).is_ok());
    let reset = |to| {
        Request::ResetGroup(v1::ResetGroupRequest {
            group: "g".into(),
            to: at(to),
            ..v1::ResetGroupRequest::default()
        })
    };
    assert_eq!(b.describe("g").lanes[0].committed, 3);
    assert!(b.call(reset(start_at::At::Ordinal(5))).is_ok());
    assert_eq!(b.describe("g").lanes[0].lag, 5);
    restart(&mut b, true);
    let m = b.join("g", "a", Order::Key);
    assert_eq!(ranges(&b.acquire("g", &m, 100)), [(5, 0)]);
}
