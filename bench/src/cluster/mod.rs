//! `kera-bench cluster`: what a change of owners costs those who send. Real brokers and a real etcd on
//! loopback, a record on its way to every streamlet at any moment, and the time that each goes without
//! acknowledgements.
//!
//! | module | what it is |
//! |---|---|
//! | `failover` | a broker is killed, or falls silent |
//! | `hand_over` | a streamlet is handed over as planned |
//! | `join` | a broker more, under load |
//! | `nodes` | the processes |
//! | `loops` | senders to every streamlet |
//! | `watched` | what the metadata store says meanwhile |
//! | `results`, `report` | JSON and tables |

mod failover;
mod hand_over;
mod join;
mod loops;
mod nodes;
mod report;
mod results;
mod watched;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use self::failover::End;
use self::join::JoinPlan;
use self::nodes::Places;
use self::results::{Failed, Results};
use crate::measure::disk::Disk;
use crate::measure::machine::{Machine, commit, first_line_of, utc_now};
use crate::peers;
use crate::report::document;
use crate::session::interrupt::Interrupt;
use crate::session::workplace::{Workplace, raise_open_files};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// One of three brokers is killed
    Failover,
    /// One of three brokers is stopped where it is
    Silence,
    /// Streamlets are handed over, one after the other
    HandOver,
    /// A fourth broker comes to three under load
    Join,
}

impl Scenario {
    /// As the command line names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Failover => "failover",
            Self::Silence => "silence",
            Self::HandOver => "hand-over",
            Self::Join => "join",
        }
    }

    /// Runs without `--runs`.
    fn runs(self) -> u32 {
        match self {
            Self::Failover => 20,
            Self::Silence | Self::Join => 5,
            Self::HandOver => 1,
        }
    }
}

/// The options of `kera-bench cluster`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kera-bench cluster
  kera-bench cluster failover --runs 3 --streamlets 200
  kera-bench cluster hand-over join --quick
  kera-bench cluster --out docs/benchmarks --document docs/benchmarks.md
  kera-bench cluster --report docs/benchmarks/owners.json")]
pub(crate) struct ClusterArgs {
    /// What to measure; all of it without a name
    #[arg(value_enum, value_name = "SCENARIOS")]
    pub scenarios: Vec<Scenario>,
    /// Small, one run of each, to try it out; the figures say nothing
    #[arg(long)]
    pub quick: bool,
    /// Runs of each scenario; without it 20 of failover, 5 of silence and join, 1 of hand-over
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Streamlets that are sent to; 1000 without it, 30 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=100_000))]
    pub streamlets: Option<u32>,
    /// Hand-overs of a run; 100 without it, 5 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub moves: Option<u32>,
    /// MiB of records that are there before a broker joins; 1024 without it, 8 with --quick
    #[arg(long, value_name = "MIB")]
    pub history: Option<u64>,
    /// Percent of the probe's peak that is sent while a broker joins
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub percent: u32,
    /// Seconds of load since a broker came, at least, and half as many before; 20 without it, 3 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub seconds: Option<u32>,
    /// Milliseconds of brokers' leases, in whole seconds
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1_000..=600_000))]
    pub lease: u64,
    /// Where brokers keep copies: a folder on shared memory
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub memory: PathBuf,
    /// A `kera` binary; built without it
    #[arg(long, value_name = "PATH")]
    pub kera: Option<PathBuf>,
    /// Cargo's profile for building `kera`
    #[arg(long, value_name = "NAME", default_value = "release")]
    pub profile: String,
    /// Where brokers and etcd keep their data, on a disk; below the build's folder without it
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The folder where owners.json goes
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A document whose section is written anew
    #[arg(long, value_name = "FILE")]
    pub document: Option<PathBuf>,
    /// Measure nothing; tables of what an earlier session wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenarios", "quick", "runs", "out"])]
    pub report: Option<PathBuf>,
}

/// `kera-bench cluster`.
pub(crate) fn run(args: &ClusterArgs) -> Result<()> {
    let results = match &args.report {
        Some(path) => Results::read(path)?,
        None => measure(args)?,
    };
    let text = report::render(&results);
    print!("{text}");
    if let Some(folder) = &args.out {
        results.write(&folder.join("owners.json"))?;
    }
    if let Some(path) = &args.document {
        write_section(path, &text)?;
    }
    let failed = results.failures.len();
    ensure!(failed == 0, "{failed} runs failed; the section says why");
    Ok(())
}

fn write_section(path: &Path, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path);
    let old = old.with_context(|| format!("cannot read {}", path.display()))?;
    let new = document::replace(&old, report::TITLE, text)?;
    std::fs::write(path, new).with_context(|| format!("cannot write {}", path.display()))
}

/// What a session is made of.
struct Plan {
    places: Places,
    streamlets: u32,
    moves: u32,
    join: JoinPlan,
}

