//! An open loop through librdkafka: one thread sends records when they are due, another reads them.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, Producer};

use super::arrivals::{Arrivals, stamp, stamp_opening};
use super::kafka::{Outcome, assign, consumer, producer, record, taken};
use super::pace::Pace;
use super::records::Records;
use super::{Done, Gate, Plan, SILENCE};

pub fn run<R: BufRead>(plan: &Plan, gate: &mut Gate<R>) -> Result<Done> {
    let rate = plan.rate.context("an open loop has a rate")?;
    let (producer, consumer) = (producer(plan)?, consumer(plan)?);
    assign(&consumer, plan)?;
    let mut arrivals = Arrivals::new()?;
    open_the_way(plan, &producer, &consumer, &mut arrivals)?;
    let begin = gate.wait()?;
    arrivals.begin(begin);
    let pace = Pace::new(begin, rate);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(plan, &producer, pace));
        let reading = read(&consumer, plan.records, &mut arrivals);
        let sent = sending
            .join()
            .unwrap_or_else(|_| bail!("the sender panicked"));
        sent.and(reading)
    })?;
    Ok(Done {
        records: plan.records,
        bytes: plan.records * u64::from(plan.record_bytes),
        seconds: begin.elapsed().as_secs_f64(),
        mean_batch_bytes: producer.context().mean_batch_bytes(),
        latency: arrivals.latency(),
    })
}

/// Sends a record to every partition and waits until it is there, so that all connections are open.
fn open_the_way(
    plan: &Plan,
    producer: &BaseProducer<Outcome>,
    consumer: &BaseConsumer,
    arrivals: &mut Arrivals,
) -> Result<()> {
    let mut records = Records::new(plan.record_bytes, plan.keys);
    for partition in 0..plan.partitions {
        let (key, value) = records.next();
        stamp_opening(value);
        let record = record(&plan.topic, key, value).partition(i32::try_from(partition)?);
        ensure!(
            taken(producer.send(record))?,
            "librdkafka's queue is too short"
        );
    }
    producer
        .flush(SILENCE)
        .context("the first records were not acknowledged in time")?;
    producer.context().check()?;
    let begin = Instant::now();
    while arrivals.opened() < u64::from(plan.partitions) {
        match consumer.poll(Duration::from_millis(100)) {
            Some(message) => arrivals.take(message?.payload().unwrap_or_default())?,
            None => ensure!(begin.elapsed() < SILENCE, "the first records do not arrive"),
        }
    }
    Ok(())
}

fn send(plan: &Plan, producer: &BaseProducer<Outcome>, pace: Pace) -> Result<()> {
    let mut records = Records::new(plan.record_bytes, plan.keys);
    for number in 0..plan.records {
        if !pace.is_due(number) {
            producer.poll(Duration::ZERO);
            pace.wait(number);
        }
        let (key, value) = records.next();
        stamp(value, pace.due(number));
        let value = &*value;
        while !taken(producer.send(record(&plan.topic, key, value)))? {
            producer.poll(Duration::from_millis(1));
        }
    }
    producer
        .flush(SILENCE)
        .context("records were not acknowledged in time")?;
    producer.context().check()
}

fn read(consumer: &BaseConsumer, records: u64, arrivals: &mut Arrivals) -> Result<()> {
    let mut heard = Instant::now();
    while arrivals.arrived() < records {
        match consumer.poll(Duration::from_millis(100)) {
            Some(message) => {
                let message = message.context("librdkafka cannot read")?;
                arrivals.take(message.payload().unwrap_or_default())?;
                heard = Instant::now();
            }
            None => ensure!(
                heard.elapsed() < SILENCE,
                "only {} of {records} records arrived",
                arrivals.arrived()
            ),
        }
    }
    Ok(())
}
