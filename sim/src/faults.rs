//! What goes wrong: one thing after the other, each for a while, and several at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kera_history::Event;

use crate::brokers::Brokers;
use crate::dice::Dice;
use crate::fault::{Fault, is_about, is_down, is_late, takes_all, takes_nothing, touch};
use crate::inside;
use crate::load::{Load, PATIENCE};
use crate::newer::Power;
use crate::operations::{self, Operation};
use crate::os::{self, DiskTrouble};
use crate::store::{LEASE, Store};

/// The first and last machine with clients.
pub const CLIENTS: std::ops::RangeInclusive<u32> = 101..=120;
/// The same, of those of a share group.
pub const SHARE_CLIENTS: std::ops::RangeInclusive<u32> = 131..=135;

/// A broker that is away for no longer than this is missed by nobody.
const SOON: Duration = Duration::from_millis(100);
/// After so long without a fault, and with all brokers serving, what a fault took is made good.
const MADE_GOOD: Duration = Duration::from_secs(3);
/// So many brokers stay: as many as the replicas of a group.
const LEAST: usize = 3;

/// Does what is wrong, and undoes it.
pub struct Faults {
    pub brokers: Arc<Brokers>,
    pub store: Arc<Store>,
    pub load: Arc<Load>,
    seed: u64,
    dice: Dice,
    /// The one machine that may lose what it holds: each record is on another one as well.
    weak: u32,
    losses: bool,
    /// Decides what disks do wrong, where they do; apart from the rest.
    disks: Option<Dice>,
    /// Decides about power, leases and operators, in runs that have those.
    newer: Dice,
    /// What a loss of power takes.
    power: Dice,
    /// Brokers that are still to be restarted in turn.
    rolling: Vec<u32>,
    operators: Vec<JoinHandle<()>>,
    drained: BTreeSet<u32>,
    /// One is taken out, which is enough.
    removes: bool,
    /// Those that last, and when they are over.
    now: Vec<Lasting>,
    /// Machines that have lost something, or whose disks took nothing, and what they lacked may not be made good yet.
    lacking: BTreeSet<u32>,
    /// Since when no fault lasts, and all serve.
    calm: Duration,
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
        let restores = load.plan.newer.restores;
        let disks = load.plan.failing_disks.then(|| Dice::new(seed, "disks"));
        Self {
            brokers,
            store,
            load,
            seed,
            dice,
            weak,
            disks,
            newer: Dice::new(seed, "newer faults"),
            power: Dice::new(seed, "power"),
            rolling: Vec::new(),
            operators: Vec::new(),
            drained: BTreeSet::new(),
            removes: false,
            losses: losses && !restores,
            now: Vec::new(),
            lacking: BTreeSet::new(),
            calm: Duration::ZERO,
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
            self.look_whether_it_is_calm();
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
        let until = os::now() + PATIENCE;
        let are_busy = |faults: &Self| {
            let mut operators = faults.operators.iter();
            !faults.rolling.is_empty() || operators.any(|one| !one.is_finished())
        };
        while are_busy(self) && os::now() < until {
            os::sleep(Duration::from_millis(20));
            self.start_what_has_ended();
        }
        let drained = std::mem::take(&mut self.drained);
        self.operators = operations::end_drains(&self.load, drained.into_iter().collect());
    }

    /// Starts what has stopped by itself, as whoever runs it does.
    pub fn start_what_has_ended(&mut self) {
        for broker in self.brokers.all() {
            let is_meant = self
                .now
                .iter()
                .any(|one| !one.left_out && is_down(one.fault, broker));
            if self.brokers.has_ended(broker) {
                self.brokers.clear(broker);
            }
            if !self.brokers.runs(broker) && self.brokers.leaves(broker) {
                continue;
            }
            if !self.brokers.runs(broker) && !is_meant {
                self.brokers.start(broker);
            }
        }
        self.roll_on();
    }

    /// Restarts the next broker once all serve.
    fn roll_on(&mut self) {
        let all = self.brokers.all();
        let serve = || all.iter().all(|broker| self.brokers.serves(*broker));
        if self.rolling.is_empty() || !serve() {
            return;
        }
        if let Some(next) = self.rolling.pop() {
            self.load.record(Event::BrokerStopped);
            self.brokers.ask_to_stop(next);
        }
    }

