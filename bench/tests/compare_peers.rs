//! The comparison, small: with NATS JetStream, with Apache Iggy, and with peers that cannot be had.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

mod support;
use support::{run_in, skip, stderr};

/// Two kinds of produce, so that every way of acknowledging is seen.
const SCENARIOS: &str = r#"
title = "Peers"
command = "make test"
repetitions = 1
warm_up_records = 600

[[scenario]]
name = "durability"
work = "produce"
contenders = ["nats", "kera"]
records = 300
keys = "random"
batch = ["16KiB"]
linger_ms = [5]
partitions = [4]
durability = ["memory", "written", "synced"]

[[scenario]]
name = "unacknowledged"
work = "produce"
contenders = ["nats"]
records = 5_000
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [2]
acks = ["0"]

[[scenario]]
name = "limited"
work = "produce"
contenders = ["nats", "kera", "kera-native"]
records = 2_000_000
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [1]
most_seconds = 0.1

[[scenario]]
name = "consume"
work = "consume"
contenders = ["nats", "kera"]
records = 20_000
keys = "random"
batch = ["16KiB"]
linger_ms = [5]
partitions = [4]

[[scenario]]
name = "latency"
work = "latency"
contenders = ["nats"]
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
rate = [500]
seconds = 2
"#;

/// For Iggy, beside the cases that it joins above: all kinds of work.
const MORE: &str = r#"
[[scenario]]
name = "at once"
work = "both"
contenders = ["kera"]
records = 20_000
keys = "random"
batch = ["16KiB"]
linger_ms = [1]
partitions = [3]
producers = [2]

[[scenario]]
name = "catching up"
work = "catch-up"
contenders = ["kera"]
records = 20_000
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [2]
rate = [500]
seconds = 2

[[scenario]]
name = "a trickle"
work = "trickle"
contenders = ["kera"]
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [20]
rate = [500]
seconds = 1

[[scenario]]
name = "start"
work = "start"
contenders = ["kera"]
records = 20_000
keys = "random"
batch = ["16KiB"]
linger_ms = [5]
partitions = [4]
seconds = 1
"#;

fn load() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/nats/load"))
}

fn go(arguments: &[&str]) -> std::io::Result<Output> {
    let mut command = Command::new("go");
    command.current_dir(load()).env("GOWORK", "off");
    command.args(arguments).output()
}

fn read(path: &Path) -> (Value, String) {
    let text = fs::read_to_string(path.join("smoke.json")).expect("results");
    let results = serde_json::from_str(&text).expect("JSON");
    let document = fs::read_to_string(path.join("doc.md")).expect("the document");
    (results, document)
}

fn runs(case: &Value) -> &Vec<Value> {
    case["runs"].as_array().expect("runs")
}

