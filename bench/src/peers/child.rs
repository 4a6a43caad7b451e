//! A broker's process, ended with its handle.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// How long a broker may take to end by itself.
const GRACE: Duration = Duration::from_secs(20);
/// Lines of a log that are shown.
const LOG_LINES: usize = 12;

/// A process whose output goes to a file; ended when dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
    begun: Instant,
}

impl Process {
    /// Starts `command`; what it says goes to `log`, but for a piped standard output.
    pub(crate) fn start(mut command: Command, log: PathBuf, piped: bool) -> Result<Self> {
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let out = if piped {
            Stdio::piped()
        } else {
            file.try_clone()?.into()
        };
        let begun = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { child, log, begun })
    }

    /// When it was started.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output, if that was piped and nobody took it yet.
    pub(crate) fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// True once it has ended.
    pub(crate) fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        // Not waited for yet, so the id is still its own.
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // Gone already, or going now; either will do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The end of what it wrote.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        format!("the end of its log:\n  {tail}\n ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended() {
            return;
        }
        // Not waited for yet, so the id is still its own.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begin = Instant::now();
        while !self.ended() {
            if begin.elapsed() > GRACE {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            pause(Duration::from_millis(20));
        }
    }
}

/// Waits where there is no event to wait for: a state of another process.
pub(crate) fn pause(time: Duration) {
    let begin = Instant::now();
    while let Some(left) = time
        .checked_sub(begin.elapsed())
        .filter(|left| !left.is_zero())
    {
        std::thread::park_timeout(left);
    }
}
