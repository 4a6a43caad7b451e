//! Connections that wait, and are woken.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use kera_metadata::quota::{Limit, QuotaEntity, QuotaKind, Whom};
use kera_metadata::{Quota, QuotasRecord};

use super::*;
use crate::config::BrokerConfig;
use crate::turns::Capacity;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Objectives of these users, of a request a second each.
fn record(users: &[&str], revision: u64) -> QuotasRecord {
    let limit = |kind| (kind, Limit::new(1.0).unwrap());
    let quotas = users.iter().map(|user| Quota {
        entity: QuotaEntity {
            user: Some(Whom::Name((*user).to_owned())),
            ..QuotaEntity::default()
        },
        limits: QuotaKind::OBJECTIVE.map(limit).into(),
    });
    let quotas = quotas.collect();
    QuotasRecord { quotas, revision }
}

/// A broker that can do a thousand requests in a second.
fn turns() -> Arc<Turns> {
    let mut config = BrokerConfig::default().objectives;
    config.requests_per_second = 1000;
    config.load = 100;
    Arc::new(Turns::new(Capacity::of(&config)))
}

fn seat(turns: &Arc<Turns>, user: &str) -> Seat {
    let mut seat = Seat::new(turns.clone(), user.into());
    seat.renew(&user.into());
    seat
}

const ALL: [Metered; 2] = [Metered::Appends, Metered::Reads];

#[test]
fn without_an_objective_nobody_asks() {
    let turns = turns();
    let mut bob = seat(&turns, "bob");
    for metered in ALL {
        for _ in 0..100 {
            assert!(!bob.waits(metered, 1 << 30, Waker::noop()));
            bob.charge(metered, 1 << 30);
        }
    }
    assert_eq!((turns.waiting(), turns.waits.get()), (0, 0));
}

#[test]
fn others_wait_and_are_woken_when_objectives_end() {
    let turns = turns();
    turns.take(&record(&["ann"], 2));
    let (mut ann, mut bob) = (seat(&turns, "ann"), seat(&turns, "bob"));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    // It owes all that one can.
    for metered in ALL {
        bob.charge(metered, 1 << 30);
        assert!(bob.waits(metered, 1, &waker) && bob.waits(metered, 1, &waker));
        assert!(bob.is_waiting(metered));
        assert!(!ann.waits(metered, 1, &waker) && !ann.is_waiting(metered));
        ann.charge(metered, 1);
    }
    assert_eq!(turns.waiting(), 2, "once for appends and once for reads");
    // Older news count for nothing.
    turns.take(&record(&[], 1));
    assert!(bob.waits(Metered::Reads, 1, &waker));
    turns.take(&record(&[], 3));
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    assert!(ALL.iter().all(|metered| !bob.is_waiting(*metered)));
    assert!(!bob.waits(Metered::Appends, 1, &waker));
    assert_eq!(turns.waiting(), 0);
}

#[test]
fn a_turn_that_is_let_go_costs_a_request() {
    let turns = turns();
    turns.take(&record(&["ann"], 1));
    let let_go = |_| seat(&turns, "bob").waits(Metered::Appends, 0, Waker::noop());
    assert!((0..1_000_000).any(let_go), "nothing is used");
}

#[test]
fn who_goes_away_waits_no_more_and_gives_back_what_it_did_not_use() {
    let turns = turns();
    turns.take(&record(&["ann"], 1));
    let mut first = seat(&turns, "ann");
    let mut used = 0;
    // All that it is guaranteed in a burst, in turns that are given back.
    for _ in 0..100 {
        assert!(!seat(&turns, "ann").waits(Metered::Appends, 0, Waker::noop()));
    }
    while !first.waits(Metered::Appends, 0, Waker::noop()) {
        first.charge(Metered::Appends, 0);
        used += 1;
    }
    assert!((20..30).contains(&used), "{used}");
    let mut second = seat(&turns, "bob");
    second.charge(Metered::Appends, 1 << 30);
    assert!(second.waits(Metered::Appends, 0, Waker::noop()));
    assert_eq!(turns.waiting(), 2);
    drop(second);
    first.renew(&"carl".into());
    assert_eq!(turns.waiting(), 0);
}

