//! Producers of the compacted stream: each has keys of its own, which it writes again and again, and deletes.

use std::sync::Arc;

use kera_history::{Lane, payload};
use kera_producer::RecordPlace;

use super::Shared;
use crate::bursts::{Writer, Written};
use crate::dice::Dice;
use crate::os;

/// The number of the producer that comes when the others have ended, and its records.
const LATE: u32 = 99;
const ADDED: u32 = 60;

/// Writes until it is told to stop, and waits until all is acknowledged.
pub async fn run(shared: Arc<Shared>, number: u32, dice: Dice) {
    let plan = &shared.plan;
    let next = |dice: &mut Dice| {
        // Some keys are written again soon, and others late: readers are judged of these.
        let most = dice.below(plan.keys);
        let key = format!("{number}-{}", dice.between(0, most));
        let is_tombstone = dice.chance(plan.tombstones);
        let of_key = shared.table.sends(&key, is_tombstone, os::now());
        let size = dice.between(24, plan.largest) as usize;
        Written {
            key,
            value: (!is_tombstone).then(|| payload::encode(number, of_key, size)),
            number: of_key,
        }
    };
    let writer = writer(&shared, number);
    writer
        .write(dice, next, async |_: &mut Dice| (), stored(&shared))
        .await;
}

/// Appends records of keys that nobody has written so far, so that each lane gets some.
pub async fn add(shared: &Arc<Shared>) {
    let records = (0..ADDED).map(|at| {
        let key = format!("{LATE}-{at}");
        let number = shared.table.sends(&key, false, os::now());
        Written {
            key,
            value: Some(payload::encode(LATE, number, 24)),
            number,
        }
    });
    writer(shared, LATE)
        .write_all(records, stored(shared))
        .await;
}

fn writer(shared: &Shared, number: u32) -> Writer<'_> {
    let plan = &shared.plan;
    Writer {
        load: &shared.load,
        who: format!("producer {number} of the table"),
        stream: shared.name(),
        batch_bytes: plan.batch_bytes,
        burst: plan.burst,
        pause: plan.pause,
    }
}

/// Notes where a record is.
fn stored(shared: &Arc<Shared>) -> impl Fn(String, u64, RecordPlace) + Send + 'static {
    let shared = shared.clone();
    move |key, number, place| {
        let lane = Lane {
            stream: shared.stream,
            streamlet: place.streamlet.0,
            lane: place.lane.0,
        };
        shared.table.stored(&key, number, (lane, place.ordinal));
    }
}
