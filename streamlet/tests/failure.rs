//! Disks that fail or fill up, and machines that lose power: what is lost is said, what was
//! acknowledged stays, and the lane goes on.

mod support;

use std::sync::Arc;
use std::task::{Wake, Waker};

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::{CrashPlan, Fault};
use kera_log_segments::layout::{MARK_BYTES, MARK_SLOT_STRIDE};
use kera_log_segments::local_writer::sync_together;
use kera_log_segments::sync::Ordering;
use kera_protocol::ids::{LaneId, LaneKey};
use kera_records::Write;
use kera_streamlet::{AppendError, Job, Outcome, Recovery, Settings};
use support::batches::{plain, stamped};
use support::{LANE, Machine, Node, settings};

const JUMP: u64 = 1 << 32;

fn inject(machine: &Machine, fault: Fault) {
    machine
        .fault
        .as_ref()
        .expect("a fault engine")
        .inject(fault);
}

fn heal(machine: &Machine) {
    machine.fault.as_ref().expect("a fault engine").heal();
}

fn numbered(count: u64) -> Vec<(u64, u64)> {
    (0..count).map(|n| (n, n)).collect()
}

#[test]
fn a_failed_write_loses_what_was_not_acknowledged_and_the_lane_goes_on() {
    for ack in [AckPolicy::Written, AckPolicy::Synced] {
        let mut machine = Machine::fault(1);
        let node = machine.create(settings(ack));
        node.append(0, &mut stamped(1, 0, 0, 0..3, 100));
        inject(&machine, Fault::FailWrite { nth: 1 });
        let lost = node
            .place(0, &mut stamped(1, 0, 3, 3..5, 100))
            .expect("a place");
        assert_eq!(
            node.pump(&lost),
            Outcome::Pending,
            "not known to be lost before the repair"
        );
        assert_eq!(
            node.place(0, &mut stamped(1, 0, 5, 5..6, 100))
                .expect_err("failed"),
            AppendError::Recovering
        );
        assert!(node.work());
        assert_eq!(lost.outcome(), Outcome::Lost);
        assert_eq!(node.read_all(LANE), numbered(3));
        assert!(
            matches!(
                node.place(0, &mut stamped(1, 0, 5, 5..6, 100)),
                Err(AppendError::Sequence(_))
            ),
            "a gap"
        );
        assert!(node.append(0, &mut stamped(1, 0, 0, 0..3, 100)).duplicate);
        assert_eq!(
            node.append(0, &mut stamped(1, 0, 3, 3..5, 100))
                .base_ordinal,
            3
        );
        assert_eq!(
            node.append(0, &mut stamped(1, 0, 5, 5..6, 100))
                .base_ordinal,
            5
        );
        assert_eq!(node.read_all(LANE), numbered(6));
        machine.kill(node, 0);
        let (node, recovery) = machine.recover(settings(ack));
        assert!(
            recovery.gaps.is_empty() && recovery.reports.is_empty(),
            "{recovery:?}"
        );
        assert_eq!(node.read_all(LANE), numbered(6));
    }
}

