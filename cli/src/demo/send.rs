//! The demo's producers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kera_load::{Latency, histogram};
use kera_producer::{AppendError, Delivery, Producer, Record};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::data::{Flights, carrier, write_value};
use super::view::Progress;
use crate::failure::Failure;

/// Records are sent in small bursts: timers are no finer.
const BURST_EVERY: Duration = Duration::from_millis(5);
/// Bursts of one producer whose acknowledgements are waited for.
const WAITING: usize = 4096;
/// A record that is not acknowledged for this long is given up; the broker is back long before.
const DEADLINE: Duration = Duration::from_secs(20);

/// One producer's part.
pub(super) struct Part {
    /// Its number.
    pub(super) number: usize,
    /// Records it sends.
    pub(super) records: u64,
    /// Records a second.
    pub(super) rate: f64,
    /// Where the broker is.
    pub(super) bootstrap: String,
    /// The stream.
    pub(super) stream: &'static str,
}

/// What became of a part: how long acknowledgements took, and when each was begun.
pub(super) struct Sent {
    /// Latencies, each with the moment its records were appended.
    pub(super) latencies: Vec<(Instant, Duration, u64)>,
}

impl Part {
    /// Sends every record and waits until all are acknowledged.
    pub(super) async fn run(
        self,
        flights: Arc<Flights>,
        progress: Arc<Progress>,
    ) -> Result<Sent, Failure> {
        let producer = Producer::builder()
            .bootstrap(&self.bootstrap)
            .stream(self.stream)
            .deadline(DEADLINE)
            .build()
            .await?;
        let (bursts, waiting) = mpsc::channel(WAITING);
        let tracking = tokio::spawn(track(waiting, progress.clone()));
        let mut ticks = tokio::time::interval(BURST_EVERY);
        // After a stall the rest follows at the same rate: the broker that is back is not flooded.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let each = self.rate * BURST_EVERY.as_secs_f64();
        let mut allowed = 0.0;
        let mut next = 0;
        let mut value = Vec::new();
        // Each producer begins elsewhere in the file.
        let offset = (self.number * flights.len() / 4) as u64;
        while next < self.records {
            ticks.tick().await;
            allowed = f64::min(allowed + each, 10.0 * each);
            let mut burst = Burst::default();
            while allowed >= 1.0 && next < self.records {
                allowed -= 1.0;
                let row = flights.row(offset + next);
                write_value(&mut value, self.number, next, row);
                let record = Record::keyed(carrier(row).as_bytes(), &value);
                let delivery = match producer.append(&record) {
                    Err(AppendError::Full) => producer.append_wait(&record).await?,
                    taken => taken?,
                };
                next += 1;
                progress.sent.fetch_add(1, Relaxed);
                if let Some(complete) = burst.add(delivery) {
                    hand_over(&bursts, complete).await?;
                }
            }
            if let Some(rest) = burst.take() {
                hand_over(&bursts, rest).await?;
            }
        }
        drop(bursts);
        producer.flush().await?;
        tracking.await?
    }
}

async fn hand_over(
    bursts: &mpsc::Sender<(Delivery, Instant, u64)>,
    burst: (Delivery, Instant, u64),
) -> Result<(), Failure> {
    let sent = bursts.send(burst).await;
    sent.map_err(|_| Failure::message("a record was not acknowledged"))
}

/// The records of one burst that are in one batch.
#[derive(Default)]
struct Burst {
    open: Option<(Delivery, Instant, u64)>,
}

impl Burst {
    /// Adds a record; returns those before it if they are in another batch.
    fn add(&mut self, delivery: Delivery) -> Option<(Delivery, Instant, u64)> {
        match &mut self.open {
            Some((last, _, count)) if last.same_batch(&delivery) => {
                *last = delivery;
                *count += 1;
                None
            }
            open => open.replace((delivery, Instant::now(), 1)),
        }
    }

    fn take(&mut self) -> Option<(Delivery, Instant, u64)> {
        self.open.take()
    }
}

async fn track(
    mut bursts: mpsc::Receiver<(Delivery, Instant, u64)>,
    progress: Arc<Progress>,
) -> Result<Sent, Failure> {
    let mut latencies = Vec::new();
    let mut waiting = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some((delivery, appended, count)) = bursts.recv(), if waiting.len() < WAITING => {
                waiting.push(async move { (delivery.await, appended, count) });
            }
            Some((result, appended, count)) = waiting.next() => {
                result?;
                latencies.push((appended, appended.elapsed(), count));
                progress.acknowledged.fetch_add(count, Relaxed);
                progress.acknowledgement.notify_waiters();
            }
            else => return Ok(Sent { latencies }),
        }
    }
}

/// The latencies of records that were not under way while the broker was away.
pub(super) fn outside(sent: &[Sent], away: Option<(Instant, Instant)>) -> Option<Latency> {
    let mut all = histogram();
    for (appended, latency, count) in sent.iter().flat_map(|sent| &sent.latencies) {
        let touched = away.is_some_and(|(from, to)| *appended < to && *appended + *latency > from);
        if !touched {
            let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            all.saturating_record_n(nanos, *count);
        }
    }
    Latency::of(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_outage_touched_is_left_out() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let lasting = Duration::from_millis;
        let sent = [Sent {
            latencies: vec![
                (at(0), lasting(5), 10),
                (at(98), lasting(300), 20),
                (at(200), lasting(1), 30),
                (at(500), lasting(5), 40),
            ],
        }];
        assert_eq!(
            outside(&sent, Some((at(100), at(400)))).map(|l| l.records),
            Some(50)
        );
        assert_eq!(outside(&sent, None).map(|l| l.records), Some(100));
    }
}
