//! A broker that breaks a rule on purpose, so that what is looked at when a run ends is seen to notice. Only
//! builds with debug assertions can be told to.

use std::process::Command;

use crate::clock::Clock;
use crate::common::holdings::{LOST, MISSED};
use crate::common::machine::skip;
use crate::etcd::Etcd;

/// Names the rule that brokers of this process break.
pub const BROKEN: &str = "KERA_CLUSTER_BROKEN";

#[test]
fn a_broker_that_denies_its_files_while_it_starts_is_noticed() {
    is_noticed(
        "mutation::a_broker_that_denies_its_files_while_it_starts_is_noticed",
        "own_files_denied",
        "named::a_broker_that_comes_back_does_not_deny_what_it_has",
        &[&["a replica was denied", MISSED]],
    );
}

#[test]
fn a_broker_that_removes_replicas_recorded_under_its_stores_id_is_noticed() {
    is_noticed(
        "mutation::a_broker_that_removes_replicas_recorded_under_its_stores_id_is_noticed",
        "store_ids_compared",
        "named::a_broker_that_comes_back_twice_holds_what_is_recorded",
        // At the end of the run, or by owners' jobs before that if it takes long.
        &[
            &[LOST, "there is no file"],
            &["a replica was denied", MISSED],
        ],
    );
}

/// A story depends on what a machine does when: one of so many must notice.
const STORIES: usize = 3;

/// Tells a story with brokers that break a rule: it ends badly, and says all words of one of the `ways` to notice it.
fn is_noticed(test: &str, rule: &str, story: &str, ways: &[&[&str]]) {
    if let Some(reason) = Etcd::lacking().or_else(Clock::lacking) {
        return skip(test, &reason);
    }
    if !cfg!(debug_assertions) {
        return skip(test, "brokers of this build break no rule");
    }
    let program = std::env::current_exe().expect("this program has a path");
    let mut all_said = String::new();
    for _ in 0..STORIES {
        let told = Command::new(&program)
            .args(["--exact", story, "--nocapture"])
            .env(BROKEN, rule)
            .output()
            .expect("this program can be started");
        let said = [&told.stdout[..], &told.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("running 1 test"), "no test {story}:\n{said}");
        let says_all = |words: &&[&str]| words.iter().all(|words| said.contains(words));
        if !told.status.success() && ways.iter().any(says_all) {
            return;
        }
        all_said += &said;
    }
    panic!("nobody noticed:\n{all_said}");
}
