//! Apache Kafka's own command-line tools, and Kafka Connect.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::broker::{home, unique};
use crate::common::{Broker, PATIENCE, Setup, command, machine, tools, until};

/// The tools' class path; none where Java or Maven are missing, which is said.
fn class_path(test: &str) -> Option<String> {
    if let Some(reason) = tools::missing(&["java", "javac", "mvn"]) {
        machine::skip(&format!("{test}, Kafka's tools"), &reason);
        return None;
    }
    Some(tools::java("tools", "tools", &[]))
}

struct Tools {
    class_path: String,
    broker: Broker,
}

impl Tools {
    fn start(test: &str) -> Option<Self> {
        Some(Self {
            class_path: class_path(test)?,
            broker: Broker::start(test, Setup::KILLED)?,
        })
    }

    fn command(&self, class: &str, words: &[&str]) -> Command {
        let mut command = tools::java_command(&self.class_path);
        command
            .arg(format!("org.apache.kafka.tools.{class}"))
            .args(["--bootstrap-server", self.broker.bootstrap()])
            .args(words);
        command
    }

    /// Runs a tool; what it wrote.
    fn run(&self, class: &str, words: &[&str], input: &str) -> String {
        let command = self.command(class, words);
        command::run(command, input.as_bytes(), PATIENCE)
    }
}

#[test]
fn console_tools() {
    let Some(tools) = Tools::start("console_tools") else {
        return;
    };
    let topic = unique("console");
    let create = [
        "--create",
        "--topic",
        &topic,
        "--partitions",
        "3",
        "--config",
        "retention.ms=100000",
    ];
    tools.run("TopicCommand", &create, "");
    let listed = tools.run("TopicCommand", &["--list"], "");
    assert!(listed.lines().any(|line| line == topic), "{listed}");
    let described = tools.run("TopicCommand", &["--describe", "--topic", &topic], "");
    assert!(described.contains("PartitionCount: 3"), "{described}");
    assert!(described.contains("retention.ms=100000"), "{described}");
    assert_eq!(described.matches("Leader: 1").count(), 3, "{described}");

    let lines: Vec<String> = (0..30).map(|n| format!("key{n}:value{n}")).collect();
    let words = [
        "--topic",
        &topic,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "key.separator=:",
    ];
    tools.run("ConsoleProducer", &words, &(lines.join("\n") + "\n"));
    let group = format!("{topic}-group");
    let words = [
        "--topic",
        &topic,
        "--from-beginning",
        "--max-messages",
        "30",
        "--group",
        &group,
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "key.separator=:",
    ];
    let read = tools.run("consumer.ConsoleConsumer", &words, "");
    let read: BTreeSet<&str> = read.lines().collect();
    assert_eq!(read, lines.iter().map(String::as_str).collect());

    let offsets = tools.run("GetOffsetShell", &["--topic", &topic], "");
    let total: i64 = offsets
        .lines()
        .map(|line| line.rsplit(':').next().expect("an offset"))
        .map(|offset| offset.parse::<i64>().expect("an offset"))
        .sum();
    assert_eq!(total, 30, "{offsets}");

    // What is left to read of the group's, by partition.
    let lags = |tools: &Tools| -> Vec<String> {
        let words = ["--describe", "--group", &group];
        let described = tools.run("consumer.group.ConsumerGroupCommand", &words, "");
        let rows = described.lines().filter(|line| line.starts_with(&group));
        rows.map(|row| row.split_whitespace().nth(5).expect("a lag").to_owned())
            .collect()
    };
    until("the group has read all", || {
        (lags(&tools) == ["0", "0", "0"]).then_some(())
    });
    let words = [
        "--reset-offsets",
        "--group",
        &group,
        "--topic",
        &topic,
        "--to-earliest",
        "--execute",
    ];
    tools.run("consumer.group.ConsumerGroupCommand", &words, "");
    let behind: i64 = lags(&tools)
        .iter()
        .map(|lag| lag.parse::<i64>().expect("a number"))
        .sum();
    assert_eq!(behind, 30);
    let listed = tools.run("consumer.group.ConsumerGroupCommand", &["--list"], "");
    assert!(listed.lines().any(|line| line == group), "{listed}");
    let words = ["--delete", "--group", &group];
    tools.run("consumer.group.ConsumerGroupCommand", &words, "");
    tools.run(
        "TopicCommand",
        &["--alter", "--topic", &topic, "--partitions", "6"],
        "",
    );
    let described = tools.run("TopicCommand", &["--describe", "--topic", &topic], "");
    assert!(described.contains("PartitionCount: 6"), "{described}");
    tools.run("TopicCommand", &["--delete", "--topic", &topic], "");
    let listed = tools.run("TopicCommand", &["--list"], "");
    assert!(listed.lines().all(|line| line != topic), "{listed}");
}

