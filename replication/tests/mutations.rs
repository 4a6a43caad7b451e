//! Rules broken on purpose: the suite must notice each within a bounded number of seeds, or it
//! would not notice a mistake either.

mod common;
mod suite;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::LaneId;
use kera_records::{GroupRecord, Transaction};
use kera_replication::faults::Faults;
use kera_replication::ids::{BrokerId, CopyId, Replica};
use kera_replication::jobs::{Jobs, Owned};
use kera_replication::primary::Primary;
use kera_replication::records::StreamletRecords;
use kera_replication::recovery::{RecoverSpec, Unclean, recover};
use kera_replication::runtime::within;
use kera_replication::transport::Request;

use common::SimStage;
use kera_replication::transport::sim::MemoryFate;
use suite::check::Model;
use suite::scenario::streamlet;
use suite::served::{Served, durable};
use suite::{Plan, Stage, StageRef, busy};

/// Seeds after which a broken rule counts as unnoticed.
const SEEDS: u64 = 1500;

/// Runs seeds until one is seen to lose what was acknowledged, or to keep what does not belong.
/// Being stuck is no proof: a broken rule must be noticed by its harm.
fn noticed(name: &str, faults: Faults, change: impl Fn(&mut Plan)) {
    let once = |plan| common::once(plan, false).0;
    for seed in 0..SEEDS {
        let mut plan = Plan::new(seed, 2, faults);
        change(&mut plan);
        match once(plan) {
            Err(error)
                if !["stuck", "all is well", "nothing moves"]
                    .iter()
                    .any(|harmless| error.contains(harmless)) =>
            {
                println!("{name}: seed {seed}: {error}");
                // It is the broken rule that did it.
                let mut sound = Plan::new(seed, 2, Faults::default());
                change(&mut sound);
                let told = once(sound);
                assert!(told.is_ok(), "{name}: with the rule kept: {told:?}");
                return;
            }
            _ => {}
        }
    }
    panic!("{name}: {SEEDS} seeds and nobody noticed");
}

#[test]
fn sealing_disabled() {
    let faults = Faults {
        sealing_disabled: true,
        ..Faults::default()
    };
    noticed("sealing_disabled", faults, |_| {});
}

/// An owner at rest, with a group recorded ahead, is succeeded without hearing of it. All replica stores start again,
/// and it appends.
fn a_former_owner_at_rest(faults: Faults) -> Result<(), String> {
    let mut plan = Plan::new(0, 2, faults);
    plan.late = 0;
    let stage = SimStage::new(&plan);
    let (on, sim) = (stage.clone(), stage.sim.clone());
    let told = stage.sim.run(async move { at_rest(&on, plan).await });
    sim.end();
    told.unwrap_or_else(|| Err("nothing moves any more".into()))
}

async fn at_rest(stage: &Arc<SimStage>, plan: Plan) -> Result<(), String> {
    let (lane, model) = (LaneId(0), Model::default());
    let former = reign(stage, &plan, BrokerId(0), &model).await?;
    let first = former.append(lane, 1, 20)?.expect("it is the owner");
    former.end_group(lane);
    if !durable(first).await {
        return Err("the first batch was given up".into());
    }
    let closed = former.lane(lane).closed_frozen().await;
    closed.expect("it is the owner");
    let open = |found: &StreamletRecords| found.groups.iter().any(|group| !group.is_closed());
    assert!(open(&stage.look()), "a group is recorded ahead");
    // Nobody can tell it, and its own replica is not sealed.
    stage.cut_records(BrokerId(0));
    stage.cut(BrokerId(3), BrokerId(0));
    drop(reign(stage, &plan, BrokerId(3), &model).await?);
    assert!(!open(&stage.look()), "the successor has decided about it");
    for node in stage.nodes() {
        if node != BrokerId(0) {
            stage.kill(node).await;
            stage.start(node, MemoryFate::Kept).await;
        }
    }
    let late = former.append(lane, 2, 20)?.expect("it knows of no other");
    let clock = stage.runtime(BrokerId(0));
    let waited = within(&*clock, Duration::from_secs(10), Box::pin(durable(late))).await;
    if waited != Some(true) {
        return Ok(());
    }
    stage.heal();
    let last = reign(stage, &plan, BrokerId(2), &model).await?;
    match last.read(lane)?.contains(&2) {
        true => Ok(()),
        false => Err("batch 2 was acknowledged and is gone".into()),
    }
}

