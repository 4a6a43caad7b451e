//! Appends records as fast as the broker takes them, or each when it is due.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use kera_producer::{AppendError, Delivery, Producer, Record};
use rand::RngCore;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::LoadArgs;
use super::report::{histogram, record};
use crate::connect::ConnectArgs;
use crate::failure::Failure;

/// Different values, so that compression and caches find nothing to profit from.
const VALUES: usize = 1024;
/// Batches of one producer whose acknowledgements are waited for.
const TRACKED: usize = 4096;
/// At full speed one record of so many is timed.
const SAMPLED: u64 = 1024;
/// A producer that is ahead of its rate sleeps at least this long, and then sends all that is due.
/// Sleeping less would take a core away from the broker; what it adds counts as latency.
const SLEEP: Duration = Duration::from_micros(200);

/// What a load is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Records of all producers together.
    pub records: u64,
    /// Records a second of all producers together; none for as many as possible.
    pub rate: Option<f64>,
    /// Put the moment each record was due into its first eight bytes.
    pub stamped: bool,
    /// Stamps are nanoseconds since this moment.
    pub stamps_from: Instant,
}

/// Runs the load and waits until every record is acknowledged; returns the latencies from due (or
/// appended) to acknowledged.
pub(super) async fn produce(
    stream: &str,
    connect: &ConnectArgs,
    load: &LoadArgs,
    plan: Plan,
) -> Result<Histogram<u64>, Failure> {
    let producers = u64::from(load.producers);
    let mut open = Vec::new();
    for _ in 0..producers {
        let builder = Producer::builder()
            .bootstrap(&connect.bootstrap)
            .connect(connect.options()?)
            .stream(stream)
            .compression(load.compression.into());
        open.push(load.batching.apply(builder).build().await?);
    }
    let begin = Instant::now();
    let mut running = Vec::new();
    for (number, producer) in (0..producers).zip(open) {
        let share = plan.records / producers + u64::from(number < plan.records % producers);
        let part = Part {
            producer: producer.clone(),
            values: Values::new(load.record_size as usize),
            records: share,
            begin,
            stamps_from: plan.stamps_from,
            every: plan
                .rate
                .map(|rate| Duration::from_secs_f64(producers as f64 / rate)),
            stamped: plan.stamped,
        };
        let (batches, tracked) = mpsc::channel(TRACKED);
        let runtime = Handle::current();
        let sending = tokio::task::spawn_blocking(move || part.run(&runtime, &batches));
        let tracking = tokio::spawn(track(tracked));
        running.push((producer, sending, tracking));
    }
    let mut latencies = histogram();
    for (producer, sending, tracking) in running {
        sending.await??;
        producer.flush().await?;
        latencies.add(&tracking.await??)?;
        let failed = producer.metrics().records_failed;
        if failed > 0 {
            return Err(Failure::message(format!(
                "{failed} records were not acknowledged; see the broker's log"
            )));
        }
    }
    Ok(latencies)
}

/// A batch under way.
struct Batch {
    /// One of its first records'.
    delivery: Delivery,
    /// When the first was due, or was appended.
    first: Instant,
    /// From one to the next.
    every: Duration,
    /// Still growing until the batch is closed, and so final when it is acknowledged.
    records: Arc<AtomicU64>,
}

async fn track(mut batches: mpsc::Receiver<Batch>) -> Result<Histogram<u64>, Failure> {
    let mut latencies = histogram();
    let mut waiting = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(batch) = batches.recv(), if waiting.len() < TRACKED => {
                let Batch { delivery, first, every, records } = batch;
                waiting.push(async move {
                    let result = delivery.await;
                    (result, Instant::now(), first, every, records)
                });
            }
            Some((result, now, first, every, records)) = waiting.next() => {
                result?;
                let latency = now.saturating_duration_since(first);
                let records = records.load(Relaxed);
                if every.is_zero() {
                    record(&mut latencies, latency, records);
                } else {
                    for number in 0..records {
                        let later = every.mul_f64(number as f64);
                        record(&mut latencies, latency.saturating_sub(later), 1);
                    }
                }
            }
            else => return Ok(latencies),
        }
    }
}

/// One producer's part of the load.
struct Part {
    producer: Producer,
    values: Values,
    records: u64,
    begin: Instant,
    stamps_from: Instant,
    every: Option<Duration>,
    stamped: bool,
}

