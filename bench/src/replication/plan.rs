//! What the processes of a run are told and what they say: lines of JSON on standard input and output.

use std::io::Write;
use std::net::IpAddr;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::load::Latency;

/// How bytes get to the backups.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    /// They do not: appends alone, which is the load's own part of the primary's time.
    Alone,
    /// To a loop that receives into one buffer and keeps nothing.
    Bare,
    /// To a loop that receives into as much memory as the copies take.
    BareKept,
    /// One-sided, over TCP.
    Tcp,
    /// One-sided, written by the network card.
    Rdma,
    /// As requests, which the backup's workers handle.
    Rpc,
    /// Whole brokers, and a stream with one copy.
    OneCopy,
    /// Whole brokers, and a stream with a copy at each.
    Copies,
}

impl Wire {
    /// As tables name it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Alone => "appends alone",
            Self::Bare => "bare receive loop",
            Self::BareKept => "bare, into as much memory",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Rpc => "rpc",
            Self::OneCopy => "one copy",
            Self::Copies => "a copy at each",
        }
    }

    /// True if there are backups that keep copies.
    pub fn keeps(self) -> bool {
        matches!(self, Self::Tcp | Self::Rdma | Self::Rpc | Self::Copies)
    }
}

/// A backup, as a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackupPlan {
    pub wire: Wire,
    /// Where it listens; a port is found.
    pub address: IpAddr,
    /// Where its copies lie, on shared memory.
    pub folder: std::path::PathBuf,
    /// Bytes of its quota, or of the memory of a bare loop.
    pub memory: u64,
    /// Threads that receive, or handle requests.
    pub threads: usize,
}

/// A backup's number and address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer {
    pub id: u32,
    pub address: String,
}

/// What a primary is to append.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Bytes of an append: one batch.
    pub append_bytes: u32,
    pub record_bytes: u32,
    /// Active groups, each in a lane of its own.
    pub lanes: u32,
    /// Appends that are not acknowledged yet, over all lanes.
    pub outstanding: u32,
    /// Threads of the primary, and of each backup.
    pub threads: usize,
    pub segment_bytes: u32,
    pub segments: u32,
    /// It ends after so many bytes, or after
    pub bytes: u64,
    /// so many milliseconds, whichever comes first.
    pub millis: u64,
    /// Closed groups are freed at the backups.
    pub frees: bool,
}

/// Appends of each lane before anything is measured.
pub const WARM_UP: u64 = 20;

impl Load {
    /// What one of so many lanes does at most of a load, in appends: a quarter more than its even share.
    pub fn share(appends: u64, lanes: u32) -> u64 {
        let even = appends.div_ceil(u64::from(lanes.max(1)));
        even + even.div_ceil(4)
    }

    /// What a lane appends at most in a run, warm-up included, in bytes.
    pub fn most_of_a_lane(&self) -> u64 {
        let appends = self.bytes.div_ceil(u64::from(self.append_bytes));
        let all = Self::share(appends, self.lanes) + Self::share(WARM_UP, 1);
        all * u64::from(self.append_bytes)
    }
}

/// A primary, as a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PrimaryPlan {
    pub wire: Wire,
    pub peers: Vec<Peer>,
    pub load: Load,
}

/// Who takes over from a primary, as a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecoveryPlan {
    pub wire: Wire,
    pub peers: Vec<Peer>,
    pub threads: usize,
    pub records: Recorded,
}

/// What a primary's metadata store holds of its groups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recorded {
    pub stream: [u8; 16],
    pub epoch: u32,
    pub groups: Vec<RecordedGroup>,
}

/// A group's record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordedGroup {
    pub group: u64,
    pub lane: u32,
    pub holders: Vec<RecordedHolder>,
}

/// A holder in a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordedHolder {
    pub broker: u32,
    pub store: [u8; 16],
    pub boot: [u8; 16],
}

/// What a primary did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    pub appends: u64,
    pub records: u64,
    /// Of batches.
    pub bytes: u64,
    pub seconds: f64,
    pub latency: Option<Latency>,
    /// Records that the groups hold, those appended before included.
    pub all_records: u64,
}

/// What a recovery did.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Restored {
    pub records: u64,
    /// Of groups, headers included.
    pub bytes: u64,
    /// Until every group had its close.
    pub closed_seconds: f64,
    /// And until all bytes had been read from the copies.
    pub read_seconds: f64,
}

/// A line to the harness.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// A backup listens.
    Listening(String),
    /// All is open and nothing is under way.
    Ready,
    /// User and system time of the process so far, in nanoseconds.
    Cpu(u64),
    Done(Box<Done>),
    Restored(Restored),
    /// What is recorded, asked by [`Ask::Records`].
    Records(Recorded),
}

/// A line from the harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Begin.
    Go,
    /// How much CPU time so far?
    Cpu,
    /// What is recorded?
    Records,
}

/// Says a line on standard output.
pub fn say(said: &Said) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, said)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// The next line of standard input; `None` at its end.
pub fn hear<T: DeserializeOwned>() -> Result<Option<T>> {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let heard = serde_json::from_str(&line);
    heard.with_context(|| format!("the harness says `{}`", line.trim()))
}

/// Says how much CPU time this process has used.
pub fn say_cpu() -> Result<()> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanos = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
    say(&Said::Cpu(nanos))
}
