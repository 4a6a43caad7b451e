//! Share groups at records that no replica has whole.

use std::ops::Range;
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kera_broker::Shared;
use kera_log_segments::group::GroupSpec;
use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use kera_metadata::{Compare, Damage, GroupRecord, StreamConfig, Transaction, Write};
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::LaneId;
use kera_streamlet::{GroupView, Located, Streamlet};
use uuid::Uuid;

use crate::common::Client;
use crate::common::shares::{ACCEPT, Sharer, acquired, parts};
use crate::shares::{EARLIEST, configure, node_of};
use crate::two_phase::{begin, end, join, leader, stable_at};
use crate::{Cluster, produce, records, until};

const LANE: LaneId = LaneId(0);

/// The first group of the lane, closed.
async fn closed(streamlet: &Arc<Streamlet>) -> GroupView {
    let closing = streamlet.clone();
    let closed = tokio::task::spawn_blocking(move || closing.close_all(u64::MAX)).await;
    assert!(closed.expect("no panic"));
    let first = || streamlet.closed_from(LANE, Located::default(), 1).pop();
    until(|| first().is_some()).await;
    first().expect("it is closed")
}

/// Turns a byte of the batches with these first ordinals in the owner's file of a group, which has no other replica.
fn spoil(streamlet: &Streamlet, group: &GroupView, ordinals: &[u64]) {
    let name = GroupSpec::file_name(group.group, group.generation);
    let path = streamlet.dir().join(name);
    let mut bytes = std::fs::read(&path).expect("the file");
    let header = SegmentHeader::decode(&bytes).expect("a header");
    let mut place = SEGMENT_HEADER_BYTES + header.snapshot_bytes as usize;
    let mut spoiled = 0;
    while spoiled < ordinals.len() {
        let header = BatchHeader::peek(&bytes[place..]).expect("a batch");
        if ordinals.contains(&header.base_ordinal) {
            bytes[place + 64] ^= 0x55;
            spoiled += 1;
        }
        place += header.total_bytes;
    }
    std::fs::write(&path, bytes).expect("it is written");
    streamlet.release_idle(u64::MAX, 0);
}

/// Records that an operator has given these ordinals up.
fn give_up(shared: &Shared, streamlet: &Streamlet, group: &GroupView, lost: &[Range<u64>]) {
    let key = streamlet.key().group(group.group);
    let known = shared.metadata.group(key).expect("it is read");
    let known = known.expect("it is recorded");
    let mut damage = Damage::new(1, "whole on no replica".to_owned());
    damage.lost.extend(lost.iter().cloned());
    let epoch = Compare::StreamletEpoch {
        stream: known.stream,
        streamlet: known.streamlet,
        epoch: streamlet.epoch(),
    };
    let compare = vec![epoch, Compare::group(&known)];
    let given_up = GroupRecord {
        damaged: Some(damage),
        ..known
    };
    let transaction = Transaction::new(compare, vec![Write::PutGroup(given_up)]);
    let committed = shared.metadata.commit(transaction);
    committed.expect("nobody was faster");
}

/// A member of a new group.
async fn member(cluster: &Cluster, group: &'static str, isolation: &str) -> Sharer {
    let node = node_of(&mut cluster.client(1).await, group).await;
    let mut at_coordinator = cluster.client(node).await;
    let set = [EARLIEST[0], ("share.isolation.level", isolation)];
    configure(&mut at_coordinator, group, &set).await;
    let member = Sharer::new(group, "m");
    let joined = member.beat(&mut at_coordinator, 0, "t").await;
    assert_eq!(joined.error_code, 0);
    member
}

/// Acquires and accepts what comes until `last` is among it.
async fn taken(
    member: &mut Sharer,
    client: &mut Client,
    stream: Uuid,
    last: i64,
) -> Vec<(i64, i64)> {
    let mut taken = Vec::new();
    while taken.last().is_none_or(|(_, end)| *end < last) {
        for (first, last, _) in member.acquire(client, stream, 0).await {
            let said = member.say(client, stream, 0, (first, last), ACCEPT).await;
            assert_eq!(said, 0);
            taken.push((first, last));
        }
    }
    taken
}

/// What is lost stops a group, as it may come back, until an operator accepts the loss. Each whole record behind it is
/// delivered then; but for those of which nobody can tell whether they were committed, to whom asks for that.
#[tokio::test(flavor = "multi_thread")]
async fn share_groups_go_on_behind_what_an_operator_has_given_up() {
    let cluster = Cluster::with(|config| config.transactions.two_phase_commit = true).await;
    let config = StreamConfig {
        streamlets: 1,
        replicas: 1,
        min_insync_replicas: 1,
        ..StreamConfig::default()
    };
    cluster.create("t", config).await;
    let (producer, _) = begin(&cluster).await;
    assert_eq!(join(&cluster, 0, producer).await, 0);
    assert_eq!(end(&cluster, producer).await.0, 0);
    stable_at(&cluster, 0, 2).await;
    let owner = leader(&cluster, 0).await;
    let mut client = cluster.client(owner).await;
    for base in [2, 4, 6] {
        assert_eq!(produce(&mut client, "t", 0, records(2)).await, (0, base));
    }
    let shared = cluster.brokers[owner as usize - 1].0.shared();
    let stream = shared.data.catalog.named("t").expect("the topic");
    let streamlet = stream.streamlets.iter().next().expect("it has one");
    let group = closed(&streamlet).await;
    // The marker, and two records.
    spoil(&streamlet, &group, &[1, 4]);

    let id = stream.id().0;
    let mut all = member(&cluster, "g", "read_uncommitted").await;
    let mut committed = member(&cluster, "h", "read_committed").await;
    let mut second = cluster.client(owner).await;
    assert_eq!(taken(&mut all, &mut client, id, 0).await, [(0, 0)]);
    let corrupt = ResponseError::CorruptMessage.code();
    for (member, client) in [(&mut all, &mut client), (&mut committed, &mut second)] {
        let stopped = member.fetch(client, id, 0, 0).await;
        assert_eq!(acquired(&stopped), []);
        assert_eq!(parts(&stopped)[0].error_code, corrupt, "{stopped:?}");
    }

    give_up(shared, &streamlet, &group, &[1..2, 4..6]);
    assert_eq!(taken(&mut all, &mut client, id, 7).await, [(2, 3), (6, 7)]);
    assert_eq!(
        taken(&mut committed, &mut second, id, 7).await,
        [(2, 3), (6, 7)]
    );
}
