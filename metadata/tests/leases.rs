//! A broker's place in etcd, of which it does not hear what became.
#![cfg(feature = "etcd")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_metadata::*;
use support::proxy::{Proxy, Way};
use support::*;

/// Short, so that what cannot be reached is soon known to be so.
const HASTY: EtcdOptions = EtcdOptions {
    timeout: Duration::from_secs(3),
    server_operations: 128,
    under_way: 16,
    queue_operations: 1 << 18,
};
const TTL: Duration = Duration::from_secs(5);

fn open(address: &str) -> EtcdStore {
    EtcdStore::open(address, HASTY).unwrap()
}

#[test]
fn a_place_that_was_taken_without_an_answer_is_the_brokers_own() {
    let Some(etcd) = cluster() else { return };
    let proxy = Proxy::to(&etcd.endpoint());
    let store = open(&format!("etcd://{}", proxy.address()));
    let mine = LiveBroker {
        host: "host-of-one".into(),
        ..live(1)
    };
    // Longer than all that follows: what is left behind does not end by itself.
    let membership = store.join(mine.clone(), Duration::from_secs(600)).unwrap();
    let mut valid = membership.valid();
    until(&mut store.living(), |living| living.contains_key(&1));
    // The place is taken under a new lease, and nobody tells; nor is that lease given back.
    proxy.cut_after("host-of-one");
    etcd.delete("/kera/m/broker/0000000001");
    until(&mut valid, |valid| !valid);
    while etcd.count("/kera/m/broker/") == 0 {
        std::thread::yield_now();
    }
    // Waits for its turn, until that attempt has ended.
    membership.update(mine).unwrap();
    assert!(!membership.is_valid());
    proxy.mend();
    until(&mut valid, |valid| *valid);
    assert_eq!(etcd.count("/kera/m/broker/"), 1);
}

#[test]
fn what_a_broker_could_not_tell_is_told_with_its_next_lease() {
    let Some(etcd) = cluster() else { return };
    let proxy = Proxy::to(&etcd.endpoint());
    let store = open(&format!("etcd://{}", proxy.address()));
    let membership = store.join(live(1), TTL).unwrap();
    let mut valid = membership.valid();
    proxy.set(Way::Swallowed, Way::Swallowed);
    let told = LiveBroker {
        kafka_address: Some("10.0.0.1:9092".into()),
        ..live(1)
    };
    let untold = membership.update(told.clone()).unwrap_err();
    assert!(
        matches!(untold, MetadataError::Unavailable { .. }),
        "{untold}"
    );
    until(&mut valid, |valid| !valid);
    // It knows before etcd does: its clock has a margin.
    while etcd.count("/kera/m/broker/") > 0 {
        std::thread::yield_now();
    }
    proxy.mend();
    until(&mut valid, |valid| *valid);
    let other = opened(&etcd);
    let found = until(&mut other.living(), |living| living.contains_key(&1));
    assert_eq!(found[&1], told);
}

#[test]
fn a_lease_that_may_not_be_kept_is_given_back_and_taken_anew_once_it_may() {
    let Some(etcd) = cluster() else { return };
    let store = opened(&etcd);
    // Longer than all that follows: it does not end by itself.
    let membership = store.join(live(1), Duration::from_secs(600)).unwrap();
    let mut valid = membership.valid();
    let other = opened(&etcd);
    let mut living = other.living();
    until(&mut living, |living| living.contains_key(&1));
    let may = Arc::new(AtomicBool::new(true));
    let asked = may.clone();
    membership.hold_while(move || match asked.load(Ordering::SeqCst) {
        true => Ok(()),
        false => Err("planted".into()),
    });
    for _ in 0..2 {
        may.store(false, Ordering::SeqCst);
        until(&mut valid, |valid| !valid);
        assert!(!membership.is_valid());
        until(&mut living, |living| !living.contains_key(&1));
        // What it tells meanwhile is for the next lease.
        membership.update(live(1)).unwrap();
        assert_eq!(etcd.count("/kera/m/broker/"), 0);
        may.store(true, Ordering::SeqCst);
        until(&mut valid, |valid| *valid);
        until(&mut living, |living| living.contains_key(&1));
    }
}
