//! The producer while streamlets change their owner.

mod fake;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake::{Action, Broker};
use kera_producer::{Producer, ProducerBuilder, Record};
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;

const KEYS: usize = 20;

async fn brokers(count: usize) -> Arc<Broker> {
    let config = v1::StreamConfig {
        streamlets: Some(2),
        lanes: Some(2),
        max_batch_bytes: Some(1 << 20),
        ..v1::StreamConfig::default()
    };
    Broker::start_several(count, config).await
}

fn builder(broker: &Broker) -> ProducerBuilder {
    broker.eager().linger(Duration::ZERO)
}

fn text(number: usize) -> String {
    format!("{number:08}")
}

fn append(producer: &Producer, range: std::ops::Range<usize>) {
    for number in range {
        let key = (number % KEYS).to_string();
        producer
            .append(&Record::keyed(key.as_bytes(), text(number).as_bytes()))
            .unwrap();
    }
}

/// Each value once, and those of a key in the order appended.
fn check_exactly_once(broker: &Broker, count: usize) {
    let stored = broker.records(|record| {
        let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
        let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
        (key, value)
    });
    let mut by_key: HashMap<String, Vec<String>> = HashMap::new();
    for (key, value) in stored.into_values().flatten() {
        by_key.entry(key).or_default().push(value);
    }
    for key in 0..KEYS {
        let expected: Vec<_> = (key..count).step_by(KEYS).map(text).collect();
        assert_eq!(by_key[&key.to_string()], expected, "key {key}");
    }
}

#[tokio::test]
async fn records_go_on_at_the_next_owner_when_one_dies() {
    let broker = brokers(3).await;
    let producer = builder(&broker).build().await.unwrap();
    append(&producer, 0..500);
    producer.flush().await.unwrap();
    // The owner stores every other batch, tells nobody, and dies.
    let (seen, dying) = (Arc::new(AtomicUsize::new(0)), broker.clone());
    broker.script(move |_, _| match seen.fetch_add(1, Ordering::SeqCst) {
        8.. => {
            dying.kill(0);
            Action::Swallow { store: false }
        }
        number => Action::Swallow {
            store: number % 2 == 0,
        },
    });
    let before = broker.appends.load(Ordering::SeqCst);
    append(&producer, 500..1_500);
    broker.appends_arrived(before + 9).await;
    // Its successor needs a while to recover what it takes over.
    let left = AtomicUsize::new(5);
    broker.script(move |_, _| {
        let recovering =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match recovering {
            Ok(_) => Action::Refuse(ErrorCode::NotEnoughCopies),
            Err(_) => Action::Accept,
        }
    });
    broker.own(2);
    producer.close().await.unwrap();
    check_exactly_once(&broker, 1_500);
    let metrics = producer.metrics();
    assert_eq!(metrics.records_acknowledged, 1_500);
    assert!(metrics.duplicates > 0, "what was stored is recognised");
}

#[tokio::test]
async fn an_owner_that_says_nothing_is_left_for_its_successor() {
    let broker = brokers(2).await;
    let producer = builder(&broker).build().await.unwrap();
    append(&producer, 0..100);
    producer.flush().await.unwrap();
    // From now on the owner stores what comes, and its answers never leave.
    broker.script(|_, _| Action::Swallow { store: true });
    let before = broker.appends.load(Ordering::SeqCst);
    append(&producer, 100..400);
    broker.appends_arrived(before + 4).await;
    broker.stop(0);
    broker.behave();
    broker.own(1);
    producer.close().await.unwrap();
    check_exactly_once(&broker, 400);
    assert!(producer.metrics().duplicates > 0);
}

#[tokio::test]
async fn a_successor_is_found_although_lanes_are_unsettled() {
    let broker = brokers(2).await;
    let producer = builder(&broker).build().await.unwrap();
    append(&producer, 0..100);
    producer.flush().await.unwrap();
    // The owner refuses one streamlet's batches, as if lanes had grown, and answers none of the other's.
    let (swallowed, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (swallowed.clone(), refused.clone());
    broker.script(move |request, _| match request.streamlet {
        0 => {
            counts.0.fetch_add(1, Ordering::SeqCst);
            Action::Swallow { store: true }
        }
        _ => {
            counts.1.fetch_add(1, Ordering::SeqCst);
            Action::Refuse(ErrorCode::StaleLanes)
        }
    });
    append(&producer, 100..400);
    // Until it has been told of all that was refused.
    let unanswered = || producer.metrics().batches_in_flight as usize;
    while swallowed.load(Ordering::SeqCst) == 0
        || refused.load(Ordering::SeqCst) == 0
        || unanswered() != swallowed.load(Ordering::SeqCst)
    {
        tokio::task::yield_now().await;
    }
    broker.stop(0);
    broker.behave();
    broker.own(1);
    producer.close().await.unwrap();
    check_exactly_once(&broker, 400);
}

#[tokio::test]
async fn streamlets_move_back_and_forth_without_loss_or_doubles() {
    let broker = brokers(3).await;
    let producer = builder(&broker).build().await.unwrap();
    let count = 6_000;
    for (round, start) in (0..count).step_by(500).enumerate() {
        append(&producer, start..start + 500);
        broker.own(round % 3);
        tokio::task::yield_now().await;
    }
    producer.close().await.unwrap();
    check_exactly_once(&broker, count);
}

#[tokio::test]
async fn a_producer_opens_although_the_first_broker_is_gone() {
    let broker = brokers(3).await;
    broker.kill(0);
    broker.own(1);
    let producer = builder(&broker).build().await.unwrap();
    append(&producer, 0..100);
    producer.close().await.unwrap();
    check_exactly_once(&broker, 100);
}

#[tokio::test]
async fn an_owner_that_has_not_heard_of_the_stream_or_its_lanes_yet_is_asked_again() {
    for code in [ErrorCode::UnknownStream, ErrorCode::UnknownLane] {
        let broker = brokers(1).await;
        let producer = builder(&broker).build().await.unwrap();
        let left = AtomicUsize::new(3);
        broker.script(move |_, _| {
            let unheard =
                left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            match unheard {
                Ok(_) => Action::Refuse(code),
                Err(_) => Action::Accept,
            }
        });
        append(&producer, 0..100);
        producer.close().await.unwrap();
        check_exactly_once(&broker, 100);
    }
}

#[tokio::test]
async fn a_producer_opens_although_the_first_brokers_have_not_heard_of_the_stream() {
    for unheard in [vec![0], vec![0, 1]] {
        let broker = brokers(3).await;
        broker.own(2);
        broker.state.lock().unheard = unheard;
        let producer = builder(&broker).build().await.unwrap();
        append(&producer, 0..100);
        producer.close().await.unwrap();
        check_exactly_once(&broker, 100);
    }
}
