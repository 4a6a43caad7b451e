//! How `kera produce` ends at a signal while its input stands still.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::command::ended_within;
use crate::common::{Broker, PATIENCE, kera};

/// `kera produce` with an input that the test writes and does not end.
fn producing(broker: &Broker) -> Child {
    let mut command = kera();
    command
        .args(["produce", "s"])
        .env("KERA_BOOTSTRAP", broker.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("the command can be started")
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("a child is signalled");
}

#[test]
fn a_signal_tells_how_many_are_acknowledged() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    let mut child = producing(&broker);
    let mut input = child.stdin.take().expect("an input");
    input.write_all(b"1\n2\n3\n").expect("it reads");
    let read = broker.run(&["consume", "s", "--follow", "--max", "3"]);
    assert_eq!(read, "1\n2\n3\n");
    send(&child, Signal::INT);
    let ended = ended_within(child, PATIENCE, "kera produce");
    drop(input);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("error: ended by SIGINT; all 3 records before were acknowledged"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_second_signal_does_not_wait_for_a_broker_that_is_away() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    let mut child = producing(&broker);
    let mut input = child.stdin.take().expect("an input");
    input.write_all(b"1\n").expect("it reads");
    assert_eq!(
        broker.run(&["consume", "s", "--follow", "--max", "1"]),
        "1\n"
    );
    broker.kill();
    input.write_all(b"2\n").expect("it reads");
    let mut said = BufReader::new(child.stderr.take().expect("its errors"));
    // It has read that record once it waits for the broker.
    let mut line = String::new();
    while !line.contains("wait") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("it writes"), 0, "it waits");
    }
    send(&child, Signal::TERM);
    while !line.contains("SIGTERM") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("it writes"), 0, "it says");
    }
    send(&child, Signal::INT);
    let mut told = String::new();
    while said.read_line(&mut told).expect("it writes") > 0 {}
    let ended = ended_within(child, PATIENCE, "kera produce");
    drop(input);
    assert_eq!(ended.status.code(), Some(130), "{told}");
    let fate = "ended by SIGTERM; of 2 records sent, 1 was acknowledged and 1 was not";
    assert!(told.contains(fate), "{told}");
}
