//! The judge of a group that keeps the order of keys says what is wrong, and nothing where nothing is.
#![forbid(unsafe_code)]

#[path = "../src/keys/judge.rs"]
mod judge;

use judge::Keys;

/// Three records of key 5 are written.
fn keys() -> Keys {
    let keys = Keys::default();
    assert_eq!([0, 1, 2].map(|_| keys.sends(5)), [0, 1, 2]);
    keys
}

fn said(keys: &Keys) -> String {
    keys.findings().join("; ")
}

#[test]
fn what_is_not_committed_may_come_again_under_another_lease() {
    let keys = keys();
    keys.got(1, 10, 5, 0);
    keys.got(1, 12, 5, 1);
    keys.asks(1, 11);
    keys.settles(1, 11);
    assert_eq!(keys.left(), 2);
    keys.got(2, 12, 5, 1);
    keys.got(2, 14, 5, 2);
    // A member that does not know yet that its lease has ended goes on.
    keys.got(1, 14, 5, 2);
    keys.asks(2, 15);
    keys.settles(2, 15);
    assert_eq!(
        (keys.left(), keys.counts(), said(&keys)),
        (0, (3, 5), String::new())
    );
}

#[test]
fn a_record_before_its_predecessor_is_committed_is_found() {
    let keys = keys();
    keys.got(1, 10, 5, 0);
    keys.got(2, 0, 5, 1);
    assert!(
        said(&keys).contains("nobody asked for a commit of what is from 0 on"),
        "{}",
        said(&keys)
    );
}

#[test]
fn a_record_that_is_left_out_or_comes_twice_under_a_lease_is_found() {
    for second in [0, 2] {
        let keys = keys();
        keys.got(1, 10, 5, 0);
        keys.got(1, 14, 5, second);
        assert!(
            said(&keys).contains("it came after 0 under the same lease"),
            "{}",
            said(&keys)
        );
    }
}

#[test]
fn what_is_committed_and_comes_again_is_found_as_is_what_nobody_wrote() {
    let keys = keys();
    keys.got(1, 10, 5, 0);
    keys.asks(1, 11);
    keys.settles(1, 11);
    keys.got(2, 10, 5, 0);
    keys.got(3, 20, 6, 0);
    let said = said(&keys);
    assert!(
        said.contains("what is below 1 is committed") && said.contains("nobody wrote it"),
        "{said}"
    );
}
