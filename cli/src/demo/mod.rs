//! `kera demo`: a broker at work, killed on the way, and every record checked.

mod audit;
mod check;
mod data;
mod home;
mod process;
mod send;
mod story;
mod view;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, Outcome};
use crate::parse;

use story::Story;

/// The demo gives up after this long, and says so.
const PATIENCE: Duration = Duration::from_secs(90);

/// Arguments of `kera demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera demo
  kera demo --keep
  kera demo --dir /srv/kera-demo

The demo starts a broker of its own on a fresh directory, sends it flights, kills it with SIGKILL half-way, starts it \
again, and checks every record. Exit status: 0 if nothing was lost, duplicated or reordered, 1 if something was.")]
pub(crate) struct DemoArgs {
    /// Leave the broker running at the end
    #[arg(long)]
    keep: bool,
    /// An empty or new directory for the broker; not on a tmpfs [default: a new one in your data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Records in all
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse::records)]
    records: u64,
}

/// Runs `kera demo`.
pub(crate) async fn run(args: DemoArgs) -> Outcome {
    if !(1_000..=10_000_000).contains(&args.records) {
        return Err(Failure::Usage(
            "--records takes 1000 to 10M; the demo sends them in about nine seconds".into(),
        ));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let home = home::make(args.dir.as_deref())?;
    let story = Story::new(&home, args.records, args.dir.is_none());
    let told = tokio::select! {
        told = tokio::time::timeout(PATIENCE, story.tell(args.keep)) => told,
        _ = tokio::signal::ctrl_c() => return Err(interrupted(&args, &home)),
        _ = terminate.recv() => return Err(interrupted(&args, &home)),
    };
    match told {
        Ok(Ok(true)) => Ok(ExitCode::SUCCESS),
        Ok(Ok(false)) => Ok(ExitCode::FAILURE),
        Ok(Err(Failure::Failed(error))) => Err(Failure::message(format!(
            "{error:#}\nthe broker's log {} ends with:\n{}",
            process::log_file(&home).display(),
            process::tail(&process::log_file(&home))
        ))),
        Ok(Err(usage)) => Err(usage),
        Err(_) => Err(Failure::message(format!(
            "the demo did not end within {PATIENCE:?}; what it left is in {}",
            home.display()
        ))),
    }
}

fn interrupted(args: &DemoArgs, home: &Path) -> Failure {
    if args.dir.is_none() {
        home::mark_finished(home);
    }
    Failure::message("interrupted; the broker was killed")
}
