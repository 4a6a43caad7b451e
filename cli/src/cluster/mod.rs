//! `kera cluster`.

mod agree;
mod finalize;
mod health;
mod import;
mod init;
mod moves;
mod status;

use clap::Subcommand;

use crate::failure::Outcome;

/// `kera cluster ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Prepare a metadata store that brokers are to share.
    Init(init::InitArgs),
    /// Copy the records of a stopped broker that worked alone into a cluster, which it then belongs to.
    Import(import::ImportArgs),
    /// Show the brokers, what each owns, and what is amiss.
    Status(status::StatusArgs),
    /// After an upgrade of all brokers: allow what the new version brings, and give up the way back.
    Finalize(finalize::FinalizeArgs),
    /// Show the moves that would even out the brokers' load, and the replicas that move. Nothing is done.
    Plan(moves::PlanArgs),
    /// Make the moves that even out the brokers' load, one at a time.
    Apply(moves::ApplyArgs),
}

/// Runs `kera cluster`.
pub(crate) async fn run(command: ClusterCommand) -> Outcome {
    match command {
        ClusterCommand::Init(args) => init::run(args).await,
        ClusterCommand::Import(args) => import::run(args).await,
        ClusterCommand::Status(args) => status::run(args).await,
        ClusterCommand::Finalize(args) => finalize::run(args).await,
        ClusterCommand::Plan(args) => moves::plan(args).await,
        ClusterCommand::Apply(args) => moves::apply(args).await,
    }
}
