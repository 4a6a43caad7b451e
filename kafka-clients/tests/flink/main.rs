//! Flink's Kafka source in a local mini-cluster: the job is killed and resumed from its checkpoint,
//! the broker is killed under it, and the sums are exact.

#[path = "../common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use serde::Deserialize;
use serde_json::json;

use common::broker::unique;
use common::home;
use common::{Broker, Kind, NewRecord, PATIENCE, Session, Setup, machine, tools, until};

const PARTITIONS: i32 = 3;

/// What the job has added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct Sums {
    count: i64,
    sum: i64,
}

/// A running job.
struct Job {
    child: Child,
    lines: Receiver<String>,
}

impl Job {
    fn start(class_path: &str, broker: &Broker, topic: &str, checkpoints: &Path) -> Self {
        let mut command = tools::java_command(class_path);
        let mut child = command
            .args([
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                "kera.Sums",
            ])
            .args([broker.bootstrap(), topic])
            .arg(checkpoints)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Java can be started");
        let stdout = child.stdout.take().expect("standard output is piped");
        let (sender, lines) = sync_channel(1024);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    /// Waits until the job has counted that many; what it had then. Numbers do not go back, except
    /// to the last checkpoint.
    fn reach(&self, count: i64) -> Sums {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("the job does not come to {count}"));
            let sums: Sums = serde_json::from_str(&line).expect("the job writes JSON");
            assert!(
                sums.count <= count,
                "{sums:?}: more than {count} were counted"
            );
            if sums.count == count {
                return sums;
            }
        }
    }
}

impl Drop for Job {
    /// As a crash.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn checkpoints_in(directory: &Path) -> usize {
    let list = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten();
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect::<Vec<_>>()
    };
    let jobs = list(directory);
    let all = jobs.iter().flat_map(|job| list(job));
    all.filter(|each| each.join("_metadata").exists()).count()
}

#[test]
fn sums_survive_the_job_and_the_broker() {
    let name = "sums_survive_the_job_and_the_broker";
    if let Some(reason) = tools::missing(&["java", "javac", "mvn"]) {
        machine::skip(&format!("{name}, Flink"), &reason);
        return;
    }
    let Some(mut broker) = Broker::start(name, Setup::KILLED) else {
        return;
    };
    let class_path = tools::java("flink", "flink", &[]);
    let topic = unique("flink");
    let home = home();
    let checkpoints = home.path().join("checkpoints");
    let mut client = Session::open(Kind::Librdkafka, &broker);
    client.create_topic(&topic, PARTITIONS, &[]);
    client.producer("p", json!({"compression": "lz4"}));
    let mut sent = Sums::default();
    let mut send = |client: &mut Session, count: i64| {
        let records: Vec<NewRecord> = (sent.count..sent.count + count)
            .map(|n| NewRecord::new(&n.to_string(), &(n * n).to_string()))
            .collect();
        client.send("p", &topic, &records);
        sent.sum += (sent.count..sent.count + count).map(|n| n * n).sum::<i64>();
        sent.count += count;
        sent
    };

    let expected = send(&mut client, 2_000);
    let job = Job::start(&class_path, &broker, &topic, &checkpoints);
    assert_eq!(job.reach(expected.count), expected);
    // A checkpoint may have been taken before or after all this; some records behind it.
    until("a checkpoint", || {
        (checkpoints_in(&checkpoints) > 0).then_some(())
    });
    send(&mut client, 500);
    drop(job);
    let expected = send(&mut client, 1_000);
    let job = Job::start(&class_path, &broker, &topic, &checkpoints);
    assert_eq!(job.reach(expected.count), expected);

    // The broker dies under the job, which goes on.
    broker.kill();
    broker.restart();
    let expected = send(&mut client, 1_000);
    assert_eq!(job.reach(expected.count), expected);

    // What is done with is committed to the group, at a checkpoint.
    client.consumer("observer", json!({"group": format!("flink-{topic}")}));
    until("the job commits", || {
        let committed = client.committed("observer", &topic, &[0, 1, 2]);
        let total: i64 = committed.iter().map(|each| each.offset).sum();
        (total == expected.count).then_some(())
    });
    // Nothing was counted twice: one more makes one more.
    let expected = send(&mut client, 1);
    assert_eq!(job.reach(expected.count), expected);
}
