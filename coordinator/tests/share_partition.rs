//! A share group's partition under holders that take, acknowledge, are slow and go at random, over owners that change.
//!
//! Judged record by record: none is held by two at a time, none that is done for good is delivered again, none is lost.
//! With a dead-letter topic none is done that was given up and is not there.

use std::collections::{BTreeMap, BTreeSet};

use kera_coordinator::share::{Acknowledgement, GivenUpFor, SharePartition, ShareState};
use proptest::prelude::*;

const MOST_DELIVERIES: u16 = 3;
const MOST_IN_FLIGHT: u64 = 12;
const LOCK_MS: u64 = 100;
const HOLDERS: u64 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// So many records are appended as a batch, behind a gap.
    Append {
        records: u64,
        gap: u64,
    },
    Take {
        holder: u64,
        wanted: u64,
    },
    /// Of what a holder has, from one record on.
    Say {
        holder: u64,
        at: usize,
        count: u64,
        what: Acknowledgement,
    },
    /// Of any records that are stored, whoever has them.
    Claim {
        holder: u64,
        at: u64,
        count: u64,
        what: Acknowledgement,
    },
    Wait(u64),
    Leave(u64),
    /// So many that are given up become dead letters.
    Bury(u64),
    /// The coordinator keeps what there is.
    Keep,
    /// Another owner begins with what was kept.
    Move,
    /// Retention takes what is old.
    Trim(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let what = prop_oneof![
        Just(Acknowledgement::Accept),
        Just(Acknowledgement::Release),
        Just(Acknowledgement::Reject),
        Just(Acknowledgement::Renew),
    ];
    let holder = 0..HOLDERS;
    prop_oneof![
        6 => (1..6_u64, prop_oneof![4 => Just(0), 1 => 1..4_u64])
            .prop_map(|(records, gap)| Op::Append { records, gap }),
        10 => (holder.clone(), 1..8_u64).prop_map(|(holder, wanted)| Op::Take { holder, wanted }),
        12 => (holder.clone(), 0..12_usize, 1..5_u64, what.clone())
            .prop_map(|(holder, at, count, what)| Op::Say { holder, at, count, what }),
        4 => (holder.clone(), 0..60_u64, 1..4_u64, what)
            .prop_map(|(holder, at, count, what)| Op::Claim { holder, at, count, what }),
        3 => (0..150_u64).prop_map(Op::Wait),
        1 => holder.prop_map(Op::Leave),
        2 => (1..6_u64).prop_map(Op::Bury),
        3 => Just(Op::Keep),
        1 => Just(Op::Move),
        1 => (0..5_u64).prop_map(Op::Trim),
    ]
}

/// What is known of a record from outside.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    lock: Option<(u64, u64)>,
    /// Said to be done, to the owner that there is.
    done: bool,
    /// Why it was given up, if it is no dead letter yet.
    given_up: Option<GivenUpFor>,
    deliveries: u16,
}

struct Model {
    partition: SharePartition,
    kept: ShareState,
    batches: Vec<(u64, u64)>,
    records: BTreeMap<u64, Known>,
    /// What was known when the coordinator kept it.
    kept_records: BTreeMap<u64, Known>,
    /// What a group with a dead-letter topic gave up, as its coordinator has kept or nobody has forgotten; and what is there.
    dead_letters: bool,
    letters: BTreeSet<u64>,
    head: u64,
    log_start: u64,
    now_ms: u64,
}

impl Model {
    fn new(dead_letters: bool) -> Self {
        let kept = ShareState::at(0);
        Self {
            partition: SharePartition::new(&kept, MOST_DELIVERIES, dead_letters),
            kept,
            batches: Vec::new(),
            records: BTreeMap::new(),
            kept_records: BTreeMap::new(),
            dead_letters,
            letters: BTreeSet::new(),
            head: 0,
            log_start: 0,
            now_ms: 0,
        }
    }

    fn end_locks(&mut self) {
        let now = self.now_ms;
        for known in self.records.values_mut() {
            if known.lock.is_some_and(|(_, until)| until <= now) {
                known.give_back(self.dead_letters);
            }
        }
        self.partition.expire(now);
    }

