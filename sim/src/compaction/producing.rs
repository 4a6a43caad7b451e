//! Producers of the compacted stream: each has keys of its own, which it writes again and again, and deletes.

use std::sync::Arc;
use std::time::Duration;

use kera_history::{Lane, payload};
use kera_producer::{Delivery, Producer, Record as NewRecord};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::sleep;

use super::Shared;
use crate::dice::Dice;
use crate::load::{Load, PATIENCE};
use crate::os;

/// Records whose outcome is waited for, at most.
const WAITING: usize = 1 << 10;
/// The number of the producer that comes when the others have ended, and its records.
const LATE: u32 = 99;
const ADDED: u32 = 60;

/// A record on its way: its key, and which of its key's it is.
type Sent = (String, u64, Delivery);

/// Writes until it is told to stop, and waits until all is acknowledged.
pub async fn run(shared: Arc<Shared>, number: u32, mut dice: Dice) {
    let plan = &shared.plan;
    let load = &shared.load;
    let Some(producer) = open(&shared, number).await else {
        return;
    };
    let (to_acker, deliveries) = channel(WAITING);
    let acker = tokio::spawn(acknowledge(shared.clone(), deliveries));
    while !load.is_stopping() {
        for _ in 0..dice.between(1, plan.burst) {
            // Some keys are written again soon, and others late: readers are judged of these.
            let most = dice.below(plan.keys);
            let key = format!("{number}-{}", dice.between(0, most));
            let is_tombstone = dice.chance(plan.tombstones);
            let of_key = shared.table.sends(&key, is_tombstone, os::now());
            let size = dice.between(24, plan.largest) as usize;
            let value = payload::encode(number, of_key, size);
            let new = NewRecord {
                key: Some(key.as_bytes()),
                value: (!is_tombstone).then_some(&value[..]),
                ..NewRecord::default()
            };
            match producer.append_wait(&new).await {
                Ok(delivery) => {
                    if to_acker.send((key, of_key, delivery)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let text = format!("record {of_key} of key {key} is refused: {error}");
                    return load.complain(text);
                }
            }
        }
        let longest = match load.acknowledged() > load.plan.budget {
            true => Duration::from_secs(1),
            false => plan.pause,
        };
        sleep(Duration::from_micros(
            dice.below(longest.as_micros() as u64),
        ))
        .await;
    }
    drop(to_acker);
    if acker.await.is_err() {
        load.complain(format!(
            "the task of producer {number} of the table panicked"
        ));
    }
    if let Err(error) = producer.close().await {
        load.complain(format!(
            "producer {number} of the table cannot close: {error}"
        ));
    }
}

/// Appends records of keys that nobody has written so far, so that each lane gets some.
pub async fn add(shared: &Arc<Shared>) {
    let Some(producer) = open(shared, LATE).await else {
        return;
    };
    let (to_acker, deliveries) = channel(WAITING);
    let acker = tokio::spawn(acknowledge(shared.clone(), deliveries));
    for at in 0..ADDED {
        let key = format!("{LATE}-{at}");
        let of_key = shared.table.sends(&key, false, os::now());
        let value = payload::encode(LATE, of_key, 24);
        let new = NewRecord {
            key: Some(key.as_bytes()),
            value: Some(&value),
            ..NewRecord::default()
        };
        match producer.append_wait(&new).await {
            Ok(delivery) => _ = to_acker.send((key, of_key, delivery)).await,
            Err(error) => shared
                .load
                .complain(format!("the table takes no more: {error}")),
        }
    }
    drop(to_acker);
    if acker.await.is_err() || producer.close().await.is_err() {
        let text = format!("producer {LATE} of the table did not come to its end");
        shared.load.complain(text);
    }
}

async fn open(shared: &Shared, number: u32) -> Option<Producer> {
    let (plan, load) = (&shared.plan, &shared.load);
    let building = Producer::builder()
        .bootstrap(&load.bootstrap)
        .stream(shared.name())
        .batch_size(plan.batch_bytes)
        .memory_limit(256 << 10)
        .deadline(PATIENCE)
        .retry(Load::retry())
        .build();
    match building.await {
        Ok(producer) => Some(producer),
        Err(error) => {
            load.complain(format!("producer {number} of the table: {error}"));
            None
        }
    }
}

async fn acknowledge(shared: Arc<Shared>, mut deliveries: Receiver<Sent>) {
    while let Some((key, number, delivery)) = deliveries.recv().await {
        match delivery.await {
            Ok(place) => {
                let lane = Lane {
                    stream: shared.stream,
                    streamlet: place.streamlet.0,
                    lane: place.lane.0,
                };
                let place = (lane, place.ordinal);
                shared.table.stored(&key, number, place);
                shared.load.count_acknowledged();
            }
            Err(error) => shared.load.complain(format!(
                "record {number} of key {key} was given up: {error}"
            )),
        }
    }
}
