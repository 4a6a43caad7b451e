//! `kera broker`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use kera_protocol::v1;
use serde::Serialize;

use crate::connect::{ConnectArgs, refused};
use crate::failure::Outcome;
use crate::output::{
    Out, OutputArgs, count, now_ms, print_json, rfc3339, rounded_bytes, short_time,
};

/// `kera broker ...`
#[derive(Debug, Subcommand)]
pub enum BrokerCommand {
    /// Show a broker's version, data directory, memory and more.
    Describe(DescribeArgs),
}

/// Arguments of `kera broker describe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera broker describe
  kera broker describe --bootstrap 10.0.0.5:7600 --json")]
pub struct DescribeArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct View {
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
}

/// An address at which Kafka's clients are served.
#[derive(Serialize)]
struct KafkaListener {
    address: String,
    /// What clients are told, if it is another address.
    advertised: Option<String>,
}

fn kafka_listeners(answer: &v1::DescribeBrokerResponse) -> Vec<KafkaListener> {
    let advertised = |index: usize| answer.kafka_advertised.get(index).cloned();
    let addresses = answer.kafka.iter().enumerate();
    addresses
        .map(|(index, address)| KafkaListener {
            address: address.clone(),
            advertised: advertised(index),
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
pub async fn run(command: BrokerCommand) -> Outcome {
    let BrokerCommand::Describe(args) = command;
    let mut control = args.connect.control().await?;
    let answer = control
        .streams
        .describe_broker(v1::DescribeBrokerRequest {})
        .await
        .map_err(|s| refused(&s))?
        .into_inner();
    let kafka = kafka_listeners(&answer);
    let view = View {
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
    };
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    out.line(format_args!("broker at {}", args.connect.bootstrap))?;
    for (name, value) in [
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
    ] {
        out.line(format_args!("  {name:<12} {value}"))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
