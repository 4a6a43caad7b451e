//! Who is let in at the HTTP address where it asks for passwords, and to what.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kera_rpc::scram::ITERATIONS;
use serde_json::Value;

use crate::common::{PATIENCE, finish, home, kera, machine};
use crate::logins::{PASSWORD, World, world_at};

const RULES: [[&str; 2]; 3] = [
    ["--http-listen", "127.0.0.1:0"],
    ["--acl-enabled", "true"],
    ["--acl-super-users", "User:admin"],
];

pub fn basic(user: &str, password: &str) -> String {
    let token = STANDARD.encode(format!("{user}:{password}"));
    format!("Authorization: Basic {token}\r\n")
}

/// A connection on which this was asked for, by a name that is not the machine's own.
pub fn asked(world: &World, path: &str, headers: &str) -> TcpStream {
    let mut socket = TcpStream::connect(world.broker.http()).expect("it listens");
    let within = socket.set_read_timeout(Some(PATIENCE));
    within.expect("a socket has a timeout");
    let request = format!("GET {path} HTTP/1.1\r\nHost: kera.example\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).expect("it is taken");
    socket
}

/// Status and body.
pub fn ask(world: &World, path: &str, headers: &str) -> (u16, String) {
    let headers = format!("{headers}Connection: close\r\n");
    let mut answer = String::new();
    let mut socket = asked(world, path, &headers);
    socket.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

fn total(world: &World, path: &str, headers: &str) -> u64 {
    let (status, body) = ask(world, path, headers);
    assert_eq!(status, 200, "{path}: {body}");
    let list: Value = serde_json::from_str(&body).expect("JSON");
    list["total"].as_u64().expect("a total")
}

#[test]
fn users_see_what_rules_let_them_see_and_the_audit_log_who_tried() {
    let home = home();
    let file = home.path().join("audit.log");
    let path = file.to_str().expect("a path of the build");
    let flags = [&RULES[..], &[["--audit-to", path]]].concat();
    let mut world = world_at("native,http", flags.as_flattened());
    for stream in ["orders", "clicks"] {
        world.run("admin", &["stream", "create", stream], b"");
    }
    world.run("admin", &["produce", "orders", "--quiet"], b"one\ntwo\n");
    let (ann, admin) = (basic("ann", PASSWORD), basic("admin", PASSWORD));
    let allow = |world: &World, rest: &[&str]| {
        let begin = ["acl", "add", "--allow", "User:ann", "--operation"];
        world.run("admin", &[&begin[..], rest].concat(), b"");
    };

    // Nobody is nobody, also at the machine's own name; and no answer is another user's.
    for path in ["/", "/console.js", "/metrics", "/api/v1/streams"] {
        assert_eq!(ask(&world, path, "").0, 401, "{path}");
        assert_eq!(ask(&world, path, &basic("ann", "guessed")).0, 401, "{path}");
        assert_eq!(ask(&world, path, &basic("joe", PASSWORD)).0, 401, "{path}");
    }
    assert_eq!(ask(&world, "/readyz", "").0, 200);
    assert_eq!(ask(&world, "/", &ann).0, 200);
    allow(&world, &["describe", "--stream", "orders"]);
    world.run(
        "admin",
        &["consume", "orders", "--group", "payroll", "--max", "1"],
        b"",
    );
    let orders = "/api/v1/streams/orders";
    let (status, body) = ask(&world, orders, &admin);
    assert!(status == 200 && body.contains("payroll"), "{body}");
    for path in [orders, "/api/v1/streams", "/api/v1/groups"] {
        let (status, body) = ask(&world, path, &ann);
        assert!(status == 200 && !body.contains("payroll"), "{path}: {body}");
    }
    for _ in 0..2 {
        assert_eq!(total(&world, "/api/v1/streams", &admin), 2);
        assert_eq!(total(&world, "/api/v1/streams", &ann), 1);
    }
    // Rules count at once, for answers that are kept as well.
    let (cluster, records) = ("/api/v1/overview", "/api/v1/streams/orders/records");
    for (path, right) in [
        (cluster, &["describe", "--cluster"][..]),
        (records, &["read", "--stream", "orders"]),
    ] {
        let (status, body) = ask(&world, path, &ann);
        assert!(status == 403 && body.contains("User:ann may not"), "{body}");
        allow(&world, right);
        assert_eq!(ask(&world, path, &ann).0, 200, "{path}");
        assert_eq!(ask(&world, path, &admin).0, 200, "{path}");
    }
    assert_eq!(ask(&world, "/metrics", &ann).0, 200);
    let rule = ["acl", "remove", "--principal", "User:ann", "--yes"];
    world.run("admin", &rule, b"");
    for path in ["/metrics", cluster, records] {
        assert_eq!(ask(&world, path, &ann).0, 403, "{path}");
    }
    // A page of another site does nothing in the name of who looks at it, but may have a link.
    let other = "Sec-Fetch-Site: cross-site\r\n";
    let link = format!("{other}Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n");
    let frame = format!("{other}Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n");
    assert_eq!(ask(&world, "/metrics", &format!("{admin}{other}")).0, 403);
    for (headers, status) in [(other, 403), (&link, 200), (&frame, 403)] {
        let headers = format!("{admin}{headers}");
        assert_eq!(ask(&world, cluster, &headers).0, status, "{headers}");
    }
    world.broker.stop();

    let text = std::fs::read_to_string(&file).expect("the log is there");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let of_http: Vec<Value> = lines
        .filter(|line: &Value| line["listener"] == "http")
        .collect();
    let count = |event: &str, result: &str, user: &str| {
        let fits = |line: &&Value| {
            line["event"] == event && line["result"] == result && line["user"] == user
        };
        of_http.iter().filter(fits).count()
    };
    // What is refused has a line each.
    assert_eq!(count("login", "refused", "User:ann"), 4, "{text}");
    assert_eq!(count("login", "refused", "User:joe"), 4, "{text}");
    assert!(count("login", "done", "User:ann") > 0, "{text}");
    assert_eq!(count("access", "refused", "User:ann"), 5, "{text}");
    assert!(
        !text.contains(PASSWORD) && !text.contains("guessed"),
        "{text}"
    );
}

/// kcat reads these streams to their ends as a member of a group, and commits. False if it is not installed.
fn kcat_reads(world: &World, group: &str, streams: &[&str]) -> bool {
    let mut command = Command::new("kcat");
    // Cargo's has another librdkafka.
    command.env_remove("LD_LIBRARY_PATH");
    if command.arg("-V").output().is_err() {
        machine::skip("groups of Kafka's clients", "kcat is not installed");
        return false;
    }
    let mut command = Command::new("kcat");
    command.env_remove("LD_LIBRARY_PATH");
    let begin = ["-b", world.broker.kafka(), "-q", "-e"];
    command
        .args(begin)
        .args(["-X", "auto.offset.reset=earliest"]);
    command.arg("-G").arg(group).args(streams);
    let finished = finish(command, b"");
    assert!(finished.status.success(), "{}", finished.stderr);
    true
}

#[test]
fn who_may_see_a_group_does_not_learn_from_it_which_streams_there_are() {
    let flags = [&RULES[..], &[["--kafka-listen", "127.0.0.1:0"]]].concat();
    let world = world_at("native,http", flags.as_flattened());
    let admin = |words: &[&str], input: &[u8]| world.run("admin", words, input);
    for stream in ["orders", "secret"] {
        let one = ["--streamlets", "1", "--lane-by", "key"];
        admin(&[&["stream", "create", stream][..], &one].concat(), b"");
        admin(&["produce", stream, "--quiet"], b"one\ntwo\n");
        let consumer = ["acl", "add", "--consumer", "--group", "kafkas"];
        let of = ["--allow", "User:ANONYMOUS", "--stream", stream];
        admin(&[&consumer[..], &of].concat(), b"");
    }
    let consume = |stream: &str, group: &str| {
        let words = ["consume", stream, "--group", group, "--max", "1"];
        admin(&words, b"");
    };
    consume("secret", "payroll");
    consume("orders", "payroll-seen");
    // More of them than a stream's row tells one by one.
    for number in 0..9 {
        consume("orders", &format!("other-{number}"));
    }
    let mut groups = vec!["payroll"];
    if kcat_reads(&world, "kafkas", &["orders", "secret"]) {
        groups.push("kafkas");
    }
    let allow = ["acl", "add", "--allow", "User:ann", "--operation"];
    for right in [
        ["describe", "--stream", "orders"],
        ["describe", "--group", "payroll"],
        ["describe", "--group", "payroll-seen"],
        ["describe", "--group", "kafkas"],
    ] {
        admin(&[&allow[..], &right].concat(), b"");
    }
    let over_http = |path: &str, user: &str| {
        let (status, body) = ask(&world, path, &basic(user, PASSWORD));
        assert_eq!(status, 200, "{path}: {body}");
        body
    };
    let natively = |user: &str, words: &[&str]| {
        let text = world.run(user, words, b"");
        let json = world.run(user, &[words, &["--json"]].concat(), b"");
        format!("{text}{json}")
    };
    let parse = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    for group in groups {
        let path = format!("/api/v1/groups/{group}");
        for (user, sees) in [("admin", true), ("ann", false)] {
            let told = over_http(&path, user);
            assert_eq!(told.contains("secret"), sees, "{user}: {told}");
            let told = over_http("/api/v1/groups", user);
            assert_eq!(told.contains("secret"), sees, "{user}: {told}");
            let told = natively(user, &["group", "describe", group]);
            assert_eq!(told.contains("secret"), sees, "{user}: {told}");
            assert!(told.contains(group));
            let told = natively(user, &["group", "list"]);
            assert_eq!(told.contains("secret"), sees, "{user}: {told}");
            assert!(told.contains(group));
        }
        let told = parse(over_http(&path, "ann"));
        let lanes = told["lanes"].as_array().map(Vec::len);
        assert_eq!((&told["lag"], lanes), (&0.into(), Some(0)), "{told}");
        let told = parse(over_http(&path, "admin"));
        assert!(!told["streams"].as_array().is_none_or(Vec::is_empty));
    }
    let seen = natively("ann", &["group", "describe", "payroll-seen"]);
    assert!(seen.contains("orders"), "{seen}");

    // Nor how many groups there are that read a stream, nor how far those are behind that ann may not see.
    let row = |user| parse(over_http("/api/v1/streams?filter=orders", user))["items"][0].clone();
    let (all, some) = (row("admin"), row("ann"));
    assert!(all["groups_total"].as_u64() >= Some(10), "{all}");
    assert_eq!(all["groups"].as_array().map(Vec::len), Some(8));
    let groups = some["groups"].as_array().expect("a list");
    assert!(
        groups.iter().any(|of| of["group"] == "payroll-seen"),
        "{some}"
    );
    assert_eq!(some["groups_total"], groups.len(), "{some}");
    assert!(groups.len() <= 2, "{some}");
    assert_eq!(some["lag"], groups[0]["lag"], "{some}");
}

#[test]
fn a_password_that_was_changed_counts_no_more_and_ends_the_news() {
    let world = world_at("native,http", &["--http-listen", "127.0.0.1:0"]);
    let (ann, admin) = (basic("ann", PASSWORD), basic("admin", PASSWORD));
    let live = "/api/v1/live?path=/api/v1/overview";
    let begun = |headers: &str| {
        let mut socket = asked(&world, live, headers);
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        while !text.contains("event: answer0") {
            let read = socket.read(&mut buffer).expect("news");
            assert_ne!(read, 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        socket
    };
    let (mut of_ann, mut of_admin) = (begun(&ann), begun(&admin));
    assert_eq!(ask(&world, "/metrics", &ann).0, 200);
    // Twice as many rounds as another password had, and the same user.
    let rounds = (ITERATIONS.start() * 2).to_string();
    let change = ["user", "create", "ann", "--iterations", &rounds];
    world.run("admin", &change, b"another, longer one");
    assert_eq!(ask(&world, "/metrics", &ann).0, 401);
    assert_eq!(
        ask(&world, "/metrics", &basic("ann", "another, longer one")).0,
        200
    );
    let mut rest = String::new();
    of_ann.read_to_string(&mut rest).expect("its end");
    // Others are told on.
    let mut buffer = [0; 4096];
    assert_ne!(of_admin.read(&mut buffer).expect("news"), 0);
    world.run("admin", &["user", "delete", "ann", "--yes"], b"");
    assert_eq!(ask(&world, "/metrics", &ann).0, 401);
}

#[test]
fn who_reads_a_stream_sees_it_and_what_is_refused_is_refused_once() {
    let home = home();
    let file = home.path().join("audit.log");
    let path = file.to_str().expect("a path of the build");
    let flags = [&RULES[..], &[["--audit-to", path]]].concat();
    let mut world = world_at("native,http", flags.as_flattened());
    world.run("admin", &["stream", "create", "orders"], b"");
    let allow = |words: &[&str]| {
        let begin = ["acl", "add", "--allow", "User:ann"];
        world.run("admin", &[&begin[..], words].concat(), b"");
    };
    allow(&["--consumer", "--stream", "orders", "--group", "readers"]);
    let ann = basic("ann", PASSWORD);
    let stream = |settings: bool| {
        let (status, body) = ask(&world, "/api/v1/streams/orders", &ann);
        assert_eq!(status, 200, "{body}");
        let told: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(told["settings"].is_object(), settings, "{told}");
        assert!(told["lanes_total"].as_u64() > Some(0), "{told}");
    };
    stream(false);
    allow(&["--operation", "describe-configs", "--stream", "orders"]);
    stream(true);
    // Something comes each second, and not the refusal again.
    let mut news = asked(&world, "/api/v1/live?path=/api/v1/overview", &ann);
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    let mut until = |wanted: &dyn Fn(&str) -> bool| {
        while !wanted(&text) {
            let read = news.read(&mut buffer).expect("news");
            assert_ne!(read, 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        text.clone()
    };
    let told = until(&|text| text.matches("event: same").count() >= 3);
    assert_eq!(told.matches("event: refusal0").count(), 1, "{told}");
    // Until there are other rules.
    allow(&["--operation", "describe", "--cluster"]);
    until(&|text| text.contains("event: answer0"));
    // One user takes a quarter of the places, and leaves the others to others.
    let mut places = vec![news];
    let live = "/api/v1/live?path=/api/v1/streams";
    for number in 1..=8 {
        let mut socket = asked(&world, live, &ann);
        let mut text = String::new();
        while !text.contains("event: ") && !text.contains("api.max_event_streams") {
            let read = socket.read(&mut buffer).expect("news");
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        assert_eq!(
            text.contains("user ann are told news already"),
            number == 8,
            "{text}"
        );
        places.push(socket);
    }
    let admin = basic("admin", PASSWORD);
    let mut socket = asked(&world, live, &admin);
    let read = socket.read(&mut buffer).expect("news");
    let text = String::from_utf8_lossy(&buffer[..read]);
    assert!(text.contains(" 200 OK"), "{text}");
    drop((places, socket));
    world.broker.stop();
    let text = std::fs::read_to_string(&file).expect("the log is there");
    let refused = text.lines().filter(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["event"] == "access" && line["result"] == "refused" && line["listener"] == "http"
    });
    assert_eq!(refused.count(), 1, "{text}");
}

#[test]
fn top_asks_as_a_user() {
    let world = world_at("native,http", &["--http-listen", "127.0.0.1:0"]);
    let place = ["top", "--json", "--http", world.broker.http()];
    let told = world.run("ann", &place, b"");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["brokers"]["items"][0]["state"], "NORMAL");
    let wrong = world.attempt("ann", "wrong", &place, b"");
    assert!(!wrong.status.success());
    assert!(
        wrong.stderr.contains("password is wrong"),
        "{}",
        wrong.stderr
    );
    let mut nobody = kera();
    nobody.args(place);
    let nobody = finish(nobody, b"");
    assert!(
        nobody.stderr.contains("--user-password-file"),
        "{}",
        nobody.stderr
    );
    // No password goes to another machine where others could read it.
    let there = ["top", "--json", "--http", "192.0.2.1:7680"];
    let open = world.attempt("ann", "right", &there, b"");
    assert_eq!(open.status.code(), Some(2), "{}", open.stderr);
    assert!(open.stderr.contains("use TLS"), "{}", open.stderr);
}
