//! `kera-bench cluster` runs from end to end, on a few streamlets.

mod support;

use std::fs;
use std::process::Command;

const TEST: &str = "small_runs_of_every_scenario_are_measured_and_told";

#[test]
fn small_runs_of_every_scenario_are_measured_and_told() {
    if Command::new("etcd").arg("--version").output().is_err() {
        return support::skip(TEST, "there is no `etcd`; install etcd-server");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let document = folder.path().join("doc.md");
    fs::write(&document, "# Figures\n\nBy hand.\n").expect("written");
    let bench = || Command::new(env!("CARGO_BIN_EXE_kera-bench"));
    let mut command = bench();
    // The brokers of this build, if they are there.
    support::with_kera(command.arg("cluster"));
    let output = command
        .args(["--quick", "--streamlets", "9", "--moves", "2"])
        .args(["--lease", "2000", "--memory"])
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
        "### A broker is killed",
        "| all new owners are recorded |",
        "### A broker falls silent",
        "### A streamlet is handed over",
        "| **over the hand-over** |",
        "### A fourth broker comes",
        "### Targets",
        "| join: serves appends |",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let json = folder.path().join("owners.json");
    let again = bench()
        .args(["cluster", "--report"])
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
