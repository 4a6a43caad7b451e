use std::collections::HashMap;
use std::sync::Arc;

use kera_metadata::{
    Fault, GroupChange, GroupState, MemoryStore, MetadataStore, Replica, StreamRecord,
};
use kera_protocol::ids::{GroupId, Incarnation, LaneId, LaneKey, StreamId, StreamletId};
use kera_replication::records::{RecordsRef, commit};
use kera_replication::runtime::TokioRuntime;
use kera_streamlet::recorder::GroupRecorder;
use uuid::Uuid;

use super::*;

const LANE: LaneId = LaneId(0);

struct Stage {
    store: Arc<MemoryStore>,
    records: Arc<GroupRecords>,
    key: StreamletKey,
    epoch: Epoch,
}

fn incarnation(n: u8) -> Incarnation {
    Incarnation {
        store_id: Uuid::from_bytes([n; 16]),
        boot_id: Uuid::from_bytes([7; 16]),
    }
}

fn holders(brokers: &[u8]) -> Vec<Replica> {
    let holder = |n: &u8| Replica {
        broker: BrokerId(u32::from(*n)),
        incarnation: incarnation(*n),
    };
    brokers.iter().map(holder).collect()
}

impl Stage {
    /// One streamlet that was started once, its epoch not used yet.
    fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        let config = kera_metadata::StreamConfig {
            replicas: 3,
            min_insync_replicas: 2,
            ..Default::default()
        };
        let created = store.create_stream(StreamRecord::new("s", config, 1), 1);
        let stream: StreamId = created.expect("it can be created").0.id;
        let bumped = store.bump_epochs(1).expect("epochs rise");
        let shared: Arc<dyn MetadataStore> = store.clone();
        let records = GroupRecords::new(shared, 1, incarnation(1), &bumped);
        let records = Arc::new(records);
        Self {
            store,
            records,
            key: StreamletKey {
                stream,
                streamlet: StreamletId(0),
            },
            epoch: bumped[0].epoch,
        }
    }

    fn transaction(&self, epoch: Epoch, changes: Vec<GroupChange>) -> Transaction {
        Transaction::of_groups(self.key, epoch, changes)
    }

    async fn commit(&self, changes: Vec<GroupChange>) -> Result<u64, RecordsError> {
        self.records
            .try_commit(self.transaction(self.epoch, changes))
            .await
    }

    fn opened(&self, group: u64) -> GroupRecord {
        GroupRecord {
            state: GroupState::Open,
            copies: holders(&[1, 2, 3]),
            ..GroupRecord::new(self.key.group(GroupId(group)), LANE, self.epoch)
        }
    }

    fn open(&self, group: u64) -> GroupChange {
        self.opened(group).put()
    }

    fn close(&self, group: u64, revision: u64) -> GroupChange {
        let open = GroupRecord {
            revision,
            ..self.opened(group)
        };
        open.closed(0, (500, 5), 5, holders(&[1, 2])).put()
    }

    async fn groups(&self) -> Vec<GroupRecord> {
        let found = self.records.try_read(self.key).await;
        found.expect("it can be read").groups
    }
}

#[tokio::test]
async fn a_group_is_opened_closed_placed_and_deleted() {
    let stage = Stage::new();
    let revision = stage
        .commit(vec![stage.open(1), stage.open(2)])
        .await
        .expect("opened");
    let groups = stage.groups().await;
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0].state, GroupState::Open);
    assert_eq!(groups[0].copies, holders(&[1, 2, 3]));
    assert!(groups.iter().all(|group| group.revision == revision));
    let delete = Write::delete_group(stage.key.group(GroupId(2)), revision);
    let revision = stage
        .commit(vec![stage.close(1, revision), delete])
        .await
        .expect("closed");
    let groups = stage.groups().await;
    let ended = stage.opened(1).closed(0, (500, 5), 5, holders(&[1, 2]));
    assert!(groups[0].agrees(&ended), "{:?}", groups[0]);
    assert!(groups[0].closed_ms > 0);
    assert_eq!((groups.len(), groups[0].revision), (1, revision));
    let placed = GroupRecord {
        copies: holders(&[1, 2, 4]),
        ..groups[0].clone()
    };
    let place = placed.clone().put();
    let revision = stage.commit(vec![place]).await.expect("placed");
    let placed = GroupRecord { revision, ..placed };
    assert_eq!(stage.groups().await, [placed], "nothing else changes");
}

