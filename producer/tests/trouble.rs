//! The producer against a broker that fails, refuses, forgets and grows.

mod fake;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fake::{Action, Broker};
use kera_producer::{AppendError, ProduceError, Producer, Record};
use kera_protocol::batch::BatchHeader;
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How many random runs: `KERA_SEEDS`, or a few.
fn seeds(few: u64) -> u64 {
    std::env::var("KERA_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(few)
}

fn text(number: usize) -> String {
    format!("{number:08}")
}

/// Each value once, and those of a key in the order appended.
fn check_exactly_once(broker: &Broker, keys: usize, count: usize) {
    let stored = broker.records(|record| {
        let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
        let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
        (key, value)
    });
    let mut by_key: HashMap<String, Vec<String>> = HashMap::new();
    // Lanes in ascending order: a key's records in an older lane come before those in a newer.
    for (key, value) in stored.into_values().flatten() {
        by_key.entry(key).or_default().push(value);
    }
    for key in 0..keys {
        let expected: Vec<_> = (key..count).step_by(keys).map(text).collect();
        assert_eq!(by_key[&key.to_string()], expected, "key {key}");
    }
}

fn append(producer: &Producer, keys: usize, range: std::ops::Range<usize>) {
    for number in range {
        let key = (number % keys).to_string();
        producer
            .append(&Record::keyed(key.as_bytes(), text(number).as_bytes()))
            .unwrap();
    }
}

#[tokio::test]
async fn each_record_is_stored_once_and_in_order_whatever_fails() {
    for seed in 0..seeds(12) {
        let broker = Broker::start(2, 2).await;
        let mut random = StdRng::seed_from_u64(seed);
        broker.script(move |_, _| match random.random_range(0..30) {
            0 => Action::Drop { store: true },
            1 => Action::Drop { store: false },
            2 => Action::Refuse(ErrorCode::Overloaded),
            3 => Action::Refuse(ErrorCode::StorageFull),
            4 => Action::StoreAndRefuse(ErrorCode::Timeout),
            5 => Action::Refuse(ErrorCode::ShuttingDown),
            _ => Action::Accept,
        });
        let producer = broker.eager().build().await.unwrap();
        let last = 6_000;
        for start in (0..last).step_by(500) {
            append(&producer, 20, start..start + 500);
            tokio::task::yield_now().await;
        }
        let flushed = producer.close().await;
        assert!(flushed.is_ok(), "seed {seed}: {flushed:?}");
        check_exactly_once(&broker, 20, last);
        let metrics = producer.metrics();
        assert!(metrics.batches_resent > 0 && metrics.connections > 1);
        assert_eq!(metrics.records_acknowledged, last as u64);
    }
}

#[tokio::test]
async fn batches_in_flight_are_sent_again_in_order_after_a_reconnect() {
    let broker = Broker::start(1, 1).await;
    let producer = broker
        .eager()
        .linger(Duration::ZERO)
        .batch_size(1 << 10)
        .build()
        .await
        .unwrap();
    let mut seen = 0;
    // Some of the batches in flight are stored, the connection breaks, the answers are lost.
    broker.script(move |_, _| {
        seen += 1;
        match seen {
            1..=4 => Action::Swallow { store: true },
            5 => Action::Drop { store: false },
            _ => Action::Accept,
        }
    });
    append(&producer, 1, 0..1_000);
    producer.flush().await.unwrap();
    check_exactly_once(&broker, 1, 1_000);
    let metrics = producer.metrics();
    assert_eq!(metrics.duplicates, 4);
    assert_eq!(metrics.connections, 2);
}

#[tokio::test]
async fn a_batch_refused_for_good_fails_alone() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    broker.hold(true);
    let deliveries: Vec<_> = (0..400)
        .map(|number| {
            let value = text(number);
            producer
                .append(&Record::keyed(b"0", value.as_bytes()))
                .unwrap()
        })
        .collect();
    let mut seen = 0;
    broker.script(move |_, _| {
        seen += 1;
        if seen == 3 {
            Action::Refuse(ErrorCode::InvalidBatch)
        } else {
            Action::Accept
        }
    });
    broker.hold(false);
    let error = producer.flush().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InvalidBatch));
    let results: Vec<_> = deliveries
        .iter()
        .map(|delivery| delivery.result().unwrap())
        .collect();
    let failed = results.iter().filter(|result| result.is_err()).count();
    assert!(failed > 0 && failed < 100, "one batch of {failed} records");
    let stored = broker.values().remove(&(0, 0)).unwrap();
    assert_eq!(stored.len() + failed, 400);
    assert!(stored.is_sorted());
    for (number, result) in results.iter().enumerate() {
        if let Ok(place) = result {
            assert_eq!(stored[place.ordinal as usize], text(number));
        }
    }
}

