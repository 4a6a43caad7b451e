//! A client in a process of its own.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::PATIENCE;

/// Something that does what requests ask of a client.
pub trait Client {
    /// The answer to a request: an object with `ok`, `error` or `unsupported`.
    fn answer(&mut self, request: &Value) -> Value;
}

/// A program that reads requests from its standard input.
pub struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    /// What it last said of itself.
    said: Arc<Mutex<VecDeque<String>>>,
}

/// Lines that are kept of what a program says of itself.
const SAID_LINES: usize = 200;

impl Agent {
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = child.stdout.take().expect("standard output is piped");
        let (lines, answers) = sync_channel(4);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        let stderr = child.stderr.take().expect("standard error is piped");
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let keeps = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = keeps.lock().expect("nobody panics with it");
                if said.len() == SAID_LINES {
                    said.pop_front();
                }
                said.push_back(line);
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            answers,
            said,
        }
    }
}

impl Client for Agent {
    fn answer(&mut self, request: &Value) -> Value {
        let stdin = self.stdin.as_mut().expect("the client's program runs");
        writeln!(stdin, "{request}").expect("the client's program listens");
        let line = self
            .answers
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|error| panic!("no answer to {request}: {error}"));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"))
    }
}

impl Drop for Agent {
    /// As a crash: what the client had open stays open.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking()
            && let Ok(said) = self.said.lock()
            && !said.is_empty()
        {
            eprintln!("the last words of a client's program:");
            for line in said.iter() {
                eprintln!("    {line}");
            }
        }
    }
}
