//! Closed groups of which no replica is left.

use super::*;

/// All disks that had it are lost: no broker that is recorded as a holder will ever answer for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_group_that_nobody_has_is_given_up_once_the_operator_accepts_that() {
    let mut trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let (third, key) = (to % 3 + 1, served.key());
    drop(served);
    trio.end(to).await;
    let group = trio.closed_group(stream);
    trio.held_at(&group, 9);
    trio.assign(stream, 0, third);

    let clustered = trio.shared(third).clustered.as_ref();
    let waiting = clustered.expect("it has others").replicated.waiting();
    until(|| !waiting.describe(key).unclean.is_empty()).await;
    let told = waiting.describe(key);
    assert!(told.reason.contains("cannot be fetched"), "{told:?}");
    let shown = v1::UncleanGroup {
        group: group.group.0,
        lane: 0,
        first_ordinal: 0,
        brokers: vec![9],
    };
    assert_eq!(told.unclean, [shown]);
    assert!(!trio.streamlet(third, stream, 0).is_recovered());

    let places = [(LaneId(0), group.group)];
    let named = [(key, places.into())].into();
    let given_up = waiting.accept(&named).await;
    let ordinals: Vec<_> = given_up
        .iter()
        .map(|loss| (loss.from_ordinal, loss.to_ordinal))
        .collect();
    assert_eq!(ordinals, [(0, 10)]);
    let served = trio.served(third, stream, 0).await;
    // Nothing is remembered of the producer, and no ordinal is given twice.
    let appended = append(&served, trio.shared(third), 0).expect("it takes appends");
    assert_eq!(appended.base_ordinal, 10);
    let record = trio.group(stream, group.group);
    let record = record.expect("it tells where its lane goes on");
    assert!(record.is_given_up() && !record.holds_records());
    let copies: Vec<_> = record.copies.iter().map(|copy| copy.broker.0).collect();
    assert_eq!((record.end_ordinal, &copies[..]), (10, &[9][..]));
    // Nobody is asked again, and readers have what follows.
    let handed = hand_over(trio.shared(third), stream, StreamletId(0), old).await;
    handed.expect("it is handed over");
    let after = trio.served(old, stream, 0).await;
    assert_eq!(after.head(LaneId(0)).map(|head| head.ordinal()), Some(11));
    assert_eq!(after.skip_gap(LaneId(0), 0), 10);
    assert_eq!(values(&after).await, expected(0..1));
    // It goes with a trim, as the groups do that are left.
    after.trim(LaneId(0), 9).expect("it is recorded");
    assert!(trio.group(stream, group.group).is_some());
    after.trim(LaneId(0), 10).expect("it is recorded");
    assert_eq!(trio.group(stream, group.group), None);
    assert_eq!(after.skip_gap(LaneId(0), 0), 10);
}

/// A broker that lives and cannot tell yet may have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_group_is_not_given_up_while_a_living_broker_has_not_told_whether_it_has_it() {
    let mut trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let (third, key) = (to % 3 + 1, served.key());
    drop(served);
    trio.end(to).await;
    trio.end(old).await;
    let starting = trio.starting[old as usize - 1].clone();
    starting.send_replace(true);
    let begun = tokio::spawn(trio.beginning(old));
    let clustered = trio.shared(third).clustered.clone();
    let clustered = clustered.expect("it has others");
    until(|| {
        let peers = clustered.peers.peers();
        peers.iter().any(|peer| peer.id == old)
    })
    .await;
    trio.held_at(&trio.closed_group(stream), old);
    trio.assign(stream, 0, third);

    let waiting = clustered.replicated.waiting();
    // Before, it may be one that does not live: its lease of before may end only now.
    until(|| waiting.describe(key).reason.contains("it is starting")).await;
    let told = waiting.describe(key);
    assert!(told.unclean.is_empty(), "{told:?}");
    starting.send_replace(false);
    let started = begun.await.expect("no panic").expect("it starts");
    trio.brokers[old as usize - 1] = Some(started);
    let served = trio.served(third, stream, 0).await;
    assert_eq!(values(&served).await, expected(0..10));
}
