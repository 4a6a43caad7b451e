//! Workers that copy a stream in transactions, the positions of their group with them. Workers, coordinators and answers are
//! lost at any point, and the ends of transactions come late; each record is copied once all the same.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use kera_coordinator::classic::{self, EndOffsets, OfTransaction};
use kera_coordinator::{Reply, Request, SendPositions};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1::{self, LaneBy, Order};
use proptest::prelude::*;
use support::{Bench, FakeStream, commit};

const GROUP: &str = "g";
const WORKERS: usize = 3;

type Record = ((u32, u32), u64);

#[derive(Clone, Debug)]
enum Op {
    Append {
        lane: usize,
        records: u64,
    },
    Trim {
        lane: usize,
        records: u64,
    },
    Grow,
    Acquire {
        worker: usize,
    },
    /// Copies so many records of a lease. The answer about its position is lost, and the worker asks again, or it gives up.
    Copy {
        worker: usize,
        lease: usize,
        records: u64,
        lost: bool,
        asks_again: bool,
    },
    End {
        worker: usize,
        commit: bool,
    },
    /// The coordinator of a transaction tells that of the group how it ended.
    Tell {
        worker: usize,
        again: bool,
    },
    /// A worker is killed, and another one begins in its place.
    Kill {
        worker: usize,
    },
    Heartbeat {
        worker: usize,
    },
    Time {
        ms: u64,
    },
    Crash {
        from_snapshot: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let index = 0..8_usize;
    let worker = 0..WORKERS;
    let copy = (
        worker.clone(),
        index.clone(),
        1..20_u64,
        any::<bool>(),
        any::<bool>(),
    );
    prop_oneof![
        4 => (index.clone(), 1..20_u64).prop_map(|(lane, records)| Op::Append { lane, records }),
        1 => (index.clone(), 1..5_u64).prop_map(|(lane, records)| Op::Trim { lane, records }),
        1 => Just(Op::Grow),
        6 => worker.clone().prop_map(|worker| Op::Acquire { worker }),
        10 => copy.prop_map(|(worker, lease, records, lost, asks_again)| Op::Copy { worker, lease, records, lost, asks_again }),
        6 => (worker.clone(), any::<bool>()).prop_map(|(worker, commit)| Op::End { worker, commit }),
        6 => (worker.clone(), any::<bool>()).prop_map(|(worker, again)| Op::Tell { worker, again }),
        2 => worker.clone().prop_map(|worker| Op::Kill { worker }),
        3 => worker.clone().prop_map(|worker| Op::Heartbeat { worker }),
        2 => (1..2_000_u64).prop_map(|ms| Op::Time { ms }),
        1 => any::<bool>().prop_map(|from_snapshot| Op::Crash { from_snapshot }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Idle,
    Open,
    Decided(bool),
}

/// A worker with its producer, whose transactions go on under its id when it is killed.
struct Worker {
    member: String,
    /// Lane, next and end.
    held: BTreeMap<u64, ((u32, u32), u64, u64)>,
    stage: Stage,
    number: u64,
    copied: Vec<Record>,
}

struct Job {
    order: Order,
    bench: Bench,
    workers: Vec<Worker>,
    copied: BTreeSet<Record>,
    trimmed: BTreeMap<(u32, u32), u64>,
}

impl Job {
    fn new(order: Order) -> Self {
        let mut bench = Bench::new(FakeStream::new(2, 1, LaneBy::Key));
        let workers = (0..WORKERS).map(|_| Worker {
            member: bench.join(GROUP, "c", order),
            held: BTreeMap::new(),
            stage: Stage::Idle,
            number: 1,
            copied: Vec::new(),
        });
        Self {
            order,
            workers: workers.collect(),
            bench,
            copied: BTreeSet::new(),
            trimmed: BTreeMap::new(),
        }
    }

    fn lane(&self, index: usize) -> (u32, u32) {
        let lanes = &self.bench.stream.lanes;
        *lanes.keys().nth(index % lanes.len()).unwrap()
    }

    fn of(&self, worker: usize) -> OfTransaction {
        OfTransaction {
            producer: worker as i64 + 7,
            number: self.workers[worker].number,
        }
    }

    /// It is no member any more, and begins anew. What it has copied it cannot commit the positions of.
    fn rejoin(&mut self, worker: usize) {
        self.end(worker, false);
        self.workers[worker].held.clear();
        self.workers[worker].member = self.bench.join(GROUP, "c", self.order);
    }

    fn acquire(&mut self, worker: usize) {
        let member = self.workers[worker].member.clone();
        let ticket = self.bench.send(Request::Acquire(v1::AcquireRequest {
            group: GROUP.into(),
            member,
            max_leases: 2,
            max_wait_ms: 0,
            max_bytes: 200,
        }));
        match self.bench.replies.remove(&ticket).expect("no wait") {
            Ok(Reply::Acquire(reply)) => {
                for lease in reply.leases {
                    let end = match lease.end_ordinal {
                        0 => u64::MAX,
                        end => end,
                    };
                    let lane = (lease.streamlet, lease.lane);
                    let start = lease.start.unwrap().ordinal;
                    let held = &mut self.workers[worker].held;
                    held.insert(lease.lease, (lane, start, end));
                }
            }
            Err(error) if error.code == ErrorCode::UnknownMember => self.rejoin(worker),
            other => panic!("acquire answered {other:?}"),
        }
    }

    fn send(&mut self, worker: usize, lease: u64, next: u64) -> Result<Reply, WireError> {
        let request = SendPositions {
            group: GROUP.into(),
            member: self.workers[worker].member.clone(),
            transaction: self.of(worker),
            commits: vec![commit(lease, Some(next), false)],
        };
        self.bench.call(Request::SendPositions(request))
    }

    fn copy(&mut self, worker: usize, lease: usize, records: u64, lost: bool, asks_again: bool) {
        let one = &mut self.workers[worker];
        if matches!(one.stage, Stage::Decided(_)) || one.held.is_empty() {
            return;
        }
        one.stage = Stage::Open;
        let lease = *one.held.keys().nth(lease % one.held.len()).unwrap();
        let (lane, from, end) = one.held[&lease];
        let stored = &self.bench.stream.lanes[&lane];
        let to = (from + records).min(end).min(stored.head);
        if to <= from {
            return;
        }
        one.copied.extend((from..to).map(|ordinal| (lane, ordinal)));
        let mut answer = self.send(worker, lease, to);
        if lost && asks_again {
            answer = self.send(worker, lease, to);
        }
        match answer {
            // It does not know, and gives the transaction up.
            _ if lost && !asks_again => self.end(worker, false),
            Ok(Reply::SendPositions(_)) => {
                let one = &mut self.workers[worker];
                one.held.get_mut(&lease).unwrap().1 = to;
            }
            Err(error) if error.code == ErrorCode::UnknownMember => self.rejoin(worker),
            Err(error) if error.code == ErrorCode::StaleLease => {
                self.workers[worker].held.remove(&lease);
                self.end(worker, false);
            }
            other => panic!("positions answered {other:?}"),
        }
    }

    /// Decides how the transaction ends. After an abort the worker gives its leases up: it is told where to go on.
    fn end(&mut self, worker: usize, commit: bool) {
        let one = &mut self.workers[worker];
        if one.stage != Stage::Open {
            return;
        }
        one.stage = Stage::Decided(commit);
        let copied = std::mem::take(&mut one.copied);
        if commit {
            for record in copied {
                assert!(self.copied.insert(record), "{record:?} is copied twice");
            }
            return;
        }
        self.give_up(worker);
    }

    fn give_up(&mut self, worker: usize) {
        let one = &mut self.workers[worker];
        let leases: Vec<u64> = std::mem::take(&mut one.held).into_keys().collect();
        let commits: Vec<_> = leases.iter().map(|id| commit(*id, None, true)).collect();
        let member = one.member.clone();
        // It may be no member any more.
        let _ = self.bench.try_commit(GROUP, &member, &commits);
    }

    fn tell(&mut self, worker: usize, again: bool) {
        let Stage::Decided(commit) = self.workers[worker].stage else {
            return;
        };
        for _ in 0..1 + u8::from(again) {
            let request = classic::Request::EndOffsets(EndOffsets {
                group: GROUP.into(),
                transaction: self.of(worker),
                commit,
            });
            let ended = self.bench.call(Request::Classic(request));
            assert_eq!(ended, Ok(Reply::Classic(classic::Reply::OffsetsEnded)));
        }
        self.workers[worker].stage = Stage::Idle;
        self.workers[worker].number += 1;
    }

    fn heartbeat(&mut self, worker: usize) {
        let one = &self.workers[worker];
        let leases: Vec<u64> = one.held.keys().copied().collect();
        let member = one.member.clone();
        match self.bench.try_heartbeat(GROUP, &member, &leases) {
            Ok(Reply::Heartbeat(reply)) => {
                for lease in reply.lost {
                    self.workers[worker].held.remove(&lease);
                }
                let held = &self.workers[worker].held;
                let back = reply.give_back.iter().filter(|id| held.contains_key(id));
                let commits: Vec<_> = back.map(|id| commit(*id, None, true)).collect();
                for released in &commits {
                    self.workers[worker].held.remove(&released.lease);
                }
                self.bench.commit(GROUP, &member, &commits);
            }
            Err(error) if error.code == ErrorCode::UnknownMember => self.rejoin(worker),
            other => panic!("heartbeat answered {other:?}"),
        }
    }

    fn play(&mut self, op: Op) {
        match op {
            Op::Append { lane, records } => self.bench.stream.append(self.lane(lane), records),
            Op::Trim { lane, records } => {
                let lane = self.lane(lane);
                let to = self.bench.stream.lanes[&lane].log_start + records;
                self.bench.stream.trim(lane, to);
                let start = self.bench.stream.lanes[&lane].log_start;
                self.trimmed.insert(lane, start);
            }
            Op::Grow => {
                let lanes = self.bench.stream.shape.lanes() + 1;
                if lanes < 4 {
                    self.bench.stream.grow(lanes);
                }
            }
            Op::Acquire { worker } => self.acquire(worker),
            Op::Copy {
                worker,
                lease,
                records,
                lost,
                asks_again,
            } => self.copy(worker, lease, records, lost, asks_again),
            Op::End { worker, commit } => self.end(worker, commit),
            Op::Tell { worker, again } => self.tell(worker, again),
            Op::Kill { worker } => {
                // Its leases end with its session, or as the next one leaves in its name.
                self.workers[worker].held.clear();
                self.rejoin(worker);
            }
            Op::Heartbeat { worker } => self.heartbeat(worker),
            Op::Time { ms } => self.bench.tick(ms),
            Op::Crash { from_snapshot } => {
                let events = match from_snapshot {
                    true => self.bench.coordinator.snapshot(),
                    false => self.bench.events.clone(),
                };
                let replayed = self.bench.replayed(&events);
                assert!(replayed.same_durable_state(&self.bench.coordinator));
                self.bench.coordinator = replayed;
            }
        }
    }

    /// Everything that is open ends, and one worker copies the rest.
    fn finish(&mut self) {
        for worker in 0..WORKERS {
            self.end(worker, worker % 2 == 0);
            self.give_up(worker);
            self.tell(worker, true);
        }
        for _ in 0..10 {
            self.bench.tick(1_000);
        }
        self.rejoin(0);
        for _ in 0..200 {
            self.bench.tick(100);
            self.heartbeat(0);
            for _ in 0..4 {
                self.acquire(0);
            }
            let leases: Vec<usize> = (0..self.workers[0].held.len()).collect();
            for lease in leases {
                self.copy(0, lease, 1_000, false, false);
            }
            self.end(0, true);
            self.tell(0, false);
            // What it has consumed goes on, or ends.
            self.give_up(0);
        }
        for (lane, stored) in &self.bench.stream.lanes {
            for ordinal in stored.log_start..stored.head {
                let is_copied = self.copied.contains(&(*lane, ordinal));
                assert!(is_copied, "{lane:?} {ordinal} is not copied");
            }
        }
    }
}

fn play(order: Order, ops: Vec<Op>) {
    let mut job = Job::new(order);
    for op in ops {
        job.play(op);
    }
    job.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn lanes_are_copied_once(ops in proptest::collection::vec(op(), 1..150)) {
        play(Order::Lane, ops);
    }

    #[test]
    fn ranges_are_copied_once(ops in proptest::collection::vec(op(), 1..150)) {
        play(Order::None, ops);
    }
}
