//! A seed is all there is to a run: it does the same each time, and finds what is wrong each time.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

/// Seeds that every change plays, from 1 on.
const SEEDS: usize = 140;
/// Seeds with share groups that every change plays, from 300,001 on.
const WITH_SHARES: usize = 20;
/// Seeds whose metadata store is put back, whose groups have dead letters, and whose streams are trimmed, from 500,001 on.
const NEWEST: usize = 20;
/// Seeds whose producers give records up, and whose streams have retention and pins, from 600,001 on.
const GIVING_UP: usize = 20;
/// Seeds beyond those whose runs failed once, for whatever reason, and what was said of them.
const FAILED_ONCE: [&[&str]; 47] = [
    &["--seed", "46", "--no-losses", "--transactions", "0"],
    &["--seed", "103"],
    &["--seed", "109"],
    &["--seed", "113"],
    &["--seed", "119"],
    &["--seed", "131"],
    &["--seed", "206"],
    &["--seed", "50021"],
    &["--seed", "50042"],
    &["--seed", "70008"],
    &["--seed", "100002"],
    &["--seed", "100006"],
    &["--seed", "100011"],
    &["--seed", "100023"],
    &["--seed", "200003"],
    &[
        "--seed",
        "400024",
        "--without",
        "1",
        "--transactions",
        "0",
        "--table",
        "0",
        "--shares",
        "0",
    ],
    &["--seed", "400136"],
    &["--seed", "400013"],
    &["--seed", "400071"],
    &["--seed", "400206"],
    &["--seed", "400242"],
    &["--seed", "400248"],
    &["--seed", "400259"],
    &["--seed", "400279"],
    &["--seed", "500026"],
    &["--seed", "510075"],
    &["--seed", "510106"],
    &["--seed", "510207"],
    &["--seed", "510243"],
    &["--seed", "600298"],
    &["--seed", "700010"],
    &["--seed", "700052"],
    &["--seed", "700297"],
    &["--seed", "700346"],
    &["--seed", "700415"],
    &["--seed", "700607"],
    &["--seed", "700655"],
    &["--seed", "703683"],
    &["--seed", "704897"],
    &["--seed", "706479"],
    &["--seed", "707348"],
    &["--seed", "707439"],
    &["--seed", "707982"],
    &["--seed", "708155"],
    &["--seed", "708753"],
    &["--seed", "510279"],
    &["--seed", "600134"],
];

fn sim(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kera-sim"));
    command.args(args).output().expect("the program runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// So many seeds from `first` on are well, and each run has another log.
fn are_well(first: &str, count: usize) {
    let played = sim(&["--first", first, "--seeds", &count.to_string()]);
    let told = text(&played);
    assert!(played.status.success(), "{told}");
    assert_eq!(digests(&told).len(), count, "{told}");
}

/// A run noticed the rule that was broken, and has no finding with the rule kept.
fn assert_noticed(told: &str) {
    let sums = told.lines().last().unwrap_or_default();
    assert!(sums.ends_with("which is well with the rule kept"), "{told}");
}

/// The numbers that stand for logs of runs in what the program prints of them.
fn digests(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| line.starts_with("seed "));
    lines.filter_map(|line| line.rsplit(' ').next()).collect()
}

#[test]
fn a_seed_played_twice_has_the_same_log_byte_for_byte() {
    // With every turn of every thread in it; transactions and a compacted stream are in them.
    let played = sim(&["--first", "5", "--seeds", "2", "--twice", "--trace"]);
    let told = text(&played);
    let sums = told.lines().last().unwrap_or_default();
    assert!(
        sums.starts_with("4 runs, ") && sums.contains(" 0 differ"),
        "{told}"
    );
}

#[test]
fn seeds_are_well() {
    // Half of them at a time: a run keeps one processor busy.
    let half = (SEEDS / 2).to_string();
    let second = (SEEDS / 2 + 1).to_string();
    let halves = ["1", &second].map(|first| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kera-sim"));
        command.args(["--first", first, "--seeds", &half]);
        command.stdout(Stdio::piped()).spawn().expect("it runs")
    });
    let mut told = String::new();
    let mut is_well = true;
    for half in halves {
        let played = half.wait_with_output().expect("it ends");
        is_well &= played.status.success();
        told += &text(&played);
    }
    assert!(is_well, "{told}");
    assert_eq!(digests(&told).len(), SEEDS, "each has another log: {told}");
    // "3 of 1873 records of a table": some have one, and little is left of it.
    let mut tables = told.lines().filter_map(|line| {
        let (before, _) = line.split_once(" records of a table")?;
        let (left, written) = before.rsplit_once(", ")?.1.split_once(" of ")?;
        Some((left.parse::<u64>().ok()?, written.parse::<u64>().ok()?))
    });
    assert!(tables.any(|(left, written)| left * 2 < written), "{told}");
}

