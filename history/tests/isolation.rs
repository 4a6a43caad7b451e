//! The isolation checker finds each phenomenon in a history that has it, and nothing in one that is serial.

use std::collections::BTreeMap;

use kera_history::isolation::Operation::{Append, Read};
use kera_history::isolation::Outcome::{Aborted, Committed, Unknown};
use kera_history::isolation::{Operation, Outcome, Phenomenon, Transaction, check, check_all};
use proptest::prelude::*;

fn append(list: u32, value: u64) -> Operation {
    Append { list, value }
}

fn read(list: u32, values: &[u64]) -> Operation {
    Read {
        list,
        values: values.to_vec(),
    }
}

fn of(outcome: Outcome, operations: &[Operation]) -> Transaction {
    Transaction {
        outcome,
        operations: operations.to_vec(),
    }
}

fn committed(operations: &[Operation]) -> Transaction {
    of(Committed, operations)
}

/// What is found, with the transactions.
fn found(history: &[Transaction]) -> Vec<(Phenomenon, Vec<usize>)> {
    let found = check(history).into_iter();
    found
        .map(|one| (one.phenomenon, one.transactions))
        .collect()
}

#[test]
fn writes_in_a_circle_are_g0() {
    let history = [
        committed(&[append(1, 1), append(2, 1)]),
        committed(&[append(1, 2), append(2, 2)]),
        committed(&[read(1, &[1, 2])]),
        committed(&[read(2, &[2, 1])]),
    ];
    assert_eq!(found(&history), [(Phenomenon::DirtyWrite, vec![0, 1])]);
}

#[test]
fn what_was_aborted_is_not_read() {
    let history = [
        of(Aborted, &[append(1, 1)]),
        committed(&[read(1, &[1])]),
        // Nobody but an aborted one has read it.
        of(Aborted, &[append(2, 1)]),
        of(Aborted, &[read(2, &[1])]),
    ];
    assert_eq!(found(&history), [(Phenomenon::AbortedRead, vec![0, 1])]);
}

#[test]
fn an_end_that_nobody_knows_is_a_commit_once_it_is_read() {
    let half = [
        of(Unknown, &[append(1, 1), append(2, 1)]),
        committed(&[read(1, &[1]), read(2, &[])]),
    ];
    assert_eq!(found(&half), [(Phenomenon::ReadSkew, vec![0, 1])]);
    let none = [half[0].clone(), committed(&[read(1, &[]), read(2, &[])])];
    assert_eq!(found(&none), []);
}

#[test]
fn what_was_committed_is_there_in_the_end() {
    let history = [
        committed(&[append(1, 1), append(2, 1)]),
        of(Unknown, &[append(1, 2)]),
        of(Aborted, &[append(2, 3)]),
    ];
    let last = |one: &[u64], two: &[u64]| {
        let lists = BTreeMap::from([(1, one.to_vec()), (2, two.to_vec())]);
        let found = check_all(&history, &lists).into_iter();
        let found = found.map(|one| (one.phenomenon, one.transactions));
        found.collect::<Vec<_>>()
    };
    assert_eq!(last(&[1], &[1]), []);
    assert_eq!(last(&[1, 2], &[1]), []);
    assert_eq!(last(&[], &[]), vec![(Phenomenon::LostAppend, vec![0]); 2]);
    let half = [
        (Phenomenon::ReadSkew, vec![0, 3]),
        (Phenomenon::LostAppend, vec![0]),
    ];
    assert_eq!(last(&[1], &[]), half);
    let aborted = (Phenomenon::AbortedRead, vec![2, 3]);
    assert_eq!(last(&[1], &[1, 3]), [aborted]);
}

#[test]
fn a_state_that_somebody_went_on_to_change_is_not_read() {
    let history = [
        committed(&[append(1, 1), append(1, 2)]),
        committed(&[read(1, &[1])]),
        committed(&[read(1, &[1, 2])]),
    ];
    let all = found(&history);
    assert!(
        all.contains(&(Phenomenon::IntermediateRead, vec![0, 1])),
        "{all:?}"
    );
}

