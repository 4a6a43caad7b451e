//! Producers with a transactional id: they begin transactions, and end them in every way there is.

use std::sync::Arc;
use std::time::Duration;

use kera_history::{Lane, Record, payload};
use kera_producer::{BuildError, Delivery, Producer, Record as NewRecord, Transaction};
use tokio::time::sleep;

use super::ledger::Outcome;
use super::{Shared, key};
use crate::dice::Dice;
use crate::load::{Load, PATIENCE};

/// Producers of records without a transaction have numbers from here on.
const PLAIN: u32 = 100;

/// A record that was taken, and what will become of it.
pub(super) type Taken = (Record, Delivery);

/// What is behind a transactional id.
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    pub(super) id: String,
    pub(super) dice: Dice,
    number: u32,
    timeout: Duration,
    sent: u64,
    begun: u64,
}

/// Begins and ends transactions until it is told to stop. With number 0 one that has no transactions does the same
/// meanwhile, in the same lanes.
pub async fn run(shared: Arc<Shared>, number: u32, mut dice: Dice) {
    let timeout = Duration::from_millis(*dice.one(&[3_000, 10_000, 30_000]));
    let mut client = Client {
        id: format!("tx-{number}"),
        dice: dice.clone(),
        number,
        timeout,
        sent: 0,
        begun: 0,
        shared: shared.clone(),
    };
    let pause = Duration::from_millis(*dice.one(&[5, 50, 300]));
    let plain = async {
        let mut round = 0;
        while number == 0 && shared.plan.plain && !shared.load.is_stopping() {
            send_plainly(&shared, round).await;
            round += 1;
            sleep(Duration::from_millis(dice.between(1, 2_000))).await;
        }
    };
    let transactions = async {
        let mut producer = None;
        while !client.shared.load.is_stopping() {
            let Some(open) = producer.take() else {
                producer = client.open().await;
                continue;
            };
            producer = client.one(open).await;
            let longest = match client.shared.load.acknowledged() > client.shared.load.plan.budget {
                true => Duration::from_secs(1),
                false => pause,
            };
            sleep(client.up_to(longest)).await;
        }
    };
    tokio::join!(plain, transactions);
}

/// Appends records without a transaction: each counts by itself, behind the open transactions of its lane.
pub(super) async fn send_plainly(shared: &Shared, round: u32) {
    let producer = Producer::builder()
        .bootstrap(&shared.load.bootstrap)
        .stream(shared.name())
        .deadline(PATIENCE)
        .retry(Load::retry())
        .build();
    let producer = match producer.await {
        Ok(producer) => producer,
        Err(error) => return shared.load.complain(format!("no producer: {error}")),
    };
    let mut taken = Vec::new();
    for seq in 0..16 {
        let record = Record {
            producer: PLAIN + round,
            seq,
        };
        let transaction = shared.ledger.begin("no transaction".to_owned());
        shared.ledger.sends(transaction, record);
        shared.ledger.may_count(transaction);
        let (key, value) = (format!("k{seq}"), payload::encode(record.producer, seq, 40));
        let new = NewRecord {
            key: Some(key.as_bytes()),
            value: Some(&value),
            ..NewRecord::default()
        };
        match producer.append_wait(&new).await {
            Ok(delivery) => taken.push((transaction, record, delivery)),
            Err(error) => shared
                .load
                .complain(format!("{record} is refused: {error}")),
        }
    }
    for (transaction, record, delivery) in taken {
        note(shared, vec![(record, delivery)]).await;
        shared.ledger.ended(transaction, Outcome::Committed);
    }
    if let Err(error) = producer.close().await {
        let text = format!("a producer cannot close: {error}");
        shared.load.complain(text);
    }
}

