//! Members of groups against a coordinator that does what the test says.

#[path = "group/ended.rs"]
mod ended;
mod fake;
#[path = "group/keys.rs"]
mod keys;
#[path = "group/made_anew.rs"]
mod made_anew;
#[path = "group/moves.rs"]
mod moves;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake::{Fake, values};
use futures::{FutureExt, StreamExt};
use kera_consumer::{ConsumeError, Consumer, ConsumerBuilder, Fetch, Order, Rebalance, Start};
use kera_protocol::error::ErrorCode;
use parking_lot::Mutex;

/// Commits by themselves come so rarely that tests see only the others.
const NEVER: Duration = Duration::from_secs(3_600);
const OFTEN: Duration = Duration::from_millis(1);

fn consumer(fake: &Arc<Fake>) -> ConsumerBuilder {
    Consumer::builder()
        .bootstrap(&fake.bootstrap)
        .stream("s")
        .group("g")
        .start(Start::Earliest)
}

/// A lane of `count` records in batches of ten, granted whole to whoever asks.
async fn leased(count: u64) -> Arc<Fake> {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), count, 10);
    fake.grant((0, 0), 0, 0);
    fake
}

/// Two lanes of a hundred records; the first one is lease 1.
async fn two_lanes() -> Arc<Fake> {
    let fake = Fake::start(1, 2).await;
    fake.fill((0, 0), 100, 10);
    fake.fill((0, 1), 100, 10);
    fake.grant((0, 0), 0, 0);
    fake
}

async fn next(consumer: &mut Consumer) -> Vec<u64> {
    values(&consumer.next_batch().await.unwrap())
}

#[tokio::test]
async fn reads_its_leases_and_commits_by_itself() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = Fake::start(1, 2).await;
        fake.fill((0, 0), 100, 10);
        fake.fill((0, 1), 100, 10);
        fake.grant((0, 0), 40, 0);
        fake.grant((0, 1), 0, 0);
        let mut consumer = consumer(&fake)
            .fetch(fetch)
            .auto_commit(OFTEN)
            .open()
            .await
            .unwrap();
        let mut seen = [Vec::new(), Vec::new()];
        while seen[0].len() + seen[1].len() < 160 {
            let batch = consumer.next_batch().await.unwrap();
            seen[batch.lane().lane.0 as usize].extend(values(&batch));
        }
        assert_eq!(seen[0], (40..100).collect::<Vec<_>>());
        assert_eq!(seen[1], (0..100).collect::<Vec<_>>());
        let metrics = consumer.metrics();
        assert_eq!((metrics.records, metrics.leases, metrics.lag), (160, 2, 0));
        // What was delivered last is processed once more is asked for.
        assert!(
            tokio::time::timeout(OFTEN, consumer.next_batch())
                .await
                .is_err()
        );
        fake.until(|state| state.commits.get(&1) == Some(&100))
            .await;
        fake.until(|state| state.commits.get(&2) == Some(&100))
            .await;
        assert!(fake.state.lock().released.is_empty());
    }
}

#[tokio::test]
async fn close_commits_what_was_delivered_and_leaves() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).auto_commit(NEVER).open().await.unwrap();
    assert_eq!(next(&mut consumer).await[0], 0);
    assert_eq!(next(&mut consumer).await[0], 10);
    assert!(fake.state.lock().commits.is_empty());
    consumer.close().await.unwrap();
    let state = fake.state.lock();
    assert_eq!(
        state.commits[&1], 20,
        "what was fetched ahead is not committed"
    );
    assert_eq!((state.released.clone(), state.left), (vec![1], 1));
}

#[tokio::test]
async fn a_dropped_consumer_leaves_without_a_commit() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).auto_commit(NEVER).open().await.unwrap();
    next(&mut consumer).await;
    drop(consumer);
    fake.until(|state| state.left == 1).await;
    assert!(fake.state.lock().commits.is_empty());
}

