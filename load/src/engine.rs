//! Producers and consumers on one topic: some of each at once, or only one side.
//!
//! Each is a client of its own, with connections of its own, on a thread of its own; all are in one
//! process, whose CPU time stands apart from the broker's.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::acks::Acks;
use crate::arrivals::{Arrivals, stamp, stamp_opening};
use crate::progress::{LoadProgress, Sink};
use crate::records::Records;
use crate::schedule::{Next, Part};
use crate::waiting::{LEAST_WAIT, LOOK_EVERY, SILENCE};
use crate::{Done, Load, Work};

/// Makes clients of one kind.
pub trait Clients: Sync {
    /// A client that sends.
    type Producer: Producing;
    /// A client that reads.
    type Consumer: Consuming;

    /// Connects a producer, which tells `acks` when records are acknowledged that were due at a time.
    ///
    /// # Errors
    /// The client's.
    fn producer(&self, acks: &Arc<Acks>) -> Result<Self::Producer>;

    /// Is to read these partitions, once it begins.
    ///
    /// # Errors
    /// The client's.
    fn consumer(&self, partitions: &[u32]) -> Result<Self::Consumer>;
}

/// A producer of a load.
pub trait Producing: Send {
    /// Sends a record to a partition, if this kind of clients can choose one, and waits until it is
    /// acknowledged.
    ///
    /// # Errors
    /// If it is not acknowledged.
    fn open(&mut self, partition: u32, key: Option<&[u8]>, value: &[u8]) -> Result<()>;

    /// Hands a record over; waits while there is no room. What is due at a time has its
    /// acknowledgement timed.
    ///
    /// # Errors
    /// If it is not taken.
    fn send(&mut self, key: Option<&[u8]>, value: &[u8], due: Option<Duration>) -> Result<()>;

    /// Called now and then, with how long there will be nothing to send.
    ///
    /// # Errors
    /// If records were not acknowledged.
    fn look(&mut self, _idle: Duration) -> Result<()> {
        Ok(())
    }

    /// Called after as many records as [`Load::at_once`] says: a producer with transactions commits, and waits until that
    /// is done. Another one may send what it holds back.
    ///
    /// # Errors
    /// If it is not committed.
    fn complete(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits until everything is acknowledged, and committed.
    ///
    /// # Errors
    /// If anything is not.
    fn finish(&mut self) -> Result<()>;

    /// Of what it sent, if it can tell.
    fn mean_batch_bytes(&self) -> Option<f64>;
}

/// A consumer of a load.
pub trait Consuming {
    /// Begins to read.
    ///
    /// # Errors
    /// The client's.
    fn begin(&mut self) -> Result<()>;

