//! The producer of a stream that a share group reads; it also has lanes added.

use std::sync::Arc;

use kera_history::payload;
use kera_protocol::partition::partition_of;

use super::Shared;
use crate::bursts::{Growth, Writer, Written};
use crate::dice::Dice;

/// The number of the producer in what it writes.
const NUMBER: u32 = 1;
/// Most lanes in all.
const MOST_LANES: u32 = 5;

/// Writes until it is told to stop, and waits until all is acknowledged.
pub async fn run(shared: Arc<Shared>, dice: Dice) {
    let plan = &shared.plan;
    let writer = Writer {
        load: &shared.load,
        who: "the producer for the share group".to_owned(),
        stream: shared.name(),
        batch_bytes: plan.batch_bytes,
        burst: plan.burst,
        pause: plan.pause,
    };
    let next = |dice: &mut Dice| {
        let key = dice.below(plan.keys);
        let number = shared.judge.sends();
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
    let judging = shared.clone();
    let stored = move |_, number, place: kera_producer::RecordPlace| {
        let streamlets = judging.plan.stream.streamlets;
        let partition = partition_of(place.streamlet, place.lane, streamlets) as u32;
        judging.judge.stored(partition, place.ordinal, number);
    };
    writer.write(dice, next, grow, stored).await;
}