#[tokio::test]
async fn epochs_and_revisions_are_compared() {
    let stage = Stage::new();
    let revision = stage.commit(vec![stage.open(1)]).await.expect("opened");
    let twice = stage.commit(vec![stage.open(1)]).await;
    assert!(
        matches!(twice, Err(RecordsError::Revision { expected: 0, .. })),
        "{twice:?}"
    );
    let stale = stage.commit(vec![stage.close(1, revision + 1)]).await;
    assert!(
        matches!(stale, Err(RecordsError::Revision { .. })),
        "{stale:?}"
    );
    // The first recovery goes on under the epoch of the start, the second takes its own.
    let taken = stage.records.try_take_epoch(stage.key, BrokerId(1)).await;
    assert_eq!(taken.expect("an epoch").0, stage.epoch);
    let taken = stage.records.try_take_epoch(stage.key, BrokerId(1)).await;
    let next = taken.expect("an epoch").0;
    assert!(next > stage.epoch);
    let deposed = stage.commit(vec![stage.close(1, revision)]).await;
    let found = match deposed {
        Err(RecordsError::Epoch { found, .. }) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found, next);
    let transaction = stage.transaction(next, vec![stage.close(1, revision)]);
    stage
        .records
        .try_commit(transaction)
        .await
        .expect("the new owner closes it");
    let again = stage.transaction(next, vec![stage.close(1, revision)]);
    assert!(
        stage.records.try_commit(again).await.is_err(),
        "a close is final"
    );
}

#[tokio::test]
async fn an_answer_that_was_lost_is_read_back() {
    let stage = Stage::new();
    let records: RecordsRef = stage.records.clone();
    let runtime = TokioRuntime::new(tokio::runtime::Handle::current());
    for (group, fault) in [
        (1, Fault::UnknownApplied),
        (2, Fault::UnknownLost),
        (3, Fault::Storage),
    ] {
        stage.store.fail(1, fault);
        let transaction = stage.transaction(stage.epoch, vec![stage.open(group)]);
        let outcome = commit(&records, &runtime, &transaction, false).await;
        let revision = outcome.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let groups = stage.groups().await;
        let found = groups.iter().find(|record| record.group == GroupId(group));
        assert_eq!(
            found.map(|record| record.revision),
            Some(revision),
            "{fault:?}"
        );
    }
}

#[tokio::test]
async fn ids_are_reserved_ahead_and_never_fall() {
    let stage = Stage::new();
    let next_group = || {
        let found = stage.store.streamlet(stage.key.stream, stage.key.streamlet);
        found
            .expect("it can be read")
            .expect("it is there")
            .next_group
    };
    stage.commit(vec![stage.open(5)]).await.expect("opened");
    let reserved = next_group();
    assert!(reserved > GroupId(5));
    stage.commit(vec![stage.open(4)]).await.expect("opened");
    assert_eq!(next_group(), reserved, "it was reserved before");
    stage
        .commit(vec![stage.open(reserved.0)])
        .await
        .expect("opened");
    assert!(next_group() > reserved);
}

/// An owner may die when it has made files of groups and recorded none of them.
#[tokio::test]
async fn no_epoch_gives_out_ids_that_an_earlier_one_may_have_used() {
    let stage = Stage::new();
    let owner = BrokerId(1);
    let next_group = || async {
        let found = stage.records.try_read(stage.key).await;
        found.expect("it can be read").streamlet.next_group
    };
    let mut used = 0;
    for _ in 0..3 {
        let taken = stage.records.try_take_epoch(stage.key, owner).await;
        let (epoch, _) = taken.expect("it is the owner's");
        let begin = next_group().await;
        assert!(begin.0 > used, "{begin} was used before, as {used} was");
        let opened = GroupRecord {
            epoch,
            ..stage.opened(begin.0)
        };
        let recorded = stage.transaction(epoch, vec![opened.put()]);
        let recorded = stage.records.try_commit(recorded).await;
        recorded.expect("it reserves ids");
        // Files of groups beyond these, whose records nobody made.
        used = next_group().await.0 + 1000;
    }
}

#[test]
fn what_was_reserved_without_an_answer_is_not_lowered() {
    let stage = Stage::new();
    let record = |group: u64| {
        let opened = GroupRecord {
            copies: Vec::new(),
            ..stage.opened(group)
        };
        stage
            .records
            .record_now(stage.epoch, vec![Write::PutGroup(opened)])
    };
    record(5).expect("recorded, with ids up to some number reserved");
    let found = stage.store.streamlet(stage.key.stream, stage.key.streamlet);
    let reserved = found.expect("it can be read").expect("it is there");
    stage.store.fail(1, Fault::UnknownApplied);
    record(reserved.next_group.0 + 9).expect_err("no answer, and it was recorded");
    // A lane that has its id for a while, and the lane that asks again.
    record(reserved.next_group.0 + 2).expect("ids never fall, whatever was answered");
    record(reserved.next_group.0 + 9).expect("it is there already");
}

