//! Owners whose own files are one of the copies, or the only one.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kera_log_segments::io::fault::Fault;
use kera_log_segments::ship::Shipping;
use kera_protocol::ids::{GroupId, LaneId};
use kera_records::{GroupRecord, Transaction};
use kera_replication::ids::{AckPolicy, BrokerId, CopyId, Incarnation, Replica};
use kera_replication::own::{OwnFiles, OwnReplicas};
use kera_replication::primary::{Lane, Primary};
use kera_replication::records::commit;
use kera_replication::recovery::{Recovered, Stopped, Unclean};
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{CopyAnswer, Reply, Request, Seal};

use crate::suite::check::Model;
use crate::suite::scenario::streamlet;
use crate::suite::served::{Served, durable};
use crate::suite::test_group::TestGroup;
use crate::suite::{Plan, Stage, StageRef};
use crate::{BRIEFLY, Case, OWNER, Opened, calm, open, planned};

pub fn plan(replicas: usize, min_insync_replicas: usize) -> Plan {
    Plan {
        own: true,
        replicas,
        min_insync_replicas,
        ..calm()
    }
}

pub async fn take_over(case: &Case) -> (Arc<Primary>, Recovered) {
    let own = case.stage.own(OWNER).expect("it has files");
    let primary = Arc::new(case.primary(OWNER).with_own(own));
    let recovered = case.recover_as(&primary, Unclean::Wait).await;
    (primary, recovered)
}

/// The broker's process ends and another starts.
async fn restart(case: &Case, fate: MemoryFate) -> (Arc<Primary>, Recovered) {
    case.stage.kill(OWNER).await;
    case.stage.start(OWNER, fate).await;
    take_over(case).await
}

async fn append(case: &Case, lane: &Arc<Lane>, group: &Opened, id: u64) -> u64 {
    let batch = group.1.append(id, 20).expect("the group takes it");
    group.0.grew();
    case.stage.write_own(OWNER, &group.0, &group.1);
    let acknowledged = group.1.acknowledged(lane, batch.end, BRIEFLY);
    acknowledged.await.expect("all is well");
    batch.end
}

pub async fn own_bytes(case: &Case, copy: CopyId, len: u64) -> Vec<u8> {
    let read = Request::Read {
        copy,
        address: 0,
        len: len as u32,
    };
    match case.stage.own(OWNER).expect("it has files").ask(read).await {
        Ok(Reply::Bytes(bytes)) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// A group of some batches, one copy of which is the own file, closed and flushed.
pub async fn closed(case: &Case, lane: &Arc<Lane>) -> Opened {
    let group = open(lane, 0);
    for id in 0..8 {
        append(case, lane, &group, id).await;
    }
    group.1.freeze();
    group.0.froze();
    case.wait(Duration::from_secs(1)).await;
    assert!(group.0.is_closed());
    group
}

#[test]
fn the_own_file_counts_and_is_not_shipped() {
    planned(plan(3, 2), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        let batch = group.1.append(1, 20).expect("room");
        group.0.grew();
        case.wait(Duration::from_secs(1)).await;
        assert_eq!(group.0.holders().len(), 3);
        assert_eq!(group.0.durable(), 0, "its own file has nothing yet");
        case.stage.write_own(OWNER, &group.0, &group.1);
        let acknowledged = group.1.acknowledged(&lane, batch.end, BRIEFLY);
        acknowledged.await.expect("now all three have it");
        assert_eq!(
            case.copies(OWNER).await,
            [],
            "nothing went to its own backup store"
        );
    });
}

#[test]
fn a_group_that_its_owner_remembers_is_closed_once_its_file_has_it() {
    planned(plan(3, 2), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let copy = CopyId {
            streamlet: streamlet(),
            group: lane.next_group(AckPolicy::Memory),
            epoch: recovered.epoch,
            generation: 0,
        };
        let source = TestGroup::remembered(copy, LaneId(0));
        let source = Arc::new(source);
        let set = source.open(&lane);
        let batch = source.append(1, 20).expect("room");
        set.grew();
        set.own_completed(batch.end);
        let acknowledged = source.acknowledged(&lane, batch.end, BRIEFLY);
        acknowledged
            .await
            .expect("its memory and two others' have it");
        let files = case.stage.own(OWNER).expect("it has files").incarnation();
        let own = |record: &GroupRecord| {
            let own = record.copies.iter().find(|replica| replica.broker == OWNER);
            own.expect("it is named").incarnation
        };
        let open = case.stage.look().groups.remove(0);
        assert_eq!(own(&open).store_id, files.store_id);
        assert_ne!(own(&open), files, "its process, and not its boot");
        source.freeze();
        set.froze();
        case.wait(case.plan.config.drain_timeout / 2).await;
        assert!(!set.is_closed(), "its file has nothing");
        source.let_go();
        case.wait(case.plan.config.drain_timeout / 4).await;
        let closed = case.stage.look().groups.remove(0);
        assert!(closed.is_closed(), "{closed:?}");
        assert_eq!((closed.copies.len(), own(&closed)), (3, files));
    });
}

