//! Samples of a process, taken by Linux's `perf`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::stacks::Stacks;

/// How `perf` is had.
const INSTALL: &str = "a profile needs Linux's perf: on Debian `apt-get install linux-perf`, on Ubuntu \
    `linux-tools-generic`, elsewhere the package `perf`";
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// A `perf` that works here.
pub(super) struct Perf {
    /// What is counted: `cycles`, or `cpu-clock` where the processor's counters are hidden, as in most
    /// virtual machines.
    pub event: &'static str,
    /// The kernel's part is seen.
    pub kernel: bool,
}

impl Perf {
    /// Looks what this machine allows, and says what it does not.
    pub(super) fn look() -> Result<Self> {
        let there = quiet(Command::new("perf").arg("--version"));
        ensure!(there, "{INSTALL}");
        let works = |event: &str| counts(event);
        let events = ["cycles", "cpu-clock"];
        let whole = events.into_iter().find(|event| works(event));
        if let Some(event) = whole {
            let perf = Self {
                event,
                kernel: true,
            };
            perf.tell();
            return Ok(perf);
        }
        let user = [("cycles", "cycles:u"), ("cpu-clock", "cpu-clock:u")];
        let Some((_, event)) = user.into_iter().find(|(_, event)| works(event)) else {
            let level = std::fs::read_to_string(PARANOID).unwrap_or_default();
            bail!(
                "perf may not sample here ({PARANOID} is {}): run as root, or `sysctl \
                 kernel.perf_event_paranoid=1`",
                level.trim()
            );
        };
        let perf = Self {
            event,
            kernel: false,
        };
        perf.tell();
        Ok(perf)
    }

    fn tell(&self) {
        if !self.event.starts_with("cycles") {
            eprintln!("perf: the processor's counters are not there, sampling by the clock");
        }
        if !self.kernel {
            eprintln!(
                "perf: THE KERNEL'S PART IS NOT SEEN, and that is most of it: run as root, or \
                 `sysctl kernel.perf_event_paranoid=1`"
            );
        } else if symbols_hidden() {
            eprintln!(
                "perf: THE KERNEL'S NAMES ARE HIDDEN, so its work counts as other: run as root, or \
                 `sysctl kernel.kptr_restrict=0`"
            );
        }
    }

    /// Samples the process `pid` from now on.
    pub(super) fn record(&self, pid: u32, frequency: u32, file: &Path) -> Result<Recording> {
        let child = Command::new("perf")
            .args(["record", "--quiet", "--call-graph", "fp"])
            .args(["--event", self.event, "--freq", &frequency.to_string()])
            .args(["--pid", &pid.to_string(), "--output"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run perf")?;
        Ok(Recording {
            child: Some(child),
            file: file.to_owned(),
        })
    }
}

/// Samples that are being taken.
pub(super) struct Recording {
    child: Option<Child>,
    file: PathBuf,
}

impl Recording {
    /// Ends the sampling; the stacks that were seen.
    pub(super) fn stop(mut self) -> Result<Stacks> {
        let child = self.child.take().context("it runs")?;
        kill_process(Pid::from_child(&child), Signal::INT)?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        // It ends by the signal that it was sent, once the file is written.
        let written = std::fs::metadata(&self.file).is_ok_and(|file| file.len() > 0);
        ensure!(written, "perf wrote nothing: {}", said.trim());
        let output = Command::new("perf")
            // Resolving inlined calls takes minutes; what is inlined counts for its caller.
            .args(["script", "--no-inline", "--fields", "ip,sym", "--input"])
            .arg(&self.file)
            .output()
            .context("cannot run perf")?;
        ensure!(
            output.status.success(),
            "perf cannot read what it wrote: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(Stacks::parse(&String::from_utf8_lossy(&output.stdout)))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn quiet(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    command
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// True if `event` can be counted, and is: without a counter in hardware perf says so in its output
/// and yet succeeds.
fn counts(event: &str) -> bool {
    let output = Command::new("perf")
        .args(["stat", "--field-separator", ",", "--event", event, "true"])
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| {
        let said = String::from_utf8_lossy(&output.stderr);
        // Without the right to see the kernel, `cycles` silently becomes `cycles:u`.
        let narrowed = !event.ends_with(":u") && said.contains(&format!(",{event}:u,"));
        output.status.success() && counted(&said) && !narrowed
    })
}

/// True if a line of `perf stat -x ,` begins with a number above zero.
fn counted(said: &str) -> bool {
    said.lines().any(|line| {
        let number = line.split(',').next().unwrap_or_default();
        number.parse::<f64>().is_ok_and(|number| number > 0.0)
    })
}

/// True if the kernel tells everyone that all of its functions are at address 0.
fn symbols_hidden() -> bool {
    use std::io::BufRead;
    let Ok(file) = std::fs::File::open("/proc/kallsyms") else {
        return true;
    };
    let mut lines = std::io::BufReader::new(file).lines().map_while(Result::ok);
    lines.next().is_none_or(|line| {
        line.split(' ')
            .next()
            .unwrap_or("0")
            .trim_matches('0')
            .is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_not_there_is_told_from_one_that_is() {
        assert!(counted("702345,,cycles,702345,100.00,,\n"));
        assert!(counted(
            "0.55,msec,cpu-clock,550000,100.00,0.6,CPUs utilized\n"
        ));
        assert!(!counted("<not supported>,,cycles,0,100.00,,\n"));
        assert!(!counted("0,,cycles,0,100.00,,\n"));
    }
}
