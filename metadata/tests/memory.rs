//! What only the store for tests can do.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kera_metadata::*;
use support::*;

#[test]
fn nothing_happens_before_it_is_run() {
    let store = MemoryStore::manual();
    let told = Arc::new(AtomicUsize::new(0));
    for n in 0..3 {
        let told = told.clone();
        let (transaction, _) = creation(&stream(&format!("s{n}")), 1, 0).unwrap();
        store.submit(
            transaction,
            Box::new(move |outcome| {
                outcome.unwrap();
                told.fetch_add(1, Ordering::Relaxed);
            }),
        );
    }
    assert_eq!((store.waiting(), told.load(Ordering::Relaxed)), (3, 0));
    assert!(store.load().unwrap().streams.is_empty());
    assert!(store.run_one());
    assert_eq!(told.load(Ordering::Relaxed), 1);
    store.run_pending();
    assert_eq!(told.load(Ordering::Relaxed), 3);
    assert!(!store.run_one());
    assert_eq!(store.evaluated(), 3);
}

#[test]
fn planted_faults_strike_the_transaction_they_name() {
    for store in [MemoryStore::new(), MemoryStore::manual()] {
        store.fail(2, Fault::Storage);
        store.fail(3, Fault::Full);
        store.fail(4, Fault::UnknownLost);
        store.fail(5, Fault::UnknownApplied);
        let mut exists = Vec::new();
        for n in 1..=6 {
            let record = stream(&format!("s{n}"));
            let id = record.id;
            let outcome = store.create_stream(record, 1);
            match n {
                1 | 6 => assert!(outcome.is_ok()),
                2 => assert!(matches!(outcome, Err(MetadataError::Storage { .. }))),
                3 => assert!(matches!(outcome, Err(MetadataError::Full { .. }))),
                _ => assert!(!outcome.unwrap_err().is_definite()),
            }
            exists.push(store.stream(id).unwrap().is_some());
        }
        assert_eq!(exists, [true, false, false, false, true, true]);
    }
}

#[test]
fn a_copy_after_a_kill_has_what_was_committed_and_nothing_that_waited() {
    let store = MemoryStore::manual();
    store.create_stream(stream("a"), 1).unwrap();
    let (waiting, _) = creation(&stream("b"), 1, 0).unwrap();
    let future = store.commit_async(waiting);
    let copy = store.copy_after_kill();
    assert_eq!(copy.load().unwrap(), store.load().unwrap());
    store.run_pending();
    future.wait().unwrap();
    assert_eq!(copy.load().unwrap().streams.len(), 1);
    copy.create_stream(stream("c"), 1).unwrap();
}

#[test]
fn what_finds_no_room_is_refused_later_and_not_by_the_caller() {
    let store = MemoryStore::manual_with_limits(10, 10);
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    for n in 0..15 {
        let outcomes = outcomes.clone();
        store.submit(
            Transaction::default(),
            Box::new(move |outcome| outcomes.lock().unwrap().push((n, outcome.is_ok()))),
        );
    }
    assert!(outcomes.lock().unwrap().is_empty());
    assert_eq!(store.waiting(), 10);
    store.run_pending();
    let mut outcomes = outcomes.lock().unwrap().clone();
    outcomes.sort_unstable();
    let expected: Vec<_> = (0..15).map(|n| (n, n < 10)).collect();
    assert_eq!(outcomes, expected);
    store.commit(Transaction::default()).unwrap();
}

#[test]
fn a_transaction_of_too_many_operations_is_refused_by_name() {
    let store = MemoryStore::manual_with_limits(3, 3);
    let error = store.create_stream(stream("a"), 1).unwrap_err();
    assert!(error.to_string().contains("6 operations"), "{error}");
}

#[test]
fn epochs_rise_in_small_transactions_where_the_store_allows_no_greater() {
    let store = MemoryStore::manual_with_limits(1000, 7);
    for n in 0..5 {
        store.create_stream(stream(&format!("s{n}")), 1).unwrap();
    }
    let before = store.evaluated();
    let bumped = store.bump_epochs(1).unwrap();
    assert_eq!(bumped.len(), 20);
    assert_eq!(store.evaluated() - before, 3);
    assert_eq!(store.load().unwrap().streamlets, bumped);
}

#[test]
fn epochs_stop_rising_at_a_failure() {
    let store = MemoryStore::new();
    store.create_stream(stream("a"), 1).unwrap();
    store.fail(1, Fault::Full);
    assert!(matches!(
        store.bump_epochs(1),
        Err(MetadataError::Full { .. })
    ));
    assert_eq!(store.bump_epochs(1).unwrap().len(), 4);
    assert_eq!(store.bump_epochs(2).unwrap(), vec![]);
}
