//! The commands as somebody sees them in a terminal of 80 columns.

mod common;

use std::process::Command;

use common::command::run;
use common::{Broker, PATIENCE, home, kera, machine};

const LONG: &str = "a-stream-with-quite-a-long-name-as-people-have-them.in.production.v2";

/// What a command shows in a terminal of 80 columns, without colours; it may fail.
fn shown(broker: &Broker, command: &str) -> String {
    shown_with(broker, command, &[("NO_COLOR", "1")])
}

/// The same, with variables of the environment.
fn shown_with(broker: &Broker, command: &str, variables: &[(&str, &str)]) -> String {
    let program = kera().get_program().display().to_string();
    let mut terminal = Command::new("script");
    terminal
        .args(["--quiet", "--command"])
        .arg(format!("stty cols 80 rows 24; '{program}' {command}"))
        .arg("/dev/null")
        .env_remove("COLUMNS")
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .envs(variables.iter().copied())
        .env("KERA_BOOTSTRAP", broker.address());
    run(terminal, b"", PATIENCE).replace("\r\n", "\n")
}

#[test]
fn no_line_of_a_list_is_longer_than_a_terminal_of_80_columns() {
    if Command::new("script").arg("--version").output().is_err() {
        return machine::skip_this("needs script (Debian: bsdutils)");
    }
    let broker = Broker::start();
    let home = home();
    let password = home.path().join("password");
    std::fs::write(&password, "secret").expect("a file");
    let made = shown(
        &broker,
        &format!("stream create {LONG} --retention-bytes 10GiB"),
    );
    assert!(
        made.contains("created: stream") && made.contains("\nnext:\n"),
        "{made}"
    );
    assert!(
        made.contains(&format!("    kera consume {LONG} --from earliest\n")),
        "{made}"
    );
    assert!(
        !broker
            .run(&["stream", "create", "clicks", "--lanes", "4"])
            .contains("next:")
    );
    let lines: String = (0..12_000).map(|n| format!("{n}\n")).collect();
    broker.feed(&["produce", "clicks", "-q"], lines.as_bytes());
    let group = "billing-service-of-the-shop.production";
    let consume = [
        "consume", "clicks", "--group", group, "--from", "earliest", "--max", "5000",
    ];
    broker.run(&consume);
    let rule = [
        "acl",
        "add",
        "--allow",
        "User:shop-of-a-long-name.example.org",
        "--producer",
    ];
    broker.run(&[&rule[..], &["--stream-prefix", LONG]].concat());
    let create = format!(
        "user create ann@a-long-name.example.org --password-file '{}'",
        password.display()
    );
    assert!(shown(&broker, &create).contains("\nnext:\n"));

    for command in [
        "stream list",
        "stream list --internal",
        "stream describe clicks",
        "stream describe clicks --groups",
        &format!("stream describe {LONG}"),
        "group list",
        &format!("group describe {group}"),
        "acl list",
        "user list",
        "broker list",
        "broker describe",
    ] {
        let text = shown(&broker, command);
        assert!(
            text.lines().count() > 1,
            "kera {command} shows nothing: {text}"
        );
        for line in text.lines() {
            assert!(
                line.chars().count() <= 80,
                "kera {command} has a longer line:\n{text}"
            );
            assert!(!line.contains('\u{1b}'), "NO_COLOR is set: {line:?}");
        }
    }
    // Numbers are alike in all tables, and a long name does not take them apart: two parts, not one for each column.
    let described = shown(&broker, "stream describe clicks")
        + &shown(&broker, &format!("group describe {group}"));
    let digits = |word: &&str| word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_digit());
    let plain: Vec<&str> = described.split_whitespace().filter(digits).collect();
    assert!(plain.is_empty(), "{plain:?} in {described}");
    let listed = shown(&broker, "stream list");
    assert!(listed.matches("clicks").count() <= 2, "{listed}");
    // A failure says what it has to in lines that fit.
    for line in shown(&broker, "cluster status; true").lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn colour_and_progress_are_for_terminals_and_no_color_is_heeded() {
    if Command::new("script").arg("--version").output().is_err() {
        return machine::skip_this("needs script (Debian: bsdutils)");
    }
    let broker = Broker::start();
    let (failing, bench) = (
        "stream describe none; true",
        "bench produce load --records 1000 --no-disk",
    );
    let red = "\u{1b}[31m\u{1b}[1merror\u{1b}[0m: ";
    let coloured = shown_with(&broker, failing, &[]);
    assert!(coloured.contains(red), "{coloured:?}");
    for (variable, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = shown_with(&broker, failing, &[(variable, value)]);
        assert!(
            plain.contains("error: ") && !plain.contains('\u{1b}'),
            "{plain:?}"
        );
    }
    let piped = broker.attempt(&["stream", "describe", "none"], b"");
    assert!(piped.stderr.starts_with("error: "), "{:?}", piped.stderr);
    // How long it has gone on is for people; what goes on is for logs as well.
    let what = "bench produce: 1,000 records, stream load";
    let watched = shown(&broker, bench);
    assert!(watched.contains(&format!("0s {what}")), "{watched:?}");
    let words: Vec<&str> = bench.split(' ').collect();
    let piped = broker.attempt(&words, b"");
    assert!(
        piped.stderr.lines().any(|line| line == what),
        "{}",
        piped.stderr
    );
}

#[test]
fn the_version_tells_the_commit_and_the_features_of_the_build() {
    let mut command = kera();
    command.arg("--version");
    let told = run(command, b"", PATIENCE);
    let from = option_env!("KERA_COMMIT").map_or("development build".to_owned(), |commit| {
        format!("commit {commit}")
    });
    let features = if cfg!(feature = "rdma") {
        "rdma"
    } else {
        "none"
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        told.trim_end(),
        format!("kera {version} ({from}, features: {features})")
    );
}
