//! The judge of a compacted stream says what is wrong, and nothing where nothing is.
#![forbid(unsafe_code)]

#[path = "../src/compaction/judge.rs"]
mod judge;

use std::time::Duration;

use judge::Table;
use kera_history::Lane;

const LANE: Lane = Lane {
    stream: 1,
    streamlet: 0,
    lane: 0,
};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Key `a` has records at 0 and 2, key `b` a record at 1 and a tombstone at 3.
fn table() -> Table {
    let table = Table::default();
    for (ordinal, (key, is_tombstone)) in [("a", false), ("b", false), ("a", false), ("b", true)]
        .iter()
        .enumerate()
    {
        let number = table.sends(key, *is_tombstone, at(1));
        table.stored(key, number, (LANE, ordinal as u64));
    }
    table
}

/// What is said of a reader who got these: key, ordinal, and what the value says.
fn said(got: &[(&str, u64, Option<u64>)]) -> (Vec<String>, Vec<String>) {
    let table = table();
    let said = said_of(&table, got);
    assert_eq!(table.counts(7), (4, got.len()));
    said
}

fn said_of(table: &Table, got: &[(&str, u64, Option<u64>)]) -> (Vec<String>, Vec<String>) {
    table.begins(7, at(2));
    for (key, ordinal, said) in got {
        table.read(7, (*key).to_owned(), (LANE, *ordinal), *said);
    }
    table.passed(7, LANE, 4, at(3));
    (table.findings(), table.lacks(7))
}

#[test]
fn what_is_left_of_each_key_is_its_newest() {
    let all = [
        ("a", 0, Some(0)),
        ("b", 1, Some(0)),
        ("a", 2, Some(1)),
        ("b", 3, None),
    ];
    let none = (Vec::new(), Vec::new());
    assert_eq!(said(&all), none);
    assert_eq!(said(&all[2..]), none);
    // The tombstone may be gone, with what it deletes.
    assert_eq!(said(&all[2..3]), none);
    // And not before it, nor while somebody is between the two.
    let (findings, lacks) = said(&all[1..3]);
    assert!(
        findings.len() == 1 && lacks.len() == 1,
        "{findings:?} {lacks:?}"
    );
    // The newest record of a key is never gone.
    let (findings, lacks) = said(&all[3..]);
    assert!(
        findings.len() == 1 && lacks.len() == 1,
        "{findings:?} {lacks:?}"
    );
}

#[test]
fn nothing_comes_twice_or_back_or_from_nowhere() {
    for got in [
        &[("a", 2, Some(1)), ("a", 0, Some(0))][..],
        &[("a", 2, Some(0))],
        &[("b", 3, Some(1)), ("a", 2, Some(1))],
        &[("c", 2, Some(0)), ("a", 2, Some(1))],
    ] {
        let (findings, _) = said(got);
        assert!(!findings.is_empty(), "{got:?}");
    }
}

/// A reader that stopped before another record of a key was sent is judged by the record before; one that may have been
/// reading then is not judged.
#[test]
fn a_reader_is_judged_by_what_was_there_when_it_stopped() {
    let without_b = [("b", 1, Some(0)), ("a", 2, Some(1))];
    for (sent, findings) in [(at(4), 1), (at(2), 0)] {
        let table = table();
        let number = table.sends("b", false, sent);
        table.stored("b", number, (LANE, 4));
        let (found, _) = said_of(&table, &without_b);
        assert_eq!(found.len(), findings, "{found:?}");
    }
}
