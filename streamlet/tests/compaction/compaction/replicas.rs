//! Compaction where other brokers have replicas: what they have before a record names it, and what stays meanwhile.

use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::group::{AckPolicy, Group, GroupSpec};
use kera_log_segments::io::OpenHow;
use kera_log_segments::replicas::Mending;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp};
use kera_protocol::ids::{BrokerId, Epoch, GroupId, LaneId};
use kera_records::{GroupRecord, Replica};
use kera_streamlet::{CompactError, CompactSpec, Compacted, Copies, Ship, ShipError, Shipped};

use super::super::support::batches::plain;
use super::super::support::{LANE, Machine, Node};
use super::{
    DELETE_RETENTION, assert_same, close, closed_end, compact, read_all, small, some_groups, spec,
};

/// Whose lanes take nothing more.
#[derive(Default)]
struct Elsewhere {
    /// Gives a group's file back.
    fetch: Option<Box<dyn Fn(GroupId) -> bool + Send + Sync>>,
}

impl Copies for Elsewhere {
    fn next_group(&self, _: LaneId, _: AckPolicy) -> GroupId {
        unreachable!("nothing is appended")
    }
    fn begin(&self, _: LaneId, _: &Arc<Group>) {}
    fn deleted(&self, _: &[(GroupId, Epoch, u32)]) {}
    fn mend(&self, group: GroupId) -> Mending {
        match &self.fetch {
            Some(fetch) if fetch(group) => Mending::Done,
            _ => Mending::Nowhere,
        }
    }
    fn abandon(&self) {}
}

type Shipping<'a> = dyn Fn(&GroupRecord) -> Result<Vec<Replica>, ShipError> + Sync + 'a;

/// Other brokers.
struct Brokers<'a>(&'a Shipping<'a>);

impl Ship for Brokers<'_> {
    fn ship(
        &self,
        record: &GroupRecord,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Shipped, ShipError> {
        assert!(goes_on());
        let copies = (self.0)(record)?;
        let hold = Box::new(());
        Ok(Shipped { copies, hold })
    }

    fn may_fetch(&self, bytes: u64, goes_on: &mut dyn FnMut() -> bool) -> Result<(), ShipError> {
        assert!(bytes > 0 && goes_on());
        Ok(())
    }
}

fn compact_with(
    node: &Node,
    now: i64,
    shipping: &Shipping<'_>,
) -> Result<Option<Compacted>, CompactError> {
    let (spec, brokers) = (spec(now, 1 << 20), Brokers(shipping));
    let streamlet = &node.streamlet;
    streamlet.compact_lane(LANE, &spec, Some(&brokers), &mut |_| true)
}

#[test]
fn other_brokers_have_what_is_rewritten_before_a_record_names_them() {
    let (machine, node, mut model) = some_groups(11);
    node.streamlet.serve(Arc::new(Elsewhere::default()));
    let now = node.now_ms as i64;
    let fault = machine.fault.clone().expect("a fault engine");
    let alone = compact(&node, &spec(now, 1 << 20));
    assert!(matches!(alone, Err(CompactError::Changed)), "{alone:?}");
    for why in [ShipError::Stopped, ShipError::TooFew("one is away".into())] {
        let ended = compact_with(&node, now, &|_| Err(why.clone()));
        match ended {
            Err(CompactError::Stopped) => assert_eq!(why, ShipError::Stopped),
            Err(CompactError::Replicas(told)) => assert_eq!(told, "one is away"),
            other => panic!("{other:?}"),
        }
        assert_same(&read_all(&node).0, &model.written, "the lane");
        assert_eq!(fault.paths().len(), node.streamlet.groups());
    }
    let replicas = [1, 7].map(|broker| Replica {
        broker: BrokerId(broker),
        incarnation: node.streamlet.incarnation(),
    });
    let done = compact_with(&node, now, &|record| {
        let name = GroupSpec::file_name(record.group, record.generation);
        let there = fault.paths().iter().any(|path| path.ends_with(&name));
        assert!(there, "{name} is made");
        let recorded = machine.store.closed(record.group.0).expect("a group");
        assert_eq!((record.generation, recorded.generation), (1, 0));
        assert_eq!(record.end_ordinal, recorded.end_ordinal);
        Ok(replicas.to_vec())
    });
    let done = done.expect("a pass").expect("something to do");
    assert!(done.groups_after < done.groups_before, "{done:?}");
    for group in &node.streamlet.describe()[0].groups {
        let settled = [0, 1].map(|made| node.streamlet.is_settled(LANE, group.group, made));
        assert_eq!(settled, [false, true], "what it replaced may be gone");
        let recorded = machine.store.closed(group.group.0).expect("a group");
        assert_eq!(
            (recorded.generation, &recorded.copies[..]),
            (1, &replicas[..])
        );
    }
    model.compact(closed_end(&node), now);
    assert_same(&read_all(&node).0, &model.written, "the lane");
}

