//! The demo's broker: a process of its own, so that it can be killed.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use crate::failure::Failure;

/// A broker that takes longer to start has failed.
const START_WITHIN: Duration = Duration::from_secs(15);
/// A broker that takes longer to stop is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// How often a stopping broker is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running broker. Killed when dropped, unless it is to be kept.
pub(super) struct BrokerProcess {
    child: Option<Child>,
    /// HOST:PORT.
    pub(super) address: String,
    /// Its process id.
    pub(super) pid: u32,
}

/// Where the broker's records are.
pub(super) fn data_dir(home: &Path) -> PathBuf {
    home.join("data")
}

/// Where the broker's log goes.
pub(super) fn log_file(home: &Path) -> PathBuf {
    home.join("broker.log")
}

impl BrokerProcess {
    /// Starts `kera serve` below `home`, listening on `listen`, and waits until it serves.
    pub(super) async fn start(home: &Path, listen: &str) -> Result<Self, Failure> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log_file(home))?;
        let mut command = Command::new(std::env::current_exe()?);
        // What is set in the environment is meant for other brokers than this one.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"KERA_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .arg("serve")
            .arg("--data-dir")
            .arg(data_dir(home))
            .args(["--listen", listen, "--http-listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            // Its own group: an interrupt on the terminal is for the demo, which stops the broker.
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::message(format!("cannot start a broker: {error}")))?;
        let pid = child.id();
        let (said, listening) = oneshot::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut said = Some(said);
                // To the end: a broker whose reader goes away could not speak any more.
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Some(address) = line.strip_prefix("listening on ")
                        && let Some(said) = said.take()
                    {
                        let _ = said.send(address.trim().to_owned());
                    }
                }
            });
        }
        let mut broker = Self {
            child: Some(child),
            address: String::new(),
            pid,
        };
        match tokio::time::timeout(START_WITHIN, listening).await {
            Ok(Ok(address)) => {
                broker.address = address;
                Ok(broker)
            }
            // Its output ended, or it is silent: either way its log knows more.
            Ok(Err(_)) | Err(_) => Err(Failure::message(format!(
                "the broker did not start; its log {} ends with:\n{}",
                log_file(home).display(),
                tail(&log_file(home))
            ))),
        }
    }

    /// Kills it with SIGKILL, as a power switch would, and waits until it is gone.
    pub(super) fn kill(&mut self) -> Result<(), Failure> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Stops it in order with SIGTERM.
    pub(super) async fn stop(&mut self) -> Result<(), Failure> {
        let Some(child) = self.child.as_mut() else {
            return Ok(());
        };
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // It may be gone already.
            let _ = kill_process(pid, Signal::TERM);
        }
        let begin = Instant::now();
        while begin.elapsed() < STOP_WITHIN {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                if status.success() {
                    return Ok(());
                }
                return Err(Failure::message(format!(
                    "the broker stopped with {status}"
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.kill()?;
        Err(Failure::message(
            "the broker did not stop on SIGTERM and was killed",
        ))
    }

    /// Leaves it running.
    pub(super) fn keep(mut self) {
        self.child = None;
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        // Nothing can be done about a process that cannot be killed.
        let _ = self.kill();
    }
}

/// The last lines of a file.
pub(super) fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
