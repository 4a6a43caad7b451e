//! Streams that are altered and deleted while three brokers own them.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn anybody_alters_and_deletes_a_stream() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let altered = v1::StreamConfig {
        retention_ms: Some(77_000),
        ..Default::default()
    };
    let at = |id: u32| trio.shared(id).data.catalog.get(stream);
    let found = at(3).expect("it is known");
    let outcome = admin::alter_stream(trio.shared(3), &found, &altered).await;
    outcome.expect("it is altered");
    let retention = |id| at(id).map(|stream| stream.record.load().config.retention_ms);
    until(|| (1..=3).all(|id| retention(id) == Some(77_000))).await;

    let held = trio.streamlet(1, stream, trio.owner(1, stream, 0).broker - 1);
    admin::delete_stream(trio.shared(2), &at(2).expect("it is known"))
        .await
        .expect("it is deleted");
    until(|| (1..=3).all(|id| at(id).is_none())).await;
    assert!(held.is_deleted());
    let again = trio.create(3, "clicks").await;
    assert_ne!(again, stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_grow_at_all_owners_or_at_none() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    for number in 0..3 {
        let owner = trio.owner(1, stream, number).broker;
        let streamlet = trio.streamlet(owner, stream, number);
        append_all(trio.shared(owner), &streamlet, 0..number as i32 + 1).await;
    }
    let at = |id: u32| {
        trio.shared(id)
            .data
            .catalog
            .get(stream)
            .expect("it is known")
    };
    let more = |lanes| v1::StreamConfig {
        lanes: Some(lanes),
        ..Default::default()
    };
    // A stream's record is stored before its streamlets open their lanes.
    let opened = |generation| {
        let mut all = (1..=3).flat_map(|id| at(id).streamlets.iter());
        all.all(|s| s.settings().lane_generation == generation)
    };
    // Somebody else is at it: nothing grows, and what was cut goes on.
    let other = trio.owner(1, stream, 2).broker;
    assert!(at(other).begin_growth(1));
    let refused = admin::alter_stream(trio.shared(1), &at(1), &more(2)).await;
    assert_eq!(
        refused.expect_err("it is refused").code,
        ErrorCode::Overloaded
    );
    assert!(at(other).end_growth(1));
    for number in 0..3 {
        let owner = trio.owner(1, stream, number).broker;
        let streamlet = trio.streamlet(owner, stream, number);
        let next = number as i32 + 1;
        append_all(trio.shared(owner), &streamlet, next..next + 1).await;
    }

    let grown = admin::alter_stream(trio.shared(1), &at(1), &more(2)).await;
    grown.expect("they grow");
    until(|| opened(1)).await;
    let starts = at(2).record.load().lane_generations[1].starts.clone();
    let expected = (0..3).map(|n| (StreamletId(n), LANE, u64::from(n) + 2));
    assert_eq!(starts, expected.collect::<Vec<_>>());
    for number in 0..3 {
        let owner = trio.owner(1, stream, number).broker;
        let streamlet = trio.streamlet(owner, stream, number);
        assert_eq!(streamlet.settings().lanes, 2);
        assert!(streamlet.head(LaneId(1)).is_some());
        let next = number as i32 + 2;
        append_all(trio.shared(owner), &streamlet, next..next + 1).await;
    }

    // One lane more in all: the first streamlet's.
    let seven = v1::StreamConfig {
        partitions: Some(7),
        ..Default::default()
    };
    let grown = admin::alter_stream(trio.shared(2), &at(2), &seven).await;
    grown.expect("one grows");
    until(|| opened(2)).await;
    let grown = at(3).record.load().lane_generations[2].clone();
    assert_eq!((grown.partitions(3), grown.starts.len()), (7, 6));
    for number in 0..3 {
        let owner = trio.owner(1, stream, number).broker;
        let streamlet = trio.streamlet(owner, stream, number);
        let lanes = if number == 0 { 3 } else { 2 };
        assert_eq!(streamlet.settings().lanes, lanes);
        assert!(streamlet.head(LaneId(lanes - 1)).is_some());
        assert!(streamlet.head(LaneId(lanes)).is_none());
        let next = number as i32 + 3;
        append_all(trio.shared(owner), &streamlet, next..next + 1).await;
    }
}
