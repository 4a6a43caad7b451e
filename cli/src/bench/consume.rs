//! `kera bench consume` and `kera bench e2e`.

use std::process::ExitCode;
use std::time::Instant;

use kera_protocol::v1;

use super::load::{Plan, produce};
use super::produce::{report, with_load};
use super::read::{Consumers, Tally};
use super::report::Report;
use super::setup::Setup;
use super::{ConsumeArgs, E2eArgs};
use crate::connect::refused;
use crate::failure::{Failure, Outcome};
use crate::output::count;

/// Bytes of the stamp in each record of an end-to-end run.
const STAMP_BYTES: u32 = 8;

pub(super) async fn run(args: ConsumeArgs) -> Outcome {
    let common = &args.common;
    let mut setup = Setup::new(common).await?;
    let stored = stored(&mut setup, &common.stream).await?;
    if stored < common.records {
        return Err(Failure::message(format!(
            "stream {} holds {} records, not {}; append some with `kera bench produce {} --records {}`",
            common.stream,
            count(stored),
            count(common.records),
            common.stream,
            common.records - stored
        )));
    }
    let meter = setup.start();
    let tally = Tally::new(common.records, None);
    let consumers = Consumers::open(
        &common.stream,
        &common.connect,
        args.consumers,
        false,
        &tally,
    )
    .await?;
    consumers.finish().await?;
    let taken = meter.stop();
    let (records, bytes) = (tally.records(), tally.bytes());
    Report {
        consumers: Some(args.consumers),
        ..report("consume", common, &setup, taken, records, bytes)
    }
    .print(common.output.json)?;
    Ok(ExitCode::SUCCESS)
}

async fn stored(setup: &mut Setup, stream: &str) -> Result<u64, Failure> {
    let request = v1::FindOrdinalsRequest {
        name: stream.to_owned(),
        at: Some(v1::find_ordinals_request::At::Earliest(true)),
        local: false,
    };
    let answer = setup.control.streams.find_ordinals(request).await;
    let lanes = answer
        .map_err(|status| refused(&status))?
        .into_inner()
        .lanes;
    Ok(lanes
        .iter()
        .map(|lane| lane.head_ordinal.saturating_sub(lane.log_start))
        .sum())
}

pub(super) async fn e2e(args: E2eArgs) -> Outcome {
    if args.load.record_size < STAMP_BYTES {
        return Err(Failure::Usage(format!(
            "--record-size is at least {STAMP_BYTES} here: each record carries the moment it was sent"
        )));
    }
    let common = &args.common;
    let setup = Setup::new(common).await?;
    let begin = Instant::now();
    let tally = Tally::new(common.records, Some(begin));
    let consumers = Consumers::open(
        &common.stream,
        &common.connect,
        args.consumers,
        true,
        &tally,
    )
    .await?;
    let meter = setup.start();
    let plan = Plan {
        records: common.records,
        rate: args.rate,
        stamped: true,
        stamps_from: begin,
    };
    let producing = produce(&common.stream, &common.connect, &args.load, plan);
    let (produced, consumed) = tokio::join!(producing, consumers.finish());
    produced?;
    let latencies = consumed?;
    let taken = meter.stop();
    let latency_of = match args.rate {
        Some(_) => "due to consumed, every record",
        None => "appended to consumed, every record",
    };
    let bytes = common.records * u64::from(args.load.record_size);
    let report = report("e2e", common, &setup, taken, common.records, bytes);
    Report {
        consumers: Some(args.consumers),
        rate: args.rate,
        ..with_load(report, &args.load)
    }
    .with_latency(&latencies, latency_of)
    .print(common.output.json)?;
    Ok(ExitCode::SUCCESS)
}
