//! The judge of a share group says what is wrong, and nothing where nothing is.
#![forbid(unsafe_code)]

#[path = "../src/shares/judge.rs"]
mod judge;

use std::time::Duration;

use judge::{Answer, Delivery, Limits, Said, Shares};

const LIMITS: Limits = Limits {
    deliveries: 3,
    lock: Duration::from_secs(2),
};

fn at(tenths: u64) -> Duration {
    Duration::from_millis(tenths * 100)
}

/// Three records, at 0 to 2 of partition 4.
fn shares() -> Shares {
    let shares = Shares::new(LIMITS);
    for offset in 0..3 {
        let number = shares.sends();
        shares.stored(4, offset, number);
    }
    shares
}

/// Session `session` gets `first` to `last` for the `count`th time at `when`, from an owner under `epoch`.
fn delivery(
    session: u64,
    (first, last): (u64, u64),
    count: u16,
    when: u64,
    epoch: Option<u32>,
) -> Delivery {
    Delivery {
        session,
        partition: 4,
        first,
        last,
        count,
        sent: at(when),
        got: at(when + 1),
        reign: epoch.map(|epoch| (epoch, 0)),
    }
}

fn gets(
    shares: &Shares,
    session: u64,
    range: (u64, u64),
    count: u16,
    when: u64,
    epoch: Option<u32>,
) {
    let numbers = (range.0..=range.1).map(|offset| (offset, offset)).collect();
    shares.got(&delivery(session, range, count, when, epoch), &numbers);
}

fn says(
    shares: &Shares,
    session: u64,
    (first, last): (u64, u64),
    said: Said,
    answer: Answer,
    now: u64,
) {
    let number = shares.says(session, 4, &[(first, last, said)]);
    shares.answered(number, answer, at(now));
}

fn said(shares: &Shares) -> String {
    shares.findings().join("; ")
}

/// Accepted, released and got again, rejected.
#[test]
fn a_good_history_is_good() {
    let shares = shares();
    gets(&shares, 1, (0, 2), 1, 0, Some(7));
    says(&shares, 1, (0, 0), Said::Accept, Answer::Kept, 2);
    says(&shares, 1, (1, 1), Said::Release, Answer::Kept, 3);
    says(&shares, 1, (2, 2), Said::Reject, Answer::Kept, 4);
    gets(&shares, 2, (1, 1), 2, 5, Some(7));
    says(&shares, 2, (1, 1), Said::Accept, Answer::Kept, 7);
    shares.alive(1, at(9));
    shares.alive(2, at(9));
    assert_eq!(said(&shares), "");
    assert_eq!(shares.counts(), (3, 4));
    assert_eq!(shares.ends(), [(4, 3)].into());
}

/// What a member cannot know is held against nobody: a lost answer, a connection that broke with its locks, a lock that ended,
/// another owner, and one whose place was taken.
#[test]
fn what_is_uncertain_counts_as_either() {
    let shares = shares();
    gets(&shares, 1, (0, 2), 1, 0, Some(7));
    // Its answer is lost, and the next owner has never heard of it.
    says(&shares, 1, (0, 0), Said::Accept, Answer::Unknown, 2);
    gets(&shares, 2, (0, 0), 1, 5, Some(8));
    says(&shares, 2, (0, 0), Said::Accept, Answer::Kept, 7);
    // The next owner does not know that session 1 has it.
    gets(&shares, 2, (1, 1), 1, 5, Some(8));
    shares.alive(1, at(9));
    says(&shares, 1, (1, 1), Said::Accept, Answer::NotHeld, 9);
    says(&shares, 2, (1, 1), Said::Accept, Answer::Kept, 9);
    // An owner of before does not know that it is done.
    gets(&shares, 3, (1, 1), 1, 10, None);
    says(&shares, 3, (1, 1), Said::Accept, Answer::NotHeld, 11);
    // Session 2's connection breaks, and the owner heard of it before anybody.
    gets(&shares, 2, (2, 2), 1, 10, Some(8));
    gets(&shares, 4, (2, 2), 2, 12, Some(8));
    shares.gone(2);
    shares.alive(2, at(14));
    // The lock of session 4 ended.
    gets(&shares, 5, (2, 2), 3, 40, Some(8));
    shares.alive(4, at(42));
    says(&shares, 4, (2, 2), Said::Accept, Answer::NotHeld, 43);
    // Its owner lost its lease for a moment, and has forgotten who holds it, and a delivery.
    let again = Delivery {
        reign: Some((8, 1)),
        ..delivery(7, (2, 2), 3, 43, None)
    };
    shares.got(&again, &[(2, 2)].into());
    shares.alive(5, at(49));
    // That was its last delivery.
    says(&shares, 5, (2, 2), Said::Release, Answer::Kept, 44);
    assert_eq!(said(&shares), "");
}

