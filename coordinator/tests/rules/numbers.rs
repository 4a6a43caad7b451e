//! Numbers of members and leases.

use kera_protocol::ids::Epoch;

use super::*;

/// As of a host whose power went before its last events were on its disk, or whose streamlet was put back to an older state.
#[test]
fn numbers_of_events_that_are_lost_are_not_given_out_again() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let gone = b.join("g", "c", Order::Lane);
    b.leave("g", &gone);
    let kept = b.events.clone();
    let before = b.join("g", "c", Order::Lane);
    let lost = ids(&b.acquire("g", &before, 1));
    let mut next = b.replayed(&kept);
    next.begin_epoch(Epoch(7));
    b.coordinator = next;
    b.events = kept;
    let after = b.join("g", "c", Order::Lane);
    assert_ne!(after, before);
    let held = ids(&b.acquire("g", &after, 1));
    assert!(held[0] >> 32 == 7 && held != lost, "{held:?} and {lost:?}");
    // Who heard of nothing moves no lane of another member.
    assert!(
        b.try_commit("g", &before, &[commit(lost[0], Some(10), false)])
            .is_err()
    );
    assert!(b.heartbeat("g", &after, &held).lost.is_empty());
    // A host that reads what this one wrote goes on with its own.
    let mut third = b.replayed(&b.events);
    assert!(third.same_durable_state(&b.coordinator));
    third.begin_epoch(Epoch(8));
    b.coordinator = third;
    b.leave("g", &after);
    let last = b.join("g", "c", Order::Lane);
    assert_eq!(ids(&b.acquire("g", &last, 1))[0] >> 32, 8);
}
