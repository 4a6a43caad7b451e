//! Rules of access for users who prove who they are by certificates.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::certificates::{Authority, Files, Identity};
use crate::cluster::Trio;
use crate::common::http;
use crate::common::ports::Reserved;
use crate::common::{Broker, Finished, finish, kera};
use crate::reload::until;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
const ENFORCED: [&str; 4] = ["--acl-enabled", "true", "--acl-super-users", "User:admin"];

/// A user with a certificate, who runs commands.
struct User {
    files: Files,
    ca: PathBuf,
}

impl User {
    fn new(identity: &Identity, servers: &Authority) -> Self {
        let files = Files::new(identity, None);
        let ca = files.write("ca.pem", &servers.pem);
        Self { files, ca }
    }

    fn command(&self, address: &str, words: &[&str]) -> std::process::Command {
        let mut command = kera();
        command
            .args(words)
            .env("KERA_BOOTSTRAP", address)
            .env("KERA_TLS_CA", &self.ca)
            .env("KERA_TLS_CLIENT_CERT", self.files.path("certificate.pem"))
            .env("KERA_TLS_CLIENT_KEY", self.files.path("key.pem"));
        command
    }

    fn attempt(&self, address: &str, words: &[&str], input: &[u8]) -> Finished {
        finish(self.command(address, words), input)
    }

    fn run(&self, address: &str, words: &[&str], input: &[u8]) -> String {
        let finished = self.attempt(address, words, input);
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
        finished.text()
    }

    fn denied(&self, address: &str, words: &[&str], input: &[u8]) -> String {
        let finished = self.attempt(address, words, input);
        assert_eq!(
            finished.status.code(),
            Some(1),
            "{words:?}: {}",
            finished.text()
        );
        let told = finished.stderr;
        assert!(
            told.contains("NOT_AUTHORIZED") || told.contains("may not"),
            "{told}"
        );
        told
    }

    /// A command that goes on until it is ended.
    fn begin(&self, address: &str, words: &[&str]) -> Child {
        let mut command = self.command(address, words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    }
}

struct World {
    broker: Broker,
    admin: User,
    shop: User,
    guest: User,
    metrics: Reserved,
}

fn world() -> World {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let metrics = Reserved::new();
    let mut flags = ENFORCED.to_vec();
    flags.extend([
        "--tls-client-auth",
        "requested",
        "--http-listen",
        metrics.address(),
    ]);
    let user = |name| User::new(&clients.client(name), &servers);
    World {
        broker: files.broker("native", &flags),
        admin: user("admin"),
        shop: user("shop"),
        guest: user("guest"),
        metrics,
    }
}

#[test]
fn users_do_what_rules_let_them_and_are_told_what_they_lack() {
    let World {
        broker,
        admin,
        shop,
        guest,
        metrics,
    } = world();
    let at = broker.address();
    let told = shop.denied(at, &["stream", "create", "orders"], b"");
    let advice = "kera acl add --allow User:shop --operation create --stream orders";
    assert!(told.contains(advice), "{told}");
    admin.run(
        at,
        &["stream", "create", "orders", "--streamlets", "1"],
        b"",
    );

    shop.denied(at, &["produce", "orders"], b"one\n");
    let added = admin.run(
        at,
        &[
            "acl",
            "add",
            "--allow",
            "User:shop",
            "--producer",
            "--stream",
            "orders",
        ],
        b"",
    );
    assert_eq!(added, "added: 3 rules\n");
    shop.run(at, &["produce", "orders"], b"one\n");
    shop.denied(at, &["consume", "orders", "--max", "1"], b"");
    guest.denied(at, &["produce", "orders"], b"two\n");
    guest.denied(at, &["acl", "list"], b"");
    guest.denied(
        at,
        &[
            "acl",
            "add",
            "--allow",
            "User:guest",
            "--operation",
            "all",
            "--cluster",
        ],
        b"",
    );
    assert_eq!(
        guest.run(at, &["stream", "list", "--json"], b"").trim(),
        "[]"
    );

    let consumer = [
        "acl",
        "add",
        "--allow",
        "User:guest",
        "--consumer",
        "--stream-prefix",
        "ord",
        "--group",
        "g",
    ];
    assert_eq!(admin.run(at, &consumer, b""), "added: 3 rules\n");
    assert_eq!(
        admin.run(at, &consumer, b""),
        "added: 0 rules; 3 were there already\n"
    );
    let read = guest.run(
        at,
        &["consume", "orders", "--group", "g", "--max", "1"],
        b"",
    );
    assert_eq!(read, "one\n");
    guest.denied(
        at,
        &["consume", "orders", "--group", "other", "--max", "1"],
        b"",
    );

    let listed = admin.run(
        at,
        &["acl", "list", "--principal", "User:guest", "--json"],
        b"",
    );
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(3));
    assert_eq!(listed[0]["permission"], "allow");
    let table = admin.run(at, &["acl", "list"], b"");
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");

