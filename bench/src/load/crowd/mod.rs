//! Producers and consumers on one topic: some of each at once, or only one side.
//!
//! Each is a client of its own, with connections of its own, on a thread of its own; all are in one
//! process, whose CPU time stands apart from the broker's. Consumers are assigned partitions and are
//! no group's members. Where both are at work, records have gone there and back before anything is measured.

mod iggy;
mod kafka;
mod native;
mod shared;
mod sides;

pub(crate) use sides::Sides;

use std::io::BufRead;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use self::shared::{Shared, Sink};
use super::acks::Acks;
use super::arrivals::{Arrivals, stamp, stamp_opening};
use super::records::Records;
use super::schedule::{Next, Part};
use super::{Done, Gate, Plan, SILENCE};
use crate::scenario::{ClientPath, Work};

/// How long a consumer waits for records before it looks around.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Whoever is ahead of the rate waits at least this long and then sends all that is due: a shorter
/// wait would take a core away from the broker. What it adds counts as latency.
const LEAST_WAIT: Duration = Duration::from_micros(200);
/// A reader has caught up when it is no more than this behind.
const CAUGHT_UP: Duration = Duration::from_millis(50);
/// How long catching up may take.
const CATCH_UP: Duration = Duration::from_secs(180);

/// Makes clients of one kind.
trait Clients: Sync {
    type Producer: Producing;
    type Consumer: Consuming;

    fn producer(&self, acks: &Arc<Acks>) -> Result<Self::Producer>;

    /// Is to read these partitions from their first records, once it begins.
    fn consumer(&self, partitions: &[u32]) -> Result<Self::Consumer>;
}

trait Producing: Send {
    /// Sends a record to a partition, if this kind of clients can choose one, and waits until it is
    /// acknowledged.
    fn open(&mut self, partition: u32, key: Option<&[u8]>, value: &[u8]) -> Result<()>;

    /// Hands a record over; waits while there is no room. What is due at a time has its
    /// acknowledgement timed.
    fn send(&mut self, key: Option<&[u8]>, value: &[u8], due: Option<Duration>) -> Result<()>;

    /// Called now and then, with how long there will be nothing to send.
    fn look(&mut self, _idle: Duration) -> Result<()> {
        Ok(())
    }

    /// Waits until everything is acknowledged.
    fn finish(&mut self) -> Result<()>;

    /// Of what it sent, if it can tell.
    fn mean_batch_bytes(&self) -> Option<f64>;
}

trait Consuming {
    /// Begins to read.
    fn begin(&mut self) -> Result<()>;