/// Nobody reads what a process had in memory: others have it, or an operator is asked.
#[test]
fn a_file_does_not_answer_for_what_its_process_remembered() {
    planned(plan(1, 1), |case| async move {
        let files = case.stage.own(OWNER).expect("it has files");
        let (_, recovered) = take_over(&case).await;
        let copy = CopyId {
            streamlet: streamlet(),
            group: GroupId(1),
            epoch: recovered.epoch,
            generation: 0,
        };
        let seal = Request::Seal(Seal {
            streamlet: streamlet(),
            epoch: recovered.epoch,
            copies: vec![(copy, files.process())],
        });
        let answered = files.ask(seal).await.expect("an answer");
        let Reply::Sealed(answers) = answered else {
            panic!("{answered:?}");
        };
        assert_eq!(answers[0].answer, CopyAnswer::Unknown);
    });
}

#[test]
fn an_own_file_that_fails_ends_the_group_and_the_others_keep_it() {
    planned(plan(3, 2), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&case, &lane, &group, 1).await;
        group.1.append(2, 20).expect("room");
        group.0.grew();
        group.0.own_lost("no space left on the device");
        case.wait(Duration::from_secs(1)).await;
        assert!(group.0.is_closed());
        let found = case.stage.look();
        let closed = &found.groups[0];
        assert!(closed.is_closed(), "{closed:?}");
        assert_eq!(closed.end_ordinal, 2);
        assert!(
            closed.copies.iter().all(|h| h.broker != OWNER),
            "{closed:?}"
        );
    });
}

#[test]
fn own_files_that_are_gone_or_damaged_are_made_anew_from_the_others() {
    for harm in ["gone", "damaged", "of another life"] {
        planned(plan(3, 2), move |case| async move {
            let (primary, recovered) = take_over(&case).await;
            let lane = case.lane(&primary, &recovered);
            let group = open(&lane, 0);
            let mut end = 0;
            for id in 0..8 {
                end = append(&case, &lane, &group, id).await;
            }
            let copy = group.0.id();
            let whole = own_bytes(&case, copy, end).await;
            let path = case.stage.own(OWNER).expect("files").path(&copy);
            let mut fate = MemoryFate::Kept;
            match harm {
                "gone" => fs::remove_file(&path).expect("is removed"),
                "damaged" => {
                    let mut bytes = fs::read(&path).expect("the file");
                    bytes[300] ^= 4;
                    fs::write(&path, bytes).expect("is written");
                }
                _ => fate = MemoryFate::PowerLost,
            }
            let (_, recovered) = restart(&case, fate).await;
            let lane = &recovered.lanes[0];
            assert_eq!((lane.stopped.clone(), lane.next_ordinal), (None, 8));
            let holders = &lane.groups[0].copies;
            assert!(holders.iter().any(|h| h.broker == OWNER), "{holders:?}");
            assert_eq!(own_bytes(&case, copy, end).await, whole);
        });
    }
}

#[test]
fn a_longer_own_file_completes_the_others() {
    planned(plan(3, 3), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&case, &lane, &group, 1).await;
        // The rest never leaves this broker.
        for node in case.stage.nodes() {
            case.stage.cut(OWNER, node);
        }
        group.1.append(2, 20).expect("room");
        case.stage.write_own(OWNER, &group.0, &group.1);
        case.stage.kill(OWNER).await;
        case.stage.heal();
        case.stage.start(OWNER, MemoryFate::Kept).await;
        let (_, recovered) = take_over(&case).await;
        let closed = &recovered.lanes[0].groups[0];
        assert_eq!((closed.end_ordinal, closed.copies.len()), (2, 3));
    });
}

#[test]
fn a_missing_own_file_alone_is_no_proof_that_nothing_was_written() {
    planned(plan(3, 2), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        append(&case, &lane, &group, 1).await;
        let path = case.stage.own(OWNER).expect("files").path(&group.0.id());
        fs::remove_file(path).expect("is removed");
        for node in case.stage.nodes().into_iter().filter(|n| *n != OWNER) {
            case.stage.kill(node).await;
        }
        let (_, recovered) = restart(&case, MemoryFate::Kept).await;
        let stopped = &recovered.lanes[0].stopped;
        assert!(
            matches!(stopped, Some(Stopped::Unclean { .. })),
            "{stopped:?}"
        );
    });
}

