//! `make test-long`: what it runs, against what the document says that it does, and what becomes of a run that fails.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use kera_xtask::{check, root};

const SCRIPT: &str = "scripts/test-long.sh";
const DOCUMENT: &str = "docs/reliability.md";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The variables that say how much is run, and how much without them: `${NAME:-100}`.
fn counts(script: &str) -> Vec<(String, u64)> {
    let words = script.split("${").skip(1);
    let variables = words.filter_map(|word| word.split_once('}')?.0.split_once(":-"));
    variables
        .filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
        .collect()
}

/// As documents write a number.
fn written(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        _ => format!("{},{:03}", count / 1_000, count % 1_000),
    }
}

#[test]
fn the_document_lists_every_long_run_with_its_count() {
    let document = read(&root().join(DOCUMENT));
    let section = document.split("\n## ").find(|s| s.starts_with("Longer"));
    let section = section.expect("there is a section");
    let counts = counts(&read(&root().join(SCRIPT)));
    assert!(counts.len() > 7, "only {counts:?}");
    let mut broken = Vec::new();
    for (name, count) in counts {
        let count = format!(" {} ", written(count));
        let says = |row: &str| {
            // The count stands before the variable, and behind what stands before that.
            let before = row.split(&format!("(`{name}`")).next().unwrap_or_default();
            let own = before.rsplit("`)").next().unwrap_or_default();
            before.len() < row.len() && own.contains(&count)
        };
        if !section.lines().any(says) {
            broken.push(format!("{DOCUMENT}:{name} with{count}"));
        }
    }
    check("the document lists what make test-long runs", broken);
}

/// Runs the script where every tool succeeds but the test `network`, and returns what it said, what cargo
/// was asked for, and the document that it left.
fn run_long(document: &str, asked_for: &[(&str, &str)]) -> (Output, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for folder in ["scripts", "docs", "bin"] {
        fs::create_dir(at(folder)).unwrap();
    }
    for script in [SCRIPT, "scripts/counts.sh"] {
        fs::copy(root().join(script), at(script)).unwrap();
    }
    fs::write(at(DOCUMENT), document).unwrap();
    for script in ["scripts/needs.sh", "scripts/fuzz.sh"] {
        write_program(
            &at(script),
            "#!/bin/sh\necho stat::number_of_executed_units: 7\n",
        );
    }
    for script in [
        "scripts/connectors.sh",
        "scripts/spark.sh",
        "scripts/samza.sh",
        "scripts/datafusion.sh",
        "scripts/wheel.sh",
    ] {
        write_program(
            &at(script),
            "#!/bin/sh\necho '[INFO] Tests run: 6, Failures: 0, Errors: 0, Skipped: 0'\n",
        );
    }
    let cargo = "#!/bin/sh
echo \"$KERA_CRASH_ROUNDS/$KERA_CLUSTER_RUNS/$KERA_KAFKA_APART_ROUNDS/$PROPTEST_CASES $*\" >>asked
case \"$*\" in
*'--test network '*)
    echo 'run 3 failed, KERA_NETWORK_SEED=5'
    echo 'test result: FAILED. 4 passed; 1 failed; 0 ignored'
    exit 101 ;;
esac
echo 'cluster: 9 runs, none lost'
echo 'test result: ok. 6 passed; 0 failed; 0 ignored'
";
    write_program(&at("bin/cargo"), cargo);
    write_program(&at("bin/make"), "#!/bin/sh\nexec cargo make \"$@\"\n");
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(at(SCRIPT));
    for (name, _) in counts(&read(&root().join(SCRIPT))) {
        command.env_remove(name);
    }
    let output = command
        .env("PATH", path)
        .env_remove("CARGO_TARGET_DIR")
        .envs(asked_for.iter().copied())
        .output()
        .unwrap();
    (output, read(&at("asked")), read(&at(DOCUMENT)))
}

const EMPTY: &str = "# R\n\n| a | b | c | d |\n|---|---|---|---|\n| 1 | 2 | 3 | 4 |\n\nThe end.\n";

#[test]
fn a_long_run_that_fails_keeps_no_other_from_running() {
    let (output, asked, document) = run_long(EMPTY, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // Each has its line, in the table, in its order; what follows the table is where it was.
    let (head, rest) = document.split_at(EMPTY.find("\nThe end.").unwrap());
    assert!(EMPTY.starts_with(head), "{document}");
    let rows: Vec<&str> = rest.lines().take_while(|line| !line.is_empty()).collect();
    assert!(rest.ends_with("|\n\nThe end.\n"), "{document}");
    assert!(rows.len() > 10, "{document}");
    let failed: Vec<_> = rows.iter().filter(|row| row.contains("FAILED")).collect();
    let [failed] = failed.as_slice() else {
        panic!("{document}");
    };
    let told = "4 passed, 1 failed, failed, KERA_NETWORK_SEED=5 |";
    assert!(
        failed.contains("network namespaces, 100 runs") && failed.ends_with(told),
        "{failed}"
    );
    assert!(rows.last().unwrap().ends_with("; 7 inputs |"), "{document}");

    // With the counts that are documented, and all once more in the end.
    for begin in ["100/// ", "/200// ", "//60/ ", "///10000 "] {
        assert!(
            asked.lines().any(|line| line.starts_with(begin)),
            "{begin}: {asked}"
        );
    }
    let said = String::from_utf8(output.stdout).unwrap();
    let (_, summary) = said.split_once("==> summary").expect("it sums up");
    assert_eq!(summary.lines().count(), rows.len() + 1, "{summary}");

    let (_, asked, _) = run_long(EMPTY, &[("KERA_CLUSTER_RUNS", "1")]);
    assert!(
        asked.lines().any(|line| line.starts_with("/1// ")),
        "{asked}"
    );
}
