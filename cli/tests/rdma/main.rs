//! Brokers whose copies travel over RDMA: `make test-rdma` boots a virtual machine with a network
//! card made of software and runs this there. `KERA_RDMA_ADDRESS` names the card's address; without
//! it every test says that it did not run.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code)]
#[path = "../replicated/trio.rs"]
mod trio;

use kera_testkit::etcd;
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Instant;

use common::{Broker, PATIENCE, kera, machine};
use trio::{Trio, lines};

const ADDRESS: &str = "KERA_RDMA_ADDRESS";

/// The card's address; where there is none it says loudly that `test` did not run.
fn address(test: &str) -> Option<String> {
    let address = std::env::var(ADDRESS).ok();
    if address.is_none() {
        let reason = format!("{ADDRESS} names no card; run make test-rdma");
        machine::skip(&format!("brokers over rdma: {test}"), &reason);
    }
    address
}

/// The transports that a broker says it uses, each with its card.
fn used(broker: &Broker) -> Vec<(String, String)> {
    let described = broker.json(&["broker", "describe"]);
    let transports = described["cluster"]["transports"].as_array().cloned();
    let transports = transports.expect("a list").into_iter();
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    transports
        .filter(|one| one["used"] == true)
        .inspect(|one| assert!(one["unusable"].is_null(), "{one:#}"))
        .map(|one| (text(&one["name"]), text(&one["by"])))
        .collect()
}

/// Kills the broker, takes its own files away, and waits until it serves again what others hold.
fn come_back_without_files(trio: &mut Trio) {
    let files = trio.group_files("s");
    assert!(files.len() > 1, "{files:?}");
    trio.broker.kill();
    for file in files {
        fs::remove_file(file).expect("a file can be removed");
    }
    trio.broker.restart();
    let begun = Instant::now();
    while !trio.is_served("s") {
        assert!(begun.elapsed() < PATIENCE, "{}", trio.broker.log());
        std::thread::yield_now();
    }
}

const RDMA: [&str; 2] = ["--cluster-transport", "rdma"];

#[test]
fn copies_travel_over_the_card_and_come_back() {
    let Some(ip) = address("copies_travel_over_the_card_and_come_back") else {
        return;
    };
    let Some(mut trio) = Trio::at(&ip, &[&RDMA, &RDMA], &RDMA) else {
        return;
    };
    let uses = used(&trio.broker);
    assert_eq!(uses, [("rdma".to_owned(), "rxe0".to_owned())]);
    let said = trio.broker.run(&["broker", "describe"]);
    assert!(said.contains("rdma (rxe0)"), "{said}");
    trio.create("s", "3", "3");
    let all = lines(0..2000);
    trio.produce("s", &all);
    for peer in ["2", "3"] {
        let shipped = format!("kera_peer_shipped_bytes_total{{peer=\"{peer}\"}}");
        assert!(trio.metric(&shipped) > 200_000, "{}", trio.metrics());
    }
    for backup in &trio.backups {
        let log = backup.log();
        assert!(log.contains("replicas are received over RDMA"), "{log}");
    }
    let log = trio.broker.log();
    assert!(!log.contains("its data goes over TCP"), "{log}");
    come_back_without_files(&mut trio);
    assert_eq!(trio.consume("s"), all);
    let more = lines(2000..2500);
    trio.produce("s", &more);
    assert_eq!(trio.consume("s"), [all, more].concat());
}

#[test]
fn a_backup_that_dies_under_load_costs_no_record() {
    let Some(ip) = address("a_backup_that_dies_under_load_costs_no_record") else {
        return;
    };
    let Some(mut trio) = Trio::at(&ip, &[&RDMA, &RDMA], &RDMA) else {
        return;
    };
    trio.create("s", "3", "2");
    let mut command = kera();
    command
        .args(["produce", "s", "--quiet", "--batch-size", "4KiB"])
        .env("KERA_BOOTSTRAP", trio.broker.address())
        .stdin(Stdio::piped());
    let mut producer = command.spawn().expect("the command can be started");
    let mut input = producer.stdin.take().expect("standard input is piped");
    let mut feed = |lines: &[String]| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let fed = input.write_all(text.as_bytes());
        fed.expect("the producer reads");
    };
    let all = lines(0..3000);
    feed(&all[..1000]);
    trio.backups[0].kill();
    feed(&all[1000..2000]);
    trio.backups[0].restart();
    feed(&all[2000..]);
    drop(input);
    let ended = producer.wait().expect("the command can be waited for");
    assert!(ended.success(), "{ended}");
    assert_eq!(trio.consume("s"), all);
    come_back_without_files(&mut trio);
    assert_eq!(trio.consume("s"), all);
}

#[test]
fn auto_takes_the_card_and_reaches_who_has_none_over_tcp() {
    let Some(ip) = address("auto_takes_the_card_and_reaches_who_has_none_over_tcp") else {
        return;
    };
    let without = ["--cluster-transport", "tcp"];
    let Some(mut trio) = Trio::at(&ip, &[&[], &without], &[]) else {
        return;
    };
    assert_eq!(used(&trio.broker)[0].0, "rdma");
    trio.create("s", "3", "3");
    let all = lines(0..2000);
    trio.produce("s", &all);
    let log = trio.broker.log();
    let over_tcp = log.lines().filter(|l| l.contains("its data goes over TCP"));
    let over_tcp: Vec<_> = over_tcp.collect();
    assert!(!over_tcp.is_empty(), "{log}");
    let of_that_one = over_tcp.iter().all(|line| line.contains("broker 3"));
    assert!(of_that_one, "{over_tcp:?}");
    come_back_without_files(&mut trio);
    assert_eq!(trio.consume("s"), all);
}
