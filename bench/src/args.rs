//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::cluster::ClusterArgs;
use crate::profile::ProfileArgs;
use crate::scenario::Contender;

/// Kera beside its peers, on the same work, in the same session, on the same machine.
#[derive(Debug, Parser)]
#[command(name = "kera-bench", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the scenarios of a file and write what was measured as JSON.
    Run(RunArgs),
    /// Show the cases of a file without running anything.
    List(ListArgs),
    /// Make tables of what a session measured.
    Report(ReportArgs),
    /// Where the broker's time goes: a flame graph, and a table by step of the data path.
    Profile(ProfileArgs),
    /// What failover, hand-overs and a new broker cost those who send to a cluster.
    Cluster(ClusterArgs),
    /// Load for one run; started by `run`, spoken to through standard input and output.
    #[command(hide = true)]
    Load,
}

/// Which cases of a file are meant.
#[derive(Debug, clap::Args)]
pub(crate) struct Selection {
    /// Files of scenarios, such as bench/scenarios/kafka.toml; they run in this order
    #[arg(required = true, value_name = "SCENARIOS")]
    pub scenarios: Vec<PathBuf>,
    /// Only cases whose name contains one of these, such as `produce` or `partitions=1,`
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Only these contenders
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_enum)]
    pub contenders: Vec<Contender>,
    /// Repetitions of each case, in place of the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repetitions: Option<u32>,
    /// Divide the records of every case and of the warm-up by this, to try things out
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub divide: u64,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kera-bench run bench/scenarios/kafka.toml --out docs/benchmarks --document docs/benchmarks.md
  kera-bench run bench/scenarios/kafka.toml --out docs/benchmarks --missing
  kera-bench run bench/scenarios/kafka-quick.toml --only produce --contenders kera,kafka
  kera-bench run bench/scenarios/kafka.toml --kera target/dist/kera --data-dir /srv/scratch")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub selection: Selection,
    /// The folder where the results of each file go, as JSON of the file's name; below the build's
    /// folder without it
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Only cases that the results in --out lack; they are added to those
    #[arg(long, requires = "out")]
    pub missing: bool,
    /// A document whose generated sections, and the plots beside the results in --out, are made anew
    /// at the end
    #[arg(long, value_name = "FILE", requires = "out")]
    pub document: Option<PathBuf>,
    /// A `kera` binary; built without it
    #[arg(long, value_name = "PATH")]
    pub kera: Option<PathBuf>,
    /// Cargo's profile for building `kera`
    #[arg(long, value_name = "NAME", default_value = "release")]
    pub profile: String,
    /// Where the brokers keep their data, on a disk; below the build's folder without it
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// A run is noisy when other processes used more than this share of the cores
    #[arg(long, value_name = "SHARE", default_value_t = 0.15)]
    pub noise: f64,
    /// How often a noisy run is repeated before it is kept and marked
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub noisy_repeats: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub selection: Selection,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kera-bench report docs/benchmarks/kafka.json
  kera-bench report docs/benchmarks --document docs/benchmarks.md
  kera-bench report --merge docs/benchmarks/kafka.json kafka-later.json
  kera-bench report docs/benchmarks/kafka.json --plots-of bench/scenarios/kafka.toml")]
pub(crate) struct ReportArgs {
    /// What `run` wrote; a folder stands for all the results in it
    #[arg(required = true, value_name = "RESULTS")]
    pub results: Vec<PathBuf>,
    /// A document whose generated sections are written anew, with plots beside the results; to
    /// standard output without it
    #[arg(long, value_name = "FILE")]
    pub document: Option<PathBuf>,
    /// Write nothing; fail if the document or a plot is not what the results give
    #[arg(long, requires = "document")]
    pub check: bool,
    /// Take the cases that the first results lack from the others, and write the first anew
    #[arg(long, conflicts_with_all = ["document", "plots_of"])]
    pub merge: bool,
    /// Take the plots of this file of scenarios in place of the results' own, and write those anew
    #[arg(long, value_name = "SCENARIOS", conflicts_with = "check")]
    pub plots_of: Option<PathBuf>,
}
