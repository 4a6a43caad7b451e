//! Rules that brokers of a test's own process break on purpose: the test must notice.

use std::process::Command;

use crate::machine;

/// Plays `test` of this program in a process whose brokers break a rule. It must fail, and its words must
/// have `harm` in them: to be stuck is no proof.
pub fn noticed(rule: &str, test: &str, harm: &str) {
    if !cfg!(debug_assertions) {
        return machine::skip(test, "brokers of this build break no rule");
    }
    let program = std::env::current_exe().expect("this program has a path");
    let played = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env("KERA_BROKEN_RULE", rule)
        .output()
        .expect("this program can be started");
    let streams = [&played.stdout[..], &played.stderr[..]].concat();
    let said = String::from_utf8_lossy(&streams);
    assert!(said.contains("running 1 test"), "no test {test}:\n{said}");
    assert!(
        !played.status.success(),
        "{test} does not notice {rule}:\n{said}"
    );
    assert!(
        said.contains(harm),
        "{test} fails with {rule}, but not for {harm:?}:\n{said}"
    );
}
