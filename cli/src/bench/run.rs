//! Runs the load of a benchmark and reports what it was.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kera_consumer::Order;
use kera_load::native::{NativeClients, timed_one_in};
use kera_load::{Load, Work};
use kera_protocol::v1;
use tokio::runtime::Handle;

use super::report::Report;
use super::setup::{Setup, TakenTime};
use super::{BenchCommand, CommonArgs, LoadArgs};
use crate::connect::refused;
use crate::failure::{Failure, Outcome};
use crate::members::working;
use crate::output::count;

/// Bytes of the stamp in each record of an end-to-end run.
const STAMP_BYTES: u32 = 8;
/// At full speed the acknowledgement of one record of so many is timed.
const SAMPLED: u64 = 1024;

/// A benchmark, as it was asked for.
struct Bench<'a> {
    name: &'static str,
    work: Work,
    common: &'a CommonArgs,
    load: Option<&'a LoadArgs>,
    consumers: Option<u32>,
    rate: Option<f64>,
}

impl<'a> Bench<'a> {
    fn of(command: &'a BenchCommand) -> Self {
        let bench = |name, work, common| Self {
            name,
            work,
            common,
            load: None,
            consumers: None,
            rate: None,
        };
        match command {
            BenchCommand::Produce(args) => Self {
                load: Some(&args.load),
                rate: args.rate,
                ..bench("produce", Work::Produce, &args.common)
            },
            BenchCommand::Latency(args) => Self {
                load: Some(&args.load),
                rate: Some(args.rate),
                ..bench("latency", Work::Produce, &args.common)
            },
            BenchCommand::Consume(args) => Self {
                consumers: Some(args.consumers),
                ..bench("consume", Work::Consume, &args.common)
            },
            BenchCommand::E2e(args) => Self {
                load: Some(&args.load),
                consumers: Some(args.consumers),
                rate: args.rate,
                ..bench("e2e", Work::Both, &args.common)
            },
        }
    }

    /// What the engine is to do with a stream of so many lanes.
    fn plan(&self, lanes: u32) -> Result<Load, Failure> {
        let record_bytes = self.load.map_or(1, |load| load.record_size);
        if self.work == Work::Both && record_bytes < STAMP_BYTES {
            return Err(Failure::Usage(format!(
                "--record-size is at least {STAMP_BYTES} here: each record carries the moment it was sent"
            )));
        }
        let rate = match self.rate {
            Some(rate) if rate < 1.0 => {
                return Err(Failure::Usage("--rate is at least 1/s here".to_owned()));
            }
            rate => rate.map(|rate| rate.round() as u64),
        };
        let consumers = self.consumers.unwrap_or(0);
        Ok(Load {
            work: self.work,
            records: self.common.records,
            record_bytes,
            keyed: false,
            different_keys: None,
            partitions: lanes,
            rate,
            at_once: None,
            time: None,
            most: None,
            producers: self.load.map_or(0, |load| load.producers),
            consumers,
            subscriptions: 1,
            group: consumers > 1,
            busy: Duration::ZERO,
            timed: self.work == Work::Both,
            warm: false,
            sample: match self.work {
                Work::Produce => SAMPLED,
                _ => 0,
            },
        })
    }

    /// What the latency is of.
    fn latency_of(&self, load: &Load) -> String {
        let from = match load.rate {
            Some(_) => "due",
            None => "appended",
        };
        if self.work == Work::Both {
            return format!("{from} to consumed, every record");
        }
        let one_in = match load.rate {
            Some(_) => timed_one_in(load),
            None => SAMPLED,
        };
        match one_in {
            1 => format!("{from} to acknowledged, every record"),
            n => format!("{from} to acknowledged, one record in {}", count(n)),
        }
    }
}

