//! Administration.

use serde_json::json;

use crate::common::{Can, NewRecord, until};
use crate::stage::{Stage, anyone, scenario};

scenario!(cluster_and_topics, PLAIN, anyone, |stage: &mut Stage| {
    let topic = stage.topic.clone();
    if stage.client.kind.can(Can::DescribeCluster) {
        let cluster = stage.client.describe_cluster();
        assert_eq!(cluster.nodes.len(), 1);
        let node = &cluster.nodes[0];
        assert_eq!(
            format!("{}:{}", node.host, node.port),
            stage.broker.bootstrap()
        );
        assert!(
            cluster
                .controller
                .is_none_or(|controller| controller == node.id)
        );
        let id = cluster.cluster_id.expect("the cluster has an id");
        assert_eq!(id.len(), 22, "{id} is no UUID in base64");
    }
    stage.client.create_topic(&topic, 3, &[]);
    let failure = stage.client.try_create_topic(&topic, 3, &[]);
    let failure = failure.expect_err("the topic is there already");
    assert_eq!(failure.name, "TOPIC_ALREADY_EXISTS");
    let failure = stage.client.try_create_topic("no/such:name", 1, &[]);
    let failure = failure.expect_err("that is no name for a topic");
    assert_eq!(failure.name, "INVALID_TOPIC_EXCEPTION");
    let failure = stage.client.try_create_topic(&format!("{topic}-0"), 0, &[]);
    let failure = failure.expect_err("no topic has no partitions");
    assert!(
        ["INVALID_PARTITIONS", "CLIENT:InvalidArgument"].contains(&failure.name.as_str())
            || failure.name.starts_with("CLIENT:"),
        "{failure:?}"
    );

    let described = stage.client.describe_topic(&topic).expect("the topic");
    let partitions: Vec<i32> = described
        .partitions
        .iter()
        .map(|each| each.partition)
        .collect();
    assert_eq!(partitions, [0, 1, 2]);
    for partition in &described.partitions {
        let leader = partition.leader.expect("a leader");
        assert_eq!(
            (&partition.replicas, &partition.isr),
            (&vec![leader], &vec![leader])
        );
    }
    assert!(stage.client.list_topics().contains(&topic));
    let failure = stage.client.describe_topic(&format!("{topic}-none"));
    let failure = failure.expect_err("there is no such topic");
    assert_eq!(failure.name, "UNKNOWN_TOPIC_OR_PARTITION");

    // Deleted, and created again under the same name: the old records are gone.
    stage.client.producer("p", json!({}));
    stage
        .client
        .send("p", &topic, &[NewRecord::new("key", "of before").to(0)]);
    stage.client.close_producer("p");
    stage
        .client
        .delete_topic(&topic)
        .expect("the topic can be deleted");
    until("the topic is gone", || {
        let failure = stage.client.describe_topic(&topic).err()?;
        (failure.name == "UNKNOWN_TOPIC_OR_PARTITION").then_some(())
    });
    assert!(!stage.client.list_topics().contains(&topic));
    let failure = stage.client.delete_topic(&topic).expect_err("it is gone");
    assert_eq!(failure.name, "UNKNOWN_TOPIC_OR_PARTITION");
    stage.client.create_topic(&topic, 2, &[]);
    stage.client.producer("p", json!({}));
    let place = stage
        .client
        .send("p", &topic, &[NewRecord::new("key", "of after").to(0)]);
    assert_eq!(place[0].offset, 0);
    stage.client.consumer("c", json!({}));
    stage
        .client
        .assign("c", &topic, &[0, 1], json!("beginning"));
    assert_eq!(stage.client.read("c", 1)[0].text(), "of after");
});

