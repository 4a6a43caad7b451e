//! Producers: every record that they send is acknowledged in the end, unless they give it up after a time.

use std::sync::Arc;
use std::time::Duration;

use kera_history::{Event, FailureOutcome, Lane, Record, payload};
use kera_producer::{Delivery, ErrorCode, ProduceError, Producer, Record as NewRecord};
use kera_protocol::partition::lane_of;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::sleep;

use crate::dice::Dice;
use crate::load::{Load, hashed};
use crate::os;

/// Records whose outcome is waited for, at most.
const WAITING: usize = 1 << 12;

/// Sends until it is told to stop, and waits until all is acknowledged or given up; how many records that were.
pub async fn run(load: Arc<Load>, number: u32, mut dice: Dice) -> u64 {
    let plan = load.plan.producers[number as usize].clone();
    let stream = &load.plan.streams[plan.stream as usize];
    let building = Producer::builder()
        .bootstrap(&load.bootstrap)
        .stream(&stream.name)
        .batch_size(plan.batch_bytes)
        // Little enough to run full while brokers are away.
        .memory_limit(256 << 10)
        .deadline(plan.deadline)
        .retry(Load::retry())
        .build();
    let producer = match building.await {
        Ok(producer) => producer,
        Err(error) => {
            load.complain(format!("producer {number} cannot be built: {error}"));
            return 0;
        }
    };
    let (to_acker, deliveries) = channel(WAITING);
    let acker = tokio::spawn(acknowledge(load.clone(), number, deliveries));
    let (mut sent, mut value) = (0, Vec::new());
    while !load.is_stopping() {
        load.record(Event::Batched { producer: number });
        for _ in 0..dice.between(1, plan.burst) {
            let record = Record {
                producer: number,
                seq: sent,
            };
            let key = format!("{number}-{}", dice.below(plan.keys));
            payload::encode_into(
                &mut value,
                number,
                sent,
                dice.between(24, plan.largest) as usize,
            );
            load.record(Event::Send {
                record,
                stream: plan.stream,
                streamlet: Some(lane_of(key.as_bytes(), stream.streamlets, stream.lanes).0.0),
                lane: None,
                key: Some(hashed(key.as_bytes())),
            });
            sent += 1;
            let new = NewRecord {
                key: Some(key.as_bytes()),
                value: Some(&value),
                ..NewRecord::default()
            };
            match producer.append_wait(&new).await {
                Ok(delivery) => {
                    if to_acker.send((record, delivery)).await.is_err() {
                        return sent;
                    }
                }
                Err(error) => {
                    load.record(Event::Failed {
                        record,
                        outcome: FailureOutcome::Definite,
                    });
                    load.complain(format!(
                        "producer {number} refused record {record}: {error}"
                    ));
                    return sent;
                }
            }
        }
        let many = load.acknowledged() > load.plan.budget;
        let longest = if many {
            Duration::from_secs(1)
        } else {
            plan.pause
        };
        sleep(Duration::from_micros(
            dice.below(longest.as_micros() as u64),
        ))
        .await;
    }
    if let Err(error) = producer.flush().await
        && !plan.gives_up()
        && !is_lost_by_restore(&load, &error)
    {
        load.complain(format!("producer {number} cannot flush: {error}"));
    }
    drop(to_acker);
    if acker.await.is_err() {
        load.complain(format!("the task of producer {number} panicked"));
    }
    if let Err(error) = producer.close().await
        && !is_lost_by_restore(&load, &error)
    {
        load.complain(format!("producer {number} cannot close: {error}"));
    }
    sent
}

async fn acknowledge(load: Arc<Load>, number: u32, mut deliveries: Receiver<(Record, Delivery)>) {
    let plan = &load.plan.producers[number as usize];
    let mut given_up = 0;
    while let Some((record, delivery)) = deliveries.recv().await {
        match delivery.await {
            Ok(place) => {
                let lane = Lane {
                    stream: plan.stream,
                    streamlet: place.streamlet.0,
                    lane: place.lane.0,
                };
                load.record(Event::Ack {
                    record,
                    lane,
                    ordinal: place.ordinal,
                });
                load.count_acknowledged();
            }
            Err(error) => {
                let outcome = match error.is_uncertain() {
                    true => FailureOutcome::Unknown,
                    false => FailureOutcome::Definite,
                };
                load.record(Event::Failed { record, outcome });
                // Behind a record that may be stored, others may have to be given up early.
                let late = matches!(
                    error,
                    ProduceError::Timeout { .. } | ProduceError::Uncertain(_)
                );
                given_up += u64::from(late);
                let is_given_up = plan.gives_up() && late;
                if !is_given_up && !is_lost_by_restore(&load, &error) {
                    load.complain(format!("record {record} was given up: {error}"));
                }
            }
        }
    }
    if given_up > 0 {
        os::log(&format!("producer {number} gave {given_up} records up"));
    }
}

/// Whether nobody can tell what became of a batch, as its owner knows nothing of its producer any more: what was appended and not yet
/// acknowledged may be lost with the newest states of the metadata store.
fn is_lost_by_restore(load: &Load, error: &ProduceError) -> bool {
    let is_of_memory = matches!(error, ProduceError::Uncertain(refused) if refused.code == ErrorCode::UnknownProducer);
    load.was_put_back() && is_of_memory
}