#[test]
fn a_record_that_comes_again_after_it_is_done_is_found() {
    for done in [Said::Accept, Said::Reject] {
        let shares = shares();
        gets(&shares, 1, (0, 0), 1, 0, Some(7));
        says(&shares, 1, (0, 0), done, Answer::Kept, 2);
        gets(&shares, 2, (0, 0), 1, 3, Some(8));
        let said = said(&shares);
        assert!(
            said.contains("after it was answered that it is done"),
            "{said}"
        );
    }
}

/// Also from an owner of before: it can hand it out, and cannot have anything kept of it.
#[test]
fn a_record_that_is_done_twice_is_found() {
    for (again, expected) in [
        (Said::Accept, "it was done before"),
        (Said::Release, "got it after it was done"),
    ] {
        let shares = shares();
        gets(&shares, 1, (0, 0), 1, 0, Some(7));
        says(&shares, 1, (0, 0), Said::Accept, Answer::Kept, 2);
        gets(&shares, 2, (0, 0), 1, 3, None);
        says(&shares, 2, (0, 0), again, Answer::Kept, 5);
        let said = said(&shares);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_record_that_comes_to_somebody_while_another_holds_it_is_found() {
    let shares = shares();
    gets(&shares, 1, (0, 2), 1, 0, Some(7));
    gets(&shares, 2, (1, 1), 2, 3, Some(7));
    // What was asked for before says nothing of the time since.
    shares.alive(1, at(3));
    assert!(!said(&shares).contains("while session 1 held it"));
    shares.alive(1, at(4));
    let said = said(&shares);
    assert!(said.contains("while session 1 held it"), "{said}");
}

#[test]
fn counts_that_do_not_grow_or_pass_the_limit_are_found() {
    // Given back from its second delivery, it comes as the second again, from another owner.
    let shares_a = shares();
    gets(&shares_a, 1, (0, 0), 2, 0, Some(7));
    says(&shares_a, 1, (0, 0), Said::Release, Answer::Kept, 2);
    gets(&shares_a, 2, (0, 0), 2, 3, Some(8));
    let said_a = said(&shares_a);
    assert!(
        said_a.contains("after it was given back from delivery 2"),
        "{said_a}"
    );
    // The owner counts no delivery.
    let shares_b = shares();
    gets(&shares_b, 1, (0, 0), 1, 0, Some(7));
    gets(&shares_b, 2, (0, 0), 1, 30, Some(7));
    let said_b = said(&shares_b);
    assert!(
        said_b.contains("under epoch 7, after delivery 1"),
        "{said_b}"
    );
    // Once more than the limit, after an owner was lost, and no more.
    let shares_c = shares();
    gets(&shares_c, 1, (0, 0), LIMITS.deliveries + 1, 0, Some(7));
    assert!(!said(&shares_c).contains("as delivery"));
    gets(&shares_c, 1, (0, 0), LIMITS.deliveries + 2, 30, Some(8));
    let said_c = said(&shares_c);
    assert!(said_c.contains("as delivery 5 of 3"), "{said_c}");
}

#[test]
fn a_record_that_is_passed_over_is_found() {
    let shares = shares();
    gets(&shares, 1, (0, 1), 1, 0, Some(7));
    says(&shares, 1, (0, 0), Said::Accept, Answer::Kept, 2);
    says(&shares, 1, (1, 1), Said::Release, Answer::Kept, 2);
    let found = said(&shares);
    assert!(
        found.contains("2 records are passed over, such as 1 of"),
        "{found}"
    );
    // Two answers that were lost may have been the last deliveries of record 1, and three all those of record 2.
    shares.lost([4]);
    shares.lost([4, 5]);
    let found = said(&shares);
    assert!(
        found.contains("1 records are passed over, such as 2 of"),
        "{found}"
    );
    shares.lost([4]);
    assert_eq!(said(&shares), "");
    // What somebody said has no answer, and may count.
    let shares = self::shares();
    gets(&shares, 1, (0, 2), 1, 0, Some(7));
    says(&shares, 1, (0, 2), Said::Reject, Answer::Unknown, 2);
    assert_eq!(said(&shares), "");
}

#[test]
fn records_that_are_not_what_was_written_are_found() {
    let shares = shares();
    let whole = delivery(1, (0, 2), 1, 0, Some(7));
    shares.got(&whole, &[(0, 0), (1, 2), (2, 9)].into());
    let found = said(&shares);
    assert!(found.contains("as 2, and is 1"), "{found}");
    assert!(found.contains("as 9, which nobody wrote"), "{found}");
    let shares = self::shares();
    shares.got(&whole, &[(0, 0), (2, 2)].into());
    let found = said(&shares);
    assert!(
        found.contains("record 1 of partition 4 came to session 1 without its bytes"),
        "{found}"
    );
    let number = shares.sends();
    shares.stored(4, 2, number);
    assert!(said(&shares).contains("was stored at 2"));
}

/// Refused as one that was not stored, it was, and is sent again.
#[test]
fn a_record_that_is_there_twice_is_found() {
    let shares = shares();
    let delivery = delivery(1, (3, 3), 1, 0, Some(7));
    gets(&shares, 1, (0, 2), 1, 0, Some(7));
    assert!(!said(&shares).contains("as well"));
    shares.got(&delivery, &[(3, 1)].into());
    let said = said(&shares);
    assert!(said.contains("as 1, which is at (4, 1) as well"), "{said}");
}

/// What was rejected is a dead letter, and so is what had all its deliveries; nothing else is.
#[test]
fn dead_letters_are_of_what_was_given_up() {
    let given_up = || {
        let shares = shares();
        gets(&shares, 1, (0, 0), LIMITS.deliveries, 0, Some(7));
        gets(&shares, 1, (1, 2), 1, 0, Some(7));
        says(&shares, 1, (1, 1), Said::Reject, Answer::Kept, 2);
        says(&shares, 1, (2, 2), Said::Accept, Answer::Kept, 2);
        shares
    };
    for (letters, all, expected) in [
        (&[(4, 0), (4, 1)][..], true, ""),
        (&[(4, 1)], true, ""),
        (&[], false, ""),
        (&[], true, "1 rejected records are no dead letters"),
        (&[(4, 1), (4, 2)], true, "which was accepted"),
        (&[(4, 1), (5, 0)], true, "which nobody wrote"),
    ] {
        let shares = given_up();
        shares.judge_letters(&letters.iter().copied().collect(), all);
        let said = shares.findings().into_iter();
        let said: Vec<_> = said.filter(|text| text.contains("dead letter")).collect();
        match expected {
            "" => assert!(said.is_empty(), "{said:?}"),
            expected => assert!(said.len() == 1 && said[0].contains(expected), "{said:?}"),
        }
    }
    // Nobody said anything of it, and it may be delivered again.
    let shares = shares();
    gets(&shares, 1, (0, 0), 1, 0, Some(7));
    shares.judge_letters(&[(4, 0)].into(), true);
    assert!(
        said(&shares).contains("which nobody rejected"),
        "{}",
        said(&shares)
    );
    // Whether it is rejected has no answer.
    let shares = self::shares();
    gets(&shares, 1, (0, 0), 1, 0, Some(7));
    says(&shares, 1, (0, 0), Said::Reject, Answer::Unknown, 2);
    shares.judge_letters(&[(4, 0)].into(), true);
    shares.judge_letters(&[].into(), true);
    assert!(!said(&shares).contains("dead letter"), "{}", said(&shares));
}
