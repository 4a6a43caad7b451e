//! What goes wrong: one thing after the other, each for a while, and several at once.

use std::sync::Arc;
use std::time::Duration;

use kera_history::Event;

use crate::brokers::Brokers;
use crate::dice::Dice;
use crate::load::Load;
use crate::os::{self, DiskTrouble};
use crate::store::Store;

/// A fault, and whom it is about.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It ends where it stands; it is started again when the fault is over.
    Killed(u32),
    /// Its machine loses its power: with the process goes what was in shared memory.
    PowerLost(u32),
    /// Its machine burns down, and another takes its place with its number.
    DiskLost(u32),
    /// All of them at once.
    AllKilled,
    /// It is asked to stop: it hands over, and comes back.
    Rolled(u32),
    /// Stopped and, later, let go on.
    Paused(u32),
    /// Nothing gets from either to the other.
    Parted(u32, u32),
    /// Nothing gets from the first to the second.
    OneWay(u32, u32),
    /// It does not reach the store.
    NoStore(u32),
    /// It reaches no other broker and not the store; clients reach it.
    Alone(u32),
    /// No client reaches it; brokers do.
    NoClients(u32),
    /// The store forgets what was changed.
    Compacted,
    /// Nobody reaches the store.
    StoreAway,
    /// Its wall clock jumps by so many seconds and, later, back.
    ClockJumps(u32, i64),
    /// Its disk is full.
    DiskFull(u32),
    /// Of 1,000 writes to its disk so many fail.
    WritesFail(u32, u64),
    /// Of 1,000 flushes of its disk so many fail.
    FlushesFail(u32, u64),
    /// So many bits of what lies on its disk are others, from one moment to the next.
    Rots(u32, u64),
}

/// The first and last machine with clients.
pub const CLIENTS: std::ops::RangeInclusive<u32> = 101..=120;

/// Does what is wrong, and undoes it.
pub struct Faults {
    pub brokers: Arc<Brokers>,
    pub store: Arc<Store>,
    pub load: Arc<Load>,
    dice: Dice,
    /// The one machine that may lose what it holds: each record is on another one as well.
    weak: u32,
    losses: bool,
    /// Decides what disks do wrong, where they do; apart from the rest.
    disks: Option<Dice>,
    /// Those that last, and when they are over.
    now: Vec<Lasting>,
    /// How many were drawn, and which of them are left out.
    drawn: u32,
    without: Vec<u32>,
}

/// A fault that lasts.
struct Lasting {
    until: Duration,
    fault: Fault,
    /// It does not happen. What it is about is left alone all the same, so that no other takes its place.
    left_out: bool,
}

impl Faults {
    /// Those of `seed`, with `losses` of one machine or not, `without` some of them.
    pub fn new(
        seed: u64,
        brokers: Arc<Brokers>,
        store: Arc<Store>,
        load: Arc<Load>,
        losses: bool,
        without: &[u32],
    ) -> Self {
        let mut dice = Dice::new(seed, "faults");
        let weak = *dice.one(&brokers.all());
        let disks = load.plan.failing_disks.then(|| Dice::new(seed, "disks"));
        Self {
            brokers,
            store,
            load,
            dice,
            weak,
            disks,
            losses,
            now: Vec::new(),
            drawn: 0,
            without: without.to_vec(),
        }
    }

    /// How many were drawn, with those that were left out.
    pub fn drawn(&self) -> u32 {
        self.drawn
    }

    /// Until `until`, with pauses of `between` at most.
    pub fn play(&mut self, until: Duration, between: Duration) {
        let mut next = os::now() + self.pause(between);
        while os::now() < until {
            os::sleep(Duration::from_millis(10));
            self.end_those_that_are_over(os::now());
            self.start_what_has_ended();
            if os::now() >= next {
                self.begin_one();
                next = os::now() + self.pause(between);
            }
        }
    }

    /// All is well from now on: what was killed starts.
    pub fn heal(&mut self) {
        self.end_those_that_are_over(Duration::MAX);
        os::heal();
        for broker in self.brokers.all() {
            self.store.set_away(broker, false);
        }
        os::log("all is healed");
        self.start_what_has_ended();
    }

