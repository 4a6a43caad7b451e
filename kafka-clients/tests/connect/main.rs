//! Kafka Connect with exactly-once sources: distributed workers read lines of a file into a topic, while workers and
//! the broker are killed. Each line is there once, in order.
//!
//! `KERA_KAFKA_CONNECT_ROUNDS` (default 4) is the number of faults.

#[path = "../common/mod.rs"]
mod common;

mod worker;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use tempfile::TempDir;

use common::broker::unique;
use common::{Broker, Kind, Session, Setup, home, machine, tools, until};
use worker::Worker;

/// Lines that a fault finds under way. The connector takes 2,000 at once, and what it has read beyond them it keeps back until
/// the file grows.
const LINES: usize = 400;

fn rounds() -> u64 {
    let text = std::env::var("KERA_KAFKA_CONNECT_ROUNDS");
    text.map_or(4, |text| {
        let number = text.parse();
        number.unwrap_or_else(|_| panic!("KERA_KAFKA_CONNECT_ROUNDS is not a number: {text}"))
    })
}

/// The file, and what of it is in the topic.
struct Lines {
    client: Session,
    home: TempDir,
    written: usize,
    read: usize,
    /// Copies of lines in the topic, also of transactions that were aborted, up to the last fault.
    sent: usize,
}

impl Lines {
    fn new(mut client: Session, topic: &str) -> Self {
        for isolation in ["read_committed", "read_uncommitted"] {
            client.consumer(isolation, json!({"isolation": isolation}));
            client.assign(isolation, topic, &[0], json!("beginning"));
        }
        let home = home();
        let lines = Self {
            client,
            home,
            written: 0,
            read: 0,
            sent: 0,
        };
        File::create(lines.path()).expect("a file can be made");
        lines
    }

    fn path(&self) -> PathBuf {
        self.home.path().join("lines")
    }

    fn write(&mut self, count: usize) {
        let lines = (self.written..self.written + count).map(|n| format!("line {n}\n"));
        let text: String = lines.collect();
        let file = File::options().append(true).open(self.path());
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.expect("a file can be written");
        self.written += count;
    }

    /// Reads until there are so many lines in the topic.
    fn read(&mut self, count: usize, workers: &mut [Worker]) {
        while self.read < count {
            until("lines are copied", || {
                workers.iter_mut().for_each(Worker::check);
                self.poll(200)
            });
        }
    }

    /// Waits until a transaction has the last line, committed or not.
    fn is_sent(&mut self, workers: &mut [Worker]) {
        let last = format!("line {}", self.written - 1);
        until("the last line is sent", || {
            workers.iter_mut().for_each(Worker::check);
            let polled = self.client.try_poll("read_uncommitted", 50).ok()?;
            self.sent += polled.records.len();
            let mut records = polled.records.iter();
            records.any(|read| read.text() == last).then_some(())
        });
    }

    /// `None` if nothing came. Each line comes once, in order.
    fn poll(&mut self, wait_ms: u64) -> Option<()> {
        // Errors of the time without a broker pass.
        let polled = self.client.try_poll("read_committed", wait_ms).ok()?;
        for read in &polled.records {
            let expected = format!("line {}", self.read);
            assert_eq!(read.text(), expected, "at {:?}", read.place());
            self.read += 1;
        }
        (!polled.records.is_empty()).then_some(())
    }
}

#[test]
fn each_line_is_there_once_whatever_is_killed() {
    const TEST: &str = "each_line_is_there_once_whatever_is_killed";
    if let Some(reason) = tools::missing(&["java", "javac", "mvn"]) {
        return machine::skip(&format!("{TEST}, Kafka Connect"), &reason);
    }
    let class_path = tools::java("tools", "tools", &[]);
    let Some(mut broker) = Broker::start(TEST, Setup::KILLED) else {
        return;
    };
    let group = unique("connect");
    let topic = format!("{group}-lines");
    let mut client = Session::open(Kind::Librdkafka, &broker);
    client.create_topic(&topic, 1, &[]);
    let mut lines = Lines::new(client, &topic);
    let worker = || Worker::new(&class_path, broker.bootstrap(), &group);
    let mut workers = [worker(), worker()];
    workers[0].start();
    let config = json!({
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": lines.path(),
        "topic": topic,
        // A transaction is open for a while, so that a fault finds it so.
        "transaction.boundary": "interval",
        "transaction.boundary.interval.ms": "2000",
        "exactly.once.support": "required",
    });
    let path = format!("/connectors/{group}/config");
    until("the connector is made", || {
        workers.iter_mut().for_each(Worker::check);
        let (status, told) = workers[0].ask("PUT", &path, &config.to_string())?;
        assert!(
            status != 400,
            "the connector's settings are refused: {told}"
        );
        (status == 201 || status == 200).then_some(())
    });
    let rounds = rounds();
    for round in 0..rounds {
        lines.write(LINES);
        lines.is_sent(&mut workers);
        eprintln!("fault {}, {} lines were copied", round % 4, lines.read);
        match round % 4 {
            0 => {
                workers[0].kill();
                workers[0].start();
            }
            1 => {
                broker.kill();
                broker.restart();
            }
            // Another one takes over: it fences what the first one left.
            2 => {
                workers[1].start();
                until("the other worker serves", || {
                    workers.iter_mut().for_each(Worker::check);
                    let (status, _) = workers[1].ask("GET", "/", "")?;
                    (status == 200).then_some(())
                });
                workers[0].kill();
            }
            _ => {
                workers[1].kill();
                broker.kill();
                workers[0].start();
                broker.restart();
            }
        }
        let written = lines.written;
        lines.read(written, &mut workers);
    }
    lines.write(LINES);
    let written = lines.written;
    lines.read(written, &mut workers);
    let mut quiet = 0;
    while quiet < 5 {
        quiet = lines.poll(200).map_or(quiet + 1, |()| 0);
    }
    assert_eq!(lines.read, written, "each line is there once");
    // `make test-long` takes this line into its results.
    println!(
        "cluster: Kafka Connect, {rounds} faults, {written} lines copied once, {} before the last fault with those that were aborted",
        lines.sent
    );
}
