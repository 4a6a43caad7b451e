//! How `kera consume --group` ends: at the end of what there is, at a signal, and when nobody reads it.

use std::io::{BufReader, Read};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::command::ended_within;
use crate::common::{Broker, Finished, PATIENCE, kera};

/// A running `kera consume`. Its standard output is read by the test.
struct Consuming {
    child: Option<Child>,
    output: Option<BufReader<std::process::ChildStdout>>,
}

impl Consuming {
    fn start(broker: &Broker, words: &[&str]) -> Self {
        let mut command = kera();
        command
            .arg("consume")
            .args(words)
            .env("KERA_BOOTSTRAP", broker.address())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command can be started");
        let output = child.stdout.take().map(BufReader::new);
        Self {
            child: Some(child),
            output,
        }
    }

    /// Reads so many bytes.
    fn read(&mut self, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        let output = self.output.as_mut().expect("the output is open");
        output.read_exact(&mut read).expect("it writes so much");
        read
    }

    fn signal(&self) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), Signal::TERM).expect("a child is signalled");
    }

    /// Waits for its end; what it said.
    fn end(mut self) -> Finished {
        let child = self.child.take().expect("it runs");
        ended_within(child, PATIENCE, "kera consume")
    }
}

impl Drop for Consuming {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Gone already, or going now; either will do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_signal_ends_it_while_the_broker_is_away() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    // More than a pipe takes: it is still being written when the broker goes.
    let record = vec![b'x'; 300_000];
    broker.feed(&["produce", "s", "-q", "-f", "raw"], &record);
    let mut consuming = Consuming::start(&broker, &["s", "--group", "g", "--follow"]);
    consuming.read(1);
    broker.kill();
    consuming.read(record.len());
    // Wherever this meets it, the record can no longer be committed.
    consuming.signal();
    let ended = consuming.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("is not committed, and group \"g\""),
        "{}",
        ended.stderr
    );
    broker.restart();
    let again = broker.run(&["consume", "s", "--group", "g"]);
    assert_eq!(again.len(), record.len() + 1, "the group gets it again");
}

#[test]
fn a_signal_commits_what_was_written() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"1\n");
    let mut consuming = Consuming::start(&broker, &["s", "--group", "g", "--follow"]);
    assert_eq!(consuming.read(2), b"1\n");
    consuming.signal();
    let ended = consuming.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert_eq!(broker.run(&["consume", "s", "--group", "g"]), "");
}

#[test]
fn it_leaves_the_group_when_nobody_reads_it() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"1\n");
    let mut consuming = Consuming::start(&broker, &["s", "--group", "g", "--follow"]);
    assert_eq!(consuming.read(2), b"1\n");
    consuming.output = None;
    broker.feed(&["produce", "s", "-q"], b"2\n");
    let ended = consuming.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr, "");
    assert_eq!(broker.json(&["group", "describe", "g"])["members"], 0);
    assert_eq!(
        broker.run(&["consume", "s", "--group", "g"]),
        "2\n",
        "what nobody read is not committed"
    );
}

#[test]
fn it_ends_where_nothing_is_left_although_ordinals_go_on() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s", "--lanes", "2", "--ack", "memory"]);
    let produce = ["produce", "s", "-q", "--key-separator", ","];
    broker.feed(&produce, b"a,1\nb,2\nc,3\nd,4\n");
    let orders = ["lane", "none"];
    for order in orders {
        broker.run(&["consume", "s", "--group", order, "--order", order]);
    }
    // The heads go up, and nothing is below them.
    broker.kill();
    broker.restart();
    let described = broker.json(&["stream", "describe", "s"]);
    let lanes = described["lane_descriptions"].as_array().expect("lanes");
    let head = |lane: &serde_json::Value| lane["head_ordinal"].as_u64().expect("a head");
    assert!(
        lanes.iter().all(|lane| head(lane) >= 1 << 32),
        "{described}"
    );
    for order in orders {
        broker.run(&["consume", "s", "--group", order, "--order", order]);
        assert_eq!(broker.json(&["group", "describe", order])["lag"], 0);
    }
    broker.feed(&produce, b"a,5\n");
    for order in orders {
        let again = broker.run(&["consume", "s", "--group", order, "--order", order]);
        assert_eq!(again, "5\n", "{order}");
    }
}

#[test]
fn it_ends_where_all_is_trimmed() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"1\n2\n3\n");
    for order in ["lane", "none"] {
        let consume = ["consume", "s", "--group", order, "--order", order];
        assert_eq!(broker.run(&[&consume[..], &["--max", "1"]].concat()), "1\n");
    }
    broker.run(&["stream", "trim", "s", "--everything", "--yes"]);
    for order in ["lane", "none"] {
        let consume = ["consume", "s", "--group", order, "--order", order];
        assert_eq!(broker.run(&consume), "");
    }
}