#[test]
fn a_full_disk_is_an_answer_readers_go_on_and_space_ends_it() {
    let mut machine = Machine::fault(2);
    let node = machine.create(settings(AckPolicy::Written));
    let mut stored = 0;
    inject(&machine, Fault::NoSpaceAfter { bytes: 100_000 });
    let refused = loop {
        match node.place(
            0,
            &mut stamped(1, 0, stored as i32, stored..stored + 1, 5000),
        ) {
            Ok(placed) if node.pump(&placed) == Outcome::Durable => stored += 1,
            Ok(_) | Err(AppendError::Recovering) => assert!(node.work()),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, AppendError::DiskFull);
    assert_eq!(node.read_all(LANE), numbered(stored));
    heal(&machine);
    node.env.disk_full.store(false, Ordering::Relaxed);
    for id in stored..stored + 20 {
        node.append(0, &mut stamped(1, 0, id as i32, id..id + 1, 5000));
    }
    assert_eq!(node.read_all(LANE), numbered(stored + 20));
}

struct Bell(std::sync::atomic::AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn whoever_waits_is_woken_by_success_and_by_loss_and_forgotten_when_gone() {
    let mut machine = Machine::fault(3);
    let node = machine.create(settings(AckPolicy::Written));
    let bell = Arc::new(Bell(Default::default()));
    let waker = Waker::from(bell.clone());
    let rung = || bell.0.load(std::sync::atomic::Ordering::SeqCst);
    let placed = node.place(0, &mut plain(0..1, 10)).expect("a place");
    assert_eq!(placed.poll(&waker), Outcome::Pending);
    node.pump(&placed);
    assert_eq!((rung(), placed.poll(&waker)), (1, Outcome::Durable));
    inject(&machine, Fault::FailWrite { nth: 1 });
    let placed = node.place(0, &mut plain(1..2, 10)).expect("a place");
    assert_eq!(placed.poll(&waker), Outcome::Pending);
    node.pump(&placed);
    assert_eq!(
        (rung(), placed.poll(&waker)),
        (2, Outcome::Pending),
        "told to look, and it waits again"
    );
    node.streamlet.write_out();
    assert!(node.work());
    assert_eq!((rung(), placed.poll(&waker)), (3, Outcome::Lost));
    let head = node.streamlet.head(LANE).expect("a lane");
    assert!(head.wait(head.ordinal() + 1, &waker));
    head.forget(&waker);
    assert_eq!(head.waiting(), 0);
}

#[test]
fn a_failed_sync_is_not_taken_for_a_success_later() {
    // The kernel reports it once; the page cache goes on showing what the device does not have.
    for seed in 0..20 {
        let mut machine = Machine::fault(seed);
        let node = machine.create(settings(AckPolicy::Synced));
        node.append(0, &mut stamped(1, 0, 0, 0..3, 100));
        inject(&machine, Fault::FailSync { nth: 1 });
        let failed = node
            .place(0, &mut stamped(1, 0, 3, 3..5, 100))
            .expect("a place");
        assert_eq!(node.pump(&failed), Outcome::Pending);
        // Killed before anything could be put in order, or put in order first.
        let node = if seed % 2 == 0 {
            machine.kill(node, 0);
            machine.recover(settings(AckPolicy::Synced)).0
        } else {
            node.streamlet.write_out();
            assert!(node.work());
            assert_eq!(failed.outcome(), Outcome::Lost);
            node
        };
        // Whether it is a duplicate or not: from now on it is durable.
        assert_eq!(
            node.append(0, &mut stamped(1, 0, 3, 3..5, 100))
                .base_ordinal,
            3
        );
        machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
        let (node, recovery) = machine.recover(settings(AckPolicy::Synced));
        assert_eq!(node.read_all(LANE), numbered(5), "seed {seed}");
        assert!(recovery.gaps.is_empty(), "{recovery:?}");
    }
}

#[test]
fn what_is_not_whole_after_it_was_written_to_the_device_again_does_not_count() {
    for seed in 0..4 {
        let mut machine = Machine::fault(seed);
        let node = machine.create(settings(AckPolicy::Synced));
        let groups: Vec<_> = (0..40)
            .map(|n| node.append(0, &mut stamped(1, 0, n, n as u64..n as u64 + 1, 900)))
            .collect();
        let first = groups[0].group.id();
        let mark = groups[0].group.spec().group_bytes();
        drop(groups);
        machine.kill(node, 0);
        // No mark says that any of it was synced, so that a start writes all of it again.
        let file = machine.file(first.0);
        let zeros = [0; MARK_BYTES];
        let fault = machine.fault.clone().expect("a fault engine");
        for slot in 0..2 {
            fault
                .plant(&file, mark + slot * MARK_SLOT_STRIDE, &zeros)
                .expect("a file");
        }
        support::next_boot(&mut machine.incarnation);
        inject(&machine, Fault::GarbleWrite { nth: 1 });
        let (node, recovery) = machine.recover(settings(AckPolicy::Synced));
        let left = node.read_all(LANE);
        assert!(left.len() < 40, "a batch is damaged");
        assert_eq!(left, numbered(left.len() as u64), "and what follows it");
        assert_eq!((recovery.gaps.len(), recovery.damaged), (1, 1));
        assert!(
            recovery.reports[0].contains("not whole any more after its unsynced bytes"),
            "{recovery:?}"
        );
        // Nothing is given a number that somebody may have seen.
        let next = node.append(0, &mut plain(0..1, 100)).base_ordinal;
        assert!(next >= JUMP, "{next}");
        machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
        let (node, again) = machine.recover(settings(AckPolicy::Synced));
        assert!(again.gaps.is_empty(), "{again:?}");
        assert_eq!(node.read_all(LANE)[..left.len()], left[..]);
    }
}

#[test]
fn what_is_left_of_a_damaged_group_survives_power_loss_though_its_first_sync_fails() {
    // Of two tries one succeeds, or none does and that is told.
    for (seed, failures) in (0..12).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let mut machine = Machine::fault(seed);
        let node = machine.create(settings(AckPolicy::Written));
        let group = node.append(0, &mut stamped(1, 0, 0, 0..20, 200)).group;
        group.write_mark(&machine.incarnation).expect("a mark");
        let good = group.end();
        node.append(0, &mut stamped(1, 0, 20, 20..40, 200));
        group.write_mark(&machine.incarnation).expect("a mark");
        let file = machine.file(group.id().0);
        drop(group);
        machine.kill(node, 0);
        let fault = machine.fault.clone().expect("a fault engine");
        fault
            .plant(&file, good.address, b"no batch")
            .expect("a file");
        for _ in 0..failures {
            // Each is about the first sync that those before it have let through.
            inject(&machine, Fault::FailSync { nth: 1 });
        }
        let (node, recovery) = machine.recover(settings(AckPolicy::Written));
        let told = |report: &&String| report.contains("cannot be synced");
        let told = recovery.reports.iter().filter(told).count();
        assert_eq!(told, failures - 1, "{recovery:?}");
        assert_eq!(node.read_all(LANE), numbered(20));
        if failures == 1 {
            machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
            let (node, _) = machine.recover(settings(AckPolicy::Written));
            assert_eq!(node.read_all(LANE), numbered(20), "seed {seed}");
        }
    }
}

#[test]
fn what_was_written_is_on_the_device_once_a_sync_of_it_succeeds_after_one_that_failed() {
    // In the same life, or after a kill that leaves no trace of the failure, with and without another one.
    for seed in 0..24 {
        let mut machine = Machine::fault(seed);
        let node = machine.create(settings(AckPolicy::Written));
        let group = node.append(0, &mut stamped(1, 0, 0, 0..40, 200)).group;
        inject(&machine, Fault::FailSync { nth: 1 });
        group.sync().expect_err("the device fails");
        let node = if seed % 3 == 0 {
            node
        } else {
            drop(group);
            machine.kill(node, 0);
            let (node, recovery) = machine.recover(settings(AckPolicy::Written));
            assert!(recovery.gaps.is_empty(), "{recovery:?}");
            if seed % 3 == 1 {
                inject(&machine, Fault::FailSync { nth: 1 });
            }
            node
        };
        node.streamlet.write_out();
        assert!(node.work(), "the group is synced and closed");
        machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
        let (node, recovery) = machine.recover(settings(AckPolicy::Written));
        assert!(recovery.gaps.is_empty(), "{recovery:?}");
        assert_eq!(
            node.read_all(LANE),
            numbered(40),
            "seed {seed}: {recovery:?}"
        );
    }
}

#[test]
fn what_was_shown_before_the_policy_became_stricter_stays_and_nothing_more() {
    let mut machine = Machine::fault(11);
    let node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut stamped(1, 0, 0, 0..3, 100));
    inject(&machine, Fault::FailSync { nth: 1 });
    let unsynced = node
        .place(0, &mut stamped(1, 0, 3, 3..5, 100))
        .expect("a place");
    node.streamlet
        .alter(|settings| settings.ack = AckPolicy::Synced, 0);
    assert_eq!(node.pump(&unsynced), Outcome::Pending);
    node.streamlet.write_out();
    assert!(node.work());
    assert_eq!(
        (unsynced.outcome(), node.read_all(LANE)),
        (Outcome::Lost, numbered(3))
    );
    let again = node.append(0, &mut stamped(1, 0, 3, 3..5, 100));
    assert!(!again.duplicate && again.group.is_direct());
    assert_eq!(node.read_all(LANE), numbered(5));
}

