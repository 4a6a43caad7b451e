//! `kera broker restart-plan`.

use std::process::ExitCode;

use clap::Args;
use kera_protocol::v1;
use serde::Serialize;

use crate::connect::{ConnectArgs, refused};
use crate::failure::{Failure, Outcome};
use crate::members::answering;
use crate::output::{Out, OutputArgs, Table, count, print_json};

/// Arguments of `kera broker restart-plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera broker restart-plan
  kera broker restart-plan --json

Restart one broker at a time, in this order, with SIGTERM: it hands over what it owns before it stops, and gets its share \
back once it serves again. Go on when this command ends with status 0 again. The exit status is 1 if it is better to \
wait before the next.")]
pub(crate) struct RestartPlanArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A rolling restart.
#[derive(Serialize)]
struct View {
    wait_for: Vec<String>,
    steps: Vec<StepView>,
}

/// A broker's turn.
#[derive(Serialize)]
struct StepView {
    broker_id: u32,
    address: String,
    host: String,
    controller: bool,
    handed_over: u64,
    offline: Vec<String>,
    waiting: Vec<String>,
    unreadable: Vec<String>,
    open_copies: u64,
}

impl StepView {
    fn new(step: v1::RestartStep) -> Self {
        Self {
            broker_id: step.broker,
            address: step.address,
            host: step.host,
            controller: step.controller,
            handed_over: step.handed_over,
            offline: step.offline,
            waiting: step.waiting,
            unreadable: step.unreadable,
            open_copies: step.open_copies,
        }
    }

    /// What is interrupted while the broker is away.
    fn interrupted(&self) -> String {
        let parts = [
            ("offline", &self.offline),
            ("appends wait", &self.waiting),
            ("partly unreadable", &self.unreadable),
        ];
        let parts = parts.iter().filter(|(_, streams)| !streams.is_empty());
        let parts: Vec<_> = parts
            .map(|(what, streams)| format!("{what}: {}", few(streams)))
            .collect();
        match parts.is_empty() {
            true => "nothing".into(),
            false => parts.join("; "),
        }
    }
}

/// The first names, and how many there are beyond.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = names
        .iter()
        .take(SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

pub(super) async fn run(args: RestartPlanArgs) -> Outcome {
    let (mut control, _) = answering(&args.connect).await?;
    let answer = control
        .clusters
        .plan_restart(v1::PlanRestartRequest {})
        .await;
    let answer = answer.map_err(|s| refused(&s))?.into_inner();
    let view = View {
        wait_for: answer.wait_for,
        steps: answer.steps.into_iter().map(StepView::new).collect(),
    };
    match args.output.json {
        true => print_json(&view)?,
        false => print(&view)?,
    }
    Ok(match view.wait_for.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print(view: &View) -> Result<(), Failure> {
    let mut out = Out::stdout();
    for reason in &view.wait_for {
        out.line(format_args!("wait: {reason}"))?;
    }
    let mut table = Table::new(&[
        ">step",
        "broker",
        "address",
        "host",
        ">handed over",
        "interrupted meanwhile",
        "role",
    ]);
    for (at, step) in view.steps.iter().enumerate() {
        table.row([
            (at + 1).to_string(),
            step.broker_id.to_string(),
            step.address.clone(),
            step.host.clone(),
            count(step.handed_over),
            step.interrupted(),
            if step.controller { "controller" } else { "" }.to_owned(),
        ]);
    }
    out.bytes(table.render().as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_names_what_it_interrupts() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        let step = StepView::new(v1::RestartStep {
            offline: names(&["a", "b", "c", "d", "e"]),
            waiting: names(&["f"]),
            ..Default::default()
        });
        assert_eq!(
            step.interrupted(),
            "offline: a, b, c and 2 more; appends wait: f"
        );
        assert_eq!(
            StepView::new(v1::RestartStep::default()).interrupted(),
            "nothing"
        );
    }
}