    fn take(&mut self, holder: u64, wanted: u64) -> u64 {
        self.end_locks();
        let Some(from) = self.partition.next(MOST_IN_FLIGHT) else {
            assert!(self.partition.in_flight() >= MOST_IN_FLIGHT);
            return 0;
        };
        let read = self.batches.iter().filter(|(_, last)| *last >= from);
        let read: Vec<(u64, u64)> = read.copied().take(3).collect();
        let until = self.now_ms + LOCK_MS;
        let taken = self
            .partition
            .acquire(holder, until, from, &read, wanted, MOST_IN_FLIGHT);
        let mut count = 0;
        for run in taken {
            for ordinal in run.first..=run.last {
                let known = self.records.get_mut(&ordinal);
                let known = known.unwrap_or_else(|| panic!("{ordinal} is no record"));
                assert_eq!(known.lock, None, "{ordinal} is held by another");
                assert!(!known.done, "{ordinal} is done");
                known.deliveries += 1;
                assert_eq!(run.deliveries, known.deliveries, "{ordinal}");
                known.lock = Some((holder, until));
                count += 1;
            }
        }
        assert!(count <= wanted);
        assert!(self.partition.in_flight() <= MOST_IN_FLIGHT);
        count
    }

    fn say(&mut self, holder: u64, at: usize, count: u64, what: Acknowledgement) {
        self.end_locks();
        let held = self.records.iter();
        let held = held.filter(|(_, known)| known.lock.is_some_and(|(by, _)| by == holder));
        let held: Vec<u64> = held.map(|(ordinal, _)| *ordinal).collect();
        let Some(first) = held.get(at % held.len().max(1)).copied() else {
            let until = self.now_ms + LOCK_MS;
            let nobody = self
                .partition
                .acknowledge(holder, self.head, self.head, what, until);
            assert!(nobody.is_err(), "what was not acquired");
            return;
        };
        self.claim(holder, first, count, what);
    }

    /// It counts if all of them are acquired by the holder, and nothing of it otherwise.
    fn claim(&mut self, holder: u64, first: u64, count: u64, what: Acknowledgement) {
        let last = first + count - 1;
        let all = (first..=last).all(|ordinal| {
            let known = self.records.get(&ordinal);
            known.is_some_and(|known| known.lock.is_some_and(|(by, _)| by == holder))
        });
        let until = self.now_ms + LOCK_MS;
        let said = self.partition.acknowledge(holder, first, last, what, until);
        assert_eq!(said.ok(), all.then_some(count), "{first} to {last}");
        if !all {
            return;
        }
        for ordinal in first..=last {
            let known = self.records.get_mut(&ordinal).expect("a record");
            match what {
                Acknowledgement::Release => known.give_back(self.dead_letters),
                Acknowledgement::Reject => known.give_up(self.dead_letters, GivenUpFor::Rejection),
                Acknowledgement::Accept => (known.lock, known.done) = (None, true),
                Acknowledgement::Renew => known.lock = Some((holder, until)),
            }
        }
    }

    /// What is not stored any more is forgotten, unless it is to be a dead letter yet.
    fn trim(&mut self) {
        let start = self.log_start;
        let records = &mut self.records;
        records.retain(|ordinal, known| *ordinal >= start || known.given_up.is_some());
    }

    /// True if there was anything to bury.
    fn bury(&mut self, most: u64) -> bool {
        let runs = self.partition.given_up(most);
        assert_eq!(runs.is_empty(), !self.partition.has_given_up());
        let count: u64 = runs.iter().map(|run| run.last - run.first + 1).sum();
        assert!(count <= most);
        let waiting = self.records.iter();
        let waiting = waiting.filter(|(_, known)| known.given_up.is_some());
        let first: Vec<u64> = waiting.map(|(at, _)| *at).take(count as usize).collect();
        let told: Vec<u64> = runs.iter().flat_map(|run| run.first..=run.last).collect();
        assert_eq!(told, first, "the first of them");
        for run in &runs {
            for ordinal in run.first..=run.last {
                let known = self.records.get_mut(&ordinal).expect("a record");
                assert_eq!(known.given_up.take(), Some(run.why), "{ordinal}");
                assert_eq!(known.deliveries, run.deliveries, "{ordinal}");
                self.letters.insert(ordinal);
            }
            self.partition.buried(run.first, run.last);
        }
        !runs.is_empty()
    }

