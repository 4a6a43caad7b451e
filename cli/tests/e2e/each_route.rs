//! What each path over HTTP needs: nobody gets anything but probes, a user without rights nothing of others, and with the
//! rights that it needs it is let through.

use std::io::{Read, Write};
use std::net::TcpStream;

use kera_broker::http::{Method, Route, routes};
use serde_json::Value;

use crate::common::PATIENCE;
use crate::http_logins::{ask, asked, basic};
use crate::logins::{PASSWORD, World, world_at};

/// What a path needs.
enum Needs {
    /// Nothing: load balancers have no password.
    Nothing,
    /// A user; there is nothing of anybody in it.
    User,
    /// A user; what may not be seen is left out.
    LeavesOut,
    /// A user with each of these rights, as `kera acl add` takes them.
    Rights(&'static [&'static [&'static str]]),
    /// As the path that is watched.
    AsWatched,
}

const CLUSTER: &[&str] = &["describe", "--cluster"];
const ALTER_CLUSTER: &[&str] = &["alter", "--cluster"];
const STREAM: &[&str] = &["describe", "--stream", "secret"];

/// Every path, with the body of a POST.
#[rustfmt::skip]
const NEEDS: &[(Method, &str, Needs, &str)] = &[
    (Method::Get, "/metrics", Needs::Rights(&[CLUSTER]), ""),
    (Method::Get, "/livez", Needs::Nothing, ""),
    (Method::Get, "/healthz", Needs::Nothing, ""),
    (Method::Get, "/readyz", Needs::Nothing, ""),
    (Method::Get, "/", Needs::User, ""),
    (Method::Get, "/console.js", Needs::User, ""),
    (Method::Get, "/console.css", Needs::User, ""),
    (Method::Get, "/licenses.txt", Needs::User, ""),
    (Method::Get, "/api/v1/overview", Needs::Rights(&[CLUSTER]), ""),
    (Method::Get, "/api/v1/streams", Needs::LeavesOut, ""),
    (Method::Get, "/api/v1/streams/NAME", Needs::Rights(&[STREAM]), ""),
    (Method::Get, "/api/v1/streams/NAME/records", Needs::Rights(&[&["read", "--stream", "secret"]]), ""),
    (Method::Get, "/api/v1/groups", Needs::LeavesOut, ""),
    (Method::Get, "/api/v1/groups/NAME", Needs::Rights(&[&["describe", "--group", "secret"]]), ""),
    (Method::Get, "/api/v1/brokers", Needs::Rights(&[CLUSTER]), ""),
    (Method::Get, "/api/v1/brokers/NUMBER", Needs::Rights(&[CLUSTER]), ""),
    (Method::Get, "/api/v1/settings", Needs::Rights(&[CLUSTER]), ""),
    (Method::Get, "/api/v1/live", Needs::AsWatched, ""),
    (Method::Post, "/api/v1/streams", Needs::Rights(&[&["create", "--stream", "secret"]]), r#"{"name":"secret"}"#),
    (Method::Post, "/api/v1/streams/NAME/alter", Needs::Rights(&[&["alter", "--stream", "secret"], &["alter-configs", "--stream", "secret"]]), r#"{"settings":{"lanes":2,"retention_ms":7200000}}"#),
    (Method::Post, "/api/v1/streams/NAME/trim", Needs::Rights(&[&["delete", "--stream", "secret"]]), r#"{"to":"everything"}"#),
    (Method::Post, "/api/v1/groups/NAME/reset", Needs::Rights(&[&["read", "--group", "secret"], &["read", "--stream", "secret"]]), r#"{"to":"earliest"}"#),
    (Method::Post, "/api/v1/groups/NAME/reset", Needs::Rights(&[&["read", "--group", "secret"], &["read", "--stream", "secret"]]), r#"{"to":"earliest","stream":"secret"}"#),
    (Method::Post, "/api/v1/brokers/NUMBER/drain", Needs::Rights(&[ALTER_CLUSTER]), r#"{"draining":true}"#),
    // Last: the others are about the stream.
    (Method::Post, "/api/v1/streams/NAME/delete", Needs::Rights(&[&["delete", "--stream", "secret"]]), "{}"),
];

/// Status and body of a request with these headers.
fn status(
    world: &World,
    (method, path): (Method, &str),
    headers: &str,
    body: &str,
) -> (u16, String) {
    let path = path.replace("NAME", "secret").replace("NUMBER", "1");
    if method == Method::Get {
        return ask(world, &path, headers);
    }
    let mut socket = TcpStream::connect(world.broker.http()).expect("it listens");
    let within = socket.set_read_timeout(Some(PATIENCE));
    within.expect("a socket has a timeout");
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: kera.example\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).expect("it is taken");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// A broker that shows and does all it can, with a stream and a group that are called `secret`.
fn world() -> World {
    let flags = [
        ["--http-listen", "127.0.0.1:0"],
        ["--api-acts", "true"],
        ["--acl-enabled", "true"],
        ["--acl-super-users", "User:admin"],
    ];
    let world = world_at("native,http", flags.as_flattened());
    world.run("admin", &["stream", "create", "secret"], b"");
    world.run("admin", &["produce", "secret", "--quiet"], b"one\ntwo\n");
    let consume = ["consume", "secret", "--group", "secret", "--max", "1"];
    world.run("admin", &consume, b"");
    world
}

/// What somebody who watches a path is told first.
fn first_news(world: &World, watched: &str, headers: &str) -> String {
    let path = format!("/api/v1/live?path={watched}");
    let mut socket = asked(world, &path, headers);
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains("event: ") {
        let read = socket.read(&mut buffer).expect("news");
        assert_ne!(read, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    text
}

#[test]
fn every_path_has_an_entry() {
    let mut known: Vec<_> = NEEDS
        .iter()
        .map(|(method, path, ..)| Route {
            method: *method,
            path: (*path).to_owned(),
        })
        .collect();
    let mut served = routes();
    known.sort();
    served.sort();
    // Of some there are several requests.
    known.dedup();
    assert_eq!(known, served, "say in NEEDS what a path needs");
}

#[test]
fn each_path_is_refused_without_the_rights_that_it_needs() {
    let world = world();
    let (ann, admin) = (basic("ann", PASSWORD), basic("admin", PASSWORD));
    for (method, path, needs, body) in NEEDS {
        let route = (*method, *path);
        let of = |headers: &str| status(&world, route, headers, body);
        let nobody = of("").0;
        let (found, told) = match needs {
            Needs::AsWatched => (200, String::new()),
            _ => of(&ann),
        };
        match needs {
            Needs::Nothing => assert_eq!((nobody, found), (200, 200), "{path}"),
            Needs::User => assert_eq!((nobody, found), (401, 200), "{path}"),
            Needs::LeavesOut => {
                assert_eq!((nobody, found), (401, 200), "{path}");
                let told: Value = serde_json::from_str(&told).expect("JSON");
                assert_eq!(told["total"], 0, "{path}: {told}");
                let (_, all) = of(&admin);
                let all: Value = serde_json::from_str(&all).expect("JSON");
                assert_eq!(all["total"], 1, "{path}: {all}");
            }
            Needs::Rights(_) => {
                assert_eq!((nobody, found), (401, 403), "{method:?} {path}: {told}");
                // Who asks for metrics is told so too.
                assert!(told.contains("User:ann may not"), "{path}: {told}");
            }
            Needs::AsWatched => {
                assert_eq!(status(&world, route, "", "").0, 401, "{path}");
                for (watched, is_told) in
                    [("overview", false), ("settings", false), ("streams", true)]
                {
                    let watched = format!("/api/v1/{watched}");
                    let news = first_news(&world, &watched, &ann);
                    assert_eq!(news.contains("event: answer0"), is_told, "{news}");
                    assert!(!news.contains("secret"), "{news}");
                    let news = first_news(&world, &watched, &admin);
                    assert!(news.contains("event: answer0"), "{news}");
                }
            }
        }
    }
    // Nothing has come of what was refused.
    let described = world.run("admin", &["stream", "describe", "secret", "--json"], b"");
    let described: Value = serde_json::from_str(&described).expect("JSON");
    assert_eq!(described["lanes"], 1, "{described}");
    assert_eq!(described["lane_descriptions"][0]["records"], 2);
}

#[test]
fn each_path_is_let_through_with_the_rights_that_it_needs_and_without_one_of_them_it_is_not() {
    let world = world();
    let ann = basic("ann", PASSWORD);
    let allow = |rights: &[&[&str]]| {
        for right in rights {
            let begin = ["acl", "add", "--allow", "User:ann", "--operation"];
            world.run("admin", &[&begin[..], right].concat(), b"");
        }
    };
    let forget = || {
        let all = ["acl", "remove", "--principal", "User:ann", "--yes"];
        world.run("admin", &all, b"");
    };
    for (method, path, needs, body) in NEEDS {
        let Needs::Rights(rights) = needs else {
            continue;
        };
        let of_ann = || status(&world, (*method, path), &ann, body);
        if rights.len() > 1 {
            for left_out in 0..rights.len() {
                let some: Vec<_> = (0..rights.len()).filter(|at| *at != left_out).collect();
                let some: Vec<_> = some.into_iter().map(|at| rights[at]).collect();
                allow(&some);
                let (found, told) = of_ann();
                assert_eq!(found, 403, "{path} without {:?}: {told}", rights[left_out]);
                forget();
            }
        }
        allow(rights);
        let (found, told) = of_ann();
        // What is asked may still not be possible, as a stream that is there already.
        assert!(![401, 403, 404].contains(&found), "{path}: {found} {told}");
        forget();
    }
    let left = world.run("admin", &["stream", "list", "--json"], b"");
    assert_eq!(left.trim(), "[]", "the last one deleted it");
}