#[tokio::test]
async fn manual_commits_are_durable_when_they_return_and_share_requests() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let first = consumer.next_batch().await.unwrap();
    let second = consumer.next_batch().await.unwrap();
    let third = consumer.next_batch().await.unwrap();
    consumer.commit(&first).await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 10);
    let (two, three) = tokio::join!(consumer.commit(&second), consumer.commit(&third));
    two.unwrap();
    three.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 30);
    assert_eq!(consumer.metrics().commits, 2);
    // Again, and backwards: nothing to do.
    consumer.commit(&first).await.unwrap();
    assert_eq!(consumer.metrics().commits, 2);
    next(&mut consumer).await;
    let fifth = consumer.next_batch().await.unwrap();
    consumer.mark(&fifth).unwrap();
    next(&mut consumer).await;
    consumer.close().await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 50, "only what was marked");
}

#[tokio::test]
async fn a_commit_is_not_waited_for_without_end_and_is_sent_all_the_same() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let batch = consumer.next_batch().await.unwrap();
    fake.change(|state| state.failures = usize::MAX);
    // From here on time passes as fast as nothing else is to be done.
    tokio::time::pause();
    let commit = tokio::time::timeout(NEVER, consumer.commit(&batch)).await;
    tokio::time::resume();
    let error = commit.expect("it ends before that").unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Timeout));
    assert!(error.is_retryable());
    let text = error.to_string();
    for part in [
        "group \"g\"",
        "stream \"s\"",
        "30s",
        "brokers",
        "commit again",
    ] {
        assert!(text.contains(part), "{text}");
    }
    fake.change(|state| state.failures = 0);
    fake.until(|state| state.commits.get(&1) == Some(&10)).await;
    consumer.commit(&batch).await.unwrap();
}

#[tokio::test]
async fn a_commit_that_nobody_waits_for_any_more_is_sent() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let batch = consumer.next_batch().await.unwrap();
    assert!(consumer.commit(&batch).now_or_never().is_none());
    fake.until(|state| state.commits.get(&1) == Some(&10)).await;
}

/// Waits until so many lanes are subscribed to, each with this much credit.
async fn credit(fake: &Fake, lanes: usize, each: usize) {
    fake.until(|state| {
        state.credit.len() == lanes && state.credit.values().all(|credit| *credit == each)
    })
    .await;
}

#[tokio::test]
async fn lanes_granted_together_share_the_memory() {
    const LIMIT: usize = 1 << 20;
    let fake = Fake::start(1, 8).await;
    let opening = consumer(&fake).memory_limit(LIMIT).open();
    let _consumer = opening.await.unwrap();
    fake.grant((0, 0), 0, 0);
    credit(&fake, 1, LIMIT).await;
    for lane in 1..8 {
        fake.grant((0, lane), 0, 0);
    }
    credit(&fake, 8, LIMIT / 8).await;
    // To the first all of it, which was taken back; then to each its share.
    assert_eq!(fake.state.lock().granted, 2 * LIMIT);
}

#[tokio::test]
async fn lanes_granted_later_get_memory_from_those_before() {
    const LIMIT: usize = 1 << 20;
    let fake = Fake::start(1, 5).await;
    let opening = consumer(&fake).memory_limit(LIMIT).open();
    let mut consumer = opening.await.unwrap();
    for (lane, share) in [1, 2, 4, 4, 8].into_iter().enumerate() {
        fake.grant((0, lane as u32), 0, 0);
        credit(&fake, lane + 1, LIMIT / share).await;
    }
    for lane in 0..5 {
        fake.fill((0, lane), 10, 10);
    }
    let mut lanes = Vec::new();
    for _ in 0..5 {
        let batch = consumer.next_batch().await.unwrap();
        assert_eq!(values(&batch), (0..10).collect::<Vec<_>>());
        lanes.push(batch.lane().lane.0);
    }
    lanes.sort_unstable();
    assert_eq!(lanes, [0, 1, 2, 3, 4], "each once");
}