scenario!(
    configs,
    PLAIN,
    |kind| kind.can(Can::Configs),
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        let first = [("max.message.bytes", "20000"), ("retention.ms", "7200000")];
        stage.client.create_topic(&topic, 1, &first);
        let configs = stage.client.describe_configs(&topic).expect("configs");
        let value = |name: &str| configs[name].value.clone().unwrap_or_default();
        assert_eq!(value("max.message.bytes"), "20000");
        assert_eq!(value("retention.ms"), "7200000");
        assert!(configs["max.message.bytes"].own && configs["retention.ms"].own);
        // What tools look at is there, with its default.
        for (name, expected) in [
            ("cleanup.policy", "delete"),
            ("compression.type", "producer"),
            ("message.timestamp.type", "CreateTime"),
            ("min.insync.replicas", "1"),
        ] {
            let found = &configs[name];
            assert_eq!(found.value.as_deref(), Some(expected), "{name}");
            assert!(!found.own, "{name} was not set");
        }

        let change = [("retention.ms", "86400000")];
        stage
            .client
            .alter_configs(&topic, &change, &["max.message.bytes"])
            .expect("configs can be altered");
        let configs = until("the change is seen", || {
            let configs = stage.client.describe_configs(&topic).ok()?;
            (configs["retention.ms"].value.as_deref() == Some("86400000")).then_some(configs)
        });
        assert!(configs["retention.ms"].own);
        assert!(!configs["max.message.bytes"].own, "reset to the default");
        assert_ne!(configs["max.message.bytes"].value.as_deref(), Some("20000"));

        let tells = stage.client.kind.can(Can::AlterErrors);
        for (name, value) in [
            ("no.such.config", "1"),
            ("retention.ms", "soon"),
            ("cleanup.policy", "burn"),
        ] {
            if tells {
                let failure = stage.client.alter_configs(&topic, &[(name, value)], &[]);
                let failure = failure.expect_err("that is no config");
                assert_eq!(
                    failure.name, "INVALID_CONFIG",
                    "{name}={value}: {failure:?}"
                );
            }
            let fresh = format!("{topic}-{}", name.replace('.', "-"));
            let failure = stage.client.try_create_topic(&fresh, 1, &[(name, value)]);
            let failure = failure.expect_err("that is no config");
            assert_eq!(
                failure.name, "INVALID_CONFIG",
                "{name}={value}: {failure:?}"
            );
        }
        if tells {
            let none = format!("{topic}-none");
            let failure = stage.client.alter_configs(&none, &change, &[]);
            let failure = failure.expect_err("there is no such topic");
            assert_eq!(failure.name, "UNKNOWN_TOPIC_OR_PARTITION");
        }
    }
);

scenario!(
    partitions_grow,
    PLAIN,
    |kind| kind.can(Can::CreatePartitions),
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        stage.client.create_topic(&topic, 3, &[]);
        stage.client.producer("p", json!({}));
        let records: Vec<NewRecord> = (0..30)
            .map(|n| NewRecord::new("key", &n.to_string()).to(n % 3))
            .collect();
        stage.client.send("p", &topic, &records);
        stage.client.close_producer("p");
        stage
            .client
            .create_partitions(&topic, 6)
            .expect("twice as many partitions");
        until("the partitions are there", || {
            let described = stage.client.describe_topic(&topic).ok()?;
            (described.partitions.len() == 6).then_some(())
        });
        for count in [6, 3] {
            let failure = stage.client.create_partitions(&topic, count);
            let failure = failure.expect_err("that is no growth");
            assert_eq!(failure.name, "INVALID_PARTITIONS");
        }
        // Any larger number will do.
        stage
            .client
            .create_partitions(&topic, 7)
            .expect("one partition more");
        until("the seventh partition is there", || {
            let described = stage.client.describe_topic(&topic).ok()?;
            (described.partitions.len() == 7).then_some(())
        });
        let failure = stage.client.create_partitions(&format!("{topic}-none"), 6);
        let failure = failure.expect_err("there is no such topic");
        assert_eq!(failure.name, "UNKNOWN_TOPIC_OR_PARTITION");
        // Old records where they were, new ones in the new partitions.
        stage.client.producer("p", json!({}));
        let records: Vec<NewRecord> = (30..60)
            .map(|n| NewRecord::new("key", &n.to_string()).to(n % 7))
            .collect();
        stage.client.send("p", &topic, &records);
        stage.client.consumer("c", json!({}));
        stage
            .client
            .assign("c", &topic, &[0, 1, 2, 3, 4, 5, 6], json!("beginning"));
        for record in stage.client.read("c", 60) {
            let n: i32 = record.text().parse().expect("a number");
            let partition = if n < 30 { n % 3 } else { n % 7 };
            assert_eq!(record.partition, partition, "{n}");
        }
    }
);

