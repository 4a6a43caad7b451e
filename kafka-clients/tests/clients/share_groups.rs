//! Share groups (KIP-932): members share partitions, and acknowledge record by record.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::session::Committed;
use crate::common::{NewRecord, Session, until};
use crate::stage::{Stage, anyone, scenario};

/// A record that a member has acquired.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Delivered {
    topic: String,
    partition: i32,
    offset: i64,
    value: String,
    deliveries: u32,
}

impl Delivered {
    fn place(&self) -> (i32, i64) {
        (self.partition, self.offset)
    }
}

/// Members in processes of their own.
struct Sharers<'a> {
    stage: &'a mut Stage,
    members: BTreeMap<&'static str, Session>,
}

impl<'a> Sharers<'a> {
    /// A topic, and a group that reads it from its beginning on.
    fn new(stage: &'a mut Stage, partitions: i32, configs: &[(&str, &str)]) -> Self {
        stage.client.create_topic(&stage.topic, partitions, &[]);
        stage.client.producer("p", json!({}));
        let sharers = Self {
            stage,
            members: BTreeMap::new(),
        };
        let mut set: BTreeMap<&str, &str> = configs.iter().copied().collect();
        set.insert("share.auto.offset.reset", "earliest");
        let group = sharers.stage.group.clone();
        let _: Value = sharers
            .stage
            .client
            .ask("alter_group_configs", json!({"group": group, "set": set}))
            .expect("a group's settings are altered");
        sharers
    }

    fn send(&mut self, from: usize, count: usize) {
        let records: Vec<NewRecord> = (from..from + count)
            .map(|n| NewRecord::new(&n.to_string(), &n.to_string()))
            .collect();
        self.stage.client.send("p", &self.stage.topic, &records);
    }

    fn join(&mut self, name: &'static str, max_records: u32) {
        self.join_as(name, max_records, "explicit");
    }

    /// `mode`: whether each record is acknowledged by name, or all of a poll with the next one.
    fn join_as(&mut self, name: &'static str, max_records: u32, mode: &str) {
        let mut session = Session::open(self.stage.client.kind, &self.stage.broker);
        let fields = json!({
            "consumer": name, "group": self.stage.group, "topics": [self.stage.topic],
            "max_records": max_records.to_string(), "mode": mode,
        });
        let _: Value = session.ask("share_consumer", fields).expect("it is opened");
        self.members.insert(name, session);
    }

    fn ask<T: serde::de::DeserializeOwned>(
        &mut self,
        name: &str,
        op: &str,
        mut fields: Value,
    ) -> T {
        fields["consumer"] = name.into();
        let session = self.members.get_mut(name).expect("a member");
        session
            .ask(op, fields)
            .unwrap_or_else(|failure| panic!("{name}: {op}: {failure:?}"))
    }

    fn poll(&mut self, name: &str) -> Vec<Delivered> {
        self.ask(name, "share_poll", json!({"wait_ms": 300}))
    }

    /// Says one thing of all of them.
    fn say(&mut self, name: &str, records: &[Delivered], what: &str) {
        let records: Vec<Value> = records
            .iter()
            .map(|r| json!({"topic": r.topic, "partition": r.partition, "offset": r.offset, "type": what}))
            .collect();
        let _: Value = self.ask(name, "share_acknowledge", json!({"records": records}));
    }

    fn commit(&mut self, name: &str) -> Vec<String> {
        self.ask(name, "share_commit", json!({}))
    }

    fn leave(&mut self, name: &str) {
        let _: Value = self.ask(name, "close_share_consumer", json!({}));
        self.members.remove(name);
    }

    /// Polls until it has something.
    fn some(&mut self, name: &str) -> Vec<Delivered> {
        until("records are delivered", || {
            let records = self.poll(name);
            (!records.is_empty()).then_some(records)
        })
    }

