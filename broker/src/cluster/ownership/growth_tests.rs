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
