//! The producer of a stream whose group keeps the order of keys; it also has lanes added.

use std::sync::Arc;
use std::time::Duration;

use kera_history::payload;
use kera_producer::{Delivery, Producer, Record as NewRecord};
use kera_protocol::v1;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::sleep;

use super::Shared;
use crate::dice::Dice;
use crate::load::{Load, PATIENCE};

/// Records whose outcome is waited for, at most.
const WAITING: usize = 1 << 10;
/// The number of the producer in what it writes.
const NUMBER: u32 = 1;
/// Most lanes in all.
const MOST_PARTITIONS: u32 = 7;

/// Writes until it is told to stop, and waits until all is acknowledged.
pub async fn run(shared: Arc<Shared>, mut dice: Dice) {
    let (plan, load) = (&shared.plan, &shared.load);
    let building = Producer::builder()
        .bootstrap(&load.bootstrap)
        .stream(shared.name())
        .batch_size(plan.batch_bytes)
        .memory_limit(256 << 10)
        .deadline(PATIENCE)
        .retry(Load::retry())
        .build();
    let producer = match building.await {
        Ok(producer) => producer,
        Err(error) => return load.complain(format!("the producer by key: {error}")),
    };
    let (to_acker, deliveries) = channel(WAITING);
    let acker = tokio::spawn(acknowledge(load.clone(), deliveries));
    let mut partitions = plan.stream.streamlets * plan.stream.lanes;
    while !load.is_stopping() {
        for _ in 0..dice.between(1, plan.burst) {
            let key = dice.below(plan.keys);
            let number = shared.keys.sends(key);
            let size = dice.between(24, plan.largest) as usize;
            let value = payload::encode(NUMBER, number, size);
            let name = key.to_string();
            let new = NewRecord::keyed(name.as_bytes(), &value);
            match producer.append_wait(&new).await {
                Ok(delivery) => {
                    if to_acker.send((key, number, delivery)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let text = format!("record {number} of key {key} is refused: {error}");
                    return load.complain(text);
                }
            }
        }
        if partitions < MOST_PARTITIONS
            && dice.chance(plan.growth)
            && grow(&shared, partitions + 1).await
        {
            partitions += 1;
        }
        let longest = match load.acknowledged() > load.plan.budget {
            true => Duration::from_secs(1),
            false => plan.pause,
        };
        let pause = dice.below(longest.as_micros() as u64);
        sleep(Duration::from_micros(pause)).await;
    }
    drop(to_acker);
    if acker.await.is_err() {
        load.complain("the task of the producer by key panicked".to_owned());
    }
    if let Err(error) = producer.close().await {
        load.complain(format!("the producer by key cannot close: {error}"));
    }
}

/// Has the stream have so many lanes in all. While owners change nobody can say where lanes end, and it is refused.
async fn grow(shared: &Shared, partitions: u32) -> bool {
    let request = v1::AlterStreamRequest {
        name: shared.name().to_owned(),
        config: Some(v1::StreamConfig {
            partitions: Some(partitions),
            ..v1::StreamConfig::default()
        }),
    };
    shared.load.client().call(request).await.is_ok()
}

async fn acknowledge(load: Arc<Load>, mut deliveries: Receiver<(u64, u64, Delivery)>) {
    while let Some((key, number, delivery)) = deliveries.recv().await {
        match delivery.await {
            Ok(_) => load.count_acknowledged(),
            Err(error) => load.complain(format!(
                "record {number} of key {key} was given up: {error}"
            )),
        }
    }
}