    fn offsets(&mut self) -> Vec<(i32, i64)> {
        let fields = json!({"group": self.stage.group});
        let offsets: Vec<Committed> = self
            .stage
            .client
            .ask("share_offsets", fields)
            .expect("offsets are listed");
        let mut offsets: Vec<_> = offsets.iter().map(|o| (o.partition, o.offset)).collect();
        offsets.sort_unstable();
        offsets
    }
}

scenario!(
    records_are_acknowledged_one_by_one,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let mut group = Sharers::new(stage, 1, &[("share.delivery.count.limit", "2")]);
        group.send(0, 4);
        group.join("a", 500);
        let mut first = Vec::new();
        while first.len() < 4 {
            let polled = group.some("a");
            // Explicitly, everything is acknowledged before the next poll.
            let offset = |r: &Delivered| r.offset;
            for record in &polled {
                let what = match offset(record) {
                    0 => "ACCEPT",
                    1 | 3 => "RELEASE",
                    _ => "REJECT",
                };
                group.say("a", std::slice::from_ref(record), what);
            }
            assert_eq!(group.commit("a"), Vec::<String>::new());
            first.extend(polled.into_iter().filter(|record| record.deliveries == 1));
        }
        let offsets: BTreeSet<i64> = first.iter().map(|record| record.offset).collect();
        assert_eq!(offsets, BTreeSet::from([0, 1, 2, 3]));
        // What was released comes again, and then no more: it may be delivered twice.
        let mut again = BTreeMap::new();
        group.send(4, 1);
        while !again.contains_key(&4) || again.len() < 3 {
            for record in group.some("a") {
                again.insert(record.offset, record.deliveries);
                let what = if record.offset == 4 {
                    "ACCEPT"
                } else {
                    "RELEASE"
                };
                group.say("a", std::slice::from_ref(&record), what);
            }
            assert_eq!(group.commit("a"), Vec::<String>::new());
            if group.offsets() == [(0, 5)] {
                break;
            }
        }
        assert_eq!(group.offsets(), [(0, 5)]);
        assert!(again.iter().all(|(offset, deliveries)| match offset {
            4 => *deliveries == 1,
            _ => *deliveries == 2,
        }));
        if group.stage.broker.is_kera() {
            let words = ["group", "describe", &group.stage.group];
            let told = group.stage.broker.kera(&words, b"");
            assert!(told.contains("share group"), "{told}");
        }
    }
);

scenario!(
    more_members_than_partitions_share_the_work,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let mut group = Sharers::new(stage, 1, &[]);
        group.join("a", 10);
        group.join("b", 10);
        group.join("c", 10);
        group.send(0, 200);
        let mut by_place: BTreeMap<(i32, i64), &str> = BTreeMap::new();
        let mut by_member: BTreeMap<&str, usize> = BTreeMap::new();
        until("all is read", || {
            for name in ["a", "b", "c"] {
                let records = group.poll(name);
                for record in &records {
                    let other = by_place.insert(record.place(), name);
                    assert_eq!(other, None, "{record:?} was delivered twice");
                }
                *by_member.entry(name).or_default() += records.len();
                group.say(name, &records, "ACCEPT");
                assert_eq!(group.commit(name), Vec::<String>::new());
            }
            (by_place.len() == 200).then_some(())
        });
        assert!(by_member.values().all(|count| *count > 0), "{by_member:?}");
        let fields = json!({"group": group.stage.group});
        let described: Value = group
            .stage
            .client
            .ask("share_group", fields)
            .expect("the group");
        assert_eq!(described, json!({"state": "Stable", "members": 3}));
        for name in ["a", "b", "c"] {
            group.leave(name);
        }
        assert_eq!(group.offsets(), [(0, 200)]);
    }
);

