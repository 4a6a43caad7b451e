//! The producer while it is not settled how many lanes the stream has: owners refuse batches as split by
//! another number of lanes than theirs, and nothing newer is known.

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake::{Action, Broker};
use kera_producer::{Producer, Record};
use kera_protocol::error::ErrorCode;

const PATIENCE: Duration = Duration::from_secs(60);
/// Appends that are refused.
const TIMES: usize = 5;

async fn producer(broker: &Broker) -> Producer {
    let eager = broker.eager().linger(Duration::ZERO);
    eager.build().await.unwrap()
}

/// From now on appends to streamlet 0 by lanes of `generation` are refused for a while.
fn refuse(broker: &Broker, generation: u32) -> Arc<AtomicUsize> {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    broker.script(move |request, _| {
        if request.streamlet == 0
            && request.lane_generation == generation
            && count.load(Ordering::SeqCst) < TIMES
        {
            count.fetch_add(1, Ordering::SeqCst);
            return Action::Refuse(ErrorCode::StaleLanes);
        }
        Action::Accept
    });
    refused
}

/// Sends `numbers`, and waits until all are acknowledged.
async fn send(producer: &Producer, numbers: std::ops::Range<u32>) {
    let deliveries: Vec<_> = numbers
        .map(|number| {
            let text = number.to_string();
            let record = Record::keyed(text.as_bytes(), text.as_bytes());
            producer.append(&record).unwrap()
        })
        .collect();
    for delivery in deliveries {
        let delivered = tokio::time::timeout(PATIENCE, delivery).await;
        delivered.expect("it is acknowledged in time").unwrap();
    }
}

/// Each of `numbers` is stored once, and those of a lane in the order in which they were sent.
fn check(broker: &Broker, numbers: u32) {
    let mut all = Vec::new();
    for (lane, values) in broker.values() {
        let values: Vec<u32> = values.iter().map(|v| v.parse().unwrap()).collect();
        let in_order = values.is_sorted();
        assert!(in_order, "streamlet and lane {lane:?} hold {values:?}");
        all.extend(values);
    }
    all.sort_unstable();
    assert_eq!(all, (0..numbers).collect::<Vec<_>>());
}

#[tokio::test]
async fn lanes_that_do_not_grow_after_all_hold_nobody_up() {
    let broker = Broker::start(2, 1).await;
    let producer = producer(&broker).await;
    send(&producer, 0..200).await;
    // An owner stopped appends for a growth, which was given up.
    let refused = refuse(&broker, 0);
    send(&producer, 200..400).await;
    assert_eq!(refused.load(Ordering::SeqCst), TIMES);
    assert_eq!(producer.metrics().resplits, 0);
    send(&producer, 400..600).await;
    producer.close().await.unwrap();
    check(&broker, 600);
}

#[tokio::test]
async fn an_owner_that_has_not_heard_of_newer_lanes_is_waited_for() {
    let broker = Broker::start(2, 1).await;
    let producer = producer(&broker).await;
    send(&producer, 0..200).await;
    broker.grow_lanes(3);
    let refused = refuse(&broker, 1);
    send(&producer, 200..400).await;
    assert_eq!(refused.load(Ordering::SeqCst), TIMES);
    assert_eq!(producer.metrics().resplits, 1);
    send(&producer, 400..600).await;
    producer.close().await.unwrap();
    check(&broker, 600);
}
