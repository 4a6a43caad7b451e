//! Readers of the compacted stream: while there is trouble they begin anew again and again; in the end one reads
//! everything, has it compacted, and reads it once more.

use std::sync::Arc;
use std::time::Duration;

use kera_consumer::ConsumeError;
use kera_history::payload;
use kera_protocol::ids::LaneKey;
use kera_protocol::v1;
use tokio::time::{sleep, timeout};

use super::{Shared, producing};
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
        let mut pause = || match shared.plan.read_pause.as_micros() as u64 {
            0 => Duration::ZERO,
            longest => Duration::from_micros(pauses.below(longest)),
        };
        let rests = async |_: usize| {
            let pause = pause();
            if !pause.is_zero() {
                sleep(pause).await;
            }
            !pause.is_zero()
        };
        let outcome = timeout(longest, read(&shared, number, rack, rests)).await;
        let who = format_args!("reader {number} of the table");
        anew::ended(&shared.load, who, outcome.unwrap_or(Ok(())));
    }
}

/// Reads from the beginning to the end, near a rack or not. Does `between` after each batch, which is told how many
/// records there were so far; where it says so, what was fetched ahead is dropped, and fetched anew.
async fn read(
    shared: &Shared,
    number: u32,
    rack: Option<String>,
    mut between: impl AsyncFnMut(usize) -> bool,
) -> Result<(), ConsumeError> {
    shared.table.begins(number, os::now());
    let reader = anew::reader(&shared.load, shared.name(), rack).follow(false);
    let mut reader = reader.open().await?;
    let mut got = 0;
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
                    got += 1;
                    shared.table.read(number, key, (lane, record.ordinal), said);
                }
                Err(error) => anew::undecodable(&shared.load, &batch, error),
            }
        }
        // Whoever comes no further is judged up to here.
        let next = batch.next_ordinal();
        shared.table.passed(number, lane, next, os::now());
        if between(got).await {
            for position in reader.positions() {
                let LaneKey {
                    streamlet, lane, ..
                } = position.lane;
                let (streamlet, lane) = (streamlet.0, lane.0);
                reader.seek(streamlet, lane, position.next).await?;
            }
        }
    }
    for position in reader.positions() {
        let lane = shared.load.lane(position.lane);
        let next = position.next.ordinal;
        shared.table.passed(number, lane, next, os::now());
    }
    Ok(())
}

/// Reads all, has it compacted while a reader is in the middle, and reads it again. What is wrong, and how many records
/// were written and are left.
pub async fn read_and_compact(shared: Arc<Shared>) -> (Vec<String>, (usize, usize)) {
    let (mut found, mut last) = until_it_is_right(&shared, LAST).await;
    if found.is_empty() {
        compact_under_a_reader(&shared, last).await;
        (found, last) = until_it_is_right(&shared, last + 1).await;
    }
    found.extend(shared.table.findings());
    (found, shared.table.counts(last - 1))
}

/// A reader gets half of what `number - 1` got, and the rest once two passes have gone by: the first may remove what was
/// read, and the second the tombstone that is still to be read.
async fn compact_under_a_reader(shared: &Arc<Shared>, number: u32) {
    let (_, all) = shared.table.counts(number - 1);
    let mut is_done = false;
    let halfway = async |got: usize| {
        if is_done || got * 2 < all {
            return false;
        }
        is_done = true;
        compact(shared).await;
        // A pass that finds nothing new does nothing.
        producing::add(shared).await;
        compact(shared).await;
        true
    };
    let outcome = timeout(PATIENCE, read(shared, number, None, halfway)).await;
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let text = format!("the table cannot be read while it is compacted: {error}");
            shared.load.complain(text);
        }
        Err(_) => shared
            .load
            .complain("the table is not read to its end while it is compacted".to_owned()),
    }
}

/// Reads until what is left is the newest of each key, or never can be, or for long enough; what is wrong then, and the
/// next number.
async fn until_it_is_right(shared: &Shared, first: u32) -> (Vec<String>, u32) {
    let until = os::now() + PATIENCE;
    let mut number = first;
    loop {
        let lacks = match timeout(PATIENCE, read(shared, number, None, async |_| false)).await {
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
        let call = client.call(request.clone());
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
