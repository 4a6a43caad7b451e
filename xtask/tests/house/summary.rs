//! The summary of `make test`: how long tests took, and how that is learned.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kera_xtask::root;
use tempfile::TempDir;

/// A program that is a shell script, in a directory that is made.
fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// `make test` with stages that print nothing, but for the unit tests; what it prints, and whether it was well.
fn make_test(unit: &str, ends: i32) -> (String, bool) {
    make_test_with(unit, ends, "")
}

/// The same with what the stages beside the unit tests do, which know their names as `$1`.
fn make_test_with(unit: &str, ends: i32, others: &str) -> (String, bool) {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("unit"), unit).unwrap();
    let path = dir.path().display();
    // What runs tests is for them alone.
    let script = format!(
        "runner=$(env | grep '^CARGO_TARGET_.*_RUNNER=')\n\
         if [ \"$1\" = unit ]; then cat {path}/unit; echo \"runner: $runner\"; exit {ends}; fi\n\
         {others}\n\
         [ -z \"$runner\" ]"
    );
    program(&dir.path().join("make"), &script);
    let paths = format!("{path}:{}", std::env::var("PATH").unwrap());
    let output = Command::new(root().join("scripts/test.sh"))
        .env("PATH", paths)
        .env("CARGO_TARGET_DIR", dir.path().join("target"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    (said, output.status.success())
}

/// What test binaries print, with so many tests; each takes as many milliseconds as its number.
fn tests(count: usize) -> String {
    let mut text = String::from(
        "     Running tests/brokers/main.rs (target/debug/deps/brokers-54064d57247041da)\n",
    );
    for number in 1..=count {
        let time = number as f64 / 1000.0;
        text += &format!("test copies::number_{number} ... ok <{time:.3}s>\n");
    }
    text += "test result: ok. 30 passed; 0 failed; 0 ignored; finished in 1.00s\n";
    text +=
        "     Running unittests src/lib.rs (/a b/target/debug/deps/kera_rpc-0123456789abcdef)\n";
    text += "test panics - should panic ... ok <12.500s>\ntest off ... ignored, <reason>\n";
    text + "test fails ... FAILED <100.250s>\ntest result: FAILED. 1 passed; 1 failed; 1 ignored; finished in 112s\n"
}

#[test]
fn the_summary_has_the_slowest_tests_with_their_binaries() {
    let (said, is_well) = make_test(&tests(30), 1);
    assert!(
        !is_well && said.ends_with("\n31 passed, 1 failed, 1 skipped\n"),
        "{said}"
    );
    let (_, summary) = said.split_once("==> summary").expect("it sums up");
    let (_, slowest) = summary
        .split_once("slowest tests of make unit:\n")
        .expect("it names them");
    let slowest: Vec<_> = slowest
        .lines()
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(slowest.len(), 20, "{summary}");
    assert_eq!(slowest[0].trim(), "100.250 s  fails (kera_rpc)");
    assert_eq!(slowest[1].trim(), "12.500 s  panics (kera_rpc)");
    assert_eq!(slowest[2].trim(), "0.030 s  copies::number_30 (brokers)");
    assert_eq!(slowest[19].trim(), "0.013 s  copies::number_13 (brokers)");
    assert!(
        summary.contains("  test fails ... FAILED <100.250s>\n"),
        "{summary}"
    );
}

#[test]
fn what_fails_beside_the_unit_tests_is_told_and_counted() {
    let others = "case $1 in doc) echo the example is wrong; exit 1;; \
        python) echo '3 passed in 1.00s';; esac";
    let unit = "test result: ok. 1 passed; 0 failed; 0 ignored\n";
    let (said, is_well) = make_test_with(unit, 0, others);
    assert!(
        !is_well && said.ends_with("\n4 passed, 1 failed, 0 skipped\n"),
        "{said}"
    );
    assert!(said.contains("the example is wrong\n"), "{said}");
    assert!(said.contains("\nFAILED: make doc; \n"), "{said}");
}

#[test]
fn without_times_the_summary_goes_without() {
    let (said, is_well) = make_test(
        "test one ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored\n",
        0,
    );
    assert!(
        is_well && said.ends_with("\n1 passed, 0 failed, 0 skipped\n"),
        "{said}"
    );
    assert!(!said.contains("slowest"), "{said}");
    // An environment variable makes cargo run test binaries through the script that adds times.
    let runner = said.lines().find_map(|line| line.strip_prefix("runner: "));
    let (name, script) = runner
        .and_then(|line| line.split_once('='))
        .expect("it is set");
    assert_eq!(script, "scripts/timed-test.sh");
    let host = name
        .strip_prefix("CARGO_TARGET_")
        .and_then(|name| name.strip_suffix("_RUNNER"));
    let is_part = |part: &str| {
        part.bytes()
            .all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9'))
    };
    assert!(
        host.is_some_and(|host| host.split('_').all(is_part)),
        "{name}"
    );
}

#[test]
fn results_of_pytest_and_maven_are_added_up() {
    let said = "5 passed in 2.10s\n\
        ========= 2 failed, 3 passed, 1 skipped, 4 warnings, 1 error in 62.50s (0:01:02) =========\n\
        Tests run: 4, Failures: 1, Errors: 0, Skipped: 1\n\
        9 passed the gate\n  7 passed in 1.00s\n\
        FAILED test_a.py::test_b - AssertionError: 1 == 2\n";
    let (said, is_well) = make_test(said, 1);
    assert!(
        !is_well && said.ends_with("\n10 passed, 4 failed, 2 skipped\n"),
        "{said}"
    );
    assert!(
        said.contains("\n  FAILED test_a.py::test_b - AssertionError: 1 == 2\n"),
        "{said}"
    );
}

fn timed(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(root().join("scripts/timed-test.sh"))
        .arg(program)
        .args(arguments)
        .env("CARGO_TARGET_SOMETHING_RUNNER", "scripts/timed-test.sh")
        .env_remove("RUSTC_BOOTSTRAP")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn test_binaries_tell_times_and_other_programs_run_as_they_are() {
    let dir = TempDir::new().unwrap();
    let tell = "echo \"$@ ${RUSTC_BOOTSTRAP-unset} ${CARGO_TARGET_SOMETHING_RUNNER-unset}\"";
    for (place, wanted) in [
        (
            "debug/deps/a-1",
            "a b -Z unstable-options --report-time 1 unset\n",
        ),
        ("debug/a", "a b unset unset\n"),
    ] {
        let path = dir.path().join(place);
        program(&path, tell);
        assert_eq!(timed(&path, &["a", "b"]), wanted);
    }
    // The harness of this toolchain does so.
    let this = std::env::current_exe().unwrap();
    let one = "second_try::who_fails_again_has_failed";
    let said = timed(&this, &["--exact", one]);
    let line = said.lines().find(|line| line.contains(one)).expect(&said);
    assert!(line.contains("... ok <") && line.ends_with("s>"), "{said}");
}
