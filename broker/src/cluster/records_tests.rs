use std::sync::Arc;

use kera_metadata::{Fault, MemoryStore, StreamRecord};
use kera_protocol::ids::{Incarnation, LaneId, StreamId, StreamletId};
use kera_replication::records::{RecordsRef, commit};
use kera_replication::runtime::TokioRuntime;
use uuid::Uuid;

use super::*;

const LANE: LaneId = LaneId(0);

struct Stage {
    store: Arc<MemoryStore>,
    records: Arc<StoreRecords>,
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
        let image = store.load().expect("it can be read");
        let shared: Arc<dyn MetadataStore> = store.clone();
        let recorder = StoreRecorder::new(shared.clone(), 1, incarnation(1), &image, &bumped);
        let records = StoreRecords::new(shared, false, Arc::new(recorder), &bumped);
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

    fn transaction(&self, epoch: Epoch, changes: Vec<Change>) -> Transaction {
        Transaction {
            streamlet: self.key,
            epoch,
            changes,
        }
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<u64, RecordsError> {
        self.records
            .try_commit(self.transaction(self.epoch, changes))
            .await
    }

    async fn groups(&self) -> Vec<GroupRecord> {
        let found = self.records.try_read(self.key).await;
        found.expect("it can be read").groups
    }
}

fn open(group: u64) -> Change {
    Change::Open {
        group: GroupId(group),
        lane: LANE,
        record: OpenRecord {
            first_ordinal: None,
            holders: holders(&[1, 2, 3]),
        },
    }
}

fn ended(brokers: &[u8]) -> ClosedRecord {
    ClosedRecord {
        length: 500,
        first_ordinal: 0,
        end_ordinal: 5,
        next_ordinal: 5,
        holders: holders(brokers),
    }
}

fn close(group: u64, revision: u64) -> Change {
    Change::Close {
        group: GroupId(group),
        revision,
        record: ended(&[1, 2]),
    }
}

#[tokio::test]
async fn a_group_is_opened_closed_placed_and_deleted() {
    let stage = Stage::new();
    let revision = stage.commit(vec![open(1), open(2)]).await.expect("opened");
    let groups = stage.groups().await;
    assert_eq!(groups.len(), 2);
    assert_eq!(
        groups[0].open().expect("it is open").holders,
        holders(&[1, 2, 3])
    );
    assert!(groups.iter().all(|group| group.revision == revision));
    let delete = Change::Delete {
        group: GroupId(2),
        revision,
    };
    let revision = stage
        .commit(vec![close(1, revision), delete])
        .await
        .expect("closed");
    let groups = stage.groups().await;
    assert_eq!(groups[0].closed(), Some(&ended(&[1, 2])));
    assert_eq!(groups.len(), 1);
    let place = Change::Place {
        group: GroupId(1),
        revision,
        holders: holders(&[1, 2, 4]),
    };
    stage.commit(vec![place]).await.expect("placed");
    assert_eq!(stage.groups().await[0].holders(), holders(&[1, 2, 4]));
}

#[tokio::test]
async fn epochs_and_revisions_are_compared() {
    let stage = Stage::new();
    let revision = stage.commit(vec![open(1)]).await.expect("opened");
    let twice = stage.commit(vec![open(1)]).await;
    assert!(
        matches!(twice, Err(RecordsError::Revision { expected: 0, .. })),
        "{twice:?}"
    );
    let stale = stage.commit(vec![close(1, revision + 1)]).await;
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
    let deposed = stage.commit(vec![close(1, revision)]).await;
    let found = match deposed {
        Err(RecordsError::Epoch { found, .. }) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found, next);
    let transaction = stage.transaction(next, vec![close(1, revision)]);
    stage
        .records
        .try_commit(transaction)
        .await
        .expect("the new owner closes it");
    let again = stage.transaction(next, vec![close(1, revision)]);
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
        let transaction = stage.transaction(stage.epoch, vec![open(group)]);
        let outcome = commit(&records, &runtime, &transaction, false).await;
        let revision = outcome.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let groups = stage.groups().await;
        let found = groups
            .iter()
            .find(|record| record.copy.group == GroupId(group));
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
    stage.commit(vec![open(5)]).await.expect("opened");
    let reserved = next_group();
    assert!(reserved > GroupId(5));
    stage.commit(vec![open(4)]).await.expect("opened");
    assert_eq!(next_group(), reserved, "it was reserved before");
    stage.commit(vec![open(reserved.0)]).await.expect("opened");
    assert!(next_group() > reserved);
}

#[tokio::test]
async fn a_stream_that_is_gone_says_so() {
    let stage = Stage::new();
    let gone = StreamletKey {
        stream: StreamId::random(),
        streamlet: StreamletId(0),
    };
    let transaction = Transaction {
        streamlet: gone,
        ..stage.transaction(stage.epoch, vec![open(1)])
    };
    let refused = stage.records.try_commit(transaction).await;
    assert_eq!(refused, Err(RecordsError::NoStreamlet(gone)));
    let refused = stage.records.try_read(gone).await;
    assert_eq!(refused, Err(RecordsError::NoStreamlet(gone)));
    let refused = stage.records.try_take_epoch(gone, BrokerId(1)).await;
    assert_eq!(refused, Err(RecordsError::NoStreamlet(gone)));
}