#[tokio::test]
async fn a_lease_is_given_back_after_what_was_delivered_is_processed() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = Fake::start(1, 1).await;
        fake.fill((0, 0), 100, 10);
        let lease = fake.grant((0, 0), 0, 0);
        let asked = Arc::new(tokio::sync::Notify::new());
        let hears = asked.clone();
        let mut consumer = consumer(&fake)
            .fetch(fetch)
            .auto_commit(NEVER)
            .on_rebalance(move |rebalance| {
                if matches!(rebalance, Rebalance::GivingBack(_)) {
                    hears.notify_one();
                }
            })
            .open()
            .await
            .unwrap();
        assert_eq!(next(&mut consumer).await[0], 0);
        fake.change(|state| state.give_back = vec![lease]);
        asked.notified().await;
        assert!(
            fake.state.lock().released.is_empty(),
            "a batch is being processed"
        );
        let again = fake.grant((0, 0), 10, 0);
        let batch = consumer.next_batch().await.unwrap();
        assert_eq!((batch.lease(), batch.first_ordinal()), (Some(again), 10));
        fake.until(|state| state.released == [lease]).await;
        assert_eq!(fake.state.lock().commits[&lease], 10);
    }
}

#[tokio::test]
async fn ranges_are_read_committed_and_followed_by_others() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 1_000, 10);
    for start in (0..1_000).step_by(50) {
        fake.grant((0, 0), start, start + 50);
    }
    let mut consumer = consumer(&fake)
        .order(Order::None)
        .max_leases(3)
        .auto_commit(NEVER)
        .open()
        .await
        .unwrap();
    let mut seen = Vec::new();
    while seen.len() < 1_000 {
        seen.extend(next(&mut consumer).await);
        assert!(
            consumer.leases().len() <= 6,
            "three read, three on their way back"
        );
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..1_000).collect::<Vec<_>>());
    consumer.close().await.unwrap();
    let state = fake.state.lock();
    assert_eq!(state.released.len(), 20);
    for (lease, committed) in &state.commits {
        assert_eq!(*committed, lease * 50);
    }
    assert_eq!(fake.subscribes.load(Ordering::SeqCst), 0);
    assert!(
        fake.reads.load(Ordering::SeqCst) < 60,
        "about one answer a range"
    );
}

#[tokio::test]
async fn a_range_may_begin_and_end_within_a_batch() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 30, 10);
    let lease = fake.grant((0, 0), 13, 17);
    let mut consumer = consumer(&fake)
        .order(Order::None)
        .manual_commit()
        .open()
        .await
        .unwrap();
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!(values(&batch), [13, 14, 15, 16]);
    let committer = consumer.committer();
    let task = tokio::spawn(async move {
        committer.commit(&batch).await.unwrap();
        (committer, batch)
    });
    let (committer, batch) = task.await.unwrap();
    fake.until(|state| state.released == [lease]).await;
    assert_eq!(fake.state.lock().commits[&lease], 17);
    committer.commit(&batch).await.unwrap();
    committer.mark(&batch).unwrap();
    assert_eq!(consumer.metrics().commits, 1, "it was committed already");
    let next = fake.grant((0, 0), 17, 20);
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!(batch.lease(), Some(next));
    drop(consumer);
    let error = committer.commit(&batch).await.unwrap_err();
    assert!(matches!(error, ConsumeError::Closed), "{error}");
}

#[tokio::test]
async fn part_of_a_batch_is_committed_and_the_rest_comes_again() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 20, 10);
    let lease = fake.grant((0, 0), 3, 20);
    let mut consumer = consumer(&fake)
        .order(Order::None)
        .manual_commit()
        .open()
        .await
        .unwrap();
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!(values(&batch), (3..10).collect::<Vec<_>>());
    for (until, part) in [(0, 3..3), (3, 3..3), (6, 3..6), (10, 3..10), (99, 3..10)] {
        let cut = batch.until(until);
        assert_eq!(values(&cut), part.clone().collect::<Vec<_>>(), "{until}");
        assert_eq!((cut.first_ordinal(), cut.next_ordinal()), (3, part.end));
        assert_eq!(
            (cut.len() as u64, cut.is_empty()),
            (part.end - 3, part.end == 3)
        );
        assert_eq!(cut.position().next.ordinal, part.end);
    }
    consumer.commit(&batch.until(6)).await.unwrap();
    assert_eq!(fake.state.lock().commits[&lease], 6);
    consumer.close().await.unwrap();
    assert_eq!(
        fake.state.lock().commits[&lease],
        6,
        "what was delivered and not processed is not committed"
    );
}