/// `owner` takes the streamlet over and serves it.
async fn reign(
    stage: &Arc<SimStage>,
    plan: &Plan,
    owner: BrokerId,
    model: &Model,
) -> Result<Arc<Served>, String> {
    let primary = Primary::new(
        owner,
        stage.nodes(),
        stage.transport(owner),
        stage.records(owner),
        stage.runtime(owner),
        plan.config,
    );
    let primary = Arc::new(primary.with_faults(plan.faults));
    let spec = RecoverSpec {
        streamlet: streamlet(),
        min_insync_replicas: plan.min_insync_replicas,
        unclean: Unclean::Wait,
        starts: BTreeMap::new(),
    };
    let recovered = recover(&primary, &spec).await.expect("a recovery");
    let on: StageRef = stage.clone();
    Served::take_over(&on, plan, &primary, &recovered, model).await
}

/// What an owner can still open without asking the records is a group recorded ahead; which seeds hardly ever come to.
#[test]
fn seals_forgotten_at_restart() {
    assert_eq!(a_former_owner_at_rest(Faults::default()), Ok(()));
    let faults = Faults {
        seals_forgotten_at_restart: true,
        ..Faults::default()
    };
    let harm = a_former_owner_at_rest(faults).expect_err("the rule is broken");
    assert!(harm.contains("acknowledged and is gone"), "{harm}");
}

#[test]
fn open_after_seal() {
    let faults = Faults {
        open_after_seal: true,
        ..Faults::default()
    };
    noticed("open_after_seal", faults, |_| {});
}

#[test]
fn old_incarnation_answers() {
    let faults = Faults {
        old_incarnation_answers: true,
        ..Faults::default()
    };
    noticed("old_incarnation_answers", faults, |plan| {
        plan.replicas = 2;
        plan.trouble = 40;
    });
}

#[test]
fn vanished_store_keeps_id() {
    let faults = Faults {
        vanished_store_keeps_id: true,
        ..Faults::default()
    };
    noticed("vanished_store_keeps_id", faults, |plan| {
        plan.replicas = 2;
        plan.trouble = 40;
    });
}

#[test]
fn scan_trusts_length() {
    let faults = Faults {
        scan_trusts_length: true,
        ..Faults::default()
    };
    noticed("scan_trusts_length", faults, |_| {});
}

#[test]
fn acknowledge_without_copy() {
    let faults = Faults {
        acknowledge_without_copy: true,
        ..Faults::default()
    };
    noticed("acknowledge_without_copy", faults, |_| {});
}

#[test]
fn epoch_not_compared() {
    let faults = Faults {
        epoch_not_compared: true,
        ..Faults::default()
    };
    noticed("epoch_not_compared", faults, |_| {});
}

/// A change of holders that was asked for, given up on and overtaken by another, arrives at last. What
/// the records then say is true, or not.
fn a_late_change_of_holders(faults: Faults) -> Result<(), String> {
    let mut plan = Plan::new(0, 2, faults);
    (plan.late, plan.replicas) = (0, 3);
    let stage = SimStage::new(&plan);
    let (on, sim) = (stage.clone(), stage.sim.clone());
    let told = stage.sim.run(async move { late_change(&on, plan).await });
    sim.end();
    told.unwrap_or_else(|| Err("nothing moves any more".into()))
}