impl Plan {
    fn new(args: &ClusterArgs, places: Places) -> Self {
        let or = |whole: u32, quick: u32| if args.quick { quick } else { whole };
        let seconds = args.seconds.unwrap_or(or(20, 3));
        Self {
            places,
            streamlets: args.streamlets.unwrap_or(or(1000, 30)),
            moves: args.moves.unwrap_or(or(100, 5)),
            join: JoinPlan {
                streamlets: or(24, 8),
                history_bytes: args.history.unwrap_or(or(1024, 8).into()) << 20,
                percent: args.percent,
                probe_seconds: or(5, 1),
                before_seconds: seconds.div_ceil(2),
                after_seconds: seconds,
            },
        }
    }

    fn run(&self, scenario: Scenario, turn: u32, results: &mut Results) -> Result<()> {
        let runtime = Runtime::new()?;
        let (places, streamlets) = (&self.places, self.streamlets);
        let lost = |end| runtime.block_on(failover::run(places, streamlets, end, turn));
        match scenario {
            Scenario::Failover => results.failover.push(lost(End::Killed)?),
            Scenario::Silence => results.silence.push(lost(End::Stopped)?),
            Scenario::HandOver => {
                let done = runtime.block_on(hand_over::run(places, streamlets, self.moves))?;
                results.hand_over.push(done);
            }
            Scenario::Join => {
                let done = runtime.block_on(join::run(places, &self.join))?;
                results.join.push(done);
            }
        }
        Ok(())
    }
}

fn measure(args: &ClusterArgs) -> Result<Results> {
    let etcd = nodes::etcd_version()?;
    if cfg!(debug_assertions) {
        eprintln!(
            "kera-bench is built without optimisation: THE FIGURES SAY NOTHING; use --release"
        );
    }
    raise_open_files();
    // Removed with all that is in it at the end.
    let workplace = Workplace::open(args.data_dir.as_deref())?;
    let kera = match &args.kera {
        Some(path) => std::path::absolute(path)?,
        None => peers::kera_binary(&args.profile, &workplace.target)?,
    };
    let mut disk = match Disk::below(&workplace.data) {
        // Tests may have nothing else.
        Err(_) if args.quick => Disk::default(),
        found => found?,
    };
    if !args.quick {
        disk.measure(&workplace.data)?;
    }
    let memory = format!("kera-bench-cluster-{}", std::process::id());
    let places = Places {
        data: workplace.data.join("cluster"),
        memory: args.memory.join(memory),
        lease: Duration::from_millis(args.lease),
        interrupt: Interrupt::watch()?,
        kera,
    };
    let plan = Plan::new(args, places);
    let command: Vec<_> = std::env::args().skip(1).collect();
    let begin = Instant::now();
    let kera = plan.places.kera.to_string_lossy();
    let mut results = Results {
        format: Results::format(),
        command: format!("kera-bench {}", command.join(" ")),
        started: utc_now(),
        minutes: 0.0,
        slow_build: cfg!(debug_assertions),
        commit: commit(),
        machine: Machine::look(),
        disk,
        etcd,
        kera: first_line_of(&kera, &["--version"]).unwrap_or_default(),
        lease_ms: args.lease,
        streamlets: plan.streamlets,
        join_plan: plan.join.clone(),
        failover: Vec::new(),
        silence: Vec::new(),
        hand_over: Vec::new(),
        join: Vec::new(),
        failures: Vec::new(),
    };
    let scenarios = match args.scenarios.as_slice() {
        [] => Scenario::value_variants(),
        named => named,
    };
    for scenario in scenarios {
        let quick = args.quick.then_some(1);
        let runs = args.runs.or(quick).unwrap_or(scenario.runs());
        for turn in 0..runs {
            let done = plan.run(*scenario, turn, &mut results);
            plan.places.interrupt.check()?;
            eprintln!(
                "{} {}: {}",
                scenario.name(),
                turn + 1,
                told(*scenario, &results, &done)
            );
            if let Err(error) = done {
                results.failures.push(Failed {
                    scenario: *scenario,
                    reason: format!("{error:#}"),
                });
            }
        }
    }
    if !args.quick {
        results.disk.measure(&workplace.data)?;
    }
    results.minutes = begin.elapsed().as_secs_f64() / 60.0;
    Ok(results)
}

/// What a run was, for who watches.
fn told(scenario: Scenario, results: &Results, done: &Result<()>) -> String {
    if let Err(error) = done {
        return format!("FAILED: {error:#}");
    }
    let json = match scenario {
        Scenario::Failover => serde_json::to_string(&results.failover.last()),
        Scenario::Silence => serde_json::to_string(&results.silence.last()),
        Scenario::HandOver => serde_json::to_string(&results.hand_over.last()),
        Scenario::Join => serde_json::to_string(&results.join.last()),
    };
    json.unwrap_or_default()
}
