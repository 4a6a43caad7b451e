//! Turns: while some user has a latency objective, requests of others wait until there is room for them.
//!
//! A connection asks for a turn before it takes an append, serves a read or takes a request of a Kafka client, and gives it back by
//! saying what that cost. Who does not get one at once waits with a ticket; its bell is rung. Without an objective nobody asks.

mod cost;
mod machine;
mod metrics;
mod seat;
mod tenants;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use kera_metadata::QuotasRecord;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::metrics::{Counter, Family, Labels};
pub(crate) use cost::Capacity;
use machine::{Class, Guarantee, Machine};
pub(crate) use metrics::register;
pub(crate) use seat::Seat;

const WAITS: u8 = 0;
const CRITICAL: u8 = 1;
const BEST_EFFORT: u8 = 2;

/// With which a connection waits for its turn.
#[derive(Debug)]
pub(crate) struct Ticket {
    user: Arc<str>,
    /// About what the request costs.
    estimate: f64,
    since: Instant,
    waker: Waker,
    state: AtomicU8,
}

impl Ticket {
    fn granted(&self) -> Option<Class> {
        match self.state.load(Ordering::Acquire) {
            CRITICAL => Some(Class::Critical),
            BEST_EFFORT => Some(Class::BestEffort),
            _ => None,
        }
    }

    fn grant(&self, class: Class) {
        let state = match class {
            Class::Critical => CRITICAL,
            Class::BestEffort => BEST_EFFORT,
        };
        self.state.store(state, Ordering::Release);
        self.waker.wake_by_ref();
    }
}

/// An objective, as answers are measured by it.
#[derive(Clone, Debug)]
struct Measured {
    user: Arc<str>,
    latency: Duration,
    met: Counter,
    late: Counter,
}

/// All turns of a broker.
pub(crate) struct Turns {
    /// Some user has an objective.
    is_on: AtomicBool,
    pub(crate) capacity: Capacity,
    machine: Mutex<Machine>,
    measured: ArcSwap<Vec<Measured>>,
    /// Of the objectives.
    revision: Mutex<u64>,
    /// Somebody begins to wait.
    begun: Notify,
    /// Answers to users with an objective, by whether they came in time.
    pub(crate) answers: Family<Labels, Counter>,
    /// Tokens taken, by class.
    pub(crate) tokens: Family<Labels, Counter>,
    /// The same, as it is counted.
    of_critical: Counter,
    of_best_effort: Counter,
    pub(crate) waits: Counter,
    pub(crate) waited_us: Counter,
    /// Hundredths of what clients may use that are guaranteed.
    pub(crate) guaranteed_percent: AtomicU64,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl Turns {
    /// Nobody has an objective yet.
    pub(crate) fn new(capacity: Capacity) -> Self {
        let tokens = Family::<Labels, Counter>::default();
        let of = |class| tokens.get_or_create_owned(&vec![("class", class)]);
        Self {
            of_critical: of("critical".to_owned()),
            of_best_effort: of("best_effort".to_owned()),
            is_on: AtomicBool::new(false),
            machine: Mutex::new(Machine::new(capacity.rate, Instant::now())),
            capacity,
            measured: ArcSwap::default(),
            revision: Mutex::new(0),
            begun: Notify::new(),
            answers: Family::default(),
            tokens,
            waits: Counter::default(),
            waited_us: Counter::default(),
            guaranteed_percent: AtomicU64::new(0),
        }
    }

    /// Takes in the objectives that are recorded, unless something newer is known.
    pub(crate) fn take(&self, record: &QuotasRecord) {
        let mut revision = self.revision.lock();
        if record.revision < *revision {
            return;
        }
        *revision = record.revision;
        let all = || cost::objectives(record).map(|(user, one)| (Arc::<str>::from(user), one));
        let guarantees = all().map(|(user, objective)| {
            let guarantee = Guarantee {
                rate: self.capacity.guaranteed(&objective),
                requests: objective.request_rate,
                latency: objective.latency_ms / 1e3,
            };
            (user, guarantee)
        });
        let guarantees: Vec<_> = guarantees.collect();
        let measured = all().map(|(user, objective)| {
            let counter = |result: &str| {
                let labels = vec![("user", user.to_string()), ("result", result.to_owned())];
                self.answers.get_or_create_owned(&labels)
            };
            Measured {
                latency: Duration::from_secs_f64((objective.latency_ms / 1e3).min(1e9)),
                met: counter("met"),
                late: counter("late"),
                user: user.clone(),
            }
        });
        self.measured.store(Arc::new(measured.collect()));
        let mut machine = self.machine.lock();
        machine.set(&guarantees, Instant::now());
        let percent = (machine.guaranteed() * 100.0).round() as u64;
        self.guaranteed_percent.store(percent, Ordering::Relaxed);
        self.is_on.store(!guarantees.is_empty(), Ordering::Release);
        // Without an objective nobody waits any more.
        self.grant(&mut machine);
    }

    /// True while some user has an objective.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.machine.lock().waiting() as u64
    }

    fn grant(&self, machine: &mut Machine) {
        let now = Instant::now();
        for (ticket, class) in machine.advance(now) {
            let waited = now.saturating_duration_since(ticket.since);
            let us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
            self.waited_us.inc_by(us);
            ticket.grant(class);
        }
    }

    /// Gives turns to those that wait, when tokens have come.
    pub(crate) async fn drive(self: Arc<Self>) {
        loop {
            self.begun.notified().await;
            loop {
                let pause = {
                    let mut machine = self.machine.lock();
                    self.grant(&mut machine);
                    machine.pause()
                };
                let Some(pause) = pause else { break };
                tokio::time::sleep(pause).await;
            }
        }
    }

    fn count(&self, class: Class, cost: f64) {
        let tokens = match class {
            Class::Critical => &self.of_critical,
            Class::BestEffort => &self.of_best_effort,
        };
        tokens.inc_by(cost.max(0.0) as u64);
    }
}