async fn late_change(stage: &Arc<SimStage>, plan: Plan) -> Result<(), String> {
    let owner = BrokerId(0);
    let primary = Primary::new(
        owner,
        stage.nodes(),
        stage.transport(owner),
        stage.records(owner),
        stage.runtime(owner),
        plan.config,
    );
    let primary = Arc::new(primary);
    let spec = RecoverSpec {
        streamlet: streamlet(),
        min_insync_replicas: plan.min_insync_replicas,
        unclean: Unclean::Wait,
        starts: BTreeMap::new(),
    };
    let recovered = recover(&primary, &spec).await.expect("a recovery");
    let on: StageRef = stage.clone();
    let model = Model::default();
    let served = Served::take_over(&on, &plan, &primary, &recovered, &model).await?;
    let lane = LaneId(0);
    let appended = served.append(lane, 1, 20)?.expect("it is the owner");
    served.end_group(lane);
    let copy = CopyId {
        streamlet: streamlet(),
        group: appended.group.id(),
        epoch: recovered.epoch,
        generation: 0,
    };
    if !durable(appended).await {
        return Err("the batch was given up".into());
    }
    served
        .lane(lane)
        .closed_frozen()
        .await
        .expect("it is the owner");
    let of = |found: StreamletRecords| {
        let record = found.groups.into_iter().find(|r| CopyId::of(r) == copy);
        record.expect("it is recorded")
    };
    let record = of(stage.look());
    let place = |copies: Vec<Replica>| {
        let placed = GroupRecord {
            copies,
            ..record.clone()
        };
        Transaction::of_groups(streamlet(), recovered.epoch, [placed.put()])
    };
    let [a, b, c] = &record.copies[..] else {
        return Err(format!("three copies were asked for: {record:?}"));
    };
    let records = stage.records(owner);
    let early = records.try_commit(place(vec![*a, *c])).await;
    early.expect("nobody else has changed it");
    // Whoever is not named any more gives the copy back.
    let owned = Owned {
        streamlet: streamlet(),
        epoch: recovered.epoch,
        replicas: 2,
        min_insync_replicas: 2,
        lanes: Vec::new(),
        mend: None,
    };
    let jobs = Jobs::new(&primary, Box::new(move |_| vec![owned.clone()]), busy());
    jobs.round().await;
    let _refused_or_not = records.try_commit(place(vec![*a, *b])).await;
    for holder in of(stage.look()).copies {
        let read = Request::Read {
            copy,
            address: 0,
            len: 1,
        };
        if let Err(error) = stage.transport(owner).call(holder.broker, read).await {
            return Err(format!("{copy} is recorded where it is not: {error}"));
        }
    }
    Ok(())
}

/// In the suite each owner's own records are in a state that a late change does not fit, so that this
/// is told by itself.
#[test]
fn revision_not_compared() {
    assert_eq!(a_late_change_of_holders(Faults::default()), Ok(()));
    let faults = Faults {
        revision_not_compared: true,
        ..Faults::default()
    };
    let harm = a_late_change_of_holders(faults).expect_err("the rule is broken");
    assert!(harm.contains("is recorded where it is not"), "{harm}");
}

#[test]
fn ordinal_gap_accepted() {
    let faults = Faults {
        ordinal_gap_accepted: true,
        ..Faults::default()
    };
    noticed("ordinal_gap_accepted", faults, |_| {});
}

/// A plan of a stream with `ack = synced`.
fn synced(plan: &mut Plan) {
    plan.synced = true;
}

#[test]
fn answered_before_flush() {
    let faults = Faults {
        answered_before_flush: true,
        ..Faults::default()
    };
    noticed("answered_before_flush", faults, synced);
}

#[test]
fn names_not_synced() {
    let faults = Faults {
        names_not_synced: true,
        ..Faults::default()
    };
    noticed("names_not_synced", faults, synced);
}

#[test]
fn newer_bytes_counted() {
    let faults = Faults {
        newer_bytes_counted: true,
        ..Faults::default()
    };
    noticed("newer_bytes_counted", faults, |plan| {
        synced(plan);
        // One replica that has flushed less is not made up for by another.
        plan.replicas = 2;
    });
}

#[test]
fn one_flush_not_awaited() {
    let faults = Faults {
        one_flush_not_awaited: true,
        ..Faults::default()
    };
    noticed("one_flush_not_awaited", faults, |plan| {
        synced(plan);
        plan.replicas = 2;
        plan.trouble = 40;
    });
}

#[test]
fn replaced_disk_keeps_id() {
    let faults = Faults {
        replaced_disk_keeps_id: true,
        ..Faults::default()
    };
    noticed("replaced_disk_keeps_id", faults, |plan| {
        synced(plan);
        plan.replicas = 2;
        plan.trouble = 40;
    });
}

#[test]
fn closed_before_flush() {
    let faults = Faults {
        closed_before_flush: true,
        ..Faults::default()
    };
    noticed("closed_before_flush", faults, synced);
}

/// An owner is killed that has acknowledged from memory, and takes over again.
#[test]
fn process_not_named() {
    let faults = Faults {
        process_not_named: true,
        ..Faults::default()
    };
    noticed("process_not_named", faults, |plan| {
        (plan.own, plan.remembered) = (true, true);
        (plan.replicas, plan.trouble) = (2, 40);
    });
}
