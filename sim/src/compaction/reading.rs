//! Readers of the compacted stream: while there is trouble they begin anew again and again; in the end one reads
//! everything, has it compacted, and reads it once more.

use std::sync::Arc;
use std::time::Duration;

use kera_consumer::{ConsumeError, Fetch};
use kera_history::payload;
use kera_protocol::v1;
use tokio::time::{sleep, timeout};

use super::Shared;
use crate::anew::{self, MOST};
use crate::dice::Dice;
use crate::load::PATIENCE;
use crate::os;

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
        let longest = Duration::from_millis(dice.between(500, 12_000));
        let mut pauses = dice.clone();
        let pause = || match shared.plan.read_pause.as_micros() as u64 {
            0 => Duration::ZERO,
            longest => Duration::from_micros(pauses.below(longest)),
        };
        let fetch = match shared.plan.read_pause.is_zero() {
            true => Fetch::Push,
            // Otherwise most of the lane is here before the first pause.
            false => Fetch::Pull,
        };
        let outcome = timeout(longest, read(&shared, number, (rack, fetch), pause)).await;
        let who = format_args!("reader {number} of the table");
        anew::ended(&shared.load, who, outcome.unwrap_or(Ok(())));
    }
}

/// Reads from the beginning to the end, near a rack or not, with a pause after each batch.
async fn read(
    shared: &Shared,
    number: u32,
    (rack, fetch): (Option<String>, Fetch),
    mut pause: impl FnMut() -> Duration,
) -> Result<(), ConsumeError> {
    shared.table.begins(number, os::now());
    let mut reader = anew::reader(&shared.load, shared.name(), rack).follow(false);
    if fetch == Fetch::Pull {
        // One batch of each lane.
        reader = reader.fetch(fetch).fetch_bytes(1);
    }
    let mut reader = reader.open().await?;
    while let Some(batch) = reader.next_batch().await? {
        let lane = shared.load.lane(batch.lane());
        for record in batch.records() {
            match record {
                Ok(record) => {
                    let key = String::from_utf8_lossy(record.key.unwrap_or_default()).into_owned();
                    // What does not decode is a number that no record has.
                    let said = record
                        .value
                        .map(|value| payload::decode(value).map_or(u64::MAX, |said| said.seq));
                    shared.table.read(number, key, (lane, record.ordinal), said);
                }
                Err(error) => anew::undecodable(&shared.load, &batch, error),
            }
        }
        // Whoever comes no further is judged up to here.
        let next = batch.next_ordinal();
        shared.table.passed(number, lane, next, os::now());
        let pause = pause();
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    for position in reader.positions() {
        let lane = shared.load.lane(position.lane);
        let next = position.next.ordinal;
        shared.table.passed(number, lane, next, os::now());
    }
    Ok(())
}

/// Reads all, has it compacted, and reads it again. What is wrong, and how many records were written and are left.
pub async fn read_and_compact(shared: Arc<Shared>) -> (Vec<String>, (usize, usize)) {
    let (mut found, mut last) = until_it_is_right(&shared, LAST).await;
    if found.is_empty() {
        compact(&shared).await;
        (found, last) = until_it_is_right(&shared, last).await;
    }
    found.extend(shared.table.findings());
    (found, shared.table.counts(last - 1))
}

/// Reads until what is left is the newest of each key, or never can be, or for long enough; what is wrong then, and the
/// next number.
async fn until_it_is_right(shared: &Shared, first: u32) -> (Vec<String>, u32) {
    let until = os::now() + PATIENCE;
    let mut number = first;
    loop {
        let lacks = match timeout(
            PATIENCE,
            read(shared, number, (None, Fetch::Push), || Duration::ZERO),
        )
        .await
        {
            Ok(Ok(())) => shared.table.lacks(number),
            Ok(Err(error)) => vec![format!("the table cannot be read: {error}")],
            Err(_) => vec!["the table is not read to its end in time".to_owned()],
        };
        number += 1;
        let is_wrong = !shared.table.findings().is_empty();
        if lacks.is_empty() || is_wrong || os::now() > until {
            return (lacks, number);
        }
        sleep(LOOK).await;
    }
}

/// Asks for a compaction until it is done.
async fn compact(shared: &Shared) {
    let client = shared.load.client();
    let until = os::now() + PATIENCE;
    let request = v1::CompactStreamRequest {
        name: shared.name().to_owned(),
        local: false,
    };
    loop {
        let call = client.streams_call(|mut stub| {
            let request = request.clone();
            async move { stub.compact_stream(request).await }
        });
        let Err(error) = call.await else {
            return;
        };
        if os::now() > until {
            let text = format!("the table cannot be compacted: {error}");
            return shared.load.complain(text);
        }
        sleep(LOOK).await;
    }
}
