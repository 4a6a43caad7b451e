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
    /// What its last read cost: the next one is taken for as much.
    last_read: f64,
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
            last_read: 0.0,
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

    /// Whether the connection is to wait before it takes a request of `bytes`; `waker` is told when not any more.
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
        let estimate = turns.capacity.cost(metered, bytes);
        let estimate = match metered {
            Metered::Reads => estimate.max(self.last_read),
            _ => estimate,
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
            self.last_read = cost;
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
            machine.settle(&self.user, class, -estimate);
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