#[tokio::test]
async fn a_range_that_was_trimmed_is_finished_without_records() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.trim((0, 0), 50);
    let gone = fake.grant((0, 0), 10, 40);
    fake.grant((0, 0), 60, 80);
    let mut consumer = consumer(&fake)
        .order(Order::None)
        .auto_commit(NEVER)
        .open()
        .await
        .unwrap();
    assert_eq!(next(&mut consumer).await[0], 60);
    fake.until(|state| state.released == [gone]).await;
    assert_eq!(fake.state.lock().commits[&gone], 40);
    assert_eq!(consumer.metrics().skipped_records, 30);
}

#[tokio::test]
async fn a_lane_lease_ends_where_its_lane_generation_does() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = Fake::start(1, 1).await;
        fake.fill((0, 0), 50, 10);
        let lease = fake.grant((0, 0), 0, 0);
        let mut consumer = consumer(&fake)
            .fetch(fetch)
            .auto_commit(OFTEN)
            .open()
            .await
            .unwrap();
        fake.change(|state| {
            let log = state.lanes.get_mut(&(0, 0)).unwrap();
            log.boundaries.insert(0, 50);
        });
        fake.fill((0, 0), 50, 10);
        let mut seen = Vec::new();
        while seen.len() < 50 {
            seen.extend(next(&mut consumer).await);
        }
        assert_eq!(seen, (0..50).collect::<Vec<_>>());
        let waiting = tokio::spawn(async move { next(&mut consumer).await });
        fake.until(|state| state.released == [lease]).await;
        assert_eq!(fake.state.lock().commits[&lease], 50);
        waiting.abort();
    }
}

#[tokio::test]
async fn a_restarted_broker_repeats_nothing_that_was_delivered() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = leased(200).await;
        let mut consumer = consumer(&fake)
            .fetch(fetch)
            .auto_commit(NEVER)
            .open()
            .await
            .unwrap();
        let mut seen = Vec::new();
        while seen.len() < 100 {
            seen.extend(next(&mut consumer).await);
        }
        // Control calls fail for a while, data connections end; the lease is still ours.
        fake.refuse.store(true, Ordering::SeqCst);
        fake.change(|state| state.failures = 5);
        fake.kill_connections();
        fake.until(|state| state.failures == 0).await;
        fake.refuse.store(false, Ordering::SeqCst);
        while seen.len() < 200 {
            seen.extend(next(&mut consumer).await);
        }
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert_eq!(fake.state.lock().joins, 1);
        assert_eq!(consumer.leases()[0].lease, 1);
    }
}

#[tokio::test]
async fn a_member_that_is_not_known_joins_again_without_its_leases() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let batch = consumer.next_batch().await.unwrap();
    fake.change(|state| {
        state.members.clear();
        state.held.clear();
    });
    fake.until(|state| state.joins == 2).await;
    let error = consumer.commit(&batch).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::StaleLease));
    let lease = fake.grant((0, 0), 0, 0);
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!((batch.lease(), batch.first_ordinal()), (Some(lease), 0));
}

/// The coordinator has lost the group: it is made anew, and its leases have the same numbers.
async fn lose_group(fake: &Fake) {
    fake.change(|state| {
        state.members.clear();
        state.held.clear();
        state.commits.clear();
        state.last_lease = 0;
    });
    fake.until(|state| state.joins == 2).await;
}

#[tokio::test]
async fn an_answer_to_a_former_member_says_nothing_of_leases_with_the_same_numbers() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let batch = consumer.next_batch().await.unwrap();
    fake.change(|state| state.unanswered = true);
    assert!(consumer.commit(&batch).now_or_never().is_none());
    fake.until(|state| state.commits.get(&1) == Some(&10)).await;
    lose_group(&fake).await;
    let lease = fake.grant((0, 0), 0, 0);
    let batch = loop {
        // What was read under the former lease is stale.
        let batch = consumer.next_batch().await.unwrap();
        if batch.first_ordinal() == 0 {
            break batch;
        }
    };
    assert_eq!(batch.lease(), Some(lease));
    fake.change(|state| state.unanswered = false);
    consumer.commit(&batch).await.unwrap();
    assert_eq!(fake.state.lock().commits.get(&lease), Some(&10));
}

