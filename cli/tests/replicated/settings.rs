//! What is asked of a stream's copies, and how it is shown.

use super::trio::Trio;
use crate::common::Broker;

#[test]
fn a_stream_says_how_many_copies_it_has() {
    let trio = Trio::start();
    trio.create("three", "3", "2");
    trio.broker
        .run(&["stream", "create", "two", "--replicas", "2"]);
    trio.broker.run(&["stream", "create", "one"]);
    for (stream, copies) in [("three", (3, 2)), ("two", (2, 2)), ("one", (1, 1))] {
        let described = trio.broker.json(&["stream", "describe", stream]);
        assert_eq!(described["replicas"], copies.0, "{described}");
        assert_eq!(described["min_insync_replicas"], copies.1, "{described}");
    }
    let text = trio.broker.run(&["stream", "describe", "three"]);
    assert!(text.contains("3 copies, at least 2"), "{text}");
    for ack in ["memory", "synced", "written"] {
        trio.broker.run(&["stream", "alter", "three", "--ack", ack]);
        let described = trio.broker.json(&["stream", "describe", "three"]);
        assert_eq!(described["ack"], ack, "{described}");
    }
}

#[test]
fn copies_that_cannot_be_are_refused() {
    let trio = Trio::start();
    let create = |words: &[&str]| {
        let words = [&["stream", "create", "s"], words].concat();
        trio.broker.refused(&words)
    };
    let refused = create(&["--replicas", "4"]);
    assert!(
        refused.contains("4 copies need 4 brokers, and 3 are known"),
        "{refused}"
    );
    let refused = create(&["--replicas", "2", "--min-insync-replicas", "3"]);
    assert!(
        refused.contains("min_insync_replicas is 3 of 2 replicas"),
        "{refused}"
    );
    let alone = Broker::start();
    let refused = alone.refused(&["stream", "create", "s", "--replicas", "3"]);
    assert!(refused.contains("this one works alone"), "{refused}");
}