    let text = http::get(metrics.address(), "/metrics");
    let denied = text
        .lines()
        .find(|line| line.starts_with("kera_access_denied_total "));
    let denied = denied.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(denied.is_some_and(|times| times >= 5), "{denied:?}");
    let log = broker.log();
    assert!(
        log.contains("a request was denied by the rules of access"),
        "{log}"
    );
}

#[test]
fn members_of_a_role_may_what_rules_about_it_say() {
    let World {
        broker,
        admin,
        shop,
        guest,
        ..
    } = world();
    let at = broker.address();
    let admin_refused = |words: &[&str]| {
        let finished = admin.attempt(at, words, b"");
        assert!(!finished.status.success(), "{words:?}");
        finished.stderr
    };
    let admin = |words: &[&str]| admin.run(at, words, b"");
    admin(&["stream", "create", "orders", "--streamlets", "1"]);
    admin(&["role", "create", "writers", "User:shop", "User:guest"]);
    // A rule about a role that is not there would deny nobody anything.
    let ban = [
        "acl",
        "add",
        "--deny",
        "Role:banned",
        "--operation",
        "write",
        "--stream",
        "*",
    ];
    let told = admin_refused(&ban);
    assert!(told.contains("there is no role \"banned\""), "{told}");
    let told = admin_refused(&["role", "create", "Role:banned", "User:guest"]);
    assert!(told.contains("its name alone"), "{told}");
    let told = admin_refused(&["role", "add", "writers", "Role:banned"]);
    assert!(told.contains("no roles"), "{told}");
    admin(&["role", "create", "banned", "User:guest"]);
    let told = admin(&[
        "acl",
        "add",
        "--allow",
        "Role:writers",
        "--producer",
        "--stream",
        "orders",
    ]);
    assert!(told.contains("added: 3 rules"), "{told}");
    admin(&ban);
    let produce = ["produce", "orders", "--quiet"];
    shop.run(at, &produce, b"one\n");
    // A denial by one role comes before what another allows.
    guest.denied(at, &produce, b"two\n");
    // Members change nothing of it.
    shop.denied(at, &["role", "remove", "banned", "User:guest"], b"");
    shop.denied(at, &["role", "list"], b"");
    let told = admin(&["role", "remove", "banned", "User:guest"]);
    assert!(told.contains("removed 1 from role banned"), "{told}");
    guest.run(at, &produce, b"two\n");
    admin(&["role", "remove", "writers", "User:shop"]);
    shop.denied(at, &produce, b"three\n");
    let listed = admin(&["role", "list", "--member", "guest"]);
    assert!(
        listed.contains("writers") && !listed.contains("banned"),
        "{listed}"
    );
    let deleted = admin(&["role", "delete", "writers", "--with-rules", "--yes"]);
    assert!(deleted.contains("deleted: role writers"), "{deleted}");
    let rules = admin(&["acl", "list"]);
    assert!(
        rules.contains("Role:banned") && !rules.contains("Role:writers"),
        "{rules}"
    );
    guest.denied(at, &produce, b"four\n");
}