scenario!(
    the_next_poll_acknowledges_what_the_last_one_delivered,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let mut group = Sharers::new(stage, 1, &[]);
        group.send(0, 30);
        group.join_as("a", 10, "implicit");
        let mut seen = BTreeSet::new();
        while seen.len() < 30 {
            for record in group.some("a") {
                assert!(seen.insert(record.offset), "{record:?} comes again");
            }
        }
        assert_eq!(group.poll("a"), [], "nothing is left, and all was accepted");
        until("all is kept", || {
            (group.offsets() == [(0, 30)]).then_some(())
        });
        // What the last poll delivered is not acknowledged yet when its member dies.
        group.send(30, 5);
        let held = group.some("a");
        group.members.remove("a");
        group.join_as("b", 500, "implicit");
        let mut again = BTreeMap::new();
        while again.len() < 5 {
            let records = group.some("b");
            again.extend(records.iter().map(|r| (r.offset, r.deliveries)));
        }
        assert!(again.keys().eq(&[30, 31, 32, 33, 34]), "{again:?}");
        assert!(held.iter().all(|record| again[&record.offset] == 2));
        // So does a commit.
        assert_eq!(group.commit("b"), Vec::<String>::new());
        assert_eq!(group.offsets(), [(0, 35)]);
    }
);

scenario!(
    a_member_renews_the_locks_of_what_takes_long,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let mut group = Sharers::new(stage, 1, &[]);
        group.send(0, 1);
        group.join("a", 500);
        let held = group.some("a");
        group.join("b", 500);
        for _ in 0..2 {
            group.say("a", &held, "RENEW");
            assert_eq!(group.commit("a"), Vec::<String>::new());
            assert_eq!(group.poll("b"), [], "it is still locked");
            // It stays with its member, whose next poll has it again: that is no other delivery.
            assert_eq!(group.some("a"), held);
        }
        assert_eq!(held[0].deliveries, 1);
        group.say("a", &held, "ACCEPT");
        assert_eq!(group.commit("a"), Vec::<String>::new());
        assert_eq!(group.offsets(), [(0, 1)]);
    }
);

scenario!(
    what_is_not_acknowledged_comes_again,
    KILLED,
    anyone,
    |stage: &mut Stage| {
        let mut group = Sharers::new(stage, 2, &[("share.record.lock.duration.ms", "15000")]);
        group.send(0, 20);
        group.join("a", 500);
        let held = group.some("a");
        // A member dies with its locks.
        group.members.remove("a");
        group.join("b", 500);
        let mut seen: BTreeMap<(i32, i64), u32> = BTreeMap::new();
        until("all comes again", || {
            let records = group.poll("b");
            seen.extend(records.iter().map(|r| (r.place(), r.deliveries)));
            group.say("b", &records, "ACCEPT");
            assert_eq!(group.commit("b"), Vec::<String>::new());
            (seen.len() == 20).then_some(())
        });
        for record in &held {
            assert!(
                seen[&record.place()] >= 2,
                "{record:?} was delivered before"
            );
        }
        // What was accepted stays so over a kill of the broker, and what comes then is read.
        group.stage.broker.kill();
        group.stage.broker.restart();
        group.send(20, 5);
        let mut after = BTreeSet::new();
        until("the rest is read", || {
            let records = group.poll("b");
            for record in &records {
                assert!(
                    !seen.contains_key(&record.place()),
                    "{record:?} was accepted"
                );
                after.insert(record.place());
            }
            group.say("b", &records, "ACCEPT");
            group.commit("b");
            (after.len() == 5).then_some(())
        });
        group.leave("b");
        // Operators set where an empty group begins.
        let fields = json!({
            "group": group.stage.group, "topic": group.stage.topic, "partition": 0, "offset": 1,
        });
        let set: Result<Value, _> = group.stage.client.ask("set_share_offset", fields);
        set.expect("the offset is set");
        assert_eq!(group.offsets()[0], (0, 1));
        group.join("d", 500);
        let records = group.some("d");
        assert_eq!(records.iter().map(Delivered::place).min(), Some((0, 1)));
    }
);