    /// Hands what is there to `sink`; waits for so long if there is nothing.
    ///
    /// # Errors
    /// The client's.
    fn receive(&mut self, wait: Duration, sink: &mut Sink<'_>) -> Result<()>;

    /// Called once when all is read.
    fn end(&mut self) {}
}

/// Runs the load. `begin` is called when all clients are ready; what it returns is the moment from which records are due.
///
/// # Errors
/// What went wrong first at one of the clients.
pub fn run<C: Clients>(
    clients: &C,
    load: &Load,
    begin: impl FnOnce() -> Result<Instant>,
) -> Result<Done> {
    let progress = LoadProgress::new(load);
    let mut producers = Vec::new();
    for _ in 0..progress.producers() {
        producers.push(clients.producer(&progress.acks)?);
    }
    thread::scope(|scope| {
        let progress = &progress;
        let readers: Vec<_> = progress
            .readers()
            .into_iter()
            .map(|partitions| {
                scope.spawn(move || progress.guard(|| consume(clients, progress, &partitions)))
            })
            .collect();
        // Whatever goes wrong from here on ends the readers.
        let done = progress.guard(|| {
            open_the_way(&mut producers, progress)?;
            progress.begin(begin()?);
            if matches!(load.work, Work::Consume | Work::Share) {
                progress.start_reading();
            }
            let parts = producers.into_iter().zip(0..);
            let senders: Vec<_> = parts
                .map(|(producer, index)| {
                    scope.spawn(move || progress.guard(|| produce(producer, progress, index)))
                })
                .collect();
            if load.work == Work::CatchUp {
                progress.alone(load.time.unwrap_or_default())?;
                progress.start_reading();
            }
            let mut batches = Vec::new();
            for sender in senders {
                match sender.join() {
                    Ok(mean) => batches.extend(mean?),
                    Err(_) => bail!("a producer panicked"),
                }
            }
            progress.all_sent();
            Ok(batches)
        });
        let mut arrivals = Arrivals::new(load.cold());
        for reader in readers {
            match reader.join() {
                Ok(Ok(more)) => arrivals.merge(&more)?,
                Ok(Err(error)) => return Err(progress.first_error().unwrap_or(error)),
                Err(_) => bail!("a consumer panicked"),
            }
        }
        let batches = done.map_err(|error| progress.first_error().unwrap_or(error))?;
        Ok(progress.done(&batches, &arrivals))
    })
}

/// Sends a record to every partition and waits until all are there: connections are open then, and
/// logs. A trickle over very many partitions is content with one.
fn open_the_way<P: Producing>(producers: &mut [P], progress: &LoadProgress<'_>) -> Result<()> {
    let load = progress.load;
    let partitions = match load.work {
        Work::Produce | Work::Share => return Ok(()),
        _ if load.is_prepared() => return progress.wait_until_prepared(),
        Work::Trickle => 1,
        _ => load.partitions.max(load.producers),
    };
    let mut records = Records::new(load.record_bytes, load.keyed);
    for number in 0..partitions {
        let producer = &mut producers[(number % load.producers) as usize];
        let (key, value) = records.next_record();
        stamp_opening(value);
        producer.open(number % load.partitions, key, value)?;
    }
    if load.work == Work::CatchUp {
        // There is no reader yet, so they belong to what it finds.
        progress.found_more(u64::from(partitions));
        return Ok(());
    }
    progress.wait_until_opened(u64::from(partitions))
}

fn produce<P: Producing>(
    mut producer: P,
    progress: &LoadProgress<'_>,
    index: u32,
) -> Result<Option<f64>> {
    let load = progress.load;
    let part = Part::of(load, index, load.work == Work::CatchUp);
    let mut records =
        Records::new(load.record_bytes, load.keyed).different_keys(load.different_keys);
    let mut sent = 0;
    let mut handed_over = Duration::ZERO;
    loop {
        let elapsed = progress.elapsed();
        match part.next(sent, elapsed) {
            Next::Done => break,
            _ if progress.is_over() || load.is_over(elapsed) => break,
            Next::Wait(wait) => {
                let begin = Instant::now();
                let wait = wait.max(LEAST_WAIT);
                producer.look(wait)?;
                thread::park_timeout(wait.saturating_sub(begin.elapsed()));
            }
            Next::Send(more) => {
                for number in sent..sent + more {
                    let (key, value) = records.next_record();
                    let is_first = load.at_once.is_some_and(|all| number.is_multiple_of(all));
                    if is_first {
                        handed_over = progress.elapsed();
                    }
                    let due = if part.is_paced() && load.at_once.is_some() {
                        Some(handed_over)
                    } else if part.is_paced() {
                        Some(part.due(number))
                    } else if load.timed || load.samples(number) {
                        Some(progress.elapsed())
                    } else {
                        None
                    };
                    if load.work != Work::Produce {
                        stamp(value, due.unwrap_or(elapsed));
                    }
                    let asked = part.is_paced() || load.samples(number);
                    producer.send(key, value, due.filter(|_| asked))?;
                    if (load.at_once).is_some_and(|all| (number + 1).is_multiple_of(all)) {
                        producer.complete()?;
                    }
                }
                sent += more;
                progress.sent(more);
                producer.look(Duration::ZERO)?;
            }
        }
    }
    progress.last_sent();
    producer.finish()?;
    progress.last_acknowledged();
    Ok(producer.mean_batch_bytes())
}

fn consume<C: Clients>(
    clients: &C,
    progress: &LoadProgress<'_>,
    partitions: &[u32],
) -> Result<Arrivals> {
    let load = progress.load;
    let mut prepared = None;
    if load.is_prepared() {
        let consumer = prepared.insert(clients.consumer(partitions)?);
        if load.follows() {
            consumer.begin()?;
        }
        progress.is_prepared();
    }
    if !progress.wait_for_start()? {
        return Ok(Arrivals::new(load.cold()));
    }
    let mut consumer = match prepared {
        Some(consumer) => consumer,
        None => clients.consumer(partitions)?,
    };
    if !load.follows() {
        consumer.begin()?;
    }
    let mut sink = Sink::new(progress);
    let (mut heard, mut seen) = (Instant::now(), 0);
    while !progress.is_read() {
        consumer.receive(LOOK_EVERY, &mut sink)?;
        sink.publish();
        let arrived = progress.arrived();
        // Before the beginning there is nothing to be heard.
        if arrived != seen || !progress.has_begun() {
            (heard, seen) = (Instant::now(), arrived);
        }
        ensure!(
            heard.elapsed() < SILENCE,
            "only {arrived} of {} records arrived",
            progress.expected()
        );
    }
    consumer.end();
    Ok(sink.into_arrivals())
}