#[tokio::test]
async fn what_was_given_up_before_is_told_by_the_next_flush_once() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    broker.script(|_, _| Action::Refuse(ErrorCode::InvalidBatch));
    producer.send(&Record::of_value(b"nobody waits")).unwrap();
    let last = producer.append(&Record::of_value(b"somebody waits"));
    last.unwrap().await.unwrap_err();
    broker.behave();
    let error = producer.flush().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InvalidBatch));
    producer.flush().await.unwrap();
    producer.send(&Record::of_value(b"all is well")).unwrap();
    producer.close().await.unwrap();
    assert_eq!(broker.values().remove(&(0, 0)).unwrap(), ["all is well"]);
}

#[tokio::test]
async fn a_gap_after_acknowledged_batches_ends_the_lane() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    append(&producer, 1, 0..10);
    producer.flush().await.unwrap();
    broker.script(|_, _| Action::Refuse(ErrorCode::SequenceGap));
    append(&producer, 1, 10..20);
    let error = producer.flush().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::SequenceGap));
    let error = producer.append(&Record::of_value(b"v")).unwrap_err();
    assert!(matches!(error, AppendError::LaneFailed(_)), "{error}");
}

/// A stream of one lane whose broker has lost the last two acknowledged batches of a producer that
/// goes on: what became of the records that follow, and all ids that their batches carried.
async fn after_a_loss(ack: v1::AckPolicy) -> (Arc<Broker>, Producer, Result<(), ProduceError>) {
    let broker = Broker::start_with(v1::StreamConfig {
        streamlets: Some(1),
        lanes: Some(1),
        max_batch_bytes: Some(1 << 20),
        ack: Some(ack as i32),
        ..v1::StreamConfig::default()
    })
    .await;
    let producer = broker.eager().build().await.unwrap();
    for step in 0..4 {
        append(&producer, 1, step * 10..(step + 1) * 10);
        producer.flush().await.unwrap();
    }
    broker.lose_last((0, 0), 2);
    append(&producer, 1, 40..60);
    let flushed = producer.flush().await;
    (broker, producer, flushed)
}

#[tokio::test]
async fn what_a_memory_stream_lost_does_not_end_the_lane() {
    let (broker, producer, flushed) = after_a_loss(v1::AckPolicy::Memory).await;
    flushed.expect("the lane goes on with new sequences");
    append(&producer, 1, 60..100);
    producer.close().await.unwrap();
    let stored = broker.values().remove(&(0, 0)).unwrap();
    let kept: Vec<_> = (0..20).chain(40..100).map(text).collect();
    assert_eq!(stored, kept, "each of the others once, and in order");
    let state = broker.state.lock();
    let mut ids: Vec<_> = state.lanes[&(0, 0)]
        .iter()
        .map(|batch| BatchHeader::peek(batch).unwrap())
        .map(|header| (header.producer_id, header.producer_epoch))
        .collect();
    ids.dedup();
    let [(first, epoch), (second, next)] = ids[..] else {
        panic!("one new epoch, for one loss: {ids:?}");
    };
    assert_eq!((second, next), (first, epoch + 1));
}