#[tokio::test]
async fn a_transaction_of_a_former_member_says_nothing_of_leases_with_the_same_numbers() {
    for is_committed in [true, false] {
        let fake = leased(100).await;
        let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
        let batch = consumer.next_batch().await.unwrap();
        let positions = consumer.positions([&batch]).unwrap();
        fake.change(|state| {
            state.members.clear();
            state.held.clear();
            state.last_lease = 0;
        });
        fake.until(|state| state.joins == 2).await;
        let lease = fake.grant((0, 0), 0, 0);
        let batch = loop {
            let batch = consumer.next_batch().await.unwrap();
            if batch.first_ordinal() == 0 {
                break batch;
            }
        };
        assert_eq!(batch.lease(), Some(lease));
        positions.ended(is_committed);
        consumer.commit(&batch).await.unwrap();
        assert_eq!(fake.state.lock().commits.get(&lease), Some(&10));
    }
}

#[tokio::test]
async fn a_transaction_that_commits_one_lease_holds_up_commits_of_no_other() {
    let fake = Fake::start(1, 2).await;
    for lane in [(0, 0), (0, 1)] {
        fake.fill(lane, 10, 10);
        fake.grant(lane, 0, 0);
    }
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let mut batches = [
        consumer.next_batch().await.unwrap(),
        consumer.next_batch().await.unwrap(),
    ];
    batches.sort_by_key(|batch| batch.lease());
    fake.change(|state| {
        state.sent.insert(1);
    });
    let mut waits = std::pin::pin!(consumer.commit(&batches[0]));
    tokio::select! {
        biased;
        _ = &mut waits => panic!("its transaction has not ended"),
        () = fake.until(|state| state.told_pending > 1) => {}
    }
    // The next request has both.
    tokio::select! {
        biased;
        _ = &mut waits => panic!("its transaction has not ended"),
        done = consumer.commit(&batches[1]) => done.unwrap(),
    }
    assert_eq!(fake.state.lock().commits, [(2, 10)].into());
    fake.change(|state| state.sent.clear());
    waits.await.unwrap();
    assert_eq!(fake.state.lock().commits, [(1, 10), (2, 10)].into());
}

#[tokio::test]
async fn positions_kept_by_the_application_decide_where_to_resume() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.grant((0, 0), 20, 0);
    let mut consumer = consumer(&fake)
        .manual_commit()
        .resume_from(|lane, committed| {
            assert_eq!((lane.lane.0, committed), (0, 20));
            Some(47)
        })
        .open()
        .await
        .unwrap();
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!(batch.first_ordinal(), 47);
    let position = batch.position();
    assert_eq!((position.next.ordinal, position.lease), (50, Some(1)));
    consumer.commit(&batch).await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 50);
}

#[tokio::test]
async fn single_records_come_as_a_stream() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 30, 7);
    fake.grant((0, 0), 0, 0);
    let mut consumer = consumer(&fake).auto_commit(NEVER).open().await.unwrap();
    let ordinals: Vec<u64> = consumer
        .records()
        .take(30)
        .map(|record| record.unwrap().ordinal)
        .collect()
        .await;
    assert_eq!(ordinals, (0..30).collect::<Vec<_>>());
    consumer.close().await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 30);
}

#[tokio::test]
async fn records_that_a_stream_did_not_hand_out_are_not_committed() {
    let fake = leased(1_000).await;
    let mut consumer = consumer(&fake).auto_commit(NEVER).open().await.unwrap();
    let taken: Vec<u64> = consumer
        .records()
        .take(3)
        .map(|record| record.unwrap().ordinal)
        .collect()
        .await;
    assert_eq!(taken, [0, 1, 2]);
    consumer.close().await.unwrap();
    let state = fake.state.lock();
    assert_eq!(state.commits[&1], 3);
    assert_eq!(state.left, 1);
}

