//! Consumer groups: members come and go.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::common::session::{Failure, Polled};
use crate::common::{Can, Kind, NewRecord, Read, Session, murmur2_partition, until};
use crate::stage::{Stage, anyone, scenario};

const PARTITIONS: i32 = 6;

/// A member in a process of its own, as members are.
struct Member {
    name: String,
    session: Session,
    last: Option<Polled>,
    /// Why its last poll or commit failed, if it did.
    trouble: Option<Failure>,
}

impl Member {
    /// Polls once and commits what came; the values.
    fn poll(&mut self, topic: &str) -> Vec<String> {
        let polled = match self.session.try_poll(&self.name, 300) {
            Ok(polled) => polled,
            Err(failure) => {
                self.trouble = Some(failure);
                return Vec::new();
            }
        };
        let mut offsets: BTreeMap<i32, i64> = BTreeMap::new();
        for record in &polled.records {
            offsets.insert(record.partition, record.offset + 1);
        }
        let offsets: Vec<(i32, i64, &str)> = offsets
            .iter()
            .map(|(partition, offset)| (*partition, *offset, "read"))
            .collect();
        if !offsets.is_empty() {
            // Refused in a rebalance: the records come again.
            let committed = self.session.try_commit(&self.name, topic, &offsets);
            self.trouble = committed.err();
        }
        let values = polled.records.iter().map(Read::text).collect();
        self.last = Some(polled);
        values
    }

    fn held(&self) -> BTreeSet<i32> {
        let parts = self.last.iter().flat_map(|polled| &polled.assignment);
        parts.map(|part| part.partition).collect()
    }
}

impl Drop for Member {
    /// In a failing test, says how far the member got.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (held, trouble) = (self.held(), &self.trouble);
            eprintln!(
                "member {} held {held:?}; its trouble: {trouble:?}",
                self.name
            );
        }
    }
}

/// A group and its members.
pub struct Group<'a> {
    pub stage: &'a mut Stage,
    strategy: &'static str,
    /// Of the topic.
    partitions: usize,
    members: Vec<Member>,
    /// How often each value was read.
    seen: BTreeMap<String, u32>,
    sent: usize,
}

impl<'a> Group<'a> {
    pub fn new(stage: &'a mut Stage, strategy: &'static str) -> Self {
        stage.client.create_topic(&stage.topic, PARTITIONS, &[]);
        stage.client.producer("p", json!({}));
        Self {
            stage,
            strategy,
            partitions: PARTITIONS as usize,
            members: Vec::new(),
            seen: BTreeMap::new(),
            sent: 0,
        }
    }

    pub fn send(&mut self, count: usize) {
        let records: Vec<NewRecord> = (self.sent..self.sent + count)
            .map(|n| NewRecord::new(&n.to_string(), &n.to_string()))
            .collect();
        self.stage.client.send("p", &self.stage.topic, &records);
        self.sent += count;
    }

    pub fn join(&mut self, name: &str, more: Value) {
        let mut settings = json!({"group": self.stage.group, "strategy": self.strategy});
        for (name, value) in more.as_object().expect("settings") {
            settings[name] = value.clone();
        }
        let mut session = Session::open(self.stage.client.kind, &self.stage.broker);
        session.consumer(name, settings);
        session.subscribe(name, &self.stage.topic);
        self.members.push(Member {
            name: name.to_owned(),
            session,
            last: None,
            trouble: None,
        });
    }

    /// Gives the topic more partitions.
    pub fn grow(&mut self, partitions: i32) {
        let grown = self
            .stage
            .client
            .create_partitions(&self.stage.topic, partitions);
        grown.expect("partitions can be added");
        self.partitions = partitions as usize;
    }

    fn remove(&mut self, name: &str) -> Member {
        let at = self.members.iter().position(|each| each.name == name);
        self.members.remove(at.expect("there is such a member"))
    }

    /// A member goes, and says so.
    pub fn leave(&mut self, name: &str) {
        self.remove(name).session.close_consumer(name);
    }

    /// A member dies with its process.
    pub fn die(&mut self, name: &str) {
        drop(self.remove(name));
    }

    pub fn last(&self, name: &str) -> &Polled {
        let member = self.members.iter().find(|each| each.name == name);
        let last = member.and_then(|member| member.last.as_ref());
        last.expect("the member has polled")
    }

    /// Polls all members once, at the same time.
    pub fn poll(&mut self) {
        let topic = &self.stage.topic;
        std::thread::scope(|scope| {
            let polls: Vec<_> = self
                .members
                .iter_mut()
                .map(|member| scope.spawn(|| member.poll(topic)))
                .collect();
            for poll in polls {
                for value in poll.join().expect("a member polls") {
                    *self.seen.entry(value).or_default() += 1;
                }
            }
        });
    }

    /// Polls until the members hold that many partitions each, all different, and all records sent
    /// so far were read.
    pub fn settle(&mut self, sizes: &[usize]) {
        let total: usize = sizes.iter().sum();
        assert_eq!(total, self.partitions);
        until(&format!("{} has {sizes:?}", self.stage.name), || {
            self.poll();
            let held: Vec<BTreeSet<i32>> = self.members.iter().map(Member::held).collect();
            let counts: Vec<usize> = held.iter().map(BTreeSet::len).collect();
            let all: BTreeSet<i32> = held.into_iter().flatten().collect();
            let settled = counts == sizes && all.len() == total;
            (settled && self.seen.len() == self.sent).then_some(())
        });
    }

