//! What the threads of a load know of each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail, ensure};

use crate::acks::Acks;
use crate::arrivals::Arrivals;
use crate::sides::{Rate, Side, Sides};
use crate::waiting::{LOOK_EVERY, SILENCE, wait_until};
use crate::{Done, Load, Work};

/// A reader has caught up when it is no more than this behind.
const CAUGHT_UP: Duration = Duration::from_millis(50);
/// How long catching up may take.
const CATCH_UP: Duration = Duration::from_secs(180);

/// Records that a consumer counts by itself before it tells the others.
const PUBLISH_EVERY: u64 = 256;

/// How long a group is at work before anything counts.
const WARM: Duration = Duration::from_millis(500);

/// One load.
pub(crate) struct LoadProgress<'a> {
    pub(crate) load: &'a Load,
    pub(crate) acks: Arc<Acks>,
    begin: OnceLock<Instant>,
    /// Records that only opened the way, as consumers saw them; or consumers that are prepared.
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
    /// Of a group that shares: when the first record was given to a member, and records that count.
    shared_from: OnceLock<Instant>,
    shared: AtomicU64,
    /// No more is to be sent.
    over: AtomicBool,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl<'a> LoadProgress<'a> {
    pub(crate) fn new(load: &'a Load) -> Self {
        // What is there before the run.
        let reads_first = !matches!(load.work, Work::Produce | Work::Both | Work::Trickle);
        let backlog = if reads_first { load.records } else { 0 };
        Self {
            load,
            acks: Arc::new(Acks::new(load.cold())),
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
            shared_from: OnceLock::new(),
            shared: AtomicU64::new(0),
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// The partitions of each consumer of each subscription; those without any are left out.
    pub(crate) fn readers(&self) -> Vec<Vec<u32>> {
        let load = self.load;
        let (partitions, consumers) = (load.partitions, load.consumers);
        if self.times() == 0 {
            return Vec::new();
        }
        let part = |consumer| match load.group {
            true => (0..partitions).collect(),
            false => (consumer..partitions).step_by(consumers as usize).collect(),
        };
        let one: Vec<Vec<u32>> = (0..consumers)
            .map(part)
            .filter(|partitions: &Vec<u32>| !partitions.is_empty())
            .collect();
        vec![one; load.subscriptions as usize].concat()
    }

    /// How many producers there are.
    pub(crate) fn producers(&self) -> u32 {
        match self.load.work {
            Work::Consume | Work::Share => 0,
            _ => self.load.producers,
        }
    }

    /// How often every record is seen.
    fn times(&self) -> u64 {
        let load = self.load;
        if matches!(load.work, Work::Trickle | Work::Produce) || load.consumers == 0 {
            0
        } else {
            u64::from(load.subscriptions)
        }
    }

    /// Runs a thread's work; if that fails, everyone ends.
    pub(crate) fn guard<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
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
    pub(crate) fn first_error(&self) -> Option<Error> {
        let mut error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        error.take()
    }

    pub(crate) fn begin(&self, begin: Instant) {
        let _ = self.begin.set(begin);
        self.acks.begin(begin);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begin.get().is_some()
    }

    /// Since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn sent(&self, records: u64) {
        self.sent.fetch_add(records, Relaxed);
    }

    pub(crate) fn last_sent(&self) {
        self.handed.fetch_max(self.nanos(), Relaxed);
    }

    pub(crate) fn last_acknowledged(&self) {
        self.acknowledged.fetch_max(self.nanos(), Relaxed);
    }

    /// True if producers are to stop.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed) || self.failed.load(Relaxed)
    }

    /// All producers are done.
    pub(crate) fn all_sent(&self) {
        let _ = self.total.set(self.sent.load(Relaxed));
    }

    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// Records that consumers will have seen at the end, as far as it is known.
    pub(crate) fn expected(&self) -> u64 {
        let sent = self.total.get().copied();
        let sent = sent.unwrap_or_else(|| self.sent.load(Relaxed));
        (self.backlog.load(Relaxed) + sent) * self.times()
    }

    /// True once consumers have seen all there will be, or something failed.
    pub(crate) fn is_read(&self) -> bool {
        let all = match self.load.work {
            Work::Share => self.shared_until().is_some_and(|end| Instant::now() >= end),
            _ => self.total.get().is_some() && self.arrived() >= self.expected(),
        };
        all || self.failed.load(Relaxed)
    }

    /// When the time of a group that shares is up; `None` until a member was given a record.
    fn shared_until(&self) -> Option<Instant> {
        let first = self.shared_from.get()?;
        Some(*first + WARM + self.load.time.unwrap_or_default())
    }

    /// Works on a record that was given to a member of a group that shares, unless time is up.
    fn share(&self) {
        let first = *self.shared_from.get_or_init(Instant::now);
        if self.is_read() {
            return;
        }
        if !self.load.busy.is_zero() {
            wait_until(Instant::now() + self.load.busy);
        }
        if first.elapsed() >= WARM && !self.is_read() {
            self.shared.fetch_add(1, Relaxed);
        }
    }

    /// More was there before the run.
    pub(crate) fn found_more(&self, records: u64) {
        self.backlog.fetch_add(records, Relaxed);
    }

    /// Waits until every subscription has seen so many records that open the way.
    pub(crate) fn wait_until_opened(&self, records: u64) -> Result<()> {
        self.wait_for_opened(records * self.times())
    }

    /// Waits until all consumers are prepared.
    pub(crate) fn wait_until_prepared(&self) -> Result<()> {
        self.wait_for_opened(self.readers().len() as u64)
    }

    fn wait_for_opened(&self, number: u64) -> Result<()> {
        let begin = Instant::now();
        let mut guard = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        while self.opened.load(Relaxed) < number {
            ensure!(!self.failed.load(Relaxed), "the way could not be opened");
            ensure!(
                begin.elapsed() < SILENCE,
                "consumers are not ready, or the first records do not arrive"
            );
            let waited = self.changed.wait_timeout(guard, LOOK_EVERY);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Lets the producers be alone for so long.
    pub(crate) fn alone(&self, time: Duration) -> Result<()> {
        while let Some(left) = time.checked_sub(self.elapsed()).filter(|t| !t.is_zero()) {
            ensure!(!self.failed.load(Relaxed), "a producer failed");
            std::thread::park_timeout(left.min(LOOK_EVERY));
        }
        Ok(())
    }

    /// Lets consumers begin.
    pub(crate) fn start_reading(&self) {
        self.acks.busy();
        let _ = self.read_from.set(Instant::now());
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits until consumers may begin; false if something failed before.
    pub(crate) fn wait_for_start(&self) -> Result<bool> {
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
    pub(crate) fn is_prepared(&self) {
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
            if self.load.work == Work::CatchUp {
                self.look_whether_caught_up(all);
            }
        }
    }

    fn look_whether_caught_up(&self, arrived: u64) {
        let Some(from) = self.read_from.get() else {
            return;
        };
        let rate = self.load.rate.unwrap_or(0) as f64;
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
    pub(crate) fn done(&self, batches: &[f64], arrivals: &Arrivals) -> Done {
        let seconds = |nanos: &AtomicU64| nanos.load(Relaxed) as f64 / 1e9;
        let sent = self.sent.load(Relaxed);
        let (acknowledged, seen) = (seconds(&self.acknowledged), seconds(&self.seen));
        let shared = self.shared.load(Relaxed);
        let (records, bytes) = match self.load.work {
            Work::Consume => (self.arrived(), arrivals.bytes()),
            Work::Share => (shared, shared * u64::from(self.load.record_bytes)),
            _ => (sent, sent * u64::from(self.load.record_bytes)),
        };
        let consumed = match self.caught_up.get() {
            Some(side) => Some(*side),
            None => (self.times() > 0).then(|| Side {
                records: self.arrived(),
                seconds: seen,
            }),
        };
        Done {
            records,
            bytes,
            seconds: match self.load.work {
                Work::Share => self.load.time.unwrap_or_default().as_secs_f64(),
                _ => acknowledged.max(seen),
            },
            mean_batch_bytes: (!batches.is_empty())
                .then(|| batches.iter().sum::<f64>() / batches.len() as f64),
            latency: arrivals.latency().filter(|_| self.load.timed),
            sides: Sides {
                produced: (self.producers() > 0).then_some(Side {
                    records: sent,
                    seconds: acknowledged,
                }),
                consumed,
                rate: self.load.rate.map(|rate| Rate {
                    wanted: rate as f64,
                    reached: sent as f64 / seconds(&self.handed).max(1e-9),
                }),
                acks: self.acks.quiet(),
                busy_acks: self.acks.when_busy(),
                partitions: None,
            },
        }
    }
}

/// Where a consumer's records go.
pub struct Sink<'a> {
    progress: &'a LoadProgress<'a>,
    arrivals: Arrivals,
    /// Whether anyone looks at how late records are.
    timed: bool,
    now: Duration,
    /// What the others know of already.
    published: (u64, u64),
}

impl<'a> Sink<'a> {
    pub(crate) fn new(progress: &'a LoadProgress<'a>) -> Self {
        Self {
            progress,
            arrivals: Arrivals::new(progress.load.cold()),
            timed: progress.load.timed,
            now: Duration::ZERO,
            published: (0, 0),
        }
    }

    /// Records that follow have arrived just now.
    pub fn now(&mut self) {
        if self.timed {
            self.now = self.progress.elapsed();
        }
    }

    /// Visits a record, with so many bytes of a key besides.
    ///
    /// # Errors
    /// If its value is to have a stamp and has none.
    pub fn take(&mut self, key_bytes: usize, value: &[u8]) -> Result<()> {
        let work = self.progress.load.work;
        if matches!(work, Work::CatchUp | Work::Consume | Work::Share) {
            // Records from before the run have no stamp, and those that opened the way are counted.
            self.arrivals.count(key_bytes + value.len());
        } else {
            self.arrivals.take_after(value, self.now)?;
        }
        if work == Work::Share {
            self.progress.share();
        }
        if self.arrivals.arrived() - self.published.1 >= PUBLISH_EVERY {
            self.publish();
        }
        Ok(())
    }

    /// Tells the others how far it is.
    pub(crate) fn publish(&mut self) {
        let (opened, arrived) = (self.arrivals.opened(), self.arrivals.arrived());
        self.progress
            .publish(opened - self.published.0, arrived - self.published.1);
        self.published = (opened, arrived);
    }

    pub(crate) fn into_arrivals(self) -> Arrivals {
        self.arrivals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sharing(time: Duration) -> Load {
        Load {
            work: Work::Share,
            time: Some(time),
            group: true,
            consumers: 3,
            partitions: 2,
            ..Load::of_producers(1, 100)
        }
    }

    #[test]
    fn members_of_a_group_are_given_all_partitions_and_readers_their_part() {
        let group = sharing(Duration::ZERO);
        let all = LoadProgress::new(&group).readers();
        assert_eq!(all, vec![vec![0, 1]; 3]);
        let assigned = Load {
            work: Work::Both,
            group: false,
            subscriptions: 2,
            ..group
        };
        let parts = LoadProgress::new(&assigned).readers();
        // The third has none.
        assert_eq!(parts, [[0], [1], [0], [1]]);
    }

    #[test]
    fn only_records_of_the_time_count() {
        let load = sharing(Duration::from_secs(600));
        let progress = LoadProgress::new(&load);
        let mut sink = Sink::new(&progress);
        assert_eq!(progress.shared_until(), None);
        // The first record begins it and does not count.
        sink.take(0, b"value").unwrap();
        assert!(progress.shared_until().is_some() && !progress.is_read());
        assert_eq!(progress.done(&[], &sink.arrivals).records, 0);

        let earlier = LoadProgress::new(&load);
        let begun = Instant::now().checked_sub(WARM).unwrap();
        earlier.shared_from.set(begun).unwrap();
        let mut sink = Sink::new(&earlier);
        sink.take(0, b"value").unwrap();
        let done = earlier.done(&[], &sink.arrivals);
        assert_eq!((done.records, done.bytes), (1, 100));
        assert!((done.seconds - 600.0).abs() < 1e-9);

        let over = sharing(Duration::ZERO);
        let over = LoadProgress::new(&over);
        over.shared_from.set(begun).unwrap();
        assert!(over.is_read());
        let mut sink = Sink::new(&over);
        sink.take(0, b"value").unwrap();
        assert_eq!(over.done(&[], &sink.arrivals).records, 0);
    }
}
