//! `kera-bench replication`: what it takes to keep copies at passive backups, beside backups that
//! handle requests as RAMCloud's did before Tailwind (Taleb et al., USENIX ATC'18), and beside a bare
//! receive loop.
//!
//! The cases are the analogues of the figures of the paper's evaluation: throughput and CPU by size of
//! an append, latency, scaling with threads, number of active groups, recovery. A run starts a
//! process for the primary and one for each backup, so that their CPU time stands apart; ways are
//! taken by turns.
//!
//! | module | what it is |
//! |---|---|
//! | `cases` | what is measured |
//! | `session` | a run: its processes, and what they took |
//! | `plan`, `child` | what those processes are told and say |
//! | `primary`, `source` | the primary: lanes that append, and their groups |
//! | `ends` | the backup, and the way to it |
//! | `cards` | the way through a network card, in builds with the feature `rdma` |
//! | `rpc`, `bare` | ways to compare with |
//! | `brokers` | whole brokers, with copies and without |
//! | `recover` | who takes over |
//! | `results`, `report`, `card_report` | JSON and tables |

mod bare;
mod brokers;
mod card_report;
#[cfg(feature = "rdma")]
mod cards;
#[cfg(not(feature = "rdma"))]
#[path = "no_cards.rs"]
mod cards;
mod cases;
mod child;
mod ends;
mod plan;
mod primary;
mod recover;
mod report;
mod results;
mod rpc;
mod session;
mod source;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub use self::ends::backup;
pub use self::primary::primary;
pub use self::recover::recovery;

use self::cases::{Case, Extent, Section, card_cases, cases};
use self::plan::Wire;
use self::results::{Measured, Results};
use self::session::Stage;
use crate::measure::machine::{Machine, commit, utc_now};
use crate::peers;
use crate::report::document;
use crate::session::workplace::Workplace;

/// The options of `kera-bench replication`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kera-bench replication
  kera-bench replication --quick
  kera-bench replication --only groups --ways tcp
  kera-bench replication --out docs/benchmarks --document docs/benchmarks.md
  kera-bench replication --cards --address 10.77.0.1 --minutes 6 --out /tmp
  kera-bench replication --report docs/benchmarks/replication.json")]
pub struct ReplicationArgs {
    /// Small cases, one run of each, to try it out; the figures say nothing
    #[arg(long)]
    pub quick: bool,
    /// The cases of a network card for RDMA in place of the others: rdma beside rpc and tcp, as ratios;
    /// takes a build with the feature rdma
    #[arg(long)]
    pub cards: bool,
    /// Where backups listen; with --cards an address of the network card
    #[arg(long, value_name = "IP", default_value_t = ends::LOOPBACK)]
    pub address: IpAddr,
    /// Begin no run after so many minutes; what is measured by then is kept
    #[arg(long, value_name = "N")]
    pub minutes: Option<f64>,
    /// What the machine is, to stand in the report of --cards
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Runs of each case; 5 without it, 1 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: Option<u32>,
    /// Only cases whose section or name contains one of these, such as `latency` or `append=1KiB`
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Only these ways
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_enum)]
    pub ways: Vec<Wire>,
    /// Backups beside the primary; two for three copies
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub backups: u32,
    /// Where backups keep their copies: a folder on shared memory
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub memory: PathBuf,
    /// A `kera` binary, for the cases with whole brokers; built without it
    #[arg(long, value_name = "PATH")]
    pub kera: Option<PathBuf>,
    /// Cargo's profile for building `kera`
    #[arg(long, value_name = "NAME", default_value = "release")]
    pub profile: String,
    /// Where whole brokers keep their data, on a disk; below the build's folder without it
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The folder where replication.json goes, or rdma.json with --cards
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A document whose section is written anew
    #[arg(long, value_name = "FILE")]
    pub document: Option<PathBuf>,
    /// Measure nothing; tables of what an earlier session wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "runs", "only", "ways", "out", "cards"])]
    pub report: Option<PathBuf>,
    /// A run is repeated, at most twice, when other processes used more than this share of the cores
    #[arg(long, value_name = "SHARE", default_value_t = 0.15)]
    pub noise: f64,
}

