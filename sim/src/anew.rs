//! Readers without a group. While there is trouble they begin anew again and again.

use std::fmt::Display;
use std::time::Duration;

use kera_consumer::{Batch, ConsumeError, Reader, ReaderBuilder, Start};
use kera_history::{Event, payload};
use tokio::time::sleep;

use crate::dice::Dice;
use crate::load::{Load, hashed};

/// How often one begins anew at most: each time it may read everything.
pub const MOST: u32 = 6;

/// After a while; false if nobody is to begin any more.
pub async fn begins(load: &Load, dice: &mut Dice) -> bool {
    sleep(Duration::from_millis(dice.between(1, 4_000))).await;
    !load.is_stopping()
}

/// The rack near which the next one reads, if there are any.
pub fn rack(load: &Load, dice: &mut Dice) -> Option<String> {
    let racks = u64::from(load.plan.racks);
    (racks > 0).then(|| format!("rack{}", dice.below(racks)))
}

/// Reads all of a stream, near its rack if it has one.
pub fn reader(load: &Load, stream: &str, rack: Option<String>) -> ReaderBuilder {
    Reader::builder()
        .bootstrap(&load.bootstrap)
        .stream(stream)
        .start(Start::Earliest)
        .rack(rack.unwrap_or_default())
        .retry(Load::retry())
}

/// Trouble may end a reader, and damage must not.
pub fn ended(load: &Load, who: impl Display, outcome: Result<(), ConsumeError>) {
    if let Err(error) = outcome
        && (!error.is_retryable() || matches!(error, ConsumeError::Corrupt { .. }))
    {
        load.complain(format!("{who} ended: {error}"));
    }
}

/// Records what a batch brought.
pub fn record_read(load: &Load, consumer: u32, batch: &Batch) {
    let lane = load.lane(batch.lane());
    let head = Some(batch.head_ordinal());
    let events = batch.records().filter_map(|record| {
        let record = record.ok()?;
        Some(Event::Read {
            consumer,
            lease: None,
            lane,
            ordinal: record.ordinal,
            record: record.value.and_then(|value| payload::decode(value).ok()),
            key: record.key.map(hashed),
            head,
        })
    });
    load.record_all(std::iter::once(Event::Polled { consumer }).chain(events));
}

/// A record of a batch cannot be read.
pub fn undecodable(load: &Load, batch: &Batch, error: impl Display) {
    let (lane, first) = (load.lane(batch.lane()), batch.first_ordinal());
    load.complain(format!(
        "a record of lane {lane} after ordinal {first} does not decode: {error}"
    ));
}
