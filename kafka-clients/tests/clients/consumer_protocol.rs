//! Groups whose coordinator divides the work (KIP-848).

use serde_json::json;

use crate::common::{Can, Kind};
use crate::groups::Group;
use crate::stage::{Stage, anyone, scenario};

/// The client speaks the consumer protocol.
const CONSUMER: &str = "consumer";

scenario!(members_come_and_go, PLAIN, anyone, |stage: &mut Stage| {
    let mut group = Group::new(stage, CONSUMER);
    group.rebalances();
    // The same again with a topic that grows under the members.
    group.join("d", json!({}));
    group.join("e", json!({}));
    group.settle(&[3, 3]);
    group.grow(8);
    group.settle(&[4, 4]);
    group.send(60);
    group.settle(&[4, 4]);
    if group.stage.client.kind == Kind::Java {
        let described = group.stage.client.describe_group(&group.stage.group);
        let described = described.expect("the group");
        assert_eq!(described.state, "Stable");
        assert_eq!(described.strategy, "uniform");
        let mut sizes: Vec<usize> = described
            .members
            .iter()
            .map(|m| m.assignment.len())
            .collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [4, 4]);
    }
    if group.stage.broker.is_kera() {
        let words = ["group", "describe", &group.stage.group];
        let told = group.stage.broker.kera(&words, b"");
        assert!(
            told.contains("consumer protocol, assignor uniform, Stable"),
            "{told}"
        );
    }
});

scenario!(
    a_group_outlives_its_broker_and_a_member,
    KILLED,
    anyone,
    |stage: &mut Stage| {
        let mut group = Group::new(stage, CONSUMER);
        group.join("a", json!({}));
        group.join("b", json!({}));
        group.send(60);
        group.settle(&[3, 3]);
        group.stage.broker.kill();
        group.stage.broker.restart();
        group.send(60);
        group.settle(&[3, 3]);
        // librdkafka is in this process, and says goodbye.
        if group.stage.client.kind == Kind::Librdkafka {
            group.leave("b");
        } else {
            group.die("b");
        }
        group.send(60);
        group.settle(&[6]);
        group.leave("a");
        if group.stage.client.kind.can(Can::GroupOffsets) {
            let offsets = group.stage.client.group_offsets(&group.stage.group);
            let total: i64 = offsets.iter().map(|each| each.offset).sum();
            assert_eq!(total, 180);
        }
    }
);

scenario!(
    a_member_keeps_its_name,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let mut group = Group::new(stage, CONSUMER);
        group.join("a", json!({"instance": "first"}));
        group.join("b", json!({"instance": "second"}));
        group.send(60);
        group.settle(&[3, 3]);
        let (held, before) = (group.last("b").assignment.clone(), group.last("a").clone());
        // It leaves and comes back within the session: as it was, and the other does not notice.
        group.leave("b");
        group.join("b2", json!({"instance": "second"}));
        group.settle(&[3, 3]);
        let parts = |mut parts: Vec<crate::common::session::Part>| {
            parts.sort();
            parts
        };
        assert_eq!(parts(group.last("b2").assignment.clone()), parts(held));
        assert_eq!(group.last("a").revoked, before.revoked, "no rebalance");
    }
);
