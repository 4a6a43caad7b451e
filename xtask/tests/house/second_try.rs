//! Which failures of `make test` get a second try, and what becomes of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use kera_xtask::root;

/// What a test binary prints of tests that fail, which said something.
fn failing(names: &[&str], said: &str) -> String {
    let mut text = String::from("\nrunning 9 tests\ntest passes ... ok <0.001s>\n");
    for name in names {
        text += &format!("test {name} ... FAILED <1.234s>\n");
    }
    text += "\nfailures:\n\n";
    for name in names {
        text += &format!("---- {name} stdout ----\n{said}\n\n");
    }
    text += "\nfailures:\n";
    for name in names {
        text += &format!("    {name}\n");
    }
    let count = names.len();
    text + &format!("\ntest result: FAILED. 3 passed; {count} failed; 0 ignored; 0 measured\n\n")
}

/// What cargo prints when test binaries fail: for each the target, and what it printed.
fn log_of(binaries: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (target, printed) in binaries {
        text += "     Running tests/a.rs (target/debug/deps/a-1)\n";
        text += printed;
        text += &format!("error: test failed, to rerun pass `{target}`\n");
        text += "     Running unittests src/lib.rs (target/debug/deps/b-2)\n\nrunning 0 tests\n\n";
        text += "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured\n\n";
    }
    text += &format!("error: {} targets failed:\n", binaries.len());
    for (target, _) in binaries {
        text += &format!("    `{target}`\n");
    }
    text
}

/// The same, for each the target, its tests, and what they said.
fn log(targets: &[(&str, &[&str], &str)]) -> String {
    let printed = |(target, names, said): &(_, &[&str], &str)| (*target, failing(names, said));
    log_of(&targets.iter().map(printed).collect::<Vec<_>>())
}

