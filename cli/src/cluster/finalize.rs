//! `kera cluster finalize`.

use std::process::ExitCode;

use clap::Args;
use kera_protocol::v1;
use serde::Serialize;
use tonic::Code;

use super::agree::agree;
use crate::connect::{ConnectArgs, not_made};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, OutputArgs, print_json};

/// Arguments of `kera cluster finalize`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster finalize
  kera cluster finalize --yes --json
  kera cluster finalize --without-brokers 3

The last step of an upgrade, for a broker that works alone as for a cluster. Until then nothing is written that the \
version before could not read, and brokers may go back to it. It is refused while a living broker has an earlier \
version, and while a broker is away whose program nobody knows. Afterwards brokers of earlier versions do not start, and what the new version brings may be used.")]
pub(crate) struct FinalizeArgs {
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Brokers that are away and will not come back with an earlier program
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    without_brokers: Vec<u32>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct View {
    before: u32,
    version: u32,
    /// False if it was of that version already.
    changed: bool,
}

pub(super) async fn run(args: FinalizeArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    if !args.yes {
        let question =
            "Brokers of earlier versions cannot come back to a cluster that is finalized.";
        agree(question, "finalize the cluster", "nothing was finalized")?;
    }
    let answer = control
        .clusters
        .finalize_cluster(v1::FinalizeClusterRequest {
            without_brokers: args.without_brokers,
        })
        .await;
    let answer = answer.map_err(|status| match status.code() {
        Code::Unimplemented => Failure::message(
            "the broker that answers has an earlier version, which knows no cluster versions; update it, and run this again",
        ),
        _ => not_made(&status, "kera cluster status"),
    })?;
    let answer = answer.into_inner();
    let view = View {
        before: answer.before,
        version: answer.version,
        changed: answer.before != answer.version,
    };
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    match view.changed {
        true => out.line(format_args!(
            "cluster version {}, before {}: brokers of earlier versions cannot join any more",
            view.version, view.before
        ))?,
        false => out.line(format_args!(
            "cluster version {} already: nothing to do",
            view.version
        ))?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
