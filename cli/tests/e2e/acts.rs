//! What changes something over HTTP: off by default, by a page of the broker's own or a program, as rules let the user, and in the
//! audit log.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::names;
use crate::common::{Broker, home, http};
use crate::http_logins::basic;
use crate::logins::{PASSWORD, world_at};

const JSON: &str = "Content-Type: application/json\r\n";
/// Longest body.
const MOST_BYTES: usize = 16 << 10;

/// Status and body.
fn post(broker: &Broker, path: &str, headers: &str, body: &str) -> (u16, Value) {
    let answer = http::post(broker.http(), &format!("/api/v1/{path}"), headers, body);
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"));
    (status.expect("a status"), body)
}

/// That an act is done; its answer.
fn act(broker: &Broker, path: &str, body: Value) -> Value {
    let (status, answer) = post(broker, path, JSON, &body.to_string());
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

/// That an act is refused, with a status and this in the text.
fn refused(broker: &Broker, path: &str, headers: &str, body: &str, status: u16, word: &str) {
    let (found, error) = post(broker, path, headers, body);
    let text = error["message"].as_str().unwrap_or_default();
    assert!(
        found == status && text.contains(word),
        "{path} {headers:?}: {found} {error}"
    );
}

fn streams(broker: &Broker) -> usize {
    let list = broker.json(&["stream", "list"]);
    list.as_array().expect("a list").len()
}

#[test]
fn acts_are_off_until_the_setting_lets_people_change_something() {
    let mut broker = Broker::with(&["--http-listen", "127.0.0.1:0"]);
    broker.json(&["stream", "create", "orders"]);
    for (path, body) in [
        ("streams", r#"{"name":"clicks"}"#),
        ("streams/orders/alter", r#"{"settings":{"lanes":2}}"#),
        ("streams/orders/trim", r#"{"to":"everything"}"#),
        ("streams/orders/delete", "{}"),
        ("groups/billing/reset", r#"{"to":"latest"}"#),
        ("brokers/1/drain", r#"{"draining":true}"#),
    ] {
        refused(&broker, path, JSON, body, 403, "api.acts is false");
    }
    assert_eq!(streams(&broker), 1);
    assert_eq!(broker.json(&["stream", "describe", "orders"])["lanes"], 1);

    broker.stop();
    broker.set_flags(&["--http-listen", "127.0.0.1:0", "--api-acts", "true"]);
    broker.restart();
    let mut told = BTreeSet::new();
    let mut done = |path: &str, body: Value| {
        let answer = act(&broker, path, body);
        names(&answer, &mut told);
        answer
    };
    let settings = json!({"streamlets": 2, "lanes": 1, "ack": "memory", "retention_ms": 7_200_000});
    let clicks = done("streams", json!({"name": "clicks", "settings": settings}));
    assert_eq!(
        (&clicks["ack"], &clicks["partitions"]),
        (&json!("memory"), &json!(2))
    );
    let settings = json!({"lanes": 3, "ack": "written", "validate": "full"});
    done("streams/clicks/alter", json!({ "settings": settings }));
    let found = broker.json(&["stream", "describe", "clicks"]);
    for (name, value) in [
        ("streamlets", json!(2)),
        ("partitions", json!(6)),
        ("ack", json!("written")),
        ("retention_ms", json!(7_200_000)),
        ("validate", json!("full")),
    ] {
        assert_eq!(found[name], value, "{name}: {found}");
    }
    broker.feed(&["produce", "orders", "--quiet"], b"one\ntwo\nthree\n");
    broker.run(&["consume", "orders", "--group", "billing", "--max", "3"]);
    let lag = |broker: &Broker| broker.json(&["group", "describe", "billing"])["lag"].clone();
    assert_eq!(lag(&broker), 0);
    let reset = done(
        "groups/billing/reset",
        json!({"to": "ordinal", "at": "1", "streamlet": 0, "lane": 0}),
    );
    assert_eq!((&reset["lanes_total"], lag(&broker)), (&json!(1), json!(2)));
    done("streams/orders/trim", json!({"to": "everything"}));
    let read = broker.run(&["consume", "orders", "--from", "earliest"]);
    assert!(!read.contains("one"), "{read}");
    done("streams/orders/delete", json!({}));
    let left = broker.json(&["stream", "list"]);
    assert_eq!((streams(&broker), &left[0]["name"]), (1, &json!("clicks")));
    let document = include_str!("../../../docs/api.md");
    let unknown = |name: &&String| !document.contains(&format!("`{name}`"));
    let unknown: Vec<_> = told.iter().filter(unknown).collect();
    assert!(unknown.is_empty(), "docs/api.md does not have {unknown:?}");

    // What does not fit is refused as the command line refuses it.
    let bytes = |many: usize| format!("{{\"name\":\"{}\"}}", "x".repeat(many - 11));
    for (path, body, status, word) in [
        ("streams", r#"{"name":"clicks"}"#, 409, "exists"),
        ("streams", r#"{"name":"a/b"}"#, 400, "a/b"),
        (
            "streams",
            r#"{"name":"a","settings":{"color":1}}"#,
            400,
            "color",
        ),
        (
            "streams",
            r#"{"name":"a","settings":{"ack":"never"}}"#,
            400,
            "synced",
        ),
        ("streams", "{", 400, "the body"),
        ("streams", &bytes(MOST_BYTES), 400, "249"),
        ("streams", &bytes(MOST_BYTES + 1), 413, "16384 bytes"),
        ("streams/none/delete", "{}", 404, "none"),
        ("streams/clicks/delete", r#"{"sure":true}"#, 400, "sure"),
        ("streams/clicks/trim", r#"{"to":"time"}"#, 400, "number"),
        ("groups/none/reset", r#"{"to":"latest"}"#, 404, "none"),
        ("brokers/x/drain", r#"{"draining":true}"#, 400, "number"),
        ("streams/clicks/burn", "{}", 400, "docs/api.md"),
    ] {
        refused(&broker, path, JSON, body, status, word);
    }
    assert_eq!(streams(&broker), 1);
}

#[test]
fn who_acts_needs_the_right_to_and_a_page_of_this_broker() {
    let home = home();
    let file = home.path().join("audit.log");
    let path = file.to_str().expect("a path of the build");
    let flags = [
        ["--http-listen", "127.0.0.1:0"],
        ["--api-acts", "true"],
        ["--acl-enabled", "true"],
        ["--acl-super-users", "User:admin"],
        ["--audit-to", path],
    ];
    let mut world = world_at("native,http", flags.as_flattened());
    let (ann, admin) = (basic("ann", PASSWORD), basic("admin", PASSWORD));
    let create = r#"{"name":"orders","settings":{"lanes":2}}"#;
    let json = |user: &str| format!("{JSON}{user}");
    let broker = &world.broker;
    let count = || world.run("admin", &["stream", "list", "--json"], b"");
    for (headers, status, word) in [
        (JSON, 401, "password"),
        (&json(&ann), 403, "User:ann may not"),
        // Pages of other sites, of which the browser sends the password; also as a form that is sent.
        (
            &json(&format!("{admin}Origin: https://evil.example\r\n")),
            403,
            "Origin",
        ),
        (&json(&format!("{admin}Origin: null\r\n")), 403, "Origin"),
        (
            &json(&format!("{admin}Sec-Fetch-Site: same-site\r\n")),
            403,
            "another site",
        ),
        (
            &json(&format!(
                "{admin}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
            )),
            403,
            "another site",
        ),
        (
            &format!("{admin}Content-Type: text/plain\r\n"),
            415,
            "application/json",
        ),
        (&admin, 415, "application/json"),
    ] {
        refused(broker, "streams", headers, create, status, word);
    }
    assert_eq!(count().trim(), "[]");
    let own = "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n";
    let (status, made) = post(broker, "streams", &json(&format!("{admin}{own}")), create);
    assert_eq!((status, &made["partitions"]), (200, &json!(2)), "{made}");
    // Who may see a stream may not delete it.
    let rule = [
        "acl",
        "add",
        "--allow",
        "User:ann",
        "--operation",
        "describe",
        "--stream",
        "orders",
    ];
    world.run("admin", &rule, b"");
    let delete = "streams/orders/delete";
    refused(broker, delete, &json(&ann), "{}", 403, "User:ann may not");
    let (status, gone) = post(broker, delete, &json(&admin), "{}");
    assert_eq!((status, &gone["changed"]), (200, &json!(true)), "{gone}");
    world.broker.stop();

    let text = std::fs::read_to_string(&file).expect("the log is there");
    let lines = text.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("JSON");
    let of_http = |event: &str| -> Vec<String> {
        let fits = |line: &&Value| line["event"] == event && line["listener"] == "http";
        let shown = |line: &Value| {
            let keys = ["result", "user", "action", "name", "detail"];
            keys.map(|key| line[key].as_str().unwrap_or("-").to_owned())
                .join(" ")
        };
        lines.iter().filter(fits).map(shown).collect()
    };
    let expected = [
        "done User:admin create_stream orders lanes=2",
        "done User:admin delete_stream orders -",
    ];
    assert_eq!(of_http("change"), expected, "{text}");
    let denied = of_http("access");
    assert_eq!(denied.len(), 2, "{text}");
    assert!(
        denied
            .iter()
            .all(|line| line.starts_with("refused User:ann ")),
        "{text}"
    );
}
