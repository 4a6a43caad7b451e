//! Leases that end when a test says so.

mod support;

use std::time::Duration;

use kera_metadata::*;
use support::{is_of_former_controller, live};

const TTL: Duration = Duration::from_secs(5);

#[test]
fn a_lease_that_ends_takes_leadership_along_and_comes_back_without_it() {
    let cluster = MemoryCluster::new();
    let (one, two) = (
        cluster.join(live(1), TTL).unwrap(),
        cluster.join(live(2), TTL).unwrap(),
    );
    let terms = (one.campaign(), two.campaign());
    let first = terms.0.borrow().expect("it stood first");
    cluster.expire(1);
    assert!(!one.is_valid() && !*one.valid().borrow());
    assert_eq!((one.fence(), *terms.0.borrow()), (None, None));
    assert_eq!(cluster.living().borrow().keys().collect::<Vec<_>>(), [&2]);
    assert!(terms.1.borrow().expect("elected") > first);
    cluster.revive(1);
    assert!(one.is_valid());
    assert_eq!(*cluster.controller().borrow(), Some(2));
    assert_eq!(cluster.living().borrow().len(), 2);
    two.leave();
    assert!(terms.0.borrow().is_some());
}

#[test]
fn the_office_of_one_that_is_gone_is_taken_before_its_lease_ends() {
    let cluster = MemoryCluster::new();
    let (one, two) = (
        cluster.join(live(1), TTL).unwrap(),
        cluster.join(live(2), TTL).unwrap(),
    );
    let first = one.campaign();
    let fence = one.fence().unwrap();
    assert!(!two.succeed(1), "it does not stand for election");
    let second = two.campaign();
    assert!(!two.succeed(3), "another one is elected");
    assert!(!one.succeed(1), "it is elected itself");
    assert!(two.succeed(1));
    assert_eq!(*cluster.controller().borrow(), Some(2));
    assert!(one.is_valid() && first.borrow().is_none() && second.borrow().is_some());
    let late = cluster.commit(Transaction::new(vec![fence], vec![]));
    assert!(is_of_former_controller(&late));
    assert!(!two.succeed(1), "it is no controller any more");
    // It stands for election still.
    two.leave();
    assert!(first.borrow().is_some());
}

#[test]
fn a_number_is_free_once_its_lease_has_ended() {
    let cluster = MemoryCluster::new();
    let old = cluster.join(live(1), TTL).unwrap();
    let other = LiveBroker {
        incarnation: live(9).incarnation,
        ..live(1)
    };
    assert!(cluster.join(other.clone(), TTL).is_err());
    cluster.expire(1);
    let new = cluster.join(other, TTL).unwrap();
    drop(old);
    assert!(new.is_valid());
    assert_eq!(cluster.living().borrow().len(), 1);
}

#[test]
fn a_watcher_that_falls_behind_sees_its_watch_end() {
    let cluster = MemoryCluster::new();
    let mut watch = cluster.watch(0);
    for _ in 0..5000 {
        cluster.allocate_producer_ids(1).unwrap();
    }
    let mut told = 0;
    while let Some(changes) = watch.blocking_recv() {
        told += changes.unwrap().changes.len();
    }
    assert!((1..5000).contains(&told), "{told}");
    // Anew, it is told what is kept.
    let mut watch = cluster.watch(4990);
    assert_eq!(watch.blocking_recv().unwrap().unwrap().revision, 4991);
}
