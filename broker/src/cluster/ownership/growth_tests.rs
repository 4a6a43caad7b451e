//! Lanes of a stream of more streamlets than a transaction of the store's has operations.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn lanes_of_a_wide_stream_grow_under_the_epochs_of_all_its_streamlets() {
    let trio = Trio::start().await;
    let config = StreamConfig {
        streamlets: 300,
        lanes: 1,
        replicas: 1,
        min_insync_replicas: 1,
        segment_size: 64 << 10,
        segments_per_group: 2,
        max_batch_bytes: 16 << 10,
        ..StreamConfig::default()
    };
    let stream = trio.create_with(1, "wide", config).await;
    let at = |id: u32| {
        trio.shared(id)
            .data
            .catalog
            .get(stream)
            .expect("it is known")
    };
    let lanes = |lanes| v1::StreamConfig {
        lanes: Some(lanes),
        ..Default::default()
    };
    admin::alter_stream(trio.shared(1), &at(1), &lanes(2))
        .await
        .expect("they grow");
    until(|| (1..=3).all(|id| at(id).lane_generation() == 1)).await;

    // A streamlet whose next owner is recorded and has not been heard of: what was cut does not hold.
    let of_2 = (0..300).find(|number| trio.owner(1, stream, *number).broker == 2);
    let moved = of_2.expect("each owns a third");
    trio.late
        .iter()
        .for_each(|late| _ = late.send_replace(true));
    trio.assign(stream, moved, 3);
    let refused = admin::alter_stream(trio.shared(1), &at(1), &lanes(3)).await;
    assert!(refused.is_err(), "the streamlet has another owner");
    let recorded = trio.store.stream(stream).expect("it is read");
    let recorded = recorded.expect("it is there");
    assert_eq!(recorded.lane_generations.len(), 2);
    trio.late
        .iter()
        .for_each(|late| _ = late.send_replace(false));
}

/// A stream whose owners serve it.
async fn served(trio: &Trio) -> StreamId {
    let stream = trio.create(1, "clicks").await;
    until(|| {
        (0..3).all(|number| {
            let owner = trio.owner(1, stream, number).broker;
            let streamlet = trio.streamlet(owner, stream, number);
            !streamlet.is_over() && streamlet.is_recovered()
        })
    })
    .await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_grow_also_where_whoever_asked_goes_away() {
    let trio = Trio::start().await;
    let stream = served(&trio).await;
    let at = |id: u32| trio.shared(id).data.catalog.get(stream);
    let lanes = |lanes| v1::StreamConfig {
        lanes: Some(lanes),
        ..Default::default()
    };
    let generation = |id| at(id).map(|stream| stream.lane_generation());
    let (first, two) = (at(1).expect("it is known"), lanes(2));
    // The call is dropped where it waits first, as with its connection.
    let mut asked = Box::pin(admin::alter_stream(trio.shared(1), &first, &two));
    _ = futures::poll!(&mut asked);
    drop(asked);
    until(|| (1..=3).all(|id| generation(id) == Some(1))).await;
    let again = admin::alter_stream(trio.shared(1), &first, &lanes(3)).await;
    again.expect("they grow once more");
    until(|| (1..=3).all(|id| generation(id) == Some(2))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_go_on_whose_growth_was_begun_by_a_broker_that_goes_away() {
    let trio = Trio::start().await;
    let stream = served(&trio).await;
    let owned = (0..3).find(|number| trio.owner(1, stream, *number).broker == 2);
    let request = v1::CutForGrowthRequest {
        stream: stream.as_bytes().to_vec().into(),
        generation: 1,
        streamlets: vec![owned.expect("each owns one")],
        attempt: 7,
        partitions: 0,
    };
    let second = trio.shared(2).data.catalog.get(stream);
    let second = second.expect("it is known");
    let mut asked = Box::pin(admin::cut_for_growth(trio.shared(2), &second, &request));
    _ = futures::poll!(&mut asked);
    drop(asked);
    until(|| !second.is_growing(7)).await;
}
