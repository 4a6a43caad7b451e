//! What a start makes of files and records that do not fit each other: it refuses records that are older than the
//! files, and changes nothing; it tells of files that are gone.

mod support;

use std::io::{ErrorKind, IoSlice};

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::OpenHow;
use kera_log_segments::io::fault::Fault;
use support::batches::plain;
use support::store::Store;
use support::{LANE, Machine, Node, settings};

/// Appends until so many more groups were begun, and closes those that ended.
fn fill(node: &Node, machine: &Machine, groups: usize) {
    let (before, _) = machine.store.counts();
    let mut next = 0;
    while machine.store.counts().0 < before + groups {
        assert!(next < 100_000, "no group is ever full");
        node.append(0, &mut plain(next..next + 50, 100));
        next += 50;
    }
    assert!(node.work());
}

fn files(machine: &Machine) -> Vec<String> {
    let mut names = machine.io.list(&machine.dir()).expect("a directory");
    names.sort();
    names
}

#[test]
fn records_put_back_from_a_running_broker_are_refused() {
    for ack in [AckPolicy::Written, AckPolicy::Synced] {
        let mut machine = Machine::fault(31);
        let node = machine.create(settings(ack));
        fill(&node, &machine, 1);
        let older = Store::default();
        older.copy_from(&machine.store);
        fill(&node, &machine, 4);
        let read = node.read_all(LANE);
        machine.kill(node, usize::MAX);
        let newest = Store::default();
        newest.copy_from(&machine.store);
        machine.store.copy_from(&older);
        let before = files(&machine);
        let Err(refused) = machine.try_recover(settings(ack)) else {
            panic!("older records are taken for the newest ones")
        };
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        assert!(
            refused.to_string().contains("put back the newest one"),
            "{refused}"
        );
        assert_eq!(files(&machine), before, "nothing was changed");
        // The newest are put back.
        machine.store.copy_from(&newest);
        let (node, recovery) = machine.recover(settings(ack));
        assert!(recovery.gaps.is_empty(), "{recovery:?}");
        assert_eq!(node.read_all(LANE), read);
    }
}

#[test]
fn records_put_back_from_before_a_start_are_refused() {
    let mut machine = Machine::fault(32);
    let node = machine.create(settings(AckPolicy::Written));
    fill(&node, &machine, 1);
    machine.kill(node, usize::MAX);
    let older = Store::default();
    older.copy_from(&machine.store);
    let (node, _) = machine.recover(settings(AckPolicy::Written));
    node.append(0, &mut plain(0..10, 100));
    machine.kill(node, usize::MAX);
    machine.store.copy_from(&older);
    // The start takes the epoch again that the one had which is forgotten.
    machine.forget_epochs(1);
    assert!(machine.try_recover(settings(AckPolicy::Written)).is_err());
}

/// The header of a file without a record is read at a start: what cannot be read is not taken for never written, and
/// not removed.
#[test]
fn older_records_are_refused_whichever_read_fails() {
    for nth in 1.. {
        let mut machine = Machine::fault(35 + nth);
        let node = machine.create(settings(AckPolicy::Written));
        fill(&node, &machine, 1);
        let older = Store::default();
        older.copy_from(&machine.store);
        fill(&node, &machine, 2);
        machine.kill(node, usize::MAX);
        machine.store.copy_from(&older);
        let before = files(&machine);
        let fault = machine.fault.clone().expect("a fault engine");
        let reads = fault.counts().reads;
        fault.inject(Fault::FailRead { nth });
        let recovered = machine.try_recover(settings(AckPolicy::Written));
        assert!(recovered.is_err(), "read {nth}");
        assert_eq!(files(&machine), before, "read {nth}");
        if fault.counts().reads - reads < nth {
            assert!(nth > 1);
            return;
        }
    }
}

#[test]
fn files_that_a_trim_left_behind_are_no_sign_of_older_records() {
    let mut machine = Machine::fault(33);
    let node = machine.create(settings(AckPolicy::Written));
    fill(&node, &machine, 4);
    let before = files(&machine);
    let fault = machine.fault.clone().expect("a fault engine");
    let kept: Vec<_> = before
        .iter()
        .map(|name| (name, fault.contents(&machine.dir().join(name))))
        .collect();
    let end = node.head(LANE);
    node.streamlet.trim(LANE, end - 1).expect("a trim");
    assert!(node.work());
    let after = files(&machine);
    assert!(after.len() < before.len(), "nothing is trimmed");
    machine.kill(node, usize::MAX);
    // As if the process had died between the record and the file.
    for (name, bytes) in kept {
        if !after.contains(name) {
            let path = machine.dir().join(name);
            let file = machine
                .io
                .open(&path, OpenHow::CreateNew, false)
                .expect("a file");
            let bytes = bytes.expect("it was there");
            file.write_vectored_at(&[IoSlice::new(&bytes)], 0)
                .expect("written");
        }
    }
    let (_, recovery) = machine.recover(settings(AckPolicy::Written));
    assert!(
        recovery.aside.is_empty() && !recovery.remove.is_empty(),
        "{recovery:?}"
    );
}

#[test]
fn a_start_lists_the_directory_once() {
    let mut machine = Machine::fault(34);
    let node = machine.create(settings(AckPolicy::Written));
    fill(&node, &machine, 4);
    let read = node.read_all(LANE);
    machine.kill(node, usize::MAX);
    let fault = machine.fault.clone().expect("a fault engine");
    let before = fault.counts().lists;
    let (node, _) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(fault.counts().lists, before + 1);
    assert_eq!(node.read_all(LANE), read);
}

#[test]
fn files_that_are_gone_are_counted_and_the_first_are_named() {
    let mut machine = Machine::fault(35);
    let node = machine.create(settings(AckPolicy::Written));
    fill(&node, &machine, 15);
    machine.kill(node, usize::MAX);
    let gone: Vec<_> = files(&machine).into_iter().skip(1).take(12).collect();
    for name in &gone {
        let removed = machine.io.remove_file(&machine.dir().join(name));
        removed.expect("it was there");
    }
    let (_, recovery) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(recovery.damaged, gone.len(), "{recovery:?}");
    let told = |name: &String| recovery.reports.iter().any(|line| line.contains(name));
    assert_eq!(gone.iter().filter(|name| told(name)).count(), 10);
    let last = recovery.reports.last().expect("it is told of");
    assert!(last.contains("2 more files"), "{recovery:?}");
}
