//! More consumers than lanes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kera_consumer::{Consumer, Order};
use kera_producer::{Producer, Record};
use tokio::sync::mpsc::channel;
use tokio::task::block_in_place;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::common::{Broker, PATIENCE};

const CONSUMERS: usize = 16;
/// Records that are sent in 2 s, at 1,000 a second; and as many again for a busy machine.
const ENOUGH: u64 = 4_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_consumers_share_one_slow_lane() {
    let broker = block_in_place(Broker::start);
    block_in_place(|| broker.run(&["stream", "create", "s"]));
    let sent = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let producer = Producer::builder()
        .bootstrap(broker.address())
        .stream("s")
        .build()
        .await
        .expect("a producer can be built");
    let sending = {
        let (sent, stop) = (sent.clone(), stop.clone());
        tokio::spawn(async move {
            let mut ticks = interval(Duration::from_millis(1));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !stop.load(Ordering::SeqCst) {
                ticks.tick().await;
                let number = sent.load(Ordering::SeqCst);
                let value = number.to_le_bytes();
                let delivery = producer.append_wait(&Record::of_value(&value)).await;
                // Stored before the next one is sent: those who read fall behind no broker that is held up.
                let delivery = delivery.expect("a record is taken");
                delivery.await.expect("it is stored");
                sent.store(number + 1, Ordering::SeqCst);
            }
            producer.close().await.expect("everything is stored");
        })
    };

    let (to_us, mut received) = channel(1024);
    let mut consuming = Vec::new();
    for number in 0..CONSUMERS {
        let to_us = to_us.clone();
        let mut consumer = Consumer::builder()
            .bootstrap(broker.address())
            .stream("s")
            .group("g")
            .order(Order::None)
            .manual_commit()
            .open()
            .await
            .expect("a consumer can be opened");
        consuming.push(tokio::spawn(async move {
            loop {
                let batch = consumer.next_batch().await.expect("a batch");
                consumer.commit(&batch).await.expect("its lease is held");
                for ordinal in batch.first_ordinal()..batch.next_ordinal() {
                    if to_us.send((number, ordinal)).await.is_err() {
                        return;
                    }
                }
            }
        }));
    }
    drop(to_us);
    let all_joined = sent.load(Ordering::SeqCst);

    let mut with_progress = BTreeSet::new();
    let mut ordinals = BTreeSet::new();
    while with_progress.len() < CONSUMERS {
        let next = timeout(PATIENCE, received.recv()).await;
        let (consumer, ordinal) = next.expect("records arrive").expect("consumers live");
        assert!(ordinals.insert(ordinal), "ordinal {ordinal} came twice");
        // Those that read what was there before all had joined prove nothing.
        if ordinal >= all_joined {
            with_progress.insert(consumer);
        }
        let since = sent.load(Ordering::SeqCst) - all_joined;
        assert!(
            since <= ENOUGH,
            "only {with_progress:?} made progress within {since} records"
        );
    }
    stop.store(true, Ordering::SeqCst);
    sending.await.expect("the producer does not panic");
    // Together they get all there is, each record once.
    let all = sent.load(Ordering::SeqCst);
    while (ordinals.len() as u64) < all {
        let next = timeout(PATIENCE, received.recv()).await;
        let (_, ordinal) = next.expect("records arrive").expect("consumers live");
        assert!(ordinals.insert(ordinal), "ordinal {ordinal} came twice");
    }
    assert_eq!(ordinals.last(), Some(&(all - 1)));
    for task in consuming {
        task.abort();
    }
}