#[test]
fn a_subscription_ends_with_the_right_to_read() {
    let World {
        broker,
        admin,
        guest,
        ..
    } = world();
    let at = broker.address();
    admin.run(
        at,
        &["stream", "create", "orders", "--streamlets", "1"],
        b"",
    );
    let consumer = [
        "acl",
        "add",
        "--allow",
        "User:guest",
        "--consumer",
        "--stream",
        "orders",
    ];
    admin.run(at, &consumer, b"");
    let follower = guest.begin(at, &["consume", "orders", "--follow"]);
    admin.run(at, &["produce", "orders"], b"one\n");
    let mut follower = follower;
    let mut seen = [0; 4];
    let stdout = follower.stdout.as_mut().expect("it is piped");
    stdout.read_exact(&mut seen).expect("it follows");
    assert_eq!(&seen, b"one\n");
    let removed = [
        "acl",
        "remove",
        "--principal",
        "User:guest",
        "--yes",
        "--json",
    ];
    admin.run(at, &removed, b"");
    admin.run(at, &["produce", "orders"], b"two\n");
    let ended = kera_testkit::command::ended_within(follower, crate::PATIENCE, "consume");
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("may not"), "{}", ended.stderr);
    assert!(
        !ended.text().contains("two"),
        "what came after the right ended"
    );
}

#[test]
fn brokers_of_a_cluster_enforce_the_same_rules_and_serve_each_other() {
    let authority = Authority::new("all");
    let broker = |_| authority.broker_named(&NAMES, "broker");
    let users = "User:broker,User:admin";
    let flags = [
        ["--acl-enabled", "true"],
        ["--acl-super-users", users],
        ["--tls-client-auth", "requested"],
        ["--http-listen", "127.0.0.1:0"],
        ["--api-acts", "true"],
    ];
    let Some(trio) = Trio::with(&authority, broker, "native", flags.as_flattened()) else {
        return;
    };
    let user = |name| User::new(&authority.client(name), &authority);
    let (admin, shop) = (user("admin"), user("shop"));
    let at = |number: usize| trio.brokers[number].address();
    let succeeds = |user: &User, number: usize, words: &[&str], input: &[u8]| {
        until(&words.join(" "), &trio.brokers[number], || {
            user.attempt(at(number), words, input).status.success()
        });
    };
    let create = [
        "stream",
        "create",
        "orders",
        "--streamlets",
        "3",
        "--replicas",
        "3",
    ];
    succeeds(&admin, 0, &create, b"");
    for number in 0..3 {
        succeeds(&admin, number, &["stream", "describe", "orders"], b"");
        shop.denied(at(number), &["produce", "orders"], b"one\n");
    }
    let producer = ["--operation", "read,write,describe", "--stream", "orders"];
    let group = ["--operation", "read,describe", "--group", "g"];
    for (number, what) in [(1, producer), (2, group)] {
        let words = [&["acl", "add", "--allow", "User:shop"], &what[..]].concat();
        admin.run(at(number), &words, b"");
    }
    // The others hear of it by themselves.
    for number in 0..3 {
        succeeds(&shop, number, &["produce", "orders"], b"one\n");
    }
    let consume = ["consume", "orders", "--group", "g", "--max", "3"];
    assert_eq!(shop.run(at(0), &consume, b""), "one\none\none\n");
    // One of them coordinates the group. The others ask it as brokers, and look first whether the user may.
    let reset = |number: usize| {
        let headers = "Content-Type: application/json\r\n";
        let to = r#"{"to":"earliest"}"#;
        let at = trio.brokers[number].http();
        http::post(at, "/api/v1/groups/g/reset", headers, to)
    };
    let allow = ["acl", "add", "--allow", "User:ANONYMOUS"];
    let of_group = ["--operation", "read", "--group", "g"];
    admin.run(at(0), &[&allow[..], &of_group].concat(), b"");
    for number in 0..3 {
        until("no word of the stream", &trio.brokers[number], || {
            let refused = reset(number);
            assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
            refused.contains("reads a stream that User:ANONYMOUS may not read")
        });
    }
    let of_stream = ["--operation", "read", "--stream", "orders"];
    admin.run(at(0), &[&allow[..], &of_stream].concat(), b"");
    for number in 0..3 {
        until("no reset", &trio.brokers[number], || {
            reset(number).starts_with("HTTP/1.1 200")
        });
    }
    // Brokers may ask each other for what they own.
    until("not all is described", &trio.brokers[2], || {
        let described = admin.run(at(2), &["stream", "describe", "orders", "--json"], b"");
        let described = serde_json::from_str(&described).expect("JSON");
        crate::cluster::records(&described) == 3
    });
    let removed = ["acl", "remove", "--principal", "User:shop", "--yes"];
    admin.run(at(0), &removed, b"");
    for number in 0..3 {
        until(
            "the end of the rule is not heard of",
            &trio.brokers[number],
            || {
                let denied = shop.attempt(at(number), &["produce", "orders"], b"late\n");
                !denied.status.success()
            },
        );
    }
}