    /// Starts what has stopped by itself, as whoever runs it does.
    pub fn start_what_has_ended(&mut self) {
        for broker in self.brokers.all() {
            let is_meant = self
                .now
                .iter()
                .any(|one| !one.left_out && is_down(one.fault) == Some(broker));
            if self.brokers.has_ended(broker) {
                self.brokers.clear(broker);
            }
            if !self.brokers.runs(broker) && !is_meant {
                self.brokers.start(broker);
            }
        }
    }

    fn pause(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.dice.below(longest.as_micros() as u64 + 1))
    }

    fn begin_one(&mut self) {
        let chosen = self.choose();
        let fault = self.of_a_disk().unwrap_or(chosen);
        let lasts = *self.dice.one(&[50, 500, 2_000, 7_000, 12_000]);
        let lasts = Duration::from_millis(self.dice.between(1, lasts));
        self.drawn += 1;
        if self.now.iter().any(|now| touch(now.fault) == touch(fault)) {
            return;
        }
        let left_out = self.without.contains(&self.drawn);
        if !left_out {
            os::log(&format!("FAULT {}: {fault:?}", self.drawn));
            self.begin(fault);
        }
        self.now.push(Lasting {
            until: os::now() + lasts,
            fault,
            left_out,
        });
    }

    fn choose(&mut self) -> Fault {
        let all = self.brokers.all();
        let dice = &mut self.dice;
        let one = *dice.one(&all);
        let other = *dice.one(&all);
        // The last three are losses.
        match dice.below(if self.losses { 26 } else { 23 }) {
            0..=5 => Fault::Killed(one),
            6 => Fault::AllKilled,
            7..=8 => Fault::Rolled(one),
            9..=10 => Fault::Paused(one),
            11..=12 if one != other => Fault::Parted(one, other),
            13..=14 if one != other => Fault::OneWay(one, other),
            15..=16 => Fault::NoStore(one),
            17..=18 => Fault::Alone(one),
            19 => Fault::NoClients(one),
            20 => Fault::Compacted,
            21 => Fault::StoreAway,
            22 => {
                let far = dice.between(1, 48 * 3600) as i64;
                Fault::ClockJumps(one, if dice.chance(500) { far } else { -far })
            }
            23..=24 => Fault::PowerLost(self.weak),
            25 => Fault::DiskLost(self.weak),
            _ => Fault::Killed(one),
        }
    }

    /// Now and then it is a disk.
    fn of_a_disk(&mut self) -> Option<Fault> {
        let dice = self.disks.as_mut()?;
        if !dice.chance(350) {
            return None;
        }
        let one = *dice.one(&self.brokers.all());
        let of_1000 = *dice.one(&[1_000, 200, 20]);
        // The last two are losses.
        Some(match dice.below(if self.losses { 8 } else { 6 }) {
            0..=1 => Fault::DiskFull(one),
            2..=3 => Fault::WritesFail(one, of_1000),
            4..=5 => Fault::FlushesFail(one, of_1000),
            _ => Fault::Rots(self.weak, dice.between(1, 3)),
        })
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Killed(broker) => self.kill(broker),
            Fault::PowerLost(broker) => {
                self.kill(broker);
                self.brokers.lose_memory(broker);
            }
            Fault::DiskLost(broker) => {
                self.kill(broker);
                self.brokers.lose_everything(broker);
            }
            Fault::AllKilled => self
                .brokers
                .all()
                .into_iter()
                .for_each(|broker| self.kill(broker)),
            Fault::Rolled(broker) => {
                self.load.record(Event::BrokerStopped);
                self.brokers.ask_to_stop(broker);
            }
            Fault::Paused(broker) => self.brokers.pause(broker, true),
            Fault::Compacted => self.store.compact(),
            Fault::ClockJumps(broker, seconds) => os::wall_skew(broker, seconds * 1_000_000_000),
            Fault::DiskFull(broker) => trouble(broker, true, 0, 0),
            Fault::WritesFail(broker, of_1000) => trouble(broker, false, of_1000, 0),
            Fault::FlushesFail(broker, of_1000) => trouble(broker, false, 0, of_1000),
            Fault::Rots(broker, bits) => {
                if let Some(dice) = &mut self.disks {
                    for _ in 0..bits {
                        self.brokers.rot(broker, dice);
                    }
                }
            }
            _ => self.cuts(fault, os::cut, true),
        }
    }

    fn end(&mut self, fault: Fault) {
        os::log(&format!("over: {fault:?}"));
        match fault {
            // What ended is started by whoever looks after it.
            Fault::Killed(_) | Fault::PowerLost(_) | Fault::DiskLost(_) => {}
            Fault::AllKilled | Fault::Rolled(_) | Fault::Compacted | Fault::Rots(..) => {}
            Fault::DiskFull(broker) => trouble(broker, false, 0, 0),
            Fault::WritesFail(broker, _) => trouble(broker, false, 0, 0),
            Fault::FlushesFail(broker, _) => trouble(broker, false, 0, 0),
            Fault::Paused(broker) => self.brokers.pause(broker, false),
            Fault::ClockJumps(broker, _) => os::wall_skew(broker, 0),
            _ => self.cuts(fault, os::uncut, false),
        }
    }

    fn kill(&self, broker: u32) {
        self.load.record(Event::BrokerKilled);
        self.brokers.kill(broker);
    }

    fn cuts(&self, fault: Fault, change: fn(u32, u32), away: bool) {
        let both = |a: u32, b: u32| {
            change(a, b);
            change(b, a);
        };
        match fault {
            Fault::Parted(one, other) => both(one, other),
            Fault::OneWay(from, to) => change(from, to),
            Fault::NoStore(broker) => self.store.set_away(broker, away),
            Fault::StoreAway => self
                .brokers
                .all()
                .into_iter()
                .for_each(|broker| self.store.set_away(broker, away)),
            Fault::NoClients(broker) => CLIENTS.for_each(|client| both(broker, client)),
            Fault::Alone(broker) => {
                self.store.set_away(broker, away);
                let others = self
                    .brokers
                    .all()
                    .into_iter()
                    .filter(|other| *other != broker);
                others.for_each(|other| both(broker, other));
            }
            _ => {}
        }
    }

    fn end_those_that_are_over(&mut self, now: Duration) {
        let mut over = Vec::new();
        for one in self.now.extract_if(.., |one| one.until <= now) {
            if !one.left_out {
                over.push(one.fault);
            }
        }
        for fault in over {
            self.end(fault);
        }
    }
}

