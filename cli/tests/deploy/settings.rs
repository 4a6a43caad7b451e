//! What files of `deploy/` set of the broker's configuration, against what there is to set.

use std::fs;

use kera_broker::config::KEYS;

use crate::common::{finish, home, kera};
use crate::{read, repository};

/// Variables that are no setting of the broker: what clients and the command line read.
const OTHERS: [&str; 7] = [
    "KERA_BOOTSTRAP",
    "KERA_USER",
    "KERA_USER_PASSWORD_FILE",
    "KERA_CONFIG",
    "KERA_TLS_CA",
    "KERA_TLS_CLIENT_CERT",
    "KERA_TLS_CLIENT_KEY",
];

/// Fails if a variable that begins like one of the broker's is none, or holds what it does not take.
pub fn check_environment<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let mut print = kera();
    print.args(["config", "print", "--json"]);
    let mut checked = 0;
    for (name, value) in variables {
        if name.starts_with("KERA_") && !OTHERS.contains(&name) {
            assert!(
                KEYS.iter().any(|key| key.env() == name),
                "{name} sets nothing"
            );
            print.env(name, value);
            checked += 1;
        }
    }
    assert!(checked > 0, "nothing is set");
    let finished = finish(print, b"");
    assert!(finished.status.success(), "{}", finished.stderr);
}

/// Fails if a broker with this file and these variables would refuse to open its listeners; and if it would not without
/// the variable that says which of them are to ask nobody.
pub fn check_opens<'a>(text: &str, variables: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let home = home();
    let (file, all) = (home.path().join("kera.toml"), home.path().join("all.env"));
    fs::write(&file, text).expect("a file can be written");
    let ours = variables.into_iter();
    let ours = ours.filter(|(name, _)| name.starts_with("KERA_") && !OTHERS.contains(name));
    let lines: Vec<String> = ours
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect();
    let check = |lines: &[String]| {
        fs::write(&all, lines.concat()).expect("a file can be written");
        let mut check = kera();
        check
            .args(["config", "check"])
            .arg(&file)
            .arg("--env-file")
            .arg(&all);
        finish(check, b"")
    };
    let opens = check(&lines);
    assert!(opens.status.success(), "{}\n{lines:?}", opens.stderr);
    let is_told = |line: &&String| line.starts_with("KERA_INSECURE=");
    assert!(lines.iter().any(|line| is_told(&line)), "{lines:?}");
    let others: Vec<String> = lines
        .iter()
        .filter(|line| !is_told(line))
        .cloned()
        .collect();
    let refused = check(&others);
    let says = refused.stderr.contains("beyond loopback");
    assert!(
        refused.status.code() == Some(2) && says,
        "{}",
        refused.stderr
    );
}

/// Fails if `text` is no configuration file.
pub fn check_file(text: &str) {
    let home = home();
    let path = home.path().join("kera.toml");
    fs::write(&path, text).expect("a file can be written");
    let mut check = kera();
    check.args(["config", "check"]).arg(&path);
    let finished = finish(check, b"");
    assert!(finished.status.success(), "{}\n{text}", finished.stderr);
}

#[test]
fn the_file_of_the_service_is_a_configuration() {
    check_file(&read("deploy/systemd/kera.toml"));
}

/// What all brokers of a cluster have in common lacks the number that each has to itself.
#[test]
fn the_file_of_a_cluster_is_a_configuration_with_and_without_what_the_unit_adds() {
    let file = repository("deploy/systemd/cluster.toml");
    let check = |more: &[&str]| {
        let mut check = kera();
        check.args(["config", "check"]).arg(&file).args(more);
        finish(check, b"")
    };
    let alone = check(&[]);
    assert!(alone.status.success(), "{}", alone.stderr);
    assert!(
        alone.stderr.contains("note: cluster.broker_id"),
        "{}",
        alone.stderr
    );
    let added = repository("deploy/systemd/member.env");
    let added = added.to_str().expect("a path is text");
    let both = check(&["--env-file", added]);
    assert!(both.status.success(), "{}", both.stderr);
    assert!(!both.stderr.contains("note:"), "{}", both.stderr);
    let home = home();
    let wrong = home.path().join("member.env");
    for (text, said) in [
        ("KERA_CLUSTER_BROKER_ID=none\n", "KERA_CLUSTER_BROKER_ID"),
        ("# a number\nbroker 7\n", "member.env:2: "),
    ] {
        fs::write(&wrong, text).expect("a file can be written");
        let refused = check(&["--env-file", wrong.to_str().expect("text")]);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
}

#[test]
fn foreign_variables_and_wrong_values_are_seen() {
    let seen = |variables: &[(&str, &str)]| {
        let variables = variables.to_vec();
        std::panic::catch_unwind(|| check_environment(variables)).is_err()
    };
    assert!(!seen(&[("KERA_HTTP_LISTEN", "127.0.0.1:1"), ("PATH", "/")]));
    assert!(seen(&[("KERA_HTTP_LISTENS", "127.0.0.1:1")]));
    assert!(seen(&[("KERA_MEMORY_POOL", "much")]));
    assert!(seen(&[("PATH", "/")]), "nothing of the broker's is set");
}