#[test]
fn a_repair_after_a_recovery_forgets_no_producer() {
    let mut machine = Machine::fault(12);
    let mut quick = settings(AckPolicy::Memory);
    quick.group_max_age_ms = 1;
    let node = machine.create(quick.clone());
    // Two groups that a kill leaves open; only after the last may something be missing.
    let first = node.append(0, &mut stamped(1, 0, 0, 0..1, 100));
    assert_eq!(node.streamlet.age_out(node.now_ms + 10), 1);
    first.group.write_out();
    node.append(0, &mut stamped(2, 0, 0, 1..2, 100));
    node.streamlet.write_out();
    drop(first);
    machine.kill(node, 0);
    let (node, recovery) = machine.recover(quick);
    assert_eq!((recovery.gaps.len(), node.read_all(LANE)), (1, numbered(2)));
    // The next group fails before the first of them is closed.
    node.append(0, &mut stamped(3, 0, 0, 2..3, 100));
    inject(&machine, Fault::FailWrite { nth: 1 });
    node.streamlet.write_out();
    node.streamlet.write_out();
    assert!(node.work());
    for producer in [1, 2] {
        let id = producer as u64 - 1;
        let again = node.append(0, &mut stamped(producer, 0, 0, id..id + 1, 100));
        assert!(
            again.duplicate && again.base_ordinal == id,
            "producer {producer}"
        );
    }
    assert!(!node.append(0, &mut stamped(3, 0, 0, 2..3, 100)).duplicate);
}

