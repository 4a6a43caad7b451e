//! Readers of transactions: while there is trouble they begin anew again and again; in the end one reads everything.

use std::sync::Arc;
use std::time::Duration;

use kera_consumer::ConsumeError;
use kera_history::payload;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::producing::send_plainly;
use crate::anew::{self, MOST};
use crate::dice::Dice;
use crate::load::PATIENCE;
use crate::os;

const IDLE: Duration = Duration::from_millis(300);
/// Between two looks whether everything can be read.
const LOOK: Duration = Duration::from_secs(1);
/// The number of the first reader that is to find everything.
const LAST: u32 = 1_000;

/// Reads until it is told to stop. `first` is the first of as many numbers as it begins anew.
pub async fn run(shared: Arc<Shared>, first: u32, mut dice: Dice) {
    for number in first..first + MOST {
        if !anew::begins(&shared.load, &mut dice).await {
            return;
        }
        let rack = anew::rack(&shared.load, &mut dice);
        let until = os::now() + Duration::from_millis(dice.between(500, 12_000));
        let outcome = read(&shared, number, rack, Some(until)).await;
        let who = format_args!("reader {number} of transactions");
        anew::ended(&shared.load, who, outcome);
    }
}

/// Reads from the beginning, until `until` or to the end.
async fn read(
    shared: &Shared,
    number: u32,
    rack: Option<String>,
    until: Option<Duration>,
) -> Result<(), ConsumeError> {
    let reader = anew::reader(&shared.load, shared.name(), rack).follow(until.is_some());
    let mut reader = reader.open().await?;
    let is_over = || until.is_some_and(|until| os::now() > until || shared.load.is_stopping());
    while !is_over() {
        let Ok(batch) = timeout(IDLE, reader.next_batch()).await else {
            continue;
        };
        let Some(batch) = batch? else {
            break;
        };
        let lane = shared.load.lane(batch.lane());
        for record in batch.records() {
            match record {
                Ok(record) => {
                    let sent = record.value.and_then(|value| payload::decode(value).ok());
                    shared.ledger.read(number, lane, record.ordinal, sent);
                }
                Err(error) => anew::undecodable(&shared.load, &batch, error),
            }
        }
    }
    for position in reader.positions() {
        let lane = shared.load.lane(position.lane);
        shared.ledger.passed(number, lane, position.next.ordinal);
    }
    Ok(())
}

/// Appends to every lane what no transaction may hold up for longer than its time, and reads until all that counts was
/// read, or for long enough. What is wrong with any transaction.
pub async fn until_all_is_read(shared: Arc<Shared>) -> Vec<String> {
    send_plainly(&shared, LAST).await;
    let until = os::now() + PATIENCE;
    let mut number = LAST;
    loop {
        let is_read = match timeout(PATIENCE, read(&shared, number, None, None)).await {
            Ok(Ok(())) => shared.ledger.has_all(number),
            Ok(Err(error)) if error.is_retryable() => false,
            Ok(Err(error)) => {
                let text = format!("transactions cannot be read: {error}");
                shared.load.complain(text);
                false
            }
            Err(_) => false,
        };
        if is_read || os::now() > until {
            return shared.ledger.findings(number);
        }
        number += 1;
        sleep(LOOK).await;
    }
}
