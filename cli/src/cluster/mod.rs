//! `kera cluster`.

mod asked;
mod bars;
mod compared;
mod health;
mod init;
mod moves;
mod status;

use std::time::Duration;

use clap::{Args, Subcommand};
use kera_protocol::v1;

use crate::connect::{ConnectArgs, Control, control, refused};
use crate::failure::{Failure, Outcome};
use crate::output::OutputArgs;
use crate::parse;

pub(crate) use asked::Asked;
pub(crate) use bars::{progress, progress_bytes};
pub(crate) use status::{BrokerView, brokers, print_brokers};

/// `kera cluster ...`
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Prepare a metadata store that brokers are to share.
    Init(init::InitArgs),
    /// Show the brokers, what each owns, and what is amiss.
    Status(StatusArgs),
    /// Show the moves that would even out the brokers' load, and the copies that move. Nothing is done.
    Plan(PlanArgs),
    /// Make the moves that even out the brokers' load, one at a time.
    Apply(ApplyArgs),
}

/// Arguments of `kera cluster status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster status
  kera cluster status --bootstrap 10.0.0.5:7600 --json

The first line says whether the cluster is healthy, and if not what is wrong with what, and what to do. Any broker \
answers. One that has its lease and does not answer is SILENT. A broker that joins is JOINING until it owns something, then PARTIAL with what it owns of its share, \
then NORMAL. Each broker is asked how far it has compared the copies of what it owns, for two seconds at most; one that \
does not answer is shown as unknown. The exit status is 1 if streamlets are without an owner that lives.")]
pub struct StatusArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera cluster plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster plan
  kera cluster plan --most 10 --json

Streamlets move by themselves when brokers come, go or drain, which evens out their number. The plan also evens out \
bytes. A move takes no records with it: the new owner has copies, or they follow in the background. Copies of closed \
groups move by themselves too, until brokers hold about as many bytes each (cluster.spread_tolerance_bytes), or go \
where a group has too many; they are shown by stream.")]
pub struct PlanArgs {
    /// Show at most so many moves
    #[arg(long, value_name = "MOVES", default_value_t = 1000)]
    most: u32,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera cluster apply`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster apply
  kera cluster apply --most 10 --yes
  kera cluster apply --yes --copies --timeout 6h

The plan is made, shown and, after a yes, carried out. Interrupted, it leaves the streamlet in hand with one owner or \
the other and the rest where they are; applied again it goes on. Copies of closed groups follow by themselves at \
cluster.repair_bytes_per_second; --copies waits for them.

With --json every move is a line once it is made, an object with \"event\":\"step\"; the last line has \
\"event\":\"end\" and \"outcome\": done, timeout or failed.")]
pub struct ApplyArgs {
    /// Make at most so many moves
    #[arg(long, value_name = "MOVES", default_value_t = 1000)]
    most: u32,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Wait too until copies of closed groups are where they are to be
    #[arg(long)]
    copies: bool,
    /// Wait for copies at most so long
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse::duration, requires = "copies")]
    timeout: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What to type on a new broker's machine: with addresses, since by default only that machine reaches it.
pub(crate) fn how_to_start(broker: impl std::fmt::Display, store: &str) -> String {
    format!(
        "kera serve --cluster {store} --broker-id {broker} --listen HOST:7600 --replication-listen HOST:7601"
    )
}

/// How long a broker may take to describe its cluster.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The calls of the first broker that answers, and the cluster as it sees it. A process that stands still
/// accepts connections and says nothing: it is passed over.
pub(crate) async fn answering(
    connect: &ConnectArgs,
) -> Result<(Control, v1::DescribeClusterResponse), Failure> {
    let mut first = None;
    for address in connect.bootstrap.split(',') {
        let failure = match control(address).await {
            Err(failure) => failure,
            Ok(mut control) => {
                let request = v1::DescribeClusterRequest {};
                let call = control.clusters.describe_cluster(request);
                let answer = tokio::time::timeout(ANSWER_WITHIN, call).await;
                match answer {
                    Ok(Ok(answer)) => return Ok((control, answer.into_inner())),
                    Ok(Err(status)) => refused(&status),
                    Err(_) => does_not_answer(address),
                }
            }
        };
        first = first.or(Some(failure));
    }
    Err(first.unwrap_or_else(|| Failure::Usage("no broker's address is given".into())))
}

fn does_not_answer(address: &str) -> Failure {
    Failure::message(format!(
        "the broker at {address} does not answer within {} s; name another with --bootstrap",
        ANSWER_WITHIN.as_secs()
    ))
}

/// Runs `kera cluster`.
pub async fn run(command: ClusterCommand) -> Outcome {
    match command {
        ClusterCommand::Init(args) => init::run(args).await,
        ClusterCommand::Status(args) => status::run(args).await,
        ClusterCommand::Plan(args) => moves::plan(args).await,
        ClusterCommand::Apply(args) => moves::apply(args).await,
    }
}
