//! Runs commands to their end, within limits.

use std::io::Write;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use super::{PATIENCE, pid_of};

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

/// The `kera` binary of this build, undisturbed by the environment.
pub fn kera() -> Command {
    undisturbed(Command::new(env!("CARGO_BIN_EXE_kera")))
}

/// The same, started by another program that becomes it, such as `nsenter`.
pub fn kera_within(program: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(env!("CARGO_BIN_EXE_kera"));
    undisturbed(command)
}

fn undisturbed(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"KERA_") {
            command.env_remove(name);
        }
    }
    command
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
        .expect("the command can be started");
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
    let pid = pid_of(&child);
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
