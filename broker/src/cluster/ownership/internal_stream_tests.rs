//! The internal stream of a cluster that grows.

use kera_coordinator::Request;
use kera_metadata::{GroupState, StreamRecord};

use super::*;
use crate::coordination::GROUPS_STREAM;

/// As the cluster's records have it: least copies, and the copies of each group that has records.
fn recorded(shared: &Shared) -> (u32, Vec<usize>) {
    let stream = shared
        .data
        .catalog
        .named(GROUPS_STREAM)
        .expect("it is there");
    let mut copies = Vec::new();
    for streamlet in &stream.streamlets {
        let image = shared.metadata.load_streamlet(stream.id(), streamlet.id());
        let groups = image.expect("the store answers").groups;
        let used = groups.iter().filter(|group| {
            group.state != GroupState::Closed || group.first_ordinal != Some(group.end_ordinal)
        });
        copies.extend(used.map(|group| group.copies.len()));
    }
    (stream.record.load().config.min_insync_replicas, copies)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_internal_stream_gets_its_copies_as_brokers_join() {
    let mut trio = Trio::start_of(1, Some(Duration::from_millis(100))).await;
    let shared = trio.shared(1).clone();
    let config = StreamConfig {
        streamlets: 1,
        ..StreamConfig::default()
    };
    let made = shared.create_stream(StreamRecord::new("clicks", config, 0));
    made.expect("a stream with one copy");
    let join = |client: &str| {
        let (shared, client) = (shared.clone(), client.to_owned());
        async move {
            let request = v1::JoinRequest {
                group: "readers".into(),
                stream: "clicks".into(),
                order: v1::Order::Lane as i32,
                client,
                session_ms: 60_000,
                ..Default::default()
            };
            let joined = shared
                .coordination
                .call(&shared, "readers", Request::join(request));
            joined.await.is_ok()
        }
    };
    // While it is being made the coordinator is loading.
    until_async(|| join("first")).await;
    let (least, copies) = recorded(&shared);
    assert_eq!(least, 1);
    assert!(
        !copies.is_empty() && copies.iter().all(|n| *n == 1),
        "{copies:?}"
    );

    for id in [2, 3] {
        trio.begin(id).await;
    }
    // What there was gets the copies that it lacks, and what is new has them from its beginning.
    let everywhere = || {
        (1..=3).all(|id| {
            let Some(stream) = trio.shared(id).data.catalog.named(GROUPS_STREAM) else {
                return false;
            };
            stream.record.load().config.min_insync_replicas == 2
        })
    };
    until(everywhere).await;
    until(|| recorded(&shared).1.iter().all(|copies| *copies == 3)).await;
    until_async(|| join("second")).await;
    until(|| recorded(&shared).1.iter().all(|copies| *copies == 3)).await;
}

async fn until_async<F: Future<Output = bool>>(mut so: impl FnMut() -> F) {
    let begun = Instant::now();
    while !so().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never was");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