/// Runs the script over a log, with a cargo that says `result` of every test.
fn second_try(log: &str, result: &str) -> (Output, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let (cargo, file) = (dir.path().join("cargo"), dir.path().join("log"));
    let (asked, twice) = (dir.path().join("asked"), dir.path().join("twice"));
    let script = format!(
        "#!/bin/sh\necho \"$@\" >>{}\nprintf '%s\\n' 'test result: {result}'\n",
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
    let output = Command::new(root().join("scripts/second-try.sh"))
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
fn a_test_that_runs_tests_is_tried_once_more_and_they_are_not() {
    // One that runs itself apart, one that plays others with a rule broken, and one whose tests write past
    // the harness.
    let itself = failing(&["one"], "it was late");
    let played =
        failing(&["copies::played"], "the copy has a file") + "planted::two does not notice";
    let past = failing(&["inner"], "")
        + &failing(&["three"], "")
        + "test result: ok. 1 passed; 0 failed\n";
    let log = log_of(&[
        ("-p kera --test network", failing(&["one"], &itself)),
        (
            "-p kera --test brokers",
            failing(&["planted::two"], &played),
        ),
        (
            "-p kera --test cluster",
            past + &failing(&["three"], "late"),
        ),
    ]);
    let (output, asked, twice) = second_try(&log, PASSED);
    assert!(output.status.success(), "{output:?}");
    let wanted = "test --locked -p kera --test network -- --exact one\n\
                  test --locked -p kera --test brokers -- --exact planted::two\n\
                  test --locked -p kera --test cluster -- --exact three\n";
    assert_eq!(asked, wanted);
    assert_eq!(twice.lines().count(), 3, "{twice}");
    // What was found stands, however deep.
    let found = failing(&["one"], &failing(&["one"], "ANOMALY 1 lost"));
    let log = log_of(&[("-p kera --test network", found)]);
    let (output, asked, _) = second_try(&log, PASSED);
    assert!(!output.status.success() && asked.is_empty(), "{output:?}");
}

#[test]
fn a_binary_that_died_is_not_taken_for_what_it_ran() {
    let brokers = "-p kera --test brokers";
    let printed = failing(&["nested"], "");
    let whole = log_of(&[(brokers, printed.clone())]);
    let at = whole.find("to rerun pass").unwrap();
    let (head, tail) = whole.split_at(at + whole[at..].find('\n').unwrap() + 1);
    let causes = [
        "\nCaused by:\n  process didn't exit successfully: `a-1` (signal: 6, SIGABRT: process abort signal)\n",
        "note: test exited abnormally; to see the full output pass --no-capture to the harness.\n",
    ];
    for cause in causes {
        let (output, asked, _) = second_try(&format!("{head}{cause}{tail}"), PASSED);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            !output.status.success() && said.contains("it died"),
            "{output:?}"
        );
        assert_eq!(asked, "", "{cause}");
    }
    // A list that is not the binary's: its result tells of another number.
    let other = printed.replace("1 failed", "2 failed");
    let (output, asked, _) = second_try(&log_of(&[(brokers, other)]), PASSED);
    assert!(!output.status.success() && asked.is_empty(), "{output:?}");
}

#[test]
fn who_fails_again_has_failed() {
    let log = log(&[("-p kera --test brokers", &["one"], "left: 1")]);
    // A name that no test has chooses none, and fails none.
    for result in [
        "FAILED. 0 passed; 1 failed",
        "ok. 0 passed; 0 failed",
        // It ran a test that passed, and failed itself.
        "ok. 1 passed; 0 failed\ntest result: FAILED. 0 passed; 1 failed",
    ] {
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
    // A binary of which nothing is said.
    let died = log(&[(brokers, one, "")]) + "    `-p kera --test cluster`\n";
    let (output, asked, _) = second_try(&died, PASSED);
    assert!(!output.status.success() && asked.is_empty(), "{output:?}");
}

/// Runs the script for tests in Java over a report in which these tests failed.
fn second_try_of_java(failed: &[&str]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let reports = dir.path().join("kera-client/surefire-reports");
    fs::create_dir_all(&reports).unwrap();
    for (number, test) in failed.iter().enumerate() {
        let (class, method) = test.split_once('#').unwrap();
        let report = format!(
            "<testsuite name=\"io.kera.client.{class}\" tests=\"2\">\n\
             <testcase name=\"passes\" classname=\"io.kera.client.{class}\" time=\"0.1\"/>\n\
             <testcase name=\"{method}\" classname=\"io.kera.client.{class}\" time=\"0.2\">\n\
             <failure message=\"late\">at {class}</failure>\n</testcase>\n</testsuite>\n"
        );
        fs::write(reports.join(format!("TEST-{number}.xml")), report).unwrap();
    }
    granted("second-try-java.sh", dir.path())
}

/// Whether a script grants a second try by the report at `path`; then of which tests, else why not.
fn granted(script: &str, path: &Path) -> (bool, String) {
    let script = root().join("scripts").join(script);
    let output = Command::new(script).arg(path).output().unwrap();
    let said = if output.status.success() {
        output.stdout
    } else {
        output.stderr
    };
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
fn tests_in_java_go_by_the_same_rules() {
    let tries = second_try_of_java(&["ReadingTest#ranges", "ConsumerTest#members(int)[2]"]);
    let wanted = "ConsumerTest#members\nReadingTest#ranges\n";
    assert_eq!(tries, (true, wanted.to_owned()));
    for (failed, why) in [
        (&["ExactlyOnceTest#twice"][..], "what was found stands"),
        (&["ReadingTest#one", "BatchesTest#two"], "but their input"),
        (&["ReadingTest#"], "failed as a whole"),
        (&["A#a", "A#b", "A#c", "A#d"], "more than 3"),
        (&[], "builds or starts"),
    ] {
        let (granted, said) = second_try_of_java(failed);
        assert!(!granted && said.contains(why), "{why}: {said}");
    }
}

/// Lists of names in the script are of classes that are there.
#[test]
fn tests_in_java_without_a_second_try_are_there() {
    let script = fs::read_to_string(root().join("scripts/second-try-java.sh")).unwrap();
    let lists = script
        .lines()
        .filter(|line| line.starts_with("input=") || line.starts_with("found="));
    let names = lists.flat_map(|line| line.split(['\'', ' ', '=']).filter(|w| w.ends_with("Test")));
    let names: Vec<_> = names.collect();
    assert!(names.len() > 5, "{names:?}");
    let files = kera_xtask::files(&["java"]);
    for name in names {
        let file = format!("/{name}.java");
        assert!(
            files.iter().any(|source| source.path.ends_with(&file)),
            "{name} is no test in Java"
        );
    }
}

/// Runs the script for tests in Python over pytest's report, which is one line, of these tests that failed.
fn second_try_of_python(failed: &[&str]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.xml");
    let mut report =
        String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><testsuites><testsuite>");
    for (number, test) in failed.iter().enumerate() {
        let (file, name) = test.split_once("::").unwrap();
        let what = ["failure", "error"][number % 2];
        report += &format!(
            "<testcase classname=\"test_admin\" name=\"test_passes\" time=\"0.1\" />\
             <testcase classname=\"{file}\" name=\"{name}\" time=\"0.2\">\
             <{what} message=\"assert 1 &lt; 0\">late\nby 2 s</{what}></testcase>"
        );
    }
    fs::write(&path, report + "</testsuite></testsuites>").unwrap();
    granted("second-try-python.sh", &path)
}

#[test]
fn tests_in_python_go_by_the_same_rules() {
    let tries =
        second_try_of_python(&["test_login::test_tls", "test_consuming::test_shared[none]"]);
    let wanted = "test_consuming.py::test_shared[none]\ntest_login.py::test_tls\n";
    assert_eq!(tries, (true, wanted.to_owned()));
    for (failed, why) in [
        (
            &["test_transactions::test_one"][..],
            "what was found stands",
        ),
        (
            &["test_login::test_one", "test_stubs::test_two"],
            "but their input",
        ),
        (&["::test_login"], "test_login failed as a whole"),
        (&["a::a", "a::b", "a::c", "a::d"], "more than 3"),
        (&[], "builds or starts"),
    ] {
        let (granted, said) = second_try_of_python(failed);
        assert!(!granted && said.contains(why), "{why}: {said}");
    }
    // Pytest itself died.
    let (granted, said) = granted("second-try-python.sh", Path::new("nowhere"));
    assert!(!granted && said.contains("builds or starts"), "{said}");
    for name in ["test_stubs", "test_bench", "test_transactions"] {
        let path = format!("connectors/python/tests/{name}.py");
        assert!(root().join(&path).exists(), "{path} is not there");
    }
}