/// Asks a broker, as a client of Kafka that has proved nothing, which groups there are; true if it answers, false if it
/// closes the connection.
fn lists_groups(broker: &Broker) -> bool {
    let mut socket = TcpStream::connect(broker.kafka()).expect("it listens");
    let within = socket.set_read_timeout(Some(crate::PATIENCE));
    within.expect("a socket has a timeout");
    // Ten bytes: ListGroups 2, request 7, no client id.
    let request = [0, 0, 0, 10, 0, 16, 0, 2, 0, 0, 0, 7, 0xff, 0xff];
    socket.write_all(&request).expect("it is sent");
    let mut answer = [0; 8];
    match socket.read_exact(&mut answer) {
        Ok(()) => {
            assert_eq!(answer[4..], [0, 0, 0, 7]);
            true
        }
        Err(error) => {
            let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
            assert!(ends.contains(&error.kind()), "{error}");
            false
        }
    }
}

#[test]
fn rules_that_etcd_does_not_confirm_count_for_a_time_only() {
    let authority = Authority::new("all");
    let broker = |_| authority.broker_named(&NAMES, "broker");
    let flags = [
        ["--acl-enabled", "true"],
        ["--acl-super-users", "User:broker,User:admin"],
        ["--acl-max-age", "10s"],
        ["--tls-client-auth", "requested"],
        ["--kafka-listen", "127.0.0.1:0"],
    ];
    let Some(trio) = Trio::with(&authority, broker, "native", flags.as_flattened()) else {
        return;
    };
    let user = |name| User::new(&authority.client(name), &authority);
    let (admin, shop) = (user("admin"), user("shop"));
    let broker = &trio.brokers[0];
    let at = broker.address();
    let serves = |user: &User| user.attempt(at, &["stream", "list"], b"").status.success();
    until("the broker serves nobody", broker, || serves(&shop));
    assert!(lists_groups(broker));
    trio.pause_store(true);
    until("old rules count on", broker, || {
        let listed = shop.attempt(at, &["stream", "list"], b"");
        listed.stderr.contains("acl.max_age")
    });
    assert!(!lists_groups(broker));
    assert!(serves(&admin), "who needs no rule is served");
    let log = broker.log();
    assert!(log.contains("for longer than acl.max_age"), "{log}");
    trio.pause_store(false);
    until("the rules are not confirmed", broker, || serves(&shop));
    assert!(lists_groups(broker));
}

#[test]
fn a_broker_that_the_others_would_deny_does_not_start() {
    let authority = Authority::new("all");
    let Some(etcd) = kera_testkit::etcd::Etcd::start() else {
        return;
    };
    let made =
        kera_metadata::EtcdStore::init(&etcd.address(), kera_metadata::EtcdOptions::default());
    made.expect("the cluster is made");
    let files = Files::new(&authority.broker(&NAMES), Some(&authority));
    let path = |name: &str| files.path(name).to_str().expect("a path").to_owned();
    files.write("ca.pem", &authority.pem);
    let (home, shared) = (crate::common::home(), crate::common::shared_memory());
    let mut command = kera();
    let dir: &Path = home.path();
    command.args(["serve", "--data-dir", dir.to_str().expect("a path")]);
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--cluster",
        &etcd.address(),
        "--broker-id",
        "1",
    ]);
    command.args(["--tls-listeners", "native", "--tls-client-auth", "required"]);
    command.args([
        "--tls-certificate",
        &path("certificate.pem"),
        "--tls-key",
        &path("key.pem"),
    ]);
    command.args([
        "--tls-client-ca",
        &path("client-ca.pem"),
        "--tls-broker-ca",
        &path("ca.pem"),
    ]);
    command.args([
        "--replica-store-shared-dir",
        shared.path().to_str().expect("a path"),
    ]);
    command.args(ENFORCED);
    let finished = finish(command, b"");
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let told = finished.stderr;
    assert!(told.contains("who is not among acl.super_users"), "{told}");
}
