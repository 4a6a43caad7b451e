//! A share group's partition under holders that take, acknowledge, are slow and go at random, over owners that change.
//!
//! Judged record by record: none is held by two at a time, none that is done for good is delivered again, none is lost.

use std::collections::BTreeMap;

use kera_coordinator::share::{Acknowledgement, SharePartition, ShareState};
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
    /// And kept.
    kept: bool,
    deliveries: u16,
    /// Of which the next owner knows.
    kept_deliveries: u16,
}

struct Model {
    partition: SharePartition,
    kept: ShareState,
    batches: Vec<(u64, u64)>,
    records: BTreeMap<u64, Known>,
    head: u64,
    log_start: u64,
    now_ms: u64,
}

impl Model {
    fn new() -> Self {
        let kept = ShareState::at(0);
        Self {
            partition: SharePartition::new(&kept, MOST_DELIVERIES),
            kept,
            batches: Vec::new(),
            records: BTreeMap::new(),
            head: 0,
            log_start: 0,
            now_ms: 0,
        }
    }

    fn end_locks(&mut self) {
        let now = self.now_ms;
        for known in self.records.values_mut() {
            if known.lock.is_some_and(|(_, until)| until <= now) {
                known.give_back();
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
            let nobody = self
                .partition
                .acknowledge(holder, self.head, self.head, what);
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
        let said = self.partition.acknowledge(holder, first, last, what);
        assert_eq!(said.is_ok(), all, "{first} to {last}");
        if !all {
            return;
        }
        for ordinal in first..=last {
            let known = self.records.get_mut(&ordinal).expect("a record");
            match what {
                Acknowledgement::Release => known.give_back(),
                _ => (known.lock, known.done) = (None, true),
            }
        }
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
                        known.give_back();
                    }
                }
            }
            Op::Keep => {
                let state = self.partition.state();
                self.kept = ShareState::of(state.start, &state.runs());
                assert_eq!(self.kept, state, "it is written as it is");
                for known in self.records.values_mut() {
                    (known.kept, known.kept_deliveries) = (known.done, known.deliveries);
                }
            }
            Op::Move => {
                self.partition = SharePartition::new(&self.kept, MOST_DELIVERIES);
                self.partition.forget_below(self.log_start);
                for known in self.records.values_mut() {
                    (known.lock, known.done) = (None, known.kept);
                    known.deliveries = known.kept_deliveries;
                }
            }
            Op::Trim(records) => {
                self.log_start = (self.log_start + records).min(self.head);
                self.partition.forget_below(self.log_start);
                let start = self.log_start;
                self.records.retain(|ordinal, _| *ordinal >= start);
                self.batches.retain(|(_, last)| *last >= start);
            }
        }
        assert!(self.partition.runs() as u64 <= 2 * MOST_IN_FLIGHT + 2);
        let delivered = self.records.iter();
        let delivered = delivered.filter(|(_, known)| known.deliveries > 0 && !known.done);
        let (mut in_flight, mut available, mut expiry) = (0, None, None);
        for (ordinal, known) in delivered {
            in_flight += 1;
            match known.lock {
                None => available = available.or(Some(*ordinal)),
                Some((_, until)) => expiry = Some(until.min(expiry.unwrap_or(until))),
            }
        }
        assert_eq!(self.partition.in_flight(), in_flight);
        assert_eq!(self.partition.next_expiry(), expiry);
        if let Some(first) = available {
            assert_eq!(self.partition.next(0), Some(first));
        }
        let open = self.records.iter().find(|(_, known)| !known.done);
        if let Some((first, _)) = open {
            assert!(self.partition.start() <= *first, "{first} is not done");
        }
    }

    /// Whatever is not done is delivered until it is.
    fn finish(&mut self) {
        for _ in 0..200 {
            self.now_ms += LOCK_MS;
            while self.take(7, 5) > 0 {
                let mut held = self.records.iter();
                let held = held.find(|(_, known)| known.lock.is_some());
                let first = *held.expect("it was taken").0;
                self.partition
                    .acknowledge(7, first, first, Acknowledgement::Accept)
                    .expect("it is acquired");
                let known = self.records.get_mut(&first).expect("a record");
                (known.lock, known.done) = (None, true);
            }
            if self.records.values().all(|known| known.done) {
                return;
            }
        }
        panic!("some are never delivered: {:?}", self.records);
    }
}

impl Known {
    fn give_back(&mut self) {
        self.lock = None;
        self.done |= self.deliveries >= MOST_DELIVERIES;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn records_are_held_by_one_and_none_is_lost(ops in prop::collection::vec(op(), 1..80)) {
        let mut model = Model::new();
        for op in &ops {
            model.play(op);
        }
        model.finish();
    }
}

#[test]
fn what_makes_no_sense_is_delivered_again() {
    let state = ShareState::of(5, &[3, 1, 0, 0, 2, 4]);
    assert_eq!(state.runs(), [3, 1], "a run of no length ends the list");
    assert_eq!(ShareState::of(5, &[u64::MAX, 1]).runs(), [0_u64; 0]);
    let partition = SharePartition::new(&state, MOST_DELIVERIES);
    assert_eq!((partition.start(), partition.next(1)), (8, Some(8)));
}
