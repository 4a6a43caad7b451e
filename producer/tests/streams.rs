//! Producers of several streams that share connections and the bound on memory.

mod fake;

use std::time::Duration;

use fake::{Action, Broker, NEXT_STREAM};
use kera_producer::{AppendError, BuildError, ErrorCode, Producer, Record};
use kera_protocol::v1;

const LONG: Duration = Duration::from_secs(29);
/// Where the fake broker keeps the lanes of streams s, s1 and s2.
const FIRST: (u32, u32) = (0, 0);
const SECOND: (u32, u32) = (NEXT_STREAM, 0);
const THIRD: (u32, u32) = (2 * NEXT_STREAM, 0);

fn fill(producer: &Producer, value: &[u8]) -> usize {
    let mut taken = 0;
    loop {
        match producer.send(&Record::of_value(value)) {
            Ok(()) => taken += 1,
            Err(AppendError::Full) => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn each_record_reaches_its_stream_over_one_connection() {
    let broker = Broker::start(1, 1).await;
    let first = broker.producer().batch_size(1 << 10).build().await.unwrap();
    let second = first.for_stream("s1").await.unwrap();
    let third = second.for_stream("s2").await.unwrap();
    for number in 0..300 {
        let value = number.to_string();
        let producer = [&first, &second, &third][number % 3];
        producer.send(&Record::of_value(value.as_bytes())).unwrap();
    }
    for producer in [&first, &second, &third] {
        producer.flush().await.unwrap();
        let metrics = producer.metrics();
        assert_eq!(metrics.records_acknowledged, 100);
        assert_eq!(metrics.batches_in_flight, 0);
    }
    let stored = broker.values();
    for (index, lane) in [FIRST, SECOND, THIRD].into_iter().enumerate() {
        let expected = (index..300).step_by(3).map(|number| number.to_string());
        assert_eq!(stored[&lane], expected.collect::<Vec<_>>(), "{lane:?}");
    }
    assert_eq!(broker.state.lock().appending.len(), 1);
}

#[tokio::test]
async fn one_bound_holds_for_the_memory_of_all() {
    let broker = Broker::start(1, 1).await;
    broker.hold(true);
    let settings = broker.producer().batch_size(1 << 10).memory_limit(8 << 10);
    let first = settings.linger(LONG).build().await.unwrap();
    let second = first.for_stream("s1").await.unwrap();
    let value = [b'x'; 400];
    second.send(&Record::of_value(&value)).unwrap();
    let taken = fill(&first, &value);
    assert!((8..=20).contains(&taken), "{taken} records of 400 bytes");
    // What it has begun it may fill; more there is none for either.
    let more = fill(&second, &value);
    assert!(more < 3, "{more}");
    let used = first.metrics().memory_used_bytes;
    assert!(used <= 8 << 10, "{used} bytes");
    assert_eq!(second.metrics().memory_used_bytes, used);
    let last = Record::of_value(b"last");
    let waiting = second.append_wait(&last);
    broker.hold(false);
    waiting.await.unwrap();
    first.flush().await.unwrap();
    second.close().await.unwrap();
    let stored = broker.values();
    assert_eq!(stored[&FIRST].len(), taken);
    assert_eq!(stored[&SECOND].len(), 1 + more + 1);
}

/// Otherwise it would wait until the linger of a stream is over that nobody appends to.
#[tokio::test]
async fn who_needs_memory_has_the_open_batches_of_other_streams_sent() {
    let broker = Broker::start(1, 1).await;
    let settings = broker.producer().batch_size(1 << 10).memory_limit(1 << 10);
    let first = settings.linger(LONG).build().await.unwrap();
    let second = first.for_stream("s1").await.unwrap();
    let held = first.append(&Record::of_value(b"open")).unwrap();
    let next = Record::of_value(b"next");
    let waited = tokio::time::timeout(LONG / 2, second.append_wait(&next)).await;
    waited.expect("no linger is waited for").unwrap();
    assert_eq!(held.await.unwrap().ordinal, 0);
    second.flush().await.unwrap();
    assert_eq!(broker.values()[&SECOND], ["next"]);
}

#[tokio::test]
async fn all_streams_go_on_with_the_next_owner() {
    let config = v1::StreamConfig {
        streamlets: Some(1),
        lanes: Some(1),
        ..v1::StreamConfig::default()
    };
    let broker = Broker::start_several(2, config).await;
    let first = broker.eager().build().await.unwrap();
    let second = first.for_stream("s1").await.unwrap();
    for round in 0..2 {
        for producer in [&first, &second] {
            let delivery = producer.append(&Record::of_value(b"x")).unwrap();
            assert_eq!(delivery.await.unwrap().ordinal, round);
        }
        broker.own(1);
        broker.kill(0);
    }
    assert_eq!(broker.state.lock().appending.len(), 2);
}

#[tokio::test]
async fn one_that_is_closed_leaves_the_others_going() {
    let broker = Broker::start(1, 1).await;
    let first = broker.producer().build().await.unwrap();
    let second = first.for_stream("s1").await.unwrap();
    first.send(&Record::of_value(b"a")).unwrap();
    first.close().await.unwrap();
    let refused = first.send(&Record::of_value(b"b"));
    assert!(matches!(refused, Err(AppendError::Closed)), "{refused:?}");
    second.send(&Record::of_value(b"c")).unwrap();
    second.flush().await.unwrap();
    // A stream can be opened again, also by a producer that is closed itself.
    let again = first.for_stream("s").await.unwrap();
    again.send(&Record::of_value(b"d")).unwrap();
    again.close().await.unwrap();
    drop(second);
    let stored = broker.values();
    assert_eq!(
        (&stored[&FIRST][..], &stored[&SECOND][..]),
        (&["a".to_owned(), "d".to_owned()][..], &["c".to_owned()][..])
    );
    assert_eq!(broker.state.lock().appending.len(), 1);
    let error = again.for_stream("s2").await.unwrap_err();
    assert!(matches!(error, BuildError::Closed), "{error}");
}

/// The reply to a batch of a stream that is closed by then is not taken for one to its successor.
#[tokio::test]
async fn a_late_reply_is_nobody_elses() {
    let broker = Broker::start(1, 1).await;
    broker.script(|request, _| match request.stream[0] - fake::STREAM_ID[0] {
        1 => Action::Refuse(ErrorCode::InvalidBatch),
        _ => Action::Accept,
    });
    let first = broker.producer().build().await.unwrap();
    broker.hold(true);
    let second = first.for_stream("s1").await.unwrap();
    let given_up = second.append(&Record::of_value(b"late")).unwrap();
    broker.appends_arrived(1).await;
    drop(second);
    assert!(given_up.await.is_err());
    let third = first.for_stream("s2").await.unwrap();
    let next = third.append(&Record::of_value(b"next")).unwrap();
    while third.metrics().batches_in_flight == 0 {
        tokio::task::yield_now().await;
    }
    broker.hold(false);
    assert_eq!(next.await.unwrap().ordinal, 0);
    assert_eq!(broker.values()[&THIRD], ["next"]);
}

/// Lanes are part of a transaction by the number of their stream's producer: that of a producer that is closed meanwhile is
/// given to no other one before the transaction ends.
#[tokio::test]
async fn lanes_of_a_stream_that_takes_a_closed_ones_place_are_added_to_the_transaction() {
    let broker = Broker::start(1, 1).await;
    let settings = broker.eager().transactional_id("t");
    let first = settings.build().await.unwrap();
    let transaction = first.transaction().await.unwrap();
    for stream in ["s1", "s2"] {
        let producer = first.for_stream(stream).await.unwrap();
        let stored = producer.append(&Record::of_value(b"x")).unwrap();
        stored.await.unwrap();
        producer.close().await.unwrap();
        drop(producer);
        // Its background task ends.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    let added = broker.state.lock().in_transaction.clone();
    let numbers = added.iter().map(|id| id[0] - fake::STREAM_ID[0]);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_told() {
    let broker = Broker::start(1, 1).await;
    let first = broker.eager().build().await.unwrap();
    let error = first.for_stream("").await.unwrap_err();
    let wanted = BuildError::Setting {
        name: "stream",
        reason: "name the stream to append to".to_owned(),
    };
    assert_eq!(error.to_string(), wanted.to_string());
    broker.state.lock().gone = true;
    let error = first.for_stream("s1").await.unwrap_err();
    assert!(
        matches!(&error, BuildError::Rpc(error) if error.code() == Some(ErrorCode::UnknownStream)),
        "{error}"
    );
}
