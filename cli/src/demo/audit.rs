//! Reads the whole lane once more and holds it against what was sent.

use std::time::Duration;

use kera_consumer::{Fetch, Reader, Start};

use super::check::{Audit, Verdict};
use super::data::Flight;
use crate::failure::Failure;

/// The broker has just answered; it is not waited for long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads everything that `stream` holds. `sent` is what each producer had acknowledged.
pub(super) async fn audit(
    bootstrap: &str,
    stream: &str,
    sent: Vec<u64>,
) -> Result<Verdict, Failure> {
    let mut reader = Reader::builder()
        .bootstrap(bootstrap)
        .stream(stream)
        .start(Start::Earliest)
        .follow(false)
        .fetch(Fetch::Pull)
        .open()
        .await?;
    let mut audit = Audit::new(sent);
    loop {
        let next = tokio::time::timeout(PATIENCE, reader.next_batch()).await;
        let Ok(next) = next else {
            return Err(Failure::message(format!(
                "nothing can be read behind ordinal {}",
                audit.next_ordinal()
            )));
        };
        let Some(batch) = next? else {
            return Ok(audit.finish());
        };
        for record in batch.records() {
            let record = record?;
            let flight = record.value.and_then(Flight::parse);
            let identity = flight.map(|flight| (flight.producer, flight.sequence));
            audit.record(record.ordinal, identity);
        }
    }
}
