//! Readers and consumers while streamlets change their owner, and groups their coordinator.

mod fake;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake::{Fake, values};
use kera_consumer::{Consumer, Fetch, Reader, Start};

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
