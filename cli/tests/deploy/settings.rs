//! What files of `deploy/` set of the broker's configuration, against what there is to set.

use std::fs;

use kera_broker::config::KEYS;

use crate::common::{finish, home, kera};
use crate::read;

/// Variables that are no setting of the broker: what clients and the command line read.
const OTHERS: [&str; 2] = ["KERA_BOOTSTRAP", "KERA_CONFIG"];

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
