//! `kera-bench`: Kera beside its peers, on the same work, in the same session, on the same machine.
//!
//! A session takes scenarios from a file, starts the brokers, and runs every case by turns (A B A B)
//! several times. Each run's load comes from a process of its own, so that the CPU time of broker and
//! client stand apart. What was measured goes into a JSON file; a report makes tables and
//! plots of it.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod args;
mod cluster;
mod iggy;
mod load;
mod measure;
mod merge;
mod peers;
mod profile;
mod report;
mod results;
mod scenario;
mod session;
mod statistics;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.command {
        Command::Run(args) => session::run(&args),
        Command::List(args) => session::list(&args),
        Command::Report(args) => report::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Load => load::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kera-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
