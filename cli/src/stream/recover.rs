//! `kera stream recover`.

use std::process::ExitCode;

use kera_protocol::v1;
use serde::Serialize;

use super::RecoverArgs;
use super::confirm_to;
use super::view::{UncleanView, UnrecoveredView};
use crate::connect::{Control, not_made, refused};
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
    let mut found = ask(&args, &mut control, Vec::new()).await?;
    if args.accept_loss && !found.unclean().is_empty() {
        // What is given up is what was shown, and nothing that comes up meanwhile.
        match args.output.json {
            true => eprint!("{}", found.table().render()),
            false => print(&args.stream, &found)?,
        }
        let what = "loss in these groups of the stream";
        confirm_to(("accept", "given up"), &args.stream, what, args.yes)?;
        found = ask(&args, &mut control, found.unclean()).await?;
    }
    if args.output.json {
        print_json(&found)?;
    } else {
        print(&args.stream, &found)?;
    }
    match !found.unclean().is_empty() {
        true if args.accept_loss => Err(Failure::message(format!(
            "stream {} has groups that were not given up: they came up after the others were shown, or their owner has not carried it out yet, or its version is too old for it; see `kera stream recover {}`, and decide again",
            args.stream, args.stream
        ))),
        true => Err(Failure::message(format!(
            "stream {} has records that are whole on none of the brokers that answer: bring the named brokers back, or add --accept-loss to go on without the records that only they have",
            args.stream
        ))),
        false if !found.waiting.is_empty() => Err(Failure::message(format!(
            "stream {} is not fully served, and there is no loss to accept: it goes on by itself once the named brokers are back",
            args.stream
        ))),
        false => Ok(ExitCode::SUCCESS),
    }
}

/// Asks what the stream waits for, and has it go on without what is lost of the groups to give up.
async fn ask(
    args: &RecoverArgs,
    control: &mut Control,
    give_up: Vec<v1::GroupToGiveUp>,
) -> Result<Recovered, Failure> {
    let changes = !give_up.is_empty();
    let request = v1::RecoverStreamRequest {
        name: args.stream.clone(),
        streamlet: args.streamlet,
        // An earlier broker would give up more than what is named.
        accept_loss: false,
        local: false,
        give_up,
    };
    let answer = control.streams.recover_stream(request).await;
    let answer = answer.map_err(|status| match changes {
        true => not_made(&status, &format!("kera stream recover {}", args.stream)),
        false => refused(&status),
    })?;
    let answer = answer.into_inner();
    let accepted = answer.accepted.iter().map(|loss| AcceptedView {
        streamlet: loss.streamlet,
        lane: loss.lane,
        from_ordinal: loss.from_ordinal,
        to_ordinal: loss.to_ordinal,
    });
    Ok(Recovered {
        waiting: answer.waiting.iter().map(UnrecoveredView::new).collect(),
        accepted: accepted.collect(),
    })
}

impl Recovered {
    /// The groups of which no replica counts.
    fn unclean(&self) -> Vec<v1::GroupToGiveUp> {
        let waiting = self.waiting.iter();
        let groups = waiting.flat_map(|one| {
            let named = |group: &UncleanView| v1::GroupToGiveUp {
                streamlet: one.streamlet,
                lane: group.lane,
                group: group.group,
            };
            one.unclean.iter().map(named)
        });
        groups.collect()
    }

    /// A row for each of them.
    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ">streamlet",
            ">lane",
            ">group",
            ">lost from ordinal",
            "replicas on brokers",
        ]);
        for one in &self.waiting {
            for group in &one.unclean {
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
        table
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
    if !found.unclean().is_empty() {
        out.bytes(found.table().render().as_bytes())?;
    }
    if found.waiting.is_empty() {
        out.line(format_args!("stream {stream} is served"))?;
    }
    out.flush()
}
