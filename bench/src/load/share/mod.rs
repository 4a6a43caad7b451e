//! Consumers of one group that take time for each record.
//!
//! Each is a client of its own on a thread of its own. Nobody counts before the group is at work: the
//! time begins a moment after the first record that any of them was given.

mod kafka;
mod native;

use std::io::BufRead;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::{Done, Gate, Plan, SILENCE, Sides};
use crate::scenario::{ClientPath, Sharing};

/// How long the group is at work before anything counts.
const WARM: Duration = Duration::from_millis(500);
/// How long a consumer without records waits before it looks whether time is up.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the plan's work; a share group's is a program of its own.
pub(super) fn run<R: BufRead>(plan: &Plan, gate: &mut Gate<R>) -> Result<Done> {
    let order = plan.crowd.order.unwrap_or(Sharing::Lane);
    let window = Window::new(plan);
    // No group before has its name.
    let group = format!("{}-{}", plan.topic, std::process::id());
    match (plan.path, order) {
        (ClientPath::Kafka, Sharing::Lane) => {
            together(plan, gate, &window, || {
                kafka::consume(plan, &group, &window)
            })?;
        }
        (ClientPath::Nats, _) => bail!("the load for NATS is a program of its own"),
        (ClientPath::Iggy, _) => bail!("groups of Iggy's consumers are not compared"),
        (ClientPath::Kafka, Sharing::None) => bail!("librdkafka knows no share groups"),
        (ClientPath::Native, order) => {
            let runtime = tokio::runtime::Runtime::new()?;
            let handle = runtime.handle().clone();
            let done = together(plan, gate, &window, || {
                native::consume(plan, &group, order, &window, &handle)
            });
            runtime.shutdown_background();
            done?;
        }
    }
    window.done(plan)
}

/// Every consumer on a thread of its own.
fn together<R: BufRead>(
    plan: &Plan,
    gate: &mut Gate<R>,
    window: &Window,
    consume: impl Fn() -> Result<()> + Sync,
) -> Result<()> {
    gate.wait()?;
    thread::scope(|scope| {
        let consumers: Vec<_> = (0..plan.crowd.consumers)
            .map(|_| {
                scope.spawn(|| {
                    let done = consume();
                    window.failed.fetch_or(done.is_err(), Relaxed);
                    done
                })
            })
            .collect();
        let mut result = Ok(());
        for consumer in consumers {
            let done = consumer
                .join()
                .unwrap_or_else(|_| bail!("a consumer panicked"));
            result = result.and(done);
        }
        result
    })
}

/// The time that counts, and what was done in it.
struct Window {
    opened: Instant,
    first: OnceLock<Instant>,
    lasts: Duration,
    work: Duration,
    counted: AtomicU64,
    failed: AtomicBool,
}

impl Window {
    fn new(plan: &Plan) -> Self {
        Self {
            opened: Instant::now(),
            first: OnceLock::new(),
            lasts: Duration::from_millis(plan.crowd.millis.unwrap_or(1_000)),
            work: Duration::from_micros(plan.crowd.work_us),
            counted: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// Works on a record.
    fn work(&self) {
        let first = *self.first.get_or_init(Instant::now);
        if !self.work.is_zero() {
            let begin = Instant::now();
            while let Some(left) = self.work.checked_sub(begin.elapsed()) {
                if left.is_zero() {
                    break;
                }
                thread::park_timeout(left);
            }
        }
        if self.counts(first.elapsed()) {
            self.counted.fetch_add(1, Relaxed);
        }
    }

    /// Whether a record counts that was done so long after the first one.
    fn counts(&self, since_first: Duration) -> bool {
        (WARM..WARM + self.lasts).contains(&since_first)
    }

    /// True once time is up; an error if nobody was given anything.
    fn is_over(&self) -> Result<bool> {
        if self.failed.load(Relaxed) {
            return Ok(true);
        }
        match self.first.get() {
            Some(first) => Ok(first.elapsed() >= WARM + self.lasts),
            None => {
                ensure!(
                    self.opened.elapsed() < SILENCE,
                    "no consumer was given a record within {SILENCE:?}"
                );
                Ok(false)
            }
        }
    }

    fn done(&self, plan: &Plan) -> Result<Done> {
        let records = self.counted.load(Relaxed);
        ensure!(records > 0, "no record was worked on");
        Ok(Done {
            records,
            bytes: records * u64::from(plan.record_bytes),
            seconds: self.lasts.as_secs_f64(),
            mean_batch_bytes: None,
            latency: None,
            sides: Sides::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_between_counts() {
        let window = Window {
            opened: Instant::now(),
            first: OnceLock::new(),
            lasts: Duration::from_secs(2),
            work: Duration::ZERO,
            counted: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        };
        let ms = Duration::from_millis;
        assert!(!window.counts(ms(499)) && window.counts(ms(500)));
        assert!(window.counts(ms(2_499)) && !window.counts(ms(2_500)));
        assert!(!window.is_over().unwrap());
        // The first record begins it and does not count.
        window.work();
        assert!(window.first.get().is_some());
        assert_eq!(window.counted.load(Relaxed), 0);
        window.failed.store(true, Relaxed);
        assert!(window.is_over().unwrap());
    }
}