#[test]
fn a_recovered_group_that_cannot_be_synced_costs_nothing() {
    let mut machine = Machine::fault(13);
    let node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut stamped(1, 0, 0, 0..3, 100));
    machine.kill(node, 0);
    let (node, _) = machine.recover(settings(AckPolicy::Written));
    inject(&machine, Fault::FailSync { nth: 1 });
    machine.store.fail(0);
    node.streamlet.write_out();
    assert!(node.work());
    assert!(node.append(0, &mut stamped(1, 0, 0, 0..3, 100)).duplicate);
    assert_eq!(
        node.append(0, &mut stamped(1, 0, 3, 3..5, 100))
            .base_ordinal,
        3
    );
    assert_eq!(node.read_all(LANE), numbered(5));
}

#[test]
fn memory_shows_before_it_writes_and_jumps_over_what_it_lost() {
    let mut machine = Machine::fault(4);
    let node = machine.create(settings(AckPolicy::Memory));
    let placed = node.append(0, &mut plain(0..3, 100));
    assert_eq!(node.read_all(LANE), numbered(3), "shown from memory");
    inject(&machine, Fault::FailWrite { nth: 1 });
    node.streamlet.write_out();
    assert!(placed.group.is_broken());
    node.streamlet.write_out();
    assert!(node.work());
    assert_eq!(node.read_all(LANE), [], "lost");
    assert_eq!(
        node.append(0, &mut plain(3..4, 100)).base_ordinal,
        3 + JUMP,
        "never the same ordinal"
    );
    machine.kill(node, 0);
    let (node, _) = machine.recover(settings(AckPolicy::Memory));
    assert!(
        node.append(0, &mut plain(4..5, 100)).base_ordinal >= 4 + 2 * JUMP,
        "nor after a restart"
    );
}

