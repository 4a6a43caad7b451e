//! `kera broker`.

mod add;
mod cluster;
mod drain;
mod restart;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use kera_protocol::v1;
use serde::Serialize;

use cluster::ClusterView;

use crate::connect::{ConnectArgs, refused};
use crate::failure::{Failure, Outcome};
use crate::members::{brokers, print_brokers};
use crate::output::{
    Out, OutputArgs, Table, count, fact, now_ms, print_json, rfc3339, rounded_bytes, short_time,
    uuid,
};

/// `kera broker ...`
#[derive(Debug, Subcommand)]
pub(crate) enum BrokerCommand {
    /// Show a broker's version, data directory, memory, replicas, peers and more.
    Describe(DescribeArgs),
    /// List the brokers and replica stores of a cluster, or a broker that works alone.
    List(ListArgs),
    /// Wait for a new broker of a cluster until it has its share of the streamlets.
    Add(add::AddArgs),
    /// Have a broker give away the streamlets it owns, so that it can be stopped for good.
    Drain(drain::DrainArgs),
    /// Show in which order brokers can be restarted, and what each restart interrupts.
    RestartPlan(restart::RestartPlanArgs),
}

/// Arguments of `kera broker list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera broker list
  kera broker list --bootstrap 10.0.0.5:7600 --json

Brokers and replica stores that share a metadata store are listed as the store knows them, with their roles and what they \
own.")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera broker describe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera broker describe
  kera broker describe --bootstrap 10.0.0.5:7600 --json

At the address of a `kera replica-store`, or any other where a broker listens for others, it shows the replica store.")]
pub(crate) struct DescribeArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct View {
    broker_id: u32,
    version: String,
    pid: u32,
    data_dir: String,
    started: String,
    uptime_ms: u64,
    recovery_ms: u64,
    io_engine: String,
    pool_bytes: u64,
    pool_used_bytes: u64,
    connections: u32,
    streams: u32,
    groups: u64,
    kafka: Vec<KafkaListener>,
    /// What was changed while it runs.
    settings: Vec<Changed>,
    /// The broker among others; absent if it works alone.
    cluster: Option<ClusterView>,
}

/// A setting that was changed while the broker runs.
#[derive(Serialize)]
struct Changed {
    name: String,
    value: String,
    /// What the broker was started with.
    configured: String,
    /// It was set of all brokers, not of this one.
    of_all: bool,
}

impl Changed {
    fn new(setting: v1::ChangedSetting) -> Self {
        Self {
            name: setting.name,
            value: setting.value,
            configured: setting.configured,
            of_all: setting.of_all,
        }
    }

    fn text(&self) -> String {
        let scope = if self.of_all {
            "all brokers"
        } else {
            "this broker"
        };
        let Self {
            name,
            value,
            configured,
            ..
        } = self;
        format!("{name} = {value}, set of {scope} (configured: {configured})")
    }
}

/// An address at which Kafka's clients are served.
#[derive(Serialize)]
struct KafkaListener {
    address: String,
    /// What clients are told, if it is another address.
    advertised: Option<String>,
}

fn kafka_listeners(answer: &v1::DescribeBrokerResponse) -> Vec<KafkaListener> {
    let all = &answer.kafka_advertised;
    let named = |text: &'_ str| text.split_once('=').map(|(name, _)| name.to_owned());
    // By names, if they have any, and otherwise in the same order.
    let by_name = all.iter().any(|one| named(one).is_some());
    let advertised = |index: usize, address: &str| match by_name {
        true => all.iter().find(|one| named(one) == named(address)),
        false => all.get(index),
    };
    let addresses = answer.kafka.iter().enumerate();
    addresses
        .map(|(index, address)| KafkaListener {
            address: address.clone(),
            advertised: advertised(index, address).map(|told| match told.split_once('=') {
                Some((_, told)) => told.to_owned(),
                None => told.clone(),
            }),
        })
        .collect()
}

