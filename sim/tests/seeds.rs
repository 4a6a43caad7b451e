//! A seed is all there is to a run: it does the same each time, and finds what is wrong each time.
#![forbid(unsafe_code)]

use std::process::{Command, Output};

fn sim(args: &[&str], rule: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kera-sim"));
    command.args(args).env_remove("KERA_BROKEN_RULE");
    if let Some(rule) = rule {
        command.env("KERA_BROKEN_RULE", rule);
    }
    command.output().expect("the program runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The number that stands for a run's log in what the program prints of it.
fn digest(text: &str) -> &str {
    let line = text.lines().find(|line| line.starts_with("seed "));
    let digest = line.and_then(|line| line.rsplit(' ').next());
    digest.expect("a line of the run")
}

#[test]
fn a_seed_played_twice_has_the_same_log_byte_for_byte() {
    // With every turn of every thread in it.
    let played = sim(
        &["--first", "1", "--seeds", "2", "--twice", "--trace"],
        None,
    );
    let told = text(&played);
    let sums = told.lines().last().unwrap_or_default();
    assert!(
        sums.starts_with("4 runs, ") && sums.contains(" 0 differ"),
        "{told}"
    );
}

#[test]
fn another_seed_has_another_log() {
    let one = text(&sim(&["--seed", "1"], None));
    let other = text(&sim(&["--seed", "2"], None));
    assert_ne!(digest(&one), digest(&other), "{one}{other}");
}
