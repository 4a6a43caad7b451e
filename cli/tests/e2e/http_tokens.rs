//! Tokens at the HTTP address.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use kera_testkit::issuer::Issuer;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Broker, Finished, PATIENCE, finish, home, kera};
use crate::token_logins::token_flags;

struct World {
    broker: Broker,
    issuer: Issuer,
    home: TempDir,
}

impl World {
    /// A broker that lets in tokens over HTTP, with an audit log; ann may do everything.
    fn start() -> Self {
        let (issuer, home) = (Issuer::start("ann", 600), home());
        let (name, keys) = (issuer.name(), issuer.keys());
        let audit = home.path().join("audit.log").display().to_string();
        let flags = token_flags("http", &name, &keys);
        let flags = [flags.as_flattened(), &["--audit-to", &audit]].concat();
        let world = Self {
            broker: Broker::with(&flags),
            issuer,
            home,
        };
        // A slow machine may need more time for the keys than a login waits.
        while world.ask("/api/v1/streams", &world.header(600)).0 != 200 {}
        world
    }

    fn token(&self, user: &str, life: u64) -> String {
        self.issuer.sign(&self.issuer.claims(user, life))
    }

    /// Of ann.
    fn header(&self, life: u64) -> String {
        format!("Authorization: Bearer {}\r\n", self.token("ann", life))
    }

    fn asked(&self, path: &str, headers: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.broker.http()).expect("it listens");
        let within = socket.set_read_timeout(Some(PATIENCE));
        within.expect("a socket has a timeout");
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: kera.example\r\n{headers}Connection: close\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).expect("it is taken");
        socket
    }

    /// Status, and head and body.
    fn ask(&self, path: &str, headers: &str) -> (u16, String) {
        let mut answer = String::new();
        let mut socket = self.asked(path, headers);
        socket.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), answer)
    }

    fn top(&self, file: &str) -> Finished {
        let mut top = kera();
        top.args(["top", "--json", "--http", self.broker.http()]);
        top.args(["--token-file", file]);
        finish(top, b"")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}

#[test]
fn a_token_is_as_good_as_a_password_over_http() {
    let mut world = World::start();
    let right = world.header(600);
    for path in ["/", "/metrics", "/api/v1/overview", "/api/v1/streams"] {
        assert_eq!(world.ask(path, &right).0, 200, "{path}");
        let (status, told) = world.ask(path, "");
        assert_eq!(status, 401, "{path}");
        let told = told.to_lowercase();
        for scheme in ["basic", "bearer"] {
            let named = format!("www-authenticate: {scheme} realm=\"kera\"");
            assert!(told.contains(&named), "{told}");
        }
        // Who may see nothing is told so, and not asked again who it is.
        let bob = format!("Authorization: Bearer {}\r\n", world.token("bob", 600));
        let wanted = if path == "/" || path == "/api/v1/streams" {
            200
        } else {
            403
        };
        assert_eq!(world.ask(path, &bob).0, wanted, "{path}");
    }
    let mut claims = world.issuer.claims("ann", 600);
    claims["aud"] = "elsewhere".into();
    let elsewhere = world.issuer.sign(&claims);
    for (wrong, why) in [
        (elsewhere.as_str(), "another audience"),
        ("a.b.c", "no signed JSON web token"),
    ] {
        let header = format!("Authorization: Bearer {wrong}\r\n");
        let (status, told) = world.ask("/metrics", &header);
        assert!(status == 401 && told.contains(why), "{told}");
    }
    // A right one beside a wrong one is none.
    let two = format!("{right}Authorization: Bearer a.b.c\r\n");
    assert_eq!(world.ask("/metrics", &two).0, 401);
    world.broker.stop();
    let text = std::fs::read_to_string(world.path("audit.log")).expect("the log is there");
    let count = |result: &str, user: &str| {
        let fits = |line: &&str| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            line["event"] == "login"
                && line["result"] == result
                && line["user"] == user
                && line["listener"] == "http"
                && line["mechanism"] == "BEARER"
        };
        text.lines().filter(fits).count()
    };
    // Of the token that was asked with again and again there is one line, and one of the first that was taken.
    assert_eq!(count("done", "User:ann"), 2, "{text}");
    assert_eq!(count("refused", "User:ann"), 1, "{text}");
    assert!(!text.contains(&elsewhere), "{text}");
}

#[test]
fn news_end_with_the_token() {
    let world = World::start();
    let live = "/api/v1/live?path=/api/v1/streams";
    // It is read to its end, which comes with that of the token and not before news have come.
    let (status, told) = world.ask(live, &world.header(5));
    assert_eq!(status, 200, "{told}");
    assert!(told.contains("event: answer0"), "{told}");
}

#[test]
fn top_asks_with_the_token_that_a_file_has_then() {
    let world = World::start();
    let (file, pipe) = (world.path("token"), world.path("pipe"));
    std::fs::write(&file, world.token("ann", 600)).expect("a file");
    let file = file.display().to_string();
    let told: Value = serde_json::from_slice(&world.top(&file).stdout).expect("JSON");
    assert_eq!(told["brokers"]["items"][0]["state"], "NORMAL");
    let claims = world.issuer.claims("ann", 0);
    std::fs::write(&file, world.issuer.sign(&claims)).expect("a file");
    let refused = world.top(&file);
    assert!(refused.stderr.contains("has expired"), "{}", refused.stderr);
    // A pipe that nobody writes into holds it up no more than what is not there.
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).expect("a pipe");
    let pipe = pipe.display().to_string();
    let refused = world.top(&pipe);
    let told = refused.stderr.contains(&pipe) && refused.stderr.contains("no regular file");
    assert!(!refused.status.success() && told, "{}", refused.stderr);
    // No token goes to another machine where others could read it.
    let mut open = kera();
    open.args([
        "top",
        "--json",
        "--http",
        "192.0.2.1:7680",
        "--token-file",
        &file,
    ]);
    let open = finish(open, b"");
    assert_eq!(open.status.code(), Some(2), "{}", open.stderr);
    assert!(open.stderr.contains("use TLS"), "{}", open.stderr);
}
