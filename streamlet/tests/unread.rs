//! A start that cannot read what a lane remembers of its producers: the lane takes no appends before it can, and
//! forgets nothing.

mod support;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::{Counts, Fault, FaultIo};
use kera_log_segments::layout::FOOTER_OFFSET;
use kera_log_segments::sync::Arc;
use kera_protocol::batch::mark_transactional;
use kera_protocol::ids::{ANY_LANE, Epoch, GroupId, LaneId, LaneKey};
use kera_streamlet::transactions::{EndTransaction, Ended, Grant};
use kera_streamlet::{
    AppendError, Job, LaneReadError, LaneReadSpec, LaneRecords, Located, Outcome, Settings,
    Streamlet,
};
use support::batches::{ids_of, stamped};
use support::{LANE, Machine, Node, settings};

const GRANT: Grant = Grant {
    producer: 8,
    epoch: 0,
    number: 1,
};

fn sent() -> Vec<u8> {
    stamped(7, 0, 0, 0..3, 100)
}

/// Where the footer of a group's file begins.
fn footer_at(settings: &Settings) -> u64 {
    u64::from(settings.segment_size) * u64::from(settings.segments_per_group) + FOOTER_OFFSET
}

/// A lane whose only group is open, with a batch of a producer, and one of a transaction that is open.
fn begun(machine: &mut Machine, settings: &Settings) -> Node {
    let node = machine.create(settings.clone());
    node.append(0, &mut sent());
    assert!(node.streamlet.grant(LANE, GRANT, 0, None, node.now_ms));
    let mut open = stamped(8, 0, 0, 3..5, 100);
    mark_transactional(&mut open);
    node.append(0, &mut open);
    node
}

/// A lane whose only group is closed, with a batch of a producer, and one of a transaction that is open. A footer
/// tells what the lane remembers, or, without one, a walk over its batches.
fn closed(machine: &mut Machine, settings: &Settings, footer: bool) {
    let node = begun(machine, settings);
    assert!(node.streamlet.close_all(node.now_ms));
    assert!(node.work());
    machine.kill(node, usize::MAX);
    if !footer {
        let fault = machine.fault.as_ref().expect("a fault engine");
        for path in fault.paths() {
            let planted = fault.plant(&path, footer_at(settings), &[0; 64]);
            planted.expect("a file");
        }
    }
}

fn end(node: &Node) -> Result<Ended, AppendError> {
    let end = EndTransaction {
        grant: GRANT,
        epoch_after: 0,
        commit: true,
        coordinator_epoch: 1,
        ended_before: 0,
        owner_epoch: None,
    };
    node.streamlet.end_transaction(LANE, &end, node.now_ms)
}

fn committed(node: &Node) -> Vec<(u64, u64)> {
    let read = node.streamlet.read_committed(LaneReadSpec {
        lane: LANE,
        from: Located::default(),
        end_ordinal: u64::MAX,
        max_bytes: 1 << 20,
        cached_only: false,
    });
    ids_of(
        &read
            .expect("a readable lane")
            .only_committed()
            .bufs
            .concat(),
    )
}

/// It says why, loses nothing and shows nothing of what may count; all other reads go on.
fn assert_unread(node: &Node, lane: u32) {
    let is_unread = |error: AppendError| match error {
        AppendError::Unread { lane: found, cause } => {
            assert_eq!(found.0, lane);
            assert!(cause.contains("os error"), "{cause}");
        }
        other => panic!("{other}"),
    };
    is_unread(node.place(lane, &mut sent()).expect_err("not known"));
    assert_eq!(node.streamlet.stable(support::LANE), None);
    is_unread(end(node).expect_err("not known"));
    assert_eq!(committed(node), vec![]);
    assert_eq!(node.read_all(LANE).len(), 5);
}

