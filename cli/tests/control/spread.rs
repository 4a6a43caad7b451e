//! Copies of closed groups that move: to a broker that joins, and away from one that is drained.

use serde_json::Value;

use crate::together::{Together, lines, sorted};
use crate::{LONG, even};

/// As many lines as fill groups of every streamlet.
const MANY: usize = 60_000;
const KIB: u64 = 1 << 10;

fn held(status: &Value) -> Vec<u64> {
    let brokers = status["brokers"].as_array().expect("brokers are listed");
    let held = brokers.iter().map(|one| one["held_bytes"].as_u64());
    held.map(|bytes| bytes.expect("a number")).collect()
}

/// Nothing is to come, and no group lacks a copy.
fn is_settled(status: &Value) -> bool {
    status["to_come_bytes"] == 0 && status["under_replicated_groups"] == 0
}

#[test]
fn a_broker_that_joins_gets_its_share_of_what_the_others_hold() {
    let Some(mut cluster) = Together::start(0, LONG) else {
        return;
    };
    cluster.flags = vec![
        "--cluster-spread-tolerance-bytes",
        "512KiB",
        "--cluster-repair-interval",
        "1s",
    ];
    (0..3).for_each(|_| cluster.add());
    cluster.create("flights", 8, 2);
    cluster.until(|status| even(status, 3));
    cluster.produce("flights", &lines(0..MANY));
    let before = cluster.until(is_settled);
    cluster.add();
    let steps = cluster.steps(&["broker", "add", "4", "--full", "--timeout", "5m"]);
    let last = steps.last().expect("the end");
    assert_eq!(last["outcome"], "done", "{last}");
    assert_eq!(last["to_come_bytes"], 0);
    let joined = last["held_bytes"].as_u64().expect("a number");
    assert!(joined > 0, "{steps:?}");
    // Copies that are too many for that go as well.
    cluster.until_plan(|plan| plan["copies"] == Value::Array(Vec::new()));
    let after = cluster.until(is_settled);
    let held_after = held(&after);
    assert_eq!(held_after.len(), 4);
    let total = |held: &[u64]| held.iter().sum::<u64>();
    // Of groups that were open before some more are closed now.
    assert!(total(&held_after) >= total(&held(&before)), "{after}");
    let average = total(&held_after) / 4;
    assert!(
        held_after[3] + 512 * KIB >= average,
        "broker 4 has too little of {held_after:?}"
    );
    let described = cluster.broker(4).json(&["broker", "describe"]);
    assert!(
        described["cluster"]["background"]["rounds"].is_u64(),
        "{described}"
    );
    assert_eq!(sorted(cluster.consume("flights")), sorted(lines(0..MANY)));
}

/// Nobody looks at groups by itself in this time.
#[test]
fn a_drain_leaves_nothing_at_a_broker_without_waiting_for_the_next_round() {
    let Some(mut cluster) = Together::start(0, LONG) else {
        return;
    };
    cluster.flags = vec!["--cluster-repair-interval", "2h"];
    (0..4).for_each(|_| cluster.add());
    cluster.create_whole("flights", 8, 3);
    cluster.until(|status| even(status, 4));
    cluster.produce("flights", &lines(0..MANY / 4));
    let steps = cluster.steps(&["broker", "drain", "3", "--empty", "--timeout", "5m"]);
    let last = steps.last().expect("the end");
    assert_eq!(last["outcome"], "done", "{last}");
    assert_eq!(
        (&last["copies"], &last["streamlets"]),
        (&0.into(), &0.into())
    );
    let had = steps.iter().map(|step| step["copies"].as_u64());
    assert!(had.max().flatten() > Some(0), "{steps:?}");
    assert!(cluster.broker(3).stop().success());
    let status = cluster.status();
    assert_eq!(status["under_replicated_groups"], 0, "{status}");
    let text = sorted(cluster.consume("flights"));
    assert_eq!(text, sorted(lines(0..MANY / 4)));
}
