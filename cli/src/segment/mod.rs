//! `kera segment`: group files, with or without a broker.

mod examine;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use indicatif::ProgressBar;

use crate::failure::{Failure, Outcome};
use crate::members::progress;
use crate::output::{Out, OutputArgs, print_json, say};
use examine::examine;

/// `kera segment ...`
#[derive(Debug, Subcommand)]
pub(crate) enum SegmentCommand {
    /// Show a group file's segments, marks and batches.
    Inspect(InspectArgs),
    /// Check every checksum and every record of group files.
    Verify(VerifyArgs),
}

/// Arguments of `kera segment inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera segment inspect DATA_DIR/streams/STREAM_ID/0/1.0.log
  kera segment inspect 1.0.log --batches --limit 20
  kera segment inspect DATA_DIR/streams/STREAM_ID/0/*.log
  kera segment inspect 1.0.log --json

Files are only read; a broker may be using them. With --json one file is an object, and several are a list. Exit \
status: 0 if every file could be read, 1 if not.")]
pub(crate) struct InspectArgs {
    /// Groups' files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// List batches
    #[arg(long)]
    batches: bool,
    /// List at most so many batches
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera segment verify`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera segment verify DATA_DIR/streams/STREAM_ID/0/1.0.log
  kera segment verify DATA_DIR/streams/*/*/*.log

For a file that is not sound the first bad byte and the batch are named. `torn` is what a crash leaves at the end of \
a file: bytes that were never acknowledged; recovery cuts them off. `damaged` is the loss of bytes known to have been \
whole. `ahead` is sound: a broker made the file for a group to come, and nothing is written to it yet. Exit status: 0 \
if every file is sound, 1 if not.")]
pub(crate) struct VerifyArgs {
    /// Groups' files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `kera segment`.
pub(crate) fn run(command: SegmentCommand) -> Outcome {
    match command {
        SegmentCommand::Inspect(args) => inspect(&args),
        SegmentCommand::Verify(args) => verify(&args),
    }
}

fn inspect(args: &InspectArgs) -> Outcome {
    let limit = if args.batches { args.limit } else { 0 };
    if let [file] = args.files.as_slice() {
        let found = examine(file, limit)?;
        match args.output.json {
            true => print_json(&found)?,
            false => show::print(&found, args.batches)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (mut all, mut unread) = (Vec::new(), 0);
    let bar = files_bar(args.files.len(), args.output.json);
    for (at, file) in args.files.iter().enumerate() {
        bar.set_position(at as u64);
        let found = match examine(file, limit) {
            Ok(found) => found,
            // The others may tell what is wanted.
            Err(Failure::Failed(error)) => {
                unread += 1;
                bar.suspend(|| say(&format!("error: {error:#}")));
                continue;
            }
            Err(usage) => return Err(usage),
        };
        if args.output.json {
            all.push(found);
            continue;
        }
        if at > unread {
            println_blank()?;
        }
        show::print(&found, args.batches)?;
    }
    bar.finish_and_clear();
    if args.output.json {
        print_json(&all)?;
    }
    Ok(match unread {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn println_blank() -> Result<(), Failure> {
    let mut out = Out::stdout();
    out.line("")?;
    out.flush()
}

/// A bar over files whose verdicts come all together, at the end.
fn files_bar(files: usize, is_json: bool) -> ProgressBar {
    let bar = match is_json && files > 1 {
        true => progress(files as u64),
        false => ProgressBar::hidden(),
    };
    bar.set_message("files");
    bar
}

fn verify(args: &VerifyArgs) -> Outcome {
    let mut all = Vec::new();
    let mut unsound = 0;
    let mut out = Out::stdout();
    let bar = files_bar(args.files.len(), args.output.json);
    for (at, file) in args.files.iter().enumerate() {
        bar.set_position(at as u64);
        let found = match examine(file, 0) {
            Ok(found) => found,
            Err(Failure::Failed(error)) => {
                unsound += 1;
                bar.suspend(|| say(&format!("error: {error:#}")));
                continue;
            }
            Err(usage) => return Err(usage),
        };
        if !found.is_sound() {
            unsound += 1;
        }
        if args.output.json {
            all.push(found);
        } else {
            out.line(show::verdict(&found))?;
            // Many files take long: each is told when it is known.
            out.flush()?;
        }
    }
    bar.finish_and_clear();
    if args.output.json {
        print_json(&all)?;
    }
    out.flush()?;
    Ok(if unsound == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
