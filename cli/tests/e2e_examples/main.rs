//! The examples of the client crates, run as their readers would run them.

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use common::{Broker, finish, home};
use kera_testkit::program;

/// The directory of the examples, which are built by then. Nothing is left to do where the whole
/// workspace was built for its tests.
static EXAMPLES: LazyLock<PathBuf> = LazyLock::new(|| {
    program::cargo_build(&["--examples"]);
    program::profile().join("examples")
});

/// Runs an example against the broker; what it printed.
fn run(broker: &Broker, example: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(EXAMPLES.join(example));
    command
        .args(arguments)
        .env("KERA_BOOTSTRAP", broker.address());
    let finished = finish(command, b"");
    assert!(
        finished.status.success(),
        "{example}: {} {}",
        finished.text(),
        finished.stderr
    );
    finished.text()
}

fn broker() -> Broker {
    let broker = Broker::start();
    broker.run(&["stream", "create", "clicks", "--lanes", "3"]);
    broker
}

#[test]
fn what_is_produced_is_consumed_once() {
    let broker = broker();
    let mut seen = BTreeSet::new();
    for (produce, consume) in [
        ("produce", "consume"),
        ("produce_blocking", "consume_blocking"),
    ] {
        let said = run(&broker, produce, &["clicks"]);
        assert!(said.starts_with("100 records appended"), "{said}");
        let said = run(&broker, consume, &["clicks", "100"]);
        let mut lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.pop(), Some("100 records"), "{said}");
        assert_eq!(lines.len(), 100, "{said}");
        for line in lines {
            let (place, value) = line.split_once(": ").expect("lane and ordinal: value");
            assert!(value.starts_with("click "), "{line}");
            assert!(seen.insert(place.to_owned()), "{line} came twice");
        }
    }
    assert_eq!(seen.len(), 200);
}

#[test]
fn counts_are_exact_whatever_the_group_remembers() {
    let broker = broker();
    let home = home();
    let path = home.path().join("counts.txt");
    let file = path.to_str().expect("a path of text");
    for round in 1..=3_u64 {
        run(&broker, "produce", &["clicks"]);
        let all = (round * 100).to_string();
        let said = run(&broker, "exactly_once", &["clicks", file, &all]);
        assert_eq!(said.trim(), format!("{all} records counted, each once"));
        // In each lane as many as there are below its position.
        let text = fs::read_to_string(&path).expect("the counts are stored");
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            assert_eq!(fields[2], fields[3], "{line}");
        }
        // The group forgets everything; the file decides.
        broker.run(&["group", "delete", "exactly-once", "--yes"]);
    }
}

#[test]
fn an_example_that_cannot_go_on_says_so() {
    let broker = Broker::start();
    for (example, arguments) in [
        ("produce", &["nothing"][..]),
        ("produce_blocking", &["nothing"]),
        ("consume", &["nothing"]),
        ("consume_blocking", &["nothing"]),
        ("exactly_once", &["nothing", "counts.txt"]),
        ("produce", &[]),
    ] {
        let mut command = Command::new(EXAMPLES.join(example));
        command
            .args(arguments)
            .env("KERA_BOOTSTRAP", broker.address());
        let finished = finish(command, b"");
        assert_eq!(finished.status.code(), Some(1), "{example}");
        assert!(finished.stderr.contains("stream"), "{}", finished.stderr);
    }
}
