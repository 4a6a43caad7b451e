//! `kera cluster status`.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::health::{Health, Looked, StrandedView};
use crate::connect::ConnectArgs;
use crate::failure::{Failure, Outcome};
use crate::members::{
    BrokerView, ComparedView, answering, ask_each, print_brokers, print_compared,
};
use crate::output::{Out, OutputArgs, Table, plural, print_json, rounded_bytes, uuid, verdict};

/// Arguments of `kera cluster status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster status
  kera cluster status --bootstrap 10.0.0.5:7600 --json

The first line says whether the cluster is healthy, and if not what is wrong with what, and what to do. Any broker \
answers. One that has its lease and does not answer is SILENT, one whose certificate the other brokers refuse is REFUSED. A broker that joins is JOINING until it owns something, then PARTIAL with what it owns of its share, \
then NORMAL. Each broker is asked how many replicas it has compared, for two seconds at most; one that \
does not answer is shown as unknown. The exit status is 1 if streamlets have no live owner.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A cluster, as it is shown.
#[derive(Serialize)]
struct View {
    health: Health,
    cluster: String,
    store: String,
    /// What the cluster may use.
    cluster_version: u32,
    controller: Option<u32>,
    answered_by: u32,
    brokers: Vec<BrokerView>,
    streams: u32,
    streamlets: u64,
    groups: u64,
    under_replicated_groups: u64,
    /// Of these, those that have as many copies as the living brokers can hold.
    limited_groups: u64,
    /// Copies that a group can have at the living brokers.
    most_copies: u32,
    /// Streams that are to have more than that.
    limited_streams: u32,
    /// Of copies that are to come to some broker.
    to_come_bytes: u64,
    stranded: Vec<StrandedView>,
    /// How far each broker has compared the copies of what it owns.
    compared: Vec<ComparedView>,
}

pub(super) async fn run(args: StatusArgs) -> Outcome {
    let (control, answer) = answering(&args.connect).await?;
    let answered = (answer.answered_by, &control);
    let (brokers, compared) = ask_each(answer.brokers, answered).await;
    let stranded: Vec<_> = answer
        .stranded
        .into_iter()
        .map(|one| StrandedView {
            stream: one.stream,
            streamlet: one.streamlet,
            owner: one.owner,
            needs: one.needs,
            brokers: one.brokers,
        })
        .collect();
    let limited = answer.limited_groups.min(answer.under_replicated_groups);
    let health = Health::of(&Looked {
        version: answer.cluster_version,
        store: &answer.store,
        controller: answer.controller,
        brokers: &brokers,
        stranded: &stranded,
        told: &compared,
        lacking: (answer.under_replicated_groups - limited, limited),
        limited: (
            answer.limited_streams,
            &answer.limited_stream,
            answer.limited_replicas,
        ),
        most_copies: answer.most_copies,
    });
    let view = View {
        health,
        cluster: uuid(&answer.cluster),
        store: answer.store,
        cluster_version: answer.cluster_version,
        controller: answer.controller,
        answered_by: answer.answered_by,
        brokers,
        streams: answer.streams,
        streamlets: answer.streamlets,
        groups: answer.groups,
        under_replicated_groups: answer.under_replicated_groups,
        limited_groups: answer.limited_groups,
        most_copies: answer.most_copies,
        limited_streams: answer.limited_streams,
        to_come_bytes: answer.to_come_bytes,
        stranded,
        compared,
    };
    match args.output.json {
        true => print_json(&view)?,
        false => print(&view)?,
    }
    // Its table says which.
    Ok(match view.stranded.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// How far an upgrade is, in a sentence; `None` if the cluster has the version of its newest broker.
fn to_finalize(version: u32, brokers: &[BrokerView]) -> Option<String> {
    let (away, living): (Vec<_>, Vec<_>) = brokers.iter().partition(|one| one.state == "GONE");
    let (new, old): (Vec<_>, Vec<_>) = living
        .into_iter()
        .partition(|broker| broker.cluster_version > version);
    if new.is_empty() {
        return None;
    }
    if let (Some(away), true) = (away.first(), old.is_empty()) {
        return Some(format!(
            "cluster version {version}: broker {} is away, and nobody knows its program; start it with the new one before you run `kera cluster finalize`",
            away.broker_id
        ));
    }
    Some(match old.is_empty() {
        true => format!(
            "cluster version {version}, and every broker can a newer one: run `kera cluster finalize` once there is no need to go back"
        ),
        false => format!(
            "cluster version {version}: an upgrade is under way, {} of {} brokers have a newer program",
            new.len(),
            new.len() + old.len()
        ),
    })
}

fn print(view: &View) -> Result<(), Failure> {
    let mut out = Out::stdout();
    let controller = match view.controller {
        Some(broker) => format!("broker {broker} is controller"),
        None => "no controller is elected; the metadata store may be away".into(),
    };
    out.line(verdict(&view.health.summary))?;
    for text in view.health.others() {
        out.line(text)?;
    }
    out.line(format_args!("cluster {} over {}", view.cluster, view.store))?;
    if let Some(text) = to_finalize(view.cluster_version, &view.brokers) {
        out.line(text)?;
    }
    out.line(format_args!(
        "{} of {} with {}; {controller}",
        plural(view.streams.into(), "stream"),
        plural(view.streamlets, "streamlet"),
        plural(view.groups, "group")
    ))?;
    if view.to_come_bytes > 0 {
        out.line(format_args!(
            "{} of replicas are on their way to brokers that hold less than others",
            rounded_bytes(view.to_come_bytes)
        ))?;
    }
    out.bytes(b"\n")?;
    print_brokers(&mut out, &view.brokers, view.controller)?;
    print_compared(&mut out, &view.compared)?;
    if !view.stranded.is_empty() {
        let mut table = Table::new(&["stream", ">streamlet", ">owner", "not served until"]);
        for one in &view.stranded {
            table.row([
                one.stream.clone(),
                one.streamlet.to_string(),
                one.owner.to_string(),
                one.needs.clone(),
            ]);
        }
        out.bytes(b"\n")?;
        out.bytes(table.render().as_bytes())?;
    }
    out.flush()
}
