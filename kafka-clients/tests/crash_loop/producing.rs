//! Producers under load, through all kills: every record they send is acknowledged in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_history::{Event, FailureOutcome, Record, payload};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rdkafka::ClientContext;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};

use crate::common::{PATIENCE, murmur2_partition, pause};
use crate::wait;
use crate::world::{PARTITIONS, TOPIC, World, hashed, lane};

/// Different keys of a producer.
const KEYS: u32 = 40;

/// Codec, and the most bytes of a batch.
const STYLES: [(&str, &str); 4] = [
    ("none", "4000"),
    ("lz4", "16000"),
    ("none", "2000"),
    ("zstd", "8000"),
];

/// Hears of the outcome of each record.
struct Acks(World);

impl ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = Box<Record>;

    fn delivery(&self, result: &DeliveryResult<'_>, record: Box<Record>) {
        match result {
            Ok(message) => {
                self.0.recorder().record(acknowledged(*record, message));
                self.0.count_acknowledged();
            }
            Err((error, _)) => {
                self.0.recorder().record(Event::Failed {
                    record: *record,
                    outcome: FailureOutcome::Unknown,
                });
                self.0
                    .complain(format!("record {record} was given up: {error}"));
            }
        }
    }
}

/// What a report of delivery says. Where the answer to a batch was lost and a later batch was
/// acknowledged, the client takes the first as stored too, since sequences have no gaps, and knows no
/// offset.
fn acknowledged(record: Record, message: &impl Message) -> Event {
    match u64::try_from(message.offset()) {
        Ok(ordinal) => Event::Ack {
            record,
            lane: lane(message.partition()),
            ordinal,
        },
        Err(_) => Event::AckedUnplaced { record },
    }
}

pub struct Producers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Producers {
    pub fn start(world: &World, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..STYLES.len())
            .map(|number| {
                let rng = StdRng::seed_from_u64(seed ^ (number as u64 + 1) << 32);
                let (world, stop) = (world.clone(), stop.clone());
                std::thread::spawn(move || run(&world, number as u32, rng, &stop))
            })
            .collect();
        Self { stop, threads }
    }

    /// Ends sending, and waits until all is acknowledged or given up. How many records were sent.
    pub fn finish(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let threads = self.threads.into_iter();
        threads
            .map(|thread| thread.join().expect("producers do not panic"))
            .sum()
    }
}

fn run(world: &World, number: u32, mut rng: StdRng, stop: &AtomicBool) -> u64 {
    let (codec, batch) = STYLES[number as usize];
    let producer: ThreadedProducer<Acks> = world
        .config()
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("compression.codec", codec)
        .set("batch.size", batch)
        .set("linger.ms", "2")
        // Little enough to run full while the broker is away, and to be sent long before the timeout after.
        .set("queue.buffering.max.messages", "500")
        .set("message.timeout.ms", PATIENCE.as_millis().to_string())
        .create_with_context(Acks(world.clone()))
        .expect("a producer can be made");
    let mut sent = 0;
    while !stop.load(Ordering::SeqCst) {
        for _ in 0..rng.random_range(1..40) {
            let record = Record {
                producer: number,
                seq: sent,
            };
            sent += 1;
            let key = format!("{number}-{}", rng.random_range(0..KEYS));
            let value = payload::encode(number, record.seq, rng.random_range(24..400));
            world.recorder().record(Event::Send {
                record,
                stream: 0,
                streamlet: Some(murmur2_partition(key.as_bytes(), PARTITIONS) as u32),
                lane: None,
                key: Some(hashed(key.as_bytes())),
            });
            let mut new = BaseRecord::with_opaque_to(TOPIC, Box::new(record))
                .key(&key)
                .payload(&value);
            loop {
                match producer.send(new) {
                    Ok(()) => break,
                    Err((error, returned))
                        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) =>
                    {
                        new = returned;
                        pause();
                    }
                    Err((error, _)) => {
                        world.recorder().record(Event::Failed {
                            record,
                            outcome: FailureOutcome::Definite,
                        });
                        world.complain(format!("record {record} was refused: {error}"));
                        return sent;
                    }
                }
            }
        }
        wait(Duration::from_micros(rng.random_range(0..6_000)));
    }
    if let Err(error) = producer.flush(PATIENCE) {
        world.complain(format!("producer {number} cannot flush: {error}"));
    }
    sent
}
