//! `kera-bench replication` runs from end to end, on small cases.

mod support;

use std::fs;
use std::process::Command;

#[test]
fn small_cases_of_every_section_are_measured_and_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let document = folder.path().join("doc.md");
    fs::write(&document, "# Figures\n\nBy hand.\n").expect("written");
    let bench = || Command::new(env!("CARGO_BIN_EXE_kera-bench"));
    let mut command = bench();
    // The brokers of this build, if they are there.
    support::with_kera(command.arg("replication"));
    let output = command
        .args(["--quick", "--noise", "100", "--memory"])
        .arg(folder.path())
        .arg("--data-dir")
        .arg(folder.path())
        .arg("--out")
        .arg(folder.path())
        .arg("--document")
        .arg(&document)
        .output()
        .expect("kera-bench can be run");
    let said = support::stderr(&output);
    let tables = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{tables}");
    let text = fs::read_to_string(&document).expect("the document");
    assert!(text.starts_with("# Figures\n\nBy hand.\n"), "{text}");
    for part in [
        "### Throughput and CPU",
        "### Latency",
        "### Scaling with threads",
        "### Number of active groups",
        "### With rolls",
        "### Whole brokers",
        "### Recovery",
        "### Targets",
        "| append=1KiB | bare receive loop |",
        "| append=1KiB | rpc |",
        "| append=1KiB, groups=16 | tcp |",
        "| batch=16KiB | a copy at each |",
        "| records=20000 | rpc |",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(!text.contains("not measured"), "{text}");
    // Every figure is there where everything is compared.
    let lines = text
        .lines()
        .filter(|line| line.starts_with("| append=1KiB | tcp |"));
    for line in lines {
        assert!(!line.contains("| - |"), "{line}");
    }
    let json = folder.path().join("replication.json");
    let again = bench()
        .args(["replication", "--report"])
        .arg(&json)
        .output()
        .expect("kera-bench can be run");
    let told = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(again.status.success());
    assert!(text.contains(told.trim()), "a report of the JSON differs");
    let left: Vec<_> = fs::read_dir(folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().starts_with("kera-bench"))
        .collect();
    assert!(left.is_empty(), "{left:?} is left behind");
}

#[test]
fn the_cases_of_a_card_are_told_as_ratios_in_a_section_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let document = folder.path().join("doc.md");
    fs::write(&document, "# Figures\n").expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kera-bench"));
    command.args(["replication", "--cards", "--quick", "--noise", "100"]);
    command.args(["--note", "No card at all", "--runs", "2", "--memory"]);
    command.arg(folder.path()).arg("--out").arg(folder.path());
    command.arg("--document").arg(&document);
    // Without a card its own way fails, and says why; the others are there.
    let output = command.output().expect("kera-bench can be run");
    let said = support::stderr(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("4 runs failed"), "{said}");
    let text = fs::read_to_string(&document).expect("the document");
    for part in [
        "<!-- kera-bench: rdma, begin -->",
        "No card at all",
        "### Throughput and CPU",
        "### Latency",
        "| append=1KiB | rdma **(2 runs failed: ",
        "| append=1KiB: throughput over rdma, of rpc's | at least 1.70 | - | not measured |",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let tcp = text
        .lines()
        .filter(|line| line.starts_with("| append=1KiB | tcp |"));
    let tcp: Vec<_> = tcp.collect();
    assert_eq!(tcp.len(), 2, "{text}");
    assert!(!tcp.concat().contains("| - |"), "{text}");
    assert!(folder.path().join("rdma.json").exists());
    // Over in no time: nothing is measured, and nothing fails.
    let mut command = Command::new(env!("CARGO_BIN_EXE_kera-bench"));
    command.args(["replication", "--cards", "--quick", "--minutes", "0"]);
    let output = command.arg("--memory").arg(folder.path()).output();
    let output = output.expect("kera-bench can be run");
    assert!(output.status.success(), "{}", support::stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("not measured"));
}

#[test]
fn what_cannot_be_is_said_before_anything_starts() {
    let output = Command::new(env!("CARGO_BIN_EXE_kera-bench"))
        .args(["replication", "--quick", "--memory", "/proc/nowhere"])
        .output()
        .expect("kera-bench can be run");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/proc/nowhere"), "{said}");
    let output = Command::new(env!("CARGO_BIN_EXE_kera-bench"))
        .args(["replication", "--quick", "--only", "no such case"])
        .output()
        .expect("kera-bench can be run");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no case is chosen"), "{said}");
}