/// A retry is one, and the open transaction is open.
fn assert_known(node: &Node, what: &str) {
    assert!(node.append(0, &mut sent()).duplicate, "{what}");
    assert_eq!(node.streamlet.stable(LANE), Some(3), "{what}");
    assert_eq!(committed(node).len(), 3, "{what}");
    match end(node) {
        Ok(Ended::Marked(appended)) => assert_eq!(node.pump(&appended), Outcome::Durable),
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(committed(node).len(), 5, "{what}");
}

/// What the maintenance threads do every second.
fn second(node: &Node) {
    node.streamlet.write_out();
    assert!(node.work());
}

/// Seconds until the lane is read: the pause before each next attempt goes by how long the last one took.
fn until_read(node: &Node) {
    while node.streamlet.stable(LANE).is_none() {
        second(node);
        std::thread::yield_now();
    }
}

/// Fails what is to be read, and what is read instead: a walk where a footer fails, less at once where that fails.
fn fail(fault: &FaultIo, of: fn(u64) -> Fault, nth: u64) {
    for _ in 0..3 {
        fault.inject(of(nth));
    }
}

type Faults = [(fn(u64) -> Fault, fn(&Counts) -> u64); 2];

const FAULTS: Faults = [
    (|nth| Fault::FailRead { nth }, |counts| counts.reads),
    (|nth| Fault::FailOpen { nth }, |counts| counts.opens),
];

#[test]
fn no_failed_read_at_a_start_makes_a_lane_forget() {
    for (kind, (fault_of, count_of)) in FAULTS.iter().enumerate() {
        for footer in [true, false] {
            let mut unread = 0;
            for nth in 1.. {
                let what = format!("fault {kind}, footer {footer}, number {nth}");
                let settings = settings(AckPolicy::Written);
                let mut machine = Machine::fault(nth);
                closed(&mut machine, &settings, footer);
                let fault = machine.fault.clone().expect("a fault engine");
                let before = count_of(&fault.counts());
                fail(&fault, *fault_of, nth);
                let recovered = machine.try_recover(settings.clone());
                let is_met = count_of(&fault.counts()) - before >= nth;
                fault.heal();
                let node = match recovered {
                    // A durable mark that could not be read costs nothing.
                    Ok((node, recovery)) if is_met && node.streamlet.stable(LANE).is_none() => {
                        assert_unread(&node, 0);
                        assert!(recovery.changes.is_empty() && recovery.remove.is_empty());
                        let told = |line: &String| line.contains("takes no appends");
                        assert!(recovery.reports.iter().any(told), "{recovery:?}");
                        unread += 1;
                        // It fails once more.
                        fail(&fault, *fault_of, 1);
                        second(&node);
                        fault.heal();
                        assert_unread(&node, 0);
                        until_read(&node);
                        node
                    }
                    Ok((node, _)) => node,
                    Err(_) => machine.recover(settings).0,
                };
                assert_known(&node, &what);
                if !is_met {
                    break;
                }
            }
            assert!(unread > 0, "fault {kind}, footer {footer}");
        }
    }
}

/// What is bad is the footer alone, for good, or the durable marks before it as well: a walk tells what they told.
#[test]
fn a_footer_that_cannot_be_read_is_as_good_as_none() {
    let settings = settings(AckPolicy::Written);
    let footer = footer_at(&settings);
    for offset in [footer, footer - FOOTER_OFFSET] {
        let mut machine = Machine::fault(9);
        closed(&mut machine, &settings, true);
        let fault = machine.fault.clone().expect("a fault engine");
        fault.inject(Fault::FailReadsFrom { offset });
        let (node, _) = machine.recover(settings.clone());
        assert_known(&node, "a start");
        if offset < footer {
            // The group that is open now needs its marks.
            continue;
        }
        let streamlet = awaiting(&machine, &node, settings.clone());
        let records = machine.store.lanes();
        let taken = streamlet.take_over(Epoch(10), GroupId(0), records, machine.now_ms);
        taken.expect("a walk");
        assert_eq!(streamlet.stable(LANE), Some(6));
    }
}

/// A disk may take a minute to fail: no job of another lane waits for it, and a stop does not ask for it again.
#[test]
fn nothing_waits_for_a_lane_that_is_read_again() {
    let by_lane = Settings {
        lanes: 2,
        ..settings(AckPolicy::Written)
    };
    let mut machine = Machine::fault(10);
    closed(&mut machine, &by_lane, false);
    let fault = machine.fault.clone().expect("a fault engine");
    fault.inject(Fault::FailReadsFrom { offset: 0 });
    let (node, _) = machine.recover(by_lane);
    assert_eq!(node.streamlet.stable(LANE), None);
    let other = LaneKey {
        lane: LaneId(1),
        stream: machine.stream,
        streamlet: node.streamlet.id(),
    };
    let meanwhile = (node.streamlet.clone(), node.now_ms);
    fault.before_read(0, move || {
        let (streamlet, now_ms) = &meanwhile;
        assert!(streamlet.do_job(&Job::Close(other), *now_ms));
    });
    node.streamlet.write_out();
    assert!(node.work());
    let reads = fault.counts().reads;
    assert!(node.streamlet.close_all(node.now_ms));
    assert_eq!(fault.counts().reads, reads);
    fault.heal();
    until_read(&node);
    assert_known(&node, "healed");
}

fn awaiting(machine: &Machine, node: &Node, settings: Settings) -> Arc<Streamlet> {
    let id = node.streamlet.id();
    Streamlet::awaiting(machine.stream, id, Epoch(9), settings, node.env.clone())
}

/// The same of a lane with replicas: who takes it over hears of it, and tries again.
#[test]
fn a_take_over_that_cannot_read_fails_and_is_made_again() {
    for (fault_of, _) in FAULTS {
        let settings = settings(AckPolicy::Written);
        let mut machine = Machine::fault(5);
        closed(&mut machine, &settings, true);
        let (node, _) = machine.recover(settings.clone());
        let fault = machine.fault.as_ref().expect("a fault engine");
        let streamlet = awaiting(&machine, &node, settings);
        let records: std::collections::HashMap<_, LaneRecords> = machine.store.lanes();
        let take_over =
            || streamlet.take_over(Epoch(10), GroupId(0), records.clone(), machine.now_ms);
        fail(fault, fault_of, 1);
        let refused = take_over().expect_err("a failed read");
        let file = machine.file(1).display().to_string();
        assert!(refused.to_string().contains(&file), "{refused}");
        take_over().expect("a read");
        assert_eq!(streamlet.stable(LANE), Some(3));
    }
}

#[test]
fn a_lane_whose_file_is_taken_away_goes_on_without_it() {
    let settings = settings(AckPolicy::Written);
    let mut machine = Machine::fault(6);
    closed(&mut machine, &settings, true);
    let fault = machine.fault.clone().expect("a fault engine");
    fail(&fault, |nth| Fault::FailOpen { nth }, 1);
    let (node, _) = machine.recover(settings);
    fault.heal();
    assert_unread(&node, 0);
    machine.io.remove_file(&machine.file(1)).expect("a file");
    until_read(&node);
    assert!(!node.append(0, &mut sent()).duplicate);
}

/// A producer that is pinned to a lane that could not be read is not taken for a new one, which may go to another lane.
#[test]
fn no_producer_is_pinned_while_a_lane_is_not_read() {
    let by_producer = |lanes, lane_generation| Settings {
        lanes,
        lane_generation,
        lane_by_key: false,
        ..settings(AckPolicy::Written)
    };
    let mut machine = Machine::fault(7);
    let node = machine.create(by_producer(2, 1));
    let batch = || stamped(8, 0, 0, 0..3, 100);
    assert_eq!(node.append_any(&mut batch()).lane, LANE);
    let cuts = node.streamlet.cut_lanes().expect("cuts");
    assert!(node.streamlet.growth_settled(&cuts));
    node.finish_growth(3, 2);
    assert!(node.streamlet.close_all(node.now_ms));
    assert!(node.work());
    machine.kill(node, usize::MAX);
    let fault = machine.fault.clone().expect("a fault engine");
    fail(&fault, |nth| Fault::FailRead { nth }, 1);
    let (node, _) = machine.recover(by_producer(3, 2));
    let refused = node.place(ANY_LANE, &mut batch()).expect_err("not known");
    assert!(
        matches!(refused, AppendError::Unread { lane: LANE, .. }),
        "{refused}"
    );
    until_read(&node);
    let again = node.append_any(&mut batch());
    assert!(again.duplicate && again.lane == LANE);
}

/// The file of an open group: nobody knows what of it counts, and there is no other replica.
#[test]
fn a_streamlet_whose_open_file_cannot_be_read_is_read_again_and_forgets_nothing() {
    for (kind, (fault_of, count_of)) in FAULTS.iter().enumerate() {
        let mut waited = 0;
        for nth in 1.. {
            let what = format!("fault {kind}, number {nth}");
            let settings = settings(AckPolicy::Written);
            let mut machine = Machine::fault(nth);
            let node = begun(&mut machine, &settings);
            machine.kill(node, usize::MAX);
            let fault = machine.fault.clone().expect("a fault engine");
            let before = count_of(&fault.counts());
            fail(&fault, *fault_of, nth);
            let recovered = machine.try_recover(settings.clone());
            let is_met = count_of(&fault.counts()) - before >= nth;
            fault.heal();
            let cause = match recovered {
                Ok((node, recovery)) => {
                    // A file that cannot be read once has lost nothing, and no ordinals are left out.
                    let damaged = |line: &String| line.contains("damaged");
                    assert!(
                        !recovery.reports.iter().any(damaged),
                        "{what}: {recovery:?}"
                    );
                    assert_eq!(node.read_all(LANE).len(), 5, "{what}");
                    if is_met {
                        continue;
                    }
                    break;
                }
                Err(error) => {
                    assert_ne!(error.kind(), std::io::ErrorKind::InvalidData, "{what}");
                    error.to_string()
                }
            };
            waited += 1;
            let file = machine.file(1).display().to_string();
            assert!(cause.contains(&file), "{what}: {cause}");
            let node = machine.waiting(settings, cause.clone());
            let refused = node.place(0, &mut sent()).expect_err("not known");
            assert_eq!(refused, AppendError::Unreadable { cause }, "{what}");
            let refused = node.read_from(LANE, 0, 1000);
            assert!(
                matches!(refused, Err(LaneReadError::Unreadable { .. })),
                "{what}"
            );
            fail(&fault, *fault_of, 1);
            machine.read_again(&node).expect_err("it fails once more");
            fault.heal();
            assert!(node.streamlet.unreadable().is_some() && !node.streamlet.is_recovered());
            machine.read_again(&node).expect("it is read");
            assert_eq!(node.streamlet.unreadable(), None);
            assert_known(&node, &what);
        }
        assert!(waited > 0, "fault {kind}");
    }
}
