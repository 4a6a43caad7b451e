//! What programs administer: streams, groups and the cluster, by one type.

use kera_consumer::Start;
use kera_consumer::blocking::Consumer;
use kera_protocol::error::ErrorCode;
use kera_rpc::admin::{
    AckPolicy, Admin, Cleanup, GroupPart, LanePosition, ResetGroupResponse, StreamConfig, Trim,
};
use kera_rpc::blocking::wait;
use kera_rpc::{ChangeError, RpcError};

use crate::common::Broker;

fn done<T>(call: impl Future<Output = Result<T, RpcError>>) -> T {
    wait(call).expect("no task").expect("it is answered")
}

fn changed<T>(call: impl Future<Output = Result<T, ChangeError>>) -> T {
    wait(call).expect("no task").expect("it is changed")
}

fn refused<T>(call: impl Future<Output = Result<T, RpcError>>) -> Option<ErrorCode> {
    let outcome = wait(call).expect("no task");
    outcome.map(drop).expect_err("it is refused").code()
}

fn not_changed<T>(call: impl Future<Output = Result<T, ChangeError>>) -> Option<ErrorCode> {
    let outcome = wait(call).expect("no task");
    outcome.map(drop).expect_err("it is refused").error.code()
}

#[test]
fn streams_are_created_changed_listed_trimmed_and_deleted() {
    let broker = Broker::start();
    let admin = Admin::connect_to(broker.address()).expect("an address");
    let made = changed(admin.create_stream("a", StreamConfig::default()));
    assert_eq!(
        made.config.map(|config| (config.streamlets, config.lanes)),
        Some((Some(1), Some(1)))
    );
    let settings = StreamConfig {
        partitions: Some(3),
        streamlets: Some(2),
        cleanup: Some(Cleanup::Compact.into()),
        ..StreamConfig::default()
    };
    let other = changed(admin.create_stream("b", settings));
    assert_eq!(other.config.and_then(|config| config.partitions), Some(3));
    let taken = not_changed(admin.create_stream("a", StreamConfig::default()));
    assert_eq!(taken, Some(ErrorCode::StreamExists));

    let settings = StreamConfig {
        lanes: Some(2),
        ack: Some(AckPolicy::Synced.into()),
        ..StreamConfig::default()
    };
    let altered = changed(admin.alter_stream("a", settings));
    assert_eq!(
        altered.config.map(|config| config.ack()),
        Some(AckPolicy::Synced)
    );
    let names = |internal| -> Vec<String> {
        let all = done(admin.streams(internal)).into_iter();
        all.map(|stream| stream.name).collect()
    };
    assert_eq!(names(false), ["a", "b"]);
    assert_eq!(done(admin.stream("a")).id, made.id);
    assert_eq!(
        refused(admin.stream("none")),
        Some(ErrorCode::UnknownStream)
    );

    broker.feed(
        &["produce", "a", "--key-separator", ":"],
        b"k:1\nk:2\nk:3\n",
    );
    let heads = || -> Vec<(u64, u64)> {
        let lanes = done(admin.describe_stream("a")).lanes.into_iter();
        let mut lanes: Vec<_> = lanes.map(|l| (l.log_start, l.head_ordinal)).collect();
        lanes.sort_unstable();
        lanes
    };
    assert_eq!(heads(), [(0, 0), (0, 3)]);
    let lane = done(admin.describe_stream("a")).lanes.into_iter();
    let lane = lane.max_by_key(|lane| lane.head_ordinal).expect("a lane");
    let place = Some((lane.streamlet, lane.lane));
    let trimmed = changed(admin.trim_stream("a", place, Trim::Below(2)));
    assert_eq!(trimmed.lanes.len(), 1);
    assert_eq!(heads(), [(0, 0), (2, 3)]);
    changed(admin.trim_stream("a", None, Trim::Everything));
    assert_eq!(heads(), [(0, 0), (3, 3)]);
    assert_eq!(changed(admin.compact_stream("b")).lanes, 0);

    changed(admin.delete_stream("a"));
    changed(admin.create_stream("a", StreamConfig::default()));
    // The one that was looked at is gone; the one of its name stays.
    assert_eq!(
        not_changed(admin.delete_exactly(&made)),
        Some(ErrorCode::UnknownStream)
    );
    changed(admin.delete_exactly(&other));
    assert_eq!(names(false), ["a"]);
}

#[test]
fn groups_are_listed_described_reset_and_deleted() {
    let broker = Broker::start();
    let admin = Admin::connect_to(broker.address()).expect("an address");
    changed(admin.create_stream("s", StreamConfig::default()));
    broker.feed(&["produce", "s"], b"1\n2\n3\n");
    let at = |ordinal| LanePosition {
        ordinal,
        ..LanePosition::default()
    };
    changed(admin.commit_positions("kept", "s", &[at(1)]));
    let groups = done(admin.groups());
    assert_eq!(groups.len(), 1);
    assert_eq!((&groups[0].group[..], groups[0].lag), ("kept", 2));
    let committed = || done(admin.describe_group("kept")).lanes[0].committed;
    assert_eq!(committed(), 1);
    let told = |reset: ResetGroupResponse| reset.lanes[0].committed;
    let lane = GroupPart::Lane {
        streamlet: 0,
        lane: 0,
    };
    for (part, to, expected) in [
        (GroupPart::Whole, Start::Latest, 3),
        (lane, Start::Ordinal(2), 2),
        (GroupPart::Whole, Start::Earliest, 0),
    ] {
        assert_eq!(told(changed(admin.reset_group("kept", part, to))), expected);
        assert_eq!(committed(), expected);
    }
    let member = Consumer::builder().bootstrap(broker.address()).stream("s");
    let member = member.group("kept").open_blocking().expect("it joins");
    let busy = not_changed(admin.reset_group("kept", GroupPart::Whole, Start::Latest));
    assert_eq!(busy, Some(ErrorCode::GroupNotEmpty));
    assert_eq!(
        not_changed(admin.delete_group("kept")),
        Some(ErrorCode::GroupNotEmpty)
    );
    member.close().expect("it leaves");
    changed(admin.delete_group("kept"));
    assert_eq!(
        refused(admin.describe_group("kept")),
        Some(ErrorCode::UnknownConsumerGroup)
    );
    assert!(done(admin.groups()).is_empty());

    // It has a store of its own.
    assert_eq!(refused(admin.cluster()), Some(ErrorCode::InvalidArgument));
}
