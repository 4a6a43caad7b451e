//! A list of transactions that is answered names all of them: who looks for what hangs must not be told that nothing is
//! open, only because its coordinator is yet to read it. Commands about one wait for its coordinator likewise.

use std::collections::BTreeSet;
use std::time::Instant;

use bytes::Buf;
use kera_protocol::partition::key_hash;
use kera_testkit::kafka;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::Trio;
use super::prepared::{COORDINATORS, CREATE, EARLY, id, prepare};
use crate::common::{Broker, PATIENCE};

const LIST: [&str; 2] = ["transaction", "list"];
/// Kafka's number of COORDINATOR_LOAD_IN_PROGRESS.
const LOADING: i16 = 14;

fn ids(listed: &Value) -> BTreeSet<String> {
    let listed = listed.as_array().expect("a list").iter();
    let ids = listed.filter_map(|one| one["transactional_id"].as_str().map(str::to_owned));
    ids.collect()
}

/// The error and the number of transactions that Kafka's ListTransactions answers.
fn listed_for_kafka(broker: &Broker) -> (i16, usize) {
    // API 66, version 0, correlation 7, no client id, no tags; any state, any producer, no tags.
    let request = [0, 66, 0, 0, 0, 0, 0, 7, 0xff, 0xff, 0, 1, 1, 0];
    let reply = kafka::exchange(broker.kafka(), &request);
    let mut reply = &reply[..];
    // Correlation, tags, throttle.
    reply.advance(4 + 1 + 4);
    let error = reply.get_i16();
    assert_eq!(reply.get_u8(), 1, "no state is unknown");
    (error, usize::from(reply.get_u8()) - 1)
}

#[test]
fn nobody_is_told_that_nothing_is_open_while_coordinators_are_away() {
    let Some(mut trio) = Trio::with(&["--kafka-listen", "127.0.0.1:0"]) else {
        return;
    };
    let first = trio.brokers[0].address().to_owned();
    // With three replicas, as the internal stream has them then.
    trio.run(&first, &CREATE, b"");
    let coordinators = (0..EARLY).map(|number| key_hash(id(number).as_bytes()) % COORDINATORS);
    let coordinators: BTreeSet<u32> = coordinators.collect();
    assert_eq!(coordinators.len(), COORDINATORS as usize, "each has some");
    Runtime::new().expect("a runtime").block_on(async {
        for number in 0..EARLY {
            drop(prepare(&first, number).await);
        }
    });
    let all: BTreeSet<String> = (0..EARLY).map(id).collect();
    let listed = trio.brokers[0].json(&LIST);
    assert_eq!(ids(&listed), all);
    let number = listed[0]["coordinator"].as_u64().expect("a broker");
    let one = listed[0]["transactional_id"].as_str().expect("an id");
    let describe = ["transaction", "describe", one];
    let abort = ["transaction", "abort", one, "--yes"];
    let alone = usize::try_from(number - 1).expect("a number");

    trio.brokers.iter_mut().for_each(Broker::kill);
    // It owns some of the coordinators' streamlets, and too few replicas are there to recover any.
    trio.brokers[alone].restart();
    let broker = &trio.brokers[alone];
    assert_eq!(listed_for_kafka(broker), (LOADING, 0));
    // Each is tried for 10 s.
    std::thread::scope(|scope| {
        let of_all = &["are reading their state", "of _kera_transactions"][..];
        let of_one = &["is reading its state"][..];
        for (command, told) in [(&LIST[..], of_all), (&describe, of_one), (&abort, of_one)] {
            scope.spawn(move || {
                let refused = broker.attempt(command, b"");
                assert!(!refused.status.success(), "{}", refused.text());
                let always = ["warning: still trying", "(COORDINATOR_LOADING)"];
                for words in told.iter().chain(&always) {
                    assert!(refused.stderr.contains(words), "{}", refused.stderr);
                }
            });
        }
    });
    assert_eq!(listed_for_kafka(broker), (LOADING, 0));

    let second = (alone + 1) % 3;
    trio.brokers[second].restart();
    // The first answer has all.
    let broker = trio.brokers[second].address().to_owned();
    let list = [&LIST[..], &["--json"]].concat();
    let listed = trio.run(&broker, &list, b"");
    let listed: Value = serde_json::from_str(&listed.text()).expect("JSON");
    assert_eq!(ids(&listed), all);
    let told = trio.run(&broker, &[&describe[..], &["--json"]].concat(), b"");
    let told: Value = serde_json::from_str(&told.text()).expect("JSON");
    assert_eq!(told["transactional_id"], one);
    let begin = Instant::now();
    let mut of_kafka = 0;
    while of_kafka < EARLY {
        assert!(begin.elapsed() < PATIENCE, "Kafka's clients get {of_kafka}");
        let brokers = [alone, second].map(|broker| &trio.brokers[broker]);
        let lists = brokers.map(listed_for_kafka);
        of_kafka = lists.iter().map(|(_, count)| count).sum();
    }
}

