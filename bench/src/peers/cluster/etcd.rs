//! The etcd that a cluster's brokers share, and what it counts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kera_testkit::ports::Reserved;
use kera_testkit::program::undisturbed;

use crate::measure::machine::first_line_of;
use crate::peers::child::{Process, pause};

/// How long it may take to start.
const START: Duration = Duration::from_secs(30);
const TRY_EVERY: Duration = Duration::from_millis(20);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Far more than its metrics are.
const MOST_ANSWER: u64 = 4 << 20;

/// A server with one member.
pub(crate) struct Etcd {
    pub process: Process,
    address: String,
    pub version: String,
}

/// What it has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Changes that it agreed on.
    pub transactions: u64,
    /// Keys put or deleted.
    pub keys: u64,
}

impl Etcd {
    /// Starts a server on a directory and waits until it answers.
    pub(crate) fn start(data: &Path) -> Result<Self> {
        std::fs::create_dir_all(data)?;
        let address = Reserved::for_ever();
        let (clients, peers) = (
            format!("http://{address}"),
            format!("http://{}", Reserved::for_ever()),
        );
        let mut command = undisturbed(Command::new("etcd"), "ETCD_");
        command
            .arg("--data-dir")
            .arg(data.join("data"))
            .args(["--name", "bench", "--log-level", "error"])
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("bench={peers}")]);
        let process = Process::start(command, data.join("etcd.log"), false)
            .context("cannot run etcd; install etcd-server with your system's packages")?;
        let version = first_line_of("etcd", &["--version"]).unwrap_or_default();
        let etcd = Self {
            process,
            address,
            version: version.trim_start_matches("etcd Version: ").to_owned(),
        };
        let begin = Instant::now();
        loop {
            let health = etcd.get("/health");
            if health.as_ref().is_ok_and(|text| text.contains("true")) {
                return Ok(etcd);
            }
            ensure!(
                begin.elapsed() < START,
                "etcd is not well after {START:?}; {}",
                etcd.process.log_tail()
            );
            pause(TRY_EVERY);
        }
    }

    /// The URL by which brokers know it.
    pub(crate) fn url(&self) -> String {
        format!("etcd://{}", self.address)
    }

    /// What it has done since it began.
    pub(crate) fn counts(&self) -> Result<Counts> {
        counts(&self.get("/metrics")?)
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(ANSWER))?;
        // Of this version no answer comes in chunks.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(MOST_ANSWER).read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.contains(" 200 "), "etcd answers {head}");
        Ok(body.to_owned())
    }
}

/// What is told in Prometheus' text format. Versions differ in the names that begin with `debugging`.
fn counts(metrics: &str) -> Result<Counts> {
    let counter = |name: &str| {
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse::<f64>().ok())
    };
    let either = |name: &str| {
        counter(&format!("etcd_mvcc_{name}"))
            .or_else(|| counter(&format!("etcd_debugging_mvcc_{name}")))
    };
    let told = || {
        let keys = either("put_total")? + either("delete_total")?;
        let transactions = counter("etcd_server_proposals_committed_total")?;
        Some(Counts {
            transactions: transactions as u64,
            keys: keys as u64,
        })
    };
    told().context("etcd does not tell how much it has written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_in_metrics_of_both_kinds() {
        let text = "# HELP etcd_mvcc_put_total Total\n# TYPE etcd_mvcc_put_total counter\n\
            etcd_mvcc_put_total 7\netcd_mvcc_delete_total 2\n\
            etcd_server_proposals_committed_total 1.5e+06\n";
        let wanted = Counts {
            transactions: 1_500_000,
            keys: 9,
        };
        assert_eq!(counts(text).unwrap(), wanted);
        let older = text.replace("etcd_mvcc", "etcd_debugging_mvcc");
        assert_eq!(counts(&older).unwrap(), wanted);
        let without = text.replace("proposals", "others");
        assert!(counts(&without).is_err());
    }
}
