//! `kera demo`, as its users see it.

mod common;

use std::fs;

use kera_broker::config::volatile_filesystem;

use common::command::finish_within;
use common::machine::skip;
use common::{Finished, PATIENCE, home, kera};

fn demo(words: &[&str]) -> Finished {
    let mut command = kera();
    command.arg("demo").args(words);
    finish_within(command, b"", PATIENCE * 3)
}

#[test]
fn the_demo_loses_nothing() {
    let home = home();
    if let Some(name) = volatile_filesystem(home.path()) {
        // The demo refuses to claim that anything lasts there.
        skip("demo", &format!("the build is on a {name}"));
        return;
    }
    let directory = home.path().join("demo");
    let path = directory.to_str().expect("a path of text");
    let finished = demo(&["--dir", path, "--records", "200k"]);
    let said = finished.text();
    assert!(
        finished.status.success(),
        "{}\n{said}\n{}",
        finished.status,
        finished.stderr
    );
    let verdict = said
        .lines()
        .find(|line| line.contains(" sent, "))
        .unwrap_or_else(|| panic!("no verdict in {said}"));
    assert!(
        verdict.contains("200,000 sent, 0 lost, 0 duplicated, 0 out of order, back in "),
        "{verdict}"
    );
    assert!(said.contains(path), "it says where its data is: {said}");
    let told = &finished.stderr;
    assert!(told.contains("SIGKILL"), "the broker is killed: {told}");
    assert!(told.contains("back: process "), "and comes back: {told}");
    assert!(said.contains("p50") && said.contains("p99"), "{said}");
    for command in [
        " serve --data-dir ",
        " consume flights ",
        " segment inspect ",
    ] {
        assert!(said.contains(command), "a command to copy: {said}");
    }
    assert!(directory.join("data").is_dir(), "the data is where it said");
}

#[test]
fn a_demo_that_cannot_start_says_why() {
    let home = home();
    let file = home.path().join("file");
    fs::write(&file, "mine").expect("a file is written");
    // A file is in the way, for the directory and for one below it.
    for place in [file.clone(), file.join("demo")] {
        let path = place.to_str().expect("a path of text");
        let finished = demo(&["--dir", path]);
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(
            finished.stderr.starts_with("error: "),
            "{}",
            finished.stderr
        );
        assert!(finished.stderr.contains(path), "{}", finished.stderr);
        assert!(finished.stderr.contains("--dir"), "{}", finished.stderr);
    }
    // Somebody else's directory.
    let path = home.path().to_str().expect("a path of text");
    let finished = demo(&["--dir", path]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("not empty"), "{}", finished.stderr);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "mine");
}
