//! Readers and consumers while streamlets change their owner, and groups their coordinator.

mod fake;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake::{Fake, values};
use kera_consumer::{ConsumeError, Consumer, Fetch, Reader, RetryPolicy, Start};
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;

const BOTH: [Fetch; 2] = [Fetch::Push, Fetch::Pull];

async fn follow(fake: &Arc<Fake>, fetch: Fetch) -> Reader {
    Reader::builder()
        .bootstrap(&fake.bootstrap)
        .stream("s")
        .fetch(fetch)
        .open()
        .await
        .unwrap()
}

/// Reads `count` records of the one lane, each once and in order.
async fn read(reader: &mut Reader, from: u64, count: u64) {
    let mut seen = Vec::new();
    while (seen.len() as u64) < count {
        seen.extend(values(&reader.next_batch().await.unwrap().unwrap()));
    }
    assert_eq!(seen, (from..from + count).collect::<Vec<_>>());
}

#[tokio::test]
async fn reading_goes_on_at_the_next_owner_when_one_dies() {
    for fetch in BOTH {
        let fake = Fake::start_several(3, 1, 1).await;
        fake.fill((0, 0), 100, 10);
        let mut reader = follow(&fake, fetch).await;
        read(&mut reader, 0, 100).await;
        fake.kill(0);
        fake.fill((0, 0), 100, 10);
        fake.change(|state| state.owner = 2);
        read(&mut reader, 100, 100).await;
    }
}

#[tokio::test]
async fn an_owner_that_lives_on_sends_its_readers_to_the_next() {
    for fetch in BOTH {
        let fake = Fake::start_several(2, 1, 1).await;
        fake.fill((0, 0), 50, 10);
        let mut reader = follow(&fake, fetch).await;
        read(&mut reader, 0, 50).await;
        for round in 1..=4 {
            fake.change(|state| state.owner = round % 2);
            fake.fill((0, 0), 50, 10);
            read(&mut reader, 50 * round as u64, 50).await;
        }
    }
}

#[tokio::test]
async fn an_owner_that_says_nothing_is_left_for_its_successor() {
    let fake = Fake::start_several(2, 1, 1).await;
    fake.fill((0, 0), 50, 10);
    let mut reader = follow(&fake, Fetch::Push).await;
    read(&mut reader, 0, 50).await;
    assert_eq!(fake.subscribes.load(Ordering::SeqCst), 1);
    fake.stop(0);
    fake.change(|state| state.owner = 1);
    fake.fill((0, 0), 50, 10);
    read(&mut reader, 50, 50).await;
}

#[tokio::test]
async fn a_group_goes_on_at_its_next_coordinator() {
    let fake = Fake::start_several(3, 1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.grant((0, 0), 0, 0);
    let mut consumer = Consumer::builder()
        .bootstrap(&fake.bootstrap)
        .stream("s")
        .group("g")
        .start(Start::Earliest)
        .manual_commit()
        .open()
        .await
        .unwrap();
    let first = consumer.next_batch().await.unwrap();
    consumer.commit(&first).await.unwrap();
    let lookups = fake.state.lock().lookups;
    // One that is coordinator no longer says so.
    fake.change(|state| state.coordinator = 1);
    let second = consumer.next_batch().await.unwrap();
    consumer.commit(&second).await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 20);
    assert!(fake.state.lock().lookups > lookups);
    // Another dies, and a third takes its place.
    fake.kill(1);
    fake.change(|state| state.coordinator = 2);
    let third = consumer.next_batch().await.unwrap();
    consumer.commit(&third).await.unwrap();
    let state = fake.state.lock();
    assert_eq!(state.commits[&1], 30);
    assert_eq!(state.joins, 1, "the membership goes on");
}

#[tokio::test]
async fn a_coordinator_that_says_nothing_is_looked_up_anew() {
    let fake = Fake::start_several(2, 1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.grant((0, 0), 0, 0);
    fake.change(|state| state.owner = 1);
    let mut consumer = Consumer::builder()
        .bootstrap(&fake.bootstrap)
        .stream("s")
        .group("g")
        .session(Duration::from_secs(60))
        .manual_commit()
        .open()
        .await
        .unwrap();
    let first = consumer.next_batch().await.unwrap();
    fake.stop(0);
    fake.change(|state| state.coordinator = 1);
    consumer.commit(&first).await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 10);
}

#[tokio::test]
async fn a_reader_opens_although_the_first_brokers_have_not_heard_of_the_stream() {
    for unheard in [vec![0], vec![0, 1], vec![0, 2]] {
        let fake = Fake::start_several(3, 1, 1).await;
        fake.fill((0, 0), 100, 10);
        let heard = (0..3).find(|member| !unheard.contains(member)).unwrap();
        fake.change(|state| {
            state.unheard = unheard.into_iter().collect();
            state.owner = heard;
        });
        let mut reader = follow(&fake, Fetch::Push).await;
        read(&mut reader, 0, 100).await;
    }
}