#[test]
fn two_that_read_each_other_are_g1c() {
    let history = [
        committed(&[append(1, 1), read(2, &[1])]),
        committed(&[append(2, 1), read(1, &[1])]),
    ];
    assert_eq!(found(&history), [(Phenomenon::CircularFlow, vec![0, 1])]);
}

#[test]
fn a_reader_between_two_lists_is_g_single() {
    let history = [
        committed(&[append(1, 1), append(2, 1)]),
        committed(&[read(1, &[]), read(2, &[1])]),
        committed(&[read(1, &[1])]),
    ];
    assert_eq!(found(&history), [(Phenomenon::ReadSkew, vec![0, 1])]);
}

#[test]
fn two_that_miss_each_other_are_g2() {
    let history = [
        committed(&[read(1, &[]), append(2, 1)]),
        committed(&[read(2, &[]), append(1, 1)]),
        committed(&[read(1, &[1]), read(2, &[1])]),
    ];
    assert_eq!(found(&history), [(Phenomenon::WriteSkew, vec![0, 1])]);
}

#[test]
fn two_updates_of_one_version_are_a_lost_one() {
    let history = [
        committed(&[read(1, &[]), append(1, 1)]),
        committed(&[read(1, &[]), append(1, 2)]),
        of(Aborted, &[read(1, &[]), append(1, 3)]),
    ];
    let expected = [Phenomenon::WriteSkew, Phenomenon::LostUpdate];
    assert_eq!(found(&history), expected.map(|one| (one, vec![0, 1])));
}

#[test]
fn lists_have_each_value_once_and_in_one_order() {
    let two = [committed(&[append(1, 1)]), committed(&[append(1, 2)])];
    let with = |more: &[Transaction]| found(&[&two[..], more].concat());
    let twice = with(&[committed(&[read(1, &[1, 2, 1])])]);
    assert_eq!(twice, [(Phenomenon::Duplicate, vec![2])]);
    let nobody = with(&[committed(&[read(1, &[1, 7])])]);
    assert_eq!(nobody, [(Phenomenon::Phantom, vec![2])]);
    let orders = with(&[committed(&[read(1, &[1, 2])]), committed(&[read(1, &[2])])]);
    let incompatible = (Phenomenon::Incompatible, vec![3]);
    assert!(orders.contains(&incompatible), "{orders:?}");
    let again = with(&[committed(&[append(1, 1)])]);
    assert_eq!(again, [(Phenomenon::Duplicate, vec![0, 2])]);
    let own = with(&[committed(&[append(1, 3), read(1, &[1, 2])])]);
    assert!(
        own.contains(&(Phenomenon::OwnWriteMissing, vec![2])),
        "{own:?}"
    );
}

/// Transactions one after the other, as (list, whether it appends) each, and whether each is committed.
fn serial() -> impl Strategy<Value = Vec<(Vec<(u32, bool)>, u8)>> {
    let operations = proptest::collection::vec((0..3_u32, any::<bool>()), 1..5);
    proptest::collection::vec((operations, 0..4_u8), 1..30)
}

/// Plays them: what each sees is what was committed before, and its own.
fn played(plan: &[(Vec<(u32, bool)>, u8)]) -> Vec<Transaction> {
    let mut lists: [Vec<u64>; 3] = Default::default();
    let mut next = 0;
    let mut history = Vec::new();
    for (operations, end) in plan {
        let mut own = lists.clone();
        let mut did = Vec::new();
        for (list, appends) in operations {
            let of_list = &mut own[*list as usize];
            match appends {
                true => {
                    next += 1;
                    of_list.push(next);
                    did.push(append(*list, next));
                }
                false => did.push(read(*list, of_list)),
            }
        }
        // What nobody knows is committed or not.
        let (outcome, counts) = match end {
            0 => (Aborted, false),
            1 => (Unknown, true),
            2 => (Unknown, false),
            _ => (Committed, true),
        };
        if counts {
            lists = own;
        }
        history.push(of(outcome, &did));
    }
    history
}

proptest! {
    #[test]
    fn nothing_is_found_in_what_is_serial(plan in serial()) {
        prop_assert_eq!(check(&played(&plan)), vec![]);
    }
}
