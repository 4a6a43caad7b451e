//! Owners that cannot serve what they own because of their own files.

use super::*;
use crate::cluster::ownership::live_state::set_state;

/// What the directory of a streamlet at broker `at` would be is a file.
fn block_directory(trio: &Trio, at: u32, stream: StreamId) {
    let blocked = trio.streamlet(at, stream, 0).dir();
    std::fs::create_dir_all(blocked.parent().expect("the stream's")).expect("a directory");
    std::fs::write(&blocked, b"in the way").expect("nothing is there yet");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_cannot_serve_for_its_own_files_goes_to_another() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    append_all(trio.shared(old), &trio.streamlet(old, stream, 0), 0..10).await;
    let to = old % 3 + 1;
    block_directory(&trio, to, stream);
    let given = trio.assign(stream, 0, to);

    until(|| {
        let owner = trio.owner(1, stream, 0);
        owner.broker != to && owner.epoch > given
    })
    .await;
    let next = trio.owner(1, stream, 0).broker;
    let served = trio.served(next, stream, 0).await;
    assert_eq!(values(&served).await, expected(0..10));
    append_all(trio.shared(next), &served, 10..20).await;
    assert_eq!(values(&served).await, expected(0..20));
    // It is about to own nothing of it any more.
    let elsewhere = trio.streamlet(to, stream, 0);
    assert!(elsewhere.is_moved());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_drains_gives_away_what_it_has_not_recovered() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    append_all(trio.shared(old), &trio.streamlet(old, stream, 0), 0..10).await;
    let (to, third) = (old % 3 + 1, (old + 1) % 3 + 1);
    let shared = trio.shared(to).clone();
    let replicated = &shared.clustered.as_ref().expect("it has others").replicated;
    // Its attempts wait for this.
    let taking = replicated.taking(trio.streamlet(to, stream, 0).key());
    let held = taking.lock().await;
    trio.assign(stream, 0, to);
    until(|| trio.owner(to, stream, 0).broker == to).await;

    let number = StreamletId(0);
    let refused = hand_over(&shared, stream, number, third).await;
    let refused = refused.expect_err("it may be served in a moment");
    assert_eq!(refused.code, ErrorCode::NotEnoughCopies, "{refused}");

    set_state(&shared, LiveState::Draining)
        .await
        .expect("it is told");
    let handed = hand_over(&shared, stream, number, third).await;
    handed.expect("there is nothing to close");
    let served = trio.served(third, stream, 0).await;
    drop(held);
    assert_eq!(values(&served).await, expected(0..10));
    append_all(trio.shared(third), &served, 10..20).await;
    assert_eq!(values(&served).await, expected(0..20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_to_the_others_while_it_is_full() {
    let trio = Trio::start().await;
    let shared = trio.shared(2);
    let full = || {
        shared
            .data
            .env
            .disk_full
            .store(true, std::sync::atomic::Ordering::Relaxed)
    };
    let told = |at: u32| {
        let clustered = trio.shared(at).clustered.as_ref();
        let living = clustered.expect("it has others").members.living();
        living.get(&2).and_then(|live| live.cannot_write.clone())
    };
    // It is looked at anew from time to time, and there is room.
    until(|| {
        full();
        told(1).is_some()
    })
    .await;
    assert_eq!(told(3).as_deref(), Some("its disk is full"));
    until(|| told(1).is_none()).await;
    assert!(shared.readiness().is_ok());
}
