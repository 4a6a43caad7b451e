//! Groups that their owner has made of others: at other brokers first, then in the records, and never mixed up with what
//! they replace.

use std::fs;
use std::sync::Arc;

use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use kera_records::{GroupRecord, Transaction};
use kera_replication::ids::{BrokerId, CopyId, Incarnation};
use kera_replication::jobs::{Jobs, Rewritten};
use kera_replication::own::{OwnRef, OwnReplicas};
use kera_replication::primary::Primary;
use kera_replication::records::{RecordsError, commit};
use kera_replication::recovery::{Recovered, Unclean};
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{
    CopyInfo, CopyState, CopyVersion, Pending, Refusal, Reply, Request,
};
use parking_lot::Mutex;

use crate::jobs::{bytes, jobs, owned, record};
use crate::own::{closed, own_bytes, take_over};
use crate::suite::scenario::streamlet;
use crate::suite::{Plan, Stage, busy};
use crate::{Case, OWNER, calm, planned};

fn plan() -> Plan {
    Plan {
        own: true,
        ..calm()
    }
}

/// An owner with a closed group, and what it has made of it.
struct Story {
    primary: Arc<Primary>,
    recovered: Recovered,
    jobs: Arc<Jobs>,
    before: GroupRecord,
    after: GroupRecord,
}

impl Story {
    async fn begin(case: &Case) -> Self {
        Self::begin_as(case, take_over(case).await).await
    }

    async fn begin_as(case: &Case, (primary, recovered): (Arc<Primary>, Recovered)) -> Self {
        let lane = case.lane(&primary, &recovered);
        let group = closed(case, &lane).await;
        let before = record(case, group.0.id());
        let after = GroupRecord {
            generation: 1,
            ..before.clone()
        };
        let jobs = jobs(case, &primary, &recovered, busy());
        let mut made = own_bytes(case, CopyId::of(&before), before.length).await;
        let header = &mut made[..SEGMENT_HEADER_BYTES];
        let rewritten = SegmentHeader {
            generation: 1,
            ..SegmentHeader::decode(header).expect("a header")
        };
        header.copy_from_slice(&rewritten.encode());
        let files = case.stage.own(OWNER).expect("it has files");
        fs::write(files.path(&CopyId::of(&after)), made).expect("a file");
        Self {
            primary,
            recovered,
            jobs,
            before,
            after,
        }
    }

    async fn ship(&self, case: &Case) -> Result<Rewritten, String> {
        let owned = owned(case, &self.recovered);
        self.jobs.ship(&owned, &self.after).await
    }

    /// Records what was made, at `shipped`.
    async fn record(&self, case: &Case, shipped: &Rewritten) -> Result<u64, RecordsError> {
        let after = GroupRecord {
            copies: shipped.replicas.clone(),
            ..self.after.clone()
        };
        let change = Transaction::of_groups(streamlet(), self.recovered.epoch, [after.put()]);
        let (records, runtime) = (case.stage.records(OWNER), case.stage.runtime(OWNER));
        commit(&records, &*runtime, &change, false).await
    }

    /// The generations that a broker holds.
    async fn held(&self, case: &Case, at: BrokerId) -> Vec<u32> {
        let copies = case.copies(at).await;
        let of = copies.iter().map(|info| info.copy);
        let of = of.filter(|copy| copy.group == self.before.group);
        of.map(|copy| copy.generation).collect()
    }
}

/// Own files, and a replica in the store beside them, which is asked first.
struct WithStore {
    files: OwnRef,
    kept: Mutex<Option<CopyId>>,
}

impl OwnReplicas for WithStore {
    fn incarnation(&self) -> Incarnation {
        self.files.incarnation()
    }

    fn process(&self) -> Incarnation {
        self.files.process()
    }

    fn ask(&self, request: Request) -> Pending<Result<Reply, Refusal>> {
        let mut kept = self.kept.lock();
        let version = CopyVersion(1);
        let reply = match request {
            Request::List { .. } => Reply::Copies(Vec::from_iter(kept.map(|copy| CopyInfo {
                copy,
                version,
                state: CopyState::Flushed,
            }))),
            Request::Read { copy, len, .. } if *kept == Some(copy) => {
                Reply::Bytes(vec![7; len as usize].into())
            }
            Request::Free { copy, .. } if *kept == Some(copy) => {
                *kept = None;
                Reply::Done
            }
            other => return self.files.ask(other),
        };
        Box::pin(async { Ok(reply) })
    }
}

#[test]
fn what_an_earlier_owner_brought_here_and_never_recorded_is_not_taken_for_what_is_made_now() {
    planned(plan(), |case| async move {
        let own = Arc::new(WithStore {
            files: case.stage.own(OWNER).expect("it has files"),
            kept: Mutex::default(),
        });
        let primary = Arc::new(case.primary(OWNER).with_own(own.clone()));
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let story = Story::begin_as(&case, (primary, recovered)).await;
        let (new, length) = (CopyId::of(&story.after), story.after.length);
        *own.kept.lock() = Some(new);
        let shipped = story.ship(&case).await.expect("two others take it");
        let made = own_bytes(&case, new, length).await;
        for broker in others(&shipped) {
            assert_eq!(bytes(&case, broker, new, length).await, made, "{broker}");
        }
        assert_eq!(*own.kept.lock(), None, "it is freed");
    });
}

