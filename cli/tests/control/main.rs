//! Brokers that share an etcd, as real processes: who owns what when one goes, comes, drains or stops.

#[path = "../common/mod.rs"]
mod common;
mod compared;
mod copies;
mod gaps;
mod health;
mod spread;
mod together;

use kera_testkit::etcd;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use common::command::ended_within;
use common::{PATIENCE, kera};
use together::{Together, lines, sorted, steps_of};

/// A lease so long that nothing in a test waits for its end.
const LONG: &str = "10m";

fn owned(status: &Value, broker: u32) -> u64 {
    let brokers = status["brokers"].as_array().expect("brokers are listed");
    let found = brokers.iter().find(|one| one["broker_id"] == broker);
    found.map_or(0, |one| one["streamlets"].as_u64().expect("a number"))
}

fn state(status: &Value, broker: u32) -> String {
    let brokers = status["brokers"].as_array().expect("brokers are listed");
    let found = brokers.iter().find(|one| one["broker_id"] == broker);
    found.map_or_else(String::new, |one| {
        one["state"].as_str().unwrap_or("").into()
    })
}

/// Every one of so many brokers has its share.
fn even(status: &Value, brokers: u32) -> bool {
    (1..=brokers).all(|id| owned(status, id) > 0 && state(status, id) == "NORMAL")
}

#[test]
fn a_killed_broker_is_replaced_without_anybody_asking() {
    let Some(mut cluster) = Together::start(3, "2s") else {
        return;
    };
    cluster.create("flights", 9, 3);
    cluster.until(|status| even(status, 3));
    let first = lines(0..3000);
    cluster.produce("flights", &first);
    let controller = cluster.status()["controller"].as_u64();
    // The one that decides is not the easy one.
    let killed = controller.expect("somebody is controller") as u32;
    cluster.broker(killed).kill();
    let gone = Instant::now();
    let second = lines(3000..6000);
    cluster.produce("flights", &second);
    eprintln!(
        "3,000 records sent right after broker {killed} was killed were acknowledged after {:?}",
        gone.elapsed()
    );
    let status = cluster.until(|status| owned(status, killed) == 0);
    assert_eq!(status["stranded"], Value::Array(Vec::new()));
    assert_ne!(status["controller"].as_u64(), controller);
    assert_eq!(
        sorted(cluster.consume("flights")),
        sorted([first, second].concat())
    );
    // It comes back and gets its share.
    cluster.broker(killed).restart();
    cluster.until(|status| even(status, 3));
    // What it owns anew and has not fetched yet is no damage.
    assert_eq!(cluster.consume("flights").len(), 6000);
    for number in 1..=3 {
        let log = cluster.broker(number).log();
        assert!(!log.contains("is damaged"), "broker {number}: {log}");
    }
}

/// Brokers of which each has its share of a stream with 500 lines, and their status then.
fn fed() -> Option<(Together, Value)> {
    let cluster = Together::start(3, LONG)?;
    cluster.create("flights", 6, 3);
    let status = cluster.until(|status| even(status, 3));
    cluster.produce("flights", &lines(0..500));
    Some((cluster, status))
}

/// Who decides, by number.
fn controller(status: &Value) -> u32 {
    status["controller"].as_u64().expect("a number") as u32
}

/// 500 lines more are taken, and all 1,000 are there.
fn feeds_on(cluster: &Together) {
    cluster.produce("flights", &lines(500..1000));
    assert_eq!(sorted(cluster.consume("flights")), sorted(lines(0..1000)));
}

/// Its lease goes on for longer than the test has patience.
#[test]
fn a_crash_is_noticed_before_the_lease_ends() {
    let Some((mut cluster, status)) = fed() else {
        return;
    };
    let killed = if controller(&status) == 2 { 3 } else { 2 };
    cluster.broker(killed).kill();
    let gone = Instant::now();
    cluster.produce("flights", &lines(500..1000));
    eprintln!(
        "500 records sent right after broker {killed} was killed were acknowledged after {:?}",
        gone.elapsed()
    );
    let status = cluster.until(|status| owned(status, killed) == 0);
    assert_eq!(state(&status, killed), "SILENT", "{status}");
    assert_eq!(sorted(cluster.consume("flights")), sorted(lines(0..1000)));
}

/// Its office goes to another, and then its streamlets do, while its lease goes on for longer than the test
/// has patience.
#[test]
fn a_controllers_crash_is_noticed_before_its_lease_ends() {
    let Some((mut cluster, status)) = fed() else {
        return;
    };
    let controller = controller(&status);
    cluster.broker(controller).kill();
    cluster.produce("flights", &lines(500..1000));
    let in_office = |status: &Value| status["controller"].as_u64();
    cluster.until(|status| {
        let next = in_office(status).filter(|next| *next != u64::from(controller));
        next.is_some() && owned(status, controller) == 0
    });
    assert_eq!(sorted(cluster.consume("flights")), sorted(lines(0..1000)));
}

#[test]
fn a_broker_that_stops_hands_its_streamlets_over_first() {
    let Some((mut cluster, _)) = fed() else {
        return;
    };
    let stopped = cluster.broker(2).stop();
    assert!(stopped.success(), "{stopped}");
    let log = cluster.broker(2).log();
    assert!(log.contains("handed over to other brokers"), "{log}");
    let status = cluster.until(|status| owned(status, 2) == 0);
    assert_eq!(status["stranded"], Value::Array(Vec::new()));
    feeds_on(&cluster);
}

