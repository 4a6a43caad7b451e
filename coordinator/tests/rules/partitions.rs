//! Streams split by key that grow to numbers of partitions which streamlets hold in unequal parts.

use kera_protocol::v1::{self, Order};

use crate::bench;
use crate::support::{Bench, commit, lanes};

#[test]
fn lanes_wait_for_all_streamlets_where_keys_move_between_them() {
    let mut b = bench(4, 1);
    (0..4).for_each(|streamlet| b.stream.append((streamlet, 0), 10));
    let m = b.join("g", "c", Order::Lane);
    let old = b.acquire("g", &m, 9);
    assert_eq!(old.len(), 4);
    b.stream.grow_to(6);
    b.stream.append((0, 1), 5);
    let commit_all = |b: &mut Bench, leases: &[v1::Lease], to: u64| {
        for lease in leases {
            assert!(b.acquire("g", &m, 9).is_empty(), "before {lease:?} is over");
            b.commit("g", &m, &[commit(lease.lease, Some(to), true)]);
        }
    };
    // Partition 4 took keys of partitions 0 to 3: none of them may be behind.
    commit_all(&mut b, &old, 10);
    let six = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0)];
    let leases = b.acquire("g", &m, 9);
    assert_eq!(lanes(&leases), six);
    let generation = |lease: &v1::Lease| lease.lane_generation;
    assert!(leases.iter().all(|lease| generation(lease) == Some(1)));
    // To 8, and on to 12: from 6 keys move between streamlets, from 8 they do not.
    b.stream.grow_to(8);
    b.stream.append((3, 1), 7);
    b.stream.grow_to(12);
    // Of what was added since, five records of partition 4 are not consumed.
    let (fourth, others): (Vec<_>, Vec<_>) = leases
        .into_iter()
        .partition(|lease| (lease.streamlet, lease.lane) == (0, 1));
    for lease in others {
        b.commit("g", &m, &[commit(lease.lease, None, true)]);
        assert!(b.acquire("g", &m, 9).is_empty());
    }
    b.commit("g", &m, &[commit(fourth[0].lease, Some(5), true)]);
    let leases = b.acquire("g", &m, 99);
    let all_of = |streamlet| (0..3).map(move |lane| (streamlet, lane));
    let mut expected: Vec<_> = (0..3).flat_map(all_of).collect();
    expected.push((3, 1));
    assert_eq!(
        lanes(&leases),
        expected,
        "what is left of the generation of 8, beside that of 12"
    );
    let described = b.describe("g").lanes;
    assert_eq!(described.len(), 12);
}

#[test]
fn a_group_of_an_uneven_stream_knows_just_its_lanes() {
    let mut b = bench(4, 1);
    b.stream.grow_to(6);
    for order in [Order::Lane, Order::None] {
        let name = format!("{order:?}");
        let m = b.join(&name, "c", order);
        (0..6).for_each(|p| b.stream.append((p % 4, p / 4), 10));
        let mut found = lanes(&b.acquire(&name, &m, 99));
        found.sort_unstable();
        assert_eq!(found, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0)]);
        assert_eq!(b.describe(&name).lanes.len(), 6);
    }
}
