//! Users with passwords: made by the command line, and asked for by the listeners of Kafka's clients.

use std::io::Write;
use std::process::Command;

use crate::certificates::{Authority, Files};
use crate::common::http;
use crate::common::ports::Reserved;
use crate::common::{Broker, Finished, finish, machine};

/// kcat takes a comma for the end of a setting.
const PASSWORD: &str = "long secret = 1";
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

fn create(broker: &Broker, user: &str, password: &str) -> String {
    broker.feed(&["user", "create", user], password.as_bytes())
}

/// kcat with a user's name and password.
pub fn kcat(address: &str, settings: &[(&str, &str)], words: &[&str], input: &[u8]) -> Finished {
    let mut command = Command::new("kcat");
    // Cargo's has a librdkafka without TLS.
    command.env_remove("LD_LIBRARY_PATH");
    command.args(["-b", address]).args(words);
    let limits = [
        ("message.timeout.ms", "10000"),
        ("log_level", "3"),
        ("socket.timeout.ms", "5000"),
    ];
    for (name, value) in settings.iter().chain(&limits) {
        command.args(["-X", &format!("{name}={value}")]);
    }
    finish(command, input)
}

#[test]
fn users_are_made_listed_and_deleted() {
    let mut broker = Broker::start();
    assert_eq!(create(&broker, "ann", "sec ret\n"), "created: user ann\n");
    create(&broker, "bob", "other");
    create(&broker, "ann", "changed");
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "from a file").expect("it is written");
    let path = file.path().to_str().expect("a path").to_owned();
    broker.run(&["user", "create", "cat", "--password-file", &path]);
    broker.stop();
    broker.restart();
    let listed = broker.json(&["user", "list"]);
    let names: Vec<_> = listed
        .as_array()
        .expect("a list")
        .iter()
        .map(|user| &user["name"])
        .collect();
    assert_eq!(names, ["ann", "bob", "cat"]);
    assert_eq!(listed[0]["credentials"].as_array().map(Vec::len), Some(2));
    let refused = broker.refused(&["user", "delete", "nobody", "--yes"]);
    assert!(refused.contains("no user nobody"), "{refused}");
    // Rules and roles are about whoever has the name.
    broker.run(&["role", "create", "readers", "User:bob"]);
    let rule = [
        "acl",
        "add",
        "--allow",
        "User:bob",
        "--operation",
        "write",
        "--transactional-id-prefix",
        "job-",
    ];
    broker.run(&rule);
    let rules = broker.json(&["acl", "list", "--transactional-id", "job-1"]);
    assert_eq!(rules[0]["pattern"], "prefixed", "{rules}");
    let listed = broker.attempt(&["acl", "list", "--principal", "User:bob"], b"");
    assert!(listed.stderr.contains("Role:readers"), "{}", listed.stderr);
    let deleted = broker.attempt(&["user", "delete", "bob", "--yes"], b"");
    let told = &deleted.stderr;
    assert!(deleted.status.success(), "{told}");
    assert!(told.contains("still named by 1 rule"), "{told}");
    assert!(told.contains("Role:readers"), "{told}");
    let table = broker.run(&["user", "list"]);
    assert!(
        !table.contains("bob") && table.contains("SCRAM-SHA-256, SCRAM-SHA-512"),
        "{table}"
    );
    let finished = broker.attempt(&["user", "create", "dan"], b"\n");
    assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
}

#[test]
fn librdkafka_proves_by_each_mechanism_over_tls_who_it_is() {
    let version = Command::new("kcat").arg("-V").output();
    if !version.is_ok_and(|output| output.status.success()) {
        machine::skip("kcat with passwords", "kcat is not installed");
        return;
    }
    let authority = Authority::new("servers");
    let files = Files::new(&authority.server(&NAMES), None);
    let ca = files.write("ca.pem", &authority.pem);
    let ca = ca.to_str().expect("a path").to_owned();
    let (kafka, metrics) = (Reserved::new(), Reserved::new());
    let flags = [
        ["--kafka-listen", kafka.address()],
        ["--http-listen", metrics.address()],
        ["--auth-listeners", "kafka"],
        ["--auth-mechanisms", "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN"],
    ];
    let broker = files.broker("kafka", flags.as_flattened());
    create(&broker, "ann", PASSWORD);
    broker.run(&[
        "stream",
        "create",
        "orders",
        "--streamlets",
        "1",
        "--lane-by",
        "key",
    ]);
    let tls = [
        ("security.protocol", "sasl_ssl"),
        ("ssl.ca.location", ca.as_str()),
    ];
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let with = |password| {
            let mut settings = tls.to_vec();
            settings.extend([
                ("sasl.mechanism", mechanism),
                ("sasl.username", "ann"),
                ("sasl.password", password),
            ]);
            settings
        };
        let value = format!("by {mechanism}\n");
        let produce = ["-P", "-t", "orders"];
        let right = with(PASSWORD);
        let sent = kcat(kafka.address(), &right, &produce, value.as_bytes());
        assert!(sent.status.success(), "{mechanism}: {}", sent.stderr);
        let mut wrong = with("wrong");
        wrong.push(("message.timeout.ms", "1500"));
        let sent = kcat(kafka.address(), &wrong, &["-L", "-m", "2"], b"");
        assert!(!sent.status.success(), "{mechanism} with a wrong password");
        let text = http::get(metrics.address(), "/metrics");
        for result in ["success", "failure"] {
            let mechanism = mechanism.to_lowercase();
            let series = format!(
                "kera_authentications_total{{mechanism=\"{mechanism}\",result=\"{result}\"}} "
            );
            let line = text.lines().find(|line| line.starts_with(&series));
            assert!(
                line.is_some_and(|line| !line.ends_with(" 0")),
                "{series}: {line:?}"
            );
        }
    }
    let plain = [
        ("security.protocol", "ssl"),
        ("ssl.ca.location", ca.as_str()),
    ];
    let sent = kcat(kafka.address(), &plain, &["-L", "-m", "2"], b"");
    assert!(!sent.status.success(), "without a proof");
    crate::tells(&broker, "the client has not proved who it is");
    let read = broker.run(&["consume", "orders"]);
    assert_eq!(read.lines().count(), 3, "{read}");
}

#[test]
fn a_broker_that_would_let_passwords_be_read_does_not_start() {
    let home = crate::common::home();
    let path = home.path().join("kera.toml");
    let text = "[kafka]\nlisten = [\"0.0.0.0:9092\"]\n[auth]\nlisteners = [\"kafka\"]\nmechanisms = [\"PLAIN\"]\n";
    std::fs::write(&path, text).expect("a file can be written");
    let mut command = crate::common::kera();
    command.args(["config", "check"]).arg(&path);
    let finished = finish(command, b"");
    assert!(!finished.status.success());
    let told = format!("{}{}", finished.text(), finished.stderr);
    assert!(
        told.contains("auth.mechanisms") && told.contains("tls.listeners"),
        "{told}"
    );
}
