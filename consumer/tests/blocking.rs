//! Consumers and readers in programs without tasks.

mod fake;

use std::sync::Arc;
use std::time::Duration;

use fake::{Fake, values};
use kera_consumer::blocking::{Consumer, Reader};
use kera_consumer::{ConsumeError, Start};
use tokio::runtime::Runtime;

/// The brokers' runtime, which no client is to need, and a broker with one lane.
fn broker() -> (Runtime, Arc<Fake>) {
    let runtime = Runtime::new().unwrap();
    let fake = runtime.block_on(Fake::start(1, 1));
    (runtime, fake)
}

fn reader(fake: &Fake) -> kera_consumer::ReaderBuilder {
    Reader::builder().bootstrap(&fake.bootstrap).stream("s")
}

#[test]
fn a_reader_waits_for_what_comes_and_tells_the_end_from_a_pause() {
    let (_runtime, fake) = broker();
    fake.append((0, 0), &["0", "1"]);
    let mut following = reader(&fake).open_blocking().unwrap();
    assert_eq!(values(&following.next_batch().unwrap().unwrap()), [0, 1]);
    let nothing = following.next_batch_within(Duration::ZERO).unwrap();
    assert!(nothing.is_none() && !following.is_finished());
    fake.append((0, 0), &["2"]);
    assert_eq!(values(&following.next_batch().unwrap().unwrap()), [2]);
    following.seek(0, 0, Start::Ordinal(1)).unwrap();
    let read: Vec<_> = following.records().take(2).map(Result::unwrap).collect();
    assert_eq!(read.iter().map(|r| r.ordinal).collect::<Vec<_>>(), [1, 2]);

    let mut ending = reader(&fake).follow(false).open_blocking().unwrap();
    let read: Result<Vec<_>, _> = ending.records().collect();
    assert_eq!(read.unwrap().len(), 3);
    assert!(ending.is_finished());
    assert!(ending.next_batch().unwrap().is_none());
    let missing = ending.seek(7, 0, Start::Earliest).unwrap_err();
    assert!(
        matches!(missing, ConsumeError::UnknownLane { streamlet: 7, .. }),
        "{missing}"
    );
}

#[test]
fn single_records_end_with_an_error() {
    let (_runtime, fake) = broker();
    fake.append((0, 0), &["0"]);
    fake.poison((0, 0), 3);
    let mut poisoned = reader(&fake).open_blocking().unwrap();
    let mut records = poisoned.records();
    assert_eq!(records.next().unwrap().unwrap().ordinal, 0);
    let error = records.next().unwrap().unwrap_err();
    assert!(matches!(error, ConsumeError::Undecodable { .. }), "{error}");
    assert!(records.next().is_none());
}

#[test]
fn a_member_reads_commits_and_leaves() {
    let (runtime, fake) = broker();
    fake.append((0, 0), &["0", "1"]);
    fake.grant((0, 0), 0, u64::MAX);
    let settings = Consumer::builder().bootstrap(&fake.bootstrap).stream("s");
    let settings = settings.group("g").manual_commit();
    let mut consumer = settings.clone().open_blocking().unwrap();
    let batch = consumer.next_batch().unwrap();
    assert_eq!(values(&batch), [0, 1]);
    consumer.commit(&batch).unwrap();
    assert_eq!(consumer.metrics().commits, 1);
    assert!(
        consumer
            .next_batch_within(Duration::ZERO)
            .unwrap()
            .is_none()
    );
    runtime.block_on(async {
        for error in [
            settings.open_blocking().map(drop).unwrap_err(),
            consumer.next_batch().map(drop).unwrap_err(),
            consumer.commit(&batch).unwrap_err(),
            consumer.records().next().unwrap().map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, ConsumeError::Blocking(_)), "{error}");
            assert!(error.to_string().contains("spawn_blocking"), "{error}");
        }
    });
    consumer.close().unwrap();
    assert!(fake.state.lock().left > 0);
}

/// The group need not wait until its session is over, wherever the thread is.
#[test]
fn a_member_that_is_dropped_outside_of_any_runtime_leaves() {
    let (runtime, fake) = broker();
    fake.grant((0, 0), 0, u64::MAX);
    let settings = Consumer::builder().bootstrap(&fake.bootstrap).stream("s");
    let consumer = settings.group("g").open_blocking().unwrap();
    drop(consumer);
    runtime.block_on(fake.until(|state| state.left > 0));
}