/// Runs `kera bench`.
pub(crate) async fn run(command: BenchCommand) -> Outcome {
    let bench = Bench::of(&command);
    let common = bench.common;
    let mut setup = Setup::new(common).await?;
    let load = bench.plan(u32::try_from(setup.lanes()).unwrap_or(u32::MAX))?;
    if bench.work == Work::Consume {
        check_stored(&mut setup, common).await?;
    }
    let connect = &common.connect;
    let handle = Handle::current();
    let mut clients = NativeClients::new(
        &load,
        handle,
        &connect.bootstrap,
        &common.stream,
        &connect.options()?,
    );
    clients.streamlets = setup.streamlets();
    clients.member = clients.member.order(Order::None);
    if let Some(args) = bench.load {
        let producer = clients.producer.compression(args.compression.into());
        clients.producer = args.batching.apply(producer);
    }
    let bar = working(format!(
        "bench {}: {} records, stream {}",
        bench.name,
        count(load.records),
        common.stream
    ));
    let mut meter = None;
    // The clients of a load have threads of their own, which wait for what this runtime does.
    let done = tokio::task::block_in_place(|| {
        kera_load::run(&clients, &load, || {
            meter = Some(setup.start());
            Ok(Instant::now())
        })
    });
    bar.finish_and_clear();
    let done = done?;
    let taken = meter.map(|meter| meter.stop()).unwrap_or_default();
    let latency = match bench.work {
        Work::Both => done.latency.clone(),
        _ => done.sides.acks.clone(),
    };
    let report = report(
        &bench,
        &setup,
        taken,
        (done.records, done.bytes),
        done.seconds,
    );
    Report {
        latency_of: latency.is_some().then(|| bench.latency_of(&load)),
        latency,
        ..report
    }
    .print(common.output.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses to read more records than there are.
async fn check_stored(setup: &mut Setup, common: &CommonArgs) -> Result<(), Failure> {
    let request = v1::FindOrdinalsRequest {
        name: common.stream.clone(),
        at: Some(v1::find_ordinals_request::At::Earliest(true)),
        local: false,
    };
    let answer = setup.control.streams.find_ordinals(request).await;
    let lanes = answer
        .map_err(|status| refused(&status))?
        .into_inner()
        .lanes;
    let stored: u64 = lanes
        .iter()
        .map(|lane| lane.head_ordinal.saturating_sub(lane.log_start))
        .sum();
    if stored >= common.records {
        return Ok(());
    }
    Err(Failure::message(format!(
        "stream {} holds {} records, not {}; append some with `kera bench produce {} --records {}`",
        common.stream,
        count(stored),
        count(common.records),
        common.stream,
        common.records - stored
    )))
}

fn report(
    bench: &Bench<'_>,
    setup: &Setup,
    taken: TakenTime,
    (records, bytes): (u64, u64),
    seconds: f64,
) -> Report {
    let per_record = |nanos: u128| nanos as f64 / records.max(1) as f64;
    let load = bench.load;
    let linger = load.map(|load| load.batching.linger.as_micros());
    Report {
        bench: bench.name,
        stream: bench.common.stream.clone(),
        ack: setup.ack(),
        lanes: setup.lanes(),
        records,
        bytes,
        seconds,
        records_per_second: records as f64 / seconds.max(1e-9),
        mb_per_second: bytes as f64 / 1e6 / seconds.max(1e-9),
        record_size: load.map(|load| load.record_size),
        batch_size: load.map(|load| load.batching.batch_size),
        linger_us: linger.map(|linger| u64::try_from(linger).unwrap_or(u64::MAX)),
        producers: load.map(|load| load.producers),
        consumers: bench.consumers,
        rate: bench.rate,
        client_cpu_ns_per_record: per_record(taken.own_cpu.as_nanos()),
        broker_cpu_ns_per_record: taken.broker_cpu.map(|cpu| per_record(cpu.as_nanos())),
        latency_of: None,
        latency: None,
        disk: setup.disk(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        broker_version: setup.broker_version(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: BenchCommand,
    }

    fn plan(line: &[&str]) -> Result<(Load, String), Failure> {
        let line = Line::parse_from(["bench"].iter().chain(line));
        let bench = Bench::of(&line.command);
        let load = bench.plan(1)?;
        let latency_of = bench.latency_of(&load);
        Ok((load, latency_of))
    }

    #[test]
    fn what_is_timed_is_what_the_report_says() {
        let of = |line: &[&str]| plan(line).unwrap().1;
        assert_eq!(
            of(&["produce", "s"]),
            "appended to acknowledged, one record in 1,024"
        );
        assert_eq!(
            of(&["latency", "s", "--rate", "2k/s"]),
            "due to acknowledged, every record"
        );
        assert_eq!(
            of(&["latency", "s", "--rate", "100k/s"]),
            "due to acknowledged, one record in 50"
        );
        assert_eq!(of(&["e2e", "s"]), "appended to consumed, every record");
        let (load, _) = plan(&["e2e", "s", "--consumers", "4", "--rate", "1k"]).unwrap();
        assert!(load.group && load.timed && !load.warm);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for line in [
            &["e2e", "s", "--record-size", "7"][..],
            &["latency", "s", "--rate", "0.5/s"],
        ] {
            assert!(matches!(plan(line), Err(Failure::Usage(_))), "{line:?}");
        }
        assert!(plan(&["produce", "s", "--record-size", "1"]).is_ok());
    }
}