#[test]
fn with_one_copy_the_owner_comes_back_and_closes_its_own() {
    planned(plan(1, 1), |case| async move {
        let served = serve(&case).await;
        for id in 0..3 {
            served.take(id).await;
        }
        let recorded = case.stage.look().groups;
        assert!(recorded.iter().all(|record| record.copies.len() == 1));
        drop(served);
        let (_, recovered) = restart(&case, MemoryFate::Kept).await;
        let lane = &recovered.lanes[0];
        assert_eq!(
            (lane.next_ordinal, lane.gaps.len()),
            (3, 0),
            "nothing can be lost"
        );
        assert_eq!(lane.groups.len(), 1, "what was never used is no group");
    });
}

#[test]
fn a_gap_is_not_recorded_before_it_is_known_where_it_ends() {
    planned(plan(1, 1), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let first = open(&lane, 0);
        append(&case, &lane, &first, 1).await;
        // A later group has a replica at a broker that lost it, so that nobody can tell yet where it begins.
        let mut copies = first.0.holders();
        copies.push(Replica {
            broker: BrokerId(2),
            incarnation: Incarnation::default(),
        });
        let later = GroupRecord {
            copies,
            ..GroupRecord::new(streamlet().group(GroupId(50)), LaneId(0), recovered.epoch)
        };
        let later = Transaction::of_groups(streamlet(), recovered.epoch, [later.put()]);
        let (records, runtime) = (case.stage.records(OWNER), case.stage.runtime(OWNER));
        let recorded = commit(&records, &*runtime, &later, false).await;
        recorded.expect("it is recorded");
        let (_, recovered) = restart(&case, MemoryFate::PowerLost).await;
        let lane = &recovered.lanes[0];
        assert!(
            matches!(&lane.stopped, Some(Stopped::Unclean { copy, .. }) if copy.group == GroupId(50)),
            "{lane:?}"
        );
        assert_eq!((lane.groups.len(), lane.gaps.len()), (0, 0), "{lane:?}");
        let found = case.stage.look().groups;
        assert!(
            found.len() > 1 && found.iter().all(|record| !record.is_closed()),
            "{found:?}"
        );
    });
}

#[test]
fn with_one_copy_a_boot_is_reported_as_a_gap_and_all_that_is_whole_is_kept() {
    planned(plan(1, 1), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let first = open(&lane, 0);
        append(&case, &lane, &first, 1).await;
        append(&case, &lane, &first, 2).await;
        // The next group is begun before this one is closed, and the machine loses power.
        case.stage.cut_records(OWNER);
        first.1.freeze();
        first.0.froze();
        let second = open(&lane, 2);
        second.1.append(3, 20).expect("room");
        case.stage.write_own(OWNER, &second.0, &second.1);
        let copy = second.0.id();
        case.stage.kill(OWNER).await;
        case.stage.heal();
        case.stage.start(OWNER, MemoryFate::PowerLost).await;
        let (_, recovered) = take_over(&case).await;
        let lane = &recovered.lanes[0];
        assert_eq!(lane.stopped, None);
        let kept: Vec<_> = lane.groups.iter().filter(|c| c.length > 0).collect();
        assert_eq!(kept.len(), 2, "{lane:?}");
        assert_eq!((kept[0].end_ordinal, kept[0].next_ordinal), (2, 2));
        assert_eq!(
            (
                CopyId::of(kept[1]),
                kept[1].start_ordinal(),
                kept[1].end_ordinal
            ),
            (copy, 2, 3)
        );
        assert!(
            lane.next_ordinal >= 1 << 32,
            "what somebody may have seen is not numbered again"
        );
        assert_eq!(
            lane.gaps.first().map(|gap| gap.0),
            Some(3),
            "and is reported"
        );
    });
}

/// Its disk answers again a moment later, and then all of it is there.
#[test]
fn a_file_that_cannot_be_read_for_a_moment_is_not_given_up() {
    const BURST: usize = 64;
    let stopped = Arc::new(AtomicUsize::new(0));
    let reads = 40;
    for nth in 1..=reads {
        let stopped = stopped.clone();
        let plan = Plan {
            synced: true,
            ..plan(1, 1)
        };
        planned(plan, move |case| async move {
            let served = serve(&case).await;
            for id in 0..3 {
                served.take(id).await;
            }
            drop(served);
            case.stage.kill(OWNER).await;
            case.stage.start(OWNER, MemoryFate::Kept).await;
            let disk = case.stage.failing_disk(OWNER);
            for _ in 0..BURST {
                disk.inject_on(".log", Fault::FailRead { nth });
            }
            let (_, recovered) = take_over(&case).await;
            stopped.fetch_add(recovered.lanes[0].stopped.iter().count(), Ordering::Relaxed);
            assert_eq!(recovered.lanes[0].gaps, [], "read {nth} fails");
            disk.heal();
            let (_, recovered) = take_over(&case).await;
            let lane = &recovered.lanes[0];
            let found = (lane.stopped.clone(), lane.next_ordinal, lane.gaps.len());
            assert_eq!(found, (None, 3, 0), "read {nth} failed before");
        });
    }
    let stopped = stopped.load(Ordering::Relaxed) as u64;
    assert!(0 < stopped && stopped < reads, "{stopped} attempts stopped");
}