/// Above 300,000 there are share groups, whose members are Kafka's clients.
#[test]
fn seeds_with_share_groups_are_well() {
    let count = WITH_SHARES.to_string();
    let played = sim(&["--first", "300001", "--seeds", &count]);
    let told = text(&played);
    assert!(played.status.success(), "{told}");
    // "213 for share groups": most have one.
    let with_records = told.lines().filter(|line| {
        let (before, _) = line.split_once(" for share groups, ").unwrap_or_default();
        let (_, written) = before.rsplit_once(", ").unwrap_or_default();
        written.parse().is_ok_and(|written: u64| written > 0)
    });
    assert!(with_records.count() * 3 > WITH_SHARES, "{told}");
}

/// Above 500,000 metadata stores are put back to snapshots, streams are trimmed, links are slow, clocks drift, and what share groups
/// give up becomes dead letters.
#[test]
fn seeds_with_restores_and_dead_letters_are_well() {
    are_well("500001", NEWEST);
}

/// Above 600,000 producers give records up after a while, and retention deletes what nobody has pinned.
#[test]
fn seeds_with_hasty_producers_and_pins_are_well() {
    are_well("600001", GIVING_UP);
}

/// What is said not to be stored is read, and what is pinned is gone.
#[test]
fn a_wrong_refusal_and_retention_that_waits_for_nobody_are_noticed() {
    // Where one begins that notices it soon; what another change makes of that seed, a later one notices.
    for (rule, first, findings) in [
        (
            "uncertain_refused",
            "600002",
            &["was said not to be stored", "SEQUENCE_GAP"][..],
        ),
        ("pins_ignored", "600014", &["had to wait for it"]),
    ] {
        let planted = ["--planted", rule, "--first", first];
        let noticed = text(&sim(&[&planted[..], &["--seeds", "30"]].concat()));
        assert_noticed(&noticed);
        let is_told = |finding: &&str| noticed.contains(finding);
        assert!(findings.iter().any(is_told), "{noticed}");
    }
}

#[test]
fn seeds_that_failed_once_are_well() {
    for seed in FAILED_ONCE {
        let played = sim(seed);
        assert!(played.status.success(), "{}", text(&played));
    }
}

/// A last stable ordinal that passes open transactions, and aborted batches that are read.
#[test]
fn transactions_that_do_not_count_are_noticed_by_their_readers() {
    for rule in ["open_transactions_shown", "aborted_shown"] {
        let noticed = text(&sim(&["--planted", rule, "--seeds", "6"]));
        assert_noticed(&noticed);
        assert!(noticed.contains("nobody has asked for"), "{noticed}");
    }
}

/// A compaction that keeps the oldest record of a key: the judge of the table says what is wrong, and does not wait for it
/// to become right.
#[test]
fn a_compaction_that_leaves_the_wrong_record_is_noticed() {
    let noticed = text(&sim(&["--planted", "oldest_record_left", "--seeds", "10"]));
    assert_noticed(&noticed);
    assert!(
        noticed.contains("without the newest record of key"),
        "{noticed}"
    );
}

/// Passes that remove what a reader in the middle of the table is still to read.
#[test]
fn a_compaction_under_a_reader_that_takes_too_much_is_noticed() {
    // Where one begins that notices it soon; what another change makes of that seed, a later one notices.
    for (rule, first) in [
        ("tombstones_dropped_early", "45"),
        ("cleaned_position_skipped", "1"),
    ] {
        let noticed = text(&sim(&[
            "--planted",
            rule,
            "--first",
            first,
            "--seeds",
            "24",
            "--trouble",
            "2000",
        ]));
        assert_noticed(&noticed);
    }
}

