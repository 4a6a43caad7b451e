//! A process of a run, as the harness sees it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::plan::{Ask, Said};
use crate::session::interrupt::Interrupt;

/// Longest wait for a word.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often it is looked whether someone wants the session to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A process; killed when dropped.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    said: Receiver<String>,
}

impl Worker {
    /// Starts `kera-bench COMMAND` and tells it its plan.
    pub fn start(command: &str, plan: &impl Serialize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command}"))?;
        let input = child.stdin.take().context("the input is piped")?;
        let output = child.stdout.take().context("the output is piped")?;
        let (lines, said) = sync_channel(4);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let mut worker = Self { child, input, said };
        worker.tell(plan)?;
        Ok(worker)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what)?;
        let told = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        told.with_context(|| self.last_words())
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, ask: Ask, interrupt: &Interrupt) -> Result<Said> {
        self.tell(&ask)?;
        self.hear(interrupt)
    }

    /// The next word.
    pub fn hear(&mut self, interrupt: &Interrupt) -> Result<Said> {
        let begin = Instant::now();
        loop {
            interrupt.check()?;
            match self.said.recv_timeout(LOOK_EVERY) {
                Ok(line) => {
                    return serde_json::from_str(&line)
                        .with_context(|| format!("a process says `{line}`"));
                }
                Err(RecvTimeoutError::Timeout) if begin.elapsed() < PATIENCE => {}
                Err(RecvTimeoutError::Timeout) => bail!("a process said nothing for {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("{}", self.last_words()),
            }
        }
    }

    /// User and system time so far, in seconds.
    pub fn cpu(&mut self, interrupt: &Interrupt) -> Result<f64> {
        match self.ask(Ask::Cpu, interrupt)? {
            Said::Cpu(nanos) => Ok(nanos as f64 / 1e9),
            said => bail!("asked for its CPU time, a process says {said:?}"),
        }
    }

    /// What it wrote to its standard error before it ended.
    fn last_words(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(errors) = self.child.stderr.take() {
            let _ = errors.take(64 << 10).read_to_string(&mut text);
        }
        match text.trim() {
            "" => "a process ended without a word".to_owned(),
            text => text.trim_start_matches("kera-bench: ").to_owned(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
