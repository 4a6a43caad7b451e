//! What a recovery passes over in lanes that others than a group's coordinator serve.

use serde_json::Value;

use crate::together::{Together, lines};
use crate::{LONG, even};

#[test]
fn a_group_is_done_with_what_recoveries_passed_over_wherever_it_is() {
    let Some(mut cluster) = Together::start(2, LONG) else {
        return;
    };
    let words = ["stream", "create", "s", "--streamlets", "4"];
    cluster.json(&[&words[..], &["--replicas", "1", "--ack", "memory"]].concat());
    cluster.until(|status| even(status, 2));
    cluster.produce("s", &lines(0..2_000));
    let consume = |cluster: &Together, order: &str| {
        let words = ["consume", "s", "--group", order, "--order", order];
        let finished = cluster.attempt(&words);
        assert!(finished.status.success(), "{order}: {}", finished.stderr);
        finished.text().lines().count()
    };
    let orders = ["lane", "none"];
    for order in orders {
        assert_eq!(consume(&cluster, order), 2_000, "{order}");
    }
    // Heads go up at both brokers, and nothing is below them; one of them is not the coordinator.
    for broker in [1, 2] {
        cluster.broker(broker).kill();
        cluster.broker(broker).restart();
    }
    let described = cluster.until_json(&["stream", "describe", "s"], |described| {
        let lanes = described["lane_descriptions"].as_array().map(Vec::as_slice);
        lanes.is_some_and(|lanes| lanes.len() == 4)
    });
    let passed_over = |broker: u32| {
        let owners = described["owners"].as_array().expect("owners are told");
        let lanes = described["lane_descriptions"].as_array().expect("lanes");
        let address = cluster.address(broker);
        lanes.iter().any(|lane: &Value| {
            let streamlet = lane["streamlet"].as_u64().expect("a number") as usize;
            owners[streamlet]["owner"] == address && lane["head_ordinal"].as_u64() >= Some(1 << 32)
        })
    };
    assert!(passed_over(1) && passed_over(2), "{described}");
    for order in orders {
        assert_eq!(consume(&cluster, order), 0, "{order}");
    }
    cluster.produce("s", &lines(0..500));
    for order in orders {
        assert_eq!(consume(&cluster, order), 500, "{order}");
    }
}
