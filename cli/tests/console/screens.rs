//! Each screen over three brokers with producers and groups that lag, and a broker that is killed meanwhile.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kera_testkit::command::killed;
use serde_json::json;

use crate::browser::Browser;
use crate::common::{finish, http, kera};
use crate::repository;
use crate::together::Together;

/// The address of a broker's console.
fn url(cluster: &mut Together, number: u32) -> String {
    format!("http://{}/", cluster.broker(number).http())
}

/// Clients that run until the test is over.
struct Clients(Vec<Child>);

impl Clients {
    fn start(&mut self, mut command: Command) {
        let silent = || Stdio::null();
        command.stdin(silent()).stdout(silent()).stderr(silent());
        self.0
            .push(command.spawn().expect("a client can be started"));
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.0.drain(..).for_each(killed);
    }
}

/// A client command that may ask any broker.
fn client(cluster: &Together, words: &[&str]) -> Command {
    let mut command = kera();
    command
        .args(words)
        .env("KERA_BOOTSTRAP", cluster.bootstrap());
    command
}

/// Orders as a shop has them, one JSON object a line, with their key.
fn orders(many: u64) -> Vec<String> {
    let towns = ["Bremen", "Lyon", "Porto", "Gdańsk", "Turku"];
    let line = |at: u64| {
        let town = towns[(at % 5) as usize];
        let value = json!({
            "order": 10_000 + at,
            "customer": format!("c-{:03}", at % 211),
            "email": format!("c{:03}@example.com", at % 211),
            "town": town,
            "cents": 199 + at * 37 % 9000,
            "items": [{"sku": format!("s-{}", at % 17), "count": 1 + at % 3}],
        });
        format!("c-{:03}\t{value}", at % 211)
    };
    (0..many).map(line).collect()
}

