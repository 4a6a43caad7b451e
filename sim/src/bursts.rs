//! Writing records with keys in bursts, until all are told to stop.

use std::sync::Arc;
use std::time::Duration;

use kera_producer::{Delivery, Producer, Record, RecordPlace};
use kera_protocol::v1;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::load::{Load, PATIENCE};

/// Records whose outcome is waited for, at most.
const WAITING: usize = 1 << 10;

/// Who writes, where, and how fast.
pub struct Writer<'a> {
    pub load: &'a Arc<Load>,
    /// As findings call it, such as `the producer by key`.
    pub who: String,
    pub stream: &'a str,
    pub batch_bytes: usize,
    /// Records handed over in a row, at most, and the longest pause after them.
    pub burst: u64,
    pub pause: Duration,
}

/// A record to write; without a value it deletes its key.
pub struct Written {
    pub key: String,
    pub value: Option<Vec<u8>>,
    /// Which it is, of those of its key or of all.
    pub number: u64,
}

impl Writer<'_> {
    /// Writes what `next` makes, until all are told to stop, and does `between` after each burst. Tells `stored` where each of
    /// a key and a number is, and returns once all are: none may be given up.
    pub async fn write(
        &self,
        mut dice: Dice,
        mut next: impl FnMut(&mut Dice) -> Written,
        mut between: impl AsyncFnMut(&mut Dice),
        stored: impl Fn(String, u64, RecordPlace) + Send + 'static,
    ) {
        let Some(writing) = self.begin(stored).await else {
            return;
        };
        while !self.load.is_stopping() {
            for _ in 0..dice.between(1, self.burst) {
                if !writing.append(next(&mut dice)).await {
                    return;
                }
            }
            between(&mut dice).await;
            let longest = match self.load.acknowledged() > self.load.plan.budget {
                true => Duration::from_secs(1),
                false => self.pause,
            };
            let pause = dice.below(longest.as_micros() as u64);
            sleep(Duration::from_micros(pause)).await;
        }
        writing.end().await;
    }

    /// Writes these records.
    pub async fn write_all(
        &self,
        records: impl Iterator<Item = Written>,
        stored: impl Fn(String, u64, RecordPlace) + Send + 'static,
    ) {
        let Some(writing) = self.begin(stored).await else {
            return;
        };
        for record in records {
            if !writing.append(record).await {
                return;
            }
        }
        writing.end().await;
    }

    async fn begin(
        &self,
        stored: impl Fn(String, u64, RecordPlace) + Send + 'static,
    ) -> Option<Writing<'_>> {
        let building = Producer::builder()
            .bootstrap(&self.load.bootstrap)
            .stream(self.stream)
            .batch_size(self.batch_bytes)
            .memory_limit(256 << 10)
            .deadline(PATIENCE)
            .retry(Load::retry())
            .build();
        let producer = match building.await {
            Ok(producer) => producer,
            Err(error) => {
                self.load.complain(format!("{}: {error}", self.who));
                return None;
            }
        };
        let (to_acker, mut deliveries) = channel::<(String, u64, Delivery)>(WAITING);
        let (load, who) = (self.load.clone(), self.who.clone());
        let acker = tokio::spawn(async move {
            while let Some((key, number, delivery)) = deliveries.recv().await {
                match delivery.await {
                    Ok(place) => {
                        stored(key, number, place);
                        load.count_acknowledged();
                    }
                    Err(error) => load.complain(format!(
                        "record {number} of {who}, of key {key}, was given up: {error}"
                    )),
                }
            }
        });
        Some(Writing {
            writer: self,
            producer,
            to_acker,
            acker,
        })
    }
}

/// A producer that writes.
struct Writing<'a> {
    writer: &'a Writer<'a>,
    producer: Producer,
    to_acker: Sender<(String, u64, Delivery)>,
    acker: JoinHandle<()>,
}

impl Writing<'_> {
    /// False if it goes on no longer.
    async fn append(&self, record: Written) -> bool {
        let Written { key, value, number } = record;
        let new = Record {
            key: Some(key.as_bytes()),
            value: value.as_deref(),
            ..Record::default()
        };
        match self.producer.append_wait(&new).await {
            Ok(delivery) => self.to_acker.send((key, number, delivery)).await.is_ok(),
            Err(error) => {
                let who = &self.writer.who;
                let text = format!("record {number} of {who}, of key {key}, is refused: {error}");
                self.writer.load.complain(text);
                false
            }
        }
    }

    /// Waits until all is acknowledged.
    async fn end(self) {
        let Writer { load, who, .. } = self.writer;
        drop(self.to_acker);
        if self.acker.await.is_err() {
            load.complain(format!("the task of {who} panicked"));
        }
        if let Err(error) = self.producer.close().await {
            load.complain(format!("{who} cannot close: {error}"));
        }
    }
}

/// Has a stream have one more lane now and then, up to `most` in all. While owners change nobody can say where lanes end, and it
/// is refused.
pub struct Growth {
    pub lanes: u32,
    pub most: u32,
    /// How often, of a thousand times that it is asked.
    pub chance: u64,
}

impl Growth {
    /// Asks for one more, or not.
    pub async fn grow(&mut self, load: &Load, stream: &str, dice: &mut Dice) {
        if self.lanes >= self.most || !dice.chance(self.chance) {
            return;
        }
        let request = v1::AlterStreamRequest {
            name: stream.to_owned(),
            config: Some(v1::StreamConfig {
                partitions: Some(self.lanes + 1),
                ..v1::StreamConfig::default()
            }),
        };
        if load.client().call(request).await.is_ok() {
            self.lanes += 1;
        }
    }
}
