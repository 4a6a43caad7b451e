//! Rules broken on purpose: the suite must notice each within a bounded number of seeds, or it
//! would not notice a mistake either.

mod common;
mod suite;

use kera_replication::faults::Faults;
use suite::Plan;

/// Seeds after which a broken rule counts as unnoticed.
const SEEDS: u64 = 1500;

/// Runs seeds until one is seen to lose what was acknowledged, or to keep what does not belong.
/// Being stuck is no proof: a broken rule must be noticed by its harm.
fn noticed(name: &str, faults: Faults, change: impl Fn(&mut Plan)) {
    for seed in 0..SEEDS {
        let mut plan = Plan::new(seed, 2, faults);
        change(&mut plan);
        match common::once(plan, false).0 {
            Err(error)
                if !["stuck", "all is well", "nothing moves"]
                    .iter()
                    .any(|harmless| error.contains(harmless)) =>
            {
                println!("{name}: seed {seed}: {error}");
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

#[test]
fn seals_forgotten_at_restart() {
    let faults = Faults {
        seals_forgotten_at_restart: true,
        ..Faults::default()
    };
    noticed("seals_forgotten_at_restart", faults, |plan| {
        // Groups recorded ahead are what an owner can still open without asking the records.
        plan.replicas = 2;
        plan.config.ahead = 3;
        plan.reigns = 5;
        plan.trouble = 60;
    });
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

#[test]
fn revision_not_compared() {
    let faults = Faults {
        revision_not_compared: true,
        ..Faults::default()
    };
    noticed("revision_not_compared", faults, |plan| {
        plan.replicas = 2;
        plan.min_copies = 1;
        plan.late = 300;
        plan.trouble = 40;
    });
}

#[test]
fn ordinal_gap_accepted() {
    let faults = Faults {
        ordinal_gap_accepted: true,
        ..Faults::default()
    };
    noticed("ordinal_gap_accepted", faults, |_| {});
}
