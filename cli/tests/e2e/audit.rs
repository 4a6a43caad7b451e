//! The audit log of a broker whose native clients log in.

use serde_json::Value;

use crate::common::home;
use crate::logins::world;

#[test]
fn the_audit_log_says_who_did_what_before_and_after_a_restart() {
    let home = home();
    let file = home.path().join("audit.log");
    let path = file.to_str().expect("a path of the build");
    let flags = [
        ["--audit-to", path],
        ["--acl-enabled", "true"],
        ["--acl-super-users", "User:admin"],
    ];
    let mut world = world(flags.as_flattened());
    let create = ["stream", "create", "orders", "--streamlets", "1"];
    world.run("admin", &create, b"");
    let quota = ["quota", "set", "--principal", "User:ann"];
    world.run(
        "admin",
        &[&quota[..], &["--producer-byte-rate", "1MiB"]].concat(),
        b"",
    );
    let rule = [
        "--allow",
        "User:ann",
        "--operation",
        "read",
        "--stream",
        "orders",
    ];
    world.run("admin", &[&["acl", "add"][..], &rule].concat(), b"");
    let delete = ["stream", "delete", "orders", "--yes"];
    let denied = world.attempt("ann", "right", &delete, b"");
    assert!(!denied.status.success(), "{}", denied.text());
    let wrong = world.attempt("admin", "wrong", &delete, b"");
    assert!(!wrong.status.success(), "{}", wrong.text());
    world.broker.stop();
    world.broker.restart();
    world.run("admin", &delete, b"");
    world.broker.stop();

    let text = std::fs::read_to_string(&file).expect("the log is there");
    let lines = text.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("JSON");
    let of = |event: &str, result: &str| -> Vec<String> {
        let fits = |line: &&Value| line["event"] == event && line["result"] == result;
        let shown = |line: &Value| {
            let keys = ["user", "listener", "action", "name"];
            let values = keys.map(|key| line[key].as_str().unwrap_or("-").to_owned());
            values.join(" ")
        };
        lines.iter().filter(fits).map(shown).collect()
    };
    let changes = of("change", "done");
    let expected = [
        "User:admin native create_stream orders",
        "User:admin native alter_quota user ann",
        "User:admin native add_rule allow User:ann",
        "User:admin native delete_stream orders",
    ];
    assert_eq!(changes.len(), expected.len(), "{text}");
    for (told, expected) in changes.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told} is not {expected}");
    }
    for (event, result, told) in [
        ("login", "done", "User:ann native - -"),
        ("login", "refused", "User:admin native - -"),
    ] {
        assert!(of(event, result).iter().any(|line| line == told), "{text}");
    }
    let denied = of("access", "refused");
    let is_anns = |line: &String| line.starts_with("User:ann native ") && line.ends_with(" orders");
    assert!(!denied.is_empty() && denied.iter().all(is_anns), "{text}");
}