/// What is told to be empty below the head, which is what a look at every record says.
fn empty(node: &Node) -> u64 {
    let head = node.head(LANE);
    let records = node.read_all(LANE);
    let stored = records.last().map_or(0, |(ordinal, _)| ordinal + 1);
    let told = node.streamlet.empty_below_head(LANE);
    assert_eq!(told, head - stored.max(node.log_start(LANE)));
    told
}

#[test]
fn what_was_lost_below_the_head_is_known_to_be_empty() {
    let mut machine = Machine::fault(21);
    let node = machine.create(settings(AckPolicy::Memory));
    assert_eq!(empty(&node), 0);
    node.append(0, &mut plain(0..3, 100));
    assert_eq!(empty(&node), 0);
    node.streamlet.write_out();
    node.append(0, &mut plain(3..5, 100));
    inject(&machine, Fault::FailWrite { nth: 1 });
    node.streamlet.write_out();
    node.streamlet.write_out();
    assert!(node.work());
    assert!(empty(&node) >= JUMP, "behind what was written");
    node.append(0, &mut plain(5..6, 100));
    assert_eq!(empty(&node), 0, "the gap is not right below the head");
    machine.kill(node, 0);
    let (node, _) = machine.recover(settings(AckPolicy::Memory));
    assert!(empty(&node) >= JUMP);
    node.append(0, &mut plain(6..7, 100));
    assert_eq!(empty(&node), 0);
    node.streamlet.trim(LANE, node.head(LANE)).expect("a trim");
    assert_eq!(
        empty(&node),
        0,
        "where all is trimmed nothing was passed over"
    );
}

#[test]
fn a_memory_group_that_left_nothing_keeps_the_ordinal_it_began_at() {
    let mut machine = Machine::fault(14);
    let node = machine.create(settings(AckPolicy::Memory));
    // Two groups of which nothing was written when the process ends.
    let mut shown = 0;
    while node.streamlet.describe()[0].groups.len() < 2 {
        let placed = node.place(0, &mut plain(shown..shown + 1, 20_000));
        shown = placed.expect("a place").next_ordinal;
    }
    let second = node.streamlet.describe()[0].groups[1].clone();
    assert!(second.first_ordinal > 0);
    machine.kill(node, 0);
    let (node, recovery) = machine.recover(settings(AckPolicy::Memory));
    let closed = machine.store.closed(second.group.0);
    let closed = closed.expect("it carries the gap");
    assert_eq!(closed.first_ordinal, Some(second.first_ordinal));
    assert_eq!(recovery.gaps.len(), 1);
    let (_, _, next) = recovery.gaps[0];
    assert!(closed.next_ordinal == next && next >= shown);
    assert_eq!(node.append(0, &mut plain(0..1, 100)).base_ordinal, next);
    // And a start after a start that found nothing new.
    machine.kill(node, 0);
    let (node, _) = machine.recover(settings(AckPolicy::Memory));
    assert!(node.append(0, &mut plain(1..2, 100)).base_ordinal > next);
}

#[test]
fn a_trim_deletes_records_of_groups_of_which_nothing_is_left() {
    let mut machine = Machine::fault(15);
    let node = machine.create(settings(AckPolicy::Memory));
    let placed = node.place(0, &mut plain(0..1, 20_000));
    let group = placed.expect("a place").group.id();
    machine.kill(node, 0);
    let (node, recovery) = machine.recover(settings(AckPolicy::Memory));
    let (_, _, next) = recovery.gaps[0];
    let is_there = |machine: &Machine| machine.store.closed(group.0).is_some();
    assert!(is_there(&machine), "it carries the gap");
    assert_eq!(node.append(0, &mut plain(1..2, 100)).base_ordinal, next);
    node.streamlet.write_out();
    // As long as the lane begins before the gap, it tells where the lane goes on.
    node.streamlet.trim(LANE, next - 1).expect("a trim");
    assert!(is_there(&machine));
    machine.kill(node, 0);
    let (node, _) = machine.recover(settings(AckPolicy::Memory));
    node.streamlet.trim(LANE, next).expect("a trim");
    assert!(!is_there(&machine));
    let records = node.read_all(LANE);
    assert_eq!(records.first().map(|(ordinal, _)| *ordinal), Some(next));
    machine.kill(node, 0);
    let (node, _) = machine.recover(settings(AckPolicy::Memory));
    assert_eq!(node.read_all(LANE)[..records.len()], records[..]);
    assert!(node.append(0, &mut plain(2..3, 100)).base_ordinal > next);
}

