//! The load of one run, made by a process of its own so that its CPU time is its own.
//!
//! It reads a [`Plan`] from its standard input, gets ready, says so, waits for `go`, does the work
//! and says what it was; then it stays until its standard input ends, so that it can be looked at.

mod acks;
mod arrivals;
mod crowd;
mod iggy;
mod kafka;
mod pace;
mod records;
mod schedule;
mod share;

pub(crate) use arrivals::Latency;
pub(crate) use crowd::Sides;
pub(crate) use pace::Pace;
pub(crate) use records::Records;

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::scenario::{Acks, ClientPath, Crowd, Durability, Keys, Work};

/// A run in which nothing arrives or is acknowledged for this long has failed.
const SILENCE: Duration = Duration::from_secs(30);

/// What the load is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub path: ClientPath,
    /// HOST:PORT.
    pub bootstrap: String,
    /// The topic or stream; it exists.
    pub topic: String,
    pub work: Work,
    pub records: u64,
    pub record_bytes: u32,
    pub keys: Keys,
    pub batch_bytes: u32,
    pub linger_us: u64,
    pub partitions: u32,
    pub acks: Acks,
    /// What the topic promises.
    #[serde(default)]
    pub durability: Durability,
    /// Sending stops after so long, even before all records are sent.
    #[serde(default)]
    pub most_ms: Option<u64>,
    /// Records a second, for an open loop; of Kera's own producer also the most that it sends.
    pub rate: Option<u64>,
    /// The clients.
    pub crowd: Crowd,
}

impl Plan {
    /// True if sending is to stop so long after its beginning.
    fn is_over(&self, elapsed: Duration) -> bool {
        let most = self.most_ms.map(Duration::from_millis);
        most.is_some_and(|most| elapsed >= most)
    }
}

/// What the load was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub records: u64,
    /// Of keys and values.
    pub bytes: u64,
    pub seconds: f64,
    /// None if the client does not tell.
    pub mean_batch_bytes: Option<f64>,
    pub latency: Option<Latency>,
    /// What only loads with several clients tell.
    #[serde(default)]
    pub sides: Sides,
}

/// A line to the harness.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Said {
    Ready,
    Done(Box<Done>),
}

/// The word that starts the work.
pub(crate) const GO: &str = "go";

/// Stands between getting ready and the work.
pub(crate) struct Gate<R> {
    input: R,
}

impl<R: BufRead> Gate<R> {
    /// Tells the harness that the work can begin and waits for its word; returns when it begins.
    fn wait(&mut self) -> Result<Instant> {
        say(&Said::Ready)?;
        let mut line = String::new();
        self.input.read_line(&mut line)?;
        ensure!(line.trim() == GO, "the harness went away");
        Ok(Instant::now())
    }
}

/// The process `kera-bench load`.
pub(crate) fn run() -> Result<()> {
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line)?;
    let plan: Plan = serde_json::from_str(&line).context("the plan is odd")?;
    let mut gate = Gate { input };
    let done = match plan.work {
        Work::Start => bail!("a start has no load"),
        Work::Share => share::run(&plan, &mut gate)?,
        _ => crowd::run(&plan, &mut gate)?,
    };
    say(&Said::Done(Box::new(done)))?;
    // Until the harness has seen enough of this process.
    gate.input.read_line(&mut line)?;
    Ok(())
}

fn say(said: &Said) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, said)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
