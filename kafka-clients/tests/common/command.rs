//! Runs commands to their end, within limits.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// How a command ended, and what it wrote.
#[derive(Debug)]
pub struct Finished {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end. One that takes longer than `limit` is killed, which fails the test.
pub fn finish(mut command: Command, input: &[u8], limit: Duration) -> Finished {
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
    let pid = rustix::process::Pid::from_child(&child);
    let (ended, waiting) = sync_channel(1);
    std::thread::spawn(move || {
        let _ = ended.send(child.wait_with_output());
    });
    let Ok(output) = waiting.recv_timeout(limit) else {
        // It has not been waited for, so the id is still its own.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        panic!("{command:?} did not end within {limit:?}");
    };
    let output = output.expect("the command can be waited for");
    Finished {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// As [`finish`]; it must succeed. What it wrote to standard output.
pub fn run(command: Command, input: &[u8], limit: Duration) -> String {
    let said = format!("{command:?}");
    let finished = finish(command, input, limit);
    assert!(
        finished.success,
        "{said} failed\n{}\n{}",
        finished.stdout, finished.stderr
    );
    finished.stdout
}
