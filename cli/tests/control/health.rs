//! What operators are told when something is wrong: which object, and what to do, and nothing that is not so.

use std::thread;

use serde_json::{Value, json};

use crate::common::{finish, http, kera};
use crate::together::{Together, lines, sorted};
use crate::{LONG, even, state};

fn problems(status: &Value) -> Vec<String> {
    let problems = status["health"]["problems"].as_array();
    let objects = problems.into_iter().flatten().map(|one| {
        let text = |name: &str| one[name].as_str().expect("text").to_owned();
        assert!(!text("advice").is_empty(), "{one}");
        format!("{} {}", text("object"), text("problem"))
    });
    objects.collect()
}

fn healthy(status: &Value) -> bool {
    status["health"]["healthy"].as_bool().expect("a word")
}

/// Its lease goes on, and with one broker left nothing can be acknowledged.
#[test]
fn a_broker_that_does_not_answer_and_lanes_that_stand_still_are_told() {
    let Some(mut cluster) = Together::start(0, LONG) else {
        return;
    };
    cluster.flags = vec!["--cluster-repair-interval", "1s"];
    (0..2).for_each(|_| cluster.add());
    cluster.create_whole("flights", 4, 2);
    cluster.until(|status| even(status, 2));
    cluster.produce("flights", &lines(0..50));
    cluster.until(healthy);
    let whole = cluster.attempt(&["stream", "recover", "flights"]);
    assert!(
        whole.text().contains("flights is served"),
        "{}",
        whole.stderr
    );
    cluster.broker(2).kill();
    let mut produce = kera();
    produce
        .args(["produce", "flights", "--quiet", "--batch-size", "4KiB"])
        .env("KERA_BOOTSTRAP", cluster.bootstrap());
    let more: String = lines(50..90)
        .iter()
        .map(|line| format!("{line}\n"))
        .collect();
    let producing = thread::spawn(move || finish(produce, more.as_bytes()));
    let told = cluster.until(|status| {
        let problems = problems(status);
        let still = |one: &String| {
            one.starts_with("stream flights streamlet") && one.contains("has acknowledged nothing")
        };
        state(status, 2) == "SILENT" && problems.iter().any(still)
    });
    assert!(!healthy(&told));
    let silent = problems(&told);
    let silent = silent.iter().find(|one| one.starts_with("broker 2 "));
    assert!(
        silent.is_some_and(|one| one.contains("does not answer at")),
        "{told}"
    );
    let text = cluster.attempt(&["cluster", "status"]).text();
    let first = text.lines().next().unwrap_or_default();
    assert!(first.starts_with("NOT HEALTHY, "), "{text}");
    let recover = cluster.attempt(&["stream", "recover", "flights"]);
    assert_eq!(recover.status.code(), Some(1), "{}", recover.text());
    assert!(!recover.text().contains("is served"), "{}", recover.text());
    assert!(recover.text().contains("streamlet"), "{}", recover.text());
    cluster.broker(2).restart();
    let produced = producing.join().expect("no panic");
    assert!(produced.status.success(), "{}", produced.stderr);
    cluster.until(|status| healthy(status) && even(status, 2));
    assert_eq!(sorted(cluster.consume("flights")), sorted(lines(0..90)));
}

#[test]
fn a_broker_that_cannot_be_emptied_is_not_drained_for_that() {
    let Some(cluster) = Together::start(3, LONG) else {
        return;
    };
    cluster.create_whole("flights", 3, 3);
    cluster.until(|status| even(status, 3));
    cluster.produce("flights", &lines(0..300));
    let refused = cluster.attempt(&["broker", "drain", "3", "--empty"]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.text());
    for said in [
        "cannot be emptied",
        "3 replicas",
        "can hold 2",
        "start another broker",
    ] {
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    // Nothing was begun.
    cluster.until(|status| state(status, 3) == "NORMAL");
    let described = cluster.attempt(&["stream", "describe", "flights"]).text();
    let owner = format!("broker {} at ", cluster.owner_of("flights", 0));
    assert!(described.contains(&owner), "{described}");
    assert!(described.contains("REPLICAS AT BROKERS"), "{described}");
    assert!(described.contains("1, 2, 3"), "{described}");
}

/// Its lease goes on, so its streamlets stay where they are; records of the others are shown all the same.
#[test]
fn records_are_shown_while_an_owner_of_others_hangs() {
    let Some(mut cluster) = Together::start(0, LONG) else {
        return;
    };
    cluster.flags = vec!["--http-listen", "127.0.0.1:0"];
    (0..2).for_each(|_| cluster.add());
    cluster.create_whole("flights", 4, 2);
    cluster.until(|status| even(status, 2));
    // By their keys they lie in all streamlets.
    let keyed: String = (0..200).map(|n| format!("key{n},{n}\n")).collect();
    let mut produce = kera();
    produce
        .args(["produce", "flights", "--quiet", "--key-separator", ","])
        .env("KERA_BOOTSTRAP", cluster.bootstrap());
    let produced = finish(produce, keyed.as_bytes());
    assert!(produced.status.success(), "{}", produced.stderr);
    let owners: Vec<u32> = (0..4).map(|id| cluster.owner_of("flights", id)).collect();
    let of = |number: u32| owners.iter().position(|owner| *owner == number);
    let (own, hung) = (of(1).expect("a streamlet"), of(2).expect("a streamlet"));
    cluster.broker(2).pause(true);
    let address = cluster.broker(1).http().to_owned();
    let look = |query: &str| {
        let path = format!("/api/v1/streams/flights/records?from=earliest{query}");
        let answer = http::get_as("localhost", &address, &path);
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        let body: Value = serde_json::from_str(body).expect("JSON");
        (head.contains(" 200 "), body)
    };
    // Nobody is asked who is not needed.
    let (is_shown, page) = look(&format!("&streamlet={own}"));
    assert!(is_shown && page["problems"] == json!([]), "{page}");
    assert_ne!(page["records"], json!([]));
    let (is_shown, page) = look("");
    let problem = page["problems"][0].as_str().unwrap_or_default();
    assert!(is_shown && problem.contains("broker 2 "), "{page}");
    assert_eq!(
        (&page["lanes"], &page["lanes_left_out"]),
        (&json!(2), &json!(2))
    );
    assert_ne!(page["records"], json!([]));
    let (is_shown, refused) = look(&format!("&streamlet={hung}"));
    assert!(!is_shown && refused["error"] == "NOT_OWNER", "{refused}");
    cluster.broker(2).pause(false);
}