#[tokio::test]
async fn one_of_the_others_that_is_gone_is_no_reason_to_give_up() {
    let fake = Fake::start_several(3, 1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.kill(1);
    fake.change(|state| {
        state.unheard = [0].into();
        state.owner = 2;
    });
    let mut reader = follow(&fake, Fetch::Push).await;
    read(&mut reader, 0, 100).await;
}

async fn join(fake: &Fake) -> Result<Consumer, ConsumeError> {
    let consumer = Consumer::builder()
        .bootstrap(&fake.bootstrap)
        .stream("s")
        .group("g")
        .manual_commit();
    consumer.open().await
}

#[tokio::test]
async fn a_coordinator_that_has_not_heard_of_the_stream_yet_is_asked_again() {
    let fake = Fake::start_several(2, 1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.grant((0, 0), 0, 0);
    fake.change(|state| {
        state.unheard = [0].into();
        state.joins_unheard = 3;
        state.owner = 1;
    });
    let mut consumer = join(&fake).await.unwrap();
    assert_eq!(values(&consumer.next_batch().await.unwrap())[0], 0);
    assert_eq!(fake.state.lock().joins, 1);
}

#[tokio::test]
async fn a_stream_that_no_broker_knows_is_refused_at_once() {
    let fake = Fake::start_several(3, 1, 1).await;
    fake.change(|state| {
        state.unheard = [0, 1, 2].into();
        state.joins_unheard = 2;
    });
    let error = join(&fake).await.unwrap_err();
    assert!(error.to_string().contains("UNKNOWN_STREAM"), "{error}");
    let left = fake.state.lock().joins_unheard;
    assert_eq!(left, 1, "it was not asked again");
}

#[tokio::test]
async fn a_broker_that_says_nothing_of_places_is_left_for_the_next() {
    let fake = Fake::start_several(2, 1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.change(|state| state.silent_finds = [0].into());
    let reader = Reader::builder()
        .bootstrap(&fake.bootstrap)
        .stream("s")
        // A broker is given half of it.
        .retry(RetryPolicy::within(Duration::from_secs(12)));
    let mut reader = reader.open().await.unwrap();
    read(&mut reader, 0, 100).await;
}

#[tokio::test]
async fn an_answer_with_a_lane_that_the_stream_cannot_have_is_an_error() {
    let fake = Fake::start(1, 1).await;
    fake.change(|state| {
        state.planted_lane = Some(v1::LaneCursor {
            streamlet: 1,
            cursor: Some(v1::Cursor::default()),
            ..v1::LaneCursor::default()
        });
    });
    let reader = Reader::builder().bootstrap(&fake.bootstrap).stream("s");
    let error = reader.open().await.unwrap_err().to_string();
    assert!(error.contains("streamlet 1 lane 0 is none"), "{error}");
}

#[tokio::test]
async fn a_lane_whose_owner_is_gone_says_so() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = Fake::start(1, 1).await;
        fake.fill((0, 0), 10, 10);
        let mut reader = Reader::builder()
            .bootstrap(&fake.bootstrap)
            .stream("s")
            .fetch(fetch)
            .open()
            .await
            .unwrap();
        assert_eq!(reader.next_batch().await.unwrap().unwrap().len(), 10);
        assert_eq!(reader.stall(Duration::ZERO), None);
        fake.kill(0);
        let said = async {
            loop {
                if let Some(stall) = reader.stall(Duration::from_millis(1)) {
                    return stall.to_string();
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let said = tokio::time::timeout(Duration::from_secs(60), said).await;
        let said = said.expect("it is told");
        assert!(said.starts_with("streamlet 0 lane 0 has waited"), "{said}");
        assert!(said.contains("connect"), "{said}");
    }
}

#[tokio::test]
async fn a_lane_that_is_refused_at_every_attempt_says_so() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = Fake::start(1, 1).await;
        fake.fill((0, 0), 10, 10);
        fake.change(|state| state.refusal = Some(ErrorCode::StorageError));
        let reader = Reader::builder()
            .bootstrap(&fake.bootstrap)
            .stream("s")
            .fetch(fetch)
            .open();
        let mut reader = reader.await.unwrap();
        let said = async {
            loop {
                // Longer than the pause between two attempts.
                if let Some(stall) = reader.stall(Duration::from_secs(3)) {
                    return stall.to_string();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let said = tokio::time::timeout(Duration::from_secs(60), said).await;
        let said = said.expect("it is told");
        assert!(said.contains("STORAGE_ERROR"), "{said}");
        fake.change(|state| state.refusal = None);
        assert_eq!(reader.next_batch().await.unwrap().unwrap().len(), 10);
        assert_eq!(reader.stall(Duration::ZERO), None);
    }
}

#[tokio::test]
async fn a_reader_waits_for_an_owner_that_has_not_heard_of_the_stream_as_long_as_others_know_it() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.change(|state| state.refusal = Some(ErrorCode::UnknownStream));
    let mut reader = follow(&fake, Fetch::Pull).await;
    tokio::select! {
        batch = reader.next_batch() => panic!("not yet: {batch:?}"),
        () = fake.until(|state| state.asked.len() >= 12) => {}
    }
    fake.change(|state| state.refusal = None);
    read(&mut reader, 0, 100).await;
}

#[tokio::test]
async fn a_reader_hears_that_its_stream_was_deleted() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 10, 10);
    let mut reader = follow(&fake, Fetch::Pull).await;
    read(&mut reader, 0, 10).await;
    fake.change(|state| {
        state.refusal = Some(ErrorCode::UnknownStream);
        state.unheard = [0].into();
    });
    let error = reader.next_batch().await.expect_err("it is gone");
    assert!(error.to_string().contains("UNKNOWN_STREAM"), "{error}");
}
