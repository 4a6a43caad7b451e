//! The broker is killed without warning and comes back: clients go on by themselves.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use serde_json::json;
use tokio::net::TcpSocket;

use crate::common::{Broker, Can, NewRecord, Read, Setup, until};
use crate::producing::read_back;
use crate::stage::{Stage, anyone, scenario};

#[test]
fn nobody_is_given_the_port_of_a_broker_that_is_down() {
    let started = Broker::start(
        "nobody_is_given_the_port_of_a_broker_that_is_down",
        Setup::KILLED,
    );
    let Some(mut broker) = started else { return };
    broker.kill();
    // Without the option that brokers set; the system gives ports by the same rule.
    let other = TcpSocket::new_v4().expect("a socket");
    let refused = other.bind(broker.bootstrap().parse().expect("an address"));
    assert_eq!(
        refused.expect_err("the port is kept").kind(),
        ErrorKind::AddrInUse
    );
    broker.restart();
}

scenario!(
    a_killed_broker_loses_nothing,
    KILLED,
    anyone,
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        stage.client.create_topic(&topic, 2, &[]);
        stage.client.producer(
            "p",
            json!({"acks": "all", "idempotent": true, "linger_ms": 5}),
        );
        stage.client.consumer("c", json!({}));
        stage
            .client
            .assign("c", &topic, &[0, 1], json!("beginning"));
        let mut seen: Vec<Read> = Vec::new();
        let mut sent = 0;
        for round in 0..3 {
            let records: Vec<NewRecord> = (sent..sent + 50)
                .map(|n| NewRecord::new(&n.to_string(), &n.to_string()))
                .collect();
            // All of these are acknowledged, so none may be lost.
            stage.client.send("p", &topic, &records);
            sent += 50;
            if round == 1 {
                until("records before the kill", || {
                    seen.extend(stage.client.try_poll("c", 200).ok()?.records);
                    (seen.len() == sent).then_some(())
                });
            }
            stage.broker.kill();
            stage.broker.restart();
        }
        until("records after the kills", || {
            // A poll may fail while the connection is new.
            seen.extend(stage.client.try_poll("c", 200).ok()?.records);
            (seen.len() >= sent).then_some(())
        });
        let expected: BTreeSet<String> = (0..sent).map(|n| n.to_string()).collect();
        let values: BTreeSet<String> = seen.iter().map(Read::text).collect();
        assert_eq!(values, expected);
        assert_eq!(seen.len(), sent, "the consumer saw nothing twice");
        // The producer goes on with the same sequence.
        stage
            .client
            .send("p", &topic, &[NewRecord::new("last", "last")]);
        let read = read_back(stage, &topic, &[0, 1], sent + 1);
        let values: BTreeSet<String> = read.iter().map(Read::text).collect();
        assert_eq!(values.len(), sent + 1, "nothing is stored twice");
    }
);

scenario!(
    a_killed_broker_keeps_its_groups,
    KILLED,
    anyone,
    |stage: &mut Stage| {
        let (topic, group) = (stage.topic.clone(), stage.group.clone());
        stage.client.create_topic(&topic, 4, &[]);
        stage.client.producer("p", json!({}));
        let send = |stage: &mut Stage, from: usize| {
            let records: Vec<NewRecord> = (from..from + 40)
                .map(|n| NewRecord::new(&n.to_string(), &n.to_string()))
                .collect();
            stage.client.send("p", &topic, &records);
        };
        send(stage, 0);
        for member in ["a", "b"] {
            stage
                .client
                .consumer(member, json!({"group": group, "session_ms": 6_000}));
            stage.client.subscribe(member, &topic);
        }
        let mut seen = BTreeSet::new();
        let poll = |stage: &mut Stage, seen: &mut BTreeSet<String>| {
            let mut held = Vec::new();
            for member in ["a", "b"] {
                // Errors of the time without a broker pass.
                let Ok(polled) = stage.client.try_poll(member, 200) else {
                    continue;
                };
                held.extend(polled.assignment.iter().map(|part| part.partition));
                let mut offsets: Vec<(i32, i64, &str)> = Vec::new();
                for record in &polled.records {
                    offsets.retain(|(partition, ..)| *partition != record.partition);
                    offsets.push((record.partition, record.offset + 1, "kept"));
                }
                // A commit may fall into a rebalance: the records come again then.
                if !offsets.is_empty() {
                    let _ = stage.client.try_commit(member, &topic, &offsets);
                }
                seen.extend(polled.records.iter().map(Read::text));
            }
            held.sort_unstable();
            held
        };
        until("the group has all partitions and records", || {
            let held = poll(stage, &mut seen);
            (held == [0, 1, 2, 3] && seen.len() == 40).then_some(())
        });
        stage.broker.kill();
        stage.broker.restart();
        send(stage, 40);
        until("the group goes on", || {
            let held = poll(stage, &mut seen);
            (held == [0, 1, 2, 3] && seen.len() == 80).then_some(())
        });
        // What was committed is still there for a client that was not.
        stage.client.close_consumer("a");
        stage.client.close_consumer("b");
        if stage.client.kind.can(Can::GroupOffsets) {
            // An admin client may first find its old connection closed.
            let offsets = until("a group's offsets", || {
                stage.client.try_group_offsets(&group).ok()
            });
            let total: i64 = offsets.iter().map(|each| each.offset).sum();
            assert!((40..=80).contains(&total), "{total} of 80 are committed");
        }
    }
);