/// `kera-bench replication`.
pub fn run(args: &ReplicationArgs) -> Result<()> {
    let results = match &args.report {
        Some(path) => Results::read(path)?,
        None => measure(args)?,
    };
    let text = report::render(&results);
    print!("{text}");
    if let Some(folder) = &args.out {
        results.write(&folder.join(format!("{}.json", results.title())))?;
    }
    if let Some(path) = &args.document {
        write_section(path, results.title(), &text)?;
    }
    let failed = results.replication.iter().map(|one| one.failures.len());
    let failed: usize = failed.sum();
    ensure!(failed == 0, "{failed} runs failed; the tables say why");
    Ok(())
}

fn write_section(path: &Path, title: &str, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path);
    let old = old.with_context(|| format!("cannot read {}", path.display()))?;
    let new = document::replace(&old, title, text)?;
    std::fs::write(path, new).with_context(|| format!("cannot write {}", path.display()))
}

/// The cases that are asked for, and their ways.
fn select(args: &ReplicationArgs, cores: usize) -> Result<Vec<Case>> {
    let extent = if args.quick {
        Extent::Quick
    } else {
        Extent::Whole
    };
    let mut chosen = match args.cards {
        true => card_cases(extent, cores),
        false => cases(extent, cores),
    };
    chosen.retain(|case| {
        let name = format!("{} {}", case.section.name(), case.name);
        args.only.is_empty() || args.only.iter().any(|text| name.contains(text))
    });
    if !args.ways.is_empty() {
        for case in &mut chosen {
            case.wires.retain(|wire| args.ways.contains(wire));
        }
    }
    chosen.retain(|case| !case.wires.is_empty());
    ensure!(!chosen.is_empty(), "no case is chosen");
    Ok(chosen)
}

fn measure(args: &ReplicationArgs) -> Result<Results> {
    let machine = Machine::look();
    let slow_build = cfg!(debug_assertions);
    if slow_build {
        eprintln!(
            "kera-bench is built without optimisation: THE FIGURES SAY NOTHING; use --release"
        );
    }
    let cases = select(args, machine.cores)?;
    let mut stage = Stage::open(&args.memory, args.backups, args.address, args.noise, &cases)?;
    let whole = cases.iter().any(|case| case.section == Section::Brokers);
    // Removed with all that is in it at the end.
    let workplace = match whole {
        true => Some(Workplace::open(args.data_dir.as_deref())?),
        false => None,
    };
    if let Some(workplace) = &workplace {
        let kera = match &args.kera {
            Some(path) => std::path::absolute(path)?,
            None => peers::kera_binary(&args.profile, &workplace.target)?,
        };
        let data = workplace.data.clone();
        stage.brokers = Some(brokers::Places { kera, data });
    }
    let runs = args.runs.unwrap_or(if args.quick { 1 } else { 5 });
    let (started, begin) = (utc_now(), Instant::now());
    let ends = args.minutes.map(|minutes| minutes.max(0.0) * 60.0);
    let ends = ends.map(|seconds| begin + Duration::from_secs_f64(seconds));
    let line = |case: &Case, wire: &Wire| Measured {
        case: case.clone(),
        wire: *wire,
        runs: Vec::new(),
        failures: Vec::new(),
    };
    let mut measured = Vec::new();
    for case in &cases {
        measured.extend(case.wires.iter().map(|wire| line(case, wire)));
    }
    // Round after round, so that who ends early has something of each.
    for round in 1..=runs {
        for one in &mut measured {
            if ends.is_some_and(|ends| Instant::now() >= ends) {
                continue;
            }
            match stage.run(&one.case, one.wire) {
                Ok(taken) => {
                    one.runs.push(taken);
                    eprintln!("{round} of {runs}: {}", report::line(one, args.backups));
                }
                Err(error) => {
                    stage.interrupt.check()?;
                    eprintln!("{round} of {runs}: {} failed: {error:#}", one.case.name);
                    one.failures.push(format!("{error:#}"));
                }
            }
        }
    }
    let command: Vec<_> = std::env::args().skip(1).collect();
    Ok(Results {
        format: Results::format(),
        command: format!("kera-bench {}", command.join(" ")),
        started,
        minutes: begin.elapsed().as_secs_f64() / 60.0,
        runs,
        backups: args.backups,
        cards: args.cards,
        note: args.note.clone(),
        slow_build,
        commit: commit(),
        machine,
        replication: measured,
    })
}
