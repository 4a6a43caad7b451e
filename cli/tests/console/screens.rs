//! Each screen over three brokers with producers and groups that lag, and a broker that is killed meanwhile.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kera_testkit::command::killed;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::common::{finish, http, kera, ports};
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
    // A page that lost its broker finds it where it was.
    let address: &'static str = ports::Reserved::for_ever().leak();
    cluster.flags = vec!["--http-listen", address, "--api-mask", "orders:email"];
    cluster.add();
    // What is changed is changed at these two; the first one has the setting as it is by default.
    cluster.flags[1] = "127.0.0.1:0";
    cluster.flags.extend(["--api-acts", "true"]);
    for _ in 0..2 {
        cluster.add();
    }
    cluster.create("orders", 6, 3);
    cluster.create("clicks", 3, 3);
    let feed = orders(400).join("\n") + "\n";
    let words = ["produce", "orders", "--key-separator", "\t", "--quiet"];
    let header = ["--header", "shop=north-7"];
    let fed = finish(
        client(&cluster, &[&words[..], &header].concat()),
        feed.as_bytes(),
    );
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
    let words = ["consume", "clicks", "--group", "resize", "--order", "none"];
    for _ in 0..2 {
        clients.start(client(&cluster, &[&words[..], &["--follow"]].concat()));
    }
    // A group that nobody reads for any more.
    let words = ["consume", "orders", "--group", "billing", "--max", "50"];
    let finished = cluster.attempt(&words);
    assert!(finished.status.success(), "{}", finished.stderr);

    // Names are as long as they may be.
    let long = "g".repeat(249);
    let words = ["consume", "orders", "--group", &long, "--max", "399"];
    let finished = cluster.attempt(&words);
    assert!(finished.status.success(), "{}", finished.stderr);

    let home = url(&mut cluster, 1);
    browser.open(&home);
    browser.sees_problem("Group billing is behind by");
    browser.sees("3 of 3");
    reads_aloud(&mut browser);
    for screen in &SCREENS {
        visit(&mut browser, &home, screen);
    }
    seek(&mut browser, &home);
    survives_strange_answers(&mut browser, &home);
    by_keyboard(&mut browser, &home);
    by_question(&mut browser, &home, &url(&mut cluster, 2));
    for number in [2, 3] {
        let at = cluster.broker(number).http().to_owned();
        moves_the_group_wherever_it_is_coordinated(&at);
    }
    drains(&mut browser, &mut cluster);
    grows(&mut browser, &home, &cluster);

    // One of the others is killed while the page is open.
    browser.look(WIDE, "light");
    browser.open(&home);
    browser.sees("3 of 3");
    cluster.broker(3).kill();
    let told = browser.sees_problem("Broker 3 ");
    // The time line goes on to who has its streamlets now.
    browser.sees("the lease of broker 3 ended: it is gone");
    browser.hears("listitem", "of broker 3");
    browser.sees("2 of 3");
    // What is known of it is told without it.
    browser.open(&format!("{home}#/brokers/3"));
    browser.hears("status", "Broker 3");
    browser.sees("not told");
    browser.audit("a broker that is gone");
    browser.open(&home);
    browser.sees("2 of 3");
    picture(&mut browser, "failover");
    eprintln!("that broker 3 was killed was told after {told} ms");
    cluster.broker(3).restart();
    browser.sees("3 of 3");

    // And then the broker that the page came from.
    browser.step("expect", json!({ "errors": true }));
    cluster.broker(1).kill();
    let told = browser.hears("alert", "This broker does not answer");
    eprintln!("that the page's own broker was killed was told after {told} ms");
    picture(&mut browser, "no-answer");
    browser.audit("the page without its broker");
    // What it shows is still there.
    assert!(browser.content().contains("clicks"));
    assert!(
        told <= 3000,
        "the page told after {told} ms that its broker does not answer"
    );
    // Once it serves again the page goes on, without a hand on it.
    cluster.broker(1).restart();
    browser.step(
        "gone",
        json!({ "text": "This broker does not answer", "within": 60_000 }),
    );
    browser.sees("3 of 3");

    let complaints = browser.step("complaints", json!({}));
    assert_eq!(complaints["complaints"], json!([]));
}

