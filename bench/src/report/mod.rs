//! Tables and plots of what sessions measured.

pub(crate) mod document;
mod folder;
mod kept;
mod plot;
mod summary;
mod tables;
mod targets;
mod text;

pub(crate) use folder::rebuild;
pub(crate) use text::one_line;

use anyhow::{Context, Result, ensure};

use self::folder::Folder;
use crate::args::ReportArgs;
use crate::results::Results;
use crate::scenario::File;

/// `kera-bench report`.
pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    if let Some(scenarios) = &args.plots_of {
        let file = File::read(scenarios)?;
        for path in &args.results {
            let mut results = Results::read(path)?;
            results.plots.clone_from(&file.plot);
            results.write(path)?;
        }
    }
    if args.merge {
        return merge(args);
    }
    let folder = Folder::read(&args.results)?;
    match &args.document {
        None => folder.print(),
        Some(document) if args.check => {
            let broken = folder.differences(document)?;
            ensure!(
                broken.is_empty(),
                "not what the results give; `kera-bench report` makes it anew:\n  {}",
                broken.join("\n  ")
            );
            Ok(())
        }
        Some(document) => folder.write(document),
    }
}

fn merge(args: &ReportArgs) -> Result<()> {
    let (first, others) = args.results.split_first().context("no results are named")?;
    ensure!(
        !others.is_empty(),
        "--merge needs the results that complete {}",
        first.display()
    );
    let mut results = Results::read(first)?;
    let before = results.cases.len();
    for path in others {
        results
            .complete_from(&Results::read(path)?)
            .with_context(|| format!("{} and {}", first.display(), path.display()))?;
    }
    results.write(first)?;
    eprintln!(
        "{} has {} cases, {} of them from other sessions",
        first.display(),
        results.cases.len(),
        results
            .cases
            .iter()
            .filter(|one| one.from.is_some())
            .count()
    );
    ensure!(results.cases.len() >= before, "cases were lost");
    Ok(())
}

/// What a session's section is called.
fn heading(results: &Results) -> String {
    format!("{}: `{}`", results.title, results.command)
}

/// The section of a session, in Markdown.
pub(crate) fn render(results: &Results) -> String {
    section(results, &|_| String::new())
}

/// The section, with what `plots` gives for a scenario.
fn section(results: &Results, plots: &dyn Fn(&str) -> String) -> String {
    let mut out = format!("## {}\n\n", heading(results));
    out.push_str(&text::conditions(results));
    out.push_str(&targets::summary(results));
    out.push_str(&tables::all(results, plots));
    out
}

#[cfg(test)]
mod tests;