#[test]
fn nothing_behind_a_failed_group_is_closed_before_it() {
    let mut machine = Machine::fault(5);
    let node = machine.create(settings(AckPolicy::Written));
    // The first group is full and unwritten, the second has a batch.
    let mut first = Vec::new();
    while node.streamlet.describe()[0].groups.len() < 2 {
        let id = first.len() as u64;
        first.push(
            node.place(0, &mut stamped(1, 0, id as i32, id..id + 1, 20_000))
                .expect("a place"),
        );
    }
    inject(&machine, Fault::FailWrite { nth: 1 });
    assert!(node.work());
    assert!(
        first.iter().all(|placed| placed.outcome() == Outcome::Lost),
        "in order: all of them"
    );
    for id in 0..first.len() as u64 {
        assert_eq!(
            node.append(0, &mut stamped(1, 0, id as i32, id..id + 1, 20_000))
                .base_ordinal,
            id
        );
    }
    assert_eq!(node.read_all(LANE), numbered(first.len() as u64));
}

#[test]
fn a_group_without_records_does_not_cost_those_behind_it() {
    let mut machine = Machine::fault(6);
    machine.pool_bytes = 2 * 64 * 1024;
    let mut quick = settings(AckPolicy::Written);
    quick.group_max_age_ms = 1;
    quick.segment_size = 200_000;
    let node = machine.create(quick);
    // An append that finds no memory has begun a group and put nothing into it.
    assert_eq!(
        node.place(0, &mut plain(0..1, 150_000))
            .expect_err("no memory"),
        AppendError::NoMemory
    );
    assert_eq!(node.streamlet.age_out(node.now_ms + 10), 1);
    node.append(0, &mut plain(0..3, 100));
    inject(&machine, Fault::FailWrite { nth: 1 });
    let lost = node.place(0, &mut plain(3..4, 100)).expect("a place");
    node.pump(&lost);
    node.streamlet.write_out();
    let lane = LaneKey {
        stream: node.streamlet.stream(),
        streamlet: node.streamlet.id(),
        lane: LANE,
    };
    let job = Job::Repair(lane);
    assert!(node.streamlet.do_job(&job, node.now_ms));
    assert_eq!(node.read_all(LANE), numbered(3));
}

/// Two groups of one lane, the second behind the first, neither closed; returns the ids stored.
fn two_open(machine: &mut Machine) -> (Node, u64, [Arc<kera_log_segments::group::Group>; 2]) {
    let node = machine.create(settings(AckPolicy::Written));
    let mut groups = Vec::new();
    let mut id = 0;
    while groups.len() < 2 {
        let placed = node.append(0, &mut stamped(1, 0, id as i32, id..id + 1, 20_000));
        if groups.last().is_none_or(|g| !Arc::ptr_eq(g, &placed.group)) {
            groups.push(placed.group);
        }
        id += 1;
    }
    let [first, second] = &groups[..] else {
        panic!("two groups")
    };
    (node, id, [first.clone(), second.clone()])
}

#[test]
fn after_power_loss_a_group_whose_successor_follows_is_whole() {
    let mut machine = Machine::fault(7);
    let (node, count, groups) = two_open(&mut machine);
    for group in &groups {
        group.sync().expect("a sync");
    }
    drop(groups);
    machine.power_loss(node, 0, &CrashPlan::power_loss(1));
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(node.read_all(LANE), numbered(count), "both groups count");
    assert_eq!(
        recovery.gaps,
        [(LANE, count, count + JUMP)],
        "only after the last may something be missing"
    );
}

