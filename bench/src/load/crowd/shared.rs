//! What the threads of a load know of each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail, ensure};

use super::sides::{Rate, Side, Sides};
use super::{CATCH_UP, CAUGHT_UP, LOOK_EVERY};
use crate::load::acks::Acks;
use crate::load::arrivals::Arrivals;
use crate::load::{Done, Plan, SILENCE};
use crate::scenario::Work;

/// Records that a consumer counts by itself before it tells the others.
const PUBLISH_EVERY: u64 = 256;

/// One load.
pub(super) struct Shared<'a> {
    pub(super) plan: &'a Plan,
    pub(super) acks: Arc<Acks>,
    begin: OnceLock<Instant>,
    /// Records that only opened the way, as consumers saw them.
    opened: AtomicU64,
    /// Records that producers have handed over.
    sent: AtomicU64,
    /// Records that consumers have seen, of all subscriptions.
    arrived: AtomicU64,
    /// There before the run.
    backlog: AtomicU64,
    /// Known once everything is sent.
    total: OnceLock<u64>,
    /// Nanoseconds from the beginning: the last record handed over, the last one acknowledged, the
    /// last one seen by a consumer.
    handed: AtomicU64,
    acknowledged: AtomicU64,
    seen: AtomicU64,
    /// Whether consumers may read; changes wake those who wait.
    reading: Mutex<bool>,
    changed: Condvar,
    /// When reading began and how far it was when it had caught up.
    read_from: OnceLock<Instant>,
    caught_up: OnceLock<Side>,
    /// No more is to be sent.
    over: AtomicBool,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl<'a> Shared<'a> {
    pub(super) fn new(plan: &'a Plan) -> Result<Self> {
        // What is there before the run.
        let reads_first = matches!(plan.work, Work::CatchUp | Work::Consume);
        let backlog = if reads_first { plan.records } else { 0 };
        Ok(Self {
            plan,
            acks: Arc::new(Acks::new()?),
            begin: OnceLock::new(),
            opened: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            backlog: AtomicU64::new(backlog),
            total: OnceLock::new(),
            handed: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            reading: Mutex::new(!reads_first),
            changed: Condvar::new(),
            read_from: OnceLock::new(),
            caught_up: OnceLock::new(),
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        })
    }

    /// The partitions of each consumer of each subscription; those without any are left out.
    pub(super) fn readers(&self) -> Vec<Vec<u32>> {
        let crowd = &self.plan.crowd;
        if matches!(self.plan.work, Work::Trickle | Work::Produce) {
            return Vec::new();
        }
        let mut readers = Vec::new();
        for _ in 0..crowd.subscriptions {
            for consumer in 0..crowd.consumers.min(self.plan.partitions) {
                let partitions = consumer..self.plan.partitions;
                readers.push(partitions.step_by(crowd.consumers as usize).collect());
            }
        }
        readers
    }

    /// How many producers there are.
    pub(super) fn producers(&self) -> u32 {
        match self.plan.work {
            Work::Consume => 0,
            _ => self.plan.crowd.producers,
        }
    }

    /// How often every record is seen.
    fn times(&self) -> u64 {
        let crowd = &self.plan.crowd;
        if matches!(self.plan.work, Work::Trickle | Work::Produce) || crowd.consumers == 0 {
            0
        } else {
            u64::from(crowd.subscriptions)
        }
    }

    /// Runs a thread's work; if that fails, everyone ends.
    pub(super) fn guard<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match work() {
            Ok(done) => Ok(done),
            Err(error) => {
                let text = format!("{error:#}");
                let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(error);
                drop(first);
                self.failed.store(true, Relaxed);
                // Under the lock, so that nobody misses it between looking and waiting.
                let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
                self.changed.notify_all();
                Err(Error::msg(text))
            }
        }
    }

    /// What went wrong first.
    pub(super) fn first_error(&self) -> Option<Error> {
        let mut error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        error.take()
    }

    pub(super) fn begin(&self, begin: Instant) {
        let _ = self.begin.set(begin);
        self.acks.begin(begin);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begin.get().is_some()
    }

    /// Since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.begin.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn sent(&self, records: u64) {
        self.sent.fetch_add(records, Relaxed);
    }

    pub(super) fn last_sent(&self) {
        self.handed.fetch_max(self.nanos(), Relaxed);
    }

    pub(super) fn last_acknowledged(&self) {
        self.acknowledged.fetch_max(self.nanos(), Relaxed);
    }

    /// True if producers are to stop.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Relaxed) || self.failed.load(Relaxed)
    }

    /// All producers are done.
    pub(super) fn all_sent(&self) {
        let _ = self.total.set(self.sent.load(Relaxed));
    }

    pub(super) fn arrived(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// Records that consumers will have seen at the end, as far as it is known.
    pub(super) fn expected(&self) -> u64 {
        let sent = self.total.get().copied();
        let sent = sent.unwrap_or_else(|| self.sent.load(Relaxed));
        (self.backlog.load(Relaxed) + sent) * self.times()
    }

    /// True once consumers have seen all there will be, or something failed.
    pub(super) fn is_read(&self) -> bool {
        let all = self.total.get().is_some() && self.arrived() >= self.expected();
        all || self.failed.load(Relaxed)
    }

    /// More was there before the run.
    pub(super) fn found_more(&self, records: u64) {
        self.backlog.fetch_add(records, Relaxed);
    }

    /// Waits until every subscription has seen so many records that open the way.
    pub(super) fn wait_until_opened(&self, records: u64) -> Result<()> {
        let begin = Instant::now();
        let mut guard = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        while self.opened.load(Relaxed) < records * self.times() {
            ensure!(!self.failed.load(Relaxed), "the way could not be opened");
            ensure!(begin.elapsed() < SILENCE, "the first records do not arrive");
            let waited = self.changed.wait_timeout(guard, LOOK_EVERY);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Lets the producers be alone for so long.
    pub(super) fn alone(&self, time: Duration) -> Result<()> {
        while let Some(left) = time.checked_sub(self.elapsed()).filter(|t| !t.is_zero()) {
            ensure!(!self.failed.load(Relaxed), "a producer failed");
            std::thread::park_timeout(left.min(LOOK_EVERY));
        }
        Ok(())
    }

    /// Lets consumers begin.
    pub(super) fn start_reading(&self) {
        self.acks.busy();
        let _ = self.read_from.set(Instant::now());
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits until consumers may begin; false if something failed before.
    pub(super) fn wait_for_start(&self) -> Result<bool> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        while !*reading {
            if self.failed.load(Relaxed) {
                return Ok(false);
            }
            reading = match self.changed.wait(reading) {
                Ok(reading) => reading,
                Err(_) => bail!("a thread panicked"),
            };
        }
        Ok(true)
    }

    /// A consumer is there that is to begin at once.
    pub(super) fn is_prepared(&self) {
        self.publish(1, 0);
    }

    /// Adds to what consumers have seen.
    fn publish(&self, opened: u64, arrived: u64) {
        if opened > 0 {
            self.opened.fetch_add(opened, Relaxed);
            let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            self.changed.notify_all();
        }
        if arrived > 0 {
            self.seen.fetch_max(self.nanos(), Relaxed);
            let all = self.arrived.fetch_add(arrived, Relaxed) + arrived;
            if self.plan.work == Work::CatchUp {
                self.look_whether_caught_up(all);
            }
        }
    }

    fn look_whether_caught_up(&self, arrived: u64) {
        let Some(from) = self.read_from.get() else {
            return;
        };
        let rate = self.plan.rate.unwrap_or(0) as f64;
        let behind = (rate * CAUGHT_UP.as_secs_f64()) as u64 * self.times();
        if arrived + behind >= self.expected() {
            let side = Side {
                records: arrived,
                seconds: from.elapsed().as_secs_f64(),
            };
            if self.caught_up.set(side).is_ok() {
                self.over.store(true, Relaxed);
            }
        } else if from.elapsed() > CATCH_UP && !self.failed.load(Relaxed) {
            let _ = self.guard(|| -> Result<()> {
                bail!("the consumers did not catch up within {CATCH_UP:?}")
            });
        }
    }

    /// What the load was.
    pub(super) fn done(&self, batches: &[f64], arrivals: &Arrivals) -> Done {
        let seconds = |nanos: &AtomicU64| nanos.load(Relaxed) as f64 / 1e9;
        let sent = match self.plan.work {
            Work::Consume => self.arrived(),
            _ => self.sent.load(Relaxed),
        };
        let paced = self.plan.rate.is_some();
        let both = !matches!(self.plan.work, Work::Produce | Work::Consume);
        let consumed = match self.caught_up.get() {
            Some(side) => Some(*side),
            None => (self.times() > 0).then(|| Side {
                records: self.arrived(),
                seconds: seconds(&self.seen),
            }),
        };
        let end = seconds(&self.acknowledged).max(seconds(&self.seen));
        Done {
            records: sent,
            bytes: sent * u64::from(self.plan.record_bytes),
            seconds: end,
            mean_batch_bytes: (!batches.is_empty())
                .then(|| batches.iter().sum::<f64>() / batches.len() as f64),
            latency: if paced && self.plan.work == Work::Latency {
                arrivals.latency()
            } else {
                None
            },
            // One side alone is the whole.
            sides: if both {
                Sides {
                    produced: Some(Side {
                        records: sent,
                        seconds: seconds(&self.acknowledged),
                    }),
                    consumed,
                    rate: self.plan.rate.map(|rate| Rate {
                        wanted: rate as f64,
                        reached: sent as f64 / seconds(&self.handed).max(1e-9),
                    }),
                    acks: self.acks.quiet(),
                    busy_acks: self.acks.when_busy(),
                    partitions: None,
                }
            } else {
                Sides::default()
            },
        }
    }
}

/// Where a consumer's records go.
pub(super) struct Sink<'a> {
    shared: &'a Shared<'a>,
    arrivals: Arrivals,
    /// Whether anyone looks at how late records are.
    timed: bool,
    now: Duration,
    /// What the others know of already.
    published: (u64, u64),
}

impl<'a> Sink<'a> {
    pub(super) fn new(shared: &'a Shared<'a>) -> Result<Self> {
        Ok(Self {
            shared,
            arrivals: Arrivals::new()?,
            timed: shared.plan.work == Work::Latency,
            now: Duration::ZERO,
            published: (0, 0),
        })
    }

    /// Records that follow have arrived just now.
    pub(super) fn now(&mut self) {
        if self.timed {
            self.now = self.shared.elapsed();
        }
    }

    /// Visits a record.
    pub(super) fn take(&mut self, value: &[u8]) -> Result<()> {
        if matches!(self.shared.plan.work, Work::CatchUp | Work::Consume) {
            // Records from before the run have no stamp, and those that opened the way are counted.
            self.arrivals.count(value)
        } else {
            self.arrivals.take_after(value, self.now)?;
        }
        if self.arrivals.arrived() - self.published.1 >= PUBLISH_EVERY {
            self.publish();
        }
        Ok(())
    }

    /// Tells the others how far it is.
    pub(super) fn publish(&mut self) {
        let (opened, arrived) = (self.arrivals.opened(), self.arrivals.arrived());
        self.shared
            .publish(opened - self.published.0, arrived - self.published.1);
        self.published = (opened, arrived);
    }

    pub(super) fn into_arrivals(self) -> Arrivals {
        self.arrivals
    }
}
