//! `kera transaction end`.

use std::process::ExitCode;

use clap::{ArgGroup, Args};
use kera_protocol::v1;
use serde::Serialize;

use super::lost::{LostView, table_of, views};
use super::{DescriptionView, change, describe_id, waiting};
use crate::connect::{ConnectArgs, Control};
use crate::failure::{Failure, Outcome};
use crate::output::{OutputArgs, paragraph, plain, print_json, print_line};
use crate::stream::confirm_to;

/// Arguments of `kera transaction end`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("outcome").required(true).args(["commit", "abort"]),
    group = ArgGroup::new("which").required(true).args(["id", "producer"]),
    after_help = "Examples:
  kera transaction end flink-sink-3 --commit
  kera transaction end flink-sink-3 --abort --yes
  kera transaction end --producer 4000000000017 --abort
  kera transaction end --producer 4000000000017 --stream orders --partition 3 --commit

An id ends the transaction that was prepared under it. A stream engine commits all parts of a checkpoint or none: ask \
there first what it decided, and end the transaction by hand only if its handle is gone.

A producer id ends what `kera transaction list` shows as lost: partitions hold it open, and no coordinator knows it. Only \
records say whether it was to be committed; without a reason to believe so, abort. What its coordinator knows is refused."
)]
pub(crate) struct EndArgs {
    /// The transactional id of a prepared transaction
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The producer id of a lost transaction
    #[arg(long, value_name = "PRODUCER")]
    producer: Option<i64>,
    /// Only where a lost transaction is open in this stream
    #[arg(long, requires = "producer")]
    stream: Option<String>,
    /// Only in this partition of the stream
    #[arg(long, requires = "stream")]
    partition: Option<u32>,
    /// Its records count from now on
    #[arg(long)]
    commit: bool,
    /// Nobody who reads what is committed gets its records
    #[arg(long)]
    abort: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct PreparedEnd<'a> {
    transactional_id: &'a str,
    outcome: &'static str,
    /// It had been decided so before.
    repeated: bool,
}

#[derive(Serialize)]
struct LostEnd {
    outcome: &'static str,
    ended: Vec<LostView>,
}

impl EndArgs {
    /// A verb, and its participle.
    fn words(&self) -> (&'static str, &'static str) {
        match self.commit {
            true => ("commit", "committed"),
            false => ("abort", "aborted"),
        }
    }
}

pub(super) async fn run(args: EndArgs) -> Outcome {
    let control = args.connect.control().await?;
    match (&args.id, args.producer) {
        (Some(id), _) => prepared(control, &args, id).await,
        (None, Some(producer)) => lost(control, &args, producer).await,
        (None, None) => Err(Failure::Usage("name an id or a producer".into())),
    }
}

async fn prepared(mut control: Control, args: &EndArgs, id: &str) -> Outcome {
    let (verb, done) = args.words();
    if !args.yes {
        // What it is about, before that is asked.
        let told = describe_id(&control, id).await?;
        let waiting = waiting(&mut control, &told).await;
        let view = DescriptionView::new(&told, &waiting);
        eprintln!("{}", paragraph(&plain(&view.headline())));
        eprint!("{}", view.table().render());
    }
    confirm_to((verb, done), id, "prepared transaction", args.yes)?;
    let request = v1::EndPreparedRequest {
        transactional_id: id.to_owned(),
        commit: args.commit,
        local: false,
    };
    let ended = change(&control, |mut stub| {
        let request = request.clone();
        async move { stub.end_prepared(request).await }
    });
    let repeated = ended.await?.repeated;
    if args.output.json {
        print_json(&PreparedEnd {
            transactional_id: id,
            outcome: done,
            repeated,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(format_args!(
        "{done}{}: transaction of {}",
        if repeated { " before" } else { "" },
        plain(id)
    ))?;
    Ok(ExitCode::SUCCESS)
}

async fn lost(control: Control, args: &EndArgs, producer: i64) -> Outcome {
    let (verb, done) = args.words();
    let name = producer.to_string();
    confirm_to((verb, done), &name, "lost transaction", args.yes)?;
    let request = v1::EndLostRequest {
        producer,
        commit: args.commit,
        stream: args.stream.clone().unwrap_or_default(),
        partition: args.partition,
    };
    let ended = change(&control, |mut stub| {
        let request = request.clone();
        async move { stub.end_lost(request).await }
    });
    let ended = views(&ended.await?.ended);
    if args.output.json {
        print_json(&LostEnd {
            outcome: done,
            ended,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(format_args!("{done}: transaction of producer {producer}"))?;
    table_of(&ended).print("nothing")?;
    Ok(ExitCode::SUCCESS)
}