#[test]
fn performance_and_verifiable_tools() {
    let Some(tools) = Tools::start("performance_and_verifiable_tools") else {
        return;
    };
    let topic = unique("verified");
    tools.run(
        "TopicCommand",
        &["--create", "--topic", &topic, "--partitions", "4"],
        "",
    );
    let words = [
        "--topic",
        &topic,
        "--num-records",
        "50000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--command-property",
        "acks=all",
        "--command-property",
        "compression.type=lz4",
    ];
    let said = tools.run("ProducerPerformance", &words, "");
    assert!(said.contains("50000 records sent"), "{said}");

    let words = [
        "--topic",
        &topic,
        "--max-messages",
        "2000",
        "--throughput",
        "-1",
        "--acks",
        "-1",
    ];
    let said = tools.run("VerifiableProducer", &words, "");
    let acknowledged = said
        .lines()
        .filter(|line| line.contains("\"producer_send_success\""))
        .count();
    assert_eq!(acknowledged, 2_000);
    let group = format!("{topic}-group");
    let words = [
        "--topic",
        &topic,
        "--group-id",
        &group,
        "--max-messages",
        "52000",
        "--reset-policy",
        "earliest",
        "--group-protocol",
        "classic",
    ];
    let said = tools.run("VerifiableConsumer", &words, "");
    let read: u64 = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|event| event["name"] == "records_consumed")
        .map(|event| event["count"].as_u64().expect("a count"))
        .sum();
    assert_eq!(read, 52_000);
}

/// A worker of Kafka Connect.
struct Worker(Child);

impl Worker {
    fn start(tools: &Tools, home: &Path) -> Self {
        let mut command = tools::java_command(&tools.class_path);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(home.join("log"))
            .expect("a log can be written");
        let child = command
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .args(["worker", "source", "sink"].map(|name| home.join(name)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn();
        Self(child.expect("Java can be started"))
    }
}

impl Drop for Worker {
    /// As a crash.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn connect_copies_a_file() {
    let Some(mut tools) = Tools::start("connect_copies_a_file") else {
        return;
    };
    let topic = unique("connect");
    let home = home();
    let path = |name: &str| home.path().join(name);
    let write = |name: &str, lines: &[String]| {
        fs::write(path(name), lines.join("\n") + "\n").expect("settings can be written");
    };
    let string = "org.apache.kafka.connect.storage.StringConverter";
    write(
        "worker",
        &[
            format!("bootstrap.servers={}", tools.broker.bootstrap()),
            format!("key.converter={string}"),
            format!("value.converter={string}"),
            format!("offset.storage.file.filename={}", path("offsets").display()),
            "offset.flush.interval.ms=500".to_owned(),
            "listeners=http://127.0.0.1:0".to_owned(),
        ],
    );
    let connector = |name: &str, class: &str, more: &[String]| {
        let mut lines = vec![
            format!("name={name}"),
            format!("connector.class=org.apache.kafka.connect.file.{class}"),
            "tasks.max=1".to_owned(),
        ];
        lines.extend_from_slice(more);
        write(name, &lines);
    };
    let file = |name: &str| format!("file={}", path(name).display());
    connector(
        "source",
        "FileStreamSourceConnector",
        &[file("from"), format!("topic={topic}")],
    );
    connector(
        "sink",
        "FileStreamSinkConnector",
        &[file("to"), format!("topics={topic}")],
    );

    let mut all = Vec::new();
    let mut append = |count: usize| {
        all.extend((all.len()..all.len() + count).map(|n| format!("line {n}")));
        fs::write(path("from"), all.join("\n") + "\n").expect("a file can be written");
        all.iter().cloned().collect::<BTreeSet<String>>()
    };
    let arrived = || -> BTreeSet<String> {
        let text = fs::read_to_string(path("to")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let expected = append(500);
    let worker = Worker::start(&tools, home.path());
    until("the lines are copied", || {
        (arrived() == expected).then_some(())
    });
    drop(worker);
    let expected = append(500);
    let _worker = Worker::start(&tools, home.path());
    until("the worker goes on", || {
        (arrived() == expected).then_some(())
    });
    tools.broker.kill();
    tools.broker.restart();
    let expected = append(500);
    until("the worker survives the broker", || {
        (arrived() == expected).then_some(())
    });
}
