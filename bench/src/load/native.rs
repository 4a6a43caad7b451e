//! Load through Kera's own clients.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kera_consumer::{Reader, Start};
use kera_producer::{AppendError, Producer, Record};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;

use super::pace::Pace;
use super::records::Records;
use super::{Done, Gate, Plan, SILENCE, Sides};
use crate::scenario::Work;

/// The memory of all producers together when few batches are open.
const LEAST_MEMORY: usize = 64 << 20;
/// Records between two looks at the clock.
const LOOK_EVERY: u64 = 1024;

pub(super) fn run<R: BufRead>(plan: &Plan, work: Work, gate: &mut Gate<R>) -> Result<Done> {
    let runtime = Runtime::new()?;
    let done = runtime.block_on(async {
        match work {
            Work::Produce => produce(plan, gate).await,
            Work::Consume => consume(plan, gate).await,
            other => bail!("work = \"{}\" is for several clients", other.name()),
        }
    });
    // A reader's connections may still be at work.
    runtime.shutdown_background();
    done
}

/// A producer that waits so long, with room for every lane's batch to fill.
pub(super) async fn producer(plan: &Plan) -> Result<Producer> {
    let batch = plan.batch_bytes as usize;
    // Every lane's batch can fill.
    let producers = plan.crowd.producers.max(1) as usize;
    let memory = plan.partitions as usize * batch * 2 + LEAST_MEMORY / producers;
    let producer = Producer::builder()
        .bootstrap(&plan.bootstrap)
        .stream(&plan.topic)
        .batch_size(batch)
        .linger(Duration::from_micros(plan.linger_us))
        .memory_limit(memory)
        .build();
    producer.await.context("no producer")
}

/// Sends every record, each when it is due if there is a pace, or as many as there is time for; says
/// how many that were.
fn send(plan: &Plan, producer: &Producer, runtime: &Handle, pace: Option<Pace>) -> Result<u64> {
    let mut records = Records::new(plan.record_bytes, plan.keys);
    let begin = Instant::now();
    for number in 0..plan.records {
        if number % LOOK_EVERY == LOOK_EVERY - 1 && plan.is_over(begin) {
            return Ok(number);
        }
        if let Some(pace) = pace.filter(|pace| !pace.is_due(number)) {
            pace.wait(number);
        }
        let (key, value) = records.next();
        let record = Record {
            key,
            value: Some(value),
            ..Record::default()
        };
        match producer.send(&record) {
            Err(AppendError::Full) => {
                runtime.block_on(producer.append_wait(&record))?;
            }
            taken => taken?,
        }
    }
    Ok(plan.records)
}

fn spawn_send(plan: &Plan, producer: &Producer, pace: Option<Pace>) -> JoinHandle<Result<u64>> {
    let (plan, producer, runtime) = (plan.clone(), producer.clone(), Handle::current());
    tokio::task::spawn_blocking(move || send(&plan, &producer, &runtime, pace))
}

async fn produce<R: BufRead>(plan: &Plan, gate: &mut Gate<R>) -> Result<Done> {
    let producer = producer(plan).await?;
    let begin = gate.wait()?;
    let pace = plan.rate.map(|rate| Pace::new(begin, rate));
    let sent = spawn_send(plan, &producer, pace).await??;
    producer.flush().await?;
    let seconds = begin.elapsed().as_secs_f64();
    let counts = producer.metrics();
    ensure!(
        counts.records_failed == 0 && counts.records_acknowledged == sent,
        "{} of {} records were acknowledged",
        counts.records_acknowledged,
        sent
    );
    Ok(Done {
        records: sent,
        bytes: sent * u64::from(plan.record_bytes),
        seconds,
        mean_batch_bytes: mean_batch(&producer),
        latency: None,
        sides: Sides::default(),
    })
}

/// Bytes of the batches that it sent.
pub(super) fn mean_batch(producer: &Producer) -> Option<f64> {
    let counts = producer.metrics();
    let sent = counts.batches + counts.batches_resent;
    (sent > 0).then(|| counts.bytes_sent as f64 / sent as f64)
}

async fn reader(plan: &Plan) -> Result<Reader> {
    let reader = Reader::builder()
        .bootstrap(&plan.bootstrap)
        .stream(&plan.topic)
        .start(Start::Earliest)
        .open();
    reader.await.context("no reader")
}

/// Hands every record of the next batch to `each`.
async fn next(reader: &mut Reader, mut each: impl FnMut(&[u8], usize) -> Result<()>) -> Result<()> {
    loop {
        let batch = match tokio::time::timeout(SILENCE, reader.next_batch()).await {
            Ok(Ok(Some(batch))) => batch,
            Ok(Err(error)) if error.is_retryable() => continue,
            Ok(Err(error)) => return Err(error.into()),
            Ok(Ok(None)) | Err(_) => bail!("no record arrived for {SILENCE:?}"),
        };
        for record in batch.records() {
            let record = record?;
            each(
                record.value.unwrap_or_default(),
                record.key.map_or(0, <[u8]>::len),
            )?;
        }
        return Ok(());
    }
}

async fn consume<R: BufRead>(plan: &Plan, gate: &mut Gate<R>) -> Result<Done> {
    let begin = gate.wait()?;
    let mut reader = reader(plan).await?;
    let (mut records, mut bytes) = (0, 0);
    while records < plan.records {
        next(&mut reader, |value, key| {
            records += 1;
            bytes += (value.len() + key) as u64;
            Ok(())
        })
        .await?;
    }
    Ok(Done {
        records,
        bytes,
        seconds: begin.elapsed().as_secs_f64(),
        mean_batch_bytes: None,
        latency: None,
        sides: Sides::default(),
    })
}
