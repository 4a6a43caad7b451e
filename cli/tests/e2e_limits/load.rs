//! Records for many lanes, and reading them back.

use std::collections::BTreeMap;

use kera_consumer::{Reader, Start};
use kera_producer::{Delivery, Producer, Record};
use kera_protocol::partition::lane_of;

use crate::common::Broker;

/// Streamlet and lane.
pub type Lane = (u32, u32);

/// M streamlets of Q lanes each.
#[derive(Clone, Copy)]
pub struct Shape {
    pub streamlets: u32,
    pub lanes: u32,
}

impl Shape {
    pub fn all(self) -> usize {
        (self.streamlets * self.lanes) as usize
    }

    pub fn create(self, broker: &Broker, stream: &str, more: &[&str]) {
        let (streamlets, lanes) = (self.streamlets.to_string(), self.lanes.to_string());
        let words = ["stream", "create", stream, "--streamlets", &streamlets];
        broker.run(&[&words[..], &["--lanes", &lanes], more].concat());
    }

    /// One key for each lane.
    pub fn keys(self) -> Vec<[u8; 8]> {
        let mut keys: BTreeMap<Lane, [u8; 8]> = BTreeMap::new();
        let mut next = 0_u64;
        while keys.len() < self.all() {
            let key = next.to_le_bytes();
            let (streamlet, lane) = lane_of(&key, self.streamlets, self.lanes);
            keys.entry((streamlet.0, lane.0)).or_insert(key);
            next += 1;
        }
        keys.into_values().collect()
    }
}

/// Sends `rounds` records to each key, the number of the round first in each value; waits until all
/// are acknowledged.
pub async fn send(producer: &Producer, keys: &[[u8; 8]], rounds: u32, value_bytes: usize) {
    let mut value = vec![0; value_bytes.max(4)];
    let mut last: Vec<Option<Delivery>> = vec![None; keys.len()];
    for round in 0..rounds {
        value[..4].copy_from_slice(&round.to_le_bytes());
        for (key, last) in keys.iter().zip(&mut last) {
            let record = Record::keyed(key, &value);
            let delivery = producer.append_wait(&record).await;
            *last = Some(delivery.expect("a record is taken"));
        }
    }
    producer.flush().await.expect("everything is stored");
    for delivery in last.into_iter().flatten() {
        delivery.await.expect("the last of each lane is stored");
    }
}

/// Reads everything: each lane must hold exactly the rounds, in order.
pub async fn read_back(broker: &Broker, stream: &str, shape: Shape, rounds: u32) {
    let mut reader = Reader::builder()
        .bootstrap(broker.address())
        .stream(stream)
        .start(Start::Earliest)
        .follow(false)
        .open()
        .await
        .expect("a reader can be opened");
    let mut next: BTreeMap<Lane, u32> = BTreeMap::new();
    while let Some(batch) = reader.next_batch().await.expect("a batch") {
        let lane = (batch.lane().streamlet.0, batch.lane().lane.0);
        let next = next.entry(lane).or_default();
        for record in batch.records() {
            let value = record.expect("a record").value.expect("a value");
            let round = value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
            assert_eq!(round, Some(*next), "lane {lane:?}");
            *next += 1;
        }
    }
    assert_eq!(next.len(), shape.all(), "every lane has records");
    let short = next.iter().find(|(_, read)| **read != rounds);
    assert_eq!(short, None, "each lane holds {rounds} records");
}