/// Notes where records are, all of which must be acknowledged.
pub(super) async fn note(shared: &Shared, taken: Vec<Taken>) {
    for (record, delivery) in taken {
        match delivery.await {
            Ok(place) => {
                let lane = Lane {
                    stream: shared.stream,
                    streamlet: place.streamlet.0,
                    lane: place.lane.0,
                };
                shared.ledger.stored(record, lane, place.ordinal);
                shared.load.count_acknowledged();
            }
            Err(error) => shared.load.complain(format!(
                "record {record} counts, and its producer was told otherwise: {error}"
            )),
        }
    }
}

impl Client {
    pub(super) fn up_to(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.dice.below(longest.as_micros() as u64 + 1))
    }

    /// Another instance, which fences those before it.
    pub(super) async fn open(&self) -> Option<Producer> {
        let building = self.building().await;
        let complain = |error| {
            let text = format!("{} cannot begin: {error}", self.id);
            self.shared.load.complain(text);
        };
        building.map_err(complain).ok()
    }

    pub(super) async fn building(&self) -> Result<Producer, BuildError> {
        let producer = Producer::builder()
            .bootstrap(&self.shared.load.bootstrap)
            .stream(self.shared.name())
            .transactional_id(&self.id)
            .transaction_timeout(self.timeout)
            .batch_size(self.shared.plan.batch_bytes)
            .memory_limit(256 << 10)
            .deadline(PATIENCE)
            .retry(Load::retry());
        producer.build().await
    }

    /// One transaction of `producer`, and the producer of the next one.
    async fn one(&mut self, producer: Producer) -> Option<Producer> {
        let begun = match producer.transaction().await {
            Ok(begun) => begun,
            Err(error) => {
                let text = format!("{} cannot begin another transaction: {error}", self.id);
                self.shared.load.complain(text);
                return None;
            }
        };
        self.begun += 1;
        let name = format!("transaction {} of {}", self.begun, self.id);
        let transaction = self.shared.ledger.begin(name);
        let (taken, is_spoilt) = self.append(&begun, transaction).await;
        let goes_on = match self.dice.below(20) {
            0..=8 => {
                self.commit(transaction, begun, taken, is_spoilt).await;
                true
            }
            9..=11 => {
                self.abort(transaction, begun).await;
                true
            }
            // Its process ends. What it sent may still arrive.
            12..=13 => {
                drop((begun, taken));
                false
            }
            14..=16 => self.prepare(transaction, begun, taken, is_spoilt).await,
            17 => {
                let second = self.fenced(transaction, begun).await;
                drop(producer);
                return second;
            }
            18 => {
                let second = self.raced(transaction, begun, taken).await;
                drop(producer);
                return second;
            }
            _ => {
                let longer = self.timeout + Duration::from_secs(1);
                sleep(longer + self.up_to(longer)).await;
                self.commit(transaction, begun, taken, is_spoilt).await;
                true
            }
        };
        goes_on.then_some(producer)
    }

    /// Appends some records; those that were taken, and whether one was refused, after which there is no commit.
    async fn append(&mut self, begun: &Transaction<'_>, transaction: usize) -> (Vec<Taken>, bool) {
        let mut taken = Vec::new();
        let pause = Duration::from_millis(*self.dice.one(&[0, 0, 20, 400]));
        for _ in 0..self.dice.between(1, 12) {
            let record = Record {
                producer: self.number,
                seq: self.sent,
            };
            self.sent += 1;
            let size = self.dice.between(24, self.shared.plan.largest) as usize;
            let value = payload::encode(record.producer, record.seq, size);
            let key = key(&mut self.dice);
            self.shared.ledger.sends(transaction, record);
            let new = NewRecord {
                key: Some(key.as_bytes()),
                value: Some(&value),
                ..NewRecord::default()
            };
            match begun.append_wait(&new).await {
                Ok(delivery) => taken.push((record, delivery)),
                Err(_) => return (taken, true),
            }
            if !pause.is_zero() {
                sleep(self.up_to(pause)).await;
            }
        }
        (taken, false)
    }
}