#[test]
fn what_was_flushed_outlives_a_power_loss() {
    let appended = |machine: &mut Machine| {
        let node = machine.create(settings(AckPolicy::Written));
        for n in 0..20 {
            node.append(0, &mut plain(n..n + 1, 300));
        }
        node
    };
    let lost = (0..12).any(|seed| {
        let mut machine = Machine::fault(seed);
        let node = appended(&mut machine);
        assert_eq!(node.streamlet.unflushed().len(), 1);
        machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
        let (node, _) = machine.recover(settings(AckPolicy::Written));
        node.read_all(LANE) != numbered(20)
    });
    assert!(lost, "without a flush a power loss takes something");
    for seed in 0..12 {
        let mut machine = Machine::fault(seed);
        let node = appended(&mut machine);
        sync_together(&node.streamlet.unflushed()).expect("a flush");
        assert!(node.streamlet.unflushed().is_empty());
        machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
        let (node, _) = machine.recover(settings(AckPolicy::Written));
        assert_eq!(node.read_all(LANE), numbered(20), "seed {seed}");
    }
}

/// A flush of the file system that fails may have dropped what the device's cache held of any file; the next flush
/// succeeds all the same.
#[test]
fn what_a_failed_flush_of_many_groups_dropped_is_written_once_more() {
    let settings = Settings {
        lanes: 3,
        ..settings(AckPolicy::Written)
    };
    for (seed, again_together) in (0..12).zip([false, true].into_iter().cycle()) {
        let mut machine = Machine::fault(seed);
        let node = machine.create(settings.clone());
        let append = |numbers: std::ops::Range<u64>| {
            for (lane, n) in (0..3).flat_map(|lane| numbers.clone().map(move |n| (lane, n))) {
                node.append(lane, &mut plain(n..n + 1, 300));
            }
        };
        append(0..20);
        let groups = node.streamlet.unflushed();
        assert_eq!(groups.len(), 3);
        inject(&machine, Fault::FailSync { nth: 1 });
        sync_together(&groups).expect_err("a flush that fails");
        append(20..25);
        let left = again_together.then(|| sync_together(&groups).expect("a flush").len());
        assert!(left.is_none_or(|left| left == 3), "it proves nothing");
        for group in &groups {
            group.sync().expect("a flush");
        }
        assert!(node.streamlet.unflushed().is_empty());
        // From here on one flush is enough again.
        append(25..30);
        let left = sync_together(&groups).expect("a flush");
        assert!(left.is_empty() && node.streamlet.unflushed().is_empty());
        drop(groups);
        machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
        let (node, _) = machine.recover(settings.clone());
        for lane in 0..3 {
            assert_eq!(node.read_all(LaneId(lane)), numbered(30), "seed {seed}");
        }
    }
}

fn goes_on(
    machine: &mut Machine,
    node: Node,
    expected: &[(u64, u64)],
    next: u64,
    recovery: &Recovery,
) {
    assert_eq!(node.read_all(LANE), expected, "{recovery:?}");
    let mut expected = expected.to_vec();
    assert_eq!(
        node.append(0, &mut plain(900..901, 10)).base_ordinal,
        next,
        "{recovery:?}"
    );
    expected.push((next, 900));
    machine.kill(node, 0);
    let (node, again) = machine.recover(settings(AckPolicy::Written));
    assert!(again.gaps.is_empty(), "nothing is lost twice: {again:?}");
    assert_eq!(node.read_all(LANE), expected, "{again:?}");
    // Closed by then, and once more.
    node.streamlet.write_out();
    assert!(node.work() && node.streamlet.close_all(node.now_ms));
    machine.kill(node, 0);
    let (node, again) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(node.read_all(LANE), expected, "{again:?}");
    assert_eq!(again.scanned, 0, "all closed");
}

#[test]
fn after_power_loss_a_group_behind_a_torn_one_is_kept_and_the_gap_reported() {
    for seed in 0..12 {
        behind_a_torn_one(seed, false);
    }
}

/// Closes are recorded a number at a time, newer groups before those that an earlier process had begun.
#[test]
fn after_power_loss_a_closed_group_behind_a_torn_one_is_kept_and_the_gap_reported() {
    for seed in 0..12 {
        behind_a_torn_one(seed, true);
    }
}

