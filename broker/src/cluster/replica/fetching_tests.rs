use kera_log_segments::window::Place;
use kera_metadata::{Damage, GroupKey};
use kera_protocol::ids::{Epoch, GroupId, LaneId, StreamId, StreamletId};

use super::*;

/// From an ordinal up to another.
type Stretch = (Ordinal, Ordinal);

/// Ten records of 100 bytes each.
fn record(damaged: Option<Damage>) -> GroupRecord {
    let key = GroupKey {
        stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
        streamlet: StreamletId(0),
        group: GroupId(5),
    };
    let open = GroupRecord::new(key, LaneId(0), Epoch(3));
    let closed = open.closed(10, (1000, 20), 20, Vec::new());
    GroupRecord { damaged, ..closed }
}

fn hole((from, to): (Ordinal, Ordinal)) -> Hole {
    let place = |ordinal| Place {
        address: (ordinal - 10) * 100,
        ordinal,
    };
    Hole {
        from: place(from),
        to: place(to),
    }
}

fn lost(stretches: &[Stretch]) -> LostRecords {
    stretches.iter().map(|(from, to)| *from..*to).collect()
}

/// The one place of an earlier build, and the list of today.
fn known(from: Ordinal, stretches: &[Stretch]) -> Option<Damage> {
    let mut damaged = Damage::new((from - 10) * 100, String::new());
    damaged.lost = lost(stretches);
    Some(damaged)
}

#[test]
fn only_what_is_named_may_be_lacked() {
    // What is recorded; what the operator accepts; what is lacked; whether it may be.
    type Case<'a> = (Option<Damage>, &'a [Stretch], &'a [Stretch], bool);
    let cases: [Case<'_>; 15] = [
        (None, &[], &[], true),
        (None, &[], &[(14, 15)], false),
        (None, &[(14, 15)], &[(14, 15)], true),
        (None, &[(14, 15)], &[(14, 15), (17, 18)], false),
        (None, &[(14, 15)], &[(13, 15)], false),
        (None, &[(14, u64::MAX)], &[(14, 15), (17, 18)], true),
        // Of an earlier build: from there on.
        (known(14, &[]), &[], &[(14, 15), (17, 18)], true),
        (known(14, &[]), &[], &[(13, 14), (17, 18)], false),
        (known(14, &[]), &[(13, 14)], &[(13, 14), (17, 18)], true),
        (known(14, &[(14, 15)]), &[], &[(14, 15)], true),
        (known(14, &[(14, 15)]), &[], &[(14, 15), (17, 18)], false),
        (known(14, &[(14, 15)]), &[], &[(17, 18)], false),
        (
            known(14, &[(14, 15)]),
            &[(17, 18)],
            &[(14, 15), (17, 18)],
            true,
        ),
        // Two that touch are found as one.
        (known(14, &[(14, 15)]), &[(15, 16)], &[(14, 16)], true),
        (known(14, &[(14, 16)]), &[], &[(14, 15)], true),
    ];
    for (number, (damaged, accepted, lacked, may)) in cases.into_iter().enumerate() {
        let record = record(damaged);
        let holes: Vec<_> = lacked.iter().copied().map(hole).collect();
        let may_lack = match accepted {
            [] => MayLack::Recorded,
            _ => MayLack::Accepted(lost(accepted)),
        };
        assert_eq!(may_lack.allows(&record, &holes), may, "case {number}");
        if accepted.is_empty() {
            let all: u64 = lacked.iter().map(|(from, to)| (to - from) * 100).sum();
            let less = MayLack::LessThan(all + 1).allows(&record, &holes);
            assert_eq!(less, may, "case {number}");
            assert!(!MayLack::LessThan(all).allows(&record, &holes));
            assert_eq!(not_recorded(&record, &holes).is_empty(), may);
        }
    }
}

#[test]
fn nothing_of_a_group_is_given_up_that_was_not_shown() {
    let is_for_all = |accepted: &[Stretch]| {
        let may_lack = MayLack::Accepted(lost(accepted));
        may_lack.is_for_all_of(&record(None))
    };
    assert!(is_for_all(&[(10, 20)]) && is_for_all(&[(0, u64::MAX)]));
    assert!(!is_for_all(&[(11, 20)]) && !is_for_all(&[(10, 19)]));
    assert!(!MayLack::Recorded.is_for_all_of(&record(None)));
}