scenario!(
    groups_are_administered,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let (topic, group) = (stage.topic.clone(), stage.group.clone());
        let kind = stage.client.kind;
        stage.client.create_topic(&topic, 2, &[]);
        stage
            .client
            .consumer("member", json!({"group": group, "session_ms": 6_000}));
        stage.client.subscribe("member", &topic);
        until("the group has a member", || {
            (stage.client.poll("member").assignment.len() == 2).then_some(())
        });
        stage
            .client
            .commit("member", &topic, &[(0, 0, "zero"), (1, 5, "five")]);

        let listed = stage.client.list_groups();
        let listed = listed.iter().find(|each| each.group == group);
        assert_eq!(
            listed.expect("the group is listed").protocol_type,
            "consumer"
        );
        if kind.can(Can::DescribeGroups) {
            let described = stage.client.describe_group(&group).expect("the group");
            assert_eq!(described.state, "Stable");
            assert_eq!(described.strategy, "range");
            assert_eq!(described.members.len(), 1);
            let member = &described.members[0];
            assert_eq!(member.client, "member");
            let mut parts: Vec<(&str, i32)> = member
                .assignment
                .iter()
                .map(|part| (part.topic.as_str(), part.partition))
                .collect();
            parts.sort_unstable();
            assert_eq!(parts, [(topic.as_str(), 0), (topic.as_str(), 1)]);
        }
        if kind.can(Can::DeleteGroups) {
            let failure = stage
                .client
                .delete_group(&group)
                .expect_err("it has a member");
            assert_eq!(failure.name, "NON_EMPTY_GROUP");
        }
        if kind.can(Can::DeleteOffsets) {
            let failure = stage.client.delete_offsets(&group, &topic, &[0]);
            let failure = failure.expect_err("the member is subscribed");
            assert_eq!(failure.name, "GROUP_SUBSCRIBED_TO_TOPIC");
        }
        if kind.can(Can::GroupOffsets) {
            let offsets = stage.client.group_offsets(&group);
            let offsets: Vec<(i32, i64, Option<&str>)> = offsets
                .iter()
                .map(|each| (each.partition, each.offset, each.metadata.as_deref()))
                .collect();
            assert_eq!(offsets, [(0, 0, Some("zero")), (1, 5, Some("five"))]);
        }

        stage.client.close_consumer("member");
        if kind.can(Can::DescribeGroups) {
            until("the group is empty", || {
                let described = stage.client.describe_group(&group).ok()?;
                (described.state == "Empty" && described.members.is_empty()).then_some(())
            });
        }
        if kind.can(Can::DeleteOffsets) {
            stage
                .client
                .delete_offsets(&group, &topic, &[0])
                .expect("an offset can be deleted");
            let offsets = stage.client.group_offsets(&group);
            let left: Vec<i32> = offsets.iter().map(|each| each.partition).collect();
            assert_eq!(left, [1]);
        }
        if kind.can(Can::DeleteGroups) {
            until("the group can be deleted", || {
                stage.client.delete_group(&group).ok()
            });
            assert!(
                stage
                    .client
                    .list_groups()
                    .iter()
                    .all(|each| each.group != group)
            );
            let failure = stage.client.delete_group(&group).expect_err("it is gone");
            assert_eq!(failure.name, "GROUP_ID_NOT_FOUND");
            stage.client.consumer("later", json!({"group": group}));
            stage
                .client
                .assign("later", &topic, &[0], json!("beginning"));
            if kind.can(Can::Assign) {
                assert!(stage.client.committed("later", &topic, &[0, 1]).is_empty());
            }
        }
    }
);

scenario!(
    records_are_deleted,
    PLAIN,
    |kind| kind.can(Can::DeleteRecords),
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        stage.client.create_topic(&topic, 2, &[]);
        stage.client.producer("p", json!({"linger_ms": 300}));
        let records: Vec<NewRecord> = (0..40)
            .map(|n| NewRecord::new("key", &n.to_string()).to(0))
            .collect();
        stage.client.send("p", &topic, &records);
        // Inside a batch.
        let low = stage
            .client
            .delete_records(&topic, 0, 15)
            .expect("records can be deleted");
        assert!(low.is_none_or(|low| low == 15), "{low:?}");
        let earliest = stage.client.list_offsets(&topic, 0, "earliest");
        assert_eq!(earliest.expect("an offset").offset, Some(15));
        let latest = stage.client.list_offsets(&topic, 0, "latest");
        assert_eq!(latest.expect("an offset").offset, Some(40));
        stage.client.consumer("c", json!({"reset": "earliest"}));
        stage.client.assign("c", &topic, &[0], json!("beginning"));
        let read = stage.client.read("c", 25);
        assert_eq!((read[0].offset, read[24].offset), (15, 39));
        // Whoever asks for what is gone starts at what is left.
        stage.client.assign("c", &topic, &[0], json!(3));
        assert_eq!(stage.client.read("c", 25)[0].offset, 15);
        // Less than was deleted already changes nothing, more than there is is refused.
        let low = stage
            .client
            .delete_records(&topic, 0, 10)
            .expect("nothing to delete");
        assert!(low.is_none_or(|low| low == 15), "{low:?}");
        let failure = stage.client.delete_records(&topic, 0, 41);
        let failure = failure.expect_err("there are only 40");
        assert_eq!(failure.name, "OFFSET_OUT_OF_RANGE");
        // All: -1 is the end.
        let low = stage
            .client
            .delete_records(&topic, 0, -1)
            .expect("all can be deleted");
        assert!(low.is_none_or(|low| low == 40), "{low:?}");
        let place = stage
            .client
            .send("p", &topic, &[NewRecord::new("key", "next").to(0)]);
        assert_eq!(place[0].offset, 40, "offsets go on");
        let failure = stage.client.delete_records(&format!("{topic}-none"), 0, 1);
        failure.expect_err("there is no such topic");
    }
);
