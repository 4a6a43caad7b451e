//! Lanes that are paused, and lanes that go on elsewhere.

use super::*;

/// The lanes and first ordinals of so many batches.
async fn batches(consumer: &mut Consumer, count: usize) -> Vec<(u32, u64)> {
    let mut seen = Vec::new();
    for _ in 0..count {
        let batch = consumer.next_batch().await.unwrap();
        seen.push((batch.lane().lane.0, batch.first_ordinal()));
    }
    seen
}

/// Nothing is delivered, for as long as an answer would take that is under way.
async fn delivers_nothing(consumer: &mut Consumer) {
    for _ in 0..1_000 {
        assert!(consumer.next_batch().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_paused_lane_keeps_its_lease_and_goes_on_where_it_stood() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = two_lanes().await;
        let mut consumer = consumer(&fake)
            .fetch(fetch)
            .manual_commit()
            .open()
            .await
            .unwrap();
        assert_eq!(batches(&mut consumer, 2).await, [(0, 0), (0, 10)]);
        consumer.pause(0, 0);
        consumer.pause(0, 1);
        assert_eq!(consumer.paused(), [(0, 0), (0, 1)]);
        // One that comes later is paused as well.
        fake.grant((0, 1), 50, 0);
        while consumer.leases().len() < 2 {
            tokio::task::yield_now().await;
        }
        delivers_nothing(&mut consumer).await;
        assert_eq!(consumer.metrics().buffered_bytes, 0);
        consumer.resume(0, 1);
        let second = [(1, 50), (1, 60), (1, 70), (1, 80), (1, 90)];
        assert_eq!(batches(&mut consumer, 5).await, second);
        delivers_nothing(&mut consumer).await;
        consumer.resume(0, 0);
        consumer.resume(0, 0);
        let rest: Vec<_> = (2..10).map(|at| (0, at * 10)).collect();
        assert_eq!(
            batches(&mut consumer, 8).await,
            rest,
            "none twice, none left out"
        );
        assert_eq!((consumer.paused(), consumer.leases().len()), (vec![], 2));
    }
}

#[tokio::test]
async fn single_records_of_a_paused_lane_go_on_behind_the_last_one() {
    let fake = leased(30).await;
    let mut consumer = consumer(&fake).auto_commit(OFTEN).open().await.unwrap();
    for ordinal in 0..13 {
        assert_eq!(next_record(&mut consumer).await, ordinal);
    }
    consumer.pause(0, 0);
    assert!(consumer.record_at_hand().is_none());
    consumer.resume(0, 0);
    for ordinal in 13..30 {
        assert_eq!(next_record(&mut consumer).await, ordinal);
    }
    consumer.close().await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 30);
}

#[tokio::test]
async fn a_lane_goes_on_ahead_and_what_is_passed_over_is_committed() {
    for automatic in [true, false] {
        let fake = leased(100).await;
        let builder = consumer(&fake);
        let mut consumer = match automatic {
            true => builder.auto_commit(OFTEN).open().await.unwrap(),
            false => builder.manual_commit().open().await.unwrap(),
        };
        let first = consumer.next_batch().await.unwrap();
        consumer.seek(0, 0, Start::Ordinal(75)).await.unwrap();
        if !automatic {
            assert!(
                fake.state.lock().commits.is_empty(),
                "the first is not processed"
            );
            consumer.commit(&first).await.unwrap();
        }
        fake.until(|state| state.commits.get(&1) == Some(&75)).await;
        assert_eq!(next(&mut consumer).await, [75, 76, 77, 78, 79]);
        // To where it stands is no move.
        consumer.seek(0, 0, Start::Ordinal(80)).await.unwrap();
        assert_eq!(next(&mut consumer).await[0], 80);
    }
}