/// Owners of share groups' partitions that break a rule: the first run with such a group has what it takes.
#[test]
fn share_groups_that_break_a_rule_are_noticed() {
    for (rule, finding) in [
        ("share_locks_ignored", "held it"),
        (
            "shares_answered_early",
            "after it was answered that it is done",
        ),
        ("delivered_taken_for_done", "are passed over"),
        (
            "letters_not_written",
            "rejected records are no dead letters",
        ),
    ] {
        // Above 500,000 there are dead letters; where one begins that notices it soon.
        let first = match rule {
            "letters_not_written" => "500003",
            _ => "300001",
        };
        let noticed = text(&sim(&[
            "--planted",
            rule,
            "--first",
            first,
            "--seeds",
            "30",
        ]));
        assert_noticed(&noticed);
        assert!(noticed.contains(finding), "{noticed}");
    }
}

/// Replica stores and owners that take bytes for flushed that are not are found out once the power is lost.
#[test]
fn what_is_not_flushed_is_noticed_once_the_power_is_lost() {
    // Where one begins that notices it soon; what another change makes of that seed, a later one notices.
    for (rule, first) in [
        ("answered_before_flush", "100027"),
        ("closed_before_flush", "100032"),
        ("names_not_synced", "100027"),
    ] {
        let planted = ["--planted", rule, "--first", first];
        let noticed = text(&sim(&[&planted[..], &["--seeds", "30"]].concat()));
        assert_noticed(&noticed);
    }
}

/// An owner whose lease is over for all others, and whom the next owner has sealed out: it acknowledges nothing more,
/// and tells no ends.
#[test]
fn an_owner_that_goes_on_after_a_seal_is_noticed_where_its_clock_is_late() {
    // Where one begins that notices it soon.
    for (rule, first) in [
        ("seal_ignored", "100033"),
        ("sealed_out_tells_ends", "100172"),
    ] {
        let planted = ["--planted", rule, "--first", first];
        let noticed = text(&sim(&[&planted[..], &["--seeds", "30"]].concat()));
        assert_noticed(&noticed);
        assert!(noticed.contains("above the durable head"), "{noticed}");
    }
}

/// The metadata store is put back, and lanes go on where it says: what was acknowledged since is gone.
#[test]
fn a_restore_that_nobody_tells_of_is_noticed() {
    let planted = ["--planted", "restore_untold", "--first", "500006"];
    let noticed = text(&sim(&[&planted[..], &["--seeds", "20"]].concat()));
    assert_noticed(&noticed);
}

/// What grows with the number of groups in a cluster at rest is what brokers remember, and nothing that they ask for.
#[test]
fn a_cluster_at_rest_asks_for_nothing_that_grows_with_its_groups() {
    let told = text(&sim(&[
        "--scale",
        "--brokers",
        "12",
        "--groups",
        "1200,12000",
    ]));
    let found = |what: &str| -> Vec<String> {
        let line = told.lines().find(|line| line.contains(what));
        let cells = line.expect(&told).split('|').skip(2).take(2);
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    assert_eq!(found("reads of the store for replicas"), ["0", "0"]);
    assert_eq!(found("transactions for replicas"), ["0", "0"]);
    // Each asks all that there are, itself among them, once a minute.
    assert_eq!(found("messages for replicas"), ["2.40", "2.40"]);
    assert_eq!(found("replicas named in their answers"), ["0", "0"]);
    assert_eq!(found("streamlets that change owners"), ["10", "10"]);
    assert_eq!(found("failover: reads"), ["20", "20"]);
}

/// A rule that is broken in every run is noticed soon, and a shorter schedule of the seed that noticed it does as well.
#[test]
fn an_acknowledgement_that_waits_for_nothing_is_noticed_and_shrunk() {
    let planted = ["--planted", "acknowledged_at_once"];
    let noticed = text(&sim(&[&planted[..], &["--seeds", "20"]].concat()));
    assert_noticed(&noticed);
    let sums = noticed.lines().last().unwrap_or_default();
    let seed = sums
        .split("by seed ")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    let seed = seed.expect("a seed");
    let shrunk = text(&sim(&[
        &planted[..],
        &["--seed", seed, "--shrink", "--tries", "8"],
    ]
    .concat()));
    let again = shrunk
        .lines()
        .last()
        .and_then(|line| line.split("kera-sim ").nth(1));
    let again: Vec<&str> = again.expect("a command").split(' ').collect();
    assert!(
        again.contains(&"--without") || again.contains(&"--trouble"),
        "{shrunk}"
    );
    let repeated = text(&sim(&again));
    assert!(repeated.contains("FAILED"), "{shrunk}{repeated}");
}
