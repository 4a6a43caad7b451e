//! What a broker sees to by itself: groups get back the copies that they lack, and backups that were
//! away hear of streams that are gone.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use super::trio::{Trio, lines};
use crate::common::PATIENCE;

/// Looks again and again until it is so.
fn until(what: &str, trio: &Trio, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: {}", trio.broker.log());
        std::thread::yield_now();
    }
}

/// The stream as it is when the broker has lost its own files and one backup alone is left.
fn from_backup_alone(trio: &mut Trio, alone: usize) -> Vec<String> {
    let files = trio.group_files("s");
    trio.broker.kill();
    for file in files {
        fs::remove_file(file).expect("a file can be removed");
    }
    for (at, backup) in trio.backups.iter_mut().enumerate() {
        if at != alone && backup.is_running() {
            backup.kill();
        }
    }
    trio.broker.restart();
    until("the stream is not recovered", trio, || trio.is_served("s"));
    trio.consume("s")
}

#[test]
fn groups_written_while_a_backup_is_away_get_their_copies_when_it_is_back() {
    let Some(mut trio) = Trio::with(&["--cluster-repair-interval", "200ms"]) else {
        return;
    };
    trio.create("s", "3", "2");
    let all = lines(0..3000);
    trio.produce("s", &all[..500]);
    trio.backups[1].kill();
    trio.produce("s", &all[500..]);
    // Some of them closed, the last one open.
    let short = trio.short_groups("s");
    assert!(short > 1, "{short}");
    let gauge = "kera_stream_under_replicated_groups{stream=\"s\"}";
    until("it is not counted", &trio, || trio.metric(gauge) > 1);
    trio.backups[1].restart();
    until("copies are lacking", &trio, || trio.short_groups("s") == 0);
    until("it is still counted", &trio, || trio.metric(gauge) == 0);
    assert!(trio.metric("kera_repair_replicas_total") > 0);
    assert!(trio.metric("kera_repair_bytes_total") > 0);
    assert_eq!(from_backup_alone(&mut trio, 1), all);
}

#[test]
fn a_backup_that_is_lost_is_replaced_by_another() {
    let every = ["--cluster-repair-interval", "200ms"];
    let soon = ["--cluster-lost-after", "500ms"];
    let Some(mut trio) = Trio::of(3, &[every, soon].concat()) else {
        return;
    };
    trio.create("s", "3", "2");
    let all = lines(0..3000);
    trio.produce("s", &all);
    // Most likely at the first two; who is slow to answer when a group begins is left out of it.
    let copies = |trio: &Trio, at: &[usize]| {
        let held = at.iter().map(|at| trio.all_copies_at(*at).len());
        held.sum::<usize>()
    };
    let groups: BTreeSet<_> = (0..3).flat_map(|at| trio.all_copies_at(at)).collect();
    let three_are_enough = copies(&trio, &[0, 1, 2]) == 2 * groups.len();
    assert!(three_are_enough, "{groups:?}");
    let before = copies(&trio, &[1, 2]);
    assert!(before < 2 * groups.len(), "the first holds something");
    trio.backups[0].kill();
    until("not all copies were made anew", &trio, || {
        let recorded = trio.metric("kera_repair_replicas_total");
        let is_whole = [1, 2].iter().all(|at| trio.all_copies_at(*at) == groups);
        is_whole && recorded == (2 * groups.len() - before) as u64
    });
    assert_eq!(from_backup_alone(&mut trio, 2), all);
}

#[test]
fn a_backup_that_was_away_hears_of_a_stream_that_is_gone() {
    let Some(mut trio) = Trio::with(&["--cluster-repair-interval", "200ms"]) else {
        return;
    };
    trio.create("s", "3", "3");
    trio.create("kept", "3", "2");
    trio.produce("s", &lines(0..1000));
    trio.produce("kept", &lines(0..10));
    let id = trio.broker.json(&["stream", "describe", "s"])["id"].clone();
    let id = id.as_str().expect("an id").to_owned();
    trio.backups[1].kill();
    trio.broker.run(&["stream", "delete", "s", "--yes"]);
    let of_s = |trio: &Trio, at: usize| {
        let (memory, disk) = trio.copies_at(at);
        let of_s = |path: &&String| path.starts_with(&id);
        memory.iter().chain(&disk).filter(of_s).count()
    };
    until("the one that is there forgets", &trio, || {
        of_s(&trio, 0) == 0
    });
    assert!(of_s(&trio, 1) > 0);
    // Whoever deleted it is another process by the time the other comes back.
    trio.broker.kill();
    trio.broker.restart();
    trio.backups[1].restart();
    until("the other forgets", &trio, || of_s(&trio, 1) == 0);
    let marks = trio.broker.data_dir().join("forget");
    until("it is told again for ever", &trio, || {
        fs::read_dir(&marks).expect("marks").next().is_none()
    });
    until("the other stream is served", &trio, || {
        trio.is_served("kept")
    });
    assert_eq!(trio.consume("kept"), lines(0..10));
}
