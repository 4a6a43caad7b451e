//! Certificates for trying TLS out, as `kera certificate dev` makes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{Broker, Finished, finish, home, kera};

fn run(words: &[&str]) -> Finished {
    let mut command = kera();
    command.args(words);
    finish(command, b"")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the build")
}

#[test]
fn certificates_for_a_trial_serve_broker_and_client() {
    let home = home();
    let dir = home.path().join("certs");
    let made = run(&["certificate", "dev", text(&dir)]);
    assert!(made.status.success(), "{}", made.stderr);
    assert!(
        made.text().contains("kera serve --tls-listeners"),
        "{}",
        made.text()
    );
    for (name, mode) in [
        ("ca.pem", 0o644),
        ("server.pem", 0o644),
        ("server-key.pem", 0o600),
        ("client.pem", 0o644),
        ("client-key.pem", 0o600),
    ] {
        let found = fs::metadata(dir.join(name)).expect("it was made");
        assert_eq!(found.permissions().mode() & 0o777, mode, "{name}");
    }
    let at = |name: &str| text(&dir.join(name)).to_owned();
    let broker = Broker::with(&[
        "--tls-listeners",
        "native",
        "--tls-certificate",
        &at("server.pem"),
        "--tls-key",
        &at("server-key.pem"),
        "--tls-client-ca",
        &at("ca.pem"),
        "--tls-client-auth",
        "required",
    ]);
    for address in [
        broker.address().to_owned(),
        broker.address().replace("127.0.0.1", "localhost"),
    ] {
        let connects = [
            "stream",
            "list",
            "--bootstrap",
            &address,
            "--tls-ca",
            &at("ca.pem"),
            "--tls-cert",
            &at("client.pem"),
            "--tls-key",
            &at("client-key.pem"),
        ];
        let listed = run(&connects);
        assert!(listed.status.success(), "{address}: {}", listed.stderr);
    }
}

#[test]
fn no_file_is_replaced_and_names_are_checked() {
    let home = home();
    let dir = home.path().join("certs");
    let json = run(&[
        "certificate",
        "dev",
        text(&dir),
        "--name",
        "broker-1.test",
        "--days",
        "7",
        "--json",
    ]);
    assert!(json.status.success(), "{}", json.stderr);
    let told: serde_json::Value = serde_json::from_str(&json.text()).expect("JSON");
    assert_eq!(told["names"], serde_json::json!(["broker-1.test"]));
    let before = fs::read(dir.join("server-key.pem")).expect("it was made");
    fs::remove_file(dir.join("ca.pem")).expect("it was made");
    let again = run(&["certificate", "dev", text(&dir)]);
    assert!(!again.status.success());
    assert!(
        again.stderr.contains("server.pem is there already"),
        "{}",
        again.stderr
    );
    assert!(!dir.join("ca.pem").exists(), "all of it, or nothing");
    assert_eq!(
        fs::read(dir.join("server-key.pem")).expect("it stays"),
        before
    );
    let other = home.path().join("other");
    let wrong = run(&["certificate", "dev", text(&other), "--name", "bröker"]);
    assert!(!wrong.status.success());
    assert!(wrong.stderr.contains("bröker"), "{}", wrong.stderr);
    assert!(!other.exists());
}