/// A screen: its name, its place, what it has once it is there, and whether it is pictured on a telephone too.
type Screen = (&'static str, &'static str, &'static str, bool);

const SCREENS: [Screen; 12] = [
    ("overview", "", "Groups that lag", true),
    ("streams", "#/streams", "Lag of each group", true),
    ("lanes", "#/streams/orders", "Groups of segments", true),
    (
        "consumers",
        "#/streams/orders/consumers",
        "no member",
        false,
    ),
    (
        "stream-settings",
        "#/streams/orders/settings",
        "min insync replicas",
        false,
    ),
    ("groups", "#/groups", "live-view", false),
    ("group", "#/groups/billing", "Lanes and leases", true),
    ("ranges", "#/groups/resize", "Lanes and leases", false),
    ("brokers", "#/brokers", "controller", false),
    ("broker", "#/brokers/2", "Background work", true),
    ("settings", "#/settings", "api.mask", false),
    (
        "records",
        "#/streams/orders/records",
        "looked through",
        true,
    ),
];
const WIDE: (u32, u32) = (1600, 1000);
const NARROW: (u32, u32) = (360, 780);

/// At both widths, in light and in dark.
fn visit(browser: &mut Browser, home: &str, (name, at, wanted, is_narrow): &Screen) {
    let url = format!("{home}{at}");
    browser.open_at(&url, WIDE, "light");
    browser.sees(wanted);
    if *name == "ranges" {
        // Members share a lane: each has a range of its ordinals.
        browser.step("range", json!({ "within": 60_000 }));
    }
    browser.audit(name);
    picture(browser, name);
    browser.look(WIDE, "dark");
    browser.audit_of(&["color-contrast"], &format!("{name}, dark"));
    if *name == "overview" {
        picture(browser, "overview-dark");
    }
    browser.look(NARROW, "dark");
    let what = format!("{name}, narrow and dark");
    match is_narrow {
        true => {
            browser.audit(&what);
            picture(browser, &format!("{name}-narrow"));
        }
        false => browser.audit_of(&[], &what),
    }
    browser.look(NARROW, "light");
    browser.audit_of(&[], &format!("{name}, narrow"));
}

/// What a screen reader says of the overview: marks, names, and what is told when it changes.
fn reads_aloud(browser: &mut Browser) {
    for (role, name) in [
        ("navigation", "Screens"),
        ("region", "Health"),
        ("table", "Busiest streams"),
        ("heading", "What happened"),
        ("img", "Records in, a second: records in"),
    ] {
        browser.sees_role(role, name);
    }
}

/// Records by key, ordinal and time, with what their headers say.
fn seek(browser: &mut Browser, home: &str) {
    browser.open_at(&format!("{home}#/streams/orders/records"), WIDE, "light");
    browser.sees("looked through");
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
    browser.step("unfold", json!({}));
    browser.sees("north-7");
    browser.step("fill", json!({ "label": "Key", "value": "nobody" }));
    browser.click("button", "Look");
    browser.sees("No record there");
    browser.step("fill", json!({ "label": "Key", "value": "" }));
    browser.step("choose", json!({ "label": "From", "value": "ordinal" }));
    browser.step("fill", json!({ "label": "Ordinal", "value": "5" }));
    browser.step("fill", json!({ "label": "Lane", "value": "0.0" }));
    browser.click("button", "Look");
    sees_record(browser, "0.0 @ 5");
    browser.step("gone", json!({ "text": "0.0 @ 4", "exact": true }));
    browser.step("choose", json!({ "label": "From", "value": "time" }));
    let time = |year: u32| json!({ "label": "Time", "value": format!("{year}-01-01T00:00") });
    browser.step("fill", time(2020));
    browser.click("button", "Look");
    sees_record(browser, "0.0 @ 0");
    let shown = browser.step("time", json!({}))["time"].clone();
    let shown = shown.as_str().expect("a text");
    browser.step("fill", time(2099));
    browser.click("button", "Look");
    browser.sees("No record there");
    // The time of a record, as it stands there, finds it.
    let (second, _) = shown.split_once('.').expect("milliseconds");
    let value = second.replace(' ', "T");
    // As the browser writes it.
    let value = value.strip_suffix(":00").unwrap_or(&value);
    browser.step("fill", json!({ "label": "Time", "value": value }));
    browser.click("button", "Look");
    sees_record(browser, "0.0 @ 0");
}

/// The place is the whole of a text: that of another record may begin with it.
fn sees_record(browser: &mut Browser, place: &str) {
    let wanted = json!({ "text": place, "exact": true, "within": 60_000 });
    browser.step("text", wanted);
}

/// A record whose time is none is shown, and an error of a screen is told and leaves the others as they are.
fn survives_strange_answers(browser: &mut Browser, home: &str) {
    let path = "/streams/orders/records";
    let spoil = |browser: &mut Browser, record: Value| {
        let parts = json!({ "path": path, "parts": { "records": { "0": record } } });
        browser.step("spoil", parts);
        browser.open_at(&format!("{home}#/streams/orders/lanes"), WIDE, "light");
        browser.open(&format!("{home}#/streams/orders/records"));
    };
    // Nanoseconds, as some producers have them.
    let time = 1_795_879_535_789_630_000_u64;
    spoil(browser, json!({ "timestamp_ms": time }));
    browser.sees(&format!("timestamp {time}"));
    spoil(browser, json!({ "headers": null }));
    browser.hears("alert", "This page has an error");
    browser.step("spoil", json!({}));
    // An address with a stray percent sign.
    browser.open(&format!("{home}#/streams/50%25%"));
    browser.sees("no stream is named");
    browser.click("link", "Groups");
    browser.sees("live-view");
    browser.click("link", "Streams");
    browser.sees("Lag of each group");
    browser.open(&format!("{home}#/streams/orders/records"));
    browser.sees("looked through");
}

/// From the top of the page to a stream, without a mouse.
fn by_keyboard(browser: &mut Browser, home: &str) {
    browser.open(&format!("{home}#/streams"));
    browser.sees("Lag of each group");
    let reached = (0..40).any(|_| browser.keys(&["Tab"]) == "orders");
    assert!(reached, "the stream cannot be reached by keyboard");
    browser.keys(&["Enter"]);
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
    browser.keys(&["Enter"]);
    browser.step(
        "gone",
        json!({ "text": "All its records are lost for good" }),
    );
    assert_eq!(browser.keys(&[]), "Delete");
    browser.keys(&["Enter"]);
    browser.sees("All its records are lost for good");
    browser.keys(&["Tab", "Enter"]);
    browser.sees("Stream drafts was deleted.");

    browser.open(&format!("{on}#/streams/orders/settings"));
    browser.click("button", "Change settings");
    browser.sees("Lanes grow, and never shrink");
    browser.audit("the question about settings");
    picture(browser, "alter");
    browser.click("button", "Cancel");
    // Nothing is chosen, and Enter chooses nothing; nor does it send what was.
    browser.click("button", "Trim");
    let lost = "What is deleted cannot be brought back";
    browser.sees(lost);
    browser.audit("the question about old records");
    let confirm = "Delete records of orders";
    browser.step("fill", json!({ "label": "Lane", "value": "0.0" }));
    browser.keys(&["Enter"]);
    browser.click("button", confirm);
    browser.step("choose", json!({ "label": "To", "value": "everything" }));
    picture(browser, "trim");
    browser.step("fill", json!({ "label": "Lane", "value": "0.0" }));
    browser.keys(&["Enter", "Enter"]);
    browser.sees(lost);
    assert!(!browser.content().contains("was trimmed"));
    browser.click("button", confirm);
    browser.sees("Stream orders was trimmed in 1 lane;");

    browser.open(&format!("{on}#/groups/billing"));
    browser.click("button", "Set its positions");
    browser.sees("Its positions are lost");
    browser.step("choose", json!({ "label": "To", "value": "earliest" }));
    browser.audit("the question about positions");
    picture(browser, "reset");
    browser.click("button", "Set positions of billing");
    browser.sees("Positions of group billing were set in 6 lanes.");
}

/// A broker is drained, and the drain ends, by the page of another.
fn drains(browser: &mut Browser, cluster: &mut Together) {
    let state = |wanted: &'static str| {
        move |status: &Value| {
            let brokers = status["brokers"].as_array().into_iter().flatten();
            let mut second = brokers.filter(|one| one["broker_id"] == 2);
            second.any(|one| {
                one["state"]
                    .as_str()
                    .is_some_and(|told| told.starts_with(wanted))
            })
        }
    };
    let home = url(cluster, 3);
    browser.open(&format!("{home}#/brokers/2"));
    browser.click("button", "Drain");
    browser.sees("no record is lost");
    browser.audit("the question about a drain");
    picture(browser, "drain");
    browser.click("button", "Drain broker 2");
    browser.sees("The drain of broker 2 has begun.");
    cluster.until(state("DRAIN"));
    browser.hears("status", "Broker 2 drain");
    picture(browser, "draining");
    browser.click("button", "End the drain");
    browser.sees("It gets streamlets and replicas again");
    // The first of its two buttons keeps things as they are.
    browser.keys(&["Tab", "Enter"]);
    browser.sees("The drain of broker 2 has ended.");
    cluster.until(state("NORMAL"));
}

/// Lanes are added while a group follows the stream.
fn grows(browser: &mut Browser, home: &str, cluster: &Together) {
    browser.open(&format!("{home}#/streams/clicks"));
    browser.sees("grown 0 times");
    cluster.json(&["stream", "alter", "clicks", "--lanes", "2"]);
    browser.sees("grown 1 time");
    for lane in ["0.1", "1.1", "2.1"] {
        browser.sees_role("rowheader", lane);
    }
    picture(browser, "grown");
    browser.open(&format!("{home}#/groups/live-view"));
    // Its member has them as well.
    browser.step("leased", json!({ "lane": "0.1", "within": 60_000 }));
    picture(browser, "follows");
    browser.open(home);
    browser.hears("listitem", "stream clicks grew from 3 to 6 lanes");
}

/// At a broker that does not coordinate the group it comes to the one that does.
fn moves_the_group_wherever_it_is_coordinated(address: &str) {
    let json = "Content-Type: application/json\r\n";
    let path = "/api/v1/groups/billing/reset";
    let answer = http::post(address, path, json, r#"{"to":"earliest"}"#);
    assert!(answer.contains("\"lanes_total\":6"), "{answer}");
}
