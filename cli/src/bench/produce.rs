//! `kera bench produce` and `kera bench latency`.

use std::process::ExitCode;
use std::time::Instant;

use hdrhistogram::Histogram;

use super::load::{Plan, produce};
use super::report::{Latency, Report};
use super::setup::{Setup, Taken};
use super::{CommonArgs, LatencyArgs, LoadArgs, ProduceArgs};
use crate::failure::Outcome;

pub(super) async fn run(args: ProduceArgs) -> Outcome {
    let latency_of = match args.rate {
        Some(_) => "due to acknowledged, every record",
        None => "appended to acknowledged, a sample of records",
    };
    load("produce", &args.common, &args.load, args.rate, latency_of).await
}

pub(super) async fn latency(args: LatencyArgs) -> Outcome {
    let latency_of = "due to acknowledged, every record";
    load(
        "latency",
        &args.common,
        &args.load,
        Some(args.rate),
        latency_of,
    )
    .await
}

async fn load(
    bench: &'static str,
    common: &CommonArgs,
    load: &LoadArgs,
    rate: Option<f64>,
    latency_of: &'static str,
) -> Outcome {
    let setup = Setup::new(common).await?;
    let meter = setup.start();
    let plan = Plan {
        records: common.records,
        rate,
        stamped: false,
        stamps_from: Instant::now(),
    };
    let latencies = produce(&common.stream, &common.connect, load, plan).await?;
    let taken = meter.stop();
    let bytes = common.records * u64::from(load.record_size);
    let report = report(bench, common, &setup, taken, common.records, bytes);
    Report {
        rate,
        ..with_load(report, load)
    }
    .with_latency(&latencies, latency_of)
    .print(common.output.json)?;
    Ok(ExitCode::SUCCESS)
}

/// What is known of every run.
pub(super) fn report(
    bench: &'static str,
    common: &CommonArgs,
    setup: &Setup,
    taken: Taken,
    records: u64,
    bytes: u64,
) -> Report {
    let seconds = taken.time.as_secs_f64().max(1e-9);
    let per_record = |nanos: u128| nanos as f64 / records.max(1) as f64;
    Report {
        bench,
        stream: common.stream.clone(),
        ack: setup.ack(),
        lanes: setup.lanes(),
        records,
        bytes,
        seconds,
        records_per_second: records as f64 / seconds,
        mb_per_second: bytes as f64 / 1e6 / seconds,
        record_size: None,
        batch_size: None,
        linger_us: None,
        producers: None,
        consumers: None,
        rate: None,
        client_cpu_ns_per_record: per_record(taken.own_cpu.as_nanos()),
        broker_cpu_ns_per_record: taken.broker_cpu.map(|cpu| per_record(cpu.as_nanos())),
        latency_of: None,
        latency: None,
        disk: setup.disk(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        broker_version: setup.broker_version(),
    }
}

/// The report with what was appended.
pub(super) fn with_load(report: Report, load: &LoadArgs) -> Report {
    Report {
        record_size: Some(load.record_size),
        batch_size: Some(load.batching.batch_size),
        linger_us: Some(u64::try_from(load.batching.linger.as_micros()).unwrap_or(u64::MAX)),
        producers: Some(load.producers),
        ..report
    }
}

impl Report {
    /// The report with latencies.
    pub(super) fn with_latency(self, latencies: &Histogram<u64>, of: &'static str) -> Self {
        let latency = Latency::of(latencies);
        Self {
            latency_of: latency.is_some().then_some(of),
            latency,
            ..self
        }
    }
}