#[tokio::test]
async fn what_a_written_stream_lost_ends_the_lane() {
    let (broker, _, flushed) = after_a_loss(v1::AckPolicy::Written).await;
    let error = flushed.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::SequenceGap));
    assert_eq!(broker.values()[&(0, 0)].len(), 20);
}

#[tokio::test]
async fn a_producer_that_was_forgotten_goes_on() {
    let broker = Broker::start(1, 2).await;
    let producer = broker.eager().build().await.unwrap();
    append(&producer, 5, 0..500);
    producer.flush().await.unwrap();
    broker.forget_producers();
    append(&producer, 5, 500..1_000);
    producer.flush().await.unwrap();
    check_exactly_once(&broker, 5, 1_000);
}

#[tokio::test]
async fn a_forgotten_batch_whose_fate_is_unknown_is_never_stored_twice() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    append(&producer, 1, 0..10);
    producer.flush().await.unwrap();
    let mut seen = 0;
    // Stored, the answer lost; before the batch is sent again, all is forgotten.
    broker.script(move |_, _| {
        seen += 1;
        match seen {
            1 => Action::Drop { store: true },
            2 => Action::Forget,
            _ => Action::Accept,
        }
    });
    append(&producer, 1, 10..20);
    let error = producer.flush().await.unwrap_err();
    assert!(error.is_uncertain(), "{error}");
    append(&producer, 1, 20..30);
    producer.flush().await.unwrap();
    let stored = broker.values().remove(&(0, 0)).unwrap();
    assert_eq!(stored, (0..30).map(text).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_told_is_the_cause_and_not_what_follows_from_it() {
    let broker = Broker::start(1, 1).await;
    let producer = broker
        .eager()
        .deadline(Duration::from_secs(1))
        .build()
        .await
        .unwrap();
    broker.hold(true);
    let deliveries: Vec<_> = (0..400)
        .map(|number| {
            let value = text(number);
            producer
                .append(&Record::keyed(b"0", value.as_bytes()))
                .unwrap()
        })
        .collect();
    // The first batch finds no room, and what comes behind it begins in the middle of a sequence.
    broker.script(|_, header| match header.base_sequence {
        0 => Action::Deny(ErrorCode::StorageFull),
        _ => Action::Deny(ErrorCode::UnknownProducer),
    });
    broker.hold(false);
    let told = producer.flush().await.unwrap_err().to_string();
    assert!(told.contains("STORAGE_FULL"), "{told}");
    for delivery in &deliveries {
        let told = delivery.result().unwrap().unwrap_err().to_string();
        assert!(!told.contains("UNKNOWN_PRODUCER"), "{told}");
    }
}

async fn past_the_deadline(action: Action) -> Vec<String> {
    let broker = Broker::start(1, 1).await;
    // Long enough for the good records on a busy machine.
    let producer = broker
        .eager()
        .deadline(Duration::from_secs(3))
        .build()
        .await
        .unwrap();
    producer.append(&Record::of_value(b"good")).unwrap();
    producer.flush().await.unwrap();
    broker.script(move |_, _| action);
    let delivery = producer.append(&Record::of_value(b"bad")).unwrap();
    let error = delivery.await.unwrap_err();
    assert!(matches!(error, ProduceError::Timeout { .. }), "{error}");
    if matches!(action, Action::Swallow { .. }) {
        assert!(error.is_uncertain(), "{error}");
    }
    broker.behave();
    let told = producer.flush().await.unwrap_err();
    assert!(matches!(told, ProduceError::Timeout { .. }), "{told}");
    producer.append(&Record::of_value(b"good")).unwrap();
    producer.flush().await.unwrap();
    broker.values().remove(&(0, 0)).unwrap()
}

#[tokio::test]
async fn past_the_deadline_records_fail_and_later_ones_go_on() {
    let (refused, lost, stored) = tokio::join!(
        past_the_deadline(Action::Refuse(ErrorCode::StorageFull)),
        past_the_deadline(Action::Swallow { store: false }),
        past_the_deadline(Action::Swallow { store: true }),
    );
    // The last attempt may have been under way, and be accepted afterwards.
    assert!(refused.iter().filter(|value| *value == "good").count() == 2);
    assert_eq!(lost, ["good", "good"]);
    assert_eq!(stored, ["good", "bad", "good"]);
}

/// A broker that has stored "first" of a producer, and then keeps what is sent, as what stands in the buffer of a
/// connection, until the batch with the sequence `last` comes and the connection is cut. What is sent after that
/// befalls `again`, by its sequence; a batch of another epoch is taken.
async fn cut_off(
    last: i32,
    again: impl Fn(i32) -> Action + Send + 'static,
) -> (Arc<Broker>, Producer) {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    producer.append(&Record::of_value(b"first")).unwrap();
    producer.flush().await.unwrap();
    let mut is_cut = false;
    broker.script(move |_, header| {
        if header.producer_epoch > 0 {
            return Action::Accept;
        }
        if is_cut {
            return again(header.base_sequence);
        }
        is_cut = header.base_sequence == last;
        Action::Late { drop: is_cut }
    });
    (broker, producer)
}

/// A batch is given up because it is refused for good after an attempt without an answer, as often as it is
/// sent: no machine is too slow for that, as it may be for a deadline.
const GIVEN_UP: Action = Action::Refuse(ErrorCode::Internal);

#[tokio::test]
async fn what_an_old_connection_brings_late_is_not_stored_beside_what_was_sent_since() {
    let again = |sequence| match sequence {
        1 => GIVEN_UP,
        _ => Action::Accept,
    };
    let (broker, producer) = cut_off(1, again).await;
    let given_up = producer.append(&Record::of_value(b"given up")).unwrap();
    let error = given_up.await.unwrap_err();
    assert!(error.is_uncertain(), "{error}");
    let kept = producer.append(&Record::of_value(b"kept")).unwrap();
    kept.await.unwrap();
    assert_eq!(broker.store_late(), 0, "it is of an epoch that is over");
    assert_eq!(broker.values()[&(0, 0)], ["first", "kept"]);
}

#[tokio::test]
async fn what_an_old_connection_brings_late_with_what_was_given_up_is_not_stored_twice() {
    // Whether it comes before the broker is asked about the second batch, or once it has answered.
    for (second, wanted) in [
        (Action::ThenLate, vec!["first", "given up", "behind"]),
        (Action::Accept, vec!["first"]),
    ] {
        let again = move |sequence| match sequence {
            1 => GIVEN_UP,
            _ => second,
        };
        let (broker, producer) = cut_off(2, again).await;
        let given_up = producer.append(&Record::of_value(b"given up")).unwrap();
        broker.appends_arrived(2).await;
        let behind = producer.append(&Record::of_value(b"behind")).unwrap();
        let error = given_up.await.unwrap_err();
        assert!(error.is_uncertain(), "{error}");
        // Who is silent for a second is asked again, and recognises by then what has come late.
        match behind.await {
            Ok(_) => assert!(wanted.contains(&"behind"), "it is not stored"),
            Err(error) => assert!(error.is_uncertain(), "{error}"),
        }
        assert_eq!(broker.values()[&(0, 0)], wanted);
        let next = producer.append(&Record::of_value(b"next")).unwrap();
        next.await.unwrap();
        assert_eq!(broker.store_late(), 0, "they are of an epoch that is over");
        assert_eq!(broker.values()[&(0, 0)], [wanted, vec!["next"]].concat());
    }
}

#[tokio::test]
async fn when_lanes_grow_waiting_records_are_split_anew() {
    for seed in 0..seeds(6) {
        let broker = Broker::start(2, 1).await;
        let producer = broker.eager().build().await.unwrap();
        let mut random = StdRng::seed_from_u64(seed);
        broker.script(move |_, _| match random.random_range(0..40) {
            0 => Action::Drop { store: true },
            1 => Action::Drop { store: false },
            2 => Action::Refuse(ErrorCode::Overloaded),
            _ => Action::Accept,
        });
        let mut deliveries = Vec::new();
        for (step, lanes) in [(0, 1), (1, 3), (2, 4), (3, 11)] {
            if step > 0 {
                broker.grow_lanes(lanes);
            }
            for number in step * 2_000..(step + 1) * 2_000 {
                let key = (number % 30).to_string();
                let value = text(number);
                let record = Record::keyed(key.as_bytes(), value.as_bytes());
                deliveries.push((number, producer.append(&record).unwrap()));
                if number % 400 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
        let closed = producer.close().await;
        assert!(closed.is_ok(), "seed {seed}: {closed:?}");
        let stored = broker.values();
        let mut total = 0;
        for values in stored.values() {
            total += values.len();
        }
        assert_eq!(total, 8_000, "seed {seed}");
        let mut by_key: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for (number, delivery) in deliveries {
            let place = delivery.result().unwrap().unwrap();
            let lane = (place.streamlet.0, place.lane.0);
            assert_eq!(stored[&lane][place.ordinal as usize], text(number));
            by_key
                .entry(number % 30)
                .or_default()
                .push((lane, place.ordinal));
        }
        for places in by_key.values() {
            for pair in places.windows(2) {
                assert!(pair[0].0 != pair[1].0 || pair[0].1 < pair[1].1);
            }
            let mut lanes: Vec<_> = places.iter().map(|(lane, _)| *lane).collect();
            lanes.dedup();
            assert!(lanes.len() <= 4, "a key changes lane only when lanes grow");
        }
        assert!(producer.metrics().resplits >= 1);
    }
}

/// An owner calls a stream unknown that the client may not see; who is asked by name says what is missing.
#[tokio::test]
async fn a_stream_that_may_not_be_seen_any_more_is_not_waited_for() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    broker.state.lock().hidden = true;
    broker.script(|_, _| Action::Deny(ErrorCode::UnknownStream));
    let delivery = producer.append(&Record::of_value(b"v")).unwrap();
    let error = delivery.await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotAuthorized));
    // The right may come back.
    broker.state.lock().hidden = false;
    broker.behave();
    let mut stored = producer.append(&Record::of_value(b"w")).unwrap().await;
    while stored.is_err() {
        stored = producer.append(&Record::of_value(b"w")).unwrap().await;
    }
    assert_eq!(broker.values()[&(0, 0)], ["w"]);
}

#[tokio::test]
async fn a_deleted_stream_fails_what_is_waiting() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    broker.state.lock().gone = true;
    broker.script(|_, _| Action::Refuse(ErrorCode::NotOwner));
    let delivery = producer.append(&Record::of_value(b"v")).unwrap();
    let error = delivery.await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownStream));
    let error = producer.append(&Record::of_value(b"v")).unwrap_err();
    assert!(matches!(error, AppendError::LaneFailed(_)), "{error}");
}

#[tokio::test]
async fn without_idempotence_batches_carry_no_producer() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().idempotent(false).build().await.unwrap();
    let mut seen = 0;
    broker.script(move |_, header| {
        assert_eq!((header.producer_id, header.base_sequence), (-1, -1));
        seen += 1;
        if seen == 2 {
            Action::Drop { store: false }
        } else {
            Action::Accept
        }
    });
    append(&producer, 1, 0..500);
    producer.close().await.unwrap();
    let stored = broker.values().remove(&(0, 0)).unwrap();
    for number in 0..500 {
        assert!(
            stored.contains(&text(number)),
            "{number} is stored at least once"
        );
    }
}