#[tokio::test]
async fn records_that_a_stream_did_not_hand_out_stay_with_the_consumer() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).auto_commit(OFTEN).open().await.unwrap();
    let mut seen = Vec::new();
    // A new stream for each record, as within `select!`.
    while seen.len() < 55 {
        tokio::select! {
            biased;
            () = std::future::ready(()), if seen.len() % 2 == 1 => seen.push(next_record(&mut consumer).await),
            record = async { consumer.records().next().await } => seen.push(record.unwrap().unwrap().ordinal),
        }
    }
    // What is left of a batch comes as a batch too, and counts for the commits as it is handed out.
    fake.until(|state| state.commits.get(&1) == Some(&54)).await;
    assert_eq!(next(&mut consumer).await, [55, 56, 57, 58, 59]);
    seen.extend(55..60);
    while seen.len() < 100 {
        seen.push(next_record(&mut consumer).await);
    }
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    let metrics = consumer.metrics();
    assert_eq!((metrics.records, metrics.batches), (100, 10));
    consumer.close().await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 100);
}

async fn next_record(consumer: &mut Consumer) -> u64 {
    consumer.records().next().await.unwrap().unwrap().ordinal
}

#[tokio::test]
async fn what_waits_of_a_batch_whose_lease_ended_is_not_handed_out() {
    let fake = leased(20).await;
    let mut consumer = consumer(&fake).auto_commit(OFTEN).open().await.unwrap();
    assert_eq!(next_record(&mut consumer).await, 0);
    // Another member gets the lane: what it has to read follows what was handed out here.
    fake.change(|state| state.give_back.push(1));
    while !consumer.leases().is_empty() {
        let more = async { consumer.records().next().await };
        if let Ok(Some(record)) = tokio::time::timeout(OFTEN, more).await {
            assert!(record.unwrap().ordinal < 20);
        }
    }
    let committed = fake.state.lock().commits[&1];
    let more = async { consumer.records().next().await };
    let more = tokio::time::timeout(20 * OFTEN, more).await;
    assert!(more.is_err(), "records from {committed} on go elsewhere");
    assert!(committed >= 1);
}

#[tokio::test]
async fn a_batch_that_does_not_decode_is_skipped_and_counts_as_processed() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 10, 10);
    fake.poison((0, 0), 5);
    fake.fill((0, 0), 10, 10);
    fake.poison((0, 0), 7);
    fake.grant((0, 0), 0, 0);
    let skipped = Arc::new(Mutex::new(Vec::new()));
    let told = skipped.clone();
    let mut consumer = consumer(&fake)
        .manual_commit()
        .skip_damaged(move |error| told.lock().push(error.to_string()))
        .open()
        .await
        .unwrap();
    let first = consumer.next_batch().await.unwrap();
    assert_eq!(values(&first), (0..10).collect::<Vec<_>>());
    let second = consumer.next_batch().await.unwrap();
    assert_eq!(values(&second), (15..25).collect::<Vec<_>>());
    let waiting = tokio::time::timeout(Duration::from_millis(50), consumer.next_batch());
    assert!(waiting.await.is_err(), "nothing follows");
    consumer.commit(&second).await.unwrap();
    // Nothing will be committed behind it that would take it along.
    fake.until(|state| state.commits.get(&1) == Some(&32)).await;
    let skipped = skipped.lock();
    assert_eq!((skipped.len(), consumer.metrics().skipped_batches), (2, 2));
    assert!(
        skipped[0].contains("at ordinals 10 to 14"),
        "{}",
        skipped[0]
    );
}

#[tokio::test]
async fn settings_and_refusals_are_errors_at_once() {
    let fake = Fake::start(1, 1).await;
    for (builder, name) in [
        (consumer(&fake).group(""), "group"),
        (consumer(&fake).stream(""), "stream"),
        (consumer(&fake).max_leases(0), "max_leases"),
    ] {
        match builder.open().await {
            Err(ConsumeError::Setting { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}