fn others(shipped: &Rewritten) -> Vec<BrokerId> {
    let brokers = shipped.replicas.iter().map(|replica| replica.broker);
    brokers.filter(|broker| *broker != OWNER).collect()
}

#[test]
fn what_is_rewritten_is_at_others_before_a_record_names_it_and_takes_its_place() {
    planned(plan(), |case| async move {
        let story = Story::begin(&case).await;
        let shipped = story.ship(&case).await.expect("two others take it");
        assert_eq!(shipped.replicas[0].broker, OWNER);
        assert_eq!(shipped.replicas.len(), 3);
        let (old, new) = (CopyId::of(&story.before), CopyId::of(&story.after));
        let length = story.after.length;
        let made = own_bytes(&case, new, length).await;
        assert_ne!(made, own_bytes(&case, old, length).await);
        // Nothing is recorded yet, and rounds leave both where they are.
        for _ in 0..2 {
            story.jobs.round().await;
            for broker in others(&shipped) {
                assert_eq!(story.held(&case, broker).await, [0, 1], "{broker}");
                assert_eq!(bytes(&case, broker, new, length).await, made, "{broker}");
                assert_ne!(bytes(&case, broker, old, length).await, made, "{broker}");
            }
        }
        assert_eq!(record(&case, old), story.before);

        story.record(&case, &shipped).await.expect("it is recorded");
        let brokers = others(&shipped);
        drop(shipped);
        story.jobs.round().await;
        let recorded = record(&case, new);
        assert_eq!(recorded.copies.len(), 3);
        for broker in brokers {
            let copies = case.copies(broker).await;
            let copies: Vec<_> = copies.iter().map(|info| (info.copy, info.state)).collect();
            assert_eq!(copies, [(new, CopyState::Flushed)], "{broker}");
            assert_eq!(bytes(&case, broker, new, length).await, made, "{broker}");
        }
    });
}

#[test]
fn what_is_shipped_and_never_recorded_is_freed() {
    planned(plan(), |case| async move {
        let story = Story::begin(&case).await;
        let shipped = story.ship(&case).await.expect("two others take it");
        let brokers = others(&shipped);
        drop(shipped);
        story.jobs.round().await;
        for broker in brokers {
            assert_eq!(story.held(&case, broker).await, [0], "{broker}");
        }
        assert_eq!(record(&case, CopyId::of(&story.before)), story.before);
    });
}

#[test]
fn a_broker_that_comes_back_with_what_was_replaced_is_not_counted() {
    planned(plan(), |case| async move {
        let story = Story::begin(&case).await;
        let before = story.before.copies.iter().map(|replica| replica.broker);
        let away = before.filter(|broker| *broker != OWNER).min();
        let away = away.expect("others have it");
        case.stage.kill(away).await;
        let shipped = story.ship(&case).await.expect("others take it");
        assert!(!others(&shipped).contains(&away), "{shipped:?}");
        story.record(&case, &shipped).await.expect("it is recorded");
        drop(shipped);
        case.stage.start(away, MemoryFate::Kept).await;
        assert_eq!(story.held(&case, away).await, [0], "what it had");
        for _ in 0..3 {
            story.jobs.round().await;
        }
        let recorded = record(&case, CopyId::of(&story.after));
        let names = recorded.copies.iter().any(|replica| replica.broker == away);
        assert_eq!(recorded.copies.len(), 3);
        let held = story.held(&case, away).await;
        assert_eq!(held, if names { vec![1] } else { vec![] });
    });
}

#[test]
fn with_too_few_brokers_nothing_is_recorded() {
    planned(plan(), |case| async move {
        let story = Story::begin(&case).await;
        for broker in case.stage.nodes().into_iter().filter(|node| *node != OWNER) {
            case.stage.kill(broker).await;
        }
        let refused = story.ship(&case).await.expect_err("nobody takes it");
        assert!(refused.contains("1 replicas"), "{refused}");
        assert!(refused.contains("2 are the least"), "{refused}");
        assert_eq!(record(&case, CopyId::of(&story.before)), story.before);
    });
}

#[test]
fn whoever_takes_over_before_the_record_knows_nothing_of_what_was_rewritten() {
    planned(plan(), |case| async move {
        let story = Story::begin(&case).await;
        let shipped = story.ship(&case).await.expect("two others take it");
        let brokers = others(&shipped);
        let next = Arc::new(case.primary(brokers[0]));
        let recovered = case.recover_as(&next, Unclean::Wait).await;
        let refused = story.record(&case, &shipped).await;
        assert!(
            matches!(refused, Err(RecordsError::Epoch { .. })),
            "{refused:?}"
        );
        drop(shipped);
        // A broker that nobody has sealed takes what it brings, and the records do not.
        if let Ok(late) = story.ship(&case).await {
            assert!(
                others(&late).iter().all(|at| !brokers.contains(at)),
                "{late:?}"
            );
            let refused = story.record(&case, &late).await;
            assert!(
                matches!(refused, Err(RecordsError::Epoch { .. })),
                "{refused:?}"
            );
        }
        assert_eq!(record(&case, CopyId::of(&story.before)), story.before);
        let jobs = jobs(&case, &next, &recovered, busy());
        jobs.round().await;
        for broker in case.stage.nodes() {
            let held = story.held(&case, broker).await;
            assert!(
                held.iter().all(|generation| *generation == 0),
                "{broker}: {held:?}"
            );
        }
        drop(story.primary);
    });
}
