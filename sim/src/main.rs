//! `kera-sim`: whole clusters, played from a seed.
//!
//! Brokers, clients and the metadata store run as they are in one process, under an operating system of its own
//! ([`os`]) that decides time, chance, threads and the network from one number. Whatever goes wrong goes wrong again
//! when the number is given again.
#![deny(unsafe_op_in_unsafe_fn)]

mod anew;
mod brokers;
mod bursts;
mod child;
mod compaction;
mod consuming;
mod cut;
mod dice;
mod fault;
mod faults;
mod finale;
#[path = "../../cli/tests/common/held_bytes.rs"]
mod held_bytes;
mod inside;
mod keys;
mod load;
mod newer;
mod operations;
mod os;
mod pinning;
mod plan;
mod producing;
mod run;
mod scale;
mod seeds;
mod shares;
mod shrink;
mod store;
mod transactions;
mod watching;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kera_broker::fault_rules::Rule;

/// Plays whole clusters of Kera from seeds, with faults, and judges what their clients saw.
#[derive(Debug, Parser)]
#[command(name = "kera-sim", version)]
pub struct Args {
    /// Play the run of this seed alone.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Play so many runs.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The seed of the first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Runs at a time; as many as there are processors unless given.
    #[arg(long)]
    jobs: Option<usize>,
    /// Print the run as a time line: who started, was killed and took over, and what brokers logged.
    #[arg(long)]
    story: bool,
    /// Play each run twice, and compare.
    #[arg(long)]
    twice: bool,
    /// Log every turn of every thread as well.
    #[arg(long)]
    trace: bool,
    /// Which lines of the brokers' logs are part of the story.
    #[arg(long, default_value = "info")]
    log: String,
    /// Seconds after which a run is given up that does not come to its end.
    #[arg(long, default_value_t = 900)]
    within: u64,
    /// Break a rule of brokers on purpose, and play seeds until one of them notices.
    #[arg(long, value_name = "RULE", value_parser = planted())]
    planted: Option<String>,
    /// Look for a shorter schedule, with fewer faults and clients, that has the same finding as the seed.
    #[arg(long, requires = "seed", conflicts_with = "twice")]
    shrink: bool,
    /// Runs that are played for that at most.
    #[arg(long, default_value_t = 200)]
    tries: u32,
    /// No machine loses its power or its disk. Otherwise one of a run, the same all the time, does now and then.
    #[arg(long)]
    no_losses: bool,
    #[command(flatten)]
    cut: cut::Cut,
    #[command(flatten)]
    scale: scale::ScaleArgs,
    /// Play here: the caller has made a process for this run. The directory is for all that it writes.
    #[arg(long, hide = true)]
    child: Option<PathBuf>,
}

impl Args {
    /// The command that plays what is left of a seed's run again, and tells it, as it can be given where this one was.
    fn again(&self, seed: u64, cut: &cut::Cut) -> String {
        let program = std::env::args().next();
        let program = program.unwrap_or_else(|| "kera-sim".to_owned());
        let mut words = vec![program, "--seed".to_owned(), seed.to_string()];
        if let Some(rule) = &self.planted {
            words.extend(["--planted".to_owned(), rule.clone()]);
        }
        words.extend(self.no_losses.then(|| "--no-losses".to_owned()));
        words.extend(cut.options());
        words.push("--story".to_owned());
        words.join(" ")
    }
}

fn planted() -> clap::builder::PossibleValuesParser {
    Rule::ALL.iter().map(|rule| rule.name()).into()
}

fn main() -> ExitCode {
    let args = Args::parse();
    match &args.child {
        Some(dir) => child::play(&args, dir),
        None if args.scale.scale => scale::play(&args.scale),
        None if args.shrink => shrink::play(&args),
        None => seeds::play(&args),
    }
}
