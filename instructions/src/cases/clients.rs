//! The clients, against the brokers that their own tests speak to.

use std::hint::black_box;
use std::time::Duration;

use bytes::BytesMut;
use kera_consumer::{Batch, Reader, Start};
use kera_producer::{Producer, Record};
use tokio::runtime::{Builder, Runtime};

use super::{RECORDS, batches};
use crate::counted::counted;

#[path = "../../../producer/tests/fake/mod.rs"]
mod produced;

#[path = "../../../consumer/tests/fake/mod.rs"]
mod consumed;

/// One thread, which does nothing while something is counted on it.
fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// A producer whose batches are neither full nor due while something is counted.
async fn producer() -> Producer {
    let broker = produced::Broker::start(1, 1).await;
    let producer = broker
        .producer()
        .batch_size(512 << 10)
        .linger(Duration::from_secs(10));
    let producer = producer.build().await.expect("a producer");
    // The buffers grow to their full size, and are then warm.
    for _ in 0..2 {
        for _ in 0..4_000 {
            producer
                .send(&Record::of_value(&[7; 100]))
                .expect("is taken");
        }
        producer.flush().await.expect("is acknowledged");
    }
    // Opens the batch.
    producer
        .send(&Record::of_value(&[7; 100]))
        .expect("is taken");
    producer
}

pub(super) fn send(times: u64) {
    runtime().block_on(async {
        let producer = producer().await;
        let value = [7; 100];
        counted(&mut || {
            for _ in 0..times * RECORDS {
                let record = Record::of_value(black_box(&value));
                producer.send(&record).expect("is taken");
            }
        });
    });
}

pub(super) fn append(times: u64) {
    runtime().block_on(async {
        let producer = producer().await;
        let value = [7; 100];
        counted(&mut || {
            for _ in 0..times * RECORDS {
                let record = Record::of_value(black_box(&value));
                black_box(producer.append(&record).expect("is taken"));
            }
        });
    });
}

pub(super) fn consume(times: u64) {
    let visit = |batch: &Batch| {
        let mut visited = 0;
        for record in batch.records() {
            let record = record.expect("a record");
            visited += black_box(record.value).map_or(0, <[u8]>::len);
        }
        visited
    };
    runtime().block_on(async {
        let fake = consumed::Fake::start(1, 1).await;
        fake.append_batch((0, 0), batches::batch(BytesMut::new()));
        let reader = Reader::builder().bootstrap(&fake.bootstrap).stream("s");
        let reader = reader.start(Start::Earliest).open().await;
        let batch = reader.expect("a reader").next_batch().await;
        let batch = batch.expect("an answer").expect("a batch");
        counted(&mut || {
            for _ in 0..times {
                black_box(visit(black_box(&batch)));
            }
        });
    });
}