fn kafka_text(listeners: &[KafkaListener]) -> String {
    if listeners.is_empty() {
        return "off".into();
    }
    let texts = listeners.iter().map(|listener| match &listener.advertised {
        Some(advertised) => format!("{} as {advertised}", listener.address),
        None => listener.address.clone(),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Runs `kera broker`.
pub(crate) async fn run(command: BrokerCommand) -> Outcome {
    match command {
        BrokerCommand::Describe(args) => describe(args).await,
        BrokerCommand::List(args) => list(args).await,
        BrokerCommand::Add(args) => add::run(args).await,
        BrokerCommand::Drain(args) => drain::run(args).await,
        BrokerCommand::RestartPlan(args) => restart::run(args).await,
    }
}

/// The description of the first broker that answers, and its address.
async fn ask(connect: &ConnectArgs) -> Result<(v1::DescribeBrokerResponse, String), Failure> {
    let mut control = connect.control().await?;
    let request = v1::DescribeBrokerRequest {};
    let answer = control.streams.describe_broker(request).await;
    let answer = answer.map_err(|s| refused(&s))?.into_inner();
    Ok((answer, control.address))
}

/// What is told at an address where a broker listens for others.
#[derive(Serialize)]
struct CopiesView {
    store_id: String,
    boot_id: String,
    free_bytes: u64,
}

/// Describes the copies kept behind `connect`; false if what is there keeps none.
async fn describe_copies(connect: &ConnectArgs, output: OutputArgs) -> Result<bool, Failure> {
    let mut control = connect.control().await?;
    let request = v1::DescribeBackupRequest {};
    let Ok(answer) = control.backups.describe(request).await else {
        return Ok(false);
    };
    let answer = answer.into_inner();
    let incarnation = answer.incarnation.unwrap_or_default();
    let view = CopiesView {
        store_id: uuid(&incarnation.store_id),
        boot_id: uuid(&incarnation.boot_id),
        free_bytes: answer.free_bytes,
    };
    if output.json {
        print_json(&view)?;
        return Ok(true);
    }
    let mut out = Out::stdout();
    let address = control.address;
    out.line(format_args!("replicas for other brokers at {address}"))?;
    let store = format!("{} (boot {})", view.store_id, view.boot_id);
    let free = format!("{} free", rounded_bytes(view.free_bytes));
    for (name, value) in [("replica store", store), ("replica memory", free)] {
        out.line(fact(name, &value))?;
    }
    out.flush()?;
    Ok(true)
}

/// A broker that works alone, as `kera broker list` shows it.
#[derive(Serialize)]
struct Listed {
    broker_id: u32,
    address: String,
    state: &'static str,
}

async fn list(args: ListArgs) -> Outcome {
    if let Some((brokers, controller)) = brokers(&args.connect).await? {
        match args.output.json {
            true => print_json(&brokers)?,
            false => {
                let mut out = Out::stdout();
                print_brokers(&mut out, &brokers, controller)?;
                out.flush()?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (answer, address) = ask(&args.connect).await?;
    let alone = Listed {
        broker_id: answer.broker_id,
        address,
        state: "works alone",
    };
    if args.output.json {
        print_json(&[alone])?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["broker", "address", "state"]);
    table.row([
        alone.broker_id.to_string(),
        alone.address,
        alone.state.to_owned(),
    ]);
    table.print("no brokers")?;
    Ok(ExitCode::SUCCESS)
}

async fn describe(args: DescribeArgs) -> Outcome {
    let (answer, address) = match ask(&args.connect).await {
        Ok(answer) => answer,
        // Not an address for clients, maybe one for other brokers.
        Err(error) => {
            return match describe_copies(&args.connect, args.output).await {
                Ok(true) => Ok(ExitCode::SUCCESS),
                _ => Err(error),
            };
        }
    };
    let kafka = kafka_listeners(&answer);
    let view = View {
        broker_id: answer.broker_id,
        version: answer.version,
        pid: answer.pid,
        data_dir: answer.data_dir,
        started: rfc3339(answer.started_ms),
        uptime_ms: now_ms().saturating_sub(answer.started_ms),
        recovery_ms: answer.recovery_ms,
        io_engine: answer.io_engine,
        pool_bytes: answer.pool_bytes,
        pool_used_bytes: answer.pool_used_bytes,
        connections: answer.connections,
        streams: answer.streams,
        groups: answer.groups,
        kafka,
        settings: answer.settings.into_iter().map(Changed::new).collect(),
        cluster: answer.cluster.map(ClusterView::new),
    };
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    out.line(format_args!("broker {} at {address}", view.broker_id))?;
    let mut lines = vec![
        ("version", view.version),
        ("process", view.pid.to_string()),
        ("data", view.data_dir),
        (
            "started",
            format!(
                "{}, {} ago, serving after {}",
                view.started,
                short_time(Duration::from_millis(view.uptime_ms)),
                short_time(Duration::from_millis(view.recovery_ms))
            ),
        ),
        ("I/O engine", view.io_engine),
        (
            "memory",
            format!(
                "{} of {} in use",
                rounded_bytes(view.pool_used_bytes),
                rounded_bytes(view.pool_bytes)
            ),
        ),
        ("connections", count(u64::from(view.connections))),
        ("streams", count(u64::from(view.streams))),
        ("groups", count(view.groups)),
        ("Kafka", kafka_text(&view.kafka)),
    ];
    let settings = view.settings.iter();
    lines.extend(settings.map(|setting| ("changed", setting.text())));
    let cluster = &view.cluster;
    lines.extend(cluster.iter().flat_map(ClusterView::lines));
    for (name, value) in lines {
        out.line(fact(name, &value))?;
    }
    if let Some(cluster) = cluster {
        cluster.print_peers(&mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_with_what_clients_are_told_of_each() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let told = |kafka: &[&str], advertised: &[&str]| {
            kafka_text(&kafka_listeners(&v1::DescribeBrokerResponse {
                kafka: texts(kafka),
                kafka_advertised: texts(advertised),
                ..v1::DescribeBrokerResponse::default()
            }))
        };
        let named = ["inner=a:1", "b:2", "outer=c:3"];
        assert_eq!(
            told(&named, &["outer=far:9"]),
            "inner=a:1, b:2, outer=c:3 as far:9"
        );
        assert_eq!(
            told(&["a:1", "b:2"], &["x:1", "y:2"]),
            "a:1 as x:1, b:2 as y:2"
        );
    }

    #[test]
    fn a_changed_setting_is_told_with_what_the_broker_was_started_with() {
        let setting = v1::ChangedSetting {
            name: "kafka.default_partitions".into(),
            value: "3".into(),
            configured: "1".into(),
            of_all: true,
        };
        assert_eq!(
            Changed::new(setting).text(),
            "kafka.default_partitions = 3, set of all brokers (configured: 1)"
        );
    }
}
