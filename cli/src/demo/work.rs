//! The demo's consumers: any number of them on one lane.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kera_consumer::{Batch, ConsumeError, Consumer, Order, Start};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use super::check::Processed;
use super::data::Flight;
use super::view::{Delays, Progress};
use crate::failure::Failure;

const GROUP: &str = "delays";
/// Bytes of a range: small, so that every consumer has something to do.
const RANGE_BYTES: u32 = 128 << 10;
/// A consumer that cannot leave in this time is left alone.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Consumers that share the stream without order.
#[derive(Clone)]
pub(super) struct Crew {
    shared: Arc<Shared>,
}

struct Shared {
    bootstrap: String,
    stream: &'static str,
    /// Records a second that each handles.
    capacity: f64,
    progress: Arc<Progress>,
    processed: Arc<Processed>,
    stop: watch::Sender<bool>,
    members: Mutex<Vec<JoinHandle<()>>>,
}

impl Crew {
    /// A crew without members. Each will handle `capacity` records a second, as if every record
    /// took work: otherwise one consumer would always be enough, and nothing to be seen.
    pub(super) fn start(
        bootstrap: String,
        stream: &'static str,
        capacity: f64,
        progress: Arc<Progress>,
        processed: Arc<Processed>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                bootstrap,
                stream,
                capacity,
                progress,
                processed,
                stop: watch::Sender::new(false),
                members: Mutex::default(),
            }),
        }
    }

    /// One more member.
    pub(super) async fn hire(&self) {
        let shared = self.shared.clone();
        let mut members = self.shared.members.lock().await;
        let number = members.len() + 1;
        members.push(tokio::spawn(async move {
            if let Err(failure) = shared.work(number).await {
                shared.progress.fail(failure);
            }
        }));
    }

    /// All members leave.
    pub(super) async fn dismiss(&self) {
        self.shared.stop.send_replace(true);
        for member in self.shared.members.lock().await.drain(..) {
            // A member that failed has said so.
            let _ = member.await;
        }
    }
}

impl Shared {
    async fn work(&self, number: usize) -> Result<(), Failure> {
        let mut stop = self.stop.subscribe();
        let opening = Consumer::builder()
            .bootstrap(&self.bootstrap)
            .stream(self.stream)
            .group(GROUP)
            .client_name(format!("demo {number}"))
            .order(Order::None)
            .start(Start::Earliest)
            .range_bytes(RANGE_BYTES)
            .max_leases(2)
            .manual_commit()
            .open();
        let mut consumer = tokio::select! {
            consumer = opening => consumer?,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        self.progress.consumers.fetch_add(1, Relaxed);
        let mut due = Instant::now();
        loop {
            let batch = tokio::select! {
                batch = consumer.next_batch() => batch,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let batch = match batch {
                Ok(batch) => batch,
                // The broker is away, as it will be once.
                Err(error) if error.is_retryable() => continue,
                Err(error) => return Err(error.into()),
            };
            let records = self.process(&batch)?;
            let took = Duration::from_secs_f64(records as f64 / self.capacity);
            due = due.max(Instant::now() - Duration::from_millis(50)) + took;
            tokio::time::sleep_until(due.into()).await;
            match consumer.mark(&batch) {
                // Its records go to another member; the next ones are ours again.
                Ok(()) | Err(ConsumeError::StaleLease { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Everything is processed by now; whoever cannot leave in time changes nothing.
        let _ = tokio::time::timeout(LEAVE_WITHIN, consumer.close()).await;
        Ok(())
    }

    /// Visits a batch's records: each is marked, and its delay counted the first time.
    fn process(&self, batch: &Batch) -> Result<u64, Failure> {
        let mut delays: HashMap<&str, Delays> = HashMap::new();
        let mut records = 0;
        let mut first_time = 0;
        for record in batch.records() {
            let record = record?;
            records += 1;
            let flight = record.value.and_then(Flight::parse);
            let mark = flight
                .as_ref()
                .and_then(|flight| self.processed.mark(flight.producer, flight.sequence));
            let (Some(flight), Some(first)) = (flight, mark) else {
                return Err(Failure::message(format!(
                    "a record that nobody sent is in the stream, at ordinal {}",
                    record.ordinal
                )));
            };
            if !first {
                continue;
            }
            first_time += 1;
            let sum = delays.entry(flight.carrier).or_default();
            sum.flights += 1;
            if let Some(minutes) = flight.delay {
                sum.arrived += 1;
                sum.minutes += minutes;
            }
        }
        self.progress.processed.fetch_add(first_time, Relaxed);
        self.progress.again.fetch_add(records - first_time, Relaxed);
        self.progress.add_delays(delays);
        Ok(records)
    }
}
