//! A broker that breaks a rule on purpose, so that what is looked at when a run ends is seen to notice. Only
//! builds with debug assertions can be told to.

use std::process::Command;

use crate::clock::Clock;
use crate::common::holdings::MISSED;
use crate::common::machine::skip;
use crate::etcd::Etcd;

/// Names the rule that brokers of this process break.
pub const BROKEN: &str = "KERA_CLUSTER_BROKEN";
const TEST: &str = "mutation::a_broker_that_denies_its_files_while_it_starts_is_noticed";
const STORY: &str = "named::a_broker_that_comes_back_does_not_deny_what_it_has";

#[test]
fn a_broker_that_denies_its_files_while_it_starts_is_noticed() {
    if let Some(reason) = Etcd::lacking().or_else(Clock::lacking) {
        return skip(TEST, &reason);
    }
    if !cfg!(debug_assertions) {
        return skip(TEST, "brokers of this build break no rule");
    }
    let program = std::env::current_exe().expect("this program has a path");
    let told = Command::new(program)
        .args(["--exact", STORY, "--nocapture"])
        .env(BROKEN, "own_files_denied")
        .output()
        .expect("this program can be started");
    let said = [&told.stdout[..], &told.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("running 1 test"), "no test {STORY}:\n{said}");
    let noticed = !told.status.success() && said.contains("a replica was denied");
    assert!(noticed && said.contains(MISSED), "nobody noticed:\n{said}");
}
