//! Leases that have ended, and members that have not heard of it.

use super::*;

#[tokio::test]
async fn a_lease_that_ended_is_told_from_one_that_holds() {
    let fake = Fake::start(1, 2).await;
    fake.fill((0, 0), 10, 10);
    fake.fill((0, 1), 10, 10);
    fake.grant((0, 0), 0, 0);
    let news = Arc::new(Mutex::new(Vec::new()));
    let told = news.clone();
    let mut consumer = consumer(&fake)
        .manual_commit()
        .on_rebalance(move |rebalance| {
            told.lock().push(match rebalance {
                Rebalance::Assigned(leases) => ("assigned", leases[0].lease),
                Rebalance::Lost(leases) => ("lost", leases[0].lease),
                Rebalance::GivingBack(leases) => ("giving back", leases[0].lease),
                Rebalance::Released(leases) => ("released", leases[0].lease),
                _ => ("other", 0),
            });
        })
        .open()
        .await
        .unwrap();
    let batch = consumer.next_batch().await.unwrap();
    fake.change(|state| state.held.clear());
    let error = consumer.commit(&batch).await.unwrap_err();
    assert!(matches!(error, ConsumeError::StaleLease { lease: 1 }));
    assert!(matches!(
        consumer.mark(&batch),
        Err(ConsumeError::StaleLease { .. })
    ));
    let lease = fake.grant((0, 1), 0, 0);
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!(batch.lease(), Some(lease));
    consumer.commit(&batch).await.unwrap();
    assert_eq!(
        *news.lock(),
        [("assigned", 1), ("lost", 1), ("assigned", 2)]
    );
    assert!(!fake.state.lock().commits.contains_key(&1));
}

/// As a process that is stopped, or whose machine is.
#[tokio::test]
async fn who_stood_still_asks_whether_its_leases_hold_before_it_hands_out_more() {
    for single in [false, true] {
        let fake = Fake::start(1, 2).await;
        fake.fill((0, 0), 100, 10);
        fake.fill((0, 1), 10, 10);
        fake.grant((0, 0), 0, 0);
        let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
        let held = match single {
            true => vec![next_record(&mut consumer).await],
            false => next(&mut consumer).await,
        };
        assert_eq!(held[0], 0);
        // All that follows has arrived.
        fake.until(|state| state.pushed_bytes > 0).await;
        fake.change(|state| state.held.clear());
        let lease = fake.grant((0, 1), 0, 0);
        // It hears of nothing meanwhile.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(11)).await;
        tokio::time::resume();
        assert!(consumer.record_at_hand().is_none());
        let batch = consumer.next_batch().await.unwrap();
        assert_eq!(batch.lease(), Some(lease), "others have the first by now");
    }
}

/// A member that has its first ten records, and stood still for longer than its session; its coordinator answers nothing any
/// more. Time stands still from then on.
async fn stood_still_without_a_coordinator() -> (Arc<Fake>, Consumer) {
    let fake = leased(100).await;
    let mut consumer = consumer(&fake).manual_commit().open().await.unwrap();
    next(&mut consumer).await;
    fake.change(|state| state.failures = usize::MAX);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    (fake, consumer)
}

/// A coordinator that is away for longer than a session holds nobody up: it is away for all.
#[tokio::test]
async fn who_gets_no_answer_goes_on() {
    let (_fake, mut consumer) = stood_still_without_a_coordinator().await;
    let batch = tokio::time::timeout(NEVER, next(&mut consumer)).await;
    tokio::time::resume();
    assert_eq!(batch.expect("a batch")[0], 10);
}

/// As programs do that look for signals ten times a second.
#[tokio::test]
async fn who_waits_in_short_turns_and_gets_no_answer_goes_on() {
    let (_fake, mut consumer) = stood_still_without_a_coordinator().await;
    let mut batch = None;
    for _ in 0..100 {
        let turn = tokio::time::timeout(Duration::from_millis(100), next(&mut consumer));
        batch = turn.await.ok();
        if batch.is_some() {
            break;
        }
    }
    tokio::time::resume();
    assert_eq!(batch.expect("a batch")[0], 10);
}

/// As a coordinator does that hears heartbeats without a lease that it granted a while ago.
#[tokio::test]
async fn a_lease_that_ended_before_its_grant_was_heard_is_not_read() {
    let fake = Fake::start(1, 2).await;
    fake.fill((0, 0), 10, 10);
    fake.fill((0, 1), 10, 10);
    fake.change(|state| state.untold = true);
    let forgotten = fake.grant((0, 0), 0, 0);
    let held = fake.grant((0, 1), 0, 0);
    // Two heartbeats, 20 ms apart, last longer than a third of it.
    let session = Duration::from_millis(60);
    let consumer = consumer(&fake).manual_commit().session(session);
    let mut consumer = consumer.open().await.unwrap();
    fake.until(|state| state.held.len() == 2).await;
    let heard = fake.state.lock().heartbeats;
    fake.until(|state| state.heartbeats >= heard + 3).await;
    fake.change(|state| {
        state.held.remove(&forgotten);
        state.untold = false;
    });
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!(batch.lease(), Some(held));
    let leases = consumer.leases();
    let leases: Vec<u64> = leases.iter().map(|lease| lease.lease).collect();
    assert_eq!(leases, [held]);
}

/// As a coordinator does to which a heartbeat comes late that was sent before a grant was heard: it takes the lease for forgotten.
#[tokio::test]
async fn a_lease_that_a_heartbeat_on_its_way_ends_is_not_read() {
    let fake = Fake::start(1, 2).await;
    fake.fill((0, 0), 10, 10);
    fake.fill((0, 1), 10, 10);
    fake.change(|state| state.beats_wait = true);
    let session = Duration::from_secs(6);
    let consumer = consumer(&fake).manual_commit().session(session);
    let mut consumer = consumer.open().await.unwrap();
    fake.until(|state| state.beats_waiting > 0).await;
    let forgotten = fake.grant((0, 0), 0, 0);
    fake.until(|state| state.held.contains_key(&forgotten))
        .await;
    // More than a third of the session, and less than an answer is waited for.
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(2500)).await;
    tokio::time::resume();
    fake.change(|state| {
        state.held.remove(&forgotten);
        state.beats_wait = false;
    });
    let held = fake.grant((0, 1), 0, 0);
    let batch = consumer.next_batch().await.unwrap();
    assert_eq!(batch.lease(), Some(held), "others have the first by now");
}