#[test]
fn a_drain_empties_a_broker_and_names_what_stays() {
    let Some(cluster) = Together::start(4, LONG) else {
        return;
    };
    cluster.create("flights", 8, 3);
    cluster.until(|status| even(status, 4));
    cluster.produce("flights", &lines(0..500));
    let steps = cluster.steps(&["broker", "drain", "3"]);
    let drained = steps.last().expect("the end");
    assert_eq!(drained["outcome"], "done", "{drained}");
    assert_eq!(drained["may_stop"], true, "{drained}");
    assert_eq!(steps[0]["draining"], true, "{steps:?}");
    assert_eq!(drained["streamlets"], 0);
    let status = cluster.status();
    assert_eq!(state(&status, 3), "DRAINED");
    assert_eq!(sorted(cluster.consume("flights")), sorted(lines(0..500)));
    // It gets its share again once the drain is over.
    cluster.json(&["broker", "drain", "3", "--cancel"]);
    cluster.until(|status| even(status, 4));
    // What has one copy stays.
    cluster.create("alone", 4, 1);
    let holder = cluster.owner_of("alone", 0);
    let kept = cluster.attempt(&["broker", "drain", &holder.to_string()]);
    assert_eq!(kept.status.code(), Some(1), "{}", kept.stderr);
    let text = kept.text();
    let says = text.contains("only replica is on this broker");
    assert!(says, "{text} {}", kept.stderr);
    let kept = cluster.attempt(&["broker", "drain", &holder.to_string(), "--json"]);
    assert_eq!(kept.status.code(), Some(1));
    let steps = steps_of(&kept.text());
    assert_eq!(steps[steps.len() - 1]["outcome"], "kept", "{steps:?}");
}

#[test]
fn a_broker_that_joins_gets_its_share_and_a_plan_has_nothing_left_to_do() {
    let Some(mut cluster) = Together::start(3, LONG) else {
        return;
    };
    cluster.create("flights", 12, 3);
    cluster.produce("flights", &lines(0..500));
    cluster.add();
    let added = cluster.attempt(&["broker", "add", "4", "--json"]);
    assert!(added.status.success(), "{}", added.stderr);
    let steps = steps_of(&added.text());
    let last = &steps[steps.len() - 1];
    assert_eq!(
        (&last["outcome"], &last["state"]),
        (&"done".into(), &"NORMAL".into())
    );
    cluster.until(|status| even(status, 4));
    // One that nobody starts does not come, and how to start it is said.
    let absent = ["broker", "add", "9", "--timeout", "1s"];
    let absent = cluster.attempt(&absent);
    assert_eq!(absent.status.code(), Some(1), "{}", absent.text());
    assert!(absent.stderr.contains("--broker-id 9"), "{}", absent.stderr);
    let absent = ["broker", "add", "9", "--timeout", "1s", "--json"];
    let steps = steps_of(&cluster.attempt(&absent).text());
    let last = &steps[steps.len() - 1];
    assert_eq!(
        (&last["outcome"], &last["state"]),
        (&"timeout".into(), &"GONE".into())
    );
    assert!(
        last["error"]
            .as_str()
            .is_some_and(|e| e.contains("--broker-id 9"))
    );
    let plan = cluster.json(&["cluster", "plan"]);
    assert_eq!(plan["moves"], Value::Array(Vec::new()), "{plan}");
    let applied = cluster.steps(&["cluster", "apply", "--yes"]);
    assert_eq!((applied.len(), &applied[0]["moves"]), (1, &0.into()));
    assert_eq!(applied[0]["outcome"], "done");
    feeds_on(&cluster);
    let restarts = cluster.json(&["broker", "restart-plan"]);
    let steps = restarts["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 4);
    assert_eq!(steps[3]["controller"], true, "the controller comes last");
}

#[test]
fn a_command_that_waits_outlives_the_broker_that_it_asks() {
    let Some(mut cluster) = Together::start(2, "2s") else {
        return;
    };
    cluster.create("flights", 6, 2);
    let mut command = kera();
    command
        .args(["broker", "add", "3", "--json"])
        .env("KERA_BOOTSTRAP", cluster.bootstrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut waiting = command.spawn().expect("kera can be run");
    // Broker 1 is the first of the list, and has answered when this is said.
    let mut said = String::new();
    let mut stderr = BufReader::new(waiting.stderr.take().expect("it is piped"));
    stderr.read_line(&mut said).expect("a line");
    assert!(said.contains("broker 3 is not there yet"), "{said}");
    cluster.broker(1).kill();
    // That takes a lease, in which it asks many times.
    cluster.until(|status| state(status, 1) == "GONE");
    cluster.broker(1).restart();
    cluster.add();
    let finished = ended_within(waiting, PATIENCE, "kera broker add");
    stderr.read_to_string(&mut said).expect("text");
    assert!(finished.status.success(), "{said}");
    let steps = steps_of(&finished.text());
    let last = &steps[steps.len() - 1];
    assert_eq!(
        (&last["outcome"], &last["state"]),
        (&"done".into(), &"NORMAL".into())
    );
}

#[test]
fn a_cluster_is_initialized_once() {
    let Some(cluster) = Together::start(0, LONG) else {
        return;
    };
    let again = cluster.attempt(&["cluster", "init", "--cluster", &cluster.store()]);
    assert_eq!(again.status.code(), Some(1));
    assert!(again.stderr.contains("already"), "{}", again.stderr);
}