/// The broker loses the streamlet while a file is on its way to others, and may own it again before the pass ends: a recorded
/// file may have the name by then.
#[test]
fn a_pass_whose_broker_lost_the_streamlet_removes_nothing() {
    let (machine, node, _) = some_groups(11);
    node.streamlet.serve(Arc::new(Elsewhere::default()));
    let fault = machine.fault.clone().expect("a fault engine");
    let (now, before) = (node.now_ms as i64, fault.paths().len());
    let ended = compact_with(&node, now, &|_| {
        node.streamlet.mark_moved();
        Err(ShipError::TooFew("one is away".into()))
    });
    assert!(matches!(ended, Err(CompactError::Replicas(_))), "{ended:?}");
    assert_eq!(fault.paths().len(), before + 1, "its file stays");
}

#[test]
fn tombstones_stay_while_others_may_answer_from_what_was_replaced() {
    let mut machine = Machine::fault(2);
    let mut node = machine.create(small(AckPolicy::Written, 2));
    let record = |value: Option<&[u8]>| {
        let mut builder = BatchBuilder::new();
        let record = NewRecord {
            key: Some(b"a"),
            value,
            ..NewRecord::default()
        };
        builder.push(&record).expect("room");
        let built = builder.finish(Compression::None, ProducerStamp::NONE);
        built.expect("records").to_vec()
    };
    node.append(0, &mut record(Some(b"12345678")));
    node.append(0, &mut record(None));
    let mut tombstones = Vec::new();
    for quiet in [
        Duration::from_secs(3600),
        Duration::from_secs(3600),
        Duration::ZERO,
    ] {
        close(&node);
        let spec = CompactSpec {
            quiet,
            ..spec(node.now_ms as i64, 1 << 20)
        };
        compact(&node, &spec).expect("a pass").expect("work");
        let log = read_all(&node).0;
        tombstones.push(log.values().any(|record| record.value.is_none()));
        assert!(!log.contains_key(&0), "an older value is left");
        node.now_ms += 2 * DELETE_RETENTION;
        let mut other = BatchBuilder::new();
        let filler = NewRecord {
            key: Some(b"b"),
            value: Some(b"12345678"),
            ..NewRecord::default()
        };
        other.push(&filler).expect("room");
        let other = other.finish(Compression::None, ProducerStamp::NONE);
        node.append(0, &mut other.expect("records").to_vec());
    }
    assert_eq!(tombstones, [true, true, false]);
}

#[test]
fn files_of_other_generations_are_nobodys_unless_a_pass_is_under_way() {
    let (machine, node, _) = some_groups(12);
    let now = node.now_ms as i64;
    compact(&node, &spec(now, 1 << 20))
        .expect("a pass")
        .expect("work");
    let group = node.streamlet.describe()[0].groups[0].group;
    let io = node.streamlet.io();
    let file = |generation| machine.dir().join(GroupSpec::file_name(group, generation));
    let make = |generation: u32| {
        let made = io.open(&file(generation), OpenHow::CreateNew, false);
        drop(made.expect("a file"));
    };
    let recorded = || {
        let groups = node.streamlet.describe().remove(0).groups.into_iter();
        groups
            .map(|group| (group.group, group.generation))
            .collect()
    };
    assert!(node.streamlet.strays().expect("a directory").is_empty());
    // What it was made of, what a pass did not end, and what is fetched at this moment.
    [0, 2, 1 << 31].into_iter().for_each(make);
    let strays = node.streamlet.strays().expect("a directory");
    assert_eq!(node.streamlet.remove_strays(&strays, &recorded()), 2);
    let there = [0, 1, 2, 1 << 31].map(|generation| io.exists(&file(generation)));
    assert_eq!(there, [false, true, false, true]);

    make(2);
    let strays = node.streamlet.strays().expect("a directory");
    node.append(0, &mut plain(0..1, 10));
    close(&node);
    let mut removed = None;
    let pass = node
        .streamlet
        .compact_lane(LANE, &spec(now, 1 << 20), None, &mut |_| {
            removed.get_or_insert_with(|| node.streamlet.remove_strays(&strays, &recorded()));
            true
        });
    assert!(pass.expect("a pass").is_some());
    assert_eq!(removed, Some(0), "it may be the pass's");
}

#[test]
fn history_that_is_not_here_yet_is_fetched_before_it_is_compacted() {
    let (machine, node, mut model) = some_groups(13);
    let (io, dir) = (node.streamlet.io(), machine.dir().to_owned());
    let groups = node.streamlet.describe().remove(0).groups;
    let closed: Vec<_> = groups.iter().filter(|group| group.closed).collect();
    let path = move |group| dir.join(GroupSpec::file_name(group, 0));
    let kept = |group| path(group).with_extension("kept");
    for group in &closed {
        let (from, to) = (path(group.group), kept(group.group));
        io.rename(&from, &to).expect("a file");
    }
    let (fetched, store) = (path.clone(), io.clone());
    node.streamlet.serve(Arc::new(Elsewhere {
        fetch: Some(Box::new(move |group| {
            let path = fetched(group);
            store.rename(&path.with_extension("kept"), &path).is_ok()
        })),
    }));
    let now = node.now_ms as i64;
    let replica = Replica {
        broker: BrokerId(1),
        incarnation: node.streamlet.incarnation(),
    };
    let done = compact_with(&node, now, &|_| Ok(vec![replica]));
    let done = done.expect("a pass").expect("something to do");
    assert_eq!(done.groups_before, closed.len() as u64);
    model.compact(closed_end(&node), now);
    assert_same(&read_all(&node).0, &model.written, "the lane");
}
