//! The producer of a stream whose group keeps the order of keys; it also has lanes added.

use std::sync::Arc;

use kera_history::payload;

use super::Shared;
use crate::bursts::{Growth, Writer, Written};
use crate::dice::Dice;

/// The number of the producer in what it writes.
const NUMBER: u32 = 1;
/// Most lanes in all.
const MOST_LANES: u32 = 7;

/// Writes until it is told to stop, and waits until all is acknowledged.
pub async fn run(shared: Arc<Shared>, dice: Dice) {
    let plan = &shared.plan;
    let writer = Writer {
        load: &shared.load,
        who: "the producer by key".to_owned(),
        stream: shared.name(),
        batch_bytes: plan.batch_bytes,
        burst: plan.burst,
        pause: plan.pause,
    };
    let next = |dice: &mut Dice| {
        let key = dice.below(plan.keys);
        let number = shared.keys.sends(key);
        let size = dice.between(24, plan.largest) as usize;
        Written {
            key: key.to_string(),
            value: Some(payload::encode(NUMBER, number, size)),
            number,
        }
    };
    let mut growth = Growth {
        lanes: plan.stream.streamlets * plan.stream.lanes,
        most: MOST_LANES,
        chance: plan.growth,
    };
    let grow = async |dice: &mut Dice| growth.grow(&shared.load, shared.name(), dice).await;
    writer.write(dice, next, grow, |_, _, _| ()).await;
}
