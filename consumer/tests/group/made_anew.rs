//! Members of groups that were deleted and made anew: leases have the numbers that others had.

use super::*;

/// The group is made anew, and lease 1 is the other lane.
async fn lose_group_and_change_lanes(fake: &Fake, consumer: &Consumer) {
    lose_group(fake).await;
    assert_eq!(fake.grant((0, 1), 0, 0), 1);
    while consumer.leases().first().map(|lease| lease.lane.lane.0) != Some(1) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn batches_of_a_group_that_was_made_anew_are_not_taken_for_those_of_its_new_leases() {
    let fake = two_lanes().await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let committer = consumer.committer();
    next(&mut consumer).await;
    let old = consumer.next_batch().await.unwrap();
    assert_eq!((old.lease(), old.next_ordinal()), (Some(1), 20));
    lose_group_and_change_lanes(&fake, &consumer).await;
    let is_stale = |refused: Result<(), ConsumeError>| {
        matches!(refused, Err(ConsumeError::StaleLease { lease: 1 }))
    };
    assert!(is_stale(consumer.commit(&old).await));
    assert!(is_stale(committer.commit(&old).await));
    assert!(is_stale(consumer.mark(&old)) && is_stale(committer.mark(&old)));
    assert!(is_stale(consumer.positions([&old]).map(drop)));
    // What arrived before, and was not delivered, is not delivered now.
    let new = consumer.next_batch().await.unwrap();
    assert_eq!((new.lane().lane.0, new.first_ordinal()), (1, 0));
    assert_eq!(new.lease(), Some(1));
    assert!(fake.state.lock().commits.is_empty());
    consumer.commit(&new).await.unwrap();
    assert_eq!(fake.state.lock().commits, [(1, 10)].into());
}

#[tokio::test]
async fn automatic_commits_say_nothing_of_new_leases_of_a_group_that_was_made_anew() {
    let fake = two_lanes().await;
    let mut consumer = consumer(&fake).auto_commit(OFTEN).open().await.unwrap();
    next(&mut consumer).await;
    next(&mut consumer).await;
    lose_group_and_change_lanes(&fake, &consumer).await;
    let new = consumer.next_batch().await.unwrap();
    assert_eq!((new.lane().lane.0, new.first_ordinal()), (1, 0));
    consumer.close().await.unwrap();
    assert_eq!(fake.state.lock().commits, [(1, 10)].into());
}

#[tokio::test]
async fn single_records_of_a_group_that_was_made_anew_begin_with_its_new_leases() {
    let fake = two_lanes().await;
    let mut consumer = consumer(&fake).auto_commit(OFTEN).open().await.unwrap();
    for ordinal in 0..25 {
        assert_eq!(next_record(&mut consumer).await, ordinal);
    }
    lose_group_and_change_lanes(&fake, &consumer).await;
    let record = consumer.records().next().await.unwrap().unwrap();
    assert_eq!((record.lane.lane.0, record.ordinal), (1, 0));
    consumer.close().await.unwrap();
    assert_eq!(fake.state.lock().commits, [(1, 1)].into());
}

#[tokio::test]
async fn another_stream_of_the_same_name_ends_the_consumer() {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    let first = consumer.next_batch().await.unwrap();
    lose_group(&fake).await;
    fake.change(|state| state.made_anew = Some([7; 16]));
    fake.grant((0, 0), 0, 0);
    let ended = async {
        loop {
            match consumer.next_batch().await {
                // It has not heard of the loss yet.
                Ok(batch) => assert_eq!(batch.lane().stream, first.lane().stream),
                Err(error) => return error,
            }
        }
    };
    let limit = Duration::from_secs(60);
    let error = tokio::time::timeout(limit, ended).await.expect("it ends");
    assert_eq!(error.code(), Some(ErrorCode::UnknownStream));
    assert!(!error.is_retryable());
    let text = error.to_string();
    for part in [
        "stream \"s\" was deleted and created anew",
        "was 09090909-",
        "is 07070707-",
        "open another consumer",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let error = consumer.close().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownStream));
    let state = fake.state.lock();
    assert_eq!((state.left, state.commits.len()), (1, 0));
}