    fn play(&mut self, op: &Op) {
        match *op {
            Op::Append { records, gap } => {
                let first = self.head + gap;
                self.head = first + records;
                self.batches.push((first, self.head - 1));
                for ordinal in first..self.head {
                    self.records.insert(ordinal, Known::default());
                }
            }
            Op::Take { holder, wanted } => drop(self.take(holder, wanted)),
            Op::Say {
                holder,
                at,
                count,
                what,
            } => self.say(holder, at, count, what),
            Op::Claim {
                holder,
                at,
                count,
                what,
            } => {
                self.end_locks();
                let stored = (self.head - self.log_start).max(1);
                self.claim(holder, self.log_start + at % stored, count, what);
            }
            Op::Wait(ms) => self.now_ms += ms,
            Op::Leave(holder) => {
                self.end_locks();
                self.partition.release(holder);
                for known in self.records.values_mut() {
                    if known.lock.is_some_and(|(by, _)| by == holder) {
                        known.give_back(self.dead_letters);
                    }
                }
            }
            Op::Bury(most) => drop(self.bury(most)),
            Op::Keep => {
                let state = self.partition.state();
                self.kept = ShareState::of(state.start, &state.runs());
                assert_eq!(self.kept, state, "it is written as it is");
                self.kept_records = self.records.clone();
            }
            Op::Move => {
                self.partition =
                    SharePartition::new(&self.kept, MOST_DELIVERIES, self.dead_letters);
                self.partition.forget_below(self.log_start);
                for (ordinal, known) in &self.kept_records {
                    let is_over = !known.done && known.deliveries > MOST_DELIVERIES;
                    if known.given_up.is_some() || self.dead_letters && is_over {
                        self.records.entry(*ordinal).or_insert(*known);
                    }
                }
                for (ordinal, known) in &mut self.records {
                    *known = self.kept_records.get(ordinal).copied().unwrap_or_default();
                    known.lock = None;
                    // Why is not kept.
                    known.given_up =
                        known
                            .given_up
                            .map(|_| match known.deliveries >= MOST_DELIVERIES {
                                true => GivenUpFor::Deliveries,
                                false => GivenUpFor::Rejection,
                            });
                    // Acquired once more than the limit, it comes back no more.
                    if !known.done && known.deliveries > MOST_DELIVERIES {
                        known.give_up(self.dead_letters, GivenUpFor::Deliveries);
                    }
                }
                self.trim();
            }
            Op::Trim(records) => {
                self.log_start = (self.log_start + records).min(self.head);
                self.partition.forget_below(self.log_start);
                self.trim();
                let start = self.log_start;
                self.batches.retain(|(_, last)| *last >= start);
            }
        }
        assert!(self.partition.runs() as u64 <= 2 * MOST_IN_FLIGHT + 2);
        let delivered = self.records.iter();
        let delivered = delivered.filter(|(_, known)| known.deliveries > 0 && !known.is_over());
        let (mut in_flight, mut available, mut expiry) = (0, None, None);
        for (ordinal, known) in delivered {
            in_flight += 1;
            match known.lock {
                None if known.given_up.is_some() => {}
                None => available = available.or(Some(*ordinal)),
                Some((_, until)) => expiry = Some(until.min(expiry.unwrap_or(until))),
            }
        }
        assert_eq!(self.partition.in_flight(), in_flight);
        assert_eq!(self.partition.next_expiry(), expiry);
        if let Some(first) = available {
            assert_eq!(self.partition.next(0), Some(first));
        }
        let open = self.records.iter().find(|(_, known)| !known.is_over());
        if let Some((first, _)) = open {
            assert!(self.partition.start() <= *first, "{first} is not done");
        }
    }