fn behind_a_torn_one(seed: u64, is_closed: bool) {
    let mut machine = Machine::fault(8);
    let (node, count, groups) = two_open(&mut machine);
    groups[1].sync().expect("a sync");
    let first = groups[1].spec().first_ordinal;
    if is_closed {
        let lanes = machine.store.lanes();
        let open = lanes[&LANE].groups.last().expect("its record").clone();
        let end = groups[1].end();
        let place = (end.address, end.ordinal);
        let closed = open.closed(first, place, end.ordinal, Vec::new());
        machine.store.apply_now(vec![Write::PutGroup(closed)]);
    }
    drop(groups);
    machine.power_loss(node, 0, &CrashPlan::power_loss(seed));
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    let kept = node.read_all(LANE);
    let lost_to = kept
        .iter()
        .find(|(ordinal, _)| *ordinal >= first)
        .map(|(ordinal, _)| *ordinal);
    assert_eq!(
        lost_to,
        Some(first),
        "the second group is kept: {recovery:?}"
    );
    assert_eq!(kept.last().map(|(ordinal, _)| ordinal + 1), Some(count));
    // The whole first group may have survived by chance.
    let torn = kept.len() as u64 != count;
    let gap = recovery.gaps.iter().any(|(_, _, to)| *to == first);
    assert_eq!(torn, gap, "seed {seed}: {recovery:?}");
    let next = if is_closed { count } else { count + JUMP };
    goes_on(&mut machine, node, &kept, next, &recovery);
}

#[test]
fn after_power_loss_a_group_whose_file_is_gone_may_have_been_shown() {
    let mut machine = Machine::fault(9);
    let node = machine.create(settings(AckPolicy::Written));
    node.append(0, &mut plain(0..3, 100));
    assert!(node.streamlet.close_all(node.now_ms) && node.work());
    node.append(0, &mut plain(3..5, 100));
    machine.power_loss(node, 0, &CrashPlan::power_loss(0));
    if machine.io.exists(&machine.file(2)) {
        machine.io.remove_file(&machine.file(2)).expect("a removal");
    }
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(
        recovery.gaps,
        [(LANE, 3, 3 + 2 * JUMP)],
        "one for the last known, one recorded after it"
    );
    goes_on(&mut machine, node, &numbered(3), 3 + 2 * JUMP, &recovery);
}

#[test]
fn trim_keeps_what_the_lane_remembers() {
    let mut machine = Machine::fault(10);
    let mut node = machine.create(settings(AckPolicy::Written));
    for id in 0..40u64 {
        node.append(0, &mut stamped(1, 0, id as i32, id..id + 1, 20_000));
    }
    node.append(0, &mut stamped(2, 0, 0, 100..101, 10));
    assert!(node.work());
    for to in [5, 30, u64::MAX] {
        let trimmed = node.streamlet.trim(LANE, to).expect("a trim");
        assert_eq!(trimmed.log_start, to.min(41));
        let read = node
            .read_from(LANE, trimmed.log_start, 1000)
            .expect("a read");
        assert_eq!(
            read.last().map(|(ordinal, _)| *ordinal),
            (to < 41).then_some(40)
        );
        assert!(
            node.read_from(LANE, trimmed.log_start - 1, 1000).is_err(),
            "below the log start"
        );
        machine.kill(node, 0);
        node = machine.recover(settings(AckPolicy::Written)).0;
        assert!(
            node.append(0, &mut stamped(1, 0, 39, 39..40, 20_000))
                .duplicate,
            "trimmed to {to}"
        );
        assert!(
            node.append(0, &mut stamped(2, 0, 0, 100..101, 10))
                .duplicate
        );
        node.streamlet.write_out();
        assert!(node.work());
    }
    assert!(node.streamlet.close_all(node.now_ms));
    assert_eq!(
        node.append(0, &mut stamped(1, 0, 40, 200..201, 10))
            .base_ordinal,
        41
    );
}