    /// Hands what is there to `sink`; waits for so long if there is nothing.
    fn receive(&mut self, wait: Duration, sink: &mut Sink<'_>) -> Result<()>;
}

/// Runs the plan's work.
pub(super) fn run<R: BufRead>(plan: &Plan, gate: &mut Gate<R>) -> Result<Done> {
    match plan.path {
        ClientPath::Kafka => work(&kafka::Clients { plan }, plan, gate),
        ClientPath::Iggy => work(&iggy::Clients { plan }, plan, gate),
        ClientPath::Nats => bail!("the load for NATS is a program of its own"),
        ClientPath::Native => {
            let runtime = tokio::runtime::Runtime::new()?;
            let clients = native::Clients {
                plan,
                handle: runtime.handle().clone(),
            };
            let done = work(&clients, plan, gate);
            // A reader's connections may still be at work.
            runtime.shutdown_background();
            done
        }
    }
}

fn work<C: Clients, R: BufRead>(clients: &C, plan: &Plan, gate: &mut Gate<R>) -> Result<Done> {
    let shared = Shared::new(plan)?;
    let mut producers = Vec::new();
    for _ in 0..shared.producers() {
        producers.push(clients.producer(&shared.acks)?);
    }
    thread::scope(|scope| {
        let shared = &shared;
        let readers: Vec<_> = shared
            .readers()
            .into_iter()
            .map(|partitions| {
                scope.spawn(move || shared.guard(|| consume(clients, shared, &partitions)))
            })
            .collect();
        // Whatever goes wrong from here on ends the readers.
        let done = shared.guard(|| {
            open_the_way(&mut producers, shared)?;
            let begin = gate.wait()?;
            shared.begin(begin);
            if plan.work == Work::Consume {
                shared.start_reading();
            }
            let parts = producers.into_iter().zip(0..);
            let senders: Vec<_> = parts
                .map(|(producer, index)| {
                    scope.spawn(move || shared.guard(|| produce(producer, shared, index)))
                })
                .collect();
            if plan.work == Work::CatchUp {
                shared.alone(Duration::from_millis(plan.crowd.millis.unwrap_or(0)))?;
                shared.start_reading();
            }
            let mut batches = Vec::new();
            for sender in senders {
                match sender.join() {
                    Ok(mean) => batches.extend(mean?),
                    Err(_) => bail!("a producer panicked"),
                }
            }
            shared.all_sent();
            Ok(batches)
        });
        let mut arrivals = Arrivals::new()?;
        for reader in readers {
            match reader.join() {
                Ok(Ok(more)) => arrivals.merge(&more)?,
                Ok(Err(error)) => return Err(shared.first_error().unwrap_or(error)),
                Err(_) => bail!("a consumer panicked"),
            }
        }
        let batches = done.map_err(|error| shared.first_error().unwrap_or(error))?;
        Ok(shared.done(&batches, &arrivals))
    })
}

/// Sends a record to every partition and waits until all are there: connections are open then, and
/// logs. A trickle over very many partitions is content with one.
fn open_the_way<P: Producing>(producers: &mut [P], shared: &Shared<'_>) -> Result<()> {
    let plan = shared.plan;
    match plan.work {
        Work::Produce => return Ok(()),
        // Clients are there then.
        Work::Consume => return shared.wait_until_opened(1),
        _ => {}
    }
    let of = plan.crowd.producers;
    let partitions = if shared.plan.work == Work::Trickle {
        1
    } else {
        plan.partitions.max(of)
    };
    let mut records = Records::new(plan.record_bytes, plan.keys);
    for number in 0..partitions {
        let producer = &mut producers[(number % of) as usize];
        let (key, value) = records.next();
        stamp_opening(value);
        producer.open(number % plan.partitions, key, value)?;
    }
    if plan.work == Work::CatchUp {
        // There is no reader yet, so they belong to what it finds.
        shared.found_more(u64::from(partitions));
        return Ok(());
    }
    shared.wait_until_opened(u64::from(partitions))
}

fn produce<P: Producing>(mut producer: P, shared: &Shared<'_>, index: u32) -> Result<Option<f64>> {
    let plan = shared.plan;
    let part = Part::of(plan, index, plan.work == Work::CatchUp);
    let mut records = Records::new(plan.record_bytes, plan.keys);
    let mut sent = 0;
    loop {
        let elapsed = shared.elapsed();
        match part.next(sent, elapsed) {
            Next::Done => break,
            _ if shared.is_over() || plan.is_over(elapsed) => break,
            Next::Wait(wait) => {
                let begin = Instant::now();
                let wait = wait.max(LEAST_WAIT);
                producer.look(wait)?;
                thread::park_timeout(wait.saturating_sub(begin.elapsed()));
            }
            Next::Send(more) => {
                for number in sent..sent + more {
                    let (key, value) = records.next();
                    let due = part.is_paced().then(|| part.due(number));
                    // In a closed loop nobody looks at the time.
                    stamp(value, due.unwrap_or(elapsed));
                    producer.send(key, value, due)?;
                }
                sent += more;
                shared.sent(more);
                producer.look(Duration::ZERO)?;
            }
        }
    }
    shared.last_sent();
    producer.finish()?;
    shared.last_acknowledged();
    Ok(producer.mean_batch_bytes())
}

fn consume<C: Clients>(clients: &C, shared: &Shared<'_>, partitions: &[u32]) -> Result<Arrivals> {
    let made = match shared.plan.work {
        Work::Consume => {
            let consumer = clients.consumer(partitions)?;
            shared.is_prepared();
            Some(consumer)
        }
        _ => None,
    };
    if !shared.wait_for_start()? {
        return Arrivals::new();
    }
    let mut consumer = match made {
        Some(consumer) => consumer,
        None => clients.consumer(partitions)?,
    };
    consumer.begin()?;
    let mut sink = Sink::new(shared)?;
    let (mut heard, mut seen) = (Instant::now(), 0);
    while !shared.is_read() {
        consumer.receive(LOOK_EVERY, &mut sink)?;
        sink.publish();
        let arrived = shared.arrived();
        // Before the beginning there is nothing to be heard.
        if arrived != seen || !shared.has_begun() {
            (heard, seen) = (Instant::now(), arrived);
        }
        ensure!(
            heard.elapsed() < SILENCE,
            "only {arrived} of {} records arrived",
            shared.expected()
        );
    }
    Ok(sink.into_arrivals())
}
