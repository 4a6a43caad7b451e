//! `kera top`: streams, groups by lag, and brokers, as they change, in a terminal.

mod ask;
mod look;
mod screen;
mod state;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use kera_rpc::told;
use serde_json::json;
use tokio::time::sleep;

use crate::connect::IdentityArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, print_json};
use crate::parse;
use ask::Place;
use look::Look;
use state::{State, View};

/// Between two looks that are to tell rates.
const BETWEEN: Duration = Duration::from_secs(1);

/// Arguments of `kera top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera top
  kera top --http localhost:7681 --view groups
  kera top --once
  kera top --json | jq .overview.health
  kera top --http broker1.example:7680 --tls-ca ca.pem --user ann --user-password-file ann.txt

It asks the broker's HTTP address. One that asks for no password answers programs on its own machine alone; for another \
machine, ssh -L 7680:localhost:7680 MACHINE. In a cluster any broker tells of all. The first line says whether all is well and what to do.

Keys: Tab or 1, 2, 3 for streams, groups, brokers; s sorts by the next column; / filters by name, Esc ends that; \
space pauses; arrows and PgUp, PgDn scroll; q ends.")]
pub(crate) struct TopArgs {
    /// The broker's HTTP address, as its http.listen has it; with TLS if it begins with https://, or names no scheme and --tls-ca
    /// is given
    #[arg(
        long,
        value_name = "[https://]HOST:PORT",
        env = "KERA_HTTP",
        default_value = "http://localhost:7680"
    )]
    http: String,
    #[command(flatten)]
    identity: IdentityArgs,
    /// What to show first
    #[arg(long, value_enum, default_value_t = View::Streams)]
    view: View,
    /// Look again after so long
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse::duration)]
    interval: Duration,
    /// Print one look as text, and end; so it is too where standard output is no terminal
    #[arg(long)]
    once: bool,
    /// Print one look as JSON, and end
    #[arg(long)]
    json: bool,
}

/// Runs `kera top`.
pub(crate) async fn run(args: TopArgs) -> Outcome {
    let place = Place::new(&args.http, &args.identity)?;
    if args.json || args.once || !std::io::stdout().is_terminal() {
        return once(&args, &place).await;
    }
    screen::run(&place, args.view, args.interval).await
}

async fn once(args: &TopArgs, place: &Place) -> Outcome {
    let waits = || Some("the broker's HTTP address has not answered yet".to_owned());
    let take = || async {
        told(Look::take(place), waits)
            .await
            .map_err(Failure::message)
    };
    let first = take().await?;
    // Rates are known once two looks can be compared.
    let look = match first.has_rates() {
        true => first,
        false => {
            sleep(BETWEEN).await;
            take().await?
        }
    };
    if args.json {
        print_json(&json!({
            "overview": look.overview,
            "streams": look.streams,
            "groups": look.groups,
            "brokers": look.brokers,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    let state = State::new(args.view);
    for line in look.summary() {
        out.line(line)?;
    }
    for view in [View::Streams, View::Groups, View::Brokers] {
        out.line("")?;
        out.line(state::title(view, &look))?;
        out.bytes(state.table(view, &look).render().as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