fn trouble(broker: u32, full: bool, writes: u64, flushes: u64) {
    let trouble = DiskTrouble {
        full,
        writes,
        flushes,
    };
    os::set_trouble(broker, trouble);
}

/// The broker that is not to run while a fault lasts.
fn is_down(fault: Fault) -> Option<u32> {
    match fault {
        Fault::Killed(one) | Fault::PowerLost(one) | Fault::DiskLost(one) => Some(one),
        _ => None,
    }
}

/// What a fault is about: there is one at a time.
fn touch(fault: Fault) -> (u32, u32) {
    match fault {
        Fault::Killed(one) | Fault::Rolled(one) | Fault::Paused(one) => (1, one),
        Fault::PowerLost(one) | Fault::DiskLost(one) => (1, one),
        Fault::NoStore(one) | Fault::Alone(one) | Fault::NoClients(one) => (2, one),
        Fault::Parted(..) | Fault::OneWay(..) => (3, 0),
        Fault::StoreAway => (2, 0),
        Fault::AllKilled => (4, 0),
        Fault::Compacted => (5, 0),
        Fault::ClockJumps(one, _) => (6, one),
        Fault::DiskFull(one) | Fault::WritesFail(one, _) => (7, one),
        Fault::FlushesFail(one, _) | Fault::Rots(one, _) => (7, one),
    }
}
