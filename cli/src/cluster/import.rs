//! `kera cluster import`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use kera_broker::import::Import;
use kera_metadata::ImportPlan;
use serde::Serialize;

use super::init::AccessArgs;
use crate::failure::{Failure, Outcome};
use crate::members::how_to_start;
use crate::output::{Out, OutputArgs, Table, count, print_json};

/// How often an import says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Arguments of `kera cluster import`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster import --data-dir /srv/kera --cluster etcd://10.0.0.1:2379 --dry-run
  kera cluster import --data-dir /srv/kera --cluster etcd://10.0.0.1:2379

For a broker that worked alone, or with cluster.peers of earlier versions, and is to go on in a cluster. Stop it first, prepare the \
store with `kera cluster init`, and stop the cluster's brokers, if it has any. Streams, groups, commits of consumers, producer \
ids and settings keep what they are; records stay in the files of the data directory. An import that was interrupted goes on \
when it is run again, and until it ends no broker starts on the directory. Afterwards the broker starts with --cluster only.")]
pub(crate) struct ImportArgs {
    /// The data directory of the stopped broker
    #[arg(long, value_name = "DIR", env = "KERA_DATA_DIR")]
    data_dir: PathBuf,
    /// The metadata store of the cluster, as brokers are told it
    #[arg(long, value_name = "STORE", env = "KERA_CLUSTER_STORE")]
    cluster: String,
    #[command(flatten)]
    access: AccessArgs,
    /// Leave the consumer groups of this broker behind, where the cluster has its own: they begin anew
    #[arg(long)]
    without_groups: bool,
    /// Only show what would be done, and what stands in the way
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Shown {
    cluster: String,
    store: String,
    data_dir: String,
    broker_id: u32,
    /// `dry run`, `imported`, `imported before` or `refused`.
    outcome: &'static str,
    /// An earlier import was interrupted, and this one goes on with it.
    resumed: bool,
    streams: Vec<ShownStream>,
    /// Settings that were changed at run time.
    settings: usize,
    /// Producer ids below this were given out.
    producer_ids: u64,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct ShownStream {
    name: String,
    id: String,
    replicas: u32,
    streamlets: usize,
    groups: usize,
    /// The cluster had it before this import.
    was_there: bool,
    /// It is not imported, as the cluster has its own.
    left_behind: bool,
}

impl Shown {
    fn new(args: &ImportArgs, import: &Import, plan: ImportPlan) -> Self {
        let outcome = match () {
            () if import.was_done() => "imported before",
            () if !plan.problems.is_empty() => "refused",
            () if args.dry_run => "dry run",
            () => "imported",
        };
        let streams = plan.streams.into_iter().map(|stream| ShownStream {
            name: stream.name,
            id: stream.id.to_string(),
            replicas: stream.replicas,
            streamlets: stream.streamlets,
            groups: stream.groups,
            was_there: stream.is_there,
            left_behind: stream.is_left,
        });
        Self {
            cluster: import.cluster().to_string(),
            store: args.cluster.clone(),
            data_dir: args.data_dir.display().to_string(),
            broker_id: plan.broker.id,
            outcome,
            resumed: import.is_resumed() && !import.was_done(),
            streams: streams.collect(),
            settings: plan.settings,
            producer_ids: plan.producer_ids,
            problems: plan.problems,
        }
    }

    fn print(&self, out: &mut Out) -> Result<(), Failure> {
        let mut table = Table::new(&[
            "stream",
            ">replicas",
            ">streamlets",
            ">groups",
            "in cluster",
        ]);
        for stream in &self.streams {
            table.row([
                stream.name.clone(),
                stream.replicas.to_string(),
                count(stream.streamlets as u64),
                count(stream.groups as u64),
                match (stream.was_there, stream.left_behind) {
                    (true, _) => "already".to_owned(),
                    (false, true) => "another; left behind".to_owned(),
                    (false, false) => "new".to_owned(),
                },
            ]);
        }
        out.line(format_args!(
            "broker {} in {} to cluster {} at {}",
            self.broker_id, self.data_dir, self.cluster, self.store
        ))?;
        if self.resumed {
            out.line("an earlier import was interrupted; this one goes on with it")?;
        }
        if self.streams.is_empty() {
            out.line("no streams")?;
        } else {
            out.line(table.render().trim_end())?;
        }
        out.line(format_args!(
            "settings changed at run time: {}; producer ids given out: below {}",
            self.settings, self.producer_ids
        ))?;
        let start = how_to_start(self.broker_id, &self.store);
        match self.outcome {
            "dry run" => out.line("nothing was changed; run it again without --dry-run")?,
            // Why is told as the command's error.
            "refused" => {}
            "imported before" => out.line(format_args!(
                "it was imported before and nothing was changed; start the broker with `{start}` and its --data-dir"
            ))?,
            _ => out.line(format_args!(
                "imported; start the broker with `{start}` and its --data-dir. It no longer starts alone"
            ))?,
        }
        Ok(())
    }
}

/// Does what there is to do, and tells what it was.
fn import(args: &ImportArgs) -> Result<Shown, Failure> {
    let import = Import::open(&args.data_dir, &args.cluster, &args.access.access())?;
    let import = import.without_groups(args.without_groups);
    let plan = import.plan()?;
    let shown = Shown::new(args, &import, plan);
    if shown.outcome == "imported" {
        let mut told = Instant::now();
        let run = import.run(&mut |progress| {
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                eprintln!(
                    "{} of {} records are imported",
                    progress.written, progress.of
                );
            }
            Ok(())
        });
        run.map_err(|error| interrupted(error, &args.data_dir))?;
    }
    Ok(shown)
}

fn interrupted(error: impl std::fmt::Display, data_dir: &Path) -> Failure {
    Failure::message(format_args!(
        "{error}; {} may be imported in part, so that no broker starts there: run `kera cluster import` again, which goes on",
        data_dir.display()
    ))
}

pub(super) async fn run(args: ImportArgs) -> Outcome {
    let json = args.output.json;
    let shown = tokio::task::spawn_blocking(move || import(&args)).await??;
    if json {
        print_json(&shown)?;
    } else {
        let mut out = Out::stdout();
        shown.print(&mut out)?;
        out.flush()?;
    }
    if shown.outcome == "refused" {
        return Err(Failure::message(format_args!(
            "nothing was imported: {}",
            shown.problems.join("; ")
        )));
    }
    Ok(ExitCode::SUCCESS)
}
