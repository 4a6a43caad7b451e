//! The producer while nobody serves a streamlet and the others go on.

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake::{Action, Broker};
use kera_producer::{Producer, ProducerBuilder, Record, RetryPolicy};
use kera_protocol::error::ErrorCode;
use kera_protocol::partition::key_hash;
use kera_protocol::v1;
use parking_lot::Mutex;

const PATIENCE: Duration = Duration::from_secs(60);
const MEMORY: usize = 64 << 10;
const VALUE: [u8; 100] = [b'v'; 100];

fn builder(broker: &Broker) -> ProducerBuilder {
    broker
        .producer()
        .batch_size(1 << 10)
        .memory_limit(MEMORY)
        .linger(Duration::ZERO)
        .deadline(PATIENCE * 2)
        .retry(RetryPolicy {
            first: Duration::from_millis(1),
            longest: Duration::from_secs(10),
            deadline: PATIENCE,
        })
}

/// From now on streamlet 0 is refused; how often it was.
fn refuse_the_first(broker: &Broker) -> Arc<AtomicUsize> {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    broker.script(move |request, _| {
        if request.streamlet > 0 {
            return Action::Accept;
        }
        count.fetch_add(1, Ordering::SeqCst);
        Action::Refuse(ErrorCode::NotOwner)
    });
    refused
}

/// Once it was refused a second time the producer knows that the first streamlet is not served.
async fn until_known(broker: &Broker, refused: &AtomicUsize) {
    while refused.load(Ordering::SeqCst) < 2 {
        broker
            .appends_arrived(broker.appends.load(Ordering::SeqCst) + 1)
            .await;
    }
}

/// A key whose records go to `streamlet` of two.
fn key_of(streamlet: u32) -> String {
    let mut keys = (0..).map(|number: u32| number.to_string());
    let found = keys.find(|key| key_hash(key.as_bytes()) % 2 == streamlet);
    found.expect("keys are spread")
}

async fn append_waiting(producer: &Producer, key: Option<&str>, count: usize) {
    for _ in 0..count {
        let record = Record {
            key: key.map(str::as_bytes),
            value: Some(&VALUE),
            ..Record::default()
        };
        producer.append_wait(&record).await.unwrap();
    }
}

fn stored(broker: &Broker) -> usize {
    broker.values().values().map(Vec::len).sum()
}

#[tokio::test]
async fn records_without_a_key_go_where_nobody_waits() {
    let broker = Broker::start(2, 1).await;
    let producer = builder(&broker).build().await.unwrap();
    let refused = refuse_the_first(&broker);
    append_waiting(&producer, None, 40).await;
    until_known(&broker, &refused).await;
    // Many times what there is memory for.
    let going_on = append_waiting(&producer, None, 4_000);
    let went_on = tokio::time::timeout(PATIENCE, going_on).await;
    assert!(
        went_on.is_ok(),
        "they wait for a streamlet that nobody serves"
    );
    broker.behave();
    producer.close().await.unwrap();
    assert_eq!(stored(&broker), 4_040);
}

#[tokio::test]
async fn a_lane_that_is_held_up_leaves_memory_to_the_others() {
    let broker = Broker::start(2, 1).await;
    let producer = builder(&broker).build().await.unwrap();
    let refused = refuse_the_first(&broker);
    let (first, second) = (key_of(0), key_of(1));
    append_waiting(&producer, Some(&first), 1).await;
    until_known(&broker, &refused).await;
    let filling = producer.clone();
    let held_up = tokio::spawn(async move { append_waiting(&filling, Some(&first), 2_000).await });
    while producer.metrics().appends_refused == 0 {
        tokio::task::yield_now().await;
    }
    let others = append_waiting(&producer, Some(&second), 2_000);
    let went_on = tokio::time::timeout(PATIENCE, others).await;
    assert!(went_on.is_ok(), "one lane has taken all of the memory");
    assert!(!held_up.is_finished());
    broker.behave();
    held_up.await.unwrap();
    producer.close().await.unwrap();
    assert_eq!(stored(&broker), 4_001);
}

