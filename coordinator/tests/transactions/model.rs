//! Producers, crashes, and markers that are late, doubled and lost, at random.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// A lane as owners keep it: which transaction is open, and how those that ended did.
#[derive(Default)]
struct Lane {
    open: Option<(i16, u64)>,
    last_ended: u64,
    outcomes: BTreeMap<u64, bool>,
}

impl Lane {
    fn mark(&mut self, decided: &Decided) {
        if decided.number <= self.last_ended {
            return;
        }
        self.last_ended = decided.number;
        if let Some((epoch, number)) = self.open.take() {
            assert_eq!(number, decided.number, "a marker ends another transaction");
            assert_eq!(epoch, decided.batch_epoch, "a marker of other batches");
            assert!(decided.epoch >= epoch, "a marker that its lane refuses");
            self.outcomes.insert(number, decided.commit);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Beginning,
    Idle,
    Open,
    /// It has kept a transaction of an instance before.
    Kept,
    Over,
}

struct Producer {
    known: Option<(i64, i16)>,
    /// What it had before an end gave it another epoch.
    before: Option<(i64, i16)>,
    /// Its ends raise the epoch.
    raises: bool,
    /// It keeps what it finds open.
    keeps: bool,
    /// Its transactions have no timeout.
    is_two_phase: bool,
    phase: Phase,
}

enum Asked {
    Init(usize),
    Add(usize, u32),
    End(usize, bool),
    /// An addition to a transaction that has ended, and whose producer has another epoch since.
    Late,
    Decided,
    Other,
}

struct World {
    bench: Bench,
    durable: Vec<Event>,
    steps: VecDeque<Step>,
    asked: BTreeMap<u64, Asked>,
    producers: Vec<Producer>,
    lanes: Vec<Lane>,
    /// Markers on their way.
    flying: Vec<(Decided, Part)>,
    /// Transactions that a client was told are committed, or aborted; by number, of producer 101.
    told: BTreeMap<u64, bool>,
    /// The highest that anybody was given.
    given: (i64, i16),
    /// How many transactions were kept.
    kept: usize,
}

impl World {
    fn send(&mut self, asked: Asked, request: Request) {
        let step = self.bench.step(request);
        self.asked.insert(self.bench.ticket, asked);
        self.steps.push_back(step);
    }

    fn settle(&mut self) {
        let Some(mut step) = self.steps.pop_front() else {
            return;
        };
        self.durable.append(&mut step.events);
        for (ticket, reply) in step.replies {
            let Some(asked) = self.asked.remove(&ticket) else {
                continue;
            };
            let Ok(AnyReply::Transaction(reply)) = reply else {
                panic!("{reply:?}")
            };
            self.take(asked, reply);
        }
    }

    fn take(&mut self, asked: Asked, reply: Reply) {
        match (asked, reply) {
            (
                Asked::Init(at),
                reply @ (Reply::Begun(producer, epoch)
                | Reply::Kept {
                    producer, epoch, ..
                }),
            ) => {
                let is_new = (producer, epoch) > self.given;
                assert!(
                    is_new || self.producers[at].known.is_some(),
                    "two instances got epoch {epoch}"
                );
                self.given = self.given.max((producer, epoch));
                let who = &mut self.producers[at];
                who.known = Some((producer, epoch));
                who.before = None;
                who.phase = Phase::Idle;
                if let Reply::Kept { ongoing, .. } = reply {
                    assert!(ongoing < (producer, epoch));
                    who.before = Some(ongoing);
                    who.phase = Phase::Kept;
                    self.kept += 1;
                }
            }
            (Asked::Init(at), Reply::Refused(Fault::Fenced)) => {
                self.producers[at].phase = Phase::Over;
            }
            (Asked::Init(_), Reply::Refused(Fault::Ending)) => {}
            (Asked::Add(at, partition), Reply::Added(number, _)) => {
                self.producers[at].phase = Phase::Open;
                let epoch = self.producers[at].known.map_or(0, |(_, epoch)| epoch);
                let lane = &mut self.lanes[partition as usize];
                // The grant may come after the end, and then counts for nothing.
                if number > lane.last_ended {
                    lane.open = Some((epoch, number));
                }
            }
            (Asked::End(at, commit), Reply::Ending(number)) => {
                let before = self.told.insert(number, commit);
                assert!(before.is_none_or(|before| before == commit));
                self.producers[at].phase = Phase::Idle;
            }
            (
                Asked::End(at, commit),
                Reply::Raised {
                    number,
                    producer,
                    epoch,
                },
            ) => {
                let before = self.told.insert(number, commit);
                assert!(before.is_none_or(|before| before == commit));
                let (who, given) = (&mut self.producers[at], Some((producer, epoch)));
                // It may have asked twice.
                if who.known != given {
                    assert!(given > who.known, "the epoch is raised");
                    self.given = self.given.max((producer, epoch));
                    who.before = std::mem::replace(&mut who.known, given);
                    who.phase = Phase::Idle;
                }
            }
            (Asked::Late, reply) => assert!(matches!(reply, Reply::Refused(_)), "{reply:?}"),
            (
                Asked::Add(at, _) | Asked::End(at, _),
                Reply::Refused(Fault::Fenced | Fault::OtherProducer),
            ) => self.producers[at].phase = Phase::Beginning,
            (Asked::Decided, Reply::Decided(decided)) => {
                for decided in decided {
                    for part in decided.parts.clone() {
                        self.flying.push((decided.clone(), part));
                    }
                }
            }
            (_, Reply::Refused(_) | Reply::Noted | Reply::Prepared | Reply::Ended(_)) => {}
            (_, other) => panic!("{other:?}"),
        }
    }

    /// Somebody finds what waits without a timeout and commits it by its handle. How many there were.
    fn end_prepared(&mut self) -> usize {
        let prepared = Request::List(Filter {
            stages: vec![Stage::Ongoing, Stage::Prepared],
            ..Filter::default()
        });
        let Reply::Listed(mut listed) = self.bench.call(prepared) else {
            panic!("no list")
        };
        listed.retain(|listed| listed.prepared.is_some());
        for listed in &listed {
            let member = member(listed.producer, listed.epoch);
            let request = Request::End(End {
                member,
                commit: true,
                number: Some(listed.number),
                raise: None,
            });
            self.send(Asked::Other, request);
            let told = self.told.insert(listed.number, true);
            assert!(told.is_none_or(|commit| commit), "it had ended otherwise");
        }
        listed.len()
    }

    fn crash(&mut self, keep: usize) {
        let undone: Vec<Event> = self.steps.drain(..).flat_map(|step| step.events).collect();
        self.durable.extend(undone.into_iter().take(keep));
        self.asked.clear();
        self.bench.coordinator = replay(&self.durable, self.bench.now);
    }

    fn deliver(&mut self, at: usize, keep: bool, answered: bool) {
        let (decided, part) = match keep {
            true => self.flying[at].clone(),
            false => self.flying.swap_remove(at),
        };
        let Part::Partition(_, partition) = part else {
            panic!("no group takes part")
        };
        self.lanes[partition as usize].mark(&decided);
        if answered {
            let written = Written {
                id: decided.id,
                number: decided.number,
                ends: super::ends_of(&[part.clone()].into(), decided.number * 10),
                parts: [part].into(),
            };
            self.send(Asked::Other, Request::Written(written));
        }
    }
}

#[test]
fn whatever_fails_a_transaction_ends_the_same_way_everywhere() {
    let (mut ended, mut prepared, mut kept) = (0, 0, 0);
    for seed in 1..=400_u64 {
        let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut roll = move |below: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice % below
        };
        let mut world = World {
            bench: Bench::new(),
            durable: Vec::new(),
            steps: VecDeque::new(),
            asked: BTreeMap::new(),
            producers: Vec::new(),
            lanes: (0..3).map(|_| Lane::default()).collect(),
            flying: Vec::new(),
            told: BTreeMap::new(),
            given: (0, -1),
            kept: 0,
        };
        for _ in 0..400 {
            match roll(32) {
                0 if world.producers.len() < 4 => world.producers.push(Producer {
                    known: None,
                    before: None,
                    raises: roll(2) == 0,
                    keeps: roll(2) == 0,
                    is_two_phase: roll(2) == 0,
                    phase: Phase::Beginning,
                }),
                1 => {
                    let keep = roll(4) as usize;
                    world.crash(keep);
                }
                2 => {
                    let ms = roll(4_000);
                    world.bench.now += ms;
                    let now = world.bench.now;
                    let step = world.bench.coordinator.tick(now, &world.bench.stream);
                    world.steps.push_back(step);
                }
                3..=6 => world.send(Asked::Decided, Request::Decided),
                7..=14 => world.settle(),
                15..=20 if !world.flying.is_empty() => {
                    let at = roll(world.flying.len() as u64) as usize;
                    let (keep, answered) = (roll(4) == 0, roll(4) != 0);
                    world.deliver(at, keep, answered);
                }
                _ if !world.producers.is_empty() => {
                    let at = roll(world.producers.len() as u64) as usize;
                    let Producer {
                        known,
                        before,
                        raises,
                        keeps,
                        is_two_phase,
                        phase,
                    } = world.producers[at];
                    let named = known.unwrap_or((0, 0));
                    match phase {
                        Phase::Beginning => {
                            let mut request = world.bench.init_request(known);
                            if let Request::Init(init) = &mut request {
                                init.keep = keeps;
                                init.two_phase = is_two_phase.then(|| "flink".to_owned());
                            }
                            world.send(Asked::Init(at), request);
                        }
                        Phase::Open if roll(6) == 0 => {
                            let number = world.bench.number();
                            let request = Request::Prepare(Prepare {
                                handle: handle(named.0, named.1, number),
                                principal: "flink".into(),
                            });
                            world.send(Asked::Other, request);
                        }
                        Phase::Kept | Phase::Open if roll(3) == 0 => {
                            let commit = roll(2) == 0;
                            let member = member(named.0, named.1);
                            let request = Request::End(End {
                                member,
                                commit,
                                number: None,
                                raise: raises.then_some(-1),
                            });
                            world.send(Asked::End(at, commit), request);
                        }
                        Phase::Idle | Phase::Open if before.is_some() && roll(4) == 0 => {
                            let (producer, epoch) = before.expect("it had another");
                            let parts = [part(roll(3) as u32)].into();
                            let request = Request::Add(member(producer, epoch), parts);
                            world.send(Asked::Late, request);
                        }
                        // What is kept takes nothing; if it did, its marker would not be of these batches.
                        Phase::Idle | Phase::Open | Phase::Kept => {
                            let partition = roll(3) as u32;
                            let parts = [part(partition)].into();
                            let request = Request::Add(member(named.0, named.1), parts);
                            world.send(Asked::Add(at, partition), request);
                        }
                        Phase::Over => {}
                    }
                }
                _ => {}
            }
        }
        // Nothing fails any more: everything that is open ends.
        world.bench.now += 2 * TIMEOUT_MS as u64;
        for _ in 0..4 {
            let now = world.bench.now;
            let step = world.bench.coordinator.tick(now, &world.bench.stream);
            world.steps.push_back(step);
            prepared += world.end_prepared();
            world.send(Asked::Decided, Request::Decided);
            while !world.steps.is_empty() || !world.flying.is_empty() {
                while !world.steps.is_empty() {
                    world.settle();
                }
                while !world.flying.is_empty() {
                    world.deliver(0, false, true);
                }
            }
        }
        assert!(!world.bench.coordinator.has_decided(), "seed {seed}");
        kept += world.kept;
        let mut outcomes: BTreeMap<u64, bool> = world.told.clone();
        for lane in &world.lanes {
            assert_eq!(lane.open, None, "seed {seed}: nobody ends it");
            for (number, commit) in &lane.outcomes {
                let known = outcomes.insert(*number, *commit);
                assert!(known.is_none_or(|known| known == *commit), "seed {seed}");
                ended += 1;
            }
        }
    }
    assert!(ended > 1_000, "{ended} transactions ended");
    assert!(kept > 50, "{kept} were kept");
    assert!(prepared > 10, "{prepared} were prepared to the end");
}