#[test]
fn every_owner_holds_back_what_a_pin_needs_and_so_does_the_next_one() {
    let Some(mut trio) = Trio::with(&["--retention-check-interval", "100ms"]) else {
        return;
    };
    let bootstrap = trio.bootstrap();
    let create = ["stream", "create", "clicks", "--streamlets", "3"];
    let small = ["--segment-size", "64KiB", "--segments-per-group", "1"];
    trio.run(&bootstrap, &[&create[..], &small].concat(), b"");
    let lines: String = (0..30_000).map(|n| format!("k{n},{n:019}\n")).collect();
    let produce = ["produce", "clicks", "-q", "--key-separator", ","];
    let produce = [&produce[..], &["--batch-size", "8KiB"]].concat();
    trio.run(&bootstrap, &produce, lines.as_bytes());
    // One lane has most, as keys have it.
    let lines: String = (0..60_000).map(|n| format!("k0,{n:019}\n")).collect();
    trio.run(&bootstrap, &produce, lines.as_bytes());
    let pin = ["pin", "create", "clicks", "savepoint", "--policy", "wait"];
    trio.run(&bootstrap, &pin, b"");
    let warn = ["pin", "create", "clicks", "warned"];
    trio.run(&bootstrap, &warn, b"");
    let limit = ["stream", "alter", "clicks", "--retention-bytes", "192KiB"];
    trio.run(&bootstrap, &limit, b"");
    let of = |pins: &Value, name: &str| {
        let pins = pins.as_array().expect("pins").iter();
        pins.clone().find(|pin| pin["name"] == name).cloned()
    };
    let state = |pins: &Value, name: &str| of(pins, name).map(|pin| pin["state"].clone());
    let held = |pins: &Value| {
        of(pins, "savepoint")
            .and_then(|pin| pin["held_bytes"].as_u64())
            .unwrap_or(0)
    };
    let list = ["pin", "list"];
    for broker in &trio.brokers {
        // Retention has looked.
        let is_lost = |pins: &Value| state(pins, "warned") == Some("lost".into());
        broker.until(&list, |pins| is_lost(pins) && held(pins) > 0);
    }
    // Whichever is asked tells of all, once all have heard of the limit.
    trio.brokers[0].until(&list, |pins| {
        let others = trio.brokers[1..].iter();
        others
            .map(|b| held(&b.json(&list)))
            .all(|h| h == held(pins))
    });
    let before = held(&trio.brokers[0].json(&list));
    // The owner of that lane has more than its part of the bound, and all together less than the bound. No owner has as much as
    // the bound of the other pin, and all together have more.
    for (name, bound) in [("skewed", 2 * before), ("beyond", before - 1)] {
        let pin = ["pin", "create", "clicks", name, "--policy", "wait"];
        let bound = bound.to_string();
        trio.run(
            &bootstrap,
            &[&pin[..], &["--max-bytes", &bound]].concat(),
            b"",
        );
    }
    trio.brokers[0].until(&list, |pins| {
        of(pins, "beyond").is_some_and(|pin| pin["lost"]["cause"] == "bytes")
    });
    let starts = |broker: &Broker| -> Vec<u64> {
        let described = broker.json(&["stream", "describe", "clicks"]);
        let lanes = described["lane_descriptions"].as_array().expect("lanes");
        let starts = lanes.iter().map(|lane| lane["log_start"].as_u64());
        starts.map(|start| start.expect("a start")).collect()
    };
    assert_eq!(starts(&trio.brokers[1]), [0; 3]);

    trio.brokers[0].kill();
    // Those that own its streamlets now have all of its groups.
    let served = |told: &Value| told["lane_descriptions"].as_array().map(Vec::len) == Some(3);
    trio.brokers[1].until(&["stream", "describe", "clicks"], served);
    trio.brokers[1].until(&list, |pins| held(pins) >= before);
    assert_eq!(starts(&trio.brokers[2]), [0; 3]);
    let kept = trio.brokers[2].json(&list);
    assert_eq!(state(&kept, "skewed"), Some("held".into()), "{kept}");
    for name in ["savepoint", "skewed"] {
        trio.brokers[2].run(&["pin", "delete", "clicks", name, "--yes"]);
    }
    trio.brokers[1].until(&["stream", "describe", "clicks"], |told| {
        let lanes = told["lane_descriptions"].as_array().expect("lanes");
        let moved = |lane: &Value| lane["log_start"].as_u64() > Some(0);
        lanes.len() == 3 && lanes.iter().all(moved)
    });
}