#[tokio::test]
async fn where_all_lanes_are_held_up_all_memory_is_used() {
    let broker = Broker::start(2, 1).await;
    let producer = builder(&broker).build().await.unwrap();
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    broker.script(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        Action::Refuse(ErrorCode::NotOwner)
    });
    let (first, second) = (key_of(0), key_of(1));
    append_waiting(&producer, Some(&first), 1).await;
    until_known(&broker, &refused).await;
    append_waiting(&producer, Some(&second), 1).await;
    let before = refused.load(Ordering::SeqCst);
    while refused.load(Ordering::SeqCst) < before + 8 {
        broker
            .appends_arrived(broker.appends.load(Ordering::SeqCst) + 1)
            .await;
    }
    while producer
        .append(&Record::keyed(first.as_bytes(), &VALUE))
        .is_ok()
    {}
    let used = producer.metrics().memory_used_bytes as usize;
    assert!(used > MEMORY - (2 << 10), "{used} of {MEMORY}");
    broker.behave();
    producer.close().await.unwrap();
}

#[tokio::test]
async fn while_nobody_serves_a_streamlet_one_batch_asks_for_all() {
    let broker = Broker::start(1, 1).await;
    let producer = builder(&broker).build().await.unwrap();
    broker.hold(true);
    append_waiting(&producer, None, 100).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = seen.clone();
    broker.script(move |_, header| {
        seeing.lock().push(header.base_sequence);
        Action::Refuse(ErrorCode::NotOwner)
    });
    broker.hold(false);
    broker.appends_arrived(40).await;
    broker.behave();
    let seen = std::mem::take(&mut *seen.lock());
    let again = 1 + seen[1..].iter().position(|one| *one == seen[0]).unwrap();
    assert!(again > 2, "several were under way: {seen:?}");
    assert!(seen[again..].iter().all(|one| *one == seen[0]), "{seen:?}");
    producer.close().await.unwrap();
    assert_eq!(stored(&broker), 100);
}

#[tokio::test]
async fn what_was_refused_behind_the_first_batch_follows_it() {
    // Whose gaps are not forgiven.
    let broker = Broker::start_with(v1::StreamConfig {
        streamlets: Some(1),
        lanes: Some(1),
        max_batch_bytes: Some(1 << 20),
        ack: Some(v1::AckPolicy::Written as i32),
        ..v1::StreamConfig::default()
    })
    .await;
    let producer = builder(&broker).max_in_flight_batches(4);
    let producer = producer.build().await.unwrap();
    append_waiting(&producer, None, 1).await;
    producer.flush().await.unwrap();
    broker.hold(true);
    append_waiting(&producer, None, 100).await;
    let mut seen = 0;
    broker.script(move |_, _| {
        seen += 1;
        match seen {
            // Those between leave a gap.
            1 | 4 => Action::Refuse(ErrorCode::NotOwner),
            _ => Action::Accept,
        }
    });
    broker.hold(false);
    producer.close().await.unwrap();
    assert_eq!(stored(&broker), 101);
}

#[tokio::test]
async fn the_next_owner_is_asked_for_without_waiting_for_another_refusal() {
    let broker = Broker::start(1, 1).await;
    let producer = builder(&broker).build().await.unwrap();
    broker.script(|_, _| Action::Refuse(ErrorCode::NotOwner));
    let before = broker.asked.load(Ordering::SeqCst);
    append_waiting(&producer, None, 1).await;
    let asked_more = async {
        // One for each refusal and the one that may be ahead are not more.
        while broker.asked.load(Ordering::SeqCst) - before
            <= broker.appends.load(Ordering::SeqCst) + 10
        {
            tokio::task::yield_now().await;
        }
    };
    let asked_more = tokio::time::timeout(PATIENCE, asked_more).await;
    assert!(
        asked_more.is_ok(),
        "owners are asked for only when one has refused"
    );
    broker.behave();
    producer.close().await.unwrap();
    assert_eq!(stored(&broker), 1);
}