    pub fn rebalances(&mut self) {
        self.join("a", json!({}));
        self.send(60);
        self.settle(&[6]);
        self.join("b", json!({}));
        self.settle(&[3, 3]);
        self.send(60);
        self.settle(&[3, 3]);
        self.join("c", json!({}));
        self.settle(&[2, 2, 2]);
        self.send(60);
        self.leave("a");
        self.settle(&[3, 3]);
        self.leave("b");
        self.send(60);
        self.settle(&[6]);
        self.leave("c");
        let expected: BTreeSet<String> = (0..self.sent).map(|n| n.to_string()).collect();
        let seen: BTreeSet<String> = self.seen.keys().cloned().collect();
        assert_eq!(seen, expected);
    }
}

scenario!(range_rebalances, PLAIN, anyone, |stage: &mut Stage| {
    let mut group = Group::new(stage, "range");
    group.rebalances();
});

scenario!(
    cooperative_rebalances,
    PLAIN,
    |kind| kind.can(Can::Cooperative),
    |stage: &mut Stage| {
        let mut group = Group::new(stage, "cooperative");
        group.rebalances();
        // Nobody's partitions are taken without need, so commits succeed and nothing comes twice
        // but what was under way when a partition moved.
        let twice = group.seen.values().filter(|count| **count > 1).count();
        assert!(
            twice <= group.sent / 2,
            "{twice} of {} were read twice",
            group.sent
        );
    }
);

scenario!(
    static_members_keep_their_partitions,
    PLAIN,
    |kind| kind.can(Can::Static),
    |stage: &mut Stage| {
        let mut group = Group::new(stage, "range");
        group.join("a", json!({"instance": "first", "session_ms": 30_000}));
        group.join("b", json!({"instance": "second", "session_ms": 30_000}));
        group.send(60);
        group.settle(&[3, 3]);
        let held = group.last("b").assignment.clone();
        let before = group.last("a").clone();
        // The second member's process dies and comes back within the session: as it was, and
        // nobody else notices.
        group.die("b");
        group.join("b2", json!({"instance": "second", "session_ms": 30_000}));
        group.settle(&[3, 3]);
        assert_eq!(group.last("b2").assignment, held);
        let after = group.last("a");
        assert_eq!(after.assignment, before.assignment);
        assert_eq!(after.assigned, before.assigned, "no rebalance");
        assert_eq!(after.revoked, before.revoked, "no rebalance");
        if group.stage.client.kind.can(Can::DescribeGroups) {
            let described = group.stage.client.describe_group(&group.stage.group);
            assert_eq!(described.expect("the group").members.len(), 2);
        }
    }
);

scenario!(
    commits_survive_the_client,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let (topic, group) = (stage.topic.clone(), stage.group.clone());
        stage.client.create_topic(&topic, 2, &[]);
        stage.client.producer("p", json!({}));
        let records: Vec<NewRecord> = (0..40)
            .map(|n| NewRecord::new("key", &n.to_string()).to(n % 2))
            .collect();
        stage.client.send("p", &topic, &records);
        let settings = json!({"group": group, "session_ms": 6_000});
        stage.client.consumer("first", settings.clone());
        stage.client.subscribe("first", &topic);
        stage.client.read("first", 40);
        stage
            .client
            .commit("first", &topic, &[(0, 7, "seven, done"), (1, 20, "")]);
        let check = |stage: &mut Stage, consumer: &str| {
            let found = stage.client.committed(consumer, &topic, &[0, 1]);
            let found: Vec<(i32, i64)> = found
                .iter()
                .map(|each| (each.partition, each.offset))
                .collect();
            assert_eq!(found, [(0, 7), (1, 20)]);
            if stage.client.kind.can(Can::Metadata) {
                let found = stage.client.committed(consumer, &topic, &[0]);
                assert_eq!(found[0].metadata.as_deref(), Some("seven, done"));
            }
        };
        check(stage, "first");
        stage.client.close_consumer("first");
        stage.renew_client();
        stage.client.consumer("second", settings);
        stage.client.subscribe("second", &topic);
        let read = stage.client.read("second", 13);
        let offsets: Vec<(i32, i64)> = read
            .iter()
            .map(|each| (each.partition, each.offset))
            .collect();
        let expected: Vec<(i32, i64)> = (7..20).map(|offset| (0, offset)).collect();
        assert_eq!(offsets, expected);
        check(stage, "second");
        // A partition without a commit has none.
        stage.client.close_consumer("second");
        stage
            .client
            .consumer("other", json!({"group": format!("{group}-other")}));
        stage
            .client
            .assign("other", &topic, &[0], json!("beginning"));
        if stage.client.kind.can(Can::Assign) {
            assert!(stage.client.committed("other", &topic, &[0]).is_empty());
        }
        // Outside a group's membership, offsets can be committed, too.
        stage.client.commit("other", &topic, &[(0, 3, "alone")]);
        assert_eq!(stage.client.committed("other", &topic, &[0])[0].offset, 3);
    }
);

scenario!(
    a_dead_member_is_replaced,
    PLAIN,
    // librdkafka is in this process, and says goodbye.
    |kind| kind != Kind::Librdkafka,
    |stage: &mut Stage| {
        let mut group = Group::new(stage, "range");
        group.join("living", json!({"session_ms": 6_000}));
        group.settle(&[6]);
        group.join("dying", json!({"session_ms": 1_000}));
        group.settle(&[3, 3]);
        let kept: BTreeSet<i32> = group.members[0].held();
        group.die("dying");
        // Its session expires, and the other gets all partitions and all records.
        group.send(60);
        group.settle(&[6]);
        // A commit of what it had already may have fallen into the rebalance; the rest it first saw then.
        for (value, count) in &group.seen {
            let partition = murmur2_partition(value.as_bytes(), PARTITIONS);
            assert!(
                *count == 1 || kept.contains(&partition),
                "{value} of partition {partition} was read {count} times"
            );
        }
    }
);