const KIB: usize = 1 << 10;

/// A broker that reads a KiB in a second, so that no test is slow enough for debts to be paid. One answer brings 64 KiB.
fn slow_reader() -> Arc<Turns> {
    let mut config = BrokerConfig::default().objectives;
    config.read_bytes_per_second = 1 << 10;
    config.load = 100;
    let turns = Arc::new(Turns::new(Capacity::of(&config)));
    turns.take(&record(&["ann"], 1));
    turns
}

fn waits(seat: &mut Seat, bytes: usize) -> bool {
    let turns = seat.turns.clone();
    turns.grant(&mut turns.machine.lock());
    seat.waits(Metered::Reads, bytes, Waker::noop())
}

/// Who of the two has its turn first.
fn is_first(one: &mut Seat, other: &mut Seat) -> bool {
    loop {
        let (waits, other_waits) = (waits(one, 50 * KIB), waits(other, 50 * KIB));
        if !(waits && other_waits) {
            return !waits && other_waits;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_read_is_taken_for_what_it_asks_until_it_is_known_what_there_is() {
    let turns = slow_reader();
    let (mut first, mut second) = (seat(&turns, "bob"), seat(&turns, "bob"));
    assert_eq!(first.most_read(), 64 * KIB);
    assert!(!waits(&mut first, 50 * KIB));
    let mut carl = seat(&turns, "carl");
    assert!(
        is_first(&mut carl, &mut second),
        "bob owes what the first one asks for"
    );
    carl.charge(Metered::Reads, 0);
    assert!(waits(&mut second, 50 * KIB));
    // There is nothing: the next one has its turn.
    first.found_nothing();
    assert!(!waits(&mut second, 50 * KIB));
    assert!(waits(&mut seat(&turns, "bob"), 50 * KIB));
    // One that is let go brings back as much.
    drop(second);
    assert!(!waits(&mut seat(&turns, "bob"), 50 * KIB));
}

#[test]
fn an_empty_read_hides_no_large_one_of_the_same_connection() {
    let turns = slow_reader();
    let (mut large, mut other) = (seat(&turns, "bob"), seat(&turns, "carl"));
    large.charge(Metered::Reads, 16 * KIB);
    large.charge(Metered::Reads, 0);
    large.renew(&"carl".into());
    while waits(&mut large, 50 * KIB) {
        std::thread::yield_now();
    }
    assert!(
        waits(&mut other, 0),
        "carl owes half of what the large one cost"
    );
    let mut more = seat(&turns, "dora");
    assert!(is_first(&mut more, &mut other));
    // It brings less.
    large.charge(Metered::Reads, 0);
    more.charge(Metered::Reads, 0);
    assert!(!waits(&mut other, 0));
}

#[test]
fn answers_are_measured_of_those_with_an_objective() {
    let turns = turns();
    turns.take(&record(&["ann"], 1));
    let (ann, bob) = (seat(&turns, "ann"), seat(&turns, "bob"));
    let ms = Duration::from_millis;
    for (took, times) in [(ms(1), 3), (ms(2), 2)] {
        for _ in 0..times {
            ann.answered(took);
            bob.answered(took);
        }
    }
    let count = |result: &str| {
        let labels = vec![("user", "ann".to_owned()), ("result", result.to_owned())];
        turns.answers.get_or_create_owned(&labels).get()
    };
    assert_eq!((count("met"), count("late")), (3, 2));
}

#[tokio::test]
async fn those_that_wait_are_looked_at_as_tokens_come() {
    let turns = turns();
    turns.take(&record(&["ann"], 1));
    let driven = tokio::spawn(turns.clone().drive());
    let mut bob = seat(&turns, "bob");
    let bell = Arc::new(crate::bell::Bell::default());
    let waker = Waker::from(bell.clone());
    let mut waited = 0;
    while waited < 20 {
        if bob.waits(Metered::Appends, 0, &waker) {
            waited += 1;
            bell.rung().await;
            assert!(!bob.waits(Metered::Appends, 0, &waker));
        }
        bob.charge(Metered::Appends, 0);
    }
    assert_eq!(turns.waits.get(), 20);
    driven.abort();
}
