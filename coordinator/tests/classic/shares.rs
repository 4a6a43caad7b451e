//! Share groups at their coordinator.

use kera_coordinator::classic::consumer::{ConsumerBeat, ConsumerDescription, ShareHeartbeat};
use kera_coordinator::classic::shares::{
    Reset, ShareConfig, ShareConfigure, ShareOpen, ShareOpened, ShareSetOffsets, ShareWrite,
};
use kera_coordinator::classic::{CommitOffsets, Fault, GroupState, Reply, Request};
use kera_coordinator::share::ShareState;

use crate::driver::{GROUP, World, replay};

impl World {
    fn share_beat(&mut self, member: &str, epoch: i32) -> Result<ConsumerBeat, Fault> {
        let request = ShareHeartbeat {
            group: GROUP.into(),
            member: member.into(),
            epoch,
            topics: (epoch == 0).then(|| vec!["s".into()]),
            client_id: "client".into(),
            client_host: "/127.0.0.1".into(),
            ..ShareHeartbeat::default()
        };
        match self.call(Request::ShareHeartbeat(request)) {
            Reply::ConsumerBeat(beat) => Ok(beat),
            Reply::Refused(fault) => Err(fault),
            other => panic!("a heartbeat was answered with {other:?}"),
        }
    }

    fn share_described(&mut self) -> Result<ConsumerDescription, Fault> {
        match self.call(Request::ShareDescribe(GROUP.into())) {
            Reply::ConsumerDescribed(found) => Ok(found),
            Reply::Refused(fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, partition: u32, owner_epoch: u32) -> Result<ShareOpened, Fault> {
        let request = ShareOpen {
            group: GROUP.into(),
            stream: self.stream(),
            partition,
            owner_epoch,
        };
        match self.call(Request::ShareOpen(request)) {
            Reply::ShareOpened(opened) => Ok(opened),
            Reply::Refused(fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, state_epoch: u64, state: ShareState) -> Result<(), Fault> {
        let request = ShareWrite {
            group: GROUP.into(),
            stream: self.stream(),
            partition: 0,
            state_epoch,
            state,
        };
        match self.call(Request::ShareWrite(request)) {
            Reply::ShareWritten => Ok(()),
            Reply::Refused(fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    fn configure(&mut self, name: &str, value: Option<&str>) -> Result<ShareConfig, Fault> {
        let request = ShareConfigure {
            group: GROUP.into(),
            changes: vec![(name.into(), value.map(Into::into))],
            ..ShareConfigure::default()
        };
        match self.call(Request::ShareConfigure(request)) {
            Reply::ShareConfigured(config) => Ok(config),
            Reply::Refused(fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    fn share_offsets(&mut self) -> Vec<(u32, Option<u64>)> {
        match self.call(Request::ShareOffsets(GROUP.into())) {
            Reply::ShareOffsets(offsets) => {
                offsets.iter().map(|o| (o.partition, o.start)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn set_offsets(&mut self, offsets: &[(u32, Option<u64>)]) -> Result<(), Fault> {
        let stream = self.stream();
        let offsets = offsets.iter();
        let request = ShareSetOffsets {
            group: GROUP.into(),
            offsets: offsets.map(|(p, start)| (stream, *p, *start)).collect(),
        };
        match self.call(Request::ShareSetOffsets(request)) {
            Reply::ShareOffsetsSet(results) => results.into_iter().collect(),
            Reply::Refused(fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }
}

fn partitions(beat: &ConsumerBeat) -> Option<usize> {
    let assigned = beat.assignment.as_ref()?;
    Some(assigned.values().map(|numbers| numbers.len()).sum())
}

#[test]
fn members_have_partitions_at_once_and_share_them() {
    let mut w = World::new();
    let first = w.share_beat("a", 0).unwrap();
    assert_eq!((first.epoch, partitions(&first)), (1, Some(2)));
    let epochs: Vec<i32> = ["b", "c", "d", "e"]
        .iter()
        .map(|id| w.share_beat(id, 0).unwrap().epoch)
        .collect();
    assert_eq!(epochs, [2, 3, 4, 5]);
    // Told of the change with the next heartbeat, without giving anything back first.
    let told = w.share_beat("a", 1).unwrap();
    assert_eq!((told.epoch, partitions(&told)), (5, Some(1)));
    let told = w.share_beat("a", 5).unwrap();
    assert_eq!((told.epoch, partitions(&told)), (5, None));
    // Who did not get the answer is told again.
    let told = w.share_beat("a", 1).unwrap();
    assert_eq!((told.epoch, partitions(&told)), (5, Some(1)));
    assert_eq!(w.share_beat("a", 3), Err(Fault::FencedEpoch));
    assert_eq!(w.share_beat("x", 5), Err(Fault::UnknownMember));
    let found = w.share_described().unwrap();
    assert_eq!((found.state, found.members.len()), (GroupState::Stable, 5));
    assert_eq!(found.assignor, "simple");
    assert_eq!(w.share_beat("a", -1).unwrap().epoch, -1);
    assert_eq!(w.share_beat("a", -1), Err(Fault::UnknownMember));
    // The others are silent for too long.
    w.bench.tick(45_000);
    let found = w.share_described().unwrap();
    assert_eq!((found.state, found.members.len()), (GroupState::Empty, 0));
}

#[test]
fn a_share_group_is_no_other_group() {
    let mut w = World::new();
    w.share_beat("a", 0).unwrap();
    let described = w.call(Request::ConsumerDescribe(GROUP.into()));
    assert_eq!(described, Reply::Refused(Fault::NotConsumer));
    let commit = CommitOffsets {
        group: GROUP.into(),
        generation: -1,
        ..CommitOffsets::default()
    };
    let committed = w.call(Request::Commit(commit));
    assert_eq!(committed, Reply::Refused(Fault::NotConsumer));
    w.share_beat("a", -1).unwrap();
    let ticket = w.join("");
    assert!(
        matches!(
            w.answer(ticket),
            Some(Reply::Refused(Fault::InconsistentProtocol))
        ),
        "also while nobody is in it"
    );
    // And the other way round.
    let mut w = World::new();
    w.stable(1);
    assert_eq!(w.share_beat("a", 0), Err(Fault::NotShare));
}

#[test]
fn owners_write_under_the_state_epoch_that_they_were_given() {
    let mut w = World::new();
    assert_eq!(w.open(0, 1), Err(Fault::GroupNotFound));
    w.share_beat("a", 0).unwrap();
    let first = w.open(0, 4).unwrap();
    assert_eq!(first.state, None);
    assert_eq!(w.open(9, 4), Err(Fault::UnknownPartition));
    let state = ShareState::of(7, &[2, 1, 5, 4]);
    assert_eq!(w.write(first.state_epoch, state.clone()), Ok(()));
    assert_eq!(w.share_offsets(), [(0, Some(7))]);
    // Another owner begins: who was there before is fenced, and an older one does not begin.
    w.restart();
    let second = w.open(0, 5).unwrap();
    assert_eq!(second.state, Some(state));
    assert_eq!(
        w.write(first.state_epoch, ShareState::at(9)),
        Err(Fault::FencedShare)
    );
    assert_eq!(w.open(0, 4), Err(Fault::FencedShare));
    // The same one may begin anew; what it wrote before is over.
    let third = w.open(0, 5).unwrap();
    assert_eq!(
        w.write(second.state_epoch, ShareState::at(9)),
        Err(Fault::FencedShare)
    );
    assert_eq!(w.write(third.state_epoch, ShareState::at(9)), Ok(()));
    let snapshot = w.bench.coordinator.snapshot();
    let replayed = replay(&snapshot, w.bench.now);
    assert!(replayed.same_durable_state(&w.bench.coordinator));
}

/// What is appended to a new partition before anybody fetches of it is new to the group.
#[test]
fn a_partition_that_is_younger_than_the_group_is_read_from_its_beginning() {
    let mut w = World::new();
    w.share_beat("a", 0).unwrap();
    let first = w.open(0, 1).unwrap();
    assert_eq!((first.state, first.config.reset()), (None, Reset::Latest));
    assert_eq!(w.write(first.state_epoch, ShareState::at(5)), Ok(()));
    w.bench.stream.grow(2);
    w.restart();
    let old = w.open(1, 1).unwrap();
    assert_eq!(old.state, None, "it was there already");
    for partition in [2, 3] {
        let young = w.open(partition, 1).unwrap();
        assert_eq!(young.state, Some(ShareState::at(0)), "{partition}");
    }
    // Also where nobody has read of it before, and the partitions were set.
    w.share_beat("a", -1).unwrap();
    assert_eq!(w.set_offsets(&[(0, None), (1, None)]), Ok(()));
    assert_eq!(w.set_offsets(&[(2, None), (3, Some(7))]), Ok(()));
    w.bench.stream.grow(3);
    assert_eq!(w.open(2, 2).unwrap().state, None);
    assert_eq!(w.open(3, 2).unwrap().state, Some(ShareState::at(7)));
    assert_eq!(w.open(4, 2).unwrap().state, Some(ShareState::at(0)));
    let snapshot = w.bench.coordinator.snapshot();
    let replayed = replay(&snapshot, w.bench.now);
    assert!(replayed.same_durable_state(&w.bench.coordinator));
}

#[test]
fn who_served_a_partition_before_its_offsets_were_deleted_writes_nothing_for_the_next() {
    let mut w = World::new();
    w.share_beat("a", 0).unwrap();
    let first = w.open(0, 4).unwrap();
    w.share_beat("a", -1).unwrap();
    assert_eq!(w.set_offsets(&[(0, None)]), Ok(()));
    let second = w.open(0, 5).unwrap();
    assert_eq!(second.state, None);
    assert_eq!(
        w.write(first.state_epoch, ShareState::at(9)),
        Err(Fault::FencedShare)
    );
    assert_eq!(w.write(second.state_epoch, ShareState::at(2)), Ok(()));
}

#[test]
fn offsets_of_an_empty_group_are_set_and_fence_its_owner() {
    let mut w = World::new();
    w.share_beat("a", 0).unwrap();
    let opened = w.open(0, 1).unwrap();
    assert_eq!(w.write(opened.state_epoch, ShareState::at(3)), Ok(()));
    assert_eq!(w.set_offsets(&[(0, Some(1))]), Err(Fault::NonEmptyGroup));
    w.share_beat("a", -1).unwrap();
    assert_eq!(w.set_offsets(&[(0, Some(1)), (1, Some(8))]), Ok(()));
    assert_eq!(w.set_offsets(&[(7, Some(1))]), Err(Fault::UnknownPartition));
    assert_eq!(w.share_offsets(), [(0, Some(1)), (1, Some(8))]);
    assert_eq!(
        w.write(opened.state_epoch, ShareState::at(9)),
        Err(Fault::FencedShare)
    );
    assert_eq!(w.set_offsets(&[(1, None)]), Ok(()));
    assert_eq!(w.share_offsets(), [(0, Some(1))]);
    // It is kept as long as offsets are, and the group with it.
    w.bench.tick(6 * 24 * 3_600_000);
    assert_eq!(w.share_offsets(), [(0, Some(1))]);
    w.bench.tick(2 * 24 * 3_600_000);
    w.bench.tick(1_000);
    let gone = w.call(Request::ShareOffsets(GROUP.into()));
    assert_eq!(gone, Reply::Refused(Fault::GroupNotFound));
}

#[test]
fn what_is_set_for_a_group_is_kept_before_anybody_joins() {
    let mut w = World::new();
    let config = w
        .configure("share.auto.offset.reset", Some("earliest"))
        .unwrap();
    assert_eq!(config.reset(), Reset::Earliest);
    for (name, value) in [
        ("share.auto.offset.reset", "yesterday"),
        ("share.delivery.count.limit", "1"),
        ("share.record.lock.duration.ms", "-3"),
        ("consumer.session.timeout.ms", "5"),
    ] {
        let refused = w.configure(name, Some(value));
        assert!(matches!(refused, Err(Fault::InvalidConfig(_))), "{name}");
    }
    w.bench.tick(3_600_000);
    w.restart();
    w.share_beat("a", 0).unwrap();
    let opened = w.open(0, 1).unwrap();
    assert_eq!(opened.config.reset(), Reset::Earliest);
    let config = w.configure("share.auto.offset.reset", None).unwrap();
    assert!(config.is_default());
}
