//! Owners that change while something else is going on.

use kera_log_segments::group::GroupSpec;
use kera_metadata::Key;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::transport::{Refusal, Request};

use super::*;
use crate::admin::calls::describe::{join, stream_description};
use crate::cluster::ownership::watching::apply_all;

impl Trio {
    /// True if broker `at` works for the copies of the streamlet that it serves now.
    fn has_copies(&self, at: u32, stream: StreamId, number: u32) -> bool {
        let replicated = &self
            .shared(at)
            .clustered
            .as_ref()
            .expect("it has copies")
            .replicated;
        replicated
            .served(&self.streamlet(at, stream, number))
            .is_some()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_change_faster_than_anybody_takes_over_lose_nothing() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let first = trio.owner(1, stream, 0).broker;
    let (second, third) = (first % 3 + 1, (first + 1) % 3 + 1);
    let mut written = 0;
    let mut owner = first;
    for turns in [
        // Away and back, twice away, and through all of them.
        vec![second, first],
        vec![first, second],
        vec![third, first, second, first, third],
        vec![second, third, second, third, second],
    ] {
        let now = trio.served(owner, stream, 0).await;
        append_all(trio.shared(owner), &now, written..written + 10).await;
        written += 10;
        let mut epoch = now.epoch();
        for to in &turns {
            epoch = epoch.max(assign_at_last(&trio, stream, 0, *to).await);
        }
        owner = *turns.last().expect("there is one");
        // Not the one that was served before all this.
        let again = || {
            let now = trio.streamlet(owner, stream, 0);
            !now.is_over() && now.is_recovered() && now.epoch() >= epoch
        };
        until(again).await;
        let after = trio.streamlet(owner, stream, 0);
        assert_eq!(values(&after).await, expected(0..written), "{turns:?}");
        until(|| trio.has_copies(owner, stream, 0)).await;
        for other in (1..=3).filter(|id| *id != owner) {
            until(|| trio.streamlet(other, stream, 0).is_moved()).await;
        }
    }
    // What is served in the end can be handed over as anything else.
    let to = owner % 3 + 1;
    hand_over(trio.shared(owner), stream, StreamletId(0), to)
        .await
        .expect("it is handed over");
    let after = trio.served(to, stream, 0).await;
    append_all(trio.shared(to), &after, written..written + 5).await;
    assert_eq!(values(&after).await, expected(0..written + 5));
}

/// As `assign`, against an owner that takes epochs at the same time.
async fn assign_at_last(trio: &Trio, stream: StreamId, number: u32, to: u32) -> Epoch {
    let id = StreamletId(number);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = trio.store.streamlet(stream, id).expect("it is read");
        let found = found.expect("it is recorded");
        let epoch = Epoch(found.epoch.0 + 1);
        let compare = Compare::streamlet(&found);
        let next = StreamletRecord {
            owner: to,
            epoch,
            ..found
        };
        let transaction = Transaction::new(vec![compare], vec![Write::PutStreamlet(next)]);
        if trio.store.commit(transaction).is_ok() {
            return epoch;
        }
        assert!(Instant::now() < deadline, "others are always faster");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_stretch_of_ownership_never_stands_in_for_the_present_one() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let before = trio.streamlet(owner, stream, 0);
    append_all(trio.shared(owner), &before, 0..3).await;
    assign_at_last(&trio, stream, 0, owner % 3 + 1).await;
    until(|| before.is_moved()).await;
    assign_at_last(&trio, stream, 0, owner).await;
    trio.served(owner, stream, 0).await;
    until(|| trio.has_copies(owner, stream, 0)).await;

    // As a take-over that was under way all the while ends.
    let shared = trio.shared(owner);
    let found = shared.data.catalog.get(stream).expect("it is known");
    let config = found.record.load().config.clone();
    let replicated = &shared.clustered.as_ref().expect("it has copies").replicated;
    replicated.serve(&before, before.epoch(), before.next_group(), &config);
    assert!(replicated.served(&before).is_none());
    assert!(trio.has_copies(owner, stream, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_lost_while_streamlets_are_handed_over_loses_nothing() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    let mut owner = old;
    for round in 0..4 {
        let now = trio.served(owner, stream, 0).await;
        append_all(trio.shared(owner), &now, round * 10..round * 10 + 10).await;
        let next = if owner == old { to } else { old };
        let handing = hand_over(trio.shared(owner), stream, StreamletId(0), next);
        tokio::pin!(handing);
        loop {
            // Everybody who is behind reads everything anew, again and again.
            trio.store.forget_history();
            tokio::select! {
                handed = &mut handing => {
                    handed.expect("it is handed over");
                    break;
                }
                () = tokio::task::yield_now() => {}
            }
        }
        owner = next;
        let after = trio.served(owner, stream, 0).await;
        assert_eq!(values(&after).await, expected(0..round * 10 + 10));
    }
    for at in 1..=3 {
        until(|| trio.owner(at, stream, 0).broker == owner).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_younger_than_an_image_of_the_store_is_not_gone() {
    let trio = Trio::start().await;
    let image = trio.store.load().expect("it is read");
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let streamlet = trio.streamlet(owner, stream, 0);
    append_all(trio.shared(owner), &streamlet, 0..3).await;

    let shared = trio.shared(owner).clone();
    let applied = tokio::task::spawn_blocking(move || {
        let clustered = shared.clustered.as_ref().expect("it shares a store");
        apply_all(&shared, clustered, image);
    });
    applied.await.expect("no panic");
    assert!(trio.shared(owner).data.catalog.get(stream).is_some());
    assert!(!streamlet.is_over());
    append_all(trio.shared(owner), &streamlet, 3..6).await;
    assert_eq!(values(&streamlet).await, expected(0..6));

    // One that was deleted before the image was read is.
    let found = trio
        .shared(1)
        .data
        .catalog
        .get(stream)
        .expect("it is known");
    let compare = Compare::revision(Key::Stream(stream), found.record.load().revision);
    let deletion = Transaction::new(vec![compare], vec![Write::DeleteStream(stream)]);
    trio.store.commit(deletion).expect("it is deleted");
    let image = trio.store.load().expect("it is read");
    let shared = trio.shared(owner).clone();
    let applied = tokio::task::spawn_blocking(move || {
        let clustered = shared.clustered.as_ref().expect("it shares a store");
        apply_all(&shared, clustered, image);
    });
    applied.await.expect("no panic");
    assert!(trio.shared(owner).data.catalog.get(stream).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_over_without_a_lease_serves_once_it_is_back() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    append_all(trio.shared(old), &trio.streamlet(old, stream, 0), 0..10).await;
    trio.store.expire(to);
    trio.assign(stream, 0, to);
    until(|| {
        let now = trio.streamlet(to, stream, 0);
        !now.is_over() && now.is_recovered()
    })
    .await;
    let directory = &trio.shared(to).data.directory;
    assert!(!directory.serves(stream, StreamletId(0)));
    trio.store.revive(to);
    let after = trio.served(to, stream, 0).await;
    append_all(trio.shared(to), &after, 10..12).await;
    assert_eq!(values(&after).await, expected(0..12));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_without_its_lease_tells_nobody_where_its_lanes_end() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    append_all(trio.shared(old), &trio.streamlet(old, stream, 0), 0..10).await;
    let find = async |at: u32| {
        let found = trio
            .shared(at)
            .data
            .catalog
            .get(stream)
            .expect("it is known");
        let request = v1::FindOrdinalsRequest {
            name: "clicks".into(),
            at: Some(v1::find_ordinals_request::At::Latest(true)),
            local: true,
        };
        admin::find_ordinals(trio.shared(at), &found, request).await
    };
    let end = |found: v1::FindOrdinalsResponse| {
        let lanes = found.lanes.into_iter().filter(|lane| lane.streamlet == 0);
        let heads: Vec<_> = lanes.map(|lane| lane.head_ordinal).collect();
        (!heads.is_empty()).then(|| heads.iter().sum::<u64>())
    };
    assert_eq!(end(find(old).await.expect("it serves it")), Some(10));
    trio.store.expire(old);
    until(|| !trio.shared(old).data.directory.is_current()).await;
    let error = find(old).await.expect_err("it may have a successor");
    assert_eq!(error.code, ErrorCode::NotOwner, "{error}");

    // It hears of its successor only after it has a lease again.
    let to = old % 3 + 1;
    trio.assign(stream, 0, to);
    let after = trio.served(to, stream, 0).await;
    append_all(trio.shared(to), &after, 10..15).await;
    trio.store.revive(old);
    loop {
        match find(old).await {
            Ok(found) => match end(found) {
                None => break,
                Some(end) => panic!("it ends at 15, and not at {end}"),
            },
            Err(error) => assert_eq!(error.code, ErrorCode::NotOwner, "{error}"),
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(end(find(to).await.expect("it serves it")), Some(15));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_sealed_out_tells_nobody_where_its_lanes_end() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let served = trio.served(old, stream, 0).await;
    append_all(trio.shared(old), &served, 0..10).await;
    // As its successor's seal does, before the records tell of one.
    served.mark_moved();
    let found = trio
        .shared(old)
        .data
        .catalog
        .get(stream)
        .expect("it is known");
    let request = v1::FindOrdinalsRequest {
        name: "clicks".into(),
        at: Some(v1::find_ordinals_request::At::Latest(true)),
        local: true,
    };
    let told = admin::find_ordinals(trio.shared(old), &found, request).await;
    let error = told.expect_err("its successor may have more");
    // It may be about to take it over anew by then.
    let is_refused = [ErrorCode::NotOwner, ErrorCode::NotEnoughCopies].contains(&error.code);
    assert!(is_refused, "{error}");
    let mut described = stream_description(trio.shared(old), &found, None)
        .await
        .expect("it describes what it serves");
    assert_eq!(described.lanes, []);
    let missing = |all: &v1::DescribeStreamResponse| {
        let missing = all.unrecovered.iter().filter(|m| m.streamlet == 0);
        missing.map(|m| m.reason.clone()).collect::<Vec<_>>()
    };
    assert!(missing(&described)[0].contains("has given it up"));

    // With what its successor says it is whole; with nobody's word it says what is missing.
    let lane = |head_ordinal| v1::LaneDescription {
        head_ordinal,
        ..Default::default()
    };
    let successor = v1::DescribeStreamResponse {
        lanes: vec![lane(12), lane(10)],
        ..Default::default()
    };
    let mut alone = described.clone();
    join(&found, &mut alone, Vec::new());
    assert_eq!(missing(&alone), missing(&described));
    join(&found, &mut described, vec![successor]);
    assert_eq!(described.lanes, [lane(12)]);
    assert!(missing(&described).is_empty());
    let mut nobody = v1::DescribeStreamResponse::default();
    join(&found, &mut nobody, Vec::new());
    assert!(missing(&nobody)[0].contains("changing its owner"));
    // One that waits for its copies is described by its owner, and stays in the list.
    let mut waiting = v1::DescribeStreamResponse {
        lanes: vec![lane(3)],
        unrecovered: alone.unrecovered,
        ..Default::default()
    };
    join(&found, &mut waiting, Vec::new());
    assert_eq!(missing(&waiting).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_deleted_while_it_is_taken_over_leaves_nothing() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let number = (0..3).find(|n| trio.owner(1, stream, *n).broker == 2);
    let number = number.expect("it owns one of three");
    let before = trio.streamlet(2, stream, number);
    append_all(trio.shared(2), &before, 0..5).await;
    let replicated = trio
        .shared(1)
        .clustered
        .as_ref()
        .expect("it has copies")
        .replicated
        .clone();
    let turns = replicated.turns();
    let all = turns.available_permits() as u32;
    let held = turns.acquire_many(all).await.expect("they are there");
    trio.assign(stream, number, 1);
    // The take-over is under way, and waits for its turn.
    let taking = replicated.taking(before.key());
    until(|| taking.try_lock().is_err()).await;
    let awaiting = trio.streamlet(1, stream, number);
    let dir = awaiting.dir().to_path_buf();
    let found = trio
        .shared(1)
        .data
        .catalog
        .get(stream)
        .expect("it is known");
    admin::delete_stream(trio.shared(1), &found)
        .await
        .expect("it is deleted");
    assert!(awaiting.is_deleted());
    assert!(trio.shared(1).data.catalog.get(stream).is_none());
    drop(held);
    drop(taking.lock().await);
    assert!(trio.shared(1).recorder.latest(awaiting.key()).is_none());
    assert!(replicated.served(&awaiting).is_none());
    let waits = replicated.waiting().describe(awaiting.key());
    assert_eq!(waits.reason, "");
    assert!(!dir.exists());
    until(|| before.is_deleted() || before.is_moved()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_change_show_in_the_metrics() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    let says = |id: u32, line: &str| {
        let text = crate::scrape::render(trio.shared(id));
        text.lines().any(|found| found == line)
    };
    for id in 1..=3 {
        assert!(says(id, "kera_streamlets_owned 1"), "broker {id}");
    }
    append_all(trio.shared(old), &trio.streamlet(old, stream, 0), 0..3).await;
    assert!(says(old, "kera_hand_overs_total{outcome=\"done\"} 0"));
    hand_over(trio.shared(old), stream, StreamletId(0), to)
        .await
        .expect("it is handed over");
    trio.served(to, stream, 0).await;
    assert!(says(old, "kera_hand_overs_total{outcome=\"done\"} 1"));
    assert!(says(old, "kera_hand_overs_total{outcome=\"failed\"} 0"));
    assert!(says(old, "kera_streamlets_given_up_total 1"));
    assert!(says(old, "kera_streamlets_owned 0"));
    assert!(says(to, "kera_streamlets_owned 2"));
    until(|| says(to, "kera_takeover_duration_seconds_count 1")).await;
    // Counted in the background, for the store is not asked at a scrape.
    let shared = trio.shared(to);
    let counted = || {
        let found = shared.data.catalog.get(stream).expect("it is known");
        crate::cluster::shortage::as_counted(shared, &found)
    };
    let clustered = shared.clustered.as_ref().expect("it has copies");
    crate::cluster::shortage::count_all(shared, clustered);
    assert_eq!(counted(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_owner_writes_no_file_of_the_present_one() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let first = trio.owner(1, stream, 0).broker;
    let served = trio.served(first, stream, 0).await;
    append_all(trio.shared(first), &served, 0..10).await;
    let before = served.epoch();
    let to = first % 3 + 1;
    hand_over(trio.shared(first), stream, StreamletId(0), to)
        .await
        .expect("it is handed over");
    let now = trio.served(to, stream, 0).await;
    let image = trio.store.load_streamlet(stream, StreamletId(0));
    let image = image.expect("it is read");
    let mut groups = image.groups.iter();
    let group = groups.find(|group| group.end_ordinal == 10);
    let copy = CopyId::of(group.expect("it is recorded"));
    let file = now.dir().join(GroupSpec::file_name(copy.group, 0));
    let whole = std::fs::read(&file).expect("the new owner has it");
    // A job of the former owner that has not heard yet gives the group a copy here.
    let cluster = &trio
        .shared(to)
        .clustered
        .as_ref()
        .expect("it has others")
        .peers;
    let store = cluster.backup.store();
    // Its file stands for the copy that it kept for the former owner.
    until(|| !store.holds(&copy)).await;
    let ask = |request| store.handle(BrokerId(first), request);
    let seal = Request::seal(copy.streamlet, before);
    ask(seal).expect("a hand-over seals nothing");
    let complete = Request::Complete {
        copy,
        epoch: before,
        segment_size: 64 << 10,
        segments: 2,
        address: 0,
        bytes: whole[..100].to_vec().into(),
    };
    let by = now.epoch();
    assert!(matches!(ask(complete), Err(Refusal::Sealed { by: found }) if found == by));
    assert_eq!(std::fs::read(&file).expect("it is there"), whole);
    assert_eq!(values(&now).await, expected(0..10));
}
