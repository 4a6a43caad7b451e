//! The process that makes a run's load.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::interrupt::Interrupt;
use kera_load::Done;

use crate::load::{GO, Plan, Said};

/// How long a load may take to get ready.
const READY: Duration = Duration::from_secs(90);
/// How long its work may take, besides the time that it is told to take.
const WORK: Duration = Duration::from_secs(600);
/// How often it is looked whether someone wants the session to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A load that is ready; ended when dropped.
pub(crate) struct Loader {
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<String>,
    /// How long its work may take.
    within: Duration,
}

impl Loader {
    /// Starts `program` and waits until it is ready.
    pub(crate) fn start(mut program: Command, plan: &Plan, interrupt: &Interrupt) -> Result<Self> {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the load")?;
        let output = child.stdout.take().context("the output is piped")?;
        let (lines, said) = sync_channel(4);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let mut loader = Self {
            input: child.stdin.take(),
            child,
            said,
            within: WORK + Duration::from_millis(plan.crowd.millis.unwrap_or(0)),
        };
        loader.tell(&serde_json::to_string(plan)?)?;
        match loader.hear(READY, interrupt)? {
            Said::Ready => Ok(loader),
            Said::Done(_) => bail!("the load was done before it began"),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it do its work; what it was. The process stays until this is dropped.
    pub(crate) fn work(&mut self, interrupt: &Interrupt) -> Result<Done> {
        self.tell(GO)?;
        match self.hear(self.within, interrupt)? {
            Said::Done(done) => Ok(*done),
            Said::Ready => bail!("the load says that it is ready, again"),
        }
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("the load listens")?;
        let told = writeln!(input, "{line}").and_then(|()| input.flush());
        told.context("the load does not listen")
    }

    fn hear(&mut self, within: Duration, interrupt: &Interrupt) -> Result<Said> {
        let begin = Instant::now();
        loop {
            interrupt.check()?;
            match self.said.recv_timeout(LOOK_EVERY) {
                Ok(line) => {
                    return serde_json::from_str(&line)
                        .with_context(|| format!("the load says `{line}`"));
                }
                Err(RecvTimeoutError::Timeout) if begin.elapsed() < within => {}
                Err(RecvTimeoutError::Timeout) => bail!("the load did not end within {within:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("{}", self.last_words()),
            }
        }
    }

    /// What it wrote to its standard error before it ended.
    fn last_words(&mut self) -> String {
        let mut text = String::new();
        if let Some(errors) = self.child.stderr.take() {
            let _ = errors.take(64 << 10).read_to_string(&mut text);
        }
        let text = text.trim();
        if text.is_empty() {
            "the load ended without a word".to_owned()
        } else {
            let text = text.trim_start_matches("kera-bench: ");
            text.trim_start_matches("nats-load: ").to_owned()
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