/// Where pictures go: below cargo's directory for tests, or into the repository with `KERA_REGENERATE`.
fn pictures() -> PathBuf {
    let folder = match std::env::var_os("KERA_REGENERATE") {
        Some(_) => repository("docs/console"),
        None => PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console-pictures"),
    };
    fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

fn picture(browser: &mut Browser, name: &str) {
    let path = pictures().join(format!("{name}.png"));
    let taken = browser.step("picture", json!({ "path": path.display().to_string() }));
    let bytes = taken["bytes"].as_u64().expect("a number");
    assert!(
        bytes > 8_000,
        "the picture {name} is nearly empty: {bytes} bytes"
    );
}

#[test]
fn each_screen_shows_the_cluster_and_a_killed_broker_is_told_and_comes_back() {
    let Some(mut browser) = Browser::start("the console in a browser") else {
        return;
    };
    let Some(mut cluster) = Together::start(0, "3s") else {
        return;
    };
    cluster.flags = vec!["--http-listen", "127.0.0.1:0", "--api-mask", "orders:email"];
    cluster.add();
    // What is changed is changed at these two; the first one has the setting as it is by default.
    cluster.flags.extend(["--api-acts", "true"]);
    for _ in 0..2 {
        cluster.add();
    }
    cluster.create("orders", 6, 3);
    cluster.create("clicks", 3, 3);
    let feed = orders(400).join("\n") + "\n";
    let words = ["produce", "orders", "--key-separator", "\t", "--quiet"];
    let fed = finish(client(&cluster, &words), feed.as_bytes());
    assert!(fed.status.success(), "{}", fed.stderr);
    let mut clients = Clients(Vec::new());
    let words = [
        "bench",
        "produce",
        "clicks",
        "--no-disk",
        "--records",
        "50M",
        "--rate",
        "400/s",
    ];
    clients.start(client(&cluster, &words));
    let words = ["consume", "clicks", "--group", "live-view", "--follow"];
    clients.start(client(&cluster, &words));
    // A group that nobody reads for any more.
    let words = ["consume", "orders", "--group", "billing", "--max", "50"];
    let finished = cluster.attempt(&words);
    assert!(finished.status.success(), "{}", finished.stderr);

    let home = url(&mut cluster, 1);
    browser.open(&home);
    browser.sees_problem("Group billing is behind by");
    browser.sees("3 of 3");
    browser.sees("clicks");
    browser.audit("the overview");
    picture(&mut browser, "overview");

    let screens = [
        ("streams", "#/streams", "Lag of each group"),
        ("lanes", "#/streams/orders", "Groups of segments"),
        ("consumers", "#/streams/orders/consumers", "no member"),
        (
            "stream-settings",
            "#/streams/orders/settings",
            "min insync replicas",
        ),
        ("groups", "#/groups", "live-view"),
        ("group", "#/groups/billing", "Lanes and leases"),
        ("brokers", "#/brokers", "controller"),
        ("broker", "#/brokers/2", "Background work"),
        ("settings", "#/settings", "api.mask"),
        ("records", "#/streams/orders/records", "looked through"),
    ];
    for (name, at, wanted) in screens {
        browser.open(&format!("{home}{at}"));
        browser.sees(wanted);
        browser.audit(name);
        picture(&mut browser, name);
    }
    seek(&mut browser);
    narrow_and_dark(&mut browser, &home);
    by_keyboard(&mut browser, &home);
    by_question(&mut browser, &home, &url(&mut cluster, 2));
    for number in [2, 3] {
        let at = cluster.broker(number).http().to_owned();
        moves_the_group_wherever_it_is_coordinated(&at);
    }

    // One of the others is killed while the page is open.
    browser.step(
        "size",
        json!({ "width": 1600, "height": 1000, "theme": "light" }),
    );
    browser.open(&home);
    browser.sees("3 of 3");
    cluster.broker(3).kill();
    let told = browser.sees("Broker 3 ");
    browser.sees("2 of 3");
    picture(&mut browser, "failover");
    eprintln!("that broker 3 was killed was told after {told} ms");
    cluster.broker(3).restart();
    browser.sees("3 of 3");

    // And then the broker that the page came from.
    browser.step("expect", json!({ "errors": true }));
    cluster.broker(1).kill();
    let told = browser.sees("This broker does not answer");
    eprintln!("that the page's own broker was killed was told after {told} ms");
    picture(&mut browser, "no-answer");
    browser.audit("the page without its broker");
    // What it shows is still there.
    assert!(browser.content().contains("clicks"));
    assert!(
        told <= 3000,
        "the page told after {told} ms that its broker does not answer"
    );

    let complaints = browser.step("complaints", json!({}));
    assert_eq!(complaints["complaints"], json!([]));
}

fn seek(browser: &mut Browser) {
    browser.step("fill", json!({ "label": "Key", "value": "c-007" }));
    browser.step("choose", json!({ "label": "From", "value": "earliest" }));
    browser.click("button", "Look");
    browser.sees("2 records of 1 lane");
    let content = browser.content();
    assert!(
        content.contains("10007") && content.contains("10218"),
        "{content}"
    );
    // A rule hides it.
    assert!(!content.contains("c007@example.com"), "{content}");
    browser.step("fill", json!({ "label": "Key", "value": "nobody" }));
    browser.click("button", "Look");
    browser.sees("No record there");
}

fn narrow_and_dark(browser: &mut Browser, home: &str) {
    browser.step(
        "size",
        json!({ "width": 360, "height": 780, "theme": "dark" }),
    );
    for (name, at, wanted) in [
        ("overview-narrow", "", "Groups that lag"),
        ("streams-narrow", "#/streams", "clicks"),
        ("lanes-narrow", "#/streams/orders", "Groups of segments"),
        (
            "records-narrow",
            "#/streams/orders/records",
            "looked through",
        ),
        ("group-narrow", "#/groups/billing", "Lanes and leases"),
        ("broker-narrow", "#/brokers/2", "Background work"),
    ] {
        browser.step(
            "open",
            json!({ "url": format!("{home}{at}"), "width": 360, "height": 780, "theme": "dark" }),
        );
        browser.sees(wanted);
        browser.audit(name);
        picture(browser, name);
    }
    let wide = json!({ "url": home, "width": 1600, "height": 1000, "theme": "dark" });
    browser.step("open", wide);
    browser.sees("3 of 3");
    browser.audit("the dark overview");
    picture(browser, "overview-dark");
}

/// From the top of the page to a stream, without a mouse.
fn by_keyboard(browser: &mut Browser, home: &str) {
    browser.open(&format!("{home}#/streams"));
    browser.sees("Lag of each group");
    let focused = |browser: &mut Browser| {
        let pressed = browser.step("keys", json!({ "keys": ["Tab"] }));
        pressed["focused"].as_str().unwrap_or_default().to_owned()
    };
    let reached = (0..40).any(|_| focused(browser) == "orders");
    assert!(reached, "the stream cannot be reached by keyboard");
    browser.step("keys", json!({ "keys": ["Enter"] }));
    browser.sees("Groups of segments");
}

/// A stream is made and deleted: each after one question, which is answered by keyboard.
fn by_question(browser: &mut Browser, off: &str, on: &str) {
    browser.open(&format!("{off}#/streams/orders/settings"));
    browser.sees("min insync replicas");
    assert!(!browser.content().contains("Trim"), "acts are on");
    browser.open(&format!("{on}#/streams"));
    browser.sees("Lag of each group");
    browser.click("button", "Create a stream");
    browser.sees("fixed for ever");
    browser.audit("the question about a new stream");
    picture(browser, "create");
    browser.step("fill", json!({ "label": "Name", "value": "drafts" }));
    browser.step("keys", json!({ "keys": ["Enter"] }));
    browser.sees("Stream drafts was created.");
    browser.open(&format!("{on}#/streams/drafts/settings"));
    browser.click("button", "Delete");
    browser.sees("All its records are lost for good");
    browser.audit("the question about a stream that is to go");
    picture(browser, "delete");
    // Who only presses Enter loses nothing.
    browser.step("keys", json!({ "keys": ["Enter"] }));
    browser.step(
        "gone",
        json!({ "text": "All its records are lost for good" }),
    );
    let focused = browser.step("keys", json!({ "keys": [] }));
    assert_eq!(focused["focused"], "Delete");
    browser.step("keys", json!({ "keys": ["Enter"] }));
    browser.sees("All its records are lost for good");
    browser.step("keys", json!({ "keys": ["Tab", "Enter"] }));
    browser.sees("Stream drafts was deleted.");
}

/// At a broker that does not coordinate the group it comes to the one that does.
fn moves_the_group_wherever_it_is_coordinated(address: &str) {
    let json = "Content-Type: application/json\r\n";
    let path = "/api/v1/groups/billing/reset";
    let answer = http::post(address, path, json, r#"{"to":"earliest"}"#);
    assert!(answer.contains("\"lanes_total\":6"), "{answer}");
}
