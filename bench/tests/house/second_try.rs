//! Which failures of `make test` get a second try, and what becomes of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// What cargo prints when tests of some binaries fail: for each the target, its tests, and what they said.
fn log(targets: &[(&str, &[&str], &str)]) -> String {
    let mut text = String::from("     Running unittests src/lib.rs (target/debug/deps/a-1)\n");
    for (_, names, said) in targets {
        text += "\nfailures:\n\n";
        for name in *names {
            text += &format!("---- {name} stdout ----\n{said}\n\n");
        }
        text += "\nfailures:\n";
        for name in *names {
            text += &format!("    {name}\n");
        }
        text += "\ntest result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured\n";
    }
    text += &format!("error: {} targets failed:\n", targets.len());
    for (target, _, _) in targets {
        text += &format!("    `{target}`\n");
    }
    text
}

/// Runs the script over a log, with a cargo that says `result` of every test.
fn second_try(log: &str, result: &str) -> (Output, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let (cargo, file) = (dir.path().join("cargo"), dir.path().join("log"));
    let (asked, twice) = (dir.path().join("asked"), dir.path().join("twice"));
    let script = format!(
        "#!/bin/sh\necho \"$@\" >>{}\necho 'test result: {result}'\n",
        asked.display()
    );
    fs::write(&cargo, script).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&file, log).unwrap();
    let path = format!(
        "{}:{}",
        dir.path().display(),
        std::env::var("PATH").unwrap()
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(root.join("scripts/second-try.sh"))
        .arg(&file)
        .env("PATH", path)
        .env("KERA_RETRY_FILE", &twice)
        .output()
        .unwrap();
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    (output, read(&asked), read(&twice))
}

const PASSED: &str = "ok. 1 passed; 0 failed";

#[test]
fn tests_with_processes_get_a_second_try_that_is_told() {
    let log = log(&[
        (
            "-p kera --test brokers",
            &["a::one", "two"],
            "thread 'x' panicked at y",
        ),
        ("-p kera-rpc --lib", &["three"], "left: 1"),
    ]);
    let (output, asked, twice) = second_try(&log, PASSED);
    assert!(output.status.success(), "{output:?}");
    let wanted = "test --locked -p kera --test brokers -- --exact a::one\n\
                  test --locked -p kera --test brokers -- --exact two\n\
                  test --locked -p kera-rpc --lib -- --exact three\n";
    assert_eq!(asked, wanted);
    let told = twice
        .lines()
        .filter(|line| line.starts_with("TRIED TWICE: "));
    assert_eq!(told.count(), 3, "{twice}");
}

#[test]
fn a_test_that_runs_itself_apart_is_tried_once_more() {
    let inside =
        "failures:\n\nfailures:\n    one\n\ntest result: FAILED. 0 passed; 1 failed\nit was late";
    let log = log(&[("-p kera --test cluster", &["one"], inside)]);
    let (output, asked, _) = second_try(&log, PASSED);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(asked.lines().count(), 1, "{asked}");
}

#[test]
fn who_fails_again_has_failed() {
    let log = log(&[("-p kera --test brokers", &["one"], "left: 1")]);
    // A name that no test has chooses none, and fails none.
    for result in ["FAILED. 0 passed; 1 failed", "ok. 0 passed; 0 failed"] {
        let (output, asked, twice) = second_try(&log, result);
        assert!(!output.status.success(), "{output:?}");
        assert_eq!((asked.lines().count(), twice.as_str()), (1, ""));
    }
}

#[test]
fn what_was_found_stands() {
    let brokers = "-p kera --test brokers";
    let one: &[&str] = &["one"];
    for (targets, why) in [
        (vec![(brokers, one, "ANOMALY 1 lost")], "what was found"),
        (
            vec![(brokers, one, "minimal failing input: seed = 3")],
            "what was found",
        ),
        (
            vec![("-p kera-replication --test cases", one, "")],
            "nothing but themselves",
        ),
        (vec![("-p kera-rpc --doc", one, "")], "an example"),
        (vec![(brokers, &["a", "b", "c", "d"], "")], "more than 3"),
        (vec![], "builds or starts"),
    ] {
        let (output, asked, _) = second_try(&log(&targets), PASSED);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            !output.status.success() && said.contains(why),
            "{why}: {output:?}"
        );
        assert_eq!(asked, "", "{why}");
    }
    // A binary that dies has no list; one that runs others has theirs as well.
    let died = log(&[(brokers, one, "")]) + "    `-p kera --test cluster`\n";
    let (output, asked, _) = second_try(&died, PASSED);
    assert!(!output.status.success() && asked.is_empty(), "{output:?}");
}