#[tokio::test]
async fn a_stream_that_is_gone_says_so() {
    let stage = Stage::new();
    let gone = StreamletKey {
        stream: StreamId::random(),
        streamlet: StreamletId(0),
    };
    let group = GroupRecord {
        stream: gone.stream,
        ..stage.opened(1)
    };
    let transaction = Transaction::of_groups(gone, stage.epoch, [group.put()]);
    let refused = stage.records.try_commit(transaction).await;
    assert_eq!(refused, Err(RecordsError::NoStreamlet(gone)));
    let refused = stage.records.try_read(gone).await;
    assert_eq!(refused, Err(RecordsError::NoStreamlet(gone)));
    let refused = stage.records.try_take_epoch(gone, BrokerId(1)).await;
    assert_eq!(refused, Err(RecordsError::NoStreamlet(gone)));
}

#[test]
fn what_is_deleted_before_its_record_is_there_is_not_left_behind() {
    let stage = Stage::new();
    let opened = GroupRecord {
        copies: Vec::new(),
        ..stage.opened(1)
    };
    let key = opened.key();
    // Asked for when nothing is recorded, and made after the group's record, which was on its way.
    let delete =
        stage
            .records
            .0
            .transaction(stage.epoch, vec![Write::DeleteGroup(key)], &HashMap::new());
    let put = vec![Write::PutGroup(opened)];
    stage
        .records
        .record_now(stage.epoch, put)
        .expect("recorded");
    stage
        .store
        .commit(delete)
        .expect_err("it was read before the record was there");
    // The next attempt reads what is there.
    let again = vec![Write::DeleteGroup(key)];
    stage
        .records
        .record_now(stage.epoch, again)
        .expect("deleted");
    assert_eq!(stage.store.group(key), Ok(None));
}

#[test]
fn what_is_recorded_only_while_a_stream_is_as_it_was_is_refused_once_it_is_written() {
    let stage = Stage::new();
    let stream = || {
        let found = stage.store.stream(stage.key.stream);
        found.expect("it can be read").expect("it is there")
    };
    let lane = LaneKey {
        stream: stage.key.stream,
        streamlet: stage.key.streamlet,
        lane: LaneId(0),
    };
    let record = |ordinal, revision| {
        let unchanged = Compare::revision(Key::Stream(stage.key.stream), revision);
        let start = vec![Write::PutLaneStart { key: lane, ordinal }];
        stage
            .records
            .record_now_if(stage.epoch, vec![unchanged], start)
    };
    let known = stream();
    record(1, known.revision).expect("recorded");
    let unchanged = Compare::revision(Key::Stream(known.id), known.revision);
    let touch = Transaction::new(vec![unchanged], vec![Write::PutStream(known.clone())]);
    stage.store.commit(touch).expect("written");
    record(2, known.revision).expect_err("it was written since");
    let starts = stage.store.lane_starts(known.id).expect("they can be read");
    let starts: Vec<_> = starts.iter().map(|start| start.ordinal).collect();
    assert_eq!(starts, [1]);
    record(2, stream().revision).expect("recorded");
}

#[test]
fn a_group_whose_closing_was_not_answered_closes_again() {
    let stage = Stage::new();
    let opened = GroupRecord {
        copies: Vec::new(),
        ..stage.opened(1)
    };
    let record = |record: GroupRecord| {
        let put = vec![Write::PutGroup(record)];
        stage.records.record_now(stage.epoch, put)
    };
    record(opened.clone()).expect("recorded");
    let closed = |closed_ms: u64| GroupRecord {
        closed_ms,
        ..opened.clone().closed(0, (500, 5), 5, Vec::new())
    };
    stage.store.fail(1, Fault::UnknownApplied);
    record(closed(1)).expect_err("nobody knows whether it is recorded");
    // Later: the closing's time is another.
    record(closed(2)).expect("it is recorded");
    let found = stage.store.group(opened.key()).expect("it is read");
    assert_eq!(found.map(|found| found.closed_ms), Some(1));
    record(GroupRecord {
        end_ordinal: 4,
        ..closed(3)
    })
    .expect_err("a closed group ends where it ends");
}
