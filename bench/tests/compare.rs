//! The comparison, small and with Kera alone: scenarios go in, results and a report come out.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

mod support;
use support::{stderr, with_kera};

const SCENARIOS: &str = r#"
title = "Smoke"
command = "make test"
repetitions = 2
warm_up_records = 3_000

[[plot]]
name = "smoke-produce"
scenario = "produce"
kind = "bars"
measure = ["throughput", "broker-cpu"]
title = "Producing a little"
caption = "Nothing is meant by it."

[[scenario]]
name = "produce"
work = "produce"
contenders = ["kera", "kera-native"]
records = 20_000
keys = "random"
batch = ["16KiB"]
linger_ms = [5]
partitions = [4]
target = [{ measure = "throughput", contender = "kera", against = "kera-native", at_least = 0.000001 }]

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

/// Another file of the same session.
const STARTS: &str = r#"
title = "Starts"
command = "make test"
repetitions = 2

[[plot]]
name = "starts"
scenario = "start"
kind = "bars"
measure = ["start", "idle-memory"]
over = "data"
title = "Starting"
caption = "Nothing is meant by it."

[[scenario]]
name = "start"
work = "start"
contenders = ["kera"]
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [1]
seconds = 1
target = [{ measure = "idle-memory", contender = "kera", at_most = 10_000 }]

[[scenario]]
name = "start"
work = "start"
contenders = ["kera"]
records = 20_000
keys = "random"
batch = ["16KiB"]
linger_ms = [5]
partitions = [8]
seconds = 1
"#;

fn bench(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kera-bench"))
        .args(arguments)
        .output()
        .expect("kera-bench can be run")
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("results");
    serde_json::from_str(&text).expect("JSON")
}

fn array<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name]
        .as_array()
        .unwrap_or_else(|| panic!("{name} is no list in {value}"))
}

/// A session of two files, with their document.
struct Session {
    folder: tempfile::TempDir,
}

impl Session {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(more: &[&str]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let session = Self { folder };
        for (name, text) in [("smoke.toml", SCENARIOS), ("starts.toml", STARTS)] {
            fs::write(session.path(name), text).expect("written");
        }
        let text = "# Figures\n\nBy hand.\n\n\
                    <!-- kera-bench: summary, begin -->\n<!-- kera-bench: summary, end -->\n\n\
                    <!-- kera-bench: further sections go above -->\n\nThe end.\n";
        fs::write(session.path("doc.md"), text).expect("written");
        session.again(more);
        session
    }

    fn again(&self, more: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kera-bench"));
        command
            .arg("run")
            .args([self.path("smoke.toml"), self.path("starts.toml")])
            .arg("--out")
            .arg(self.path("results"))
            .arg("--document")
            .arg(self.path("doc.md"))
            .arg("--data-dir")
            .arg(self.path("data"))
            // The machine is busy with other tests, which is no fault here.
            .args(["--noise", "100"])
            .args(more);
        with_kera(&mut command);
        let output = command.output().expect("kera-bench can be run");
        assert!(output.status.success(), "{}", stderr(&output));
    }

    fn document(&self) -> String {
        fs::read_to_string(self.path("doc.md")).expect("the document")
    }

    /// `kera-bench report` with the document.
    fn report(&self, more: &[&str]) -> Output {
        let (results, document) = (self.path("results"), self.path("doc.md"));
        let mut arguments = vec![
            Path::new("report"),
            &results,
            Path::new("--document"),
            &document,
        ];
        arguments.extend(more.iter().map(Path::new));
        bench(&arguments)
    }
}

#[test]
fn a_session_measures_every_case_and_reports_it() {
    let session = Session::run(&[]);
    let results = json(&session.path("results/smoke.json"));
    let cases = array(&results, "cases");
    assert_eq!(cases.len(), 3);
    for case in cases {
        let runs = array(case, "runs");
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
    for run in array(&cases[2], "runs") {
        assert_eq!(run["taken"]["latency"]["records"], 500, "{run}");
    }
    let speeds = results["disk"]["write_mb_per_second"].as_array();
    assert_eq!(speeds.map(Vec::len), Some(2));

    // Brokers of their own, started without data and with it.
    let starts = json(&session.path("results/starts.json"));
    let cases = array(&starts, "cases");
    assert_eq!(cases.len(), 2);
    for (case, has_data) in cases.iter().zip([false, true]) {
        assert_eq!(array(case, "runs").len(), 2);
        for run in array(case, "runs") {
            let start = &run["taken"]["start"];
            let answers = start["answers_seconds"].as_f64().expect("a time");
            assert!(answers > 0.0, "{run}");
            let ready = start["ready_seconds"].as_f64();
            assert_eq!(ready.is_some(), has_data, "{run}");
            assert!(ready.is_none_or(|ready| ready >= answers), "{run}");
            assert!(start["idle_memory"].as_u64() > Some(1 << 20), "{run}");
            assert!(start["idle_cpu"].as_f64() >= Some(0.0), "{run}");
        }
    }

    let text = session.document();
    assert!(text.starts_with("# Figures\n\nBy hand.\n"), "{text}");
    assert!(text.ends_with("\n\nThe end.\n"), "{text}");
    for part in [
        "## Smoke",
        "### produce",
        "### latency",
        "## Starts",
        "[results/smoke.json](results/smoke.json)",
        "![Producing a little](results/smoke-produce.svg)",
        "![Starting](results/starts.svg)",
        "Met in every case: 2 of 2 targets",
        "resident memory when idle, MiB, Kera, at most 10000 | 1 of 1 |",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // Nothing of the brokers stays.
    assert!(!session.path("data/kera-bench-data").exists());

    // The same from the results alone; what is not of them is found.
    let checked = session.report(&["--check"]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    let svg = session.path("results/starts.svg");
    let drawn = fs::read_to_string(&svg).expect("a plot");
    fs::write(&svg, drawn.replace("Starting", "By hand")).expect("written");
    fs::write(session.path("results/old.svg"), &drawn).expect("written");
    fs::write(session.path("doc.md"), text.replace("2 of 2", "3 of 2")).expect("written");
    let checked = session.report(&["--check"]);
    assert!(!checked.status.success());
    for part in [
        "doc.md differs",
        "starts.svg differs",
        "old.svg is of no results",
    ] {
        assert!(stderr(&checked).contains(part), "{}", stderr(&checked));
    }
    let again = session.report(&[]);
    assert!(again.status.success(), "{}", stderr(&again));
    assert_eq!(session.document(), text);
    assert_eq!(fs::read_to_string(&svg).expect("a plot"), drawn);
}

#[test]
fn a_session_that_was_ended_is_completed() {
    let session = Session::run(&["--only", "produce", "--repetitions", "1"]);
    let first = json(&session.path("results/smoke.json"));
    assert_eq!(array(&first, "cases").len(), 1);
    assert!(!session.path("results/starts.json").exists());
    session.again(&[
        "--missing",
        "--repetitions",
        "1",
        "--only",
        "produce",
        "--only",
        "consume",
    ]);
    let whole = json(&session.path("results/smoke.json"));
    let names: Vec<_> = array(&whole, "cases")
        .iter()
        .filter_map(|case| case["case"]["scenario"].as_str())
        .collect();
    assert_eq!(names, ["produce", "consume"]);
    assert_eq!(whole["cases"][0], first["cases"][0], "what was there stays");
    assert!(session.document().contains("### consume"));
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