#[tokio::test]
async fn what_is_not_committed_is_delivered_again() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let first = consumer.next_batch().await.unwrap();
    consumer.commit(&first).await.unwrap();
    let second = consumer.next_batch().await.unwrap();
    assert_eq!(next(&mut consumer).await[0], 20);
    consumer.seek(0, 0, second.position().next).await.unwrap();
    assert_eq!(next(&mut consumer).await[0], 20);
    consumer.seek(0, 0, Start::Ordinal(15)).await.unwrap();
    assert_eq!(next(&mut consumer).await, [15, 16, 17, 18, 19]);
    // What is committed is not.
    let refused = consumer.seek(0, 0, Start::Ordinal(9)).await.unwrap_err();
    assert!(matches!(
        refused,
        ConsumeError::Committed { committed: 10, .. }
    ));
    assert!(
        refused.to_string().contains("kera group reset"),
        "{refused}"
    );
    assert_eq!(next(&mut consumer).await[0], 20, "nothing has changed");
}

#[tokio::test]
async fn a_lane_goes_back_only_once_a_commit_beyond_is_answered() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!(next(&mut consumer).await[0], 10);
    fake.change(|state| state.unanswered = true);
    let committer = consumer.committer();
    let committed = tokio::spawn(async move { committer.commit(&batch).await });
    // The coordinator has it, and its answer is still on its way.
    fake.until(|state| state.commits.get(&1) == Some(&10)).await;
    {
        let seek = consumer.seek(0, 0, Start::Ordinal(5));
        tokio::pin!(seek);
        for _ in 0..1_000 {
            assert!(seek.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        fake.change(|state| state.unanswered = false);
        let refused = seek.await.unwrap_err();
        assert!(
            matches!(refused, ConsumeError::Committed { committed: 10, .. }),
            "{refused}"
        );
    }
    committed.await.unwrap().unwrap();
    // What is not part of it goes back at once.
    fake.change(|state| state.unanswered = true);
    consumer.seek(0, 0, Start::Ordinal(15)).await.unwrap();
    fake.change(|state| state.unanswered = false);
    assert_eq!(next(&mut consumer).await[0], 15);
}

#[tokio::test]
async fn automatic_commits_leave_out_what_is_delivered_again() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).auto_commit(NEVER).open().await.unwrap();
    assert_eq!(next(&mut consumer).await[0], 0);
    assert_eq!(next(&mut consumer).await[0], 10);
    consumer.seek(0, 0, Start::Ordinal(15)).await.unwrap();
    consumer.close().await.unwrap();
    assert_eq!(fake.state.lock().commits[&1], 15);
}

#[tokio::test]
async fn a_paused_lane_that_goes_on_elsewhere_stays_paused() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    next(&mut consumer).await;
    consumer.pause(0, 0);
    consumer.seek(0, 0, Start::Ordinal(40)).await.unwrap();
    delivers_nothing(&mut consumer).await;
    consumer.resume(0, 0);
    assert_eq!(next(&mut consumer).await[0], 40);
}

#[tokio::test]
async fn a_lane_that_is_not_held_does_not_move() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    next(&mut consumer).await;
    fake.state.lock().lanes.insert((0, 1), Default::default());
    let refused = consumer.seek(0, 1, fake_cursor(5)).await.unwrap_err();
    assert!(matches!(
        refused,
        ConsumeError::NotHeld {
            streamlet: 0,
            lane: 1
        }
    ));
    let refused = consumer.seek(0, 7, Start::Earliest).await.unwrap_err();
    assert!(matches!(
        refused,
        ConsumeError::UnknownLane {
            streamlet: 0,
            lane: 7
        }
    ));
    assert_eq!(next(&mut consumer).await[0], 10);
}

fn fake_cursor(ordinal: u64) -> kera_consumer::Cursor {
    kera_consumer::Cursor {
        ordinal,
        ..Default::default()
    }
}

#[tokio::test]
async fn members_that_are_dealt_ranges_choose_no_position() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake)
        .order(Order::None)
        .manual_commit()
        .open()
        .await
        .unwrap();
    let refused = consumer.seek(0, 0, Start::Latest).await.unwrap_err();
    assert!(matches!(
        refused,
        ConsumeError::Setting {
            setting: "order",
            ..
        }
    ));
}