#[test]
fn a_close_elsewhere_never_builds_under_its_own_writer() {
    planned(plan(3, 3), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        let end = append(&case, &lane, &group, 1).await;
        let before = own_bytes(&case, group.0.id(), end).await;
        for node in case.stage.nodes() {
            case.stage.cut(OWNER, node);
        }
        group.0.own_lost("no space left on the device");
        case.wait(Duration::from_secs(3)).await;
        assert!(!group.0.is_closed(), "nobody else can be reached");
        assert_eq!(own_bytes(&case, group.0.id(), end).await, before);
        case.stage.heal();
        case.wait(Duration::from_secs(10)).await;
        assert!(group.0.is_closed());
        assert_eq!(own_bytes(&case, group.0.id(), end).await, before);
        let found = case.stage.look();
        let closed = &found.groups[0];
        assert!(closed.is_closed(), "{closed:?}");
        assert_eq!(closed.copies.len(), 3);
        assert!(
            closed.copies.iter().all(|h| h.broker != OWNER),
            "{closed:?}"
        );
    });
}

/// A streamlet that its owner serves, as brokers do.
struct Serving {
    served: Arc<Served>,
    _primary: Arc<Primary>,
}

async fn serve(case: &Case) -> Serving {
    let (primary, recovered) = take_over(case).await;
    let (stage, model): (StageRef, _) = (case.stage.clone(), Model::default());
    let served = Served::take_over(&stage, &case.plan, &primary, &recovered, &model);
    Serving {
        served: served.await.expect("it is served"),
        _primary: primary,
    }
}

impl Serving {
    async fn take(&self, id: u64) {
        let appended = self.served.append(LaneId(0), id, 20).expect("it is taken");
        assert!(durable(appended.expect("it is the owner")).await);
    }
}

/// A streamlet of two replicas that its owner serves, with a batch in the one group that is used, one recorded ahead,
/// and nothing left at the other broker; as recovered once the owner's process was killed. `harm` comes to what that
/// leaves: the files of the streamlet.
async fn left_alone_with_a_group_ahead(
    case: &Case,
    harm: impl FnOnce(&OwnFiles, CopyId),
) -> Recovered {
    let served = serve(case).await;
    served.take(1).await;
    case.wait(Duration::from_secs(1)).await;
    let recorded = case.stage.look().groups;
    assert_eq!(recorded.len(), 2, "one is recorded ahead");
    for node in case.stage.nodes().into_iter().filter(|n| *n != OWNER) {
        case.stage.kill(node).await;
        case.stage.start(node, MemoryFate::PowerLost).await;
    }
    drop(served);
    let files = case.stage.own(OWNER).expect("files");
    harm(&files, CopyId::of(&recorded[1]));
    restart(case, MemoryFate::Kept).await.1
}

#[test]
fn a_group_ahead_needs_nobody_but_its_owner_who_made_its_file() {
    planned(plan(2, 2), |case| async move {
        let recovered = left_alone_with_a_group_ahead(&case, |_, _| {}).await;
        let lane = &recovered.lanes[0];
        assert_eq!((&lane.stopped, lane.next_ordinal), (&None, 1));
        assert_eq!((lane.gaps.len(), lane.discarded.len()), (0, 1), "{lane:?}");
    });
}

/// Something was in it, for all that is known.
#[test]
fn a_group_ahead_whose_file_was_harmed_waits_for_the_operator() {
    let removed = |files: &OwnFiles, copy| fs::remove_file(files.path(&copy));
    let cut = |files: &OwnFiles, copy| {
        let file = fs::File::options().write(true).open(files.path(&copy));
        file.and_then(|file| file.set_len(0))
    };
    let harms: [fn(&OwnFiles, CopyId) -> std::io::Result<()>; 2] = [removed, cut];
    for harm in harms {
        planned(plan(2, 2), move |case| async move {
            let harm = |files: &OwnFiles, copy| harm(files, copy).expect("its file is there");
            let recovered = left_alone_with_a_group_ahead(&case, harm).await;
            let stopped = &recovered.lanes[0].stopped;
            assert!(
                matches!(stopped, Some(Stopped::Unclean { .. })),
                "{stopped:?}"
            );
        });
    }
}
