//! How far brokers have compared their copies, as one command tells it of all of them.

use serde_json::Value;

use crate::together::{Together, lines};
use crate::{LONG, even};

fn of(status: &Value, broker: u32) -> &Value {
    let all = status["compared"].as_array().expect("brokers are listed");
    let found = all.iter().find(|one| one["broker_id"] == broker);
    found.unwrap_or(&Value::Null)
}

/// It has compared all that it owns, and that is something.
fn is_whole(status: &Value, broker: u32) -> bool {
    let one = of(status, broker);
    let count = |name: &str| one[name].as_u64().unwrap_or(0);
    count("streamlets") > 0
        && count("compared") == count("streamlets")
        && one["whole_ms"].is_u64()
        && count("groups") > 0
        && count("bytes") > 0
}

#[test]
fn the_status_tells_how_far_each_broker_has_compared_its_copies() {
    let Some(mut cluster) = Together::start(0, LONG) else {
        return;
    };
    cluster.flags = vec![
        "--cluster-repair-interval",
        "200ms",
        "--cluster-scrub-interval",
        "500ms",
    ];
    (0..3).for_each(|_| cluster.add());
    cluster.create("flights", 6, 3);
    cluster.until(|status| even(status, 3));
    cluster.produce("flights", &lines(0..30_000));
    let status = cluster.until(|status| (1..=3).all(|id| is_whole(status, id)));
    for id in 1..=3 {
        let one = of(&status, id);
        assert_eq!(one["unknown"], Value::Null, "{one}");
        assert_eq!((&one["harmed"], &one["unsound"]), (&0.into(), &0.into()));
    }
    let text = cluster.attempt(&["cluster", "status"]).text();
    assert!(text.contains("were compared, by owner"), "{text}");
    assert_eq!(text.matches("  all ").count(), 3, "{text}");
    // One that stands still is not waited for, and the others are told of all the same.
    cluster.broker(3).pause(true);
    let silent = |status: &Value| {
        let why = of(status, 3)["unknown"].as_str().unwrap_or_default();
        why.starts_with("no answer within") && of(status, 3).get("streamlets").is_none()
    };
    let status = cluster.until(silent);
    assert!(of(&status, 1)["compared"].is_u64(), "{status}");
    cluster.broker(3).pause(false);
    cluster.until(|status| of(status, 3)["unknown"].is_null());
    cluster.broker(3).kill();
    cluster.until(|status| {
        let why = of(status, 3)["unknown"].as_str().unwrap_or_default();
        why.contains("connection refused")
    });
}