#[test]
fn nats_is_compared_in_every_mode_that_it_has() {
    let name = "nats_is_compared_in_every_mode_that_it_has";
    match go(&["mod", "download"]) {
        Err(error) => return skip(name, &format!("no go here: {error}")),
        Ok(output) if !output.status.success() => {
            let why = format!("go cannot download nats.go: {}", stderr(&output));
            return skip(name, &why);
        }
        Ok(_) => {}
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut command = run_in(folder.path(), SCENARIOS);
    let output = command.output().expect("kera-bench can be run");
    assert!(output.status.success(), "{}", stderr(&output));
    let (results, document) = read(folder.path());
    if let Some(why) = results["left_out"][0]["why"].as_str() {
        // Go may come with its module cache and without a way out.
        assert!(why.contains("the NATS server cannot be had"), "{why}");
        return skip(name, why);
    }
    let cases = results["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 7);
    for case in cases {
        for run in runs(case) {
            assert_eq!(run["failure"], Value::Null, "{run}");
            let records = run["taken"]["records"].as_u64().expect("records");
            if case["case"]["scenario"] == "limited" {
                assert!((1..2_000_000).contains(&records), "{run}");
            } else {
                assert_eq!(case["case"]["records"], records, "{run}");
            }
            let cpu = run["taken"]["client_cpu_seconds"].as_f64();
            assert!(cpu.is_some_and(|cpu| cpu >= 0.0), "{run}");
        }
    }
    let modes: Vec<_> = cases[..3]
        .iter()
        .map(|case| case["case"]["durability"].as_str().expect("a mode"))
        .collect();
    assert_eq!(modes, ["memory", "written", "synced"]);
    // At 500 a second, the first of two seconds does not count.
    let latency = &runs(&cases[6])[0]["taken"]["latency"];
    assert_eq!(latency["records"], 500, "{latency}");
    let p50 = latency["p50_us"].as_f64().expect("a median");
    let max = latency["max_us"].as_f64().expect("a longest");
    assert!(p50 > 0.0 && max >= p50, "{latency}");
    // One server for two modes, and one that syncs always.
    let brokers: Vec<_> = results["brokers"]
        .as_array()
        .expect("brokers")
        .iter()
        .map(|broker| broker["broker"].as_str().expect("a name"))
        .collect();
    assert_eq!(brokers, ["kera", "nats", "nats-synced"]);
    for part in [
        "| durability | Kera | NATS JetStream |",
        "| memory |",
        "NATS JetStream, sync always",
        "synced: file store, sync_interval always",
        "synced: kera.ack=synced",
    ] {
        assert!(document.contains(part), "{part} is not in\n{document}");
    }
    assert!(!folder.path().join("data/kera-bench-data").exists());
}

#[test]
fn iggy_is_compared_where_someone_has_put_a_server() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("iggy-server").is_file()) {
        let name = "iggy_is_compared_where_someone_has_put_a_server";
        return skip(name, "there is no iggy-server on the PATH");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut command = run_in(folder.path(), &format!("{SCENARIOS}{MORE}"));
    let output = command.args(["--contenders", "iggy"]).output();
    let output = output.expect("kera-bench can be run");
    assert!(output.status.success(), "{}", stderr(&output));
    let (results, document) = read(folder.path());
    assert_eq!(results["left_out"], Value::Array(Vec::new()));
    let cases = results["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 11);
    for case in cases {
        let run = &runs(case)[0];
        assert_eq!(run["failure"], Value::Null, "{run}");
        let taken = &run["taken"];
        let records = taken["records"].as_u64().expect("records");
        match case["case"]["scenario"].as_str() {
            Some("limited" | "catching up") => assert!(records > 0, "{run}"),
            _ => assert_eq!(case["case"]["records"], records, "{run}"),
        }
        match case["case"]["work"].as_str() {
            Some("latency") => assert_eq!(taken["latency"]["records"], 500, "{run}"),
            Some("both") => {
                assert_eq!(taken["sides"]["consumed"]["records"], 20_000, "{run}");
            }
            Some("start") => {
                assert!(
                    taken["start"]["ready_seconds"].as_f64() > Some(0.0),
                    "{run}"
                );
            }
            _ => {}
        }
    }
    for part in [
        "synced: messages_required_to_save 1, enforce_fsync",
        "- Apache Iggy 0.8.",
        "Apache Iggy, saving later 0.8.",
    ] {
        assert!(document.contains(part), "{part} is not in\n{document}");
    }
    assert!(!folder.path().join("data/kera-bench-data").exists());
}

/// The load's own tests, with Go's.
#[test]
fn the_load_for_nats_passes_its_tests() {
    let name = "the_load_for_nats_passes_its_tests";
    match go(&["mod", "download"]) {
        Err(error) => return skip(name, &format!("no go here: {error}")),
        Ok(output) if !output.status.success() => {
            let why = format!("go cannot download nats.go: {}", stderr(&output));
            return skip(name, &why);
        }
        Ok(_) => {}
    }
    for arguments in [&["vet", "./..."][..], &["test", "./..."]] {
        let output = go(arguments).expect("go can be run");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}\n{}", stderr(&output));
    }
    let format = Command::new("gofmt").arg("-l").arg(load()).output();
    if let Ok(format) = format {
        let odd = String::from_utf8_lossy(&format.stdout);
        assert!(odd.is_empty(), "gofmt would change {odd}");
    }
}

#[test]
fn peers_that_cannot_be_had_are_left_out_loudly() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let tools = folder.path().join("tools");
    fs::create_dir(&tools).expect("made");
    for tool in ["go", "java", "mvn"] {
        let path = tools.join(tool);
        fs::write(&path, "#!/bin/sh\necho 'the proxy refuses' >&2\nexit 1\n").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }
    // One that is there, and too old to be spoken to.
    let old = tools.join("iggy-server");
    fs::write(&old, "#!/bin/sh\necho 'server 0.4.300'\n").expect("written");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).expect("executable");
    let scenarios = SCENARIOS.split("[[scenario]]").take(2);
    let scenarios = scenarios.collect::<Vec<_>>().join("[[scenario]]");
    let scenarios = scenarios.replace("\"nats\", ", "\"nats\", \"kafka\", ");
    let mut command = run_in(folder.path(), &scenarios);
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .args(["--contenders", "nats,kafka,kera,iggy"])
        .env("PATH", format!("{}:{path}", tools.display()));
    let output = command.output().expect("kera-bench can be run");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    for peer in ["NATS JetStream", "Apache Kafka", "Apache Iggy"] {
        let begin = said.find(&format!("{peer} IS LEFT OUT: "));
        let end = said.find(&format!("{peer} WAS LEFT OUT: "));
        assert!(begin.is_some() && begin < end, "{said}");
    }
    assert!(said.contains("the proxy refuses"), "{said}");
    assert!(said.contains("says that it is `server 0.4.300`"), "{said}");
    let (results, document) = read(folder.path());
    let left_out = results["left_out"].as_array().expect("who was left out");
    assert_eq!(left_out.len(), 6, "{left_out:?}");
    for case in results["cases"].as_array().expect("cases") {
        let all: Vec<_> = runs(case).iter().map(|run| &run["contender"]).collect();
        assert_eq!(all, ["kera"], "the others go on");
    }
    for part in [
        "**NATS JetStream was left out**: ",
        "**Apache Kafka was left out**: ",
        "**Apache Iggy, syncing was left out**: ",
        "| memory | has no such mode | ",
        "| written | left out | ",
    ] {
        assert!(document.contains(part), "{part} is not in\n{document}");
    }
}
