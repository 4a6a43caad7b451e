//! The comparison, small and with Kera alone: scenarios go in, results and a report come out.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

mod support;
use support::{run_in, stderr};

const SCENARIOS: &str = r#"
title = "Smoke"
command = "make test"
repetitions = 2
warm_up_records = 3_000

[[scenario]]
name = "produce"
work = "produce"
contenders = ["kera", "kera-native"]
records = 20_000
keys = "random"
batch = ["16KiB"]
linger_ms = [5]
partitions = [4]
target = [{ measure = "broker-cpu", contender = "kera", against = "kera-native", at_most = 1000 }]

[[scenario]]
name = "consume"
work = "consume"
contenders = ["kera", "kera-native"]
records = 20_000
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [2]

[[scenario]]
name = "latency"
work = "latency"
contenders = ["kera", "kera-native"]
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [1]
rate = [500]
seconds = 2
"#;

fn bench(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kera-bench"))
        .args(arguments)
        .output()
        .expect("kera-bench can be run")
}

#[test]
fn a_session_measures_every_case_and_reports_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let (out, document) = (path("smoke.json"), path("doc.md"));
    let mut command = run_in(folder.path(), SCENARIOS);
    let output = command.output().expect("kera-bench can be run");
    assert!(output.status.success(), "{}", stderr(&output));

    let text = fs::read_to_string(&out).expect("results");
    let results: Value = serde_json::from_str(&text).expect("JSON");
    let cases = results["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 3);
    for case in cases {
        let runs = case["runs"].as_array().expect("runs");
        // A B A B.
        let order: Vec<_> = runs
            .iter()
            .filter_map(|run| run["contender"].as_str())
            .collect();
        assert_eq!(order, ["kera", "kera-native", "kera", "kera-native"]);
        for run in runs {
            let taken = &run["taken"];
            assert_eq!(taken["records"], case["case"]["records"], "{run}");
            assert!(taken["seconds"].as_f64().is_some_and(|s| s > 0.0), "{run}");
            let peak = taken["memory"]["peak"].as_u64();
            assert!(peak.is_some_and(|peak| peak > 1 << 20), "{run}");
        }
    }
    // At 500 a second, the first of two seconds does not count.
    for run in cases[2]["runs"].as_array().expect("runs") {
        assert_eq!(run["taken"]["latency"]["records"], 500, "{run}");
    }
    let speeds = results["disk"]["write_mb_per_second"].as_array();
    assert_eq!(speeds.map(Vec::len), Some(2));

    let text = fs::read_to_string(&document).expect("the document");
    assert!(text.starts_with("# Figures\n\nBy hand.\n"), "{text}");
    for part in [
        "## Smoke",
        "### produce",
        "### latency",
        "[smoke.json](smoke.json)",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let again = bench(&[
        Path::new("report"),
        &out,
        Path::new("--document"),
        &document,
    ]);
    assert!(again.status.success(), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(&document).expect("the document"), text);
    // Nothing of the brokers stays.
    assert!(!path("data/kera-bench-data").exists());
}

#[test]
fn an_unknown_key_ends_it_before_anything_starts() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let scenarios = folder.path().join("odd.toml");
    fs::write(&scenarios, SCENARIOS.replace("rate =", "speed =")).expect("written");
    let output = bench(&[Path::new("run"), &scenarios]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("speed"), "{}", stderr(&output));
}
