//! `kera transaction abort`.

use std::process::ExitCode;

use clap::{ArgGroup, Args};
use kera_producer::{AbortWhich, Transactions};
use kera_protocol::v1;

use super::change;
use crate::connect::ConnectArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{plain, print_line};
use crate::stream::confirm_to;

/// Arguments of `kera transaction abort`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("which").required(true).args(["id", "prefix"]),
    after_help = "Examples:
  kera transaction abort payments --yes
  kera transaction abort --prefix job-7/
  kera transaction abort --prefix job-7/3/ --label-above 41 --prepared --yes

What the transaction wrote is not read by anyone who reads what is committed. A producer that still runs is told that \
it is fenced, and has to begin anew. One that is gone needs no help: its transaction is aborted when its timeout is over.

With --prefix each id needs the right to write under it. Others are left alone and not named. So are ids with nothing \
open, whose producers go on, and without --prepared those that are prepared or have no timeout."
)]
pub(crate) struct AbortArgs {
    /// The transactional id
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// All transactional ids that begin so
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    prefix: Option<String>,
    /// Also those that are prepared or have no timeout: whoever has their handles cannot commit them any more
    #[arg(long, requires = "prefix")]
    prepared: bool,
    /// Only ids of which all that follows the prefix is a number above this
    #[arg(long, value_name = "NUMBER", requires = "prefix")]
    label_above: Option<u64>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) async fn run(args: AbortArgs) -> Outcome {
    match (&args.id, &args.prefix) {
        (Some(id), _) => one(&args, id).await,
        (None, Some(prefix)) => by_prefix(&args, prefix).await,
        (None, None) => Err(Failure::Usage("name an id or a prefix".into())),
    }
}

async fn one(args: &AbortArgs, id: &str) -> Outcome {
    confirm_to(("abort", "aborted"), id, "transaction", args.yes)?;
    let control = args.connect.control().await?;
    let request = v1::AbortTransactionRequest {
        transactional_id: id.to_owned(),
        local: false,
    };
    let aborted = change(&control, |mut stub| {
        let request = request.clone();
        async move { stub.abort_transaction(request).await }
    });
    aborted.await?;
    print_line(format_args!("aborted: transaction of {id}"))?;
    Ok(ExitCode::SUCCESS)
}

async fn by_prefix(args: &AbortArgs, prefix: &str) -> Outcome {
    let what = "transactions of this prefix";
    confirm_to(("abort", "aborted"), prefix, what, args.yes)?;
    // The first contact says clearly when nobody is there.
    args.connect.control().await?;
    let which = AbortWhich {
        prepared: args.prepared,
        label_above: args.label_above,
    };
    let all = Transactions::new(args.connect.client()?);
    let aborted = all.abort_by_prefix(prefix, which).await;
    let aborted = aborted.map_err(|error| Failure::message(error.to_string()))?;
    if aborted.is_empty() {
        print_line(format_args!("nothing to abort"))?;
    }
    let mut failed = 0;
    for one in &aborted {
        let id = plain(&one.handle.transactional_id);
        match &one.outcome {
            Ok(()) => print_line(format_args!("aborted: transaction of {id}"))?,
            Err(error) => {
                failed += 1;
                let why = plain(&error.to_string());
                print_line(format_args!("not aborted: transaction of {id}: {why}"))?;
            }
        }
    }
    match failed {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::message(format!(
            "{failed} of {} transactions are not known to be aborted; the command may be repeated",
            aborted.len()
        ))),
    }
}
