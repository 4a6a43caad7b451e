//! `kera stream recover`.

use std::process::ExitCode;

use kera_protocol::v1;
use serde::Serialize;

use super::RecoverArgs;
use super::view::UnrecoveredView;
use crate::connect::refused;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, Table, print_json};

#[derive(Serialize)]
struct Recovered {
    waiting: Vec<UnrecoveredView>,
    accepted: Vec<AcceptedView>,
}

/// Ordinals that were given up.
#[derive(Serialize)]
struct AcceptedView {
    streamlet: u32,
    lane: u32,
    from_ordinal: u64,
    to_ordinal: u64,
}

pub(super) async fn recover(args: RecoverArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let request = v1::RecoverStreamRequest {
        name: args.stream.clone(),
        streamlet: args.streamlet,
        accept_loss: args.accept_loss,
        local: false,
    };
    let answer = control
        .streams
        .recover_stream(request)
        .await
        .map_err(|s| refused(&s))?;
    let answer = answer.into_inner();
    let found = Recovered {
        waiting: answer.waiting.iter().map(UnrecoveredView::new).collect(),
        accepted: answer
            .accepted
            .iter()
            .map(|loss| AcceptedView {
                streamlet: loss.streamlet,
                lane: loss.lane,
                from_ordinal: loss.from_ordinal,
                to_ordinal: loss.to_ordinal,
            })
            .collect(),
    };
    if args.output.json {
        print_json(&found)?;
    } else {
        print(&args.stream, &found)?;
    }
    match found.waiting.iter().any(|one| !one.unclean.is_empty()) {
        true => Err(Failure::message(format!(
            "stream {} has records on none of the brokers that answer: bring the named brokers back, or add --accept-loss to go on without the records that only they have",
            args.stream
        ))),
        false if !found.waiting.is_empty() => Err(Failure::message(format!(
            "stream {} is not fully served, and there is no loss to accept: it goes on by itself once the named brokers are back",
            args.stream
        ))),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn print(stream: &str, found: &Recovered) -> Result<(), Failure> {
    let mut out = Out::stdout();
    for loss in &found.accepted {
        out.line(format_args!(
            "streamlet {} lane {}: goes on at ordinal {}; records from {} on that no replica had are lost",
            loss.streamlet, loss.lane, loss.to_ordinal, loss.from_ordinal
        ))?;
    }
    for one in &found.waiting {
        out.line(one.line())?;
    }
    let mut table = Table::new(&[
        ">streamlet",
        ">lane",
        ">group",
        ">lost from ordinal",
        "replicas on brokers",
    ]);
    let mut unclean = 0;
    for one in &found.waiting {
        for group in &one.unclean {
            unclean += 1;
            let brokers: Vec<_> = group.brokers.iter().map(u32::to_string).collect();
            table.row([
                one.streamlet.to_string(),
                group.lane.to_string(),
                group.group.to_string(),
                group.first_ordinal.to_string(),
                brokers.join(", "),
            ]);
        }
    }
    if unclean > 0 {
        out.bytes(table.render().as_bytes())?;
    }
    if found.waiting.is_empty() {
        out.line(format_args!("stream {stream} is served"))?;
    }
    out.flush()
}
