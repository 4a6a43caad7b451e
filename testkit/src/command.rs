//! Runs commands to their end, within limits.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::PATIENCE;

/// How a command ended, and what it wrote.
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Finished {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("the output is text")
    }
}

/// Runs a command to its end. One that takes too long is killed, which fails the test.
pub fn finish(command: Command, input: &[u8]) -> Finished {
    finish_within(command, input, PATIENCE)
}

/// The same, for one that has much to do, and so more time.
pub fn finish_within(mut command: Command, input: &[u8], patience: Duration) -> Finished {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().expect("standard input is piped");
    let input = input.to_vec();
    // A command may write before it has read everything, or end without reading.
    std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    ended_within(child, patience, &format!("{command:?}"))
}

/// Waits for a process that was started, named `what`. One that takes too long is killed, which fails the test.
pub fn ended_within(child: Child, patience: Duration, what: &str) -> Finished {
    let pid = Pid::from_child(&child);
    let (ended, waiting) = sync_channel(1);
    std::thread::spawn(move || {
        let _ = ended.send(child.wait_with_output());
    });
    let Ok(output) = waiting.recv_timeout(patience) else {
        // It has not been waited for, so the id is still its own.
        let _ = kill_process(pid, Signal::KILL);
        panic!("{what} did not end");
    };
    let output = output.expect("the command can be waited for");
    Finished {
        status: output.status,
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// As [`finish_within`]; it must succeed. What it wrote to standard output.
pub fn run(command: Command, input: &[u8], patience: Duration) -> String {
    let said = format!("{command:?}");
    let finished = finish_within(command, input, patience);
    assert!(
        finished.status.success(),
        "{said} failed\n{}\n{}",
        finished.text(),
        finished.stderr
    );
    finished.text()
}

/// Sends a child SIGTERM and waits for its end. One that takes too long is killed, which fails the test.
pub fn stopped(mut child: Child) -> ExitStatus {
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).expect("a child is signalled");
    let (ended, waiting) = sync_channel(1);
    std::thread::spawn(move || ended.send(child.wait()));
    let Ok(status) = waiting.recv_timeout(PATIENCE) else {
        // It has not been waited for, so the id is still its own.
        let _ = kill_process(pid, Signal::KILL);
        panic!("process {pid:?} did not stop at SIGTERM");
    };
    status.expect("a child can be waited for")
}

/// SIGKILL, and waits until the child is gone. It may be gone already, or be going now.
pub fn killed(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Lines of a child, read as they come so that it never waits for its reader.
pub fn lines_of(from: impl Read + Send + 'static) -> Receiver<String> {
    let (lines, received) = sync_channel(16);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Read on even when nobody listens any more.
            let _ = lines.send(line);
        }
    });
    received
}
