//! The suite over the simulated network.

mod common;
mod suite;

use kera_replication::faults::Faults;

use common::once;
use suite::Plan;
use suite::scenario::Seen;

/// `KERA_REPLICATION_SEED` runs one seed, with its log; `KERA_REPLICATION_SEEDS` that many.
fn seeds(usual: u64) -> (std::ops::Range<u64>, bool) {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match (
        number("KERA_REPLICATION_SEED"),
        number("KERA_REPLICATION_SEEDS"),
    ) {
        (Some(seed), _) => (seed..seed + 1, true),
        (None, many) => (0..many.unwrap_or(usual), false),
    }
}

fn holds(min_insync_replicas: usize) {
    holds_of(min_insync_replicas, |_| {});
}

fn holds_of(min_insync_replicas: usize, change: impl Fn(&mut Plan)) {
    let (seeds, log) = seeds(150);
    let mut seen = Seen::default();
    for seed in seeds.clone() {
        let mut plan = Plan::new(seed, min_insync_replicas, Faults::default());
        if seed % 4 == 3 {
            // Small sets, much trouble, and records that change long after they were asked to.
            plan.replicas = min_insync_replicas.max(2);
            (plan.trouble, plan.late) = (40, 100);
        }
        // The owner's own files are one of the copies.
        plan.own = seed % 5 == 4;
        plan.jobs = seed % 2 == 1;
        plan.empty = 500 * (seed / 2 % 2);
        if seed % 7 == 2 {
            // Backups that are full now and then; a group takes 3 KiB.
            // Little for buffers, beside the seals and the records of a few copies.
            plan.limits.memory_bytes = (12 << 10) + (32 << 10) + 12 * 4096;
        }
        change(&mut plan);
        let (result, lines) = once(plan, log);
        lines.iter().for_each(|line| println!("{line}"));
        match result {
            Ok(one) => {
                seen.appended += one.appended;
                seen.acked += one.acked;
                seen.groups += one.groups;
            }
            Err(error) => panic!("seed {seed}, min_insync_replicas {min_insync_replicas}: {error}"),
        }
    }
    println!("min_insync_replicas {min_insync_replicas}, seeds {seeds:?}: {seen:?}");
    assert!(
        seen.acked * 4 > seen.appended,
        "too little went well: {seen:?}"
    );
}

#[test]
fn everything_acknowledged_is_recovered_with_one_copy_left() {
    holds(1);
}

#[test]
fn everything_acknowledged_is_recovered_with_two_copies_left() {
    holds(2);
}

#[test]
fn everything_acknowledged_is_recovered_with_all_copies() {
    holds(3);
}

/// All brokers lose power at once, again and again: what was acknowledged is on their disks.
#[test]
fn what_is_synced_outlives_the_power_of_all_brokers_with_one_disk_left() {
    holds_of(1, |plan| plan.synced = true);
}

#[test]
fn what_is_synced_outlives_the_power_of_all_brokers_with_two_disks_left() {
    holds_of(2, |plan| plan.synced = true);
}

#[test]
fn what_is_synced_outlives_the_power_of_all_brokers_with_all_disks() {
    holds_of(3, |plan| plan.synced = true);
}

/// The owner is killed again and again, and its files lack what it only remembered.
#[test]
fn what_is_acknowledged_from_memory_outlives_the_process_of_the_owner_with_two_replicas_left() {
    holds_of(2, |plan| (plan.own, plan.remembered) = (true, true));
}

#[test]
fn what_is_acknowledged_from_memory_outlives_the_process_of_the_owner_with_all_replicas() {
    holds_of(3, |plan| (plan.own, plan.remembered) = (true, true));
}

#[test]
fn the_same_seed_has_the_same_log() {
    for seed in 0..4 {
        let plan = Plan::new(seed, 2, Faults::default());
        let (one, first) = once(plan, true);
        let (two, second) = once(plan, true);
        assert!(first.len() > 100, "seed {seed}: the log is empty");
        let differs = first.iter().zip(&second).position(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}: from that line on");
        assert_eq!(first.len(), second.len(), "seed {seed}");
        assert_eq!(one.is_ok(), two.is_ok(), "seed {seed}");
    }
}
