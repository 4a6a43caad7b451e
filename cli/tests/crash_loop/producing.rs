//! Producers under load, through all kills: every record they send is acknowledged in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_history::{Event, FailureOutcome, Lane, Record, payload};
use kera_producer::{Compression, Delivery, Producer, Record as NewRecord};
use kera_protocol::partition::lane_of;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::common::PATIENCE;
use crate::world::{KEYED, LANES, PINNED, STREAMLETS, World, hashed};

/// Different keys of a producer.
const KEYS: u32 = 40;
/// Records of a producer whose outcome is waited for, at most.
const ACKS_WAITING: usize = 1 << 14;

#[derive(Clone, Copy)]
struct Style {
    stream: u32,
    keyed: bool,
    compression: Compression,
    batch_bytes: usize,
}

const STYLES: [Style; 5] = [
    Style {
        stream: KEYED,
        keyed: true,
        compression: Compression::None,
        batch_bytes: 4 << 10,
    },
    Style {
        stream: KEYED,
        keyed: true,
        compression: Compression::Lz4,
        batch_bytes: 16 << 10,
    },
    Style {
        stream: KEYED,
        keyed: false,
        compression: Compression::None,
        batch_bytes: 2 << 10,
    },
    Style {
        stream: PINNED,
        keyed: true,
        compression: Compression::None,
        batch_bytes: 4 << 10,
    },
    Style {
        stream: PINNED,
        keyed: false,
        compression: Compression::Zstd,
        batch_bytes: 8 << 10,
    },
];

pub struct Producers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u64>>,
}

impl Producers {
    pub fn start(world: &World, seed: u64) -> Self {
        Self::some(world, seed, STYLES.len())
    }

    /// As [`start`](Self::start), with so many producers at most.
    pub fn some(world: &World, seed: u64, producers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |(number, style): (usize, &Style)| {
            let rng = StdRng::seed_from_u64(seed ^ (number as u64 + 1) << 32);
            let task = run(world.clone(), number as u32, *style, rng, stop.clone());
            tokio::spawn(task)
        };
        let styles = STYLES.iter().take(producers).enumerate();
        let tasks = styles.map(start).collect();
        Self { stop, tasks }
    }

    /// Ends sending, and waits until all is acknowledged or given up. How many records were sent.
    pub async fn finish(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let mut sent = 0;
        for task in self.tasks {
            sent += task.await.expect("producers do not panic");
        }
        sent
    }
}

async fn run(
    world: World,
    number: u32,
    style: Style,
    mut rng: StdRng,
    stop: Arc<AtomicBool>,
) -> u64 {
    let producer = Producer::builder()
        .bootstrap(world.address())
        .stream(World::stream_name(style.stream))
        .batch_size(style.batch_bytes)
        // Little enough to run full while the broker is away.
        .memory_limit(512 << 10)
        .compression(style.compression)
        .deadline(PATIENCE)
        .retry(World::retry())
        .build()
        .await
        .expect("a producer can be built");
    let (to_acker, deliveries) = channel(ACKS_WAITING);
    let acker = tokio::spawn(acknowledge(world.clone(), style.stream, deliveries));
    let mut sent = 0;
    let mut value = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        world.recorder().record(Event::Batched { producer: number });
        for _ in 0..rng.random_range(1..40) {
            let record = Record {
                producer: number,
                seq: sent,
            };
            let key = format!("{number}-{}", rng.random_range(0..KEYS));
            let key = style.keyed.then_some(key.as_bytes());
            payload::encode_into(&mut value, number, sent, rng.random_range(24..400));
            let streamlet = match key {
                // The lane changes as lanes grow; the streamlet never does.
                Some(key) if style.stream == KEYED => Some(lane_of(key, STREAMLETS, LANES).0.0),
                _ => None,
            };
            world.recorder().record(Event::Send {
                record,
                stream: style.stream,
                streamlet,
                lane: None,
                key: key.map(hashed),
            });
            sent += 1;
            let new = NewRecord {
                key,
                value: Some(&value),
                ..NewRecord::default()
            };
            match producer.append_wait(&new).await {
                Ok(delivery) => {
                    let taken = to_acker.send((record, delivery)).await;
                    assert!(taken.is_ok(), "the acker listens");
                }
                Err(error) => {
                    world.recorder().record(Event::Failed {
                        record,
                        outcome: FailureOutcome::Definite,
                    });
                    world.complain(format!(
                        "producer {number} refused record {record}: {error}"
                    ));
                    return sent;
                }
            }
        }
        let longest = if world.is_over_budget() {
            200_000
        } else {
            4_000
        };
        sleep(Duration::from_micros(rng.random_range(0..longest))).await;
    }
    if let Err(error) = producer.flush().await
        && !world.may_fail_with(&error)
    {
        world.complain(format!("producer {number} cannot flush: {error}"));
    }
    drop(to_acker);
    acker.await.expect("ackers do not panic");
    if let Err(error) = producer.close().await
        && !world.may_fail_with(&error)
    {
        world.complain(format!("producer {number} cannot close: {error}"));
    }
    sent
}

async fn acknowledge(world: World, stream: u32, mut deliveries: Receiver<(Record, Delivery)>) {
    while let Some((record, delivery)) = deliveries.recv().await {
        match delivery.await {
            Ok(place) => {
                let lane = Lane {
                    stream,
                    streamlet: place.streamlet.0,
                    lane: place.lane.0,
                };
                world.recorder().record(Event::Ack {
                    record,
                    lane,
                    ordinal: place.ordinal,
                });
                world.count_acknowledged(lane);
            }
            Err(error) => {
                let outcome = if error.is_uncertain() {
                    FailureOutcome::Unknown
                } else {
                    FailureOutcome::Definite
                };
                world.recorder().record(Event::Failed { record, outcome });
                if !world.may_fail_with(&error) {
                    world.complain(format!("record {record} was given up: {error}"));
                }
            }
        }
    }
}
