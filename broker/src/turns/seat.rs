//! What one connection has of turns.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::machine::Class;
use super::{Measured, Ticket, Turns, WAITS};
use crate::quotas::Metered;

/// One turn of a connection.
#[derive(Default)]
enum Turn {
    /// None, and none is wanted.
    #[default]
    Nothing,
    Waits(Arc<Ticket>),
    /// It may take one request, for which so much was taken.
    Has(Class, f64),
}

/// The turns of one connection: of appends and all else, and of reads, so that neither waits behind the other.
pub(crate) struct Seat {
    turns: Arc<Turns>,
    user: Arc<str>,
    own: [Turn; 2],
    /// What the next read may cost, as far as its last ones tell.
    expected: Option<f64>,
    measured: Option<Measured>,
}

fn at(metered: Metered) -> usize {
    usize::from(metered == Metered::Reads)
}

impl Seat {
    pub(crate) fn new(turns: Arc<Turns>, user: Arc<str>) -> Self {
        Self {
            turns,
            user,
            own: Default::default(),
            expected: None,
            measured: None,
        }
    }

    /// The objectives, or who the client is, have changed.
    pub(crate) fn renew(&mut self, user: &Arc<str>) {
        if self.user != *user {
            self.give_back();
            self.user = user.clone();
        }
        let all = self.turns.measured.load();
        self.measured = all.iter().find(|one| one.user == *user).cloned();
    }

    /// Whether the connection is to wait before it takes a request that appends `bytes`, or reads up to as many; `waker` is told when
    /// not any more.
    pub(crate) fn waits(&mut self, metered: Metered, bytes: usize, waker: &Waker) -> bool {
        let (turns, own) = (&self.turns, &mut self.own[at(metered)]);
        if !turns.is_on() {
            *own = Turn::Nothing;
            return false;
        }
        match own {
            Turn::Has(..) => return false,
            Turn::Waits(ticket) => {
                let Some(class) = ticket.granted() else {
                    return true;
                };
                *own = Turn::Has(class, ticket.estimate);
                return false;
            }
            Turn::Nothing => {}
        }
        let capacity = &turns.capacity;
        let estimate = match metered {
            Metered::Reads => {
                let asked = capacity.cost(metered, bytes.min(capacity.most_read()));
                let expected = match self.measured {
                    // What it did not foresee its own bucket owes.
                    Some(_) => self.expected.unwrap_or(0.0),
                    None => self.expected.unwrap_or(asked),
                };
                expected.min(asked).max(capacity.of_request())
            }
            _ => capacity.cost(metered, bytes),
        };
        let mut machine = turns.machine.lock();
        let now = Instant::now();
        if let Some(class) = machine.ask(&self.user, estimate, now) {
            *own = Turn::Has(class, estimate);
            return false;
        }
        let ticket = Arc::new(Ticket {
            user: self.user.clone(),
            estimate,
            since: now,
            waker: waker.clone(),
            state: AtomicU8::new(WAITS),
        });
        machine.wait(ticket.clone());
        // Objectives that have ended meanwhile let nobody go any more.
        if !turns.is_on() {
            turns.grant(&mut machine);
        }
        drop(machine);
        turns.waits.inc();
        turns.begun.notify_one();
        *own = Turn::Waits(ticket);
        true
    }

    /// True if it waits, as far as it has asked.
    pub(crate) fn is_waiting(&self, metered: Metered) -> bool {
        let own = &self.own[at(metered)];
        matches!(own, Turn::Waits(ticket) if ticket.granted().is_none())
    }

    /// A request was taken, with a turn or without: what it cost is charged.
    pub(crate) fn charge(&mut self, metered: Metered, bytes: usize) {
        let (turns, own) = (&self.turns, &mut self.own[at(metered)]);
        if !turns.is_on() {
            return;
        }
        let cost = turns.capacity.cost(metered, bytes);
        if metered == Metered::Reads {
            // Reads that bring little in between hide no large ones.
            let before = match self.measured {
                Some(_) => 0.0,
                None => self.expected.unwrap_or(0.0) / 2.0,
            };
            self.expected = Some(cost.max(before));
        }
        let has = match own {
            Turn::Has(class, estimate) => Some((*class, *estimate)),
            Turn::Waits(ticket) => ticket.granted().map(|class| (class, ticket.estimate)),
            Turn::Nothing => None,
        };
        let mut machine = turns.machine.lock();
        let class = match has {
            Some((class, estimate)) => {
                machine.settle(&self.user, class, cost - estimate);
                *own = Turn::Nothing;
                class
            }
            // One that waits goes on waiting, with something else.
            None => machine.force(&self.user, cost, Instant::now()),
        };
        if machine.waiting() > 0 {
            turns.grant(&mut machine);
        }
        drop(machine);
        turns.count(class, cost);
    }

    /// Something was answered that took so long.
    pub(crate) fn answered(&self, took: Duration) {
        if let Some(measured) = &self.measured {
            match took <= measured.latency {
                true => measured.met.inc(),
                false => measured.late.inc(),
            };
        }
    }

    /// There is nothing to read yet: the connection keeps its turn, and what was taken for bytes is for others.
    pub(crate) fn found_nothing(&mut self) {
        let (turns, own) = (&self.turns, &mut self.own[at(Metered::Reads)]);
        let Turn::Has(class, estimate) = own else {
            return;
        };
        let request = turns.capacity.of_request();
        if *estimate <= request {
            return;
        }
        let mut machine = turns.machine.lock();
        machine.settle(&self.user, *class, request - *estimate);
        turns.grant(&mut machine);
        drop(machine);
        *estimate = request;
    }

    /// Bytes that one answer to a read may bring.
    pub(crate) fn most_read(&self) -> usize {
        match self.turns.is_on() {
            true => self.turns.capacity.most_read(),
            false => usize::MAX,
        }
    }

    /// What was taken for turns that are not used any more is for others.
    fn give_back(&mut self) {
        for own in &mut self.own {
            let own = std::mem::take(own);
            if matches!(own, Turn::Nothing) {
                continue;
            }
            let mut machine = self.turns.machine.lock();
            let (class, estimate) = match own {
                Turn::Has(class, estimate) => (class, estimate),
                // Looked at under the lock: it may be granted at this moment.
                Turn::Waits(ticket) if !machine.leave(&ticket) => {
                    let class = ticket.granted().unwrap_or(Class::BestEffort);
                    (class, ticket.estimate)
                }
                Turn::Waits(_) | Turn::Nothing => continue,
            };
            let kept = match class {
                // It was the user's own.
                Class::Critical => 0.0,
                // Free turns would put a user that takes and drops them before all others, again and again.
                Class::BestEffort => self.turns.capacity.of_request(),
            };
            machine.settle(&self.user, class, kept - estimate);
            self.turns.grant(&mut machine);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
#[path = "seat_tests.rs"]
mod tests;