    fn pause(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.dice.below(longest.as_micros() as u64 + 1))
    }

    fn begin_one(&mut self) {
        let chosen = self.choose();
        let fault = self.of_a_disk().unwrap_or(chosen);
        let fault = self.of_newer(fault);
        let lasts = *self.dice.one(&[50, 500, 2_000, 7_000, 12_000]);
        let mut lasts = Duration::from_millis(self.dice.between(1, lasts));
        if is_late(fault) {
            lasts += LEASE + Duration::from_secs(1);
        }
        if self.load.plan.newer.alone && matches!(fault, Fault::Killed(_)) {
            // It is back before others have taken over.
            lasts = lasts.min(SOON);
        }
        self.drawn += 1;
        if is_about(fault).is_some_and(|one| !self.brokers.all().contains(&one)) {
            return;
        }
        // Who counts itself as the owner and is not is told so by others, if nothing keeps them from it.
        let late = is_late(fault) || self.now.iter().any(|now| is_late(now.fault));
        if late && !self.now.is_empty()
            || self.now.iter().any(|now| touch(now.fault) == touch(fault))
            || self.is_one_too_many(fault)
        {
            return;
        }
        let left_out = self.without.contains(&self.drawn);
        if takes_nothing(fault) || takes_all(fault) {
            self.lacking.extend(is_about(fault));
        }
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

    /// Whether it takes what a machine holds, or keeps its disk from taking more, while another machine may still lack something: of
    /// two replicas that would be both.
    fn is_one_too_many(&self, fault: Fault) -> bool {
        let is_of_another = |one: &u32| is_about(fault) != Some(*one);
        let takes = takes_nothing(fault) || takes_all(fault);
        takes && self.lacking.iter().any(is_of_another) && self.load.plan.newer.power != Power::All
    }

    fn look_whether_it_is_calm(&mut self) {
        let now = os::now();
        let mut all = self.brokers.all().into_iter();
        if !self.now.is_empty() || !all.all(|broker| self.brokers.serves(broker)) {
            self.calm = now;
        } else if now.saturating_sub(self.calm) > MADE_GOOD {
            self.lacking.clear();
        }
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
        // The last two are losses, of one replica where each may be away.
        let rots = self.losses && self.load.plan.newer.power != Power::All;
        Some(match dice.below(if rots { 8 } else { 6 }) {
            0..=1 => Fault::DiskFull(one),
            2..=3 => Fault::WritesFail(one, of_1000),
            4..=5 => Fault::FlushesFail(one, of_1000),
            _ => Fault::Rots(self.weak, dice.between(1, 3)),
        })
    }

    /// Of what only some seeds have, or `chosen`.
    fn of_newer(&mut self, chosen: Fault) -> Fault {
        let newer = self.load.plan.newer;
        let dice = &mut self.newer;
        if newer == Default::default() {
            return chosen;
        }
        if newer.restores && dice.chance(350) {
            let all = self.brokers.all();
            // Whoever missed a restore takes the next one for it, as operations.md says: all have started since the last one.
            let serve = || all.iter().all(|broker| self.brokers.serves(*broker));
            return match serve() && self.store.can_be_put_back() && dice.chance(600) {
                true => Fault::PutBack,
                false => Fault::Snapshot,
            };
        }
        if newer.slow && dice.chance(200) {
            let all = self.brokers.all();
            let (from, to) = (*dice.one(&all), *dice.one(&all));
            return Fault::Slow(from, to, *dice.one(&[10, 100, 400]));
        }
        if newer.trims && dice.chance(150) {
            return Fault::Trimmed(dice.below(self.load.plan.streams.len() as u64) as u32);
        }
        let all = self.brokers.all();
        let one = *dice.one(&all);
        if newer.alone {
            return match chosen {
                Fault::Rolled(_) => Fault::Rolled(self.weak),
                Fault::Compacted | Fault::StoreAway | Fault::ClockJumps(..) => chosen,
                // Always the same one: beside its process there is a replica at the others.
                _ if dice.chance(400) => {
                    let mut others = all.iter().filter(|other| **other != self.weak);
                    Fault::Parted(self.weak, *others.next().unwrap_or(&one))
                }
                _ => Fault::Killed(self.weak),
            };
        }
        if newer.late_leases && dice.chance(600) {
            return Fault::LateLease(one);
        }
        if newer.power == Power::All && dice.chance(350) {
            return match dice.below(4) {
                0 => Fault::Blackout(None),
                1 => Fault::Blackout(Some(one)),
                _ => Fault::PowerLost(one),
            };
        }
        if newer.power == Power::One && self.losses && dice.chance(250) {
            return Fault::PowerLost(self.weak);
        }
        if newer.operations && dice.chance(400) {
            return match dice.below(8) {
                0..=2 => {
                    let stream = dice.below(self.load.plan.streams.len() as u64) as u32;
                    Fault::Moved(stream, one)
                }
                3..=4 => Fault::Drained(one),
                5..=6 => Fault::AllRolled,
                // The one that may lose what it holds stays.
                _ if all.len() > LEAST && !self.removes && one != self.weak => Fault::Removed(one),
                _ => Fault::Added,
            };
        }
        chosen
    }

    fn lose_power(&mut self, broker: u32) {
        self.kill(broker);
        let (brokers, store) = (&self.brokers, &self.store);
        let is_kept = self.load.plan.newer.power == Power::All;
        let flushed = is_kept.then(|| inside::flushed(brokers, store, broker));
        brokers.lose_memory(broker, &mut self.power);
        for record in flushed.into_iter().flatten() {
            inside::still_flushed(&self.load, brokers, broker, &record);
        }
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Killed(broker) => self.kill(broker),
            Fault::PowerLost(broker) => self.lose_power(broker),
            Fault::Blackout(spared) => {
                let all = self.brokers.all();
                let hit: Vec<_> = all.into_iter().filter(|one| Some(*one) != spared).collect();
                // All at once: nobody sees another one go.
                hit.iter().for_each(|broker| self.kill(*broker));
                hit.iter().for_each(|broker| self.lose_power(*broker));
            }
            Fault::LateLease(broker) => {
                self.store.make_late(broker);
                self.store.set_away(broker, true);
            }
            Fault::Moved(stream, to) => self.operate(Operation::Move { stream, to }),
            Fault::Drained(broker) => {
                self.drained.insert(broker);
                self.operate(Operation::Drain {
                    broker,
                    draining: true,
                });
            }
            Fault::AllRolled => self.rolling = self.brokers.all(),
            Fault::Added => self.brokers.add(),
            Fault::Removed(broker) => {
                self.removes = true;
                let removed = operations::remove(&self.load, &self.brokers, broker);
                self.operators.push(removed);
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
            Fault::Snapshot => self.store.take_snapshot(),
            Fault::PutBack => {
                let all = self.brokers.all();
                all.iter().for_each(|broker| self.kill(*broker));
                all.iter()
                    .for_each(|broker| self.brokers.forget_revision(*broker));
                self.store.put_back();
                self.load.note_put_back();
            }
            Fault::Slow(from, to, longer) => {
                os::slow_down(from, to, Duration::from_millis(longer));
            }
            Fault::Trimmed(stream) => {
                let dice = Dice::new(self.seed, &format!("trim {}", self.drawn));
                self.operators
                    .push(operations::trim(&self.load, stream, dice));
            }
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
            Fault::Killed(_) | Fault::PowerLost(_) | Fault::DiskLost(_) | Fault::Blackout(_) => {}
            Fault::Moved(..) | Fault::AllRolled | Fault::Added | Fault::Removed(_) => {}
            Fault::Snapshot | Fault::PutBack | Fault::Trimmed(_) => {}
            Fault::Slow(from, to, _) => os::slow_down(from, to, Duration::ZERO),
            Fault::Drained(broker) => self.operate(Operation::Drain {
                broker,
                draining: false,
            }),
            Fault::LateLease(broker) => self.store.set_away(broker, false),
            Fault::AllKilled | Fault::Rolled(_) | Fault::Compacted | Fault::Rots(..) => {}
            Fault::DiskFull(broker) => trouble(broker, false, 0, 0),
            Fault::WritesFail(broker, _) => trouble(broker, false, 0, 0),
            Fault::FlushesFail(broker, _) => trouble(broker, false, 0, 0),
            Fault::Paused(broker) => self.brokers.pause(broker, false),
            Fault::ClockJumps(broker, _) => os::wall_skew(broker, 0),
            _ => self.cuts(fault, os::uncut, false),
        }
    }

    fn operate(&mut self, operation: Operation) {
        let until = os::now() + Duration::from_secs(10);
        let asked = operations::ask(&self.load, operation, until);
        self.operators.push(asked);
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
            Fault::NoClients(broker) => {
                CLIENTS.for_each(|client| both(broker, client));
                if self.load.plan.shares.is_some() {
                    SHARE_CLIENTS.for_each(|client| both(broker, client));
                }
            }
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