impl Part {
    fn run(mut self, runtime: &Handle, batches: &mpsc::Sender<Batch>) -> Result<(), Failure> {
        let mut open = Open {
            batches: batches.clone(),
            last: None,
            entry: None,
        };
        for number in 0..self.records {
            let due = self
                .every
                .map(|every| self.begin + every.mul_f64(number as f64));
            if let Some(due) = due
                && due > Instant::now()
            {
                open.hand_over()?;
                wait_until(due);
            }
            let value = self.values.next();
            if self.stamped {
                let moment = due.unwrap_or_else(Instant::now);
                let nanos = moment.saturating_duration_since(self.stamps_from);
                let nanos = u64::try_from(nanos.as_nanos()).unwrap_or(u64::MAX);
                value[..8].copy_from_slice(&nanos.to_le_bytes());
            }
            let record = Record::of_value(value);
            match (self.every, due) {
                (Some(every), Some(due)) => {
                    open.add(append(&self.producer, runtime, &record)?, due, every)?;
                }
                _ if number % SAMPLED == 0 => {
                    let delivery = append(&self.producer, runtime, &record)?;
                    sample(batches, delivery, Instant::now())?;
                }
                // Without a handle, as a program does that only asks whether all went well.
                _ => match self.producer.send(&record) {
                    Err(AppendError::Full) => {
                        runtime.block_on(self.producer.append_wait(&record))?;
                    }
                    taken => taken?,
                },
            }
        }
        open.hand_over()
    }
}

/// Appends, waiting for memory if need be.
fn append(producer: &Producer, runtime: &Handle, record: &Record<'_>) -> Result<Delivery, Failure> {
    Ok(match producer.append(record) {
        Err(AppendError::Full) => runtime.block_on(producer.append_wait(record))?,
        taken => taken?,
    })
}

/// Has one record's acknowledgement waited for, unless others still are.
fn sample(
    batches: &mpsc::Sender<Batch>,
    delivery: Delivery,
    first: Instant,
) -> Result<(), Failure> {
    let batch = Batch {
        delivery,
        first,
        every: Duration::ZERO,
        records: Arc::new(AtomicU64::new(1)),
    };
    match batches.try_send(batch) {
        Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => Ok(()),
        Err(mpsc::error::TrySendError::Closed(_)) => {
            Err(Failure::message("a record was not acknowledged"))
        }
    }
}

/// The batch that a producer is filling at a rate.
struct Open {
    batches: mpsc::Sender<Batch>,
    /// The last record's.
    last: Option<Delivery>,
    /// What is tracked of the batch.
    entry: Option<Entry>,
}

struct Entry {
    first: Instant,
    every: Duration,
    records: Arc<AtomicU64>,
    handed_over: bool,
}

impl Open {
    fn add(&mut self, delivery: Delivery, due: Instant, every: Duration) -> Result<(), Failure> {
        let same = self
            .last
            .as_ref()
            .is_some_and(|last| last.same_batch(&delivery));
        if same {
            if let Some(entry) = &self.entry {
                entry.records.fetch_add(1, Relaxed);
                if !entry.handed_over {
                    self.hand_over()?;
                }
            }
        } else {
            self.hand_over()?;
            self.entry = Some(Entry {
                first: due,
                every,
                records: Arc::new(AtomicU64::new(1)),
                handed_over: false,
            });
        }
        self.last = Some(delivery);
        Ok(())
    }

    /// Has the batch's acknowledgement waited for, if it was not handed over before. Records that
    /// come later are still counted, if they are in the same batch.
    fn hand_over(&mut self) -> Result<(), Failure> {
        let Some(entry) = self.entry.as_mut().filter(|entry| !entry.handed_over) else {
            return Ok(());
        };
        let Some(delivery) = self.last.take() else {
            return Ok(());
        };
        entry.handed_over = true;
        let batch = Batch {
            delivery,
            first: entry.first,
            every: entry.every,
            records: entry.records.clone(),
        };
        self.batches
            .blocking_send(batch)
            .map_err(|_| Failure::message("a batch was not acknowledged"))
    }
}

fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        // May come back early.
        std::thread::park_timeout(left.max(SLEEP));
    }
}

/// Values of one size, different from each other, round and round.
struct Values {
    bytes: Vec<u8>,
    size: usize,
    next: usize,
}

impl Values {
    fn new(size: usize) -> Self {
        // Large values are few: they are to be different, not to fill the memory.
        let number = VALUES.min((64 << 20) / size.max(1)).max(1);
        let mut bytes = vec![0; size * number];
        rand::rng().fill_bytes(&mut bytes);
        Self {
            bytes,
            size,
            next: 0,
        }
    }

    fn next(&mut self) -> &mut [u8] {
        let at = self.next;
        self.next += self.size;
        if self.next >= self.bytes.len() {
            self.next = 0;
        }
        &mut self.bytes[at..at + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_go_round() {
        let mut values = Values::new(100);
        let first = values.next().to_vec();
        let second = values.next().to_vec();
        assert_ne!(first, second);
        for _ in 2..VALUES {
            assert_eq!(values.next().len(), 100);
        }
        assert_eq!(values.next(), first);
        assert_eq!(Values::new(16_000_000).next().len(), 16_000_000);
    }

    #[test]
    fn waiting_never_ends_early() {
        let due = Instant::now() + Duration::from_micros(300);
        wait_until(due);
        assert!(Instant::now() >= due);
    }
}
