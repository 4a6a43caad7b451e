//! What is asked of a stream's copies, and how it is shown.

use super::trio::Trio;
use crate::common::Broker;

#[test]
fn a_stream_says_how_many_copies_it_has() {
    let Some(trio) = Trio::start() else {
        return;
    };
    trio.create("three", "3", "2");
    trio.broker
        .run(&["stream", "create", "two", "--replicas", "2"]);
    trio.broker
        .run(&["stream", "create", "one", "--replicas", "1"]);
    for (stream, copies) in [("three", (3, 2)), ("two", (2, 2)), ("one", (1, 1))] {
        let described = trio.broker.json(&["stream", "describe", stream]);
        assert_eq!(described["replicas"], copies.0, "{described}");
        assert_eq!(described["min_insync_replicas"], copies.1, "{described}");
    }
    let text = trio.broker.run(&["stream", "describe", "three"]);
    assert!(text.contains("3 replicas, at least 2"), "{text}");
    for ack in ["memory", "synced", "written"] {
        trio.broker.run(&["stream", "alter", "three", "--ack", ack]);
        let described = trio.broker.json(&["stream", "describe", "three"]);
        assert_eq!(described["ack"], ack, "{described}");
    }
}

#[test]
fn copies_that_cannot_be_are_refused() {
    let Some(trio) = Trio::start() else {
        return;
    };
    let create = |words: &[&str]| {
        let words = [&["stream", "create", "s"], words].concat();
        trio.broker.refused(&words)
    };
    let refused = create(&["--replicas", "4"]);
    assert!(
        refused.contains("4 replicas need 4 brokers, and 3 are known"),
        "{refused}"
    );
    let refused = create(&["--replicas", "2", "--min-insync-replicas", "3"]);
    assert!(
        refused.contains("min_insync_replicas is 3 of 2 replicas"),
        "{refused}"
    );
    let alone = Broker::start();
    let refused = alone.refused(&["stream", "create", "s", "--replicas", "3"]);
    for part in [
        "this one works alone",
        "cluster.store",
        "`kera cluster import`",
    ] {
        assert!(refused.contains(part), "no `{part}` in: {refused}");
    }
}

#[test]
fn replica_stores_are_shown_with_their_role() {
    let Some(trio) = Trio::start() else {
        return;
    };
    for words in [["cluster", "status"], ["broker", "list"]] {
        let text = trio.broker.run(&words);
        assert_eq!(text.matches("replica store").count(), 2, "{text}");
        for backup in &trio.backups {
            assert!(text.contains(backup.address()), "{text}");
        }
    }
    let status = trio.broker.json(&["cluster", "status"]);
    let roles = status["brokers"].as_array().expect("a list").iter();
    let roles: Vec<_> = roles.map(|broker| broker["role"].clone()).collect();
    assert_eq!(roles, ["broker", "replica store", "replica store"]);
    assert_eq!(status["health"]["healthy"], true, "{status:#}");
    let told = status["compared"].as_array().expect("a list");
    assert_eq!(told.len(), 1, "stores own nothing to compare: {status:#}");
    // None of the commands that concern what brokers own finds anything to do there.
    let added = trio.broker.run(&["broker", "add", "2"]);
    assert!(added.contains("broker 2 is NORMAL"), "{added}");
    let refused = trio.broker.refused(&["broker", "drain", "2"]);
    assert!(refused.contains("2 is a replica store"), "{refused}");
    let plan = trio.broker.json(&["broker", "restart-plan"]);
    let first = &plan["steps"][0];
    assert!(
        first["address"].as_str().is_some_and(|a| !a.is_empty()),
        "{plan}"
    );
}
