//! Leases of slices of a lane.

use kera_consumer::{ConsumeError, Fetch, Order, SliceSet};

use super::fake::{Fake, values};
use super::{NEVER, OFTEN, consumer, next};

#[tokio::test]
async fn records_of_other_slices_are_passed_over_and_count_as_consumed() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = Fake::start(1, 1).await;
        fake.fill_keyless((0, 0), 256, 16);
        // Slice 2 begins later than slice 1.
        let slices = SliceSet::from_bits(0b110);
        let lease = fake.grant_slices((0, 0), 0, slices, &[0, 64]);
        let consumer = consumer(&fake).fetch(fetch).order(Order::Key);
        let mut consumer = consumer.manual_commit().open().await.unwrap();
        let mut last = None;
        for expected in [vec![1], vec![65, 66], vec![129, 130], vec![193, 194]] {
            let batch = consumer.next_batch().await.unwrap();
            assert_eq!(
                (values(&batch), batch.len()),
                (expected.clone(), expected.len())
            );
            assert_eq!(batch.next_ordinal(), expected[0] + 15);
            last = Some(batch);
        }
        assert_eq!(consumer.leases()[0].slices, Some(slices));
        assert_eq!(consumer.metrics().records, 7);
        // Nothing more comes, and what is passed meanwhile waits for what was handed out.
        assert!(
            tokio::time::timeout(OFTEN, consumer.next_batch())
                .await
                .is_err()
        );
        assert!(fake.state.lock().commits.is_empty());
        consumer.commit(&last.unwrap()).await.unwrap();
        let passing = consumer.next_batch();
        tokio::select! {
            batch = passing => panic!("{batch:?}"),
            () = fake.until(|state| state.commits.get(&lease) == Some(&256)) => {}
        }
        assert_eq!(consumer.metrics().lag, 0);
    }
}

#[tokio::test]
async fn a_slice_without_records_goes_on_by_itself() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 100, 10);
    // All records have the key "k", which is in another slice.
    let others = SliceSet::ALL.without(SliceSet::one(kera_protocol::slices::slice_of_key(b"k")));
    let lease = fake.grant_slices((0, 0), 0, others, &[]);
    let consumer = consumer(&fake).order(Order::Key).manual_commit();
    let mut consumer = consumer.open().await.unwrap();
    for (records, end) in [(0, 100), (50, 150)] {
        fake.fill((0, 0), records, 10);
        tokio::select! {
            batch = consumer.next_batch() => panic!("{batch:?}"),
            () = fake.until(|state| state.commits.get(&lease) == Some(&end)) => {}
        }
    }
}

#[tokio::test]
async fn what_the_broker_leaves_out_is_passed_as_what_others_have_is() {
    for fetch in [Fetch::Push, Fetch::Pull] {
        let fake = Fake::start(1, 1).await;
        fake.fill_keyless((0, 0), 64, 64);
        fake.leave_out((0, 0), 100);
        let lease = fake.grant_slices((0, 0), 0, SliceSet::one(5), &[]);
        let consumer = consumer(&fake).fetch(fetch).order(Order::Key);
        let mut consumer = consumer.manual_commit().open().await.unwrap();
        let batch = consumer.next_batch().await.unwrap();
        assert_eq!(values(&batch), [5]);
        consumer.commit(&batch).await.unwrap();
        for end in [164, 264] {
            tokio::select! {
                batch = consumer.next_batch() => panic!("{batch:?}"),
                () = fake.until(|state| state.commits.get(&lease) == Some(&end)) => {}
            }
            // There is nothing else in the next answer.
            fake.leave_out((0, 0), 100);
        }
    }
}

#[tokio::test]
async fn what_is_marked_is_committed_also_with_a_batch_that_was_passed_over() {
    let fake = Fake::start(1, 2).await;
    let mut leases = Vec::new();
    for lane in [0, 1] {
        fake.fill_keyless((0, lane), 64, 64);
        leases.push(fake.grant_slices((0, lane), 0, SliceSet::one(5), &[]));
    }
    let consumer = consumer(&fake).order(Order::Key).manual_commit();
    let mut consumer = consumer.open().await.unwrap();
    let mut batches = Vec::new();
    for _ in 0..2 {
        let batch = consumer.next_batch().await.unwrap();
        consumer.mark(&batch).unwrap();
        batches.push(batch);
    }
    // The first one is committed with what is passed behind it.
    fake.leave_out((0, 0), 100);
    tokio::select! {
        batch = consumer.next_batch() => panic!("{batch:?}"),
        () = fake.until(|state| state.commits.get(&leases[0]) == Some(&164)) => {}
    }
    // Its answer arrives.
    while consumer.metrics().commits == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fake.state.lock().commits.get(&leases[1]), None);
    let first = batches
        .iter()
        .find(|batch| batch.lease() == Some(leases[0]));
    consumer.commit(first.unwrap()).await.unwrap();
    fake.until(|state| state.commits.get(&leases[1]) == Some(&64))
        .await;
}

#[tokio::test]
async fn slices_are_given_back_where_the_member_stands() {
    let fake = Fake::start(1, 1).await;
    fake.fill_keyless((0, 0), 256, 64);
    let lease = fake.grant_slices((0, 0), 0, SliceSet::from_bits(0xff), &[]);
    let consumer = consumer(&fake).order(Order::Key).auto_commit(NEVER);
    let mut consumer = consumer.open().await.unwrap();
    assert_eq!(next(&mut consumer).await, (0..8).collect::<Vec<_>>());
    assert_eq!(next(&mut consumer).await, (64..72).collect::<Vec<_>>());
    fake.change(|state| state.give_back = vec![lease]);
    let again = fake.grant_slices((0, 0), 128, SliceSet::from_bits(0xf), &[]);
    // What was fetched ahead is not delivered under the lease that is given back.
    let batch = loop {
        let batch = consumer.next_batch().await.unwrap();
        if batch.lease() == Some(again) {
            break batch;
        }
    };
    assert_eq!(values(&batch), (128..132).collect::<Vec<_>>());
    fake.until(|state| state.released == [lease]).await;
    let given_back_at = fake.state.lock().commits[&lease];
    assert!([128, 192, 256].contains(&given_back_at), "{given_back_at}");
}

#[tokio::test]
async fn a_broker_that_does_not_know_the_order_is_told_of() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 10, 10);
    fake.grant((0, 0), 0, 0);
    let mut consumer = consumer(&fake).order(Order::Key).open().await.unwrap();
    let refused = consumer.next_batch().await.unwrap_err().to_string();
    assert!(
        refused.contains("does not know the order of keys"),
        "{refused}"
    );
}

#[tokio::test]
async fn settings_that_need_one_position_of_a_lane_are_refused() {
    let fake = Fake::start(1, 1).await;
    let many = consumer(&fake).order(Order::Key).max_leases(3);
    let resumed = consumer(&fake)
        .order(Order::Key)
        .resume_from(|_, ordinal| Some(ordinal));
    for (refused, named) in [(many, "max_leases"), (resumed, "resume_from")] {
        match refused.open().await {
            Err(ConsumeError::Setting { setting, .. }) => assert_eq!(setting, named),
            other => panic!("{other:?}"),
        }
    }
}