    /// Whatever is not done is delivered until it is.
    fn finish(&mut self) {
        for _ in 0..200 {
            self.now_ms += LOCK_MS;
            while self.bury(3) {}
            while self.take(7, 5) > 0 {
                let mut held = self.records.iter();
                let held = held.find(|(_, known)| known.lock.is_some());
                let first = *held.expect("it was taken").0;
                self.partition
                    .acknowledge(7, first, first, Acknowledgement::Accept, 0)
                    .expect("it is acquired");
                let known = self.records.get_mut(&first).expect("a record");
                (known.lock, known.done) = (None, true);
            }
            if self.records.values().all(|known| known.is_over()) {
                return;
            }
        }
        panic!("some are never delivered: {:?}", self.records);
    }
}

impl Known {
    fn give_back(&mut self, dead_letters: bool) {
        match self.deliveries >= MOST_DELIVERIES {
            true => self.give_up(dead_letters, GivenUpFor::Deliveries),
            false => self.lock = None,
        }
    }

    fn give_up(&mut self, dead_letters: bool, why: GivenUpFor) {
        (self.lock, self.done) = (None, true);
        self.given_up = dead_letters.then_some(why);
    }

    /// Done, and a dead letter if it is to be one.
    fn is_over(&self) -> bool {
        self.done && self.given_up.is_none()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn records_are_held_by_one_and_none_is_lost(
        dead_letters: bool,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut model = Model::new(dead_letters);
        for op in &ops {
            model.play(op);
        }
        model.finish();
        prop_assert!(dead_letters || model.letters.is_empty());
    }
}

/// Each owner gives a record to a member, keeps that with what others acknowledge, and goes. The first one that comes after its
/// last delivery gives it out once more, as nobody knows what became of it; the next one does not.
#[test]
fn a_record_whose_owners_go_passes_the_limit_by_one() {
    for dead_letters in [false, true] {
        let mut kept = ShareState::at(0);
        for delivery in 1..=MOST_DELIVERIES + 1 {
            let mut partition = SharePartition::new(&kept, MOST_DELIVERIES, dead_letters);
            let taken = partition.acquire(1, LOCK_MS, 0, &[(0, 0)], 1, MOST_IN_FLIGHT);
            assert_eq!(taken.first().map(|one| one.deliveries), Some(delivery));
            kept = ShareState::of(0, &partition.state().runs());
        }
        let mut partition = SharePartition::new(&kept, MOST_DELIVERIES, dead_letters);
        let taken = partition.acquire(1, LOCK_MS, 0, &[(0, 0)], 1, MOST_IN_FLIGHT);
        assert!(taken.is_empty(), "{taken:?}");
        let letters = partition.given_up(1);
        assert_eq!(letters.len(), usize::from(dead_letters));
        assert!(letters.iter().all(|one| one.why == GivenUpFor::Deliveries));
        partition.buried(0, 0);
        assert_eq!(partition.start(), 1);
    }
}

#[test]
fn what_makes_no_sense_is_delivered_again() {
    let state = ShareState::of(5, &[3, 1, 0, 0, 2, 4]);
    assert_eq!(state.runs(), [3, 1], "a run of no length ends the list");
    assert_eq!(ShareState::of(5, &[u64::MAX, 1]).runs(), [0_u64; 0]);
    let partition = SharePartition::new(&state, MOST_DELIVERIES, false);
    assert_eq!((partition.start(), partition.next(1)), (8, Some(8)));
}

/// Retention is no reason to forget that somebody gave a record up.
#[test]
fn what_is_given_up_and_trimmed_is_to_be_a_dead_letter_still() {
    let mut partition = SharePartition::new(&ShareState::at(0), MOST_DELIVERIES, true);
    assert_eq!(partition.acquire(1, 9, 0, &[(0, 9)], 8, 9).len(), 1);
    partition
        .acknowledge(1, 1, 2, Acknowledgement::Reject, 0)
        .expect("it is acquired");
    partition
        .acknowledge(1, 6, 6, Acknowledgement::Reject, 0)
        .expect("it is acquired");
    // Also by the next owner, and behind all that was delivered.
    for log_start in [5, 12] {
        let kept = partition.state();
        let kept = ShareState::of(kept.start, &kept.runs());
        partition = SharePartition::new(&kept, MOST_DELIVERIES, true);
        assert!(partition.forget_below(log_start));
        assert!(!partition.forget_below(log_start), "once");
        let given_up = partition.given_up(9);
        let given_up: Vec<_> = given_up.iter().map(|run| (run.first, run.last)).collect();
        assert_eq!(given_up, [(1, 2), (6, 6)]);
        assert_eq!(partition.start(), 1);
    }
    assert_eq!((partition.next(9), partition.in_flight()), (Some(12), 3));
    // Whoever had what is gone has nothing left to say.
    assert_eq!(
        partition.acknowledge(1, 0, 7, Acknowledgement::Release, 0),
        Ok(0)
    );
    assert_eq!(partition.next(9), Some(12));
    partition.buried(1, 6);
    assert_eq!((partition.start(), partition.in_flight()), (12, 0));
    assert!(partition.state().runs().is_empty());
}

/// Metrics count what an acknowledgement changes.
#[test]
fn what_is_acknowledged_below_the_beginning_counts_for_nothing() {
    let mut partition = SharePartition::new(&ShareState::at(0), MOST_DELIVERIES, false);
    assert!(partition.forget_below(900));
    assert_eq!(partition.acquire(1, 9, 900, &[(900, 904)], 5, 9).len(), 1);
    let mut say = |first, last, what| partition.acknowledge(1, first, last, what, 9).expect("its");
    assert_eq!(say(0, 600, Acknowledgement::Accept), 0, "all of it is gone");
    assert_eq!(say(601, 900, Acknowledgement::Renew), 1);
    assert_eq!(say(899, 904, Acknowledgement::Accept), 5);
}

/// What is set for a group may change while it is served.
#[test]
fn a_topic_for_dead_letters_may_come_and_go() {
    let mut partition = SharePartition::new(&ShareState::at(0), MOST_DELIVERIES, false);
    assert_eq!(partition.acquire(1, 9, 0, &[(0, 9)], 10, 10).len(), 1);
    let say = |partition: &mut SharePartition, at, what| {
        partition
            .acknowledge(1, at, at, what, 0)
            .expect("it is acquired");
        partition.given_up(9).len()
    };
    assert_eq!(say(&mut partition, 0, Acknowledgement::Reject), 0);
    assert!(!partition.configure(MOST_DELIVERIES, true));
    assert_eq!(say(&mut partition, 1, Acknowledgement::Reject), 1);
    assert!(!partition.configure(1, true));
    assert_eq!(
        say(&mut partition, 3, Acknowledgement::Release),
        2,
        "its last"
    );
    assert!(partition.configure(MOST_DELIVERIES, false), "they are done");
    assert_eq!((partition.has_given_up(), partition.start()), (false, 2));
    assert_eq!(say(&mut partition, 2, Acknowledgement::Reject), 0);
    assert_eq!((partition.start(), partition.in_flight()), (4, 6));
}

/// A group that has no dead-letter topic any more gives up at once, also what is kept as given up.
#[test]
fn what_was_given_up_is_done_once_there_is_no_topic_for_it() {
    let mut partition = SharePartition::new(&ShareState::at(0), MOST_DELIVERIES, true);
    assert_eq!(partition.acquire(1, 9, 0, &[(0, 3)], 4, 9).len(), 1);
    partition
        .acknowledge(1, 0, 1, Acknowledgement::Reject, 0)
        .expect("it is acquired");
    let kept = partition.state();
    assert_eq!((kept.start, kept.done()), (0, 0), "not done yet");
    let kept = ShareState::of(kept.start, &kept.runs());
    let with = SharePartition::new(&kept, MOST_DELIVERIES, true);
    assert_eq!((with.start(), with.next(9)), (0, Some(2)));
    let without = SharePartition::new(&kept, MOST_DELIVERIES, false);
    assert_eq!((without.start(), without.next(9)), (2, Some(2)));
    assert!(!without.has_given_up());
}
